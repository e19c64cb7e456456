//! Why a peer cannot be talked to, as far as this side can know.

use std::{
    fmt,
    net::{IpAddr, SocketAddr},
    time::Duration,
};

/// What is wrong between this side and a peer. Its `Display` is a sentence with the likely cause and the remedy.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Problem {
    /// The likely cause.
    pub cause: Cause,
    /// When the trouble began, as the time since the Unix epoch.
    pub since: Duration,
}

/// The likely cause of a [`Problem`].
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Cause {
    /// Initiations were sent, and nothing came back.
    NoAnswer {
        /// Where they were sent.
        endpoint: SocketAddr,
    },
    /// The name of the peer's endpoint has no address.
    NotResolved {
        /// The name and the port.
        name: String,
        /// The resolver's error.
        error: String,
    },
    /// The peer sends from an address outside the AllowedIPs that it has here, and its packets are dropped.
    SourceNotAllowed {
        /// The source of the first of these packets.
        source: IpAddr,
    },
    /// Long packets do not reach the peer, short ones do.
    PathMtu {
        /// Bytes of the longest packet inside the tunnel that reaches it.
        packet: u16,
        /// Bytes of the IP datagram that it becomes outside.
        datagram: u32,
    },
}

impl Problem {
    /// A problem that began at a time since the Unix epoch.
    pub const fn new(cause: Cause, since: Duration) -> Self {
        Self { cause, since }
    }

    /// The kind of problem in one word that does not change between versions, in lower-case letters and `-`.
    pub const fn kind(&self) -> &'static str {
        self.cause.kind()
    }
}

impl fmt::Display for Problem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.cause.fmt(f)
    }
}

impl Cause {
    /// See [`Problem::kind`].
    pub const fn kind(&self) -> &'static str {
        match self {
            Self::NoAnswer { .. } => "no-answer",
            Self::NotResolved { .. } => "not-resolved",
            Self::SourceNotAllowed { .. } => "source-not-allowed",
            Self::PathMtu { .. } => "path-mtu",
        }
    }
}

impl fmt::Display for Cause {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::NoAnswer { endpoint } => write!(
                f,
                "nothing comes back from {endpoint}: the other side may be down, have another address, port or key, or be behind \
                 a firewall that drops UDP"
            ),
            Self::NotResolved { name, error } => {
                write!(
                    f,
                    "the endpoint {name} is not resolved: {error}; check the name, and the name servers of this machine"
                )
            }
            Self::SourceNotAllowed { source } => write!(
                f,
                "packets of this peer from {source} are dropped, because the address is not in the AllowedIPs that the peer has \
                 here: add it there, if the peer may use it; otherwise the peer has a wrong Address, or forwards for others \
                 without masquerading"
            ),
            Self::PathMtu { packet, datagram } => write!(
                f,
                "packets longer than {packet} bytes do not reach this peer, shorter ones do: the path takes datagrams of \
                 {datagram} bytes, and loses longer ones; set MTU = {packet} in [Interface]"
            ),
        }
    }
}
