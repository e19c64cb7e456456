//! Runs of sealed packets.
#[cfg(target_arch = "x86_64")]
use rustguard_crypto::backend::simd::{self, Path};
use rustguard_crypto::{
    aead::{Frame, KEY_LEN, TAG_LEN},
    backend::{Aead, aws_lc, portable},
};

/// The number of bytes that describe a frame: its length, the gap before it, its counter, and the damage to it after
/// sealing.
const DESCRIPTION: usize = 7;
/// The most frames. A key sorts 64 at a time, so there can be several groups.
const MOST_FRAMES: usize = 70;
/// The limit for the length of a text. A packet of a jumbo link fits, and no input takes long.
const LONGEST: usize = 9000;

/// Reads the input as a key and the frames of a run.
///
/// All backends and all paths of this processor have to seal the run to the same bytes, including the bytes outside the
/// frames. They all have to open it. Of a damaged run, and of a run that was never sealed, they open exactly the frames
/// that are intact.
pub fn aead(input: &[u8]) {
    let (key, rest) = input.split_at(input.len().min(KEY_LEN));
    let mut bytes = [0; KEY_LEN];
    bytes[..key.len()].copy_from_slice(key);
    let descriptions = rest.as_chunks::<DESCRIPTION>().0;
    let run = Run::new(&descriptions[..descriptions.len().min(MOST_FRAMES)]);

    let mut sealed = run.slab.clone();
    portable::Key::new(&bytes).seal_run(&mut sealed, &run.frames);
    run.check("portable", &portable::Key::new(&bytes), &sealed);
    run.check("aws-lc", &aws_lc::Key::new(&bytes), &sealed);
    #[cfg(target_arch = "x86_64")]
    {
        run.check("a new key", &simd::Key::new(&bytes), &sealed);
        for path in Path::ALL {
            if let Some(key) = simd::Key::with_path(&bytes, path) {
                run.check(path.name(), &key, &sealed);
            }
        }
    }
}

/// Frames in a slab, and the places to damage with the change for each.
struct Run {
    slab: Vec<u8>,
    frames: Vec<Frame>,
    damage: Vec<(usize, u8)>,
}

impl Run {
    fn new(descriptions: &[[u8; DESCRIPTION]]) -> Self {
        let (mut end, mut frames, mut damage) = (0, Vec::new(), Vec::new());
        for &[low, high, gap, counter, wide, place, change] in descriptions {
            let len = usize::from(u16::from_le_bytes([low, high])) % LONGEST;
            let offset = end + usize::from(gap);
            end = offset + len + TAG_LEN;
            // The counters use both 32-bit words, and values around the overflow of the lower word.
            let counter = (u64::from(wide) << 32).wrapping_add_signed(i64::from(counter.cast_signed()));
            frames.push(Frame { offset, len, counter });
            // The place counts from the start of the text or from the end of the tag, so that it exists in short and
            // long frames.
            let place =
                if place < 128 { usize::from(place) } else { len + TAG_LEN - 1 - usize::from(place - 128) % TAG_LEN };
            damage.push((offset + place.min(len + TAG_LEN - 1), change));
        }
        // The second half is reversed, so that the order of the frames differs from the order of their places.
        let half = frames.len() / 2;
        frames[half..].reverse();
        let slab = (0..end).map(|i| (i * 37 % 253) as u8).collect();
        Self { slab, frames, damage }
    }

    /// Seals and opens the run with one backend. `sealed` is the result of another backend.
    fn check(&self, path: &str, key: &impl Aead, sealed: &[u8]) {
        let mut slab = self.slab.clone();
        key.seal_run(&mut slab, &self.frames);
        assert!(slab == sealed, "{path} seals {:?}", self.frames);

        let mut damaged = sealed.to_vec();
        for (place, change) in &self.damage {
            damaged[*place] ^= change;
        }
        for came in [sealed, &damaged, &self.slab] {
            self.check_open(path, key, came, sealed);
        }
    }

    /// Opens `came`, and expects exactly the frames that are as they were sealed.
    fn check_open(&self, path: &str, key: &impl Aead, came: &[u8], sealed: &[u8]) {
        let mut slab = came.to_vec();
        let mut opened = vec![false; self.frames.len()];
        key.open_run(&mut slab, &self.frames, &mut opened);
        let mut outside = came.to_vec();
        for (frame, opened) in self.frames.iter().zip(opened) {
            let text = frame.offset..frame.offset + frame.len;
            let whole = text.start..text.end + TAG_LEN;
            assert_eq!(
                opened,
                came[whole.clone()] == sealed[whole.clone()],
                "{path} opens {frame:?} of {:?}",
                self.frames
            );
            if opened {
                assert!(slab[text.clone()] == self.slab[text], "{path} decrypts {frame:?} of {:?}", self.frames);
            }
            outside[whole.clone()].copy_from_slice(&slab[whole]);
        }
        assert!(outside == slab, "{path} writes outside its frames, {:?}", self.frames);
    }
}
