//! Resolves a command line argument to a file and an interface name.

use super::spelling;
use rustguard_device::interface::{InterfaceNameError, check_name};
use std::{
    io,
    os::unix::fs::PermissionsExt as _,
    path::{Path, PathBuf},
};

/// The folders in which a bare name is looked up, in this order.
pub const DIRECTORIES: [&str; 2] = ["/etc/wireguard", "/etc/rustguard"];

/// Why no configuration file or no valid interface name was found.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum NameError {
    /// The name is not valid for an interface.
    #[error(transparent)]
    Invalid(#[from] InterfaceNameError),
    /// No file exists for a bare name.
    #[error(
        "there is no configuration for {name}: neither {} exists; {}",
        .looked.join(" nor "),
        .nearest.as_ref().map_or_else(
            || format!("give a path (`./{name}.conf`) or put the file there"),
            |nearest| format!("did you mean {nearest}?")
        )
    )]
    NotFound {
        /// The name.
        name: String,
        /// The paths that were tried.
        looked: Vec<String>,
        /// The name of a file with a similar spelling.
        nearest: Option<String>,
    },
}

/// Finds the file that `target` refers to, and its interface, which is the file's name without `.conf`.
///
/// A target that contains a `/` or ends in `.conf` is a path. This function does not check that it exists; opening it
/// does. Any other target is a name, such as `wg0`, of a file in `/etc/wireguard` or else in `/etc/rustguard`.
///
/// # Errors
/// See [`NameError`].
pub fn resolve_name(target: &str) -> Result<(PathBuf, String), NameError> {
    if target.contains('/') || target.ends_with(".conf") {
        let path = PathBuf::from(target);
        let file = path.file_name().and_then(|name| name.to_str()).unwrap_or_default();
        let name = file.strip_suffix(".conf").unwrap_or(file);
        check_name(name)?;
        let name = name.to_owned();
        return Ok((path, name));
    }
    check_name(target)?;
    let looked = DIRECTORIES.map(|directory| format!("{directory}/{target}.conf"));
    // A directory without search permission hides its files. The first path is then returned, and opening it reports
    // "permission denied", which is correct, and not "not found".
    let there = |path: &&String| !matches!(Path::new(path).try_exists(), Ok(false));
    match looked.iter().find(there) {
        Some(path) => Ok((path.into(), target.to_owned())),
        None => {
            let nearest = nearest_among(target, &DIRECTORIES.map(Path::new));
            Err(NameError::NotFound { name: target.to_owned(), looked: looked.into(), nearest })
        }
    }
}

/// The name of a file in these folders with the most similar spelling.
fn nearest_among(target: &str, directories: &[&Path]) -> Option<String> {
    let entries = directories.iter().filter_map(|directory| directory.read_dir().ok()).flatten().flatten();
    let names: Vec<String> = entries
        .filter_map(|entry| entry.file_name().to_str()?.strip_suffix(".conf").map(str::to_owned))
        .filter(|name| check_name(name).is_ok())
        .collect();
    spelling::nearest(target, &names.iter().map(String::as_str).collect::<Vec<_>>()).map(str::to_owned)
}

/// Whether the name of a configuration file leads to the file. `rustguard up wg0` and `rustguard@wg0.service` know only
/// the name.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Placement {
    /// The name leads to this file.
    Found,
    /// The name leads to this file. The other folder has another file with the name, which is not used.
    Hides(PathBuf),
    /// The name leads to another file.
    HiddenBy(PathBuf),
    /// The file is in none of [`DIRECTORIES`], and the name leads nowhere.
    Elsewhere,
}

/// Whether the name of the file at `path` leads to it. `Found` also for other than regular files, such as a pipe.
pub fn placement(path: &Path) -> Placement {
    placement_among(path, &DIRECTORIES.map(Path::new))
}

fn placement_among(path: &Path, directories: &[&Path]) -> Placement {
    let (Some(name), true) = (path.file_name().and_then(|name| name.to_str()), path.is_file()) else {
        return Placement::Found;
    };
    let name = format!("{}.conf", name.strip_suffix(".conf").unwrap_or(name));
    // One folder may be a link to the other.
    let real = |path: &Path| path.canonicalize().ok();
    let mut namesakes = directories.iter().map(|directory| directory.join(&name)).filter(|file| file.exists());
    match namesakes.next() {
        None => Placement::Elsewhere,
        Some(first) if real(&first) != real(path) => Placement::HiddenBy(first),
        Some(first) => {
            let other = namesakes.find(|file| real(file) != real(&first));
            other.map_or(Placement::Found, Placement::Hides)
        }
    }
}

