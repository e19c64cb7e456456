//! Requests to the control socket and its answers: JSON, one object for each line.

mod secret;

pub use self::secret::Secret;
pub use crate::settings::SettingsChange;
pub use rustguard_crypto::x25519::PublicKey;
pub use rustguard_device::uapi::{ConnectionView, ProblemView};
use rustguard_enroll::lease::Origin;
pub use rustguard_enroll::lease::{PresharedKey, TokenId};
use serde::{Deserialize, Serialize};
use std::{
    fmt,
    net::{IpAddr, SocketAddr},
    path::PathBuf,
    str::FromStr,
};

/// Serialises types as JSON strings, by `Display` and `FromStr`.
mod text {
    use serde::{Deserialize as _, Deserializer, Serializer, de::Error as _};
    use std::{fmt::Display, str::FromStr};

    pub(super) fn serialize<T: Display, S: Serializer>(value: &T, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(value)
    }

    pub(super) fn deserialize<'de, T: FromStr<Err: Display>, D: Deserializer<'de>>(json: D) -> Result<T, D::Error> {
        String::deserialize(json)?.parse().map_err(D::Error::custom)
    }
}

/// Serialises a preshared key as base64.
mod preshared_key {
    use super::PresharedKey;
    use rustguard_device::key;
    use serde::{Deserialize as _, Deserializer, Serializer, de::Error as _};
    use zeroize::Zeroizing;

    pub(super) fn serialize<S: Serializer>(key: &PresharedKey, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(&key::to_base64(key.as_bytes()))
    }

    pub(super) fn deserialize<'de, D: Deserializer<'de>>(json: D) -> Result<PresharedKey, D::Error> {
        let text = Zeroizing::new(String::deserialize(json)?);
        key::from_base64(&text).map(|key| PresharedKey::from_bytes(&key)).map_err(D::Error::custom)
    }
}

/// A request.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "command", rename_all = "kebab-case", deny_unknown_fields)]
#[non_exhaustive]
pub enum Request {
    /// Open the pairing window.
    Open {
        /// The duration in seconds.
        seconds: u64,
        /// Whether joiners wait for [`Approve`](Self::Approve).
        approve: bool,
    },
    /// Close the window.
    Close,
    /// The server's state: [`Answer::Status`].
    Status,
    /// Admit a waiting joiner.
    Approve {
        /// The eight digits that the joiner shows.
        code: String,
    },
    /// Make an invite: [`Answer::Invite`] or [`Answer::Unused`].
    NewInvite(NewInvite),
    /// All invites: [`Answer::Invites`].
    Invites,
    /// Revoke an invite.
    RevokeInvite {
        /// The invite's id in hexadecimal.
        id: String,
    },
    /// All peers: [`Answer::Peers`].
    Peers,
    /// Add a peer by its public key: [`Answer::Added`].
    AddPeer(AddPeer),
    /// Take the stored settings over: [`Answer::Reloaded`].
    Reload {
        /// Only compare, and change nothing.
        #[serde(default)]
        dry_run: bool,
    },
    /// Remove a peer: [`Answer::Removed`].
    RemovePeer {
        /// The peer's name, address or public key.
        peer: String,
        /// Whether to withdraw the grant that admitted the peer too: its invite is revoked, or the window closed.
        #[serde(default)]
        revoke: bool,
    },
    /// Rename a peer.
    RenamePeer {
        /// The peer's name, address or public key.
        peer: String,
        /// The new name.
        name: String,
    },
}

/// The changes between the running settings and the stored ones.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct Reloaded {
    /// The file of the settings.
    pub file: PathBuf,
    /// The changes.
    pub changes: Vec<SettingsChange>,
}

/// An invite to make.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
#[non_exhaustive]
pub struct NewInvite {
    /// The number of machines that may use it. The default is one.
    #[serde(default)]
    pub uses: Option<u32>,
    /// Its validity in seconds. The default is one day.
    #[serde(default)]
    pub seconds: Option<u64>,
    /// Its purpose. The peers that it admits are listed with it.
    #[serde(default)]
    pub tag: Option<String>,
    /// The addresses of its peer.
    #[serde(default)]
    pub addresses: Vec<IpAddr>,
    /// Whether its peers are removed after they fall silent.
    #[serde(default)]
    pub ephemeral: bool,
    /// The server's endpoint, instead of the one that the server determines.
    #[serde(default)]
    pub endpoint: Option<String>,
    /// What happens if an invite like this one has not been used yet.
    #[serde(default)]
    pub unused: Unused,
}

