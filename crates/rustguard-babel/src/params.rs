//! The protocol's constants: times, costs, bounds. RFC 8966 Appendix B recommends values for its own media. Where these
//! differ, tunnels are the reason.
use core::time::Duration;

const fn ms(ms: u64) -> Duration {
    Duration::from_millis(ms)
}

/// The interval of Hellos on a link that carries traffic, or is new.
pub const HELLO_BUSY: Duration = ms(300);
/// The interval of Hellos on an idle link.
pub const HELLO_IDLE: Duration = ms(4_000);
/// How long a link counts as busy after traffic, and as new after it was added.
pub const LINK_BUSY: Duration = ms(10_000);
/// Every third Hello comes with an IHU, whose interval says so.
pub const IHU_EVERY: u8 = 3;
/// The least time between two changes of the finite cost of a link. Each change is a decision about all prefixes of the
/// neighbour.
pub const COST_PACE: Duration = ms(200);
/// The interval of full updates. Triggered updates are acknowledged, so full updates only repair what went wrong. With
/// many prefixes they are most of the traffic of a stable link.
pub const UPDATE_INTERVAL: Duration = ms(90_000);
/// How long a feasibility distance is remembered after the last update. This is longer than other nodes keep a route
/// from this node (3.5 × [`UPDATE_INTERVAL`]): otherwise a neighbour could announce this node's own route back to it
/// unnoticed.
pub const SOURCE_GC: Duration = ms(360_000);
/// The delay of urgent TLVs, so that other TLVs can join them. It is shortened by up to half at random.
pub const URGENT_DELAY: Duration = ms(10);
/// The delay of updates about a changed metric.
pub const CHANGED_DELAY: Duration = ms(300);
/// The delay of updates about a new sequence number only. RFC 8966 §3.7.2 leaves them to the periodic update; here that
/// is so rare that backup routes would be unfeasible for minutes.
pub const NEW_SEQNO_DELAY: Duration = ms(1_000);
/// The time between two batches of packets to one neighbour.
pub const BATCH_PACE: Duration = ms(10);
/// How many packets of updates are in one batch.
pub const BATCH: usize = 8;
/// The least time between two full updates that a neighbour requests.
pub const DUMP_PACE: Duration = ms(1_000);
/// The most copies of an update (§3.7.2 allows 5).
pub const UPDATE_COPIES: u8 = 5;
/// The time until a seqno request is repeated for the first time. It doubles with each copy.
pub const REQUEST_RETRY: Duration = ms(500);
/// The most time between two copies of a request.
pub const REQUEST_RETRY_MAX: Duration = ms(16_000);
/// The most copies of a request that is useful, but not needed.
pub const REQUEST_COPIES: u8 = 4;
/// A forwarded request is not forwarded again within this time. Shorter than [`REQUEST_RETRY`], so that copies pass.
pub const REQUEST_DUPLICATE: Duration = ms(300);
/// An announcement and a retraction that are closer than this may have been reordered on the way: the neighbour is
/// asked.
pub const REORDERED: Duration = ms(1_000);
/// The most nodes that pass a request on.
pub const HOP_COUNT: u8 = 128;
/// The least time between two increases of a prefix's sequence number.
pub const SEQNO_PACE: Duration = ms(50);
/// The least time between two changes of this node's router-id. It grows fourfold with each, up to [`SOURCE_GC`]. So
/// there are at most four changes in [`SOURCE_GC`], and [`SOURCES_PER_ROUTE`] leaves room for them.
pub const RENUMBER_PACE: Duration = ms(10_000);
/// How far this node's sequence numbers may leap to get beyond numbers that another node announced under its router-id.
/// Requests can add one step for each [`SEQNO_PACE`]. Both together are less than half the circle in [`SOURCE_GC`], so
/// no node takes new numbers for old ones.
pub const SEQNO_LEAP: u16 = 0x6000;
/// The time constant of the smoothed metric (RFC 8966 A.3).
pub const METRIC_SMOOTHING: Duration = ms(4_000);
/// A change of a metric that is too large for a varying link cost, and is therefore not smoothed: twice [`COST_MAX`].
pub const METRIC_JUMP: u16 = 4_000;
/// The time until a route that looks better is compared again.
pub const RESELECT: Duration = ms(500);
/// The time after each probe of a doubtful link.
pub const PROBE_PACE: Duration = ms(150);
/// How many probes are sent.
pub const PROBES: u8 = 3;
/// After this much silence of a client, its gateway is only a last resort.
pub const CLIENT_SILENCE: Duration = ms(180_000);
/// A client that another gateway announces counts as gone after it sent nothing here for this long, [`IN_FLIGHT`]
/// included.
pub const CLIENT_MOVED: Duration = ms(500);
/// A client is asked this long after a handshake whether it answers questions: both ends can use the session by then.
pub const CLIENT_ASKED_AFTER: Duration = ms(1_000);
/// A client that answers questions and has not answered two of them for this long is lost, or for two round trips if
/// that is longer.
pub const CLIENT_PATIENCE: Duration = ms(300);
/// A client is announced at metric 0 for this long after it came, so that gateways that are nearer to other nodes learn
/// of it.
pub const CLIENT_NEW: Duration = ms(1_000);
/// The least time between two announcements at metric 0 by a gateway, if another gateway hears the client too.
pub const CLIENT_INSIST: Duration = ms(5_000);
/// Data that a client sent before it moved may arrive this much later than the news that it moved.
pub const IN_FLIGHT: Duration = ms(200);
/// A client with a session does not renew it sooner than this after the last handshake: WireGuard's Rekey-After-Time
/// (120 s), less the possible difference in duration of two handshakes.
pub const CLIENT_RENEWS: Duration = ms(110_000);
/// A speaker that is called this much later than its deadline was suspended.
pub const SUSPENDED: Duration = ms(5_000);
/// The time between two sweeps of the source table.
pub const SWEEP_INTERVAL: Duration = ms(60_000);
/// How many sources one step of a sweep looks at.
pub const SWEEP_PART: usize = 2_048;
/// The time between two steps of a sweep.
pub const SWEEP_PACE: Duration = ms(5);

