//! See `rustguard_fuzz::roster`.
#![no_main]

libfuzzer_sys::fuzz_target!(|input: &[u8]| rustguard_fuzz::roster(input));
