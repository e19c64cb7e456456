//! The reasons why joining fails. Some are reported by the server, others are detected by the client.
use core::time::Duration;

/// Why joining failed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum JoinError {
    /// The server answered, but did not accept the code or passphrase.
    #[error(
        "the server did not accept the code or passphrase, or its window has closed; compare it with what the server shows and join again"
    )]
    NotAccepted,
    /// No address is free.
    #[error("the server has no free address; its administrator can enlarge the pool, or remove peers{}", Self::next_free(.0))]
    PoolExhausted(Option<Duration>),
    /// The address that the invite promises is not free.
    #[error("the address that the invite names is taken; ask for a new invite")]
    AddressTaken,
    /// The server's administrator removed this machine.
    #[error("this machine was removed from the network; ask for a new invite")]
    Removed,
    /// The token was used up by other machines, or expired, between the first message and the last.
    #[error("the token is no longer good; ask for a new one")]
    TokenSpent,
    /// The server could not write its state.
    #[error("the server could not store the lease; its log says why")]
    ServerFailed,
    /// The queue of joiners that wait for approval is full, or the window's number of requests is used up.
    #[error(
        "too many machines wait for approval, or have asked for it in this window; try again when the administrator has approved some, or has opened a new window"
    )]
    QueueFull,
    /// The approval did not come in time, or the window was closed.
    #[error("the administrator did not approve in time; join again while a window is open")]
    NotApproved,
    /// The answer is authentic, but malformed.
    #[error(
        "the server's answer cannot be read: the server is newer than this program, or hostile; update RustGuard on this machine"
    )]
    Unreadable,
    /// The server key in the token is of low order, or is this machine's own key.
    #[error("the public key in the token is of low order; the token is not genuine")]
    BadKey,
}

impl JoinError {
    fn next_free(wait: &Option<Duration>) -> String {
        wait.map_or_else(String::new, |wait| format!("; the next address comes free in {} s", wait.as_secs()))
    }
}
