//! Test bodies for real devices and sockets, which run over every backend.
pub(crate) mod tun;
pub(crate) mod udp;

use std::{
    process::{Command, Output},
    sync::{Mutex, PoisonError},
    time::Duration,
};

/// A time limit for waiting. Every step of these tests takes much less, so reaching the limit means that something was
/// lost.
pub(crate) const PATIENCE: Duration = Duration::from_secs(60);

/// A child process holds every descriptor of this process, also of other tests, until its exec has closed them, which
/// may be after `spawn` has returned. A socket or an interface that is closed meanwhile lives on until then.
static CHILD: Mutex<()> = Mutex::new(());

/// Everything that `close` closes is really closed when this returns.
pub(crate) fn without_children<T>(close: impl FnOnce() -> T) -> T {
    let _guard = CHILD.lock().unwrap_or_else(PoisonError::into_inner);
    close()
}

/// Runs a program to its end. All tests here that need a program use this one.
pub(crate) fn run(program: &str, arguments: &str) -> Output {
    without_children(|| Command::new(program).args(arguments.split(' ')).output())
        .unwrap_or_else(|error| panic!("{program}: {error}"))
}