/// What happens to an unused invite with the same number of uses, tag, addresses and kind of lease, when another one is
/// to be made. Its token is not stored, so it cannot be shown again.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
#[non_exhaustive]
pub enum Unused {
    /// No other invite is made: [`Answer::Unused`].
    #[default]
    Refuse,
    /// It stays, and another one is made.
    Keep,
    /// It is revoked after another one was made.
    Revoke,
}

/// A peer to add.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
#[non_exhaustive]
pub struct AddPeer {
    /// Its public key, base64.
    pub public_key: String,
    /// Its name.
    pub name: String,
    /// Its addresses, instead of free ones.
    #[serde(default)]
    pub addresses: Vec<IpAddr>,
    /// The time for its first handshake, in seconds. There is no limit by default.
    #[serde(default)]
    pub pending_seconds: Option<u64>,
    /// The server's endpoint for it, instead of the one that the server determines.
    #[serde(default)]
    pub endpoint: Option<String>,
}

impl AddPeer {
    /// A peer with this public key (base64) and name. It gets free addresses, and stays until it is removed.
    pub fn new(public_key: impl Into<String>, name: impl Into<String>) -> Self {
        Self {
            public_key: public_key.into(),
            name: name.into(),
            addresses: Vec::new(),
            pending_seconds: None,
            endpoint: None,
        }
    }
}

/// An answer.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "answer", rename_all = "kebab-case")]
#[non_exhaustive]
pub enum Answer {
    /// The request was carried out.
    Done,
    /// The request was refused.
    Refused {
        /// The reason, for people.
        error: String,
    },
    /// The window is open.
    Opened {
        /// The duration in seconds.
        seconds: u64,
        /// The code for joiners. Absent if they use the server's passphrase.
        code: Option<Secret>,
        /// The server's endpoint for joiners.
        endpoint: Option<String>,
    },
    /// An invite was made.
    Invite {
        /// The token. Any holder of it can join.
        token: Secret,
        /// The invite's id.
        #[serde(with = "text")]
        id: TokenId,
        /// The server's endpoint for joiners.
        endpoint: Option<String>,
        /// The end of its validity, in seconds since the epoch.
        expires: Option<u64>,
    },
    /// No invite was made, because an invite like it has not been used yet.
    Unused {
        /// The unused invite.
        invite: InviteView,
    },
    /// All invites.
    Invites {
        /// The invites, in the order they were made.
        invites: Vec<InviteView>,
    },
    /// All peers.
    Peers {
        /// The peers, ordered by their addresses.
        peers: Vec<PeerView>,
    },
    /// A peer was added.
    Added(Added),
    /// A peer was removed.
    Removed(Removed),
    /// The server's state.
    Status(Status),
    /// The settings were taken over, or compared.
    Reloaded(Reloaded),
    /// A joiner was approved.
    Approved {
        /// Its name, if it gave one.
        name: Option<String>,
    },
}

impl Answer {
    pub(crate) fn refused(error: impl ToString) -> Self {
        Self::Refused { error: error.to_string() }
    }
}

/// The configuration for the owner of a new peer's private key.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct Added {
    /// The peer's addresses with the pools' prefix lengths.
    pub addresses: Vec<ipnet::IpNet>,
    /// The destinations to send to the server.
    pub allowed_ips: Vec<ipnet::IpNet>,
    /// Name servers.
    pub dns: Vec<IpAddr>,
    /// Search domains.
    pub search: Vec<String>,
    /// The server's public key.
    #[serde(with = "text")]
    pub server_key: PublicKey,
    /// The preshared key.
    #[serde(with = "preshared_key")]
    pub preshared_key: PresharedKey,
    /// The server's endpoint.
    pub endpoint: Option<String>,
}

/// A removed peer, and the grants that could admit its machine again under another key.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct Removed {
    /// Its name, or its public key if it has none.
    pub peer: String,
    /// Its former addresses.
    pub addresses: Vec<IpAddr>,
    /// How it was admitted.
    #[serde(with = "text")]
    pub origin: PeerOrigin,
    /// The current state of the invite that admitted it. Absent if there was none, or its record was deleted.
    pub invite: Option<InviteView>,
    /// The number of other peers that the same invite admitted. They stay.
    pub others: usize,
    /// It was admitted by a window, and a window is open now.
    pub window_open: bool,
    /// It was admitted by a window, and windows use a passphrase, which it may know.
    pub passphrase: bool,
}

/// An invite in a list. The token itself is not stored.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct InviteView {
    /// Its id.
    #[serde(with = "text")]
    pub id: TokenId,
    /// Whether it still admits machines.
    pub state: InviteState,
    /// The number of machines that may still use it.
    pub uses_left: u32,
    /// When it was made, in seconds since the epoch.
    pub created: u64,
    /// The end of its validity, in seconds since the epoch.
    pub expires: Option<u64>,
    /// Its purpose.
    pub tag: Option<String>,
    /// Whether its peers are removed after they fall silent.
    pub ephemeral: bool,
}

