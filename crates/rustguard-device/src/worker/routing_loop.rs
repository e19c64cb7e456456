//! Detects the tunnel's own datagrams when a route of the host leads them back into the interface.
//!
//! A route through the tunnel may cover a peer's endpoint. A datagram for the peer then comes back from the TUN, is
//! sealed again, and so on endlessly. The kernel's WireGuard refuses to send if the route leads back to its own
//! interface (ELOOP). The owner of a TUN device cannot see the route when it sends, but it recognises the datagram when
//! it comes back.
//!
//! The check must not drop datagrams of other tunnels. A host behind this one may have a tunnel to the same endpoint,
//! from the same port, and with masquerading even from the same address. The index in the message decides: the peer
//! chose it for a session with us, or we chose it for a handshake. Another tunnel has the same index with a probability
//! of 2⁻³². Two peers may each be reached through the other. So the check covers two peers: the next hop of the packet,
//! and the peer whose endpoint is its destination.
//!
//! The port is compared once per super-packet, the rest only if the port is equal. Packets from peers need no check: a
//! datagram that the host routes back into the interface arrives from the TUN.

use crate::{
    logged_counter::LoggedCounter,
    shared::{Shared, listen_ports::ListenPorts, peer::PeerShared, table::Table},
};
use rustguard_core::{node::PeerId, time::Instant};
use std::{collections::HashMap, net::SocketAddr, sync::atomic::Ordering, time::Duration};

const UDP: u8 = 17;
/// The next header of an IPv6 fragment (RFC 8200, section 4.5).
const FRAGMENT: u8 = 44;
const UDP_HEADER: usize = 8;
/// Message types (whitepaper §5.4).
const INITIATION: u8 = 1;
const RESPONSE: u8 = 2;
const DATA: u8 = 4;

/// The endpoints of all peers: if A is reached through B and B through A, a datagram for A has B as its next hop.
#[derive(Default)]
pub(super) struct LoopDetector {
    peers: HashMap<SocketAddr, PeerId>,
    gathered: Option<Instant>,
}

impl LoopDetector {
    /// The time between two collections of the endpoints. It limits the cost of foreign packets that look like ours,
    /// and the duration of a loop over several peers whose endpoints have just changed.
    const PAUSE: Duration = Duration::from_secs(1);

    /// Whether a packet is our own, after [`may_be`] was true. `peer` is its next hop. Logs it at a limited rate.
    #[cold]
    pub(super) fn is_own(&mut self, packet: &[u8], peer: PeerId, table: &Table, now: Instant, shared: &Shared) -> bool {
        let Some((to, message)) = addressed(packet) else { return false };
        let Some(Message { kind, index }) = Message::parse(message) else { return false };
        let sent_to = |id: &PeerId| table.peers.get(id).is_some_and(|peer| sent_to(peer, kind, index));
        // To any address of this peer: it may have other addresses than the active one, which are probed.
        let own = sent_to(&peer) || {
            if self.gathered.is_none_or(|gathered| now.since(gathered) >= Self::PAUSE) {
                self.gather(table, now);
            }
            self.peers.get(&to).is_some_and(sent_to)
        };
        if own {
            remark(&shared.looped, &to, now);
        }
        own
    }

    fn gather(&mut self, table: &Table, now: Instant) {
        self.gathered = Some(now);
        self.peers.clear();
        for (&id, peer) in table.peers.iter() {
            let several = peer.path_set.load();
            let spread = several.iter().flat_map(|several| several.ends());
            let active = peer.endpoint();
            // A packet does not contain IPv6 scopes.
            let at = spread.chain(&active).map(|at| SocketAddr::new(at.remote.ip(), at.remote.port()));
            self.peers.extend(at.map(|at| (at, id)));
        }
    }
}

/// The fields that identify the tunnel of a message.
struct Message {
    kind: u8,
    index: u32,
}

impl Message {
    /// Cookie replies are ignored: a cookie reply answers a single datagram, and causes no further one.
    fn parse(message: &[u8]) -> Option<Self> {
        match *message.first_chunk()? {
            [kind @ (INITIATION | RESPONSE | DATA), 0, 0, 0, a, b, c, d] => {
                Some(Self { kind, index: u32::from_le_bytes([a, b, c, d]) })
            }
            _ => None,
        }
    }
}

