//! Runs of packets on every path against the other backends: a kernel must seal exactly as they do.
//!
//! Paths that the processor lacks are left out, which the test reports. Random cases come from a fixed seed, which a
//! failure prints.
#![cfg(all(feature = "portable", feature = "simd", target_arch = "x86_64"))]

use hex_literal::hex;
use rustguard_crypto::{
    aead::{Frame, TAG_LEN},
    backend::{
        Aead, DiffieHellman, portable,
        simd::{Key, Path, StaticSecret},
    },
    x25519::{self, PublicKey},
};
use std::io::Write;

const KEY: [u8; 32] = hex!("1c9240a5eb55d38af333888604f6b5f0473917c1402b80099dca5cbc207075c0");

/// Every path that this processor has, forced, and the path that a new key chooses by itself.
fn paths() -> Vec<(String, Key)> {
    let forced = Path::ALL.into_iter().filter_map(|path| Some((path.to_string(), Key::with_path(&KEY, path)?)));
    forced.chain([("a new key".to_owned(), Key::new(&KEY))]).collect()
}

/// A run as the other backends seal it. They have to agree.
fn sealed(plain: &[u8], frames: &[Frame]) -> Vec<u8> {
    let mut sealed = plain.to_vec();
    portable::Key::new(&KEY).seal_run(&mut sealed, frames);
    #[cfg(feature = "aws-lc")]
    {
        let mut there = plain.to_vec();
        rustguard_crypto::backend::aws_lc::Key::new(&KEY).seal_run(&mut there, frames);
        assert!(sealed == there, "the backends seal alike");
    }
    sealed
}

/// Frames of these lengths with a gap before each, whose counters begin at `counter`, and a slab of a pattern for them.
fn run(lengths: impl IntoIterator<Item = usize>, counter: u64) -> (Vec<u8>, Vec<Frame>) {
    let mut end = 0;
    let frames: Vec<Frame> = (0..)
        .zip(lengths)
        .map(|(i, len)| {
            let offset = end + i as usize % 19;
            end = offset + len + TAG_LEN;
            Frame { offset, len, counter: counter.wrapping_add(i) }
        })
        .collect();
    let slab = (0..end + 5).map(|i| (i * 31 % 251) as u8 ^ (i >> 8) as u8).collect();
    (slab, frames)
}

/// Seals and opens a run on every path, and compares the whole slab each time.
fn check(plain: &[u8], frames: &[Frame], paths: &[(String, Key)], case: &str) {
    let sealed = sealed(plain, frames);
    for (path, key) in paths {
        let mut slab = plain.to_vec();
        key.seal_run(&mut slab, frames);
        assert!(slab == sealed, "{path} seals {case}");

        let mut opened = vec![false; frames.len()];
        key.open_run(&mut slab, frames, &mut opened);
        assert!(opened.iter().all(|&opened| opened), "{path} opens {case}: {opened:?}");
        for Frame { offset, len, .. } in frames {
            slab[offset + len..][..TAG_LEN].copy_from_slice(&plain[offset + len..][..TAG_LEN]);
        }
        assert!(slab == plain, "{path} opens {case}");
    }
}

/// Bypasses the test harness, which hides the output of passing tests: the output must show which paths were not
/// tested.
#[test]
fn says_what_is_left_out() {
    for path in Path::ALL.into_iter().filter(|path| Key::with_path(&KEY, *path).is_none()) {
        let said = writeln!(std::io::stderr(), "NOT TESTED: {path}, which this processor lacks");
        said.expect("standard error takes a line");
    }
    if cfg!(not(feature = "aws-lc")) {
        let said = writeln!(std::io::stderr(), "NOT TESTED: runs against aws-lc, which is not built in");
        said.expect("standard error takes a line");
    }
}

