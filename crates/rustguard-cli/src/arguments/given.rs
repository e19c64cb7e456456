//! The options that this process was given, to pass them to another process.

use super::Cli;
use clap::{ArgAction, ArgMatches, CommandFactory as _, parser::ValueSource};
use std::ffi::OsString;

/// Returns the options on this process's command line that `wanted` selects.
///
/// Values from the environment are left out, because a child inherits the environment.
pub(crate) fn given(wanted: impl Fn(&str) -> bool) -> Vec<OsString> {
    let command = Cli::command();
    let matches = command.clone().get_matches();
    let (command, matches) = match matches.subcommand() {
        Some((name, matches)) => (command.find_subcommand(name).expect("it was just parsed"), matches),
        None => (&command, &matches),
    };
    options(command, matches, wanted)
}

fn options(command: &clap::Command, matches: &ArgMatches, wanted: impl Fn(&str) -> bool) -> Vec<OsString> {
    let mut options = Vec::new();
    for argument in command.get_arguments() {
        let id = argument.get_id().as_str();
        let Some(long) = argument.get_long().filter(|_| wanted(id)) else { continue };
        if matches.value_source(id) != Some(ValueSource::CommandLine) {
            continue;
        }
        if let ArgAction::Count = argument.get_action() {
            let count: u8 = *matches.get_one(id).unwrap_or(&0);
            options.extend(std::iter::repeat_n(OsString::from(format!("--{long}")), count.into()));
            continue;
        }
        if !argument.get_action().takes_values() {
            options.push(format!("--{long}").into());
            continue;
        }
        for value in matches.get_raw(id).into_iter().flatten() {
            let mut option = OsString::from(format!("--{long}="));
            option.push(value);
            options.push(option);
        }
    }
    options
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::arguments::{data_path::DataPath, enrolment::TokenSource};

    #[test]
    fn options_are_passed_on_as_they_were_given() {
        let given = |line: &str, wanted: &dyn Fn(&str) -> bool| {
            let command = Cli::command();
            let matches = command.clone().try_get_matches_from(line.split(' ')).unwrap();
            let (name, matches) = matches.subcommand().unwrap();
            options(command.find_subcommand(name).unwrap(), matches, wanted)
        };
        let line =
            "rustguard serve -d --pool 10.1.0.0/24 --pool=fd15::/64 -p 7 --token x --isolate --lease 2w --queues 2 -vv";
        assert_eq!(
            given(line, &|id| !TokenSource::IDS.contains(&id)),
            [
                "--pool=10.1.0.0/24",
                "--pool=fd15::/64",
                "--port=7",
                "--isolate=on",
                "--lease=2w",
                "--detach",
                "--queues=2",
                "--verbose",
                "--verbose"
            ]
        );
        let line = "rustguard join host --token x -d --name n --io uring --relay=off";
        assert_eq!(given(line, &DataPath::has), ["--io=uring", "--relay=off"]);
        assert_eq!(given("rustguard up wg0", &|_| true), [""; 0]);
    }
}
