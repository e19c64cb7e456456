//! See `rustguard_fuzz::paths`.
#![no_main]

libfuzzer_sys::fuzz_target!(|input: &[u8]| rustguard_fuzz::paths(input));
