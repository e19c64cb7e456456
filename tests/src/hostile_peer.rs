//! A peer in the test's process that speaks WireGuard correctly, but can send any bytes as texts.
use anyhow::{Context, Result, ensure};
use rand::rngs::ThreadRng;
use rustguard_core::{
    node::{Action, Node, PeerConfig, PeerId},
    session::{HEADER_LEN, OVERHEAD, Opener, Sealer},
    sync::Arc,
    time::{Instant as CoreInstant, Now},
    wire::Kind,
};
use rustguard_crypto::{
    aead::Frame,
    base64,
    x25519::{PublicKey, StaticSecret},
};
use std::{
    collections::BTreeMap,
    io::ErrorKind,
    net::{SocketAddr, UdpSocket},
    time::{Duration, Instant, SystemTime},
};

/// The limit for a handshake. It suffices on a busy machine.
const SOON: Duration = Duration::from_secs(80);

/// The peer: its protocol state and its socket.
pub struct HostilePeer {
    socket: UdpSocket,
    node: Node,
    rng: ThreadRng,
    started: Instant,
    actions: Vec<Action>,
    openers: BTreeMap<u32, (PeerId, Arc<Opener>)>,
    sealers: BTreeMap<PeerId, Arc<Sealer>>,
    endpoints: BTreeMap<PeerId, SocketAddr>,
    traffic: BTreeMap<PeerId, Traffic>,
}

/// The UDP payload that was exchanged with a peer, in bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Traffic {
    /// From the peer.
    pub received: u64,
    /// To the peer.
    pub sent: u64,
}

impl HostilePeer {
    /// A peer with this private key (base64) and socket.
    pub fn new(socket: UdpSocket, private_key: &str) -> Result<Self> {
        let (mut rng, mut actions) = (rand::rng(), Vec::new());
        let mut node = Node::new(CoreInstant::from_nanos(0), &mut rng);
        let key = base64::decode(private_key).context("a private key")?;
        node.set_private_key(Some(StaticSecret::from_bytes(*key)), &mut actions);
        Ok(Self {
            socket,
            node,
            rng,
            started: Instant::now(),
            actions: Vec::new(),
            openers: BTreeMap::new(),
            sealers: BTreeMap::new(),
            endpoints: BTreeMap::new(),
            traffic: BTreeMap::new(),
        })
    }

    /// Adds a peer by its public key (base64). Without an endpoint, the peer's handshake provides one.
    pub fn add(&mut self, public_key: &str, endpoint: Option<SocketAddr>) -> Result<PeerId> {
        self.add_with(public_key, endpoint, None)
    }

    /// The same, with a preshared key (base64).
    pub fn add_with(&mut self, public_key: &str, endpoint: Option<SocketAddr>, psk: Option<&str>) -> Result<PeerId> {
        let key: PublicKey = public_key.parse().context("a public key")?;
        let mut config = PeerConfig::new(key);
        if let Some(psk) = psk {
            config.preshared_key = *base64::decode(psk).context("a preshared key")?;
        }
        let peer = self.node.add_peer(config)?;
        self.endpoints.extend(endpoint.map(|endpoint| (peer, endpoint)));
        Ok(peer)
    }

    /// Starts handshakes until there is a session. Texts that arrive meanwhile are lost.
    pub fn connect(&mut self, peer: PeerId) -> Result<()> {
        let started = Instant::now();
        while !self.is_connected(peer) {
            ensure!(started.elapsed() < SOON, "no handshake with {peer:?}");
            self.call(peer)?;
            self.receive(Duration::from_millis(100))?;
        }
        Ok(())
    }

    /// Starts one handshake without waiting for an answer.
    pub fn call(&mut self, peer: PeerId) -> Result<()> {
        let now = self.now();
        self.node.handshake_wanted(peer, now, &mut self.rng, &mut self.actions);
        self.apply(None)
    }

    /// Whether there is a session with the peer.
    pub fn is_connected(&self, peer: PeerId) -> bool {
        self.sealers.contains_key(&peer)
    }

    /// Waits for one datagram, and handles it. Returns its text and the peer that has sent it, if it carries a text.
    pub fn receive(&mut self, patience: Duration) -> Result<Option<(PeerId, Vec<u8>)>> {
        let now = self.now();
        self.node.tick(now, &mut self.rng, &mut self.actions);
        self.apply(None)?;
        self.socket.set_read_timeout(Some(patience))?;
        let mut buffer = vec![0; 1 << 16];
        let (len, from) = match self.socket.recv_from(&mut buffer) {
            Ok(received) => received,
            // EINTR, and ICMP errors about earlier datagrams.
            Err(error)
                if matches!(
                    error.kind(),
                    ErrorKind::WouldBlock | ErrorKind::TimedOut | ErrorKind::Interrupted | ErrorKind::ConnectionRefused
                ) =>
            {
                return Ok(None);
            }
            Err(error) => return Err(error.into()),
        };
        buffer.truncate(len);
        let now = self.now();
        let text = match Kind::of(&buffer) {
            Some(Kind::Data { receiver, counter }) => self.open(from, &mut buffer, receiver, counter, now),
            _ => {
                // Refused datagrams do not matter here.
                let _ = self.node.handle(from, &buffer, now, &mut self.rng, &mut self.actions);
                None
            }
        };
        self.apply(Some((from, len as u64)))?;
        Ok(text)
    }

