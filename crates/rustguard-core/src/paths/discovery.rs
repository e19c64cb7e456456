//! The search for direct ways to one peer.
//!
//! Both ends tell each other where they may be reached ([`Candidates`]), and probe these locators at the same time:
//! each probe opens the NATs on its side for those of the other side. What answers is given to [`Paths`](super::Paths),
//! which measures it, and leaves it when it fails. Nothing of this happens without traffic.
//!
//! A router without a firewall takes a datagram that nobody inside has asked for as one for itself. Linux refuses it,
//! but keeps it in its connection tracking for 30 seconds, OpenWrt for 60, and as long again after each further one.
//! What the member behind that router sends there meanwhile leaves with another port, because its own is taken, and the
//! two ends never meet. So where a peer is seen by others, the first probe only opens this end's own router
//! ([`Order::Open`]). Others follow when the peer has got our list, with what others have said of us, and has therefore
//! done the same, or when it is heard from there. Rounds are far enough apart for routers to forget: a router that has
//! lost its connections gets such datagrams all the same, from who does not know yet.
//!
//! A *round* is a few seconds in which all candidates are probed, each at first after 50 ms and then less and less
//! often. A round begins with the first traffic, when a path was lost, when a network has changed, when the peer says
//! so, and every few minutes while traffic goes through a relay. Where an end moves in a round, its own address outside
//! is asked for again, and another round follows.
//!
//! The list comes from a peer, which may list addresses of others. An address without an answer gets few probes in a
//! minute, few such addresses are remembered for a peer and probed at all, and [`Search`] has the limits for all peers
//! together.
use super::{
    candidates::{Candidate, CandidateKind, Candidates, MAX_CANDIDATES},
    locator::{Address, Locator},
    probe::{Probe, Reply, Request},
    search::Search,
    types::{Order, Relayed},
};
use crate::{
    constants::REJECT_AFTER_TIME,
    limit::{Bucket, Rate},
    time::Instant,
};
use alloc::vec::Vec;
use core::{net::SocketAddr, time::Duration};

/// How long a round lasts.
pub(super) const ROUND: Duration = Duration::from_secs(5);
/// From the first probe of a candidate to the second. Each further one comes after twice the time.
const FIRST_GAP: Duration = Duration::from_millis(50);
/// Probes of a candidate in one round, without an answer. The last leaves after 3.15 s.
const PROBES: u32 = 7;
/// Probes in the long run to an address that has not answered, for each peer.
const UNANSWERED: Rate = Rate { interval: Duration::from_secs(6), burst: 10 };
/// Addresses without an answer that are remembered for a peer. Others are not probed.
const MAX_ADDRESSES: usize = 48;
/// How long one is remembered after its last probe. Its bucket is full again by then.
const REMEMBERED: Duration = Duration::from_secs(60);
/// Candidates that were not told, but that requests came from.
const MAX_HEARD: usize = 4;
/// From the end of a round that had no result to the next, at first; twice as long each time. Longer than a router
/// remembers a datagram that has had no answer.
pub(super) const NEXT_ROUND: Duration = Duration::from_secs(70);
/// The same, at most.
const NEXT_ROUND_AT_MOST: Duration = Duration::from_secs(180);
/// The least time between two rounds that are not caused by something new.
const BETWEEN_ROUNDS: Duration = Duration::from_secs(5);
/// From the beginning of a round without a result until others are asked once more how they see us: we may have moved
/// since.
const OBSERVE_AGAIN: Duration = Duration::from_secs(1);
/// Without traffic for so long, direct ways are let go.
pub(super) const LET_GO: Duration = Duration::from_secs(120);
/// A session that begins so long after the one before was not renewed: somebody wants to send again. Persistent
/// keepalives may renew one as late as that.
const NEW_CONTACT: Duration = REJECT_AFTER_TIME;
/// Of what the peer was told, from one message without an answer to the next; there is one more.
const TELL_AGAIN: [u64; 5] = [250, 500, 1_000, 2_000, 4_000];
/// The peer has opened its router by then, whether we have heard of it or not: its answer may have been lost, or there
/// is no relay.
const OPENS_WITHIN: Duration = Duration::from_secs(1);
/// When a probe is tried again that the limits for all peers did not admit.
const NOT_ADMITTED: Duration = Duration::from_millis(100);

