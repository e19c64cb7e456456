//! One peer as the node sees it: its configuration, handshakes both ways, and the three keypairs.
use crate::{
    activity::Activity,
    cookie::Maker,
    node::PeerConfig,
    noise::{self, Initiated},
    session::Sealer,
    sync::Arc,
    tai64n::Timestamp,
    time::Instant,
    timers::Armed,
};
use alloc::boxed::Box;
use core::time::Duration;
use rustguard_crypto::x25519::{SharedSecret, StaticSecret};

/// Initiations from one peer closer together than this are dropped: fifty a second.
const MIN_INITIATION_INTERVAL: Duration = Duration::from_millis(20);

pub(crate) struct Peer {
    pub(crate) config: PeerConfig,
    pub(crate) activity: Arc<Activity>,
    /// Signs handshake messages, holds the cookie.
    pub(crate) maker: Maker,
    /// We are trying to get a handshake through. With or without [`pending`](Self::pending): the first initiation may have
    /// to wait, and a change of the private key ends the one under way.
    pub(crate) attempt: Option<Attempt>,
    /// Our initiation that waits for its answer.
    pub(crate) pending: Option<Box<Pending>>,
    pub(crate) keypairs: Keypairs,
    /// When an initiation or a response was last sent: no initiation follows within Rekey-Timeout by itself.
    pub(crate) handshake_sent: Option<Instant>,
    /// When a handshake was last completed, by the wall clock.
    pub(crate) last_handshake: Option<Duration>,
    /// There is a known way to the peer, so that persistent keepalive makes sense.
    pub(crate) started: bool,
    pub(crate) armed: Armed,
    static_static: StaticStatic,
    timestamp_sent: Option<Timestamp>,
    timestamp_seen: Option<Timestamp>,
    initiation_seen: Option<Instant>,
}

/// A row of initiations, until one is answered or the last is given up.
pub(crate) struct Attempt {
    pub(crate) since: Instant,
    pub(crate) first_sent: Option<Instant>,
    /// Initiations made so far.
    pub(crate) tries: u32,
    /// Nothing waits for it: it is given up early and in silence. Whatever does want a handshake makes it one like any other.
    pub(crate) greeting: bool,
}

impl Attempt {
    pub(crate) fn new(since: Instant) -> Self {
        Self { since, first_sent: None, tries: 0, greeting: false }
    }

    pub(crate) fn greeting(since: Instant) -> Self {
        Self { greeting: true, ..Self::new(since) }
    }
}

pub(crate) struct Pending {
    pub(crate) index: u32,
    pub(crate) initiated: Initiated,
}

/// The shared secret of both static keys: computed when it is first needed, so that ten thousand peers are added quickly.
enum StaticStatic {
    Unknown,
    LowOrder,
    Known(SharedSecret),
}

/// Why an authentic initiation is not answered.
pub(crate) enum Stale {
    Replayed,
    Flood,
}

impl Peer {
    pub(crate) fn new(config: PeerConfig) -> Self {
        Self {
            maker: Maker::new(&noise::WIREGUARD, &config.public_key),
            config,
            activity: Arc::default(),
            attempt: None,
            pending: None,
            keypairs: Keypairs::default(),
            handshake_sent: None,
            last_handshake: None,
            started: false,
            armed: Armed::default(),
            static_static: StaticStatic::Unknown,
            timestamp_sent: None,
            timestamp_seen: None,
            initiation_seen: None,
        }
    }

    /// The interval of persistent keepalive; zero means off.
    pub(crate) fn keepalive_interval(&self) -> Option<Duration> {
        self.config.persistent_keepalive.filter(|interval| !interval.is_zero())
    }

