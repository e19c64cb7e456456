//! See `rustguard_fuzz::backup`.
#![no_main]

libfuzzer_sys::fuzz_target!(|input: &[u8]| rustguard_fuzz::backup(input));
