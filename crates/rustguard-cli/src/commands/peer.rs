//! `rustguard peer`: the peers of a running `serve`.

use super::{pairing::done, status::rows};
use crate::{
    arguments::enrolment::{Peer, Served, Tags},
    escape::escape,
    one,
    output::{
        colour::Palette,
        peers::{Before, list},
        screen,
        stock::{self, Form},
        words::UNEXPECTED_ANSWER,
    },
};
use anyhow::{Result, bail};
use rustguard_serve::{
    ask,
    request::{AddPeer, Answer, InviteState, Removed, Request},
};
use std::io::{self, Write as _};

/// Runs `peer`.
pub(crate) fn run(command: &Peer) -> Result<()> {
    match command {
        Peer::Ls { interface, json, watch } => {
            let name = one::served(interface)?;
            let peers = || match ask(&name, &Request::Peers)? {
                Answer::Peers { peers } => Ok(peers),
                _ => bail!(UNEXPECTED_ANSWER),
            };
            if *json {
                writeln!(io::stdout(), "{}", serde_json::to_string_pretty(&peers()?)?)?;
                return Ok(());
            }
            let (mut before, palette) = (Before::default(), Palette::of(&io::stdout()));
            screen::show(*watch, || {
                let rows = rows(&peers()?);
                if rows.is_empty() {
                    return Ok(format!("no peers; `rustguard invite new{}` admits one\n", interface.option()));
                }
                let size = (screen::width_of_list(), screen::height().filter(|_| *watch));
                Ok(list(&rows, "ADDRESS", &before.rates(&rows), size, palette))
            })
        }
        Peer::Add { name, qr: _, conf, public_key, addresses, endpoint, interface, json } => {
            let form = match (conf, public_key) {
                (Some(path), _) => Form::File(path.clone()),
                (None, Some(_)) => Form::File("-".into()),
                (None, None) => Form::Qr,
            };
            let mut peer = AddPeer::new(public_key.clone().unwrap_or_default(), name);
            peer.addresses = addresses.clone();
            peer.endpoint.clone_from(endpoint);
            stock::add(&one::served(interface)?, peer, &form, *json)
        }
        Peer::Rm { peer, revoke, interface, json } => {
            let request = Request::RemovePeer { peer: peer.clone(), revoke: *revoke };
            let answer = ask(&one::served(interface)?, &request)?;
            let Answer::Removed(removed) = &answer else { bail!(UNEXPECTED_ANSWER) };
            let mut out = io::stdout().lock();
            if *json {
                writeln!(out, "{}", serde_json::to_string_pretty(&answer)?)?;
            } else {
                write!(out, "{}", farewell(removed, &interface.option()))?;
            }
            Ok(())
        }
        Peer::Rename { peer, name, interface } => {
            done(interface, &Request::RenamePeer { peer: peer.clone(), name: name.clone() })
        }
        Peer::Allow { peer, prefixes, default_route, interface, json } => {
            let (peer, prefixes) = (peer.clone(), prefixes.clone());
            change(interface, &Request::AllowPrefixes { peer, prefixes, default_route: *default_route }, *json)
        }
        Peer::Deny { peer, prefixes, interface, json } => {
            let request = Request::DenyPrefixes { peer: peer.clone(), prefixes: prefixes.clone() };
            change(interface, &request, *json)
        }
        Peer::Tag(Tags { peer, tags, interface, json }) => {
            change(interface, &Request::TagPeer { peer: peer.clone(), tags: tags.clone() }, *json)
        }
        Peer::Untag(Tags { peer, tags, interface, json }) => {
            change(interface, &Request::UntagPeer { peer: peer.clone(), tags: tags.clone() }, *json)
        }
    }
}

