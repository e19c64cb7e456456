//! Protection of the keys in this process's memory against core dumps, other processes and swap.
//!
//! Some environments refuse some of these measures (containers, user namespaces, small limits). A tunnel works without
//! them, so a refusal is only logged at the level debug.

use rustix::{
    io,
    mm::{MlockAllFlags, mlockall},
    process::{DumpableBehavior, Resource, Rlimit, getrlimit, set_dumpable_behavior, setrlimit},
};

/// Applies all measures. Has to be called before any secret is read or generated.
pub(crate) fn process() {
    tell("switch core dumps and ptrace off", not_dumpable());
    tell("lock memory", lock_memory());
}

/// Disables core dumps. Other processes of the same user cannot use ptrace, /proc/PID/mem or /proc/PID/environ either,
/// except with CAP_SYS_PTRACE. Programs that this one starts are dumpable again, because execve(2) resets the flag.
fn not_dumpable() -> io::Result<()> {
    // The hard limit stays, so that a hook may raise its own limit again.
    setrlimit(Resource::Core, Rlimit { current: Some(0), ..getrlimit(Resource::Core) })?;
    set_dumpable_behavior(DumpableBehavior::NotDumpable)
}

/// Keeps all memory of this process out of swap. This includes stacks and buffers that hold secrets for a moment.
///
/// This is done only if no limit applies. Every later mapping counts against the limit with its whole size, even if it
/// is unused, and a mapping beyond the limit fails. Each of glibc's arenas reserves 64 MiB. `MCL_ONFAULT` locks a page
/// when it is first used, so resident memory does not grow.
fn lock_memory() -> io::Result<()> {
    let all = MlockAllFlags::CURRENT | MlockAllFlags::FUTURE | MlockAllFlags::ONFAULT;
    let limit = getrlimit(Resource::Memlock);
    if limit.maximum.is_none() {
        setrlimit(Resource::Memlock, Rlimit { current: None, maximum: None })?;
        return mlockall(all);
    }
    // CAP_IPC_LOCK overrides the limit, but only in the initial user namespace. With a limit of zero, mlockall succeeds
    // only with that capability (can_do_mlock in the kernel).
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
