//! Two tunnels, a network between them and a clock, all from one seed.
use rand::{RngExt, SeedableRng, rngs::StdRng};
use rustguard_core::{
    node::{Event, PeerConfig, PeerId},
    time::{Instant, Now},
    tunnel::{HEADROOM, Ignored, Output, Sealed, TAILROOM, Tunnel, Unsent},
    wire::Kind,
};
use rustguard_crypto::x25519::{PublicKey, StaticSecret};
use std::{
    collections::BTreeMap,
    net::{IpAddr, Ipv4Addr, SocketAddr},
    ops::RangeInclusive,
    time::Duration,
};

pub(crate) const A: usize = 0;
pub(crate) const B: usize = 1;
pub(crate) const MTU: usize = 1420;

pub(crate) const fn ms(ms: u64) -> Duration {
    Duration::from_millis(ms)
}

pub(crate) const fn secs(secs: u64) -> Duration {
    Duration::from_secs(secs)
}

/// The seed of a test: its own, or the value of `RUSTGUARD_SEED`, to reproduce a failure.
pub(crate) fn seed_or(default: u64) -> u64 {
    std::env::var("RUSTGUARD_SEED").ok().and_then(|seed| seed.parse().ok()).unwrap_or(default)
}

/// The effects of the network on datagrams.
pub(crate) struct Network {
    pub(crate) loss: f64,
    pub(crate) duplication: f64,
    /// One-way delay; datagrams overtake each other if this is a range.
    pub(crate) delay: RangeInclusive<Duration>,
}

pub(crate) struct Host {
    pub(crate) tunnel: Tunnel,
    pub(crate) rng: StdRng,
    pub(crate) address: SocketAddr,
    pub(crate) inner: Ipv4Addr,
    /// The other host.
    pub(crate) peer: PeerId,
    pub(crate) events: Vec<(Duration, Event)>,
    /// Numbers of the packets delivered.
    pub(crate) delivered: Vec<u32>,
    pub(crate) ignored: Vec<Ignored>,
}

struct Flight {
    from: SocketAddr,
    to: SocketAddr,
    datagram: Vec<u8>,
}

/// A datagram as it was sent: when, by which host, of which kind.
#[derive(Clone, Debug)]
pub(crate) struct Sent {
    pub(crate) at: Duration,
    pub(crate) by: usize,
    pub(crate) kind: Kind,
    pub(crate) datagram: Vec<u8>,
}

impl Sent {
    pub(crate) fn is_keepalive(&self) -> bool {
        matches!(self.kind, Kind::Data { .. }) && self.datagram.len() == 32
    }
}

pub(crate) struct Sim {
    seed: u64,
    pub(crate) network: Network,
    pub(crate) hosts: [Host; 2],
    /// All datagrams that were sent.
    pub(crate) sent: Vec<Sent>,
    /// Since the start.
    pub(crate) clock: Duration,
    rng: StdRng,
    flights: BTreeMap<(Duration, u64), Flight>,
    flown: u64,
}

/// Boot time and Unix time at the start of a simulation.
const BOOTED: Duration = secs(1_000);
const EPOCH: Duration = secs(1_700_000_000);

pub(crate) fn at(clock: Duration) -> Now {
    Now { instant: Instant::from_nanos(0) + BOOTED + clock, unix: EPOCH + clock }
}

pub(crate) fn secret(rng: &mut StdRng) -> StaticSecret {
    StaticSecret::from_bytes(rng.random())
}

pub(crate) fn peer_config(public_key: PublicKey) -> PeerConfig {
    PeerConfig::new(public_key)
}

/// An IPv4 packet with a number as its payload.
pub(crate) fn packet(source: Ipv4Addr, destination: Ipv4Addr, number: u32) -> Vec<u8> {
    let mut packet = vec![0; 24];
    packet[0] = 0x45;
    packet[3] = 24;
    packet[12..16].copy_from_slice(&source.octets());
    packet[16..20].copy_from_slice(&destination.octets());
    packet[20..].copy_from_slice(&number.to_be_bytes());
    packet
}

