//! The roster: the settings and the members of a network, at one time.

use crate::{
    digest::{self, Digest},
    head::{Head, MAX_HEAD, Version},
    key::{NetworkKey, NetworkSecret},
    member::{MAX_SERVERS, Member, MemberError, Role},
    settings::{MAX_SETTINGS, Settings, SettingsError},
    shards,
};
use rustguard_crypto::x25519::PublicKey;
use std::{
    collections::{BTreeMap, HashMap},
    fmt,
    net::IpAddr,
    sync::Arc,
};

/// The most members of a network.
pub const MAX_MEMBERS: usize = 16_384;
/// The longest roster, in bytes.
pub const MAX_ROSTER: usize = 16 << 20;
/// The longest shard, in bytes.
pub(crate) const MAX_SHARD: usize = 1 << 20;
/// The longest sheet of a policy, in bytes.
pub const MAX_SHEET: usize = 128 << 10;
/// The most bytes of all sheets of a network together.
pub const MAX_SHEETS: usize = 16 << 20;

const FILE: [u8; 4] = *b"RGF\x01";

/// The settings and the members of a network, at one time, signed with the network's key.
///
/// A roster that exists is authentic: it was [issued](Self::issue) here, or its signature and all its parts were
/// verified.
#[derive(Clone)]
pub struct Roster {
    head: Head,
    version: Version,
    settings: Settings,
    members: BTreeMap<[u8; 32], Arc<Member>>,
    /// The bytes of each shard, as others request them. Producing them for each request would cost a hash for each
    /// member.
    shards: Vec<Arc<[u8]>>,
    /// The digests of all sheets, in ascending order. Their positions are their numbers.
    sheet_digests: Vec<Digest>,
    /// The sheets that are here: all of them on servers, only its own on a member.
    sheets: BTreeMap<Digest, Arc<[u8]>>,
}

/// The differences of a roster from an earlier one.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Changes {
    /// The new members, by their present keys.
    pub added: Vec<PublicKey>,
    /// The members whose records differ in more than their sheets.
    pub changed: Vec<PublicKey>,
    /// The keys that no longer belong to any member.
    pub removed: Vec<PublicKey>,
    /// Whether the settings differ.
    pub settings: bool,
}

/// Why a roster cannot be issued.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum IssueError {
    /// A member, or two members together, cannot be in it.
    #[error(transparent)]
    Member(#[from] MemberError),
    /// The settings cannot be in it.
    #[error(transparent)]
    Settings(#[from] SettingsError),
    /// There are too many members.
    #[error("a network has at most {MAX_MEMBERS} members, and these are {0}")]
    TooMany(usize),
    /// The roster, or one shard of it, is too long.
    #[error("the roster has {0} bytes; at most {MAX_ROSTER} can be distributed")]
    TooLong(usize),
    /// The sheets of all members together are too long.
    #[error(
        "the policy has {0} bytes for all members together; at most {MAX_SHEETS} can be distributed: name tags in place of machines"
    )]
    SheetsTooLong(usize),
}

impl Roster {
    /// Signs a roster. `number` has to be greater than any before; `issued` is in seconds since 1970.
    ///
    /// # Errors
    /// See [`IssueError`].
    pub fn issue(
        secret: &NetworkSecret,
        number: u64,
        issued: u64,
        settings: Settings,
        members: impl IntoIterator<Item = Arc<Member>>,
    ) -> Result<Self, IssueError> {
        Self::issue_with_sheets(secret, number, issued, settings, members, [])
    }

