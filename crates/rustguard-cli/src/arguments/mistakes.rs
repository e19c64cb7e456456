//! Errors about the command line that name what the user wrote.

use super::Cli;
use clap::{
    CommandFactory as _,
    error::{ContextKind, ContextValue, ErrorKind},
};
use std::ffi::OsString;

/// An error about a value from a variable names the variable, and not the option, which nobody has given.
pub(super) fn of_variable(mut error: clap::Error, words: &[OsString]) -> clap::Error {
    let Some(ContextValue::String(option)) = error.get(ContextKind::InvalidArg) else { return error };
    let long = option.split([' ', '=']).next().and_then(|option| option.strip_prefix("--")).map(str::to_owned);
    let Some(long) = long else { return error };
    let is_given = words.iter().any(|word| {
        let option = word.to_str().and_then(|word| word.strip_prefix("--"));
        option.is_some_and(|option| option.split('=').next() == Some(&long))
    });
    let commands = Cli::command();
    let mut options = commands.get_subcommands().flat_map(clap::Command::get_arguments);
    let option = options.find(|option| option.get_long() == Some(&long) && option.get_env().is_some());
    if let Some(variable) = option.and_then(clap::Arg::get_env).filter(|_| !is_given) {
        error.insert(ContextKind::InvalidArg, ContextValue::String(variable.to_string_lossy().into_owned()));
    }
    error
}

/// An option before a subcommand, as in `serve -i rg1 backup`, is shown in its correct place.
pub(super) fn behind_the_command(mut error: clap::Error) -> clap::Error {
    if error.kind() == ErrorKind::ArgumentConflict
        && let Some(ContextValue::String(command)) = error.get(ContextKind::InvalidSubcommand)
    {
        let options = match error.get(ContextKind::PriorArg) {
            Some(ContextValue::String(option)) => option.clone(),
            Some(ContextValue::Strings(options)) => options.join(" "),
            _ => String::new(),
        };
        let tip = format!("options of '{command}' stand behind it: '{command} {options}'");
        error.insert(ContextKind::Suggested, ContextValue::StyledStrs(vec![tip.into()]));
    }
    error
}
