//! Sheets come with the roster, and nobody in between can omit one, replace it or bring back an older one.

use crate::{MS, key, member, secret};
use rustguard_core::time::Instant;
use rustguard_crypto::x25519::PublicKey;
use rustguard_roster::{
    exchange::{Exchange, Output},
    member::{Member, Role},
    pair::PairSecret,
    roster::{IssueError, MAX_SHEET, Roster},
    settings::Settings,
};
use std::{sync::Arc, time::Duration};

/// A roster in which each of these members has a sheet of its own text.
fn roster(number: u64, members: impl IntoIterator<Item = (Member, String)>) -> Roster {
    let settings = Settings::new("rg0".parse().unwrap());
    let (members, sheets): (Vec<_>, Vec<Arc<[u8]>>) = members
        .into_iter()
        .map(|(member, sheet)| (Arc::new(member.with_sheet(sheet.as_bytes())), sheet.into_bytes().into()))
        .unzip();
    Roster::issue_with_sheets(&secret(), number, 0, settings, members, sheets).unwrap()
}

/// A server and members, and the sheet of each in this version of the policy.
fn network(number: u64, policy: u32) -> Roster {
    roster(number, (0..5).map(|it| (member(it), format!("{policy}: sheet of {}", if it == 4 { 3 } else { it }))))
}

fn sheet_of(roster: &Roster, number: usize) -> Option<String> {
    let sheet = roster.sheet(roster.member(&key(number)).unwrap())?;
    Some(String::from_utf8(sheet.to_vec()).unwrap())
}

fn own(exchange: &Exchange, number: usize) -> (u64, Option<String>) {
    let roster = exchange.roster().unwrap();
    (roster.version().number, sheet_of(roster, number))
}

fn issuing(roster: Roster) -> Exchange {
    Exchange::new(secret().public_key(), Some(roster)).with_pair_secret(PairSecret::from_bytes(&[5; 32]))
}

fn member_with(number: usize, roster: Option<Roster>) -> Exchange {
    Exchange::new(secret().public_key(), roster).for_member(key(number))
}

/// Two exchanges with a session, for a time. `between` may change or drop the messages from the second to the first.
fn talk_for(
    time: Duration,
    now: &mut Instant,
    (a, a_key): (&mut Exchange, usize),
    (b, b_key): (&mut Exchange, usize),
    mut between: impl FnMut(&mut Vec<u8>) -> bool,
) -> usize {
    let (end, mut parts) = (*now + time, 0);
    a.connected(&key(b_key), *now);
    b.connected(&key(a_key), *now);
    while *now < end {
        let mut texts = Vec::new();
        for (from, from_key, to) in [(&mut *a, a_key, key(b_key)), (&mut *b, b_key, key(a_key))] {
            while let Some(output) = from.next_output() {
                if let Output::Send { to: whom, text } = output
                    && whom == to
                {
                    texts.push((from_key, text.to_vec()));
                }
            }
        }
        *now = *now + 10 * MS;
        for (from, mut text) in texts {
            if from == a_key {
                b.hear(&key(a_key), &text, *now);
            } else if between(&mut text) {
                parts += usize::from(text[4] == PART);
                a.hear(&key(b_key), &text, *now);
            }
        }
        for exchange in [&mut *a, &mut *b] {
            if exchange.deadline().is_some_and(|at| at <= *now) {
                exchange.tick(*now);
            }
        }
    }
    a.gone(&key(b_key), *now);
    b.gone(&key(a_key), *now);
    parts
}

const PART: u8 = 3;
/// Sheets have numbers from 256 on, so the second byte of their number is 1.
const OF_SHEET: (usize, u8) = (25, 1);

fn is_sheet(text: &[u8]) -> bool {
    text[4] == PART && text[OF_SHEET.0] == OF_SHEET.1
}

fn start() -> Instant {
    Instant::from_nanos(1_000_000_000)
}

const SECOND: Duration = Duration::from_secs(1);

