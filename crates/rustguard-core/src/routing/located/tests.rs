use super::*;
use crate::routing::{RouteTable, SourceRule, Target};
use alloc::{vec, vec::Vec};
use proptest::prelude::*;

const MEMBER: PeerId = PeerId(1);
const SERVER: PeerId = PeerId(2);
const OTHER: PeerId = PeerId(3);
const ROUTER: PeerId = PeerId(4);

fn net(text: &str) -> IpNet {
    text.parse().expect("a prefix")
}

fn config(role: Role, prefixes: &[&str]) -> PeerRoutes {
    PeerRoutes { allowed_ips: prefixes.iter().map(|text| net(text)).collect(), role }
}

/// An engine that gives the actions it is told to give, and remembers its events.
#[derive(Debug, Default)]
struct Script {
    says: Vec<Action>,
    heard: Vec<&'static str>,
    limits: BTreeMap<PeerId, (Role, Vec<IpNet>)>,
}

impl RoutingEngine for Script {
    fn handle(&mut self, event: Event<'_>, _: Instant, out: &mut Vec<Action>) {
        self.heard.push(match event {
            Event::Peer { peer, config } => {
                self.limits.insert(peer, (config.role, config.allowed_ips.clone()));
                "peer"
            }
            Event::PeerRemoved { .. } => "removed",
            Event::Packet { .. } => "packet",
            Event::Signal { signal: Signal::HandshakeFailed, .. } => "lost",
            Event::Signal { .. } => "signal",
            _ => "other",
        });
        out.append(&mut self.says);
    }
}

/// The engine, and the tables that result from its actions.
#[derive(Default)]
struct Lab {
    engine: Option<Located<Script>>,
    text: RouteTable,
    places: BTreeMap<IpNet, NextHops>,
    sent: Vec<Action>,
}

impl Lab {
    fn new() -> Self {
        let mut lab = Self { engine: Some(Located::new(Script::default())), ..Self::default() };
        lab.tell(Event::Pools { prefixes: &[net("10.0.0.0/24")] });
        lab.tell(Event::Peer { peer: MEMBER, config: &config(Role::Member, &["10.0.0.7/32", "10.9.0.0/16"]) });
        lab.tell(Event::Peer { peer: SERVER, config: &config(Role::Server, &["10.0.0.2/32"]) });
        lab.tell(Event::Peer { peer: OTHER, config: &config(Role::Server, &["10.0.0.3/32"]) });
        lab.tell(Event::Peer { peer: ROUTER, config: &config(Role::Router, &["0.0.0.0/0"]) });
        lab
    }

    fn engine(&mut self) -> &mut Located<Script> {
        self.engine.as_mut().expect("made with it")
    }

    fn tell(&mut self, event: Event<'_>) {
        let mut out = Vec::new();
        self.engine().handle(event, Instant::default(), &mut out);
        for action in out {
            match action {
                Action::Install { prefix, hops } => self.text.install(prefix, hops.into()),
                Action::Remove { prefix } => self.text.remove(prefix),
                Action::Permit { peer, prefix, rule } => self.text.permit(peer, prefix, rule),
                Action::Forbid { peer, prefix } => self.text.forbid(peer, prefix),
                Action::Locate { prefix, hops: Some(hops) } => {
                    self.places.insert(prefix, hops);
                }
                Action::Locate { prefix, hops: None } => {
                    self.places.remove(&prefix);
                }
                other => self.sent.push(other),
            }
        }
    }

    fn says(&mut self, actions: impl IntoIterator<Item = Action>) {
        self.engine().places.says.extend(actions);
        self.tell(Event::Time);
    }

    /// The peer that gets the text for this address.
    fn text(&self, address: &str) -> Option<PeerId> {
        match self.text.snapshot().target(address.parse().expect("an address"))? {
            Target::Peer(peer) => Some(*peer),
            _ => None,
        }
    }

    fn permits(&self, peer: PeerId, source: &str) -> bool {
        self.text.snapshot().permits(peer, source.parse().expect("an address"))
    }

    fn heard(&mut self) -> Vec<&'static str> {
        core::mem::take(&mut self.engine().places.heard)
    }
}

fn install(prefix: &str, by: &[PeerId]) -> Action {
    let hops = by.iter().map(|&peer| NextHop { peer, weight: 1 });
    Action::Install { prefix: net(prefix), hops: NextHops::new(hops, None) }
}

