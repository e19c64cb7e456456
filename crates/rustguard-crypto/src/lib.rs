//! The cryptography of WireGuard: ChaCha20-Poly1305 over runs of packets, X25519, BLAKE2s, HKDF.
#![cfg_attr(not(feature = "aws-lc"), no_std)]
#![forbid(unsafe_code)]

pub mod aead;
pub mod hash;
pub mod x25519;
