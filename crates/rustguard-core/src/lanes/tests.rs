extern crate std;
use super::*;
use crate::{
    constants::REJECT_AFTER_MESSAGES,
    fec::Cover,
    noise::SessionKeys,
    session::{Side, establish},
};
use alloc::{collections::BTreeSet, vec, vec::Vec};
use core::time::Duration;
use proptest::prelude::*;
use rand::{SeedableRng, rngs::StdRng};

const AT: Instant = Instant::from_nanos(1_000_000_000);

fn sealer() -> Arc<Sealer> {
    Arc::new(establish(&SessionKeys { from_initiator: [1; 32], from_responder: [2; 32] }, Side::Initiator, 7, 8, AT).0)
}

proptest! {
    /// Lanes are switched off and on, requested again, and used alternately: no counter is given out twice.
    #[test]
    fn no_counter_comes_twice(steps in proptest::collection::vec((0..10_u8, 0..300_usize), 1..200), count in 1..=MOST) {
        let sealer = sealer();
        let mut lanes = None;
        let mut seen = BTreeSet::new();
        for (lane, n) in steps {
            let reserved = match lane {
                0 => sealer.reserve(AT, n),
                9 => {
                    let again = Lanes::of(&sealer, count);
                    prop_assert!(lanes.is_none() || again.is_none(), "counters that begin anew");
                    lanes = lanes.or(again);
                    continue;
                }
                _ => lanes.as_ref().and_then(|lanes: &Lanes| lanes.reserve(lane, AT, n)),
            };
            let expected = lane == 0 || lanes.is_some() && lane <= count;
            prop_assert_eq!(reserved.is_some(), expected);
            for counter in reserved.into_iter().flat_map(|reserved| reserved.first..reserved.first + n as u64) {
                prop_assert_eq!(lane_of(counter), lane);
                prop_assert!(Cover::of(counter).is_none() && counter < REJECT_AFTER_MESSAGES);
                prop_assert!(seen.insert(counter), "twice: {}", counter);
            }
        }
    }
}

#[test]
fn threads_never_share_a_counter_of_a_lane() {
    let lanes = Lanes::of(&sealer(), 2).expect("the first time");
    let taken: Vec<u64> = std::thread::scope(|scope| {
        let threads: Vec<_> = (0..4_u8)
            .map(|thread| {
                let lanes = &lanes;
                scope.spawn(move || {
                    let runs =
                        (0..1_000).filter_map(|n| Some((lanes.reserve(1 + thread % 2, AT, n % 5)?.first, n % 5)));
                    runs.flat_map(|(first, n)| first..first + n as u64).collect::<Vec<_>>()
                })
            })
            .collect();
        threads.into_iter().flat_map(|thread| thread.join().expect("a thread that counts")).collect()
    });
    assert_eq!((taken.len(), lanes.taken()), (8_000, 8_000));
    assert_eq!(taken.iter().collect::<BTreeSet<_>>().len(), taken.len());
}

#[test]
fn a_lane_ends_where_the_next_begins_and_lane_0_too() {
    let sealer = sealer();
    let end = |n: u64| usize::try_from(n).expect("64 bits");
    assert!(sealer.reserve(AT, end(MESSAGES / 2 - 1)).is_some());
    let lanes = Lanes::of(&sealer, 9).expect("lane 0 is not half empty");
    assert_eq!(lanes.count(), MOST);
    assert!(Lanes::of(&sealer, 9).is_none());
    assert!(sealer.reserve(AT, end(MESSAGES / 2 + 1)).is_some() && !sealer.usable(AT));
    assert_eq!(sealer.reserve(AT, 1), None);
    for lane in [1, 8] {
        let reserved = lanes.reserve(lane, AT, end(MESSAGES)).expect("all of it");
        assert_eq!((lane_of(reserved.first), lane_of(reserved.first + MESSAGES - 1)), (lane, lane));
        assert_eq!(lanes.reserve(lane, AT, 1), None);
    }
    assert_eq!([0, 9, 255].map(|lane| lanes.reserve(lane, AT, 1)), [None; 3]);
    assert_eq!(lanes.reserve(2, AT + crate::constants::REJECT_AFTER_TIME, 1), None, "lanes end with the session");
    // A session that has used up half of lane 0 gets no lanes.
    let full = self::sealer();
    assert!(full.reserve(AT, end(MESSAGES / 2)).is_some());
    assert!(Lanes::of(&full, 1).is_none() && full.reserve(AT, end(MESSAGES)).is_some());
    assert_eq!(lane_of(1 << 63 | 3 << 56), 0, "a parity");
}