/// The search for direct ways to one peer.
#[derive(Debug, Default)]
pub(super) struct Discovery {
    /// There was traffic a short while ago.
    pub(super) awake: bool,
    /// The last traffic.
    traffic: Instant,
    /// When the last session began.
    established: Option<Instant>,
    round: Round,
    /// When the last round began.
    began: Option<Instant>,
    /// Before, no other round begins by itself.
    next_round: Instant,
    /// Rounds in a row that had no result.
    failures: u32,
    /// When our candidates are told, or told again.
    tell: Option<Instant>,
    /// How often they were.
    told: usize,
    /// What is told next says that the peer is to look.
    calls: bool,
    /// A direct way was lost in this round, which may be of no use any more: another one follows it.
    again: bool,
    /// When others are asked once more how they see us, unless there is a direct way by then.
    observe: Option<Instant>,
    /// Of the peer's list: its generation, 0 for none.
    generation: u32,
    peer_maps_per_destination: bool,
    /// From when on the peer's router is taken to expect our probes.
    opened: Instant,
    /// It speaks version 2.
    pub(super) knows_version_2: bool,
    tried: Vec<Tried>,
    unanswered: Vec<Unanswered>,
}

/// An address that was probed and has not answered.
#[derive(Clone, Copy, Debug)]
struct Unanswered {
    address: SocketAddr,
    bucket: Bucket,
    probed: Instant,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum Round {
    #[default]
    None,
    /// One is to begin.
    Wanted(Instant),
    /// It begins then, after those of peers that came before.
    Waits(Instant),
    /// It ends then.
    Goes(Instant),
}

/// A candidate of the peer's.
#[derive(Clone, Copy, Debug)]
struct Tried {
    address: SocketAddr,
    /// The peer did not tell it; a request came from there.
    heard: bool,
    /// It is how others see the peer: at a router, most likely.
    at_router: bool,
    /// In this round, our own router was opened for what comes from there.
    opener: bool,
    /// In this round, a request came from there: the peer's router lets in what goes there.
    open: bool,
    due: Option<Instant>,
    /// Probes in this round.
    probes: u32,
    asked: Instant,
    answered: bool,
    /// Probes since the last answer.
    missed: u32,
}

/// What the paths say about themselves.
#[derive(Clone, Copy, Debug)]
pub(super) struct Situation {
    /// There is a session.
    pub(super) session: bool,
    /// What is active is an address that works.
    pub(super) direct: bool,
    /// Traffic goes on.
    pub(super) busy: bool,
    /// Where messages about candidates go.
    pub(super) messages: Option<Locator>,
}

impl Discovery {
    /// There is traffic.
    pub(super) fn traffic(&mut self, direct: bool, now: Instant) {
        self.traffic = now;
        let slept = !core::mem::replace(&mut self.awake, true);
        if slept || !direct && self.round == Round::None && now >= self.next_round {
            self.begin(true, now);
        }
    }

    /// There is a new session.
    pub(super) fn established(&mut self, now: Instant) {
        let before = self.established.replace(now);
        // The peer may have been restarted: what it knew, and what it told, is of before.
        self.generation = 0;
        if before.is_none_or(|before| now.since(before) >= NEW_CONTACT) {
            self.awake = true;
            self.traffic = now;
            self.begin(true, now);
        } else if self.awake {
            self.tell_anew(now);
        }
    }

    /// Our own network has changed.
    pub(super) fn network_changed(&mut self, now: Instant) {
        if self.awake {
            self.unanswered.clear();
            self.failures = 0;
            for tried in &mut self.tried {
                tried.answered = false;
            }
            self.begin(true, now);
        }
    }

    /// Our own candidates are others.
    pub(super) fn candidates_changed(&mut self, now: Instant) {
        if self.awake {
            self.tell_anew(now);
        }
    }

    /// The relay works again, and there is no direct way. What was observed and told in between has been lost. How
    /// often a way may come back has a limit of its own.
    pub(super) fn relay_is_back(&mut self, now: Instant) {
        if self.awake {
            self.begin(true, now);
        }
    }

    /// A direct way has failed: an end may have moved, and nothing else shows it where only the address outside is
    /// another. A round that has just begun goes by the addresses of before. Ours is asked for again, so that the
    /// peer can still look there in this round. The probes of this round may be used up by then, so another round
    /// follows.
    pub(super) fn lost(&mut self, now: Instant) {
        if !self.awake {
            return;
        }
        if self.began.is_none_or(|began| now.since(began) >= BETWEEN_ROUNDS) {
            self.begin(true, now);
        } else {
            (self.again, self.observe) = (true, Some(now));
        }
    }