#[test]
fn a_member_gets_its_own_sheet_and_a_server_all() {
    let (mut server, mut now) = (issuing(network(1, 1)), start());
    for number in [1, 2, 3] {
        let mut member = member_with(number, None);
        talk_for(SECOND, &mut now, (&mut member, number), (&mut server, 0), |_| true);
        assert_eq!(own(&member, number), (1, Some(format!("1: sheet of {number}"))));
        let others = (0..4).filter(|it| *it != number);
        let known: Vec<_> = others.filter_map(|it| sheet_of(member.roster().unwrap(), it)).collect();
        assert!(known.is_empty(), "{number} knows {known:?}");
    }
    let further = |it: usize| if it == 1 { member(it).with_role(Role::Server) } else { member(it) };
    let roster = roster(2, (0..5).map(|it| (further(it), format!("sheet of {it}"))));
    server.issued(roster, now);
    let mut second = Exchange::new(secret().public_key(), None).for_server(key(1), None);
    talk_for(SECOND, &mut now, (&mut second, 1), (&mut server, 0), |_| true);
    let all: Vec<_> = (0..5).filter_map(|it| sheet_of(second.roster().unwrap(), it)).collect();
    assert_eq!(all.len(), 5, "it gives them to members: {all:?}");
    let mut member = member_with(3, None);
    talk_for(SECOND, &mut now, (&mut member, 3), (&mut second, 1), |_| true);
    assert_eq!(own(&member, 3), (2, Some("sheet of 3".to_owned())));
}

/// A roster is taken only together with the member's sheet. Otherwise the previous roster stays in force, with its
/// sheet.
#[test]
fn who_leaves_the_sheet_out_has_no_roster_taken() {
    let mut now = start();
    let mut victim = member_with(1, Some(network(1, 1)));
    assert_eq!(own(&victim, 1), (1, Some("1: sheet of 1".to_owned())));
    let mut server = issuing(network(2, 2));
    let parts = talk_for(20 * SECOND, &mut now, (&mut victim, 1), (&mut server, 0), |text| !is_sheet(text));
    assert!(parts > 2, "all other parts came: {parts}");
    assert_eq!(own(&victim, 1), (1, Some("1: sheet of 1".to_owned())));
    talk_for(20 * SECOND, &mut now, (&mut victim, 1), (&mut server, 0), |_| true);
    assert_eq!(own(&victim, 1), (2, Some("2: sheet of 1".to_owned())));
}

#[test]
fn a_sheet_of_somebody_else_an_older_one_and_a_changed_one_are_not_taken() {
    let forged = |sheet: &str| sheet.replace("sheet", "SHEET");
    let others: [(&str, &dyn Fn() -> String); 3] = [
        ("another member's", &|| "2: sheet of 2".to_owned()),
        ("an older one", &|| "1: sheet of 1".to_owned()),
        ("a changed one", &|| forged("2: sheet of 1")),
    ];
    for (what, other) in others {
        let mut now = start();
        let (mut victim, mut server) = (member_with(1, Some(network(1, 1))), issuing(network(2, 2)));
        let mut replaced = 0;
        let between = |text: &mut Vec<u8>| {
            if is_sheet(text) {
                let other = other();
                assert_eq!(text[36..].len(), other.len());
                text[36..].copy_from_slice(other.as_bytes());
                replaced += 1;
            }
            true
        };
        talk_for(5 * SECOND, &mut now, (&mut victim, 1), (&mut server, 0), between);
        assert_eq!(own(&victim, 1), (1, Some("1: sheet of 1".to_owned())), "{what}");
        assert_eq!(replaced, 1, "{what}: who lies is not asked again soon");
        talk_for(5 * SECOND, &mut now, (&mut victim, 1), (&mut server, 0), |_| true);
        assert_eq!(own(&victim, 1).0, 1, "{what}: nor believed");
    }
}

/// Rosters pass from member to member. A sheet comes from those that have it: servers, and members with the same sheet.
#[test]
fn members_hand_a_roster_on_to_those_whose_sheet_is_the_same() {
    let with = |number, sheet| member_with(number, Some(network(sheet, 1)));
    let mut now = start();
    // The policy is unchanged: a machine was added, and 2 knows it.
    let newer = roster(2, (0..6).map(|it| (member(it), format!("1: sheet of {}", if it == 4 { 3 } else { it }))));
    let (mut server, mut knows, mut asks) = (issuing(newer), with(2, 1), with(1, 1));
    talk_for(SECOND, &mut now, (&mut knows, 2), (&mut server, 0), |_| true);
    talk_for(SECOND, &mut now, (&mut asks, 1), (&mut knows, 2), |_| true);
    assert_eq!(own(&asks, 1), (2, Some("1: sheet of 1".to_owned())));
    // Another policy: 3 and 4 have the same sheet, 1 has another.
    let (mut server, mut knows) = (issuing(network(3, 2)), with(3, 1));
    talk_for(SECOND, &mut now, (&mut knows, 3), (&mut server, 0), |_| true);
    let (mut same, mut other) = (with(4, 1), with(1, 1));
    talk_for(SECOND, &mut now, (&mut same, 4), (&mut knows, 3), |_| true);
    assert_eq!(own(&same, 4), (3, Some("2: sheet of 3".to_owned())));
    talk_for(20 * SECOND, &mut now, (&mut other, 1), (&mut knows, 3), |_| true);
    assert_eq!(own(&other, 1), (1, Some("1: sheet of 1".to_owned())));
    talk_for(SECOND, &mut now, (&mut other, 1), (&mut server, 0), |_| true);
    assert_eq!(own(&other, 1), (3, Some("2: sheet of 1".to_owned())), "a server has it at once");
}