#[test]
fn messages_read_back_and_nothing_else_is_one() {
    let messages = [
        Message::Question { session: 7 },
        Message::Answer { session: u32::MAX, threads: 3 },
        Message::Request { session: 0x0102_0304, lane: 8, round: u32::MAX - 1 },
        Message::Reply { session: 1, lane: 255, round: 2 },
    ];
    for (kind, message) in (10..).zip(messages) {
        let text = message.to_bytes();
        assert_eq!((text[0], Message::parse(&text)), (kind, Some(message)));
        for len in 0..text.len() {
            assert_eq!(Message::parse(&text[..len]), None);
        }
        assert_eq!(Message::parse(&[&text[..], &[0]].concat()), None);
        for byte in 0..4 {
            let mut other = text;
            other[byte] ^= 0x40;
            assert_eq!(Message::parse(&other), None);
        }
    }
}

/// The address of an end, as the other end sees it.
type At = u8;

/// One end: it answers all questions, and negotiates its own lanes.
struct End {
    negotiation: Negotiation<At>,
    threads: u8,
    /// Whether it knows lanes at all.
    knows: bool,
    taken: u64,
    received: u64,
    /// The questions that it received.
    asked: Vec<Message>,
}

impl End {
    fn new(threads: u8) -> Self {
        let negotiation = Negotiation::new(threads);
        Self { negotiation, threads, knows: true, taken: 0, received: 1, asked: Vec::new() }
    }

    fn hears(&mut self, message: Message, now: Instant) -> Option<Message> {
        self.received += 1;
        if !self.knows {
            return None;
        }
        match message {
            Message::Question { session } => {
                self.asked.push(message);
                Some(Message::Answer { session, threads: self.threads })
            }
            Message::Request { session, lane, round } => {
                self.asked.push(message);
                Some(Message::Reply { session, lane, round })
            }
            _ => {
                self.negotiation.heard(message, now);
                None
            }
        }
    }
}

/// Two ends, and the messages in flight between them.
struct Pair {
    ends: [End; 2],
    now: Instant,
    /// When a message arrives, at which end, and the message.
    under_way: Vec<(Instant, usize, Message)>,
    session: u32,
    at: At,
    /// The first end has data for lanes.
    busy: bool,
    /// The other end sends data as well.
    is_heard: bool,
    /// The delays of the copies of a message; without any, it is lost.
    network: fn(&mut StdRng, Message) -> Vec<Duration>,
    rng: StdRng,
    keepalives: usize,
}

const DELAY: Duration = Duration::from_millis(20);

fn good(_: &mut StdRng, _: Message) -> Vec<Duration> {
    vec![DELAY]
}

impl Pair {
    fn new(threads: [u8; 2], network: fn(&mut StdRng, Message) -> Vec<Duration>) -> Self {
        let (ends, rng) = (threads.map(End::new), StdRng::seed_from_u64(1));
        Self {
            ends,
            now: AT,
            under_way: Vec::new(),
            session: 7,
            at: 1,
            busy: true,
            is_heard: true,
            network,
            rng,
            keepalives: 0,
        }
    }

    fn send(&mut self, to: usize, message: Message) {
        for delay in (self.network)(&mut self.rng, message) {
            self.under_way.push((self.now + delay, to, message));
        }
    }

