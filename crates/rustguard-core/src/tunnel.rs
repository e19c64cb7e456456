//! A whole WireGuard interface in one thread: the place to start for a program that embeds the protocol.
//!
//! A [`Tunnel`] holds the private key, the peers with their endpoints and allowed IPs, the sessions, and the packets
//! that wait for a handshake. It does no I/O: no call blocks, asks for the time, or touches a socket. The program
//!
//! - gives packets of the host to [`Tunnel::send`], and datagrams from the network to [`Tunnel::receive`];
//! - carries out what [`Tunnel::poll`] returns after each call: handshake messages to send, events to report;
//! - calls [`Tunnel::tick`] when [`Tunnel::deadline`] has come.
//!
//! Packets are sealed and opened in the program's own buffers. A packet of an established session is not copied and
//! costs no allocation. Programs that spread the work over threads use [`node`](crate::node) and
//! [`session`](crate::session) instead.
//!
//! ```
//! use rustguard_core::{
//!     node::PeerConfig,
//!     time::{Instant, Now},
//!     tunnel::{HEADROOM, Output, TAILROOM, Tunnel},
//! };
//! use rustguard_crypto::x25519::StaticSecret;
//! use std::{net::SocketAddr, time::Duration};
//!
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! let now = Now { instant: Instant::from_nanos(0), unix: Duration::from_secs(1_800_000_000) };
//! let rng = &mut rand::rng();
//! let keys = [StaticSecret::generate()?, StaticSecret::generate()?];
//! let addresses: [SocketAddr; 2] = ["192.0.2.1:51820".parse()?, "192.0.2.2:51820".parse()?];
//!
//! // Alice (0) has 10.0.0.1, Bob (1) has 10.0.0.2.
//! let mut tunnels = [0, 1].map(|me| {
//!     let mut tunnel = Tunnel::new(1420, now, rng);
//!     tunnel.set_private_key(Some(keys[me].clone()), now, rng);
//!     tunnel
//! });
//! for me in [0, 1] {
//!     let (peer, allowed_ip) = (PeerConfig::new(keys[1 - me].public_key()), format!("10.0.0.{}/32", 2 - me).parse()?);
//!     tunnels[me].add_peer(peer, Some(addresses[1 - me]), &[allowed_ip], now, rng)?;
//! }
//!
//! // An IPv4 packet from Alice to Bob, with room for the header before it, and for padding and tag behind it.
//! let packet = [0x45, 0, 0, 20, 0, 0, 0, 0, 64, 59, 0, 0, 10, 0, 0, 1, 10, 0, 0, 2];
//! let mut buffer = [0; HEADROOM + 20 + TAILROOM];
//! buffer[HEADROOM..][..20].copy_from_slice(&packet);
//! // There is no session yet: the packet is kept, and a handshake begins.
//! assert!(tunnels[0].send(&mut buffer, 20, now, rng)?.is_none());
//!
//! // Carry datagrams to and fro until nobody has any.
//! let mut delivered = Vec::new();
//! let mut busy = true;
//! while busy {
//!     busy = false;
//!     for me in [0, 1] {
//!         while let Some(output) = tunnels[me].poll() {
//!             busy = true;
//!             if let Output::Transmit { mut datagram, .. } = output
//!                 && let Some(received) = tunnels[1 - me].receive(addresses[me], &mut datagram, now, rng)?
//!             {
//!                 delivered.push(received.packet.to_vec());
//!             }
//!         }
//!     }
//! }
//! assert_eq!(delivered, [packet]);
//!
//! // With the session, the packet is sealed where it lies.
//! buffer[HEADROOM..][..20].copy_from_slice(&packet);
//! let sealed = tunnels[0].send(&mut buffer, 20, now, rng)?.expect("there is a session");
//! assert_eq!(sealed.to, addresses[1]);
//! let received = tunnels[1].receive(addresses[0], sealed.datagram, now, rng)?.expect("a packet");
//! assert_eq!(received.packet, packet);
//! # Ok(())
//! # }
//! ```
use crate::{
    activity::Activity,
    allowed_ips::AllowedIps,
    node::{Action, AddPeerError, Dropped, Event, Node, PeerConfig, PeerId},
    packet::{IpHead, PADDING, padded_len},
    session::{HEADER_LEN, OVERHEAD, Opener, Replay, ReplayWindow, Reserved, Sealer},
    staging::Staged,
    sync::Arc,
    time::{Instant, Now},
    wire::Kind,
};
use alloc::{
    collections::{BTreeMap, VecDeque},
    vec,
    vec::Vec,
};
use core::{fmt, mem, net::SocketAddr, time::Duration};
use ipnet::IpNet;
use rand_core::CryptoRng;
use rustguard_crypto::{
    aead::{Frame, TAG_LEN},
    x25519::StaticSecret,
};

