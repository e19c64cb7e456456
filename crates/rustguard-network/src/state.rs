//! The state that a member keeps on disk, so that the network works again after a reboot without a server.
//!
//! | File | Contents |
//! |---|---|
//! | `roster` | the newest roster, as [`Roster::to_bytes`] writes it |
//! | `pair-keys` | the preshared keys of this member's pairs, and the number of the newest roster ever |
//! | `pair-secret` | on a server: the secret from which the preshared keys of all pairs are derived, base64 |
//! | `lost-psk` | see [`Lost`] |
//! | `member-addresses` | direct addresses of members: a key and an address per line; of this machine, only its port |
//!
//! A file that is damaged or missing is fetched anew. `pair-keys`:
//!
//! ```text
//! byte
//!   0    "RGK", then the version of the format, 1
//!   4    the network's key
//!  36    u64: the number, little-endian
//!  44    for each pair: the other member's key, the name of the pair secret (16 bytes), the preshared key
//!        the hash of all that: BLAKE2s, 32 bytes
//! ```

use crate::{
    folder::{Folder, FolderError},
    lost::Lost,
};
use rustguard_crypto::{hash::hash, x25519::PublicKey};
use rustguard_device::{PresharedKey, key};
use rustguard_quick::conf::Config;
use rustguard_roster::{
    key::NetworkKey,
    pair::{PairSecret, SecretId},
    roster::Roster,
};
use std::{
    collections::BTreeMap,
    fmt::Write as _,
    net::SocketAddr,
    sync::Arc,
    time::{Duration, Instant},
};
use zeroize::Zeroizing;

const ROSTER: &str = "roster";
const PAIR_KEYS: &str = "pair-keys";
const PAIR_SECRET: &str = "pair-secret";
const ADDRESSES: &str = "member-addresses";
const MAGIC: [u8; 4] = *b"RGK\x01";
const HEAD: usize = 4 + 32 + 8;
const PAIR: usize = 32 + OF + 32;
const OF: usize = 16;
const HASH: usize = 32;
/// The pause after a write. Each pause is twice as long as the one before, until nothing was written for the longest
/// pause. A member that has just joined learns its network within a second, and stores this immediately. In the long
/// run, it writes to the disk rarely. Changes that revoke a right wait only for the first pause.
const FIRST_PAUSE: Duration = Duration::from_millis(50);
const LONGEST_PAUSE: Duration = Duration::from_secs(5);

/// The state of a member.
pub(crate) struct State {
    folder: Folder,
    network: NetworkKey,
    /// The number of the newest roster ever. An older one is not used, even if the newest one was lost.
    floor: u64,
    keys: Keys,
    /// The keys of the pairs of this machine's previous key. They are not on disk: a member with the present roster no
    /// longer needs them.
    keys_before: Keys,
    /// Whether this machine still uses its previous key.
    uses_before: bool,
    pair_secret: Option<PairSecret>,
    lost: Lost,
    addresses: BTreeMap<[u8; 32], SocketAddr>,
    /// The newest roster, until it is on disk. Its number is stored after the roster, never without it.
    newest: Option<Arc<Roster>>,
    /// The other data that is not on disk yet.
    unsaved: Unsaved,
    /// When the next file may be written, and the pause that ends then.
    not_before: Option<(Instant, Duration)>,
    /// The earliest time for the next write, for urgent data.
    soonest: Option<Instant>,
    /// Unsaved data revokes a right: after a crash, that right would be valid again until a server is reached.
    urgent: bool,
    /// Whether the user was told that writing to the disk fails.
    warned: bool,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Unsaved {
    keys: bool,
    pair_secret: bool,
    addresses: bool,
}

impl State {
    /// Reads the state, and the newest roster in it.
    pub(crate) fn load(folder: Folder, network: NetworkKey) -> Result<(Self, Option<Roster>), FolderError> {
        let roster = folder.read(ROSTER)?.and_then(|text| {
            let roster = Roster::from_bytes(&text, &network);
            if roster.is_none() {
                tracing::warn!("{} is damaged, or of another network: fetching it anew", folder.path(ROSTER).display());
            }
            roster
        });
        let kept = folder.read_secret(PAIR_KEYS)?.and_then(|text| {
            let kept = read_keys(&text, &network);
            if kept.is_none() {
                let path = folder.path(PAIR_KEYS);
                tracing::warn!("{} is damaged, or of another network: fetching it anew", path.display());
            }
            kept
        });
        let (floor, keys) = kept.unwrap_or_default();
        let roster = roster.filter(|roster| roster.version().number >= floor);
        let floor = roster.as_ref().map_or(floor, |roster| roster.version().number);
        let addresses = folder.read(ADDRESSES)?.map(|text| read_addresses(&text)).unwrap_or_default();
        let pair_secret = folder.read_secret(PAIR_SECRET)?.and_then(|text| {
            let secret = std::str::from_utf8(&text).ok().and_then(|text| key::from_base64(text.trim_end()).ok());
            if secret.is_none() {
                tracing::warn!("{} is damaged: fetching it anew", folder.path(PAIR_SECRET).display());
            }
            secret.map(|secret| PairSecret::from_bytes(&secret))
        });
        let unsaved = Unsaved::default();
        let lost = Lost::load(&folder);
        let state = Self {
            folder,
            network,
            floor,
            keys,
            keys_before: Keys::new(),
            uses_before: false,
            pair_secret,
            lost,
            addresses,
            newest: None,
            unsaved,
            not_before: None,
            soonest: None,
            urgent: false,
            warned: false,
        };
        Ok((state, roster))
    }

