//! What the server keeps about each member: invites and leases.
use core::{
    fmt,
    net::{IpAddr, Ipv4Addr, Ipv6Addr},
    str::FromStr,
    time::Duration,
};
use rustguard_crypto::x25519::PublicKey;
use serde::{Deserialize, Serialize};
use subtle::ConstantTimeEq;
use zeroize::Zeroizing;

/// The longest name or tag, in bytes: that of a DNS label (RFC 1035, section 2.3.4).
pub const MAX_NAME: usize = 63;
/// Most uses of one invite.
pub const MAX_USES: u32 = 65_536;

/// Seconds since 1970 on the ledger's clock, which never goes back: see [`crate::ledger`].
pub type UnixSeconds = u64;

/// What names an invite in messages and logs. It is no secret.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct TokenId(pub [u8; 8]);

/// A text is not the id of an invite.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the id of an invite has 16 hexadecimal digits")]
pub struct InvalidTokenId;

/// The preshared key of one lease: on the heap, so that moving a lease leaves no copy behind, and wiped on drop.
/// Compared in constant time; `Debug` prints nothing of it, and no text format takes it.
#[derive(Clone)]
pub struct PresharedKey(Box<Zeroizing<[u8; 32]>>);

/// An administrator's terms for the peers that come by an invite, or for a peer added by hand.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct Terms {
    /// Fixed addresses, at most one of each family; what is not given comes from the pool.
    pub addresses: Vec<IpAddr>,
    /// A label of the administrator's, copied into the lease; at most [`MAX_NAME`] bytes.
    pub tag: Option<String>,
    /// The lease ends soon after the peer falls silent ([`Policy::ephemeral`](crate::ledger::Policy::ephemeral)).
    pub ephemeral: bool,
}

impl Terms {
    /// Sets [`addresses`](Self::addresses).
    #[must_use]
    pub fn with_addresses(self, addresses: Vec<IpAddr>) -> Self {
        Self { addresses, ..self }
    }

    /// Sets [`tag`](Self::tag).
    #[must_use]
    pub fn with_tag(self, tag: impl Into<Option<String>>) -> Self {
        Self { tag: tag.into(), ..self }
    }

    /// Sets [`ephemeral`](Self::ephemeral).
    #[must_use]
    pub fn with_ephemeral(self, ephemeral: bool) -> Self {
        Self { ephemeral, ..self }
    }
}

/// An invite to be made. Its id and key pair come from the token.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct NewInvite {
    /// Random, given in the token.
    pub id: TokenId,
    /// The public half of the one-time key; the private half exists in the token alone.
    pub public_key: PublicKey,
    /// How long it is valid; `None`: until it is used up or revoked.
    pub lifetime: Option<Duration>,
    /// How many keys it admits: 1 to [`MAX_USES`].
    pub uses: u32,
    /// What those who use it get. Fixed addresses need `uses` to be 1.
    pub terms: Terms,
}

impl NewInvite {
    /// An invite that one key may use, for ever and on no special terms.
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

/// An invite as the server keeps it. Nothing here lets anyone enrol.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct InviteRecord {
    /// What the token is called by.
    pub id: TokenId,
    /// The public half of the one-time key.
    #[serde(with = "key_bytes")]
    pub public_key: PublicKey,
    /// Its place in the order of all invites and removals. Order, and not time, decides whether an invite is newer than
    /// a removal: clocks have been known to move.
    pub serial: u64,
    /// When it was made.
    pub created: UnixSeconds,
    /// From when it is no longer valid.
    pub expires: Option<UnixSeconds>,
    /// How many keys it admits in all.
    pub uses: u32,
    /// How many more.
    pub uses_left: u32,
    /// When it last admitted somebody.
    pub last_used: Option<UnixSeconds>,
    /// When it was revoked.
    pub revoked: Option<UnixSeconds>,
    /// What those who use it get.
    pub terms: Terms,
}

/// How a peer came in.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Origin {
    /// By this invite.
    Invite(TokenId),
    /// While a window was open.
    Window,
    /// An administrator added its key.
    Admin,
}