/// The text of RFC 8439, appendix A.5, in every place of a group. Its tag is not compared, because it covers additional
/// data, which packets do not have.
#[test]
fn rfc8439_appendix_a_5() {
    let sealed = hex!(
        "64a0861575861af460f062c79be643bd5e805cfd345cf389f108670ac76c8cb24c6cfc18755d43eea09ee94e382d26b0bdb7b73c321b0100d4f0"
        "3b7f355894cf332f830e710b97ce98c8a84abd0b948114ad176e008d33bd60f982b1ff37c8559797a06ef4f0ef61c186324e2b3506383606907b"
        "6a7c02b0f9f6157b53c867e4b9166c767b804d46a59b5216cde7a4e99040c5a40433225ee282a1b0a06c523eaf4534d7f83fa1155b0047718cbc"
        "546a0d072b04b3564eea1b422273f548271a0bb2316053fa76991955ebd63159434ecebb4e466dae5a1073a6727627097a1049e617d91d361094"
        "fa68f0ff77987130305beaba2eda04df997b714d6c6f2c29a6ad5cb4022b02709b"
    );
    let plain = "Internet-Drafts are draft documents valid for a maximum of six months and may be updated, replaced, or obsoleted \
        by other documents at any time. It is inappropriate to use Internet-Drafts as reference material or to cite them \
        other than as /“work in progress./”";
    for place in 0..16 {
        let (mut slab, mut frames) = run([plain.len(); 16], 7);
        let frame = Frame { counter: 0x0807_0605_0403_0201, ..frames[place] };
        frames[place] = frame;
        slab[frame.offset..][..frame.len].copy_from_slice(plain.as_bytes());
        for (path, key) in paths() {
            let mut slab = slab.clone();
            key.seal_run(&mut slab, &frames);
            assert_eq!(slab[frame.offset..][..frame.len], sealed, "{path}, place {place}");
        }
        check(&slab, &frames, &paths(), "the vector");
    }
}

/// Published vectors without additional data and with nonces of eight bytes: numbers 2, 5 and 7 of the chacha20poly1305
/// self-test of Linux. Key, nonce, text, sealed text and tag.
#[test]
fn linux_self_test() {
    type Vector = ([u8; 32], [u8; 8], &'static [u8], &'static [u8]);
    let vectors: [Vector; 3] = [
        (
            hex!("4cf5968338e6ae7f2d292576d5752786919a277afb46c5ef9481795714594068"),
            hex!("cabf33713245778e"),
            &[],
            &hex!("eae01e9e2c91aae1db5d993f8af76992"),
        ),
        (
            hex!("66ca9c232a4b4b310e92898bf493c78798a3d839f8f4a701c02e0aa67e5a7887"),
            hex!("201caa5f9cbf9230"),
            &hex!("2d"),
            &hex!("bfe15b0bdb6bf55e6c5d84443981c19cac"),
        ),
        (
            hex!("8db89148f0e70abdf93fcdd9a01e424ce7de253da3d705808df282ac44165101"),
            hex!("de7befc3651b68b0"),
            &hex!(
                "9b18dbdd9a0f3ea51517dedf089d650a673012e234774bc1d9c61fabc6185017a79d3ca6c5358c1cc0a17c9f0389cae1e6e9d4d388dbb451"
                "9decb4fc52ee6df17542c6fdbd7a8e86fc44b34ff3ea675a4113bab0dce1d32a7c22b3caac6a37983e1d4097f79b1d366bb328bd60824734"
                "aa2f7de9a8708157d4b9770a9d29a784524fc24a403b3cd4c92adb4a53c4be80e9517f8fc7a2ce825c911e74d9d0bdd5f3fdda4d25b4bb2d"
                "ac2f3d71857bcf3c7b3e0e22780c29bfe4f457b3cb49a0fc1e054e16bcd5a8a3ee0535c67cab6014551a8ec5885dd581c281a5c460dbaf77"
                "91e1cea27e7f42e3b0131c1f256021e2405f99b773ec9b2bf06511c8d00a9fd3"
            ),
            &hex!(
                "8504c2ed8dfd975cd2b7e2c16ba3baf8c950c3c6a5e3a47cc323495ea9b932eb8a7ccae5ecfb7cc0cb7ddc2c9d9255210ac84363590a3170"
                "82674103f8dff2aca702d4d58a2dc8991966d0f6882c77d9d40d6cbd98dee77fad7e8afbe94be5f7e550a0903fd62253e3fe1bcc793bec12"
                "4752a7d604e352e6939091327379b8d031de1f9f2f0538542f350439e0a7bac652f637654c07a97eb3216f748cc9dedb651b9baa60b10330"
                "6bb203c41c04f80f64af46e4659949e2eace7800d88bd52ecffc4049e858dc349c8c61bf0a8eec39a930055ad25601c7da8f4ebb43a33af9"
                "152ad0a07a873482fe8ad12d5ec7bf04535f3b36d4255c347a8dd505ce72caef7a4bbcb0105c96423a0098cd15e8b753"
            ),
        ),
    ];
    for (key, nonce, text, sealed) in vectors {
        let counter = u64::from_le_bytes(nonce);
        for (path, key) in Path::ALL.into_iter().filter_map(|path| Some((path, Key::with_path(&key, path)?))) {
            for (size, place) in [(1, 0), (8, 0), (8, 7), (16, 8), (16, 15)] {
                let (mut slab, mut frames) = run(vec![text.len(); size], 1);
                let frame = Frame { counter, ..frames[place] };
                frames[place] = frame;
                slab[frame.offset..][..frame.len].copy_from_slice(text);
                key.seal_run(&mut slab, &frames);
                assert_eq!(slab[frame.offset..][..sealed.len()], *sealed, "{path}, {place} of {size}");
                let mut opened = vec![false; size];
                key.open_run(&mut slab, &frames, &mut opened);
                assert_eq!(opened, vec![true; size], "{path}");
                assert_eq!(slab[frame.offset..][..frame.len], *text, "{path}, {place} of {size}");
            }
        }
    }
}