/// Of several servers, each has all clients as peers. Packets go to the server that a client talks to, and may come
/// from there, in whatever order this node learns of the client and of the server.
#[test]
fn a_client_is_at_the_gateway_that_announces_it() {
    const CLIENT: PeerId = PeerId(5);
    let client = || config(Role::Client, &["10.0.0.9/32"]);
    let permit = || Action::Permit { peer: SERVER, prefix: net("10.0.0.9/32"), rule: SourceRule::Longest };
    for client_first in [true, false] {
        let mut lab = Lab::new();
        lab.tell(Event::Peer { peer: SERVER, config: &config(Role::Gateway, &["10.0.0.2/32"]) });
        if client_first {
            lab.tell(Event::Peer { peer: CLIENT, config: &client() });
            assert_eq!(lab.text("10.0.0.9"), Some(CLIENT));
        }
        lab.says([install("10.0.0.9/32", &[SERVER]), permit()]);
        if !client_first {
            assert_eq!((lab.text("10.0.0.9"), lab.permits(SERVER, "10.0.0.9")), (None, false), "nobody's client");
            lab.tell(Event::Peer { peer: CLIENT, config: &client() });
        }
        assert_eq!((lab.text("10.0.0.9"), lab.permits(SERVER, "10.0.0.9")), (Some(SERVER), true));
        // A change of its lease does not bring it here.
        lab.tell(Event::Peer { peer: CLIENT, config: &config(Role::Client, &["10.0.0.9/32", "10.8.0.0/16"]) });
        assert_eq!((lab.text("10.0.0.9"), lab.text("10.8.0.1")), (Some(SERVER), Some(CLIENT)));
        // It comes here.
        let forbid = Action::Forbid { peer: SERVER, prefix: net("10.0.0.9/32") };
        lab.says([install("10.0.0.9/32", &[CLIENT]), forbid]);
        assert_eq!((lab.text("10.0.0.9"), lab.permits(SERVER, "10.0.0.9")), (Some(CLIENT), false));
        assert!(lab.permits(CLIENT, "10.0.0.9"));
        // It goes to the server, and is removed.
        lab.says([install("10.0.0.9/32", &[SERVER]), permit()]);
        lab.tell(Event::PeerRemoved { peer: CLIENT });
        assert_eq!((lab.text("10.0.0.9"), lab.permits(SERVER, "10.0.0.9")), (None, false));
    }
}

/// What a gateway has announced ends with it, also if the same peer comes back.
#[test]
fn a_removed_gateway_has_no_clients() {
    const CLIENT: PeerId = PeerId(5);
    let mut lab = Lab::new();
    lab.tell(Event::Peer { peer: SERVER, config: &config(Role::Gateway, &["10.0.0.2/32"]) });
    let permit = Action::Permit { peer: SERVER, prefix: net("10.0.0.9/32"), rule: SourceRule::Longest };
    lab.says([install("10.0.0.9/32", &[SERVER]), permit]);
    lab.tell(Event::PeerRemoved { peer: SERVER });
    lab.tell(Event::Peer { peer: SERVER, config: &config(Role::Gateway, &["10.0.0.2/32"]) });
    lab.tell(Event::Peer { peer: CLIENT, config: &config(Role::Client, &["10.0.0.9/32"]) });
    assert_eq!((lab.text("10.0.0.9"), lab.permits(SERVER, "10.0.0.9")), (Some(CLIENT), false));
}

/// A server that joined may claim that it reaches a client, as it may of members. It gets none of the client's packets,
/// and may not send from its address.
#[test]
fn a_server_that_is_no_gateway_gets_nothing_of_a_clients() {
    const CLIENT: PeerId = PeerId(5);
    let mut lab = Lab::new();
    let permit = Action::Permit { peer: SERVER, prefix: net("10.0.0.9/32"), rule: SourceRule::Longest };
    lab.says([install("10.0.0.9/32", &[SERVER]), permit]);
    lab.tell(Event::Peer { peer: CLIENT, config: &config(Role::Client, &["10.0.0.9/32"]) });
    lab.says([install("10.0.0.9/32", &[SERVER, OTHER])]);
    assert_eq!((lab.text("10.0.0.9"), lab.permits(SERVER, "10.0.0.9")), (Some(CLIENT), false));
}

