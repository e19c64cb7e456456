//! The storage of the ledger, as a trait. The program that embeds the server implements it. `rustguard-serve` has an
//! implementation that keeps files in a folder. [`MemoryStore`] keeps nothing after the process ends.
mod error;
mod memory;
mod state;

pub use error::StoreError;
pub use memory::MemoryStore;
pub(crate) use state::Undo;
pub use state::{Change, Released, State, Tombstone};

/// The storage operations that the ledger needs.
pub trait LeaseStore {
    /// Reads the last stored state; `None` if there is none. It is called once, before the first commit.
    ///
    /// # Errors
    /// Any error of the storage. An error must not lose stored data.
    fn load(&mut self) -> Result<Option<State>, StoreError>;

    /// Makes all of `changes` durable, or none of them, before it returns. `before` is the state that they apply to,
    /// for a store that rewrites the whole state.
    ///
    /// # Errors
    /// Any error of the storage. The ledger then stays as it was.
    fn commit(&mut self, changes: &[Change], before: &State) -> Result<(), StoreError>;
}
