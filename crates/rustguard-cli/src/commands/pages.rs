//! `completions` and `man`, generated from the same definition as `--help`.

use crate::{
    arguments::{self, Shell},
    completion,
};
use anyhow::{Context as _, Result};
use clap::Command;
use clap_mangen::Man;
use std::{
    fs,
    io::{self, Write as _},
    path::Path,
};

/// The page about configuration files, which is written by hand.
const CONF: &str = include_str!("../../system/rustguard.conf.5");

/// Prints a shell's completions.
pub(crate) fn completions(shell: Shell) -> Result<()> {
    io::stdout().write_all(&completion::script(shell))?;
    Ok(())
}

/// Prints rustguard(1), or writes all pages into a folder.
pub(crate) fn man(dir: Option<&Path>) -> Result<()> {
    let Some(dir) = dir else {
        Man::new(arguments::command()).render(&mut io::stdout())?;
        return Ok(());
    };
    let write = || {
        fs::create_dir_all(dir)?;
        pages().into_iter().try_for_each(|(name, page)| fs::write(dir.join(name), page))
    };
    write().with_context(|| format!("cannot write the manual to {}", dir.display()))
}

/// All pages, with the names of their files: rustguard(1), one for each command, and rustguard.conf(5).
pub(super) fn pages() -> Vec<(String, Vec<u8>)> {
    fn add(command: Command, pages: &mut Vec<(String, Vec<u8>)>) {
        for command in command.get_subcommands().filter(|command| !command.is_hide_set()).cloned() {
            add(command, pages);
        }
        let page = Man::new(command);
        let mut text = Vec::new();
        page.render(&mut text).expect("memory takes everything");
        pages.push((page.get_filename(), text));
    }
    let mut command = arguments::command().disable_help_subcommand(true);
    command.build();
    let mut pages = vec![("rustguard.conf.5".to_owned(), CONF.replace("@VERSION@", env!("CARGO_PKG_VERSION")).into())];
    add(command, &mut pages);
    pages
}

#[cfg(test)]
mod tests {
    use super::*;
    use rustguard_quick::conf;
    use std::collections::BTreeSet;

    #[test]
    fn the_page_has_every_key_of_the_file_in_its_section() {
        let (interface, peer) = CONF.split_once(".SH PEER SECTION").unwrap();
        for (section, keys) in [(interface, conf::interface_keys()), (peer, conf::peer_keys())] {
            let section = section.split(".SH EXAMPLE").next().unwrap();
            let named = section.lines().filter_map(|line| line.strip_prefix(".BI \"")?.split_once(" ="));
            let named: BTreeSet<&str> = named.map(|(key, _)| key).collect();
            assert_eq!(named, keys.into_iter().collect());
        }
    }

    #[test]
    fn there_is_a_page_for_each_command() {
        let pages = pages();
        for name in ["rustguard.1", "rustguard-up.1", "rustguard-peer-add.1", "rustguard-install.1", "rustguard.conf.5"]
        {
            let page = pages.iter().find(|(page, _)| page == name).unwrap_or_else(|| panic!("{name}"));
            assert!(String::from_utf8_lossy(&page.1).contains(".TH "), "{name}");
        }
        let names: BTreeSet<_> = pages.iter().map(|(name, _)| name).collect();
        assert_eq!(names.len(), pages.len());
    }
}
