//! `rustguard demo nat`: two members behind routers that translate addresses, and a relay that forwards datagrams that
//! it cannot decrypt. The members find a direct way. It is blocked, and later opened again.
//!
//! As in the other demonstrations, each node is in its own network namespace, and the members and the relay run the
//! same device as `up`. The routers are the kernel's own.

use super::{
    become_privileged,
    course::{Course, Going, PATIENCE, TICK, answer, round_trip, silence, time_line},
    host_socket as socket, row, say, secret,
    underlay::{MEMBER, Node, OUTSIDE, PUBLIC, Underlay},
};
use crate::process::runtime;
use anyhow::{Context as _, Result};
use rustguard_crypto::x25519::PublicKey;
use rustguard_device::{Builder, Device, EndpointSpec, Event, Events, EventsError, PeerUpdate, Way};
use rustguard_quick::host::find_program;
use std::{
    io,
    net::{Ipv4Addr, SocketAddr},
    num::NonZeroUsize,
    time::{Duration, Instant},
};

const NAMES: [&str; 2] = ["alice", "bob"];
/// The ways, in words.
const DIRECT: &str = "direct";
const RELAYED: &str = "relayed";
/// The relay's address.
const RELAY: Ipv4Addr = PUBLIC[0];
/// The addresses inside the tunnel: of the members, and of the relay.
const TUNNEL: [Ipv4Addr; 2] = [Ipv4Addr::new(10, 77, 0, 1), Ipv4Addr::new(10, 77, 0, 2)];
const TUNNEL_RELAY: Ipv4Addr = Ipv4Addr::new(10, 77, 0, 3);
const PORT: u16 = 51820;
/// The port of the UDP echo service of the second member.
const SERVICE: u16 = 7777;
/// The MTU of a tunnel with a way through a peer.
const MTU: u32 = 1360;
/// The members' keepalive towards the relay, with the value in most configuration files.
const KEEPALIVE: Duration = Duration::from_secs(25);

/// The time for which each way is shown.
const STEADY: Duration = Duration::from_millis(1_200);
/// The time to wait until the open way is used again. The protocol does not probe a dead way often.
const BACK: Duration = Duration::from_secs(4);

/// Runs the demo and prints what happened.
pub(crate) fn run() -> Result<()> {
    let nft = find_program("nft")
        .context("the routers of this demonstration need nft, which is not installed; install the package nftables")?;
    let privileged = become_privileged()?;
    introduce(privileged)?;
    runtime()?.block_on(async {
        let underlay = Underlay::new(&nft, &[RELAY]).await?;
        let mut demo = Demo::start(&underlay).await?;
        demo.show(&underlay).await?;
        demo.end().await;
        anyhow::Ok(())
    })?;
    say!("\nNothing is left behind. Next: `Endpoint = via-peer NAME` in the members' files,")?;
    say!("`Forward = on` in the relay's, and `rustguard ping NAME --until-direct`.")?;
    Ok(())
}

fn introduce(privileged: bool) -> io::Result<()> {
    let [alice, bob] = OUTSIDE;
    let how = if privileged { "" } else { "\n(inside a user namespace: no root needed)" };
    say!("Two members behind NATs, and a relay, each in its own network namespace{how}:\n")?;
    say!("{:>42} {RELAY}\n{:>40}", "relay", "│")?;
    say!("   alice ────────── router ─────── internet ─────── router ──────────── bob")?;
    say!("   {MEMBER}  {alice}{:20}{bob}  {MEMBER}\n", "")
}

/// The running devices, and what has happened so far.
struct Demo {
    members: [Device; 2],
    relay: Device,
    keys: [PublicKey; 2],
    events: [Events; 2],
    /// The way from each member to the other.
    ways: [Option<Way>; 2],
    course: Course,
}

impl Demo {
    /// Starts the devices, and waits until the members have sessions with the relay.
    async fn start(underlay: &Underlay) -> Result<Self> {
        let (secrets, relay_secret) = ([secret(), secret()], secret());
        let (keys, relay_key) = (secrets.each_ref().map(|secret| secret.public_key()), relay_secret.public_key());

        let mut builder = Device::builder().private_key(relay_secret).forward(true);
        for member in 0..2 {
            builder = builder.peer(PeerUpdate::new(keys[member]).name(NAMES[member]).allowed_ip(host(TUNNEL[member])));
        }
        let relay = start(&underlay.public[0], "relay", builder, TUNNEL_RELAY).await?;
        let mut connected = relay.events();

        let mut members = Vec::new();
        for (member, secret) in secrets.into_iter().enumerate() {
            let other = 1 - member;
            let builder = Device::builder()
                .private_key(secret)
                .peer(
                    PeerUpdate::new(relay_key)
                        .name("relay")
                        .endpoint(SocketAddr::from((RELAY, PORT)))
                        .persistent_keepalive(KEEPALIVE)
                        .allowed_ip(host(TUNNEL_RELAY)),
                )
                .peer(
                    PeerUpdate::new(keys[other])
                        .name(NAMES[other])
                        .endpoint(EndpointSpec::Peer(relay_key))
                        .allowed_ip(host(TUNNEL[other])),
                );
            members.push(start(&underlay.members[member], NAMES[member], builder, TUNNEL[member]).await?);
        }
        let Ok(members) = <[Device; 2]>::try_from(members) else { unreachable!("two members") };

        let mut waiting = keys.to_vec();
        while !waiting.is_empty() {
            let event = tokio::time::timeout(PATIENCE, connected.recv()).await;
            if let Event::HandshakeComplete { peer, .. } = event.context("the members do not reach the relay")?? {
                waiting.retain(|key| *key != peer);
            }
        }
        let echo = underlay.members[1].inside(|| socket((TUNNEL[1], SERVICE)))?;
        tokio::spawn(answer(echo));
        let socket = underlay.members[0].inside(|| socket((TUNNEL[0], 0)))?;
        socket.connect((TUNNEL[1], SERVICE)).await?;
        let events = members.each_ref().map(Device::events);
        Ok(Self { members, relay, keys, events, ways: [None; 2], course: Course::new(socket) })
    }