/// Whether every user may read the file, which contains a private key. Read access of a group counts as intended.
///
/// # Errors
/// The file does not exist, or its metadata cannot be read.
pub fn readable_by_others(path: &Path) -> io::Result<bool> {
    let metadata = path.metadata()?;
    // A pipe or a terminal, as in `check /dev/stdin`, is not a configuration file.
    Ok(metadata.is_file() && metadata.permissions().mode() & 0o004 != 0)
}

/// Whether every user may change the file, and thus the commands that root runs. Write access of a group counts as
/// intended.
///
/// # Errors
/// As [`readable_by_others`].
pub fn writable_by_others(path: &Path) -> io::Result<bool> {
    let metadata = path.metadata()?;
    Ok(metadata.is_file() && metadata.permissions().mode() & 0o002 != 0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_path_is_a_path() {
        for (target, name) in [("./wg0.conf", "wg0"), ("wg0.conf", "wg0"), ("/tmp/a/home-2", "home-2")] {
            assert_eq!(resolve_name(target), Ok((target.into(), name.to_owned())));
        }
        for target in ["/", "./a name.conf", "./.conf", "./0123456789abcdef.conf", "x/..", ""] {
            assert!(matches!(resolve_name(target), Err(NameError::Invalid(_))), "{target}");
        }
    }

    #[test]
    fn a_name_that_is_nowhere_says_where_it_looked() {
        let error = resolve_name("rg-no-such").unwrap_err().to_string();
        for path in ["/etc/wireguard/rg-no-such.conf", "/etc/rustguard/rg-no-such.conf"] {
            assert!(error.contains(path), "{error}");
        }
    }

    #[test]
    fn a_name_with_a_slip_names_the_file_that_is_there() {
        let dir = tempfile::tempdir().unwrap();
        for name in ["wg0.conf", "office.conf", "wgo.txt", "a name.conf"] {
            std::fs::write(dir.path().join(name), "").unwrap();
        }
        let near = |target| nearest_among(target, &[dir.path(), Path::new("/no/such/folder")]);
        assert_eq!(
            ["wgo", "wg1", "ofice", "home"].map(near),
            [Some("wg0"), Some("wg0"), Some("office"), None].map(|name| name.map(str::to_owned))
        );
    }

    #[test]
    fn a_file_is_where_its_name_leads_or_not() {
        let dir = tempfile::tempdir().unwrap();
        let folders = ["first", "second", "home"].map(|folder| dir.path().join(folder));
        let [first, second, home] = &folders;
        for folder in &folders {
            std::fs::create_dir(folder).unwrap();
        }
        let of = |path: PathBuf| placement_among(&path, &[first, second]);
        let write = |path: PathBuf| std::fs::write(path, "").unwrap();
        let file = |folder: &Path| folder.join("wg0.conf");
        write(file(home));
        assert_eq!(of(file(home)), Placement::Elsewhere);
        write(file(second));
        assert_eq!(of(file(home)), Placement::HiddenBy(file(second)));
        assert_eq!(of(file(second)), Placement::Found);
        write(file(first));
        assert_eq!(of(file(first)), Placement::Hides(file(second)));
        assert_eq!(of(file(second)), Placement::HiddenBy(file(first)));
        // A file with two names counts once.
        std::fs::remove_file(file(second)).unwrap();
        std::os::unix::fs::symlink(file(first), file(second)).unwrap();
        assert_eq!((of(file(first)), of(file(second))), (Placement::Found, Placement::Found));
        // `check` may read something other than a regular file.
        assert_eq!(of("/dev/null".into()), Placement::Found);
    }

    #[test]
    fn readable_by_others_means_everybody() {
        let file = tempfile::NamedTempFile::new().unwrap();
        for (mode, readable) in [(0o600, false), (0o640, false), (0o604, true), (0o700, false)] {
            file.as_file().set_permissions(std::fs::Permissions::from_mode(mode)).unwrap();
            assert_eq!(readable_by_others(file.path()).unwrap(), readable, "{mode:o}");
        }
        assert!(readable_by_others(Path::new("/no/such/file")).is_err());
        for (mode, writable) in [(0o600, false), (0o664, false), (0o602, true), (0o646, true)] {
            file.as_file().set_permissions(std::fs::Permissions::from_mode(mode)).unwrap();
            assert_eq!(writable_by_others(file.path()).unwrap(), writable, "{mode:o}");
        }
    }
}
