//! The error of any kind of store.
use core::{error::Error, fmt};

/// Why the state could not be read or stored. It displays the store's own error, which
/// [`downcast_ref`](Self::downcast_ref) returns.
#[derive(Debug)]
pub struct StoreError(Box<dyn Error + Send + Sync>);

impl StoreError {
    /// Wraps the error of a store, or a text that describes the failure.
    pub fn new(error: impl Into<Box<dyn Error + Send + Sync>>) -> Self {
        Self(error.into())
    }

    /// The store's own error, if it is of this type.
    pub fn downcast_ref<E: Error + 'static>(&self) -> Option<&E> {
        self.0.downcast_ref()
    }
}

impl fmt::Display for StoreError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

impl Error for StoreError {
    fn source(&self) -> Option<&(dyn Error + 'static)> {
        self.0.source()
    }
}
