//! Texts that relays forward to each other.
use rustguard_core::{
    forward::{HEADER_LEN, Header, MOST_RELAYS, Members, Name, Refused, Sender, Step, decide},
    node::PeerId,
};
use rustguard_crypto::x25519::PublicKey;

/// The number of nodes. A byte of the text that is a node's number stands for the node's name.
const NODES: u8 = 6;
/// The shortest WireGuard message.
const SHORTEST: usize = 32;

/// Reads the input as a network: for each node, whether it forwards and which others it treats as routers; for each
/// pair, whether they are peers, and the next hop. Two more bytes name the sender and the first receiver. The rest is
/// the text.
///
/// At each node, the result must equal that of the rules written below. In any network, a text passes at most
/// [`MOST_RELAYS`] relays, keeps its names and its length, and is delivered only to its destination.
pub fn forward(input: &[u8]) {
    let mut bytes = input.iter().copied();
    let mut byte = || bytes.next().unwrap_or(0);
    let nodes: Vec<Node> = (0..NODES)
        .map(|own| {
            let (flags, routers) = (byte(), byte());
            let peers =
                (0..NODES).map(|peer| (byte(), peer)).map(|(hop, peer)| (peer != own && hop & 128 == 0).then_some(hop));
            Node { own: (flags & 2 == 0).then_some(own), forwards: flags & 1 == 0, routers, peers: peers.collect() }
        })
        .collect();
    let (from, to) = (byte() % NODES, byte() % NODES);
    let mut text: Vec<u8> = bytes.collect();
    // A fuzzer cannot guess a name of 8 bytes, so the first byte selects the node.
    for at in [8, 16] {
        if let Some(field) = text.get_mut(at..at + 8) {
            let node = field[0];
            if node < NODES {
                field.copy_from_slice(name(node).as_bytes());
            }
        }
    }
    let (len, first) = (text.len(), Header::parse(&text));
    let (mut sender, mut at) = (from, to);
    for relays in 0.. {
        let node = &nodes[usize::from(at)];
        let router = node.routers >> sender & 1 != 0;
        let came = Sender { peer: PeerId(sender.into()), router };
        // Only peers have a session.
        if node.peers[usize::from(sender)].is_none() {
            return;
        }
        let step = decide(&text, &came, node);
        assert_eq!(step, node.expected(&text, sender), "at {at} from {sender}");
        let header = Header::parse(&text);
        match step {
            Err(_) => return,
            Ok(Step::Own { from }) => {
                let header = header.expect("it was taken");
                assert!(header.to == name(at) && header.from == name(from.0 as u8) && from.0 != u32::from(sender));
                return;
            }
            Ok(Step::Next { to, header }) => {
                let first = first.expect("it was taken");
                assert!(relays < MOST_RELAYS && header.relays < first.relays, "{first:?} after {relays} relays");
                assert_eq!((header.to, header.from), (first.to, first.from));
                text[..HEADER_LEN].copy_from_slice(&header.to_bytes());
                assert!(text.len() == len && Header::parse(&text) == Some(header));
                let next = to.0 as u8;
                assert!(next != sender && next != at && node.peers[usize::from(next)].is_some());
                (sender, at) = (at, next);
            }
        }
    }
}

struct Node {
    /// Its number; `None` without a private key.
    own: Option<u8>,
    forwards: bool,
    /// A bit for each peer that this node treats as a router.
    routers: u8,
    /// For each node that is a peer, the next hop of its texts; other values mean none.
    peers: Vec<Option<u8>>,
}

impl Node {
    fn hop(&self, to: u8) -> Option<u8> {
        let hop = self.peers[usize::from(to)].filter(|hop| *hop < NODES)?;
        self.peers[usize::from(hop)].map(|_| hop)
    }

    /// The rules, in order, on the bytes of the text.
    fn expected(&self, text: &[u8], sender: u8) -> Result<Step, Refused> {
        let well_formed =
            text.len() >= HEADER_LEN + SHORTEST && text.starts_with(b"\x05RG\x01") && text[5..8] == [0; 3];
        if !well_formed {
            return Err(Refused::Malformed);
        }
        let named = |bytes: &[u8]| (0..NODES).find(|node| name(*node).as_bytes() == bytes);
        let peer = |node: Option<u8>| node.filter(|node| self.peers[usize::from(*node)].is_some());
        let (to, from) = (named(&text[8..16]), named(&text[16..24]));
        let own = to.is_some() && to == self.own;
        match (own, peer(from)) {
            (false, _) if !self.forwards => Err(Refused::Off),
            (_, None) => Err(Refused::Sender),
            (true, Some(from)) if from == sender => Err(Refused::Sender),
            (true, Some(from)) => Ok(Step::Own { from: PeerId(from.into()) }),
            (false, Some(from)) if from != sender && self.routers >> sender & 1 == 0 => Err(Refused::Sender),
            (false, Some(from)) => {
                let to = peer(to).ok_or(Refused::Unknown)?;
                if text[4] == 0 {
                    return Err(Refused::Relays);
                }
                let back = [from, sender];
                let hop = self.hop(to).filter(|hop| !back.contains(&to) && !back.contains(hop));
                let header = Header::parse(text).expect("it is well formed");
                let relays = text[4].min(MOST_RELAYS) - 1;
                let next = |hop: u8| Step::Next { to: PeerId(hop.into()), header: Header { relays, ..header } };
                hop.map(next).ok_or(Refused::NoWay)
            }
        }
    }
}

impl Members for Node {
    fn is_own(&self, of: &Name) -> bool {
        self.own.map(name).as_ref() == Some(of)
    }

    fn peer(&self, of: &Name) -> Option<PeerId> {
        let peer = (0..NODES).find(|peer| name(*peer) == *of && self.peers[usize::from(*peer)].is_some());
        peer.map(|peer| PeerId(peer.into()))
    }

    fn forwards(&self) -> bool {
        self.forwards
    }

    fn next(&self, to: PeerId) -> Option<PeerId> {
        self.hop(u8::try_from(to.0).ok()?).map(|hop| PeerId(hop.into()))
    }
}

fn name(node: u8) -> Name {
    Name::of(&PublicKey([node + 1; 32]))
}
