//! The primitives: vectors, each backend against the other, and the origin of stored keys. They are one binary, because
//! CI builds it for each combination of backends.
mod aead;
mod backends;
mod hash;
mod simd;
mod stored_keys;
mod x25519;
