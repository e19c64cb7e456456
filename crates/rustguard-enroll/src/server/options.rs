//! The parameters and results of the server's commands.
use crate::{
    approval::ApprovalCode,
    lease::Terms,
    token::{Code, Passphrase},
};
use core::time::Duration;
use rustguard_core::time::Instant;
use rustguard_crypto::x25519::PublicKey;
use std::net::SocketAddr;

/// The default duration of a window.
pub const DEFAULT_WINDOW: Duration = Duration::from_secs(60);
/// The longest duration of a window.
pub const MAX_WINDOW: Duration = Duration::from_secs(15 * 60);
/// The default validity of an invite.
pub const DEFAULT_INVITE: Duration = Duration::from_secs(24 * 60 * 60);

/// The parameters of a new window.
#[derive(Debug)]
#[non_exhaustive]
pub struct OpenOptions {
    /// Its duration; at most [`MAX_WINDOW`].
    pub duration: Duration,
    /// The window's passphrase. Without one, the server makes a code.
    pub passphrase: Option<Passphrase>,
    /// Whether each joiner waits for [`Server::approve`](super::Server::approve).
    pub approve: bool,
}

impl OpenOptions {
    /// Sets [`duration`](Self::duration).
    #[must_use]
    pub fn with_duration(self, duration: Duration) -> Self {
        Self { duration, ..self }
    }

    /// Sets [`passphrase`](Self::passphrase).
    #[must_use]
    pub fn with_passphrase(self, passphrase: impl Into<Option<Passphrase>>) -> Self {
        Self { passphrase: passphrase.into(), ..self }
    }

    /// Sets [`approve`](Self::approve).
    #[must_use]
    pub fn with_approve(self, approve: bool) -> Self {
        Self { approve, ..self }
    }
}

impl Default for OpenOptions {
    fn default() -> Self {
        Self { duration: DEFAULT_WINDOW, passphrase: None, approve: false }
    }
}

/// An open window.
#[derive(Debug)]
#[non_exhaustive]
pub struct Opened {
    /// The code to tell joiners, unless the window has a passphrase.
    pub code: Option<Code>,
    /// When it closes by itself.
    pub until: Instant,
}

/// The state of the window.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
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

/// A joiner that waits for approval.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct PendingApproval {
    /// The digits, which the joiner shows too.
    pub code: ApprovalCode,
    /// The joiner's name for itself.
    pub name: Option<String>,
    /// Its WireGuard public key.
    pub public_key: PublicKey,
    /// The source of its last message.
    pub source: SocketAddr,
    /// The end of the time for approval.
    pub until: Instant,
}

/// The parameters of a new invite.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct InviteOptions {
    /// The number of machines that may use it: 1 to [`MAX_USES`](crate::lease::MAX_USES).
    pub uses: u32,
    /// Its validity; `None`: until it is used up or revoked.
    pub expires: Option<Duration>,
    /// The terms for machines that use it.
    pub terms: Terms,
    /// Where joiners find a server, each as `HOST:PORT`: at most [`MAX_ENDPOINTS`](crate::token::MAX_ENDPOINTS).
    pub endpoints: Vec<String>,
}

impl InviteOptions {
    /// Sets [`uses`](Self::uses).
    #[must_use]
    pub fn with_uses(self, uses: u32) -> Self {
        Self { uses, ..self }
    }

    /// Sets [`expires`](Self::expires).
    #[must_use]
    pub fn with_expires(self, expires: impl Into<Option<Duration>>) -> Self {
        Self { expires: expires.into(), ..self }
    }

    /// Sets [`terms`](Self::terms).
    #[must_use]
    pub fn with_terms(self, terms: Terms) -> Self {
        Self { terms, ..self }
    }

    /// Sets [`endpoints`](Self::endpoints).
    #[must_use]
    pub fn with_endpoints(self, endpoints: impl IntoIterator<Item = String>) -> Self {
        Self { endpoints: endpoints.into_iter().collect(), ..self }
    }
}

impl Default for InviteOptions {
    fn default() -> Self {
        Self { uses: 1, expires: Some(DEFAULT_INVITE), terms: Terms::default(), endpoints: Vec::new() }
    }
}

/// A peer to be added by hand.
#[derive(Clone, Debug, Default)]
#[non_exhaustive]
pub struct NewPeer {
    /// The peer's name.
    pub name: Option<String>,
    /// The terms of its lease.
    pub terms: Terms,
    /// For a guest: the lease ends unless a handshake completes within this time.
    pub within: Option<Duration>,
}

impl NewPeer {
    /// Sets [`name`](Self::name).
    #[must_use]
    pub fn with_name(self, name: impl Into<Option<String>>) -> Self {
        Self { name: name.into(), ..self }
    }

    /// Sets [`terms`](Self::terms).
    #[must_use]
    pub fn with_terms(self, terms: Terms) -> Self {
        Self { terms, ..self }
    }

    /// Sets [`within`](Self::within).
    #[must_use]
    pub fn with_within(self, within: impl Into<Option<Duration>>) -> Self {
        Self { within: within.into(), ..self }
    }
}
