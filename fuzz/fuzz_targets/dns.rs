//! See `rustguard_fuzz::dns`.
#![no_main]

libfuzzer_sys::fuzz_target!(|input: &[u8]| rustguard_fuzz::dns(input));
