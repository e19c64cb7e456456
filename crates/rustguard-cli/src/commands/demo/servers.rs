//! `rustguard demo servers`: three equal servers on one store. A server dies while machines join, and then the store.
//!
//! Each machine is in its own namespaces and runs the commands that a user types, as processes of their own.

use super::{
    become_privileged,
    course::{Course, PATIENCE, silence},
    host_socket,
    machine::{Machine, Running, peer, sessions, words},
    row, say,
    underlay::{Internet, Node},
};
use crate::{
    output::{columns::WIDTH, words::wrapped},
    process::runtime,
};
use anyhow::{Context as _, Result, bail};
use rustguard_quick::host::find_program;
use std::{
    io,
    net::{Ipv4Addr, TcpStream},
    path::Path,
    time::{Duration, Instant},
};
use tokio::{sync::oneshot, task::JoinHandle, time::sleep};

const SERVERS: [&str; 3] = ["vpn1", "vpn2", "vpn3"];
const MEMBERS: [&str; 4] = ["alice", "bob", "carol", "dave"];
/// The addresses outside (RFC 5737): the servers from 1, the members from 11, and the store.
const OUTSIDE: [Ipv4Addr; 8] = [at(1), at(2), at(3), at(11), at(12), at(13), at(14), STORE];
const STORE: Ipv4Addr = at(20);
/// Where the first server keeps the store key, and where the others have their copy.
const KEY: &str = "/var/lib/rustguard/rg0/store-key";
const COPY: &str = "/etc/store-key";

/// A decision that is possible any time.
const INVITE: [&str; 3] = ["invite", "new", "--another"];
/// The time for which the network runs without its store.
const STEADY: Duration = Duration::from_millis(1_200);
/// The interval of attempts.
const AGAIN: Duration = Duration::from_millis(20);

const fn at(last: u8) -> Ipv4Addr {
    Ipv4Addr::new(198, 51, 100, last)
}

/// Runs the demo and prints what happened.
pub(crate) fn run() -> Result<()> {
    let etcd = find_program("etcd")
        .context("the store of this demonstration is etcd, which is not installed; install the package etcd-server")?;
    let privileged = become_privileged()?;
    introduce(privileged)?;
    runtime()?.block_on(async {
        let (_internet, nodes) = Internet::new(&OUTSIDE).await?;
        Demo::start(&etcd, &nodes).await?.show(&etcd, &nodes).await
    })?;
    say!("\nNothing is left behind. Next: docs/guide/when-a-machine-dies.md")?;
    Ok(())
}

fn introduce(privileged: bool) -> io::Result<()> {
    let how = if privileged { "" } else { "\n(inside user namespaces: no root needed)" };
    say!("Three servers, their store and four members, each in its own namespaces{how}:\n")?;
    let servers: Vec<_> = SERVERS.iter().zip(OUTSIDE).map(|(name, at)| format!("{name} {at}")).collect();
    say!("   {}\n   store (etcd) {STORE}\n", servers.join("   "))
}

/// The running machines.
struct Demo {
    store: Machine,
    etcd: Running,
    servers: Vec<Machine>,
    /// `rustguard serve` on each server.
    serving: Vec<Running>,
    members: Vec<Machine>,
    /// The other processes end with the demonstration.
    joined: Vec<Running>,
}

impl Demo {
    /// Starts the store and the servers, until the first one knows the others.
    async fn start(program: &Path, nodes: &[Node]) -> Result<Self> {
        let [one, two, three, members @ .., store_node] = nodes else { bail!("servers, members and a store") };
        let store = Machine::start("store", store_node)?;
        let etcd = start_store(&store, store_node, program).await?;
        let machines = |names: &[&'static str], nodes: &[&Node]| {
            names.iter().zip(nodes).map(|(name, node)| Machine::start(name, node)).collect::<Result<Vec<_>>>()
        };
        let servers = machines(&SERVERS, &[one, two, three])?;
        let members = machines(&MEMBERS, &members.iter().collect::<Vec<_>>())?;
        let address = format!("etcd://{STORE}/home?tls=off");
        let mut serving = Vec::new();
        for (server, at) in servers.iter().zip(OUTSIDE) {
            let mut words = vec!["serve", "--store", &address];
            if !serving.is_empty() {
                words.extend(["--store-key", COPY]);
                let key = servers[0].inside(|| Ok(std::fs::read(KEY)?)).await?;
                server.inside(move || Ok(std::fs::write(COPY, key)?)).await?;
            }
            let at = at.to_string();
            words.extend(["--endpoint", &at]);
            let mut running = server.run(&words).await?;
            running.line("Machines get").await?;
            serving.push(running);
        }
        let [first, others @ ..] = &SERVERS;
        let knows = move |device: &_| others.iter().all(|name| peer(device, name).is_some());
        servers[0].until(&format!("{first} knows the other servers"), knows).await?;
        Ok(Self { store, etcd, servers, serving, members, joined: Vec::new() })
    }