/// All the ways to end in the middle of a block or a chunk, in a full group and a second one.
#[test]
fn every_length() {
    let paths = paths();
    for len in (0..=2048).chain([8192, 65_000, 65_535]) {
        let (plain, frames) = run([len; 18], len as u64);
        check(&plain, &frames, &paths, &format!("packets of {len} bytes"));
    }
}

/// The longest text of a group is the longest datagram: longer texts go to the preferred backend.
#[test]
fn longer_than_a_datagram() {
    let (plain, frames) = run([64, 65_536, 100_000, 64, 70_001], 0);
    check(&plain, &frames, &paths(), "long packets");
}

#[test]
fn every_batch_size() {
    let paths = paths();
    let mut random = Random(0x5275_7374_4775_6172);
    // A run of more than 64 packets is processed in two parts.
    for size in (1..=66).chain([80, 128, 130]) {
        for len in [0, 16, 64, 200, 1420] {
            let (plain, frames) = run(vec![len; size], 0);
            check(&plain, &frames, &paths, &format!("{size} packets of {len} bytes"));
        }
        for _ in 0..10 {
            let lengths: Vec<usize> = (0..size).map(|_| random.length()).collect();
            let (plain, frames) = run(lengths.clone(), random.next());
            check(&plain, &frames, &paths, &format!("packets of {lengths:?} bytes"));
        }
    }
}

/// The two words of the counter, when the lower word wraps around.
#[test]
fn counters_around_2_to_the_32() {
    for counter in [0, 0xffff_fff8, 0x1_0000_0000, 0x1234_ffff_fff0, u64::MAX - 8] {
        let (plain, frames) = run([100; 24], counter);
        check(&plain, &frames, &paths(), &format!("counters from {counter:#x}"));
    }
}

