//! One peer as the node sees it: its configuration, handshakes both ways, and the three keypairs.
use super::{
    keypairs::Keypairs,
    retry::{Attempt, Pending},
    timers::Armed,
};
use crate::{
    activity::Activity, cookie::Maker, noise, peer::PeerConfig, session::Sealer, sync::Arc, tai64n::Timestamp,
    time::Instant,
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
    /// There was a session or an attempt when the node was stopped.
    pub(crate) resumes: bool,
    pub(crate) armed: Armed,
    static_static: StaticStatic,
    timestamp_sent: Option<Timestamp>,
    timestamp_seen: Option<Timestamp>,
    initiation_seen: Option<Instant>,
}

/// The shared secret of both static keys. It is computed when it is first needed, so that ten thousand peers are added quickly.
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
            resumes: false,
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
        self.keypairs.sealer().filter(|sealer| sealer.usable(now))
    }
}