impl Sim {
    /// Two hosts that know each other and a network without loss, 10 ms in each direction. Only A knows the other's
    /// endpoint.
    pub(crate) fn new(seed: u64) -> Self {
        let mut rng = StdRng::seed_from_u64(seed);
        let secrets = [secret(&mut rng), secret(&mut rng)];
        let hosts = [A, B].map(|me| {
            let other = 1 - me;
            let mut host_rng = StdRng::seed_from_u64(rng.random());
            let mut tunnel = Tunnel::new(MTU, at(Duration::ZERO), &mut host_rng);
            tunnel.set_private_key(Some(secrets[me].clone()), at(Duration::ZERO), &mut host_rng);
            let endpoint = (me == A).then(|| address_of(other));
            let allowed = [ipnet::IpNet::from(IpAddr::V4(inner_of(other)))];
            let config = peer_config(secrets[other].public_key());
            let peer = tunnel
                .add_peer(config, endpoint, &allowed, at(Duration::ZERO), &mut host_rng)
                .expect("the first peer is new");
            Host {
                tunnel,
                rng: host_rng,
                address: address_of(me),
                inner: inner_of(me),
                peer,
                events: Vec::new(),
                delivered: Vec::new(),
                ignored: Vec::new(),
            }
        });
        let network = Network { loss: 0.0, duplication: 0.0, delay: ms(10)..=ms(10) };
        let (flights, sent) = (BTreeMap::new(), Vec::new());
        Self { seed, network, hosts, sent, clock: Duration::ZERO, rng, flights, flown: 0 }
    }

    /// As [`new`](Self::new), with a session that both have used.
    pub(crate) fn connected(seed: u64) -> Self {
        let mut sim = Self::new(seed);
        sim.send(A, 0);
        sim.run(secs(1));
        assert_eq!(sim.hosts[B].delivered, [0]);
        sim.hosts[B].delivered.clear();
        sim.sent.clear();
        sim
    }

    /// A host crashes and restarts. It only knows the keys and the other's endpoint.
    pub(crate) fn restart(&mut self, who: usize) {
        let now = self.now();
        let endpoint = self.hosts[1 - who].address;
        let host = &mut self.hosts[who];
        let config = host.tunnel.node().peer_config(host.peer).expect("it has a peer").clone();
        let key = host.tunnel.node().private_key().cloned();
        host.tunnel = Tunnel::new(MTU, now, &mut host.rng);
        host.tunnel.set_private_key(key, now, &mut host.rng);
        let allowed = [ipnet::IpNet::from(IpAddr::V4(inner_of(1 - who)))];
        host.peer =
            host.tunnel.add_peer(config, Some(endpoint), &allowed, now, &mut host.rng).expect("it is the first");
    }

    pub(crate) fn now(&self) -> Now {
        at(self.clock)
    }

    /// A packet from one host to the other.
    pub(crate) fn send(&mut self, from: usize, number: u32) {
        let (source, destination) = (self.hosts[from].inner, self.hosts[1 - from].inner);
        self.send_packet(from, &packet(source, destination, number)).expect("a packet for the peer");
    }

    /// Any packet.
    pub(crate) fn send_packet(&mut self, from: usize, packet: &[u8]) -> Result<(), Unsent> {
        let now = self.now();
        let host = &mut self.hosts[from];
        let mut buffer = [&[0; HEADROOM][..], packet, &[0; TAILROOM]].concat();
        let sealed = host.tunnel.send(&mut buffer, packet.len(), now, &mut host.rng)?;
        if let Some(Sealed { to, datagram, .. }) = sealed {
            self.transmit(from, to, datagram);
        }
        self.collect(from);
        Ok(())
    }

    /// Performs an action at one host.
    pub(crate) fn with<T>(&mut self, who: usize, act: impl FnOnce(&mut Host, Now) -> T) -> T {
        let now = self.now();
        let result = act(&mut self.hosts[who], now);
        self.collect(who);
        result
    }

    /// Gives a datagram to a host at once.
    pub(crate) fn give(&mut self, to: usize, from: SocketAddr, datagram: &[u8]) -> Result<(), Ignored> {
        self.with(to, |host, now| {
            let mut datagram = datagram.to_vec();
            let received = host.tunnel.receive(from, &mut datagram, now, &mut host.rng)?;
            host.delivered.extend(received.map(|received| number_of(received.packet)));
            Ok(())
        })
    }

