//! Later fragments of a packet pass if the first fragment has passed.
//!
//! Each worker has its own table, because all fragments of a packet come to one worker. The table has 1,024 places. A
//! keyed hash assigns 16 of them to each peer, for its newest packets.

use rustguard_core::{dissect::FragmentId, node::PeerId, time::Instant};
use std::{
    hash::{BuildHasher, RandomState},
    time::Duration,
};

const PLACES: usize = 1_024;
const OF_A_PEER: usize = 16;
/// As long as Linux keeps fragments (`ipfrag_time`).
const TIME: Duration = Duration::from_secs(30);

/// First fragments that have passed.
pub(super) struct Fragments {
    places: Box<[Option<First>]>,
    hasher: RandomState,
}

#[derive(Clone, Copy)]
struct First {
    peer: PeerId,
    id: FragmentId,
    /// Where the first fragment ends, in bytes of the packet.
    end: u32,
    at: Instant,
    generation: u32,
}

impl Default for Fragments {
    fn default() -> Self {
        Self { places: vec![None; PLACES].into(), hasher: RandomState::new() }
    }
}

impl Fragments {
    /// Notes whether a first fragment has passed.
    pub(super) fn first(
        &mut self,
        peer: PeerId,
        id: FragmentId,
        end: u32,
        passed: bool,
        generation: u32,
        now: Instant,
    ) {
        let place = self.place(peer, &id);
        if passed {
            *place = Some(First { peer, id, end, at: now, generation });
        } else if place.is_some_and(|first| first.peer == peer && first.id == id) {
            *place = None;
        }
    }

    /// Whether a later fragment that begins at `offset` may pass. It must not overlap the first: an overlap can change
    /// a header after the check (RFC 1858, RFC 5722).
    pub(super) fn later(&mut self, peer: PeerId, id: FragmentId, offset: u32, generation: u32, now: Instant) -> bool {
        self.place(peer, &id).is_some_and(|first| {
            let same = first.peer == peer && first.id == id && first.generation == generation;
            same && offset >= first.end && now.since(first.at) < TIME
        })
    }

    fn place(&mut self, peer: PeerId, id: &FragmentId) -> &mut Option<First> {
        let group = self.hasher.hash_one(peer) as usize % (PLACES / OF_A_PEER);
        let place = self.hasher.hash_one(id) as usize % OF_A_PEER;
        &mut self.places[group * OF_A_PEER + place]
    }
}
