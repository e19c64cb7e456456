//! A file system that loses power, and the recovery of the log afterwards.
use super::{FileStoreError, files::Files, log::Log};
use rustguard_crypto::x25519::PublicKey;
use rustguard_enroll::{
    lease::{Lease, LeaseState, Origin, PresharedKey},
    store::{Change, State},
};
use std::{cell::RefCell, collections::BTreeMap, io, path::PathBuf, rc::Rc};
use zeroize::Zeroizing;

/// Pseudo-random numbers from a seed (SplitMix64).
#[derive(Clone, Debug)]
struct Dice(u64);

impl Dice {
    fn below(&mut self, bound: usize) -> usize {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let z = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        usize::try_from((z ^ (z >> 31)) >> 33).unwrap() % bound
    }
}

#[derive(Clone, Debug, Default)]
struct Inode {
    durable: Vec<u8>,
    current: Vec<u8>,
}

#[derive(Clone, Debug)]
enum NameOp {
    Set(String, usize),
    Rename(String, String, usize),
    Remove(String),
}

impl NameOp {
    fn apply(&self, names: &mut BTreeMap<String, usize>) {
        match self {
            Self::Set(name, inode) => drop(names.insert(name.clone(), *inode)),
            Self::Rename(from, to, inode) => {
                names.insert(to.clone(), *inode);
                if names.get(from) == Some(inode) {
                    names.remove(from);
                }
            }
            Self::Remove(name) => drop(names.remove(name)),
        }
    }
}

/// The kind of failure, and its operation.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Trouble {
    None,
    /// All operations from this one on fail.
    CutAt(usize),
    /// This operation fails, and later ones succeed.
    ErrorAt(usize),
}

#[derive(Clone, Debug)]
struct Drive {
    inodes: Vec<Inode>,
    durable_names: BTreeMap<String, usize>,
    names: BTreeMap<String, usize>,
    pending: Vec<NameOp>,
    operations: usize,
    trouble: Trouble,
    dice: Dice,
}

/// A handle to the drive. The drive's contents outlive the log.
#[derive(Clone, Debug)]
struct Shared(Rc<RefCell<Drive>>);

impl Drive {
    fn new(seed: u64) -> Self {
        Self {
            inodes: Vec::new(),
            durable_names: BTreeMap::new(),
            names: BTreeMap::new(),
            pending: Vec::new(),
            operations: 0,
            trouble: Trouble::None,
            dice: Dice(seed),
        }
    }

    /// Whether the next operation succeeds.
    fn works(&mut self) -> bool {
        self.operations += 1;
        match self.trouble {
            Trouble::None => true,
            Trouble::CutAt(at) => self.operations <= at,
            Trouble::ErrorAt(at) => self.operations != at + 1,
        }
    }

    fn inode(&mut self, name: &str) -> io::Result<&mut Inode> {
        let &at = self.names.get(name).ok_or(io::ErrorKind::NotFound)?;
        Ok(&mut self.inodes[at])
    }

    fn name(&mut self, op: NameOp) -> io::Result<()> {
        let works = self.works();
        if works || self.dice.below(2) == 0 {
            op.apply(&mut self.names);
            self.pending.push(op);
        }
        if works { Ok(()) } else { Err(power()) }
    }

    /// The drive after a power cut. Data that was not synced is partly kept.
    fn restarted(&self, seed: u64) -> Self {
        let mut dice = Dice(seed);
        let mut names = self.durable_names.clone();
        for op in &self.pending {
            if dice.below(2) == 0 {
                op.apply(&mut names);
            }
        }
        let inodes = self.inodes.iter().map(|inode| {
            let bytes = left(inode, &mut dice);
            Inode { durable: bytes.clone(), current: bytes }
        });
        let inodes = inodes.collect();
        Self { inodes, durable_names: names.clone(), names, pending: Vec::new(), ..Self::new(seed) }
    }
}