    /// The folder.
    pub(crate) fn folder(&self) -> &Folder {
        &self.folder
    }

    /// Whether a roster may be used: none that is older than an earlier one. If so, it will be stored.
    pub(crate) fn takes(&mut self, roster: &Arc<Roster>) -> bool {
        if !self.permits(roster) {
            return false;
        }
        self.floor = roster.version().number;
        self.newest = Some(roster.clone());
        self.unsaved.keys = true;
        true
    }

    /// The last data may revoke a right, and has to be on disk soon.
    pub(crate) fn is_urgent(&mut self) {
        self.urgent = true;
    }

    /// Whether a roster may be used.
    pub(crate) fn permits(&self, roster: &Roster) -> bool {
        roster.version().number >= self.floor
    }

    /// Forgets the keys of all pairs.
    pub(crate) fn forget_all(&mut self) {
        self.unsaved.keys |= !self.keys.is_empty();
        self.keys.clear();
        self.keys_before.clear();
        self.unsaved.pair_secret |= self.pair_secret.take().is_some();
    }

    /// The preshared key of this member and another one.
    pub(crate) fn key(&self, member: &PublicKey) -> Option<&PresharedKey> {
        self.keys.get(&member.0).map(|(_, key)| key)
    }

    /// The preshared key of this member and another one. A server with the present pair secret derives it.
    pub(crate) fn pair_key(
        &self,
        own: &PublicKey,
        member: &PublicKey,
        present: Option<SecretId>,
    ) -> Option<PresharedKey> {
        match &self.pair_secret {
            Some(secret) if present == Some(secret.id()) => Some(secret.preshared_key(own, member)),
            _ => self.key(member).cloned(),
        }
    }

    /// The preshared key of this member and another one from before one of them changed its key. `before` is the
    /// previous key of the other one.
    pub(crate) fn key_before(&self, member: &PublicKey, before: Option<&PublicKey>) -> Option<PresharedKey> {
        let own = self.keys_before.get(&member.0).map(|(_, key)| key);
        own.or_else(|| before.and_then(|before| self.key(before))).cloned()
    }

    /// Whether this machine uses its previous key, although the roster has the next one.
    pub(crate) fn uses_before(&self) -> bool {
        self.uses_before
    }

    /// The roster has a new key of this machine, which uses the previous one for a moment longer. The keys of all pairs
    /// change.
    pub(crate) fn own_key_will_change(&mut self) {
        self.keys_before = std::mem::take(&mut self.keys);
        (self.uses_before, self.unsaved.keys) = (true, true);
    }

    /// This machine now uses the key that the roster has.
    pub(crate) fn own_key_has_changed(&mut self) {
        self.uses_before = false;
    }

    /// No member knows this machine by its previous key any more.
    pub(crate) fn forget_keys_before(&mut self) {
        self.keys_before.clear();
    }

    /// The preshared key of another member and this machine's second key, which is either its next one or its previous
    /// one.
    pub(crate) fn second_pair_key(
        &self,
        second: &PublicKey,
        member: &PublicKey,
        present: Option<SecretId>,
    ) -> Option<PresharedKey> {
        match &self.pair_secret {
            Some(secret) if present == Some(secret.id()) => Some(secret.preshared_key(second, member)),
            _ if self.uses_before => self.key(member).cloned(),
            _ => self.keys_before.get(&member.0).map(|(_, key)| key.clone()),
        }
    }

