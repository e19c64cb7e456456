//! Several servers decide on one log, while answers are lost, requests are late, servers die and clocks differ. The
//! history is checked: what was acknowledged is in the log, what was refused is not, and the rules of one ledger hold
//! for all together.
use super::*;
use core::net::Ipv4Addr;
use rand::{RngExt, SeedableRng, rngs::StdRng, seq::IndexedRandom as _};

const LEASE_TIME: u64 = 3 * 3600;
const PEERS: u8 = 9;
const SERVERS: usize = 3;
/// Machines that are up have a handshake at least as often.
const HANDSHAKES: u64 = 20 * 60;
/// A machine that is up for so long keeps its lease. Just before the end of a lease, a first handshake may come too
/// late for the log, and a server whose clock is behind by an hour makes leases shorter by that.
const UP: u64 = 2 * 3600;
/// The longest time of a window.
const WINDOW: u64 = 15 * 60;

/// How a log may be broken. Each must be found.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Broken {
    NoCompare,
    LostAppend,
    DoubleAppend,
}

#[derive(Clone, Debug, PartialEq)]
enum Op {
    Invite(u8, u32),
    Revoke(u8),
    /// A machine asks a server, by an invite or its window.
    Join(u8, Option<u8>),
    Remove(u8),
    Rename(u8, u8),
    Handshake(u8),
    Expire,
}

/// The result of an operation, as its caller knows it.
#[derive(Clone, Debug, PartialEq)]
enum Outcome {
    Done(Option<Ipv4Addr>),
    Refused,
    Unknown,
}

struct Record {
    id: u64,
    server: usize,
    op: Op,
    changes: Vec<Change>,
    /// By the server's clock, and in truth.
    decided: u64,
    time: u64,
    /// How many records its server knew when its window was opened.
    window: Option<usize>,
}

/// A request of a server that has no answer yet.
#[derive(Clone)]
struct Sent {
    id: u64,
    op: Op,
    decided: u64,
    window: Option<usize>,
}

struct Node {
    ledger: Ledger<MemoryStore>,
    /// How many records it has applied, and how many its store has at least.
    applied: usize,
    kept: usize,
    sent: Option<Sent>,
    /// The number of records that it knew when its window was opened, and when that was.
    window: Option<(usize, u64)>,
    /// By how much its wall clock is off, in seconds.
    off: i64,
}

struct World {
    rng: StdRng,
    seed: u64,
    now: u64,
    nodes: Vec<Node>,
    log: Vec<Record>,
    /// Requests that arrive late: the server, the revision before the record, the record.
    late: Vec<(usize, usize, Record)>,
    history: Vec<(u64, Op, Outcome)>,
    next: u64,
    invites: u8,
    broken: Option<Broken>,
    /// Since when each machine is up, and when it had its last handshake.
    machines: BTreeMap<u8, (u64, u64)>,
    counts: BTreeMap<&'static str, u32>,
    /// The first rule that was broken.
    violation: Option<String>,
}

impl World {
    fn new(seed: u64, broken: Option<Broken>) -> Self {
        let mut rng = StdRng::seed_from_u64(seed);
        let off = if seed % 3 == 2 { [3_700, -3_700][rng.random_range(0..2)] } else { 0 };
        let nodes = (0..SERVERS).map(|server| Node {
            ledger: Self::open(MemoryStore::default(), stepped(0, if server == 0 { off } else { 0 })),
            applied: 0,
            kept: 0,
            sent: None,
            window: None,
            off: if server == 0 { off } else { 0 },
        });
        Self {
            nodes: nodes.collect(),
            rng,
            seed,
            now: 0,
            log: Vec::new(),
            late: Vec::new(),
            history: Vec::new(),
            next: 0,
            invites: 0,
            broken,
            machines: BTreeMap::new(),
            counts: BTreeMap::new(),
            violation: None,
        }
    }

