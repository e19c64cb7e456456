//! A difference in words. Secrets and hooks are never shown, only that they change.

use super::difference::{Changed, Difference, Nets};
use crate::conf::{
    Peer,
    keys::{self, Key, Section, Told},
};
use ipnet::IpNet;
use rustguard_device::key::to_base64;
use serde::{Deserialize, Serialize};
use std::fmt;

/// The kind of change of a [`Line`].
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
    /// The kind of change.
    pub action: Action,
    /// The name of the setting in the file. `Peer` for a peer as a whole.
    pub setting: String,
    /// The name of the peer, or else its public key. `None` for a setting of the interface.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub peer: Option<String>,
    /// The public key of the peer in base64.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub public_key: Option<String>,
    /// The old value. `None` for a secret, and if there was no value.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub from: Option<String>,
    /// The new value. `None` for a secret, and if there is no value.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub to: Option<String>,
    /// A note for the user about this change.
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

impl Line {
    fn new(action: Action, setting: &str) -> Self {
        Self { action, setting: setting.to_owned(), peer: None, public_key: None, from: None, to: None, note: None }
    }
}

impl Difference {
    /// The changes of the interface in words.
    pub fn interface_lines(&self) -> Vec<Line> {
        of_section(&self.interface)
    }

    /// All changes in words. Changes of the interface come first.
    pub fn lines(&self) -> Vec<Line> {
        let mut lines = self.interface_lines();
        lines.extend(nets("Route", &self.routes));
        lines.extend(self.removed.iter().map(|peer| Line { to: None, ..whole(Action::Remove, peer) }));
        lines.extend(self.added.iter().map(|peer| whole(Action::Add, peer)));
        lines.extend(self.changed.iter().flat_map(of_peer));
        // Users know the relays by the names in their file.
        let texts = lines.iter_mut().flat_map(|line| [&mut line.from, &mut line.to]).flatten();
        for text in texts.filter(|text| text.contains("via-peer ")) {
            for (key, name) in &self.relays {
                *text = text.replace(key, name);
            }
        }
        lines
    }
}

/// A change of a peer in words.
fn of_peer(change: &Changed<Peer>) -> Vec<Line> {
    let Changed { from, to } = change;
    let key = to_base64(&to.public_key.0).to_string();
    let label = to.name.as_ref().or(from.name.as_ref()).unwrap_or(&key);
    let of_it = |line| Line { peer: Some(label.clone()), public_key: Some(key.clone()), ..line };
    of_section(change).into_iter().map(of_it).collect()
}

/// A change of a section in words.
fn of_section<S: Section>(Changed { from, to }: &Changed<S>) -> Vec<Line> {
    keys::all(S::TOLD).filter(|key| key.changes(from, to)).flat_map(|key| of_key(key, from, to)).collect()
}

fn of_key<S: Section>(key: &Key<S>, from: &S, to: &S) -> Vec<Line> {
    let setting = key.form.name;
    let mut lines = match &key.told {
        Told::Values(none) => changed(setting, key.words(from, none), key.words(to, none)).into_iter().collect(),
        Told::Words(parts) => {
            parts.iter().filter_map(|(setting, words)| changed(setting, words(from), words(to))).collect()
        }
        Told::Nets(of) => nets(setting, &Nets::between(of(from), of(to))),
        Told::Hidden => vec![Line::new(Action::Change, setting)],
        Told::Secret => {
            let action = match [from, to].map(|section| key.values(section).is_empty()) {
                [true, _] => Action::Add,
                [_, true] => Action::Remove,
                _ => Action::Change,
            };
            vec![Line::new(action, setting)]
        }
    };
    if let Some(first) = lines.first_mut() {
        first.note = (key.note)(to).map(str::to_owned);
    }
    lines
}

/// A peer that is added or removed, with its settings in words.
fn whole(action: Action, peer: &Peer) -> Line {
    let mut words = Vec::new();
    if !peer.allowed_ips.is_empty() {
        words.push(format!("AllowedIPs {}", list(&peer.allowed_ips)));
    }
    if !peer.endpoints.is_empty() {
        words.push(format!("Endpoint {}", list(&peer.endpoints)));
    }
    if peer.preshared_key.is_some() {
        words.push("with PresharedKey".to_owned());
    }
    words.extend(peer.persistent_keepalive.map(|interval| format!("PersistentKeepalive {} s", interval.as_secs())));
    let key = to_base64(&peer.public_key.0).to_string();
    Line {
        peer: Some(peer.name.clone().unwrap_or_else(|| key.clone())),
        public_key: Some(key),
        to: Some(words.join(", ")),
        ..Line::new(action, PEER)
    }
}

/// A line for a setting with another value. An empty text means no value.
fn changed(setting: &str, from: String, to: String) -> Option<Line> {
    let action = match (&from[..], &to[..]) {
        (from, to) if from == to => return None,
        ("", _) => Action::Add,
        (_, "") => Action::Remove,
        _ => Action::Change,
    };
    let [from, to] = [from, to].map(|text| Some(text).filter(|text| !text.is_empty()));
    Some(Line { from, to, ..Line::new(action, setting) })
}

fn nets(setting: &str, change: &Nets) -> Vec<Line> {
    let line = |action, net: &IpNet| {
        let (from, to) = match action {
            Action::Remove => (Some(net.to_string()), None),
            _ => (None, Some(net.to_string())),
        };
        Line { from, to, ..Line::new(action, setting) }
    };
    let removed = change.removed.iter().map(|net| line(Action::Remove, net));
    removed.chain(change.added.iter().map(|net| line(Action::Add, net))).collect()
}

fn list(values: impl IntoIterator<Item = impl ToString>) -> String {
    values.into_iter().map(|value| value.to_string()).collect::<Vec<_>>().join(", ")
}