/// Changes the prefixes or tags of a peer, and prints what it has now.
fn change(interface: &Served, request: &Request, json: bool) -> Result<()> {
    let answer = ask(&one::served(interface)?, request)?;
    let Answer::PeerChanged(peer) = &answer else { bail!(UNEXPECTED_ANSWER) };
    let mut out = io::stdout().lock();
    if json {
        writeln!(out, "{}", serde_json::to_string_pretty(&answer)?)?;
        return Ok(());
    }
    let of_tags = matches!(request, Request::TagPeer { .. } | Request::UntagPeer { .. });
    let (what, values) =
        if of_tags { ("tags", peer.tags.clone()) } else { ("admitted prefixes", words(&peer.admitted)) };
    let values = if values.is_empty() { "none".to_owned() } else { values.join(", ") };
    writeln!(out, "{}: {what}: {}", escape(&peer.peer), escape(&values))?;
    for note in &peer.notes {
        writeln!(out, "{}", escape(note))?;
    }
    Ok(())
}

fn words<T: ToString>(values: &[T]) -> Vec<String> {
    values.iter().map(ToString::to_string).collect()
}

/// The message after a removal. It says in which ways the machine could join again.
fn farewell(removed: &Removed, interface: &str) -> String {
    let addresses: Vec<_> = removed.addresses.iter().map(ToString::to_string).collect();
    let mut text =
        format!("{} ({}) is removed; it had joined by: {}\n", removed.peer, addresses.join(", "), removed.origin);
    if let Some(invite) = &removed.invite {
        let id = &invite.id;
        text += &match (invite.state, invite.uses_left) {
            (InviteState::Usable, left) => format!(
                "This invite can be used {}, so the machine could come back with another key. To revoke it: `rustguard invite \
                 revoke {id}{interface}`\n",
                if left == 1 { "once more".to_owned() } else { format!("{left} more times") }
            ),
            (state, _) => format!("This invite is {state}, so no machine can join with it\n"),
        };
    }
    if removed.others > 0 {
        let peers = if removed.others == 1 {
            "peer that joined in the same way stays"
        } else {
            "peers that joined in the same way stay"
        };
        text += &format!("{} other {peers}; `rustguard peer ls{interface}`\n", removed.others);
    }
    if removed.window_open {
        text += &format!(
            "The window is open, so the machine could come back with another key. To close it: `rustguard close{interface}`\n"
        );
    }
    if removed.passphrase {
        text += "The machine may know the passphrase, which later windows accept as well: give `serve` another passphrase\n";
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::{Value, json};

    #[test]
    fn a_removal_says_by_what_the_machine_could_come_back() {
        let invite = |state: InviteState, uses_left: u32| {
            json!({
                "id": "0123456789abcdef", "state": state, "uses_left": uses_left, "created": 0, "expires": null,
                "tags": [], "ephemeral": false, "prefixes": [], "server": false,
            })
        };
        let removed = |origin: &str, invite: Option<Value>, others: u32, window_open: bool, passphrase: bool| {
            let removed = json!({
                "peer": "laptop", "addresses": ["10.150.0.2", "fd15::2"], "origin": origin, "invite": invite,
                "others": others, "window_open": window_open, "passphrase": passphrase,
            });
            serde_json::from_value::<Removed>(removed).unwrap()
        };
        let says = |removed: &Removed, words: &[&str]| {
            let text = farewell(removed, " --interface x");
            assert_eq!(text.lines().count(), words.len(), "{text}");
            for (line, word) in text.lines().zip(words) {
                assert!(line.contains(word), "{word}: {text}");
            }
        };
        let first = "laptop (10.150.0.2, fd15::2) is removed; it had joined by: ";
        let by_invite =
            |state, left, others| removed("invite 0123456789abcdef", Some(invite(state, left)), others, false, false);
        says(&by_invite(InviteState::Usable, 4, 0), &[first, "4 more times, so the machine could come back"]);
        says(
            &by_invite(InviteState::Usable, 1, 2),
            &["invite 0123456789abcdef", "revoke 0123456789abcdef --interface x`", "2 other peers"],
        );
        says(
            &by_invite(InviteState::Revoked, 4, 1),
            &[first, "is revoked, so no machine can join with it", "1 other peer that joined in the same way stays"],
        );
        says(&by_invite(InviteState::Used, 0, 0), &[first, "is used"]);
        says(&removed("window", None, 0, true, true), &[first, "rustguard close --interface x", "another passphrase"]);
        says(&removed("window", None, 0, false, false), &["it had joined by: window"]);
        says(&removed("administrator", None, 0, false, false), &["it had joined by: administrator"]);
    }
}
