//! Which ends can reach each other directly, and why others cannot.
use super::*;

fn accesses() -> Vec<Access> {
    let mut all = vec![Access::Open, Access::Firewall];
    for mapping in DEPENDENCES {
        for filtering in DEPENDENCES {
            for keeps_port in [true, false] {
                all.push(Access::Behind(Kind { mapping, filtering, keeps_port, hairpin: false, takes_unasked: false }));
            }
        }
    }
    all.push(PLAIN);
    all
}

/// The theory (RFC 4787, RFC 5128): whether the ends can reach each other directly.
fn possible(accesses: [Access; 2]) -> bool {
    let [Some(a), Some(b)] = accesses.map(|access| match access {
        Access::Open => Some((true, Dependence::Endpoint)),
        Access::Behind(kind) => Some((kind.is_predictable(), kind.filtering)),
        Access::Firewall => None,
    }) else {
        return false;
    };
    let strict = |(_, filtering): (bool, Dependence)| filtering == Dependence::AddressAndPort;
    let open = |(_, filtering): (bool, Dependence)| filtering == Dependence::Endpoint;
    match (a.0, b.0) {
        (true, true) => true,
        // The port of the other end becomes known by its first datagram, if that is let in.
        (true, false) => !strict(a),
        (false, true) => !strict(b),
        (false, false) => open(a) && !strict(b) || open(b) && !strict(a),
    }
}

#[test]
fn whatever_can_be_direct_becomes_direct_and_the_rest_stays_relayed() {
    let (mut took, mut relayed) = (vec![], 0);
    for (seed, a) in (1..).zip(accesses()) {
        for (other, b) in (1..).zip(accesses()) {
            let seed = 100 * seed + other;
            let mut world = World::new([a, b], seed);
            world.begin();
            world.run(5 * SECOND);
            let what = std::format!("{a:?} and {b:?}, seed {seed}");
            assert_eq!(world.direct(), [possible([a, b]); 2], "{what}: {:?}", world.why());
            assert!(world.silence() < 500 * MS, "{what}: {:?}", world.silence());
            for end in &world.ends {
                assert!(end.most_probes(60 * SECOND).0 <= 20, "{what}");
            }
            match world.direct_after(START) {
                Some(after) => took.push(after),
                None => relayed += 1,
            }
        }
    }
    took.sort();
    println!(
        "{} pairs became direct after {:?} (median), {:?} (longest); {relayed} stayed relayed",
        took.len(),
        took[took.len() / 2],
        took.last()
    );
    assert!(took.last() < Some(&SECOND), "links of 20 ms, 40 ms through the relay: {:?}", took.last());
}

#[test]
fn why_it_stays_relayed() {
    let why = |accesses| {
        let mut world = World::new(accesses, 5);
        world.begin();
        world.run(SECOND);
        assert_eq!(world.why(), [Some(Relayed::Looking); 2]);
        world.run(10 * SECOND);
        world.why()
    };
    assert_eq!(why([HARD; 2]), [Some(Relayed::BothMapPerDestination); 2]);
    assert_eq!(why([EASY, HARD]), [Some(Relayed::NoAnswer); 2]);
    assert_eq!(why([Access::Open, Access::Firewall]), [Some(Relayed::NoAnswer); 2]);
    assert_eq!(why([HARD, Access::Firewall]), [Some(Relayed::NoAnswer); 2]);

    let mut world = World::new([EASY; 2], 5);
    world.ends[1].paths = Paths::new(&[PathPolicy::Best], START);
    world.begin();
    world.run(10 * SECOND);
    assert_eq!(world.why(), [Some(Relayed::NoCandidates), Some(Relayed::Off)]);
    world.pause(LET_GO + BUSY);
    assert_eq!(world.why(), [Some(Relayed::Idle), Some(Relayed::Off)]);
    assert_eq!(direct_world([EASY; 2], 5).why(), [None; 2]);
}

