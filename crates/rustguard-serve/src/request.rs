//! Requests to the control socket and its answers, in JSON.

mod adopted;
mod answer;
mod permission;
mod secret;
mod view;

pub use self::{
    adopted::{Adopted, MachineChange},
    answer::{Added, Answer, KeyChange, PeerChanged, Removed},
    permission::Permission,
    secret::Secret,
    view::{
        CounterView, InvalidOrigin, InviteState, InviteView, NetworkPolicy, NetworkView, PeerOrigin, PeerState,
        PeerView, PoolView, StandbyView, Status, StoreView, WaitingView, WindowSecret, WindowView,
    },
};
use crate::settings::Settings;
pub use crate::settings::SettingsChange;
pub use rustguard_crypto::x25519::PublicKey;
pub use rustguard_device::uapi::{ConnectionView, ProblemView};
pub use rustguard_enroll::lease::{PresharedKey, TokenId};
pub use rustguard_network::roster::key::NetworkKey;
use serde::{Deserialize, Serialize};
use std::{net::IpAddr, path::PathBuf};

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

/// An event of a session of the status page.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WebEvent {
    /// It begins.
    Login,
    /// Its user ends it.
    Logout,
    /// The link that began it was used again.
    LinkReused,
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
    /// Refuse a waiting joiner.
    Refuse {
        /// The eight digits that the joiner shows.
        code: String,
    },
    /// Make a link with which a user can log in to the status page once: [`Answer::WebLink`].
    WebLink {
        /// The name of that user, for the audit log.
        name: String,
    },
    /// End all sessions and links of the status page: [`Answer::WebEnded`].
    WebEnd,
    /// Report an event of a session of the status page. Only the page itself sends this.
    #[serde(skip)]
    WebSession {
        /// The event.
        event: WebEvent,
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
    /// Apply the stored settings: [`Answer::Reloaded`].
    Reload {
        /// Only compare, and change nothing.
        #[serde(default)]
        dry_run: bool,
        /// Continue with the leases of this server, although members have a newer roster: the state folder was
        /// restored from a copy.
        #[serde(default)]
        restored: bool,
    },
    /// Compare other settings with those of the running server, and say whether it could start again with them:
    /// [`Answer::Reloaded`]. Nothing is changed.
    CheckSettings {
        /// All settings.
        settings: Box<Settings>,
    },
    /// Change the leases to agree with the newest list that members have, after the state folder was restored from a
    /// copy that is older than the list. [`Answer::Adopted`].
    Adopt {
        /// Only report the changes, and change nothing.
        #[serde(default)]
        dry_run: bool,
    },
    /// Change the server's key: [`Answer::KeyChange`].
    RotateKey {
        /// Whether it is changed even if there are peers to which people have to give the new key.
        #[serde(default)]
        consent: bool,
    },
    /// Everything that a new machine needs to become this server: [`Answer::Backup`]. For root and the user of the
    /// server only.
    Backup,
    /// Replace the state by the backup in the file `restore` of the state folder: [`Answer::Restore`]. For root and the
    /// user of the server only.
    Restore {
        /// Whether it is replaced even if machines are lost or readmitted by this.
        #[serde(default)]
        consent: bool,
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
    /// Admit prefixes behind a peer: [`Answer::PeerChanged`].
    AllowPrefixes {
        /// The peer's name, address or public key.
        peer: String,
        /// The prefixes.
        prefixes: Vec<ipnet::IpNet>,
        /// Whether a default route among them is intended.
        #[serde(default)]
        default_route: bool,
    },
    /// Take prefixes back that were admitted: [`Answer::PeerChanged`].
    DenyPrefixes {
        /// The peer's name, address or public key.
        peer: String,
        /// The prefixes.
        prefixes: Vec<ipnet::IpNet>,
    },
    /// Give a peer tags: [`Answer::PeerChanged`].
    TagPeer {
        /// The peer's name, address or public key.
        peer: String,
        /// The tags.
        tags: Vec<String>,
    },
    /// Take tags from a peer: [`Answer::PeerChanged`].
    UntagPeer {
        /// The peer's name, address or public key.
        peer: String,
        /// The tags.
        tags: Vec<String>,
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
    /// Labels. The peers that it admits get them.
    #[serde(default)]
    pub tags: Vec<String>,
    /// The addresses of its peer.
    #[serde(default)]
    pub addresses: Vec<IpAddr>,
    /// The prefixes behind its peers that are admitted.
    #[serde(default)]
    pub prefixes: Vec<ipnet::IpNet>,
    /// Whether a default route among the prefixes is intended.
    #[serde(default)]
    pub default_route: bool,
    /// Whether it admits a further server of the network.
    #[serde(default)]
    pub server: bool,
    /// Whether that server is a standby as well: it gets the state of this one, with all keys.
    #[serde(default)]
    pub standby: bool,
    /// Whether its peers are removed after they fall silent.
    #[serde(default)]
    pub ephemeral: bool,
    /// The server's endpoint, instead of the one that the server determines.
    #[serde(default)]
    pub endpoint: Option<String>,
    /// The action if an invite like this one has not been used yet.
    #[serde(default)]
    pub unused: Unused,
}

/// The treatment of an unused invite with the same number of uses and the same terms, when another invite is to be
/// made. The token of the unused invite is not stored, so it cannot be shown again.
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
                "tags": ["ci"], "ephemeral": false, "member": true, "server": false, "prefixes": ["192.168.1.0/24"],
                "admitted": ["192.168.0.0/16"], "waiting": [], "created": 1, "expires": null, "last_handshake": 2,
                "endpoint": "[2001:db8::1]:7",
                "connection": { "state": "online", "since": 5 },
                "problem": { "kind": "no-answer", "text": "nothing comes back", "since": 5 }, "rx_bytes": 3, "tx_bytes": 4,
            })
        };
        let mut member = peer("window");
        (member["label"], member["roster"]) = (json!("laptop-2"), json!(7));
        let invite = json!({
            "id": "0123456789abcdef", "state": "usable", "uses_left": 1, "created": 1, "expires": null, "tags": [],
            "ephemeral": false, "prefixes": [], "server": false, "standby": false,
        });
        for answer in [
            json!({ "answer": "peers", "peers": [peer("invite 0123456789abcdef"), peer("window"), peer("administrator")] }),
            json!({ "answer": "peers", "peers": [member] }),
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
                "answer": "peer-changed", "peer": "router", "tags": ["lab"], "admitted": ["192.168.1.0/24"],
                "waiting": ["192.168.2.0/24"], "notes": ["something"],
            }),
            json!({
                "answer": "adopted", "list": 12, "adopted": false, "warnings": ["another server"], "changes": [
                    { "change": "comes", "machine": "late", "public_key": key, "addresses": ["10.0.0.5"], "role": "a member", "note": "lost" },
                    { "change": "goes", "machine": "tablet", "public_key": key, "addresses": ["10.0.0.3"] },
                    { "change": "changes", "machine": "desk", "setting": "name", "from": "desk", "to": "bureau" },
                ],
            }),
            json!({
                "answer": "key-change", "changed": false, "public_key": key, "until": 9, "clients": ["phone"], "invites": [invite],
            }),
            json!({
                "answer": "status", "interface": "rg0", "public_key": key, "port": 51_820, "endpoint": null, "pools": [],
                "isolate": false, "routes": [], "nat": false, "window": null,
                "waiting": [{ "code": "12345678", "name": null, "source": "192.0.2.9:1" }], "usable_invites": 0,
                "peers": [], "counters": [["admitted", 3], ["refused", 2]],
                "network": {
                    "name": "rg0", "key": NetworkKey([2; 32]).to_string(), "roster": 7, "issued": 5, "members": 2, "clients": 1, "lagging": ["laptop"],
                    "standbys": [{ "name": "vps2", "stored": 1_700_000_000, "current": true }], "policy": null, "problem": null,
                },
            }),
        ] {
            let parsed: Answer = serde_json::from_value(answer.clone()).unwrap();
            assert_eq!(serde_json::to_value(&parsed).unwrap(), answer);
            // The `Debug` output of an answer shows no key, token or code.
            for secret in [key, "rg1-secret", "ABCD-EFGH"] {
                assert!(!format!("{parsed:?}").contains(secret), "{parsed:?}");
            }
        }
        for origin in ["invite", "invite 0123", "invite 0123456789abcdeg", "invite +123456789abcdef", "Window", ""] {
            assert!(origin.parse::<PeerOrigin>().is_err(), "{origin}");
        }
    }
}
