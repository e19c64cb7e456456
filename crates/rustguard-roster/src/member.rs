//! One member of the network, as recorded in the roster.

use crate::{
    digest::{self, Digest},
    fields::{self, Unknown, Writer},
    label::Label,
};
use ipnet::IpNet;
use rustguard_core::host_port::HostPort;
use rustguard_crypto::x25519::PublicKey;
use std::net::IpAddr;

/// The most servers of a network. Members are reached through any of them, and all members connect to all of them.
pub const MAX_SERVERS: usize = 32;
/// The most addresses of a member.
pub const MAX_ADDRESSES: usize = 4;
/// The most endpoints of a server.
pub const MAX_ENDPOINTS: usize = 4;
/// The most tags of a member.
pub const MAX_TAGS: usize = 16;
/// The most prefixes that a member may announce.
pub const MAX_PREFIXES: usize = 64;
/// The longest record of a member, in bytes.
pub const MAX_RECORD: usize = 4096;
/// The longest endpoint, in bytes of its text: a domain name of up to 249 bytes with any port. The longest names have
/// 253.
pub(crate) const MAX_ENDPOINT: usize = 255;

const PUBLIC_KEY: u8 = 1;
const NAME: u8 = 2;
const ADDRESSES: u8 = 3;
const ROLE: u8 = 4;
const SERVER: u8 = 5;
const TAGS: u8 = 6;
const PREFIXES: u8 = 7;
const ENDPOINTS: u8 = 8;
const OLD_KEY: u8 = 9;
const SHEET: u8 = 10;
const WITHOUT_PSK: u8 = 11;
const GATEWAY: u8 = 12;

/// The role of a member.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum Role {
    /// It has sessions with all others, directly or through servers.
    #[default]
    Member,
    /// A member that others reach at its endpoints. It relays sealed datagrams, and distributes the roster.
    Server,
    /// A stock WireGuard. It does not know the roster, and reaches everybody through this server, which decrypts.
    Client(PublicKey),
}

/// One member of the network.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Member {
    /// Its WireGuard key. No other member has it.
    pub public_key: PublicKey,
    /// Its name, which no other member has.
    pub name: Label,
    /// Its addresses inside the tunnel: at most [`MAX_ADDRESSES`].
    pub addresses: Vec<IpAddr>,
    /// Its role.
    pub role: Role,
    /// The labels that the administrator has given it: at most [`MAX_TAGS`].
    pub tags: Vec<Label>,
    /// The prefixes behind it that it may announce: at most [`MAX_PREFIXES`].
    pub prefixes: Vec<IpNet>,
    /// Where a server is reachable from outside: at most [`MAX_ENDPOINTS`].
    pub endpoints: Vec<HostPort>,
    /// Its key before [`public_key`](Self::public_key), while that one is still valid.
    pub old_key: Option<PublicKey>,
    /// The digest of its [sheet](Self::with_sheet). Most networks have none, so it is boxed: an absent one costs only
    /// a pointer.
    sheet: Option<Box<Digest>>,
    /// Includes the server [without a preshared key](Self::with_no_psk), which very few members have.
    unknown: Unknown,
}

impl Member {
    /// A member with a key and a name, and nothing else.
    pub fn new(public_key: PublicKey, name: Label) -> Self {
        Self {
            public_key,
            name,
            addresses: Vec::new(),
            role: Role::Member,
            tags: Vec::new(),
            prefixes: Vec::new(),
            endpoints: Vec::new(),
            old_key: None,
            sheet: None,
            unknown: Unknown::default(),
        }
    }

    /// Sets [`name`](Self::name).
    #[must_use]
    pub fn with_name(self, name: Label) -> Self {
        Self { name, ..self }
    }

    /// Sets [`addresses`](Self::addresses).
    #[must_use]
    pub fn with_addresses(self, addresses: impl IntoIterator<Item = IpAddr>) -> Self {
        Self { addresses: addresses.into_iter().collect(), ..self }
    }

    /// Sets [`role`](Self::role).
    #[must_use]
    pub fn with_role(self, role: Role) -> Self {
        Self { role, ..self }
    }

    /// Sets [`prefixes`](Self::prefixes).
    #[must_use]
    pub fn with_prefixes(self, prefixes: impl IntoIterator<Item = IpNet>) -> Self {
        Self { prefixes: prefixes.into_iter().collect(), ..self }
    }

    /// Sets [`endpoints`](Self::endpoints).
    #[must_use]
    pub fn with_endpoints(self, endpoints: impl IntoIterator<Item = HostPort>) -> Self {
        Self { endpoints: endpoints.into_iter().collect(), ..self }
    }

