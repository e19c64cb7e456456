//! See `rustguard_fuzz::probe`.
#![no_main]

libfuzzer_sys::fuzz_target!(|input: &[u8]| rustguard_fuzz::probe(input));
