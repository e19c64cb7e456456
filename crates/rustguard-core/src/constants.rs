//! The constants of the protocol (whitepaper, section 6.1).
use core::time::Duration;

/// The number of messages after which a new handshake is due.
pub const REKEY_AFTER_MESSAGES: u64 = 1 << 60;
/// The number of messages after which a session must not be used: 2^64 − 2^13 − 1. All counters are smaller.
pub const REJECT_AFTER_MESSAGES: u64 = u64::MAX - (1 << 13);
/// Age at which the initiator of a session starts the next handshake when it sends.
pub const REKEY_AFTER_TIME: Duration = Duration::from_secs(120);
/// Age at which a session must not be used.
pub const REJECT_AFTER_TIME: Duration = Duration::from_secs(180);
/// How long to try a handshake.
pub const REKEY_ATTEMPT_TIME: Duration = Duration::from_secs(90);
/// From one initiation to the next.
pub const REKEY_TIMEOUT: Duration = Duration::from_secs(5);
/// Greatest random delay, in milliseconds. It is added to [`REKEY_TIMEOUT`] so that two peers do not keep initiating at
/// the same time.
pub const REKEY_TIMEOUT_JITTER_MS: u64 = 333;
/// Silence after received data, at the end of which a keepalive is sent.
pub const KEEPALIVE_TIMEOUT: Duration = Duration::from_secs(10);
/// Silence after sent data, after which the session counts as dead.
pub const NEW_HANDSHAKE_TIMEOUT: Duration = Duration::from_secs(15);
/// The age at which a session that still receives should have been renewed: Reject-After-Time − Keepalive-Timeout −
/// Rekey-Timeout. It applies in both roles, though the paper names only the initiator: a responder whose initiator gets
/// no answers would otherwise wait until the session is dead.
pub const REKEY_ON_RECEIVE_AFTER_TIME: Duration = Duration::from_secs(165);
/// The number of counters in a lane of a session ([`lanes`](crate::lanes)).
pub const LANE_MESSAGES: u64 = 1 << 56;
/// Time without a new handshake after which all keys of a peer are erased.
pub const ERASE_AFTER_TIME: Duration = Duration::from_secs(3 * 180);
