//! The ledger is compared with a simple model: random requests, removals, handshakes, restarts, failing stores and
//! changes of the clocks.
use super::*;
use rand::{RngExt, SeedableRng, rngs::StdRng};

/// A memory store that fails on request.
#[derive(Debug, Default)]
struct Flaky {
    store: MemoryStore,
    fails: bool,
}

impl LeaseStore for Flaky {
    fn load(&mut self) -> Result<Option<State>, StoreError> {
        self.store.load()
    }

    fn commit(&mut self, changes: &[Change], before: &State) -> Result<(), StoreError> {
        if self.fails {
            return Err(StoreError::new("flaky"));
        }
        self.store.commit(changes, before)
    }
}

const LEASE_TIME: u64 = 3 * 3600;
const PEERS: u8 = 8;
const HOSTS: core::ops::RangeInclusive<u8> = 2..=6;

#[derive(Clone, Debug)]
struct MLease {
    host: u8,
    grant: Option<u8>,
    admin: bool,
    pending_until: Option<u64>,
    seen: u64,
    noted: bool,
}

#[derive(Clone, Debug)]
struct MInvite {
    order: u64,
    left: u32,
    expires: u64,
    revoked: Option<u64>,
    last_used: u64,
}

/// The simplest possible model. Instants are seconds.
#[derive(Clone, Debug, Default)]
struct Model {
    time: u64,
    instant: u64,
    grace: u64,
    order: u64,
    window: Option<u64>,
    leases: BTreeMap<u8, MLease>,
    rests: BTreeMap<u8, (Option<u8>, u64)>,
    invites: BTreeMap<u8, MInvite>,
    /// The model never forgets removals.
    removed: BTreeMap<u8, u64>,
}

#[derive(Clone, Copy, Debug)]
enum By {
    Invite(u8),
    Window,
    Admin(Option<u8>),
}

impl Model {
    fn advance(&mut self, now: Now) {
        let instant = now.instant.as_nanos() / 1_000_000_000;
        let passed = self.time + (instant - self.instant);
        self.instant = instant;
        self.time = passed.max(now.unix.as_secs());
        if self.time > passed + 60 {
            self.grace = self.grace.max(instant + 600);
        }
    }

    fn next_order(&mut self) -> u64 {
        self.order += 1;
        self.order
    }

