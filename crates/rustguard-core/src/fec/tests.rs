extern crate std;

use super::*;
use crate::{constants::REJECT_AFTER_MESSAGES, time::Instant};
use alloc::{collections::BTreeMap, vec, vec::Vec};
use core::time::Duration;
use proptest::{prelude::*, sample::Index};

const AT: Instant = Instant::from_nanos(1_000_000_000);

/// The parities of these packets, in the order of sending.
fn parities(size: u8, packets: &[(u64, Vec<u8>)]) -> Vec<(Cover, Vec<u8>)> {
    let mut group = Group::new(size);
    let parity = |(counter, text): &(u64, Vec<u8>)| {
        let parity = group.add(*counter, text, AT)?;
        Some((Cover::of(parity.counter).expect("the counter of a parity"), parity.text.to_vec()))
    };
    packets.iter().filter_map(parity).collect()
}

/// Packets of equal length, each with its own bytes.
fn packets(counters: impl IntoIterator<Item = u64>) -> Vec<(u64, Vec<u8>)> {
    counters.into_iter().map(|counter| (counter, vec![counter as u8 ^ 0x5a; 100])).collect()
}

fn owned(rebuilt: Option<Rebuilt<'_>>) -> Option<(u64, Vec<u8>)> {
    rebuilt.map(|Rebuilt { counter, text }| (counter, text.to_vec()))
}

#[test]
fn one_lost_packet_is_rebuilt_and_two_are_not() {
    let sent = packets(40..47);
    let [(cover, parity)] = &parities(7, &sent)[..] else { panic!("one group") };
    assert_eq!((cover.count(), parity.len()), (7, 100));
    for lost in 0..7 {
        let mut kept = Kept::default();
        for (n, (counter, text)) in sent.iter().enumerate() {
            assert!(n == lost || kept.packet(*counter, text).is_none());
        }
        assert_eq!(owned(kept.parity(*cover, parity)), Some(sent[lost].clone()));

        let mut kept = Kept::default();
        let also = (lost + 3) % 7;
        for (n, (counter, text)) in sent.iter().enumerate() {
            assert!(n == lost || n == also || kept.packet(*counter, text).is_none());
        }
        assert_eq!(kept.parity(*cover, parity), None, "{lost} and {also}");
        // One of the two was only late.
        assert_eq!(owned(kept.packet(sent[also].0, &sent[also].1)), Some(sent[lost].clone()));
    }
}

#[test]
fn nothing_is_made_of_a_parity_whose_packets_are_all_there() {
    let sent = packets(0..7);
    let [(cover, parity)] = &parities(7, &sent)[..] else { panic!("one group") };
    let mut kept = Kept::default();
    for (counter, text) in &sent {
        assert_eq!(kept.packet(*counter, text), None);
    }
    assert_eq!(kept.parity(*cover, parity), None);
    assert_eq!(kept.parity(*cover, parity), None, "nor of its copy");
}

#[test]
fn a_parity_costs_no_more_than_its_share() {
    // The group of a long packet needs seven times its bytes. It is abandoned before short packets provide them.
    let mut sent = vec![(0, vec![1; 1_400])];
    sent.extend((1..200).map(|counter| (counter, vec![2; 52])));
    let made = parities(7, &sent);
    assert!(made.iter().all(|(cover, parity)| parity.len() == 52 && cover.count() == 7), "{made:?}");
    let bytes = |len: usize| len + crate::session::OVERHEAD;
    let all: usize = sent.iter().map(|(_, text)| bytes(text.len())).sum();
    let extra: usize = made.iter().map(|(_, parity)| bytes(parity.len())).sum();
    assert!(7 * extra <= all, "{extra} of {all}");
}

#[test]
fn a_group_that_is_old_or_far_away_is_broken_off() {
    let text = [7; 50];
    let mut group = Group::new(3);
    assert_eq!(group.add(1, &text, AT), None);
    assert_eq!(group.add(2, &text, AT + Duration::from_millis(101)), None, "the first one is too old");
    assert_eq!(group.add(34, &text, AT + Duration::from_millis(101)), None, "the second one is too far away");
    assert_eq!(group.add(35, &text, AT + Duration::from_millis(150)), None);
    let parity = group.add(65, &text, AT + Duration::from_millis(150)).expect("three");
    assert_eq!(Cover::of(parity.counter).expect("a parity").counters().collect::<Vec<_>>(), [34, 35, 65]);
    // Another thread has taken these counters earlier.
    assert_eq!(group.add(70, &text, AT + Duration::from_millis(150)), None);
    assert_eq!(group.add(60, &text, AT + Duration::from_millis(150)), None);
    assert_eq!(group.add(61, &text, AT + Duration::from_millis(150)), None);
    assert!(group.add(62, &text, AT + Duration::from_millis(150)).is_some());
    // Longer than any text that is kept.
    assert_eq!(group.add(63, &[0; LONGEST + 1], AT), None);
}

