//! `rustguard key rotate`: another key for this machine in its network.

use crate::{
    escape::escape,
    one,
    output::words::{UNEXPECTED_ANSWER, now, span},
};
use anyhow::{Result, bail};
use rustguard_device::interface;
use rustguard_network::{Folder, Report};
use rustguard_quick::reload::{self, Answer, AskError, ask};
use rustguard_serve::{
    Settings, is_served,
    request::{Answer as OfServer, KeyChange, Request},
};
use std::{
    io::{self, Write as _},
    thread,
    time::{Duration, Instant},
};

/// The time to wait for the change. It takes little more than a second if the server is connected.
const PATIENCE: Duration = Duration::from_secs(10);
/// How often the tunnel's report is looked at.
const LOOK: Duration = Duration::from_millis(50);

/// Has the tunnel change its key, and waits until it uses the new one.
pub(crate) fn run(given: Option<&str>, yes: bool) -> Result<()> {
    let interface = &one::tunnel(given)?;
    interface::check_name(interface)?;
    if is_served(interface) {
        return of_server(interface, yes);
    }
    let answer = match ask(interface, &reload::Request::Rotate) {
        // The error says how to start the server.
        Err(AskError::NotServed(_)) if has_settings(interface) => return of_server(interface, yes),
        answer => answer?,
    };
    let public_key = match answer {
        Answer::Rotating { public_key } => public_key,
        Answer::Refused { error, .. } => bail!("{error}"),
        _ => bail!(UNEXPECTED_ANSWER),
    };
    let until = Instant::now() + PATIENCE;
    let mut out = io::stdout().lock();
    while Instant::now() < until {
        let report = Report::read(interface)?.unwrap_or_default();
        if report.own_key == public_key {
            let network = report.name.as_deref().unwrap_or(interface);
            writeln!(out, "this machine has the key {public_key} in {} from now on", escape(network))?;
            return Ok(());
        }
        thread::sleep(LOOK);
    }
    writeln!(
        out,
        "the key {public_key} is stored; no server has taken it yet, and the present key goes on. The tunnel uses the new one as soon as \
         the network knows it, after a restart too"
    )?;
    Ok(())
}

/// Has the server that issues the list of members change its key.
fn of_server(interface: &str, yes: bool) -> Result<()> {
    let OfServer::KeyChange(change) = rustguard_serve::ask(interface, &Request::RotateKey { consent: yes })? else {
        bail!(UNEXPECTED_ANSWER)
    };
    let KeyChange { changed, public_key, until, clients, invites, .. } = change;
    let (clients, left) = (escape(&clients.join(", ")).to_string(), span(until.saturating_sub(now().as_secs())));
    if !changed {
        bail!(
            "nothing was changed: {clients} would not be told of another key, because stock WireGuard and machines that joined with an older \
             version know no list of members. They go on with the present key for {left}; until then, each needs the new one as the \
             PublicKey of this server. To change it: rustguard key rotate {interface} --yes"
        );
    }
    let mut out = io::stdout().lock();
    if until == 0 {
        writeln!(out, "this server has the key {public_key} from now on; members and the other servers follow it")?;
        return Ok(());
    }
    writeln!(out, "this server has the key {public_key} from now on, and answers the one before for {left}")?;
    if !clients.is_empty() {
        writeln!(out, "until then, these peers need the new key as the PublicKey of this server: {clients}")?;
    }
    if !invites.is_empty() {
        let ids: Vec<_> = invites.iter().map(|invite| invite.id.to_string()).collect();
        writeln!(out, "these invites name the key before, and end with it: {}", ids.join(", "))?;
    }
    Ok(())
}

/// Whether this machine has settings of a `serve` for the interface, which may not run now.
fn has_settings(interface: &str) -> bool {
    let folder = Folder::find(interface).ok().flatten();
    folder.is_some_and(|folder| Settings::load(&folder).is_ok_and(|settings| settings.is_some()))
}
