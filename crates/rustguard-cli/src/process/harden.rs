//! What keeps the keys in this process's memory from leaving it by other ways than the program's own.
//!
//! Each of these is refused somewhere (containers, user namespaces, small limits). A tunnel works without it, so a refusal
//! is a line of the debug log and no failure.

use rustix::{
    io,
    mm::{MlockAllFlags, mlockall},
    process::{DumpableBehavior, Resource, Rlimit, getrlimit, set_dumpable_behavior, setrlimit},
};

/// To be called before any secret is read or made.
pub(crate) fn process() {
    tell("switch core dumps and ptrace off", not_dumpable());
    tell("lock memory", lock_memory());
}

/// No core dump, and no ptrace, /proc/PID/mem or /proc/PID/environ for other processes of the same user (CAP_SYS_PTRACE
/// still permits them). Programs that this one starts are dumpable again: execve(2) resets it.
fn not_dumpable() -> io::Result<()> {
    // The hard limit stays, so that a hook may raise its own again.
    setrlimit(Resource::Core, Rlimit { current: Some(0), ..getrlimit(Resource::Core) })?;
    set_dumpable_behavior(DumpableBehavior::NotDumpable)
}

/// Keeps all of this process's memory out of swap, and thereby what passes through stacks and buffers beside the keys.
///
/// Only where no limit applies. Every later mapping counts against the limit with its whole size, used or not, and one beyond
/// it fails: glibc's arenas reserve 64 MiB each. `MCL_ONFAULT` locks pages as they are first used, so that resident memory
/// does not grow.
fn lock_memory() -> io::Result<()> {
    let all = MlockAllFlags::CURRENT | MlockAllFlags::FUTURE | MlockAllFlags::ONFAULT;
    let limit = getrlimit(Resource::Memlock);
    if limit.maximum.is_none() {
        setrlimit(Resource::Memlock, Rlimit { current: None, maximum: None })?;
        return mlockall(all);
    }
    // CAP_IPC_LOCK goes beyond any limit, but not that of a user namespace. Under a limit of nothing, mlockall succeeds
    // with the right one only (can_do_mlock).
    setrlimit(Resource::Memlock, Rlimit { current: Some(0), ..limit })?;
    let locked = mlockall(all);
    setrlimit(Resource::Memlock, limit)?;
    locked
}

fn tell(what: &str, result: io::Result<()>) {
    if let Err(error) = result {
        tracing::debug!("cannot {what}: {error}");
    }
}
