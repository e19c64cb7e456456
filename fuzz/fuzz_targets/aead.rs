//! See `rustguard_fuzz::aead`.
#![no_main]

libfuzzer_sys::fuzz_target!(|input: &[u8]| rustguard_fuzz::aead(input));
