//! Names for files and folders that are moved aside.

use std::path::{Path, PathBuf};

/// An unused name beside a file or folder: `rg0.before-restore`, and then `rg0.before-restore-2`. No interface can have
/// such a name.
pub fn free_name(path: &Path, end: &str) -> PathBuf {
    let name = |number: u32| {
        let mut name = path.as_os_str().to_owned();
        name.push(if number == 1 { format!(".{end}") } else { format!(".{end}-{number}") });
        PathBuf::from(name)
    };
    // A dangling link occupies its name, too.
    (1..).map(name).find(|name| name.symlink_metadata().is_err()).unwrap_or_else(|| name(0))
}