    /// A member has a new key, at the same address.
    pub(crate) fn renamed(&mut self, before: &PublicKey, member: &PublicKey) {
        if let Some(address) = self.addresses.get(&before.0).copied() {
            self.reached_at(member, address);
        }
    }

    /// Gives up the preshared key of the file if the roster says that the server has lost it.
    pub(crate) fn follow_lost(&mut self, base: &Config, own_key: &PublicKey, roster: &Roster) {
        self.lost.follow(&self.folder, base, own_key, roster);
    }

    /// Whether the server with this key has lost the preshared key of the file.
    pub(crate) fn is_lost(&self, server: &PublicKey) -> bool {
        self.lost.server() == Some(server)
    }

    /// The pair secret, on a server that has received it.
    pub(crate) fn pair_secret(&self) -> Option<&PairSecret> {
        self.pair_secret.as_ref()
    }

    /// Sets the pair secret. `None`: this machine is no longer a server.
    pub(crate) fn set_pair_secret(&mut self, secret: Option<PairSecret>) {
        self.pair_secret = secret;
        self.unsaved.pair_secret = true;
    }

    /// Whether the key of this pair is derived from this secret. Without the name of a secret, every key is accepted.
    pub(crate) fn key_is_of(&self, member: &PublicKey, secret: Option<SecretId>) -> bool {
        if secret.is_some() && self.pair_secret.as_ref().map(PairSecret::id) == secret {
            return true;
        }
        self.keys.get(&member.0).is_some_and(|(of, _)| secret.is_none_or(|secret| of == secret.as_bytes()))
    }

    /// Takes a preshared key that a server has sent, derived from this secret.
    pub(crate) fn set_key(&mut self, member: &PublicKey, of: SecretId, key: PresharedKey) {
        let kept = (*of.as_bytes(), key);
        if self.keys.get(&member.0) != Some(&kept) {
            self.keys.insert(member.0, kept);
            self.unsaved.keys = true;
        }
    }

    /// The addresses at which members were reached directly in the last run.
    pub(crate) fn addresses(&self) -> BTreeMap<[u8; 32], SocketAddr> {
        self.addresses.clone()
    }

    /// A member is reached directly at this address.
    pub(crate) fn reached_at(&mut self, member: &PublicKey, address: SocketAddr) {
        if self.addresses.insert(member.0, address) != Some(address) {
            self.unsaved.addresses = true;
        }
    }

    /// Forgets the data of members that are no longer in the roster.
    pub(crate) fn keep_only(&mut self, roster: &Roster) {
        let keys: std::collections::HashSet<_> =
            roster.members().flat_map(|member| member.keys()).map(|key| key.0).collect();
        let before = (self.keys.len(), self.addresses.len());
        self.keys.retain(|key, _| keys.contains(key));
        self.addresses.retain(|key, _| keys.contains(key));
        self.unsaved.keys |= self.keys.len() != before.0;
        self.unsaved.addresses |= self.addresses.len() != before.1;
        self.urgent |= (self.keys.len(), self.addresses.len()) != before;
    }

    /// When [`store`](Self::store) has something to do.
    pub(crate) fn deadline(&self) -> Option<Instant> {
        (!self.is_saved()).then(|| self.next_write().unwrap_or_else(Instant::now))
    }

    fn next_write(&self) -> Option<Instant> {
        if self.urgent { self.soonest } else { self.not_before.map(|(at, _)| at) }
    }

    /// Writes everything that is not on disk yet. If that fails, the network keeps running, the user is told once, and
    /// the write is repeated later.
    pub(crate) fn store(&mut self, now: Instant) {
        if self.next_write().is_some_and(|at| now < at) {
            return;
        }
        self.store_now(now);
    }

    /// The same, without waiting for the pause.
    pub(crate) fn store_now(&mut self, now: Instant) {
        if self.is_saved() {
            return;
        }
        let began = Instant::now();
        let written = self.write();
        let busy = |(at, _): &(Instant, Duration)| now.saturating_duration_since(*at) < LONGEST_PAUSE;
        let pause = match self.not_before.filter(busy) {
            _ if written.is_err() => LONGEST_PAUSE,
            Some((_, before)) => (before * 2).min(LONGEST_PAUSE),
            None => FIRST_PAUSE,
        };
        // A slow disk must not delay the network either.
        let least = began.elapsed() * 4;
        let pause = pause.max(least);
        self.not_before = Some((now + pause, pause));
        self.soonest = Some(now + if written.is_err() { pause } else { FIRST_PAUSE.max(least) });
        self.urgent &= written.is_err();
        match written {
            Ok(()) if self.warned => {
                self.warned = false;
                tracing::info!("the state of the network is on disk again, in {}", self.folder.as_path().display());
            }
            Ok(()) => {}
            Err(error) if self.warned => tracing::debug!("{error}"),
            Err(error) => {
                self.warned = true;
                tracing::warn!(
                    "{error}; the network goes on, and what is new is written as soon as that is possible. A restart before \
                     knows the network as it was"
                );
            }
        }
    }

