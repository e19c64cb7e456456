//! Where the ledger is kept: a trait, so that several gateways can one day share a database, and two stores.
mod memory;
mod state;

pub use memory::MemoryStore;
pub use state::{Change, Released, State, Tombstone};

/// What the ledger needs of its storage.
pub trait LeaseStore {
    /// What was kept last time; `None` if nothing ever was. Called once, first.
    fn load(&mut self) -> Result<Option<State>, StoreError>;

    /// Makes `changes` durable, all of them or none, before it returns. `before` is the state they apply to, for a store
    /// that wants to write all of it anew.
    fn commit(&mut self, changes: &[Change], before: &State) -> Result<(), StoreError>;
}

/// Why the state could not be read or kept.
#[derive(Debug, thiserror::Error)]
pub enum StoreError {
    /// A store of another kind failed.
    #[error("{0}")]
    Other(Box<dyn core::error::Error + Send + Sync>),
}
