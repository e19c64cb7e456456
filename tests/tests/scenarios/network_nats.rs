//! A network made by `serve` and `join`, whose members are behind routers of several kinds, with a phone that runs
//! stock WireGuard.
use anyhow::{Context as _, Result, ensure};
use rustguard_tests::{
    Host, Internet, Ip, Lab, Nat, Node, Process, Site, eventually, scenario_of_rustguard, spawn_until_ready,
};
use serde_json::Value;
use std::{
    fs,
    time::{Duration, Instant},
};

const SOON: Duration = Duration::from_secs(60);
/// The delay of packets from a site or the server.
const LINK: Duration = Duration::from_millis(20);
const SERVER: &str = "rgs";
/// The members, and the kinds of their routers.
const MEMBERS: [(&str, Nat); 6] = [
    ("kept1", Nat::PortKept),
    ("kept2", Nat::PortKept),
    ("plain1", Nat::Plain),
    ("plain2", Nat::Plain),
    ("random1", Nat::FullyRandom),
    ("random2", Nat::FullyRandom),
];

/// A server and members that have joined.
struct Members {
    internet: Internet,
    server: Host,
    members: Vec<Member>,
}

struct Member {
    name: &'static str,
    nat: Nat,
    site: Site,
    inside: String,
    process: Option<Process>,
}

impl Member {
    fn node(&self) -> &Node {
        &self.site.members[0]
    }

    fn interface(&self) -> String {
        format!("rg{}", self.name)
    }

    /// The other member's entry in `show` on this member.
    fn shown(&self, other: &Self) -> Result<Value> {
        let shown = self.node().shown(&self.interface())?;
        let own = format!("{}/32", other.inside);
        let has = |peer: &&Value| peer["allowed_ips"].as_array().is_some_and(|ips| ips.iter().any(|ip| *ip == *own));
        Ok(shown["peers"].as_array().context("peers")?.iter().find(has).cloned().unwrap_or_default())
    }

    /// Starts the tunnel again, as after a reboot.
    fn restart(&mut self, lab: &Lab) -> Result<()> {
        self.process.take().context("it runs")?.stop("KILL")?;
        let mut command = self.node().rustguard()?;
        self.process = Some(spawn_until_ready(lab, self.node(), self.name, command.args(["up", &self.interface()]))?);
        Ok(())
    }

    /// Echo requests to another member, five a second.
    fn keeps_asking(&self, other: &Self) -> Result<Process> {
        let mut ping = self.node().command("ping");
        self.node().spawn(
            &format!("{}-{}", self.name, other.name),
            ping.args(["-n", "-q", "-i", "0.2", "-W", "1", &other.inside]),
        )
    }
}

/// Whether two members find a direct path. If one end has random ports, the other would have to accept packets from
/// unknown ports. These networks have one server. Nobody else sees the mapped ports of such a member, so the member
/// cannot know that it has one per destination.
fn become_direct(one: &Member, other: &Member) -> bool {
    one.nat != Nat::FullyRandom && other.nat != Nat::FullyRandom
}

impl Members {
    fn new(lab: &Lab) -> Result<Self> {
        let mut internet = Internet::new(lab)?;
        let server = internet.host(lab, "server", Ip::V4)?;
        internet.delay("server", LINK)?;
        let mut members = Vec::new();
        for (name, nat) in MEMBERS {
            let site = internet.site(lab, name, nat, Ip::V4, 1)?;
            internet.delay(name, LINK)?;
            members.push(Member { name, nat, site, inside: String::new(), process: None });
        }
        Ok(Self { internet, server, members })
    }

    fn serve(&self, lab: &Lab) -> Result<Process> {
        let mut command = self.server.node.rustguard()?;
        command.args(["serve", "-i", SERVER, "--pool", "10.150.0.0/24", "--endpoint", &self.server.v4.to_string()]);
        spawn_until_ready(lab, &self.server.node, SERVER, &mut command)
    }

    fn ask(&self, arguments: &[&str]) -> Result<String> {
        let ended = self.server.node.end_of(self.server.node.rustguard()?.args(arguments).args(["-i", SERVER]))?;
        ensure!(ended.success(), "{arguments:?}: {ended}");
        Ok(ended.stdout)
    }

