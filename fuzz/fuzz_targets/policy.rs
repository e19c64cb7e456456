//! See `rustguard_fuzz::policy`.
#![no_main]

libfuzzer_sys::fuzz_target!(|input: &[u8]| rustguard_fuzz::policy(input));
