//! Where the ledger is kept: a trait, so that several gateways can one day share a database, and two stores.
mod error;
mod file;
mod files;
mod format;
mod log;
mod memory;
#[cfg(test)]
mod power_cut;
mod state;

pub use error::StoreError;
pub use file::FileStore;
pub use memory::MemoryStore;
pub use state::{Change, Released, State, Tombstone};

/// What the ledger needs of its storage.
pub trait LeaseStore {
    /// What was kept last time; `None` if nothing ever was. Called once, before anything is committed.
    fn load(&mut self) -> Result<Option<State>, StoreError>;

    /// Makes `changes` durable, all of them or none, before it returns. `before` is the state they apply to, for a store
    /// that wants to write all of it anew.
    fn commit(&mut self, changes: &[Change], before: &State) -> Result<(), StoreError>;
}