    /// Runs for this time, in steps of 10 ms. Returns the seconds in which lanes were used.
    fn run(&mut self, seconds: u64) -> u64 {
        let mut used = 0;
        for step in 0..seconds * 100 {
            self.now = self.now + Duration::from_millis(10);
            let now = self.now;
            let (arrived, others): (Vec<_>, Vec<_>) = self.under_way.drain(..).partition(|(at, ..)| *at <= now);
            self.under_way = others;
            for (_, to, message) in arrived {
                if let Some(answer) = self.ends[to].hears(message, now) {
                    self.send(1 - to, answer);
                }
            }
            let in_use = self.ends[0].negotiation.in_use() == Some((self.session, self.at));
            used += u64::from(in_use);
            if self.busy && step % 10 == 0 {
                self.ends[0].negotiation.wanted(self.session, self.at, now);
                self.ends[0].taken += u64::from(in_use);
                self.ends[0].received += u64::from(self.is_heard);
            }
            if self.ends[0].negotiation.deadline().is_some_and(|due| due <= now) {
                self.tick();
            }
        }
        used / 100
    }

    fn tick(&mut self) {
        let End { negotiation, taken, received, .. } = &mut self.ends[0];
        let seen = Observation { session: Some(self.session), at: Some(self.at), taken: *taken, received: *received };
        for say in negotiation.tick(&seen, self.now) {
            match say {
                Say::Message(message) => {
                    self.ends[0].taken += u64::from(matches!(message, Message::Request { .. }));
                    self.send(1, message);
                }
                Say::Keepalive => self.keepalives += 1,
            }
        }
    }

    fn asked(&mut self) -> (usize, usize) {
        let asked = std::mem::take(&mut self.ends[1].asked);
        let questions = asked.iter().filter(|message| matches!(message, Message::Question { .. })).count();
        (questions, asked.len() - questions)
    }
}

#[test]
fn lanes_are_used_after_a_question_and_a_request_in_each() {
    let mut pair = Pair::new([2, 2], good);
    assert_eq!(pair.run(9), 8);
    assert_eq!(pair.asked(), (1, 2));
    assert_eq!(pair.run(100), 100, "and stay in use");
    let (questions, requests) = pair.asked();
    assert_eq!(questions, 0);
    assert!((18..=22).contains(&requests), "{requests} requests in 100 s");
    assert!((9..=11).contains(&pair.keepalives), "{} keepalives", pair.keepalives);
    // The other end is silent, because it has no data or is not heard: extra requests find out which.
    pair.is_heard = false;
    assert_eq!(pair.run(20), 20);
    assert!(pair.asked().1 > 10);
    // Nobody sends any more.
    pair.busy = false;
    pair.run(30);
    assert_eq!((pair.ends[0].negotiation.in_use(), pair.ends[0].negotiation.deadline()), (None, None));
    let _ = pair.asked();
    pair.run(1_000);
    assert_eq!(pair.asked(), (0, 0), "an idle pair sends nothing");
}

#[test]
fn each_session_and_each_address_is_asked_anew() {
    let mut pair = Pair::new([2, 2], good);
    pair.run(3);
    for change in [|pair: &mut Pair| pair.session += 1, |pair: &mut Pair| pair.at += 1] {
        let _ = pair.asked();
        change(&mut pair);
        pair.tick();
        assert_eq!(pair.ends[0].negotiation.in_use(), None, "off at once");
        assert!(pair.run(2) >= 1, "and on again");
        assert_eq!(pair.asked().0, 1);
    }
    // An answer of the session before, which arrived late.
    let mut negotiation = Negotiation::new(2);
    negotiation.wanted(8, 1, AT);
    negotiation.heard(Message::Answer { session: 7, threads: 2 }, AT);
    assert!(matches!(
        negotiation.tick(&Observation { session: Some(8), at: Some(1), taken: 0, received: 0 }, AT)[..],
        [Say::Message(Message::Question { session: 8 })]
    ));
}

#[test]
fn a_program_that_knows_no_lanes_is_asked_three_times_an_hour() {
    let mut pair = Pair::new([2, 2], good);
    pair.ends[1].knows = false;
    let before = pair.ends[1].received;
    assert_eq!(pair.run(7_000), 0);
    assert_eq!(pair.ends[1].received - before, 6);
}

