//! State that all peers of an interface share while direct ways to them are looked for: our own candidates, the
//! prefixes that are never probed, and the limits on probes.
use super::{
    candidates::{Candidate, CandidateKind, MAX_CANDIDATES},
    locator::Locator,
    probe::{Probe, Reply, Request},
    transport_address::TransportAddress,
};
use crate::{
    limit::{Bucket, Rate, Source, SourceTable},
    peer::PeerId,
    time::Instant,
};
use alloc::{collections::BTreeMap, vec::Vec};
use core::{
    net::{IpAddr, SocketAddr},
    time::Duration,
};
use ipnet::IpNet;
use rustguard_crypto::hash;
use zeroize::Zeroizing;

/// How many of our candidates may be addresses that others have seen.
const MAX_SEEN: usize = 4;
/// How many observers are remembered.
const MAX_OBSERVERS: usize = 64;
/// How long an observation is believed.
const OBSERVED: Duration = Duration::from_secs(600);
/// An observer that was silent for this long may be replaced by another one.
const SILENT: Duration = Duration::from_secs(60);
/// How often one observer may report another address. All peers are told each address, and probe it.
const ANOTHER: Rate = Rate { interval: Duration::from_secs(15), burst: 4 };
/// Limit on probes of candidates, for all peers together. A probe has 108 bytes over IPv4.
const IN_TOTAL: Rate = Rate { interval: Duration::from_millis(2), burst: 512 };
/// Limit on probes to one host that has not answered, for all peers together. Malicious members can make this node send
/// so much to an uninvolved host.
const TO_A_STRANGER: Rate = Rate { interval: Duration::from_millis(100), burst: 128 };
/// How many hosts without an answer are remembered. Further ones get no probes.
const STRANGERS: usize = 1_024;
/// How many peers may begin to look within [`TURN`].
const TURNS: usize = 32;
/// Most probes of a round are sent in this time.
const TURN: Duration = Duration::from_secs(1);

/// The part of the search for direct ways that the peers of an interface share.
pub struct Search {
    secret: Zeroizing<[u8; 32]>,
    /// As the caller gave them.
    own: Vec<Candidate>,
    /// The candidates that peers are told.
    candidates: Vec<Candidate>,
    generation: u32,
    forbidden: Vec<IpNet>,
    observed: BTreeMap<PeerId, Observation>,
    total: Bucket,
    strangers: SourceTable<Bucket>,
    /// When each slot is free for another peer.
    turns: [Instant; TURNS],
}

/// How one peer sees this node.
struct Observation {
    address: SocketAddr,
    at: Instant,
    others: Bucket,
}

impl core::fmt::Debug for Search {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.debug_struct("Search").field("candidates", &self.candidates).finish_non_exhaustive()
    }
}

impl Search {
    /// A search without candidates. `secret` has random bytes, which serve to recognise answers.
    pub fn new(secret: [u8; 32]) -> Self {
        let secret = Zeroizing::new(secret);
        // After a restart, the list is another one and needs another generation.
        let start = hash::mac(&secret[..], &[b"generation"]);
        Self {
            generation: u32::from_le_bytes(*start.first_chunk().expect("16 bytes")).max(1),
            secret,
            own: Vec::new(),
            candidates: Vec::new(),
            forbidden: Vec::new(),
            observed: BTreeMap::new(),
            total: Bucket::default(),
            strangers: SourceTable::new(STRANGERS, Duration::from_secs(1)),
            turns: [Instant::default(); TURNS],
        }
    }

    /// Takes the locators where this node may be reached, the best first: interfaces, mappings, configured ones.
    /// Locators above the limit of [`MAX_CANDIDATES`] are left out. Returns whether peers have to be told
    /// ([`Paths::candidates_changed`](super::Paths::candidates_changed)).
    pub fn set_candidates(&mut self, own: Vec<Candidate>, now: Instant) -> bool {
        self.own = own;
        self.update(now)
    }

    /// Takes the prefixes that are never probed, in addition to addresses that no peer can have: prefixes inside of
    /// tunnels, directed broadcast addresses.
    pub fn forbid(&mut self, prefixes: Vec<IpNet>) {
        self.forbidden = prefixes;
    }

    /// A peer sees this node at this address ([`Reply::seen`]). Returns whether peers have to be told. A peer may
    /// report any address at any rate: too frequent changes are ignored.
    pub fn seen_by(&mut self, observer: PeerId, address: SocketAddr, now: Instant) -> bool {
        if let Some(known) = self.observed.get_mut(&observer) {
            if known.address != address && !known.others.take(ANOTHER, now) {
                return false;
            }
            (known.address, known.at) = (address, now);
            return self.update(now);
        }
        if self.observed.len() >= MAX_OBSERVERS {
            let silent = self.observed.iter().filter(|(_, known)| now.since(known.at) >= SILENT);
            let Some((&oldest, _)) = silent.min_by_key(|(_, known)| known.at) else { return false };
            self.observed.remove(&oldest);
        }
        self.observed.insert(observer, Observation { address, at: now, others: Bucket::default() });
        self.update(now)
    }