    fn open(store: MemoryStore, now: Now) -> Ledger<MemoryStore> {
        let policy = Policy { lease_time: Some(Duration::from_secs(LEASE_TIME)), ..Policy::default() };
        let mut ledger = Ledger::open(store, pools(&["10.0.0.0/29", "fd00::/124"]), policy, now).unwrap();
        ledger.share(now);
        ledger
    }

    fn count(&mut self, what: &'static str) {
        *self.counts.entry(what).or_default() += 1;
    }

    /// The time as a server sees it.
    fn seen(&self, server: usize) -> Now {
        stepped(self.now, i64::try_from(self.now).unwrap() + self.nodes[server].off)
    }

    /// The store appends a record, if the log still ends at `after`. Returns whether it says so.
    fn append(&mut self, after: usize, record: Record) -> bool {
        let strikes = self.broken.is_some() && self.rng.random_range(0..3) == 0;
        match self.broken.filter(|_| strikes) {
            Some(Broken::NoCompare) => {}
            Some(Broken::LostAppend) => return true,
            _ if self.log.len() != after => return false,
            Some(Broken::DoubleAppend) => {
                let Record { id, server, ref op, ref changes, decided, time, window } = record;
                self.log.push(Record { id, server, op: op.clone(), changes: changes.clone(), decided, time, window });
            }
            None => {}
        }
        for change in &record.changes {
            // Only of an active lease, the addresses go into quarantine.
            if let (Op::Expire, Change::Released(Released { public_key, .. })) = (&record.op, change)
                && record.changes.contains(&Change::LeaseGone(*public_key))
                && self
                    .machines
                    .get(&public_key.0[0])
                    .is_some_and(|(since, last)| self.now - since > UP && self.now - last < 3 * HANDSHAKES)
            {
                self.violation = Some(format!("record {} ends the lease of a machine that is up", self.log.len()));
            }
        }
        self.log.push(record);
        true
    }

    /// A server reads what follows.
    fn follow(&mut self, server: usize) {
        let now = self.seen(server);
        while self.nodes[server].applied < self.log.len() {
            let node = &mut self.nodes[server];
            let record = &self.log[node.applied];
            match node.sent.take() {
                Some(sent) if sent.id == record.id => {
                    node.ledger.accept().unwrap();
                    self.counts.entry("found its own record").and_modify(|n| *n += 1).or_insert(1);
                }
                sent => {
                    if sent.is_some() {
                        node.ledger.revert(now);
                        self.counts.entry("took back").and_modify(|n| *n += 1).or_insert(1);
                    }
                    let is_new = self.now - record.time < 30 && record.server != server;
                    let (_, kept) = node.ledger.apply(record.changes.clone(), is_new.then_some(record.decided), now);
                    kept.unwrap();
                }
            }
            node.applied += 1;
            node.kept = node.applied;
        }
    }

    /// Makes a decision of a server, on its state. None: it concerns nothing that is in the log.
    fn decide(&mut self, server: usize, op: &Op) -> Result<Option<Ipv4Addr>, ()> {
        let now = self.seen(server);
        let ledger = &mut self.nodes[server].ledger;
        match op {
            Op::Invite(invite, uses) => ledger.add_invite(new_invite(*invite, *uses), now).map(|_| None).map_err(drop),
            Op::Revoke(invite) => ledger.revoke_invite(&id(*invite), now).map(|()| None).map_err(drop),
            Op::Join(peer, grant) => {
                let grant = grant.map_or(Grant::Window, |invite| Grant::Invite(id(invite)));
                ledger.admit(request(*peer, grant), now).map(|admission| admission.lease.v4).map_err(drop)
            }
            Op::Remove(peer) => ledger.remove(&key(*peer), now).map(|_| None).map_err(drop),
            Op::Rename(peer, name) => {
                ledger.rename(&key(*peer), &format!("name{name}"), now).map(|()| None).map_err(drop)
            }
            Op::Handshake(peer) => ledger.confirm(&key(*peer), now).map(|_| None).map_err(drop),
            Op::Expire => ledger.expire(now).map(|_| None).map_err(drop),
        }
    }