/// Whether an invite still admits machines.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
#[non_exhaustive]
pub enum InviteState {
    /// It admits machines.
    Usable,
    /// It has no use left.
    Used,
    /// It has expired.
    Expired,
    /// It was revoked.
    Revoked,
}

impl fmt::Display for InviteState {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Usable => "usable",
            Self::Used => "used",
            Self::Expired => "expired",
            Self::Revoked => "revoked",
        })
    }
}

/// A peer in a list.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct PeerView {
    /// Its name.
    pub name: Option<String>,
    /// Its public key.
    #[serde(with = "text")]
    pub public_key: PublicKey,
    /// Its addresses.
    pub addresses: Vec<IpAddr>,
    /// Whether it has completed a handshake.
    pub state: PeerState,
    /// How it was admitted.
    #[serde(with = "text")]
    pub origin: PeerOrigin,
    /// The invite's tag.
    pub tag: Option<String>,
    /// Whether it is removed after it falls silent.
    pub ephemeral: bool,
    /// When its lease was made, in seconds since the epoch.
    pub created: u64,
    /// When its lease ends unless a handshake renews it, in seconds since the epoch.
    pub expires: Option<u64>,
    /// Its last handshake, in seconds since the epoch.
    pub last_handshake: Option<u64>,
    /// Its endpoint.
    pub endpoint: Option<SocketAddr>,
    /// Whether it can be talked to.
    #[serde(default)]
    pub connection: ConnectionView,
    /// What is wrong with the connection, and the likely cause.
    #[serde(default)]
    pub problem: Option<ProblemView>,
    /// Bytes received from it.
    pub rx_bytes: u64,
    /// Bytes sent to it.
    pub tx_bytes: u64,
}

/// How a peer was admitted. In JSON and in text: `invite ID`, `window` or `administrator`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum PeerOrigin {
    /// By this invite.
    Invite(TokenId),
    /// While a window was open.
    Window,
    /// An administrator added its key.
    Administrator,
}

impl From<Origin> for PeerOrigin {
    fn from(origin: Origin) -> Self {
        match origin {
            Origin::Invite(id) => Self::Invite(id),
            Origin::Window => Self::Window,
            Origin::Admin => Self::Administrator,
        }
    }
}

impl fmt::Display for PeerOrigin {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Invite(id) => write!(f, "invite {id}"),
            Self::Window => f.write_str("window"),
            Self::Administrator => f.write_str("administrator"),
        }
    }
}

impl FromStr for PeerOrigin {
    type Err = InvalidOrigin;

    fn from_str(text: &str) -> Result<Self, InvalidOrigin> {
        match text {
            "window" => Ok(Self::Window),
            "administrator" => Ok(Self::Administrator),
            _ => text.strip_prefix("invite ").and_then(|id| id.parse().ok()).map(Self::Invite).ok_or(InvalidOrigin),
        }
    }
}

/// The text is not the origin of a peer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("a peer's origin is `invite ID`, `window` or `administrator`")]
pub struct InvalidOrigin;

/// Whether a peer has completed a handshake.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
#[non_exhaustive]
pub enum PeerState {
    /// It has not. Its lease ends if it does not do so in time.
    Pending,
    /// It has, or an administrator added it.
    Active,
}

impl fmt::Display for PeerState {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Pending => "pending",
            Self::Active => "active",
        })
    }
}

/// The server's state.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct Status {
    /// The interface.
    pub interface: String,
    /// The server's public key.
    #[serde(with = "text")]
    pub public_key: PublicKey,
    /// The UDP port.
    pub port: u16,
    /// The server's endpoint for joiners, if it is known.
    pub endpoint: Option<String>,
    /// The pools.
    pub pools: Vec<PoolView>,
    /// Whether traffic between peers is blocked.
    pub isolate: bool,
    /// The networks behind this machine that peers reach through it.
    pub routes: Vec<ipnet::IpNet>,
    /// Whether peers reach them with an address of this machine.
    pub nat: bool,
    /// The window, while one is open.
    pub window: Option<WindowView>,
    /// Joiners that wait for approval.
    pub waiting: Vec<WaitingView>,
    /// Invites that can be used.
    pub usable_invites: usize,
    /// All peers.
    pub peers: Vec<PeerView>,
    /// Admissions, refusals and other events since the start, as counted by [`counters`](crate::Counters).
    pub counters: Vec<CounterView>,
}

