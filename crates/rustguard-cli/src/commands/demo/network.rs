//! `rustguard demo network`: two servers, and two members behind routers that translate addresses. The members talk
//! through a server, then directly; a server dies, and the direct way is blocked.
//!
//! Each machine is in its own namespaces and runs the commands that a user types, as processes of their own.

use super::{
    become_privileged,
    course::{Course, Going, TICK, round_trip, silence, time_line},
    host_socket,
    machine::{Machine, Running, peer, sessions, words},
    row, say,
    underlay::{MEMBER, OUTSIDE, PUBLIC, Underlay},
};
use crate::{process::runtime, uapi::Device};
use anyhow::{Context as _, Result, bail};
use rustguard_quick::host::find_program;
use std::{
    io,
    net::Ipv4Addr,
    time::{Duration, Instant},
};
use tokio::sync::watch;

const HUB: &str = "hub";
const BACKUP: &str = "backup";
const ALICE: &str = "alice";
const BOB: &str = "bob";
/// The ways from one member to the other, in words.
const DIRECT: &str = "direct";
const BY_HUB: &str = "by hub";
const BY_BACKUP: &str = "by backup";

/// The time for which each way is shown.
const STEADY: Duration = Duration::from_millis(1_200);

/// Runs the demo and prints what happened.
pub(crate) fn run() -> Result<()> {
    let nft = find_program("nft")
        .context("the routers of this demonstration need nft, which is not installed; install the package nftables")?;
    let privileged = become_privileged()?;
    introduce(privileged)?;
    runtime()?.block_on(async {
        let underlay = Underlay::new(&nft, &PUBLIC).await?;
        let (mut demo, first) = Demo::start(&underlay).await?;
        demo.show(&underlay, first).await
    })?;
    say!("\nNothing is left behind. Next: `rustguard serve` on a machine that others reach,")?;
    say!("and on each of them the line that it prints.")?;
    Ok(())
}

fn introduce(privileged: bool) -> io::Result<()> {
    let [alice, bob] = OUTSIDE;
    let [hub, backup] = PUBLIC;
    let how = if privileged { "" } else { "\n(inside user namespaces: no root needed)" };
    say!("Two members behind NATs, and two servers, each in its own namespaces{how}:\n")?;
    say!("{:>27} {hub}   {BACKUP} {backup}\n{:>34}{:>14}", HUB, "│", "│")?;
    say!("   alice ────────── router ─────── internet ─────── router ──────────── bob")?;
    say!("   {MEMBER}  {alice}{:20}{bob}  {MEMBER}\n", "")
}

/// The running machines, and what has happened so far.
struct Demo {
    hub: Running,
    /// The other processes end with the demonstration.
    _others: Vec<Running>,
    /// The way from each member to the other.
    ways: [watch::Receiver<&'static str>; 2],
    course: Course,
}

impl Demo {
    /// Makes the network, until its members have talked to each other. Returns when alice has begun to join.
    async fn start(underlay: &Underlay) -> Result<(Self, Instant)> {
        let [hub_at, backup_at] = PUBLIC;
        let machine = |name, node| Machine::start(name, node);
        let [hub_node, backup_node] = &underlay.public[..] else { bail!("two servers") };
        let (hub, backup) = (machine(HUB, hub_node)?, machine(BACKUP, backup_node)?);
        let (alice, bob) = (machine(ALICE, &underlay.members[0])?, machine(BOB, &underlay.members[1])?);

        let mut server = hub.run(&["serve", "--endpoint", &hub_at.to_string()]).await?;
        let join = server.line("rustguard join").await?;
        let bob_runs = bob.run(&words(&join)?).await?;
        bob.until("bob has a session with the server", |device| sessions(device) == 1).await?;

        let join = hub.ask(&["invite", "new", "--server"]).await?.replace("HOST[:PORT]", &backup_at.to_string());
        let backup_runs = backup.run(&words(&join)?).await?;
        bob.until("bob has sessions with two servers", |device| sessions(device) == 2).await?;

        let inside = bob.echo().await?;
        let join = hub.ask(&["invite", "new"]).await?;
        let joins = Instant::now();
        let alice_runs = alice.run(&words(&join)?).await?;
        alice.until("alice knows bob", |device| peer(device, BOB).is_some()).await?;
        let ways = [alice.watch(|device| way(device, BOB)).await?, bob.watch(|device| way(device, ALICE)).await?];
        let socket = underlay.members[0].inside(|| host_socket((Ipv4Addr::UNSPECIFIED, 0)))?;
        socket.connect(inside).await?;
        let others = vec![bob_runs, backup_runs, alice_runs];
        let mut demo = Self { hub: server, _others: others, ways, course: Course::new(socket) };
        let answered = |demo: &Self| demo.course.samples().iter().any(|sample| sample.round_trip.is_some());
        demo.until(joins, "an answer of bob", answered).await?;
        Ok((demo, joins))
    }

