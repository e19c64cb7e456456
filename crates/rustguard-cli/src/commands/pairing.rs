//! `rustguard open`, `close` and `approve`: the pairing window of a running `serve`.

use crate::{
    arguments::enrolment::{Open, Served},
    one,
    output::words::{UNEXPECTED_ANSWER, span},
};
use anyhow::{Result, bail};
use rustguard_serve::{
    ask,
    request::{Answer, Request},
};
use std::io::{self, Write as _};

/// Sends a request whose only answer is that it is done.
pub(crate) fn done(interface: &Served, request: &Request) -> Result<()> {
    match ask(&one::served(interface)?, request)? {
        Answer::Done => Ok(()),
        _ => bail!(UNEXPECTED_ANSWER),
    }
}

/// `rustguard open`.
pub(crate) fn open(arguments: &Open) -> Result<()> {
    let request = Request::Open { seconds: arguments.time.as_secs(), approve: arguments.approve };
    let answer = ask(&one::served(&arguments.interface)?, &request)?;
    let Answer::Opened { seconds, code, endpoint, .. } = &answer else { bail!(UNEXPECTED_ANSWER) };
    let mut out = io::stdout().lock();
    if arguments.json {
        writeln!(out, "{}", serde_json::to_string_pretty(&answer)?)?;
        return Ok(());
    }
    let host = endpoint.as_deref().unwrap_or("HOST");
    writeln!(out, "open for {}; to join, run this on the other machine:", span(*seconds))?;
    match code {
        Some(code) => writeln!(out, "\n    rustguard join {host} --token {}\n", code.reveal())?,
        None => writeln!(out, "\n    rustguard join {host} --token PASSPHRASE\n")?,
    }
    if arguments.approve {
        let interface = arguments.interface.option();
        writeln!(
            out,
            "That machine then shows eight digits. If `rustguard status{interface}` shows the same, admit it: `rustguard approve{interface} DIGITS`."
        )?;
    }
    Ok(())
}

/// `rustguard close`.
pub(crate) fn close(interface: &Served) -> Result<()> {
    done(interface, &Request::Close)
}

/// `rustguard approve`.
pub(crate) fn approve(code: &str, interface: &Served, json: bool) -> Result<()> {
    let answer = ask(&one::served(interface)?, &Request::Approve { code: code.to_owned() })?;
    let Answer::Approved { name } = &answer else { bail!(UNEXPECTED_ANSWER) };
    let mut out = io::stdout().lock();
    if json {
        writeln!(out, "{}", serde_json::to_string_pretty(&answer)?)?;
    } else {
        writeln!(out, "{} is admitted", name.as_deref().unwrap_or("the machine"))?;
    }
    Ok(())
}

/// `rustguard approve --refuse`.
pub(crate) fn refuse(code: String, interface: &Served) -> Result<()> {
    done(interface, &Request::Refuse { code })
}
