//! Probes from a peer that may run any program, and the choice of paths by them.
use rustguard_core::{
    node::PeerId,
    paths::{
        Address, Candidate, CandidateKind, Candidates, Flows, Locator, MAX_CANDIDATES, MAX_PATHS, MAX_SHARES, NO_PATH,
        Observation, Order, PathPolicy, Paths, Probe, Request, Search, Version,
    },
    time::Instant,
};
use std::{net::SocketAddr, time::Duration};

/// Reads the first byte as a configuration, and the others as steps: raw probes and candidates, requests with arbitrary
/// fields, answers to sent requests, locators, and the passing of time.
///
/// After any input, the chosen paths are usable, no deadline remains in the past, and nothing is sent where it must not
/// be.
pub fn paths(input: &[u8]) {
    if let Some(probe) = Probe::parse(input) {
        assert_eq!(Probe::parse(&probe.to_bytes()), Some(probe));
    }
    let Some((&configured, mut rest)) = input.split_first() else { return };
    let policies: Vec<PathPolicy> = (0..configured % 10)
        .map(|n| match (configured >> 4).wrapping_add(n) % 3 {
            0 => PathPolicy::Best,
            1 => PathPolicy::Weighted(n),
            _ if configured > 200 => PathPolicy::Pinned,
            _ => PathPolicy::Best,
        })
        .collect();
    let mut now = Instant::from_nanos(1_000_000_000);
    let mut search = Search::new([1; 32]);
    search.forbid(vec!["10.0.0.128/25".parse().expect("a prefix")]);
    let own = Candidate { address: ([10, 0, 0, 100], 1).into(), kind: CandidateKind::Interface };
    search.set_candidates(vec![own], now);
    let direct = configured & 1 != 0;
    let mut paths = if direct { Paths::look_for_direct_ways(&policies, now) } else { Paths::new(&policies, now) };
    let flows = Flows::default();
    let mut asked: Vec<Request> = Vec::new();
    let mut data = 0;
    let mut search_generation = 0;
    while let Some((&step, after)) = rest.split_first() {
        let field = |n: usize| after.get(n).copied().unwrap_or(0);
        let address = Address {
            remote: SocketAddr::from(([10, 0, 0, field(0)], field(1).into())),
            local: (field(2) & 1 != 0).then(|| [10, 0, 1, field(2)].into()),
            interface: u32::from(field(3) % 4),
        };
        let through = Locator::Peer(PeerId(field(0).into()));
        let locator = if field(3) & 128 != 0 { through } else { address.into() };
        let mut orders = Vec::new();
        match step % 8 {
            0 => match Probe::parse(after) {
                Some(Probe::Request(request)) => {
                    paths.request(locator, &request, u32::from(field(19)), now, &mut orders)
                }
                Some(Probe::Reply(reply)) => paths.reply(&reply, &search, now, &mut orders),
                None => {
                    if let Some(message) = Candidates::parse(after) {
                        paths.candidates(&message, &mut search, now, &mut orders);
                    }
                }
            },
            1 => {
                let request = Request {
                    version: if field(18) & 128 == 0 { Version::V1 } else { Version::V2 },
                    token: field(20).into(),
                    path: field(4),
                    active: Some(field(5)).filter(|&active| usize::from(active) < MAX_PATHS),
                    usable: u32::from(field(6)) << field(20) % 25,
                    weights: std::array::from_fn(|n| field(7 + n)),
                    interval: Duration::from_millis(u64::from(field(15)) << (field(16) % 40)),
                    clock: u64::from(field(17)) << (field(18) % 64),
                    nonce: (field(18) & 64 == 0).then(|| field(19).into()),
                };
                paths.request(locator, &request, u32::from(field(19)), now, &mut orders);
            }
            2 => {
                if let Some(request) = asked.pop() {
                    paths.reply(&request.reply(field(0).into(), locator), &search, now, &mut orders);
                }
            }
            3 => paths.heard(locator, now),
            4 => paths.put(usize::from(field(4)), locator, now),
            5 => {
                if field(1) & 1 != 0 {
                    paths.network_changed(now);
                }
                paths.established(now);
                paths.wake(now);
                data += u64::from(field(0)) * 100;
            }
            6 => {
                let list = (1..=field(3) % 20)
                    .map(|n| Candidate { address: ([10, 0, 0, field(4) ^ n], 1).into(), kind: CandidateKind::Seen })
                    .collect();
                let message = Candidates {
                    generation: field(0).into(),
                    known: if field(1) & 1 != 0 { search_generation } else { 0 },
                    answer: field(1) & 2 != 0,
                    look: field(1) & 4 != 0,
                    maps_per_destination: field(1) & 8 != 0,
                    list,
                };
                paths.candidates(&message, &mut search, now, &mut orders);
            }
            _ => now = now + Duration::from_millis(u64::from(field(0)) << (field(1) % 16)),
        }
        let seen =
            Observation { session: step & 128 == 0, data, unanswered: (step & 64 != 0).then_some(Instant::default()) };
        // The result of one path may cause probes on the others at once. This has to end after a few rounds.
        for _ in 0..3 {
            paths.tick(seen, &mut search, now, &mut orders);
            if paths.deadline().is_none_or(|at| at > now) {
                break;
            }
        }
        let mut sent: Vec<Request> = Vec::new();
        for order in &orders {
            match order {
                Order::Probe { to, probe: Probe::Request(request) } => {
                    if let (NO_PATH, Locator::Address(to)) = (request.path, to) {
                        assert!(search.allows(to.remote), "{to:?}");
                    }
                    sent.push(*request);
                }
                Order::Open { to, .. } => assert!(search.allows(to.remote), "{to:?}"),
                Order::Tell { message, .. } => {
                    assert!(direct && Candidates::parse(&message.to_bytes()).as_ref() == Some(message), "{message:?}");
                    if !message.answer {
                        search_generation = message.generation;
                    }
                }
                _ => {}
            }
        }
        assert!(sent.len() <= 3 * (MAX_PATHS + MAX_CANDIDATES + 4), "a step makes a few probes");
        asked.extend(sent);
        asked.truncate(64);
        if let Some(choice) = paths.changes(now) {
            assert!(choice.spread.len() != 1 && choice.spread.len() <= MAX_SHARES, "{choice:?}");
            assert!(choice.spread.iter().all(|(share, _)| share.weight > 0), "{choice:?}");
            let shares: Vec<_> = choice.spread.iter().map(|(share, _)| *share).collect();
            let path = flows.path(u64::from(step) << 56, &shares, now);
            assert!(
                path.is_none() == shares.is_empty()
                    && shares.iter().any(|share| Some(share.path) == path) != shares.is_empty()
            );
        }
        assert!(paths.report().len() <= 2 * MAX_PATHS && paths.locators().len() <= MAX_PATHS + 1);
        // No deadline may remain in the past.
        assert!(paths.deadline().is_none_or(|at| at > now), "{:?} at {now:?}", paths.deadline());
        rest = &after[1.min(after.len())..];
    }
}
