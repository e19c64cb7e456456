//! Whether the name of a tunnel leads to a file. `rustguard up wg0` and the unit `rustguard@wg0` know only the name.

use super::Remark;
use crate::process::systemd_runs;
use rustguard_quick::conf::{self, DIRECTORIES, Placement};
use std::path::Path;

/// Warns of two files with one name in the folders that are searched. Only the first is used.
pub(crate) fn remark(path: &Path) -> Option<Remark> {
    let shown = path.display();
    match conf::placement(path) {
        Placement::Hides(other) => Some(Remark {
            message: format!("{} has the same name as {shown}, and is not used", other.display()),
            help: format!("remove one of the two: {} stands for {shown}", names(path)),
        }),
        Placement::HiddenBy(used) if is_in_folders(path) => Some(Remark {
            message: format!("{shown} has the same name as {}, and is not used", used.display()),
            help: format!("remove one of the two: {} stands for {}", names(path), used.display()),
        }),
        _ => None,
    }
}

/// On a machine with systemd: a note that the unit does not use this file, which may be intended.
pub(crate) fn note(path: &Path) -> Option<String> {
    let shown = path.display();
    match conf::placement(path) {
        _ if !systemd_runs() => None,
        Placement::HiddenBy(used) if !is_in_folders(path) => {
            Some(format!("{shown}: {} stands for {}, and not for this file", names(path), used.display()))
        }
        Placement::Elsewhere => Some(format!(
            "{shown}: {} does not find it there; to bring it up at each start, move it to {}",
            names(path),
            DIRECTORIES.join(" or ")
        )),
        _ => None,
    }
}

/// The name of a file's tunnel, for commands and units that do not know the path.
fn names(path: &Path) -> String {
    let name = path.file_name().unwrap_or_default().to_string_lossy();
    let name = name.strip_suffix(".conf").unwrap_or(&name);
    format!("`{name}`, as in `rustguard up {name}` and rustguard@{name}.service,")
}

fn is_in_folders(path: &Path) -> bool {
    let folder = path.canonicalize().ok().and_then(|path| path.parent().map(Path::to_owned));
    DIRECTORIES.iter().any(|known| Path::new(known).canonicalize().ok() == folder && folder.is_some())
}
