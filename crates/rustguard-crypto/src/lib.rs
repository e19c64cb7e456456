//! The cryptography of WireGuard: ChaCha20-Poly1305 over runs of packets, X25519, BLAKE2s, HKDF.
//!
//! [`aead`], [`x25519`] and [`hash`] are what the rest of RustGuard calls. The AEAD and X25519 come from one of two
//! backends, chosen by additive features:
//!
//! | Feature | From | Needs | For |
//! |---|---|---|---|
//! | `portable` | RustCrypto and dalek | `core` only | small machines, builds without C; the oracle of the tests |
//! | `aws-lc` | aws-lc-rs | `std`, a C compiler to build | everything else; three times as fast on full packets |
//!
//! With both, `aws-lc` does the work, and both are available under [`backend`], so that tests and benchmarks can compare them. On
//! x86-64 the feature `simd` adds kernels for AVX-512 and AVX2, which process runs of packets where the processor has these
//! instructions: sixteen packets at a time, with AVX-512 more than twice as fast as `aws-lc`. BLAKE2s and XChaCha20-Poly1305, which
//! only handshakes and cookies use, are RustCrypto's in either case.
//!
//! With the feature `getrandom`, keys can be drawn from the operating system's generator: the module `random`.
#![no_std]
// Only `simd` may.
#![deny(unsafe_code)]

#[cfg(feature = "aws-lc")]
extern crate alloc;
#[cfg(feature = "std")]
extern crate std;

#[cfg(not(any(feature = "portable", feature = "aws-lc")))]
compile_error!("rustguard-crypto needs a backend: enable the feature `portable` or `aws-lc`");

// Its traits are what `random::SystemRng` implements.
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

/// Compiles only if `T` is wiped when it is dropped. Dependencies do that behind cargo features, which must stay on.
const fn wiped_on_drop<T: zeroize::ZeroizeOnDrop>() {}

/// The examples of README.md, as tests.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct Readme;
