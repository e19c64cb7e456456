//! Lines about peers for the log, at most one line for each peer and topic in [`PAUSE`].
//!
//! A peer can repeat an event as often as it likes: it may send from another port with every packet. The first line is
//! written at once. Later lines are counted, and the last of them is written when the pause is over.

use rustguard_core::{agenda::Agenda, node::PeerId, time::Instant};
use std::{collections::BTreeMap, fmt, time::Duration};

/// The time between two lines.
const PAUSE: Duration = Duration::from_secs(10);

/// The subject of a line.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Topic {
    /// The peer's endpoint.
    Endpoint,
    /// Whether the peer is reached directly, or the relay to it.
    Way,
    /// Our own address towards the peer.
    Source,
    /// Handshakes with the peer.
    Handshake,
    /// Source addresses of its packets that are not allowed.
    RefusedSource,
    /// Whether another machine has the peer's key, or ours.
    Twins,
    /// Whether long packets reach the peer.
    PathMtu,
    /// The problem with the connection to the peer.
    Problem,
    /// Whether the peer is a neighbour of the routing engine.
    Neighbour,
    /// The prefixes that go to the peer.
    Prefix,
    /// Whether this configured path works.
    Path(usize),
}

/// A line.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Line {
    /// The peer's name.
    pub(super) peer: String,
    /// It reports a failure.
    pub(super) bad: bool,
    pub(super) text: String,
}

/// The lines that were written, and those that are held back.
#[derive(Default)]
pub(super) struct PeerLog {
    told: BTreeMap<(PeerId, Topic), Told>,
    /// When held lines are to be written.
    due: Agenda<(PeerId, Topic)>,
}

struct Told {
    /// Until then no other line is written.
    until: Instant,
    /// The last line that was held back, and how many there were.
    held: Option<(Line, u64)>,
}

impl PeerLog {
    /// Returns the line if it is to be written now.
    pub(super) fn tell(&mut self, peer: PeerId, topic: Topic, line: Line, now: Instant) -> Option<Line> {
        let until = now + PAUSE;
        match self.told.get_mut(&(peer, topic)) {
            Some(told) if now < told.until || told.held.is_some() => {
                let before = told.held.take().map_or(0, |(_, count)| count);
                if before == 0 {
                    self.due.set((peer, topic), told.until);
                }
                told.held = Some((line, before + 1));
                None
            }
            told => {
                // A known entry is changed in place: there is at most one for each peer and topic.
                match told {
                    Some(told) => told.until = until,
                    None => drop(self.told.insert((peer, topic), Told { until, held: None })),
                }
                Some(line)
            }
        }
    }

    /// The next line whose pause is over.
    pub(super) fn next(&mut self, now: Instant) -> Option<Line> {
        while let Some(about) = self.due.take_due(now) {
            let Some(told) = self.told.get_mut(&about) else { continue };
            let Some((mut line, count)) = told.held.take() else { continue };
            told.until = now + PAUSE;
            if count > 1 {
                line.text = format!("{} (the last of {count} such changes in {} s)", line.text, PAUSE.as_secs());
            }
            return Some(line);
        }
        None
    }

    /// When a line is to be written.
    pub(super) fn deadline(&self) -> Option<Instant> {
        self.due.deadline()
    }

    /// The peer is gone: its lines that were held back are dropped.
    pub(super) fn forget(&mut self, peer: PeerId) {
        let of_peer = self.told.range((peer, Topic::Endpoint)..=(peer, Topic::Path(usize::MAX)));
        let keys: Vec<_> = of_peer.map(|(&key, _)| key).collect();
        for key in keys {
            self.told.remove(&key);
        }
        self.due.remove_range((peer, Topic::Endpoint)..=(peer, Topic::Path(usize::MAX)));
    }
}

impl Line {
    pub(super) fn new(peer: String, text: fmt::Arguments<'_>) -> Self {
        Self { peer, bad: false, text: text.to_string() }
    }

    pub(super) fn bad(peer: String, text: fmt::Arguments<'_>) -> Self {
        Self { bad: true, ..Self::new(peer, text) }
    }

    pub(super) fn write(&self) {
        let Self { peer, text, .. } = self;
        if self.bad { tracing::warn!(peer, "{text}") } else { tracing::info!(peer, "{text}") }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const AT: Instant = Instant::from_nanos(1_000_000_000);
    const MS: Duration = Duration::from_millis(1);
    const PEER: PeerId = PeerId(7);

    fn line(n: u32) -> Line {
        Line::new("laptop".to_owned(), format_args!("endpoint is 192.0.2.1:{n}"))
    }

    /// All lines that are due.
    fn due(log: &mut PeerLog, now: Instant) -> Vec<String> {
        std::iter::from_fn(|| log.next(now)).map(|line| line.text).collect()
    }

    #[test]
    fn a_peer_that_moves_with_every_packet_has_a_line_in_ten_seconds() {
        let mut log = PeerLog::default();
        let mut lines = Vec::new();
        for n in 0..60_000 {
            let now = AT + MS * n;
            lines.extend(log.tell(PEER, Topic::Endpoint, line(n), now).map(|line| line.text));
            lines.extend(due(&mut log, now));
        }
        lines.extend(due(&mut log, AT + Duration::from_secs(60)));
        assert_eq!(lines.len(), 7, "{lines:?}");
        assert_eq!(lines[0], "endpoint is 192.0.2.1:0");
        assert_eq!(lines[1], "endpoint is 192.0.2.1:10000 (the last of 10000 such changes in 10 s)");
        assert_eq!(lines[6], "endpoint is 192.0.2.1:59999 (the last of 9999 such changes in 10 s)");
        assert_eq!(log.deadline(), None);
        assert_eq!(log.told.len(), 1);
    }

    #[test]
    fn what_happens_now_and_then_is_told_at_once() {
        let mut log = PeerLog::default();
        for n in 0..5 {
            assert_eq!(log.tell(PEER, Topic::Endpoint, line(n), AT + PAUSE * n), Some(line(n)));
        }
        assert_eq!(log.deadline(), None, "nobody is woken for it");
        // One more line is written, unchanged, when the pause is over.
        let now = AT + PAUSE * 4 + MS;
        assert_eq!(log.tell(PEER, Topic::Endpoint, line(9), now), None);
        assert_eq!(log.deadline(), Some(AT + PAUSE * 5));
        assert_eq!(due(&mut log, AT + PAUSE * 5), [line(9).text]);
    }

    #[test]
    fn peers_and_topics_are_apart_and_a_peer_that_is_gone_leaves_nothing() {
        let mut log = PeerLog::default();
        let other = PeerId(8);
        for peer in [PEER, other] {
            for topic in [
                Topic::Endpoint,
                Topic::RefusedSource,
                Topic::Problem,
                Topic::Neighbour,
                Topic::Path(0),
                Topic::Path(6),
            ] {
                assert!(log.tell(peer, topic, line(1), AT).is_some());
                assert!(log.tell(peer, topic, line(2), AT).is_none());
            }
        }
        log.forget(PEER);
        assert_eq!((log.told.len(), log.due.len()), (6, 6));
        log.forget(other);
        assert_eq!((log.told.len(), log.deadline()), (0, None));
    }
}