#[test]
fn where_a_member_is_does_not_say_who_gets_its_text() {
    let mut lab = Lab::new();
    let permit = |peer, prefix| Action::Permit { peer, prefix: net(prefix), rule: SourceRule::Any };
    lab.says([
        install("10.0.0.7/32", &[SERVER]),
        install("10.9.0.0/16", &[SERVER]),
        install("10.0.0.3/32", &[SERVER, OTHER]),
        install("10.0.0.99/32", &[SERVER]),
        permit(SERVER, "10.0.0.7/32"),
        permit(SERVER, "10.0.0.99/32"),
    ]);
    assert_eq!(
        [lab.text("10.0.0.7"), lab.text("10.9.1.1"), lab.text("10.0.0.3")],
        [Some(MEMBER), Some(MEMBER), Some(OTHER)]
    );
    assert_eq!(lab.text("10.0.0.99"), None, "nobody is known to have it");
    assert_eq!(lab.places[&net("10.0.0.7/32")], NextHops::single(SERVER));
    assert!(lab.permits(MEMBER, "10.0.0.7") && lab.permits(SERVER, "10.0.0.2"));
    assert!(!lab.permits(SERVER, "10.0.0.7") && !lab.permits(SERVER, "10.0.0.99"), "it passes sealed datagrams on");
    lab.says([Action::Remove { prefix: net("10.0.0.7/32") }]);
    assert_eq!((lab.text("10.0.0.7"), lab.places.get(&net("10.0.0.7/32"))), (Some(MEMBER), None));
}

#[test]
fn a_router_gets_text_where_no_member_has_the_prefix() {
    let mut lab = Lab::new();
    lab.says([
        install("10.7.0.0/16", &[SERVER, ROUTER]),
        install("10.9.0.0/16", &[ROUTER]),
        Action::Permit { peer: ROUTER, prefix: net("10.7.0.0/16"), rule: SourceRule::Any },
    ]);
    assert_eq!([lab.text("10.7.0.1"), lab.text("10.9.0.1")], [Some(ROUTER), Some(MEMBER)]);
    assert!(lab.permits(ROUTER, "10.7.0.1"));
    // A member gets the prefix, and then loses it.
    lab.tell(Event::Peer { peer: OTHER, config: &config(Role::Server, &["10.0.0.3/32", "10.7.0.0/16"]) });
    assert_eq!(lab.text("10.7.0.1"), Some(OTHER));
    lab.tell(Event::Peer { peer: OTHER, config: &config(Role::Server, &["10.0.0.3/32"]) });
    assert_eq!(lab.text("10.7.0.1"), Some(ROUTER));
    lab.tell(Event::PeerRemoved { peer: MEMBER });
    assert_eq!(lab.text("10.9.0.1"), Some(ROUTER));
    // Unreachable for a while: a shorter prefix does not take over.
    lab.says([
        install("10.0.0.0/8", &[ROUTER]),
        Action::Install { prefix: net("10.7.0.0/16"), hops: NextHops::UNREACHABLE },
    ]);
    assert_eq!([lab.text("10.7.0.1"), lab.text("10.8.0.1")], [None, Some(ROUTER)]);
    lab.says([install("10.7.0.0/16", &[SERVER])]);
    assert_eq!(lab.text("10.7.0.1"), Some(ROUTER), "the shorter one: a server gets no text for others");
}

#[test]
fn a_server_may_say_of_the_pools_that_it_reaches_them_and_a_change_of_them_is_told() {
    let mut lab = Lab::new();
    let limits = |lab: &mut Lab, peer| lab.engine().places.limits[&peer].clone();
    assert_eq!(limits(&mut lab, SERVER), (Role::Server, vec![net("10.0.0.2/32"), net("10.0.0.0/24")]));
    lab.tell(Event::Pools { prefixes: &[net("10.0.0.9/23")] });
    assert_eq!(limits(&mut lab, SERVER), (Role::Server, vec![net("10.0.0.2/32"), net("10.0.0.0/23")]));
    assert_eq!(limits(&mut lab, ROUTER), (Role::Router, vec![net("0.0.0.0/0")]));
    assert_eq!((lab.text("10.0.1.1"), lab.permits(SERVER, "10.0.1.1")), (None, false));
}

