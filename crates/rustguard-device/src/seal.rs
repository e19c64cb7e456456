//! Seals the packets of workers and control: a run of packets is sealed in place and becomes as few datagram runs as
//! possible.

pub(crate) mod fec;
pub(crate) mod relayed;

use crate::{
    drops::DropReason,
    path_set::PathSet,
    session_lanes::STREAM,
    shared::{Shared, peer::PeerShared, table::Table, to_control::Notice},
    way::Way,
};
use fec::Outbound;
use relayed::RelayedRuns;
use rustguard_core::{
    ecn,
    session::{HEADER_LEN, Reserved, Sealer},
    time::Instant,
};
use rustguard_crypto::aead::{Frame, TAG_LEN};
use rustguard_tun::{Endpoint, Lane, Network, Segments, Transmit};
use std::sync::{Arc, atomic::Ordering};

/// The memory in which runs of packets are sealed, and the list of their datagrams.
pub(crate) struct Batch<'a> {
    pub(crate) slab: &'a mut [u8],
    pub(crate) transmits: &'a mut Vec<Transmit>,
    /// Where the datagrams for peers behind a relay are made; `None` for texts that must not be sealed for a relay
    /// again.
    pub(crate) relayed: Option<&'a mut RelayedRuns>,
    /// Where runs with parities between their packets are made; `None` to send without parities.
    pub(crate) parities: Option<&'a mut Outbound>,
    /// The lane of the worker that seals; `None` if it has none, and for control.
    pub(crate) lane: Option<Lane>,
    pub(crate) table: &'a Table,
    pub(crate) now: Instant,
    pub(crate) shared: &'a Shared,
}

/// The ECN fields of a run's datagrams.
#[derive(Clone, Copy)]
pub(crate) enum Ecn<'a> {
    /// The ECN fields of the packets.
    Packets,
    /// One for each frame. The texts are not packets.
    Given(&'a [u8]),
}

impl Ecn<'_> {
    /// The field of one frame with this text.
    pub(super) fn of_frame(self, frame: usize, text: &[u8]) -> u8 {
        match self {
            Self::Packets => ecn::of(text),
            Self::Given(given) => given[frame],
        }
    }
}

/// The sealer and its next counters, if it can still seal `packets` packets.
pub(super) fn usable(sealer: Option<&Sealer>, now: Instant, packets: usize) -> Option<(&Sealer, Reserved)> {
    let sealer = sealer?;
    Some((sealer, sealer.reserve(now, packets)?))
}

