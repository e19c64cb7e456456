//! The format of a store's files, version 3. Numbers are little-endian, checksums CRC-32 (IEEE).
//!
//! | Snapshot | bytes | | Journal | bytes | | Record | bytes |
//! |---|---|---|---|---|---|---|---|
//! | `RGledger` | 8 | | `RGjournl` | 8 | | length of the body | 4 |
//! | version | 4 | | version | 4 | | serial | 8 |
//! | generation | 8 | | generation | 8 | | checksum of the body | 4 |
//! | serial of the next commit | 8 | | checksum of the above | 4 | | checksum of the above | 4 |
//! | checksum of the above | 4 | | records | | | body | |
//! | records | | | | | | | |
//!
//! A body is a sequence of [`Change`]s in postcard's encoding. Each record of a journal is one commit, and serials
//! continue from journal to journal. The records of a snapshot are numbered from 0. Together they change the empty
//! state to the stored one. An empty record marks the end; a snapshot without it is incomplete.
//!
//! Version 1 has the same files and records, with [other changes](v1). Version 2 has no standbys, and is otherwise the
//! same. All records of a file have the version of its header.
mod v1;

use rustguard_enroll::store::{Change, State};
use zeroize::Zeroizing;

/// The version that is written.
pub(crate) const VERSION: u32 = 3;
/// Length of a journal's header.
pub(super) const JOURNAL_HEADER: usize = 24;
const SNAPSHOT_HEADER: usize = 32;
const RECORD_HEADER: usize = 20;
const SNAPSHOT_MAGIC: &[u8; 8] = b"RGledger";
const JOURNAL_MAGIC: &[u8; 8] = b"RGjournl";
/// The longest body of a record, in bytes. A commit of about a million leases has this size.
const MAX_BODY: usize = 1 << 30;

/// Damage in a file, or an unknown version.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Fault {
    /// The offset of the damage, and the problem.
    Damaged(usize, &'static str),
    /// The unknown version.
    Version(u32),
}

/// A snapshot's contents.
#[derive(Debug)]
pub(super) struct Snapshot {
    pub(super) generation: u64,
    pub(super) next_serial: u64,
    pub(super) state: State,
}

/// The end of a journal's intact records, the next serial, and the version of the records.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Tail {
    pub(super) version: u32,
    pub(super) end: usize,
    pub(super) next_serial: u64,
}

/// The header of a snapshot.
pub(super) fn snapshot_header(generation: u64, next_serial: u64) -> [u8; SNAPSHOT_HEADER] {
    let mut header = [0; SNAPSHOT_HEADER];
    let mut writer = Writer(&mut header);
    writer.put(SNAPSHOT_MAGIC);
    writer.put(&VERSION.to_le_bytes());
    writer.put(&generation.to_le_bytes());
    writer.put(&next_serial.to_le_bytes());
    seal(&mut header);
    header
}

/// Reads a snapshot of any known version.
pub(super) fn read_snapshot(bytes: &[u8]) -> Result<Snapshot, Fault> {
    let mut reader = Reader(bytes);
    match opening(&mut reader, SNAPSHOT_MAGIC)? {
        version @ 1..=VERSION => snapshot(bytes, reader, version),
        other => Err(Fault::Version(other)),
    }
}

/// The header of a journal.
pub(super) fn journal_header(generation: u64) -> [u8; JOURNAL_HEADER] {
    journal_header_of(VERSION, generation)
}

fn journal_header_of(version: u32, generation: u64) -> [u8; JOURNAL_HEADER] {
    let mut header = [0; JOURNAL_HEADER];
    let mut writer = Writer(&mut header);
    writer.put(JOURNAL_MAGIC);
    writer.put(&version.to_le_bytes());
    writer.put(&generation.to_le_bytes());
    seal(&mut header);
    header
}

/// Applies a journal of any known version. An incomplete record at the very end is ignored, because its commit was
/// never acknowledged.
pub(super) fn read_journal(bytes: &[u8], generation: u64, serial: u64, state: &mut State) -> Result<Tail, Fault> {
    let mut reader = Reader(bytes);
    match opening(&mut reader, JOURNAL_MAGIC)? {
        version @ 1..=VERSION => journal(bytes, version, generation, serial, state),
        other => Err(Fault::Version(other)),
    }
}

