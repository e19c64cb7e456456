//! `rustguard invite`: tokens with which machines can join.

use super::pairing::done;
use crate::{
    arguments::enrolment::Invite,
    output::{
        stock,
        words::{UNEXPECTED_ANSWER, ago, now, span, table, warn_of_reach},
    },
};
use anyhow::{Result, bail};
use rustguard_serve::{
    ask,
    request::{AddPeer, Answer, InviteView, NewInvite, Request},
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
            stock::add(&interface.interface, peer, &stock::Form::Qr)?;
            writeln!(
                io::stdout(),
                "The configuration must be used within {}; after that its address is given to another peer.",
                span(expires.as_secs())
            )?;
            Ok(())
        }
        Invite::New { uses, expires, tag, addresses, ephemeral, endpoint, interface, json, .. } => {
            let mut invite = NewInvite::default();
            invite.uses = Some(*uses);
            invite.seconds = Some(expires.as_secs());
            invite.tag = tag.clone();
            invite.addresses = addresses.clone();
            invite.ephemeral = *ephemeral;
            invite.endpoint = endpoint.clone();
            new(&interface.interface, invite, *json)
        }
        Invite::Ls { interface, json } => {
            let Answer::Invites { invites } = ask(&interface.interface, &Request::Invites)? else {
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

fn new(interface: &str, invite: NewInvite, json: bool) -> Result<()> {
    let answer = ask(interface, &Request::NewInvite(invite))?;
    let mut out = io::stdout().lock();
    if json {
        writeln!(out, "{}", serde_json::to_string_pretty(&answer)?)?;
        return Ok(());
    }
    let Answer::Invite { token, endpoint, .. } = answer else { bail!(UNEXPECTED_ANSWER) };
    warn_of_reach(endpoint.as_deref());
    writeln!(out, "rustguard join {} --token {}", endpoint.as_deref().unwrap_or("HOST"), token.reveal())?;
    Ok(())
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
        if invite.ephemeral {
            state.push_str(", ephemeral");
        }
        let tag = invite.tag.clone().unwrap_or_default();
        vec![invite.id.to_string(), state, invite.uses_left.to_string(), expires, tag]
    };
    table(&["ID", "STATE", "USES LEFT", "EXPIRES", "TAG"], &invites.iter().map(row).collect::<Vec<_>>())
}