/// The contents of a file after a power cut.
fn left(inode: &Inode, dice: &mut Dice) -> Vec<u8> {
    let Some(written) = inode.current.strip_prefix(&inode.durable[..]).filter(|written| !written.is_empty()) else {
        return if dice.below(2) == 0 { inode.durable.clone() } else { inode.current.clone() };
    };
    let (durable, written) = (inode.durable.len(), written.len());
    let mut bytes = inode.current.clone();
    match dice.below(4) {
        0 => bytes.truncate(durable),
        1 => bytes.truncate(durable + dice.below(written + 1)),
        2 => {
            // The length was written, but parts of the contents were not.
            let from = durable + dice.below(written);
            let to = from + dice.below(bytes.len() - from) + 1;
            bytes[from..to].fill(0);
        }
        _ => {}
    }
    bytes
}

fn power() -> io::Error {
    io::Error::other("power cut")
}

impl Files for Shared {
    fn folder(&self) -> PathBuf {
        "drive".into()
    }

    fn path(&self, name: &str) -> PathBuf {
        name.into()
    }

    fn list(&mut self) -> io::Result<Vec<String>> {
        Ok(self.0.borrow().names.keys().cloned().collect())
    }

    fn read(&mut self, name: &str) -> io::Result<Zeroizing<Vec<u8>>> {
        Ok(Zeroizing::new(self.0.borrow_mut().inode(name)?.current.clone()))
    }

    fn create(&mut self, name: &str) -> io::Result<()> {
        let mut drive = self.0.borrow_mut();
        drive.inodes.push(Inode::default());
        let at = drive.inodes.len() - 1;
        drive.name(NameOp::Set(name.to_owned(), at))
    }

    fn append(&mut self, name: &str, bytes: &[u8]) -> io::Result<()> {
        let mut drive = self.0.borrow_mut();
        let works = drive.works();
        let part = if works { bytes.len() } else { drive.dice.below(bytes.len() + 1) };
        drive.inode(name)?.current.extend_from_slice(&bytes[..part]);
        if works { Ok(()) } else { Err(power()) }
    }

    fn truncate(&mut self, name: &str, len: u64) -> io::Result<()> {
        let mut drive = self.0.borrow_mut();
        if !drive.works() {
            return Err(power());
        }
        drive.inode(name)?.current.truncate(usize::try_from(len).unwrap());
        Ok(())
    }

    fn sync(&mut self, name: &str) -> io::Result<()> {
        let mut drive = self.0.borrow_mut();
        if !drive.works() {
            return Err(power());
        }
        let inode = drive.inode(name)?;
        inode.durable = inode.current.clone();
        Ok(())
    }

    fn rename(&mut self, from: &str, to: &str) -> io::Result<()> {
        let mut drive = self.0.borrow_mut();
        let &inode = drive.names.get(from).ok_or(io::ErrorKind::NotFound)?;
        drive.name(NameOp::Rename(from.to_owned(), to.to_owned(), inode))
    }

    fn remove(&mut self, name: &str) -> io::Result<()> {
        let mut drive = self.0.borrow_mut();
        drive.inode(name)?;
        drive.name(NameOp::Remove(name.to_owned()))
    }

    fn sync_folder(&mut self) -> io::Result<()> {
        let mut drive = self.0.borrow_mut();
        if !drive.works() {
            return Err(power());
        }
        drive.pending.clear();
        drive.durable_names = drive.names.clone();
        Ok(())
    }
}

/// The commits number 0 to `COMMITS`, and the states between them.
const COMMITS: usize = 60;

fn script() -> (Vec<Vec<Change>>, Vec<State>) {
    script_after(State::default())
}

fn script_after(mut state: State) -> (Vec<Vec<Change>>, Vec<State>) {
    let mut states = vec![state.clone()];
    let commits = (0..COMMITS).map(|n| {
        let byte = u8::try_from(n).unwrap();
        let mut changes = vec![Change::Time(n as u64), Change::Lease(lease(byte))];
        if n % 3 == 2 {
            changes.push(Change::LeaseGone(PublicKey([byte / 2; 32])));
        }
        changes.iter().cloned().for_each(|change| state.apply(change));
        states.push(state.clone());
        changes
    });
    (commits.collect(), states)
}