/// One commit, or a part of a snapshot. The error is the length, if it is too large.
pub(super) fn record(serial: u64, changes: &[Change]) -> Result<Zeroizing<Vec<u8>>, usize> {
    let mut bytes = encode(RECORD_HEADER, changes);
    let (header, body) = bytes.split_at_mut(RECORD_HEADER);
    let len = u32::try_from(body.len()).ok().filter(|_| body.len() <= MAX_BODY).ok_or(body.len())?;
    let mut writer = Writer(header);
    writer.put(&len.to_le_bytes());
    writer.put(&serial.to_le_bytes());
    writer.put(&crc32fast::hash(body).to_le_bytes());
    seal(header);
    Ok(bytes)
}

/// Reads the magic and the version, with which every version starts.
fn opening(reader: &mut Reader<'_>, magic: &[u8; 8]) -> Result<u32, Fault> {
    match reader.take::<8>() {
        Some(found) if found == magic => reader.u32().ok_or(Fault::Damaged(8, "it ends within its header")),
        Some(_) => Err(Fault::Damaged(0, "it does not begin as such a file does")),
        None => Err(Fault::Damaged(0, "it ends within its header")),
    }
}

fn snapshot(bytes: &[u8], mut reader: Reader<'_>, version: u32) -> Result<Snapshot, Fault> {
    let short = || Fault::Damaged(8, "it ends within its header");
    let header = bytes.get(..SNAPSHOT_HEADER).ok_or_else(short)?;
    if !is_sealed(header) {
        return Err(Fault::Damaged(0, "the checksum of its header is wrong"));
    }
    let (generation, next_serial) = (reader.u64().ok_or_else(short)?, reader.u64().ok_or_else(short)?);
    let mut state = State::default();
    let mut at = SNAPSHOT_HEADER;
    for part in 0.. {
        let rest = bytes.get(at..).unwrap_or_default();
        let (serial, body) = sound_record(rest).ok_or(Fault::Damaged(at, "a part of it is broken or missing"))?;
        if serial != part {
            return Err(Fault::Damaged(at, "its parts are not in order"));
        }
        apply(body, version, at, &mut state)?;
        at += RECORD_HEADER + body.len();
        if body.is_empty() {
            break;
        }
    }
    if at < bytes.len() {
        return Err(Fault::Damaged(at, "it goes on after its end"));
    }
    Ok(Snapshot { generation, next_serial, state })
}

fn journal(bytes: &[u8], version: u32, generation: u64, serial: u64, state: &mut State) -> Result<Tail, Fault> {
    let header = bytes.get(..JOURNAL_HEADER).ok_or(Fault::Damaged(8, "it ends within its header"))?;
    if !is_sealed(header) {
        return Err(Fault::Damaged(0, "the checksum of its header is wrong"));
    }
    if header != journal_header_of(version, generation) {
        return Err(Fault::Damaged(12, "it is of another generation than its name says"));
    }
    let mut tail = Tail { version, end: JOURNAL_HEADER, next_serial: serial };
    while let Some(rest) = bytes.get(tail.end..).filter(|rest| !rest.is_empty()) {
        let Some((found, body)) = sound_record(rest) else {
            let later = |at| sound_record(&bytes[at..]).is_some_and(|(later, _)| later > tail.next_serial);
            if (tail.end + 1..bytes.len()).any(later) {
                return Err(Fault::Damaged(tail.end, "a record is broken, and sound ones follow"));
            }
            break;
        };
        if found != tail.next_serial {
            return Err(Fault::Damaged(tail.end, "a record is missing before this one"));
        }
        apply(body, version, tail.end, state)?;
        tail.end += RECORD_HEADER + body.len();
        tail.next_serial += 1;
    }
    Ok(tail)
}

/// Applies the changes in the body of the record at `at`.
fn apply(body: &[u8], version: u32, at: usize, state: &mut State) -> Result<(), Fault> {
    let changes = decode(version, body).ok_or(Fault::Damaged(at, "a record cannot be read"))?;
    changes.into_iter().for_each(|change| state.apply(change));
    Ok(())
}

/// The changes in the body of a record of a known version.
pub(crate) fn decode(version: u32, body: &[u8]) -> Option<Vec<Change>> {
    type Take = for<'b> fn(&'b [u8]) -> postcard::Result<(Change, &'b [u8])>;
    let take: Take = if version == 1 { v1::take } else { |bytes| postcard::take_from_bytes(bytes) };
    let (mut changes, mut rest) = (Vec::new(), body);
    while !rest.is_empty() {
        let (change, after) = take(rest).ok()?;
        changes.push(change);
        rest = after;
    }
    Some(changes)
}

