//! Finds the host's TCP connections that exist when a policy comes into force, and which side began them.
//!
//! The kernel's lists of sockets do not tell which side began. If a socket listens on the local port, the other side
//! began. The listener may be closed already. So the other side is also assumed to have begun if the local port is not
//! one of the ports that the kernel chooses. The remote port proves nothing, because the remote side can choose it.

use rustguard_core::dissect::Tuple;
use std::{
    collections::HashSet,
    fs::{self, File},
    io::Read as _,
    net::{IpAddr, Ipv4Addr, Ipv6Addr},
    ops::RangeInclusive,
};

/// The most connections that are taken over: half of the host's share of the table.
const MOST: usize = super::CAPACITY / 4;
/// The most bytes that are read of each list. A line has 150.
const READ: u64 = 8 << 20;
const TCP: u8 = 6;
/// The default of `net.ipv4.ip_local_port_range`, if it cannot be read.
const CHOSEN: RangeInclusive<u16> = 32_768..=60_999;
/// Ports that the kernel chooses for NFS (`sunrpc.min_resvport` and `max_resvport`).
const CHOSEN_FOR_NFS: RangeInclusive<u16> = 665..=1_023;

/// A connection, as the host began it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Running {
    pub(super) tuple: Tuple,
    pub(super) stage: Stage,
}

/// The state of a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Stage {
    /// There is no answer yet.
    Opening,
    Open,
    /// One side has finished.
    Closing,
}

/// The connections that this host has begun. None if the lists cannot be read.
pub(super) fn running() -> Vec<Running> {
    // Not `/proc/net`, which shows the network namespace of the first thread.
    let lists = ["tcp", "tcp6"].map(|list| read(&format!("/proc/thread-self/net/{list}")));
    begun_here(&lists, &chosen())
}

/// The ports from which the kernel chooses for a socket that is not bound to a port.
pub(super) fn chosen() -> RangeInclusive<u16> {
    let text = fs::read_to_string("/proc/sys/net/ipv4/ip_local_port_range").unwrap_or_default();
    let range = || {
        let (first, last) = text.trim().split_once(char::is_whitespace)?;
        Some(first.parse().ok()?..=last.trim().parse().ok()?)
    };
    range().unwrap_or(CHOSEN)
}

fn read(path: &str) -> String {
    let mut bytes = Vec::new();
    if let Ok(file) = File::open(path) {
        // The bytes that were read before an error are useful.
        let _ = file.take(READ).read_to_end(&mut bytes);
    }
    String::from_utf8_lossy(&bytes).into_owned()
}

/// The connections in these lists that the local side began. The kernel chooses ports from `chosen`.
fn begun_here(lists: &[String], chosen: &RangeInclusive<u16>) -> Vec<Running> {
    let sockets = || lists.iter().flat_map(|list| list.lines()).filter_map(Socket::read);
    let called: HashSet<u16> = sockets().filter(|it| it.state == LISTEN).map(|it| it.local.1).collect();
    let begun = |it: &Socket| {
        let local = it.local.1;
        !called.contains(&local) && (chosen.contains(&local) || CHOSEN_FOR_NFS.contains(&local))
    };
    sockets().filter(begun).filter_map(|it| it.running()).take(MOST).collect()
}

/// A line of `/proc/net/tcp` or `tcp6`.
struct Socket {
    local: (IpAddr, u16),
    remote: (IpAddr, u16),
    state: u8,
}

/// The state of a listener (include/net/tcp_states.h).
const LISTEN: u8 = 10;

impl Socket {
    fn read(line: &str) -> Option<Self> {
        let mut words = line.split_ascii_whitespace().skip(1);
        let [local, remote, state] = [words.next()?, words.next()?, words.next()?];
        Some(Self { local: end(local)?, remote: end(remote)?, state: u8::from_str_radix(state, 16).ok()? })
    }

    fn running(&self) -> Option<Running> {
        let stage = match self.state {
            1 => Stage::Open,
            2 => Stage::Opening,
            // FIN_WAIT1, FIN_WAIT2, CLOSE_WAIT, LAST_ACK, CLOSING.
            4 | 5 | 8 | 9 | 11 => Stage::Closing,
            _ => return None,
        };
        let ((from, source), (to, destination)) = (self.local, self.remote);
        if to.is_loopback() || from.is_ipv4() != to.is_ipv4() {
            return None;
        }
        let bits = |address| match address {
            IpAddr::V4(address) => u128::from(Ipv4Addr::to_bits(address)),
            IpAddr::V6(address) => Ipv6Addr::to_bits(address),
        };
        let ends = [bits(from), bits(to)];
        Some(Running { tuple: Tuple { ends, ports: [source, destination], protocol: TCP, v6: from.is_ipv6() }, stage })
    }
}

