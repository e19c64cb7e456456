//! The simulated network, clock and users.
use rand::{Rng as _, RngExt as _, SeedableRng as _, rngs::StdRng};
use rustguard_core::time::{Instant, Now};
use rustguard_crypto::x25519::{PublicKey, StaticSecret};
use rustguard_enroll::{
    action::{Action, PeerConfig},
    audit::{AuditEvent, AuditRecord, Reason},
    client::{Client, Heard, JoinError, Joined},
    ledger::{Ledger, Policy},
    pool::Pools,
    server::{ApprovalCode, InviteOptions, OpenOptions, Server, ServerConfig},
    store::{Change, LeaseStore, MemoryStore, State, StoreError},
    token::{Invite, Passphrase, Token},
    wire::MAX_DATAGRAM,
};
use std::{
    cell::{Cell, RefCell},
    collections::{BTreeMap, BTreeSet},
    net::SocketAddr,
    rc::Rc,
    time::Duration,
};

pub(crate) const POOLS: [&str; 2] = ["10.150.0.0/24", "fd15::/64"];

/// A store with a disk that can fail.
#[derive(Clone, Debug, Default)]
pub(crate) struct TestStore {
    pub(crate) kept: Rc<RefCell<MemoryStore>>,
    pub(crate) broken: Rc<Cell<bool>>,
    pub(crate) commits: Rc<Cell<u32>>,
}

impl LeaseStore for TestStore {
    fn load(&mut self) -> Result<Option<State>, StoreError> {
        self.kept.borrow_mut().load()
    }

    fn commit(&mut self, changes: &[Change], before: &State) -> Result<(), StoreError> {
        if self.broken.get() {
            return Err(StoreError::new("the disk is gone"));
        }
        self.commits.set(self.commits.get() + 1);
        self.kept.borrow_mut().commit(changes, before)
    }
}

/// A joining machine.
pub(crate) struct Node {
    pub(crate) address: SocketAddr,
    pub(crate) key: [u8; 32],
    pub(crate) client: Client,
    pub(crate) outcome: Option<Result<Joined, JoinError>>,
    pub(crate) waiting: Option<ApprovalCode>,
    /// The error of the machine's clock in seconds.
    pub(crate) skew: i64,
}

#[derive(Clone)]
pub(crate) struct Datagram {
    pub(crate) from: SocketAddr,
    pub(crate) to: SocketAddr,
    pub(crate) bytes: Vec<u8>,
}

pub(crate) struct Sim {
    pub(crate) rng: StdRng,
    pub(crate) now: Now,
    pub(crate) server: Server<TestStore>,
    identity: [u8; 32],
    pools: Vec<String>,
    /// The network's public key that the server has.
    network: Option<[u8; 32]>,
    /// Whether machines that join from now on can be members of a network.
    pub(crate) members: bool,
    store: Rc<RefCell<MemoryStore>>,
    pub(crate) broken: Rc<Cell<bool>>,
    pub(crate) commits: Rc<Cell<u32>>,
    pub(crate) nodes: Vec<Node>,
    /// The packet loss in percent.
    pub(crate) loss: u32,
    pub(crate) duplicates: u32,
    /// The maximum random delay in milliseconds. Later datagrams may overtake earlier ones.
    pub(crate) delay: u64,
    flying: BTreeMap<(Instant, u64), Datagram>,
    serial: u64,
    /// All datagrams that were sent, including lost ones.
    pub(crate) sent: Vec<Datagram>,
    pub(crate) audit: Vec<AuditRecord>,
    /// How often the server said that members have changed.
    pub(crate) changes: u32,
    /// The peers of the device.
    pub(crate) peers: BTreeMap<PublicKey, PeerConfig>,
}

pub(crate) fn server_address() -> SocketAddr {
    "192.0.2.1:51820".parse().expect("an address")
}

impl Sim {
    pub(crate) fn new(seed: u64) -> Self {
        Self::with_pools(seed, &POOLS)
    }

