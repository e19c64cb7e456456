//! Enrolment: a server and clients that get any bytes.
use crate::steps::Steps;
use rand::{SeedableRng, rngs::StdRng};
use rustguard_core::time::{Instant, Now};
use rustguard_crypto::{
    hash::{hash, mac},
    x25519::StaticSecret,
};
use rustguard_enroll::{
    action::Action,
    client::{Client, Heard},
    kem::Kem,
    ledger::{Ledger, Policy},
    pool::Pools,
    server::{InviteOptions, OpenOptions, Server, ServerConfig},
    store::{Change, LeaseStore, MemoryStore, State, StoreError},
    token::{Passphrase, Token},
    wire::{MESSAGE_TYPES, is_enrolment},
};
use std::{cell::Cell, net::SocketAddr, rc::Rc, time::Duration};

const LENGTHS: [usize; 6] = [1232, 116, 1212, 64, 52, 100];

/// Reads the input as steps: tokens, datagrams to server and clients with or without a valid MAC1, genuine messages
/// with one byte changed, and the passing of time.
///
/// Nothing panics, no answer is longer than its request, and only a genuine claim changes durable state.
pub fn enrolment(input: &[u8]) {
    if let Ok(text) = core::str::from_utf8(input)
        && let Ok(Token::Invite(invite)) = Token::parse(text)
    {
        assert_eq!(Token::parse(&invite.to_text()).is_ok(), true, "an invite that cannot be read back");
    }
    let mut lab = Lab::new();
    let mut steps = Steps(input);
    while let Some(step) = steps.byte() {
        match step % 6 {
            0 => lab.to_server(steps.bytes(), false),
            1 => {
                let (kind, len, key) =
                    (steps.byte().unwrap_or(0), steps.byte().unwrap_or(0), steps.byte().unwrap_or(0));
                let mut message = vec![0; LENGTHS[usize::from(len) % LENGTHS.len()]];
                let fill = steps.bytes();
                message.iter_mut().zip(fill.iter().cycle()).for_each(|(byte, fill)| *byte = *fill);
                let kind = MESSAGE_TYPES.start() + u32::from(kind) % 9;
                message[..4].copy_from_slice(&kind.to_le_bytes());
                lab.sign(&mut message, key % 2 == 0);
                lab.to_server(&message, false);
                lab.to_clients(&message);
            }
            2 | 3 => {
                let position = usize::from(steps.byte().unwrap_or(0)) << 3 | usize::from(steps.byte().unwrap_or(0) & 7);
                let change = steps.byte().unwrap_or(0);
                lab.exchange(usize::from(step % 6 == 3), position, change);
            }
            4 => lab.to_clients(steps.bytes()),
            _ => lab.pass(Duration::from_millis(u64::from(steps.byte().unwrap_or(0)) * 100)),
        }
    }
}

/// A store that counts its commits.
#[derive(Default)]
struct Counting(MemoryStore, Rc<Cell<u32>>);

impl LeaseStore for Counting {
    fn load(&mut self) -> Result<Option<State>, StoreError> {
        self.0.load()
    }

    fn commit(&mut self, changes: &[Change], before: &State) -> Result<(), StoreError> {
        self.1.set(self.1.get() + 1);
        self.0.commit(changes, before)
    }
}

struct Lab {
    now: Now,
    rng: StdRng,
    server: Server<Counting>,
    commits: Rc<Cell<u32>>,
    /// One client with an invite, and one with a passphrase.
    clients: [Client; 2],
}

impl Lab {
    fn new() -> Self {
        let mut rng = StdRng::seed_from_u64(1);
        let now = Now { instant: Instant::from_nanos(1 << 40), unix: Duration::from_secs(1_700_000_000) };
        let store = Counting::default();
        let commits = store.1.clone();
        let pools = Pools::new(&["10.150.0.0/24".parse().expect("a prefix")]).expect("a pool");
        let ledger = Ledger::open(store, pools, Policy::default(), now).expect("an empty store");
        let identity = StaticSecret::from_bytes([1; 32]);
        let config = ServerConfig::default();
        // All randomness comes from the seed, so that an input always has the same effect.
        let server = Server::new(identity, ledger, &config, now, &mut rng).expect("short settings");
        let mut server = server.with_kem(Kem::Portable);
        let mut actions = Vec::new();
        let invite =
            server.new_invite(InviteOptions::default(), now, &mut rng, &mut actions).expect("the ledger takes it");
        let passphrase = || Passphrase::new("mysecret").expect("a passphrase");
        let options = OpenOptions::default().with_passphrase(passphrase());
        server.open(options, now, &mut rng, &mut actions).expect("no other window");
        let client = |token, key| {
            let client = Client::new(token, StaticSecret::from_bytes([key; 32]), now);
            client.expect("a good key").with_name("node".to_owned()).with_kem(Kem::Portable)
        };
        let clients = [client(Token::Invite(invite), 2), client(Token::Passphrase(passphrase()), 3)];
        Self { now, rng, server, commits, clients }
    }

    /// Gives a datagram to the server, and its answers to the clients.
    fn to_server(&mut self, datagram: &[u8], genuine: bool) {
        let before = self.commits.get();
        let mut actions = Vec::new();
        self.server.handle(address(), datagram, self.now, &mut self.rng, &mut actions);
        assert!(genuine || self.commits.get() == before, "durable by {} bytes of nobody", datagram.len());
        let mut answered = 0;
        for action in actions {
            if let Action::Send { bytes, .. } = action {
                answered += bytes.len();
                assert!(is_enrolment(&bytes) && answered <= datagram.len(), "{answered} for {}", datagram.len());
                self.to_clients(&bytes);
            }
        }
    }

    fn to_clients(&mut self, datagram: &[u8]) {
        for client in &mut self.clients {
            if let Heard::Joined(joined) = client.handle(datagram, self.now, &mut self.rng) {
                assert!(self.server.peers().any(|peer| peer.preshared_key == joined.preshared_key), "joined alone");
            }
        }
    }

    /// Delivers a client's next message, first with one byte changed and then unchanged.
    fn exchange(&mut self, client: usize, position: usize, change: u8) {
        if let Some(due) = self.clients[client].deadline() {
            self.pass(due.since(self.now.instant));
        }
        let Ok(Some(message)) = self.clients[client].poll(self.now, &mut self.rng) else { return };
        let mut changed = message.clone();
        let position = position % changed.len();
        changed[position] ^= change;
        let genuine = changed == message;
        self.to_server(&changed, genuine);
        self.to_server(&message, true);
    }

    /// Sets a valid MAC1: with the server's public key, or with the key for a window with a passphrase, which is
    /// public.
    fn sign(&self, datagram: &mut [u8], invite: bool) {
        let Some(end) = datagram.len().checked_sub(32) else { return };
        let window = hash(&[b"RustGuard enrolment v1 window of a passphrase"]);
        let key = match invite {
            true => hash(&[b"rge-mac1", &self.server.public_key().0]),
            false => hash(&[b"rgw-mac1", &window]),
        };
        let mac1 = mac(&key, &[&datagram[..end]]);
        datagram[end..end + 16].copy_from_slice(&mac1);
    }

    fn pass(&mut self, time: Duration) {
        self.now = Now { instant: self.now.instant + time, unix: self.now.unix + time };
        let mut actions = Vec::new();
        self.server.tick(self.now, &mut actions);
        assert!(!actions.iter().any(|action| matches!(action, Action::Send { .. })), "nobody asked");
    }
}

fn address() -> SocketAddr {
    SocketAddr::from(([192, 0, 2, 1], 51_820))
}
