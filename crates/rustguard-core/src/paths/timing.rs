//! The times and counts of probing.
use super::discovery::NEXT_ROUND;
use core::time::Duration;

/// The interval of requests by a path that carries traffic.
pub(super) const CARRYING: Duration = Duration::from_millis(200);
/// The interval by a path that is in reserve while others carry traffic.
pub(super) const RESERVE: Duration = Duration::from_secs(1);
/// The interval by any path when there was no traffic for [`RECENT`]. The counters are read more often.
pub(super) const RESTING: Duration = Duration::from_secs(5);
/// The interval by any path when there was no traffic for [`BUSY`]. It keeps the state of NATs alive, like WireGuard's
/// usual persistent keepalive.
pub(super) const IDLE: Duration = Duration::from_secs(25);
/// Traffic counts as going on if the last of it is no older than this.
pub(super) const RECENT: Duration = Duration::from_secs(2);
/// After so long without traffic the counters are not read until [`Paths::wake`](super::Paths::wake) is called. This is
/// longer than the timers of [`Activity`](crate::activity::Activity), which lead to that call.
pub(super) const BUSY: Duration = Duration::from_secs(30);
/// How often the counters are read while traffic goes on or may begin.
pub(super) const LOOK: Duration = Duration::from_millis(250);
/// Bytes between two readings that count as traffic: a keepalive has fewer.
pub(super) const TRAFFIC: u64 = 100;
/// The least and the greatest time after which an answer is missed. Between these limits the measured round trips
/// decide.
pub(super) const PATIENCE: [Duration; 2] = [Duration::from_millis(80), Duration::from_secs(1)];
/// The time after which an answer is missed while the round trip is unknown.
pub(super) const FIRST_PATIENCE: Duration = Duration::from_millis(300);
/// An answer that takes longer does not count: a peer could keep it, and send it after it has left the locator.
pub(super) const TOO_LATE: Duration = Duration::from_secs(10);
/// So many missed answers in a row make a path unusable. Where 2 % of round trips are lost, this happens by chance once
/// in seven hours of traffic, and costs nothing if another path works.
pub(super) const MISSED: u32 = 3;
/// So many answers in a row make a path usable again, twice as many for each failure within [`REMEMBERED`].
pub(super) const ANSWERS: u32 = 3;
/// Failures this recent make a path doubtful.
pub(super) const REMEMBERED: Duration = Duration::from_secs(60);
/// The least time between two handshakes that only look for a path that works (Rekey-Timeout).
pub(super) const BETWEEN_HANDSHAKES: Duration = Duration::from_secs(5);
/// Data without an answer for so long begins such a handshake.
pub(super) const UNANSWERED: Duration = Duration::from_secs(1);
/// A path has to be better than the active one for so long before it is taken.
pub(super) const STEADY: Duration = Duration::from_secs(3);
/// It has to be better by a fifth of the round trip, and by this time in addition.
pub(super) const MARGIN: Duration = Duration::from_millis(2);
/// A way through a peer, or by a transport of the embedder, counts as longer than its round trip by this time. A relay
/// does its work at the expense of others. Such a transport, mostly TCP, delays data where UDP would lose it, which
/// slows down streams inside.
pub(super) const INDIRECT: Duration = Duration::from_millis(100);
/// How often another address is looked for while a path does not work.
pub(super) const ELSEWHERE: Duration = Duration::from_secs(30);
/// Each request promises the next one. After this many promised intervals without a request, the path is forgotten.
pub(super) const PROMISES: u32 = 3;
/// If no way works and there is traffic, ways through several relays are asked as often as one that carries traffic,
/// for this long. They fail together until the relays have found another way between them, which takes less than a
/// second.
pub(super) const REROUTING: Duration = Duration::from_secs(5);
/// If no way works, all are asked every second for this long.
pub(super) const LOST: Duration = Duration::from_secs(120);
/// A direct way that was found and failed is asked for this long. After that it has to be found again.
pub(super) const FORGET: Duration = Duration::from_secs(3_600);
/// A direct way that was found and failed is asked for this long, and then not until [`RESTED`] while another way
/// works: if a router on the way has lost its connections, both ends have to be silent before the way can be found
/// again ([`discovery`](super::discovery)).
pub(super) const ASKED_ON: Duration = Duration::from_secs(10);
/// Counted from the failure. A round of the search comes first.
pub(super) const RESTED: Duration = NEXT_ROUND.saturating_add(Duration::from_secs(10));
/// A failed path is asked again after this part of the time since the failure: after [`RESERVE`] at the earliest, and
/// after [`IDLE`] at the latest.
pub(super) const PART_OF_FAILURE: u32 = 8;