    /// The same with the [sheets](Member::with_sheet) of the members. Sheets that no member has are ignored.
    ///
    /// # Errors
    /// See [`IssueError`].
    pub fn issue_with_sheets(
        secret: &NetworkSecret,
        number: u64,
        issued: u64,
        settings: Settings,
        members: impl IntoIterator<Item = Arc<Member>>,
        sheets: impl IntoIterator<Item = Arc<[u8]>>,
    ) -> Result<Self, IssueError> {
        settings.check()?;
        let mut by_key = BTreeMap::new();
        for member in members {
            member.check()?;
            if let Some(other) = by_key.insert(member.public_key.0, member.clone()) {
                return Err(MemberError::Key(other.name.clone(), member.name.clone()).into());
            }
        }
        if by_key.len() > MAX_MEMBERS {
            return Err(IssueError::TooMany(by_key.len()));
        }
        check_together(&by_key)?;
        let bits = shards::bits(by_key.len());
        let split = shards::split(by_key.values().map(|member| &**member), bits);
        let len = split.iter().map(Vec::len).sum();
        if len > MAX_ROSTER || split.iter().any(|shard| shard.len() > MAX_SHARD) {
            return Err(IssueError::TooLong(len));
        }
        let head = Head {
            network: secret.public_key(),
            number,
            issued,
            members: by_key.len() as u32,
            bits,
            settings: digest::of_settings(&settings.to_bytes()),
            shards: split.iter().map(|shard| digest::of_shard(shard)).collect(),
            signature: [0; 64],
        }
        .signed(secret);
        let shards = split.into_iter().map(Into::into).collect();
        let sheet_digests = sheet_digests(&by_key);
        let named = |digest: &Digest| sheet_digests.binary_search(digest).is_ok();
        let sheets = sheets.into_iter().map(|sheet| (digest::of_sheet(&sheet), sheet));
        let sheets: BTreeMap<_, _> = sheets.filter(|(digest, _)| named(digest)).collect();
        let len = sheets.values().map(|sheet| sheet.len()).sum();
        if len > MAX_SHEETS || sheets.values().any(|sheet| sheet.len() > MAX_SHEET) {
            return Err(IssueError::SheetsTooLong(len));
        }
        Ok(Self { version: head.version(), head, settings, members: by_key, shards, sheet_digests, sheets })
    }

    /// Assembles a roster from the parts that its head names. `None` if a part is missing or is not what this crate
    /// writes, or if two members have a key, a name or an address in common.
    pub(crate) fn assemble(head: Head, parts: &HashMap<Digest, Vec<u8>>) -> Option<Self> {
        let settings = parts.get(&head.settings).filter(|bytes| digest::of_settings(bytes) == head.settings)?;
        let settings = Settings::read(settings).filter(|settings| settings.check().is_ok())?;
        let (mut members, mut kept) = (BTreeMap::new(), Vec::with_capacity(head.shards.len()));
        for (index, digest) in head.shards.iter().enumerate() {
            let bytes = parts.get(digest).filter(|bytes| digest::of_shard(bytes) == *digest)?;
            for member in shards::members(bytes, index, head.bits)? {
                members.insert(member.public_key.0, Arc::new(member));
            }
            kept.push(bytes.as_slice().into());
        }
        let complete = members.len() == head.members as usize && members.len() <= MAX_MEMBERS;
        (complete && check_together(&members).is_ok()).then(|| Self {
            version: head.version(),
            head,
            settings,
            sheet_digests: sheet_digests(&members),
            sheets: BTreeMap::new(),
            members,
            shards: kept,
        })
    }

    /// Adds the parts that are sheets of the roster.
    pub(crate) fn with_sheets(mut self, parts: &HashMap<Digest, Vec<u8>>) -> Self {
        for digest in &self.sheet_digests {
            if let Some(sheet) = parts.get(digest).filter(|sheet| digest::of_sheet(sheet) == *digest) {
                self.sheets.entry(*digest).or_insert_with(|| sheet.as_slice().into());
            }
        }
        self
    }

    /// The network's key.
    pub fn network(&self) -> NetworkKey {
        self.head.network
    }

    /// Its position in the order of the network's rosters.
    pub fn version(&self) -> Version {
        self.version
    }

    /// When it was issued, by the clock of the issuer: seconds since 1970.
    pub fn issued(&self) -> u64 {
        self.head.issued
    }

    /// The settings, which apply to all members.
    pub fn settings(&self) -> &Settings {
        &self.settings
    }

    /// The members, in the order of their keys.
    pub fn members(&self) -> impl ExactSizeIterator<Item = &Arc<Member>> {
        self.members.values()
    }

    /// The member with this present key.
    pub fn member(&self, key: &PublicKey) -> Option<&Arc<Member>> {
        self.members.get(&key.0)
    }

    /// The member whose present key, or still valid previous key, this is.
    pub fn holder(&self, key: &PublicKey) -> Option<&Arc<Member>> {
        self.member(key).or_else(|| self.members().find(|member| member.old_key == Some(*key)))
    }