    /// A server carries out an operation, with all that may go wrong.
    fn carry_out(&mut self, server: usize, op: Op) -> Outcome {
        if self.nodes[server].sent.is_some() && !self.settle(server) {
            return Outcome::Refused;
        }
        for attempt in 0..5 {
            // A server may be behind what others have decided.
            if attempt > 0 || self.rng.random_range(0..3) > 0 {
                self.follow(server);
            }
            let before = self.nodes[server].ledger.state().clone();
            let decided = self.decide(server, &op);
            let changes = self.nodes[server].ledger.staged().to_vec();
            let Ok(address) = decided else {
                assert!(changes.is_empty(), "a refusal stages nothing");
                assert_eq!(*self.nodes[server].ledger.state(), before);
                return Outcome::Refused;
            };
            if changes.is_empty() {
                return Outcome::Done(address);
            }
            self.nodes[server].ledger.hold();
            self.next += 1;
            let (id, after) = (self.next, self.nodes[server].applied);
            let clock = self.seen(server).unix.as_secs();
            let record = Record {
                id,
                server,
                op: op.clone(),
                changes,
                decided: clock,
                time: self.now,
                window: self.nodes[server].window.map(|window| window.0),
            };
            let sent = Sent { id, op: op.clone(), decided: clock, window: record.window };
            match self.rng.random_range(0..20) {
                // The answer is lost.
                0 => {
                    self.append(after, record);
                    self.nodes[server].sent = Some(sent);
                    return Outcome::Unknown;
                }
                // The request is lost.
                1 => {
                    self.nodes[server].sent = Some(sent);
                    return Outcome::Unknown;
                }
                // It arrives when nobody expects it any more.
                2 => {
                    self.late.push((server, after, record));
                    self.nodes[server].sent = Some(sent);
                    return Outcome::Unknown;
                }
                _ if self.append(after, record) => {
                    let node = &mut self.nodes[server];
                    node.ledger.accept().unwrap();
                    node.applied += 1;
                    node.kept = node.applied;
                    return Outcome::Done(address);
                }
                _ => {
                    let now = self.seen(server);
                    self.nodes[server].ledger.revert(now);
                    assert_eq!(*self.nodes[server].ledger.state(), before, "what is taken back leaves nothing");
                    self.count("decided again");
                }
            }
        }
        Outcome::Refused
    }

    /// Finds out what became of the last record of a server. Returns whether that is known.
    fn settle(&mut self, server: usize) -> bool {
        self.follow(server);
        let Some(sent) = self.nodes[server].sent.clone() else { return true };
        // Nothing came after it: the same bytes are sent again.
        let changes = self.nodes[server].ledger.staged().to_vec();
        let record = Record {
            id: sent.id,
            server,
            op: sent.op,
            changes,
            decided: sent.decided,
            time: self.now,
            window: sent.window,
        };
        if self.rng.random_range(0..3) == 0 {
            return false;
        }
        self.append(self.nodes[server].applied, record);
        self.follow(server);
        self.nodes[server].sent.is_none()
    }

    /// A server dies, and starts with what its store has.
    fn restart(&mut self, server: usize) {
        let now = self.seen(server);
        let back = self.rng.random_range(0..4);
        let node = &mut self.nodes[server];
        let store = std::mem::replace(&mut node.ledger, ledger(&["10.0.0.0/29"])).into_store();
        node.ledger = Self::open(store, now);
        // Records that the store has already are applied again.
        node.applied = node.kept.saturating_sub(back);
        (node.sent, node.window) = (None, None);
        self.follow(server);
    }

