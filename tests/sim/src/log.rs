//! A record of the events of one speaker in a mesh. A new speaker that gets the same events acts in the same way,
//! without the mesh.
use ipnet::IpNet;
use rand::{SeedableRng as _, rngs::StdRng};
use rustguard_babel::{Babel, Config};
use rustguard_core::{
    node::PeerId,
    routing::{Action, Event, PeerRoutes, RoutingEngine as _, Signal},
    time::Instant,
};

/// The events of one node since its last start.
pub struct Log {
    node: usize,
    start: Option<(Config, u64)>,
    events: Vec<(Instant, Told)>,
}

/// An [`Event`] that owns its content.
enum Told {
    Peer(PeerId, PeerRoutes),
    Removed(PeerId),
    Packet(PeerId, Vec<u8>),
    Signal(PeerId, Signal),
    Announce(IpNet, u16),
    Withdraw(IpNet),
    Time,
}

impl Log {
    /// A log for [`Sim::log`](crate::Sim::log): it records the events of `node` from its next start on.
    pub fn of(node: usize) -> Self {
        Self { node, start: None, events: Vec::new() }
    }

    /// The speaker as it was before its first event.
    ///
    /// # Panics
    /// If the node was not started.
    pub fn newborn(&self) -> Babel {
        let (config, seed) = self.start.clone().expect("a node that was started");
        Babel::new(config, &mut StdRng::seed_from_u64(seed))
    }

    /// Gives `engine` the recorded events from number `from` on that happened before `until`. `called` gets each call.
    /// It has to run the call, and gets the resulting actions. Returns the number of the next event.
    pub fn replay(
        &self,
        engine: &mut Babel,
        from: usize,
        until: Instant,
        mut called: impl FnMut(&mut dyn FnMut() -> Vec<Action>),
    ) -> usize {
        let part = &self.events[from..];
        let part = &part[..part.partition_point(|(at, _)| *at < until)];
        for (at, told) in part {
            let mut call = || {
                let mut out = Vec::new();
                engine.handle(told.event(), *at, &mut out);
                // The owner of an engine asks for its deadline after each call.
                std::hint::black_box(engine.deadline());
                out
            };
            called(&mut call);
        }
        from + part.len()
    }

    pub(crate) fn node(&self) -> usize {
        self.node
    }

    pub(crate) fn started(&mut self, config: Config, seed: u64) {
        (self.start, self.events) = (Some((config, seed)), Vec::new());
    }

    pub(crate) fn told(&mut self, event: Event<'_>, now: Instant) {
        self.events.push((now, Told::of(event)));
    }
}

impl Told {
    fn of(event: Event<'_>) -> Self {
        match event {
            Event::Peer { peer, config } => Self::Peer(peer, config.clone()),
            Event::PeerRemoved { peer } => Self::Removed(peer),
            Event::Packet { peer, packet } => Self::Packet(peer, packet.to_vec()),
            Event::Signal { peer, signal } => Self::Signal(peer, signal),
            Event::Announce { prefix, metric } => Self::Announce(prefix, metric),
            Event::Withdraw { prefix } => Self::Withdraw(prefix),
            Event::Time => Self::Time,
            other => unreachable!("the simulation tells no {other:?}"),
        }
    }

    fn event(&self) -> Event<'_> {
        match self {
            Self::Peer(peer, config) => Event::Peer { peer: *peer, config },
            Self::Removed(peer) => Event::PeerRemoved { peer: *peer },
            Self::Packet(peer, packet) => Event::Packet { peer: *peer, packet },
            Self::Signal(peer, signal) => Event::Signal { peer: *peer, signal: *signal },
            Self::Announce(prefix, metric) => Event::Announce { prefix: *prefix, metric: *metric },
            Self::Withdraw(prefix) => Event::Withdraw { prefix: *prefix },
            Self::Time => Event::Time,
        }
    }
}

#[cfg(test)]
mod tests {
    use crate::{ItemKind, Log, Sim};
    use rustguard_core::{routing::RoutingEngine as _, time::Instant};
    use std::time::Duration;

    #[test]
    fn what_is_lived_again_ends_the_same() {
        let mut sim = Sim::new(3, &[(0, 1), (1, 2), (0, 2)], 7);
        sim.push(Duration::from_millis(1), ItemKind::Traffic);
        sim.log = Some(Log::of(0));
        sim.run(Duration::from_secs(3));
        sim.start(0);
        sim.run(Duration::from_secs(3));
        sim.set_link(0, 1, false);
        sim.run(Duration::from_secs(9));
        let log = sim.log.take().expect("what was put there");
        let mut again = log.newborn();
        let mut calls = 0;
        let half = log.replay(&mut again, 0, log.events[log.events.len() / 2].0, |call| {
            call();
            calls += 1;
        });
        assert_eq!(half, calls);
        let end = log.replay(&mut again, half, Instant::from_nanos(u64::MAX), |call| drop(call()));
        assert_eq!(end, log.events.len());
        let lived = sim.nodes[0].engine.as_ref().expect("it runs");
        assert_eq!(format!("{again:?}"), format!("{lived:?}"));
        assert!(again.deadline().is_some() && again.routes().count() == 3);
    }
}
