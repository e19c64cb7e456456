//! The texts of records and snapshots on the log.
//!
//! ```text
//! version of the changes                 4 bytes, little-endian as all numbers
//! when it was decided, by its server     8   seconds since 1970
//! length of the server's name            1
//! name
//! documents                                  see below
//! changes                                    as in a journal of the store
//! ```
//!
//! A snapshot has the documents, and after them a snapshot of the store in a folder.
//!
//! ```text
//! number of documents                    4
//! for each: length of its name           1
//!           name
//!           length of its contents       4   the greatest number: it was removed
//!           contents
//! ```

use crate::store::{self, format};
use rustguard_enroll::store::{Change, State};
use std::collections::BTreeMap;
use zeroize::Zeroizing;

const HEADER: usize = 4 + 8 + 1;
const REMOVED: u32 = u32::MAX;

/// Files that all servers of a network share, by their names.
pub type Documents = BTreeMap<String, Zeroizing<Vec<u8>>>;
/// Changes of documents; `None` for one that was removed.
pub(super) type DocumentChanges = BTreeMap<String, Option<Zeroizing<Vec<u8>>>>;

/// A record of the log.
pub(super) struct Record<'a> {
    /// When it was decided, by the clock of its server.
    pub(super) decided: u64,
    pub(super) server: &'a [u8],
    pub(super) documents: DocumentChanges,
    pub(super) changes: Vec<Change>,
}

/// The text of a record.
pub(super) fn encode(
    server: &str,
    decided: u64,
    documents: &DocumentChanges,
    changes: &[Change],
) -> Zeroizing<Vec<u8>> {
    let len = HEADER + server.len() + documents_len(documents.iter().map(|(name, text)| (name, text.as_ref())));
    let mut text = format::encode(len, changes);
    let mut at = Put(&mut text[..len]);
    at.put(&format::VERSION.to_le_bytes());
    at.put(&decided.to_le_bytes());
    at.put(&[u8::try_from(server.len()).unwrap_or(u8::MAX)]);
    at.put(server.as_bytes());
    at.documents(documents.iter().map(|(name, text)| (name, text.as_ref())));
    text
}

/// Reads a record. The error is its version, if that is a newer one.
pub(super) fn decode(text: &[u8]) -> Result<Record<'_>, Option<u32>> {
    let (version, rest) = text.split_first_chunk().ok_or(None)?;
    let version = u32::from_le_bytes(*version);
    if !(1..=format::VERSION).contains(&version) {
        return Err((version > 0).then_some(version));
    }
    let (decided, rest) = rest.split_first_chunk().ok_or(None)?;
    let (len, rest) = rest.split_first().ok_or(None)?;
    let (server, mut rest) = rest.split_at_checked(usize::from(*len)).ok_or(None)?;
    let documents = take_documents(&mut rest).ok_or(None)?;
    let changes = format::decode(version, rest).ok_or(None)?;
    Ok(Record { decided: u64::from_le_bytes(*decided), server, documents, changes })
}

/// The text of a snapshot. The error is its length, if it is too large.
pub(super) fn encode_snapshot(documents: &Documents, state: &State) -> Result<Zeroizing<Vec<u8>>, usize> {
    let state = store::to_snapshot(state)?;
    let len = documents_len(documents.iter().map(|(name, text)| (name, Some(text))));
    let mut text = Zeroizing::new(vec![0; len + state.len()]);
    let mut at = Put(&mut text);
    at.documents(documents.iter().map(|(name, text)| (name, Some(text))));
    at.put(&state);
    Ok(text)
}

/// Reads a snapshot.
pub(super) fn decode_snapshot(text: &[u8]) -> Option<(Documents, State)> {
    let mut rest = text;
    let documents = take_documents(&mut rest)?;
    let documents = documents.into_iter().map(|(name, text)| Some((name, text?))).collect::<Option<_>>()?;
    Some((documents, store::from_snapshot(rest)?))
}

