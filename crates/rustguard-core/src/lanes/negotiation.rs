//! Decides whether lanes are used towards a peer. The peer is asked in each session, each lane's own port is tried, and
//! the lanes are checked again while they are used.

use super::Message;
use crate::time::Instant;
use alloc::vec::Vec;
use core::time::Duration;

/// The time from one unanswered message to the next.
const AGAIN: Duration = Duration::from_secs(1);
/// If this many messages have no answer, lanes are not used.
const TRIES: u8 = 3;
/// The time between two rounds of requests while lanes are used.
const ROUND: Duration = Duration::from_secs(10);
/// If lanes are used and nothing at all has arrived for this long, the next round begins.
const SILENCE: Duration = Duration::from_secs(1);
/// After lanes have failed, they are not tried for this long, and for twice as long after each further failure.
const PAUSE: Duration = Duration::from_secs(10);
const DOUBLINGS: u32 = 6;
/// A peer that has never answered is not asked again for this long: it is probably another program.
const UNKNOWN: Duration = Duration::from_secs(3_600);
/// If the other end has fewer threads, lanes are useless.
const THREADS: u8 = 2;

/// The state of lanes towards one peer, and the messages about them. `P` is an address: lanes that were acknowledged at
/// one address are used at no other.
#[derive(Debug)]
pub struct Negotiation<P> {
    /// A bit for each lane.
    all: u32,
    state: State<P>,
    /// Until when, and at which address, lanes are not tried.
    pause: Option<(Instant, P)>,
    failures: u32,
    /// The peer has answered once.
    is_known: bool,
    round: u32,
    /// The session whose requests are counted, and how many there were.
    requested: (u32, u64),
}

#[derive(Clone, Copy, Debug)]
enum State<P> {
    Off,
    /// Asks whether the peer knows lanes.
    Asking(Place<P>, Tries),
    /// The requests of a round, in lanes that are not yet acknowledged in this round.
    Trying(Place<P>, Tries, Lanes),
}

/// The session and the address for which lanes are negotiated: the result holds for no others.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Place<P> {
    session: u32,
    at: P,
}

#[derive(Clone, Copy, Debug)]
struct Tries {
    count: u8,
    due: Instant,
}

#[derive(Clone, Copy, Debug)]
struct Lanes {
    /// A bit for each lane that is not acknowledged in this round.
    missing: u32,
    /// While lanes are used.
    used: Option<Used>,
}

#[derive(Clone, Copy, Debug)]
struct Used {
    /// The next check for silence.
    look: Instant,
    /// The value of `received` at the last check, and the number of messages that lanes had sent when the round began.
    received: u64,
    sent: u64,
}

/// The present situation.
#[derive(Clone, Copy, Debug)]
pub struct Observation<P> {
    /// The index by which the peer knows the session in use.
    pub session: Option<u32>,
    /// Where datagrams to the peer are sent.
    pub at: Option<P>,
    /// Counters that were taken from all lanes of the session, including those of requests.
    pub taken: u64,
    /// Grows whenever an authentic datagram arrives from the peer.
    pub received: u64,
}

/// A message to send.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Say {
    /// A request is sent in its lane, by the lane's own port; all other messages are sent in lane 0.
    Message(Message),
    /// A keepalive, in lane 0: it keeps NATs and firewalls between the ends open, and shows our address, which lanes do
    /// not.
    Keepalive,
}

impl<P: Copy + PartialEq> Negotiation<P> {
    /// A negotiation for lanes 1 to `lanes`.
    pub fn new(lanes: u8) -> Self {
        let all = (1 << lanes.min(super::MOST)) - 1;
        Self { all, state: State::Off, pause: None, failures: 0, is_known: false, round: 0, requested: (0, 0) }
    }

    /// There is traffic for which lanes are wanted, in this session, to this address.
    pub fn wanted(&mut self, session: u32, at: P, now: Instant) {
        let place = Place { session, at };
        if self.place() == Some(place) || self.pause.is_some_and(|(until, paused)| now < until && paused == at) {
            return;
        }
        self.state = State::Asking(place, Tries { count: 0, due: now });
    }