#[test]
fn a_member_is_not_told_what_others_enforce() {
    let (mut server, mut now) = (issuing(network(1, 1)), start());
    let mut curious = member_with(1, None);
    // Asks for the sheets of all others, and collects the answers.
    curious.connected(&key(0), now);
    server.connected(&key(1), now);
    talk_for(SECOND, &mut now, (&mut curious, 1), (&mut server, 0), |_| true);
    server.connected(&key(1), now);
    while server.next_output().is_some() {}
    let version = curious.roster().unwrap().version();
    let mut heard = Vec::new();
    for number in 0..6_u16 {
        let mut get = vec![7, b'R', b'G', 1, 2, 0, 0, 0];
        get.extend_from_slice(&version.number.to_le_bytes());
        get.extend_from_slice(&version.digest);
        get.extend_from_slice(&(256 + number).to_le_bytes());
        get.extend_from_slice(&[0; 6]);
        server.hear(&key(1), &get, now);
        while let Some(output) = server.next_output() {
            if let Output::Send { text, .. } = output {
                heard.extend(is_sheet(&text).then(|| String::from_utf8_lossy(&text[36..]).into_owned()));
            }
        }
    }
    assert_eq!(heard, ["1: sheet of 1"]);
}

/// After a reboot without a server: the roster on the disk contains this machine's sheet, and no other sheet can be
/// added.
#[test]
fn a_file_has_the_sheets_and_none_that_the_roster_does_not_name() {
    let network = network(1, 1);
    let (file, of) = (network.to_bytes(), secret().public_key());
    let read = Roster::from_bytes(&file, &of).unwrap();
    assert_eq!(sheet_of(&read, 3), Some("1: sheet of 3".to_owned()));
    assert_eq!(read.to_bytes(), file);
    let with = |sheet: &str| {
        let mut file = file.clone();
        file.extend_from_slice(&(sheet.len() as u32).to_le_bytes());
        file.extend_from_slice(sheet.as_bytes());
        Roster::from_bytes(&file, &of)
    };
    assert!(with("2: sheet of 1").is_none() && with("1: sheet of 1").is_none(), "another one, and one twice");
    let sheet = file.windows(13).position(|text| text == b"1: sheet of 1").unwrap();
    let mut damaged = file.clone();
    damaged[sheet] ^= 1;
    assert!(Roster::from_bytes(&damaged, &of).is_none());
    // A file without its sheets is like a member's file for other members: their sheets are missing, and they refuse
    // everything.
    let shortest = file.len() - 4 * 17;
    let without = Roster::from_bytes(&file[..shortest], &of).unwrap();
    let own = without.member(&key(1)).unwrap();
    assert!(own.has_sheet() && without.sheet(own).is_none());
}

#[test]
fn too_long_a_sheet_is_not_issued_and_a_policy_is_no_other_member() {
    let of = |sheet: &str| {
        let settings = Settings::new("rg0".parse().unwrap());
        let member = Arc::new(member(1).with_sheet(sheet.as_bytes()));
        Roster::issue_with_sheets(&secret(), 1, 0, settings, [member], [sheet.as_bytes().into()])
    };
    assert!(of(&"x".repeat(MAX_SHEET)).is_ok());
    let long = of(&"x".repeat(MAX_SHEET + 1));
    assert_eq!(long.err(), Some(IssueError::SheetsTooLong(MAX_SHEET + 1)));
    let changes = network(2, 2).changes_since(&network(1, 1));
    assert!(changes.changed.is_empty() && changes.added.is_empty() && changes.removed.is_empty(), "{changes:?}");
    let none: Vec<PublicKey> = Vec::new();
    let without = Roster::issue(
        &secret(),
        3,
        0,
        Settings::new("rg0".parse().unwrap()),
        (0..5).map(|it| Arc::new(member(it).with_addresses([[10, 9, 9, it as u8].into()]))),
    );
    assert_ne!(without.unwrap().changes_since(&network(1, 1)).changed, none, "but other addresses are told");
}
