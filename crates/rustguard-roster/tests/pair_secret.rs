//! How further servers get the secret from which the keys of pairs are derived, and who does not get it.
use rustguard_core::{preshared_key::PresharedKey, time::Instant};
use rustguard_crypto::x25519::PublicKey;
use rustguard_roster::{
    exchange::{Exchange, Output},
    key::NetworkSecret,
    member::{Member, Role},
    pair::{PairSecret, SecretId},
    roster::Roster,
    settings::Settings,
};
use std::{collections::BTreeSet, sync::Arc, time::Duration};

/// The server that issues, a further server, and members.
const ISSUER: u8 = 1;
const SECOND: u8 = 2;
const MEMBER: u8 = 3;
const OTHER: u8 = 4;
/// A member of later rosters.
const NEW: u8 = 5;

fn key(n: u8) -> PublicKey {
    PublicKey([n; 32])
}

fn secret(n: u8) -> PairSecret {
    PairSecret::from_bytes(&[n; 32])
}

/// A roster of these servers, and of the two members.
fn roster(number: u64, servers: &[u8], pairs: SecretId) -> Roster {
    with(number, servers, pairs, &[])
}

/// The same with more members.
fn with(number: u64, servers: &[u8], pairs: SecretId, more: &[u8]) -> Roster {
    let mut settings = Settings::new("rg0".parse().unwrap());
    settings.pair_secret = Some(pairs);
    let member = |n: &u8| {
        let role = if servers.contains(n) { Role::Server } else { Role::Member };
        Arc::new(Member::new(key(*n), format!("m{n}").parse().unwrap()).with_role(role))
    };
    let all: BTreeSet<_> = servers.iter().chain(more).copied().chain([MEMBER, OTHER]).collect();
    Roster::issue(&NetworkSecret::from_bytes(&[9; 32]), number, 0, settings, all.iter().map(member)).unwrap()
}

/// Exchanges with sessions between some of them. Messages arrive immediately.
struct Network {
    now: Instant,
    nodes: Vec<(u8, Exchange)>,
    links: Vec<[u8; 2]>,
    /// The keys of pairs and the pair secrets that each node received.
    keys: Vec<(u8, PublicKey, PresharedKey)>,
    secrets: Vec<(u8, Option<SecretId>)>,
    texts: usize,
    /// This node receives only requests for keys and secrets. `told_by_liar` counts its answers.
    hears_questions_only: Option<u8>,
    told_by_liar: usize,
}

impl Network {
    fn new(first: &Roster) -> Self {
        let network = NetworkSecret::from_bytes(&[9; 32]).public_key();
        let exchange = |n| {
            let exchange = Exchange::new(network, Some(first.clone()));
            match n {
                ISSUER => exchange.with_pair_secret(secret(7)),
                SECOND => exchange.for_server(key(n), None),
                _ => exchange,
            }
        };
        Self {
            now: Instant::from_nanos(1 << 40),
            nodes: [ISSUER, SECOND, MEMBER, OTHER].map(|n| (n, exchange(n))).into(),
            links: Vec::new(),
            keys: Vec::new(),
            secrets: Vec::new(),
            texts: 0,
            hears_questions_only: None,
            told_by_liar: 0,
        }
    }

    fn at(&mut self, n: u8) -> &mut Exchange {
        &mut self.nodes.iter_mut().find(|(node, _)| *node == n).unwrap().1
    }

    fn connect(&mut self, a: u8, b: u8) {
        self.links.push([a, b]);
        let now = self.now;
        for (this, other) in [(a, b), (b, a)] {
            self.at(this).connected(&key(other), now);
        }
        self.run(Duration::ZERO);
    }

    fn cut(&mut self, a: u8, b: u8) {
        self.links.retain(|link| *link != [a, b]);
        let now = self.now;
        for (this, other) in [(a, b), (b, a)] {
            self.at(this).gone(&key(other), now);
        }
    }

    fn issue(&mut self, roster: Roster) {
        let now = self.now;
        self.at(ISSUER).issued(roster, now);
        self.run(Duration::from_secs(1));
    }

    fn wants_keys(&mut self, n: u8, of: &[u8]) {
        let now = self.now;
        self.at(n).want_keys(of.iter().map(|n| key(*n)), now);
        self.run(Duration::from_secs(10));
    }