    /// Sets [`old_key`](Self::old_key).
    #[must_use]
    pub fn with_old_key(self, key: PublicKey) -> Self {
        Self { old_key: Some(key), ..self }
    }

    /// Sets its sheet: the lines of the network's policy that concern it. The record contains the digest of the sheet.
    #[must_use]
    pub fn with_sheet(self, sheet: &[u8]) -> Self {
        Self { sheet: Some(Box::new(digest::of_sheet(sheet))), ..self }
    }

    /// The server with this key has lost the preshared key that the member got when it joined there. The member uses no
    /// preshared key towards this server until it joins again.
    #[must_use]
    pub fn with_no_psk(self, server: PublicKey) -> Self {
        let mut unknown = self.unknown;
        unknown.set(WITHOUT_PSK, &server.0);
        Self { unknown, ..self }
    }

    /// The server that has lost the preshared key of this member.
    pub fn without_psk(&self) -> Option<PublicKey> {
        self.unknown.get(WITHOUT_PSK).and_then(key)
    }

    /// This server is one of several that answer the key by which machines join.
    #[must_use]
    pub fn as_gateway(self) -> Self {
        let mut unknown = self.unknown;
        unknown.set(GATEWAY, &[1]);
        Self { unknown, ..self }
    }

    /// Whether this server is one of several that answer the key by which machines join.
    pub fn is_gateway(&self) -> bool {
        self.unknown.get(GATEWAY).is_some()
    }

    /// Whether the network has a policy. Then this member refuses traffic that its
    /// [sheet](crate::roster::Roster::sheet) does not allow.
    pub fn has_sheet(&self) -> bool {
        self.sheet.is_some()
    }

    /// The digest of its sheet.
    pub(crate) fn sheet_digest(&self) -> Option<&Digest> {
        self.sheet.as_deref()
    }

    /// Whether two records are the same except for the policy.
    pub(crate) fn is_same_but_sheet(&self, other: &Self) -> bool {
        self == other || self.sheet != other.sheet && *self == Self { sheet: self.sheet.clone(), ..other.clone() }
    }

    /// Its valid keys: the present one, and the previous one.
    pub fn keys(&self) -> impl Iterator<Item = PublicKey> + use<> {
        [Some(self.public_key), self.old_key].into_iter().flatten()
    }

    /// Checks for errors that other members would refuse.
    ///
    /// # Errors
    /// See [`MemberError`].
    pub fn check(&self) -> Result<(), MemberError> {
        let name = || self.name.clone();
        let counts = [
            ("addresses", self.addresses.len(), MAX_ADDRESSES),
            ("tags", self.tags.len(), MAX_TAGS),
            ("prefixes", self.prefixes.len(), MAX_PREFIXES),
            ("endpoints", self.endpoints.len(), MAX_ENDPOINTS),
        ];
        if let Some((what, count, most)) = counts.into_iter().find(|(_, count, most)| count > most) {
            return Err(MemberError::TooMany { name: name(), what, count, most });
        }
        if let Some(prefix) = self.prefixes.iter().find(|prefix| prefix.trunc() != **prefix) {
            return Err(MemberError::Prefix { name: name(), prefix: *prefix });
        }
        if let Some(endpoint) = self.endpoints.iter().find(|endpoint| endpoint.to_string().len() > MAX_ENDPOINT) {
            return Err(MemberError::Endpoint { name: name(), endpoint: endpoint.clone() });
        }
        Ok(())
    }

    pub(crate) fn write(&self, to: &mut Vec<u8>) {
        let mut record = Writer::new(to);
        record.field(PUBLIC_KEY, &self.public_key.0);
        record.field(NAME, self.name.as_str().as_bytes());
        record.list(ADDRESSES, &self.addresses, fields::put_address);
        match &self.role {
            Role::Member => {}
            Role::Server => record.field(ROLE, &[1]),
            Role::Client(server) => record.field(SERVER, &server.0),
        }
        record.list(TAGS, &self.tags, |tag, to| to.extend_from_slice(tag.as_str().as_bytes()));
        record.list(PREFIXES, &self.prefixes, fields::put_prefix);
        record.list(ENDPOINTS, &self.endpoints, |endpoint, to| to.extend_from_slice(endpoint.to_string().as_bytes()));
        record.field(OLD_KEY, self.old_key.as_ref().map_or(&[], |key| &key.0));
        record.field(SHEET, self.sheet.as_deref().map_or(&[], |digest| digest));
        record.finish(&self.unknown);
    }

