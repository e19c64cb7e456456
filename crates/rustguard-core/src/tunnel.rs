//! A whole WireGuard interface in one thread: a [`Node`], the sessions and endpoints it speaks of, and allowed IPs.
//!
//! For embedders without threads, and for tests. Packets and datagrams go in, [`Output`]s come out of [`Tunnel::poll`]; no
//! call blocks, asks for the time or touches a socket. Call [`Tunnel::tick`] when [`Tunnel::deadline`] has come. Outputs that are given
//! back by [`Tunnel::recycle`] make packets of a session free of allocations.
use crate::{
    activity::Activity,
    allowed_ips::AllowedIps,
    node::{Action, AddPeerError, Dropped, Event, Node, PeerConfig, PeerId},
    packet::{IpHead, padded_len},
    session::{HEADER_LEN, OVERHEAD, Opener, Replay, ReplayWindow, Reserved, Sealer},
    staging::Staged,
    sync::Arc,
    time::{Instant, Now},
    wire::Kind,
};
use alloc::{
    collections::{BTreeMap, VecDeque},
    vec::Vec,
};
use core::{fmt, mem, net::SocketAddr, time::Duration};
use ipnet::IpNet;
use rand_core::CryptoRng;
use rustguard_crypto::{
    aead::{Frame, TAG_LEN},
    x25519::StaticSecret,
};

/// What the tunnel wants done or known.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Output {
    /// Send this datagram.
    Transmit {
        /// Where to.
        to: SocketAddr,
        /// All of it.
        datagram: Vec<u8>,
    },
    /// Give this IP packet to the host.
    Deliver {
        /// Who sent it; its source address is one of theirs.
        peer: PeerId,
        /// The packet without padding.
        packet: Vec<u8>,
    },
    /// For the application.
    Event(Event),
}

/// Why a packet from the host was not sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Unsent {
    /// It is not an IP packet.
    #[error("not an IP packet")]
    Malformed,
    /// No peer's allowed IPs hold its destination.
    #[error("no peer has the destination among its allowed IPs")]
    NoRoute,
    /// The peer's address is not known (yet).
    #[error("the peer has no endpoint")]
    NoEndpoint,
}

