//! ChaCha20-Poly1305 of each backend against published vectors, runs of packets, and forgeries.

use hex_literal::hex;
use rustguard_crypto::{
    aead::{self, Forged, Frame, Key, TAG_LEN},
    backend::Aead,
};

/// Makes each of the generic tests a test of every backend that is built in.
macro_rules! for_each_backend {
    ($($test:ident),* $(,)?) => {
        #[cfg(feature = "portable")]
        mod portable {
            $(#[test] fn $test() { super::$test::<rustguard_crypto::backend::portable::Key>(); })*
        }

        #[cfg(feature = "aws-lc")]
        mod aws_lc {
            $(#[test] fn $test() { super::$test::<rustguard_crypto::backend::aws_lc::Key>(); })*
        }
    };
}

for_each_backend!(
    rfc8439_section_2_8_2,
    rfc8439_appendix_a_5,
    every_changed_bit_is_noticed,
    a_run_is_its_packets_one_by_one,
    a_forged_frame_disturbs_no_other,
    an_empty_run_does_nothing,
);

const SUNSCREEN: &[u8; 114] = b"Ladies and Gentlemen of the class of '99: \
    If I could offer you only one tip for the future, sunscreen would be it.";
const SUNSCREEN_KEY: [u8; 32] = hex!("808182838485868788898a8b8c8d8e8f909192939495969798999a9b9c9d9e9f");
const SUNSCREEN_AAD: [u8; 12] = hex!("50515253c0c1c2c3c4c5c6c7");

fn rfc8439_section_2_8_2<A: Aead>() {
    let key = A::new(&SUNSCREEN_KEY);
    let nonce = hex!("070000004041424344454647");
    let mut text = *SUNSCREEN;

    let tag = key.seal_packet(&nonce, &SUNSCREEN_AAD, &mut text);
    assert_eq!(
        text,
        hex!(
            "d31a8d34648e60db7b86afbc53ef7ec2a4aded51296e08fea9e2b5a736ee62d63dbea45e8ca9671282fafb69da92728b1a71de0a"
            "9e060b2905d6a5b67ecd3b3692ddbd7f2d778b8c9803aee328091b58fab324e4fad675945585808b4831d7bc3ff4def08e4b7a9d"
            "e576d26586cec64b6116"
        )
    );
    assert_eq!(tag, hex!("1ae10b594f09e26a7e902ecbd0600691"));

    assert_eq!(key.open_packet(&nonce, &SUNSCREEN_AAD, &mut text, &tag), Ok(()));
    assert_eq!(&text, SUNSCREEN);
}

const DRAFTS: &str = "Internet-Drafts are draft documents valid for a maximum of six months and may be updated, replaced, or \
    obsoleted by other documents at any time. It is inappropriate to use Internet-Drafts as reference material or to cite \
    them other than as /“work in progress./”";
const DRAFTS_KEY: [u8; 32] = hex!("1c9240a5eb55d38af333888604f6b5f0473917c1402b80099dca5cbc207075c0");
const DRAFTS_AAD: [u8; 12] = hex!("f33388860000000000004e91");
const DRAFTS_TAG: [u8; 16] = hex!("eead9d67890cbb22392336fea1851f38");
const DRAFTS_SEALED: [u8; 265] = hex!(
    "64a0861575861af460f062c79be643bd5e805cfd345cf389f108670ac76c8cb24c6cfc18755d43eea09ee94e382d26b0bdb7b73c321b0100d4f0"
    "3b7f355894cf332f830e710b97ce98c8a84abd0b948114ad176e008d33bd60f982b1ff37c8559797a06ef4f0ef61c186324e2b3506383606907b"
    "6a7c02b0f9f6157b53c867e4b9166c767b804d46a59b5216cde7a4e99040c5a40433225ee282a1b0a06c523eaf4534d7f83fa1155b0047718cbc"
    "546a0d072b04b3564eea1b422273f548271a0bb2316053fa76991955ebd63159434ecebb4e466dae5a1073a6727627097a1049e617d91d361094"
    "fa68f0ff77987130305beaba2eda04df997b714d6c6f2c29a6ad5cb4022b02709b"
);

fn rfc8439_appendix_a_5<A: Aead>() {
    let key = A::new(&DRAFTS_KEY);
    let nonce = hex!("000000000102030405060708");
    let mut text = DRAFTS_SEALED;
    assert_eq!(key.open_packet(&nonce, &DRAFTS_AAD, &mut text, &DRAFTS_TAG), Ok(()));
    assert_eq!(text, DRAFTS.as_bytes());
    assert_eq!(key.seal_packet(&nonce, &DRAFTS_AAD, &mut text), DRAFTS_TAG);
    assert_eq!(text, DRAFTS_SEALED);
}

/// The nonce of appendix A.5 begins with 32 zero bits, as WireGuard's do: it is a counter.
#[test]
fn counters_are_little_endian_after_four_zeros() {
    let counter = 0x0807_0605_0403_0201;
    let mut text = DRAFTS_SEALED;
    assert_eq!(aead::open_once(&DRAFTS_KEY, counter, &DRAFTS_AAD, &mut text, &DRAFTS_TAG), Ok(()));
    assert_eq!(text, DRAFTS.as_bytes());
    assert_eq!(aead::seal_once(&DRAFTS_KEY, counter, &DRAFTS_AAD, &mut text), DRAFTS_TAG);
    assert_eq!(text, DRAFTS_SEALED);
}

/// Every bit of tag, text, additional data, nonce and key counts, and a forged text never comes out decrypted.
fn every_changed_bit_is_noticed<A: Aead>() {
    let nonce = hex!("000000000102030405060708");
    let forged = |key: &[u8; 32], nonce: &[u8; 12], aad: &[u8], text: [u8; 265], tag: &[u8; 16]| {
        let mut text = text;
        assert_eq!(A::new(key).open_packet(nonce, aad, &mut text, tag), Err(Forged));
        // 16 bytes agree by chance only once in 2^128.
        assert!(text.chunks_exact(16).zip(DRAFTS.as_bytes().chunks_exact(16)).all(|(text, plain)| text != plain));
    };

    for bit in 0..8 * DRAFTS_SEALED.len() {
        forged(&DRAFTS_KEY, &nonce, &DRAFTS_AAD, flip(DRAFTS_SEALED, bit), &DRAFTS_TAG);
    }
    for bit in 0..8 * TAG_LEN {
        forged(&DRAFTS_KEY, &nonce, &DRAFTS_AAD, DRAFTS_SEALED, &flip(DRAFTS_TAG, bit));
    }
    for bit in 0..8 * DRAFTS_AAD.len() {
        forged(&DRAFTS_KEY, &nonce, &flip(DRAFTS_AAD, bit), DRAFTS_SEALED, &DRAFTS_TAG);
    }
    for bit in 0..8 * nonce.len() {
        forged(&DRAFTS_KEY, &flip(nonce, bit), &DRAFTS_AAD, DRAFTS_SEALED, &DRAFTS_TAG);
    }
    for bit in 0..8 * DRAFTS_KEY.len() {
        forged(&flip(DRAFTS_KEY, bit), &nonce, &DRAFTS_AAD, DRAFTS_SEALED, &DRAFTS_TAG);
    }
    forged(&DRAFTS_KEY, &nonce, &[], DRAFTS_SEALED, &DRAFTS_TAG);
}

fn flip<const N: usize>(mut bytes: [u8; N], bit: usize) -> [u8; N] {
    bytes[bit / 8] ^= 1 << (bit % 8);
    bytes
}

/// A run of packets of mixed lengths, with gaps between them and out of order, in a slab of a recognisable pattern.
fn mixed_run() -> (Vec<u8>, Vec<Frame>) {
    const GAP: usize = 16;
    let lengths = [0, 1, 15, 16, 17, 63, 64, 65, 1420, 0, 192, 8192, 1419];
    let mut end = 0;
    let mut frames: Vec<Frame> = (0..)
        .zip(lengths)
        .map(|(i, len)| {
            let offset = end + GAP;
            end = offset + len + TAG_LEN;
            Frame { offset, len, counter: u64::MAX - i * 0x0123_4567_89ab }
        })
        .collect();
    frames.rotate_left(5);
    let slab = (0..end + GAP).map(|i| (i * 31 % 251) as u8).collect();
    (slab, frames)
}

fn a_run_is_its_packets_one_by_one<A: Aead>() {
    let key = A::new(&SUNSCREEN_KEY);
    let (plain, frames) = mixed_run();

    let mut expected = plain.clone();
    for frame in &frames {
        let mut nonce = [0; 12];
        nonce[4..].copy_from_slice(&frame.counter.to_le_bytes());
        let end = frame.offset + frame.len;
        let tag = key.seal_packet(&nonce, &[], &mut expected[frame.offset..end]);
        expected[end..end + TAG_LEN].copy_from_slice(&tag);
    }

    let mut slab = plain.clone();
    key.seal_run(&mut slab, &frames);
    // The whole slab is compared: bytes between the frames are unchanged.
    assert!(slab == expected);

    let mut opened = vec![false; frames.len()];
    key.open_run(&mut slab, &frames, &mut opened);
    assert!(opened.iter().all(|&opened| opened));
    for Frame { offset, len, .. } in frames {
        assert_eq!(slab[offset..offset + len], plain[offset..offset + len]);
    }
}

fn a_forged_frame_disturbs_no_other<A: Aead>() {
    let key = A::new(&SUNSCREEN_KEY);
    let (plain, frames) = mixed_run();
    let mut sealed = plain.clone();
    key.seal_run(&mut sealed, &frames);

    for forged in 0..frames.len() {
        let mut slab = sealed.clone();
        // The last bit of its tag, as even a packet without text has one.
        slab[frames[forged].offset + frames[forged].len + TAG_LEN - 1] ^= 1;

        // Inverted expectations, so that every result has to be written.
        let mut opened: Vec<bool> = (0..frames.len()).map(|i| i == forged).collect();
        key.open_run(&mut slab, &frames, &mut opened);
        for (i, Frame { offset, len, .. }) in frames.iter().copied().enumerate() {
            assert_eq!(opened[i], i != forged, "frame {i} with {forged} forged");
            if i != forged {
                assert_eq!(slab[offset..offset + len], plain[offset..offset + len]);
            } else if len >= 16 {
                assert_ne!(slab[offset..offset + len], plain[offset..offset + len]);
            }
        }
    }
}

fn an_empty_run_does_nothing<A: Aead>() {
    let key = A::new(&SUNSCREEN_KEY);
    let mut slab = [7; 40];
    key.seal_run(&mut slab, &[]);
    key.open_run(&mut slab, &[], &mut []);
    assert_eq!(slab, [7; 40]);
}

#[test]
fn key_seals_and_opens_runs() {
    let key = Key::new(&SUNSCREEN_KEY);
    let (plain, frames) = mixed_run();
    let mut slab = plain.clone();
    key.seal(&mut slab, &frames);

    // One more result than frames: it belongs to no frame, and does not change.
    let mut opened = vec![false; frames.len() + 1];
    key.open(&mut slab, &frames, &mut opened);
    assert!(opened[..frames.len()].iter().all(|&opened| opened));
    assert!(!opened[frames.len()]);
    for Frame { offset, len, .. } in frames {
        assert_eq!(slab[offset..offset + len], plain[offset..offset + len]);
    }
}

/// A packet is not authentic under another counter. Therefore a recorded packet cannot be replayed as a new one.
#[test]
fn the_counter_is_authenticated() {
    let key = Key::new(&SUNSCREEN_KEY);
    let mut slab = [0; 100 + TAG_LEN];
    let sealed = Frame { offset: 0, len: 100, counter: 5 };
    key.seal(&mut slab, &[sealed]);
    let mut opened = [true];
    key.open(&mut slab, &[Frame { counter: 6, ..sealed }], &mut opened);
    assert_eq!(opened, [false]);
}

#[test]
#[should_panic(expected = "a frame and its tag lie inside the slab")]
fn a_frame_past_the_end_panics() {
    Key::new(&SUNSCREEN_KEY).seal(&mut [0; 64], &[Frame { offset: 65, len: 0, counter: 0 }]);
}

#[test]
#[should_panic(expected = "a frame and its tag lie inside the slab")]
fn a_text_that_does_not_fit_panics() {
    Key::new(&SUNSCREEN_KEY).seal(&mut [0; 64], &[Frame { offset: 1, len: 64, counter: 0 }]);
}

#[test]
#[should_panic(expected = "a frame and its tag lie inside the slab")]
fn a_tag_that_does_not_fit_panics() {
    Key::new(&SUNSCREEN_KEY).open(&mut [0; 64], &[Frame { offset: 0, len: 49, counter: 0 }], &mut [false]);
}

#[test]
#[should_panic(expected = "a frame and its tag lie inside the slab")]
fn a_length_that_wraps_around_panics() {
    Key::new(&SUNSCREEN_KEY).seal(&mut [0; 64], &[Frame { offset: 16, len: usize::MAX - 8, counter: 0 }]);
}

#[test]
#[should_panic(expected = "there is a result for every frame")]
fn too_few_results_panic() {
    Key::new(&SUNSCREEN_KEY).open(&mut [0; 64], &[Frame { offset: 0, len: 48, counter: 0 }], &mut []);
}

#[test]
fn a_frame_may_end_with_the_slab() {
    Key::new(&SUNSCREEN_KEY).seal(&mut [0; 64], &[Frame { offset: 0, len: 48, counter: 0 }]);
    Key::new(&SUNSCREEN_KEY).seal(&mut [0; 64], &[Frame { offset: 48, len: 0, counter: 0 }]);
}

/// draft-irtf-cfrg-xchacha-03, appendix A.3.1.
#[test]
fn xchacha20_poly1305() {
    let nonce = hex!("404142434445464748494a4b4c4d4e4f5051525354555657");
    let sealed = hex!(
        "bd6d179d3e83d43b9576579493c0e939572a1700252bfaccbed2902c21396cbb731c7f1b0b4aa6440bf3a82f4eda7e39ae64c6708c54c216cb96"
        "b72e1213b4522f8c9ba40db5d945b11b69b982c1bb9e3f3fac2bc369488f76b2383565d3fff921f9664c97637da9768812f615c68b13b52e"
    );
    let mut text = *SUNSCREEN;
    let tag = aead::xseal(&SUNSCREEN_KEY, &nonce, &SUNSCREEN_AAD, &mut text);
    assert_eq!(text, sealed);
    assert_eq!(tag, hex!("c0875924c1c7987947deafd8780acf49"));

    assert_eq!(aead::xopen(&SUNSCREEN_KEY, &nonce, &SUNSCREEN_AAD, &mut text, &tag), Ok(()));
    assert_eq!(&text, SUNSCREEN);

    for byte in 0..nonce.len() {
        let mut text = sealed;
        let opened = aead::xopen(&SUNSCREEN_KEY, &flip(nonce, 8 * byte), &SUNSCREEN_AAD, &mut text, &tag);
        assert_eq!((opened, text), (Err(Forged), sealed));
    }
    for byte in 0..tag.len() {
        let mut text = sealed;
        let opened = aead::xopen(&SUNSCREEN_KEY, &nonce, &SUNSCREEN_AAD, &mut text, &flip(tag, 8 * byte));
        assert_eq!((opened, text), (Err(Forged), sealed));
    }
}

#[test]
fn debug_shows_no_key_and_threads_share_it() {
    fn shared<T: Send + Sync>(_: &T) {}
    let key = Key::new(&SUNSCREEN_KEY);
    shared(&key);
    assert_eq!(format!("{key:?}"), "Key(..)");
}
