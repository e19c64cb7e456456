//! A store in memory: for tests, examples and networks that end with the process.
use super::{Change, LeaseStore, State, StoreError};

/// Keeps the state in memory. A clone is a copy of the current state.
#[derive(Clone, Debug, Default)]
pub struct MemoryStore(Option<State>);

impl LeaseStore for MemoryStore {
    fn load(&mut self) -> Result<Option<State>, StoreError> {
        Ok(self.0.clone())
    }

    fn commit(&mut self, changes: &[Change], _: &State) -> Result<(), StoreError> {
        let state = self.0.get_or_insert_default();
        changes.iter().cloned().for_each(|change| state.apply(change));
        Ok(())
    }
}
