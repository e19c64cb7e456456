//! The cryptography of WireGuard: ChaCha20-Poly1305 over runs of packets, X25519, BLAKE2s, HKDF.
//!
//! The rest of RustGuard calls [`aead`], [`x25519`] and [`hash`]. The AEAD and X25519 come from one of two backends,
//! which additive features choose:
//!
//! | Feature | Source | Needs | Use |
//! |---|---|---|---|
//! | `portable` | RustCrypto and dalek | `core` only | small machines, builds without C; the reference of the tests |
//! | `aws-lc` | aws-lc-rs | `std`, a C compiler to build | all other builds; three times as fast on full packets |
//!
//! With both features, `aws-lc` does the work. Both are then available under [`backend`], so that tests and benchmarks
//! can compare them. On x86-64, the feature `simd` adds kernels for AVX-512 and AVX2. They process runs of packets,
//! sixteen packets at a time, where the processor has these instructions. With AVX-512 they are more than twice as fast
//! as `aws-lc`. X25519 then uses AVX-512 too, and a pair of exchanges takes half the time. Only handshakes and cookies
//! use BLAKE2s and XChaCha20-Poly1305, which always come from RustCrypto.
//!
//! With the feature `getrandom`, the module `random` and `x25519::StaticSecret::generate` take random bytes from the
//! operating system. The feature `simd` detects the processor's features and, with `std`, reads one environment
//! variable (see `backend::simd`). All other functions depend only on their arguments.
#![no_std]
// Only the module `simd` may use unsafe code.
#![deny(unsafe_code)]

#[cfg(feature = "aws-lc")]
extern crate alloc;
#[cfg(feature = "std")]
extern crate std;

#[cfg(not(any(feature = "portable", feature = "aws-lc")))]
compile_error!("rustguard-crypto needs a backend: enable the feature `portable` or `aws-lc`");

// `random::SystemRng` implements its traits.
#[cfg(feature = "getrandom")]
pub use rand_core;

pub mod aead;
pub mod backend;
pub mod base64;
mod frame;
pub mod hash;
mod keys;
#[cfg(feature = "getrandom")]
pub mod random;
#[cfg(all(feature = "simd", target_arch = "x86_64"))]
mod simd;
pub mod x25519;

/// Compiles only if `T` is wiped when it is dropped. Dependencies do that only with some of their cargo features, which
/// must stay enabled.
const fn wiped_on_drop<T: zeroize::ZeroizeOnDrop>() {}

/// Runs the examples of README.md as tests.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct Readme;