    fn is_saved(&self) -> bool {
        self.newest.is_none() && self.unsaved == Unsaved::default()
    }

    fn write(&mut self) -> Result<(), FolderError> {
        if let Some(roster) = &self.newest {
            self.folder.replace(ROSTER, &roster.to_bytes())?;
            self.newest = None;
        }
        if self.unsaved.keys {
            self.folder.replace(PAIR_KEYS, &self.keys_text())?;
            self.unsaved.keys = false;
        }
        if self.unsaved.pair_secret {
            match &self.pair_secret {
                Some(secret) => {
                    let text = Zeroizing::new(format!("{}\n", *key::to_base64(secret.as_bytes())));
                    self.folder.replace(PAIR_SECRET, text.as_bytes())?;
                }
                None => self.folder.remove(PAIR_SECRET)?,
            }
            self.unsaved.pair_secret = false;
        }
        if self.unsaved.addresses {
            let mut text = String::new();
            for (key, address) in &self.addresses {
                writeln!(text, "{} {address}", *key::to_base64(key)).expect("a string takes everything");
            }
            self.folder.replace(ADDRESSES, text.as_bytes())?;
            self.unsaved.addresses = false;
        }
        Ok(())
    }

    fn keys_text(&self) -> Zeroizing<Vec<u8>> {
        let mut text = Zeroizing::new(Vec::with_capacity(HEAD + self.keys.len() * PAIR + HASH));
        text.extend_from_slice(&MAGIC);
        text.extend_from_slice(&self.network.0);
        text.extend_from_slice(&self.floor.to_le_bytes());
        for (member, (of, key)) in &self.keys {
            text.extend_from_slice(member);
            text.extend_from_slice(of);
            text.extend_from_slice(key.as_bytes());
        }
        let hash = hash(&[&text]);
        text.extend_from_slice(&hash);
        text
    }
}

/// The keys of pairs by the other member, each with the name of the secret that it is derived from.
type Keys = BTreeMap<[u8; 32], ([u8; OF], PresharedKey)>;

fn read_keys(text: &[u8], network: &NetworkKey) -> Option<(u64, Keys)> {
    let (body, sum) = text.split_last_chunk::<HASH>()?;
    let (head, pairs) = body.split_first_chunk::<HEAD>().filter(|_| hash(&[body]) == *sum)?;
    let known = head.starts_with(&MAGIC) && head[4..36] == network.0;
    let (pairs, rest) = pairs.as_chunks::<PAIR>();
    let number = u64::from_le_bytes(*head.last_chunk()?);
    let pair = |pair: &[u8; PAIR]| {
        const WHOLE: &str = "a pair has a fixed length";
        let (member, kept) = pair.split_first_chunk::<32>().expect(WHOLE);
        let (of, key) = kept.split_first_chunk::<OF>().expect(WHOLE);
        (*member, (*of, PresharedKey::from_bytes(key.first_chunk().expect(WHOLE))))
    };
    (known && rest.is_empty()).then(|| (number, pairs.iter().map(pair).collect()))
}

/// Malformed lines are ignored: without them, finding a member again only takes longer.
fn read_addresses(text: &[u8]) -> BTreeMap<[u8; 32], SocketAddr> {
    let line = |line: &str| {
        let (member, address) = line.split_once(' ')?;
        Some((*key::from_base64(member).ok()?, address.parse().ok()?))
    };
    std::str::from_utf8(text).unwrap_or_default().lines().filter_map(line).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use rustguard_roster::{key::NetworkSecret, member::Member, settings::Settings};
    use std::{fs, os::unix::fs::PermissionsExt as _};

    fn secret() -> NetworkSecret {
        NetworkSecret::from_bytes(&[7; 32])
    }

    fn network() -> NetworkKey {
        secret().public_key()
    }

    fn roster(number: u64, members: &[u8]) -> Arc<Roster> {
        let member = |n: &u8| Arc::new(Member::new(PublicKey([*n; 32]), format!("m{n}").parse().unwrap()));
        let settings = Settings::new("rg0".parse().unwrap());
        Arc::new(Roster::issue(&secret(), number, 0, settings, members.iter().map(member)).unwrap())
    }

    fn folder(dir: &tempfile::TempDir) -> Folder {
        Folder::open_at(&dir.path().join("rg0")).unwrap()
    }

    fn load(dir: &tempfile::TempDir) -> (State, Option<u64>) {
        let (state, roster) = State::load(folder(dir), network()).unwrap();
        (state, roster.map(|roster| roster.version().number))
    }

    /// A state with roster 5 of two members, a key and an address of each.
    fn filled(dir: &tempfile::TempDir) -> State {
        let (mut state, _) = load(dir);
        let newest = roster(5, &[1, 2]);
        assert!(state.takes(&newest));
        for n in [1, 2] {
            state.set_key(
                &PublicKey([n; 32]),
                SecretId::from_bytes([n + 5; 16]),
                PresharedKey::from_bytes(&[n + 100; 32]),
            );
            state.reached_at(&PublicKey([n; 32]), SocketAddr::from(([192, 0, 2, n], 7)));
        }
        state.store(Instant::now());
        state
    }

    #[test]
    fn what_is_stored_comes_back_and_nobody_else_reads_it() {
        let dir = tempfile::tempdir().unwrap();
        assert_eq!(filled(&dir).deadline(), None);
        let (state, number) = load(&dir);
        assert_eq!(number, Some(5));
        assert_eq!(state.key(&PublicKey([2; 32])), Some(&PresharedKey::from_bytes(&[102; 32])));
        assert_eq!(state.addresses().get(&[2; 32]), Some(&"192.0.2.2:7".parse().unwrap()));
        let [of, other] = [7, 8].map(|n| Some(SecretId::from_bytes([n; 16])));
        let is_of = |n: u8, secret| state.key_is_of(&PublicKey([n; 32]), secret);
        assert!(is_of(2, of) && !is_of(2, other) && !is_of(1, of) && is_of(1, None) && !is_of(3, None));
        for name in [ROSTER, PAIR_KEYS, ADDRESSES] {
            let mode = fs::metadata(folder(&dir).path(name)).unwrap().permissions().mode();
            assert_eq!(mode & 0o777, 0o600, "{name}");
        }
    }

    #[test]
    fn an_old_number_is_never_taken_even_if_the_newest_roster_is_lost() {
        let dir = tempfile::tempdir().unwrap();
        assert!(!filled(&dir).takes(&roster(4, &[1])));
        fs::write(folder(&dir).path(ROSTER), roster(4, &[1]).to_bytes()).unwrap();
        let (mut state, number) = load(&dir);
        assert_eq!(number, None, "an older file in its place");
        assert!(!state.takes(&roster(4, &[1])) && state.takes(&roster(5, &[1])));
        fs::remove_file(folder(&dir).path(ROSTER)).unwrap();
        assert!(!load(&dir).0.takes(&roster(4, &[1])));
    }

    #[test]
    fn what_is_damaged_or_of_another_network_is_left_out() {
        let dir = tempfile::tempdir().unwrap();
        filled(&dir);
        let path = folder(&dir).path(PAIR_KEYS);
        let text = fs::read(&path).unwrap();
        for at in 0..text.len() {
            let mut damaged = text.clone();
            damaged[at] ^= 1;
            assert!(read_keys(&damaged, &network()).is_none(), "byte {at}");
            assert!(read_keys(&text[..at], &network()).is_none(), "{at} bytes");
        }
        assert!(read_keys(&text, &NetworkKey([1; 32])).is_none());
        fs::write(&path, &text[1..]).unwrap();
        fs::write(folder(&dir).path(ADDRESSES), "nonsense\n\u{1b}[31m x\n").unwrap();
        fs::write(folder(&dir).path(ROSTER), "nonsense").unwrap();
        let (state, number) = load(&dir);
        assert_eq!((number, state.key(&PublicKey([1; 32])), state.addresses.len()), (None, None, 0));
        fs::set_permissions(&path, fs::Permissions::from_mode(0o644)).unwrap();
        assert!(State::load(folder(&dir), network()).is_err(), "others may have read the keys");
    }

    #[test]
    fn a_disk_that_takes_nothing_is_tried_again() {
        let dir = tempfile::tempdir().unwrap();
        let mut state = filled(&dir);
        let later = Instant::now() + LONGEST_PAUSE * 2;
        // With a folder in place of the file, not even root can write it.
        let path = folder(&dir).path(ROSTER);
        fs::remove_file(&path).unwrap();
        fs::create_dir(&path).unwrap();
        let newer = roster(6, &[1, 2]);
        assert!(state.takes(&newer));
        state.store(later);
        assert!(state.warned && state.deadline() == Some(later + LONGEST_PAUSE), "it is not forgotten");
        let keys = folder(&dir).read(PAIR_KEYS).unwrap().unwrap();
        assert_eq!(read_keys(&keys, &network()).unwrap().0, 5, "the number is not stored before the roster");
        fs::remove_dir(&path).unwrap();
        state.store(later + LONGEST_PAUSE / 2);
        assert!(state.warned, "not at once");
        state.store(later + LONGEST_PAUSE);
        assert!(!state.warned && state.deadline().is_none());
        assert_eq!(load(&dir).1, Some(6));
    }

    /// A member that is killed within seconds of joining knows its network when it starts again.
    #[test]
    fn what_is_new_is_on_disk_at_once_and_seldom_in_the_long_run() {
        let dir = tempfile::tempdir().unwrap();
        let (mut state, _) = load(&dir);
        let (began, newest, mut times) = (Instant::now(), roster(5, &[1, 2]), Vec::new());
        // A temporarily slow disk makes the pauses longer, and a test cannot bound how slow it may be.
        let mut slowest = Duration::ZERO;
        let mut store = |state: &mut State, now| {
            let started = Instant::now();
            state.store(now);
            slowest = slowest.max(started.elapsed());
            slowest * 5
        };
        let mut slow = Duration::ZERO;
        assert!(state.takes(&newest));
        let mut now = began;
        // There is something new in each millisecond.
        while now < began + Duration::from_secs(60) {
            let of = u128::to_le_bytes((now - began).as_millis());
            state.set_key(&PublicKey([2; 32]), SecretId::from_bytes(of), PresharedKey::from_bytes(&[1; 32]));
            if state.deadline().is_some_and(|deadline| deadline <= now) {
                times.push(now - began);
                slow = store(&mut state, now);
                assert!(state.is_saved());
            }
            now += Duration::from_millis(1);
        }
        assert!(
            times[..3].iter().all(|time| *time < Duration::from_secs(2) + slow * 3) && times.len() < 25,
            "{times:?}"
        );
        // After a quiet time, the next change is written immediately.
        now += LONGEST_PAUSE * 3;
        state.reached_at(&PublicKey([2; 32]), "192.0.2.2:7".parse().unwrap());
        assert!(state.deadline().is_some_and(|deadline| deadline <= now));
        slow = store(&mut state, now);
        state.reached_at(&PublicKey([2; 32]), "192.0.2.2:8".parse().unwrap());
        assert!(state.deadline().is_some_and(|deadline| deadline < now + LONGEST_PAUSE / 2 + slow));
    }

    /// A crash does not restore rights that the network has revoked.
    #[test]
    fn what_takes_a_right_away_does_not_wait_for_the_long_pause() {
        let dir = tempfile::tempdir().unwrap();
        let mut state = filled(&dir);
        let mut now = Instant::now();
        for number in 6..20 {
            assert!(state.takes(&roster(number, &[1, 2])));
            now = state.deadline().unwrap();
            state.store(now);
        }
        assert!(state.takes(&roster(20, &[1, 2])));
        assert!(state.deadline().is_some_and(|deadline| deadline > now + LONGEST_PAUSE / 2), "nothing is urgent");
        state.keep_only(&roster(20, &[2]));
        let soon = state.deadline().unwrap();
        assert!(soon < now + LONGEST_PAUSE / 2);
        state.store(soon);
        assert!(state.is_saved() && load(&dir).1 == Some(20));
        // No faster than the first pause, whatever other members send.
        assert!(state.takes(&roster(21, &[2])));
        state.is_urgent();
        assert!(state.deadline().is_some_and(|deadline| deadline >= soon + FIRST_PAUSE));
        state.store(soon);
        assert!(!state.is_saved());
    }

    #[test]
    fn who_is_no_member_any_more_is_forgotten() {
        let dir = tempfile::tempdir().unwrap();
        let mut state = filled(&dir);
        state.keep_only(&roster(6, &[2]));
        assert_eq!((state.keys.len(), state.addresses.len()), (1, 1));
        assert!(state.deadline().is_some());
    }
}