    /// The shared secret of both static keys, or `None` when the peer's is of low order.
    pub(crate) fn static_static(&mut self, identity: &StaticSecret) -> Option<&SharedSecret> {
        if let StaticStatic::Unknown = self.static_static {
            self.static_static = match identity.diffie_hellman(&self.config.public_key) {
                Ok(secret) => StaticStatic::Known(secret),
                Err(_) => StaticStatic::LowOrder,
            };
        }
        match &self.static_static {
            StaticStatic::Known(secret) => Some(secret),
            StaticStatic::Unknown | StaticStatic::LowOrder => None,
        }
    }

    /// Our private key is another one.
    pub(crate) fn forget_static_static(&mut self) {
        self.static_static = StaticStatic::Unknown;
    }

    /// The timestamp of the next initiation: greater than that of any before.
    pub(crate) fn next_timestamp(&mut self, unix: Duration) -> Timestamp {
        let timestamp = Timestamp::after(self.timestamp_sent, unix);
        self.timestamp_sent = Some(timestamp);
        timestamp
    }

    /// Notes the timestamp of an authentic initiation, or says why it must be dropped.
    pub(crate) fn note_initiation(&mut self, timestamp: Timestamp, now: Instant) -> Result<(), Stale> {
        if self.timestamp_seen.is_some_and(|seen| timestamp <= seen) {
            return Err(Stale::Replayed);
        }
        if self.initiation_seen.is_some_and(|seen| now.since(seen) < MIN_INITIATION_INTERVAL) {
            return Err(Stale::Flood);
        }
        self.timestamp_seen = Some(timestamp);
        self.initiation_seen = Some(now);
        Ok(())
    }

    /// The sealer in use, if it may still be used.
    pub(crate) fn usable_sealer(&self, now: Instant) -> Option<&Arc<Sealer>> {
        self.keypairs.current.as_ref().map(|keypair| &keypair.sealer).filter(|sealer| sealer.usable(now))
    }
}

/// A session: the index of its opener, and its sealer.
pub(crate) struct Keypair {
    pub(crate) index: u32,
    pub(crate) sealer: Arc<Sealer>,
}

/// The kernel's three slots. What is sealed uses `current`; what is received may use any.
#[derive(Default)]
pub(crate) struct Keypairs {
    previous: Option<Keypair>,
    current: Option<Keypair>,
    /// Made by our response: the initiator has to use it first, which proves that it got the response.
    next: Option<Keypair>,
}

/// Keypairs that a rotation pushed out.
pub(crate) type Retired = [Option<Keypair>; 2];

impl Keypairs {
    /// Our initiation was answered: the new keypair is used at once.
    ///
    /// A keypair that waits for its confirmation may get it yet, from an initiator whose packets are on their way: it takes
    /// the place of the previous one, and the current one goes.
    pub(crate) fn install_initiated(&mut self, new: Keypair) -> Retired {
        let current = self.current.replace(new);
        match self.next.take() {
            Some(next) => [current, self.previous.replace(next)],
            None => [core::mem::replace(&mut self.previous, current), None],
        }
    }

    /// We answered: the new keypair waits for its confirmation.
    pub(crate) fn install_responded(&mut self, new: Keypair) -> Retired {
        [self.previous.take(), self.next.replace(new)]
    }

    /// Whether this is the keypair that waits for its confirmation.
    pub(crate) fn awaits(&self, index: u32) -> bool {
        self.next.as_ref().is_some_and(|next| next.index == index)
    }

    /// The next keypair is confirmed and becomes the current one.
    pub(crate) fn confirm(&mut self) -> Option<Keypair> {
        let next = self.next.take()?;
        let current = self.current.replace(next);
        core::mem::replace(&mut self.previous, current)
    }

    /// The sealer in use, whatever its age.
    pub(crate) fn sealer(&self) -> Option<&Arc<Sealer>> {
        self.current.as_ref().map(|keypair| &keypair.sealer)
    }

    /// Empties all slots.
    pub(crate) fn take_all(&mut self) -> impl Iterator<Item = Keypair> + use<> {
        [self.previous.take(), self.current.take(), self.next.take()].into_iter().flatten()
    }
}
