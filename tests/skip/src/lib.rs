//! The third outcome of a test, which libtest does not have: it did not run.
//!
//! A test that ends early says so with a line `SKIPPED name: reason`, which `cargo suite` counts and names. The line
//! passes by libtest's capture, so that it is also seen with `cargo test`, which counts the test as passed.
#![forbid(unsafe_code)]

use std::{
    env,
    io::{self, Write as _},
    thread,
};

/// Reports that this machine lacks something that the running test needs: a program, a right, a kernel feature.
///
/// # Panics
/// With `CI=true`: nobody reads the message there, and `.ci/run install` installs everything.
#[track_caller]
pub fn missing(what: &str) {
    assert!(!in_ci(), "this test cannot run: {what}");
    skipped(what);
}

/// Reports that the running test, or a part of it, is left out on purpose.
pub fn skipped(reason: &str) {
    // libtest names the thread of a test after the test.
    skipped_by(thread::current().name().unwrap_or("main"), reason);
}

/// Like [`skipped`], from a thread or process other than the test's.
pub fn skipped_by(test: &str, reason: &str) {
    // An error means that standard error is closed, so that nobody could read the line.
    let _ = writeln!(io::stderr(), "\nSKIPPED {test}: {reason}");
}

/// Whether a missing program is a failure.
pub fn in_ci() -> bool {
    env::var("CI").is_ok_and(|value| value == "true")
}
