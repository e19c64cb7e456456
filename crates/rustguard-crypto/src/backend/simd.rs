//! Runs of packets on AVX-512 or AVX2. The preferred backend (`aws-lc` or `portable`) handles the other packets one at
//! a time.
//!
//! The processor's features are detected once, at run time. The rules for the distribution of packets come from
//! measurements (`cargo bench -p rustguard-benches --bench crypto`). With AVX-512, the kernel takes all groups of four
//! or more packets. With AVX2 it takes such groups too, but leaves packets of more than 384 bytes to AWS-LC, if that is
//! available. Handshake fields and single packets always go to the preferred backend. X25519 uses vectors with AVX-512
//! only (see [`StaticSecret`]).
//!
//! With the feature `std`, the environment variable `RUSTGUARD_AEAD` disables kernels: `avx2` disables AVX-512, and
//! `single` disables both. X25519 obeys it too. It is read once. It is for tests and measurements; the results are the
//! same on every path.

use super::{Aead, preferred};
use crate::{
    frame::{Forged, Frame, KEY_LEN, NONCE_LEN, TAG_LEN},
    simd::{Avx2, Avx512, GROUP, Group, MAX_LEN, wipe_stack},
};
use core::{array, cmp::Reverse, fmt, iter};
pub use exchange::StaticSecret;
use zeroize::Zeroizing;

mod exchange;

/// The ways to process a run of packets.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Path {
    /// 16 blocks at a time with AVX-512 F, BW, VL, DQ, IFMA and VBMI2.
    Avx512,
    /// 8 blocks at a time with AVX2.
    Avx2,
    /// One packet at a time, with the preferred backend.
    Single,
}

impl Path {
    /// Every path, in order of preference.
    pub const ALL: [Self; 3] = [Self::Avx512, Self::Avx2, Self::Single];

    /// The path's name in `RUSTGUARD_AEAD`.
    pub fn name(self) -> &'static str {
        match self {
            Self::Avx512 => "avx512",
            Self::Avx2 => "avx2",
            Self::Single => "single",
        }
    }

    /// The path that every key from [`Aead::new`] uses.
    pub fn detected() -> Self {
        Plan::detected().path()
    }
}

impl fmt::Display for Path {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// An AEAD key.
pub struct Key {
    words: Zeroizing<[u32; 8]>,
    plan: Plan,
    single: preferred::Key,
}

/// The rules that decide which packets go to a kernel.
#[derive(Clone, Copy)]
struct Plan {
    kernel: Option<Kernel>,
    /// Longer packets go to the preferred backend.
    max_len: usize,
    /// Smaller groups go to the preferred backend.
    min_group: usize,
}

#[derive(Clone, Copy)]
enum Kernel {
    Avx512(Avx512),
    Avx2(Avx2),
}

/// The length in bytes from which AWS-LC is faster than AVX2, on Sapphire Rapids. On Zen 5 it is 576. RustCrypto is
/// slower at every length.
const AVX2_MAX_LEN: usize = if cfg!(feature = "aws-lc") { 384 } else { MAX_LEN };
/// Four packets of any length take less time in a group than one by one. Two packets do so only from 1,000 bytes on: at
/// 64 bytes they take 262 ns instead of 168.
const MIN_GROUP: usize = 4;

impl Plan {
    /// The fastest plan for this processor that `RUSTGUARD_AEAD` allows.
    fn detected() -> Self {
        Path::ALL
            .into_iter()
            .skip_while(|&path| path != best_allowed())
            .find_map(|path| {
                let plan = Self::forced(path)?;
                let max_len = if path == Path::Avx2 { AVX2_MAX_LEN } else { MAX_LEN };
                Some(Self { max_len, min_group: MIN_GROUP, ..plan })
            })
            .expect("every processor can take packets one at a time")
    }

    /// A plan that sends every packet to the kernel of `path`; `None` if the processor lacks the instructions.
    fn forced(path: Path) -> Option<Self> {
        let kernel = match path {
            Path::Avx512 => Some(Kernel::Avx512(Avx512::detect()?)),
            Path::Avx2 => Some(Kernel::Avx2(Avx2::detect()?)),
            Path::Single => None,
        };
        Some(Self { kernel, max_len: MAX_LEN, min_group: 1 })
    }

    /// Whether a run of this many frames has none for a kernel, with any lengths.
    fn leaves_all(self, frames: usize) -> bool {
        self.kernel.is_none() || frames < self.min_group
    }

