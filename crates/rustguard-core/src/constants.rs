//! The constants of the protocol (whitepaper, section 6.1).
use core::time::Duration;

/// Messages after which a new handshake is due.
pub const REKEY_AFTER_MESSAGES: u64 = 1 << 60;
/// Messages after which a session must not be used: 2^64 − 2^13 − 1. No counter is as great as this.
pub const REJECT_AFTER_MESSAGES: u64 = u64::MAX - (1 << 13);
/// Age at which the initiator of a session starts the next handshake when it sends.
pub const REKEY_AFTER_TIME: Duration = Duration::from_secs(120);
/// Age at which a session must not be used.
pub const REJECT_AFTER_TIME: Duration = Duration::from_secs(180);
/// How long to try a handshake.
pub const REKEY_ATTEMPT_TIME: Duration = Duration::from_secs(90);
/// From one initiation to the next.
pub const REKEY_TIMEOUT: Duration = Duration::from_secs(5);
/// Greatest random delay, in milliseconds, added to [`REKEY_TIMEOUT`] lest two peers keep initiating at the same time.
pub const REKEY_TIMEOUT_JITTER_MS: u64 = 333;
/// Silence after received data that is broken by a keepalive.
pub const KEEPALIVE_TIMEOUT: Duration = Duration::from_secs(10);
/// Silence after sent data that is taken for a dead session.
pub const NEW_HANDSHAKE_TIMEOUT: Duration = Duration::from_secs(15);
/// Age of a session, received on, at which a handshake is overdue:
/// Reject-After-Time − Keepalive-Timeout − Rekey-Timeout. It holds in both roles, where the paper names the initiator
/// only: a responder whose initiator cannot get through would otherwise wait until the session is dead.
pub const REKEY_ON_RECEIVE_AFTER_TIME: Duration = Duration::from_secs(165);
/// The messages that a lane of a session has room for ([`lanes`](crate::lanes)).
pub const LANE_MESSAGES: u64 = 1 << 56;
/// Time without a new handshake after which all keys of a peer are erased.
pub const ERASE_AFTER_TIME: Duration = Duration::from_secs(3 * 180);