/// One frame of a run, at every position, with damage in its text or tag: only this frame is forged, and it does not
/// change.
#[test]
fn a_forged_frame_in_every_place() {
    let paths = paths();
    for size in [1, 2, 5, 8, 9, 16, 17, 33] {
        for len in [0, 1, 64, 333, 1420] {
            let (plain, frames) = run(vec![len; size], 1 << 40);
            let sealed = sealed(&plain, &frames);
            for forged in 0..size {
                for byte in [0, len / 2, len, len + 7, len + 8, len + TAG_LEN - 1] {
                    let mut damaged = sealed.clone();
                    damaged[frames[forged].offset + byte] ^= 0x80 >> (byte % 8);
                    for (path, key) in &paths {
                        let mut slab = damaged.clone();
                        // Inverted, so that every result has to be written.
                        let mut opened: Vec<bool> = (0..size).map(|i| i == forged).collect();
                        key.open_run(&mut slab, &frames, &mut opened);
                        for (i, Frame { offset, len, .. }) in frames.iter().copied().enumerate() {
                            assert_eq!(opened[i], i != forged, "{path}: {i} of {size}, {forged} forged at {byte}");
                            let text = &slab[offset..][..len];
                            if i != forged {
                                assert!(text == &plain[offset..][..len], "{path}: {i} of {size}, {forged} forged");
                            } else if len >= 16 {
                                assert!(text != &plain[offset..][..len], "{path}: {forged} was decrypted");
                            }
                            if i == forged && path.starts_with("avx") {
                                assert!(text == &damaged[offset..][..len], "{path}: {forged} is not as it came");
                            }
                        }
                    }
                }
            }
        }
    }
}

/// Random lengths and counters, and damage to any number of frames.
#[test]
fn random_runs() {
    const SEED: u64 = 0x0072_6567_7561_7264;
    let paths = paths();
    let mut random = Random(SEED);
    for round in 0..300 {
        let size = random.below(70);
        let (mut plain, mut frames) = run((0..size).map(|_| random.length()).collect::<Vec<_>>(), 0);
        plain.fill_with(|| random.next() as u8);
        frames.iter_mut().for_each(|frame| frame.counter = random.next());
        // The order of the frames is not the order of their places.
        for i in 1..size {
            frames.swap(i, random.below(i + 1));
        }
        check(&plain, &frames, &paths, &format!("run {round} of seed {SEED:#x}"));

        let sealed = sealed(&plain, &frames);
        let mut damaged = sealed.clone();
        for _ in 0..random.below(5).min(damaged.len()) {
            let place = random.below(damaged.len());
            damaged[place] ^= 1 << random.below(8);
        }
        let same = |frame: &Frame| {
            let range = frame.offset..frame.offset + frame.len + TAG_LEN;
            sealed[range.clone()] == damaged[range]
        };
        let whole: Vec<bool> = frames.iter().map(same).collect();
        for (path, key) in &paths {
            let (mut slab, mut opened) = (damaged.clone(), vec![false; size]);
            key.open_run(&mut slab, &frames, &mut opened);
            assert_eq!(opened, whole, "{path}, run {round} of seed {SEED:#x}");
            for Frame { offset, len, .. } in
                frames.iter().zip(&whole).filter(|(_, whole)| **whole).map(|(frame, _)| frame)
            {
                assert!(slab[*offset..][..*len] == plain[*offset..][..*len], "{path}, run {round} of seed {SEED:#x}");
            }
        }
    }
}

