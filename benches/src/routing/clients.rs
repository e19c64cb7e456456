//! The cost of an event of a passive client for its gateway's speaker, by the number of clients. Each client is heard
//! five times a second, and the speaker is asked for its deadline after each event, as the device does.

use super::Pace;
use crate::figures::Figures;
use rand::{SeedableRng as _, rngs::StdRng};
use rustguard_babel::{Babel, Config};
use rustguard_core::{
    node::PeerId,
    routing::{Event, PeerRoutes, Role, RoutingEngine as _, Signal},
    time::Instant,
};
use rustguard_sim::{key, prefix};
use std::{hint::black_box, time::Duration};

/// The rows of this file.
pub(super) fn measure(pace: &Pace, figures: &mut Figures) {
    for (number, clients) in [("1,000", 1_000), ("10,000", 10_000)] {
        let mut gateway = Gateway::new(clients);
        // The clients appear, and are announced with the normal metric a second later.
        for _ in 0..15 {
            gateway.all_are_heard();
        }
        let each = (0..pace.rounds.max(3)).map(|_| gateway.all_are_heard().as_secs_f64() * 1e6 / f64::from(clients));
        figures.add(format!("one client of {number} is heard, µs"), each.collect::<Vec<_>>());
    }
}

struct Gateway {
    babel: Babel,
    clients: u32,
    now: Instant,
}

impl Gateway {
    fn new(clients: u32) -> Self {
        let babel = Babel::new(Config::new(key(0)), &mut StdRng::seed_from_u64(1));
        let mut gateway = Self { babel, clients, now: Instant::from_nanos(1 << 50) };
        for n in 0..clients {
            let config = PeerRoutes { allowed_ips: vec![prefix(n as usize)], role: Role::Client };
            gateway.tell(Event::Peer { peer: PeerId(n), config: &config });
        }
        gateway
    }

    fn tell(&mut self, event: Event<'_>) {
        let mut out = Vec::new();
        self.babel.handle(event, self.now, &mut out);
        black_box((out, self.babel.deadline()));
    }

    /// Lets 200 ms pass. Returns the time of the calls.
    fn all_are_heard(&mut self) -> Duration {
        let until = self.now + Duration::from_millis(200);
        let started = std::time::Instant::now();
        while let Some(at) = self.babel.deadline().filter(|&at| at < until) {
            self.now = self.now.max(at);
            self.tell(Event::Time);
        }
        self.now = until;
        for n in 0..self.clients {
            self.tell(Event::Signal { peer: PeerId(n), signal: Signal::Heard { data: Some(self.now) } });
        }
        started.elapsed()
    }
}
