//! All targets in one program, which libFuzzer drives: the environment variable `RUSTGUARD_FUZZ` names the one that
//! runs. `fuzz/run` builds it and starts it.
#![no_main]

use std::{env, process, sync::OnceLock};

// A wrong name is found before the first input, so that it does not look like a finding.
libfuzzer_sys::fuzz_target!(init: { target(); }, |input: &[u8]| target()(input));

fn target() -> fn(&[u8]) {
    static TARGET: OnceLock<fn(&[u8])> = OnceLock::new();
    *TARGET.get_or_init(|| {
        let wanted = env::var("RUSTGUARD_FUZZ").unwrap_or_default();
        let found = rustguard_fuzz::TARGETS.iter().find(|(name, _)| *name == wanted);
        let Some((_, target)) = found else {
            let names = rustguard_fuzz::TARGETS.map(|(name, _)| name).join(" ");
            eprintln!("RUSTGUARD_FUZZ is \"{wanted}\", and none of: {names}");
            process::abort();
        };
        *target
    })
}