fn lease(byte: u8) -> Lease {
    Lease {
        name: Some(format!("peer-{byte}")),
        v4: Some([10, 0, 0, byte].into()),
        state: LeaseState::Pending { until: 60 },
        origin: Origin::Window,
        created: byte.into(),
        ..Lease::new(PublicKey([byte; 32]), PresharedKey::from_bytes(&[!byte; 32]))
    }
}

/// The sizes are small enough for half a dozen snapshots, each in several slices.
fn log(drive: &Shared) -> Log<Shared> {
    Log::with_sizes(drive.clone(), 800, 7)
}

fn drive(drive: Drive) -> Shared {
    Shared(Rc::new(RefCell::new(drive)))
}

/// Commits from number `next` until an operation fails. Returns the total number of acknowledged commits.
fn run(files: &Shared, commits: &[Vec<Change>], states: &[State]) -> (usize, Option<FileStoreError>) {
    let mut log = log(files);
    let loaded = match log.load() {
        Ok(state) => state.unwrap_or_default(),
        Err(error) => return (0, Some(error)),
    };
    let start = states.iter().position(|state| *state == loaded).expect("a state between commits");
    for next in start..COMMITS {
        if let Err(error) = log.commit(&commits[next], &states[next]) {
            return (next, Some(error));
        }
    }
    (COMMITS, None)
}

/// A drive with a store of version 1.
fn version_1(seed: u64) -> Drive {
    let mut drive = Drive::new(seed);
    for (name, bytes) in [
        ("snapshot", &include_bytes!("../../tests/lease_store_v1/snapshot")[..]),
        ("journal-3", include_bytes!("../../tests/lease_store_v1/journal-3")),
    ] {
        drive.durable_names.insert(name.to_owned(), drive.inodes.len());
        drive.inodes.push(Inode { durable: bytes.to_owned(), current: bytes.to_owned() });
    }
    drive.names = drive.durable_names.clone();
    drive
}

fn loaded(files: &Shared) -> State {
    log(files).load().unwrap_or_else(|error| panic!("{error}")).unwrap_or_default()
}

#[test]
fn a_power_cut_at_any_operation_leaves_the_state_before_or_after() {
    let (commits, states) = script();
    let whole = drive(Drive::new(1));
    assert_eq!(run(&whole, &commits, &states).0, COMMITS);
    let operations = whole.0.borrow().operations;
    let snapshots = whole.0.borrow().names.contains_key("snapshot");
    assert!(snapshots && operations > 200, "{operations} operations");

    let mut ahead = 0;
    for cut in 0..operations {
        for seed in 0..8 {
            let place = format!("cut at operation {cut}, seed {seed}");
            let files = drive(Drive { trouble: Trouble::CutAt(cut), ..Drive::new(seed) });
            let (acknowledged, error) = run(&files, &commits, &states);
            assert!(error.is_some() || acknowledged == COMMITS, "{place}");

            // Power comes back, fails again while the first start repairs, and comes back.
            let again = drive(Drive { trouble: Trouble::CutAt(seed as usize), ..files.0.borrow().restarted(seed) });
            let _ = log(&again).load();
            let files = drive(again.0.borrow().restarted(seed + 100));
            let state = loaded(&files);
            let at = states.iter().position(|known| *known == state);
            let at = at.unwrap_or_else(|| panic!("{place}: not a state between commits"));
            assert!(at == acknowledged || at == acknowledged + 1, "{place}: {at} of {acknowledged} acknowledged");
            ahead += usize::from(at > acknowledged);

            assert_eq!(run(&files, &commits, &states).0, COMMITS, "{place}: it goes on");
            let files = drive(files.0.borrow().restarted(seed));
            assert_eq!(loaded(&files), states[COMMITS], "{place}: to the end");
        }
    }
    assert!(ahead > 0, "commits that were written and not acknowledged are among the cases");
}

