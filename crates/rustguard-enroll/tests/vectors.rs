//! Test vectors for other implementations: complete exchanges, byte by byte, from reproducible randomness.
//!
//! `RUSTGUARD_WRITE_VECTORS=1 cargo test -p rustguard-enroll --test vectors` writes them again. Otherwise the result
//! must be the same bytes as the stored ones. `docs/enrolment.md` describes their contents.
use core::convert::Infallible;
use rand_core::{TryCryptoRng, TryRng};
use rustguard_core::time::{Instant, Now};
use rustguard_crypto::{hash::hash, x25519::StaticSecret};
use rustguard_enroll::{
    action::Action,
    client::{Client, Heard, Joined},
    kem::Kem,
    ledger::{Ledger, Policy},
    pool::Pools,
    server::{InviteOptions, OpenOptions, Server, ServerConfig},
    store::MemoryStore,
    token::{Passphrase, Token},
};
use serde_json::{Value, json};
use std::{env, fs, path::Path, time::Duration};

/// Blocks of BLAKE2s-256 of the side's name and a counter (8 bytes, little-endian).
struct Stream {
    name: &'static str,
    counter: u64,
    rest: Vec<u8>,
}

impl TryRng for Stream {
    type Error = Infallible;
    fn try_next_u32(&mut self) -> Result<u32, Infallible> {
        let mut bytes = [0; 4];
        self.try_fill_bytes(&mut bytes)?;
        Ok(u32::from_le_bytes(bytes))
    }

    fn try_next_u64(&mut self) -> Result<u64, Infallible> {
        let mut bytes = [0; 8];
        self.try_fill_bytes(&mut bytes)?;
        Ok(u64::from_le_bytes(bytes))
    }

    fn try_fill_bytes(&mut self, to: &mut [u8]) -> Result<(), Infallible> {
        while self.rest.len() < to.len() {
            self.rest.extend_from_slice(&hash(&[self.name.as_bytes(), &self.counter.to_le_bytes()]));
            self.counter += 1;
        }
        let rest = self.rest.split_off(to.len());
        to.copy_from_slice(&self.rest);
        self.rest = rest;
        Ok(())
    }
}

impl TryCryptoRng for Stream {}

fn stream(name: &'static str) -> Stream {
    Stream { name, counter: 0, rest: Vec::new() }
}

#[derive(Clone, Copy)]
enum How {
    Invite,
    Code,
    PassphraseWithApproval,
}

