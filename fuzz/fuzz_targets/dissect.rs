//! See `rustguard_fuzz::dissect`.
#![no_main]

libfuzzer_sys::fuzz_target!(|input: &[u8]| rustguard_fuzz::dissect(input));
