//! A routing engine of the program's own: flows are spread over all peers that can carry them, and the flows of a
//! removed peer move to the others. Alice reaches Bob by two gateways; all devices are in memory, without root.
//!
//! ```text
//! cargo run -p rustguard-device --example policy_engine
//! ```

use rustguard_device::{
    core::{node::PeerId, time::Instant},
    prelude::{Device, IpNet, MemoryBinder, PeerUpdate, StaticSecret, Update},
    routing::{Action, Event, NextHop, NextHops, RoutingEngine, SourceRule},
    tun::memory::{self, MemoryNet},
};
use std::{collections::BTreeMap, error::Error, net::SocketAddr, time::Duration};

/// Allowed IPs define which addresses a peer can carry, as in WireGuard. But several peers may have the same prefix:
/// each then gets a share of the flows.
#[derive(Default)]
struct SpreadFlows {
    carriers: BTreeMap<IpNet, Vec<PeerId>>,
}

impl RoutingEngine for SpreadFlows {
    fn handle(&mut self, event: Event<'_>, _now: Instant, out: &mut Vec<Action>) {
        let (peer, nets) = match event {
            Event::Peer { peer, config } => (peer, &config.allowed_ips[..]),
            Event::PeerRemoved { peer } => (peer, &[][..]),
            // This engine exchanges no packets and has no timers.
            _ => return,
        };
        for &prefix in nets {
            self.carriers.entry(prefix).or_default();
        }
        self.carriers.retain(|&prefix, carriers| {
            match (carriers.contains(&peer), nets.contains(&prefix)) {
                (false, true) => {
                    carriers.push(peer);
                    // Permits the peer to send from this prefix: otherwise its packets would be dropped.
                    out.push(Action::Permit { peer, prefix, rule: SourceRule::Any });
                }
                (true, false) => {
                    carriers.retain(|&carrier| carrier != peer);
                    out.push(Action::Forbid { peer, prefix });
                }
                _ => return true,
            }
            let hops = NextHops::new(carriers.iter().map(|&peer| NextHop { peer, weight: 1 }), None);
            out.push(if carriers.is_empty() { Action::Remove { prefix } } else { Action::Install { prefix, hops } });
            !carriers.is_empty()
        });
    }
}

#[tokio::main(flavor = "current_thread")]
pub(crate) async fn main() -> Result<(), Box<dyn Error>> {
    let net = MemoryNet::default();
    let keys = [1, 2, 3].map(|_| StaticSecret::generate().expect("the system has random bytes"));
    let at = |n: u8| SocketAddr::from(([192, 0, 2, n], 51_820));
    let bob: IpNet = "10.0.0.9/32".parse()?;

    let mut alice = Device::builder().private_key(keys[0].clone()).routing(SpreadFlows::default());
    let mut gateways = Vec::new();
    for n in [1, 2] {
        let key = &keys[usize::from(n)];
        alice = alice.peer(PeerUpdate::new(key.public_key()).endpoint(at(n)).allowed_ip(bob));
        let (tun, host) = memory::tun()?;
        let peer = PeerUpdate::new(keys[0].public_key()).allowed_ip("10.0.0.1/32".parse::<IpNet>()?);
        let binder = MemoryBinder::new(net.clone(), at(n));
        gateways.push((Device::builder().private_key(key.clone()).peer(peer).start_with(tun, binder)?, host));
    }
    let (tun, host) = memory::tun()?;
    let alice = alice.start_with(tun, MemoryBinder::new(net, at(9)))?;

    for what in ["two gateways", "the first is gone"] {
        // A hundred flows: UDP from a hundred ports. The program does not wait for packets that are lost while a
        // session begins.
        for port in 0..100_u16 {
            let mut packet = vec![0x45, 0, 0, 28, 0, 0, 0, 0, 64, 17, 0, 0, 10, 0, 0, 1, 10, 0, 0, 9];
            packet.extend([&port.to_be_bytes()[..], &[0, 53, 0, 8, 0, 0]].concat());
            host.send(&packet)?;
        }
        let mut counts = [0; 2];
        for (count, (_, gateway)) in counts.iter_mut().zip(&gateways) {
            gateway.set_timeout(Some(Duration::from_millis(500)))?;
            *count = std::iter::from_fn(|| gateway.recv(&mut [0; 64]).ok()).count();
        }
        println!("{what:18} {counts:?} flows each");
        let gone = PeerUpdate::remove(keys[1].public_key());
        alice.update(Update::new().peer(gone)).await?;
    }
    Ok(())
}