    fn run(&mut self, time: Duration) {
        let end = self.now + time;
        loop {
            while let Some((from, output)) = self.nodes.iter_mut().find_map(|(n, node)| Some((*n, node.next_output()?)))
            {
                match output {
                    Output::Send { to, text } => {
                        self.texts += 1;
                        let linked = |link: &[u8; 2]| link.contains(&from) && link.contains(&to.0[0]);
                        let question = matches!(text[4], 4 | 8);
                        self.told_by_liar +=
                            usize::from(self.hears_questions_only == Some(from) && matches!(text[4], 5 | 9));
                        if self.links.iter().any(linked) && (question || self.hears_questions_only != Some(to.0[0])) {
                            let now = self.now;
                            self.at(to.0[0]).hear(&key(from), &text, now);
                        }
                    }
                    Output::PresharedKey { member, key, .. } => self.keys.push((from, member, key)),
                    Output::PairSecret(secret) => self.secrets.push((from, secret.map(|secret| secret.id()))),
                    _ => {}
                }
            }
            let next = self.nodes.iter().filter_map(|(_, node)| node.deadline()).min();
            let Some(next) = next.filter(|next| *next <= end) else { break };
            self.now = self.now.max(next);
            let now = self.now;
            self.nodes.iter_mut().for_each(|(_, node)| node.tick(now));
        }
        self.now = end;
    }

    /// The keys that were received since the last call.
    fn told(&mut self) -> Vec<(u8, PublicKey, PresharedKey)> {
        std::mem::take(&mut self.keys)
    }
}

#[test]
fn a_further_server_gets_the_secret_and_tells_keys_without_the_issuer() {
    let mut network = Network::new(&roster(1, &[ISSUER, SECOND], secret(7).id()));
    network.connect(SECOND, MEMBER);
    network.connect(SECOND, OTHER);
    network.wants_keys(MEMBER, &[OTHER]);
    assert_eq!(network.told(), [], "it has no secret yet");
    network.connect(ISSUER, SECOND);
    assert_eq!(network.secrets, [(SECOND, Some(secret(7).id()))]);
    network.cut(ISSUER, SECOND);
    network.wants_keys(MEMBER, &[OTHER]);
    network.wants_keys(OTHER, &[MEMBER]);
    let pair = secret(7).preshared_key(&key(MEMBER), &key(OTHER));
    assert_eq!(network.told(), [(MEMBER, key(OTHER), pair.clone()), (OTHER, key(MEMBER), pair)]);
    // It has what it wants: nothing is left to do.
    assert!(network.nodes.iter().all(|(_, node)| node.deadline().is_none()));
}

/// The second server does not know the new member yet, and says so. The member asks again.
#[test]
fn a_server_with_an_older_roster_does_not_end_the_search_for_a_key() {
    let mut network = Network::new(&roster(1, &[ISSUER, SECOND], secret(7).id()));
    network.connect(ISSUER, SECOND);
    network.connect(SECOND, MEMBER);
    network.cut(ISSUER, SECOND);
    // The member has learned of the fifth one elsewhere. The server gets no rosters for a while.
    let newer = with(2, &[ISSUER, SECOND], secret(7).id(), &[NEW]);
    let now = network.now;
    network.hears_questions_only = Some(SECOND);
    network.at(MEMBER).issued(newer.clone(), now);
    network.wants_keys(MEMBER, &[NEW]);
    assert_eq!(network.told(), []);
    assert!(network.told_by_liar > 0, "it has answered");
    let now = network.now;
    network.at(SECOND).issued(newer, now);
    network.run(Duration::from_secs(64));
    assert_eq!(network.told(), [(MEMBER, key(NEW), secret(7).preshared_key(&key(MEMBER), &key(NEW)))]);
}

/// Of two servers, the one with the roster that contains the new member is asked first.
#[test]
fn a_server_that_has_the_roster_is_asked_first() {
    for newest in [ISSUER, SECOND] {
        let mut network = Network::new(&roster(1, &[ISSUER, SECOND], secret(7).id()));
        network.connect(ISSUER, SECOND);
        network.connect(ISSUER, MEMBER);
        network.connect(SECOND, MEMBER);
        network.hears_questions_only = Some(if newest == ISSUER { SECOND } else { ISSUER });
        let now = network.now;
        network.at(newest).issued(with(2, &[ISSUER, SECOND], secret(7).id(), &[NEW]), now);
        network.run(Duration::from_secs(1));
        let now = network.now;
        network.at(MEMBER).want_keys([key(NEW)], now);
        network.run(Duration::ZERO);
        assert_eq!(network.told().len(), 1, "from {newest}");
    }
}

/// After a restart, the copy on the disk is sufficient.
#[test]
fn a_stored_secret_is_not_asked_for() {
    let mut network = Network::new(&roster(1, &[ISSUER, SECOND], secret(7).id()));
    let stored = Exchange::new(NetworkSecret::from_bytes(&[9; 32]).public_key(), None);
    *network.at(SECOND) = stored.for_server(key(SECOND), Some(secret(7)));
    network.connect(ISSUER, SECOND);
    network.connect(SECOND, MEMBER);
    assert_eq!(network.secrets, []);
    network.wants_keys(MEMBER, &[OTHER]);
    assert_eq!(network.told().len(), 1);
}