/// Why a datagram was dropped.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Ignored {
    /// A handshake message, for the node's reason.
    #[error("handshake: {0}")]
    Handshake(#[from] Dropped),
    /// No session has this index.
    #[error("no session has this index")]
    UnknownIndex,
    /// The session is past Reject-After-Time.
    #[error("the session is too old")]
    Expired,
    /// Authentication failed.
    #[error("authentication failed")]
    Forged,
    /// The counter was refused.
    #[error("{0}")]
    Replay(#[from] Replay),
    /// The text is not an IP packet.
    #[error("not an IP packet")]
    Malformed,
    /// The source address is not among the peer's allowed IPs.
    #[error("the source address is not among the peer's allowed IPs")]
    Source,
}

/// See the module.
pub struct Tunnel {
    node: Node,
    links: BTreeMap<PeerId, Link>,
    sessions: BTreeMap<u32, Session>,
    allowed_ips: AllowedIps,
    mtu: usize,
    actions: Vec<Action>,
    outputs: VecDeque<Output>,
    /// Buffers of outputs that were given back.
    spare: Vec<Vec<u8>>,
}

/// Buffers that are kept.
const SPARE: usize = 64;

/// The data path's side of a peer.
struct Link {
    endpoint: Option<SocketAddr>,
    sealer: Option<Arc<Sealer>>,
    staged: Staged,
    activity: Arc<Activity>,
}

/// The receiving half of a session.
struct Session {
    peer: PeerId,
    opener: Arc<Opener>,
    window: ReplayWindow,
}

impl Tunnel {
    /// A tunnel without private key or peers. `mtu` is that of the inner packets: padding does not go past it.
    pub fn new(mtu: usize, now: Now, rng: &mut impl CryptoRng) -> Self {
        Self {
            node: Node::new(now.instant, rng),
            links: BTreeMap::new(),
            sessions: BTreeMap::new(),
            allowed_ips: AllowedIps::default(),
            mtu,
            actions: Vec::new(),
            outputs: VecDeque::new(),
            spare: Vec::new(),
        }
    }

    /// Sets or removes the private key; a peer with the same key is removed and returned.
    pub fn set_private_key(&mut self, key: Option<StaticSecret>, now: Now, rng: &mut impl CryptoRng) -> Option<PeerId> {
        let removed = self.node.set_private_key(key, &mut self.actions);
        if let Some(peer) = removed {
            self.forget(peer);
        }
        self.apply(None, now, rng);
        removed
    }

    /// Adds a peer; with an endpoint its persistent keepalive starts.
    ///
    /// # Errors
    /// [`AddPeerError`].
    pub fn add_peer(
        &mut self,
        config: PeerConfig,
        endpoint: Option<SocketAddr>,
        allowed_ips: &[IpNet],
        now: Now,
        rng: &mut impl CryptoRng,
    ) -> Result<PeerId, AddPeerError> {
        let peer = self.node.add_peer(config)?;
        let activity = self.node.activity_of(peer).expect("the peer was just added");
        self.links.insert(peer, Link { endpoint: None, sealer: None, staged: Staged::default(), activity });
        for &net in allowed_ips {
            self.allowed_ips.insert(net, peer);
        }
        if let Some(endpoint) = endpoint {
            self.set_endpoint(peer, endpoint, now, rng);
        }
        Ok(peer)
    }

    /// Removes a peer and all there is of it; false when there is none.
    pub fn remove_peer(&mut self, peer: PeerId, now: Now, rng: &mut impl CryptoRng) -> bool {
        let removed = self.node.remove_peer(peer, &mut self.actions);
        self.forget(peer);
        self.apply(None, now, rng);
        removed
    }

    /// Says where a peer is. Authentic packets from elsewhere will change that.
    pub fn set_endpoint(&mut self, peer: PeerId, endpoint: SocketAddr, now: Now, rng: &mut impl CryptoRng) {
        let Some(link) = self.links.get_mut(&peer) else { return };
        link.endpoint = Some(endpoint);
        self.node.start(peer, now, rng, &mut self.actions);
        self.apply(None, now, rng);
    }

    /// A new preshared key, from the next handshake on.
    pub fn set_preshared_key(&mut self, peer: PeerId, key: [u8; 32]) {
        self.node.set_preshared_key(peer, key);
    }

    /// Changes the persistent keepalive; turning it on sends one at once.
    pub fn set_persistent_keepalive(
        &mut self,
        peer: PeerId,
        interval: Option<Duration>,
        now: Now,
        rng: &mut impl CryptoRng,
    ) {
        self.node.set_persistent_keepalive(peer, interval, now, rng, &mut self.actions);
        self.apply(None, now, rng);
    }

    /// Starts a handshake at once.
    pub fn handshake_now(&mut self, peer: PeerId, now: Now, rng: &mut impl CryptoRng) {
        self.node.handshake_now(peer, now, rng, &mut self.actions);
        self.apply(None, now, rng);
    }

    /// Begins a handshake with nothing to send: see [`Node::greet`].
    pub fn greet(&mut self, peer: PeerId, at: Instant) {
        self.node.greet(peer, at);
    }

    /// The protocol's state, for what can be asked of it.
    pub fn node(&self) -> &Node {
        &self.node
    }

    /// Where a peer is.
    pub fn endpoint(&self, peer: PeerId) -> Option<SocketAddr> {
        self.links.get(&peer)?.endpoint
    }

    /// Which peer has which addresses.
    pub fn allowed_ips(&self) -> &AllowedIps {
        &self.allowed_ips
    }

    /// To change which peer has which addresses.
    pub fn allowed_ips_mut(&mut self) -> &mut AllowedIps {
        &mut self.allowed_ips
    }

    /// Takes the oldest output.
    pub fn poll(&mut self) -> Option<Output> {
        self.outputs.pop_front()
    }

    /// Gives the buffer of an output back, after it was sent or delivered, for the packets to come.
    pub fn recycle(&mut self, output: Output) {
        if let Output::Transmit { datagram: buffer, .. } | Output::Deliver { packet: buffer, .. } = output {
            self.keep(buffer);
        }
    }

    fn keep(&mut self, buffer: Vec<u8>) {
        if self.spare.len() < SPARE {
            self.spare.push(buffer);
        }
    }

    /// An empty buffer.
    fn buffer(&mut self) -> Vec<u8> {
        let mut buffer = self.spare.pop().unwrap_or_default();
        buffer.clear();
        buffer
    }

    /// Sends an IP packet of the host, at once or after a handshake.
    ///
    /// # Errors
    /// [`Unsent`].
    pub fn send(&mut self, packet: &[u8], now: Now, rng: &mut impl CryptoRng) -> Result<(), Unsent> {
        let head = IpHead::parse(packet).ok_or(Unsent::Malformed)?;
        let peer = self.allowed_ips.lookup(head.destination).ok_or(Unsent::NoRoute)?;
        let link = self.links.get_mut(&peer).ok_or(Unsent::NoRoute)?;
        if link.endpoint.is_none() {
            return Err(Unsent::NoEndpoint);
        }
        let packet = &packet[..head.len];
        let sealer = link.sealer.as_ref().filter(|_| link.staged.is_empty());
        match sealer.and_then(|sealer| sealer.reserve(now.instant, 1)) {
            Some(reserved) => {
                if reserved.rekey {
                    self.node.handshake_wanted(peer, now, rng, &mut self.actions);
                }
                self.seal_and_transmit(peer, reserved, packet, now);
            }
            None => {
                link.staged.push(packet.into());
                self.flush(peer, false, now, rng);
            }
        }
        self.apply(None, now, rng);
        Ok(())
    }

    /// Takes a datagram that came from `from`.
    ///
    /// # Errors
    /// Why it was dropped.
    pub fn receive(
        &mut self,
        from: SocketAddr,
        datagram: &[u8],
        now: Now,
        rng: &mut impl CryptoRng,
    ) -> Result<(), Ignored> {
        let result = match Kind::of(datagram) {
            Some(Kind::Data { receiver, counter }) => self.receive_data(from, datagram, receiver, counter, now, rng),
            _ => self.node.handle(from, datagram, now, rng, &mut self.actions).map_err(Ignored::from),
        };
        self.apply(Some(from), now, rng);
        result
    }

    /// When [`tick`](Self::tick) wants to be called.
    pub fn deadline(&self) -> Option<Instant> {
        self.node.deadline()
    }

    /// Runs the timers that are due.
    pub fn tick(&mut self, now: Now, rng: &mut impl CryptoRng) {
        self.node.tick(now, rng, &mut self.actions);
        self.apply(None, now, rng);
    }

    fn forget(&mut self, peer: PeerId) {
        self.links.remove(&peer);
        self.allowed_ips.remove_peer(peer);
    }

    fn receive_data(
        &mut self,
        from: SocketAddr,
        datagram: &[u8],
        receiver: u32,
        counter: u64,
        now: Now,
        rng: &mut impl CryptoRng,
    ) -> Result<(), Ignored> {
        let mut slab = self.buffer();
        slab.extend_from_slice(datagram);
        match self.open(from, &mut slab, receiver, counter, now, rng) {
            Ok(Some((peer, len))) => {
                slab.truncate(HEADER_LEN + len);
                slab.drain(..HEADER_LEN);
                self.outputs.push_back(Output::Deliver { peer, packet: slab });
                Ok(())
            }
            other => {
                self.keep(slab);
                other.map(drop)
            }
        }
    }

    /// Opens a datagram in place. Returns whose packet it is, and how long that is; `None` for a keepalive.
    fn open(
        &mut self,
        from: SocketAddr,
        slab: &mut [u8],
        receiver: u32,
        counter: u64,
        now: Now,
        rng: &mut impl CryptoRng,
    ) -> Result<Option<(PeerId, usize)>, Ignored> {
        let Session { peer, opener, window } = self.sessions.get_mut(&receiver).ok_or(Ignored::UnknownIndex)?;
        let peer = *peer;
        if !opener.usable(now.instant) {
            return Err(Ignored::Expired);
        }
        let len = slab.len() - OVERHEAD;
        let mut opened = [false];
        opener.open(slab, &[Frame { offset: HEADER_LEN, len, counter }], &mut opened);
        if opened != [true] {
            return Err(Ignored::Forged);
        }
        window.accept(counter)?;

        // Authentic from here on: only now may anything change.
        let Some(link) = self.links.get_mut(&peer) else { return Err(Ignored::UnknownIndex) };
        link.endpoint = Some(from);
        let bytes = slab.len() as u64;
        if len == 0 {
            link.activity.keepalive_received(now.instant, bytes);
        } else if link.activity.data_received(now.instant, bytes) {
            self.node.activity(peer, now.instant);
        }
        let rekey = opener.rekey_on_receive(now.instant);
        if opener.first_use() {
            self.node.confirmed(receiver, now, &mut self.actions);
        }
        if rekey {
            self.node.handshake_wanted(peer, now, rng, &mut self.actions);
        }
        if len == 0 {
            return Ok(None);
        }
        let head = IpHead::parse(&slab[HEADER_LEN..HEADER_LEN + len]).ok_or(Ignored::Malformed)?;
        if self.allowed_ips.lookup(head.source) != Some(peer) {
            return Err(Ignored::Source);
        }
        Ok(Some((peer, head.len)))
    }

    /// Carries out the node's actions in their order, those included that come up meanwhile.
    fn apply(&mut self, from: Option<SocketAddr>, now: Now, rng: &mut impl CryptoRng) {
        while !self.actions.is_empty() {
            for action in mem::take(&mut self.actions) {
                self.apply_one(action, from, now, rng);
            }
        }
    }

    fn apply_one(&mut self, action: Action, from: Option<SocketAddr>, now: Now, rng: &mut impl CryptoRng) {
        match action {
            Action::Send { peer, datagram, .. } => self.transmit(peer, datagram),
            Action::Reply { datagram } => {
                self.outputs.extend(from.map(|to| Output::Transmit { to, datagram }));
            }
            // One thread: the node judges by itself.
            Action::SetScreen(_) => {}
            Action::Endpoint { peer } => {
                if let Some(link) = self.links.get_mut(&peer) {
                    link.endpoint = from.or(link.endpoint);
                }
            }
            Action::AddOpener { peer, opener } => {
                let session = Session { peer, opener, window: ReplayWindow::default() };
                self.sessions.insert(session.opener.index(), session);
            }
            Action::RemoveOpener { index } => {
                self.sessions.remove(&index);
            }
            Action::SetSealer { peer, sealer } => {
                if let Some(link) = self.links.get_mut(&peer) {
                    link.sealer = sealer;
                }
            }
            Action::Flush { peer, or_keepalive } => self.flush(peer, or_keepalive, now, rng),
            Action::Keepalive { peer } => self.keepalive(peer, now, rng),
            Action::DropStaged { peer } => {
                if let Some(link) = self.links.get_mut(&peer) {
                    link.staged.clear();
                }
            }
            Action::Event(event) => self.outputs.push_back(Output::Event(event)),
        }
    }

    fn flush(&mut self, peer: PeerId, or_keepalive: bool, now: Now, rng: &mut impl CryptoRng) {
        let Some(link) = self.links.get_mut(&peer) else { return };
        if link.staged.is_empty() && or_keepalive {
            return self.keepalive(peer, now, rng);
        }
        while let Some(link) = self.links.get_mut(&peer).filter(|link| !link.staged.is_empty()) {
            let reserved = link.sealer.as_ref().and_then(|sealer| sealer.reserve(now.instant, 1));
            // A handshake is wanted when there is no counter, and when the sealer says so along with one.
            if reserved.is_none_or(|reserved| reserved.rekey) {
                self.node.handshake_wanted(peer, now, rng, &mut self.actions);
            }
            let Some(reserved) = reserved else { return };
            let Some(packet) = link.staged.pop() else { return };
            self.seal_and_transmit(peer, reserved, &packet, now);
        }
    }

    fn keepalive(&mut self, peer: PeerId, now: Now, rng: &mut impl CryptoRng) {
        let sealer = self.links.get(&peer).and_then(|link| link.sealer.as_ref());
        let Some(reserved) = sealer.and_then(|sealer| sealer.reserve(now.instant, 1)) else { return };
        if reserved.rekey {
            self.node.handshake_wanted(peer, now, rng, &mut self.actions);
        }
        self.seal_and_transmit(peer, reserved, &[], now);
    }

    fn seal_and_transmit(&mut self, peer: PeerId, reserved: Reserved, packet: &[u8], now: Now) {
        let mut datagram = self.buffer();
        let Some(link) = self.links.get_mut(&peer) else { return };
        let Some(sealer) = &link.sealer else { return };
        let len = padded_len(packet.len(), self.mtu);
        datagram.resize(HEADER_LEN + len + TAG_LEN, 0);
        datagram[HEADER_LEN..HEADER_LEN + packet.len()].copy_from_slice(packet);
        sealer.seal(&mut datagram, &[Frame { offset: HEADER_LEN, len, counter: reserved.first }]);

        let bytes = datagram.len() as u64;
        if packet.is_empty() {
            link.activity.keepalive_sent(now.instant, bytes);
        } else if link.activity.data_sent(now.instant, bytes) {
            self.node.activity(peer, now.instant);
        }
        self.transmit(peer, datagram);
    }

    fn transmit(&mut self, peer: PeerId, datagram: Vec<u8>) {
        let endpoint = self.links.get(&peer).and_then(|link| link.endpoint);
        self.outputs.extend(endpoint.map(|to| Output::Transmit { to, datagram }));
    }
}

impl fmt::Debug for Tunnel {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Tunnel")
            .field("node", &self.node)
            .field("sessions", &self.sessions.len())
            .field("allowed_ips", &self.allowed_ips)
            .finish_non_exhaustive()
    }
}