    /// The host number of the address, or the name of the refusal.
    fn admit(&mut self, peer: u8, by: By) -> Result<(u8, bool), &'static str> {
        let removed_after = |order: u64| self.removed.get(&peer).is_some_and(|&removed| removed > order);
        match by {
            By::Admin(_) => {}
            By::Window => match self.window {
                None => return Err("Closed"),
                Some(order) if removed_after(order) => return Err("Removed"),
                Some(_) => {}
            },
            By::Invite(id) => {
                let Some(invite) = self.invites.get(&id) else { return Err("Unknown") };
                let same = self.leases.get(&peer).is_some_and(|lease| lease.grant == Some(id));
                if invite.revoked.is_some() {
                    return Err("Revoked");
                } else if invite.expires <= self.time {
                    return Err("Expired");
                } else if removed_after(invite.order) {
                    return Err("Removed");
                } else if invite.left == 0 && !same {
                    return Err("Used");
                }
            }
        }
        if let Some(lease) = self.leases.get(&peer) {
            return Ok((lease.host, false));
        }
        let leased = |host: u8| self.leases.values().any(|lease| lease.host == host);
        let rests = |host: u8| self.rests.values().any(|rest| rest.0 == Some(host));
        let host = if let By::Admin(Some(host)) = by {
            if !HOSTS.contains(&host) {
                return Err("AddressUnusable");
            } else if leased(host) {
                return Err("AddressTaken");
            }
            host
        } else {
            let former = self.rests.get(&peer).and_then(|rest| rest.0);
            let free = HOSTS.into_iter().find(|&host| !leased(host) && !rests(host));
            // In a full pool, the address that has rested for the longest time.
            let resting = self.rests.iter().filter_map(|(&peer, rest)| Some((rest.1, peer, rest.0?)));
            let oldest = resting.filter(|&(.., host)| !leased(host)).min().map(|(.., host)| host);
            former.or(free).or(oldest).ok_or("Exhausted")?
        };
        for (_, rest) in self.rests.iter_mut().filter(|(other, _)| **other != peer) {
            rest.0 = rest.0.filter(|&resting| resting != host);
        }
        let (mut grant, admin) = (None, matches!(by, By::Admin(_)));
        if let By::Invite(id) = by {
            grant = Some(id);
            let invite = self.invites.get_mut(&id).unwrap();
            invite.left -= 1;
            invite.last_used = self.time;
        }
        let pending_until = (!admin).then_some(self.instant + 60);
        let lease = MLease { host, grant, admin, pending_until, seen: self.time, noted: false };
        self.leases.insert(peer, lease);
        Ok((host, true))
    }

    fn confirm(&mut self, peer: u8) -> Option<bool> {
        let time = self.time;
        let lease = self.leases.get_mut(&peer)?;
        if lease.pending_until.take().is_some() {
            (lease.seen, lease.noted) = (time, true);
            return Some(true);
        }
        let step = if lease.admin { 3600 } else { LEASE_TIME / 16 };
        if !lease.noted || time - lease.seen >= step {
            (lease.seen, lease.noted) = (time, true);
        }
        Some(false)
    }

    fn remove(&mut self, peer: u8) -> bool {
        let Some(lease) = self.leases.remove(&peer) else { return false };
        if lease.pending_until.is_none() {
            self.rests.insert(peer, (Some(lease.host), self.time + DAY));
        }
        let order = self.next_order();
        self.removed.insert(peer, order);
        true
    }

    fn expire(&mut self) -> BTreeSet<u8> {
        let (time, instant) = (self.time, self.instant);
        let mut ended = BTreeSet::new();
        for (&peer, lease) in &self.leases {
            if lease.pending_until.is_some_and(|until| until <= instant) {
                ended.insert(peer);
                if let Some(invite) = lease.grant.and_then(|id| self.invites.get_mut(&id)) {
                    invite.left += 1;
                }
            } else if !lease.admin && instant >= self.grace && lease.seen + LEASE_TIME <= time {
                ended.insert(peer);
                self.rests.insert(peer, (Some(lease.host), time + DAY));
            }
        }
        self.leases.retain(|peer, _| !ended.contains(peer));
        self.rests.retain(|_, rest| rest.1 > time);
        self.invites.retain(|_, invite| {
            let used_up = (invite.left == 0).then_some(invite.last_used);
            let end = [Some(invite.expires), invite.revoked, used_up].into_iter().flatten().min().unwrap();
            end + RETENTION.as_secs() > time
        });
        ended
    }
}

fn name(refusal: &Refusal) -> &'static str {
    match refusal {
        Refusal::Unknown(_) => "Unknown",
        Refusal::Expired(_) => "Expired",
        Refusal::Revoked(_) => "Revoked",
        Refusal::Used(_) => "Used",
        Refusal::Removed => "Removed",
        Refusal::Closed => "Closed",
        Refusal::Exhausted { .. } => "Exhausted",
        Refusal::AddressTaken { .. } => "AddressTaken",
        Refusal::AddressUnusable(_) => "AddressUnusable",
        Refusal::Store(_) => "Store",
        _ => "another",
    }
}

fn host(lease: &Lease) -> u8 {
    lease.v4.unwrap().octets()[3]
}

