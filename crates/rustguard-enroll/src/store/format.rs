//! What the files of a store hold, version 1. Numbers are little-endian, checksums CRC-32 (IEEE).
//!
//! | Snapshot | bytes | | Journal | bytes | | Record of a journal | bytes |
//! |---|---|---|---|---|---|---|---|
//! | `RGledger` | 8 | | `RGjournl` | 8 | | length of the body | 4 |
//! | version | 4 | | version | 4 | | serial of the record | 8 |
//! | generation | 8 | | generation | 8 | | checksum of the body | 4 |
//! | serial of the next record | 8 | | checksum of the above | 4 | | checksum of the above | 4 |
//! | length of the body | 8 | | records | | | body: changes | |
//! | checksum of the body | 4 | | | | | | |
//! | checksum of the above | 4 | | | | | | |
//! | body: a state | | | | | | | |
//!
//! Bodies are in postcard's encoding: one [`State`], or the [`Change`]s of one commit after another.
use serde::Serialize;
use zeroize::Zeroizing;

use super::{Change, State};

/// The version that is written.
pub(super) const VERSION: u32 = 1;
/// Length of a journal's header.
pub(super) const JOURNAL_HEADER: usize = 24;
const SNAPSHOT_HEADER: usize = 44;
const RECORD_HEADER: usize = 20;
const SNAPSHOT_MAGIC: &[u8; 8] = b"RGledger";
const JOURNAL_MAGIC: &[u8; 8] = b"RGjournl";
/// Longest body of a record, in bytes: what a commit of some million leases takes.
const MAX_BODY: usize = 1 << 30;

/// What is wrong with a file.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Fault {
    /// At this offset, for this reason.
    Damaged(usize, &'static str),
    /// It has this version.
    Version(u32),
}

/// A snapshot's contents.
#[derive(Debug)]
pub(super) struct Snapshot {
    pub(super) generation: u64,
    pub(super) next_serial: u64,
    pub(super) state: State,
}

/// Where the sound records of a journal end, and with which serial.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Tail {
    pub(super) end: usize,
    pub(super) next_serial: u64,
}

/// A snapshot of the state.
pub(super) fn snapshot(generation: u64, next_serial: u64, state: &State) -> Zeroizing<Vec<u8>> {
    let mut bytes = encode(SNAPSHOT_HEADER, core::slice::from_ref(state));
    let (header, body) = bytes.split_at_mut(SNAPSHOT_HEADER);
    let mut writer = Writer(header);
    writer.put(SNAPSHOT_MAGIC);
    writer.put(&VERSION.to_le_bytes());
    writer.put(&generation.to_le_bytes());
    writer.put(&next_serial.to_le_bytes());
    writer.put(&(body.len() as u64).to_le_bytes());
    writer.put(&crc32fast::hash(body).to_le_bytes());
    seal(header);
    bytes
}

/// Reads a snapshot of any version that is known.
pub(super) fn read_snapshot(bytes: &[u8]) -> Result<Snapshot, Fault> {
    let mut reader = Reader(bytes);
    match opening(&mut reader, SNAPSHOT_MAGIC)? {
        1 => snapshot_v1(bytes, reader),
        other => Err(Fault::Version(other)),
    }
}

/// The header of a journal.
pub(super) fn journal_header(generation: u64) -> [u8; JOURNAL_HEADER] {
    let mut header = [0; JOURNAL_HEADER];
    let mut writer = Writer(&mut header);
    writer.put(JOURNAL_MAGIC);
    writer.put(&VERSION.to_le_bytes());
    writer.put(&generation.to_le_bytes());
    seal(&mut header);
    header
}

/// Carries out what a journal of any known version holds. An incomplete record at the very end is left out: its commit
/// was never answered.
pub(super) fn read_journal(bytes: &[u8], generation: u64, serial: u64, state: &mut State) -> Result<Tail, Fault> {
    let mut reader = Reader(bytes);
    match opening(&mut reader, JOURNAL_MAGIC)? {
        1 => journal_v1(bytes, generation, serial, state),
        other => Err(Fault::Version(other)),
    }
}

/// One commit. The error is a length that is too large.
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

/// Magic and version, with which every version begins.
fn opening(reader: &mut Reader<'_>, magic: &[u8; 8]) -> Result<u32, Fault> {
    match reader.take::<8>() {
        Some(found) if found == magic => reader.u32().ok_or(Fault::Damaged(8, "it ends within its header")),
        Some(_) => Err(Fault::Damaged(0, "it does not begin as such a file does")),
        None => Err(Fault::Damaged(0, "it ends within its header")),
    }
}