/// The serial and the body of the record at the start of `bytes`, if it is complete.
fn sound_record(bytes: &[u8]) -> Option<(u64, &[u8])> {
    let header = bytes.get(..RECORD_HEADER).filter(|header| is_sealed(header))?;
    let mut reader = Reader(header);
    let (len, serial, checksum) = (reader.u32()?, reader.u64()?, reader.u32()?);
    let body = bytes.get(RECORD_HEADER..)?.get(..usize::try_from(len).ok()?)?;
    (crc32fast::hash(body) == checksum).then_some((serial, body))
}

/// Space for a header of this length, followed by the changes. The length is computed first, because a vector that
/// grows leaves copies of keys behind.
pub(crate) fn encode(header: usize, changes: &[Change]) -> Zeroizing<Vec<u8>> {
    const SOUND: &str = "a change has nothing that postcard cannot encode";
    let len = |change| postcard::experimental::serialized_size(change).expect(SOUND);
    let mut bytes = Zeroizing::new(vec![0; header + changes.iter().map(len).sum::<usize>()]);
    let mut at = header;
    for change in changes {
        at += postcard::to_slice(change, &mut bytes[at..]).expect(SOUND).len();
    }
    bytes
}

/// Writes the checksum of a header into its last four bytes.
fn seal(header: &mut [u8]) {
    let (rest, checksum) = header.split_last_chunk_mut::<4>().expect("headers are longer");
    *checksum = crc32fast::hash(rest).to_le_bytes();
}

fn is_sealed(header: &[u8]) -> bool {
    header.split_last_chunk::<4>().is_some_and(|(rest, checksum)| crc32fast::hash(rest).to_le_bytes() == *checksum)
}

/// Fills a header from the front.
struct Writer<'a>(&'a mut [u8]);

impl Writer<'_> {
    fn put(&mut self, bytes: &[u8]) {
        let (here, rest) = core::mem::take(&mut self.0).split_at_mut(bytes.len());
        here.copy_from_slice(bytes);
        self.0 = rest;
    }
}

/// Reads a header from the front.
struct Reader<'a>(&'a [u8]);