    /// A network with so many members, all of which are connected, and their keys.
    pub(crate) fn with_members(seed: u64, count: u32) -> (Self, Vec<PublicKey>) {
        let mut sim = Self::new(seed);
        sim.restart_server_with(Some([8; 32]));
        sim.members = true;
        let token = sim.invite_with(InviteOptions::default().with_uses(count)).to_text();
        let nodes: Vec<_> = (0..count).map(|_| sim.join(&token)).collect();
        assert!(sim.run(seconds(60)));
        nodes.iter().for_each(|&node| sim.handshake(node));
        let keys = nodes.iter().map(|&node| sim.public_key(node)).collect();
        sim.changes = 0;
        sim.audit.clear();
        (sim, keys)
    }

    pub(crate) fn with_pools(seed: u64, pools: &[&str]) -> Self {
        let mut rng = StdRng::seed_from_u64(seed);
        let now = Now { instant: Instant::from_nanos(1 << 40), unix: Duration::from_secs(1_700_000_000) };
        let mut identity = [0; 32];
        rng.fill_bytes(&mut identity);
        let store = TestStore::default();
        let (kept, broken, commits) = (store.kept.clone(), store.broken.clone(), store.commits.clone());
        let pools: Vec<_> = pools.iter().map(|&pool| pool.to_owned()).collect();
        let server = start(store, &pools, identity, now, &mut rng);
        Self {
            rng,
            now,
            server,
            identity,
            pools,
            network: None,
            members: false,
            store: kept,
            broken,
            commits,
            nodes: Vec::new(),
            loss: 0,
            duplicates: 0,
            delay: 20,
            flying: BTreeMap::new(),
            serial: 0,
            sent: Vec::new(),
            audit: Vec::new(),
            changes: 0,
            peers: BTreeMap::new(),
        }
    }

    /// The server's process ends, and another one starts with the same state and this network key.
    pub(crate) fn restart_server_with(&mut self, network: Option<[u8; 32]>) {
        self.network = network;
        self.restart_server();
    }

    /// The server's process ends, and another one starts with the same state.
    pub(crate) fn restart_server(&mut self) {
        let placeholder = start(TestStore::default(), &self.pools, [1; 32], self.now, &mut self.rng);
        let old = std::mem::replace(&mut self.server, placeholder);
        let store = old.into_ledger().into_store();
        let server = start(store, &self.pools, self.identity, self.now, &mut self.rng);
        self.server = server.with_network(self.network);
        self.peers = self.server.peers().map(|peer| (peer.public_key, peer)).collect();
    }

    /// The server's private key at the start.
    pub(crate) fn identity(&self) -> StaticSecret {
        StaticSecret::from_bytes(self.identity)
    }

    pub(crate) fn invite(&mut self) -> Invite {
        self.invite_with(InviteOptions::default())
    }

    pub(crate) fn invite_with(&mut self, options: InviteOptions) -> Invite {
        let mut actions = Vec::new();
        let invite = self.server.new_invite(options, self.now, &mut self.rng, &mut actions).expect("an invite");
        self.carry_out(actions, None);
        invite
    }

    /// Opens a window for 60 seconds. Returns its code or passphrase.
    pub(crate) fn open(&mut self, passphrase: Option<&str>, approve: bool) -> String {
        let options = OpenOptions::default()
            .with_passphrase(passphrase.map(|text| Passphrase::new(text).expect("a passphrase")))
            .with_approve(approve);
        let mut actions = Vec::new();
        let opened = self.server.open(options, self.now, &mut self.rng, &mut actions).expect("no other window");
        self.carry_out(actions, None);
        opened.code.map_or_else(|| passphrase.expect("no code").to_owned(), |code| code.to_text().to_string())
    }

    pub(crate) fn admin<R>(
        &mut self,
        command: impl FnOnce(&mut Server<TestStore>, Now, &mut StdRng, &mut Vec<Action>) -> R,
    ) -> R {
        let mut actions = Vec::new();
        let result = command(&mut self.server, self.now, &mut self.rng, &mut actions);
        self.carry_out(actions, None);
        result
    }

