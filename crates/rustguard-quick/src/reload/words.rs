//! A difference in words. Secrets and hooks are never shown, only that they change.

use super::difference::{Changed, Difference, InterfaceDifference, Nets, PeerDifference};
use crate::conf::{NodeName, Peer, Pin, Redistribute, Table};
use ipnet::IpNet;
use rustguard_core::routing::Role;
use rustguard_device::{PathSpec, key::to_base64};
use serde::{Deserialize, Serialize};
use std::{fmt, time::Duration};

/// What a [`Line`] is about.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
#[non_exhaustive]
pub enum Action {
    /// Only the new configuration has it.
    Add,
    /// Only the old configuration has it.
    Remove,
    /// It has another value.
    Change,
}

/// One change in words. `Display` prints it as in `reload --dry-run`: `~ peer office: PersistentKeepalive off → 25 s`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct Line {
    /// What happens.
    pub action: Action,
    /// The name of the setting in the file. `Peer` for a peer as a whole.
    pub setting: String,
    /// The name of the peer, or else its public key. `None` for a setting of the interface.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub peer: Option<String>,
    /// The public key of the peer in base64.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub public_key: Option<String>,
    /// The old value. `None` for a secret, and for what did not exist.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub from: Option<String>,
    /// The new value. `None` for a secret, and for what will not exist.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub to: Option<String>,
    /// What the user should know about this change.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub note: Option<String>,
}

impl fmt::Display for Line {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let sign = match self.action {
            Action::Add => '+',
            Action::Remove => '-',
            Action::Change => '~',
        };
        write!(f, "{sign} ")?;
        if self.setting == PEER {
            write!(f, "peer {}", self.peer.as_deref().unwrap_or_default())?;
            if let Some(text) = self.to.as_deref().filter(|text| !text.is_empty()) {
                write!(f, ": {text}")?;
            }
            return self.note.as_ref().map_or(Ok(()), |note| write!(f, " ({note})"));
        }
        if let Some(peer) = &self.peer {
            write!(f, "peer {peer}: ")?;
        }
        f.write_str(&self.setting)?;
        match (&self.from, &self.to) {
            (Some(from), Some(to)) => write!(f, " {from} → {to}")?,
            (None, Some(value)) | (Some(value), None) => write!(f, " {value}")?,
            (None, None) if self.action == Action::Change => f.write_str(" changed")?,
            (None, None) => {}
        }
        self.note.as_ref().map_or(Ok(()), |note| write!(f, " ({note})"))
    }
}

/// The [`Line::setting`] of a peer as a whole.
const PEER: &str = "Peer";
/// A session lives for two minutes at most before the next handshake.
const NEXT_HANDSHAKE: &str = "from the next handshake on";
const NEXT_UP: &str = "counts from the next `up` on";

impl Line {
    fn new(action: Action, setting: &str) -> Self {
        Self { action, setting: setting.to_owned(), peer: None, public_key: None, from: None, to: None, note: None }
    }

    fn note(mut self, note: &str) -> Self {
        self.note = Some(note.to_owned());
        self
    }
}

impl Difference {
    /// The changes of the interface in words.
    pub fn interface_lines(&self) -> Vec<Line> {
        self.interface.lines()
    }

    /// All changes in words, those of the interface first.
    pub fn lines(&self) -> Vec<Line> {
        let mut lines = self.interface.lines();
        nets(&mut lines, "Route", &self.routes);
        lines.extend(self.removed.iter().map(|peer| Line { to: None, ..whole(Action::Remove, peer) }));
        lines.extend(self.added.iter().map(|peer| whole(Action::Add, peer)));
        lines.extend(self.changed.iter().flat_map(PeerDifference::lines));
        // People know the relays by their names, as their file does.
        let texts = lines.iter_mut().flat_map(|line| [&mut line.from, &mut line.to]).flatten();
        for text in texts.filter(|text| text.contains("via-peer ")) {
            for (key, name) in &self.relays {
                *text = text.replace(key, name);
            }
        }
        lines
    }
}

