//! The search for direct ways to one peer.
//!
//! Both ends tell each other where they may be reached ([`Candidates`]), and probe these locators at the same time:
//! each probe opens the NATs on its own side for the probes of the other side. Candidates that answer are given to
//! [`Paths`](super::Paths), which measures them, and leaves them when they fail. None of this happens without traffic.
//!
//! A router without a firewall takes a datagram that no inside host has asked for as one for the router itself. Linux
//! refuses it, but keeps it in its connection tracking for 30 seconds (OpenWrt for 60), and for as long again after
//! each further one. If the member behind that router sends to the same address meanwhile, its datagrams leave with
//! another port, because their own port is taken, and the two ends never meet. So the first probe to an address where
//! others see the peer only opens this end's own router ([`Order::Open`]). Further probes follow when the peer has our
//! list, which includes our address as others see it, and has therefore opened its router too; or when a request comes
//! from there. Rounds are far enough apart for routers to forget. A router that has lost its connections still gets
//! such datagrams, because the sender does not know yet.
//!
//! A *round* is a few seconds in which all candidates are probed, each at first after 50 ms and then less and less
//! often. A round begins with the first traffic, when a path was lost, when a network has changed, when the peer asks
//! for it, and every few minutes while traffic goes through a relay. If an end moves during a round, it asks again for
//! its public address, and another round follows.
//!
//! The list comes from a peer, which may list addresses of others. Therefore an address without an answer gets few
//! probes in a minute, and only a few such addresses are remembered for a peer and probed at all. [`Search`] has the
//! limits for all peers together.
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
/// From the first probe of a candidate to the second. The gap then doubles with each probe.
const FIRST_GAP: Duration = Duration::from_millis(50);
/// Probes of a candidate in one round, without an answer. The last one leaves after 3.15 s.
const PROBES: u32 = 7;
/// Limit on probes to an address that has not answered, for each peer.
const UNANSWERED: Rate = Rate { interval: Duration::from_secs(6), burst: 10 };
/// How many addresses without an answer are remembered for a peer. Others are not probed.
const MAX_ADDRESSES: usize = 48;
/// How long such an address is remembered after its last probe. Its bucket is full again by then.
const REMEMBERED: Duration = Duration::from_secs(60);
/// Candidates that the peer did not tell, but that requests came from.
const MAX_HEARD: usize = 4;
/// From the end of a round without a result to the next one, at first; it doubles each time. Longer than a router
/// remembers an unanswered datagram.
pub(super) const NEXT_ROUND: Duration = Duration::from_secs(70);
/// The same, at most.
const NEXT_ROUND_AT_MOST: Duration = Duration::from_secs(180);
/// The least time between two rounds that have no new cause.
const BETWEEN_ROUNDS: Duration = Duration::from_secs(5);
/// In a round without a result, the time until observers are asked again how they see us: we may have moved since.
const OBSERVE_AGAIN: Duration = Duration::from_secs(1);
/// After so long without traffic, direct ways are given up.
pub(super) const LET_GO: Duration = Duration::from_secs(120);
/// If a session begins this long after the one before, that one was not renewed: somebody wants to send again.
/// Persistent keepalives may renew a session this late.
const NEW_CONTACT: Duration = REJECT_AFTER_TIME;
/// The pauses between messages with our candidates while no answer comes; there is one more message than pauses.
const TELL_AGAIN: [u64; 5] = [250, 500, 1_000, 2_000, 4_000];
/// After this time the peer's router counts as open, even if the peer has not confirmed it: the answer may have been
/// lost, or there is no relay.
const OPENS_WITHIN: Duration = Duration::from_secs(1);
/// When a probe is retried that the limits for all peers did not admit.
const NOT_ADMITTED: Duration = Duration::from_millis(100);

/// The search for direct ways to one peer.
#[derive(Debug, Default)]
pub(super) struct Discovery {
    /// There was traffic recently.
    pub(super) awake: bool,
    /// The last traffic.
    traffic: Instant,
    /// When the last session began.
    established: Option<Instant>,
    round: Round,
    /// When the last round began.
    began: Option<Instant>,
    /// Before this time, no other round begins by itself.
    next_round: Instant,
    /// Rounds in a row that had no result.
    failures: u32,
    /// When our candidates are told, or told again.
    tell: Option<Instant>,
    /// How often they were told.
    told: usize,
    /// The next message asks the peer to look.
    calls: bool,
    /// A direct way was lost in this round, so this round may be useless: another one follows it.
    again: bool,
    /// When observers are asked again how they see us, unless there is a direct way by then.
    observe: Option<Instant>,
    /// The generation of the peer's list, 0 for none.
    generation: u32,
    peer_maps_per_destination: bool,
    /// From when on the peer's router counts as open for our probes.
    opened: Instant,
    /// The peer speaks version 2.
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
    /// It begins at this time, after the rounds of peers that came earlier.
    Waits(Instant),
    /// It ends at this time.
    Goes(Instant),
}

