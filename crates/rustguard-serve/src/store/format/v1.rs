//! Changes in version 1 of the format, which is older than networks: a lease has one tag, and no fields of members.
//! They are read, but never written.
use rustguard_crypto::x25519::PublicKey;
use rustguard_enroll::{
    lease::{InviteRecord, Lease, LeaseState, Origin, PresharedKey, Terms, TokenId, UnixSeconds},
    store::{Change, Released, Tombstone},
};
use serde::{Deserialize, Deserializer, de::Error as _};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

/// Reads the change at the beginning of `bytes`, and returns the rest.
pub(super) fn take(bytes: &[u8]) -> postcard::Result<(Change, &[u8])> {
    postcard::take_from_bytes::<ChangeV1>(bytes).map(|(change, rest)| (change.into(), rest))
}

#[derive(Deserialize)]
enum ChangeV1 {
    Time(UnixSeconds),
    Serial(u64),
    Lease(LeaseV1),
    LeaseGone(Key),
    Invite(InviteV1),
    InviteGone(TokenId),
    Released(Released),
    ReleasedGone(Key),
    Removed(Tombstone),
    RemovedGone(Key),
    Renewed { public_key: Key, last_handshake: UnixSeconds, expires: Option<UnixSeconds> },
}

#[derive(Deserialize)]
struct LeaseV1 {
    public_key: Key,
    name: Option<String>,
    v4: Option<Ipv4Addr>,
    v6: Option<Ipv6Addr>,
    preshared_key: Secret,
    state: LeaseState,
    origin: Origin,
    tag: Option<String>,
    ephemeral: bool,
    created: UnixSeconds,
    expires: Option<UnixSeconds>,
    last_handshake: Option<UnixSeconds>,
}

#[derive(Deserialize)]
struct InviteV1 {
    id: TokenId,
    public_key: Key,
    serial: u64,
    created: UnixSeconds,
    expires: Option<UnixSeconds>,
    uses: u32,
    uses_left: u32,
    last_used: Option<UnixSeconds>,
    revoked: Option<UnixSeconds>,
    terms: TermsV1,
}

#[derive(Deserialize)]
struct TermsV1 {
    addresses: Vec<IpAddr>,
    tag: Option<String>,
    ephemeral: bool,
}

/// A public key as a byte string.
struct Key(PublicKey);

/// A preshared key as a byte string.
struct Secret(PresharedKey);

impl<'de> Deserialize<'de> for Key {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        bytes(deserializer).map(|bytes| Self(PublicKey(*bytes)))
    }
}

impl<'de> Deserialize<'de> for Secret {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        bytes(deserializer).map(|bytes| Self(PresharedKey::from_bytes(bytes)))
    }
}

fn bytes<'de, D: Deserializer<'de>>(deserializer: D) -> Result<&'de [u8; 32], D::Error> {
    let bytes = <&[u8]>::deserialize(deserializer)?;
    bytes.try_into().map_err(|_| D::Error::invalid_length(bytes.len(), &"32 bytes"))
}

impl From<ChangeV1> for Change {
    fn from(change: ChangeV1) -> Self {
        match change {
            ChangeV1::Time(time) => Self::Time(time),
            ChangeV1::Serial(serial) => Self::Serial(serial),
            ChangeV1::Lease(lease) => Self::Lease(lease.into()),
            ChangeV1::LeaseGone(key) => Self::LeaseGone(key.0),
            ChangeV1::Invite(invite) => Self::Invite(invite.into()),
            ChangeV1::InviteGone(id) => Self::InviteGone(id),
            ChangeV1::Released(released) => Self::Released(released),
            ChangeV1::ReleasedGone(key) => Self::ReleasedGone(key.0),
            ChangeV1::Removed(tombstone) => Self::Removed(tombstone),
            ChangeV1::RemovedGone(key) => Self::RemovedGone(key.0),
            ChangeV1::Renewed { public_key, last_handshake, expires } => {
                Self::Renewed { public_key: public_key.0, last_handshake, expires }
            }
        }
    }
}

impl From<LeaseV1> for Lease {
    fn from(lease: LeaseV1) -> Self {
        let LeaseV1 {
            public_key,
            name,
            v4,
            v6,
            preshared_key,
            state,
            origin,
            tag,
            ephemeral,
            created,
            expires,
            last_handshake,
        } = lease;
        let tags = tag.into_iter().collect();
        Self {
            name,
            v4,
            v6,
            state,
            origin,
            tags,
            ephemeral,
            created,
            expires,
            last_handshake,
            ..Self::new(public_key.0, preshared_key.0)
        }
    }
}

impl From<InviteV1> for InviteRecord {
    fn from(invite: InviteV1) -> Self {
        let InviteV1 { id, public_key, serial, created, expires, uses, uses_left, last_used, revoked, terms } = invite;
        let TermsV1 { addresses, tag, ephemeral } = terms;
        let terms =
            Terms::default().with_addresses(addresses).with_tags(tag.into_iter().collect()).with_ephemeral(ephemeral);
        Self { id, public_key: public_key.0, serial, created, expires, uses, uses_left, last_used, revoked, terms }
    }
}
