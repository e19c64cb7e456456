//! The contents of lists and of the status.
use super::{ConnectionView, NetworkKey, ProblemView, PublicKey, TokenId};
use rustguard_enroll::lease::Origin;
use serde::{Deserialize, Serialize};
use std::{
    fmt,
    net::{IpAddr, SocketAddr},
    str::FromStr,
};

/// An invite in a list. The token itself is not stored.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct InviteView {
    /// Its id.
    #[serde(with = "super::text")]
    pub id: TokenId,
    /// Whether it still admits machines.
    pub state: InviteState,
    /// The number of machines that may still use it.
    pub uses_left: u32,
    /// When it was made, in seconds since the epoch.
    pub created: u64,
    /// The end of its validity, in seconds since the epoch.
    pub expires: Option<u64>,
    /// The labels that its peers get.
    pub tags: Vec<String>,
    /// Whether its peers are removed after they fall silent.
    pub ephemeral: bool,
    /// The prefixes behind its peers that are admitted.
    pub prefixes: Vec<ipnet::IpNet>,
    /// Whether it admits a further server of the network.
    pub server: bool,
    /// Whether that server is a standby as well.
    #[serde(default)]
    pub standby: bool,
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
    #[serde(with = "super::text")]
    pub public_key: PublicKey,
    /// Its addresses.
    pub addresses: Vec<IpAddr>,
    /// Whether it has completed a handshake.
    pub state: PeerState,
    /// How it was admitted.
    #[serde(with = "super::text")]
    pub origin: PeerOrigin,
    /// The labels that the administrator has given it.
    pub tags: Vec<String>,
    /// Whether it is removed after it falls silent.
    pub ephemeral: bool,
    /// Whether it is a member of the network. All others are clients of this server.
    pub member: bool,
    /// Whether it is a further server of the network.
    pub server: bool,
    /// The prefixes that lead to it.
    pub prefixes: Vec<ipnet::IpNet>,
    /// The prefixes behind it that are admitted. A member also has to announce them.
    pub admitted: Vec<ipnet::IpNet>,
    /// The prefixes that it announces and that are not admitted.
    pub waiting: Vec<ipnet::IpNet>,
    /// When its lease was made, in seconds since the epoch.
    pub created: u64,
    /// When its lease ends unless a handshake renews it, in seconds since the epoch.
    pub expires: Option<u64>,
    /// Its last handshake, in seconds since the epoch.
    pub last_handshake: Option<u64>,
    /// Its endpoint.
    pub endpoint: Option<SocketAddr>,
    /// Whether it can be reached.
    #[serde(default)]
    pub connection: ConnectionView,
    /// The problem of the connection, and its likely cause.
    #[serde(default)]
    pub problem: Option<ProblemView>,
    /// Bytes received from it.
    pub rx_bytes: u64,
    /// Bytes sent to it.
    pub tx_bytes: u64,
    /// Its name in the network, which no other member has. Absent in a star.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub label: Option<String>,
    /// The number of the roster that it has reported. Absent while it is not connected, and for clients.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub roster: Option<u64>,
    /// The version of its program. Absent for clients, for earlier versions, and until it has reported it to this
    /// server.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub version: Option<String>,
}

/// The network of joined machines.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct NetworkView {
    /// Its name.
    pub name: String,
    /// Its public key, which signs the roster.
    #[serde(with = "super::text")]
    pub key: NetworkKey,
    /// The number of the last roster; 0 if there is none yet.
    pub roster: u64,
    /// When it was issued, in seconds since the epoch.
    pub issued: Option<u64>,
    /// The members, including this server.
    pub members: usize,
    /// The stock WireGuard peers, and machines that joined with an older version.
    pub clients: usize,
    /// The names of the connected members that do not have the last roster yet.
    pub lagging: Vec<String>,
    /// The further servers that can take the place of this one.
    #[serde(default)]
    pub standbys: Vec<StandbyView>,
    /// Why the members cannot be told of the latest changes.
    pub problem: Option<String>,
    /// The policy; `null` if everything is allowed.
    #[serde(default)]
    pub policy: Option<NetworkPolicy>,
}

/// The policy of a network, in numbers.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct NetworkPolicy {
    /// How many rules it has.
    pub rules: usize,
    /// How many tests it has.
    pub tests: usize,
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
    /// It has not. Its lease ends if it does not complete one in time.
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
    #[serde(with = "super::text")]
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
    /// The network. Absent in a star.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub network: Option<NetworkView>,
    /// The store that this server shares with others. Absent if it has its own folder only.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub store: Option<StoreView>,
}

/// The store that several servers share.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct StoreView {
    /// The store and the log in it.
    pub store: String,
    /// The last record that this server has.
    pub revision: u64,
    /// Since when nothing can be decided, in seconds since 1970; absent while the store works.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub since: Option<u64>,
    /// Why nothing can be decided.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub problem: Option<String>,
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

/// A further server that can take the place of this one.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub struct StandbyView {
    /// Its name in the network.
    pub name: String,
    /// When the state on its disk was made, in seconds since 1970. `None`: it has reported nothing since this server
    /// has started.
    pub stored: Option<u64>,
    /// Whether that is the present state.
    pub current: bool,
}
