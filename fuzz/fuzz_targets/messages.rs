//! See `rustguard_fuzz::messages`.
#![no_main]

libfuzzer_sys::fuzz_target!(|input: &[u8]| rustguard_fuzz::messages(input));
