//! Changes inherited state that all threads of the process share without a lock: the environment, and open files.

use std::{
    ffi::{CStr, OsString, c_char},
    io,
    os::fd::RawFd,
};

unsafe extern "C" {
    static mut environ: *mut *mut c_char;
}

/// Closes all files above standard error that stayed open across exec(2), except these.
pub(crate) fn close_inherited(keep: &[RawFd]) -> io::Result<()> {
    if std::fs::read_dir("/proc/self/task")?.count() != 1 {
        return Err(io::Error::other("the process has more than one thread already"));
    }
    let open: Vec<RawFd> = std::fs::read_dir("/proc/self/fd")?
        .filter_map(|entry| entry.ok()?.file_name().to_str()?.parse().ok())
        .collect();
    // The folder's own descriptor is among them, and is closed already.
    for file in open.into_iter().filter(|file| *file > libc::STDERR_FILENO && !keep.contains(file)) {
        // SAFETY: the call takes no pointers. An error, which is negative, means that the file is closed.
        let flags = unsafe { libc::fcntl(file, libc::F_GETFD) };
        // exec(2) has closed all files with this flag, and std sets the flag on every file that it opens. So a file
        // with the flag is this process's own.
        if flags < 0 || flags & libc::FD_CLOEXEC != 0 {
            continue;
        }
        // SAFETY: the file was open before `main`, as it has no such flag, and there was no other thread. So no value
        // of this process owns it.
        unsafe { libc::close(file) };
    }
    Ok(())
}

/// Removes a variable, and overwrites its value in place.
pub(crate) fn take_variable(name: &str) -> io::Result<Option<OsString>> {
    let Some(value) = std::env::var_os(name) else { return Ok(None) };
    if std::fs::read_dir("/proc/self/task")?.count() != 1 {
        return Err(io::Error::other("the process has more than one thread already"));
    }
    // SAFETY: this is the only thread, so no other code reads or changes the environment meanwhile. `environ` is null,
    // or a list of pointers to C strings that ends with a null pointer (POSIX, environ(7)). The strings are memory of
    // this process, either on its initial stack or made by setenv, and are writable. Only bytes before the final zero
    // are written. No reference to the strings exists: std copies values, also in `var_os` above.
    unsafe {
        let mut entry = environ;
        while !entry.is_null() && !(*entry).is_null() {
            let text = CStr::from_ptr(*entry).to_bytes();
            let (len, start) = (text.len(), name.len() + 1);
            if text.get(..name.len()) == Some(name.as_bytes()) && text.get(name.len()) == Some(&b'=') {
                std::ptr::write_bytes((*entry).add(start), 0, len - start);
            }
            entry = entry.add(1);
        }
        std::env::remove_var(name);
    }
    Ok(Some(value))
}

/// Sets the size from which the allocator asks the kernel for each piece of memory. Returns whether the allocator has
/// such a size.
#[cfg(target_env = "gnu")]
pub(crate) fn set_separate_allocations(bytes: libc::c_int) -> bool {
    // SAFETY: mallopt(3) takes no pointers, locks the allocator itself, and changes only where later allocations are.
    // The second call keeps the free end of the heap shorter than these allocations: they would be taken from there.
    unsafe { libc::mallopt(libc::M_MMAP_THRESHOLD, bytes) == 1 && libc::mallopt(libc::M_TOP_PAD, bytes / 2) == 1 }
}

/// Only glibc has such a size.
#[cfg(not(target_env = "gnu"))]
pub(crate) fn set_separate_allocations(_: libc::c_int) -> bool {
    false
}
