//! See `rustguard_fuzz::uapi`.
#![no_main]

libfuzzer_sys::fuzz_target!(|input: &[u8]| rustguard_fuzz::uapi(input));
