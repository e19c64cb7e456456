//! The core is `no_std`: a program that links neither std, nor a C library, nor a source of randomness is built in a
//! workspace of its own, looked at, and run. It completes a handshake and moves data both ways.
#![cfg(all(target_os = "linux", any(target_arch = "x86_64", target_arch = "aarch64")))]

use std::{path::Path, process::Command};

#[test]
fn a_program_without_std_completes_a_handshake_and_moves_data() {
    let package = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/no-std");
    let cargo = || {
        let mut cargo = Command::new(env!("CARGO"));
        // Flags meant for the outer build (coverage, sanitizers) would bring std back in.
        cargo.current_dir(&package).env_remove("RUSTFLAGS").env_remove("CARGO_ENCODED_RUSTFLAGS");
        cargo
    };

    let target = Path::new(env!("CARGO_TARGET_TMPDIR")).join("no-std");
    let built = cargo().args(["build", "--quiet", "--target-dir"]).arg(&target).output().expect("cargo runs");
    assert!(built.status.success(), "{}", String::from_utf8_lossy(&built.stderr));

    let tree = cargo().args(["tree", "--edges", "normal", "--prefix", "none"]).output().expect("cargo runs");
    let tree = String::from_utf8_lossy(&tree.stdout);
    assert!(tree.contains("rustguard-core"), "{tree}");
    for unwanted in ["getrandom", "libc ", "aws-lc", "rand "] {
        assert!(!tree.lines().any(|line| line.starts_with(unwanted)), "{unwanted} is linked:\n{tree}");
    }

    let program = target.join("debug/rustguard-no-std");
    let binary = std::fs::read(&program).expect("the program was built");
    for unwanted in ["getrandom", "__libc_start_main", "/library/std/src/"] {
        let found = binary.windows(unwanted.len()).any(|window| window == unwanted.as_bytes());
        assert!(!found, "{unwanted} is in the binary");
    }

    let status = Command::new(&program).status().expect("the program starts");
    assert!(status.success(), "{status}");
}
