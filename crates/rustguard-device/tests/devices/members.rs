//! Two peers have the same prefix, with [`Members`] as the engine. `B` sends; `A` and `C` have the prefix.

use super::support::{EXPERIMENT, LONG, Node, at, inner, ipv4, key, packet};
use ipnet::IpNet;
use rustguard_device::{Builder, Device, DropReason, PeerUpdate, Update, routing::Members};
use rustguard_tun::memory::MemoryNet;
use std::{
    cell::Cell,
    net::{IpAddr, Ipv4Addr},
    time::Duration,
};

/// A host behind both peers.
const BEHIND: Ipv4Addr = Ipv4Addr::new(192, 168, 1, 7);

struct Three {
    carriers: Vec<Node>,
    b: Node,
    /// Calls of `send`.
    sent: Cell<u8>,
}

fn net(text: &str) -> IpNet {
    text.parse().unwrap()
}

fn inner_net(n: u8) -> IpNet {
    IpAddr::from(inner(n)).into()
}

fn peer(n: u8) -> PeerUpdate {
    let own = PeerUpdate::new(key(n)).endpoint(at(n)).allowed_ip(inner_net(n));
    own.allowed_ip(net("192.168.1.0/24"))
}

impl Three {
    fn new() -> Self {
        let memory = MemoryNet::default();
        let carrier = |n| {
            let all = PeerUpdate::new(key(2)).endpoint(at(2)).allowed_ip(net("10.0.0.0/24"));
            Node::start(&memory, n, Device::builder().peer(all))
        };
        let sender: Builder = Device::builder().peer(peer(1)).peer(peer(3)).routing(Members::default());
        let three =
            Self { carriers: [1, 3].map(carrier).into(), b: Node::start(&memory, 2, sender), sent: Cell::new(0) };
        for carrier in &three.carriers {
            carrier.host.set_timeout(Some(Duration::from_millis(5))).unwrap();
        }
        three
    }

    /// Sends a packet to the host behind until a carrier gets it, and returns which one. Surplus packets of an earlier
    /// call, which may come by another way, are ignored.
    fn send(&self) -> u8 {
        self.sent.set(self.sent.get() + 1);
        let sent = ipv4(inner(2), BEHIND, EXPERIMENT, &[self.sent.get()]);
        let end = std::time::Instant::now() + LONG;
        while std::time::Instant::now() < end {
            self.b.host.send(&sent).unwrap();
            for carrier in &self.carriers {
                let mut packet = [0; 2_000];
                while let Ok(len) = carrier.host.recv(&mut packet) {
                    if packet[..len] == sent {
                        return carrier.n;
                    }
                }
            }
        }
        panic!("nobody got it");
    }

    fn carrier(&self, n: u8) -> &Node {
        self.carriers.iter().find(|carrier| carrier.n == n).unwrap()
    }
}

#[tokio::test]
async fn the_other_one_takes_over_from_one_that_ends() {
    let mut three = Three::new();
    let first = three.send();
    // The engine chooses a carrier by round trips in the first second; the chosen carrier then ends.
    let at = three.carriers.iter().position(|carrier| carrier.n == first).unwrap();
    three.carriers.remove(at).device.shutdown().await;
    assert_ne!(three.send(), first);
    let status = three.b.device.handle().routing().await.unwrap();
    let route = status.routes.iter().find(|route| route.prefix == net("192.168.1.0/24")).unwrap();
    assert_eq!(route.next_hops[0].public_key, key(three.carriers[0].n));
    assert_eq!(route.announcements.len(), 2);
}

/// Both carriers may answer, independent of the present choice; but each is limited to its own allowed IPs.
#[tokio::test]
async fn answers_come_by_either_and_nobody_sends_as_another() {
    let three = Three::new();
    three.send();
    for n in [1, 3] {
        let answer = ipv4(BEHIND, inner(2), EXPERIMENT, &[n]);
        three.carrier(n).host.send(&answer).unwrap();
        assert_eq!(three.b.next(), answer);
    }
    three.carrier(1).host.send(&packet(3, 2, b"as the other one")).unwrap();
    three.b.until_dropped(DropReason::SourceNotAllowed, 1).await;
    // Without the prefix, the peer may no longer send from it.
    let own = inner_net(1);
    three.b.device.update(Update::new().peer(PeerUpdate::new(key(1)).replace_allowed_ips([own]))).await.unwrap();
    three.carrier(1).host.send(&ipv4(BEHIND, inner(2), EXPERIMENT, b"once more")).unwrap();
    three.b.until_dropped(DropReason::SourceNotAllowed, 2).await;
    assert_eq!(three.send(), 3);
}