    /// Runs the stages of the demonstration in order, and prints what happens.
    async fn show(&mut self, program: &Path, nodes: &[Node]) -> Result<()> {
        let invite = self.servers[0].ask(&["invite", "new", "--uses", "4"]).await?;
        let invite = words(&invite)?;
        self.join(0, &invite).await?;
        self.join(1, &invite).await?;
        let echo = self.members[1].echo().await?;
        let socket = nodes[SERVERS.len()].inside(|| host_socket((Ipv4Addr::UNSPECIFIED, 0)))?;
        socket.connect(echo).await?;
        let echo = Echo::start(socket);

        say!("\n  vpn1 dies: its `serve` is killed as carol begins to join.\n")?;
        let killed = Instant::now();
        self.begin_to_join(2, &invite).await?;
        self.serving[0].kill()?;
        self.is_joined(2, killed).await?;
        self.join(3, &invite).await?;
        let began = Instant::now();
        self.servers[2].ask(&["peer", "rename", "carol", "desk"]).await?;
        self.members[0].until("alice knows carol as desk", |device| peer(device, "desk").is_some()).await?;
        row("renamed", Some(began.elapsed()), "carol is desk, and alice knows it")?;

        say!("\n  The store dies.\n")?;
        let gone = Instant::now();
        self.etcd.kill()?;
        sleep(STEADY).await;
        let began = Instant::now();
        let (done, why) = self.servers[1].answer(&INVITE).await?;
        if done || !why.contains("etcd://") {
            bail!("vpn2 did not refuse to decide without the store: {why}");
        }
        row("refused", Some(began.elapsed()), "what needs a decision, and only that:")?;
        for line in wrapped(&why, WIDTH - 4) {
            say!("    {line}")?;
        }
        say!("\n  The store comes back.\n")?;
        let back = Instant::now();
        self.etcd = start_store(&self.store, &nodes[nodes.len() - 1], program).await?;
        while !self.servers[1].quietly(&INVITE).await?.0 {
            if back.elapsed() > PATIENCE {
                bail!("vpn2 did not decide anything within {PATIENCE:?} after the store was back");
            }
            sleep(AGAIN).await;
        }
        row("decided", Some(back.elapsed()), "vpn2 makes invites again, by itself")?;

        let course = echo.stop().await?;
        let longest = |from| silence(course.samples(), from, Instant::now()).unwrap_or_default();
        let count = |from| course.samples().iter().filter(|sample| sample.at >= from).count();
        say!("\n  Echo requests of alice to bob all the while:\n")?;
        row("silence", Some(longest(killed)), &format!("the longest among {} requests", count(killed)))?;
        row("silence", Some(longest(gone)), &format!("of these without the store: {} requests", count(gone)))?;
        Ok(())
    }

    async fn join(&mut self, member: usize, invite: &[&str]) -> Result<()> {
        let began = Instant::now();
        self.begin_to_join(member, invite).await?;
        self.is_joined(member, began).await
    }

    async fn begin_to_join(&mut self, member: usize, invite: &[&str]) -> Result<()> {
        self.joined.push(self.members[member].run(invite).await?);
        Ok(())
    }

    async fn is_joined(&self, member: usize, began: Instant) -> Result<()> {
        let name = MEMBERS[member];
        let what = format!("{name} has a session with a server");
        self.members[member].until(&what, |device| sessions(device) > 0).await?;
        Ok(row("joined", Some(began.elapsed()), &format!("{name} has its tunnel"))?)
    }
}

/// Starts etcd, and waits until it listens.
async fn start_store(store: &Machine, node: &Node, program: &Path) -> Result<Running> {
    let at = format!("http://{STORE}:2379");
    let words = ["--data-dir", "/var/lib/etcd", "--listen-client-urls", &at, "--advertise-client-urls", &at];
    let running = store.start_program(Some(program), &words).await?;
    let began = Instant::now();
    while node.inside(|| Ok(TcpStream::connect((STORE, 2379))?)).is_err() {
        if began.elapsed() > PATIENCE {
            bail!("etcd did not listen within {PATIENCE:?}");
        }
        sleep(AGAIN).await;
    }
    Ok(running)
}

/// Echo requests that go on until they are stopped.
struct Echo {
    stop: oneshot::Sender<()>,
    course: JoinHandle<Result<Course>>,
}

impl Echo {
    fn start(socket: tokio::net::UdpSocket) -> Self {
        let (stop, mut stopped) = oneshot::channel();
        let course = tokio::spawn(async move {
            let mut course = Course::new(socket);
            loop {
                tokio::select! {
                    biased;
                    _ = &mut stopped => return Ok(course),
                    stepped = course.step("") => stepped?,
                }
            }
        });
        Self { stop, course }
    }

    /// The requests so far.
    async fn stop(self) -> Result<Course> {
        // It may have ended with an error.
        let _ = self.stop.send(());
        self.course.await?
    }
}