    /// Whether this peer has said how it sees this node.
    pub fn is_seen_by(&self, observer: PeerId) -> bool {
        self.observed.contains_key(&observer)
    }

    /// Whether any peer has said how it sees this node: then our list has that address.
    pub(super) fn is_seen(&self) -> bool {
        !self.observed.is_empty()
    }

    /// A peer was removed.
    pub fn forget(&mut self, observer: PeerId) {
        self.observed.remove(&observer);
    }

    /// This node's own network has changed: the addresses that others have seen are obsolete.
    pub fn network_changed(&mut self, now: Instant) -> bool {
        self.observed.clear();
        self.update(now)
    }

    /// Our candidates as peers are told them, the best first.
    pub fn candidates(&self) -> &[Candidate] {
        &self.candidates
    }

    /// Whether our NAT maps ports per destination: several observers have seen the same address with different ports.
    pub fn maps_per_destination(&self) -> bool {
        let seen = || self.observed.values().map(|known| known.address).filter(|seen| !self.is_own_ip(seen.ip()));
        seen().any(|one| seen().any(|other| one.ip() == other.ip() && one.port() != other.port()))
    }

    /// Whether probes may go there at all.
    pub fn allows(&self, address: SocketAddr) -> bool {
        can_be_a_peer(address)
            && !self.forbidden.iter().any(|prefix| prefix.contains(&address.ip().to_canonical()))
            // Addresses that others have seen do not count as ours here: such an address may be another peer's.
            && !self.own.iter().any(|own| own.address == address)
    }

    pub(super) fn generation(&self) -> u32 {
        self.generation
    }

    /// When a peer may begin to look: now, or after the peers that came earlier.
    pub(super) fn turn(&mut self, now: Instant) -> Instant {
        let turn = self.turns.iter_mut().min().expect("there are some");
        let start = now.max(*turn);
        *turn = start + TURN;
        start
    }

    /// Counts a probe and returns whether it may be sent. A stranger has never answered.
    pub(super) fn admits(&mut self, address: SocketAddr, stranger: bool, now: Instant) -> bool {
        if stranger {
            let bucket = self.strangers.get(Source::of(address.ip()), now);
            if !bucket.is_some_and(|bucket| bucket.take(TO_A_STRANGER, now)) {
                return false;
            }
        }
        self.total.take(IN_TOTAL, now)
    }

    /// The token that the answer to a request to this locator has to return.
    pub(super) fn token(&self, locator: Locator, clock: u64) -> u64 {
        let clock = clock.to_le_bytes();
        let mac = match locator {
            Locator::Peer(PeerId(relay)) => hash::mac(&self.secret[..], &[b"relay", &clock, &relay.to_le_bytes()]),
            Locator::Address(at) => {
                let octets = super::probe::octets(at.remote);
                hash::mac(&self.secret[..], &[b"locator", &clock, &octets, &at.remote.port().to_le_bytes()])
            }
        };
        u64::from_le_bytes(*mac.first_chunk().expect("16 bytes"))
    }

    fn is_own_ip(&self, ip: IpAddr) -> bool {
        self.own.iter().any(|own| own.kind == CandidateKind::Interface && own.address.ip() == ip)
    }

    /// Makes the list that peers are told.
    fn update(&mut self, now: Instant) -> bool {
        self.observed.retain(|_, known| now.since(known.at) < OBSERVED);
        let mut list: Vec<Candidate> = Vec::new();
        let mut add = |candidate: Candidate, limit: usize| {
            // Addresses of the embedder's own transports mean nothing to other nodes.
            let ours = TransportAddress::of(candidate.address).is_some();
            if !ours && list.len() < limit && !list.iter().any(|known| known.address == candidate.address) {
                list.push(candidate);
            }
        };
        let is_new = |address: SocketAddr| can_be_a_peer(address) && !self.own.iter().any(|own| own.address == address);
        let mut observed: Vec<_> = self.observed.values().filter(|known| is_new(known.address)).collect();
        observed.sort_by_key(|known| core::cmp::Reverse(known.at));
        let mut seen: Vec<SocketAddr> = Vec::new();
        for known in observed {
            if seen.len() < MAX_SEEN && !seen.contains(&known.address) {
                seen.push(known.address);
            }
        }
        for own in &self.own {
            add(*own, MAX_CANDIDATES - seen.len());
        }
        for address in seen {
            add(Candidate { address, kind: CandidateKind::Seen }, MAX_CANDIDATES);
        }
        let same = list.len() == self.candidates.len() && list.iter().all(|one| self.candidates.contains(one));
        if !same {
            self.candidates = list;
            self.generation = self.generation.wrapping_add(1).max(1);
        }
        !same
    }
}

