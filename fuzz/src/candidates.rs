//! Candidates from a peer that may run any program.
use rustguard_core::{
    control_message::{Header, Kind},
    node::PeerId,
    paths::{
        Address, Candidate, CandidateKind, Candidates, Locator, NO_PATH, Observation, Order, PathPolicy, Paths, Probe,
        Request, Search,
    },
    time::Instant,
};
use std::{collections::BTreeMap, net::SocketAddr, time::Duration};

/// The maximum of unanswered probes to one address in a minute.
const TO_ONE: usize = 20;
/// The maximum of such addresses in a minute.
const ADDRESSES: usize = 48;

/// Reads the input as steps: messages, requests from addresses, the passing of time, changes of our own network.
///
/// No probe goes to a forbidden address, and addresses that never answer get few probes, whatever the peer sends.
pub fn candidates(input: &[u8]) {
    let mut now = Instant::from_nanos(1_000_000_000);
    let mut search = Search::new([1; 32]);
    search.forbid(vec!["10.0.0.0/8".parse().expect("a prefix")]);
    let own = Candidate { address: ([192, 168, 0, 1], 1).into(), kind: CandidateKind::Interface };
    search.set_candidates(vec![own], now);
    let mut paths = Paths::look_for_direct_ways(&[PathPolicy::Best], now);
    let relay = Locator::Peer(PeerId(1));
    paths.put(0, relay, now);
    paths.heard(relay, now);
    paths.established(now);
    let mut probed: BTreeMap<SocketAddr, Vec<Instant>> = BTreeMap::new();
    let (mut data, mut rest) = (0, input);
    while let Some((&step, after)) = rest.split_first() {
        let mut orders = Vec::new();
        let mut used = 0;
        match step % 4 {
            0 => {
                // The length, and then the text without its constant beginning.
                used = 1 + usize::from(after.first().copied().unwrap_or(0));
                let text = after.get(1..used).unwrap_or(&after[after.len().min(1)..]);
                if let Some(message) = Candidates::parse(&[&Header::new(Kind::Candidates).to_bytes(), text].concat()) {
                    paths.candidates(&message, &mut search, now, &mut orders);
                }
            }
            1 => {
                used = 2;
                let port = u16::from(after.first().copied().unwrap_or(0));
                let ip = [198, 51, 100, after.get(1).copied().unwrap_or(0)];
                let from = Address::new((ip, port).into()).into();
                paths.request(from, &Request::about_no_path(1, 1), 1, now, &mut orders);
            }
            2 => {
                used = 1;
                now = now + Duration::from_millis(u64::from(after.first().copied().unwrap_or(0)) << (step >> 5));
            }
            _ if step & 4 != 0 => paths.established(now),
            _ => {
                data += 1_000;
                paths.wake(now);
            }
        }
        let seen = Observation { session: true, data, unanswered: None };
        for _ in 0..3 {
            paths.tick(seen, &mut search, now, &mut orders);
            if paths.deadline().is_none_or(|at| at > now) {
                break;
            }
        }
        assert!(paths.deadline().is_none_or(|at| at > now), "a deadline remains in the past");
        for order in orders {
            match order {
                Order::Probe { to: Locator::Address(to), probe: Probe::Request(request) } => {
                    assert!(request.path == NO_PATH && search.allows(to.remote), "{to:?}");
                    probed.entry(to.remote).or_default().push(now);
                }
                Order::Probe { to, probe: Probe::Request(request) } => {
                    // The path through the relay works.
                    paths.reply(&request.reply(0, to), &search, now, &mut Vec::new());
                }
                Order::Open { to, .. } => {
                    assert!(search.allows(to.remote), "{to:?}");
                    probed.entry(to.remote).or_default().push(now);
                }
                Order::Tell { message, .. } => assert!(message.answer || message.list == search.candidates()),
                _ => {}
            }
        }
        assert!(paths.relayed(&search).is_some(), "nothing has answered");
        rest = &after[used.min(after.len())..];
    }
    // The last minute of the input.
    let lately = |at: &Instant| now.since(*at) < Duration::from_secs(60);
    let counts: Vec<usize> = probed.values().map(|times| times.iter().filter(|at| lately(at)).count()).collect();
    assert!(counts.iter().all(|count| *count <= TO_ONE), "{probed:?}");
    assert!(counts.iter().filter(|count| **count > 0).count() <= 2 * ADDRESSES, "{probed:?}");
}
