//! What the server is told, and what it tells.
use crate::{
    approval::ApprovalCode,
    lease::Terms,
    token::{Code, Passphrase},
};
use core::time::Duration;
use rustguard_core::time::Instant;
use rustguard_crypto::x25519::PublicKey;
use std::net::SocketAddr;

/// How long a window is open unless told otherwise.
pub const DEFAULT_WINDOW: Duration = Duration::from_secs(60);
/// How long a window may be open.
pub const MAX_WINDOW: Duration = Duration::from_secs(15 * 60);
/// How long an invite is good unless told otherwise.
pub const DEFAULT_INVITE: Duration = Duration::from_secs(24 * 60 * 60);

/// How to open a window.
#[derive(Debug)]
pub struct OpenOptions {
    /// How long; at most [`MAX_WINDOW`].
    pub duration: Duration,
    /// The passphrase that opens it. Without one, a code is made.
    pub passphrase: Option<Passphrase>,
    /// Whether each joiner waits for [`Server::approve`](super::Server::approve).
    pub approve: bool,
}

impl Default for OpenOptions {
    fn default() -> Self {
        Self { duration: DEFAULT_WINDOW, passphrase: None, approve: false }
    }
}

/// An open window.
#[derive(Debug)]
pub struct Opened {
    /// The code to tell joiners, unless the window has a passphrase.
    pub code: Option<Code>,
    /// When it closes by itself.
    pub until: Instant,
}

/// The state of the window.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct WindowStatus {
    /// When it closes by itself.
    pub until: Instant,
    /// Whether it has a code (and not a passphrase).
    pub code: bool,
    /// Whether joiners wait for approval.
    pub approve: bool,
    /// Guesses that are left before it closes.
    pub attempts_left: u32,
    /// Machines that proved the code or passphrase.
    pub joined: u32,
}

/// A joiner who waits.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PendingApproval {
    /// What the joiner sees as well.
    pub code: ApprovalCode,
    /// What it calls itself.
    pub name: Option<String>,
    /// Its WireGuard public key.
    pub public_key: PublicKey,
    /// Where it was heard from last.
    pub source: SocketAddr,
    /// Until when it can be approved.
    pub until: Instant,
}

/// How to make an invite.
#[derive(Clone, Debug)]
pub struct InviteOptions {
    /// How many machines may use it: 1 to [`MAX_USES`](crate::lease::MAX_USES).
    pub uses: u32,
    /// How long it is good; `None` is until it is used up or revoked.
    pub expires: Option<Duration>,
    /// What those get who use it.
    pub terms: Terms,
    /// Where the joiner finds the server, as `HOST:PORT`.
    pub endpoint: Option<String>,
}

impl Default for InviteOptions {
    fn default() -> Self {
        Self { uses: 1, expires: Some(DEFAULT_INVITE), terms: Terms::default(), endpoint: None }
    }
}

/// A peer to be added by hand.
#[derive(Clone, Debug, Default)]
pub struct NewPeer {
    /// What it is called.
    pub name: Option<String>,
    /// What it gets.
    pub terms: Terms,
    /// It is a guest: its lease ends unless there is a handshake within this time.
    pub within: Option<Duration>,
}