/// Whether we sent the peer such a message.
fn sent_to(peer: &PeerShared, kind: u8, index: u32) -> bool {
    match kind {
        DATA => peer.sealer.load().as_deref().is_some_and(|sealer| sealer.receiver() == index),
        _ => peer.handshake_index.load(Ordering::Relaxed) == index,
    }
}

/// Whether a packet of the host is UDP from one of `ports`. Other packets cost no more than this check.
pub(super) fn may_be(packet: &[u8], ports: &ListenPorts) -> bool {
    udp_at(packet).is_some_and(|at| ports.has(u16::from_be_bytes([packet[at], packet[at + 1]])))
}

/// Where the UDP header begins. Only the first fragment of a packet has one. At most one short fragment follows it,
/// which comes back unfragmented after it was sealed and sent.
fn udp_at(packet: &[u8]) -> Option<usize> {
    let at = match *packet {
        [first @ 0x45..=0x4f, _, _, _, _, _, high, low, _, UDP, ..] if high & 0x1f == 0 && low == 0 => {
            usize::from(first & 0x0f) * 4
        }
        [0x60..=0x6f, _, _, _, _, _, UDP, ..] => 40,
        [0x60..=0x6f, _, _, _, _, _, FRAGMENT, ..]
            if packet.get(40) == Some(&UDP)
                && packet.get(42..44).is_some_and(|at| u16::from_be_bytes([at[0], at[1]]) >> 3 == 0) =>
        {
            48
        }
        _ => return None,
    };
    (packet.len() >= at + UDP_HEADER).then_some(at)
}

/// The destination of a UDP packet, and its payload.
fn addressed(packet: &[u8]) -> Option<(SocketAddr, &[u8])> {
    let at = udp_at(packet)?;
    let port = u16::from_be_bytes([packet[at + 2], packet[at + 3]]);
    let to = match packet[0] >> 4 {
        4 => SocketAddr::from((*packet[16..].first_chunk::<4>()?, port)),
        _ => SocketAddr::from((*packet[24..].first_chunk::<16>()?, port)),
    };
    Some((to, &packet[at + UDP_HEADER..]))
}

