//! `rustguard --help`, with the commands in groups. Clap lists all commands in one column.

use clap::{Command, builder::StyledStr};
use std::fmt::Write as _;

/// The groups of commands. Every command is in exactly one.
const GROUPS: [(&str, &[&str]); 5] = [
    ("Tunnels", &["up", "down", "reload", "set", "save", "edit", "strip"]),
    (
        "A network that others join",
        &["serve", "join", "leave", "open", "close", "approve", "invite", "peer", "policy", "key", "status", "web"],
    ),
    ("Looking", &["show", "ping", "doctor", "routes", "neighbours", "trace", "map"]),
    ("Files and keys", &["check", "genkey", "genpsk", "pubkey"]),
    ("Other", &["demo", "install", "uninstall", "completions", "man", "help"]),
];

/// The width of the column with names.
const NAMES: usize = 11;

/// Gives the command its help page.
pub(super) fn grouped(command: Command) -> Command {
    let mut text = StyledStr::new();
    let styles = command.get_styles().clone();
    let (heading, literal) = (styles.get_header(), styles.get_literal());
    // Writing to a StyledStr cannot fail.
    let _ = write!(text, "{{about-with-newline}}\n{{usage-heading}} {{usage}}\n");
    for (group, names) in GROUPS {
        let _ = writeln!(text, "\n{heading}{group}:{heading:#}");
        for name in names {
            let about = match command.find_subcommand(name) {
                Some(subcommand) if !subcommand.is_hide_set() => subcommand.get_about().map(ToString::to_string),
                // Clap adds this command later.
                None if *name == "help" => Some("Print this page, or the page of a command".to_owned()),
                _ => None,
            };
            if let Some(about) = about {
                let _ = writeln!(text, "  {literal}{name:NAMES$}{literal:#}  {about}");
            }
        }
    }
    let _ = write!(text, "\n{heading}Options:{heading:#}\n{{options}}{{after-help}}");
    command.help_template(text)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::arguments::command;

    #[test]
    fn every_command_is_in_exactly_one_group() {
        let command = command();
        for subcommand in command.get_subcommands().filter(|subcommand| !subcommand.is_hide_set()) {
            let name = subcommand.get_name();
            let groups = GROUPS.iter().filter(|(_, names)| names.contains(&name)).count();
            assert_eq!(groups, 1, "{name}: put it into one group of arguments/help.rs");
            assert!(name.len() <= NAMES, "{name}");
        }
    }

    /// A page and the pages of all subcommands.
    fn pages(command: &mut Command, pages: &mut Vec<(String, String)>) {
        let name = command.get_name().to_owned();
        pages.push((format!("{name} -h"), command.render_help().to_string()));
        pages.push((format!("{name} --help"), command.render_long_help().to_string()));
        command.get_subcommands_mut().for_each(|subcommand| self::pages(subcommand, pages));
    }

    #[test]
    fn every_page_fits_into_eighty_columns() {
        let mut command = command().term_width(80);
        command.build();
        let mut all = Vec::new();
        pages(&mut command, &mut all);
        assert!(all.len() > 50);
        for (page, text) in all {
            for line in text.lines() {
                assert!(line.chars().count() <= 80, "{page}: {line}");
            }
        }
    }

    /// Clap breaks longer lines at the left edge, in the middle of a column.
    #[test]
    fn no_example_is_broken_into_lines() {
        fn check(command: &Command) {
            for text in [command.get_after_help(), command.get_after_long_help()].into_iter().flatten() {
                for line in text.to_string().lines().filter(|line| line.starts_with(' ')) {
                    assert!(line.chars().count() <= 80, "{}: {line}", command.get_name());
                }
            }
            command.get_subcommands().for_each(check);
        }
        check(&command());
    }

    #[test]
    fn the_first_page_names_the_commands_under_their_groups() {
        let text = command().render_help().to_string();
        let at = |word: &str| text.find(word).unwrap_or_else(|| panic!("{word}: {text}"));
        assert!(
            at("Tunnels:") < at("\n  up ") && at("\n  up ") < at("\n  serve ") && at("\n  serve ") < at("Options:")
        );
        assert!(text.contains("\n  help ") && text.contains("--version"));
        assert!(!text.contains("Commands:"), "{text}");
    }
}
