//! See `rustguard_fuzz::parity`.
#![no_main]

libfuzzer_sys::fuzz_target!(|input: &[u8]| rustguard_fuzz::parity(input));