    /// A machine starts to join, with a new key.
    pub(crate) fn join(&mut self, token: &str) -> usize {
        let mut key = [0; 32];
        self.rng.fill_bytes(&mut key);
        self.join_as(token, key)
    }

    /// The same, with the given key and an address of its own.
    pub(crate) fn join_as(&mut self, token: &str, key: [u8; 32]) -> usize {
        let i = self.nodes.len();
        let address = SocketAddr::from(([198, 51, (100 + i / 250) as u8, (i % 250) as u8], 40_000 + i as u16));
        self.join_from(token, key, address, 0)
    }

    pub(crate) fn join_from(&mut self, token: &str, key: [u8; 32], address: SocketAddr, skew: i64) -> usize {
        let token = Token::parse(token).expect("a token");
        let name = format!("node-{}", self.nodes.len());
        let identity = StaticSecret::from_bytes(key);
        let client = Client::new(token, identity, skewed(self.now, skew)).expect("a good key").with_name(name);
        let client = client.with_member(self.members);
        self.nodes.push(Node { address, key, client, outcome: None, waiting: None, skew });
        self.nodes.len() - 1
    }

    /// The machine's process ends, and another one tries again with the same key and token.
    pub(crate) fn restart_client(&mut self, i: usize, token: &str) {
        let node = &mut self.nodes[i];
        let (token, identity) = (Token::parse(token).expect("a token"), StaticSecret::from_bytes(node.key));
        let now = skewed(self.now, node.skew);
        let client = Client::new(token, identity, now).expect("a good key").with_name("again".to_owned());
        node.client = client.with_member(self.members);
        node.outcome = None;
    }

    /// Lets time pass until all machines are done, or for this long. Returns whether all are done.
    pub(crate) fn run(&mut self, at_most: Duration) -> bool {
        let end = self.now.instant + at_most;
        while !self.is_done() {
            if !self.step(end) {
                return false;
            }
        }
        true
    }

    /// Lets this much time pass in any case.
    pub(crate) fn pass(&mut self, time: Duration) {
        let end = self.now.instant + time;
        while self.step(end) {}
    }

    pub(crate) fn is_done(&self) -> bool {
        self.nodes.iter().all(|node| node.outcome.is_some())
    }

    /// Processes the next event, or advances to `end` if that is earlier.
    pub(crate) fn step(&mut self, end: Instant) -> bool {
        let flying = self.flying.first_key_value().map(|((at, _), _)| *at);
        let clients = self.nodes.iter().filter(|node| node.outcome.is_none()).filter_map(|node| node.client.deadline());
        let next = clients.chain(flying).chain(self.server.deadline()).min();
        let Some(next) = next.filter(|next| *next <= end) else {
            self.advance(end);
            return false;
        };
        self.advance(next);
        let due = self.server.deadline().is_some_and(|at| at <= self.now.instant);
        if due {
            self.admin(|server, now, _, actions| server.tick(now, actions));
            let after = self.server.deadline();
            assert!(after.is_none_or(|at| at > self.now.instant), "a deadline that ticking does not move: {after:?}");
        }
        for i in 0..self.nodes.len() {
            let now = skewed(self.now, self.nodes[i].skew);
            let node = &mut self.nodes[i];
            if node.outcome.is_none() {
                match node.client.poll(now, &mut self.rng) {
                    Ok(Some(bytes)) => {
                        let datagram = Datagram { from: node.address, to: server_address(), bytes };
                        self.send(datagram);
                    }
                    Ok(None) => {}
                    Err(error) => node.outcome = Some(Err(error)),
                }
            }
        }
        while let Some(entry) = self.flying.first_entry().filter(|entry| entry.key().0 <= self.now.instant) {
            let datagram = entry.remove();
            self.deliver(&datagram);
        }
        true
    }

