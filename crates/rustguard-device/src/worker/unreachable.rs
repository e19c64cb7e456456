//! Tells the host at once, by ICMP, that no peer has an address or that a peer cannot be reached, as the kernel's
//! WireGuard does. Programs fail with "no route to host" and do not wait for a timeout.
//!
//! Only packets from the TUN are answered. A peer's packet for an address that no peer has goes to the host. Where the
//! host forwards it, the packet comes back here, and the peer gets the answer too. Packets that a worker relays to a
//! peer without an endpoint are dropped and counted.
//!
//! The answer comes from the address that cannot be reached. If the source were one of the host's own addresses, the
//! host would drop the answer as a martian; any other source could fail a reverse-path filter.
//!
//! Multicast and broadcast for which there is no peer are neither answered nor counted: every host sends some to every
//! interface. For the same reason, a peer's multicast from outside its allowed IPs has a drop reason of its own.

use super::lanes::Lanes;
use crate::{drops::DropReason, shared::Shared};
use rustguard_core::{
    icmp,
    limit::{Bucket, Rate},
    packet::IpHead,
    time::Instant,
};
use std::{io, time::Duration};

/// Answers of one worker. The kernel allows 50 at once and 1,000 a second in total, and 1 a second to one sender.
const RATE: Rate = Rate { interval: Duration::from_millis(10), burst: 50 };

/// The answers that may still be sent, and a buffer for them.
pub(super) struct Unreachable {
    bucket: Bucket,
    answer: Box<[u8; icmp::MAX_LEN]>,
}

impl Default for Unreachable {
    fn default() -> Self {
        Self { bucket: Bucket::default(), answer: Box::new([0; icmp::MAX_LEN]) }
    }
}

impl Unreachable {
    /// Answers a packet of the host, if the standards allow it and the rate limit is not reached.
    ///
    /// # Errors
    /// When the TUN is gone.
    #[cold]
    pub(super) fn tell(
        &mut self,
        packet: &[u8],
        head: &IpHead,
        lanes: &mut Lanes,
        now: Instant,
        shared: &Shared,
    ) -> io::Result<()> {
        if icmp::may_answer(packet, head) && self.bucket.take(RATE, now) {
            let len = icmp::unreachable(packet, head, &mut self.answer);
            let refused = lanes.answer(&mut self.answer[..len])?;
            shared.drops.count(DropReason::HostRefused, refused);
        }
        Ok(())
    }
}
