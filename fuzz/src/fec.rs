//! Parities and their packets, as a peer may send them.

use rustguard_core::{
    fec::{Cover, Group, Kept, LONGEST, SIZES},
    time::Instant,
};
use std::{collections::HashMap, time::Duration};

/// Reads the first byte as a size, and the others as steps of two ends: packets that arrive or are lost, parities of
/// the sender, and parities that a hostile peer has invented.
///
/// A packet rebuilt from the parities of an honest sender equals the sent packet. A packet rebuilt from other parities
/// is not longer than a packet may be.
pub fn fec(bytes: &[u8]) {
    let Some((&first, mut steps)) = bytes.split_first() else { return };
    let size = SIZES.start() + first % (SIZES.end() - SIZES.start() + 1);
    let (mut group, mut kept) = (Group::new(size), Kept::default());
    let (mut sent, mut now, mut honest) = (HashMap::new(), Instant::from_nanos(0), true);
    for counter in 0_u64.. {
        let Some((&[kind, len], after)) = steps.split_first_chunk::<2>() else { return };
        let (text, after) = after.split_at(after.len().min(len.into()));
        steps = after;
        let check = |counter: u64, made: &[u8], sent: &HashMap<u64, Vec<u8>>| {
            assert!(made.len() <= LONGEST);
            if honest {
                let original = &sent[&counter];
                assert_eq!(&made[..original.len()], original);
                assert!(made[original.len()..].iter().all(|byte| *byte == 0));
            }
        };
        match kind % 8 {
            // A parity of a hostile peer.
            0 => {
                let mark =
                    text.iter().fold(1 << 63, |mark: u64, byte| mark.rotate_left(5) ^ u64::from(*byte)) | 1 << 63;
                honest = false;
                let cover = Cover::of(mark).expect("the mark is there");
                assert!(Cover::of(cover.counter()) == Some(cover));
                let _ = kept.parity(cover, text).map(|made| assert!(made.text.len() <= LONGEST));
            }
            1 => now = now + Duration::from_millis(len.into()),
            kind => {
                sent.insert(counter, text.to_vec());
                let parity = group.add(counter, text, now).map(|parity| (parity.counter, parity.text.to_vec()));
                if kind > 2
                    && let Some(made) = kept.packet(counter, text)
                {
                    check(made.counter, made.text, &sent);
                }
                if let Some((counter, text)) = parity
                    && let Some(made) = kept.parity(Cover::of(counter).expect("a parity"), &text)
                {
                    check(made.counter, made.text, &sent);
                }
            }
        }
    }
}