impl Batch<'_> {
    /// Seals a run for `peer` and lists its datagrams. Packets without a session to seal them wait for one. Returns
    /// false when the peer's endpoint is not known: the packets are dropped, and counted.
    pub(crate) fn seal(&mut self, peer: &PeerShared, frames: &mut [Frame], ecn: Ecn<'_>) -> bool {
        let sealer = peer.sealer.load();
        if let (Some(lane), Some(sealer)) = (self.lane, &*sealer)
            && let Some((reserved, by_lane)) = self.reserve_in_lane(lane, sealer, peer, frames.len())
        {
            self.number(&reserved, peer, frames);
            self.seal_to(sealer, peer, by_lane, None, frames, ecn);
            return true;
        }
        if let Some((sealer, reserved)) = usable(sealer.as_deref(), self.now, frames.len()) {
            return self.seal_with(sealer, &reserved, peer, frames, ecn);
        }
        drop(sealer);
        match self.wait(peer, frames) {
            Wait::Kept => true,
            Wait::NoEndpoint => false,
            Wait::Session(sealer, reserved) => self.seal_with(&sealer, &reserved, peer, frames, ecn),
        }
    }

    /// Seals a run with reserved counters, and lists its datagrams. Returns false as [`seal`](Self::seal) does.
    pub(crate) fn seal_with(
        &mut self,
        sealer: &Sealer,
        reserved: &Reserved,
        peer: &PeerShared,
        frames: &mut [Frame],
        ecn: Ecn<'_>,
    ) -> bool {
        self.number(reserved, peer, frames);
        let way = peer.way.load();
        match way.as_deref() {
            Some(Way::Direct(endpoint)) => self.seal_direct(sealer, peer, *endpoint, frames, ecn),
            Some(Way::Relayed(relay)) => return self.seal_relayed(sealer, peer, *relay, frames),
            None => {
                self.shared.dropped(peer, DropReason::NoEndpoint, frames.len());
                return false;
            }
        }
        true
    }

    /// Assigns the reserved counters to the frames.
    fn number(&self, reserved: &Reserved, peer: &PeerShared, frames: &mut [Frame]) {
        if reserved.rekey {
            self.shared.control.want_handshake(peer);
        }
        for (frame, counter) in frames.iter_mut().zip(reserved.first..) {
            frame.counter = counter;
        }
    }

    /// Returns counters from the worker's lane, and the endpoint with the lane's port, if the peer has acknowledged
    /// lanes in this session and at this endpoint. If it has not, and there is a stream, control is told. A run uses
    /// one lane, because a worker has one.
    fn reserve_in_lane(
        &self,
        lane: Lane,
        sealer: &Arc<Sealer>,
        peer: &PeerShared,
        packets: usize,
    ) -> Option<(Reserved, Endpoint)> {
        let way = peer.way.load();
        let at = way.as_deref().and_then(Way::endpoint)?;
        if peer.path_set.load().as_deref().is_some_and(PathSet::spreads) {
            return None;
        }
        let lanes = peer.lanes.load();
        if let Some(in_use) = lanes.as_deref().filter(|in_use| in_use.are_for(sealer, at)) {
            let reserved = in_use.lanes.reserve(lane.number, self.now, packets)?;
            return Some((reserved, Endpoint { local_port: lane.port, ..*at }));
        }
        if packets >= STREAM && peer.may_want_lanes(self.now) {
            self.shared.control.notify(Notice::LanesWanted(peer.id));
        }
        None
    }

    fn seal_direct(&mut self, sealer: &Sealer, peer: &PeerShared, to: Endpoint, frames: &[Frame], ecn: Ecn<'_>) {
        let path_set = peer.path_set.load();
        let spread = path_set.as_deref().filter(|path_set| path_set.spreads());
        if self.parities.is_some()
            && let Some(outgoing) = peer.outgoing_parities.load().as_deref().filter(|it| it.is_for(sealer))
            && spread.is_none()
        {
            return self.seal_with_parities(sealer, peer, to, frames, ecn, outgoing);
        }
        self.seal_to(sealer, peer, to, spread, frames, ecn);
    }

    /// Lists the datagrams of a run, to `to` or to the endpoints over which flows are spread, and seals them.
    fn seal_to(
        &mut self,
        sealer: &Sealer,
        peer: &PeerShared,
        to: Endpoint,
        spread: Option<&PathSet>,
        frames: &[Frame],
        ecn: Ecn<'_>,
    ) {
        let Self { slab, transmits, now, shared, .. } = self;
        let mut bytes = 0;
        // Listed before they are sealed: only the plaintext shows the flow.
        for (n, frame) in frames.iter().enumerate() {
            let (offset, len) = (frame.offset - HEADER_LEN, HEADER_LEN + frame.len + TAG_LEN);
            bytes += len as u64;
            let packet = || &slab[frame.offset..frame.offset + frame.len];
            let to = spread.and_then(|path_set| path_set.endpoint(packet(), *now)).unwrap_or(to);
            extend(transmits, to, ecn.of_frame(n, packet()), offset, len);
        }
        sealer.seal(slab, frames);
        if peer.activity.data_sent(*now, bytes) {
            shared.control.notify(Notice::Activity(peer.id));
        }
    }

    /// Keeps packets until there is a session. If no packets waited before, requests a handshake. From then on a
    /// handshake is in progress, until control has sent or dropped the packets.
    #[cold]
    fn wait(&mut self, peer: &PeerShared, frames: &mut [Frame]) -> Wait {
        let shared = self.shared;
        let mut waiting = peer.waiting.lock();
        // There may be a session by now. Control sends the waiting packets before it publishes the sealer.
        if let Some(sealer) = peer.sealer.load_full()
            && let Some(reserved) = sealer.reserve(self.now, frames.len())
        {
            return Wait::Session(sealer, reserved);
        }
        // There is no endpoint for an initiation, and no name that could still be resolved: only the peer can begin,
        // and by then these packets would be stale.
        if peer.way.load().is_none() && !peer.has_configured_endpoint.load(Ordering::Relaxed) {
            shared.dropped(peer, DropReason::NoEndpoint, frames.len());
            return Wait::NoEndpoint;
        }
        let first = waiting.is_empty();
        let packets = frames.iter().map(|frame| &self.slab[frame.offset..frame.offset + frame.len]);
        let dropped = packets.map(|packet| waiting.push(packet, &shared.waiting_bytes)).sum();
        shared.dropped(peer, DropReason::StagingFull, dropped);
        if first {
            shared.control.want_handshake(peer);
        }
        Wait::Kept
    }
}

