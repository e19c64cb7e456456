//! See `rustguard_fuzz::import`.
#![no_main]

libfuzzer_sys::fuzz_target!(|input: &[u8]| rustguard_fuzz::import(input));