    /// A request came from this address. It is probed at once where no direct way is known. Otherwise it only waits for
    /// the next round: where both NATs map ports per destination, each probe makes a new address, and the other end
    /// would probe that one.
    pub(super) fn heard(&mut self, address: SocketAddr, direct: bool, now: Instant) {
        if let Some(known) = self.tried.iter_mut().find(|tried| tried.address == address) {
            if known.waits(self.opened, now) && !direct {
                known.due = known.due.and(Some(now));
            }
            known.open = true;
            return;
        }
        let heard = || self.tried.iter().enumerate().filter(|(_, tried)| tried.heard);
        if heard().count() >= MAX_HEARD {
            // One of those that have not answered, or of the others, gives way: the one that was asked first.
            let Some((oldest, _)) = heard().min_by_key(|(_, tried)| (tried.answered, tried.asked)) else { return };
            self.tried.remove(oldest);
        }
        let due = (self.awake && !direct).then_some(now);
        self.tried.push(Tried { due, heard: true, ..Tried::new(address, now) });
    }

    /// The peer's candidates, or its answer to ours. Returns the answer to send.
    pub(super) fn candidates(&mut self, message: &Candidates, search: &Search, now: Instant) -> Option<Candidates> {
        self.knows_version_2 = true;
        if message.answer {
            if message.known == search.generation() {
                (self.tell, self.calls) = (None, false);
                self.peer_has_opened(search, now);
            }
            return None;
        }
        // An older list that comes late is none.
        let older = self.generation != 0 && (message.generation.wrapping_sub(self.generation) as i32) < 0;
        if !older && message.generation != 0 {
            self.generation = message.generation;
            self.peer_maps_per_destination = message.maps_per_destination;
            self.take_list(message, search, now);
        }
        if message.look && self.began.is_none_or(|began| now.since(began) >= BETWEEN_ROUNDS) {
            self.begin(false, now);
            // The peer does not know of any turn, and takes our router for open.
            for tried in self.tried.iter_mut().filter(|tried| tried.at_router) {
                (tried.due, tried.opener, tried.open) = (Some(now), false, false);
            }
        }
        if message.known == search.generation() {
            self.peer_has_opened(search, now);
        } else if self.awake && self.tell.is_none() {
            self.tell_anew(now);
        }
        Some(Candidates { known: self.generation, answer: true, ..Candidates::default() })
    }

    /// Takes the peer's list in place of the one before, and probes what is new.
    fn take_list(&mut self, message: &Candidates, search: &Search, now: Instant) {
        let told = message.list.iter().take(MAX_CANDIDATES);
        let told: Vec<Candidate> = told.filter(|told| search.allows(told.address)).copied().collect();
        self.tried.retain(|tried| tried.heard || told.iter().any(|told| told.address == tried.address));
        let mut news = false;
        for Candidate { address, kind } in told {
            // Over IPv6, routers translate no ports.
            let at_router = kind == CandidateKind::Seen && address.is_ipv4();
            match self.tried.iter_mut().find(|tried| tried.address == address) {
                Some(known) => {
                    known.at_router = at_router;
                    // A request from there may have come before the list: it was not probed then, if another direct way
                    // worked.
                    if core::mem::take(&mut known.heard) && known.probes == 0 && self.awake {
                        known.due = Some(now);
                    }
                }
                None => {
                    news = true;
                    self.tried.push(Tried { due: self.awake.then_some(now), at_router, ..Tried::new(address, now) });
                }
            }
        }
        if let (true, Round::Goes(until)) = (news, &mut self.round) {
            *until = now + ROUND;
        }
    }

    /// Takes the answer to a probe of a candidate. Returns the address and the round trip.
    pub(super) fn reply(&mut self, reply: &Reply, search: &Search, now: Instant) -> Option<(SocketAddr, Duration)> {
        let sent = Instant::from_nanos(reply.clock);
        let took = now.since(sent);
        let ours = |tried: &&mut Tried| {
            tried.asked >= sent && search.token(Address::new(tried.address).into(), reply.clock) == reply.token
        };
        let tried = self.tried.iter_mut().filter(|_| took <= ROUND).find(ours)?;
        (tried.answered, tried.missed, tried.due) = (true, 0, None);
        let address = tried.address;
        self.knows_version_2 = true;
        self.unanswered.retain(|other| other.address != address);
        Some((address, took))
    }