/// The cost of a link with a negligible round trip (RFC 8966 Appendix B, wired).
pub const COST: u16 = 96;
/// The greatest cost of a link, however long its round trip. A metric has room for 32 such links.
pub const COST_MAX: u16 = 2_000;
/// The metric of a client that has been here for [`CLIENT_NEW`]. A gateway to which the client has just come takes
/// precedence over the one that it may have left, with up to four links of the greatest cost in between, or eighty of
/// the least.
pub const METRIC_CLIENT_PRESENT: u16 = 0x2000;
/// The metric of a client that has a session and sends no data here: it talks to another gateway, or to none. Any
/// gateway that it talks to takes precedence, within the distance that [`METRIC_CLIENT_PRESENT`] allows. This gateway
/// takes precedence over gateways where the client is silent.
pub const METRIC_CLIENT_IDLE: u16 = 0x4000;
/// The metric of a silent client: beyond any gateway that hears it.
pub const METRIC_CLIENT_SILENT: u16 = 0x7000;
/// The metric of a client that was never heard here: beyond any gateway that heard it.
pub const METRIC_CLIENT_NEVER_HEARD: u16 = 0x7800;

/// The most work of one call before it leaves the rest for the next call, in units of
/// [`Babel::work`](crate::Babel::work): about half a millisecond.
pub const WORK_SLICE: u64 = 8_192;

/// The most names from one neighbour.
pub const MAX_NAMES: usize = 1_024;
/// Every eighth full update contains all names.
pub const NAMES_EVERY: u8 = 8;
/// A name that was not repeated for this long is forgotten: three times the time of [`NAMES_EVERY`] full updates.
pub const NAME_HOLD: Duration = ms(3 * 8 * 90_000);
/// The most seqno requests that are remembered.
pub const MAX_REQUESTS: usize = 4_096;
/// The most seqno requests of one neighbour that are remembered.
pub const MAX_REQUESTS_OF_PEER: usize = 512;
/// The most neighbours that wait for the answer to one request.
pub const MAX_REQUESTERS: usize = 256;
/// The most packets to one neighbour that wait for its acknowledgment.
pub const MAX_IN_FLIGHT: usize = 256;
/// The most acknowledgments that wait to be sent to one neighbour.
pub const MAX_ACKS: usize = 64;
/// The most prefixes outside of the table that a neighbour can ask for at once.
pub const MAX_UNKNOWN_PREFIXES: usize = 1_024;
/// The most sources from one neighbour, for each route that it may have.
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
