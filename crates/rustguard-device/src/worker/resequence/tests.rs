use super::*;
use rustguard_tun::memory::{self, MemoryHost};

const BEGIN: Instant = Instant::from_nanos(1_000_000_000);
const MS: Duration = Duration::from_millis(1);

/// The waiting packets of a worker, and its host.
struct Lab {
    resequence: Resequence,
    lanes: Lanes,
    host: MemoryHost,
    now: Instant,
}

impl Lab {
    fn new() -> Self {
        let (tun, host) = memory::tun().expect("two eventfds");
        host.set_timeout(Some(Duration::ZERO)).expect("it cannot fail");
        Self { resequence: Resequence::default(), lanes: Lanes::of(vec![tun]), host, now: BEGIN }
    }

    fn watched(&mut self, peer: u32, session: u32, overtaken: bool, first: u64) -> Option<usize> {
        self.resequence.watched((PeerId(peer), 0), session, overtaken, || Some(first), self.now)
    }

    /// Makes a peer watched from its first counter on.
    fn watch(&mut self, peer: u32) -> usize {
        (0..RUNS).find_map(|_| self.watched(peer, peer, true, 0)).expect("it is watched")
    }

    /// Takes a packet of a watched peer. Returns whether it is to be delivered at once.
    fn take(&mut self, watched: usize, counter: u64, len: usize) -> bool {
        self.resequence.take(watched, counter, &packet(counter, len), self.now)
    }

    /// The counters of the packets that are released now.
    fn released(&mut self) -> Vec<u64> {
        assert_eq!(self.resequence.release(&mut self.lanes, self.now).expect("the host is there"), 0);
        let mut buffer = [0; 4_096];
        let number = |packet: &[u8]| u64::from_be_bytes(*packet.last_chunk().expect("a number"));
        std::iter::from_fn(|| self.host.recv(&mut buffer).ok().map(|n| number(&buffer[..n]))).collect()
    }

    /// Two thousand packets, one each 100 µs. Three packets overtake every fourth one. The last counter is 1,999.
    fn disorder(&mut self, watched: usize) {
        for four in 0..500 {
            for counter in [1, 2, 3, 0].map(|n| four * 4 + n) {
                self.now = self.now + MS / 10;
                self.take(watched, counter, 1_000);
                self.released();
            }
        }
        assert_eq!(self.resequence.deadline(), None, "nothing is held");
    }
}

/// A UDP packet of a flow, with a number at its end.
fn packet(number: u64, len: usize) -> Vec<u8> {
    let mut packet = vec![0; len];
    (packet[0], packet[9]) = (0x45, 17);
    packet[2..4].copy_from_slice(&(len as u16).to_be_bytes());
    packet[12..24].copy_from_slice(&[10, 0, 0, 1, 10, 0, 0, 2, 1, 2, 3, 4]);
    packet[len - 8..].copy_from_slice(&number.to_be_bytes());
    packet
}

#[test]
fn a_peer_is_watched_from_a_few_overtaken_packets_until_it_is_idle_and_then_has_a_rest() {
    let mut lab = Lab::new();
    assert_eq!(lab.watched(1, 7, false, 0), None);
    assert!(lab.resequence.peers.is_empty());
    for _ in 1..RUNS {
        assert_eq!(lab.watched(1, 7, true, 0), None, "control's packets");
    }
    lab.now = lab.now + SUSPECTED;
    lab.released();
    assert!(lab.resequence.peers.is_empty());
    for _ in 1..RUNS {
        assert_eq!((lab.watched(1, 7, true, 0), lab.watched(1, 7, false, 0)), (None, None));
    }
    assert_eq!(lab.watched(1, 7, true, 0), Some(0));
    assert_eq!(lab.watched(1, 7, false, 1), Some(0));
    assert_eq!(lab.watched(2, 8, false, 1), None, "another peer");
    lab.now = lab.now + 5_000 * MS;
    lab.released();
    assert_eq!(lab.watched(1, 7, true, 2), None, "it was for nothing");
    lab.now = lab.now + REST;
    lab.released();
    assert!(lab.resequence.peers.is_empty());
    assert_eq!(lab.watch(1), 0);
}

#[test]
fn packets_that_come_too_early_are_copied_and_come_out_in_order() {
    let mut lab = Lab::new();
    let watched = lab.watch(1);
    lab.disorder(watched);
    assert!(!lab.take(watched, 2_002, 1_000) && !lab.take(watched, 2_001, 1_000));
    assert_eq!(lab.released(), [0; 0]);
    assert!(lab.take(watched, 2_000, 1_000));
    assert_eq!(lab.released(), [2_001, 2_002]);
    // One is lost.
    assert!(!lab.take(watched, 2_004, 1_000));
    let deadline = lab.resequence.deadline().expect("a packet is held");
    assert!(deadline.since(lab.now) <= rustguard_core::resequence::LONGEST);
    lab.now = deadline;
    assert_eq!(lab.released(), [2_004]);
    assert_eq!(lab.resequence.store.free.len(), lab.resequence.store.slab.len() / PLACE, "all places are free");
}

#[test]
fn gaps_of_one_peer_delay_no_other() {
    let mut lab = Lab::new();
    let [liar, honest] = [1, 2].map(|peer| lab.watch(peer));
    [liar, honest].into_iter().for_each(|watched| lab.disorder(watched));
    for n in 0..300 {
        // Only every second counter arrives.
        lab.take(liar, 2_001 + 2 * n, 1_000);
        assert!(lab.take(honest, 2_000 + n, 1_000));
        lab.released();
    }
    assert!(lab.resequence.deadline().is_some(), "the liar's packets wait");
}

#[test]
fn a_peer_has_its_share_of_a_bounded_memory() {
    let mut lab = Lab::new();
    let mut held = Vec::new();
    for peer in 0..3 {
        let watched = lab.watch(peer);
        lab.disorder(watched);
        held.push(watched);
    }
    // 2,000 is missing.
    let mut taken = |watched| (0..600).filter(|n| !lab.take(watched, 2_001 + n, 1_000)).count();
    assert_eq!([0, 1, 2].map(|n| taken(held[n])), [PLACES_OF_A_PEER, PLACES - PLACES_OF_A_PEER, 0]);
    assert_eq!(lab.resequence.store.slab.len(), PLACES * PLACE);
}

#[test]
fn what_is_too_long_or_of_no_flow_does_not_wait() {
    let mut lab = Lab::new();
    let watched = lab.watch(1);
    lab.disorder(watched);
    assert!(lab.take(watched, 2_001, PLACE + 1));
    let mut echo = packet(2_002, 1_000);
    echo[9] = 1;
    assert!(lab.resequence.take(watched, 2_002, &echo, lab.now));
    assert!(!lab.take(watched, 2_003, PLACE));
}

#[test]
fn only_so_many_peers_are_watched() {
    let mut lab = Lab::new();
    for peer in 0..PEERS as u32 {
        lab.watch(peer);
    }
    assert!((0..RUNS).all(|_| lab.watched(99, 99, true, 0).is_none()));
}
