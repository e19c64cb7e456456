//! A relay with peers of every kind, and senders that try forbidden things.
extern crate std;
use super::*;
use alloc::{collections::BTreeMap, vec, vec::Vec};
use proptest::prelude::*;

fn name(member: u32) -> Name {
    Name::of(&PublicKey([member as u8; 32]))
}

/// Node 0 with its peers, by number, and the next hop to each.
struct Node {
    own: u32,
    forwards: bool,
    next: BTreeMap<u32, Option<u32>>,
}

impl Node {
    /// A relay in session with these peers.
    fn relay(peers: impl IntoIterator<Item = u32>) -> Self {
        Self { own: 0, forwards: true, next: peers.into_iter().map(|peer| (peer, Some(peer))).collect() }
    }
}

impl Members for Node {
    fn is_own(&self, of: &Name) -> bool {
        *of == name(self.own)
    }

    fn peer(&self, of: &Name) -> Option<PeerId> {
        self.next.keys().find(|&&peer| name(peer) == *of).map(|&peer| PeerId(peer))
    }

    fn forwards(&self) -> bool {
        self.forwards
    }

    fn next(&self, to: PeerId) -> Option<PeerId> {
        self.next.get(&to.0).copied().flatten().map(PeerId)
    }
}

fn client(peer: u32) -> Sender {
    Sender { peer: PeerId(peer), router: false }
}

fn router(peer: u32) -> Sender {
    Sender { router: true, ..client(peer) }
}

fn text(header: Header) -> Vec<u8> {
    [&header.to_bytes()[..], &[4; DATA_MIN_LEN]].concat()
}

fn from_to(from: u32, to: u32) -> Vec<u8> {
    text(Header::new(name(to), name(from)))
}

#[test]
fn a_message_between_two_peers_goes_on_with_one_relay_less() {
    let node = Node::relay([1, 2]);
    let header = Header { relays: MOST_RELAYS - 1, ..Header::new(name(2), name(1)) };
    assert_eq!(decide(&from_to(1, 2), &client(1), &node), Ok(Step::Next { to: PeerId(2), header }));
    assert_eq!(Header::parse(&text(header)), Some(header));
}

#[test]
fn the_member_that_it_is_for_learns_from_whom_by_whomever_it_came() {
    let node = Node { forwards: false, ..Node::relay([1, 2]) };
    assert_eq!(decide(&from_to(1, 0), &client(2), &node), Ok(Step::Own { from: PeerId(1) }));
    assert_eq!(decide(&from_to(9, 0), &client(2), &node), Err(Refused::Sender), "from nobody who is a peer");
    assert_eq!(decide(&from_to(2, 0), &client(2), &node), Err(Refused::Sender), "nobody is its own relay");
    assert_eq!(decide(&from_to(0, 0), &client(2), &node), Err(Refused::Sender), "nor from us");
}

#[test]
fn only_a_router_forwards_for_others() {
    let node = Node::relay([1, 2, 3]);
    assert_eq!(decide(&from_to(1, 2), &client(3), &node), Err(Refused::Sender));
    assert!(decide(&from_to(1, 2), &router(3), &node).is_ok());
    assert_eq!(decide(&from_to(9, 2), &router(3), &node), Err(Refused::Sender), "a router neither for strangers");
    assert_eq!(decide(&from_to(0, 2), &router(3), &node), Err(Refused::Sender), "nor in our name");
}

#[test]
fn nothing_goes_to_strangers_or_back_or_where_there_is_no_way() {
    let mut node = Node::relay([1, 2, 3]);
    assert_eq!(decide(&from_to(1, 9), &client(1), &node), Err(Refused::Unknown));
    assert_eq!(decide(&from_to(1, 1), &client(1), &node), Err(Refused::NoWay));
    assert_eq!(decide(&from_to(1, 3), &router(3), &node), Err(Refused::NoWay), "back to where it came from");
    node.next.insert(3, Some(2));
    assert_eq!(decide(&from_to(1, 3), &router(3), &node), Err(Refused::NoWay), "nor back by another router");
    for hop in [None, Some(1), Some(3)] {
        node.next.insert(2, hop);
        assert_eq!(decide(&from_to(1, 2), &router(3), &node), Err(Refused::NoWay), "by {hop:?}");
    }
    node.forwards = false;
    assert_eq!(decide(&from_to(1, 2), &client(1), &node), Err(Refused::Off));
    assert_eq!(decide(&from_to(9, 9), &client(1), &node), Err(Refused::Off), "and says nothing of who is a peer");
}

