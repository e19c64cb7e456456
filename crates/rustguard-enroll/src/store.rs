//! The storage of the ledger as a trait. The program that embeds the server provides it: `rustguard-serve` has one that keeps
//! files in a folder. [`MemoryStore`] forgets with the process.
mod error;
mod memory;
mod state;

pub use error::StoreError;
pub use memory::MemoryStore;
pub use state::{Change, Released, State, Tombstone};

/// What the ledger needs of its storage.
pub trait LeaseStore {
    /// Reads the state that was kept last time; `None` if nothing ever was. It is called once, before the first commit.
    ///
    /// # Errors
    /// Any error of the storage. Nothing that is stored may be lost by it.
    fn load(&mut self) -> Result<Option<State>, StoreError>;

    /// Makes `changes` durable, all of them or none, before it returns. `before` is the state they apply to, for a store
    /// that writes the whole state anew.
    ///
    /// # Errors
    /// Any error of the storage. The ledger then stays as it was.
    fn commit(&mut self, changes: &[Change], before: &State) -> Result<(), StoreError>;
}