    /// The peer has answered.
    pub fn heard(&mut self, message: Message, now: Instant) {
        match (message, &mut self.state) {
            (Message::Answer { session, threads }, State::Asking(place, _)) if place.session == session => {
                self.is_known = true;
                if threads < THREADS {
                    self.pause = Some((now + UNKNOWN, place.at));
                    self.state = State::Off;
                } else {
                    self.round = self.round.wrapping_add(1);
                    let tries = Tries { count: 0, due: now };
                    self.state = State::Trying(*place, tries, Lanes { missing: self.all, used: None });
                }
            }
            (Message::Reply { session, lane, round }, State::Trying(place, tries, lanes))
                if place.session == session && round == self.round && tries.count > 0 && lanes.missing != 0 =>
            {
                lanes.missing &= !bit(lane);
                if lanes.missing == 0 {
                    tries.due = now + ROUND;
                    self.failures = 0;
                    lanes.used.get_or_insert(Used { look: now + SILENCE, received: 0, sent: 0 });
                }
            }
            _ => {}
        }
    }

    /// Does what is due, and returns the messages to send.
    pub fn tick(&mut self, seen: &Observation<P>, now: Instant) -> Vec<Say> {
        let mut say = Vec::new();
        let here = seen.session.zip(seen.at).map(|(session, at)| Place { session, at });
        if self.place().is_some() && self.place() != here {
            self.state = State::Off;
        }
        if let Some((session, _)) = seen.session.zip(seen.at).filter(|(session, _)| self.requested.0 != *session) {
            self.requested = (session, 0);
        }
        let sent = seen.taken.saturating_sub(self.requested.1);
        if let State::Trying(_, tries, Lanes { missing, used: Some(used) }) = &mut self.state {
            if now >= used.look {
                if used.received == seen.received && *missing == 0 {
                    tries.due = now;
                }
                (used.received, used.look) = (seen.received, now + SILENCE);
            }
            if *missing == 0 && now >= tries.due {
                if used.sent == sent {
                    // The lanes are not used. The next traffic asks again.
                    self.state = State::Off;
                    return say;
                }
                self.round = self.round.wrapping_add(1);
                (used.sent, *missing, tries.count) = (sent, self.all, 0);
                say.push(Say::Keepalive);
            }
        }
        let (State::Asking(place, tries) | State::Trying(place, tries, _)) = &mut self.state else { return say };
        if now < tries.due {
            return say;
        }
        if tries.count == TRIES {
            let pause = if self.is_known { PAUSE * (1 << self.failures.min(DOUBLINGS)) } else { UNKNOWN };
            self.failures += 1;
            self.pause = Some((now + pause, place.at));
            self.state = State::Off;
            return say;
        }
        (tries.count, tries.due) = (tries.count + 1, now + AGAIN);
        let (session, round) = (place.session, self.round);
        match &self.state {
            State::Trying(_, _, Lanes { missing, .. }) => {
                let lanes = (1..=super::MOST).filter(|lane| missing & bit(*lane) != 0);
                say.extend(lanes.map(|lane| Say::Message(Message::Request { session, lane, round })));
                self.requested.1 += u64::from(missing.count_ones());
            }
            _ => say.push(Say::Message(Message::Question { session })),
        }
        say
    }

    /// Starts over, because the lanes have other ports.
    pub fn stop(&mut self) {
        (self.state, self.pause) = (State::Off, None);
    }

    /// The session in which lanes are used, and the address.
    pub fn in_use(&self) -> Option<(u32, P)> {
        match self.state {
            State::Trying(Place { session, at }, _, Lanes { used: Some(_), .. }) => Some((session, at)),
            _ => None,
        }
    }

    /// When there is something to do if nothing happens earlier.
    pub fn deadline(&self) -> Option<Instant> {
        match &self.state {
            State::Off => None,
            State::Trying(_, tries, Lanes { used: Some(used), .. }) => Some(tries.due.min(used.look)),
            State::Asking(_, tries) | State::Trying(_, tries, _) => Some(tries.due),
        }
    }

    fn place(&self) -> Option<Place<P>> {
        match self.state {
            State::Off => None,
            State::Asking(place, _) | State::Trying(place, ..) => Some(place),
        }
    }
}

/// The bit of a lane; 0 for a number that no lane has.
fn bit(lane: u8) -> u32 {
    lane.checked_sub(1).filter(|n| *n < super::MOST).map_or(0, |n| 1 << n)
}