/// A member that pretends to be a server sends a server's requests.
#[test]
fn whoever_is_no_server_in_the_roster_gets_nothing() {
    let mut network = Network::new(&roster(1, &[ISSUER], secret(7).id()));
    let forged = roster(1, &[ISSUER, MEMBER], secret(7).id());
    for n in [MEMBER, SECOND] {
        // It has made up a roster in which it is a server. (Here, with the key of the network; others never take it.)
        let pretends = Exchange::new(NetworkSecret::from_bytes(&[9; 32]).public_key(), Some(forged.clone()));
        *network.at(n) = pretends.for_server(key(n), None);
        network.connect(ISSUER, n);
    }
    network.run(Duration::from_secs(300));
    assert!(network.texts > 5, "it has asked");
    assert_eq!(network.secrets, []);
    // A further server has the secret, and sends it to nobody, not even to servers.
    let mut network = Network::new(&roster(1, &[ISSUER, SECOND, MEMBER], secret(7).id()));
    network.connect(ISSUER, SECOND);
    assert_eq!(network.secrets, [(SECOND, Some(secret(7).id()))]);
    let asks = roster(1, &[ISSUER, SECOND, MEMBER], secret(7).id());
    let asks = Exchange::new(NetworkSecret::from_bytes(&[9; 32]).public_key(), Some(asks));
    *network.at(MEMBER) = asks.for_server(key(MEMBER), None);
    network.connect(SECOND, MEMBER);
    network.run(Duration::from_secs(300));
    assert_eq!(network.secrets, [(SECOND, Some(secret(7).id()))]);
}

/// A compromised server makes up a secret, and claims to have an older roster that names it. It fetches no other
/// roster.
#[test]
fn only_the_secret_that_the_roster_names_is_believed() {
    let network_key = NetworkSecret::from_bytes(&[9; 32]).public_key();
    let made_up = roster(1, &[ISSUER, SECOND], secret(8).id());
    let liar = || Exchange::new(network_key, Some(made_up.clone())).with_pair_secret(secret(8));
    let current = roster(2, &[ISSUER, SECOND], secret(7).id());
    let mut network = Network::new(&current);
    *network.at(ISSUER) = liar();
    network.hears_questions_only = Some(ISSUER);
    network.connect(ISSUER, SECOND);
    network.connect(ISSUER, MEMBER);
    network.run(Duration::from_secs(60));
    network.wants_keys(MEMBER, &[OTHER]);
    assert!(network.told_by_liar > 5, "it has answered: {}", network.told_by_liar);
    assert_eq!((network.secrets.len(), network.told()), (0, vec![]));
}

#[test]
fn a_server_that_is_none_any_more_forgets_the_secret_and_another_one_is_made() {
    let mut network = Network::new(&roster(1, &[ISSUER, SECOND], secret(7).id()));
    network.connect(ISSUER, SECOND);
    network.connect(ISSUER, MEMBER);
    network.connect(SECOND, MEMBER);
    network.secrets.clear();
    network.at(ISSUER).renew_pair_secret(secret(8));
    network.issue(roster(2, &[ISSUER], secret(8).id()));
    assert_eq!(network.secrets, [(SECOND, None)]);
    network.run(Duration::from_secs(300));
    assert_eq!(network.secrets, [(SECOND, None)], "and does not get the new one");
    network.wants_keys(MEMBER, &[OTHER]);
    let pair = secret(8).preshared_key(&key(MEMBER), &key(OTHER));
    assert_eq!(network.told(), [(MEMBER, key(OTHER), pair)]);
}

/// The other servers get it as soon as they have the roster. Until then, they send no keys, because these would be
/// derived from the old secret.
#[test]
fn another_secret_comes_to_all_servers() {
    let mut network = Network::new(&roster(1, &[ISSUER, SECOND], secret(7).id()));
    network.connect(ISSUER, SECOND);
    network.secrets.clear();
    network.at(ISSUER).renew_pair_secret(secret(8));
    network.issue(roster(2, &[ISSUER, SECOND], secret(8).id()));
    assert_eq!(network.secrets, [(SECOND, Some(secret(8).id()))]);
    network.connect(SECOND, MEMBER);
    network.wants_keys(MEMBER, &[OTHER]);
    let pair = secret(8).preshared_key(&key(MEMBER), &key(OTHER));
    assert_eq!(network.told(), [(MEMBER, key(OTHER), pair)]);
    // The roster names another secret and the issuer is not connected: a server with the old secret sends no keys.
    network.cut(ISSUER, SECOND);
    let now = network.now;
    network.at(SECOND).issued(roster(3, &[ISSUER, SECOND], secret(9).id()), now);
    network.run(Duration::from_secs(1));
    network.wants_keys(MEMBER, &[OTHER]);
    assert_eq!(network.told(), []);
}
