//! The client's results: its progress and the membership.
use crate::{approval::ApprovalCode, join_error::JoinError};
use core::{fmt, net::IpAddr, time::Duration};
use ipnet::IpNet;
use rustguard_crypto::x25519::PublicKey;
use zeroize::Zeroizing;

/// The settings that bring the tunnel up, now and after each boot. `Debug` leaves the preshared key out.
///
/// These are the server's settings. Check them with [`Joined::accept`] before you make a tunnel of them.
#[derive(Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct Joined {
    /// The server's WireGuard public key, which was authenticated.
    pub server: PublicKey,
    /// The preshared key between this machine and the server. A quantum computer cannot derive it from recorded
    /// traffic.
    pub preshared_key: Zeroizing<[u8; 32]>,
    /// This machine's addresses, as /32 and /128 prefixes.
    pub addresses: Vec<IpNet>,
    /// The routes into the tunnel: those that the server advises, and the server's own addresses. They are also the
    /// server's allowed IPs.
    pub routes: Vec<IpNet>,
    /// The server's addresses inside the tunnel.
    pub server_addresses: Vec<IpAddr>,
    /// Name servers.
    pub dns: Vec<IpAddr>,
    /// Search domains.
    pub search: Vec<String>,
    /// The tunnel's MTU, in bytes.
    pub mtu: Option<u16>,
    /// The server's WireGuard port, if it differs from the port of enrolment.
    pub port: Option<u16>,
    /// The interval between keepalives that the server advises, in seconds.
    pub keepalive: Option<u16>,
    /// When the lease ends unless handshakes renew it, as time since the Unix epoch.
    pub expires: Option<Duration>,
    /// Whether the server ends the lease when this machine is silent for long.
    pub ephemeral: bool,
    /// The public key of the network (Ed25519), which signs the roster of its members. `None` if the server makes a
    /// star, or this machine did not ask ([`Client::with_member`](super::Client::with_member)).
    pub network: Option<[u8; 32]>,
}

impl Joined {
    /// A membership of the network of `server`, with no other field set.
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
            network: None,
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
    /// No effect: the datagram is not for this client, not authentic, or a repetition.
    Nothing,
    /// Joining made progress. There is a message to send: [`Client::poll`](super::Client::poll).
    Progress,
    /// An administrator, who sees the same eight digits, has to approve. Returned each time the server says so.
    Waiting(ApprovalCode),
    /// The machine has joined.
    Joined(Box<Joined>),
    /// Joining failed. Another try with the same token fails too until the cause is removed.
    Failed(JoinError),
}