    /// Sorts the frames into batches. Each batch has the positions of its frames and its kernel; `None` means the
    /// preferred backend.
    ///
    /// The caller fills `order` with 0, 1, 2… There are at most as many frames as entries in `order`.
    fn batches<'a>(
        self,
        frames: &'a [Frame],
        order: &'a mut [usize; SORTED],
    ) -> impl Iterator<Item = (Option<Kernel>, &'a [usize])> {
        let order = &mut order[..frames.len()];
        let long = if self.kernel.is_none() {
            order.len()
        } else {
            // Poly1305 takes as long as the longest packet of a group needs, so frames are sorted by length. Most runs
            // are sorted already: all of their packets but the last have the same length.
            if !frames.is_sorted_by(|a, b| a.len >= b.len) {
                order.sort_unstable_by_key(|&i| Reverse(frames[i].len));
            }
            order.partition_point(|&i| frames[i].len > self.max_len)
        };
        let (long, rest) = order.split_at(long);
        let groups =
            rest.chunks(GROUP).map(move |group| (self.kernel.filter(|_| group.len() >= self.min_group), group));
        iter::once((None, long)).chain(groups)
    }

    fn path(self) -> Path {
        match self.kernel {
            Some(Kernel::Avx512(_)) => Path::Avx512,
            Some(Kernel::Avx2(_)) => Path::Avx2,
            None => Path::Single,
        }
    }
}

/// The best path that the environment allows.
#[cfg(feature = "std")]
fn best_allowed() -> Path {
    static ALLOWED: std::sync::OnceLock<Path> = std::sync::OnceLock::new();
    *ALLOWED.get_or_init(|| {
        let name = std::env::var("RUSTGUARD_AEAD").unwrap_or_default();
        Path::ALL.into_iter().find(|path| path.name() == name).unwrap_or(Path::ALL[0])
    })
}

#[cfg(not(feature = "std"))]
fn best_allowed() -> Path {
    Path::ALL[0]
}

/// The number of frames that are sorted together. A whole run usually fits.
const SORTED: usize = 64;

impl Key {
    /// Expands `key` for a path that takes every packet, even where that is slower. This is for tests and benchmarks.
    ///
    /// Returns `None` when the processor lacks the instructions.
    pub fn with_path(key: &[u8; KEY_LEN], path: Path) -> Option<Self> {
        Some(Self::with_plan(key, Plan::forced(path)?))
    }

    fn with_plan(key: &[u8; KEY_LEN], plan: Plan) -> Self {
        let mut words = Zeroizing::new([0; 8]);
        for (word, bytes) in words.iter_mut().zip(key.as_chunks().0) {
            *word = u32::from_le_bytes(*bytes);
        }
        Self { words, plan, single: preferred::Key::new(key) }
    }
}

impl Aead for Key {
    fn new(key: &[u8; KEY_LEN]) -> Self {
        Self::with_plan(key, Plan::detected())
    }

    fn seal_packet(&self, nonce: &[u8; NONCE_LEN], aad: &[u8], text: &mut [u8]) -> [u8; TAG_LEN] {
        self.single.seal_packet(nonce, aad, text)
    }

    fn open_packet(
        &self,
        nonce: &[u8; NONCE_LEN],
        aad: &[u8],
        text: &mut [u8],
        tag: &[u8; TAG_LEN],
    ) -> Result<(), Forged> {
        self.single.open_packet(nonce, aad, text, tag)
    }

    fn seal_run(&self, slab: &mut [u8], frames: &[Frame]) {
        if self.plan.leaves_all(frames.len()) {
            return self.single.seal_run(slab, frames);
        }
        // Whether a kernel has left traces on the stack. Wiping 13 KB is too much if no kernel has run.
        let mut traces = false;
        for frames in frames.chunks(SORTED) {
            let mut order = array::from_fn(|i| i);
            for (kernel, batch) in self.plan.batches(frames, &mut order) {
                let Some(kernel) = kernel else {
                    batch.iter().for_each(|&i| self.single.seal_run(slab, &frames[i..=i]));
                    continue;
                };
                traces = true;
                let mut group = Group::new(slab, batch.iter().map(|&i| frames[i]));
                match kernel {
                    Kernel::Avx512(avx512) => avx512.seal(&self.words, &mut group),
                    Kernel::Avx2(avx2) => avx2.seal(&self.words, &mut group),
                }
            }
        }
        if traces {
            wipe_stack();
        }
    }

    fn open_run(&self, slab: &mut [u8], frames: &[Frame], opened: &mut [bool]) {
        if self.plan.leaves_all(frames.len()) {
            return self.single.open_run(slab, frames, opened);
        }
        let mut traces = false;
        for (frames, opened) in frames.chunks(SORTED).zip(opened.chunks_mut(SORTED)) {
            let mut order = array::from_fn(|i| i);
            for (kernel, batch) in self.plan.batches(frames, &mut order) {
                let Some(kernel) = kernel else {
                    batch.iter().for_each(|&i| self.single.open_run(slab, &frames[i..=i], &mut opened[i..=i]));
                    continue;
                };
                traces = true;
                let mut group = Group::new(slab, batch.iter().map(|&i| frames[i]));
                let authentic = match kernel {
                    Kernel::Avx512(avx512) => avx512.open(&self.words, &mut group),
                    Kernel::Avx2(avx2) => avx2.open(&self.words, &mut group),
                };
                for (bit, &i) in batch.iter().enumerate() {
                    opened[i] = authentic >> bit & 1 == 1;
                }
            }
        }
        if traces {
            wipe_stack();
        }
    }
}
