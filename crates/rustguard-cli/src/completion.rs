//! Completions: the script of a shell asks this program for the next candidates, so that they include interfaces, files
//! and peers. It runs the program with RUSTGUARD_COMPLETE, and the program answers before it reads anything else.
//!
//! Other members choose their names, and shells insert a candidate as it is. So only words without special characters
//! are candidates.

use crate::{
    arguments::{self, Shell},
    uapi,
};
use clap::{Arg, Command};
use clap_complete::{
    CompleteEnv,
    engine::{ArgValueCandidates, ArgValueCompleter, CompletionCandidate, PathCompleter, ValueCompleter as _},
    env::Shells,
};
use rustguard_device::key::to_base64;
use rustguard_quick::conf::DIRECTORIES;
use std::{
    collections::BTreeSet,
    ffi::OsStr,
    fs,
    path::{Path, PathBuf},
};

/// The variable that marks a request from the script of a shell.
const VARIABLE: &str = "RUSTGUARD_COMPLETE";
const PROGRAM: &str = "rustguard";

/// The words of `set`.
const SET_WORDS: [&str; 15] = [
    "listen-port",
    "private-key",
    "fwmark",
    "peer",
    "remove",
    "preshared-key",
    "endpoint",
    "persistent-keepalive",
    "allowed-ips",
    "via-peer",
    "name",
    "direct",
    "parity",
    "role",
    "forward",
];

/// Answers a script, and then ends the process. It comes before everything else in a process.
pub(crate) fn answer() {
    CompleteEnv::with_factory(command).var(VARIABLE).bin(PROGRAM).completer(PROGRAM).complete();
}

/// The script for a shell.
pub(crate) fn script(shell: Shell) -> Vec<u8> {
    let name = match shell {
        Shell::Bash => "bash",
        Shell::Elvish => "elvish",
        Shell::Fish => "fish",
        Shell::Zsh => "zsh",
    };
    let mut script = Vec::new();
    let shell = Shells::builtins();
    let shell = shell.completer(name).expect("the library has all of them");
    shell.write_registration(VARIABLE, PROGRAM, PROGRAM, PROGRAM, &mut script).expect("memory takes everything");
    if name == "zsh" {
        // In a file that zsh loads at the first Tab, the script only defines what the next Tab calls.
        script.extend(b"[[ $funcstack[1] != _rustguard ]] || _clap_dynamic_completer_rustguard \"$@\"\n");
    }
    script
}

/// The command line, with candidates for its arguments on this machine.
fn command() -> Command {
    with_candidates(arguments::command())
}

fn with_candidates(command: Command) -> Command {
    let command = command.mut_args(|argument| match argument.get_id().as_str() {
        "interface" => from(argument, interfaces),
        "peer" => from(argument, peers),
        "words" => from(argument, || peers().into_iter().chain(SET_WORDS.map(str::to_owned)).collect()),
        "target" | "targets" => argument.add(ArgValueCompleter::new(configurations)),
        _ => argument,
    });
    command.mut_subcommands(with_candidates)
}

fn from(argument: Arg, names: fn() -> BTreeSet<String>) -> Arg {
    let candidates = move || names().into_iter().filter(|name| is_plain(name)).map(CompletionCandidate::new).collect();
    argument.add(ArgValueCandidates::new(candidates))
}

/// Whether the word has no special meaning for a shell. Other members choose the names of peers, and some shells insert
/// a word as it is.
fn is_plain(word: &str) -> bool {
    !word.starts_with('-') && word.chars().all(|c| c.is_alphanumeric() || "-_.@+:/=".contains(c))
}

/// The interfaces that are up.
fn interfaces() -> BTreeSet<String> {
    uapi::interfaces().unwrap_or_default().into_iter().collect()
}

/// The peers of these interfaces, by name, or by key if they have none.
fn peers() -> BTreeSet<String> {
    let devices = interfaces().into_iter().filter_map(|name| uapi::get(&name).ok());
    let peers = devices.flat_map(|device| device.peers);
    peers
        .map(|peer| {
            peer.name.filter(|name| is_plain(name)).unwrap_or_else(|| to_base64(&peer.public_key.0).to_string())
        })
        .collect()
}

/// The names of configuration files, the interfaces that are up, and files that begin with `current`.
fn configurations(current: &OsStr) -> Vec<CompletionCandidate> {
    let mut names = interfaces();
    for directory in DIRECTORIES {
        let files =
            fs::read_dir(directory).into_iter().flatten().flatten().map(|entry| PathBuf::from(entry.file_name()));
        names.extend(
            files.filter(|file| is_configuration(file)).filter_map(|file| Some(file.file_stem()?.to_str()?.to_owned())),
        );
    }
    let begun = |name: &String| current.to_str().is_some_and(|current| name.starts_with(current));
    let names = names.into_iter().filter(|name| is_plain(name) && begun(name)).map(CompletionCandidate::new);
    let files = PathCompleter::file().filter(is_configuration).complete(current);
    names.chain(files).collect()
}

fn is_configuration(file: &Path) -> bool {
    file.extension().is_some_and(|extension| extension == "conf")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_word_that_a_shell_would_carry_out_is_no_candidate() {
        for word in ["laptop", "Zoë", "desk.home.internal", "a+b@c", "aGk=", "10.0.0.1"] {
            assert!(is_plain(word), "{word}");
        }
        for word in [
            "a b",
            "$(reboot)",
            "`id`",
            "a;b",
            "a'b",
            "*",
            "(x)",
            "-rf",
            "a\u{b}b",
            "a\nb",
            "~root",
            "a|b",
            "a&b",
            "a>b",
            "a\\b",
        ] {
            assert!(!is_plain(word), "{word}");
        }
    }

    /// A new command names its arguments like the others, or gets no candidates.
    #[test]
    fn arguments_for_names_have_candidates() {
        fn check(command: &Command, checked: &mut usize) {
            for argument in command.get_arguments() {
                let names = argument.get_value_names().unwrap_or_default();
                let named = names.iter().any(|name| ["NAME|FILE", "FILE|NAME", "PEER"].contains(&name.as_str()));
                if named || argument.get_long() == Some("interface") {
                    let has =
                        argument.get::<ArgValueCandidates>().is_some() || argument.get::<ArgValueCompleter>().is_some();
                    assert!(has, "{} {}", command.get_name(), argument.get_id());
                    *checked += 1;
                }
            }
            command.get_subcommands().for_each(|command| check(command, checked));
        }
        let mut checked = 0;
        check(&command(), &mut checked);
        assert!(checked > 20, "{checked}");
    }
}