/// Compares everything observable of both.
fn compare(ledger: &Ledger<Flaky>, model: &Model, place: &str) {
    let seen: Vec<_> = ledger.leases().map(|lease| (lease.public_key.0[0], host(lease), lease.is_pending())).collect();
    let expected: Vec<_> =
        model.leases.iter().map(|(&peer, lease)| (peer, lease.host, lease.pending_until.is_some())).collect();
    assert_eq!(seen, expected, "{place}: leases");
    let seen: Vec<_> = ledger.invites().map(|invite| (invite.id.0[0], invite.uses_left)).collect();
    let expected: Vec<_> = model.invites.iter().map(|(&id, invite)| (id, invite.left)).collect();
    assert_eq!(seen, expected, "{place}: invites");
    let v6: BTreeSet<_> = ledger.leases().map(|lease| lease.v6.unwrap()).collect();
    assert_eq!(v6.len(), ledger.leases().len(), "{place}: IPv6 addresses");
    for lease in ledger.leases() {
        for address in lease.addresses() {
            assert_eq!(ledger.by_address(address), Some(lease), "{place}: by address");
        }
    }
}

fn open(store: Flaky, now: Now) -> Ledger<Flaky> {
    let policy = Policy { lease_time: Some(Duration::from_secs(LEASE_TIME)), ..Policy::default() };
    Ledger::open(store, pools(&["10.0.0.0/29", "fd00::/124"]), policy, now).unwrap()
}

