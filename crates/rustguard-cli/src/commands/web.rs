//! `rustguard web`: links to log in to the status page of a running `serve`.

use crate::{
    arguments::enrolment::Served,
    one,
    output::words::{UNEXPECTED_ANSWER, span},
};
use anyhow::{Result, bail};
use rustguard_serve::{
    ask,
    request::{Answer, Request},
};
use std::{
    env,
    io::{self, Write as _},
};

/// Prints a link, or ends all sessions.
pub(crate) fn run(name: Option<String>, end: bool, interface: &Served, json: bool) -> Result<()> {
    let request = if end { Request::WebEnd } else { Request::WebLink { name: name.unwrap_or_else(user) } };
    let answer = ask(&one::served(interface)?, &request)?;
    let mut out = io::stdout().lock();
    match &answer {
        Answer::WebLink { .. } | Answer::WebEnded { .. } if json => {
            writeln!(out, "{}", serde_json::to_string_pretty(&answer)?)?;
        }
        Answer::WebLink { url, hint, seconds } => {
            if let Some(hint) = hint {
                writeln!(out, "{hint}\n")?;
            }
            writeln!(out, "Open this in a browser within {}; it works once:\n\n    {}", span(*seconds), url.reveal())?;
        }
        Answer::WebEnded { sessions } => {
            writeln!(out, "{sessions} session{} ended", if *sessions == 1 { " has" } else { "s have" })?;
        }
        _ => bail!(UNEXPECTED_ANSWER),
    }
    Ok(())
}

/// The name of the user who runs this, also by sudo or doas. Only root can ask the server, and root may call itself
/// anything.
fn user() -> String {
    let names =
        ["SUDO_USER", "DOAS_USER", "LOGNAME", "USER"].into_iter().filter_map(|variable| env::var(variable).ok());
    let name = names.into_iter().find(|name| !name.is_empty()).unwrap_or_else(|| "root".to_owned());
    proper(&name)
}

/// The name in a form that the server accepts: a directory user may have the name `CORP\alice`.
fn proper(name: &str) -> String {
    let is_proper = |c: &char| c.is_ascii_alphanumeric() || matches!(c, '-' | '_' | '.' | '@');
    name.chars().map(|c| if is_proper(&c) { c } else { '-' }).take(32).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_user_of_a_directory_has_a_name_too() {
        assert_eq!(["alice", "CORP\\alice", "Zoë"].map(proper), ["alice", "CORP-alice", "Zo-"]);
        assert_eq!(proper(&"x".repeat(99)).len(), 32);
    }
}
