//! Packets that wait for a session. They are limited for each peer, and for all peers together.
//!
//! Each peer has its own queue behind a lock ([`PeerShared::waiting`](crate::shared::peer::PeerShared::waiting)).
//! Workers take the lock only if they find no usable sealer. Control holds the same lock while it sends the waiting
//! packets and publishes the new sealer. A worker looks for a sealer once more under the lock. Therefore no packet
//! overtakes an older one, and none is left in the queue. A worker that receives the first packet of a session that the
//! peer has initiated publishes the session's sealer under the same lock, if no packets wait.

use rustguard_core::{
    session::Sealer,
    staging::{LIMIT, Staged},
};
use std::sync::{
    Arc,
    atomic::{AtomicUsize, Ordering},
};

/// The number of bytes that may wait for all peers together. All packets share one half, in which 85 peers can have 128
/// packets of 1,420 bytes each. The other half is for packets that are their peer's only waiting packet, and has room
/// for 11,000 more peers.
const LIMIT_BYTES: usize = 32 << 20;
/// The bytes that a packet takes in addition to its length: its place in the queue, and the allocator's overhead.
const PER_PACKET: usize = 48;

/// The number of bytes that wait for all peers together.
#[derive(Default)]
pub(crate) struct WaitingBytes(AtomicUsize);

impl WaitingBytes {
    /// Reserves room for a packet. `only` means that no other packet of its peer waits. Without room, the packet is
    /// lost, but the handshake continues.
    fn take(&self, bytes: usize, only: bool) -> bool {
        let limit = if only { LIMIT_BYTES } else { LIMIT_BYTES / 2 };
        let take = |used: usize| (used + bytes <= limit).then_some(used + bytes);
        self.0.fetch_update(Ordering::Relaxed, Ordering::Relaxed, take).is_ok()
    }

    fn give_back(&self, bytes: usize) {
        self.0.fetch_sub(bytes, Ordering::Relaxed);
    }
}

/// The waiting packets of one peer.
#[derive(Default)]
pub(crate) struct Waiting {
    packets: Staged,
    bytes: usize,
    /// The sealer of a session that the peer has initiated and not used yet, and the index of its opener. All code
    /// that sets a sealer also clears this field, so that a worker never returns to an older sealer.
    pub(crate) next: Option<(u32, Arc<Sealer>)>,
    /// Whether the peer was removed. A worker may see an older table until the end of its batch, and must then leave
    /// no packet here.
    closed: bool,
}

impl Waiting {
    /// Adds a packet. If there is no room, it replaces the oldest packets. Returns the number of dropped packets.
    pub(crate) fn push(&mut self, packet: &[u8], room: &WaitingBytes) -> usize {
        let mut dropped = 0;
        let bytes = packet.len() + PER_PACKET;
        while self.closed || self.packets.len() >= LIMIT || !room.take(bytes, self.packets.is_empty()) {
            dropped += 1;
            if self.pop(room).is_none() {
                return dropped;
            }
        }
        self.bytes += bytes;
        self.packets.push(packet.into());
        dropped
    }

    /// Takes the oldest packet.
    pub(crate) fn pop(&mut self, room: &WaitingBytes) -> Option<Box<[u8]>> {
        let packet = self.packets.pop()?;
        let bytes = packet.len() + PER_PACKET;
        self.bytes -= bytes;
        room.give_back(bytes);
        Some(packet)
    }

    /// Whether no packet waits.
    pub(crate) fn is_empty(&self) -> bool {
        self.packets.is_empty()
    }

    /// Drops all packets. Returns their number.
    pub(crate) fn clear(&mut self, room: &WaitingBytes) -> usize {
        room.give_back(std::mem::take(&mut self.bytes));
        self.packets.clear()
    }

    /// Drops all packets and every later one. Returns the number of packets that waited.
    pub(crate) fn close(&mut self, room: &WaitingBytes) -> usize {
        self.closed = true;
        self.next = None;
        self.clear(room)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_oldest_goes_first_and_a_closed_queue_takes_nothing() {
        let (room, mut waiting) = (WaitingBytes::default(), Waiting::default());
        for n in 0..200_u8 {
            assert_eq!(waiting.push(&[n; 10], &room), usize::from(n >= 128));
        }
        assert_eq!(waiting.pop(&room).as_deref(), Some(&[72; 10][..]));
        assert_eq!(waiting.close(&room), 127);
        assert_eq!(waiting.push(&[0; 10], &room), 1);
        assert!(waiting.is_empty());
        assert_eq!(room.0.into_inner(), 0, "all room is given back");
    }

    #[test]
    fn many_silent_peers_leave_room_for_a_packet_of_another_and_all_together_have_an_end() {
        let room = WaitingBytes::default();
        let mut peers: Vec<_> = (0..11_000).map(|_| Waiting::default()).collect();
        let mut push = |peer: usize| {
            let dropped = peers[peer].push(&[0; 1_420], &room);
            assert!(room.0.load(Ordering::Relaxed) <= LIMIT_BYTES);
            (dropped, peers[peer].packets.len())
        };
        for n in 0..1_000 {
            for _ in 0..200 {
                push(n);
            }
        }
        assert_eq!(push(0), (128, 1), "its older ones make room for others");
        for n in 1_000..11_000 {
            assert_eq!(push(n), (0, 1));
        }
        let held: usize = peers.iter().map(|peer| peer.bytes).sum();
        assert_eq!(held, room.0.load(Ordering::Relaxed));
        while Waiting::default().push(&[0; 1_420], &room) == 0 {}
        assert!(LIMIT_BYTES - room.0.load(Ordering::Relaxed) < 1_500);
    }
}