/// Bytes that [`Tunnel::send`] needs before a packet: the header of a transport message.
pub const HEADROOM: usize = HEADER_LEN;
/// Bytes that [`Tunnel::send`] needs behind a packet, at most: padding to a multiple of 16, and the tag.
pub const TAILROOM: usize = PADDING - 1 + TAG_LEN;

/// Something to do after a call.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Output {
    /// Send this datagram: a handshake message, a keepalive, or a packet that waited for the handshake.
    Transmit {
        /// Where to.
        to: SocketAddr,
        /// The whole datagram, the payload of UDP.
        datagram: Vec<u8>,
    },
    /// Report this event to the application.
    Event(Event),
}

/// A packet that was sealed in the caller's buffer: send it.
#[derive(Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Sealed<'b> {
    /// Where to.
    pub to: SocketAddr,
    /// The whole datagram, the payload of UDP.
    pub datagram: &'b mut [u8],
}

/// A packet that was opened in the caller's buffer: give it to the host.
#[derive(Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Received<'b> {
    /// The peer that sent it. The packet's source address is one of the peer's allowed IPs.
    pub peer: PeerId,
    /// The IP packet, without padding.
    pub packet: &'b mut [u8],
}

/// Why a packet from the host was not sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum Unsent {
    /// The buffer has no room for header, padding and tag around the packet.
    #[error("the buffer is too short: it needs {needed} bytes")]
    Buffer {
        /// Bytes that the buffer must have.
        needed: usize,
    },
    /// It is not an IP packet.
    #[error("not an IP packet")]
    Malformed,
    /// The destination is in no peer's allowed IPs.
    #[error("no peer has the destination among its allowed IPs")]
    NoRoute,
    /// The peer's address is not known (yet).
    #[error("the peer has no endpoint")]
    NoEndpoint,
}

/// Why a datagram was dropped.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum Ignored {
    /// A handshake message was dropped, for the node's reason.
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