impl InterfaceDifference {
    pub(super) fn lines(&self) -> Vec<Line> {
        let mut lines = Vec::new();
        if self.private_key.is_some() {
            let line = Line::new(Action::Change, "PrivateKey");
            lines.push(line.note("another identity: all sessions end, and the peers need the new public key"));
        }
        nets(&mut lines, "Address", &self.addresses);
        push(&mut lines, "DNS", &self.dns, |servers| list(servers));
        push(&mut lines, "DNS search domains", &self.dns_search, |domains| domains.join(", "));
        push(&mut lines, "MTU", &self.mtu, |mtu| or(mtu, "automatic"));
        push(&mut lines, "Table", &self.table, |table| match table {
            Table::Auto => "auto".to_owned(),
            Table::Off => "off".to_owned(),
            Table::Number(number) => number.to_string(),
        });
        push(&mut lines, "ListenPort", &self.listen_port, |port| or(port, "any"));
        if let Some(Changed { to: None, .. }) = self.listen_port {
            note_last(&mut lines, "the present port stays");
        }
        push(&mut lines, "ListenPort", &self.more_listen_ports, |ports| {
            if ports.is_empty() { "no further ports".to_owned() } else { format!("further {}", list(ports)) }
        });
        push(&mut lines, "ListenAddress", &self.listen_addresses, |addresses| {
            if addresses.is_empty() { "all".to_owned() } else { list(addresses) }
        });
        push(&mut lines, "FwMark", &self.fwmark, |mark| match mark {
            None => "automatic".to_owned(),
            Some(0) => "off".to_owned(),
            Some(mark) => format!("{mark:#x}"),
        });
        push(&mut lines, "Routing", &self.routing, ToString::to_string);
        nets(&mut lines, "Announce", &self.announce);
        push(&mut lines, "Redistribute", &self.redistribute, |which: &Vec<Redistribute>| list(which));
        push(&mut lines, "Pin", &self.pins, |pins| {
            let pin = |Pin { prefix, key, .. }: &Pin| format!("{prefix} {}", *to_base64(&key.0));
            pins.iter().map(pin).collect::<Vec<_>>().join(", ")
        });
        push(&mut lines, "SourceCheck", &self.source_check, |check| check.name().to_owned());
        push(&mut lines, "NodeName", &self.node_name, |name| match name {
            NodeName::Host => "of the host".to_owned(),
            NodeName::Off => "off".to_owned(),
            NodeName::Is(name) => name.clone(),
        });
        for (key, hooks, note) in [
            ("PreUp", &self.pre_up, NEXT_UP),
            ("PostUp", &self.post_up, NEXT_UP),
            ("PreDown", &self.pre_down, "runs at the end of the tunnel"),
            ("PostDown", &self.post_down, "runs at the end of the tunnel"),
        ] {
            // A hook may have a password on its command line.
            lines.extend(hooks.as_ref().map(|_| Line::new(Action::Change, key).note(note)));
        }
        push(&mut lines, "Forward", &self.forward, |forward| on_or_off(forward.unwrap_or(false)).to_owned());
        push(&mut lines, "PublicEndpoint", &self.public_endpoints, |endpoints| {
            if endpoints.is_empty() { "none".to_owned() } else { list(endpoints) }
        });
        push(&mut lines, "PortMapping", &self.port_mapping, |on| on_or_off(on.unwrap_or(true)).to_owned());
        push(&mut lines, "Nat", &self.nat, |on| on_or_off(on.unwrap_or(false)).to_owned());
        push(&mut lines, "HandshakeOnUp", &self.handshake_on_up, |greet| greet.unwrap_or(true).to_string());
        if self.handshake_on_up.is_some() {
            note_last(&mut lines, NEXT_UP);
        }
        push(&mut lines, "Network", &self.network, |key| key.map_or_else(|| "none".to_owned(), |key| key.to_string()));
        push(&mut lines, "Accept", &self.accept, |accept| {
            let words = accept.words().collect::<Vec<_>>();
            if words.is_empty() { "nothing".to_owned() } else { words.join(", ") }
        });
        push(&mut lines, "SaveConfig", &self.save_config, |save| save.to_string());
        lines
    }
}