/// A candidate of the peer.
#[derive(Clone, Copy, Debug)]
struct Tried {
    address: SocketAddr,
    /// The peer did not tell it; a request came from there.
    heard: bool,
    /// It is the peer's address as others see it: most likely at a router.
    at_router: bool,
    /// In this round, our own router was opened for datagrams from there.
    opener: bool,
    /// In this round, a request came from there: the peer's router lets our datagrams to it in.
    open: bool,
    due: Option<Instant>,
    /// Probes in this round.
    probes: u32,
    asked: Instant,
    answered: bool,
    /// Probes since the last answer.
    missed: u32,
}

/// The state of the paths that matters here.
#[derive(Clone, Copy, Debug)]
pub(super) struct Situation {
    /// There is a session.
    pub(super) session: bool,
    /// The active path is an address that works.
    pub(super) direct: bool,
    /// There is traffic.
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
        // The peer may have been restarted: its earlier knowledge and messages no longer count.
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

    /// Our own candidates have changed.
    pub(super) fn candidates_changed(&mut self, now: Instant) {
        if self.awake {
            self.tell_anew(now);
        }
    }

    /// The relay works again, and there is no direct way. Observations and messages were lost meanwhile. A separate
    /// limit restricts how often a relay may come back.
    pub(super) fn relay_is_back(&mut self, now: Instant) {
        if self.awake {
            self.begin(true, now);
        }
    }

    /// A direct way has failed: an end may have moved, and if only its public address has changed, this failure is the
    /// only sign. A round that has just begun uses the old addresses. We ask for our own address again, so that the
    /// peer can still probe it in this round. The probes of this round may be used up by then, so another round
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

    /// A request came from this address. If no direct way is known, the address is probed at once. Otherwise it only
    /// waits for the next round: if both NATs map ports per destination, each probe makes a new address, which the
    /// other end would probe in turn.
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
            // One of the heard addresses gives way: preferably one that has not answered, and of those the one that was
            // probed first.
            let Some((oldest, _)) = heard().min_by_key(|(_, tried)| (tried.answered, tried.asked)) else { return };
            self.tried.remove(oldest);
        }
        let due = (self.awake && !direct).then_some(now);
        self.tried.push(Tried { due, heard: true, ..Tried::new(address, now) });
    }

    /// Takes the peer's candidates, or its answer to ours. Returns the answer to send.
    pub(super) fn candidates(&mut self, message: &Candidates, search: &Search, now: Instant) -> Option<Candidates> {
        self.knows_version_2 = true;
        if message.answer {
            if message.known == search.generation() {
                (self.tell, self.calls) = (None, false);
                self.peer_has_opened(search, now);
            }
            return None;
        }
        // An older list that arrives late is ignored.
        let older = self.generation != 0 && (message.generation.wrapping_sub(self.generation) as i32) < 0;
        if !older && message.generation != 0 {
            self.generation = message.generation;
            self.peer_maps_per_destination = message.maps_per_destination;
            self.take_list(message, search, now);
        }
        if message.look && self.began.is_none_or(|began| now.since(began) >= BETWEEN_ROUNDS) {
            self.begin(false, now);
            // The peer does not know about our turns, and assumes that our router is open.
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

    /// Takes the peer's list in place of the one before, and probes new candidates.
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
                    // A request from there may have come before the list. If another direct way worked then, the
                    // address was not probed.
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

    /// When something has to happen next.
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

    /// Does what is due. Returns whether direct ways are to be given up.
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
        // The order matters: our message says which list of the peer we have, and the peer then assumes that our router
        // is open to that list.
        self.probe(search, now, out);
        self.tell(situation.messages, search, now, out);
        false
    }

    /// The bytes of memory that it uses.
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

    /// A round is to begin. `calls`: the peer does not know about it yet.
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
        // Candidates that the peer's call has just opened stay open.
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

    /// The peer has our list, and opening its router is the first thing that it does with a list.
    fn peer_has_opened(&mut self, search: &Search, now: Instant) {
        // The peer opens its router for our address as others see it. As long as nobody has told us that address, none
        // of our lists has it.
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

    /// Sends the due probes to addresses where others see the peer. They open our router.
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
            // An address that answered once may have another owner now.
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

/// The entry of an address without an answer; `None` if there are too many such addresses.
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

    /// Whether probes may only open our own router: the peer's router counts as open from `opened` on.
    fn waits(&self, opened: Instant, now: Instant) -> bool {
        self.at_router && !self.open && now < opened
    }
}