    fn step(&mut self) {
        self.now += *[0, 0, 0, 1, 1, 5, 20, 60, 300, 900].choose(&mut self.rng).unwrap();
        // Machines that are up have handshakes, wherever they are connected.
        let due: Vec<_> =
            self.machines.iter().filter(|(_, (_, last))| self.now - last > HANDSHAKES).map(|m| *m.0).collect();
        for peer in due {
            self.machines.entry(peer).and_modify(|(_, last)| *last = self.now);
            let server = self.rng.random_range(0..SERVERS);
            self.follow(server);
            let now = self.seen(server);
            let ledger = &mut self.nodes[server].ledger;
            if ledger.lease(&key(peer)).is_some_and(|lease| !lease.is_pending()) {
                // It is noted also while the store does not answer.
                let staged = ledger.staged().len();
                ledger.confirm(&key(peer), now).unwrap();
                assert_eq!(ledger.staged().len(), staged, "a renewal decides nothing");
            } else if self.carry_out(server, Op::Handshake(peer)) == Outcome::Refused
                && self.nodes[server].sent.is_none()
            {
                // It is not let in any more.
                self.machines.remove(&peer);
            }
        }
        if !self.late.is_empty() && self.rng.random_range(0..3) == 0 {
            let (_, after, record) = self.late.swap_remove(0);
            self.append(after, record);
        }
        for server in 0..SERVERS {
            if self.rng.random_range(0..4) > 0 {
                self.follow(server);
            }
        }
        for node in &mut self.nodes {
            if node.window.is_some_and(|(_, at)| self.now - at > WINDOW) {
                node.ledger.window_closed();
                node.window = None;
            }
        }
        // Servers do what is due in the order of the deadlines.
        let mut due: Vec<_> =
            (0..SERVERS).filter_map(|server| Some((self.nodes[server].ledger.deadline()?, server))).collect();
        due.sort();
        for (at, server) in due {
            if at <= self.seen(server).instant {
                self.carry_out(server, Op::Expire);
            }
        }
        let server = self.rng.random_range(0..SERVERS);
        if self.rng.random_range(0..30) == 0 {
            return self.restart(server);
        }
        let (peer, invite) = (self.rng.random_range(0..PEERS), self.rng.random_range(0..=self.invites));
        let op = match self.rng.random_range(0..20) {
            0..2 if self.invites < 200 => {
                self.invites += 1;
                Op::Invite(self.invites, self.rng.random_range(1..4))
            }
            2 => Op::Revoke(invite),
            3..10 => Op::Join(peer, Some(self.rng.random_range(self.invites.max(4) - 4..=self.invites))),
            10 => Op::Join(peer, None),
            11 => {
                let node = &mut self.nodes[server];
                if node.sent.is_none() {
                    match node.window.take() {
                        None => {
                            node.ledger.window_opened();
                            node.window = Some((node.applied, self.now));
                        }
                        Some(_) => node.ledger.window_closed(),
                    }
                }
                return;
            }
            12..14 => Op::Remove(peer),
            14..16 => Op::Rename(peer, self.rng.random_range(0..3)),
            16 => Op::Handshake(peer),
            _ => Op::Expire,
        };
        let outcome = self.carry_out(server, op.clone());
        let by_window = matches!(op, Op::Join(_, None)) && matches!(outcome, Outcome::Done(_));
        if by_window {
            self.count("by a window");
        }
        match (&op, &outcome) {
            (Op::Join(peer, _), Outcome::Done(_)) => {
                self.count("joined");
                // It is there, and has its first handshake, with the server that has admitted it.
                if self.rng.random_range(0..4) > 0 {
                    self.machines.entry(*peer).or_insert((self.now, self.now)).1 = self.now;
                    self.carry_out(server, Op::Handshake(*peer));
                }
            }
            (Op::Remove(peer), Outcome::Done(_)) => {
                self.machines.remove(peer);
                self.count("removed");
            }
            _ => {}
        }
        self.history.push((self.next, op, outcome));
    }

