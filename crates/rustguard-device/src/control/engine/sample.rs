//! The signals about a link that a routing engine gets from WireGuard's counters: the peer was heard, data flows, data
//! stays unanswered.

use crate::shared::peer::PeerShared;
use portable_atomic::Ordering::Relaxed;
use rustguard_core::{routing::Signal, time::Instant};
use std::time::Duration;

/// The engine is told of data that has had no answer for this time. With the questions that follow, a lost peer is
/// given up within a second.
const UNANSWERED: Duration = Duration::from_millis(300);
/// A sample with more bytes shows that a link carries traffic: a keepalive and a handshake are less.
const TRAFFIC: u64 = 300;

/// A peer's counters at the last look.
#[derive(Default)]
pub(super) struct Sample {
    rx: u64,
    tx: u64,
    overhead_rx: u64,
    overhead_tx: u64,
    /// When data last came.
    data: Option<Instant>,
    /// Unanswered data was reported. It is not reported again until something is heard.
    unanswered: bool,
    /// The way leads through another peer.
    relayed: bool,
    /// There was data at the last look, however little.
    moved: bool,
}

impl Sample {
    /// As [`look`](Self::look), with another time after which data counts as unanswered. Unanswered data is reported
    /// again while more is sent.
    pub(super) fn look_closely(
        &mut self,
        shared: &PeerShared,
        overhead_tx: u64,
        unanswered: Duration,
        now: Instant,
    ) -> [Option<Signal>; 3] {
        let before = self.tx - self.overhead_tx;
        let signals = self.look_for(shared, overhead_tx, unanswered, now);
        self.unanswered &= self.tx - self.overhead_tx == before;
        signals
    }

    /// Reports a change if the way now leads through another peer, or no longer does.
    pub(super) fn look_at_way(&mut self, shared: &PeerShared) -> Option<Signal> {
        let relayed = shared.relayed_by().is_some();
        (std::mem::replace(&mut self.relayed, relayed) != relayed).then_some(Signal::Relayed(relayed))
    }

    /// Whether there was data between the last two looks.
    pub(super) fn moved(&self) -> bool {
        self.moved
    }

    /// The signals since the last call. The engine's packets and probes do not count as traffic: otherwise probing
    /// would make an idle link look busy.
    pub(super) fn look(&mut self, shared: &PeerShared, overhead_tx: u64, now: Instant) -> [Option<Signal>; 3] {
        self.look_for(shared, overhead_tx, UNANSWERED, now)
    }

    fn look_for(
        &mut self,
        shared: &PeerShared,
        overhead_tx: u64,
        patience: Duration,
        now: Instant,
    ) -> [Option<Signal>; 3] {
        let rx = shared.activity.rx_bytes();
        let tx = shared.activity.tx_bytes();
        let overhead_rx = shared.overhead_rx.load(Relaxed);
        let heard = rx != self.rx;
        let data = shared.activity.data_received_at().filter(|&at| self.data != Some(at));
        let data = data.filter(|_| rx - self.rx > overhead_rx - self.overhead_rx);
        self.data = shared.activity.data_received_at();
        let all = (rx - self.rx) + (tx - self.tx);
        let talk = (overhead_rx - self.overhead_rx) + (overhead_tx - self.overhead_tx);
        let carried = all.saturating_sub(talk) >= TRAFFIC;
        self.moved = all > talk;
        let since = shared.activity.unanswered_since();
        let unanswered = !heard && since.is_some_and(|since| now.since(since) >= patience);
        let told = std::mem::replace(&mut self.unanswered, unanswered);
        (self.rx, self.tx, self.overhead_rx, self.overhead_tx) = (rx, tx, overhead_rx, overhead_tx);
        [
            heard.then_some(Signal::Heard { data }),
            carried.then_some(Signal::Carried),
            (unanswered && !told).then_some(Signal::Unanswered),
        ]
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use rustguard_core::node::PeerId;
    use rustguard_crypto::x25519::PublicKey;
    use std::sync::Arc;

    const NOTHING: [Option<Signal>; 3] = [None, None, None];

    fn at(ms: u64) -> Instant {
        Instant::from_nanos(1 << 40) + Duration::from_millis(ms)
    }

    fn peer() -> PeerShared {
        PeerShared::new(PeerId(1), PublicKey([1; 32]), Arc::default())
    }

    #[test]
    fn what_an_engine_sends_and_gets_is_no_traffic() {
        let (shared, mut sample, mut overhead_tx) = (peer(), Sample::default(), 0);
        assert_eq!(sample.look(&shared, overhead_tx, at(0)), NOTHING);
        for ms in [1, 2] {
            let _ = shared.activity.data_received(at(ms), 4_000);
            shared.overhead_rx.fetch_add(4_000, Relaxed);
            let _ = shared.activity.data_sent(at(ms), 5_000);
            overhead_tx += 5_000;
            let _ = shared.activity.data_received(at(ms), TRAFFIC - 1);
            assert_eq!(
                sample.look(&shared, overhead_tx, at(ms)),
                [Some(Signal::Heard { data: Some(at(ms)) }), None, None],
                "both ways, and less than counts"
            );
        }
        let _ = shared.activity.data_sent(at(3), TRAFFIC);
        assert_eq!(sample.look(&shared, overhead_tx, at(3)), [None, Some(Signal::Carried), None]);
        assert_eq!(sample.look(&shared, overhead_tx, at(3)), NOTHING, "once");
    }

    #[test]
    fn a_close_look_tells_again_while_more_is_sent() {
        let (shared, mut sample) = (peer(), Sample::default());
        let look = |sample: &mut Sample, ms, overhead| {
            let [heard, _, unanswered] = sample.look_closely(&shared, overhead, Duration::from_millis(250), at(ms));
            assert_eq!(heard, None);
            unanswered.is_some()
        };
        let _ = shared.activity.data_sent(at(0), 100);
        let looks = [look(&mut sample, 200, 0), look(&mut sample, 300, 0), look(&mut sample, 400, 0)];
        assert_eq!(looks, [false, true, false]);
        let _ = shared.activity.data_sent(at(450), 100);
        assert!(!look(&mut sample, 500, 0), "with the next look after the one that sees it");
        assert!(look(&mut sample, 600, 0));
        let _ = shared.activity.data_sent(at(650), 64);
        assert!(!look(&mut sample, 700, 64) && !look(&mut sample, 800, 64), "the engine's own question");
    }

    #[test]
    fn data_without_an_answer_is_told_once() {
        let (shared, mut sample) = (peer(), Sample::default());
        let unanswered = [None, None, Some(Signal::Unanswered)];
        let _ = shared.activity.data_sent(at(0), 100);
        assert_eq!(sample.look(&shared, 0, at(299)), NOTHING);
        assert_eq!(sample.look(&shared, 0, at(300)), unanswered);
        assert_eq!(sample.look(&shared, 0, at(900)), NOTHING, "known already");
        shared.activity.keepalive_received(at(1_000), 32);
        let _ = shared.activity.data_sent(at(1_001), 100);
        // This look came late; something was heard since the last one.
        assert_eq!(sample.look(&shared, 0, at(1_600)), [Some(Signal::Heard { data: None }), None, None], "no data");
        assert_eq!(sample.look(&shared, 0, at(1_800)), unanswered, "again");
    }
}
