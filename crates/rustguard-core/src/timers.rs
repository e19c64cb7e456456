//! The constants of the paper (§6.1), and the few that the implementations agreed on.

use core::time::Duration;

/// A session starts a new handshake after this many messages.
pub const REKEY_AFTER_MESSAGES: u64 = 1 << 60;
/// A session seals nothing any more after this many messages: 2^64 − 2^13 − 1.
pub const REJECT_AFTER_MESSAGES: u64 = u64::MAX - (1 << 13);
/// The initiator of a session starts a new handshake when it sends after this time.
pub const REKEY_AFTER_TIME: Duration = Duration::from_secs(120);
/// A session neither seals nor opens after this time.
pub const REJECT_AFTER_TIME: Duration = Duration::from_secs(180);
/// Initiations are at least this far apart.
pub const REKEY_TIMEOUT: Duration = Duration::from_secs(5);
/// Added to the above at random, so that two peers do not meet again and again.
pub const REKEY_JITTER: Duration = Duration::from_millis(333);
/// Initiations without an answer are given up after this time.
pub const REKEY_ATTEMPT_TIME: Duration = Duration::from_secs(90);
/// Data received and nothing sent for this time: a keepalive says that it arrived.
pub const KEEPALIVE_TIMEOUT: Duration = Duration::from_secs(10);
/// Data sent and nothing received for this time: the session may be dead.
pub const NEW_HANDSHAKE_TIMEOUT: Duration = Duration::from_secs(15);
/// Receiving after this time starts a handshake: Reject-After-Time − Keepalive-Timeout − Rekey-Timeout.
pub const REKEY_ON_RECEIVE_AFTER: Duration = Duration::from_secs(165);
/// Keys of a peer without a new handshake are erased after this time.
pub const ERASE_KEYS_AFTER: Duration = Duration::from_secs(3 * 180);
/// A cookie, and the secret it was made with, are good for this time (paper §5.4.7).
pub const COOKIE_LIFE: Duration = Duration::from_secs(120);
/// Initiations processed per second and peer.
pub const INITIATIONS_PER_SECOND: u32 = 50;
