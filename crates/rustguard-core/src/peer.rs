//! One peer's protocol state: three keypair slots, a handshake under way, timers.

use crate::{
    activity::Activity,
    cookie::{Cookie, MacKeys},
    node::PeerConfig,
    noise::InitiationSent,
    session::{Role, Sealer},
    tai64n::Tai64n,
    time::Instant,
    timers::{COOKIE_LIFE, INITIATIONS_PER_SECOND, REJECT_AFTER_TIME},
    wire::MAC_LEN,
};
use alloc::sync::Arc;
use core::time::Duration;
use rustguard_crypto::x25519::SharedSecret;
use zeroize::Zeroizing;

/// A peer.
pub(crate) struct Peer {
    pub(crate) config: PeerConfig,
    /// The Diffie-Hellman result of both static keys; `None` without a private key, or for an unusable public one.
    pub(crate) static_shared: Option<SharedSecret>,
    pub(crate) macs: MacKeys,
    pub(crate) activity: Arc<Activity>,
    pub(crate) slots: Slots,
    pub(crate) handshake: Option<Outgoing>,
    /// The newest timestamp of an authentic initiation.
    pub(crate) newest_timestamp: Option<Tai64n>,
    /// The last timestamp sent.
    pub(crate) sent_timestamp: Option<Tai64n>,
    pub(crate) last_initiation: Option<Instant>,
    pub(crate) last_handshake: Option<Duration>,
    /// MAC1 of the last message sent with our index: a cookie reply must be about it.
    pub(crate) last_mac1: Option<(u32, [u8; MAC_LEN])>,
    pub(crate) cookie: Option<(Zeroizing<Cookie>, Instant)>,
    pub(crate) timers: Timers,
    /// Where the peer stands in the node's queue.
    pub(crate) queued: Option<Instant>,
    bucket: Bucket,
}

/// When something is due; `None`: not running.
#[derive(Default)]
pub(crate) struct Timers {
    /// The next initiation: a retry, or the first one after too short a pause.
    pub(crate) initiate: Option<Instant>,
    /// A look at the [`Activity`].
    pub(crate) look: Option<Instant>,
    pub(crate) persistent_keepalive: Option<Instant>,
    /// All keys are erased.
    pub(crate) erase: Option<Instant>,
}

impl Timers {
    pub(crate) fn next(&self) -> Option<Instant> {
        [self.initiate, self.look, self.persistent_keepalive, self.erase].into_iter().flatten().min()
    }
}

/// An initiation that waits for its response.
pub(crate) struct Outgoing {
    pub(crate) sent: InitiationSent,
    pub(crate) index: u32,
    /// When the first attempt went out.
    pub(crate) started: Instant,
    pub(crate) attempt: u32,
}

/// What the node keeps of a session; the keys are with whoever moves the data.
#[derive(Clone)]
pub(crate) struct Slot {
    pub(crate) index: u32,
    pub(crate) sealer: Arc<Sealer>,
    pub(crate) role: Role,
}

/// The three keypair slots of the kernel's implementation.
#[derive(Default)]
pub(crate) struct Slots {
    /// Still received with.
    pub(crate) previous: Option<Slot>,
    /// Sent with.
    pub(crate) current: Option<Slot>,
    /// Answered, and not confirmed by data yet.
    pub(crate) next: Option<Slot>,
}

impl Slots {
    /// Takes a new session; returns those that fell out. As initiator it is current at once; as responder it waits for
    /// the first data, which proves that the response arrived.
    pub(crate) fn add(&mut self, slot: Slot) -> [Option<Slot>; 2] {
        match slot.role {
            Role::Initiator => {
                let current = self.current.replace(slot);
                match self.next.take() {
                    // The peer may be sending with this one already.
                    Some(next) => [self.previous.replace(next), current],
                    None => [core::mem::replace(&mut self.previous, current), None],
                }
            }
            Role::Responder => [self.next.replace(slot), self.previous.take()],
        }
    }

    /// The first data of `index` came in. `Some` if that made it current, with the one that fell out.
    pub(crate) fn confirm(&mut self, index: u32) -> Option<Option<Slot>> {
        let next = self.next.take_if(|next| next.index == index)?;
        let current = self.current.replace(next);
        Some(core::mem::replace(&mut self.previous, current))
    }

    /// Takes everything out.
    pub(crate) fn clear(&mut self) -> impl Iterator<Item = Slot> + use<> {
        let Self { previous, current, next } = core::mem::take(self);
        [previous, current, next].into_iter().flatten()
    }
}

impl Peer {
    pub(crate) fn new(config: PeerConfig, static_shared: Option<SharedSecret>) -> Self {
        Self {
            macs: MacKeys::of(&config.public_key),
            config,
            static_shared,
            activity: Arc::default(),
            slots: Slots::default(),
            handshake: None,
            newest_timestamp: None,
            sent_timestamp: None,
            last_initiation: None,
            last_handshake: None,
            last_mac1: None,
            cookie: None,
            timers: Timers::default(),
            queued: None,
            bucket: Bucket::default(),
        }
    }

    /// The cookie to show, while it is good.
    pub(crate) fn cookie(&self, now: Instant) -> Option<&Cookie> {
        self.cookie.as_ref().filter(|(_, since)| now.since(*since) < COOKIE_LIFE).map(|(cookie, _)| &**cookie)
    }

    /// A timestamp greater than all that this peer has seen from us, whatever the clock says.
    pub(crate) fn next_timestamp(&mut self, unix: Duration) -> Tai64n {
        let now = Tai64n::whitened(unix);
        let timestamp = match self.sent_timestamp {
            Some(last) if now <= last => last.successor(),
            _ => now,
        };
        self.sent_timestamp = Some(timestamp);
        timestamp
    }

    /// Whether one more initiation of this peer may be processed.
    pub(crate) fn admit_initiation(&mut self, now: Instant) -> bool {
        self.bucket.take(now)
    }

    /// Whether data can be sealed now.
    pub(crate) fn can_seal(&self, now: Instant) -> bool {
        self.slots.current.as_ref().is_some_and(|current| current.sealer.usable(now))
    }

    /// Whether the current session is so young that a wish for a rekey must be about an older one.
    pub(crate) fn has_fresh_session(&self, now: Instant) -> bool {
        self.can_seal(now)
            && self
                .slots
                .current
                .as_ref()
                .is_some_and(|current| now.since(current.sealer.created()) < REJECT_AFTER_TIME / 10)
    }
}

/// Fifty a second, counted in windows of a second.
#[derive(Default)]
struct Bucket {
    window: Instant,
    taken: u32,
}

impl Bucket {
    fn take(&mut self, now: Instant) -> bool {
        if now.since(self.window) >= Duration::from_secs(1) {
            *self = Self { window: now, taken: 0 };
        }
        self.taken = self.taken.saturating_add(1);
        self.taken <= INITIATIONS_PER_SECOND
    }
}