impl PeerDifference {
    pub(super) fn lines(&self) -> Vec<Line> {
        let mut lines = Vec::new();
        push(&mut lines, "Name", &self.name, |name| name.clone().unwrap_or_default());
        if let Some(change) = &self.preshared_key {
            let action = match (&change.from, &change.to) {
                (None, _) => Action::Add,
                (_, None) => Action::Remove,
                _ => Action::Change,
            };
            lines.push(Line::new(action, "PresharedKey").note(NEXT_HANDSHAKE));
        }
        nets(&mut lines, "AllowedIPs", &self.allowed_ips);
        push(&mut lines, "Endpoint", &self.endpoints, |paths| list(paths));
        if self.endpoints.as_ref().is_some_and(|change| change.to.is_empty()) {
            note_last(&mut lines, "the present address stays until the peer is heard elsewhere");
        }
        push(&mut lines, "PersistentKeepalive", &self.persistent_keepalive, |interval| keepalive(*interval));
        push(&mut lines, "Direct", &self.direct, |direct| direct.map_or("as the endpoints say", on_or_off).to_owned());
        push(&mut lines, "Parity", &self.parity, |size| size.map_or_else(|| "off".to_owned(), |size| size.to_string()));
        push(&mut lines, "Role", &self.role, |role| match role {
            None | Some(Role::Router) => "router".to_owned(),
            Some(Role::Client) => "client".to_owned(),
            Some(Role::Member) => "member".to_owned(),
            Some(Role::Server) => "server".to_owned(),
        });
        let key = to_base64(&self.public_key.0).to_string();
        for line in &mut lines {
            line.peer = Some(self.label.clone().unwrap_or_else(|| key.clone()));
            line.public_key = Some(key.clone());
        }
        lines
    }
}

/// A peer that is added or removed, with its settings in words.
fn whole(action: Action, peer: &Peer) -> Line {
    let mut words = Vec::new();
    if !peer.allowed_ips.is_empty() {
        words.push(format!("AllowedIPs {}", list(&peer.allowed_ips)));
    }
    if !peer.endpoints.is_empty() {
        words.push(format!("Endpoint {}", list::<PathSpec>(&peer.endpoints)));
    }
    if peer.preshared_key.is_some() {
        words.push("with PresharedKey".to_owned());
    }
    if peer.persistent_keepalive.is_some() {
        words.push(format!("PersistentKeepalive {}", keepalive(peer.persistent_keepalive)));
    }
    let key = to_base64(&peer.public_key.0).to_string();
    Line {
        peer: Some(peer.name.clone().unwrap_or_else(|| key.clone())),
        public_key: Some(key),
        to: Some(words.join(", ")),
        ..Line::new(action, PEER)
    }
}

/// A line for a setting with another value. A value in no words was not there.
fn push<T>(lines: &mut Vec<Line>, setting: &str, change: &Option<Changed<T>>, words: impl Fn(&T) -> String) {
    let Some(Changed { from, to }) = change else { return };
    let word = |value| Some(words(value)).filter(|text| !text.is_empty());
    let (from, to) = (word(from), word(to));
    let action = match (&from, &to) {
        (None, Some(_)) => Action::Add,
        (Some(_), None) => Action::Remove,
        _ => Action::Change,
    };
    lines.push(Line { from, to, ..Line::new(action, setting) });
}

fn note_last(lines: &mut [Line], note: &str) {
    if let Some(line) = lines.last_mut() {
        line.note = Some(note.to_owned());
    }
}

fn nets(lines: &mut Vec<Line>, setting: &str, change: &Nets) {
    let line = |action, net: &IpNet| {
        let (from, to) = match action {
            Action::Remove => (Some(net.to_string()), None),
            _ => (None, Some(net.to_string())),
        };
        Line { from, to, ..Line::new(action, setting) }
    };
    lines.extend(change.removed.iter().map(|net| line(Action::Remove, net)));
    lines.extend(change.added.iter().map(|net| line(Action::Add, net)));
}

fn list<T: fmt::Display>(values: &[T]) -> String {
    values.iter().map(ToString::to_string).collect::<Vec<_>>().join(", ")
}

fn on_or_off(on: bool) -> &'static str {
    if on { "on" } else { "off" }
}

fn or<T: ToString>(value: &Option<T>, absent: &str) -> String {
    value.as_ref().map_or_else(|| absent.to_owned(), ToString::to_string)
}

fn keepalive(interval: Option<Duration>) -> String {
    interval.map_or_else(|| "off".to_owned(), |interval| format!("{} s", interval.as_secs()))
}