/// The result for packets without a sealer.
enum Wait {
    /// They wait.
    Kept,
    /// They were dropped.
    NoEndpoint,
    /// There is a session by now.
    Session(Arc<Sealer>, Reserved),
}

/// Sends the sealed datagrams for `peers`. The kernel tells only the total number of refused datagrams. A peer is
/// charged with them if the batch has no other peer.
pub(crate) fn send<'a>(
    network: &mut dyn Network,
    slab: &[u8],
    transmits: &[Transmit],
    peers: impl Iterator<Item = &'a PeerShared> + Clone,
    shared: &Shared,
) {
    let sent = network.send(slab, transmits);
    shared.drops.count(DropReason::SendFailed, sent.failed);
    if sent.failed > 0
        && let Some(only) = peers.clone().next()
        && peers.clone().all(|peer| peer.id == only.id)
    {
        only.drops.count(DropReason::SendFailed, sent.failed);
    }
    if sent.source_lost > 0 {
        peers.for_each(PeerShared::forget_source);
    }
}

/// Adds a datagram to the last transmit if it continues it; otherwise starts another transmit.
pub(super) fn extend(transmits: &mut Vec<Transmit>, to: Endpoint, ds: u8, offset: usize, len: usize) {
    if let Some(Transmit { to: last_to, segments: last, ds: last_ds }) = transmits.last_mut()
        && *last_to == to
        && *last_ds == ds
        && last.last_len == last.len
        && len <= last.len
        && offset == last.offset + last.count * last.stride
    {
        last.count += 1;
        last.last_len = len;
        return;
    }
    let segments = Segments { offset, stride: len, count: 1, len, last_len: len };
    transmits.push(Transmit { to, segments, ds });
}

#[cfg(test)]
mod tests {
    use super::*;
    use rustguard_core::node::PeerId;

    /// A slab with packets of these bytes, 16 of each.
    fn packets(bytes: impl IntoIterator<Item = u8>) -> (Vec<u8>, Vec<Frame>) {
        let (mut slab, mut frames) = (Vec::new(), Vec::new());
        for byte in bytes {
            slab.resize(slab.len() + HEADER_LEN, 0);
            frames.push(Frame { offset: slab.len(), len: 16, counter: 0 });
            slab.resize(slab.len() + 16, byte);
            slab.resize(slab.len() + TAG_LEN, 0);
        }
        (slab, frames)
    }

    /// The lane of the worker.
    const LANE: Lane = Lane { number: 2, port: 99, workers: 2 };

    /// Seals a run that goes directly to its peer.
    fn seal(
        slab: &mut [u8],
        transmits: &mut Vec<Transmit>,
        shared: &Shared,
        now: Instant,
        peer: &PeerShared,
        frames: &mut [Frame],
    ) {
        let table = Table::default();
        let lane = Some(LANE);
        Batch { slab, transmits, relayed: None, parities: None, lane, table: &table, now, shared }.seal(
            peer,
            frames,
            Ecn::Packets,
        );
    }

    #[test]
    fn packets_without_a_session_wait_in_order_and_one_wish_is_told_for_all() {
        let (shared, mut inbox) = crate::shared::testing::shared(2);
        let peer = PeerShared::new(PeerId(1), rustguard_crypto::x25519::PublicKey([1; 32]), Arc::default());
        let now = Instant::from_nanos(0);
        let wait = |bytes: std::ops::Range<u8>| {
            let ((mut slab, mut frames), mut transmits) = (packets(bytes), Vec::new());
            seal(&mut slab, &mut transmits, &shared, now, &peer, &mut frames);
            assert!(transmits.is_empty(), "there is no session");
        };
        wait(0..3);
        assert_eq!(shared.drops.snapshot(), [(DropReason::NoEndpoint, 3)], "nobody could be asked for a session");
        peer.has_configured_endpoint.store(true, Ordering::Relaxed);
        for _ in 0..100 {
            wait(0..10);
        }
        wait(10..20);
        assert_eq!(shared.drops.snapshot()[1], (DropReason::StagingFull, 1_010 - 128));
        assert_eq!(inbox.from_workers.handshake_requests.try_recv(), Ok(PeerId(1)));
        assert!(inbox.from_workers.handshake_requests.try_recv().is_err(), "nor while control looks at it");
        // Control clears the flag before it acts, and there is no second request while packets wait.
        peer.handshake_wanted.store(false, Ordering::Release);
        wait(20..30);
        assert!(
            inbox.from_workers.handshake_requests.try_recv().is_err(),
            "a handshake is under way for as long as packets wait"
        );
        let mut waiting = peer.waiting.lock();
        let order: Vec<u8> =
            std::iter::from_fn(|| waiting.pop(&shared.waiting_bytes)).map(|packet| packet[0]).collect();
        drop(waiting);
        assert_eq!(order[108..], (10..30).collect::<Vec<_>>());
        wait(0..1);
        assert_eq!(inbox.from_workers.handshake_requests.try_recv(), Ok(PeerId(1)));
    }

