//! The UDP ports of the sockets, including ports of lanes, for the workers.

use portable_atomic::{AtomicU16, Ordering};
use rustguard_tun::udp::{MAX_LANES, MAX_PORTS};

/// One or several ports. They may change while workers read them.
#[derive(Default)]
pub(crate) struct ListenPorts {
    first: AtomicU16,
    /// The other ports, followed by 0.
    more: [AtomicU16; MAX_PORTS - 1 + MAX_LANES],
}

impl ListenPorts {
    pub(crate) fn new(first: u16, more: &[u16]) -> Self {
        let ports = Self::default();
        ports.set(first, more);
        ports
    }

    pub(crate) fn set(&self, first: u16, more: &[u16]) {
        self.first.store(first, Ordering::Relaxed);
        for (place, port) in self.more.iter().zip(more.iter().copied().chain(std::iter::repeat(0))) {
            place.store(port, Ordering::Relaxed);
        }
    }

    /// Whether `port` is one of the ports.
    pub(crate) fn has(&self, port: u16) -> bool {
        let mut more = self.more.iter().map(|place| place.load(Ordering::Relaxed)).take_while(|more| *more != 0);
        self.first.load(Ordering::Relaxed) == port || more.any(|more| more == port)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn all_ports_are_known_and_those_that_went_are_not() {
        let ports = ListenPorts::new(1, &[2, 3]);
        assert_eq!([0, 1, 2, 3, 4].map(|port| ports.has(port)), [false, true, true, true, false]);
        let most: Vec<u16> = (2..16).collect();
        ports.set(1, &most[..MAX_PORTS - 1 + MAX_LANES - 1]);
        assert!((1..16).all(|port| ports.has(port)), "with the ports of lanes");
        ports.set(4, &[]);
        assert_eq!([0, 1, 2, 3, 4].map(|port| ports.has(port)), [false, false, false, false, true]);
    }
}