    /// Reads the record at the beginning of `text`, and moves `text` behind it. `None` for records that
    /// [`write`](Self::write) does not produce.
    pub(crate) fn read(text: &mut &[u8]) -> Option<Self> {
        let start = *text;
        let mut record = fields::record(text)?;
        let bytes = &start[..start.len() - text.len()];
        let (mut public_key, mut name) = (None, None);
        let mut member = Self::new(PublicKey([0; 32]), Label::clean("none")?);
        while let Some((kind, value)) = record.next()? {
            match kind {
                PUBLIC_KEY => public_key = Some(key(value)?),
                NAME => name = Some(fields::text(value)?),
                ADDRESSES => member.addresses = fields::list(value, MAX_ADDRESSES, fields::address)?,
                ROLE => member.role = Role::Server,
                SERVER => member.role = Role::Client(key(value)?),
                TAGS => member.tags = fields::list(value, MAX_TAGS, fields::text)?,
                PREFIXES => member.prefixes = fields::list(value, MAX_PREFIXES, fields::prefix)?,
                ENDPOINTS => member.endpoints = fields::list(value, MAX_ENDPOINTS, fields::text)?,
                OLD_KEY => member.old_key = Some(key(value)?),
                SHEET => member.sheet = Some(Box::new(value.try_into().ok()?)),
                WITHOUT_PSK => member.unknown.push(kind, &key(value)?.0),
                _ => member.unknown.push(kind, value),
            }
        }
        let member = Self { public_key: public_key?, name: name?, ..member };
        let mut again = Vec::with_capacity(bytes.len());
        member.write(&mut again);
        (again == bytes && bytes.len() <= MAX_RECORD).then_some(member)
    }
}

/// Why a member cannot be in a roster.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum MemberError {
    /// A list is too long.
    #[error("{name} has {count} {what}; at most {most} fit into the roster")]
    TooMany {
        /// The member.
        name: Label,
        /// The elements of the list.
        what: &'static str,
        /// How many it has.
        count: usize,
        /// How many it may have.
        most: usize,
    },
    /// A prefix has bits set behind its length.
    #[error("{prefix} of {name} has bits behind its length; write {}", prefix.trunc())]
    Prefix {
        /// The member.
        name: Label,
        /// The prefix.
        prefix: IpNet,
    },
    /// The text of an endpoint is too long.
    #[error("the endpoint {endpoint} of {name} is longer than 255 bytes")]
    Endpoint {
        /// The member.
        name: Label,
        /// The endpoint.
        endpoint: HostPort,
    },
    /// Two members have the same name.
    #[error("two members have the name {0}")]
    Name(Label),
    /// Two members have the same key.
    #[error("{0} and {1} have the same key")]
    Key(Label, Label),
    /// Two members have the same address.
    #[error("{0} and {1} have the same address, {2}")]
    Address(Label, Label, IpAddr),
    /// There are too many servers.
    #[error("a network has at most {most} servers, and these are {0}", most = MAX_SERVERS)]
    TooManyServers(usize),
    /// The server of a client is not a server of this network.
    #[error("the server of the client {0} is not among the servers")]
    NoServer(Label),
}