    /// The next moment for something to happen.
    pub(super) fn deadline(&self, situation: Situation) -> Option<Instant> {
        if !self.awake {
            return None;
        }
        let let_go = self.traffic + LET_GO;
        if !situation.session {
            return Some(let_go);
        }
        let round = match self.round {
            Round::Wanted(at) | Round::Waits(at) | Round::Goes(at) => Some(at),
            Round::None => (situation.busy && !situation.direct).then_some(self.next_round),
        };
        let probes = self.tried.iter().filter_map(|tried| tried.due).min();
        [Some(let_go), round, probes, self.tell, self.observe].into_iter().flatten().min()
    }

    /// Does what is due. Returns whether direct ways are to be let go.
    pub(super) fn tick(
        &mut self,
        situation: Situation,
        search: &mut Search,
        now: Instant,
        out: &mut Vec<Order>,
    ) -> bool {
        if !self.awake {
            return false;
        }
        if now >= self.traffic + LET_GO {
            self.sleep();
            return true;
        }
        if !situation.session {
            return false;
        }
        match self.round {
            Round::None if situation.busy && !situation.direct && now >= self.next_round => self.begin(true, now),
            Round::Goes(until) if until <= now => {
                (self.round, self.calls) = (Round::None, false);
                if self.again && !situation.direct {
                    self.begin(true, now);
                } else {
                    self.failures = if situation.direct { 0 } else { self.failures.saturating_add(1) };
                    let pause = NEXT_ROUND * (1 << self.failures.saturating_sub(1).min(4));
                    self.next_round = now + pause.min(NEXT_ROUND_AT_MOST);
                }
            }
            _ => {}
        }
        if matches!(self.round, Round::Wanted(_)) {
            self.round = Round::Waits(search.turn(now));
        }
        if matches!(self.round, Round::Waits(start) if start <= now) {
            self.start(now, out);
        }
        if self.observe.take_if(|at| *at <= now).is_some() && !situation.direct {
            out.push(Order::Observe);
        }
        // In this order: what is told says which list of the peer's we have, and the peer takes our router for open to
        // it.
        self.probe(search, now, out);
        self.tell(situation.messages, search, now, out);
        false
    }

    /// The bytes that it has.
    #[cfg(test)]
    pub(super) fn memory(&self) -> usize {
        let tried = self.tried.capacity() * size_of::<Tried>();
        size_of::<Self>() + tried + self.unanswered.capacity() * size_of::<Unanswered>()
    }

    /// Candidates are being probed.
    pub(super) fn goes(&self) -> bool {
        matches!(self.round, Round::Goes(_))
    }

    /// Why traffic goes through a relay.
    pub(super) fn why(&self, search: &Search) -> Relayed {
        if !self.awake {
            return Relayed::Idle;
        }
        if self.round != Round::None || self.began.is_none() {
            return Relayed::Looking;
        }
        if self.tried.is_empty() {
            return Relayed::NoCandidates;
        }
        if self.peer_maps_per_destination && search.maps_per_destination() {
            return Relayed::BothMapPerDestination;
        }
        Relayed::NoAnswer
    }

    /// A round is to begin. `calls`: the peer does not know yet.
    fn begin(&mut self, calls: bool, now: Instant) {
        self.awake = true;
        self.traffic = self.traffic.max(now);
        self.calls |= calls;
        if !matches!(self.round, Round::Waits(_)) {
            self.round = Round::Wanted(now);
        }
    }

    fn start(&mut self, now: Instant, out: &mut Vec<Order>) {
        (self.round, self.began, self.again) = (Round::Goes(now + ROUND), Some(now), false);
        self.observe = Some(now + OBSERVE_AGAIN);
        // What the peer's call has just opened stays so.
        let called = |tried: &Tried| (tried.opener || tried.probes > 0) && now.since(tried.asked) < FIRST_GAP;
        for tried in self.tried.iter_mut().filter(|tried| !called(tried)) {
            (tried.due, tried.probes, tried.opener, tried.open) = (Some(now), 0, false, false);
        }
        if self.calls {
            self.tell_anew(now);
        }
        out.push(Order::Observe);
    }

    fn tell_anew(&mut self, now: Instant) {
        (self.tell, self.told) = (Some(now), 0);
        self.opened = now + OPENS_WITHIN;
    }

    /// The peer has our list, and the first thing that it does with a list is to open its router.
    fn peer_has_opened(&mut self, search: &Search, now: Instant) {
        // It opens its router for where others see us. As long as nobody has told us that, it is in no list of ours.
        if !search.is_seen() {
            return;
        }
        for tried in self.tried.iter_mut().filter(|tried| tried.waits(self.opened, now)) {
            tried.due = tried.due.and(Some(now));
        }
        self.opened = self.opened.min(now);
    }

