//! Policies in whole devices, over in-memory transports: `B` enforces one, and is between `A` and `C`.

use super::support::{Node, at, inner, ipv4, key};
use ipnet::IpNet;
use rustguard_device::{
    Device, DropReason, PeerUpdate, Relay,
    filter::Verdict,
    policy::{Policy, Rules, Traffic},
};
use rustguard_tun::memory::MemoryNet;
use std::{net::IpAddr, sync::Arc};

const TCP: u8 = 6;
const UDP: u8 = 17;
const SYN: u8 = 2;
const ACK: u8 = 16;

struct Three {
    a: Node,
    b: Node,
    c: Node,
}

fn net(n: u8) -> IpNet {
    IpNet::from(IpAddr::from(inner(n)))
}

impl Three {
    fn new(policy: Option<Policy>) -> Self {
        let relay = Relay::Always { local: vec![inner(2).into()] };
        // The policy does not see packets that the embedder's filter drops.
        let filter = |packet: &rustguard_device::filter::Packet<'_>| match packet.bytes.last() {
            Some(b'!') => Verdict::Drop,
            _ => Verdict::Pass,
        };
        let middle = Device::builder().relay(relay).filter(filter).policy(policy);
        let middle = [1, 3]
            .into_iter()
            .fold(middle, |middle, n| middle.peer(PeerUpdate::new(key(n)).endpoint(at(n)).allowed_ip(net(n))));
        let everything = || {
            let all = "0.0.0.0/0".parse::<IpNet>().unwrap();
            Device::builder().peer(PeerUpdate::new(key(2)).endpoint(at(2)).allowed_ip(all))
        };
        let net = MemoryNet::default();
        let (a, c) = (Node::start(&net, 1, everything()), Node::start(&net, 3, everything()));
        Self { a, b: Node::start(&net, 2, middle), c }
    }
}

/// A segment from device `from` for device `to`.
fn tcp([from, to]: [u8; 2], [source, destination]: [u16; 2], flags: u8, text: &[u8]) -> Vec<u8> {
    let mut segment = [source.to_be_bytes(), destination.to_be_bytes()].concat();
    segment.extend([0, 0, 0, 100, 0, 0, 0, 200, 0x50, flags, 0, 0, 0, 0, 0, 0]);
    segment.extend(text);
    ipv4(inner(from), inner(to), TCP, &segment)
}

fn udp([from, to]: [u8; 2], [source, destination]: [u16; 2], text: &[u8]) -> Vec<u8> {
    let datagram = [&source.to_be_bytes()[..], &destination.to_be_bytes(), &[0; 4], text].concat();
    ipv4(inner(from), inner(to), UDP, &datagram)
}

/// A may reach port 443 of B and port 22 of C.
fn policy() -> Policy {
    let rules = Rules::builder().allow(1, [net(1)], [net(2)], Traffic::tcp([443..=443])).allow(
        2,
        [net(1)],
        [net(3)],
        Traffic::tcp([22..=22]),
    );
    Policy::new(Arc::new(rules.build()))
}

#[tokio::test]
async fn what_no_rule_allows_is_refused_at_once_and_shown() {
    let lab = Three::new(Some(policy()));
    let allowed = tcp([1, 2], [50_000, 443], SYN, b"");
    lab.a.host.send(&allowed).unwrap();
    assert_eq!(lab.b.next(), allowed);
    // The host's answer passes, and the connection continues.
    let answer = tcp([2, 1], [443, 50_000], SYN | ACK, b"");
    lab.b.host.send(&answer).unwrap();
    assert_eq!(lab.a.next(), answer);

    lab.a.host.send(&tcp([1, 2], [50_000, 22], SYN, b"")).unwrap();
    let reset = lab.a.next();
    assert_eq!((reset[9], &reset[12..20]), (TCP, &[10, 0, 0, 2, 10, 0, 0, 1][..]), "from whom it was for");
    assert_eq!((&reset[20..24], &reset[28..32], reset[33]), (&[0, 22, 0xc3, 0x50][..], &[0, 0, 0, 101][..], 0x14));
    for _ in 0..2 {
        let refused = udp([1, 2], [50_000, 53], b"query");
        lab.a.host.send(&refused).unwrap();
        let prohibited = lab.a.next();
        assert_eq!((prohibited[9], &prohibited[20..22]), (1, &[3, 13][..]));
        assert!(prohibited.ends_with(&refused));
    }
    // The filter decides before the policy.
    lab.a.host.send(&udp([1, 2], [50_000, 53], b"!")).unwrap();
    let goes_on = tcp([1, 2], [50_000, 443], ACK, b"");
    lab.a.host.send(&goes_on).unwrap();
    assert_eq!(lab.b.next(), goes_on, "nothing else has come to the host");

    let status = lab.b.device.status().await.unwrap();
    assert_eq!((status.dropped(DropReason::Policy), status.dropped(DropReason::Filtered)), (3, 1));
    let peer = status.peers.iter().find(|peer| peer.public_key == key(1)).unwrap();
    assert_eq!(peer.dropped(DropReason::Policy), 3);
    let policy = status.policy.unwrap();
    assert_eq!((policy.rules, policy.connections, policy.refused), (2, 1, 3));
    let refusals: Vec<_> = policy.refusals.iter().map(|it| (it.peer, it.protocol, it.port, it.packets)).collect();
    assert_eq!(refusals, [(key(1), UDP, Some(53), 2), (key(1), TCP, Some(22), 1)]);
    assert_eq!((policy.refusals[0].from, policy.refusals[0].to), (inner(1).into(), inner(2).into()));
    assert!(lab.a.device.status().await.unwrap().policy.is_none());
}

