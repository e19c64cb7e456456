//! The storage of the ledger: a folder with a snapshot and journals. The trait is
//! [`rustguard_enroll::store::LeaseStore`].

mod error;
mod file;
mod files;
pub(crate) mod format;
mod log;
#[cfg(test)]
mod power_cut;
mod walk;

pub use error::FileStoreError;
pub use file::FileStore;
use rustguard_enroll::store::{Change, State};
use walk::Walk;
use zeroize::Zeroizing;

/// The folder of the leases in a state folder.
pub(crate) const LEASES: &str = "leases";
/// The number of entries of one part of a snapshot.
const PART: usize = 1_000;

/// The changes that make this state from an empty one.
pub(crate) fn changes(state: &State) -> Vec<Change> {
    let mut walk = Walk::default();
    let mut all = Vec::new();
    loop {
        let changes = walk.step(state, PART);
        let is_last = changes.len() < PART;
        all.extend(changes);
        if is_last {
            return all;
        }
    }
}

/// A state as the bytes of a snapshot. The error is the length, if it is too large.
pub(crate) fn to_snapshot(state: &State) -> Result<Zeroizing<Vec<u8>>, usize> {
    let all = changes(state);
    let parts = all.chunks(PART).chain([&[][..]]).zip(0..).map(|(part, serial)| format::record(serial, part));
    let parts: Vec<_> = parts.collect::<Result<_, _>>()?;
    let header = format::snapshot_header(0, 0);
    // The capacity is exact, because a vector that grows leaves copies of keys behind.
    let mut bytes =
        Zeroizing::new(Vec::with_capacity(header.len() + parts.iter().map(|part| part.len()).sum::<usize>()));
    bytes.extend_from_slice(&header);
    parts.iter().for_each(|part| bytes.extend_from_slice(part));
    Ok(bytes)
}

/// The state in a snapshot of any known version; `None` if it is damaged.
pub(crate) fn from_snapshot(bytes: &[u8]) -> Option<State> {
    format::read_snapshot(bytes).ok().map(|snapshot| snapshot.state)
}
