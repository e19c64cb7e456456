//! See `rustguard_fuzz::forward`.
#![no_main]

libfuzzer_sys::fuzz_target!(|input: &[u8]| rustguard_fuzz::forward(input));