#[test]
fn a_store_of_version_1_is_left_to_its_program_until_the_first_change() {
    let before = version_1(1);
    let files = drive(before.clone());
    loaded(&files);
    let after = files.0.borrow();
    assert_eq!((after.operations, &after.names), (0, &before.names));
}

#[test]
fn power_may_fail_while_a_store_of_version_1_goes_on_in_version_2() {
    let first = loaded(&drive(version_1(1)));
    let (commits, states) = script_after(first);
    let whole = drive(version_1(1));
    assert_eq!(run(&whole, &commits, &states).0, COMMITS);
    let operations = whole.0.borrow().operations;
    for cut in 0..operations {
        for seed in 0..4 {
            let place = format!("cut at operation {cut}, seed {seed}");
            let files = drive(Drive { trouble: Trouble::CutAt(cut), ..version_1(seed) });
            let (acknowledged, error) = run(&files, &commits, &states);
            assert!(error.is_some() || acknowledged == COMMITS, "{place}");
            let files = drive(files.0.borrow().restarted(seed));
            let state = loaded(&files);
            assert!(states[acknowledged..].iter().take(2).any(|known| *known == state), "{place}: {acknowledged}");
            assert_eq!(run(&files, &commits, &states).0, COMMITS, "{place}: it goes on");
            assert_eq!(loaded(&drive(files.0.borrow().restarted(seed))), states[COMMITS], "{place}: to the end");
        }
    }
}

#[test]
fn an_error_at_any_operation_loses_nothing_and_leaves_nothing_of_a_failed_commit() {
    let (commits, states) = script();
    let whole = drive(Drive::new(1));
    run(&whole, &commits, &states);
    let operations = whole.0.borrow().operations;
    let mut failed = 0;
    for at in 0..operations {
        for seed in 0..4 {
            let place = format!("error at operation {at}, seed {seed}");
            let files = drive(Drive { trouble: Trouble::ErrorAt(at), ..Drive::new(seed) });
            let mut log = log(&files);
            if log.load().is_err() {
                continue;
            }
            let mut done = 0;
            for next in 0..COMMITS {
                if log.commit(&commits[next], &states[next]).is_ok() {
                    done = next + 1;
                    continue;
                }
                failed += 1;
                // Either the commit is missing now and after a restart, or the log is broken and all later commits
                // fail.
                if log.commit(&commits[next], &states[next]).is_ok() {
                    done = next + 1;
                    continue;
                }
                assert!(
                    matches!(log.commit(&commits[next], &states[next]), Err(FileStoreError::Broken { .. })),
                    "{place}"
                );
                break;
            }
            let files = drive(files.0.borrow().restarted(seed));
            let state = loaded(&files);
            assert!(state == states[done] || (done < COMMITS && state == states[done + 1]), "{place}");
        }
    }
    assert!(failed > COMMITS, "{failed} commits failed");
}

#[test]
fn a_failed_commit_is_not_there_after_a_restart() {
    let (commits, states) = script();
    for seed in 0..50 {
        let files = drive(Drive::new(seed));
        let mut log = log(&files);
        log.load().unwrap();
        log.commit(&commits[0], &states[0]).unwrap();
        let operations = files.0.borrow().operations;
        // The record was written completely, but not synced.
        files.0.borrow_mut().trouble = Trouble::ErrorAt(operations + 1);
        assert!(log.commit(&commits[1], &states[1]).is_err());
        assert_eq!(loaded(&drive(files.0.borrow().restarted(seed))), states[1], "seed {seed}");
    }
}

