//! WireGuard's four messages (paper §5.4), checked once where they enter: afterwards every field is there.

/// Bytes of a handshake initiation.
pub const INITIATION_LEN: usize = 148;
/// Bytes of a handshake response.
pub const RESPONSE_LEN: usize = 92;
/// Bytes of a cookie reply.
pub const COOKIE_REPLY_LEN: usize = 64;
/// Bytes of the shortest transport message: a keepalive.
pub const DATA_MIN_LEN: usize = 32;
/// Bytes of MAC1, and of MAC2: both stand at the end of initiation and response.
pub const MAC_LEN: usize = 16;

const INITIATION: u32 = 1;
const RESPONSE: u32 = 2;
const COOKIE_REPLY: u32 = 3;
const DATA: u32 = 4;

/// What a datagram is, by type and length.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// Handshake initiation, 148 bytes.
    Initiation,
    /// Handshake response, 92 bytes.
    Response,
    /// Cookie reply, 64 bytes.
    CookieReply,
    /// Transport data, 32 bytes or more.
    Data {
        /// The receiver's index.
        receiver: u32,
        /// The counter.
        counter: u64,
    },
}

impl Kind {
    /// Classifies; `None` for unknown types, wrong lengths, nonzero reserved bytes (the type and three reserved bytes are
    /// one little-endian number).
    pub fn of(datagram: &[u8]) -> Option<Self> {
        let (head, rest) = datagram.split_first_chunk()?;
        match (u32::from_le_bytes(*head), datagram.len()) {
            (INITIATION, INITIATION_LEN) => Some(Self::Initiation),
            (RESPONSE, RESPONSE_LEN) => Some(Self::Response),
            (COOKIE_REPLY, COOKIE_REPLY_LEN) => Some(Self::CookieReply),
            (DATA, DATA_MIN_LEN..) => {
                let (receiver, rest) = rest.split_first_chunk()?;
                let counter = rest.first_chunk()?;
                Some(Self::Data { receiver: u32::from_le_bytes(*receiver), counter: u64::from_le_bytes(*counter) })
            }
            _ => None,
        }
    }
}

/// Writes the header of a transport message.
pub(crate) fn write_data_header(header: &mut [u8; 16], receiver: u32, counter: u64) {
    header[..4].copy_from_slice(&DATA.to_le_bytes());
    header[4..8].copy_from_slice(&receiver.to_le_bytes());
    header[8..].copy_from_slice(&counter.to_le_bytes());
}

/// A copy of `N` bytes at a place that the message's type guarantees.
fn field<const N: usize>(message: &[u8], at: usize) -> &[u8; N] {
    message[at..at + N].first_chunk().expect("the slice has N bytes")
}

macro_rules! message {
    ($(#[$doc:meta])* $name:ident, $len:expr, $kind:expr, { $($(#[$fdoc:meta])* $field:ident: $at:literal, $n:literal;)* }) => {
        $(#[$doc])*
        #[derive(Clone)]
        pub struct $name([u8; $len]);

        impl $name {
            /// All zeros but the type.
            pub(crate) fn new() -> Self {
                let mut bytes = [0; $len];
                bytes[..4].copy_from_slice(&$kind.to_le_bytes());
                Self(bytes)
            }

            /// Takes a datagram; `None` if it is another message.
            pub fn parse(datagram: &[u8]) -> Option<Self> {
                let bytes: [u8; $len] = datagram.try_into().ok()?;
                (*field::<4>(&bytes, 0) == $kind.to_le_bytes()).then_some(Self(bytes))
            }

            /// The message.
            pub fn as_bytes(&self) -> &[u8; $len] {
                &self.0
            }

            $($(#[$fdoc])* pub(crate) fn $field(&self) -> &[u8; $n] {
                field(&self.0, $at)
            })*
        }

        paste_setters!($name, $($field: $at, $n;)*);
    };
}

/// Setters take a whole field, so that none can be written in half.
macro_rules! paste_setters {
    ($name:ident, $($field:ident: $at:literal, $n:literal;)*) => {
        impl $name {
            /// Sets the field that starts at byte `at`.
            pub(crate) fn set<const N: usize>(&mut self, at: usize, value: &[u8; N]) {
                debug_assert!([$(($at, $n)),*].contains(&(at, N)), "no field of this size starts here");
                self.0[at..at + N].copy_from_slice(value);
            }
        }
    };
}

message!(
    /// A handshake initiation: type, sender, ephemeral, encrypted static, encrypted timestamp, MAC1, MAC2.
    Initiation, INITIATION_LEN, INITIATION, {
        sender: 4, 4;
        ephemeral: 8, 32;
        encrypted_static: 40, 48;
        encrypted_timestamp: 88, 28;
        mac1: 116, 16;
        mac2: 132, 16;
    }
);

message!(
    /// A handshake response: type, sender, receiver, ephemeral, encrypted nothing, MAC1, MAC2.
    Response, RESPONSE_LEN, RESPONSE, {
        sender: 4, 4;
        receiver: 8, 4;
        ephemeral: 12, 32;
        encrypted_nothing: 44, 16;
        mac1: 60, 16;
        mac2: 76, 16;
    }
);

message!(
    /// A cookie reply: type, receiver, nonce, encrypted cookie.
    CookieReply, COOKIE_REPLY_LEN, COOKIE_REPLY, {
        receiver: 4, 4;
        nonce: 8, 24;
        encrypted_cookie: 32, 32;
    }
);

#[cfg(test)]
mod tests {
    use super::*;
    use alloc::vec;
    use proptest::prelude::*;

    #[test]
    fn c19_wrong_lengths_reserved_bytes_and_types_are_nothing() {
        for (kind, len) in [(1, 148), (2, 92), (3, 64), (4, 32), (4, 1_500)] {
            let mut datagram = vec![0; len];
            datagram[0] = kind;
            assert!(Kind::of(&datagram).is_some(), "{kind} {len}");
            if kind != 4 {
                assert_eq!(Kind::of(&datagram[..len - 1]), None);
                datagram.push(0);
                assert_eq!(Kind::of(&datagram), None);
            }
            for reserved in 1..4 {
                let mut datagram = datagram.clone();
                datagram.truncate(len);
                datagram[reserved] = 1;
                assert_eq!(Kind::of(&datagram), None);
            }
        }
        for kind in [0, 5, 255] {
            let mut datagram = vec![0; 148];
            datagram[0] = kind;
            assert_eq!(Kind::of(&datagram), None);
        }
        assert_eq!(Kind::of(&[4, 0, 0, 0]), None);
    }

    #[test]
    fn a_data_header_reads_as_it_was_written() {
        let mut datagram = [0; 32];
        write_data_header(datagram.first_chunk_mut().unwrap(), 0x0102_0304, u64::MAX - 5);
        assert_eq!(Kind::of(&datagram), Some(Kind::Data { receiver: 0x0102_0304, counter: u64::MAX - 5 }));
    }

    proptest! {
        #[test]
        fn c01_no_datagram_panics(datagram in proptest::collection::vec(any::<u8>(), 0..300), kind in 0..6_u8) {
            let mut datagram = datagram;
            if let Some(first) = datagram.first_mut() { *first = kind; }
            let _ = Kind::of(&datagram);
            let _ = (Initiation::parse(&datagram), Response::parse(&datagram), CookieReply::parse(&datagram));
        }
    }
}
