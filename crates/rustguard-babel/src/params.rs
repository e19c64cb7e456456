//! The protocol's constants: time, costs, bounds. RFC 8966 Appendix B has the values recommended for its own media; where
//! these differ, tunnels are the reason.
use core::time::Duration;

const fn ms(ms: u64) -> Duration {
    Duration::from_millis(ms)
}

/// From one Hello to the next on a link that carries traffic, or is new.
pub const HELLO_BUSY: Duration = ms(300);
/// The same on an idle link.
pub const HELLO_IDLE: Duration = ms(4_000);
/// How long a link counts as busy after traffic, and as new after it was made.
pub const LINK_BUSY: Duration = ms(10_000);
/// IHUs go with every third Hello, and are announced so.
pub const IHU_EVERY: u8 = 3;
/// From one change of the finite cost of a link to the next: each is a decision about all prefixes that the neighbour announces.
pub const COST_PACE: Duration = ms(200);
/// From one full update to the next. Triggered updates are acknowledged, so that this is only for what went wrong; it is
/// what a stable link costs with many prefixes.
pub const UPDATE_INTERVAL: Duration = ms(90_000);
/// How long a neighbour's distance is remembered after the last update. Longer than any route of ours lives elsewhere
/// (3.5 × [`UPDATE_INTERVAL`]): otherwise a neighbour could give us our own route back, and we would not know it.
pub const SOURCE_GC: Duration = ms(360_000);
/// Delay of urgent TLVs, in which they collect. At most half of it is taken off at random.
pub const URGENT_DELAY: Duration = ms(10);
/// Delay of updates about a changed metric.
pub const CHANGED_DELAY: Duration = ms(300);
/// Delay of updates about nothing but a new sequence number. RFC 8966 §3.7.2 leaves them to the periodic update; ours is so
/// rare that backups would be unfeasible for minutes.
pub const NEW_SEQNO_DELAY: Duration = ms(1_000);
/// Between two batches of packets to one neighbour.
pub const BATCH_PACE: Duration = ms(10);
/// Packets of one batch.
pub const BATCH: usize = 8;
/// Between two full updates that a neighbour asks for.
pub const DUMP_PACE: Duration = ms(1_000);
/// Most copies of an update (§3.7.2 allows 5).
pub const UPDATE_COPIES: u8 = 5;
/// Before a seqno request is repeated for the first time; doubles each time.
pub const REQUEST_RETRY: Duration = ms(500);
/// Most between two copies of a request.
pub const REQUEST_RETRY_MAX: Duration = ms(16_000);
/// Copies of a request that would be useful, but is not needed.
pub const REQUEST_COPIES: u8 = 4;
/// A forwarded request is not forwarded again within this time. Shorter than [`REQUEST_RETRY`], so that copies pass.
pub const REQUEST_DUPLICATE: Duration = ms(300);
/// An announcement and a retraction so close to each other may have changed places on the way: the neighbour is asked.
pub const REORDERED: Duration = ms(1_000);
/// How many nodes a request passes.
pub const HOP_COUNT: u8 = 128;
/// From one increase of a prefix's sequence number to the next.
pub const SEQNO_PACE: Duration = ms(50);
/// From one change of this node's router-id to the next; four times as long after each, up to [`SOURCE_GC`]. So there are four in
/// [`SOURCE_GC`] at most, which is what [`SOURCES_PER_ROUTE`] leaves room for.
pub const RENUMBER_PACE: Duration = ms(10_000);
/// How far this node's sequence numbers go at once to get beyond what somebody has said under its router-id. With what requests can
/// add in [`SOURCE_GC`], one step each [`SEQNO_PACE`], it is less than half the circle: nobody takes new for old.
pub const SEQNO_LEAP: u16 = 0x6000;
/// Time constant of the smoothed metric (RFC 8966 A.3).
pub const METRIC_SMOOTHING: Duration = ms(4_000);
/// A change of a metric that is no link's swinging, and nothing to smooth: twice [`COST_MAX`].
pub const METRIC_JUMP: u16 = 4_000;
/// How soon a route that looks better is looked at again.
pub const RESELECT: Duration = ms(500);
/// From one probe of a doubtful link to the next, and after the last.
pub const PROBE_PACE: Duration = ms(150);
/// How many probes.
pub const PROBES: u8 = 3;
/// Silence after which a client is only held.
pub const CLIENT_SILENCE: Duration = ms(180_000);
/// A client that another gateway announces counts as gone when it has sent nothing here for so long, [`IN_FLIGHT`] included.
pub const CLIENT_MOVED: Duration = ms(500);
/// For so long after it came, a client is announced at no distance, so that gateways that are nearer to others hear of it.
pub const CLIENT_NEW: Duration = ms(1_000);
/// From one time that a gateway insists on hearing a client which another one hears as well to the next.
pub const CLIENT_INSIST: Duration = ms(5_000);
/// What a client sent before it moved may arrive so much later than the news that it moved.
pub const IN_FLIGHT: Duration = ms(200);
/// A client that has a session renews it no sooner than this after the last handshake: Rekey-After-Time of WireGuard (120 s), less
/// what two handshakes may differ in how long they take.
pub const CLIENT_RENEWS: Duration = ms(110_000);
/// A speaker that is called so much later than it wanted was not running.
pub const SUSPENDED: Duration = ms(5_000);
/// From one sweep of the source table to the next.
pub const SWEEP_INTERVAL: Duration = ms(60_000);
/// Sources that are looked at together in a sweep, and when the next follow.
pub const SWEEP_PART: usize = 2_048;
/// See [`SWEEP_PART`].
pub const SWEEP_PACE: Duration = ms(5);