#[test]
fn a_log_that_could_not_undo_a_write_accepts_nothing_more() {
    let (commits, states) = script();
    let files = drive(Drive::new(3));
    let mut log = log(&files);
    log.load().unwrap();
    let operations = files.0.borrow().operations;
    files.0.borrow_mut().trouble = Trouble::CutAt(operations);
    assert!(matches!(log.commit(&commits[0], &states[0]), Err(FileStoreError::Io { action: "write", .. })));
    files.0.borrow_mut().trouble = Trouble::None;
    assert!(matches!(log.commit(&commits[0], &states[0]), Err(FileStoreError::Broken { .. })));
}

#[test]
fn a_torn_record_that_cannot_be_cut_off_is_not_written_behind() {
    let (commits, states) = script();
    let files = drive(Drive::new(1));
    let mut log = log(&files);
    log.load().unwrap();
    log.commit(&commits[0], &states[0]).unwrap();
    files.0.borrow_mut().inode("journal-0").unwrap().current.extend_from_slice(b"torn");
    for operation in 0..2 {
        let files =
            drive(Drive { trouble: Trouble::ErrorAt(operation), ..files.0.borrow().restarted(7 + operation as u64) });
        files.0.borrow_mut().inode("journal-0").unwrap().current.extend_from_slice(b"torn");
        let error = self::log(&files).load().unwrap_err();
        assert!(matches!(error, FileStoreError::Io { action: "write", .. }), "{error}");
    }
}

#[test]
fn missing_files_are_named_and_nothing_is_changed() {
    let (commits, states) = script();
    let whole = drive(Drive::new(1));
    run(&whole, &commits, &states);
    let mut names: Vec<String> = whole.0.borrow().names.keys().cloned().collect();
    names.retain(|name| name != "snapshot.new");
    // Without its last journal, a log looks like a shorter one.
    let last = names.iter().rposition(|name| name.starts_with("journal-")).unwrap();
    names.remove(last);
    assert!(names.len() >= 2, "a snapshot and a journal: {names:?}");
    for name in &names {
        let files = drive(whole.0.borrow().restarted(1));
        files.0.borrow_mut().names.remove(name);
        let operations = files.0.borrow().operations;
        let Err(error) = log(&files).load() else { panic!("{name} is not missed") };
        assert!(matches!(&error, FileStoreError::Missing { path } if path.to_str() == Some(name)), "{name}: {error}");
        assert_eq!(files.0.borrow().operations, operations, "{name}: nothing was written");
    }
}

#[test]
fn every_flipped_bit_in_any_file_is_found_or_is_a_commit_cut_off() {
    let (commits, states) = script();
    // The log is stopped when a snapshot and two journals are in use.
    let whole = drive(Drive::new(1));
    let mut written = log(&whole);
    written.load().unwrap();
    let mut done = 0;
    while whole.0.borrow().names.len() < 4 || done < 20 {
        written.commit(&commits[done], &states[done]).unwrap();
        done += 1;
    }
    let names: Vec<String> = whole.0.borrow().names.keys().cloned().collect();
    assert_eq!(loaded(&drive(whole.0.borrow().restarted(0))), states[done], "{names:?}");
    let mut cut_off = 0;
    for name in names.iter().filter(|name| *name != "snapshot.new") {
        let len = whole.0.borrow_mut().inode(name).unwrap().current.len();
        for byte in 0..len {
            let files = drive(whole.0.borrow().restarted(0));
            files.0.borrow_mut().inode(name).unwrap().current[byte] ^= 1 << (byte % 8);
            match log(&files).load() {
                Ok(state) => {
                    assert_eq!(state.unwrap(), states[done - 1], "{name}, byte {byte}");
                    cut_off += 1;
                }
                Err(FileStoreError::Damaged { path, .. } | FileStoreError::Version { path, .. }) => {
                    assert_eq!(path.to_str(), Some(&name[..]));
                }
                Err(error) => panic!("{name}, byte {byte}: {error}"),
            }
        }
    }
    assert!((100..300).contains(&cut_off), "the bytes of one record: {cut_off}");
}
