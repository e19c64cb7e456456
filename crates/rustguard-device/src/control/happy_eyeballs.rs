//! Sending an initiation more than once before the node makes the next.
//!
//! A name often has an IPv4 and an IPv6 address, and one of them may not work. An initiation goes to the preferred
//! address, and the same datagram to the other addresses, a quarter of a second apart each, until there is an answer
//! ([RFC 8305][], sections 4 and 5). The peer answers the copy that arrives first, and takes the others for replays.
//! The source of the answer becomes the endpoint. The other addresses are kept: an initiation without an answer is
//! raced again.
//!
//! Through a relay, the first initiation of an attempt is repeated a few times, with doubling pauses. Members of a
//! network learn of each other from a roster, one a moment before the other: an initiation to a member that does not
//! know us yet is dropped, and the node makes no other initiation within Rekey-Timeout. The same holds for a relay that
//! does not know the peer yet. In such networks both ends run RustGuard.
//!
//! [RFC 8305]: https://www.rfc-editor.org/rfc/rfc8305

use super::{Control, handshake::HANDSHAKE_DS, tasks::Task, timer::now};
use crate::way::Way;
use rustguard_core::{node::PeerId, time::Instant};
use rustguard_tun::Endpoint;
use std::{collections::VecDeque, net::SocketAddr, sync::Arc, time::Duration};

/// The number of a name's addresses that are tried. An initiation is 148 bytes, and is repeated after five seconds.
const MOST: usize = 6;
/// The pause between two addresses: the Connection Attempt Delay of RFC 8305, section 5.
const PAUSE: Duration = Duration::from_millis(250);
/// The pause before each repetition through a relay. If the round trip is longer, the first repetition is useless but
/// does no harm.
const BEFORE_REPETITIONS: [Duration; 3] =
    [Duration::from_millis(250), Duration::from_millis(500), Duration::from_millis(1_000)];

/// The addresses of one peer's endpoint, and the initiation that is under way.
#[derive(Default)]
pub(super) struct Race {
    /// All addresses, in the order of preference.
    addresses: Vec<SocketAddr>,
    /// The address that answered last.
    winner: Option<SocketAddr>,
    running: Option<Running>,
}

struct Running {
    initiation: Box<[u8]>,
    turns: VecDeque<Turn>,
}

/// The same datagram once more.
struct Turn {
    /// The time since the last datagram.
    after: Duration,
    way: Way,
}

impl Race {
    /// Takes the addresses of the name, in the order in which the resolver prefers them, and returns them in the order
    /// in which they are tried.
    pub(super) fn resolved(&mut self, addresses: &[SocketAddr]) -> &[SocketAddr] {
        self.addresses = interleaved(addresses);
        &self.addresses
    }
}

impl Control {
    /// An initiation is sent by these ways. The other addresses of the endpoint's name get it too, unless the endpoint
    /// has answered before and this is the first attempt. In the first attempt, relays get it again.
    pub(super) fn race(&mut self, peer: PeerId, initiation: &[u8], attempt: u32, ways: &[Way]) {
        self.end_race(peer);
        let Some(entry) = self.peers.get_mut(&peer) else { return };
        let first = entry.endpoint().map(|endpoint| endpoint.remote);
        let mut turns = VecDeque::new();
        if let Some(race) = &entry.race
            && first.is_some()
            && (attempt > 0 || race.winner != first)
        {
            let others = race.addresses.iter().filter(|&&other| Some(other) != first);
            turns.extend(others.map(|&other| Turn { after: PAUSE, way: Way::Direct(Endpoint::new(other)) }));
        }
        if attempt == 0 {
            let relays = || ways.iter().copied().filter(|way| matches!(way, Way::Relayed(_)));
            for pause in BEFORE_REPETITIONS {
                turns.extend(relays().enumerate().map(|(n, way)| Turn { after: pause * u32::from(n == 0), way }));
            }
        }
        if let Some(next) = turns.front() {
            self.tasks.set(peer, Task::HappyEyeballs, now().instant + next.after);
            entry.race.get_or_insert_default().running = Some(Running { initiation: initiation.into(), turns });
        }
    }

