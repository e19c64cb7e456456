//! The answers of the control socket.
use super::{Adopted, InviteView, PeerOrigin, PeerView, PresharedKey, PublicKey, Reloaded, Secret, Status, TokenId};
use serde::{Deserialize, Serialize};
use std::net::IpAddr;

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
        #[serde(with = "super::text")]
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
    /// A peer has other prefixes or tags.
    PeerChanged(PeerChanged),
    /// The server's state.
    Status(Box<Status>),
    /// The settings were applied, or compared.
    Reloaded(Reloaded),
    /// The newest list of members was adopted, or its changes are shown.
    Adopted(Adopted),
    /// The server's key was changed, or the peers that would have to be told are shown.
    KeyChange(KeyChange),
    /// A backup.
    Backup {
        /// The file, in base64.
        file: Secret,
    },
    /// The backup is restored, or the machines that this would affect are shown.
    Restore {
        /// Whether the server starts again with it now.
        restarts: bool,
        /// The affected machines.
        losses: crate::Losses,
    },
    /// A link to the status page was made.
    WebLink {
        /// The link. Any holder can log in with it, once.
        url: Secret,
        /// How to reach the page if it is served at a Unix socket: a command in words.
        hint: Option<String>,
        /// Its validity in seconds.
        seconds: u64,
    },
    /// All sessions and links of the status page were ended.
    WebEnded {
        /// How many sessions there were.
        sessions: usize,
    },
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
    #[serde(with = "super::text")]
    pub server_key: PublicKey,
    /// The preshared key.
    #[serde(with = "super::preshared_key")]
    pub preshared_key: PresharedKey,
    /// The server's endpoint.
    pub endpoint: Option<String>,
}

/// A change of the server's key.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct KeyChange {
    /// Whether the key was changed. Without consent it is not if there are `clients`.
    pub changed: bool,
    /// The server's public key from now on.
    #[serde(with = "super::text")]
    pub public_key: PublicKey,
    /// When the previous key ends, in seconds since the epoch; 0 if it has ended.
    pub until: u64,
    /// The peers to which people have to give the new key: stock WireGuard, and machines that joined with an older
    /// version.
    pub clients: Vec<String>,
    /// The invites that name the previous key and would be valid for longer than that key. They end with it.
    pub invites: Vec<InviteView>,
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
    #[serde(with = "super::text")]
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

/// A peer with other prefixes or tags.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct PeerChanged {
    /// Its name, or its public key if it has none.
    pub peer: String,
    /// Its tags.
    pub tags: Vec<String>,
    /// The prefixes behind it that are admitted.
    pub admitted: Vec<ipnet::IpNet>,
    /// The prefixes that it announces and that are not admitted.
    pub waiting: Vec<ipnet::IpNet>,
    /// Notes for the administrator about the change.
    pub notes: Vec<String>,
}
