//! The fuzz targets on a stable compiler: the committed corpus, then seeded mutations of it.
//!
//! `RUSTGUARD_SEED` replays a run, `RUSTGUARD_FUZZ_ROUNDS` makes it longer than the brief default.
use std::{env, fs, path::Path};

const ROUNDS: u64 = 600;

#[test]
fn corpus_and_mutations() {
    let seed = number("RUSTGUARD_SEED").unwrap_or(0x5eed);
    let rounds = number("RUSTGUARD_FUZZ_ROUNDS").unwrap_or(ROUNDS);
    println!("RUSTGUARD_SEED={seed} RUSTGUARD_FUZZ_ROUNDS={rounds}");
    for (name, target) in rustguard_fuzz::TARGETS {
        let corpus = corpus(name);
        assert!(corpus.len() >= 5, "the corpus of {name} is not there");
        for input in &corpus {
            run(name, target, input);
        }
        let mut random = Random(seed);
        for _ in 0..rounds {
            let input = mutate(&corpus, &mut random);
            run(name, target, &input);
        }
    }
}

fn number(variable: &str) -> Option<u64> {
    env::var(variable).ok()?.parse().ok()
}

fn corpus(name: &str) -> Vec<Vec<u8>> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../fuzz/corpus").join(name);
    let entries = fs::read_dir(&folder).unwrap_or_else(|error| panic!("{}: {error}", folder.display()));
    let mut paths: Vec<_> = entries.map(|entry| entry.expect("a folder entry").path()).collect();
    // The order of a folder's entries varies; a seed must always give the same run.
    paths.sort();
    paths.iter().map(|path| fs::read(path).expect("a corpus file")).collect()
}

/// Prints the input when the target panics. The panic itself does not name the input.
fn run(name: &str, target: fn(&[u8]), input: &[u8]) {
    struct Tell<'a>(&'a str, &'a [u8]);
    impl Drop for Tell<'_> {
        fn drop(&mut self) {
            if std::thread::panicking() {
                println!("target {}, input {:?}", self.0, self.1.escape_ascii().to_string());
            }
        }
    }
    let _tell = Tell(name, input);
    target(input);
}

/// One to eight changes to one input: bits, bytes, runs removed, doubled, or taken from another input.
fn mutate(corpus: &[Vec<u8>], random: &mut Random) -> Vec<u8> {
    let mut input = corpus[random.below(corpus.len())].clone();
    for _ in 0..=random.below(8) {
        let at = random.below(input.len() + 1);
        let until = at + random.below((input.len() - at).min(64) + 1);
        match random.below(6) {
            0 => input.insert(at, random.next() as u8),
            1 if at < input.len() => input[at] ^= 1 << random.below(8),
            2 if at < input.len() => input[at] = [0, 1, b'\n', b'=', 0x7f, 0x80, 0xff][random.below(7)],
            3 => drop(input.drain(at..until)),
            4 => {
                let run = input[at..until].to_vec();
                input.splice(at..at, run);
            }
            _ => {
                let other = &corpus[random.below(corpus.len())];
                let from = random.below(other.len() + 1);
                let run = other[from..from + random.below((other.len() - from).min(64) + 1)].to_vec();
                input.splice(at..until, run);
            }
        }
    }
    input
}

/// SplitMix64: the same numbers on every machine and in every version.
struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    fn below(&mut self, limit: usize) -> usize {
        (self.next() % limit as u64) as usize
    }
}