/// An address and a port: `0100007F:0016` is 127.0.0.1, port 22, on a little-endian machine.
fn end(text: &str) -> Option<(IpAddr, u16)> {
    let (address, port) = text.split_once(':')?;
    let word = |at: usize| Some(u32::from_str_radix(address.get(at..at + 8)?, 16).ok()?.to_ne_bytes());
    let address = match address.len() {
        8 => IpAddr::from(word(0)?),
        32 => {
            let words = [word(0)?, word(8)?, word(16)?, word(24)?];
            let bytes: [u8; 16] = words.concat().try_into().ok()?;
            // A socket for both versions of IP has a mapped address.
            IpAddr::from(bytes).to_canonical()
        }
        _ => return None,
    };
    Some((address, u16::from_str_radix(port, 16).ok()?))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::net::{SocketAddr, TcpListener, TcpStream};

    /// The kernel prints words of 32 bits in the machine's byte order.
    fn printed(at: &str) -> String {
        let at: SocketAddr = at.parse().unwrap();
        let bytes = match at.ip() {
            IpAddr::V4(address) => address.octets().to_vec(),
            IpAddr::V6(address) => address.octets().to_vec(),
        };
        let words = bytes.chunks(4).map(|word| format!("{:08X}", u32::from_ne_bytes(word.try_into().unwrap())));
        format!("{}:{:04X}", words.collect::<String>(), at.port())
    }

    fn line(local: &str, remote: &str, state: u8) -> String {
        let (local, remote) = (printed(local), printed(remote));
        format!(
            "   7: {local} {remote} {state:02X} 00000000:00000000 00:00000000 00000000  0  0 12345 1 0 20 4 30 10 -1\n"
        )
    }

    fn ends(running: &[Running]) -> Vec<(String, String, Stage)> {
        let shown = |it: &Running| {
            let [from, to] = it.tuple.ports;
            let (source, destination) = (it.tuple.source(), it.tuple.destination());
            (SocketAddr::new(source, from).to_string(), SocketAddr::new(destination, to).to_string(), it.stage)
        };
        running.iter().map(shown).collect()
    }

    #[test]
    fn what_others_have_begun_is_not_the_hosts() {
        const HEAD: &str =
            "  sl  local_address rem_address   st tx_queue rx_queue tr tm->when retrnsmt   uid  timeout inode\n";
        let v4 = [
            HEAD.to_owned(),
            line("0.0.0.0:22", "0.0.0.0:0", 10),
            line("10.0.0.1:40000", "10.0.0.2:443", 1),
            line("10.0.0.1:40001", "10.0.0.2:443", 2),
            line("10.0.0.1:40002", "10.0.0.2:443", 8),
            line("10.0.0.1:22", "10.0.0.2:50000", 1),
            // The local port is not in `chosen`: the listener is closed.
            line("10.0.0.1:5000", "10.0.0.2:50000", 1),
            line("10.0.0.1:5000", "10.0.0.2:700", 1),
            line("10.0.0.1:25", "10.0.0.2:25", 1),
            // NFS.
            line("10.0.0.1:700", "10.0.0.2:2049", 1),
            line("127.0.0.1:40003", "127.0.0.1:443", 1),
            line("10.0.0.1:40004", "10.0.0.2:443", 6),
            "   8: 0100007F:0016 what 01\n".to_owned(),
            "   9: 0100007F".to_owned(),
        ];
        let v6 = [
            line("[::]:8080", "[::]:0", 10),
            line("[fd00::1]:40005", "[fd00::2]:443", 1),
            line("[::ffff:10.0.0.1]:40006", "[::ffff:10.0.0.2]:443", 1),
            line("[::ffff:10.0.0.1]:8080", "[::ffff:10.0.0.2]:443", 1),
        ];
        let seen = begun_here(&[v4.concat(), v6.concat()], &CHOSEN);
        let expected = [
            ("10.0.0.1:40000", "10.0.0.2:443", Stage::Open),
            ("10.0.0.1:40001", "10.0.0.2:443", Stage::Opening),
            ("10.0.0.1:40002", "10.0.0.2:443", Stage::Closing),
            ("10.0.0.1:700", "10.0.0.2:2049", Stage::Open),
            ("[fd00::1]:40005", "[fd00::2]:443", Stage::Open),
            ("10.0.0.1:40006", "10.0.0.2:443", Stage::Open),
        ];
        assert_eq!(ends(&seen), expected.map(|(from, to, stage)| (from.to_owned(), to.to_owned(), stage)));
    }

    #[test]
    fn the_number_is_bounded() {
        let lines: String = (0..=MOST as u32)
            .map(|n| line(&format!("10.0.0.1:{}", 40_000 + n % 20_000), &format!("10.{}.0.2:443", n / 20_000), 1))
            .collect();
        assert_eq!(begun_here(&[lines], &CHOSEN).len(), MOST);
    }

    /// The lists of this kernel can be read. [`running`] omits loopback connections, but the lists contain them.
    #[test]
    fn the_lists_of_this_kernel() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let stream = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        let own = (stream.local_addr().unwrap(), stream.peer_addr().unwrap());
        let list = read("/proc/thread-self/net/tcp");
        let sockets: Vec<_> = list.lines().filter_map(Socket::read).collect();
        let has = |local: SocketAddr, remote: Option<SocketAddr>, state| {
            sockets.iter().any(|it| {
                it.state == state
                    && it.local == (local.ip(), local.port())
                    && remote.is_none_or(|remote| it.remote == (remote.ip(), remote.port()))
            })
        };
        assert!(has(own.0, Some(own.1), 1) && has(own.1, None, LISTEN), "{list}");
    }
}