/// Documents alone, as in a snapshot.
pub(crate) fn documents_to_bytes(documents: &Documents) -> Zeroizing<Vec<u8>> {
    let mut text = Zeroizing::new(vec![0; documents_len(documents.iter().map(|(name, text)| (name, Some(text))))]);
    Put(&mut text).documents(documents.iter().map(|(name, text)| (name, Some(text))));
    text
}

/// Reads what [`documents_to_bytes`] has made.
pub(crate) fn documents_from_bytes(bytes: &[u8]) -> Option<Documents> {
    let mut rest = bytes;
    let documents = take_documents(&mut rest)?.into_iter().map(|(name, text)| Some((name, text?)));
    documents.collect::<Option<_>>().filter(|_| rest.is_empty())
}

type Text = Zeroizing<Vec<u8>>;

fn documents_len<'a>(documents: impl Iterator<Item = (&'a String, Option<&'a Text>)>) -> usize {
    4 + documents.map(|(name, text)| 1 + name.len() + 4 + text.map_or(0, |text| text.len())).sum::<usize>()
}

fn take_documents(rest: &mut &[u8]) -> Option<DocumentChanges> {
    let (count, after) = rest.split_first_chunk()?;
    *rest = after;
    let mut documents = BTreeMap::new();
    for _ in 0..u32::from_le_bytes(*count) {
        let (len, after) = rest.split_first()?;
        let (name, after) = after.split_at_checked(usize::from(*len))?;
        let name = std::str::from_utf8(name).ok()?.to_owned();
        let (len, after) = after.split_first_chunk()?;
        let (text, after) = match u32::from_le_bytes(*len) {
            REMOVED => (None, after),
            len => {
                let (text, after) = after.split_at_checked(usize::try_from(len).ok()?)?;
                (Some(Zeroizing::new(text.to_vec())), after)
            }
        };
        *rest = after;
        documents.insert(name, text);
    }
    Some(documents)
}

/// Fills a text whose length was computed before, because a vector that grows leaves copies of keys behind.
struct Put<'a>(&'a mut [u8]);

impl Put<'_> {
    fn put(&mut self, bytes: &[u8]) {
        let (here, rest) = std::mem::take(&mut self.0).split_at_mut(bytes.len());
        here.copy_from_slice(bytes);
        self.0 = rest;
    }

    fn documents<'a>(&mut self, documents: impl Iterator<Item = (&'a String, Option<&'a Text>)> + Clone) {
        self.put(&u32::try_from(documents.clone().count()).unwrap_or(u32::MAX).to_le_bytes());
        for (name, text) in documents {
            self.put(&[u8::try_from(name.len()).unwrap_or(u8::MAX)]);
            self.put(name.as_bytes());
            self.put(&text.map_or(REMOVED, |text| u32::try_from(text.len()).unwrap_or(REMOVED - 1)).to_le_bytes());
            self.put(text.map_or(&[], |text| text));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn records_and_snapshots_are_read_as_they_were_written() {
        let text = |bytes: &[u8]| Some(Zeroizing::new(bytes.to_vec()));
        let documents: DocumentChanges =
            [("key".to_owned(), text(b"secret")), ("policy".to_owned(), None), ("none".to_owned(), text(b""))].into();
        let changes = [Change::Serial(7), Change::Time(9)];
        let record = encode("home-1", 1_800_000_000, &documents, &changes);
        let read = decode(&record).unwrap_or_else(|_| panic!("it is a record"));
        assert_eq!((read.decided, read.server, &read.documents), (1_800_000_000, &b"home-1"[..], &documents));
        assert_eq!(read.changes, changes);
        // Nothing that was cut off is a record, unless it ends between two changes.
        let whole = (0..record.len()).filter(|len| decode(&record[..*len]).is_ok()).count();
        assert_eq!(whole, 2);

        let kept: Documents = documents.into_iter().filter_map(|(name, text)| Some((name, text?))).collect();
        let state = State { time: 5, serial: 6, ..State::default() };
        let snapshot = encode_snapshot(&kept, &state).unwrap();
        assert_eq!(decode_snapshot(&snapshot), Some((kept, state)));
        assert!((0..snapshot.len()).all(|len| decode_snapshot(&snapshot[..len]).is_none()));
    }
}