#[test]
fn counters_of_parities_are_none_of_data() {
    for counter in [0, 1, u64::from(u32::MAX), 1 << 62] {
        assert_eq!(Cover::of(counter), None);
    }
    // Near the end of the counters that groups can have, the last ones are in no group.
    let near = u64::from(u32::MAX) - 3;
    let made = parities(2, &packets(near..near + 12));
    assert_eq!(
        made.iter().map(|(cover, _)| cover.counters().collect::<Vec<_>>()).collect::<Vec<_>>(),
        [vec![near, near + 1], vec![near + 2, near + 3]]
    );
    for (cover, _) in made {
        assert_eq!(Cover::of(cover.counter()), Some(cover));
        assert!(cover.counter() >= 1 << 63);
    }
    assert_eq!(parities(2, &packets(REJECT_AFTER_MESSAGES - 4..REJECT_AFTER_MESSAGES)), []);
}

#[test]
fn a_parity_that_is_too_late_or_has_foreign_packets_changes_nothing_else() {
    let sent = packets(0..600);
    let made = parities(7, &sent);
    let mut kept = Kept::default();
    for (counter, text) in sent.iter().filter(|(counter, _)| *counter != 3) {
        assert_eq!(kept.packet(*counter, text), None);
    }
    assert_eq!(kept.parity(made[0].0, &made[0].1), None, "its packets are no longer there");
    // Parities for packets that never arrive, more than there is room for.
    for n in 0..200 {
        let cover = Cover { first: 10_000 + n, counters: 0x7f };
        assert_eq!(kept.parity(cover, &[0; 64]), None);
    }
    let mut late = Kept::default();
    let (cover, parity) = &made[50];
    let first = u64::from(cover.first);
    for (counter, text) in sent.iter().filter(|(counter, _)| (first + 1..first + 7).contains(counter)) {
        late.packet(*counter, text);
    }
    assert_eq!(owned(late.parity(*cover, parity)).map(|(counter, _)| counter), Some(first));
    assert_eq!(kept.parity(Cover { first: 0, counters: 1 }, &[0; LONGEST + 1]), None);
}

#[test]
fn messages_come_back_and_other_texts_are_none() {
    for message in [Message::Offer(0x0403_0201), Message::Accept(7)] {
        let text = message.to_bytes();
        assert_eq!(Message::parse(&text), Some(message));
        assert_eq!(Message::parse(&text[..15]), None);
        assert_eq!(Message::parse(&[&text[..], &[0]].concat()), None);
        let mut newer = text;
        newer[3] = 2;
        assert_eq!(Message::parse(&newer), None);
    }
    assert_eq!(Message::Offer(0x0403_0201).to_bytes()[..8], [8, b'R', b'G', 1, 1, 2, 3, 4]);
}

proptest! {
    /// Packets of any lengths, some lost, arriving in any order: a rebuilt packet equals the one that was sent, and the
    /// single losses of groups are rebuilt in any order.
    #[test]
    fn what_is_rebuilt_is_what_was_sent(
        size in 2_u8..=20,
        first in prop_oneof![Just(0), 0..1_u64 << 33],
        sent in proptest::collection::vec((proptest::collection::vec(any::<u8>(), 0..80), prop::bool::weighted(0.1)), 1..80),
        order in proptest::collection::vec(any::<Index>(), 160),
    ) {
        let texts: BTreeMap<u64, Vec<u8>> =
            sent.iter().enumerate().map(|(n, (text, _))| (first + n as u64, text.clone())).collect();
        let lost = |counter: u64| sent[(counter - first) as usize].1;
        let all: Vec<_> = texts.clone().into_iter().collect();
        let made = parities(size, &all);
        let mut arriving: Vec<(Option<Cover>, u64, Vec<u8>)> =
            all.iter().filter(|(counter, _)| !lost(*counter)).map(|(counter, text)| (None, *counter, text.clone())).collect();
        arriving.extend(made.iter().map(|(cover, text)| (Some(*cover), 0, text.clone())));
        for (n, index) in order.iter().enumerate().take(arriving.len()) {
            let len = arriving.len();
            arriving.swap(n, index.index(len));
        }
        let (mut kept, mut rebuilt) = (Kept::default(), BTreeMap::new());
        for (cover, counter, text) in arriving {
            let made = match cover {
                Some(cover) => owned(kept.parity(cover, &text)),
                None => owned(kept.packet(counter, &text)),
            };
            rebuilt.extend(made);
        }
        for (counter, text) in &rebuilt {
            let original = &texts[counter];
            prop_assert_eq!(&text[..original.len()], &original[..]);
            prop_assert!(text[original.len()..].iter().all(|byte| *byte == 0));
        }
        for (cover, _) in made {
            let losses: Vec<u64> = cover.counters().filter(|counter| lost(*counter)).collect();
            prop_assert!(losses.len() != 1 || rebuilt.contains_key(&losses[0]), "{:?}", losses);
        }
    }

    #[test]
    fn no_bytes_panic(
        steps in proptest::collection::vec((any::<u64>(), proptest::collection::vec(any::<u8>(), 0..100)), 0..100)
    ) {
        let mut kept = Kept::default();
        for (counter, text) in steps {
            let _ = Message::parse(&text);
            match Cover::of(counter) {
                Some(cover) => drop(kept.parity(cover, &text)),
                None => drop(kept.packet(counter, &text)),
            }
        }
    }
}
