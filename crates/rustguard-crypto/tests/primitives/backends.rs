//! Each backend against the other: both must seal alike, and each must open the other's packets.
//!
//! Deterministic: the cases come from a fixed seed. `PROPTEST_RNG_SEED` gives another, `PROPTEST_CASES` their number.
#![cfg(all(feature = "portable", feature = "aws-lc"))]

use proptest::{collection::vec, prelude::*, test_runner::RngSeed};
use rustguard_crypto::{
    aead::{Frame, TAG_LEN},
    backend::{Aead, DiffieHellman, aws_lc, portable},
    x25519::{PublicKey, StaticSecret},
};

fn config() -> ProptestConfig {
    let config = ProptestConfig { failure_persistence: None, ..ProptestConfig::default() };
    let rng_seed = match config.rng_seed {
        RngSeed::Random => RngSeed::Fixed(0x5275_7374_4775_6172),
        chosen => chosen,
    };
    ProptestConfig { rng_seed, ..config }
}

/// Every length up to 2,048: all the ways to end in the middle of a block of ChaCha20 or Poly1305, at every SIMD width.
#[test]
fn aead_of_every_length() {
    let key = [0x42; 32];
    let (portable, aws_lc) = (portable::Key::new(&key), aws_lc::Key::new(&key));
    for len in 0..=2048 {
        let plain: Vec<u8> = (0..len).map(|i| (i * 7 + len) as u8).collect();
        let nonce = [(len % 256) as u8; 12];
        let aad = &plain[..len % 33];

        let (mut here, mut there) = (plain.clone(), plain.clone());
        let tag = portable.seal_packet(&nonce, aad, &mut here);
        assert_eq!(tag, aws_lc.seal_packet(&nonce, aad, &mut there), "tag at length {len}");
        assert_eq!(here, there, "text at length {len}");

        assert_eq!(portable.open_packet(&nonce, aad, &mut there, &tag), Ok(()), "length {len}");
        assert_eq!(aws_lc.open_packet(&nonce, aad, &mut here, &tag), Ok(()), "length {len}");
        assert!(here == plain && there == plain, "length {len}");
    }
}

/// A slab of random bytes and a run of frames of random lengths in it, with random gaps.
fn run() -> impl Strategy<Value = (Vec<u8>, Vec<Frame>)> {
    vec((0usize..40, 0usize..=2048, any::<u64>()), 0..24).prop_flat_map(|shapes| {
        let mut end = 0;
        let frames: Vec<Frame> = shapes
            .into_iter()
            .map(|(gap, len, counter)| {
                let offset = end + gap;
                end = offset + len + TAG_LEN;
                Frame { offset, len, counter }
            })
            .collect();
        (vec(any::<u8>(), end), Just(frames))
    })
}

proptest! {
    #![proptest_config(config())]

    #[test]
    fn runs(key: [u8; 32], (plain, frames) in run(), damage in vec((any::<prop::sample::Index>(), 0..8u32), 0..4)) {
        let (portable, aws_lc) = (portable::Key::new(&key), aws_lc::Key::new(&key));

        let (mut here, mut there) = (plain.clone(), plain.clone());
        portable.seal_run(&mut here, &frames);
        aws_lc.seal_run(&mut there, &frames);
        prop_assert!(here == there, "sealed alike");

        // Damage at any place, or none: both must report the same frames as forged, and the others as authentic.
        let mut damaged = here.clone();
        if !damaged.is_empty() {
            for (place, bit) in damage {
                let place = place.index(damaged.len());
                damaged[place] ^= 1 << bit;
            }
        }
        let whole: Vec<bool> = frames.iter()
            .map(|frame| frame.offset..frame.offset + frame.len + TAG_LEN)
            .map(|range| damaged[range.clone()] == here[range])
            .collect();

        let mut damaged_there = damaged.clone();
        let (mut opened_here, mut opened_there) = (vec![false; frames.len()], vec![true; frames.len()]);
        portable.open_run(&mut damaged, &frames, &mut opened_here);
        aws_lc.open_run(&mut damaged_there, &frames, &mut opened_there);
        prop_assert_eq!(&opened_here, &whole);
        prop_assert_eq!(&opened_there, &whole);
        for (frame, _) in frames.iter().zip(whole).filter(|(_, whole)| *whole) {
            let range = frame.offset..frame.offset + frame.len;
            prop_assert!(damaged[range.clone()] == plain[range.clone()]);
            prop_assert!(damaged_there[range.clone()] == plain[range]);
        }
    }

    /// Random bytes are a point of the curve or of its twist, each about half of the time.
    #[test]
    fn x25519(scalar: [u8; 32], point: [u8; 32]) {
        let scalar = StaticSecret::from_bytes(scalar).to_bytes();
        let (portable, aws_lc) =
            (portable::StaticSecret::from_clamped(&scalar), aws_lc::StaticSecret::from_clamped(&scalar));
        prop_assert_eq!(portable.to_bytes(), aws_lc.to_bytes());
        prop_assert_eq!(portable.public_key(), aws_lc.public_key());
        let shared = [portable.diffie_hellman(&PublicKey(point)), aws_lc.diffie_hellman(&PublicKey(point))];
        let shared = shared.map(|shared| shared.map(|shared| *shared.as_bytes()));
        prop_assert_eq!(shared[0], shared[1]);
    }
}
