//! See `rustguard_fuzz::config`.
#![no_main]

libfuzzer_sys::fuzz_target!(|input: &[u8]| rustguard_fuzz::config(input));