/// Cost of a link with a negligible round trip (RFC 8966 Appendix B, wired).
pub const COST: u16 = 96;
/// Greatest cost of a link, however long it takes: the metric has room for 32 such.
pub const COST_MAX: u16 = 2_000;
/// Metric of a client that is here and has been for [`CLIENT_NEW`]. A gateway that it just came to beats one that it may have
/// left, whatever is in between: four links of the greatest cost, and eighty of the least.
pub const METRIC_CLIENT_PRESENT: u16 = 0x2000;
/// Metric of a client whose session is alive, and that sends nothing here: it talks to another gateway, or to nobody. It loses to
/// any gateway that it talks to, as far as [`METRIC_CLIENT_PRESENT`] makes a new one win, and beats all where it is silent.
pub const METRIC_CLIENT_IDLE: u16 = 0x4000;
/// Metric of a client that is silent: beyond any gateway that hears it.
pub const METRIC_CLIENT_SILENT: u16 = 0x7000;
/// Metric of a client that was never heard here: beyond any gateway that did.
pub const METRIC_CLIENT_NEVER_HEARD: u16 = 0x7800;

/// How much is done in one call before the rest is left for the next, in units of [`Babel::work`](crate::Babel::work): about half a
/// millisecond.
pub const WORK_SLICE: u64 = 8_192;

/// Names that one neighbour can bring in.
pub const MAX_NAMES: usize = 1_024;
/// Full updates from one that has all names with it to the next.
pub const NAMES_EVERY: u8 = 8;
/// A name that was not said for so long is forgotten: three times what [`NAMES_EVERY`] full updates take.
pub const NAME_HOLD: Duration = ms(3 * 8 * 90_000);
/// Seqno requests remembered.
pub const MAX_REQUESTS: usize = 4_096;
/// Seqno requests remembered that one neighbour has made.
pub const MAX_REQUESTS_OF_PEER: usize = 512;
/// Neighbours that wait for the answer to one request.
pub const MAX_REQUESTERS: usize = 256;
/// Packets to one neighbour that wait for its acknowledgment.
pub const MAX_IN_FLIGHT: usize = 256;
/// Acknowledgments owed to one neighbour.
pub const MAX_ACKS: usize = 64;
/// Prefixes not in the table that a neighbour can ask for at once.
pub const MAX_UNKNOWN_PREFIXES: usize = 1_024;
/// Sources that one neighbour can bring in, for each route it may have.
pub const SOURCES_PER_ROUTE: usize = 4;

/// 3.5 times an interval: how long a route or an IHU holds (RFC 8966 Appendix B).
pub(crate) fn hold(interval: Duration) -> Duration {
    interval * 7 / 2
}

/// From hundredths of a second.
pub(crate) fn from_centis(interval: u16) -> Duration {
    ms(u64::from(interval) * 10)
}

/// To hundredths of a second, at least one.
pub(crate) fn to_centis(interval: Duration) -> u16 {
    u16::try_from(interval.as_millis() / 10).unwrap_or(u16::MAX - 1).max(1)
}
