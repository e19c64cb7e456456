//! Random bytes from the operating system's generator.
//!
//! Stored keys (private keys, preshared keys, the secrets of invites, a server's key) come from here. Ephemeral keys
//! and other short-lived values may come from any [`CryptoRng`](rand_core::CryptoRng).

use core::{convert::Infallible, fmt};
use rand_core::{TryCryptoRng, TryRng};
use zeroize::Zeroizing;

/// The operating system has no random bytes. For example, it has no `getrandom` system call and no `/dev/urandom`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Unavailable(getrandom::Error);

impl fmt::Display for Unavailable {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "the operating system has no random bytes: {}", self.0)
    }
}

impl core::error::Error for Unavailable {}

/// `N` random bytes, for a key. They are wiped when they are dropped.
///
/// # Errors
/// [`Unavailable`].
pub fn bytes<const N: usize>() -> Result<Zeroizing<[u8; N]>, Unavailable> {
    let mut bytes = Zeroizing::new([0; N]);
    getrandom::fill(&mut *bytes).map_err(Unavailable)?;
    Ok(bytes)
}

/// The operating system's generator, for functions that take a [`CryptoRng`](rand_core::CryptoRng).
///
/// It has no state in the process. Each call is a system call, or as fast as one.
///
/// # Panics
/// Every method panics when the operating system has no random bytes. To handle that, call [`bytes`] first: on Linux, a
/// generator that has answered once does not fail later.
#[derive(Clone, Copy, Debug, Default)]
pub struct SystemRng;

impl TryRng for SystemRng {
    type Error = Infallible;

    fn try_next_u32(&mut self) -> Result<u32, Infallible> {
        Ok(getrandom::u32().expect(AVAILABLE))
    }

    fn try_next_u64(&mut self) -> Result<u64, Infallible> {
        Ok(getrandom::u64().expect(AVAILABLE))
    }

    fn try_fill_bytes(&mut self, bytes: &mut [u8]) -> Result<(), Infallible> {
        getrandom::fill(bytes).expect(AVAILABLE);
        Ok(())
    }
}

impl TryCryptoRng for SystemRng {}

const AVAILABLE: &str = "the operating system has random bytes";

#[cfg(test)]
mod tests {
    use super::*;
    use crate::x25519::StaticSecret;
    use rand_core::Rng as _;

    #[test]
    fn two_calls_differ_and_all_bytes_are_filled() {
        let (a, b) = (bytes::<64>().unwrap(), bytes::<64>().unwrap());
        assert_ne!(a, b);
        let mut rng = SystemRng;
        let mut bytes = [0; 64];
        rng.fill_bytes(&mut bytes);
        assert!(bytes != [0; 64] && rng.next_u64() != rng.next_u64());
        let mut seen = [false; 64];
        // A byte is zero with a chance of 1 in 256, and practically never eight times in a row.
        for _ in 0..8 {
            rng.fill_bytes(&mut bytes);
            seen.iter_mut().zip(bytes).for_each(|(seen, byte)| *seen |= byte != 0);
        }
        assert_eq!(seen, [true; 64]);
    }

    #[test]
    fn generated_private_keys_differ_and_are_clamped() {
        let (a, b) = (StaticSecret::generate().unwrap(), StaticSecret::generate().unwrap());
        assert_ne!(a.public_key(), b.public_key());
        assert_eq!((a.to_bytes()[0] & 7, a.to_bytes()[31] >> 6), (0, 1));
    }
}