/// The count of an event since the start. In JSON it is a list of both fields.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(from = "(String, u64)", into = "(String, u64)")]
#[non_exhaustive]
pub struct CounterView {
    /// The name of the event, in lower-case letters.
    pub name: String,
    /// The number of times it happened.
    pub count: u64,
}

impl From<(String, u64)> for CounterView {
    fn from((name, count): (String, u64)) -> Self {
        Self { name, count }
    }
}

impl From<CounterView> for (String, u64) {
    fn from(counter: CounterView) -> Self {
        (counter.name, counter.count)
    }
}

/// A pool and its use.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct PoolView {
    /// The prefix.
    pub prefix: ipnet::IpNet,
    /// The server's own address in it.
    pub address: IpAddr,
    /// The number of leased addresses.
    pub leased: usize,
    /// The number of addresses that can be leased, at most 2^64 - 1.
    pub capacity: u64,
}

/// The open window.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct WindowView {
    /// Seconds until the window closes.
    pub seconds_left: u64,
    /// The kind of secret that opens it.
    pub secret: WindowSecret,
    /// The number of guesses left.
    pub attempts_left: u32,
    /// Whether joiners wait for approval.
    pub approve: bool,
}

/// The kind of secret that opens a window.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
#[non_exhaustive]
pub enum WindowSecret {
    /// A code that was made for this window.
    Code,
    /// The server's passphrase.
    Passphrase,
}

impl fmt::Display for WindowSecret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Code => "code",
            Self::Passphrase => "passphrase",
        })
    }
}

/// A joiner that waits for approval.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct WaitingView {
    /// The eight digits that the joiner shows.
    pub code: String,
    /// The joiner's name for itself.
    pub name: Option<String>,
    /// The source of its last message.
    pub source: SocketAddr,
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    /// Programs read these words: `rustguard status --json`, and the answers of the control socket.
    #[test]
    fn types_are_the_same_words_in_json() {
        let key = "AQEBAQEBAQEBAQEBAQEBAQEBAQEBAQEBAQEBAQEBAQE=";
        let peer = |origin: &str| {
            json!({
                "name": null, "public_key": key, "addresses": ["10.0.0.2"], "state": "active", "origin": origin,
                "tag": null, "ephemeral": false, "created": 1, "expires": null, "last_handshake": 2,
                "endpoint": "[2001:db8::1]:7",
                "connection": { "state": "online", "since": 5 },
                "problem": { "kind": "no-answer", "text": "nothing comes back", "since": 5 }, "rx_bytes": 3, "tx_bytes": 4,
            })
        };
        let invite = json!({
            "id": "0123456789abcdef", "state": "usable", "uses_left": 1, "created": 1, "expires": null, "tag": null,
            "ephemeral": false,
        });
        for answer in [
            json!({ "answer": "peers", "peers": [peer("invite 0123456789abcdef"), peer("window"), peer("administrator")] }),
            json!({ "answer": "invites", "invites": [invite] }),
            json!({ "answer": "unused", "invite": invite }),
            json!({ "answer": "opened", "seconds": 60, "code": "ABCD-EFGH", "endpoint": null }),
            json!({ "answer": "invite", "token": "rg1-secret", "id": "0123456789abcdef", "endpoint": null, "expires": null }),
            json!({
                "answer": "added", "addresses": ["10.0.0.2/24"], "allowed_ips": [], "dns": [], "search": [],
                "server_key": key, "preshared_key": key, "endpoint": "example.org:51820",
            }),
            json!({
                "answer": "removed", "peer": "laptop", "addresses": [], "origin": "window", "invite": invite, "others": 0,
                "window_open": false, "passphrase": true,
            }),
            json!({
                "answer": "status", "interface": "rg0", "public_key": key, "port": 51_820, "endpoint": null, "pools": [],
                "isolate": false, "routes": [], "nat": false, "window": null,
                "waiting": [{ "code": "12345678", "name": null, "source": "192.0.2.9:1" }], "usable_invites": 0,
                "peers": [], "counters": [["admitted", 3], ["refused", 2]],
            }),
        ] {
            let parsed: Answer = serde_json::from_value(answer.clone()).unwrap();
            assert_eq!(serde_json::to_value(&parsed).unwrap(), answer);
            // A message that shows an answer shows no key, token or code.
            for secret in [key, "rg1-secret", "ABCD-EFGH"] {
                assert!(!format!("{parsed:?}").contains(secret), "{parsed:?}");
            }
        }
        for origin in ["invite", "invite 0123", "invite 0123456789abcdeg", "invite +123456789abcdef", "Window", ""] {
            assert!(origin.parse::<PeerOrigin>().is_err(), "{origin}");
        }
    }
}
