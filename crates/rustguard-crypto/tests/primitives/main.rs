//! The primitives: vectors, each backend against the other, and where stored keys come from. One binary, since CI
//! builds it for each combination of backends.
mod aead;
mod backends;
mod hash;
mod simd;
mod stored_keys;
mod x25519;
