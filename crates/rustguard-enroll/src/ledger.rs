//! Who is in the network: invites, leases, addresses.
use core::net::IpAddr;
use core::time::Duration;

use ipnet::IpNet;
use rustguard_core::time::{Instant, Now};
use rustguard_crypto::x25519::PublicKey;

use crate::lease::{InviteRecord, Lease, NewInvite, PresharedKey, Terms, TokenId, UnixSeconds};
use crate::pool::Pools;
use crate::store::{LeaseStore, StoreError};

/// How long things last.
#[derive(Clone, Debug)]
pub struct Policy {
    /// How long a lease lives after the last handshake; `None`: for ever. Peers an administrator added never expire.
    pub lease_time: Option<Duration>,
    /// How long an ephemeral peer may be silent.
    pub ephemeral: Duration,
    /// How long an address rests before anybody else gets it.
    pub quarantine: Duration,
    /// How long a new peer has for its first handshake.
    pub pending: Duration,
    /// Most leases at a time: what bounds memory where the pool does not, as with an IPv6 /64.
    pub max_leases: usize,
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
pub enum Grant {
    /// This invite. Its terms hold.
    Invite(TokenId),
    /// The open window ([`Ledger::window_opened`]).
    Window,
    /// An administrator's word: the lease is active at once, and a removal before it is forgiven.
    Admin(Terms),
}

/// Somebody wants in, and has proved that it may.
#[derive(Clone, Debug)]
pub struct Request {
    /// The peer's WireGuard key.
    pub public_key: PublicKey,
    /// What it calls itself.
    pub name: Option<String>,
    /// The preshared key of a fresh lease; one that exists keeps its own.
    pub preshared_key: PresharedKey,
    /// The peer itself asks for an ephemeral lease.
    pub ephemeral: bool,
    /// What lets it in.
    pub grant: Grant,
}

/// The answer to a [`Request`].
#[derive(Clone, Debug)]
pub struct Admission {
    /// The lease, durable.
    pub lease: Lease,
    /// Whether it is new; otherwise this key had it already, and nothing was counted.
    pub fresh: bool,
}

/// Why somebody was not admitted. Nothing has changed.
#[derive(Debug, thiserror::Error)]
pub enum Refusal {
    /// No such invite, or it ended long ago.
    #[error("the invite {0} is not known; make a new one")]
    Unknown(TokenId),
    /// It is too old.
    #[error("the invite {0} has expired; make a new one")]
    Expired(TokenId),
    /// It was withdrawn.
    #[error("the invite {0} was revoked; make a new one")]
    Revoked(TokenId),
    /// It has admitted as many as it may, and this key is not among them.
    #[error("the invite {0} was used by another key; make a new one")]
    Used(TokenId),
    /// The peer was removed after the invite was made or the window opened.
    #[error("this peer was removed; a new invite or a new window lets it in again")]
    Removed,
    /// No window is open.
    #[error("no window is open")]
    Closed,
    /// No address is left in this pool.
    #[error("no address is left in {pool}")]
    Exhausted {
        /// The pool.
        pool: IpNet,
        /// When one may come free at the earliest, if that is known.
        next_free: Option<UnixSeconds>,
    },
    /// There are [`Policy::max_leases`] leases.
    #[error("there are {0} leases, which is the most allowed; remove some")]
    Full(usize),
    /// The fixed address is another peer's.
    #[error("the address {address} is leased to {holder:?}; choose another, or remove that peer")]
    AddressTaken {
        /// The address.
        address: IpAddr,
        /// Who has it.
        holder: PublicKey,
    },
    /// The fixed address is not one that can be leased.
    #[error("the address {0} is not in a pool, or kept for the network itself; choose another")]
    AddressUnusable(IpAddr),
    /// The state could not be kept.
    #[error(transparent)]
    Store(#[from] StoreError),
}

/// What went wrong with the ledger or an administrator's request. Nothing has changed.
#[derive(Debug, thiserror::Error)]
pub enum LedgerError {
    /// The state could not be read or kept.
    #[error(transparent)]
    Store(#[from] StoreError),
    /// No lease of this key.
    #[error("no peer has the key {0:?}")]
    UnknownPeer(PublicKey),
    /// No such invite.
    #[error("there is no invite {0}")]
    UnknownInvite(TokenId),
}

/// The record of who is in. What its methods report has been made durable before.
#[derive(Debug)]
pub struct Ledger<S> {
    store: S,
}

impl<S: LeaseStore> Ledger<S> {
    /// Opens what the store has kept.
    pub fn open(_store: S, _pools: Pools, _policy: Policy, _now: Now) -> Result<Self, LedgerError> {
        todo!()
    }

    /// Lets the store go, for opening it again.
    pub fn into_store(self) -> S {
        self.store
    }

    /// Makes an invite.
    pub fn add_invite(&mut self, _invite: NewInvite, _now: Now) -> Result<&InviteRecord, LedgerError> {
        todo!()
    }

    /// Withdraws an invite; who came in by it stays.
    pub fn revoke_invite(&mut self, _id: &TokenId, _now: Now) -> Result<(), LedgerError> {
        todo!()
    }

    /// All invites, by id, also those that admit nobody any more.
    pub fn invites(&self) -> impl Iterator<Item = &InviteRecord> {
        core::iter::empty()
    }

    /// One invite.
    pub fn invite(&self, _id: &TokenId) -> Option<&InviteRecord> {
        todo!()
    }

    /// A window opens: [`Grant::Window`] admits from now on, also peers that were removed before this moment.
    pub fn window_opened(&mut self) {}

    /// The window is closed.
    pub fn window_closed(&mut self) {}

    /// Gives the key a lease, or the one it has.
    pub fn admit(&mut self, _request: Request, _now: Now) -> Result<Admission, Refusal> {
        todo!()
    }

    /// Replaces the preshared key of a lease.
    pub fn set_preshared_key(&mut self, _key: &PublicKey, _to: PresharedKey, _now: Now) -> Result<(), LedgerError> {
        todo!()
    }

    /// The peer completed a handshake. True if that made a pending lease active.
    pub fn confirm(&mut self, _key: &PublicKey, _now: Now) -> Result<bool, LedgerError> {
        todo!()
    }

    /// Removes a peer: nothing older than this lets it in again.
    pub fn remove(&mut self, _key: &PublicKey, _now: Now) -> Result<Lease, LedgerError> {
        todo!()
    }

    /// Gives a peer another name.
    pub fn rename(&mut self, _key: &PublicKey, _name: &str, _now: Now) -> Result<(), LedgerError> {
        todo!()
    }

    /// All leases, by key.
    pub fn leases(&self) -> impl ExactSizeIterator<Item = &Lease> {
        [].into_iter()
    }

    /// The lease of a key.
    pub fn lease(&self, _key: &PublicKey) -> Option<&Lease> {
        todo!()
    }

    /// Whose lease has this address.
    pub fn by_address(&self, _address: IpAddr) -> Option<&Lease> {
        todo!()
    }

    /// When [`expire`](Self::expire) has something to do.
    pub fn deadline(&self) -> Option<Instant> {
        todo!()
    }

    /// Ends what is over, and returns the leases that ended.
    pub fn expire(&mut self, _now: Now) -> Result<Vec<Lease>, LedgerError> {
        todo!()
    }

    /// The ledger's time: seconds since 1970, never going back.
    pub fn time(&mut self, _now: Now) -> UnixSeconds {
        todo!()
    }
}