    fn tell(&mut self, to: Option<Locator>, search: &Search, now: Instant, out: &mut Vec<Order>) {
        if self.tell.is_none_or(|at| now < at) {
            return;
        }
        let pause = TELL_AGAIN.get(self.told).map(|millis| Duration::from_millis(*millis));
        self.tell = pause.map(|pause| now + pause);
        self.told += 1;
        let Some(to) = to else { return };
        let message = Candidates {
            generation: search.generation(),
            known: self.generation,
            answer: false,
            look: self.calls,
            maps_per_destination: search.maps_per_destination(),
            list: search.candidates().to_vec(),
        };
        out.push(Order::Tell { to, message });
    }

    fn probe(&mut self, search: &mut Search, now: Instant, out: &mut Vec<Order>) {
        self.probe_those(|_| true, search, now, out);
    }

    /// Sends the probes that are due to where others see the peer. They open our router.
    pub(super) fn probe_routers(&mut self, search: &mut Search, now: Instant, out: &mut Vec<Order>) {
        self.probe_those(|tried| tried.at_router, search, now, out);
    }

    fn probe_those(&mut self, of: impl Fn(&Tried) -> bool, search: &mut Search, now: Instant, out: &mut Vec<Order>) {
        let Self { tried, unanswered, opened, .. } = self;
        for tried in tried.iter_mut().filter(|tried| of(tried) && tried.due.is_some_and(|due| due <= now)) {
            tried.due = None;
            if tried.probes >= PROBES || !search.allows(tried.address) {
                continue;
            }
            let opens = tried.waits(*opened, now);
            if opens && tried.opener {
                tried.due = Some(*opened);
                continue;
            }
            // An address that has answered once may have another owner since.
            if !tried.answered || tried.missed >= PROBES {
                let Some(known) = remembered(unanswered, tried.address, now) else { continue };
                let mut bucket = known.bucket;
                if !bucket.take(UNANSWERED, now) {
                    continue;
                }
                if !search.admits(tried.address, true, now) {
                    tried.due = Some(now + NOT_ADMITTED);
                    continue;
                }
                (known.bucket, known.probed) = (bucket, now);
            } else if !search.admits(tried.address, false, now) {
                tried.due = Some(now + NOT_ADMITTED);
                continue;
            }
            tried.asked = now;
            let address = Address::new(tried.address);
            let (to, clock) = (Locator::from(address), now.as_nanos());
            let probe = Probe::Request(Request::about_no_path(clock, search.token(to, clock)));
            if opens {
                (tried.opener, tried.due) = (true, Some(*opened));
                out.push(Order::Open { to: address, probe });
                continue;
            }
            tried.due = Some(now + FIRST_GAP * (1 << tried.probes));
            tried.probes += 1;
            tried.missed = tried.missed.saturating_add(1);
            out.push(Order::Probe { to, probe });
        }
    }

    fn sleep(&mut self) {
        self.awake = false;
        (self.round, self.tell, self.calls, self.failures) = (Round::None, None, false, 0);
        (self.next_round, self.again, self.observe) = (Instant::default(), false, None);
        self.tried.retain(|tried| !tried.heard);
        for tried in &mut self.tried {
            tried.due = None;
        }
    }
}

/// The entry of an address without an answer; `None` where there are too many such addresses.
fn remembered(all: &mut Vec<Unanswered>, address: SocketAddr, now: Instant) -> Option<&mut Unanswered> {
    let known = all.iter().position(|other| other.address == address);
    let at = match known {
        Some(at) => at,
        None => {
            all.retain(|other| now.since(other.probed) < REMEMBERED);
            if all.len() >= MAX_ADDRESSES {
                return None;
            }
            all.push(Unanswered { address, bucket: Bucket::default(), probed: now });
            all.len() - 1
        }
    };
    Some(&mut all[at])
}

impl Tried {
    fn new(address: SocketAddr, now: Instant) -> Self {
        Self {
            address,
            heard: false,
            at_router: false,
            opener: false,
            open: false,
            due: None,
            probes: 0,
            asked: now,
            answered: false,
            missed: 0,
        }
    }

    /// Whether only our own router may get probes: those of the peer are taken to expect them from `opened` on.
    fn waits(&self, opened: Instant, now: Instant) -> bool {
        self.at_router && !self.open && now < opened
    }
}
