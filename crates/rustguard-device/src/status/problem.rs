//! Why a peer cannot be talked to, as far as this side can know.

use std::{fmt, net::SocketAddr, time::Duration};

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
        }
    }
}
