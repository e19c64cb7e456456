//! The list of installed files, for this command, the packages and the image.

use crate::{arguments::Shell, commands::pages, completion};
use std::path::Path;

/// The list of installed files, one a line. Packages have none: their managers know.
pub(super) const MANIFEST: &str = "share/rustguard/files";

/// The list of folders that were made for the files, one a line; `.` is the prefix. Folders that existed before stay.
pub(super) const FOLDERS: &str = "share/rustguard/folders";

/// Where the units expect the program.
const IN_UNITS: &str = "/usr/bin/rustguard";

/// A file to install.
pub(super) struct File {
    /// The path below the prefix.
    pub(super) path: String,
    pub(super) source: Source,
}

pub(super) enum Source {
    /// This program.
    Program,
    Text(Vec<u8>),
}

/// Files that are the same below any prefix, apart from the place of the program.
const SYSTEM: [(&str, &str); 5] = [
    ("lib/systemd/system/rustguard@.service", include_str!("../../../system/rustguard@.service")),
    ("lib/systemd/system/rustguard-serve@.service", include_str!("../../../system/rustguard-serve@.service")),
    ("lib/systemd/system/rustguard-hooks@.service", include_str!("../../../system/rustguard-hooks@.service")),
    ("lib/systemd/network/10-rustguard.network", include_str!("../../../system/10-rustguard.network")),
    ("lib/udev/rules.d/60-rustguard.rules", include_str!("../../../system/60-rustguard.rules")),
];

/// The scripts of the shells that look into a folder of the system for them.
const COMPLETIONS: [(&str, Shell); 3] = [
    ("share/bash-completion/completions/rustguard", Shell::Bash),
    ("share/fish/vendor_completions.d/rustguard.fish", Shell::Fish),
    ("share/zsh/site-functions/_rustguard", Shell::Zsh),
];

const LICENCES: [(&str, &str); 2] = [
    ("share/doc/rustguard/LICENSE-APACHE", include_str!("../../../LICENSE-APACHE")),
    ("share/doc/rustguard/LICENSE-MIT", include_str!("../../../LICENSE-MIT")),
];

/// Every file, for a prefix.
pub(super) fn all(prefix: &Path) -> Vec<File> {
    let program = format!("{}/bin/rustguard", prefix.display()).replace("//", "/");
    let text = |path: String, text: Vec<u8>| File { path, source: Source::Text(text) };
    let mut files = vec![File { path: "bin/rustguard".to_owned(), source: Source::Program }];
    files.extend(SYSTEM.map(|(path, unit)| text(path.to_owned(), unit.replace(IN_UNITS, &program).into())));
    files.extend(COMPLETIONS.map(|(path, shell)| text(path.to_owned(), completion::script(shell))));
    files.extend(LICENCES.map(|(path, licence)| text(path.to_owned(), licence.into())));
    files.extend(pages::pages().into_iter().map(|(name, page)| {
        let section = name.rsplit_once('.').map_or("1", |(_, section)| section);
        text(format!("share/man/man{section}/{name}"), page)
    }));
    files
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_units_start_the_program_that_is_installed_with_them() {
        for (prefix, program) in
            [("/usr", "/usr/bin/rustguard"), ("/", "/bin/rustguard"), ("/opt/rg", "/opt/rg/bin/rustguard")]
        {
            let files = all(Path::new(prefix));
            for unit in ["rustguard@.service", "rustguard-serve@.service"] {
                let file = files.iter().find(|file| file.path.ends_with(unit)).unwrap();
                let Source::Text(text) = &file.source else { panic!("{unit}") };
                let text = String::from_utf8_lossy(text);
                for line in text.lines().filter(|line| line.starts_with("Exec")) {
                    let (_, command) = line.split_once('=').unwrap();
                    assert!(command.starts_with(&format!("{program} ")), "{unit}: {line}");
                }
            }
        }
    }
}