/// Whether the address can belong to a node, as any other node sees it. Loopback, multicast, link-local and reserved
/// addresses cannot, and are never probed, no matter who reports them.
pub fn can_be_a_peer(address: SocketAddr) -> bool {
    let ip = address.ip().to_canonical();
    let unusable = match ip {
        // 0.0.0.0/8 is "this network"; 240.0.0.0/4 is reserved and contains the broadcast address.
        IpAddr::V4(ip) => matches!(ip.octets()[0], 0 | 240..) || ip.is_link_local(),
        // A link-local address is useless without its interface.
        IpAddr::V6(ip) => ip.is_unspecified() || ip.is_unicast_link_local() || TransportAddress::of(address).is_some(),
    };
    !unusable && !ip.is_loopback() && !ip.is_multicast() && address.port() != 0
}

/// Asks a peer how it sees this node. Needed for peers whose paths are not probed; otherwise each answer to a probe
/// tells it.
#[derive(Debug, Default)]
pub struct Observer {
    due: Option<Instant>,
    asked: u64,
    tries: u32,
}

/// The times from an unanswered question to the next one; there are as many questions.
const ASK_AGAIN: [Duration; 3] = [Duration::from_millis(300), Duration::from_secs(1), Duration::from_secs(3)];

impl Observer {
    /// The peer is to be asked, unless a question is already under way.
    pub fn ask(&mut self, now: Instant) {
        if self.due.is_none() {
            (self.due, self.tries) = (Some(now), 0);
        }
    }

    /// When [`tick`](Self::tick) is to be called.
    pub fn deadline(&self) -> Option<Instant> {
        self.due
    }

    /// The request to send now, if one is due.
    pub fn tick(&mut self, now: Instant) -> Option<Probe> {
        self.due.filter(|due| *due <= now)?;
        self.due = ASK_AGAIN.get(self.tries as usize).map(|pause| now + *pause);
        self.due?;
        self.tries += 1;
        self.asked = now.as_nanos();
        Some(Probe::Request(Request::about_no_path(self.asked, 0)))
    }

    /// Takes an answer. The address in it is for [`Search::seen_by`].
    pub fn reply(&mut self, reply: &Reply) -> Option<SocketAddr> {
        let ours = self.due.is_some() && reply.clock <= self.asked;
        ours.then(|| self.due = None)?;
        reply.seen
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn address(n: u32) -> SocketAddr {
        (core::net::Ipv4Addr::from_bits(0xcb00_7100 + n), 51_820).into()
    }

    #[test]
    fn an_observer_that_says_another_address_each_time_is_believed_seldom() {
        let (mut search, start) = (Search::new([7; 32]), Instant::from_nanos(1_000_000_000));
        let (liar, honest) = (PeerId(1), PeerId(2));
        assert!(search.seen_by(honest, address(0), start));
        let mut told = 0;
        for n in 0..12_000 {
            let now = start + Duration::from_millis(5) * n;
            told += u32::from(search.seen_by(liar, address(n + 1), now));
            assert!(!search.seen_by(honest, address(0), now));
        }
        assert_eq!(told, 1 + 4 + 3, "the first, a burst, and three in the rest of a minute");
        assert!(search.candidates().iter().any(|own| own.address == address(0)));
        assert!(search.seen_by(honest, address(9), start + Duration::from_secs(61)), "the others are heard at once");
    }

    #[test]
    fn an_observer_that_names_another_peers_address_does_not_keep_us_from_it() {
        let (mut search, start) = (Search::new([7; 32]), Instant::from_nanos(1_000_000_000));
        search.set_candidates([Candidate { address: address(0), kind: CandidateKind::Interface }].into(), start);
        search.seen_by(PeerId(1), address(1), start);
        assert_eq!(search.candidates().len(), 2);
        assert_eq!([0, 1].map(|n| search.allows(address(n))), [false, true]);
    }

    #[test]
    fn a_full_table_of_observers_forgets_the_silent_ones_only() {
        let (mut search, start) = (Search::new([7; 32]), Instant::from_nanos(1_000_000_000));
        for n in 0..MAX_OBSERVERS as u32 {
            search.seen_by(PeerId(n), address(0), start + Duration::from_secs(u64::from(n == 5)));
        }
        let mut comes = |n, after| search.seen_by(PeerId(n), address(n), start + after);
        assert!(!comes(100, SILENT - Duration::from_nanos(1)));
        assert!(comes(101, SILENT));
        assert_eq!(search.observed.len(), MAX_OBSERVERS);
        assert!(search.observed.contains_key(&PeerId(5)), "it was heard last");
    }
}