    /// Runs the stages of the demonstration in order, and prints what happens.
    async fn show(&mut self, underlay: &Underlay) -> Result<()> {
        let start = Instant::now();
        let answered =
            |demo: &Self| demo.course.samples().iter().find_map(|sample| Some(sample.at + sample.round_trip?));
        self.until(start, "an answer through the relay", |demo| answered(demo).is_some()).await?;
        let first = answered(self).context("no answer")? - start;
        row("relayed", Some(first), "until the first answer, handshake with bob included")?;
        self.until(start, "a direct way", Self::is_direct).await?;
        row("direct", Some(start.elapsed()), "until both send directly, from the first packet")?;
        for (name, way) in NAMES.iter().zip(self.ways) {
            if let Some(Way::Direct(address)) = way {
                row("", None, &format!("{name} sends to {address}"))?;
            }
        }
        let direct = Instant::now();
        self.wait(STEADY, |_| false).await?;
        let forwarded = self.forwarded().await?;
        let median = round_trip(self.course.samples(), DIRECT, direct, Instant::now());
        row("round trip", median, "median, directly")?;
        self.path()?;

        say!("\n  The routers lose each other's packets from now on. Nobody is told.\n")?;
        let blocked = Instant::now();
        underlay.block().await?;
        let by_relay = |demo: &Self| demo.is_relayed() && demo.course.is_answered(blocked, RELAYED);
        self.until(blocked, "traffic through the relay again", by_relay).await?;
        let relayed = Instant::now();
        let silence = silence(self.course.samples(), blocked, relayed).unwrap_or_default();
        row("silence", Some(silence), "until requests are answered again, by the relay")?;
        self.wait(STEADY, |_| false).await?;
        let median = round_trip(self.course.samples(), RELAYED, relayed, Instant::now());
        row("round trip", median, "median, through the relay")?;
        self.path()?;
        let passed = self.forwarded().await? - forwarded;
        row("", None, &format!("the relay passed {passed} datagrams on, sealed as they were"))?;

        say!("\n  The routers let each other's packets through again.\n")?;
        let open = Instant::now();
        underlay.unblock().await?;
        if self.wait(BACK, Self::is_direct).await? {
            row("direct", Some(open.elapsed()), "until both send directly again")?;
            self.wait(STEADY / 2, |_| false).await?;
        } else {
            row("direct", None, "not yet: a way that has failed is tried less often")?;
        }
        self.path()?;
        say!("\n  Echo requests of alice to bob, {} a second:\n", 1_000 / TICK.as_millis())?;
        say!("{}", time_line(self.course.samples(), &[DIRECT, RELAYED]).trim_end())?;
        Ok(())
    }

    async fn end(self) {
        let [alice, bob] = self.members;
        alice.shutdown().await;
        bob.shutdown().await;
        self.relay.shutdown().await;
    }

    fn is_direct(&self) -> bool {
        self.ways.iter().all(|way| way.is_some_and(|way| way.is_direct()))
    }

    fn is_relayed(&self) -> bool {
        self.ways.iter().all(|way| way.is_some_and(|way| !way.is_direct()))
    }

    /// The number of datagrams that the relay has forwarded.
    async fn forwarded(&self) -> Result<u64> {
        Ok(self.relay.status().await.context("the relay has ended")?.forwarded)
    }

    /// Prints the way that the first member's packets take.
    fn path(&self) -> io::Result<()> {
        let direct = self.ways[0].is_some_and(|way| way.is_direct());
        let there = if direct { "" } else { "relay → " };
        row("path", None, &format!("alice → router → {there}router → bob"))
    }

    fn happened(&mut self, member: usize, event: Result<Event, EventsError>) -> Result<()> {
        if let Event::WayChanged { peer, now, .. } = event?
            && peer == self.keys[1 - member]
        {
            self.ways[member] = Some(now);
        }
        Ok(())
    }
}

impl Going for Demo {
    async fn go_on(&mut self) -> Result<()> {
        let [alice, bob] = &mut self.events;
        let way = if self.ways[0].is_some_and(|way| way.is_direct()) { DIRECT } else { RELAYED };
        tokio::select! {
            // A request that is sent after its way has changed belongs to the new way.
            biased;
            event = alice.recv() => self.happened(0, event),
            event = bob.recv() => self.happened(1, event),
            stepped = self.course.step(way) => stepped,
        }
    }
}

/// Starts a device in a node, and brings its interface up.
async fn start(node: &Node, name: &str, builder: Builder, address: Ipv4Addr) -> Result<Device> {
    let interface = format!("wg-{name}");
    // The devices may share two cores.
    let builder = builder.listen_port(PORT).mtu(MTU).queues(NonZeroUsize::MIN);
    let device = node.inside(|| Ok(builder.start(&interface)?)).context(name.to_owned())?;
    node.links.address(&interface, address, 24).await?;
    Ok(device)
}

fn host(address: Ipv4Addr) -> ipnet::IpNet {
    std::net::IpAddr::from(address).into()
}