    /// Checks the log and the history.
    fn check(&mut self) -> Result<(), String> {
        if let Some(violation) = self.violation.take() {
            return Err(violation);
        }
        let mut state = State::default();
        let (mut removed, mut made) = (BTreeMap::new(), BTreeMap::<TokenId, (usize, u32)>::new());
        let (mut admitted, mut appended) = (BTreeMap::<TokenId, i64>::new(), BTreeMap::new());
        for (at, record) in self.log.iter().enumerate() {
            if appended.insert(record.id, at).is_some() {
                return Err(format!("record {at} is there twice"));
            }
            for change in &record.changes {
                match change {
                    Change::Lease(lease) if !state.leases.contains_key(&lease.public_key) => {
                        let last_removal = removed.get(&lease.public_key).copied().unwrap_or(0);
                        if matches!(record.op, Op::Join(_, None)) && removed.contains_key(&lease.public_key) {
                            // The removal is at this index, and the window was opened after so many records.
                            if record.window.is_none_or(|window| last_removal >= window) {
                                return Err(format!("record {at} admits a key by a window from before its removal"));
                            }
                        }
                        if let Origin::Invite(id) = lease.origin {
                            let count = admitted.entry(id).or_default();
                            *count += 1;
                            let (since, uses) = made[&id];
                            if *count > i64::from(uses) {
                                return Err(format!("invite {id} of {uses} uses has admitted {count}, in record {at}"));
                            }
                            if last_removal > since {
                                return Err(format!("record {at} admits a key by an invite from before its removal"));
                            }
                        }
                    }
                    Change::Invite(invite) => {
                        made.entry(invite.id).or_insert((at, invite.uses));
                    }
                    Change::LeaseGone(key) => {
                        let Some(lease) = state.leases.get(key) else {
                            return Err(format!("record {at} ends a lease that is not there"));
                        };
                        match (record.op.clone(), lease.is_pending(), lease.origin) {
                            (Op::Expire, true, Origin::Invite(id)) => *admitted.entry(id).or_default() -= 1,
                            (Op::Remove(_), ..) => {
                                removed.insert(*key, at);
                            }
                            _ => {}
                        }
                    }
                    _ => {}
                }
                state.apply(change.clone());
            }
            let mut addresses = BTreeSet::new();
            let mut names = BTreeSet::new();
            for lease in state.leases.values() {
                if !lease.addresses().all(|address| addresses.insert(address)) {
                    return Err(format!("after record {at}, an address has two leases"));
                }
                if !lease.name.iter().all(|name| names.insert(name.clone())) {
                    return Err(format!("after record {at}, a name has two leases"));
                }
            }
        }
        for (id, op, outcome) in &self.history {
            let at = appended.get(id).copied();
            match (op, outcome) {
                // An acknowledged join is in the log, with the address that the machine was told.
                (Op::Join(peer, _), Outcome::Done(Some(address))) => {
                    let mut leases =
                        self.log.iter().flat_map(|record| &record.changes).filter_map(|change| match change {
                            Change::Lease(lease) if lease.public_key == key(*peer) => lease.v4,
                            _ => None,
                        });
                    if !leases.any(|leased| leased == *address) {
                        return Err(format!("{op:?} was acknowledged with {address}, and is not in the log"));
                    }
                }
                (Op::Invite(invite, _), Outcome::Done(_)) if !made.contains_key(&super::id(*invite)) => {
                    return Err(format!("{op:?} was acknowledged, and is not in the log ({at:?})"));
                }
                (Op::Invite(invite, _), Outcome::Refused) if made.contains_key(&super::id(*invite)) => {
                    return Err(format!("{op:?} was refused, and is in the log"));
                }
                _ => {}
            }
        }
        // All servers come to the same state.
        for server in 0..SERVERS {
            while !self.settle(server) {}
        }
        for server in 0..SERVERS {
            self.follow(server);
            let mut end = State::default();
            self.log.iter().flat_map(|record| record.changes.clone()).for_each(|change| end.apply(change));
            let found = self.nodes[server].ledger.state();
            if *found != end {
                return Err(format!("server {server} has another state than the log says"));
            }
        }
        Ok(())
    }
}

/// Runs a history, and checks it.
fn run(seed: u64, broken: Option<Broken>) -> Result<BTreeMap<&'static str, u32>, String> {
    let mut world = World::new(seed, broken);
    for _ in 0..300 {
        world.step();
    }
    world.check().map_err(|why| format!("seed {}: {why}", world.seed))?;
    Ok(world.counts)
}