    /// All join, one after the other. Each pings the previous one at once, and must get an answer within `tries`
    /// requests.
    fn join(&mut self, lab: &Lab, tries: u32) -> Result<()> {
        let invite: Value =
            serde_json::from_str(&self.ask(&["invite", "new", "--json", "--another", "--uses", "6"])?)?;
        let token = invite["token"].as_str().context("a token")?;
        for n in 0..self.members.len() {
            let (before, member) = self.members.split_at_mut(n);
            let member = &mut member[0];
            let began = Instant::now();
            let mut command = member.node().rustguard()?;
            command.args(["join", "--token", token, "--name", member.name, "-i", &member.interface()]);
            let process = spawn_until_ready(lab, member.node(), member.name, &mut command)?;
            member.process = Some(process);
            let up = began.elapsed().as_millis();
            if let Some(before) = before.last() {
                member.node().reaches(&before.inside, tries)?;
                let answered = began.elapsed().as_millis();
                println!(
                    "{}: up {up} ms after `join` began, {} has answered after {answered} ms",
                    member.name, before.name
                );
                if become_direct(member, before) {
                    // After the first round, members look for a direct path only when there is traffic.
                    let _asking = member.keeps_asking(before)?;
                    eventually("the first direct way", SOON, || Ok(member.shown(before)?["way"] == "direct"))?;
                    println!("{}: direct after {} ms", member.name, began.elapsed().as_millis());
                }
            }
            let text = fs::read_to_string(format!("/etc/rustguard/{}.conf", member.interface()))?;
            let address = text.lines().find_map(|line| line.strip_prefix("Address = ")).context("an address")?;
            member.inside = address.split(['/', ',']).next().context("an address")?.to_owned();
        }
        Ok(())
    }

    /// Each member with each later one.
    fn pairs(&self) -> impl Iterator<Item = (&Member, &Member)> {
        let following = move |n: usize| self.members[n + 1..].iter().map(move |other| (&self.members[n], other));
        (0..self.members.len()).flat_map(following)
    }

    /// Waits until each pair that can be direct is direct, and each other pair says why it is not.
    fn until_settled(&self) -> Result<()> {
        let began = Instant::now();
        for (one, other) in self.pairs() {
            let mut last = Value::Null;
            eventually(&format!("{} and {} are as they can be", one.name, other.name), SOON, || {
                last = one.shown(other)?;
                Ok(if become_direct(one, other) {
                    last["way"] == "direct"
                } else {
                    last["not_direct"]["kind"] == "no-answer" && last["through"].is_string()
                })
            })
            .with_context(|| last.to_string())?;
            let (way, after) = (last["way"].as_str().unwrap_or_default(), began.elapsed().as_millis());
            println!("{} {}: {way} ({after} ms)", one.name, other.name);
        }
        Ok(())
    }
}

/// While nothing else happens, no packet may be lost because a member has just joined: neither at the new member nor at
/// the one that must first learn of it.
#[test]
fn the_first_request_of_who_has_joined_is_answered() {
    scenario_of_rustguard("networks", |lab| {
        let mut network = Members::new(lab)?;
        let _served = network.serve(lab)?;
        network.join(lab, 1)
    });
}

#[test]
fn every_pair_reaches_every_other_and_says_how() {
    scenario_of_rustguard("networks", |lab| {
        let mut network = Members::new(lab)?;
        let mut served = network.serve(lab)?;
        network.join(lab, 20)?;
        for (one, other) in network.pairs() {
            one.node().reaches(&other.inside, 10)?;
        }
        let asking = network.pairs().map(|(one, other)| one.keeps_asking(other)).collect::<Result<Vec<_>>>()?;
        network.until_settled()?;

        // A phone with stock WireGuard.
        let phone = network.internet.site(lab, "phone", Nat::PortKept, Ip::V4, 1)?;
        let conf = network.ask(&["peer", "add", "phone", "--conf", "-"])?;
        let address = conf.lines().find_map(|line| line.strip_prefix("Address = ")).context("an address")?;
        let inside = address.split(['/', ',']).next().context("an address")?.to_owned();
        let lines = conf.lines().filter(|line| !line.starts_with("DNS"));
        let file = lab.file("wgphone.conf", &lines.map(|line| format!("{line}\n")).collect::<String>())?;
        let mut up = phone.members[0].command("wg-quick");
        up.arg("up").arg(&file).env("WG_QUICK_USERSPACE_IMPLEMENTATION", rustguard_tests::wireguard_go()?);
        let ended = phone.members[0].end_of(&mut up)?;
        ensure!(ended.success(), "the phone does not start: {ended}");
        for member in &network.members {
            phone.members[0].reaches(&member.inside, 20)?;
            member.node().reaches(&inside, 10)?;
        }

        // The server never returns. Pairs that were direct find each other again after each restart; the others have no
        // relay.
        drop(asking);
        served.stop("KILL")?;
        for n in 0..network.members.len() {
            network.members[n].restart(lab)?;
            let one = &network.members[n];
            for other in network.members.iter().filter(|other| other.name != one.name) {
                if become_direct(one, other) {
                    one.node()
                        .reaches(&other.inside, 30)
                        .with_context(|| format!("after the restart of {}", one.name))?;
                    let shown = one.shown(other)?;
                    ensure!(shown["way"] == "direct", "{shown}");
                    println!("{} {}: again", one.name, other.name);
                }
            }
        }
        Ok(())
    });
}