#[test]
fn what_is_not_of_this_form_is_dropped() {
    let node = Node::relay([1, 2]);
    let good = from_to(1, 2);
    for (byte, value) in [(0, 4), (1, b'r'), (2, b'g'), (3, 2), (5, 1), (6, 1), (7, 1)] {
        let mut bad = good.clone();
        bad[byte] = value;
        assert_eq!(decide(&bad, &client(1), &node), Err(Refused::Malformed), "byte {byte}");
    }
    for len in 0..good.len() {
        assert_eq!(decide(&good[..len], &client(1), &node), Err(Refused::Malformed), "{len} bytes");
    }
    assert!(decide(&good, &client(1), &node).is_ok());
}

#[test]
fn a_loop_of_relays_ends() {
    // 1 is a client of relay 10. Its message for 2 goes to 11, 12 and 10 again, by routes that form a loop.
    let relays = [10, 11, 12];
    let nodes: Vec<Node> = (0..3)
        .map(|n| {
            let peers = [1, 2].into_iter().chain(relays).filter(|&peer| peer != relays[n]);
            let mut node = Node { own: relays[n], ..Node::relay(peers) };
            node.next.insert(2, Some(relays[(n + 1) % 3]));
            node
        })
        .collect();
    for claimed in [0, 1, MOST_RELAYS, u8::MAX] {
        let mut text = text(Header { relays: claimed, ..Header::new(name(2), name(1)) });
        let (mut at, mut sender, mut count) = (0, client(1), 0);
        while let Ok(Step::Next { to, header }) = decide(&text, &sender, &nodes[at]) {
            text[..HEADER_LEN].copy_from_slice(&header.to_bytes());
            sender = router(relays[at]);
            at = relays.iter().position(|&relay| PeerId(relay) == to).unwrap();
            count += 1;
        }
        assert_eq!(count, claimed.min(MOST_RELAYS), "with {claimed} claimed");
        if claimed > 0 {
            assert_eq!(decide(&text, &sender, &nodes[at]), Err(Refused::Relays));
        }
    }
}

proptest! {
    /// For any input: no output, or one text to one peer that is not the sender. The input came from the source that it
    /// names, or from a router.
    #[test]
    fn whatever_comes_in_one_text_goes_out_at_most(
        start in proptest::option::weighted(0.9, (any::<u8>(), 0_u32..6, 0_u32..6)),
        noise in proptest::collection::vec(any::<u8>(), 0..80),
        peer in 1_u32..4,
        is_router in any::<bool>(),
        hops in proptest::collection::vec(proptest::option::of(1_u32..5), 4),
    ) {
        let mut bytes = vec![];
        if let Some((relays, from, to)) = start {
            bytes.extend(Header { relays, ..Header::new(name(to), name(from)) }.to_bytes());
        }
        bytes.extend(&noise);
        let mut node = Node::relay(1..5);
        node.next = (1..5).zip(hops).collect();
        let sender = if is_router { router(peer) } else { client(peer) };
        match decide(&bytes, &sender, &node) {
            Ok(Step::Next { to, header }) => {
                let before = Header::parse(&bytes).expect("it was taken");
                prop_assert!(to != sender.peer && node.next.contains_key(&to.0));
                prop_assert!(header.relays < before.relays && header.relays < MOST_RELAYS);
                prop_assert_eq!((header.to, header.from), (before.to, before.from));
                prop_assert!(is_router || node.peer(&header.from) == Some(sender.peer));
                prop_assert_eq!(header.to_bytes().len(), HEADER_LEN);
            }
            Ok(Step::Own { from }) => {
                prop_assert_eq!(Header::parse(&bytes).map(|header| header.to), Some(name(0)));
                prop_assert!(from != sender.peer);
            }
            Err(_) => {}
        }
    }
}
