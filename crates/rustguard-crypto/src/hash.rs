//! BLAKE2s (RFC 7693), keyed BLAKE2s, HMAC-BLAKE2s and the HKDF of Noise.
//!
//! All functions take their input in parts, so that no buffer is needed to join them. Hash states, which contain traces
//! of keys, and intermediate results are zeroized on drop. Results are plain arrays. The caller must wipe the secret
//! ones.

use blake2::{
    Blake2s256, Blake2sMac,
    digest::{FixedOutput, KeyInit, Update, consts::U16},
};
use subtle::ConstantTimeEq;
use zeroize::Zeroizing;

/// Bytes of a hash.
pub const HASH_LEN: usize = 32;
/// Bytes of a keyed hash.
pub const MAC_LEN: usize = 16;
/// The block length of BLAKE2s in bytes. HMAC pads its key to this length.
const BLOCK_LEN: usize = 64;

// `Blake2s256` itself does not implement the marker trait, but its state does.
const _: () = crate::wiped_on_drop::<blake2::Blake2sVarCore>();
const _: () = crate::wiped_on_drop::<Blake2sMac<U16>>();

/// BLAKE2s-256 of the concatenated parts.
pub fn hash(parts: &[&[u8]]) -> [u8; HASH_LEN] {
    finish(absorb(Blake2s256::default(), parts))
}

/// Keyed BLAKE2s of the concatenated parts, with a result of 16 bytes (MAC1, MAC2, cookie).
///
/// # Panics
/// When `key` is empty or longer than 32 bytes. BLAKE2s has no such keys.
pub fn mac(key: &[u8], parts: &[&[u8]]) -> [u8; MAC_LEN] {
    assert!(!key.is_empty(), "BLAKE2s is not keyed by an empty key");
    let state = Blake2sMac::<U16>::new_from_slice(key).expect("BLAKE2s takes keys of up to 32 bytes");
    absorb(state, parts).finalize_fixed().into()
}

/// HMAC-BLAKE2s (RFC 2104) of the concatenated parts.
pub fn hmac(key: &[u8], parts: &[&[u8]]) -> [u8; HASH_LEN] {
    const INNER: u8 = 0x36;
    const OUTER: u8 = 0x5c;

    let mut pad = Zeroizing::new([0; BLOCK_LEN]);
    if key.len() <= BLOCK_LEN {
        pad[..key.len()].copy_from_slice(key);
    } else {
        pad[..HASH_LEN].copy_from_slice(&*Zeroizing::new(hash(&[key])));
    }

    pad.iter_mut().for_each(|byte| *byte ^= INNER);
    let inner = absorb(Blake2s256::default(), &[&*pad]);
    let inner = Zeroizing::new(finish(absorb(inner, parts)));

    pad.iter_mut().for_each(|byte| *byte ^= INNER ^ OUTER);
    hash(&[&*pad, &*inner])
}

/// `N` (1 to 3) outputs of Noise's HKDF (Noise, revision 34, section 4.3; the whitepaper's `Kdf`).
///
/// Another `N` does not compile:
/// ```compile_fail
/// let four: [[u8; 32]; 4] = rustguard_crypto::hash::kdf(&[0; 32], b"");
/// ```
pub fn kdf<const N: usize>(chaining_key: &[u8; HASH_LEN], input: &[u8]) -> [[u8; HASH_LEN]; N] {
    const { assert!(1 <= N && N <= 3, "Noise's HKDF has one to three outputs") };

    let secret = Zeroizing::new(hmac(chaining_key, &[input]));
    let mut outputs = [[0; HASH_LEN]; N];
    outputs[0] = hmac(&*secret, &[&[1]]);
    for i in 1..N {
        outputs[i] = hmac(&*secret, &[&outputs[i - 1], &[i as u8 + 1]]);
    }
    outputs
}

/// Whether `a` and `b` are equal, for comparing MACs. The time depends only on their lengths.
pub fn ct_eq(a: &[u8], b: &[u8]) -> bool {
    a.ct_eq(b).into()
}

fn absorb<S: Update>(state: S, parts: &[&[u8]]) -> S {
    parts.iter().fold(state, |state, part| state.chain(part))
}

fn finish(state: Blake2s256) -> [u8; HASH_LEN] {
    let mut hash = [0; HASH_LEN];
    FixedOutput::finalize_into(state, (&mut hash).into());
    hash
}