    /// Lets time pass. Timers run when they are due.
    pub(crate) fn run(&mut self, span: Duration) {
        let end = self.clock + span;
        loop {
            let deadline = |host: &Host| {
                host.tunnel.deadline().map(|at| at.since(Instant::from_nanos(0) + BOOTED).max(self.clock))
            };
            let deadlines = [deadline(&self.hosts[A]), deadline(&self.hosts[B])];
            let arrival = self.flights.first_key_value().map(|(&(at, _), _)| at);
            let Some(next) = deadlines.into_iter().chain([arrival]).flatten().min().filter(|&next| next <= end) else {
                self.clock = end;
                return;
            };
            self.clock = next;
            if arrival == Some(next) {
                self.arrive();
            } else {
                for (who, deadline) in deadlines.into_iter().enumerate() {
                    if deadline == Some(next) {
                        self.with(who, |host, now| host.tunnel.tick(now, &mut host.rng));
                    }
                }
            }
        }
    }

    /// Takes all datagrams in flight off the network, in the order of sending.
    pub(crate) fn intercept(&mut self) -> Vec<Vec<u8>> {
        let mut flights: Vec<_> = std::mem::take(&mut self.flights).into_iter().collect();
        flights.sort_by_key(|((_, order), _)| *order);
        flights.into_iter().map(|(_, flight)| flight.datagram).collect()
    }

    /// How many datagrams of a kind a host sent.
    pub(crate) fn count(&self, by: usize, what: impl Fn(&Sent) -> bool) -> usize {
        self.sent.iter().filter(|sent| sent.by == by && what(sent)).count()
    }

    pub(crate) fn initiations(&self, by: usize) -> usize {
        self.count(by, |sent| sent.kind == Kind::Initiation)
    }

    fn arrive(&mut self) {
        let Some((_, Flight { from, to, datagram })) = self.flights.pop_first() else { return };
        if let Some(who) = self.hosts.iter().position(|host| host.address == to)
            && let Err(ignored) = self.give(who, from, &datagram)
        {
            self.hosts[who].ignored.push(ignored);
        }
    }

    /// Takes a host's outputs and puts its datagrams on the network.
    fn collect(&mut self, who: usize) {
        while let Some(output) = self.hosts[who].tunnel.poll() {
            match output {
                Output::Transmit { to, datagram } => self.transmit(who, to, &datagram),
                Output::Event(event) => self.hosts[who].events.push((self.clock, event)),
                other => panic!("{other:?}"),
            }
        }
    }

    fn transmit(&mut self, who: usize, to: SocketAddr, datagram: &[u8]) {
        let kind = Kind::of(datagram).expect("we send what we would take");
        self.sent.push(Sent { at: self.clock, by: who, kind, datagram: datagram.to_vec() });
        self.launch(who, to, datagram);
    }

    fn launch(&mut self, who: usize, to: SocketAddr, datagram: &[u8]) {
        if self.rng.random_bool(self.network.loss) {
            return;
        }
        let copies = if self.rng.random_bool(self.network.duplication) { 2 } else { 1 };
        for _ in 0..copies {
            let delay = self.rng.random_range(self.network.delay.clone());
            self.flown += 1;
            let flight = Flight { from: self.hosts[who].address, to, datagram: datagram.to_vec() };
            self.flights.insert((self.clock + delay, self.flown), flight);
        }
    }
}

impl Drop for Sim {
    fn drop(&mut self) {
        if std::thread::panicking() {
            eprintln!("failed {:?} into the simulation; replay with RUSTGUARD_SEED={}", self.clock, self.seed);
        }
    }
}

fn address_of(who: usize) -> SocketAddr {
    SocketAddr::from(([192, 0, 2, 1 + who as u8], 51_820))
}

fn number_of(packet: &[u8]) -> u32 {
    u32::from_be_bytes(packet[20..].try_into().expect("packets here carry a number"))
}

fn inner_of(who: usize) -> Ipv4Addr {
    Ipv4Addr::new(10, 0, 0, 1 + who as u8)
}
