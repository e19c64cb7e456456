//! What control remembers of our own address on the way to one peer.

use crate::kernel::Way;
use rustguard_core::node::PeerId;
use rustguard_tun::{Endpoint, LocalAddr};

/// Interfaces that are remembered for each peer.
const LED: usize = 4;

/// Why the route to a peer is to be asked for.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub(in crate::control) enum Due {
    /// It is not.
    #[default]
    No,
    /// It is new.
    Learned,
    /// The network has changed.
    Changed,
}

/// What is known of our address towards one peer.
#[derive(Debug, Default)]
pub(in crate::control) struct Source {
    pub(super) due: Due,
    /// The address that was checked last.
    pub(super) checked: Option<LocalAddr>,
    /// The interfaces by which our route to the peer has led, the newest first: the peer uses their addresses because we did.
    pub(super) led: [u32; LED],
    /// The peer has sent a handshake message to an address that is not used any more.
    pub(super) doubted: bool,
    /// Bytes sent at the last change of the network.
    pub(super) sent: u64,
}

impl Source {
    pub(super) fn leads_by(&mut self, interface: u32) {
        if !self.led.contains(&interface) {
            self.led.rotate_right(1);
            self.led[0] = interface;
        }
    }
}

/// What the kernel said about a batch; empty when it is time for the next one.
pub(in crate::control) type SourceAnswers = Vec<SourceAnswer>;

pub(in crate::control) struct SourceAnswer {
    pub(super) peer: PeerId,
    pub(super) cause: Due,
    pub(super) asked: Endpoint,
    pub(super) local: LocalAddr,
    pub(super) way: Way,
}
