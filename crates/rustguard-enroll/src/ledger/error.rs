//! The errors of the ledger.
use crate::{
    lease::{Lease, MAX_NAME, MAX_PREFIXES, MAX_SERVERS, MAX_TAGS, MAX_USES, TokenId, UnixSeconds},
    store::StoreError,
};
use base64ct::{Base64, Encoding};
use core::{fmt, net::IpAddr};
use ipnet::IpNet;
use rustguard_crypto::x25519::PublicKey;

/// Why a key was not admitted. Nothing has changed.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Refusal {
    /// There is no such invite, or its record was deleted.
    #[error("the invite {0} is not known; make a new one")]
    Unknown(TokenId),
    /// The invite has expired.
    #[error("the invite {0} has expired; make a new one")]
    Expired(TokenId),
    /// The invite was revoked.
    #[error("the invite {0} was revoked; make a new one")]
    Revoked(TokenId),
    /// The invite has no use left, and it did not admit this key before.
    #[error("the invite {0} was used by another key; make a new one")]
    Used(TokenId),
    /// The peer was removed after the invite was made or the window opened.
    #[error("this peer was removed; a new invite or a new window lets it in again")]
    Removed,
    /// A member had this key before the present one.
    #[error("{0} had this key until a day ago, and has another one now; make another key")]
    OldKey(Peer),
    /// No window is open.
    #[error("no window is open; open one, or make an invite")]
    Closed,
    /// No address is left in this pool.
    #[error(
        "no address is left in {pool}: all are leased; remove a peer (`rustguard peer rm`), take leases back from silent \
         machines (`rustguard serve --lease 30d`), or serve a larger pool that contains this one (`rustguard serve --pool`)"
    )]
    Exhausted {
        /// The pool.
        pool: IpNet,
        /// The earliest time at which an address may become free, if that is known.
        next_free: Option<UnixSeconds>,
    },
    /// There are as many leases as [`Policy::max_leases`](super::Policy::max_leases) allows.
    #[error("there are {0} leases, which is the most allowed; remove a peer")]
    Full(usize),
    /// Another peer has the fixed address.
    #[error("the address {address} is leased to {holder}; choose another, or remove that peer")]
    AddressTaken {
        /// The address.
        address: IpAddr,
        /// The peer that has it.
        holder: Peer,
    },
    /// The fixed address cannot be leased.
    #[error("the address {0} is not in the pool, or is reserved for the network or the server; choose another")]
    AddressUnusable(IpAddr),
    /// Two fixed addresses belong to one family.
    #[error("{0} and {1} are of one family; a peer gets one address of each")]
    TwoAddresses(IpAddr, IpAddr),
    /// The tag is too long, or has characters that are not permitted in names.
    #[error("{0:?} cannot be a tag; use at most {MAX_NAME} letters, digits, '-', '_' and '.'")]
    Tag(String),
    /// There are more tags than a peer can have.
    #[error("{0} tags are too many; a peer has at most {MAX_TAGS}")]
    Tags(usize),
    /// A prefix cannot be admitted.
    #[error(transparent)]
    Prefix(#[from] PrefixError),
    /// The state could not be stored.
    #[error(transparent)]
    Store(#[from] StoreError),
}

/// Why a prefix behind a peer cannot be admitted.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum PrefixError {
    /// Special-purpose addresses.
    #[error("{0} has loopback, link-local, multicast or reserved addresses, which are never behind a peer")]
    Special(IpNet),
    /// A default route, or a large part of one, that was not declared as intended.
    #[error(
        "{0} is a default route or a large part of one: whoever accepts it sends most of its traffic through this peer; if \
         that is intended, say --default-route"
    )]
    DefaultRoute(IpNet),
    /// A pool, or a part of one.
    #[error("{0} lies in the pool {1}, whose addresses belong to the peers; name a network behind the peer")]
    Pool(IpNet, IpNet),
    /// More prefixes than a peer can have.
    #[error("{0} prefixes are too many; a peer has at most {MAX_PREFIXES}. A larger prefix admits all of its parts")]
    TooMany(usize),
}