    /// Sends one text in the session with the peer. Fails if there is none.
    pub fn send(&mut self, peer: PeerId, text: &[u8]) -> Result<()> {
        let datagram = self.sealed(peer, text)?;
        self.transmit(peer, &datagram)
    }

    /// The same through another socket, so the datagram has another source. Answers to it are not received.
    pub fn send_by(&mut self, socket: &UdpSocket, peer: PeerId, text: &[u8]) -> Result<()> {
        let (datagram, to) = (self.sealed(peer, text)?, self.endpoints.get(&peer).context("an endpoint")?);
        socket.send_to(&datagram, to).with_context(|| format!("send to {to}"))?;
        Ok(())
    }

    fn sealed(&self, peer: PeerId, text: &[u8]) -> Result<Vec<u8>> {
        let sealer = self.sealers.get(&peer).context("no session with the peer")?;
        let reserved = sealer.reserve(self.now().instant, 1).context("the session is too old")?;
        let mut datagram = vec![0; text.len() + OVERHEAD];
        datagram[HEADER_LEN..][..text.len()].copy_from_slice(text);
        sealer.seal(&mut datagram, &[Frame { offset: HEADER_LEN, len: text.len(), counter: reserved.first }]);
        Ok(datagram)
    }

    /// The traffic with the peer so far. Incomplete handshakes do not count.
    pub fn traffic(&self, peer: PeerId) -> Traffic {
        self.traffic.get(&peer).copied().unwrap_or_default()
    }

    fn now(&self) -> Now {
        let nanos = u64::try_from(self.started.elapsed().as_nanos()).unwrap_or(u64::MAX);
        Now { instant: CoreInstant::from_nanos(nanos), unix: SystemTime::UNIX_EPOCH.elapsed().unwrap_or_default() }
    }

    /// Opens a datagram without a replay window, which a hostile peer does not need.
    fn open(
        &mut self,
        from: SocketAddr,
        datagram: &mut [u8],
        receiver: u32,
        counter: u64,
        now: Now,
    ) -> Option<(PeerId, Vec<u8>)> {
        let (peer, opener) = self.openers.get(&receiver)?;
        let (peer, len, mut opened) = (*peer, datagram.len() - OVERHEAD, [false]);
        opener.open(datagram, &[Frame { offset: HEADER_LEN, len, counter }], &mut opened);
        if opened != [true] {
            return None;
        }
        self.endpoints.insert(peer, from);
        self.traffic.entry(peer).or_default().received += datagram.len() as u64;
        if opener.first_use() {
            self.node.confirmed(receiver, now, &mut self.actions);
        }
        (len > 0).then(|| (peer, datagram[HEADER_LEN..][..len].to_vec()))
    }

    fn transmit(&mut self, peer: PeerId, datagram: &[u8]) -> Result<()> {
        let Some(to) = self.endpoints.get(&peer) else { return Ok(()) };
        match self.socket.send_to(datagram, to) {
            Ok(_) => {}
            Err(error) if error.kind() == ErrorKind::ConnectionRefused => {}
            Err(error) => return Err(error).with_context(|| format!("send to {to}")),
        }
        self.traffic.entry(peer).or_default().sent += datagram.len() as u64;
        Ok(())
    }

    /// Carries out the node's actions. `from` is the source and the length of the datagram that was handled.
    fn apply(&mut self, from: Option<(SocketAddr, u64)>) -> Result<()> {
        for action in std::mem::take(&mut self.actions) {
            match action {
                Action::Send { peer, datagram, .. } => self.transmit(peer, &datagram)?,
                Action::Reply { datagram } => {
                    if let Some((from, _)) = from {
                        self.socket.send_to(&datagram, from)?;
                    }
                }
                Action::Endpoint { peer } => {
                    if let Some((from, bytes)) = from {
                        self.endpoints.insert(peer, from);
                        self.traffic.entry(peer).or_default().received += bytes;
                    }
                }
                Action::AddOpener { peer, opener, .. } => {
                    self.openers.insert(opener.index(), (peer, opener));
                }
                Action::RemoveOpener { index } => {
                    self.openers.remove(&index);
                }
                Action::SetSealer { peer, sealer } => {
                    match sealer {
                        Some(sealer) => self.sealers.insert(peer, sealer),
                        None => self.sealers.remove(&peer),
                    };
                }
                // No packets are staged, so an empty text confirms the session.
                Action::Flush { peer, or_keepalive: true } | Action::Keepalive { peer } if self.is_connected(peer) => {
                    self.send(peer, &[])?;
                }
                _ => {}
            }
        }
        Ok(())
    }
}
