//! A machine, and its removal.

use super::{Shown, network::roster, token};
use crate::{
    snapshot::Member,
    text::{ago, bytes, shown as harmless, utc},
};
use maud::{Markup, html};
use rustguard_serve::request::{PeerOrigin, PublicKey};

pub(super) fn parts(shown: &Shown<'_>, key: &PublicKey) -> Markup {
    let Some(member) = shown.snapshot.member(key) else { return gone() };
    let (view, now) = (&member.view, shown.snapshot.now);
    let list = |list: Vec<String>| if list.is_empty() { "–".to_owned() } else { list.join(", ") };
    let time = |at: Option<u64>| html! { @match at { Some(at) => { time datetime=(utc(at)) { (ago(now, at)) } ", " (utc(at)) " UTC" }, None => { "never" } } };
    html! {
        h1 { (member.name) }
        section #state aria-labelledby="state-heading" {
            h2 #state-heading { "Connection" }
            @if let Some(problem) = &view.problem { p.notice.error { (harmless(&problem.text)) } }
            dl {
                div { dt { "State" } dd { span class={ "state " (member.state.class()) } { (member.state.word()) } } }
                div { dt { "Way" } dd { (member.way.as_deref().unwrap_or("–")) } }
                div { dt { "Round trip" } dd { (member.round_trip.as_deref().unwrap_or("–")) } }
                div { dt { "Received" } dd { (bytes(view.rx_bytes)) } }
                div { dt { "Sent" } dd { (bytes(view.tx_bytes)) } }
                div { dt { "Last handshake" } dd { (time(view.last_handshake)) } }
                div { dt { "Roster" } dd { (roster(shown.snapshot, member)) } }
            }
        }
        section #lease aria-labelledby="lease-heading" {
            h2 #lease-heading { "Place in the network" }
            dl {
                div { dt { "Role" } dd { (member.role) } }
                div { dt { "Version of RustGuard" } dd { (view.version.as_deref().map_or_else(|| "–".to_owned(), harmless)) } }
                div { dt { "Calls itself" } dd { (view.name.as_deref().map_or_else(|| "–".to_owned(), harmless)) } }
                div { dt { "Public key" } dd { code { (view.public_key.to_string()) } } }
                div { dt { "Addresses" } dd { (list(view.addresses.iter().map(ToString::to_string).collect())) } }
                div { dt { "Prefixes" } dd { (list(view.prefixes.iter().take(32).map(ToString::to_string).collect())) } }
                @if !view.waiting.is_empty() {
                    div { dt { "Announced, not admitted" } dd { (list(view.waiting.iter().take(32).map(ToString::to_string).collect())) } }
                }
                div { dt { "Tags" } dd { (list(view.tags.iter().map(|tag| harmless(tag)).collect())) } }
                div { dt { "Joined" } dd { (time(Some(view.created))) ", by " (origin(member)) } }
            }
            p { a.button.danger href={ (member.path()) "/remove" } { "Remove " (member.name) "…" } }
        }
    }
}

fn origin(member: &Member) -> String {
    match member.view.origin {
        PeerOrigin::Invite(id) => format!("the invite {id}"),
        PeerOrigin::Window => "the pairing window".to_owned(),
        PeerOrigin::Administrator => "an administrator".to_owned(),
        _ => "another way".to_owned(),
    }
}

/// Asks whether a machine is to be removed.
pub(super) fn removal(shown: &Shown<'_>, key: &PublicKey) -> Markup {
    let Some(member) = shown.snapshot.member(key) else { return gone() };
    html! {
        h1 { "Remove " (member.name) "?" }
        section #removal aria-label="Removal" {
            p { "Its sessions end at once, and its key is not admitted again. The machine could make another key, and join again in the way it joined: by " (origin(member)) "." }
            form method="post" action={ (member.path()) "/remove" } {
                (token(shown.who))
                @if member.view.origin != PeerOrigin::Administrator {
                    p {
                        label {
                            input type="checkbox" name="revoke" value="yes";
                            " Also close that way: revoke the invite, or close the window"
                        }
                    }
                }
                p.decide {
                    button.danger #remove type="submit" { "Remove " (member.name) }
                    a.button href=(member.path()) { "Keep it" }
                }
            }
        }
    }
}

fn gone() -> Markup {
    html! {
        h1 { "No such machine" }
        section #gone aria-label="Removed" {
            p { "No machine of the network has this key, or no longer. " a href="/" { "To the network" } }
        }
    }
}