/// Why a change of the ledger or an administrator's request failed. Nothing has changed.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum LedgerError {
    /// The state could not be read or stored.
    #[error(transparent)]
    Store(#[from] StoreError),
    /// No lease belongs to this key.
    #[error("no peer has the key {}", base64(.0))]
    UnknownPeer(PublicKey),
    /// Another peer has or had this key.
    #[error("the key {} is or was that of another peer; make another key", base64(.0))]
    KeyTaken(PublicKey),
    /// There is no such invite.
    #[error("there is no invite {0}")]
    UnknownInvite(TokenId),
    /// There is already an invite with this id.
    #[error("there is an invite {0} already; draw another id")]
    InviteExists(TokenId),
    /// The number of uses is not permitted.
    #[error("an invite admits 1 to {MAX_USES} keys, and 1 if it has a fixed address or admits a server, not {0}")]
    Uses(u32),
    /// The network has the largest permitted number of further servers. Unused invites for servers count.
    #[error(
        "a network has at most {MAX_SERVERS} servers besides this one; remove one, or revoke an invite for one, before"
    )]
    Servers,
    /// The terms cannot be met.
    #[error(transparent)]
    Terms(Refusal),
    /// The text is not a valid name.
    #[error("{0:?} cannot be a name; use at most {MAX_NAME} letters, digits, '-', '_' and '.'")]
    Name(String),
    /// A prefix cannot be admitted.
    #[error(transparent)]
    Prefix(#[from] PrefixError),
    /// The prefix to be taken back was not admitted.
    #[error("{1} is not admitted for {0}; `rustguard peer ls --json` has what is")]
    NotAdmitted(Peer, IpNet),
    /// The peer does not have the tag to be taken away.
    #[error("{0} does not have the tag {1:?}; `rustguard peer ls` lists the tags")]
    NotTagged(Peer, String),
    /// Another peer has the name.
    #[error("{0} has this name already; choose another name, or remove or rename that peer")]
    NameTaken(Peer),
    /// The stored state has leases that do not fit the pools. The state is unchanged.
    #[error(
        "{} outside of the address pool: {}; start with a pool that has them, remove those peers, then change the pool",
        count(.0), some(.0)
    )]
    OutsidePool(Vec<(IpAddr, Peer)>),
    /// The stored state gives one address to two peers. The state is unchanged.
    #[error(
        "the stored state leases {address} to both {} and {}; restore the state from a backup",
        peers[0], peers[1]
    )]
    LeasedTwice {
        /// The address.
        address: IpAddr,
        /// The two peers.
        peers: Box<[Peer; 2]>,
    },
}

/// Why a list of members cannot be adopted. Nothing has changed.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum AdoptionError {
    /// An address of the list cannot be leased here.
    #[error(
        "the list gives {address} to {peer}, which is in no pool of this server, or reserved for the network or the server; serve \
         the pools of the list (`rustguard serve --pool`), then adopt it"
    )]
    OutsidePool {
        /// The address.
        address: IpAddr,
        /// The machine that has it in the list.
        peer: Peer,
    },
    /// The list has a machine with two addresses of one family.
    #[error(
        "the list gives {peer} a second address of one family, {address}, and a lease has one of each; go on without the list: \
         `rustguard reload --restored`"
    )]
    TwoAddresses {
        /// The second address.
        address: IpAddr,
        /// The machine.
        peer: Peer,
    },
    /// A machine that joined after the list was made has an address of the list.
    #[error(
        "the list gives {address} to {}, and {}, which has joined since, has it here; remove {1} (`rustguard peer rm`), adopt the \
         list, and let it join again",
        peers[0], peers[1]
    )]
    AddressTaken {
        /// The address.
        address: IpAddr,
        /// The machine that has it in the list, and the machine that has it here.
        peers: Box<[Peer; 2]>,
    },
    /// Two machines would have the same key.
    #[error(
        "a key of {0} is also that of another machine, in the list or here; remove {0} (`rustguard peer rm`), adopt the list, and \
         let it join again"
    )]
    KeyTwice(Peer),
    /// More leases than [`Policy::max_leases`](super::Policy::max_leases) allows.
    #[error(
        "there would be {0} leases, and the most allowed is {1}; remove peers that have joined since the list was made"
    )]
    Full(usize, usize),
    /// More further servers than a network can have.
    #[error(
        "there would be {0} servers besides this one, and a network has at most {MAX_SERVERS}; remove one that has joined since the \
         list was made"
    )]
    Servers(usize),
    /// A lease cannot have the tags or prefixes.
    #[error("the list has {peer} with what no lease can have: {cause}")]
    Unusable {
        /// The machine.
        peer: Peer,
        /// Why not.
        cause: Box<Refusal>,
    },
    /// The state could not be stored.
    #[error(transparent)]
    Store(#[from] StoreError),
}

/// A peer in a message: its name, if it has one, and its key.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Peer {
    /// Its key.
    pub public_key: PublicKey,
    /// Its name.
    pub name: Option<String>,
}

impl Peer {
    /// The peer of a lease.
    pub(super) fn of_lease(lease: &Lease) -> Self {
        Self { public_key: lease.public_key, name: lease.name.clone() }
    }
}

impl fmt::Display for Peer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.name {
            Some(name) => write!(f, "{name} ({})", base64(&self.public_key)),
            None => f.write_str(&base64(&self.public_key)),
        }
    }
}

/// A key in the notation of `wg`.
fn base64(key: &PublicKey) -> String {
    let mut text = [0; 44];
    Base64::encode(&key.0, &mut text).expect("32 bytes are 44 characters").to_owned()
}

/// The largest number of leases that a message names.
const NAMED: usize = 10;

fn count(leases: &[(IpAddr, Peer)]) -> String {
    if leases.len() == 1 { "1 lease is".to_owned() } else { format!("{} leases are", leases.len()) }
}

fn some(leases: &[(IpAddr, Peer)]) -> String {
    let mut named: Vec<_> = leases.iter().take(NAMED).map(|(address, peer)| format!("{address} of {peer}")).collect();
    if leases.len() > NAMED {
        named.push(format!("and {} more", leases.len() - NAMED));
    }
    named.join(", ")
}
