//! The receiver's side: packets are kept for a while, and parities until nothing is missing.

use super::{Cover, LONGEST, add};
use alloc::{boxed::Box, vec};

/// How many packets are kept: a parity may arrive this many packets late.
const PACKETS: usize = 256;
/// How many parities are kept while more than one of their packets is missing.
const PARITIES: usize = 32;
/// The counter of an empty place. No packet has it.
const NONE: u64 = u64::MAX;

/// The last packets of a session, and the parities that wait for packets. It takes about 430 KB of memory, from the
/// first packet on, and never more.
#[derive(Debug, Default)]
pub struct Kept {
    packets: Places,
    parities: Places,
    /// The missing packets of each parity that is kept.
    missing: [Option<Cover>; PARITIES],
    /// The place of the next parity.
    next: usize,
}

/// A packet that was rebuilt from a parity.
#[derive(Debug, PartialEq, Eq)]
pub struct Rebuilt<'a> {
    /// The counter of the packet.
    pub counter: u64,
    /// Its text. Zeros may follow the original text.
    pub text: &'a [u8],
}

impl Kept {
    /// Keeps the text of a packet that was opened and accepted by the replay window. If a parity now lacks only one
    /// packet, returns that packet.
    pub fn packet(&mut self, counter: u64, text: &[u8]) -> Option<Rebuilt<'_>> {
        if text.len() > LONGEST {
            return None;
        }
        self.packets.put(PACKETS, (counter % PACKETS as u64) as usize, counter, text);
        let mut complete = None;
        for (place, missing) in self.missing.iter_mut().enumerate() {
            if let Some(cover) = missing.as_mut().filter(|cover| cover.contains(counter)) {
                cover.remove(counter);
                self.parities.add(place, text);
                if cover.count() <= 1 {
                    complete = missing.take().map(|cover| (place, cover));
                }
            }
        }
        let (place, cover) = complete?;
        self.rebuilt(place, cover)
    }

    /// Takes a parity that was opened. Returns the packet that can be rebuilt from it now.
    pub fn parity(&mut self, mut cover: Cover, text: &[u8]) -> Option<Rebuilt<'_>> {
        if text.len() > LONGEST {
            return None;
        }
        let place = self.next;
        self.parities.put(PARITIES, place, NONE, text);
        for counter in cover.counters() {
            if let Some(packet) = self.packets.get((counter % PACKETS as u64) as usize, counter) {
                self.parities.add(place, packet);
                cover.remove(counter);
            }
        }
        // This place may have had a parity that was never used.
        self.missing[place] = (cover.count() > 1).then_some(cover);
        if self.missing[place].is_some() {
            self.next = (place + 1) % PARITIES;
            return None;
        }
        self.rebuilt(place, cover)
    }

    fn rebuilt(&self, place: usize, missing: Cover) -> Option<Rebuilt<'_>> {
        let counter = missing.counters().next()?;
        Some(Rebuilt { counter, text: self.parities.get(place, NONE)? })
    }
}

/// Places for texts. They take memory from the first text on.
#[derive(Debug, Default)]
struct Places {
    /// The counter and the length of each text.
    heads: Box<[(u64, u16)]>,
    texts: Box<[u8]>,
}

impl Places {
    fn put(&mut self, places: usize, place: usize, counter: u64, text: &[u8]) {
        if self.heads.is_empty() {
            self.heads = vec![(NONE, 0); places].into();
            self.texts = vec![0; places * LONGEST].into();
        }
        self.heads[place] = (counter, text.len() as u16);
        self.texts[place * LONGEST..][..text.len()].copy_from_slice(text);
    }

    /// The text with this counter, if it is there.
    fn get(&self, place: usize, counter: u64) -> Option<&[u8]> {
        let &(_, len) = self.heads.get(place).filter(|(of, _)| *of == counter)?;
        Some(&self.texts[place * LONGEST..][..len.into()])
    }

    fn add(&mut self, place: usize, text: &[u8]) {
        let len = self.heads[place].1.into();
        add(&mut self.texts[place * LONGEST..][..len], text);
    }
}
