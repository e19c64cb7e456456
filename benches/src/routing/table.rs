//! The table of routes: the cost of a change for control, and of a lookup for a worker.

use super::Pace;
use crate::figures::Figures;
use anyhow::{Context as _, Result};
use rand::{RngExt as _, SeedableRng as _, rngs::StdRng};
use rustguard_core::{
    allowed_ips::AllowedIps,
    flow,
    node::PeerId,
    packet::IpHead,
    routing::{MAX_WEIGHT, NextHop, NextHops, RouteTable, SourceRule, Target},
};
use rustguard_sim::prefix;
use std::{hint::black_box, time::Instant};

/// The number of peers that the prefixes are spread over.
const PEERS: u32 = 200;
/// The number of changes that are timed together.
const CHANGES: usize = 100;
/// The number of different packets that are looked up in turn.
const PACKETS: usize = 4_096;
/// A prefix of the tables that changes.
const CHANGING: usize = 77;

/// The rows of this file.
pub(super) fn measure(pace: &Pace, figures: &mut Figures) -> Result<()> {
    for (number, prefixes) in [("1,000", 1_000), ("10,000", 10_000)] {
        let mut table = RouteTable::default();
        for n in 0..prefixes {
            table.install(prefix(n), Target::Peer(owner(n)));
            table.permit(owner(n), prefix(n), SourceRule::Any);
        }
        // While the workers have the last snapshot, a change copies the table.
        let mut shown = table.snapshot();
        let routes = (0..pace.rounds).map(|round| {
            let started = Instant::now();
            for n in 0..CHANGES {
                table.install(prefix(CHANGING), Target::Peer(owner(round + n)));
                shown = table.snapshot();
            }
            micros_each(started)
        });
        figures.add(format!("table of {number}: a route changes, µs"), routes.collect::<Vec<_>>());
        let permissions = (0..pace.rounds).map(|round| {
            let started = Instant::now();
            for n in 0..CHANGES {
                // A peer that does not have the prefix.
                table.permit(PeerId(PEERS + (round + n) as u32 % 2), prefix(CHANGING), SourceRule::Any);
                shown = table.snapshot();
            }
            micros_each(started)
        });
        figures.add(format!("table of {number}: a permission changes, µs"), permissions.collect::<Vec<_>>());
        black_box(&shown);
    }
    lookups(pace, figures)
}

fn lookups(pace: &Pace, figures: &mut Figures) -> Result<()> {
    const PREFIXES: usize = 1_000;
    let mut rng = StdRng::seed_from_u64(1);
    let packets: Vec<[u8; 28]> = (0..PACKETS).map(|_| udp(rng.random_range(0..PREFIXES), &mut rng)).collect();
    let packets: Vec<(IpHead, [u8; 28])> =
        packets.iter().map(|bytes| Some((IpHead::parse(bytes)?, *bytes))).collect::<Option<_>>().context("a packet")?;
    let time = |lookup: &dyn Fn(&IpHead, &[u8]) -> Option<PeerId>| -> Vec<f64> {
        let round = |_| {
            let started = Instant::now();
            for n in 0..pace.lookups {
                let (head, bytes) = &packets[n % PACKETS];
                black_box(lookup(head, bytes));
            }
            started.elapsed().as_secs_f64() * 1e9 / pace.lookups as f64
        };
        (0..pace.rounds).map(round).collect()
    };

    let mut allowed = AllowedIps::default();
    for n in 0..PREFIXES {
        allowed.insert(prefix(n), owner(n));
    }
    figures.add("lookup, allowed IPs of 1,000, ns", time(&|head, _| allowed.lookup(head.destination)));

    let hops = |members: u32| {
        let mut table = RouteTable::default();
        for n in 0..PREFIXES {
            let peers = (0..members).map(|member| PeerId((owner(n).0 + member) % PEERS));
            let hops = NextHops::new(peers.map(|peer| NextHop { peer, weight: MAX_WEIGHT }), None);
            table.install(prefix(n), hops.into());
        }
        table.snapshot()
    };
    for (name, members, unusable) in [
        ("lookup, one next hop of 1,000, ns", 1, PEERS),
        ("lookup, two next hops of 1,000, ns", 2, PEERS),
        ("lookup, eight next hops of 1,000, ns", 8, PEERS),
        ("lookup, eight next hops, one unusable, ns", 8, 7),
    ] {
        let routes = hops(members);
        // The state of the peers, in the same kind of map as in the device.
        let usable: std::collections::HashMap<PeerId, bool> =
            (0..PEERS).map(|peer| (PeerId(peer), peer % 8 != unusable)).collect();
        let next_hop = |head: &IpHead, bytes: &[u8]| match routes.target(head.destination)? {
            Target::Peer(peer) => Some(*peer),
            Target::Several(hops) => {
                hops.pick(flow::hash(bytes, head), |peer| usable.get(&peer).is_some_and(|usable| *usable))
            }
            Target::Host | Target::Nobody => None,
        };
        figures.add(name, time(&next_hop));
    }
    Ok(())
}

fn owner(n: usize) -> PeerId {
    PeerId(n as u32 % PEERS)
}

/// A UDP packet (RFC 768) without payload, from a random port to an address in that prefix.
fn udp(to: usize, rng: &mut StdRng) -> [u8; 28] {
    let [.., high, low] = (to as u32).to_be_bytes();
    let [first, second] = rng.random::<u16>().to_be_bytes();
    let mut packet = [0; 28];
    packet[..4].copy_from_slice(&[0x45, 0, 0, 28]);
    packet[9] = 17;
    packet[12..16].copy_from_slice(&[192, 0, 2, 1]);
    packet[16..20].copy_from_slice(&[10, high, low, 1]);
    packet[20..24].copy_from_slice(&[first, second, 0, 53]);
    packet
}

fn micros_each(started: Instant) -> f64 {
    started.elapsed().as_secs_f64() * 1e6 / CHANGES as f64
}