    /// The key of the member whose key begins with these bytes. `None` if no member or more than one has such a key.
    pub(crate) fn named(&self, name: &[u8; 8]) -> Option<PublicKey> {
        let mut first = [0; 32];
        first[..8].copy_from_slice(name);
        let mut named =
            self.members.range(first..).map(|(key, _)| PublicKey(*key)).take_while(|key| key.0.starts_with(name));
        named.next().filter(|_| named.next().is_none())
    }

    /// The differences of this roster from `before`.
    pub fn changes_since(&self, before: &Self) -> Changes {
        let mut changes = Changes { settings: self.settings != before.settings, ..Changes::default() };
        for (key, member) in &self.members {
            match before.members.get(key) {
                None => changes.added.push(PublicKey(*key)),
                Some(old) if !old.is_same_but_sheet(member) => changes.changed.push(PublicKey(*key)),
                Some(_) => {}
            }
        }
        let kept: std::collections::HashSet<_> =
            self.members.values().flat_map(|member| member.keys()).map(|key| key.0).collect();
        let keys = before.members.values().flat_map(|member| member.keys());
        changes.removed = keys.filter(|key| !kept.contains(&key.0)).collect();
        changes
    }

    /// The head.
    pub(crate) fn head(&self) -> &Head {
        &self.head
    }

    /// The head's bytes.
    pub(crate) fn head_bytes(&self) -> Vec<u8> {
        self.head.to_bytes()
    }

    /// The bytes of the settings.
    pub(crate) fn settings_bytes(&self) -> Vec<u8> {
        self.settings.to_bytes()
    }

    /// A shard's bytes. `None` if there is no such shard.
    pub(crate) fn shard_bytes(&self, index: usize) -> Option<&Arc<[u8]>> {
        self.shards.get(index)
    }

    /// The part of the network's policy that this member enforces. `None` if the network has no policy
    /// ([`Member::has_sheet`]), and if the sheet is not here: a member has only its own sheet, and servers have all.
    pub fn sheet(&self, member: &Member) -> Option<&Arc<[u8]>> {
        self.sheets.get(member.sheet_digest()?)
    }

    /// The sheets that the machine with this key needs together with this roster, by their numbers: its own, and on a
    /// server all of them.
    pub(crate) fn sheets_for(&self, own: &PublicKey) -> Vec<u16> {
        let Some(member) = self.holder(own) else { return Vec::new() };
        let numbers = self.sheet_digests.iter().zip(0_u16..);
        let is_for = |digest: &Digest| member.role == Role::Server || member.sheet_digest() == Some(digest);
        numbers.filter(|(digest, _)| is_for(digest)).map(|(_, number)| number).collect()
    }

    /// The number of a member's own sheet.
    pub(crate) fn sheet_number(&self, member: &Member) -> Option<u16> {
        let at = self.sheet_digests.binary_search(member.sheet_digest()?).ok()?;
        u16::try_from(at).ok()
    }

    /// The digest of a sheet by its number.
    pub(crate) fn sheet_digest(&self, number: u16) -> Option<&Digest> {
        self.sheet_digests.get(usize::from(number))
    }

    /// A sheet by its number, if it is here.
    pub(crate) fn sheet_bytes(&self, number: u16) -> Option<&Arc<[u8]>> {
        self.sheets.get(self.sheet_digest(number)?)
    }

    /// The bytes of the settings, of the sheets that are here and of all shards split with `bits`, by their digests.
    pub(crate) fn parts(&self, bits: u8) -> HashMap<Digest, Vec<u8>> {
        let split = shards::split(self.members.values().map(|member| &**member), bits);
        let mut parts: HashMap<_, _> = split.into_iter().map(|shard| (digest::of_shard(&shard), shard)).collect();
        let settings = self.settings.to_bytes();
        parts.insert(digest::of_settings(&settings), settings);
        parts.extend(self.sheets.iter().map(|(digest, sheet)| (*digest, sheet.to_vec())));
        parts
    }

