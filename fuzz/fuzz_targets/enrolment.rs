//! See `rustguard_fuzz::enrolment`.
#![no_main]

libfuzzer_sys::fuzz_target!(|input: &[u8]| rustguard_fuzz::enrolment(input));
