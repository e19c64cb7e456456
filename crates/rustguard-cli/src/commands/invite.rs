//! `rustguard invite`: tokens with which machines can join.

use super::pairing::done;
use crate::{
    arguments::enrolment::{Invite, Served},
    one,
    output::{
        stock,
        words::{UNEXPECTED_ANSWER, ago, now, span, table, warn_of_reach},
    },
};
use anyhow::{Result, bail};
use rustguard_serve::{
    ask,
    request::{AddPeer, Answer, InviteView, NewInvite, Request, Unused},
};
use std::{
    io::{self, Write as _},
    time::Duration,
};

/// Runs `invite`.
pub(crate) fn run(command: &Invite) -> Result<()> {
    match command {
        Invite::New { expires, addresses, endpoint, qr: true, name, interface, .. } => {
            let mut peer = AddPeer::new("", name);
            peer.addresses = addresses.clone();
            peer.pending_seconds = Some(expires.as_secs());
            peer.endpoint.clone_from(endpoint);
            stock::add(&one::served(interface)?, peer, &stock::Form::Qr, false)?;
            writeln!(
                io::stdout(),
                "The configuration must be used within {}; after that its address is given to another peer.",
                span(expires.as_secs())
            )?;
            Ok(())
        }
        Invite::New {
            uses,
            expires,
            tags,
            addresses,
            prefixes,
            default_route,
            server,
            standby,
            ephemeral,
            endpoint,
            another,
            replace,
            count,
            interface,
            json,
            ..
        } => {
            let mut invite = NewInvite::default();
            invite.uses = Some(*uses);
            invite.seconds = Some(expires.as_secs());
            invite.tags.clone_from(tags);
            invite.addresses = addresses.clone();
            invite.prefixes.clone_from(prefixes);
            (invite.default_route, invite.server, invite.standby) = (*default_route, *server || *standby, *standby);
            invite.ephemeral = *ephemeral;
            invite.endpoint = endpoint.clone();
            invite.unused = match (*replace, *another || count.is_some()) {
                (true, _) => Unused::Revoke,
                (_, true) => Unused::Keep,
                _ => Unused::Refuse,
            };
            new(interface, &invite, *count, *json)
        }
        Invite::Ls { interface, json } => {
            let Answer::Invites { invites } = ask(&one::served(interface)?, &Request::Invites)? else {
                bail!(UNEXPECTED_ANSWER)
            };
            let mut out = io::stdout().lock();
            if *json {
                writeln!(out, "{}", serde_json::to_string_pretty(&invites)?)?;
            } else {
                write!(out, "{}", list(&invites))?;
            }
            Ok(())
        }
        Invite::Revoke { id, interface } => done(interface, &Request::RevokeInvite { id: id.clone() }),
    }
}

/// Creates one invite, or `count`, and prints the commands that join with them.
fn new(interface: &Served, invite: &NewInvite, count: Option<u16>, json: bool) -> Result<()> {
    let mut out = io::stdout().lock();
    let mut made = Vec::new();
    for _ in 0..count.unwrap_or(1) {
        let answer = ask(&one::served(interface)?, &Request::NewInvite(invite.clone()))?;
        let (token, endpoint) = match &answer {
            Answer::Invite { token, endpoint, .. } => (token, endpoint.as_deref()),
            Answer::Unused { invite } => bail!(unused(invite, &interface.option())),
            _ => bail!(UNEXPECTED_ANSWER),
        };
        if made.is_empty() {
            warn_of_reach(endpoint);
        }
        if !json {
            // A further server has to give its own endpoint.
            let own = match (invite.server, invite.standby) {
                (_, true) => " --endpoint HOST[:PORT] --standby",
                (true, false) => " --endpoint HOST[:PORT]",
                (false, false) => "",
            };
            writeln!(out, "rustguard join {} --token {}{own}", endpoint.unwrap_or("HOST"), token.reveal())?;
        }
        made.push(answer);
    }
    match &*made {
        [answer] if json && count.is_none() => writeln!(out, "{}", serde_json::to_string_pretty(answer)?)?,
        _ if json => writeln!(out, "{}", serde_json::to_string_pretty(&made)?)?,
        _ => {}
    }
    Ok(())
}

/// Says that no invite was made, because this one has not been used yet.
pub(crate) fn unused(invite: &InviteView, interface: &str) -> String {
    let until = match invite.expires.and_then(|at| at.checked_sub(now().as_secs())) {
        Some(left @ 1..) => format!(", and is valid for {}", span(left)),
        _ => String::new(),
    };
    let id = invite.id;
    format!(
        "the invite {id} has not been used yet{until}. Its token was shown when it was made, and is not stored. If it is lost: \
         `rustguard invite new --replace{interface}` revokes it and makes another. For one more machine: `rustguard invite new \
         --another{interface}`. To take it back: `rustguard invite revoke {id}{interface}`"
    )
}

fn list(invites: &[InviteView]) -> String {
    let now = now();
    let row = |invite: &InviteView| {
        let expires = match invite.expires {
            None => "never".to_owned(),
            Some(at) => match at.checked_sub(now.as_secs()) {
                Some(left @ 1..) => format!("in {}", span(left)),
                _ => ago(now, Duration::from_secs(at)),
            },
        };
        let mut state = invite.state.to_string();
        for (word, _) in [(", ephemeral", invite.ephemeral), (", server", invite.server), (", standby", invite.standby)]
            .iter()
            .filter(|(_, set)| *set)
        {
            state.push_str(word);
        }
        vec![invite.id.to_string(), state, invite.uses_left.to_string(), expires, invite.tags.join(", ")]
    };
    table(&["ID", "STATE", "USES LEFT", "EXPIRES", "TAGS"], &invites.iter().map(row).collect::<Vec<_>>())
}