/// `network`: the network key that the server has, if any. `member`: the joiner can be a member of a network.
fn exchange(how: How, network: Option<[u8; 32]>, member: bool) -> Value {
    let (mut theirs, mut ours) = (stream("server"), stream("joiner"));
    let now = Now { instant: Instant::from_nanos(1 << 40), unix: Duration::from_secs(1_700_000_000) };
    let (server_key, joiner_key) = (hash(&[b"server key"]), hash(&[b"joiner key"]));
    let pools = Pools::new(&["10.150.0.0/24".parse().expect("a prefix"), "fd15::/64".parse().expect("a prefix")]);
    let ledger = Ledger::open(MemoryStore::default(), pools.expect("pools"), Policy::default(), now);
    let config = ServerConfig::default()
        .with_addresses(vec!["10.150.0.1".parse().expect("an address")])
        .with_routes(vec!["10.150.0.0/24".parse().expect("a prefix"), "fd15::/64".parse().expect("a prefix")])
        .with_dns(vec!["fd15::1".parse().expect("an address")])
        .with_search(vec!["example.org".to_owned()])
        .with_mtu(1420)
        .with_port(51_821)
        .with_keepalive(25);
    let identity = StaticSecret::from_bytes(server_key);
    let server = Server::new(identity, ledger.expect("empty"), &config, now, &mut theirs).expect("short");
    // The other implementation uses its own randomness.
    let mut server = server.with_kem(Kem::Portable).with_network(network);
    let mut actions = Vec::new();
    let token = match how {
        How::Invite => {
            let options = InviteOptions::default().with_endpoints(["192.0.2.1:51820".to_owned()]);
            server.new_invite(options, now, &mut theirs, &mut actions).expect("room").to_text().to_string()
        }
        How::Code => {
            let opened = server.open(OpenOptions::default(), now, &mut theirs, &mut actions).expect("closed");
            opened.code.expect("a code").to_text().to_string()
        }
        How::PassphraseWithApproval => {
            let passphrase = Some(Passphrase::new("correct horse battery").expect("a passphrase"));
            let options = OpenOptions::default().with_passphrase(passphrase).with_approve(true);
            server.open(options, now, &mut theirs, &mut actions).expect("closed");
            "correct horse battery".to_owned()
        }
    };
    let parsed = Token::parse(&token).expect("a token");
    let client = Client::new(parsed, StaticSecret::from_bytes(joiner_key), now);
    let client = client.expect("good keys").with_name("laptop".to_owned()).with_kem(Kem::Portable);
    let mut client = client.with_member(member);

    let from = "198.51.100.7:40000".parse().expect("an address");
    let (mut datagrams, mut approval) = (Vec::new(), None);
    let mut now = now;
    let joined: Joined = 'joined: loop {
        let due = client.deadline().expect("not over").since(now.instant);
        now = Now { instant: now.instant + due, unix: now.unix + due };
        let Some(message) = client.poll(now, &mut ours).expect("no failure") else { continue };
        datagrams.push(json!({ "from": "joiner", "unix": now.unix.as_secs(), "bytes": hex(&message) }));
        actions.clear();
        server.handle(from, &message, now, &mut theirs, &mut actions);
        let answers: Vec<_> = actions
            .drain(..)
            .filter_map(|action| if let Action::Send { bytes, .. } = action { Some(bytes) } else { None })
            .collect();
        for answer in answers {
            datagrams.push(json!({ "from": "server", "bytes": hex(&answer) }));
            match client.handle(&answer, now, &mut ours) {
                Heard::Joined(joined) => break 'joined *joined,
                Heard::Waiting(code) => {
                    approval = Some(code.to_string());
                    server.approve(code, now, &mut actions).expect("the same digits");
                }
                Heard::Nothing | Heard::Progress => {}
                Heard::Failed(error) => panic!("{error}"),
            }
        }
    };
    let mut vector = json!({
        "token": token,
        "server_private_key": hex(&StaticSecret::from_bytes(server_key).to_bytes()),
        "joiner_private_key": hex(&StaticSecret::from_bytes(joiner_key).to_bytes()),
        "joiner_address": "198.51.100.7:40000",
        "datagrams": datagrams,
        "approval_code": approval,
        "preshared_key": hex(&*joined.preshared_key),
        "addresses": joined.addresses.iter().map(ToString::to_string).collect::<Vec<_>>(),
        "routes": joined.routes.iter().map(ToString::to_string).collect::<Vec<_>>(),
    });
    if let Some(network) = joined.network {
        vector["network_key"] = json!(hex(&network));
    }
    vector
}

const NETWORK: [u8; 32] = [0x4e; 32];

#[test]
fn the_same_bytes_come_out_as_are_checked_in() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/vectors");
    let all = [
        ("invite.json", How::Invite, None, 4),
        ("code.json", How::Code, None, 8),
        ("passphrase-approval.json", How::PassphraseWithApproval, None, 10),
        ("invite-network.json", How::Invite, Some(NETWORK), 4),
        ("code-network.json", How::Code, Some(NETWORK), 8),
    ];
    for (name, how, network, count) in all {
        let vector = exchange(how, network, network.is_some());
        assert_eq!(vector["datagrams"].as_array().map(Vec::len), Some(count), "{name}");
        let text = serde_json::to_string_pretty(&vector).expect("serialisable") + "\n";
        let path = folder.join(name);
        if env::var_os("RUSTGUARD_WRITE_VECTORS").is_some() {
            fs::write(&path, &text).expect("writable");
        }
        let kept = fs::read_to_string(&path).expect("the vectors are checked in");
        assert!(kept == text, "{name}: other bytes than before; a new version of the protocol needs new labels");
    }
}

/// The released vectors are the messages of programs without networks. A server with a network answers such a joiner
/// with the same bytes.
#[test]
fn versions_with_and_without_networks_meet_in_a_star() {
    for how in [How::Invite, How::Code, How::PassphraseWithApproval] {
        let released = exchange(how, None, false);
        assert!(exchange(how, Some(NETWORK), false) == released, "an old joiner at a server of a network: other bytes");
        let asked = exchange(how, None, true);
        assert_eq!(asked["network_key"], Value::Null, "a new joiner at an old server");
        for what in ["addresses", "routes"] {
            assert_eq!(asked[what], released[what], "{what}");
        }
        assert_eq!(exchange(how, Some(NETWORK), true)["network_key"], hex(&NETWORK));
    }
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}