impl<'a> Reader<'a> {
    fn take<const N: usize>(&mut self) -> Option<&'a [u8; N]> {
        let (here, rest) = self.0.split_first_chunk()?;
        self.0 = rest;
        Some(here)
    }

    fn u32(&mut self) -> Option<u32> {
        self.take().copied().map(u32::from_le_bytes)
    }

    fn u64(&mut self) -> Option<u64> {
        self.take().copied().map(u64::from_le_bytes)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::store::walk::Walk;
    use rustguard_crypto::x25519::PublicKey;
    use rustguard_enroll::{
        lease::{InviteRecord, Lease, LeaseState, OldKey, Origin, PresharedKey, ServerRole, Terms, TokenId},
        store::{Released, Tombstone},
    };

    /// One change of each kind, with only the fields of version 1.
    fn changes_of_v1() -> Vec<Change> {
        let (public_key, v4, v6) = (PublicKey([1; 32]), [10, 0, 0, 2].into(), "fd00::2".parse().unwrap());
        vec![
            Change::Time(1_800_000_000),
            Change::Serial(7),
            Change::Invite(InviteRecord {
                id: TokenId([2; 8]),
                public_key: PublicKey([3; 32]),
                serial: 5,
                created: 1_700_000_000,
                expires: Some(1_700_086_400),
                uses: 300,
                uses_left: 299,
                last_used: Some(1_700_000_001),
                revoked: None,
                terms: Terms::default().with_addresses(vec![v6]).with_tags(vec!["lab".to_owned()]).with_ephemeral(true),
            }),
            Change::InviteGone(TokenId([4; 8])),
            Change::Lease(Lease {
                name: Some("web".to_owned()),
                v4: Some(v4),
                state: LeaseState::Pending { until: 60 },
                origin: Origin::Invite(TokenId([2; 8])),
                created: 1_800_000_000,
                expires: Some(1_800_003_600),
                ..Lease::new(public_key, PresharedKey::from_bytes(&[0xee; 32]))
            }),
            Change::Renewed { public_key, last_handshake: 5, expires: None },
            Change::LeaseGone(PublicKey([5; 32])),
            Change::Released(Released {
                public_key: PublicKey([6; 32]),
                v4: None,
                v6: Some([0xfd; 16].into()),
                until: 9,
            }),
            Change::ReleasedGone(PublicKey([7; 32])),
            Change::Removed(Tombstone { public_key: PublicKey([8; 32]), serial: 6, removed: 10 }),
            Change::RemovedGone(PublicKey([9; 32])),
        ]
    }

    /// One change of each kind, with everything that a lease and an invite can have.
    fn changes() -> Vec<Change> {
        let prefix = |text: &str| text.parse::<ipnet::IpNet>().unwrap();
        let mut changes = changes_of_v1();
        for change in &mut changes {
            match change {
                Change::Lease(lease) => {
                    lease.tags = vec!["lab".to_owned(), "web".to_owned()];
                    (lease.ephemeral, lease.member, lease.server) = (true, true, ServerRole::Standby);
                    lease.endpoints =
                        vec!["[2001:db8::7]:51820".parse().unwrap(), "vpn.example.org:7".parse().unwrap()];
                    lease.admitted = vec![prefix("192.168.0.0/16"), prefix("2001:db8:1::/48")];
                    lease.announced = vec![prefix("192.168.7.0/24"), prefix("0.0.0.0/0")];
                    lease.old_key = Some(OldKey { public_key: PublicKey([0x0d; 32]), until: 1_800_086_400 });
                }
                Change::Invite(invite) => {
                    invite.terms.tags.push("web".to_owned());
                    invite.terms.admitted = vec![prefix("192.168.0.0/16")];
                    invite.terms.server = ServerRole::Server;
                }
                _ => {}
            }
        }
        changes
    }

    fn state_of(changes: Vec<Change>) -> State {
        let mut state = State::default();
        changes.into_iter().for_each(|change| state.apply(change));
        state
    }

    fn state() -> State {
        state_of(changes())
    }

    fn snapshot(generation: u64, next_serial: u64, state: &State) -> Vec<u8> {
        let mut bytes = snapshot_header(generation, next_serial).to_vec();
        let mut walk = Walk::default();
        for part in 0.. {
            let changes = walk.step(state, 3);
            bytes.extend_from_slice(&record(part, &changes).unwrap());
            if changes.is_empty() {
                break;
            }
        }
        bytes
    }

    fn journal(commits: usize) -> (Vec<u8>, Vec<usize>) {
        let mut bytes = journal_header(3).to_vec();
        let mut ends = vec![bytes.len()];
        for serial in 0..commits {
            bytes.extend_from_slice(&record(serial as u64 + 10, &[Change::Serial(serial as u64 + 1)]).unwrap());
            ends.push(bytes.len());
        }
        (bytes, ends)
    }

    #[test]
    fn what_is_written_is_read() {
        let state = state();
        let read = read_snapshot(&snapshot(3, 10, &state)).unwrap();
        assert_eq!((read.generation, read.next_serial, &read.state), (3, 10, &state));
        let mut bytes = journal_header(3).to_vec();
        bytes.extend_from_slice(&record(10, &changes()).unwrap());
        let mut read = State::default();
        let tail = read_journal(&bytes, 3, 10, &mut read).unwrap();
        assert_eq!((tail, read), (Tail { version: VERSION, end: bytes.len(), next_serial: 11 }, state));
    }

    /// Version 3 is in use. If this test fails, a version 4 is needed, and version 3 must stay readable.
    #[test]
    fn version_3_stays_as_it_is() {
        let folder = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/lease_store_v3");
        let journal = [&journal_header(3)[..], &record(10, &changes()).unwrap()].concat();
        for (name, written) in [("snapshot", snapshot(3, 10, &state())), ("journal-3", journal)] {
            let committed = std::fs::read(folder.join(name)).unwrap();
            assert_eq!(written, committed, "{name}");
        }
    }

    #[test]
    fn version_2_is_read() {
        let mut changes = changes();
        for change in &mut changes {
            if let Change::Lease(lease) = change {
                lease.server = ServerRole::Server;
            }
        }
        let committed: &[u8] = include_bytes!("../../tests/lease_store_v2/snapshot");
        assert_eq!(read_snapshot(committed).unwrap().state, state_of(changes.clone()));
        let committed: &[u8] = include_bytes!("../../tests/lease_store_v2/journal-3");
        let mut read = State::default();
        let tail = read_journal(committed, 3, 10, &mut read).unwrap();
        assert_eq!((tail.version, read), (2, state_of(changes)));
    }

    #[test]
    fn version_1_is_read() {
        let committed: &[u8] = include_bytes!("../../tests/lease_store_v1/snapshot");
        assert_eq!(read_snapshot(committed).unwrap().state, state_of(changes_of_v1()));

        let committed: &[u8] = include_bytes!("../../tests/lease_store_v1/journal-3");
        let mut read = State::default();
        let tail = read_journal(committed, 3, 10, &mut read).unwrap();
        assert_eq!(
            (tail, read),
            (Tail { version: 1, end: committed.len(), next_serial: 11 }, state_of(changes_of_v1()))
        );
    }

    #[test]
    fn other_versions_are_refused_by_number() {
        let mut bytes = snapshot(3, 10, &state());
        let mut journal = journal(1).0;
        for version in [0, VERSION + 1, u32::MAX] {
            bytes[8..12].copy_from_slice(&version.to_le_bytes());
            journal[8..12].copy_from_slice(&version.to_le_bytes());
            assert_eq!(read_snapshot(&bytes).unwrap_err(), Fault::Version(version));
            assert_eq!(read_journal(&journal, 3, 10, &mut State::default()).unwrap_err(), Fault::Version(version));
        }
    }

    #[test]
    fn a_snapshot_is_whole_or_damaged() {
        let bytes = snapshot(3, 10, &state());
        for len in 0..bytes.len() {
            assert!(matches!(read_snapshot(&bytes[..len]), Err(Fault::Damaged(..))), "{len}");
        }
        let longer = [&bytes[..], b"x"].concat();
        assert_eq!(read_snapshot(&longer).unwrap_err(), Fault::Damaged(bytes.len(), "it goes on after its end"));
        let mut parts = snapshot_header(3, 10).to_vec();
        parts.extend_from_slice(&record(1, &[Change::Serial(1)]).unwrap());
        parts.extend_from_slice(&record(0, &[]).unwrap());
        assert_eq!(read_snapshot(&parts).unwrap_err(), Fault::Damaged(SNAPSHOT_HEADER, "its parts are not in order"));
    }

    #[test]
    fn a_journal_cut_anywhere_is_the_commits_before_it() {
        let (bytes, ends) = journal(5);
        for len in JOURNAL_HEADER..=bytes.len() {
            let mut state = State::default();
            let whole = ends.iter().rposition(|&end| end <= len).unwrap();
            let tail = read_journal(&bytes[..len], 3, 10, &mut state).unwrap();
            assert_eq!((tail.end, tail.next_serial), (ends[whole], 10 + whole as u64), "{len}");
            assert_eq!(state.serial, whole as u64, "{len}");
        }
        for len in 0..JOURNAL_HEADER {
            assert!(
                matches!(read_journal(&bytes[..len], 3, 10, &mut State::default()), Err(Fault::Damaged(..))),
                "{len}"
            );
        }
    }

    #[test]
    fn a_broken_record_before_sound_ones_is_damage_at_its_place() {
        let (bytes, ends) = journal(5);
        for broken in ends[1]..ends[2] {
            let mut bytes = bytes.clone();
            bytes[broken] ^= 0x10;
            let fault = read_journal(&bytes, 3, 10, &mut State::default()).unwrap_err();
            assert_eq!(fault, Fault::Damaged(ends[1], "a record is broken, and sound ones follow"), "{broken}");
        }
        let without = [&bytes[..ends[1]], &bytes[ends[2]..]].concat();
        let fault = read_journal(&without, 3, 10, &mut State::default()).unwrap_err();
        assert_eq!(fault, Fault::Damaged(ends[1], "a record is missing before this one"));
    }

    #[test]
    fn journals_that_changed_places_are_noticed() {
        let (bytes, _) = journal(1);
        assert!(matches!(read_journal(&bytes, 4, 10, &mut State::default()), Err(Fault::Damaged(12, _))));
        assert!(matches!(read_journal(&bytes, 3, 9, &mut State::default()), Err(Fault::Damaged(..))));
        assert!(matches!(read_snapshot(&bytes), Err(Fault::Damaged(0, _))));
    }
}