    /// Runs the stages of the demonstration in order, and prints what happens.
    async fn show(&mut self, underlay: &Underlay, joins: Instant) -> Result<()> {
        let mut answered =
            self.course.samples().iter().filter_map(|sample| Some((sample.at + sample.round_trip?, sample.way)));
        let (first, way) = answered.next().context("no answer")?;
        row("joined", Some(first - joins), &format!("from `rustguard join` to bob's first answer, {way}"))?;
        self.until(joins, "a direct way", |demo| demo.way() == DIRECT).await?;
        row("direct", Some(first.elapsed()), "from then until both send directly")?;
        let direct = Instant::now();
        self.wait(STEADY, |_| false).await?;
        let median = round_trip(self.course.samples(), DIRECT, direct, Instant::now());
        row("round trip", median, "median, directly")?;
        self.path()?;

        say!("\n  hub dies: its `serve` is killed.\n")?;
        let killed = Instant::now();
        self.hub.kill()?;
        self.wait(STEADY, |_| false).await?;
        let now = Instant::now();
        let lost = silence(self.course.samples(), killed, now).unwrap_or_default();
        let sent = self.course.samples().iter().filter(|sample| (killed..now).contains(&sample.at));
        row("silence", Some(lost), &format!("among {} requests: bob is reached as before", sent.count()))?;
        self.path()?;

        say!("\n  The routers lose each other's packets from now on. Nobody is told.\n")?;
        let blocked = Instant::now();
        underlay.block().await?;
        let by_backup = |demo: &Self| demo.way() == BY_BACKUP && demo.course.is_answered(blocked, BY_BACKUP);
        self.until(blocked, "traffic through the other server", by_backup).await?;
        let relayed = Instant::now();
        let lost = silence(self.course.samples(), blocked, relayed).unwrap_or_default();
        row("silence", Some(lost), "until requests are answered again, by backup")?;
        self.wait(STEADY, |_| false).await?;
        let median = round_trip(self.course.samples(), BY_BACKUP, relayed, Instant::now());
        row("round trip", median, "median, by backup, which cannot read them")?;
        self.path()?;
        say!("\n  Echo requests of alice to bob, {} a second:\n", 1_000 / TICK.as_millis())?;
        say!("{}", time_line(self.course.samples(), &[DIRECT, BY_HUB, BY_BACKUP]).trim_end())?;
        Ok(())
    }

    /// The way between the members: directly, if both send directly.
    fn way(&self) -> &'static str {
        let [alice, bob] = self.ways.each_ref().map(|way| *way.borrow());
        if alice == DIRECT { bob } else { alice }
    }

    /// Prints the way that packets take.
    fn path(&self) -> io::Result<()> {
        let between = match self.way() {
            BY_HUB => "hub → ",
            BY_BACKUP => "backup → ",
            _ => "",
        };
        row("path", None, &format!("alice → router → {between}router → bob"))
    }
}

impl Going for Demo {
    async fn go_on(&mut self) -> Result<()> {
        self.course.step(self.way()).await
    }
}

/// The way to a peer.
fn way(device: &Device, name: &str) -> &'static str {
    let Some(relay) = peer(device, name).and_then(|peer| peer.through) else { return DIRECT };
    let is_backup = peer(device, BACKUP).is_some_and(|backup| backup.public_key == relay);
    if is_backup { BY_BACKUP } else { BY_HUB }
}
