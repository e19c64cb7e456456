//! Whether a peer can be reached, as far as WireGuard shows this to its ends.

use std::time::Duration;

/// The silence after which a peer is no longer called online: Reject-After-Time (WireGuard paper, section 6.1). In a
/// session that is in use, packets arrive more often: at the latest when the session is renewed.
pub(crate) const SILENCE: Duration = rustguard_core::constants::REJECT_AFTER_TIME;

/// Whether a peer can be reached. Times are since the Unix epoch.
///
/// WireGuard is silent while there are no packets to send. A silent peer is therefore idle: whether it is still there
/// is known only when either side sends. Only a peer that did not answer is offline.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum Connection {
    /// No handshake has completed since the peer was added, and none is in progress.
    #[default]
    NeverConnected,
    /// A handshake is in progress, and nothing else shows that the peer is there.
    Connecting {
        /// When the first unanswered initiation was sent.
        since: Duration,
        /// The number of unanswered initiations.
        attempts: u32,
    },
    /// The peer was heard within the last three minutes.
    Online {
        /// When it became reachable.
        since: Duration,
    },
    /// Neither side has anything to send.
    Idle {
        /// When the peer was last heard.
        since: Duration,
    },
    /// The peer was online once, and has not answered for 90 seconds (Rekey-Attempt-Time).
    Offline {
        /// When the first message without an answer was sent.
        since: Duration,
    },
}

impl Connection {
    /// The state in words: `never connected`, `connecting`, `online`, `idle` or `offline`.
    pub const fn word(&self) -> &'static str {
        match self {
            Self::NeverConnected => "never connected",
            Self::Connecting { .. } => "connecting",
            Self::Online { .. } => "online",
            Self::Idle { .. } => "idle",
            Self::Offline { .. } => "offline",
        }
    }

    /// When the state began, as the time since the Unix epoch; `None` for a peer that was never connected.
    pub const fn since(&self) -> Option<Duration> {
        match *self {
            Self::NeverConnected => None,
            Self::Connecting { since, .. }
            | Self::Online { since }
            | Self::Idle { since }
            | Self::Offline { since } => Some(since),
        }
    }

    /// The number of initiations without an answer, while connecting.
    pub const fn attempts(&self) -> Option<u32> {
        match *self {
            Self::Connecting { attempts, .. } => Some(attempts),
            _ => None,
        }
    }
}