/// Whether the peer has proved that it holds its private key.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum LeaseState {
    /// Not yet; without a handshake the lease is freed at this time.
    Pending {
        /// When the wait ends. Within one run the monotonic clock decides; this is for the time after a restart.
        until: UnixSeconds,
    },
    /// It has completed a handshake, or an administrator vouched for it.
    Active,
}

/// One peer's place in the network.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Lease {
    /// Whose it is.
    #[serde(with = "key_bytes")]
    pub public_key: PublicKey,
    /// What the peer calls itself, cleaned ([`clean_name`]). Names are not unique, and nothing is decided by them.
    pub name: Option<String>,
    /// Its IPv4 address, where there was an IPv4 pool when it came.
    pub v4: Option<Ipv4Addr>,
    /// Its IPv6 address, where there was an IPv6 pool when it came.
    pub v6: Option<Ipv6Addr>,
    /// The preshared key of its tunnel.
    pub preshared_key: PresharedKey,
    /// Pending or active.
    pub state: LeaseState,
    /// How it came in.
    pub origin: Origin,
    /// The administrator's label.
    pub tag: Option<String>,
    /// Whether it ends soon after the peer falls silent.
    pub ephemeral: bool,
    /// When it was given.
    pub created: UnixSeconds,
    /// When it ends unless a handshake renews it.
    pub expires: Option<UnixSeconds>,
    /// The last handshake, coarsely: up to an hour older than the true one (see
    /// [`Ledger::confirm`](crate::ledger::Ledger::confirm)).
    pub last_handshake: Option<UnixSeconds>,
}

impl Lease {
    /// Its addresses: IPv4, then IPv6.
    pub fn addresses(&self) -> impl Iterator<Item = IpAddr> + use<> {
        self.v4.map(IpAddr::V4).into_iter().chain(self.v6.map(IpAddr::V6))
    }

    /// Whether it still waits for the first handshake.
    pub fn is_pending(&self) -> bool {
        matches!(self.state, LeaseState::Pending { .. })
    }
}

impl PresharedKey {
    /// Takes the 32 bytes over. Wiping the caller's copy is the caller's business.
    pub fn from_bytes(bytes: &[u8; 32]) -> Self {
        let mut key = Box::new(Zeroizing::new([0; 32]));
        key.copy_from_slice(bytes);
        Self(key)
    }

    /// The 32 bytes, as WireGuard mixes them in.
    pub fn as_bytes(&self) -> &[u8; 32] {
        &self.0
    }
}

impl PartialEq for PresharedKey {
    fn eq(&self, other: &Self) -> bool {
        self.as_bytes().ct_eq(other.as_bytes()).into()
    }
}

impl Eq for PresharedKey {}

impl fmt::Debug for PresharedKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("PresharedKey(…)")
    }
}

impl Serialize for PresharedKey {
    fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        // Stores write bytes; logs and answers are text, and a preshared key has no business there.
        if serializer.is_human_readable() {
            return Err(serde::ser::Error::custom("a preshared key is not for people to read"));
        }
        serializer.serialize_bytes(self.as_bytes())
    }
}

impl<'de> Deserialize<'de> for PresharedKey {
    fn deserialize<D: serde::Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let bytes = <&[u8]>::deserialize(deserializer)?;
        let bytes = bytes.try_into().map_err(|_| serde::de::Error::invalid_length(bytes.len(), &"32 bytes"))?;
        Ok(Self::from_bytes(bytes))
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

/// What is left of a name that came from outside: ASCII letters, digits, `-`, `_` and `.`, anything else a `-`, no `-`
/// or `.` at either end, at most [`MAX_NAME`] bytes. `None` if that is nothing.
///
/// Terminals, logs and configuration files show names, so a name must not contain control characters or separators.
pub fn clean_name(name: &str) -> Option<String> {
    let kept = |c: char| if c.is_ascii_alphanumeric() || matches!(c, '-' | '_' | '.') { c } else { '-' };
    let name: String = name.chars().take(MAX_NAME).map(kept).collect();
    let name = name.trim_matches(['-', '.']);
    (!name.is_empty()).then(|| name.to_owned())
}

/// Public keys as byte strings, which are copied at once where an array would be encoded byte by byte.
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
