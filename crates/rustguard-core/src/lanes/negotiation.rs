//! Whether lanes are used towards a peer: asked in each session, tried by each lane's own port, and looked at again
//! while they are used.

use super::Message;
use crate::time::Instant;
use alloc::vec::Vec;
use core::time::Duration;

/// From one message to the next, without an answer.
const AGAIN: Duration = Duration::from_secs(1);
/// Messages without an answer, after which lanes are not used.
const TRIES: u8 = 3;
/// From one round of requests to the next, while lanes are used.
const ROUND: Duration = Duration::from_secs(10);
/// Where lanes are used and nothing at all has come for so long, the next round begins.
const SILENCE: Duration = Duration::from_secs(1);
/// After lanes have failed, they are left alone for so long, and for twice as long after each further failure.
const PAUSE: Duration = Duration::from_secs(10);
const DOUBLINGS: u32 = 6;
/// A peer that has never answered is left alone for longer: it is probably another program.
const UNKNOWN: Duration = Duration::from_secs(3_600);
/// With fewer threads at the other end, lanes have no use.
const THREADS: u8 = 2;

/// The state of lanes towards one peer, and what is to be said about them. `P` is an address: lanes that were
/// acknowledged at one are used at no other.
#[derive(Debug)]
pub struct Negotiation<P> {
    /// A bit for each lane.
    all: u32,
    state: State<P>,
    /// Until when, and at which address, lanes are left alone.
    pause: Option<(Instant, P)>,
    failures: u32,
    /// The peer has answered once.
    is_known: bool,
    round: u32,
    /// The session of the requests that are counted, and how many there were.
    requested: (u32, u64),
}

#[derive(Clone, Copy, Debug)]
enum State<P> {
    Off,
    /// Does the peer know lanes?
    Asking(Place<P>, Tries),
    /// The requests of a round, in lanes that have not been acknowledged in it.
    Trying(Place<P>, Tries, Lanes),
}

/// Where lanes are negotiated: by another session or at another address, nothing of it holds.
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
    /// A bit for each that is not acknowledged in this round.
    missing: u32,
    /// While they are used.
    used: Option<Used>,
}

#[derive(Clone, Copy, Debug)]
struct Used {
    /// When silence is looked for next.
    look: Instant,
    /// What had been received at the last look, and sent in lanes when the round began.
    received: u64,
    sent: u64,
}

/// What is so at the moment.
#[derive(Clone, Copy, Debug)]
pub struct Observation<P> {
    /// The index by which the peer knows the session in use.
    pub session: Option<u32>,
    /// Where datagrams to the peer go.
    pub at: Option<P>,
    /// Counters that were taken from all lanes of the session, requests included.
    pub taken: u64,
    /// Grows whenever something authentic comes from the peer.
    pub received: u64,
}

/// What is to be sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Say {
    /// A request goes in its lane, by the lane's own port; all others in lane 0.
    Message(Message),
    /// A keepalive, in lane 0: it keeps open what is between the ends, and says where we are, as no lane does.
    Keepalive,
}

impl<P: Copy + PartialEq> Negotiation<P> {
    /// For lanes 1 to `lanes`.
    pub fn new(lanes: u8) -> Self {
        let all = (1 << lanes.min(super::MOST)) - 1;
        Self { all, state: State::Off, pause: None, failures: 0, is_known: false, round: 0, requested: (0, 0) }
    }

    /// There is traffic that lanes are wanted for, in this session, to this address.
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

    /// Does what is due, and returns what is to be sent.
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
                    // Nobody uses them. The next traffic asks again.
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

    /// Begins anew, because the lanes have other ports.
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

    /// When there is something to do if nothing happens before.
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

/// The bit of a lane; none for a number that no lane has.
fn bit(lane: u8) -> u32 {
    lane.checked_sub(1).filter(|n| *n < super::MOST).map_or(0, |n| 1 << n)
}