    /// The roster as a file: the head, the settings, the shards and the sheets that are here, each preceded by its
    /// length.
    pub fn to_bytes(&self) -> Vec<u8> {
        let mut text = FILE.to_vec();
        let mut put = |part: &[u8]| {
            text.extend_from_slice(&(part.len() as u32).to_le_bytes());
            text.extend_from_slice(part);
        };
        put(&self.head_bytes());
        put(&self.settings.to_bytes());
        self.shards.iter().chain(self.sheets.values()).for_each(|part| put(part));
        text
    }

    /// Reads a file, and verifies all of it. `None` if it is damaged, or of another network.
    pub fn from_bytes(text: &[u8], network: &NetworkKey) -> Option<Self> {
        const LONGEST: usize = MAX_ROSTER + MAX_HEAD + MAX_SETTINGS + MAX_SHEETS + (MAX_MEMBERS << 2);
        let mut rest = text.strip_prefix(&FILE).filter(|_| text.len() <= LONGEST)?;
        let next = |rest: &mut &[u8]| {
            let (len, behind) = rest.split_first_chunk()?;
            let (part, behind) = behind.split_at_checked(u32::from_le_bytes(*len) as usize)?;
            let part = part.to_vec();
            *rest = behind;
            Some(part)
        };
        let head = Head::read(&next(&mut rest)?, network)?;
        let settings = next(&mut rest)?;
        let mut parts = HashMap::from([(digest::of_settings(&settings), settings)]);
        for _ in &head.shards {
            let shard = next(&mut rest)?;
            parts.insert(digest::of_shard(&shard), shard);
        }
        let (roster, mut sheets) = (Self::assemble(head, &parts)?, HashMap::new());
        while !rest.is_empty() {
            let sheet = next(&mut rest)?;
            let digest = digest::of_sheet(&sheet);
            // As `to_bytes` writes it, the file contains only sheets that the roster names, each once.
            if roster.sheet_digests.binary_search(&digest).is_err() || sheets.insert(digest, sheet).is_some() {
                return None;
            }
        }
        Some(roster.with_sheets(&sheets))
    }
}

impl fmt::Debug for Roster {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Roster({} of {:?}, {} members)", self.version.number, self.head.network, self.members.len())
    }
}

/// The digests of the sheets of these members, without repetition.
fn sheet_digests(members: &BTreeMap<[u8; 32], Arc<Member>>) -> Vec<Digest> {
    let digests: std::collections::BTreeSet<_> = members.values().filter_map(|member| member.sheet_digest()).collect();
    digests.into_iter().copied().collect()
}

