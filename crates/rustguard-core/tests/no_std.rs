//! The core is `no_std`: a program that links neither std, nor a C library, nor a source of randomness is built in its
//! own workspace, inspected, and run. It completes a handshake and moves data in both directions. The core is also
//! checked for microcontrollers, if their targets are installed.
#![cfg(all(target_os = "linux", any(target_arch = "x86_64", target_arch = "aarch64")))]

use std::{path::Path, process::Command};

/// Cortex-M4 and M7 (64-bit atomics are missing), RP2040 and ESP32-C3 (compare-and-swap is missing as well).
const MICROCONTROLLERS: [&str; 3] = ["thumbv7em-none-eabihf", "thumbv6m-none-eabi", "riscv32imc-unknown-none-elf"];

#[test]
fn the_core_is_for_microcontrollers_too() {
    let package = Path::new(env!("CARGO_MANIFEST_DIR"));
    let printed = Command::new("rustc").current_dir(package).args(["--print", "sysroot"]).output().expect("rustc runs");
    let sysroot = String::from_utf8_lossy(&printed.stdout).trim().to_owned();
    for target in MICROCONTROLLERS {
        if !Path::new(&sysroot).join("lib/rustlib").join(target).exists() {
            rustguard_skip::skipped(&format!("no {target}: rustup target add {target}"));
            continue;
        }
        let mut cargo = Command::new(env!("CARGO"));
        cargo.current_dir(package).env_remove("RUSTFLAGS").env_remove("CARGO_ENCODED_RUSTFLAGS");
        cargo.args(["check", "--quiet", "--lib", "--no-default-features", "--features", "portable,critical-section"]);
        cargo.args(["--target", target, "--target-dir"]).arg(Path::new(env!("CARGO_TARGET_TMPDIR")).join(target));
        let checked = cargo.output().expect("cargo runs");
        assert!(checked.status.success(), "{target}: {}", String::from_utf8_lossy(&checked.stderr));
    }
}

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
