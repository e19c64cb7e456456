//! See `rustguard_fuzz::candidates`.
#![no_main]

libfuzzer_sys::fuzz_target!(|input: &[u8]| rustguard_fuzz::candidates(input));