#[test]
fn the_ledger_does_what_a_plain_model_does() {
    let mut outcomes: BTreeMap<String, u32> = BTreeMap::new();
    for seed in 0..300 {
        let mut rng = StdRng::seed_from_u64(seed);
        let (mut instant, mut wall) = (0_u64, 0_i64);
        let mut ledger = open(Flaky::default(), stepped(instant, wall));
        let mut model = Model::default();
        (model.instant, model.time, model.grace) = (1_000, START, 1_600);
        let mut next_invite = 1;
        for step in 0..200 {
            let place = format!("seed {seed}, step {step}");
            let passes = [0, 0, 1, 20, 59, 60, 300, 4_000, 30_000, 100_000][rng.random_range(0..10)];
            instant += passes;
            wall += i64::try_from(passes).unwrap();
            if rng.random_range(0..25) == 0 {
                wall += rng.random_range(-20..=6) * i64::try_from(DAY).unwrap() / 2;
            }
            let now = stepped(instant, wall);
            model.advance(now);
            assert_eq!(ledger.time(now), model.time, "{place}: the time");
            let before = ledger.state.clone();
            let model_before = model.clone();
            ledger.store.fails = rng.random_range(0..10) == 0;
            let peer = rng.random_range(0..PEERS);
            let outcome: String = match rng.random_range(0..20) {
                0..8 => {
                    let by = match rng.random_range(0..6) {
                        0 => By::Window,
                        1 => By::Admin(None),
                        2 => By::Admin(Some(rng.random_range(0..9))),
                        _ => By::Invite(rng.random_range(next_invite.max(5) - 4..=next_invite)),
                    };
                    let grant = match by {
                        By::Window => Grant::Window,
                        By::Invite(invite) => Grant::Invite(id(invite)),
                        By::Admin(None) => Grant::Admin(Terms::default()),
                        By::Admin(Some(host)) => Grant::Admin(fixed(&format!("10.0.0.{host}"))),
                    };
                    let expected = model.admit(peer, by);
                    let found = ledger.admit(request(peer, grant), now);
                    match (&found, expected) {
                        (Err(Refusal::Store(_)), Ok((_, true))) => "store failed".to_owned(),
                        (Ok(found), Ok(expected)) => {
                            assert_eq!((host(&found.lease), found.fresh), expected, "{place}: {by:?}");
                            format!("admitted {}", found.fresh)
                        }
                        (Err(found), Err(expected)) => {
                            assert_eq!(name(found), expected, "{place}: {by:?}");
                            expected.to_owned()
                        }
                        other => panic!("{place}: {by:?}: {other:?}"),
                    }
                }
                8 => {
                    let uses = rng.random_range(1..4);
                    let order = model.next_order();
                    let expires = model.time + DAY;
                    let invite = MInvite { order, left: uses, expires, revoked: None, last_used: 0 };
                    model.invites.insert(next_invite, invite);
                    match ledger.add_invite(new_invite(next_invite, uses), now) {
                        Ok(_) => {
                            next_invite += 1;
                            "invite".to_owned()
                        }
                        Err(error) => failed(error),
                    }
                }
                9 => {
                    let invite = rng.random_range(0..=next_invite);
                    let known = model.invites.get_mut(&invite);
                    match (ledger.revoke_invite(&id(invite), now), known) {
                        (Ok(()), Some(known)) => {
                            known.revoked.get_or_insert(model.time);
                            "revoked".to_owned()
                        }
                        (Err(LedgerError::UnknownInvite(_)), None) => "unknown invite".to_owned(),
                        (Err(error), Some(_)) => failed(error),
                        (other, _) => panic!("{place}: {other:?}"),
                    }
                }
                10..12 => {
                    let expected = model.remove(peer);
                    match ledger.remove(&key(peer), now) {
                        Ok(_) => {
                            assert!(expected, "{place}");
                            "removed".to_owned()
                        }
                        Err(LedgerError::UnknownPeer(_)) => {
                            assert!(!expected, "{place}");
                            "unknown peer".to_owned()
                        }
                        Err(error) => failed(error),
                    }
                }
                12..15 => {
                    let expected = model.confirm(peer);
                    match ledger.confirm(&key(peer), now) {
                        Ok(fresh) => {
                            assert_eq!(Some(fresh), expected, "{place}");
                            format!("confirmed {fresh}")
                        }
                        Err(LedgerError::UnknownPeer(_)) => {
                            assert_eq!(expected, None, "{place}");
                            "nobody to confirm".to_owned()
                        }
                        Err(error) => failed(error),
                    }
                }
                15 => {
                    model.window = match model.window {
                        None => {
                            ledger.window_opened();
                            Some(model.next_order())
                        }
                        Some(_) => {
                            ledger.window_closed();
                            None
                        }
                    };
                    "window".to_owned()
                }
                16 => {
                    let mut store = ledger.into_store();
                    store.fails = false;
                    ledger = open(store, now);
                    model.window = None;
                    model.time = ledger.time(now);
                    model.grace = model.instant + 600;
                    for (peer, lease) in &mut model.leases {
                        // A restart may change two things: renewals of the last minute, and how long a pending lease
                        // waits.
                        let kept = ledger.lease(&key(*peer)).unwrap();
                        (lease.seen, lease.noted) =
                            (kept.last_handshake.unwrap_or(kept.created), kept.last_handshake.is_some());
                        if let LeaseState::Pending { until } = kept.state {
                            let left = until.saturating_sub(model.time).min(60);
                            lease.pending_until = Some(model.instant + left);
                        }
                    }
                    assert_eq!(ledger.state, before, "{place}: a restart changes nothing");
                    "restart".to_owned()
                }
                _ => {
                    let expected = model.expire();
                    match ledger.expire(now) {
                        Ok(ended) => {
                            let ended: BTreeSet<_> = ended.iter().map(|lease| lease.public_key.0[0]).collect();
                            assert_eq!(ended, expected, "{place}: what ended");
                            let next = ledger.deadline();
                            assert!(next.is_none_or(|next| next > now.instant), "{place}: it is done for now");
                            format!("expired {}", !ended.is_empty())
                        }
                        Err(error) => failed(error),
                    }
                }
            };
            if outcome == "store failed" {
                assert_eq!(ledger.state, before, "{place}: a failed commit changes nothing");
                model = model_before;
            }
            compare(&ledger, &model, &place);
            *outcomes.entry(outcome).or_default() += 1;
        }
    }
    // Every possible outcome has occurred often enough.
    assert!(outcomes.len() >= 24 && outcomes.values().all(|&times| times >= 20), "{outcomes:?}");
    println!("{outcomes:?}");
}

fn failed(error: LedgerError) -> String {
    assert!(matches!(error, LedgerError::Store(_)), "{error}");
    "store failed".to_owned()
}