/// Random scalars and points, and coordinates whose limbs are at the ends of their ranges. Each is exchanged alone, and
/// together with the one before it.
#[test]
fn exchanges() {
    const SEED: u64 = 0x0002_5519;
    const ONES: u64 = (1 << 51) - 1;
    const LIMBS: [u64; 6] = [0, 1, ONES, ONES - 1, ONES - 18, 1 << 50];
    const ROUNDS: usize = 1_000;
    let mut random = Random(SEED);
    let mut before = None;
    for round in 0..ROUNDS {
        let mut bytes = || -> [u8; 32] { std::array::from_fn(|_| random.next() as u8) };
        let (scalar, mut point) = match round {
            0 => ([0; 32], bytes()),
            1 => ([0xff; 32], bytes()),
            _ => (bytes(), bytes()),
        };
        if round % 2 == 1 {
            // Numbers of 255 bits, of which some are p or more, and the bit above them.
            point = [0; 32];
            for k in 0..5 {
                let limb = LIMBS[random.below(LIMBS.len())];
                for bit in (0..51).filter(|bit| limb >> bit & 1 == 1).map(|bit| 51 * k + bit) {
                    point[bit / 8] |= 1 << (bit % 8);
                }
            }
            point[31] |= (random.below(2) as u8) << 7;
        }
        let (scalar, point) = (x25519::StaticSecret::from_bytes(scalar).to_bytes(), PublicKey(point));
        let expected = portable::StaticSecret::from_clamped(&scalar);
        let shared = expected.diffie_hellman(&point).map(|shared| *shared.as_bytes());
        #[cfg(feature = "aws-lc")]
        {
            let there = rustguard_crypto::backend::aws_lc::StaticSecret::from_clamped(&scalar);
            assert_eq!(there.diffie_hellman(&point).map(|shared| *shared.as_bytes()), shared, "the others agree");
        }
        for path in Path::ALL {
            let Some(secret) = StaticSecret::with_path(&scalar, path) else { continue };
            assert_eq!(secret.to_bytes(), scalar);
            assert_eq!(secret.public_key(), expected.public_key());
            let got = secret.diffie_hellman(&point).map(|shared| *shared.as_bytes());
            assert_eq!(got, shared, "{path}, round {round} of seed {SEED:#x}");
            let Some((other, other_point, other_shared)) = before else { continue };
            let other = StaticSecret::with_path(&other, path).expect("this path was there before");
            let pair = StaticSecret::diffie_hellman_pair([(&secret, &point), (&other, &other_point)]);
            let both = shared.and_then(|shared| Ok([shared, other_shared?]));
            let got = pair.map(|pair| pair.map(|shared| *shared.as_bytes()));
            assert_eq!(got, both, "{path}, rounds {round} and before, of seed {SEED:#x}");
        }
        before = Some((scalar, point, shared));
    }
}

/// SplitMix64.
struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let z = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    fn below(&mut self, end: usize) -> usize {
        (self.next() % end as u64) as usize
    }

    /// Short lengths, lengths of packets, and whole blocks, about equally often.
    fn length(&mut self) -> usize {
        match self.below(4) {
            0 => self.below(130),
            1 => self.below(1500),
            2 => 16 * self.below(100),
            _ => 1420,
        }
    }
}

/// `RUSTGUARD_AEAD` disables paths, but enables none that the processor lacks. An invalid value changes nothing.
#[cfg(feature = "std")]
#[test]
fn the_environment_chooses_a_path() {
    let available = |path: &Path| Key::with_path(&KEY, *path).is_some();
    let best_from = |first: usize| Path::ALL[first..].iter().find(|path| available(path)).expect("single always is");
    for (choice, expected) in [
        ("avx512", best_from(0)),
        ("avx2", best_from(1)),
        ("single", &Path::Single),
        ("", best_from(0)),
        ("fastest", best_from(0)),
    ] {
        // It is read once per process.
        let output = std::process::Command::new(std::env::current_exe().expect("this test runs from a file"))
            .args(["--exact", "simd::print_the_detected_path", "--nocapture"])
            .env("RUSTGUARD_AEAD", choice)
            .output()
            .expect("a test can be run again");
        let output = String::from_utf8_lossy(&output.stdout).into_owned();
        assert!(output.contains(&format!("detected: {expected}\n")), "{choice}: {output}");
    }
}

#[test]
fn print_the_detected_path() {
    println!("detected: {}", Path::detected());
}
