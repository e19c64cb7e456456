//! The network: the server, the map, and the members.

use super::Shown;
use crate::{
    map,
    snapshot::{Member, Snapshot},
    text::{ago, bytes, shown as harmless, utc},
};
use maud::{Markup, html};
use rustguard_serve::shown_number;

/// The most machines in the table.
const MOST: usize = 1_000;

pub(super) fn parts(shown: &Shown<'_>) -> Markup {
    let snapshot = shown.snapshot;
    html! {
        h1 { "Network " (name(shown)) }
        (server(snapshot))
        section #map aria-labelledby="map-heading" {
            h2 #map-heading { "Map" }
            (map::draw(snapshot, &name(shown)))
        }
        section #members aria-labelledby="members-heading" {
            h2 #members-heading { "Machines" }
            @if snapshot.members.is_empty() {
                p { "No machine has joined yet. " a href="/joining" { "Open the pairing window" } " to let one in." }
            } @else {
                (table(snapshot))
            }
        }
    }
}

fn name(shown: &Shown<'_>) -> String {
    let network = shown.snapshot.status.network.as_ref();
    network.map_or_else(|| harmless(shown.interface), |network| harmless(&network.name))
}

fn server(snapshot: &Snapshot) -> Markup {
    let status = &snapshot.status;
    let sum = |of: fn(&Member) -> u64| snapshot.members.iter().map(of).fold(0, u64::saturating_add);
    html! {
        section #server aria-labelledby="server-heading" {
            h2 #server-heading { "This server" }
            dl {
                div { dt { "Reached at" } dd { (status.endpoint.as_deref().map_or_else(|| "not known".to_owned(), harmless)) } }
                div { dt { "Public key" } dd { code { (status.public_key.to_string()) } } }
                @for pool in &status.pools {
                    div { dt { "Addresses" } dd { (pool.prefix.to_string()) ", " (pool.leased) " given" } }
                }
                @if let Some(network) = &status.network {
                    div {
                        dt { "Roster" }
                        dd { "number " (shown_number(network.roster)) @if let Some(at) = network.issued { ", " time datetime=(utc(at)) { (ago(snapshot.now, at)) } } }
                    }
                    @if !network.lagging.is_empty() {
                        div { dt { "Have an older roster" } dd { (network.lagging.iter().take(8).map(|name| harmless(name)).collect::<Vec<_>>().join(", ")) } }
                    }
                    @if let Some(problem) = &network.problem { div { dt { "Problem" } dd.problem { (harmless(problem)) } } }
                }
                @if let Some(store) = &status.store {
                    div { dt { "Store" } dd { (harmless(&store.store)) ", up to record " (store.revision) } }
                    @if let Some(problem) = &store.problem { div { dt { "Problem" } dd.problem { "Nothing can be decided: " (harmless(problem)) } } }
                }
                div { dt { "Traffic" } dd { (bytes(sum(|member| member.view.rx_bytes))) " received, " (bytes(sum(|member| member.view.tx_bytes))) " sent" } }
            }
        }
    }
}

/// The roles are explicit, because browsers no longer treat a table as a table when the style sheet arranges its parts
/// as cards.
fn table(snapshot: &Snapshot) -> Markup {
    html! {
        table.cards role="table" aria-labelledby="members-heading" {
            thead role="rowgroup" {
                tr role="row" {
                    @for heading in ["Name", "State", "Way", "Round trip", "Received", "Sent", "Roster", "Last handshake"] {
                        th scope="col" role="columnheader" { (heading) }
                    }
                }
            }
            tbody role="rowgroup" {
                @for member in snapshot.members.iter().take(MOST) { (row(snapshot, member)) }
            }
        }
        @if snapshot.members.len() > MOST {
            p { "The table has the first " (MOST) " machines of " (snapshot.members.len()) ". `rustguard peer ls` has all of them." }
        }
    }
}

fn row(snapshot: &Snapshot, member: &Member) -> Markup {
    let view = &member.view;
    html! {
        tr id={ "row" (member.path().replace('/', "-")) } role="row" {
            th scope="row" role="rowheader" {
                a href=(member.path()) { (member.name) }
                @if member.role != "member" { " " span.role { (member.role) } }
            }
            td role="cell" data-label="State" {
                span class={ "state " (member.state.class()) } { (member.state.word()) }
                @if view.problem.is_some() { " " span.problem { "problem" } }
            }
            td role="cell" data-label="Way" { (member.way.as_deref().unwrap_or("–")) }
            td.number role="cell" data-label="Round trip" { (member.round_trip.as_deref().unwrap_or("–")) }
            td.number role="cell" data-label="Received" { (bytes(view.rx_bytes)) }
            td.number role="cell" data-label="Sent" { (bytes(view.tx_bytes)) }
            td.number role="cell" data-label="Roster" { (roster(snapshot, member)) }
            td role="cell" data-label="Last handshake" {
                @match view.last_handshake {
                    Some(at) => { time datetime=(utc(at)) { (ago(snapshot.now, at)) } }
                    None => { "never" }
                }
            }
        }
    }
}

/// The number of the roster that the machine has announced.
pub(super) fn roster(snapshot: &Snapshot, member: &Member) -> String {
    let last = snapshot.status.network.as_ref().map(|network| network.roster);
    match (member.view.roster, last) {
        (Some(roster), Some(last)) if roster < last => format!("{}, older", shown_number(roster)),
        (Some(roster), _) => shown_number(roster),
        (None, _) => "–".to_owned(),
    }
}