#[cold]
fn remark(looped: &LoggedCounter, to: &SocketAddr, now: Instant) {
    if looped.count(now) {
        let ip = to.ip();
        tracing::warn!(
            "dropped a packet of this tunnel's own for the endpoint {to}: a route leads it back into the tunnel. Take {ip} out \
             of the routes through the interface, or give it a route of its own outside (`ip route get {ip}` shows the one in \
             use); there may be more: `show` counts them as routing_loop"
        );
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::shared::testing;
    use rustguard_crypto::x25519::PublicKey;
    use rustguard_tun::Endpoint;
    use std::sync::Arc;

    const PORT: u16 = 51_820;

    /// A packet from `PORT`, with this message. `fragment` is the offset and the flag for more.
    fn packet(to: SocketAddr, fragment: Option<u16>, message: &[u8]) -> Vec<u8> {
        let ports = [PORT.to_be_bytes(), to.port().to_be_bytes()].concat();
        let udp = [&ports[..], &[0; 4], message].concat();
        match to {
            SocketAddr::V4(to) => {
                let mut packet = vec![0x45, 0, 0, 0, 0, 0, 0, 0, 64, UDP, 0, 0, 192, 0, 2, 1];
                packet[6..8].copy_from_slice(&fragment.unwrap_or(0x4000).to_be_bytes());
                packet.extend(to.ip().octets());
                [packet, udp].concat()
            }
            SocketAddr::V6(to) => {
                let mut packet = vec![0x60, 0, 0, 0, 0, 0, if fragment.is_some() { FRAGMENT } else { UDP }, 64];
                packet.extend([0xfd; 16]);
                packet.extend(to.ip().octets());
                let [high, low] = fragment.unwrap_or(0).to_be_bytes();
                packet.extend(fragment.map(|_| [UDP, 0, high, low, 0, 0, 0, 1]).into_iter().flatten());
                [packet, udp].concat()
            }
        }
    }

    fn message(kind: u8, index: u32) -> Vec<u8> {
        [&[kind, 0, 0, 0][..], &index.to_le_bytes(), &[0; 24]].concat()
    }

    /// Two peers with sessions, whose endpoints are 192.0.2.N and 2001:db8::N; the first answers to index 7, the second
    /// to 8.
    fn peers(v6: bool) -> (Table, [SocketAddr; 2]) {
        let mut table = Table::default();
        let at = [1, 2].map(|n| {
            let at = if v6 { format!("[2001:db8::{n}]:{n}") } else { format!("192.0.2.{n}:{n}") }.parse().unwrap();
            let peer = PeerShared::new(PeerId(n), PublicKey([n as u8; 32]), Arc::default());
            let (sealer, _) = testing::session(6 + n, Instant::from_nanos(0));
            peer.sealer.store(Some(Arc::new(sealer)));
            peer.handshake_index.store(70 + n, Ordering::Relaxed);
            peer.way.store(Some(Arc::new(Endpoint::new(at).into())));
            table.peers.insert(PeerId(n), Arc::new(peer));
            at
        });
        (table, at)
    }

    #[test]
    fn what_was_sent_to_a_peer_is_known_again_and_what_others_send_there_is_not() {
        let (shared, _inbox) = testing::shared(2);
        let ports = ListenPorts::new(1, &[PORT]);
        let now = Instant::from_nanos(0);
        for v6 in [false, true] {
            let (table, [first, second]) = peers(v6);
            let elsewhere = SocketAddr::new(first.ip(), 99);
            let mut loops = LoopDetector::default();
            let mut is_own = |to, by, kind, index| {
                let packet = packet(to, None, &message(kind, index));
                may_be(&packet, &ports) && loops.is_own(&packet, PeerId(by), &table, now, &shared)
            };
            assert!(is_own(first, 1, DATA, 7), "directly");
            assert!(is_own(first, 2, DATA, 7) && is_own(second, 1, DATA, 8), "by way of each other");
            assert!(is_own(first, 1, INITIATION, 71) && is_own(first, 2, RESPONSE, 71), "handshakes");
            assert!(is_own(elsewhere, 1, DATA, 7), "another of the peer's addresses");
            assert!(!is_own(elsewhere, 2, DATA, 7), "no endpoint");
            assert!(!is_own(first, 1, DATA, 8) && !is_own(first, 1, INITIATION, 7), "somebody else's tunnel");
            assert!(!is_own(first, 1, 3, 7) && !is_own(first, 1, 5, 7), "a cookie reply, and no message");
        }
        assert!(!may_be(
            &packet("192.0.2.1:1".parse().unwrap(), None, &message(DATA, 7)),
            &ListenPorts::new(PORT + 1, &[])
        ));
        assert_eq!(shared.looped.packets(), 2 * 6);
    }

    #[test]
    fn a_first_fragment_is_known_and_others_have_no_ports() {
        let (shared, _inbox) = testing::shared(2);
        let ports = ListenPorts::new(1, &[PORT]);
        for (v6, offsets) in [(false, [0x2000, 0x2001, 0x0040]), (true, [0x0001, 0x0009, 0x0200])] {
            let (table, [first, _]) = peers(v6);
            let known = offsets.map(|offset| {
                let packet = packet(first, Some(offset), &message(DATA, 7));
                may_be(&packet, &ports)
                    && LoopDetector::default().is_own(&packet, PeerId(1), &table, Instant::from_nanos(0), &shared)
            });
            assert_eq!(known, [true, false, false]);
        }
    }

    #[test]
    fn no_cut_packet_is_read_beyond_its_end() {
        let (shared, _inbox) = testing::shared(2);
        let ports = ListenPorts::new(1, &[PORT]);
        for v6 in [false, true] {
            let (table, [first, _]) = peers(v6);
            for whole in [packet(first, None, &message(DATA, 7)), packet(first, Some(1), &message(DATA, 7))] {
                for len in 0..whole.len() {
                    let packet = &whole[..len];
                    let _ = may_be(packet, &ports)
                        && LoopDetector::default().is_own(packet, PeerId(1), &table, Instant::from_nanos(0), &shared);
                }
            }
        }
    }

    /// A changed endpoint is known a second later.
    #[test]
    fn endpoints_are_gathered_once_a_second() {
        let (shared, _inbox) = testing::shared(2);
        let (table, [_, second]) = peers(false);
        let mut loops = LoopDetector::default();
        let packet = packet(second, None, &message(DATA, 8));
        table.peers[&PeerId(2)].way.store(None);
        let mut at = |nanos| loops.is_own(&packet, PeerId(1), &table, Instant::from_nanos(nanos), &shared);
        assert!(!at(0));
        table.peers[&PeerId(2)].way.store(Some(Arc::new(Endpoint::new(second).into())));
        assert!(!at(999_999_999));
        assert!(at(1_000_000_000));
    }
}