#[test]
fn a_peer_behind_another_is_no_link() {
    let mut lab = Lab::new();
    let packet = |lab: &mut Lab| lab.tell(Event::Packet { peer: SERVER, packet: &[] });
    lab.heard();
    packet(&mut lab);
    lab.tell(Event::Signal { peer: SERVER, signal: Signal::HandshakeComplete });
    lab.tell(Event::Signal { peer: SERVER, signal: Signal::Relayed(false) });
    assert_eq!(lab.heard(), ["packet", "signal"]);
    for _ in 0..2 {
        lab.tell(Event::Signal { peer: SERVER, signal: Signal::Relayed(true) });
    }
    packet(&mut lab);
    lab.tell(Event::Signal { peer: SERVER, signal: Signal::HandshakeComplete });
    assert_eq!(lab.heard(), ["lost"]);
    // A new configuration does not change that.
    lab.tell(Event::Peer { peer: SERVER, config: &config(Role::Server, &["10.0.0.2/32", "10.0.0.4/32"]) });
    let send = |peer| Action::Send { peer, packet: vec![1] };
    lab.says([send(SERVER), Action::Ask { peer: SERVER }, send(OTHER)]);
    assert_eq!(lab.sent, [send(OTHER)]);
    lab.heard();
    lab.tell(Event::Signal { peer: SERVER, signal: Signal::Relayed(false) });
    packet(&mut lab);
    assert_eq!(lab.heard(), ["packet"]);
}

#[test]
fn a_router_that_becomes_a_server_keeps_nothing_of_a_routers() {
    let mut lab = Lab::new();
    lab.says([
        install("10.7.0.0/16", &[ROUTER]),
        Action::Permit { peer: ROUTER, prefix: net("10.7.0.0/16"), rule: SourceRule::Any },
    ]);
    lab.engine().places.says = vec![
        Action::Forbid { peer: ROUTER, prefix: net("10.7.0.0/16") },
        Action::Remove { prefix: net("10.7.0.0/16") },
    ];
    lab.tell(Event::Peer { peer: ROUTER, config: &config(Role::Server, &["10.0.0.4/32"]) });
    assert_eq!((lab.text("10.7.0.1"), lab.text("10.0.0.4")), (None, Some(ROUTER)));
    assert!(!lab.permits(ROUTER, "10.7.0.1") && lab.permits(ROUTER, "10.0.0.4"));
    lab.tell(Event::Peer { peer: ROUTER, config: &config(Role::Router, &["0.0.0.0/0"]) });
    assert!(!lab.permits(ROUTER, "10.0.0.4") && lab.text("10.0.0.4").is_none());
}

proptest! {
    /// For any actions of the other engine, and any order in which members are added and removed: text for a member's
    /// address goes to that member, and only a router gets text for addresses that are no member's.
    #[test]
    fn text_is_for_whom_it_is(steps in proptest::collection::vec((0_u8..4, 0_u8..6, 0_u32..5, any::<bool>()), 1..60)) {
        let mut lab = Lab::new();
        let mut owners = BTreeMap::from([(7_u8, MEMBER), (2, SERVER), (3, OTHER)]);
        for (what, address, peer, add) in steps {
            let prefix = alloc::format!("10.0.0.{address}/32");
            match what {
                // Anybody announces it, or nobody.
                0 | 1 if add => lab.says([install(&prefix, &[PeerId(peer), PeerId(peer % 4 + 1)])]),
                0 => lab.says([Action::Remove { prefix: net(&prefix) }]),
                1 => lab.says([Action::Install { prefix: net(&prefix), hops: NextHops::UNREACHABLE }]),
                // A member that has only this prefix is added or removed.
                2 if add && !owners.contains_key(&address) => {
                    let new = PeerId(100 + u32::from(address));
                    lab.tell(Event::Peer { peer: new, config: &config(Role::Member, &[&prefix]) });
                    owners.insert(address, new);
                }
                2 => {
                    let new = PeerId(100 + u32::from(address));
                    if owners.get(&address) == Some(&new) {
                        lab.tell(Event::PeerRemoved { peer: new });
                        owners.remove(&address);
                    }
                }
                _ => lab.tell(Event::Signal { peer: PeerId(peer), signal: Signal::Relayed(add) }),
            }
            for address in 0..8 {
                let gets = lab.text.snapshot().target(core::net::IpAddr::from([10, 0, 0, address])).cloned();
                match owners.get(&address) {
                    Some(owner) => prop_assert_eq!(gets, Some(Target::Peer(*owner))),
                    None => prop_assert!(
                        matches!(gets, None | Some(Target::Nobody) | Some(Target::Peer(ROUTER))),
                        "10.0.0.{}: {:?}", address, gets
                    ),
                }
            }
        }
    }
}
