//! Shared ownership.
//!
//! The standard library has no `Arc` for targets without atomic compare-and-swap (ESP32-C3, RP2040: `riscv32imc`,
//! `thumbv6m`). Programs for them build this crate with the feature `critical-section`, and their HAL implements the
//! crate of that name.
#[cfg(target_has_atomic = "ptr")]
pub use alloc::sync::Arc;
#[cfg(not(target_has_atomic = "ptr"))]
pub use portable_atomic_util::Arc;
