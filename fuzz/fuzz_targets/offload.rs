//! See `rustguard_fuzz::offload`.
#![no_main]

libfuzzer_sys::fuzz_target!(|input: &[u8]| rustguard_fuzz::offload(input));