    pub(crate) fn send(&mut self, datagram: Datagram) {
        assert!(datagram.bytes.len() <= MAX_DATAGRAM, "{} bytes", datagram.bytes.len());
        self.sent.push(datagram.clone());
        let copies = 1 + u32::from(self.rng.random_range(0..100) < self.duplicates);
        for _ in 0..copies {
            if self.rng.random_range(0..100) < self.loss {
                continue;
            }
            let delay = Duration::from_millis(self.rng.random_range(1..=self.delay));
            self.serial += 1;
            self.flying.insert((self.now.instant + delay, self.serial), datagram.clone());
        }
    }

    pub(crate) fn deliver(&mut self, datagram: &Datagram) {
        if datagram.to == server_address() {
            self.ask(datagram.from, &datagram.bytes);
            return;
        }
        for i in 0..self.nodes.len() {
            let now = skewed(self.now, self.nodes[i].skew);
            let node = &mut self.nodes[i];
            if node.address != datagram.to || node.outcome.is_some() {
                continue;
            }
            match node.client.handle(&datagram.bytes, now, &mut self.rng) {
                Heard::Nothing | Heard::Progress => {}
                Heard::Waiting(code) => node.waiting = Some(code),
                Heard::Joined(joined) => node.outcome = Some(Ok(*joined)),
                Heard::Failed(error) => node.outcome = Some(Err(error)),
            }
        }
    }

    /// Gives the server a datagram. Returns its answers, which are also on their way to the sender.
    pub(crate) fn ask(&mut self, from: SocketAddr, bytes: &[u8]) -> Vec<Vec<u8>> {
        let mut actions = Vec::new();
        self.server.handle(from, bytes, self.now, &mut self.rng, &mut actions);
        let answers = actions.iter().filter_map(|action| match action {
            Action::Send { bytes, .. } => Some(bytes.clone()),
            _ => None,
        });
        let answers = answers.collect();
        self.carry_out(actions, Some((from, bytes.len())));
        answers
    }

    /// `cause`: the source and length of the datagram that caused the actions. Answers go to this source and are not
    /// longer.
    fn carry_out(&mut self, actions: Vec<Action>, cause: Option<(SocketAddr, usize)>) {
        let mut answered = 0;
        let changes = actions.iter().filter(|action| **action == Action::MembersChanged).count();
        assert!(changes <= 1, "once in a list");
        for action in actions {
            match action {
                Action::Send { to, bytes } => {
                    let (from, len) = cause.expect("only datagrams are answered");
                    answered += bytes.len();
                    assert_eq!(to, from, "answers go back");
                    assert!(answered <= len, "{answered} bytes for {len}");
                    self.send(Datagram { from: server_address(), to, bytes });
                }
                Action::SetPeer(peer) => {
                    let lease = self.server.ledger().lease(&peer.public_key).expect("durable before it is said");
                    assert_eq!(lease.preshared_key.as_bytes(), &*peer.preshared_key);
                    self.peers.insert(peer.public_key, peer);
                }
                Action::RekeyPeer { before, after } => {
                    let mut peer = self.peers.remove(&before).expect("a peer that was there");
                    assert!(self.server.ledger().lease(&after).is_some(), "durable before it is said");
                    peer.public_key = after;
                    self.peers.insert(after, peer);
                }
                Action::RemovePeer(peer) => {
                    self.peers.remove(&peer);
                }
                Action::MembersChanged => self.changes += 1,
                Action::Audit(record) => self.audit.push(record),
            }
        }
    }

    fn advance(&mut self, to: Instant) {
        let by = to.since(self.now.instant);
        self.now = Now { instant: self.now.instant + by, unix: self.now.unix + by };
    }

    /// Sets the server's wall clock.
    pub(crate) fn set_clock(&mut self, by: i64) {
        self.now = skewed(self.now, by);
    }

    /// A copy of the durable state.
    pub(crate) fn kept(&self) -> MemoryStore {
        self.store.borrow().clone()
    }

    pub(crate) fn joined(&self, i: usize) -> &Joined {
        match &self.nodes[i].outcome {
            Some(Ok(joined)) => joined,
            other => panic!("node {i} has not joined: {other:?}; audit: {:#?}", self.audit),
        }
    }

