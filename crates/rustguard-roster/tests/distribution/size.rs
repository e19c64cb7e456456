//! The cost of rosters of a thousand members, and the time until all have them, through restarts and long absences.

use crate::{Network, key, member, roster, secret};
use rustguard_roster::{exchange::Exchange, roster::Roster};
use std::time::{Duration, Instant};

const MEMBERS: usize = 1_000;
/// The members that are simulated. Each has all members in its roster.
const NODES: usize = 200;
const SECOND: Duration = Duration::from_secs(1);

fn with_name_changed(number: u64, changed: usize) -> Roster {
    let renamed = || format!("renamed-{number}").parse().unwrap();
    let rename = |one: usize| if one == changed { member(one).with_name(renamed()) } else { member(one) };
    roster(number, (0..MEMBERS).map(rename))
}

/// Within three seconds if a twentieth of the texts is lost. Right after a restart of the server, the times are the
/// same.
#[test]
fn all_know_of_a_change_within_a_second() {
    let first = roster(1, (0..MEMBERS).map(member));
    let mut network = Network::new(11, NODES, |_| Some(first.clone()));
    network.star();
    network.run(10 * SECOND);
    for (number, lost) in [(2, 0), (3, 5)] {
        network.lost = lost;
        let (began, cpu) = (network.now, Instant::now());
        network.received.fill(0);
        network.issue(with_name_changed(number, 500 + number as usize));
        network.run(30 * SECOND);
        network.all_have(number);
        let (slowest, bytes) = (network.slowest(number, began), network.received[1..].iter().max().unwrap());
        println!("{lost} % lost: {slowest:?}, at most {bytes} bytes each, {:?} of CPU in all", cpu.elapsed());
        assert!(slowest <= if lost == 0 { SECOND } else { 3 * SECOND });
    }
    network.lost = 0;
    (1..NODES).for_each(|node| network.disconnect(0, node));
    network.nodes[0] = Exchange::new(secret().public_key(), Some(with_name_changed(3, 503)));
    network.star();
    let began = network.now;
    network.issue(with_name_changed(4, 7));
    network.run(30 * SECOND);
    network.all_have(4);
    assert!(network.slowest(4, began) <= SECOND);
}

/// A member that was away for a month gets only the changes.
#[test]
fn a_member_that_was_away_for_a_month_gets_what_has_changed() {
    let first = roster(1, (0..MEMBERS).map(member));
    let later = roster(
        720,
        (0..MEMBERS + 10)
            .filter(|number| !(2..12).contains(number))
            .map(|number| member(if number < MEMBERS { number } else { number + 77 })),
    );
    let members = later.members().map(|member| member.public_key).collect::<Vec<_>>();
    assert!(!members.contains(&key(3)));
    let mut network = Network::new(12, 2, |node| Some(if node == 0 { later.clone() } else { first.clone() }));
    network.star();
    let began = network.now;
    network.run(30 * SECOND);
    network.all_have(720);
    let (bytes, all) = (network.received[1], later.to_bytes().len());
    println!("{bytes} bytes of {all}, after {:?}", network.slowest_of(1, 720, began));
    assert!(bytes < all / 3);
}