/// An interface: see the [module](self).
pub struct Tunnel {
    node: Node,
    links: BTreeMap<PeerId, Link>,
    sessions: BTreeMap<u32, Session>,
    allowed_ips: AllowedIps,
    mtu: usize,
    actions: Vec<Action>,
    outputs: VecDeque<Output>,
}

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
    /// A tunnel without private key or peers. `mtu` is the MTU of the inner packets: padding does not exceed it.
    pub fn new(mtu: usize, now: Now, rng: &mut impl CryptoRng) -> Self {
        Self {
            node: Node::new(now.instant, rng),
            links: BTreeMap::new(),
            sessions: BTreeMap::new(),
            allowed_ips: AllowedIps::default(),
            mtu,
            actions: Vec::new(),
            outputs: VecDeque::new(),
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

    /// Removes a peer and all its state; false if it does not exist.
    pub fn remove_peer(&mut self, peer: PeerId, now: Now, rng: &mut impl CryptoRng) -> bool {
        let removed = self.node.remove_peer(peer, &mut self.actions);
        self.forget(peer);
        self.apply(None, now, rng);
        removed
    }

    /// Sets a peer's endpoint. Authentic packets from elsewhere will change it.
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

    /// The protocol's state, for queries.
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

    /// For changes of which peer has which addresses.
    pub fn allowed_ips_mut(&mut self) -> &mut AllowedIps {
        &mut self.allowed_ips
    }

    /// The next thing to do. Call this until it returns `None`, after every call that takes the time.
    pub fn poll(&mut self) -> Option<Output> {
        self.outputs.pop_front()
    }

    /// Seals an IP packet of the host in place.
    ///
    /// The packet is `buffer[HEADROOM..HEADROOM + len]`. The buffer has up to [`TAILROOM`] bytes behind it, fewer if
    /// the packet's length is a multiple of 16 or padding ends at the MTU. Returns the datagram, which begins at the
    /// buffer's first byte. Without a session the result is `None`: a copy of the packet waits for the handshake that
    /// begins (up to 128 packets for each peer, the oldest is dropped first), and is later returned by
    /// [`poll`](Self::poll).
    ///
    /// # Errors
    /// [`Unsent`]; then the packet is dropped, and the buffer is unchanged.
    pub fn send<'b>(
        &mut self,
        buffer: &'b mut [u8],
        len: usize,
        now: Now,
        rng: &mut impl CryptoRng,
    ) -> Result<Option<Sealed<'b>>, Unsent> {
        let short = Unsent::Buffer { needed: len.saturating_add(OVERHEAD) };
        let packet = buffer.get(HEADROOM..).and_then(|rest| rest.get(..len)).ok_or(short)?;
        let head = IpHead::parse(packet).ok_or(Unsent::Malformed)?;
        let peer = self.allowed_ips.lookup(head.destination).ok_or(Unsent::NoRoute)?;
        let link = self.links.get_mut(&peer).ok_or(Unsent::NoRoute)?;
        let to = link.endpoint.ok_or(Unsent::NoEndpoint)?;
        let padded = padded_len(head.len, self.mtu);
        let needed = padded + OVERHEAD;
        let datagram = buffer.get_mut(..needed).ok_or(Unsent::Buffer { needed })?;

        let sealer = link.sealer.as_ref().filter(|_| link.staged.is_empty());
        let Some((sealer, reserved)) = sealer.and_then(|sealer| Some((sealer, sealer.reserve(now.instant, 1)?))) else {
            link.staged.push(datagram[HEADROOM..HEADROOM + head.len].into());
            self.flush(peer, false, now, rng);
            self.apply(None, now, rng);
            return Ok(None);
        };
        if reserved.rekey {
            self.node.handshake_wanted(peer, now, rng, &mut self.actions);
        }
        datagram[HEADROOM + head.len..HEADROOM + padded].fill(0);
        sealer.seal(datagram, &[Frame { offset: HEADROOM, len: padded, counter: reserved.first }]);
        if link.activity.data_sent(now.instant, needed as u64) {
            self.node.activity(peer, now.instant);
        }
        self.apply(None, now, rng);
        Ok(Some(Sealed { to, datagram }))
    }

    /// Takes a datagram that came from `from`, and opens it in place if it carries a packet.
    ///
    /// The result is `None` for handshake messages and keepalives. In either case [`poll`](Self::poll) may have
    /// something.
    ///
    /// # Errors
    /// Why it was dropped. The datagram's bytes are then unspecified.
    pub fn receive<'b>(
        &mut self,
        from: SocketAddr,
        datagram: &'b mut [u8],
        now: Now,
        rng: &mut impl CryptoRng,
    ) -> Result<Option<Received<'b>>, Ignored> {
        let opened = match Kind::of(datagram) {
            Some(Kind::Data { receiver, counter }) => self.open(from, datagram, receiver, counter, now, rng),
            _ => self.node.handle(from, datagram, now, rng, &mut self.actions).map(|()| None).map_err(Ignored::from),
        };
        self.apply(Some(from), now, rng);
        let Some((peer, len)) = opened? else { return Ok(None) };
        Ok(Some(Received { peer, packet: &mut datagram[HEADER_LEN..HEADER_LEN + len] }))
    }

    /// When [`tick`](Self::tick) has to be called.
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

    /// Opens a transport message in place. Returns the peer whose packet it carries, and the packet's length; `None`
    /// for a keepalive.
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

        // Authentic from here on: state must not change before this point.
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

    /// Carries out the node's actions in their order, including those that are added meanwhile.
    fn apply(&mut self, from: Option<SocketAddr>, now: Now, rng: &mut impl CryptoRng) {
        while !self.actions.is_empty() {
            for action in mem::take(&mut self.actions) {
                self.apply_one(action, from, now, rng);
            }
        }
    }

    fn apply_one(&mut self, action: Action, from: Option<SocketAddr>, now: Now, rng: &mut impl CryptoRng) {
        match action {
            Action::Send { peer, datagram, .. } => {
                let endpoint = self.links.get(&peer).and_then(|link| link.endpoint);
                self.outputs.extend(endpoint.map(|to| Output::Transmit { to, datagram }));
            }
            Action::Reply { datagram } => {
                self.outputs.extend(from.map(|to| Output::Transmit { to, datagram }));
            }
            // One thread: the node checks the MACs itself.
            Action::SetScreen(_) => {}
            Action::Endpoint { peer } => {
                if let Some(link) = self.links.get_mut(&peer) {
                    link.endpoint = from.or(link.endpoint);
                }
            }
            // One thread: the first packet is answered after `SetSealer`, so `next` is not needed.
            Action::AddOpener { peer, opener, next: _ } => {
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

    /// Sends the staged packets; or a keepalive, if there are none and `or_keepalive` is set.
    fn flush(&mut self, peer: PeerId, or_keepalive: bool, now: Now, rng: &mut impl CryptoRng) {
        let Some(link) = self.links.get_mut(&peer) else { return };
        if link.staged.is_empty() && or_keepalive {
            return self.keepalive(peer, now, rng);
        }
        while !link.staged.is_empty() {
            let reserved = link.sealer.as_ref().and_then(|sealer| Some((sealer, sealer.reserve(now.instant, 1)?)));
            // A handshake is wanted if there is no counter, or if the sealer asks for a rekey along with a counter.
            if reserved.is_none_or(|(_, reserved)| reserved.rekey) {
                self.node.handshake_wanted(peer, now, rng, &mut self.actions);
            }
            let Some((sealer, Reserved { first, .. })) = reserved else { return };
            let Some(packet) = link.staged.pop() else { return };
            let datagram = seal(sealer, &packet, first, self.mtu);
            if link.activity.data_sent(now.instant, datagram.len() as u64) {
                self.node.activity(peer, now.instant);
            }
            self.outputs.extend(link.endpoint.map(|to| Output::Transmit { to, datagram }));
        }
    }

    /// Sends an empty packet, if there is a session.
    fn keepalive(&mut self, peer: PeerId, now: Now, rng: &mut impl CryptoRng) {
        let Some(link) = self.links.get(&peer) else { return };
        let Some(sealer) = &link.sealer else { return };
        let Some(reserved) = sealer.reserve(now.instant, 1) else { return };
        if reserved.rekey {
            self.node.handshake_wanted(peer, now, rng, &mut self.actions);
        }
        let datagram = seal(sealer, &[], reserved.first, self.mtu);
        link.activity.keepalive_sent(now.instant, datagram.len() as u64);
        self.outputs.extend(link.endpoint.map(|to| Output::Transmit { to, datagram }));
    }
}

/// Seals a staged packet, or nothing for a keepalive, in a new buffer.
fn seal(sealer: &Sealer, packet: &[u8], counter: u64, mtu: usize) -> Vec<u8> {
    let len = padded_len(packet.len(), mtu);
    let mut datagram = vec![0; len + OVERHEAD];
    datagram[HEADER_LEN..HEADER_LEN + packet.len()].copy_from_slice(packet);
    sealer.seal(&mut datagram, &[Frame { offset: HEADER_LEN, len, counter }]);
    datagram
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
