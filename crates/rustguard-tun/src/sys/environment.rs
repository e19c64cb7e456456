//! Changing the environment, which the whole process shares without a lock.

use std::{
    ffi::{CStr, OsString, c_char},
    io,
};

unsafe extern "C" {
    static mut environ: *mut *mut c_char;
}

/// Removes a variable, and overwrites its value where it was.
pub(crate) fn take_variable(name: &str) -> io::Result<Option<OsString>> {
    let Some(value) = std::env::var_os(name) else { return Ok(None) };
    if std::fs::read_dir("/proc/self/task")?.count() != 1 {
        return Err(io::Error::other("the process has more than one thread already"));
    }
    // SAFETY: this is the only thread, so nobody reads or changes the environment meanwhile. `environ` is a list of pointers to
    // C strings with a null pointer at its end (POSIX, environ(7)), or null itself. The strings are the process's own memory, on the
    // stack it began with or made by setenv, and are writable; only bytes before the final zero are written. No reference
    // to them is kept: std copies values, and so has `var_os` done above.
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