    #[test]
    fn a_packet_that_meets_the_beginning_of_a_session_leaves_behind_what_waited() {
        let (shared, mut inbox) = crate::shared::testing::shared(2);
        let peer = PeerShared::new(PeerId(1), rustguard_crypto::x25519::PublicKey([1; 32]), Arc::default());
        peer.way.store(Some(Arc::new(Endpoint::new("192.0.2.1:1".parse().unwrap()).into())));
        let now = Instant::from_nanos(1_000_000_000);
        let (sealer, _) = crate::shared::testing::session(7, now);
        std::thread::scope(|scope| {
            // Control's part: it takes the lock before the worker finds that there is no sealer.
            let waiting = peer.waiting.lock();
            let worker = scope.spawn(|| {
                let ((mut slab, mut frames), mut transmits) = (packets(0..3), Vec::new());
                seal(&mut slab, &mut transmits, &shared, now, &peer, &mut frames);
                (frames[0].counter, transmits.len())
            });
            // Whether or not the worker waits for the lock now, its packets must come after these.
            sealer.reserve(now, 100).expect("the session is new");
            peer.sealer.store(Some(Arc::new(sealer)));
            drop(waiting);
            assert_eq!(worker.join().expect("it has sealed"), (100, 1));
        });
        assert!(peer.waiting.lock().is_empty(), "nothing is left behind");
        assert!(inbox.from_workers.handshake_requests.try_recv().is_err());
    }

    #[test]
    fn a_lane_is_used_in_its_session_and_at_the_address_where_it_was_acknowledged() {
        use crate::session_lanes::InUse;
        use rustguard_core::lanes::{Lanes, lane_of};

        let (shared, mut inbox) = crate::shared::testing::shared(2);
        let mut now = Instant::from_nanos(1_000_000_000);
        let peer = PeerShared::new(PeerId(1), rustguard_crypto::x25519::PublicKey([1; 32]), Arc::default());
        let [here, elsewhere] = [1, 2].map(|n| Endpoint::new(([192, 0, 2, n], 1).into()));
        let sealers = [7, 8].map(|index| Arc::new(crate::shared::testing::session(index, now).0));
        let counters = Arc::new(Lanes::of(&sealers[0], 2).unwrap());
        // The lane of a run of `packets` packets, and its local port.
        let mut sent = |sealer: usize, at: Endpoint, packets: usize| {
            peer.sealer.store(Some(Arc::clone(&sealers[sealer])));
            peer.way.store(Some(Arc::new(at.into())));
            let ((mut slab, mut frames), mut transmits) = (self::packets(std::iter::repeat_n(0, packets)), Vec::new());
            seal(&mut slab, &mut transmits, &shared, now, &peer, &mut frames);
            assert_eq!((transmits.len(), transmits[0].to.remote), (1, at.remote));
            now = now + std::time::Duration::from_secs(2);
            let mut wanted = 0;
            while let Ok(notice) = inbox.from_workers.notices.try_recv() {
                wanted += usize::from(matches!(notice, Notice::LanesWanted(PeerId(1))));
            }
            (lane_of(frames[0].counter), transmits[0].to.local_port, wanted)
        };
        assert_eq!([sent(0, here, 15), sent(0, here, 16), sent(0, here, 99)], [(0, 0, 0), (0, 0, 1), (0, 0, 1)]);
        peer.lanes.store(Some(Arc::new(InUse { lanes: Arc::clone(&counters), at: here })));
        assert_eq!([sent(0, here, 1), sent(0, here, 99)], [(2, 99, 0); 2]);
        assert_eq!(sent(0, elsewhere, 16), (0, 0, 1), "the peer has moved");
        assert_eq!(sent(0, here, 16), (2, 99, 0), "and is back");
        assert_eq!(sent(1, here, 16), (0, 0, 1), "another session");
        assert_eq!(counters.taken(), 1 + 99 + 16);
    }

