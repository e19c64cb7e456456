//! All passive clients, ordered by their deadlines. There may be thousands, each heard five times a second, so an event
//! of one client must not examine all of them.
use crate::client::Client;
use ipnet::IpNet;
use rustguard_core::{node::PeerId, time::Instant};
use std::collections::{BTreeMap, BTreeSet};

/// A map of clients with their deadlines in order.
///
/// A deadline that moves to a later time stays in the order until its old time, which costs one unnecessary look. (The
/// deadline for silence moves whenever a client is heard.) A client that was borrowed to be changed may have an earlier
/// deadline afterwards: [`Clients::refresh`] has to be called before the order is used.
#[derive(Debug, Default)]
pub(crate) struct Clients {
    map: BTreeMap<PeerId, Scheduled>,
    order: BTreeSet<(Instant, PeerId)>,
    touched: Vec<PeerId>,
}

#[derive(Debug)]
struct Scheduled {
    client: Client,
    /// The deadline in the order.
    deadline: Option<Instant>,
}

impl Clients {
    pub(crate) fn get(&self, peer: &PeerId) -> Option<&Client> {
        self.map.get(peer).map(|known| &known.client)
    }

    pub(crate) fn get_mut(&mut self, peer: &PeerId) -> Option<&mut Client> {
        if self.touched.last() != Some(peer) {
            self.touched.push(*peer);
        }
        self.map.get_mut(peer).map(|known| &mut known.client)
    }

    /// Sets the client's prefixes, and whether it stays a client while it talks to another gateway. Its other state
    /// does not change.
    pub(crate) fn set(&mut self, peer: PeerId, prefixes: Vec<IpNet>, stays: bool) {
        let new = || Scheduled { client: Client::new(Vec::new()), deadline: None };
        let client = &mut self.map.entry(peer).or_insert_with(new).client;
        (client.prefixes, client.stays) = (prefixes, stays);
    }

    pub(crate) fn remove(&mut self, peer: &PeerId) -> Option<Client> {
        let known = self.map.remove(peer)?;
        if let Some(at) = known.deadline {
            self.order.remove(&(at, *peer));
        }
        Some(known.client)
    }

    /// Brings the order up to date.
    pub(crate) fn refresh(&mut self) {
        while let Some(peer) = self.touched.pop() {
            let Some(known) = self.map.get_mut(&peer) else { continue };
            let Some(at) = known.client.deadline().filter(|&at| known.deadline.is_none_or(|before| at < before)) else {
                continue;
            };
            if let Some(before) = known.deadline.replace(at) {
                self.order.remove(&(before, peer));
            }
            self.order.insert((at, peer));
        }
    }

    /// Not later than the first deadline.
    pub(crate) fn deadline(&self) -> Option<Instant> {
        debug_assert!(self.touched.is_empty(), "the order is not up to date");
        self.order.first().map(|&(at, _)| at)
    }

    /// The next client whose deadline has passed.
    pub(crate) fn due(&mut self, now: Instant) -> Option<(PeerId, &mut Client)> {
        let &(at, peer) = self.order.first().filter(|(at, _)| *at <= now)?;
        self.order.remove(&(at, peer));
        self.touched.push(peer);
        let known = self.map.get_mut(&peer)?;
        known.deadline = None;
        Some((peer, &mut known.client))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::jitter::Jitter;
    use core::time::Duration;

    /// Compares the order with a look at all clients.
    #[test]
    fn all_clients_that_are_due_are_found() {
        let (mut clients, mut random, mut now) = (Clients::default(), Jitter(5), Instant::from_nanos(1 << 40));
        for step in 0..5_000 {
            now = now + Duration::from_millis(random.next() % 400);
            let peer = PeerId((random.next() % 20) as u32);
            match random.next() % 6 {
                0 => drop(clients.remove(&peer)),
                1 => clients.set(peer, Vec::new(), false),
                2 => drop(clients.get_mut(&peer).map(|client| client.contested(now))),
                3 => drop(clients.get_mut(&peer).map(Client::lost)),
                _ => drop(clients.get_mut(&peer).map(|client| client.heard(Some(now), now))),
            }
            clients.refresh();
            let mut looks = 0;
            while let Some((_, client)) = clients.due(now) {
                client.tick(now);
                looks += 1;
            }
            assert!(looks <= 20, "each once");
            clients.refresh();
            let first = clients.map.values().filter_map(|known| known.client.deadline()).min();
            assert!(first.is_none_or(|first| first > now), "step {step}: somebody was passed over");
            assert!(clients.deadline().is_none_or(|at| at > now), "step {step}");
            assert!(first.is_none_or(|first| clients.deadline().is_some_and(|at| at <= first)), "step {step}");
            assert!(clients.order.len() <= clients.map.len(), "step {step}");
        }
    }
}
