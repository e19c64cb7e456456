//! Control's memory of the way to one peer, and of our own address on it.

use crate::kernel::{Egress, Exit};
use rustguard_core::{node::PeerId, time::Instant};
use rustguard_tun::{Endpoint, LocalAddr};
use std::net::IpAddr;

/// Interfaces that are remembered for each peer.
const LED: usize = 4;

/// Why the route to a peer is to be asked for.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub(in crate::control) enum Due {
    /// It is not to be asked for.
    #[default]
    No,
    /// The way or our address is new.
    Learned,
    /// The network has changed.
    Changed,
}

/// The facts about our address towards one peer.
#[derive(Debug, Default)]
pub(in crate::control) struct Source {
    pub(in crate::control) due: Due,
    /// The address that was checked last.
    pub(in crate::control) checked: Option<LocalAddr>,
    /// The interfaces by which our route to the peer has led, the newest first: the peer uses their addresses because
    /// we used them.
    pub(in crate::control) led: [u32; LED],
    /// The peer has sent a handshake message to an address that is not used any more.
    pub(in crate::control) doubted: bool,
    /// Bytes sent at the last change of the network.
    pub(in crate::control) sent: u64,
    /// The peer's address, and the exit of datagrams to it; no exit if there was no route.
    exit: Option<(IpAddr, Option<Exit>)>,
    /// When the peer was last greeted, or will be.
    pub(in crate::control) greeted: Option<Instant>,
}

impl Source {
    pub(in crate::control) fn leads_by(&mut self, interface: u32) {
        if !self.led.contains(&interface) {
            self.led.rotate_right(1);
            self.led[0] = interface;
        }
    }

    /// Datagrams to `remote` leave by this exit now. Returns whether they left by another exit before, or by none. An
    /// exit that was not known before is no change. The kernel is asked at the first initiation, and whenever a peer is
    /// heard from a new address; so the routes and rules of the tunnel's own set-up, a moment later, are no change.
    pub(in crate::control) fn leaves_by(&mut self, remote: IpAddr, exit: Option<Exit>) -> bool {
        let before = self.exit.replace((remote, exit));
        exit.is_some() && before.is_some_and(|(known, before)| known == remote && before != exit)
    }

    /// Whether the exit of datagrams to `remote` is known.
    pub(in crate::control) fn knows_exit(&self, remote: IpAddr) -> bool {
        self.exit.is_some_and(|(known, _)| known == remote)
    }
}

/// A question to the kernel about a peer.
#[derive(Clone, Copy)]
pub(in crate::control) struct Question {
    /// The endpoint in use.
    pub(in crate::control) endpoint: Endpoint,
    /// Our address there, which may have been given up; none where it does not depend on routes.
    pub(in crate::control) local: Option<LocalAddr>,
}

/// The kernel's answers to a batch; empty when it is time for the next batch.
pub(in crate::control) type SourceAnswers = Vec<SourceAnswer>;

pub(in crate::control) struct SourceAnswer {
    pub(in crate::control) peer: PeerId,
    pub(in crate::control) cause: Due,
    pub(in crate::control) question: Question,
    /// The way from the address of ours in the question, if there is one.
    pub(in crate::control) from_local: Option<Egress>,
    /// The way from the address that the kernel chooses, by the interface to which the endpoint may be bound.
    pub(in crate::control) way: Egress,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_a_way_that_was_known_can_change() {
        let remote = IpAddr::from([192, 0, 2, 1]);
        let by = |interface| Some(Exit { interface, gateway: None, source: None });
        let mut source = Source::default();
        let steps = [
            // The first answer, as after the tunnel's own set-up.
            (by(1), false),
            (by(1), false),
            (by(2), true),
            (None, false),
            (by(2), true),
        ];
        for (exit, changed) in steps {
            assert_eq!(source.leaves_by(remote, exit), changed, "{exit:?}");
        }
        assert!(!source.leaves_by([192, 0, 2, 2].into(), by(1)), "the peer is at another address");
    }
}