#[test]
fn several_servers_on_one_log_decide_like_one() {
    let rounds = std::env::var("RUSTGUARD_ROUNDS").ok().and_then(|rounds| rounds.parse().ok()).unwrap_or(1);
    let mut all: BTreeMap<&str, u32> = BTreeMap::new();
    for seed in 0..200 * rounds {
        for (what, count) in run(seed, None).unwrap() {
            *all.entry(what).or_default() += count;
        }
    }
    println!("{all:?}");
    for what in ["joined", "removed", "by a window", "decided again", "took back", "found its own record"] {
        assert!(all.get(what).is_some_and(|count| *count >= 50), "{what} is too rare: {all:?}");
    }
}

#[test]
fn a_log_that_breaks_its_rules_is_found() {
    for broken in [Broken::NoCompare, Broken::LostAppend, Broken::DoubleAppend] {
        let found = (0..40).filter(|&seed| {
            let run = std::panic::catch_unwind(|| run(seed, Some(broken)));
            !matches!(run, Ok(Ok(_)))
        });
        let found = found.count();
        println!("{broken:?}: {found} of 40");
        assert!(found >= 20, "{broken:?} is found in {found} of 40 histories");
    }
}

#[test]
fn many_leases_end_in_records_that_a_store_takes() {
    let policy = Policy { lease_time: Some(Duration::from_secs(LEASE_TIME)), ..Policy::default() };
    let mut ledger = Ledger::open(MemoryStore::default(), pools(&["10.0.0.0/16"]), policy, at(0)).unwrap();
    ledger.share(at(0));
    ledger.add_invite(NewInvite { lifetime: None, ..new_invite(1, 2_500) }, at(0)).unwrap();
    let machine = |number: u16| {
        let mut key = [0; 32];
        key[..2].copy_from_slice(&number.to_be_bytes());
        PublicKey(key)
    };
    for number in 0..2_500 {
        ledger.admit(Request { public_key: machine(number), ..by_invite(1, 1) }, at(0)).unwrap();
        ledger.confirm(&machine(number), at(0)).unwrap();
    }
    for number in 0..2_500 {
        ledger.confirm(&machine(number), at(2_000)).unwrap();
    }
    ledger.accept().unwrap();
    for (now, of_each) in [(2_100, "flushed"), (2_000 + LEASE_TIME, "ended")] {
        let mut records = Vec::new();
        while ledger.deadline().is_some_and(|deadline| deadline <= at(now).instant) {
            ledger.expire(at(now)).unwrap();
            records.push(ledger.staged().len());
            ledger.accept().unwrap();
            assert!(records.len() < 10, "{of_each}: {records:?}");
        }
        assert!(records.len() >= 3 && records.iter().all(|changes| *changes < 3_100), "{of_each}: {records:?}");
    }
    assert_eq!(ledger.leases().len(), 0);
}

#[test]
fn nothing_is_due_while_no_lease_may_end() {
    let policy = Policy { lease_time: Some(Duration::from_secs(LEASE_TIME)), ..Policy::default() };
    let mut ledger = Ledger::open(MemoryStore::default(), pools(&["10.0.0.0/24"]), policy, at(0)).unwrap();
    ledger.share(at(0));
    ledger.add_invite(NewInvite { lifetime: None, ..new_invite(1, 1) }, at(0)).unwrap();
    ledger.admit(by_invite(1, 1), at(0)).unwrap();
    ledger.confirm(&key(1), at(0)).unwrap();
    ledger.accept().unwrap();
    // Just before the end, a server whose clock is an hour off decides something.
    let _ = ledger.apply(vec![Change::Serial(9)], Some(START + LEASE_TIME + 3_600), at(LEASE_TIME - 1));
    assert_eq!(ledger.expire(at(LEASE_TIME + 1)).unwrap(), []);
    assert!(ledger.has_skew(at(LEASE_TIME + 1).instant));
    assert_eq!(ledger.deadline(), Some(at(LEASE_TIME - 1 + 3_600).instant), "it is not asked again and again");
    assert_eq!(ledger.expire(at(LEASE_TIME + 3_600)).unwrap().len(), 1);
}
