//! Why a server is not imported.

use crate::{prepare::PrepareError, settings::SettingsError, store::FileStoreError};
use ipnet::IpNet;
use rustguard_enroll::{
    ledger::{LedgerError, PrefixError},
    pool::PoolError,
};
use rustguard_network::FolderError;
use std::{io, net::IpAddr, path::PathBuf};

/// Why an existing server cannot be imported. Nothing has changed.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ImportError {
    /// No file was given.
    #[error("no file to import was given; it is mostly /etc/wireguard/wg0.conf")]
    NoFile,
    /// The file cannot be read.
    #[error("cannot read {}: {cause}", path.display())]
    NotRead {
        /// The file.
        path: PathBuf,
        /// The cause.
        cause: io::Error,
    },
    /// Every user of this machine may change the file.
    #[error("everybody on this machine may change {}, and could add peers of their own: chmod 600 {}", .0.display(), .0.display())]
    Exposed(PathBuf),
    /// The contents are not those of a server.
    #[error("{}: {problem}", path.display())]
    Invalid {
        /// The file.
        path: PathBuf,
        /// The problem, with its remedy.
        problem: String,
    },
    /// The file of a client.
    #[error(
        "{} is the configuration of a client: its server is {endpoint}. Import the file of the server on that machine; a client stays as it \
         is, or becomes a member with `rustguard join`. If this is a server, give its port: --port", path.display()
    )]
    Client {
        /// The file.
        path: PathBuf,
        /// The endpoint of the server.
        endpoint: String,
    },
    /// No private key.
    #[error("{} has no PrivateKey, so clients would not know the server; import the file of the server itself", .0.display())]
    NoKey(PathBuf),
    /// No port.
    #[error("{} has no ListenPort, so clients could not find the server; if they know one, give it: --port", .0.display())]
    NoPort(PathBuf),
    /// No address.
    #[error(
        "{0} has no Address, from which the pool would be made; give the server's address and the length of its network: --pool 10.8.0.1/24"
    )]
    NoAddress(String),
    /// Files of two servers.
    #[error(
        "{} and {} have different private keys: they are two servers. Import each into an interface of its own (--interface)",
        .0[0].display(), .0[1].display()
    )]
    TwoServers([PathBuf; 2]),
    /// Two ports.
    #[error("{} has the port {}, and {} has {}; give the one that clients know: --port", paths[0].display(), ports[0], paths[1].display(), ports[1])]
    TwoPorts {
        /// The files.
        paths: [PathBuf; 2],
        /// Their ports.
        ports: [u16; 2],
    },
    /// Two files say different things about one peer.
    #[error("{} says other AllowedIPs or another PresharedKey for {peer} than the file before; import the newer one alone", path.display())]
    Twice {
        /// The second file.
        path: PathBuf,
        /// The peer.
        peer: String,
    },
    /// A peer is the server itself.
    #[error("the peer {0} has the public key of the server itself; remove its section from the file")]
    OwnKey(String),
    /// One prefix for two peers.
    #[error(
        "{net} is among the AllowedIPs of {} and of {}: only the second of them works today. Remove it from the section of one", peers[0], peers[1]
    )]
    Shared {
        /// The prefix.
        net: IpNet,
        /// The two peers.
        peers: Box<[String; 2]>,
    },
    /// A peer has the server's address.
    #[error("{address} among the AllowedIPs of {peer} is the address of the server itself; remove it there")]
    OwnAddress {
        /// The address.
        address: IpAddr,
        /// The peer.
        peer: String,
    },
    /// A peer with two addresses in one pool.
    #[error(
        "{peer} has two addresses of one pool, {} and {}; a peer has one. Remove one from its AllowedIPs, or give a pool that does not have both: --pool",
        addresses[0], addresses[1]
    )]
    TwoAddresses {
        /// The addresses.
        addresses: [IpAddr; 2],
        /// The peer.
        peer: String,
    },
    /// A peer has a part of the pool.
    #[error(
        "AllowedIPs {net} of {peer} lies in the pool {pool}, from which machines that join get addresses; write the peer's own address into the \
         file in its place (the client's file stays), or give a pool without it: --pool"
    )]
    PartOfPool {
        /// The prefix.
        net: IpNet,
        /// The pool.
        pool: IpNet,
        /// The peer.
        peer: String,
    },
    /// A prefix behind a peer cannot be admitted.
    #[error("AllowedIPs of {peer}: {why}")]
    Prefix {
        /// The peer.
        peer: String,
        /// The cause.
        why: PrefixError,
    },
    /// More peers than a network can have.
    #[error("{0} peers are more than a network can have; import them into several interfaces (--interface)")]
    TooMany(usize),
    /// The pools are not valid.
    #[error("{0}; the pools come from Address in the file, or from --pool")]
    Pool(PoolError),
    /// The ledger refuses the leases.
    #[error("{0} (for an import: --pool with the server's address and a shorter prefix length)")]
    Ledger(#[from] LedgerError),
    /// The settings cannot be used.
    #[error(transparent)]
    Settings(#[from] SettingsError),
    /// The machine still has an address of the server.
    #[error(
        "{address} is an address of this machine already. If it is that of the tunnel to be imported, end that first: wg-quick down {interface}, \
         and systemctl disable wg-quick@{interface}, so that it does not come back"
    )]
    StillUp {
        /// The address.
        address: IpAddr,
        /// The name of the file.
        interface: String,
    },
    /// There is a state already.
    #[error(
        "{} has the state of another server or of a member, which stays as it is; import into another interface (--interface), or move that folder away",
        .0.display()
    )]
    Exists(PathBuf),
    /// Another import was made before.
    #[error(
        "{} was imported before, and the files say something else now. Changes since then belong to `rustguard peer`; to begin anew, move that \
         folder away: machines that have joined since then have to join again",
        .0.display()
    )]
    Changed(PathBuf),
    /// The folder cannot be used.
    #[error(transparent)]
    Folder(#[from] FolderError),
    /// The store cannot be used.
    #[error(transparent)]
    Store(#[from] FileStoreError),
    /// A server does not start with the new state.
    #[error(transparent)]
    Prepare(#[from] PrepareError),
    /// The operating system refused.
    #[error("cannot {doing} {}: {cause}", path.display())]
    Io {
        /// The operation that failed.
        doing: &'static str,
        /// The file or folder.
        path: PathBuf,
        /// The cause.
        cause: io::Error,
    },
}
