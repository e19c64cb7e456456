//! Why the server did not carry out a command.
use crate::{
    approval::ApprovalCode,
    config::ConfigError,
    ledger::{AdoptionError, LedgerError, Refusal},
    token::TokenError,
};

/// Why the server did not carry out a command.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ServerError {
    /// The duration of the window is zero or too long.
    #[error("a window is open for 1 second to 15 minutes")]
    WindowDuration,
    /// Another window is open.
    #[error("a window is open already; close it first")]
    WindowOpen,
    /// No waiting joiner shows this code.
    #[error("nobody waits with the code {0}; `rustguard status` lists who does")]
    NobodyWaits(ApprovalCode),
    /// A further server was to be admitted to a star.
    #[error("this server makes a star, in which it is the only server; serve without `--star` for a network")]
    Star,
    /// A peer was to be added with the server's own public key.
    #[error("this is the public key of this server; a peer has a key of its own")]
    OwnKey,
    /// The settings cannot be sent to joiners.
    #[error(transparent)]
    Config(#[from] ConfigError),
    /// The endpoint does not fit into an invite.
    #[error(transparent)]
    Token(#[from] TokenError),
    /// The ledger refuses to admit the peer.
    #[error(transparent)]
    Refused(#[from] Refusal),
    /// The list of members cannot be adopted.
    #[error(transparent)]
    Adoption(#[from] AdoptionError),
    /// The ledger could not carry out the change.
    #[error(transparent)]
    Ledger(#[from] LedgerError),
}
