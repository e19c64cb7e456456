//! The times and counts of probing.
use core::time::Duration;

/// Between two requests by a path that carries traffic.
pub(super) const CARRYING: Duration = Duration::from_millis(200);
/// By one that is in reserve while others carry.
pub(super) const RESERVE: Duration = Duration::from_secs(1);
/// By any path when there was no traffic for [`RECENT`]. A look at the counters follows more often.
pub(super) const RESTING: Duration = Duration::from_secs(5);
/// By any path when there was none for [`BUSY`]: as often as keeps the state of NATs, WireGuard's usual persistent keepalive.
pub(super) const IDLE: Duration = Duration::from_secs(25);
/// Traffic this recent is going on.
pub(super) const RECENT: Duration = Duration::from_secs(2);
/// After so long without, nothing is looked at until somebody says that there is traffic: longer than any of the timers that
/// [`Activity`](crate::activity::Activity) waits for, whose end it needs to be able to say so.
pub(super) const BUSY: Duration = Duration::from_secs(30);
/// How often the counters are looked at, while traffic goes on or may begin.
pub(super) const LOOK: Duration = Duration::from_millis(250);
/// Bytes between two looks that are traffic: a keepalive is less.
pub(super) const TRAFFIC: u64 = 100;
/// An answer that is late by the round trips so far is missed after these at the least and at the most.
pub(super) const PATIENCE: [Duration; 2] = [Duration::from_millis(80), Duration::from_secs(1)];
/// The patience with a path whose round trip is unknown.
pub(super) const FIRST_PATIENCE: Duration = Duration::from_millis(300);
/// So many missed answers in a row make a path unusable. With 2 % lost both ways taken together this happens by chance once in
/// seven hours of traffic, and costs nothing where another path works.
pub(super) const MISSED: u32 = 3;
/// So many answers in a row make it usable again, twice as many each time it failed within [`REMEMBERED`].
pub(super) const ANSWERS: u32 = 3;
/// Failures this recent make a path doubtful.
pub(super) const REMEMBERED: Duration = Duration::from_secs(60);
/// The least time between two handshakes that only look for a path that works (Rekey-Timeout).
pub(super) const BETWEEN_HANDSHAKES: Duration = Duration::from_secs(5);
/// Data without an answer for so long is worth one.
pub(super) const UNANSWERED: Duration = Duration::from_secs(1);
/// Another path has to be better for so long before it is taken.
pub(super) const STEADY: Duration = Duration::from_secs(3);
/// What a path must be better by: a fifth of the round trip, and this.
pub(super) const MARGIN: Duration = Duration::from_millis(2);
/// How often another address is looked for while a path does not work.
pub(super) const ELSEWHERE: Duration = Duration::from_secs(30);
/// A request promises the next one; after so many times the promised interval the path is no more.
pub(super) const PROMISES: u32 = 3;