#[tokio::test]
async fn answers_to_the_host_pass_and_nothing_more() {
    let lab = Three::new(Some(Policy::new(Arc::default())));
    let query = udp([2, 1], [50_000, 53], b"query");
    lab.b.host.send(&query).unwrap();
    assert_eq!(lab.a.next(), query);
    lab.a.host.send(&udp([1, 2], [53, 50_001], b"to another port")).unwrap();
    let answer = udp([1, 2], [53, 50_000], b"answer");
    lab.a.host.send(&answer).unwrap();
    assert_eq!(lab.b.next(), answer);
    assert_eq!(lab.b.dropped(DropReason::Policy).await, 1);
}

#[tokio::test]
async fn a_change_of_the_rules_cuts_what_runs_and_no_policy_lets_all_pass() {
    let lab = Three::new(Some(policy()));
    let open = tcp([1, 2], [50_000, 443], SYN, b"");
    lab.a.host.send(&open).unwrap();
    assert_eq!(lab.b.next(), open);
    lab.b.device.set_policy(Some(Policy::new(Arc::default())));
    // The host continues to send, but this does not make the connection the host's.
    let data = tcp([2, 1], [443, 50_000], ACK, b"data");
    lab.b.host.send(&data).unwrap();
    assert_eq!(lab.a.next(), data);
    lab.a.host.send(&tcp([1, 2], [50_000, 443], ACK, b"more")).unwrap();
    let reset = lab.a.next();
    assert_eq!((reset[9], reset[33], &reset[24..28]), (TCP, 4, &[0, 0, 0, 200][..]), "which the peer believes");
    lab.b.device.set_policy(None);
    let more = tcp([1, 2], [50_000, 22], ACK, b"more");
    lab.a.host.send(&more).unwrap();
    assert_eq!(lab.b.next(), more);
    assert_eq!(lab.b.dropped(DropReason::Policy).await, 1);
}

#[tokio::test]
async fn a_relay_answers_for_clients_and_leaves_members_to_themselves() {
    let lab = Three::new(Some(policy()));
    // C is a client that enforces no policy.
    let ssh = tcp([1, 3], [50_000, 22], SYN, b"");
    lab.a.host.send(&ssh).unwrap();
    assert_eq!(lab.c.next()[20..], ssh[20..]);
    let answer = tcp([3, 1], [22, 50_000], SYN | ACK, b"");
    lab.c.host.send(&answer).unwrap();
    assert_eq!(lab.a.next()[20..], answer[20..]);
    lab.a.host.send(&tcp([1, 3], [50_000, 80], SYN, b"")).unwrap();
    let reset = lab.a.next();
    assert_eq!((reset[9], reset[33], &reset[12..16]), (TCP, 0x14, &inner(3).octets()[..]));
    // Connections that the client begins are judged too.
    lab.c.host.send(&tcp([3, 1], [50_000, 22], SYN, b"")).unwrap();
    assert_eq!(lab.c.next()[33], 0x14);

    // C is a member that enforces its own policy.
    lab.b.device.set_policy(Some(policy().others([net(3)])));
    let web = tcp([1, 3], [50_000, 80], SYN, b"");
    lab.a.host.send(&web).unwrap();
    assert_eq!(lab.c.next()[20..], web[20..]);
    // Packets that come from a client are judged here.
    lab.b.device.set_policy(Some(policy().others([net(3)]).own([net(1)])));
    lab.a.host.send(&web).unwrap();
    assert_eq!(lab.a.next()[33], 0x14);
}
