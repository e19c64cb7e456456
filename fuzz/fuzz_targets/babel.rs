//! See `rustguard_fuzz::babel`.
#![no_main]

libfuzzer_sys::fuzz_target!(|input: &[u8]| rustguard_fuzz::babel(input));