fn snapshot_v1(bytes: &[u8], mut reader: Reader<'_>) -> Result<Snapshot, Fault> {
    let header = bytes.get(..SNAPSHOT_HEADER).ok_or(Fault::Damaged(8, "it ends within its header"))?;
    if !is_sealed(header) {
        return Err(Fault::Damaged(0, "the checksum of its header is wrong"));
    }
    let short = || Fault::Damaged(8, "it ends within its header");
    let generation = reader.u64().ok_or_else(short)?;
    let next_serial = reader.u64().ok_or_else(short)?;
    let len = reader.u64().ok_or_else(short)?;
    let checksum = reader.u32().ok_or_else(short)?;
    let body = &bytes[SNAPSHOT_HEADER..];
    if body.len() as u64 != len {
        return Err(Fault::Damaged(bytes.len(), "it is shorter or longer than it says"));
    }
    if crc32fast::hash(body) != checksum {
        return Err(Fault::Damaged(SNAPSHOT_HEADER, "the checksum of its body is wrong"));
    }
    let unread = |_| Fault::Damaged(SNAPSHOT_HEADER, "its body cannot be read");
    let (state, rest) = postcard::take_from_bytes(body).map_err(unread)?;
    if !rest.is_empty() {
        return Err(Fault::Damaged(bytes.len() - rest.len(), "its body goes on after the state"));
    }
    Ok(Snapshot { generation, next_serial, state })
}

fn journal_v1(bytes: &[u8], generation: u64, serial: u64, state: &mut State) -> Result<Tail, Fault> {
    let header = bytes.get(..JOURNAL_HEADER).ok_or(Fault::Damaged(8, "it ends within its header"))?;
    if !is_sealed(header) {
        return Err(Fault::Damaged(0, "the checksum of its header is wrong"));
    }
    if header != journal_header(generation) {
        return Err(Fault::Damaged(12, "it is of another generation than its name says"));
    }
    let mut tail = Tail { end: JOURNAL_HEADER, next_serial: serial };
    while let Some(rest) = bytes.get(tail.end..).filter(|rest| !rest.is_empty()) {
        let Some((found, body)) = sound_record(rest) else {
            if (tail.end + 1..bytes.len())
                .any(|at| sound_record(&bytes[at..]).is_some_and(|(next, _)| next > tail.next_serial))
            {
                return Err(Fault::Damaged(tail.end, "a record is broken, and sound ones follow"));
            }
            break;
        };
        if found != tail.next_serial {
            return Err(Fault::Damaged(tail.end, "a record is missing before this one"));
        }
        let mut changes = body;
        while !changes.is_empty() {
            let at = tail.end + RECORD_HEADER + (body.len() - changes.len());
            let (change, rest) =
                postcard::take_from_bytes(changes).map_err(|_| Fault::Damaged(at, "a record cannot be read"))?;
            state.apply(change);
            changes = rest;
        }
        tail.end += RECORD_HEADER + body.len();
        tail.next_serial += 1;
    }
    Ok(tail)
}

/// The serial and the body of the record at the beginning of `bytes`, if it is whole.
fn sound_record(bytes: &[u8]) -> Option<(u64, &[u8])> {
    let header = bytes.get(..RECORD_HEADER).filter(|header| is_sealed(header))?;
    let mut reader = Reader(header);
    let (len, serial, checksum) = (reader.u32()?, reader.u64()?, reader.u32()?);
    let body = bytes.get(RECORD_HEADER..)?.get(..usize::try_from(len).ok()?)?;
    (crc32fast::hash(body) == checksum).then_some((serial, body))
}

/// Room for a header, then the values. Measured first: a vector that grows leaves copies of keys behind.
fn encode<T: Serialize>(header: usize, values: &[T]) -> Zeroizing<Vec<u8>> {
    const SOUND: &str = "these types have nothing that postcard cannot encode";
    let len = |value| postcard::experimental::serialized_size(value).expect(SOUND);
    let mut bytes = Zeroizing::new(vec![0; header + values.iter().map(len).sum::<usize>()]);
    let mut at = header;
    for value in values {
        at += postcard::to_slice(value, &mut bytes[at..]).expect(SOUND).len();
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
