//! The server's records of each member: invites and leases.
use crate::usable::is_wide;
use core::{
    fmt,
    net::{IpAddr, Ipv4Addr, Ipv6Addr},
    str::FromStr,
    time::Duration,
};
use ipnet::IpNet;
use rustguard_core::host_port::HostPort;
pub use rustguard_core::preshared_key::PresharedKey;
use rustguard_crypto::x25519::PublicKey;
use serde::{Deserialize, Serialize};

/// The longest name or tag, in bytes: the limit of a DNS label (RFC 1035, section 2.3.4).
pub const MAX_NAME: usize = 63;
/// The most tags of a peer.
pub const MAX_TAGS: usize = 16;
/// The most prefixes behind a peer that are admitted, and the most that it announces.
pub const MAX_PREFIXES: usize = 64;
/// The most endpoints of a further server.
pub const MAX_ENDPOINTS: usize = 4;
/// The most further servers of a network, besides the one that admits machines.
pub const MAX_SERVERS: usize = 31;
/// The largest number of uses of one invite.
pub const MAX_USES: u32 = 65_536;

/// Seconds since 1970 on the ledger's clock, which never goes back (see [`crate::ledger`]).
pub type UnixSeconds = u64;

/// The id of an invite in messages and logs. It is not secret.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct TokenId(pub [u8; 8]);

/// A text is not the id of an invite.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the id of an invite has 16 hexadecimal digits")]
pub struct InvalidTokenId;

/// The terms that an administrator sets for the peers of an invite, or for a peer added by hand.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct Terms {
    /// Fixed addresses, at most one of each family. A missing one comes from the pool.
    pub addresses: Vec<IpAddr>,
    /// Labels that the administrator sets, copied into the lease: at most [`MAX_TAGS`], each of at most [`MAX_NAME`]
    /// bytes.
    pub tags: Vec<String>,
    /// The lease ends soon after the peer falls silent ([`Policy::ephemeral`](crate::ledger::Policy::ephemeral)).
    pub ephemeral: bool,
    /// Prefixes behind the peer that are admitted, copied into the lease: at most [`MAX_PREFIXES`].
    pub admitted: Vec<IpNet>,
    /// Whether the peer is a further server of the network.
    pub server: ServerRole,
}

/// Whether a peer is admitted as a further server.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub enum ServerRole {
    /// It is not.
    #[default]
    None,
    /// It is.
    Server,
    /// It is. It also gets the state of the server that admits machines, with all keys, so that it can take that
    /// server's place.
    Standby,
}

impl From<bool> for ServerRole {
    /// `true` is a server that is not a standby.
    fn from(is_server: bool) -> Self {
        if is_server { Self::Server } else { Self::None }
    }
}

impl ServerRole {
    /// Whether it is a further server.
    pub fn is_server(self) -> bool {
        self != Self::None
    }
}

impl Terms {
    /// Sets [`addresses`](Self::addresses).
    #[must_use]
    pub fn with_addresses(self, addresses: Vec<IpAddr>) -> Self {
        Self { addresses, ..self }
    }

    /// Sets [`tags`](Self::tags).
    #[must_use]
    pub fn with_tags(self, tags: Vec<String>) -> Self {
        Self { tags, ..self }
    }

    /// Sets [`ephemeral`](Self::ephemeral).
    #[must_use]
    pub fn with_ephemeral(self, ephemeral: bool) -> Self {
        Self { ephemeral, ..self }
    }

    /// Sets [`admitted`](Self::admitted).
    #[must_use]
    pub fn with_admitted(self, admitted: Vec<IpNet>) -> Self {
        Self { admitted, ..self }
    }

    /// Sets [`server`](Self::server).
    #[must_use]
    pub fn with_server(self, server: impl Into<ServerRole>) -> Self {
        Self { server: server.into(), ..self }
    }
}

/// An invite to be made. Its id and key pair come from the token.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct NewInvite {
    /// A random id, which the token determines.
    pub id: TokenId,
    /// The public half of the one-time key. Only the token has the private half.
    pub public_key: PublicKey,
    /// The invite's validity; `None`: until it is used up or revoked.
    pub lifetime: Option<Duration>,
    /// The number of keys it admits: 1 to [`MAX_USES`].
    pub uses: u32,
    /// The terms for the peers that use it. Fixed addresses, and the role of a server, need `uses` to be 1.
    pub terms: Terms,
}

impl NewInvite {
    /// An invite for one key, without an end of validity and without special terms.
    pub fn new(id: TokenId, public_key: PublicKey) -> Self {
        Self { id, public_key, lifetime: None, uses: 1, terms: Terms::default() }
    }

    /// Sets [`lifetime`](Self::lifetime).
    #[must_use]
    pub fn with_lifetime(self, lifetime: impl Into<Option<Duration>>) -> Self {
        Self { lifetime: lifetime.into(), ..self }
    }

    /// Sets [`uses`](Self::uses).
    #[must_use]
    pub fn with_uses(self, uses: u32) -> Self {
        Self { uses, ..self }
    }

