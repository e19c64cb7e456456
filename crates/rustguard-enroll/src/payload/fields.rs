//! Lists and addresses inside a payload.
use crate::wire::Reader;
use core::net::IpAddr;

/// Returns false if the list has more elements than one byte can count.
pub(super) fn write_list<T>(to: &mut Vec<u8>, list: &[T], mut write: impl FnMut(&mut Vec<u8>, &T)) -> bool {
    to.push(list.len() as u8);
    list.iter().for_each(|element| write(to, element));
    list.len() <= 255
}

pub(super) fn read_list<'d, T>(
    from: &mut Reader<'d>,
    mut read: impl FnMut(&mut Reader<'d>) -> Option<T>,
) -> Option<Vec<T>> {
    let [count] = *from.take()?;
    (0..count).map(|_| read(from)).collect()
}

/// `4 | IPv4 4` or `6 | IPv6 16`.
pub(super) fn write_address(to: &mut Vec<u8>, address: IpAddr) {
    match address {
        IpAddr::V4(address) => {
            to.push(4);
            to.extend_from_slice(&address.octets());
        }
        IpAddr::V6(address) => {
            to.push(6);
            to.extend_from_slice(&address.octets());
        }
    }
}

pub(super) fn read_address(from: &mut Reader<'_>) -> Option<IpAddr> {
    match from.take()? {
        [4] => Some(IpAddr::from(*from.take::<4>()?)),
        [6] => Some(IpAddr::from(*from.take::<16>()?)),
        _ => None,
    }
}
