//! BLAKE2s, keyed BLAKE2s, HMAC-BLAKE2s and the HKDF of Noise.

/// Bytes of a hash.
pub const HASH_LEN: usize = 32;

/// BLAKE2s-256 over the parts, one after another.
pub fn hash(_parts: &[&[u8]]) -> [u8; HASH_LEN] {
    todo!()
}
/// Keyed BLAKE2s with a 16-byte result (MAC1, MAC2, cookie), over the parts.
pub fn mac(_key: &[u8], _parts: &[&[u8]]) -> [u8; 16] {
    todo!()
}
/// HMAC-BLAKE2s (RFC 2104) over the parts.
pub fn hmac(_key: &[u8], _parts: &[&[u8]]) -> [u8; HASH_LEN] {
    todo!()
}
/// `N` (1 to 3) outputs of Noise's HKDF.
pub fn kdf<const N: usize>(_chaining_key: &[u8; HASH_LEN], _input: &[u8]) -> [[u8; HASH_LEN]; N] {
    todo!()
}