    /// Sets [`terms`](Self::terms).
    #[must_use]
    pub fn with_terms(self, terms: Terms) -> Self {
        Self { terms, ..self }
    }
}

/// An invite as the server stores it. Its contents do not permit enrolment.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct InviteRecord {
    /// The id of the invite.
    pub id: TokenId,
    /// The public half of the one-time key.
    #[serde(with = "key_bytes")]
    pub public_key: PublicKey,
    /// Its position in the order of all invites and removals. This order, and not the time, decides whether an invite
    /// is newer than a removal, because clocks can be set.
    pub serial: u64,
    /// When it was made.
    pub created: UnixSeconds,
    /// The end of its validity.
    pub expires: Option<UnixSeconds>,
    /// The number of keys it admits in total.
    pub uses: u32,
    /// The number of keys it can still admit.
    pub uses_left: u32,
    /// When it last admitted a key.
    pub last_used: Option<UnixSeconds>,
    /// When it was revoked.
    pub revoked: Option<UnixSeconds>,
    /// The terms for the peers that use it.
    pub terms: Terms,
}

/// How a peer was admitted.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Origin {
    /// By this invite.
    Invite(TokenId),
    /// While a window was open.
    Window,
    /// An administrator added its key.
    Admin,
}

/// Whether the peer has proved possession of its private key.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum LeaseState {
    /// Not yet. Without a handshake the lease is freed at this time.
    Pending {
        /// The end of the wait. Within one run the monotonic clock decides; this value is used after a restart.
        until: UnixSeconds,
    },
    /// The peer has completed a handshake, or an administrator added it.
    Active,
}

/// The key that a peer had before its present one.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct OldKey {
    /// The public key.
    #[serde(with = "key_bytes")]
    pub public_key: PublicKey,
    /// When it is no longer valid.
    pub until: UnixSeconds,
}

/// One peer's place in the network.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Lease {
    /// The peer's public key.
    #[serde(with = "key_bytes")]
    pub public_key: PublicKey,
    /// The peer's name for itself, cleaned ([`clean_name`]). Names are not unique and decide nothing.
    pub name: Option<String>,
    /// Its IPv4 address, if there was an IPv4 pool when the lease was made.
    pub v4: Option<Ipv4Addr>,
    /// Its IPv6 address, if there was an IPv6 pool when the lease was made.
    pub v6: Option<Ipv6Addr>,
    /// The preshared key of its tunnel. Text formats refuse it.
    #[serde(with = "preshared_key_bytes")]
    pub preshared_key: PresharedKey,
    /// Pending or active.
    pub state: LeaseState,
    /// How the peer was admitted.
    pub origin: Origin,
    /// The administrator's labels.
    pub tags: Vec<String>,
    /// Whether the lease ends soon after the peer falls silent.
    pub ephemeral: bool,
    /// Whether the peer said that it can be a member of a network, and was given the network's key. All others are
    /// clients of a server.
    pub member: bool,
    /// Whether the administrator admitted it as a further server.
    pub server: ServerRole,
    /// The endpoints that a further server has reported.
    #[serde(with = "endpoints_as_text")]
    pub endpoints: Vec<HostPort>,
    /// The prefixes behind it that the administrator admitted, in order.
    pub admitted: Vec<IpNet>,
    /// The prefixes that the member announces, in order. See [`prefixes`](Self::prefixes).
    pub announced: Vec<IpNet>,
    /// The key before [`public_key`](Self::public_key), while it is still valid.
    pub old_key: Option<OldKey>,
    /// When the lease was made.
    pub created: UnixSeconds,
    /// When the lease ends unless a handshake renews it.
    pub expires: Option<UnixSeconds>,
    /// The last handshake. The recorded time is up to an hour older than the true one (see
    /// [`Ledger::confirm`](crate::ledger::Ledger::confirm)).
    pub last_handshake: Option<UnixSeconds>,
}

impl Lease {
    /// An active lease of a peer that an administrator added, with no other field set.
    pub fn new(public_key: PublicKey, preshared_key: PresharedKey) -> Self {
        Self {
            public_key,
            name: None,
            v4: None,
            v6: None,
            preshared_key,
            state: LeaseState::Active,
            origin: Origin::Admin,
            tags: Vec::new(),
            ephemeral: false,
            member: false,
            server: ServerRole::None,
            endpoints: Vec::new(),
            admitted: Vec::new(),
            announced: Vec::new(),
            old_key: None,
            created: 0,
            expires: None,
            last_handshake: None,
        }
    }

    /// Its addresses: IPv4, then IPv6.
    pub fn addresses(&self) -> impl Iterator<Item = IpAddr> + use<> {
        self.v4.map(IpAddr::V4).into_iter().chain(self.v6.map(IpAddr::V6))
    }