#[test]
fn behind_one_nat_the_lan_is_taken_and_where_there_is_none_the_hairpin() {
    for mapping in DEPENDENCES {
        for hairpin in [false, true] {
            let kind =
                Kind { mapping, filtering: Dependence::Address, keeps_port: false, hairpin, takes_unasked: false };
            let mut world = World::behind_one(kind, 3);
            world.begin();
            world.run(10 * SECOND);
            assert_eq!(world.direct(), [true; 2]);
            let ips = [0, 1].map(|end| world.ends[end].choice.active.and_then(|active| Some(active.address()?.remote)));
            assert_eq!(ips, [1, 0].map(|other: usize| Some(world.ends[other].inside)), "{kind:?}");

            let mut world = World::behind_one(kind, 3);
            world.lan = false;
            world.begin();
            world.run(10 * SECOND);
            let expected = hairpin && mapping == Dependence::Endpoint;
            assert_eq!(world.direct(), [expected; 2], "{kind:?}: {:?}", world.why());
        }
    }
}

#[test]
fn what_stays_relayed_is_asked_for_every_three_minutes() {
    let mut world = World::new([HARD; 2], 9);
    world.begin();
    world.run(600 * SECOND);
    for end in &mut world.ends {
        (end.probes, end.told) = (BTreeMap::new(), 0);
    }
    world.count_silence();
    world.run(3_600 * SECOND);
    for end in &world.ends {
        let (most, all) = end.most_probes(3_600 * SECOND);
        println!("relayed for an hour: {all} probes of candidates, {most} to one address, {} messages", end.told);
        assert!(most <= 21 * 10 * 2 && all <= 21 * 10 * 3 * 2 && end.told <= 21 * 3 * 2, "{most}, {all}, {}", end.told);
    }
    assert!(world.silence() < 100 * MS);
}

#[test]
fn an_older_program_is_left_alone_and_reached_as_before() {
    for seed in 0..3 {
        let mut world = World::new([Access::Open; 2], seed);
        world.ends[1].old = true;
        world.ends[1].paths = Paths::new(&[], START);
        world.ends[0].paths = Paths::look_for_direct_ways(&[PathPolicy::Best; 2], START);
        let to = world.ends[1].inside;
        world.ends[0].paths.put(1, Address::new(to).into(), START);
        world.begin();
        world.run(60 * SECOND);
        assert_eq!(world.direct(), [true; 2], "by the configured address, and it follows");
        assert!(world.silence() < 100 * MS, "seed {seed}: {:?}", world.silence());
        assert!(world.ends[0].probes.is_empty(), "no probe of version 2");
        assert!(world.ends[0].told <= 6, "{} messages that nobody reads", world.ends[0].told);
        world.blocked = true;
        world.run(10 * SECOND);
        assert_eq!(world.direct(), [false; 2]);
        assert!(world.silence() < 500 * MS, "seed {seed}: {:?}", world.silence());
    }
}

#[test]
fn a_peer_that_goes_back_to_an_older_program_is_reached_as_before() {
    let mut world = World::new([Access::Open; 2], 5);
    world.ends[0].paths = Paths::look_for_direct_ways(&[PathPolicy::Best; 2], START);
    let to = world.ends[1].inside;
    world.ends[0].paths.put(1, Address::new(to).into(), START);
    world.begin();
    world.run(10 * SECOND);
    assert_eq!(world.direct(), [true; 2]);
    let now = world.now;
    (world.ends[1].old, world.ends[1].paths) = (true, Paths::new(&[], now));
    // The first session shows that nothing answers version 2.
    for _ in 0..2 {
        let now = world.now;
        world.ends.iter_mut().for_each(|end| end.paths.established(now));
        world.run(10 * SECOND);
    }
    let states: Vec<_> = world.ends[0].paths.report().iter().take(2).map(|path| path.state).collect();
    assert_eq!(states, [State::Up; 2]);
    assert_eq!(world.direct(), [true; 2]);
}

#[test]
fn a_newer_program_answers_an_older_one() {
    let mut world = World::new([Access::Open; 2], 4);
    world.ends[0].old = true;
    world.ends[0].paths = Paths::new(&[PathPolicy::Best; 2], START);
    let to = world.ends[1].inside;
    world.ends[0].paths.put(1, Address::new(to).into(), START);
    world.begin();
    world.run(60 * SECOND);
    assert!(world.direct()[0]);
    assert!(world.silence() < 100 * MS, "{:?}", world.silence());
    assert!(world.ends[1].probes.is_empty(), "a request of version 1 is no reason for one of version 2");
}
