//! What the server is told, and what it tells.
use crate::{
    lease::Terms,
    ledger::{LedgerError, Refusal},
    token::{Code, Passphrase, TokenError},
};
use core::{fmt, net::IpAddr, time::Duration};
use ipnet::IpNet;
use rustguard_core::time::Instant;
use rustguard_crypto::x25519::PublicKey;
use std::net::SocketAddr;

/// How long a window is open unless told otherwise.
pub const DEFAULT_WINDOW: Duration = Duration::from_secs(60);
/// How long a window may be open.
pub const MAX_WINDOW: Duration = Duration::from_secs(15 * 60);
/// How long an invite is good unless told otherwise.
pub const DEFAULT_INVITE: Duration = Duration::from_secs(24 * 60 * 60);

/// What every joiner is told about the network.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ServerConfig {
    /// The server's own addresses inside the tunnel.
    pub addresses: Vec<IpAddr>,
    /// What joiners route into the tunnel: usually the pools, and what lies behind the server.
    pub routes: Vec<IpNet>,
    /// Name servers.
    pub dns: Vec<IpAddr>,
    /// Search domains.
    pub search: Vec<String>,
    /// The tunnel's MTU, in bytes.
    pub mtu: Option<u16>,
    /// The UDP port of WireGuard, when it is not the one that enrolment uses.
    pub port: Option<u16>,
    /// Seconds between keepalives that joiners are advised to send.
    pub keepalive: Option<u16>,
}

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

/// Eight digits that both sides show while a joiner waits for approval.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct ApprovalCode(pub(crate) u32);

impl ApprovalCode {
    /// How many there are. Somebody in the middle who knows the secret has one chance in so many that both sides show the
    /// same digits, each time that an exchange begins anew.
    pub(crate) const COUNT: u64 = 100_000_000;

    /// Reads eight digits; spaces and dashes between them do not count.
    pub fn parse(text: &str) -> Option<Self> {
        let digits: String = text.chars().filter(|c| !matches!(c, ' ' | '-')).collect();
        let number = digits.len() == 8 && digits.bytes().all(|byte| byte.is_ascii_digit());
        number.then(|| digits.parse().ok()).flatten().map(Self)
    }
}

impl fmt::Display for ApprovalCode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:08}", self.0)
    }
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

/// Why the server did not do as it was told.
#[derive(Debug, thiserror::Error)]
pub enum ServerError {
    /// A window that is open too long, or not at all.
    #[error("a window is open for 1 second to 15 minutes")]
    WindowDuration,
    /// Another window is open.
    #[error("a window is open already; close it first")]
    WindowOpen,
    /// Nobody waits with this code.
    #[error("nobody waits with the code {0}; `rustguard status` lists who does")]
    NobodyWaits(ApprovalCode),
    /// What joiners are told does not fit into one datagram.
    #[error("routes, name servers and search domains take {0} bytes of the {1} that fit into one datagram; push fewer")]
    SettingsTooLong(usize, usize),
    /// More than a joiner takes.
    #[error("{count} {what} for those who join are more than the {most} that they take; push fewer")]
    TooMany {
        /// Of what.
        what: &'static str,
        /// How many.
        count: usize,
        /// How many it may be.
        most: usize,
    },
    /// The endpoint does not fit into an invite.
    #[error(transparent)]
    Token(#[from] TokenError),
    /// The ledger refuses.
    #[error(transparent)]
    Refused(#[from] Refusal),
    /// The ledger cannot.
    #[error(transparent)]
    Ledger(#[from] LedgerError),
}
