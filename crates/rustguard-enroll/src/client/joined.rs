//! The client's results: its progress and the membership.
use crate::{approval::ApprovalCode, join_error::JoinError};
use core::{fmt, net::IpAddr, time::Duration};
use ipnet::IpNet;
use rustguard_crypto::x25519::PublicKey;
use zeroize::Zeroizing;

/// All that a machine needs to bring its tunnel up, now and after each boot. `Debug` leaves the preshared key out.
///
/// It is what the server says. Before a tunnel is made of it, [`Joined::accept`] checks it.
#[derive(Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct Joined {
    /// The server's WireGuard public key, which is authentic.
    pub server: PublicKey,
    /// The preshared key of this machine and the server. A quantum computer does not find it in recorded traffic.
    pub preshared_key: Zeroizing<[u8; 32]>,
    /// This machine's addresses, each with the whole address as prefix.
    pub addresses: Vec<IpNet>,
    /// What goes into the tunnel: what the server advises, and the server itself. Also the allowed IPs of the server.
    pub routes: Vec<IpNet>,
    /// The server's addresses inside the tunnel.
    pub server_addresses: Vec<IpAddr>,
    /// Name servers.
    pub dns: Vec<IpAddr>,
    /// Search domains.
    pub search: Vec<String>,
    /// The tunnel's MTU, in bytes.
    pub mtu: Option<u16>,
    /// The server's WireGuard port, when it is not the one that enrolment used.
    pub port: Option<u16>,
    /// Seconds between keepalives that the server advises.
    pub keepalive: Option<u16>,
    /// When the lease ends, as time since the Unix epoch, unless handshakes renew it.
    pub expires: Option<Duration>,
    /// Whether the server forgets this machine when it is silent for long.
    pub ephemeral: bool,
}

impl Joined {
    /// A membership of the network of `server`, with nothing else in it.
    pub fn new(server: PublicKey, preshared_key: Zeroizing<[u8; 32]>) -> Self {
        Self {
            server,
            preshared_key,
            addresses: Vec::new(),
            routes: Vec::new(),
            server_addresses: Vec::new(),
            dns: Vec::new(),
            search: Vec::new(),
            mtu: None,
            port: None,
            keepalive: None,
            expires: None,
            ephemeral: false,
        }
    }
}

impl fmt::Debug for Joined {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Joined")
            .field("server", &self.server)
            .field("addresses", &self.addresses)
            .field("routes", &self.routes)
            .field("expires", &self.expires)
            .finish_non_exhaustive()
    }
}

/// The effect of a datagram.
#[derive(Debug)]
pub enum Heard {
    /// Nothing: not for us, not authentic, or heard before.
    Nothing,
    /// The joining went a step further. There is something to send: [`Client::poll`](super::Client::poll).
    Progress,
    /// An administrator has to approve, and sees the same eight digits. Told again whenever the server says so.
    Waiting(ApprovalCode),
    /// Done.
    Joined(Box<Joined>),
    /// Over: trying again with the same token is of no use until the cause is gone.
    Failed(JoinError),
}