    #[test]
    fn each_flow_has_one_path_and_all_paths_have_flows() {
        use crate::path_set::PathSet;
        use rustguard_core::paths::{Address, Choice, Share};
        use std::collections::HashMap;

        let (shared, _inbox) = crate::shared::testing::shared(2);
        let now = Instant::from_nanos(1_000_000_000);
        let (sealer, _) = crate::shared::testing::session(7, now);
        let peer = PeerShared::new(PeerId(1), rustguard_crypto::x25519::PublicKey([1; 32]), Arc::default());
        peer.sealer.store(Some(Arc::new(sealer)));
        let place = |n| Address::new(([192, 0, 2, n], 1).into());
        peer.way.store(Some(Arc::new(Endpoint::new(place(9).remote).into())));
        let share = |path, weight| (Share { path, weight }, place(path).into());
        let choice = Choice { spread: vec![share(3, 1), share(5, 3)], ..Choice::default() };
        peer.path_set.store(PathSet::new(&choice, Some(&Arc::default())).map(Arc::new));
        // UDP packets of eight flows in turn, 40 bytes each, between header and tag.
        let stride = HEADER_LEN + 48 + TAG_LEN;
        let mut slab = vec![0; 64 * stride];
        let mut frames = Vec::new();
        for n in 0..64 {
            let offset = n * stride + HEADER_LEN;
            slab[offset] = 0x45;
            (slab[offset + 3], slab[offset + 9], slab[offset + 21]) = (40, 17, n as u8 % 8);
            frames.push(Frame { offset, len: 48, counter: 0 });
        }
        let mut transmits = Vec::new();
        seal(&mut slab, &mut transmits, &shared, now, &peer, &mut frames);
        let mut paths = HashMap::new();
        for Transmit { to, segments, .. } in &transmits {
            for piece in segments.pieces() {
                let flow = piece.offset / stride % 8;
                assert_eq!(*paths.entry(flow).or_insert(to.remote), to.remote, "flow {flow}");
            }
        }
        let by = |n| paths.values().filter(|remote| **remote == place(n).remote).count();
        assert_eq!((by(3), by(5)), (2, 6), "as the weights say");
    }

    #[test]
    fn equal_datagrams_side_by_side_become_one_transmit_and_a_short_one_or_another_codepoint_ends_it() {
        let a = Endpoint::new("192.0.2.1:1".parse().unwrap());
        let b = Endpoint::new("192.0.2.2:1".parse().unwrap());
        let mut out = Vec::new();
        for (to, ds, offset, len) in [
            (a, 0, 0, 100),
            (a, 0, 100, 100),
            (a, 0, 200, 60),
            (a, 0, 260, 60),
            (b, 0, 320, 60),
            (b, 0, 380, 80),
            (b, 2, 460, 80),
            (b, 2, 540, 80),
        ] {
            extend(&mut out, to, ds, offset, len);
        }
        let seg = |offset, stride, count, last_len| Segments { offset, stride, count, len: stride, last_len };
        assert_eq!(
            out,
            [
                Transmit { to: a, segments: seg(0, 100, 3, 60), ds: 0 },
                Transmit { to: a, segments: seg(260, 60, 1, 60), ds: 0 },
                Transmit { to: b, segments: seg(320, 60, 1, 60), ds: 0 },
                Transmit { to: b, segments: seg(380, 80, 1, 80), ds: 0 },
                Transmit { to: b, segments: seg(460, 80, 2, 80), ds: 2 },
            ]
        );
    }

    #[test]
    fn datagrams_with_a_gap_between_them_stay_apart() {
        let a = Endpoint::new("192.0.2.1:1".parse().unwrap());
        let mut out = Vec::new();
        extend(&mut out, a, 0, 0, 100);
        extend(&mut out, a, 0, 116, 100);
        assert_eq!(out.len(), 2);
    }
}
