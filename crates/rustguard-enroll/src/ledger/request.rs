//! What the ledger is asked, and by which rules it answers.
use crate::lease::{Lease, PresharedKey, Terms, TokenId};
use core::time::Duration;
use rustguard_crypto::x25519::PublicKey;

/// How long things last.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct Policy {
    /// How long a lease lives after the last handshake; `None`: for ever. Peers an administrator added do not expire.
    pub lease_time: Option<Duration>,
    /// How long an ephemeral peer may be silent: 30 minutes by default, some handshakes of a tunnel with keepalives.
    pub ephemeral: Duration,
    /// How long an address rests before anybody else gets it: 24 hours by default.
    pub quarantine: Duration,
    /// How long a new peer has for its first handshake: 60 seconds by default.
    pub pending: Duration,
    /// Most leases at a time, 65,536 by default: what bounds memory where the pool does not, as with an IPv6 /64.
    pub max_leases: usize,
}

impl Policy {
    /// Sets [`lease_time`](Self::lease_time).
    #[must_use]
    pub fn with_lease_time(self, lease_time: impl Into<Option<Duration>>) -> Self {
        Self { lease_time: lease_time.into(), ..self }
    }

    /// Sets [`ephemeral`](Self::ephemeral).
    #[must_use]
    pub fn with_ephemeral(self, ephemeral: Duration) -> Self {
        Self { ephemeral, ..self }
    }

    /// Sets [`quarantine`](Self::quarantine).
    #[must_use]
    pub fn with_quarantine(self, quarantine: Duration) -> Self {
        Self { quarantine, ..self }
    }

    /// Sets [`pending`](Self::pending).
    #[must_use]
    pub fn with_pending(self, pending: Duration) -> Self {
        Self { pending, ..self }
    }

    /// Sets [`max_leases`](Self::max_leases).
    #[must_use]
    pub fn with_max_leases(self, max_leases: usize) -> Self {
        Self { max_leases, ..self }
    }
}

impl Default for Policy {
    fn default() -> Self {
        Self {
            lease_time: None,
            ephemeral: Duration::from_secs(30 * 60),
            quarantine: Duration::from_secs(24 * 3600),
            pending: Duration::from_secs(60),
            max_leases: 65_536,
        }
    }
}

/// What lets a peer in.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub enum Grant {
    /// This invite. Its terms hold.
    Invite(TokenId),
    /// The open window ([`Ledger::window_opened`](super::Ledger::window_opened)).
    Window,
    /// An administrator's word: the lease is active at once, and it does not matter that the peer was removed before.
    Admin(Terms),
    /// The same for a guest: the lease ends after so long unless there is a handshake before.
    Guest(Terms, Duration),
}

/// A request for a lease, by a peer that has proved its entitlement.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct Request {
    /// The peer's WireGuard key.
    pub public_key: PublicKey,
    /// What it calls itself, as it came: the ledger keeps what [`clean_name`](crate::lease::clean_name) makes of it.
    pub name: Option<String>,
    /// The preshared key of a fresh lease; one that exists keeps its own.
    pub preshared_key: PresharedKey,
    /// The peer itself asks for an ephemeral lease.
    pub ephemeral: bool,
    /// What lets it in.
    pub grant: Grant,
}

impl Request {
    /// A request without a name, for a lease that is not ephemeral.
    pub fn new(public_key: PublicKey, preshared_key: PresharedKey, grant: Grant) -> Self {
        Self { public_key, name: None, preshared_key, ephemeral: false, grant }
    }

    /// Sets [`name`](Self::name).
    #[must_use]
    pub fn with_name(self, name: impl Into<Option<String>>) -> Self {
        Self { name: name.into(), ..self }
    }

    /// Sets [`ephemeral`](Self::ephemeral).
    #[must_use]
    pub fn with_ephemeral(self, ephemeral: bool) -> Self {
        Self { ephemeral, ..self }
    }
}

/// The answer to a [`Request`].
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Admission {
    /// The lease, durable.
    pub lease: Lease,
    /// Whether it is new; otherwise this key had it already, and nothing was counted or changed.
    pub fresh: bool,
}