    /// The prefixes that lead to it. For a member, these are the prefixes that it announces and the administrator has
    /// admitted, as such or as a part of a larger prefix. A client announces nothing, so all admitted prefixes count.
    pub fn prefixes(&self) -> impl Iterator<Item = IpNet> {
        let said = if self.member { &self.announced } else { &self.admitted };
        said.iter().copied().filter(|prefix| self.admits(prefix))
    }

    /// The prefixes that it announces and that the administrator has not admitted.
    pub fn waiting(&self) -> impl Iterator<Item = IpNet> {
        self.announced.iter().copied().filter(|prefix| !self.admits(prefix))
    }

    /// Whether the administrator has admitted the prefix. An admitted default route does not admit its parts, because
    /// they would be preferred to the routes of others.
    pub(crate) fn admits(&self, prefix: &IpNet) -> bool {
        self.admitted.iter().any(|net| net == prefix || (net.contains(prefix) && !is_wide(net)))
    }

    /// Whether it is a further server of the network: the administrator has admitted it as a server, and its program
    /// can be one.
    pub fn is_server(&self) -> bool {
        self.member && self.server.is_server()
    }

    /// Whether it may have the state of the server that admits machines.
    pub fn is_standby(&self) -> bool {
        self.member && self.server == ServerRole::Standby
    }

    /// Whether the lease still waits for the first handshake.
    pub fn is_pending(&self) -> bool {
        matches!(self.state, LeaseState::Pending { .. })
    }
}

impl fmt::Display for TokenId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.iter().try_for_each(|byte| write!(f, "{byte:02x}"))
    }
}

impl FromStr for TokenId {
    type Err = InvalidTokenId;

    /// Reads 16 hexadecimal digits.
    fn from_str(text: &str) -> Result<Self, InvalidTokenId> {
        if text.len() != 16 || !text.bytes().all(|digit| digit.is_ascii_hexdigit()) {
            return Err(InvalidTokenId);
        }
        u64::from_str_radix(text, 16).map(|id| Self(id.to_be_bytes())).map_err(|_| InvalidTokenId)
    }
}

impl fmt::Debug for TokenId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "TokenId({self})")
    }
}

impl fmt::Display for Origin {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Invite(id) => write!(f, "invite {id}"),
            Self::Window => f.write_str("window"),
            Self::Admin => f.write_str("administrator"),
        }
    }
}

/// Cleans a name from outside: ASCII letters, digits, `-`, `_` and `.` stay, any other character becomes a `-`, leading
/// and trailing `-` and `.` are removed, and the result has at most [`MAX_NAME`] bytes. `None` if nothing is left.
///
/// Terminals, logs and configuration files show names, so a name must not contain control characters or separators.
pub fn clean_name(name: &str) -> Option<String> {
    let kept = |c: char| if c.is_ascii_alphanumeric() || matches!(c, '-' | '_' | '.') { c } else { '-' };
    let name: String = name.chars().take(MAX_NAME).map(kept).collect();
    let name = name.trim_matches(['-', '.']);
    (!name.is_empty()).then(|| name.to_owned())
}

/// Public keys as byte strings. A byte string is copied at once; an array would be encoded byte by byte.
pub(crate) mod key_bytes {
    use super::*;

    pub(crate) fn serialize<S: serde::Serializer>(key: &PublicKey, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_bytes(&key.0)
    }

    pub(crate) fn deserialize<'de, D: serde::Deserializer<'de>>(deserializer: D) -> Result<PublicKey, D::Error> {
        let bytes = <&[u8]>::deserialize(deserializer)?;
        let key = bytes.try_into().map_err(|_| serde::de::Error::invalid_length(bytes.len(), &"32 bytes"))?;
        Ok(PublicKey(key))
    }
}

mod endpoints_as_text {
    use super::*;

    pub(super) fn serialize<S: serde::Serializer>(list: &[HostPort], serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_seq(list.iter().map(ToString::to_string))
    }

    pub(super) fn deserialize<'de, D: serde::Deserializer<'de>>(deserializer: D) -> Result<Vec<HostPort>, D::Error> {
        let list = Vec::<String>::deserialize(deserializer)?;
        list.iter().map(|text| text.parse().map_err(serde::de::Error::custom)).collect()
    }
}

mod preshared_key_bytes {
    use super::*;

    pub(super) fn serialize<S: serde::Serializer>(key: &PresharedKey, serializer: S) -> Result<S::Ok, S::Error> {
        // Stores write bytes. Logs and answers are text, which must not contain a preshared key.
        if serializer.is_human_readable() {
            return Err(serde::ser::Error::custom("a preshared key is not for people to read"));
        }
        serializer.serialize_bytes(key.as_bytes())
    }

    pub(super) fn deserialize<'de, D: serde::Deserializer<'de>>(deserializer: D) -> Result<PresharedKey, D::Error> {
        let bytes = <&[u8]>::deserialize(deserializer)?;
        let bytes = bytes.try_into().map_err(|_| serde::de::Error::invalid_length(bytes.len(), &"32 bytes"))?;
        Ok(PresharedKey::from_bytes(bytes))
    }
}