#[test]
fn an_end_with_one_thread_gets_none() {
    let mut pair = Pair::new([2, 1], good);
    assert_eq!(pair.run(3_000), 0);
    assert_eq!(pair.asked(), (1, 0));
}

#[test]
fn a_lane_that_does_not_arrive_keeps_all_off_and_is_tried_less_and_less() {
    let mut pair = Pair::new([2, 2], |_, message| match message {
        Message::Request { lane: 2, .. } => vec![],
        _ => vec![DELAY],
    });
    assert_eq!(pair.run(2_000), 0);
    let (questions, requests) = pair.asked();
    assert!((7..=10).contains(&questions) && requests == questions, "{questions}, {requests}");
    pair.network = good;
    assert!(pair.run(700) > 50, "until it arrives");
}

#[test]
fn lanes_that_arrive_no_more_are_off_soon() {
    let mut pair = Pair::new([2, 2], good);
    pair.run(5);
    pair.network = |_, message| if let Message::Request { .. } = message { vec![] } else { vec![DELAY] };
    let used = pair.run(30);
    assert!(used <= 14, "{used} s");
    pair.network = good;
    assert!(pair.run(60) > 30, "they are found again");
}

/// Messages are lost, repeated and late.
#[test]
fn loss_and_repetition_delay_lanes_and_confuse_nothing() {
    let mut used = 0;
    for seed in 0..50 {
        let mut pair = Pair::new([8, 8], |rng, _| {
            let copies = [0, 1, 1, 1, 2][rng.random_range(0..5)];
            (0..copies).map(|_| Duration::from_millis(rng.random_range(1..1_500))).collect()
        });
        pair.rng = StdRng::seed_from_u64(seed);
        used += pair.run(120);
    }
    assert!(used > 50 * 10, "{used} of 6,000 s");
}

/// A peer that may send anything.
#[test]
fn what_was_not_asked_is_not_acknowledged() {
    let seen = |taken, received| Observation { session: Some(7), at: Some(1), taken, received };
    let mut negotiation = Negotiation::new(2);
    let everything = |negotiation: &mut Negotiation<At>, now| {
        for session in [0, 7, 8] {
            for lane in 0..=255 {
                for round in 0..3 {
                    negotiation.heard(Message::Reply { session, lane, round }, now);
                    negotiation.heard(Message::Request { session, lane, round }, now);
                }
            }
        }
        negotiation.heard(Message::Question { session: 7 }, now);
    };
    everything(&mut negotiation, AT);
    negotiation.heard(Message::Answer { session: 7, threads: 255 }, AT);
    assert_eq!((negotiation.in_use(), negotiation.deadline()), (None, None));
    negotiation.wanted(7, 1, AT);
    assert_eq!(negotiation.tick(&seen(0, 0), AT), [Say::Message(Message::Question { session: 7 })]);
    everything(&mut negotiation, AT);
    assert_eq!(negotiation.in_use(), None, "it was asked something else");
    negotiation.heard(Message::Answer { session: 7, threads: 2 }, AT);
    everything(&mut negotiation, AT);
    assert_eq!(negotiation.in_use(), None, "nothing was sent in a lane");
    assert_eq!(negotiation.tick(&seen(0, 0), AT).len(), 2);
    // Replies to another round, and replies in one lane only.
    negotiation.heard(Message::Reply { session: 7, lane: 1, round: 0 }, AT);
    negotiation.heard(Message::Reply { session: 7, lane: 1, round: 1 }, AT);
    negotiation.heard(Message::Reply { session: 7, lane: 1, round: 1 }, AT);
    assert_eq!(negotiation.in_use(), None);
    negotiation.heard(Message::Reply { session: 7, lane: 2, round: 1 }, AT);
    assert_eq!(negotiation.in_use(), Some((7, 1)));
    negotiation.stop();
    assert_eq!((negotiation.in_use(), negotiation.deadline()), (None, None));
}
