//! X25519 on AVX-512, or with the preferred backend.

use super::Path;
use crate::{
    backend::{DiffieHellman, preferred},
    keys::{LowOrder, PublicKey, SharedSecret},
    simd::{Avx512, wipe_stack},
};
use zeroize::Zeroizing;

/// An X25519 private key and its public half.
///
/// With AVX-512, an exchange takes 0.8 of the time that it takes with AWS-LC, and two exchanges at once take 0.5
/// (Sapphire Rapids). The public half always comes from the preferred backend, which has tables of the base point.
#[derive(Clone)]
pub struct StaticSecret(Way);

#[derive(Clone)]
enum Way {
    Avx512 { scalar: Zeroizing<[u8; 32]>, public: PublicKey, kernel: Avx512 },
    Preferred(preferred::StaticSecret),
}

impl StaticSecret {
    /// Takes a clamped scalar, and does its exchanges on `path`, even where that is slower. This is for tests and
    /// benchmarks.
    ///
    /// Returns `None` when the processor lacks the instructions, and for [`Path::Avx2`], on which there is no X25519.
    pub fn with_path(scalar: &[u8; 32], path: Path) -> Option<Self> {
        let preferred = preferred::StaticSecret::from_clamped(scalar);
        let way = match path {
            Path::Avx512 => Way::Avx512 {
                scalar: Zeroizing::new(*scalar),
                public: preferred.public_key(),
                kernel: Avx512::detect()?,
            },
            Path::Avx2 => return None,
            Path::Single => Way::Preferred(preferred),
        };
        Some(Self(way))
    }
}

impl DiffieHellman for StaticSecret {
    fn from_clamped(scalar: &[u8; 32]) -> Self {
        [Path::detected(), Path::Single]
            .into_iter()
            .find_map(|path| Self::with_path(scalar, path))
            .expect("every processor can do without vectors")
    }

    fn to_bytes(&self) -> [u8; 32] {
        match &self.0 {
            Way::Avx512 { scalar, .. } => **scalar,
            Way::Preferred(secret) => secret.to_bytes(),
        }
    }

    fn public_key(&self) -> PublicKey {
        match &self.0 {
            Way::Avx512 { public, .. } => *public,
            Way::Preferred(secret) => secret.public_key(),
        }
    }

    fn diffie_hellman(&self, public: &PublicKey) -> Result<SharedSecret, LowOrder> {
        match &self.0 {
            Way::Avx512 { scalar, kernel, .. } => {
                let shared = kernel.x25519(scalar, &public.0);
                wipe_stack();
                contributory(&shared)
            }
            Way::Preferred(secret) => secret.diffie_hellman(public),
        }
    }

    fn diffie_hellman_pair([one, other]: [(&Self, &PublicKey); 2]) -> Result<[SharedSecret; 2], LowOrder> {
        match (&one.0.0, &other.0.0) {
            (Way::Avx512 { scalar, kernel, .. }, Way::Avx512 { scalar: other_scalar, .. }) => {
                let [shared, other_shared] = kernel.x25519_pair([scalar, other_scalar], [&one.1.0, &other.1.0]);
                wipe_stack();
                Ok([contributory(&shared)?, contributory(&other_shared)?])
            }
            _ => Ok([one.0.diffie_hellman(one.1)?, other.0.diffie_hellman(other.1)?]),
        }
    }
}

/// Refuses the result of a point of low order. With a clamped scalar, no other point has this result.
fn contributory(shared: &[u8; 32]) -> Result<SharedSecret, LowOrder> {
    let bits = shared.iter().fold(0, |bits, byte| bits | byte);
    if bits == 0 { Err(LowOrder) } else { Ok(SharedSecret::new(shared)) }
}