    pub(crate) fn failed(&self, i: usize) -> JoinError {
        match &self.nodes[i].outcome {
            Some(Err(error)) => *error,
            other => panic!("node {i} has not failed: {other:?}"),
        }
    }

    pub(crate) fn public_key(&self, i: usize) -> PublicKey {
        StaticSecret::from_bytes(self.nodes[i].key).public_key()
    }

    /// The tunnel completes a handshake.
    pub(crate) fn handshake(&mut self, i: usize) {
        let key = self.public_key(i);
        assert!(self.peers.contains_key(&key), "the device has the peer");
        self.admin(|server, now, _, actions| server.handshake_completed(&key, now, actions));
    }

    /// Checks everything that must agree between a joined machine, the ledger and the device.
    pub(crate) fn check(&self, i: usize) {
        let (joined, key) = (self.joined(i), self.public_key(i));
        let peer = self.peers.get(&key).expect("the device has the peer");
        let lease = self.server.ledger().lease(&key).expect("there is a lease");
        assert_eq!(joined.server, *self.server.public_key());
        assert!(*joined.preshared_key != [0; 32]);
        assert_eq!(joined.preshared_key, peer.preshared_key, "both ends have one preshared key");
        assert_eq!(joined.preshared_key[..], lease.preshared_key.as_bytes()[..]);
        assert_eq!(joined.addresses, peer.allowed_ips);
        assert_eq!(
            joined.addresses.iter().map(|net| net.addr()).collect::<Vec<_>>(),
            lease.addresses().collect::<Vec<_>>()
        );
    }

    /// Checks that no two leases share an address or a preshared key.
    pub(crate) fn check_all(&self) {
        let mut seen = BTreeSet::new();
        for lease in self.server.ledger().leases() {
            assert!(lease.addresses().all(|address| seen.insert(address)), "an address twice");
        }
        let keys: BTreeSet<_> = self.peers.values().map(|peer| *peer.preshared_key).collect();
        assert_eq!(keys.len(), self.peers.len());
    }

    pub(crate) fn audited(&self, event: AuditEvent) -> Vec<&AuditRecord> {
        self.audit.iter().filter(|record| record.event == event).collect()
    }

    pub(crate) fn refusals(&self) -> Vec<Reason> {
        self.audited(AuditEvent::Refused).iter().filter_map(|record| record.reason).collect()
    }

    /// The messages that machine `i` sent to the server.
    pub(crate) fn sent_by(&self, i: usize) -> Vec<Vec<u8>> {
        let from = self.nodes[i].address;
        self.sent.iter().filter(|datagram| datagram.from == from).map(|datagram| datagram.bytes.clone()).collect()
    }

    /// The number of messages that the server has sent.
    pub(crate) fn answers(&self) -> usize {
        self.sent.iter().filter(|datagram| datagram.from == server_address()).count()
    }
}

fn start(store: TestStore, pools: &[String], identity: [u8; 32], now: Now, rng: &mut StdRng) -> Server<TestStore> {
    let pools: Vec<_> = pools.iter().map(|pool| pool.parse().expect("a prefix")).collect();
    let ledger =
        Ledger::open(store, Pools::new(&pools).expect("pools"), Policy::default(), now).expect("a sound state");
    let config = ServerConfig::default()
        .with_addresses(vec!["10.150.0.1".parse().expect("an address")])
        .with_routes(pools)
        .with_dns(vec!["10.150.0.1".parse().expect("an address")])
        .with_search(vec!["example.org".to_owned()])
        .with_mtu(1420)
        .with_keepalive(25);
    Server::new(StaticSecret::from_bytes(identity), ledger, &config, now, rng).expect("short settings")
}

fn skewed(now: Now, skew: i64) -> Now {
    let by = Duration::from_secs(skew.unsigned_abs());
    Now { unix: if skew < 0 { now.unix.saturating_sub(by) } else { now.unix + by }, ..now }
}

pub(crate) fn seconds(n: u64) -> Duration {
    Duration::from_secs(n)
}
