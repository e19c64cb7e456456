//! Why the server did not do as it was told.
use crate::{
    approval::ApprovalCode,
    config::ConfigError,
    ledger::{LedgerError, Refusal},
    token::TokenError,
};

/// Why the server did not do as it was told.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ServerError {
    /// A window that is open too long, or not at all.
    #[error("a window is open for 1 second to 15 minutes")]
    WindowDuration,
    /// Another window is open.
    #[error("a window is open already; close it first")]
    WindowOpen,
    /// No waiting joiner shows this code.
    #[error("nobody waits with the code {0}; `rustguard status` lists who does")]
    NobodyWaits(ApprovalCode),
    /// Joiners cannot be told this.
    #[error(transparent)]
    Config(#[from] ConfigError),
    /// The endpoint does not fit into an invite.
    #[error(transparent)]
    Token(#[from] TokenError),
    /// The ledger refuses.
    #[error(transparent)]
    Refused(#[from] Refusal),
    /// The ledger cannot.
    #[error(transparent)]
    Ledger(#[from] LedgerError),
}
