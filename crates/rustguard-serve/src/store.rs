//! The storage of the ledger: a folder with a snapshot and journals. The trait is
//! [`rustguard_enroll::store::LeaseStore`].

mod error;
mod file;
mod files;
mod format;
mod log;
#[cfg(test)]
mod power_cut;
mod walk;

pub use error::FileStoreError;
pub use file::FileStore;