fn key(bytes: &[u8]) -> Option<PublicKey> {
    bytes.try_into().ok().map(PublicKey)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::{collection::vec, prelude::*};

    fn label() -> impl Strategy<Value = Label> {
        "[a-z0-9]([a-z0-9-]{0,20}[a-z0-9])?".prop_map(|text| text.parse().unwrap())
    }

    fn any_key() -> impl Strategy<Value = PublicKey> {
        any::<[u8; 32]>().prop_map(PublicKey)
    }

    fn prefix() -> impl Strategy<Value = IpNet> {
        (any::<IpAddr>(), 0u8..=128).prop_map(|(address, len)| {
            IpNet::new(address, len.min(if address.is_ipv4() { 32 } else { 128 })).unwrap().trunc()
        })
    }

    fn endpoint() -> impl Strategy<Value = HostPort> {
        prop_oneof![
            any::<std::net::SocketAddr>()
                .prop_map(|address| format!("{}", std::net::SocketAddr::new(address.ip(), address.port()))),
            ("[a-z]{1,10}\\.[a-z]{1,10}", any::<u16>()).prop_map(|(name, port)| format!("{name}:{port}")),
        ]
        .prop_map(|text| text.parse().unwrap())
    }

    prop_compose! {
        fn member()(
            public_key in any_key(),
            name in label(),
            addresses in vec(any::<IpAddr>(), 0..=MAX_ADDRESSES),
            role in prop_oneof![Just(Role::Member), Just(Role::Server), any_key().prop_map(Role::Client)],
            tags in vec(label(), 0..=MAX_TAGS),
            prefixes in vec(prefix(), 0..=MAX_PREFIXES),
            endpoints in vec(endpoint(), 0..=MAX_ENDPOINTS),
            old_key in proptest::option::of(any_key()),
            sheet in proptest::option::of(any::<[u8; 32]>().prop_map(Box::new)),
            without_psk in proptest::option::of(any_key()),
        ) -> Member {
            let unknown = Unknown::default();
            let member = Member { public_key, name, addresses, role, tags, prefixes, endpoints, old_key, sheet, unknown };
            match without_psk {
                Some(server) => member.with_no_psk(server),
                None => member,
            }
        }
    }

    proptest! {
        #[test]
        fn what_is_written_is_read(member in member(), behind in vec(any::<u8>(), 0..9)) {
            prop_assert_eq!(member.check(), Ok(()));
            let mut text = Vec::new();
            member.write(&mut text);
            prop_assert!(text.len() <= MAX_RECORD);
            text.extend_from_slice(&behind);
            let mut left = &text[..];
            prop_assert_eq!(Member::read(&mut left), Some(member));
            prop_assert_eq!(left, &behind[..]);
        }

        /// Everything that is read is written back identically.
        #[test]
        fn a_changed_record_is_refused_or_has_another_meaning(member in member(), at: prop::sample::Index, to: u8) {
            let mut text = Vec::new();
            member.write(&mut text);
            let at = at.index(text.len());
            let changed = text[at] != to;
            text[at] = to;
            let mut left = &text[..];
            if let Some(read) = Member::read(&mut left) {
                prop_assert_eq!(changed, read != member);
                let mut again = Vec::new();
                read.write(&mut again);
                prop_assert_eq!(&again[..], &text[..text.len() - left.len()]);
            }
        }
    }

    fn laptop() -> (Member, Vec<u8>) {
        let member = Member::new(PublicKey([7; 32]), "laptop".parse().unwrap());
        let mut text = Vec::new();
        member.write(&mut text);
        (member, text)
    }

    /// Adds a field to a record.
    fn with_field(mut text: Vec<u8>, field: &[u8]) -> Vec<u8> {
        text.extend_from_slice(field);
        let len = (text.len() - 2) as u16;
        text[..2].copy_from_slice(&len.to_le_bytes());
        text
    }

    #[test]
    fn fields_of_a_later_version_are_handed_on() {
        let (member, text) = laptop();
        let text = with_field(text, &[200, 2, 0, b'h', b'i']);
        let read = Member::read(&mut &text[..]).unwrap();
        assert_eq!((&read.name, read == member), (&member.name, false));
        let mut again = Vec::new();
        read.write(&mut again);
        assert_eq!(again, text);
    }

    #[test]
    fn the_server_without_a_preshared_key_is_in_its_place_among_fields_of_later_versions() {
        let (_, text) = laptop();
        let later = Member::read(&mut &with_field(text, &[200, 2, 0, b'h', b'i'])[..]).unwrap();
        let lost = later.with_no_psk(PublicKey([1; 32])).with_no_psk(PublicKey([2; 32]));
        let mut text = Vec::new();
        lost.write(&mut text);
        assert_eq!(Member::read(&mut &text[..]), Some(lost.clone()));
        assert_eq!(lost.without_psk(), Some(PublicKey([2; 32])));
    }

    #[test]
    fn what_is_not_written_that_way_is_refused() {
        let (_, text) = laptop();
        for (why, field) in [
            ("an empty field", &[200, 0, 0][..]),
            ("a field twice", &[NAME, 1, 0, b'b']),
            ("a field of an earlier type", &[0, 1, 0, 1]),
            ("a server whose key is too short", &[WITHOUT_PSK, 1, 0, 1]),
            ("a name that is no label", &[OLD_KEY, 2, 0, b'b', b'c']),
            ("a length beyond the end", &[200, 2, 0, 1]),
        ] {
            assert_eq!(Member::read(&mut &with_field(text.clone(), field)[..]), None, "{why}");
        }
        for len in 0..text.len() {
            assert_eq!(Member::read(&mut &text[..len]), None, "{len} bytes of {}", text.len());
        }
    }

    #[test]
    fn what_is_too_much_is_named() {
        let (member, _) = laptop();
        let prefixes = |count| vec!["10.0.0.0/8".parse().unwrap(); count];
        let wrong = member.clone().with_prefixes(prefixes(65)).check().unwrap_err();
        assert_eq!(wrong.to_string(), "laptop has 65 prefixes; at most 64 fit into the roster");
        let wrong = member.clone().with_prefixes(["10.1.2.3/8".parse().unwrap()]).check().unwrap_err();
        assert_eq!(wrong.to_string(), "10.1.2.3/8 of laptop has bits behind its length; write 10.0.0.0/8");
        let long: HostPort = format!("{}:1", "a".repeat(300)).parse().unwrap();
        assert!(matches!(member.with_endpoints([long]).check(), Err(MemberError::Endpoint { .. })));
    }
}