    /// Sends the initiation to the next address.
    pub(super) fn next_address_due(&mut self, peer: PeerId, instant: Instant) {
        let Some(entry) = self.peers.get_mut(&peer) else { return };
        let Some(mut running) = entry.race.as_mut().and_then(|race| race.running.take()) else { return };
        let Some(Turn { way, .. }) = running.turns.pop_front() else { return };
        entry.count_sent(running.initiation.len());
        let shared = Arc::clone(&entry.shared);
        if let Some(next) = running.turns.front() {
            self.tasks.set(peer, Task::HappyEyeballs, instant + next.after);
        }
        self.transmit_to(&shared, way, HANDSHAKE_DS, &running.initiation);
        let Some(entry) = self.peers.get_mut(&peer) else { return };
        match &mut entry.race {
            Some(race) if !running.turns.is_empty() => race.running = Some(running),
            Some(race) if race.addresses.is_empty() => entry.race = None,
            _ => {}
        }
    }

    /// A handshake is complete: the source of the answer is now the endpoint.
    pub(super) fn race_won(&mut self, peer: PeerId) {
        self.end_race(peer);
        let Some(entry) = self.peers.get_mut(&peer) else { return };
        let winner = entry.endpoint().map(|endpoint| endpoint.remote);
        match &mut entry.race {
            // It existed only for the repetitions. A member of a network has a thousand peers.
            Some(race) if race.addresses.is_empty() => entry.race = None,
            Some(race) => race.winner = winner,
            None => {}
        }
    }

    /// The peer's endpoints have changed.
    pub(super) fn forget_race(&mut self, peer: PeerId) {
        self.end_race(peer);
        if let Some(entry) = self.peers.get_mut(&peer) {
            entry.race = None;
        }
    }

    fn end_race(&mut self, peer: PeerId) {
        self.tasks.cancel(peer, Task::HappyEyeballs);
        if let Some(race) = self.peers.get_mut(&peer).and_then(|entry| entry.race.as_mut()) {
            race.running = None;
        }
    }
}

/// The order of RFC 8305, section 4: the families take turns, beginning with the family of the preferred address.
fn interleaved(addresses: &[SocketAddr]) -> Vec<SocketAddr> {
    let mut order: Vec<SocketAddr> = Vec::new();
    let Some(preferred) = addresses.first().map(SocketAddr::is_ipv6) else { return order };
    let (mut first, mut second): (VecDeque<_>, VecDeque<_>) =
        addresses.iter().partition(|it| it.is_ipv6() == preferred);
    while order.len() < MOST
        && let Some(address) = first.pop_front().or_else(|| second.pop_front())
    {
        if !order.contains(&address) {
            order.push(address);
            if !second.is_empty() {
                std::mem::swap(&mut first, &mut second);
            }
        }
    }
    order
}

#[cfg(test)]
mod tests {
    use super::*;

    fn addresses(texts: &[&str]) -> Vec<SocketAddr> {
        texts.iter().map(|text| text.parse().unwrap()).collect()
    }

    #[test]
    fn families_take_turns_and_only_so_many_addresses_have_one() {
        let order = |texts: &[&str]| interleaved(&addresses(texts));
        let mixed = ["[fd00::1]:1", "[fd00::2]:1", "192.0.2.1:1", "[fd00::1]:1", "[fd00::3]:1", "192.0.2.2:1"];
        let expected = ["[fd00::1]:1", "192.0.2.1:1", "[fd00::2]:1", "192.0.2.2:1", "[fd00::3]:1"];
        assert_eq!(order(&mixed), addresses(&expected));
        assert_eq!(order(&["192.0.2.1:1", "[fd00::1]:1"]), addresses(&["192.0.2.1:1", "[fd00::1]:1"]));
        assert_eq!(order(&[]), []);
        let many: Vec<_> = (1..=50).map(|n| format!("192.0.2.{n}:1")).collect();
        let many: Vec<_> = many.iter().map(String::as_str).collect();
        assert_eq!(order(&many), addresses(&many[..MOST]));
    }
}
