//! Requests to the ledger, and the policy by which it answers.
use crate::lease::{Lease, PresharedKey, Terms, TokenId};
use core::time::Duration;
use rustguard_crypto::x25519::PublicKey;

/// The durations and limits of leases.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct Policy {
    /// How long a lease lasts after the last handshake; `None`: without end. Peers that an administrator added do not
    /// expire.
    pub lease_time: Option<Duration>,
    /// How long an ephemeral peer may be silent. The default is 30 minutes, which is several handshakes of a tunnel
    /// with keepalives.
    pub ephemeral: Duration,
    /// How long an address is reserved for its former key after the lease ended, while the pool has other addresses.
    /// The default is 24 hours.
    pub quarantine: Duration,
    /// How long a new peer may take for its first handshake. The default is 60 seconds.
    pub pending: Duration,
    /// The largest number of leases at a time. The default is 65,536. It bounds memory where the pool does not, as
    /// with an IPv6 /64.
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

/// The reason to admit a peer.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub enum Grant {
    /// This invite, with its terms.
    Invite(TokenId),
    /// The open window ([`Ledger::window_opened`](super::Ledger::window_opened)).
    Window,
    /// A decision of the administrator: the lease is active at once, and an earlier removal of the peer does not
    /// matter.
    Admin(Terms),
    /// The same for a guest: the lease ends after this time unless a handshake completes before.
    Guest(Terms, Duration),
}

/// A request for a lease, by a peer that has proved its entitlement.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct Request {
    /// The peer's WireGuard key.
    pub public_key: PublicKey,
    /// The peer's name for itself, as received. The ledger stores it cleaned by
    /// [`clean_name`](crate::lease::clean_name).
    pub name: Option<String>,
    /// The preshared key of a new lease. An existing lease keeps its own key, if it has one.
    pub preshared_key: PresharedKey,
    /// The peer itself asks for an ephemeral lease.
    pub ephemeral: bool,
    /// The peer is to be a member of a network, and not a client.
    pub member: bool,
    /// The reason to admit the peer.
    pub grant: Grant,
}

impl Request {
    /// A request without a name, for a lease that is not ephemeral.
    pub fn new(public_key: PublicKey, preshared_key: PresharedKey, grant: Grant) -> Self {
        Self { public_key, name: None, preshared_key, ephemeral: false, member: false, grant }
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

    /// Sets [`member`](Self::member).
    #[must_use]
    pub fn with_member(self, member: bool) -> Self {
        Self { member, ..self }
    }
}

/// The answer to a [`Request`].
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Admission {
    /// The lease, which is durable.
    pub lease: Lease,
    /// Whether the lease is new. Otherwise this key had it already, and no use was counted.
    pub fresh: bool,
    /// Whether the lease is new, or has got a preshared key, or the peer has become a member or a client.
    pub changed: bool,
}