/// Checks that no two members share a key, a name or an address, and that clients have servers.
fn check_together(members: &BTreeMap<[u8; 32], Arc<Member>>) -> Result<(), MemberError> {
    let servers = members.values().filter(|member| member.role == Role::Server).count();
    if servers > MAX_SERVERS {
        return Err(MemberError::TooManyServers(servers));
    }
    let mut names: HashMap<&str, &Member> = HashMap::with_capacity(members.len());
    let mut keys: HashMap<[u8; 32], &Member> = HashMap::with_capacity(members.len());
    let mut addresses: HashMap<IpAddr, &Member> = HashMap::with_capacity(members.len());
    for member in members.values() {
        if names.insert(member.name.as_str(), member).is_some() {
            return Err(MemberError::Name(member.name.clone()));
        }
        for key in member.keys() {
            if let Some(other) = keys.insert(key.0, member) {
                return Err(MemberError::Key(other.name.clone(), member.name.clone()));
            }
        }
        for address in &member.addresses {
            if let Some(other) = addresses.insert(*address, member) {
                return Err(MemberError::Address(other.name.clone(), member.name.clone(), *address));
            }
        }
        if let Role::Client(server) = member.role
            && members.get(&server.0).is_none_or(|server| server.role != Role::Server)
        {
            return Err(MemberError::NoServer(member.name.clone()));
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn secret() -> NetworkSecret {
        NetworkSecret::from_bytes(&[9; 32])
    }

    fn member(number: u32) -> Arc<Member> {
        let mut key = [0; 32];
        key[..4].copy_from_slice(&number.to_le_bytes());
        let address = IpAddr::from((0x0a00_0000 + number).to_be_bytes());
        Arc::new(Member::new(PublicKey(key), format!("member-{number}").parse().unwrap()).with_addresses([address]))
    }

    fn settings() -> Settings {
        Settings::new("rg0".parse().unwrap())
    }

    fn roster(number: u64, members: impl IntoIterator<Item = Arc<Member>>) -> Roster {
        Roster::issue(&secret(), number, 1_800_000_000, settings(), members).unwrap()
    }

    #[test]
    fn a_file_brings_back_what_was_issued() {
        for count in [0, 1, 100] {
            let issued = roster(7, (0..count).map(member));
            let read = Roster::from_bytes(&issued.to_bytes(), &secret().public_key()).unwrap();
            assert_eq!((read.version(), read.members().len()), (issued.version(), count as usize));
            assert_eq!(read.changes_since(&issued), Changes::default());
        }
    }

    #[test]
    fn a_damaged_file_is_no_roster() {
        let mut text = roster(7, (0..20).map(member)).to_bytes();
        let key = secret().public_key();
        for at in 0..text.len() {
            text[at] ^= 1;
            assert!(Roster::from_bytes(&text, &key).is_none(), "byte {at}");
            text[at] ^= 1;
            assert!(at % 7 != 0 || Roster::from_bytes(&text[..at], &key).is_none(), "{at} bytes");
        }
        assert!(Roster::from_bytes(&text, &NetworkSecret::from_bytes(&[8; 32]).public_key()).is_none());
        text.push(0);
        assert!(Roster::from_bytes(&text, &key).is_none());
    }

    #[test]
    fn one_name_one_key_one_address_one_member() {
        let [a, b] = [1, 2].map(member);
        let issue = |members: Vec<Member>| {
            Roster::issue(&secret(), 1, 0, settings(), members.into_iter().map(Arc::new))
                .map(|_| ())
                .unwrap_err()
                .to_string()
        };
        let named = (*b).clone().with_name(a.name.clone());
        assert_eq!(issue(vec![(*a).clone(), named]), "two members have the name member-1");
        let keyed = (*b).clone().with_old_key(a.public_key);
        assert_eq!(issue(vec![(*a).clone(), keyed]), "member-1 and member-2 have the same key");
        let addressed = (*b).clone().with_addresses(a.addresses.clone());
        assert_eq!(issue(vec![(*a).clone(), addressed]), "member-1 and member-2 have the same address, 10.0.0.1");
        let client = (*b).clone().with_role(Role::Client(a.public_key));
        assert_eq!(issue(vec![(*a).clone(), client]), "the server of the client member-2 is not among the servers");
    }

    #[test]
    fn there_are_only_so_many_servers() {
        let servers = |count| (0..count).map(|number| Arc::new((*member(number)).clone().with_role(Role::Server)));
        assert_eq!(roster(1, servers(32)).members().len(), 32);
        let wrong = Roster::issue(&secret(), 1, 0, settings(), servers(33)).map(|_| ()).unwrap_err();
        assert_eq!(wrong.to_string(), "a network has at most 32 servers, and these are 33");
    }

    #[test]
    fn changes_are_named() {
        let before = roster(1, (0..50).map(member));
        let moved = Arc::new((*member(7)).clone().with_role(Role::Server));
        let mut rotated = (*member(8)).clone().with_old_key(member(8).public_key);
        rotated.public_key = PublicKey([99; 32]);
        let others = || (0..51).filter(|number| ![3, 7, 8].contains(number)).map(member);
        let after = roster(2, others().chain([moved.clone(), Arc::new(rotated.clone())]));
        let changes = after.changes_since(&before);
        assert_eq!(changes.added, [member(50).public_key, rotated.public_key]);
        assert_eq!(changes.changed, [member(7).public_key]);
        // The old key of the eighth is still valid.
        assert_eq!(changes.removed, [member(3).public_key]);
        rotated.old_key = None;
        let last = roster(3, others().chain([moved, Arc::new(rotated)]));
        assert_eq!(last.changes_since(&after).removed, [member(8).public_key]);
    }

    /// Two rosters with the same number have the same order everywhere.
    #[test]
    fn versions_are_ordered() {
        let one = roster(5, [member(1)]).version();
        let other = roster(5, [member(2)]).version();
        assert_ne!(one, other);
        assert!(one.max(other) < roster(6, [member(1)]).version());
        assert_eq!(one, roster(5, [member(1)]).version());
    }
}
