//! Members behind routers of every kind find direct paths by themselves where there are any, and streams survive every
//! change of these paths.
use anyhow::{Context as _, Result, ensure};
use rustguard_tests::{
    Gaps, Host, Internet, Ip, Lab, Nat, PeerConf, Process, Relayed, Running, Speaker, Streams, Tunnel, eventually,
    scenario_of_rustguard,
};
use serde_json::Value;
use std::{
    fs,
    time::{Duration, Instant},
};

const SOON: Duration = Duration::from_secs(60);
/// The delay of each link between a site or relay and the core. A packet passes two of them.
const LINK: Duration = Duration::from_millis(20);

fn direct<F: FnOnce(&Lab) -> Result<()>>(body: F) {
    scenario_of_rustguard("the search for direct ways", body);
}

/// Members with streams and echo requests while their network changes.
struct Disturbed {
    relayed: Relayed,
    running: Running,
    streams: Streams,
    traffic: Gaps,
}

impl Disturbed {
    /// Starts members that look for direct paths while a block prevents them.
    fn start(lab: &Lab, mut relayed: Relayed) -> Result<Self> {
        relayed.look_for_direct_ways();
        relayed.internet.block("home", "office")?;
        let running = relayed.start(lab)?;
        relayed.until_by(Some(0))?;
        let (streams, traffic) = (relayed.streams()?, relayed.traffic()?);
        Ok(Self { relayed, running, streams, traffic })
    }

    /// Makes the change, waits with `until`, and checks that all traffic continues.
    fn outlasts(
        &mut self,
        what: &str,
        happens: impl FnOnce(&mut Relayed) -> Result<()>,
        until: impl FnOnce(&Relayed) -> Result<()>,
    ) -> Result<()> {
        self.traffic.longest_since();
        let began = Instant::now();
        happens(&mut self.relayed).with_context(|| what.to_owned())?;
        until(&self.relayed).with_context(|| what.to_owned())?;
        let settled = began.elapsed();
        self.streams.go_on().with_context(|| what.to_owned())?;
        self.traffic.goes_on(10)?;
        println!(
            "{what}: as shown {} ms later, longest gap {} ms",
            settled.as_millis(),
            self.traffic.longest_since().as_millis()
        );
        Ok(())
    }
}

/// Every change that may affect a direct path.
fn outlasts_everything(lab: &Lab, nats: [Nat; 2]) -> Result<()> {
    lab.needs("conntrack", "conntrack")?;
    let relayed = Relayed::new(lab, nats.map(|nat| (nat, Ip::V4)), 1)?;
    let mut all = Disturbed::start(lab, relayed)?;
    all.outlasts(
        "a direct way is found",
        |relayed| {
            relayed.internet.unblock("home", "office")?;
            // The next round of the search may be minutes away. A change in a member's network starts one at once.
            relayed.members[0].node.sh("ip addr add 172.16.0.1/32 dev eth0").map(drop)
        },
        Relayed::until_direct,
    )?;
    all.outlasts("blocked", |relayed| relayed.internet.block("home", "office"), |relayed| relayed.until_by(Some(0)))?;
    all.outlasts("open again", |relayed| relayed.internet.unblock("home", "office"), Relayed::until_direct)?;
    let forget = |relayed: &mut Relayed| relayed.sites.iter().try_for_each(|site| site.forget());
    all.outlasts("both routers forget", forget, Relayed::until_direct)?;
    let roam = |relayed: &mut Relayed, sites: usize| {
        let Relayed { internet, sites: all, .. } = relayed;
        all[..sites].iter_mut().try_for_each(|site| internet.move_site(site))
    };
    all.outlasts("one roams", |relayed| roam(relayed, 1), Relayed::until_direct)?;
    all.outlasts("both roam", |relayed| roam(relayed, 2), Relayed::until_direct)?;
    // These two must not affect the direct path.
    all.outlasts(
        "the relay has another address",
        |relayed| relayed.internet.move_host(&mut relayed.relays[0].0),
        Relayed::until_direct,
    )?;
    let relay = all.running.relays[0].take().context("the relay runs")?;
    all.outlasts("the relay is killed", |_| relay.crash(), Relayed::until_direct)
}

#[test]
fn streams_outlast_all_that_happens_between_routers_that_keep_ports() {
    direct(|lab| outlasts_everything(lab, [Nat::PortKept, Nat::PortKept]));
}

#[test]
fn streams_outlast_all_that_happens_between_a_full_cone_and_random_ports() {
    direct(|lab| outlasts_everything(lab, [Nat::FullCone, Nat::FullyRandom]));
}

/// The members get a direct path, and then have streams over it.
fn becomes_direct(lab: &Lab, mut relayed: Relayed) -> Result<()> {
    relayed.look_for_direct_ways();
    let _running = relayed.start(lab)?;
    // A round may fail on a machine that is slower than a router's timeout. While there is traffic, another round
    // follows.
    let _traffic = relayed.traffic()?;
    relayed.until_by(None)?;
    relayed.streams()?.go_on()?;
    relayed.until_by(None)
}

/// Neither router has a firewall: a packet from outside that arrives before the member has sent something occupies the
/// member's port on the router.
#[test]
fn routers_without_firewalls_are_passed() {
    direct(|lab| becomes_direct(lab, Relayed::new(lab, [(Nat::Plain, Ip::V4), (Nat::Plain, Ip::V4)], 1)?));
}

#[test]
fn firewalls_are_passed_over_ipv6() {
    direct(|lab| becomes_direct(lab, Relayed::new(lab, [(Nat::FullyRandom, Ip::Both), (Nat::Random, Ip::Both)], 1)?));
}

#[test]
fn members_at_one_site_find_each_other_in_its_network() {
    direct(|lab| becomes_direct(lab, Relayed::at_one_site(lab, Nat::FullyRandom, 1)?));
}

#[test]
fn members_at_one_site_find_each_other_by_hairpin() {
    direct(|lab| {
        let relayed = Relayed::at_one_site(lab, Nat::PortKept, 1)?;
        relayed.sites[0].isolate()?;
        relayed.sites[0].hairpin()?;
        becomes_direct(lab, relayed)
    });
}

/// Twenty echo requests a second: without traffic, no direct path is looked for.
fn keeps_asking(from: &Speaker, to: &Speaker) -> Result<Process> {
    let mut ping = from.node.command("ping");
    from.node.spawn(&format!("{}-{}", from.name, to.name), ping.args(["-n", "-q", "-i", "0.05", &to.inside]))
}

/// The time from the first packet for the peer through a relay until the first direct path, from the log of the
/// initiator. `None` for the log of the responder.
fn time_until_direct(lab: &Lab, this: &Speaker, peer: &Speaker) -> Result<Option<Duration>> {
    let log = fs::read_to_string(lab.path(&format!("{}.log", this.conf.interface)))?;
    Ok(time_in_log(&log, &format!("{{ peer: PublicKey({}…)", &peer.conf.keys.public[..8])))
}

fn time_in_log(log: &str, about_peer: &str) -> Option<Duration> {
    const COMPLETE: &str = "event=HandshakeComplete";
    // Before the first session, which is one with a relay, the initiation could not leave.
    let relay = log.lines().find(|line| line.contains(COMPLETE))?;
    let mut events = log.lines().filter(|line| line.contains(about_peer));
    let complete = events.find(|line| line.contains(COMPLETE))?;
    let (_, took) = complete.split_once("took: Some(")?;
    let direct = second_of_day(events.find(|line| line.contains("now: Direct("))?)?;
    let asked = second_of_day(complete)? - seconds(took.split(')').next()?)?;
    let began = asked.max(second_of_day(relay)?);
    // Across midnight, the time of day starts again at zero.
    Some(Duration::from_secs_f64((direct - began).rem_euclid(86_400.0)))
}

/// The time of a line like `2026-11-22T18:34:13.622599Z DEBUG …`.
fn second_of_day(line: &str) -> Option<f64> {
    let (time, _) = line.split_once('T')?.1.split_once('Z')?;
    time.split(':').try_fold(0.0, |sum, part| Some(sum * 60.0 + part.parse::<f64>().ok()?))
}

/// The seconds of a text like `96.646964ms` or `1.5s`.
fn seconds(text: &str) -> Option<f64> {
    match text.strip_suffix("ms") {
        Some(number) => number.parse::<f64>().ok().map(|number| number / 1e3),
        None => text.strip_suffix('s')?.parse().ok(),
    }
}

#[test]
fn the_time_is_what_the_log_says() {
    let log = "\
        2026-11-22T18:34:13.000000Z DEBUG event=HandshakeComplete { peer: PublicKey(relay000…), took: Some(1.5ms) }\n\
        2026-11-22T18:34:13.600000Z DEBUG event=HandshakeComplete { peer: PublicKey(peer0000…), took: Some(200ms) }\n\
        2026-11-22T18:34:13.850000Z DEBUG event=WayChanged { peer: PublicKey(peer0000…), before: None, now: Direct(192.0.2.1:1) }\n";
    let time = time_in_log(log, "{ peer: PublicKey(peer0000…)").map(|time| time.as_millis());
    // The start is the request, 200 ms before its handshake was complete.
    assert!(matches!(time, Some(449..=450)), "{time:?}");
    let responder = log.replace("took: Some(200ms)", "took: None");
    assert_eq!(time_in_log(&responder, "{ peer: PublicKey(peer0000…)"), None);
}

/// A kind of router: its name here, and what it does.
#[derive(Clone, Copy)]
struct Kind {
    name: &'static str,
    nat: Nat,
    ip: Ip,
}

const KINDS: [Kind; 9] = [
    Kind { name: "none", nat: Nat::None, ip: Ip::V4 },
    Kind { name: "cone", nat: Nat::FullCone, ip: Ip::V4 },
    Kind { name: "firewall", nat: Nat::Firewall, ip: Ip::V4 },
    Kind { name: "kept", nat: Nat::PortKept, ip: Ip::V4 },
    Kind { name: "plain", nat: Nat::Plain, ip: Ip::V4 },
    Kind { name: "random", nat: Nat::Random, ip: Ip::V4 },
    Kind { name: "fully", nat: Nat::FullyRandom, ip: Ip::V4 },
    Kind { name: "no-udp", nat: Nat::UdpBlocked, ip: Ip::V4 },
    Kind { name: "only-v6", nat: Nat::Firewall, ip: Ip::V6 },
];

impl Kind {
    fn maps_per_destination(self) -> bool {
        matches!(self.nat, Nat::Random | Nat::FullyRandom)
    }

    /// Why members behind these two kinds stay relayed, if they do. The other end never knows the port of a mapping per
    /// destination. It can therefore only become direct if it accepts packets from any address.
    fn stays_relayed(self, other: Self) -> Option<&'static str> {
        let lets_in_anybody = |kind: Self| matches!(kind.nat, Nat::None | Nat::FullCone);
        let cannot = |one: Self, other: Self| {
            one.nat == Nat::UdpBlocked || one.ip != other.ip || one.maps_per_destination() && !lets_in_anybody(other)
        };
        if self.maps_per_destination() && other.maps_per_destination() {
            return Some("both-map-per-destination");
        }
        (cannot(self, other) || cannot(other, self)).then_some("no-answer")
    }
}

/// Two members behind routers of each kind. All members have two relays.
struct Crowd {
    _internet: Internet,
    relays: Vec<(Host, Speaker)>,
    /// Two members by kind, in the order of [`KINDS`].
    members: Vec<[Speaker; 2]>,
}

impl Crowd {
    fn new(lab: &Lab) -> Result<Self> {
        let mut internet = Internet::new(lab)?;
        let mut relays = Relayed::hosts(lab, &mut internet, 2)?;
        for (_, relay) in &relays {
            internet.delay(&relay.name, 2 * LINK)?;
        }
        let mut members = Vec::new();
        for (kind, n) in KINDS.iter().zip(1_u8..) {
            let mut pair = Vec::new();
            for (end, name) in [(1, format!("{}-a", kind.name)), (2, format!("{}-b", kind.name))] {
                let site = internet.site(lab, &name, kind.nat, kind.ip, 1)?;
                internet.delay(&name, 2 * LINK)?;
                if kind.nat == Nat::UdpBlocked {
                    relays.iter().try_for_each(|(host, _)| site.admit(host))?;
                }
                let mut member =
                    Speaker::new(&name, site.members[0].clone(), &format!("10.9.{}.{n}", end + 1), 51_000)?;
                member.asks_relays(&mut relays, kind.ip == Ip::V6);
                pair.push(member);
            }
            members.push(pair.try_into().expect("two"));
        }
        let mut crowd = Self { _internet: internet, relays, members };
        for (a, b) in pairs() {
            let (to_a, to_b) = (crowd.members[a][0].peer(), crowd.members[b][1].peer());
            let through =
                |peer: PeerConf| PeerConf { endpoint: Some("via-peer relay1, via-peer relay2".to_owned()), ..peer };
            crowd.members[a][0].conf.peers.push(through(to_b));
            crowd.members[b][1].conf.peers.push(through(to_a));
        }
        Ok(crowd)
    }

    fn start(&self, lab: &Lab) -> Result<Vec<Tunnel>> {
        let relays = || self.relays.iter().map(|(_, relay)| relay);
        let all = relays().chain(self.members.iter().flatten());
        let tunnels = all.map(|speaker| speaker.start(lab)).collect::<Result<_>>()?;
        // A handshake through a relay that has no session with the other end yet is lost, and the next one follows five
        // seconds later.
        for relay in relays() {
            eventually(&format!("{} has a session with everybody", relay.name), SOON, || {
                let shown = relay.node.shown(&relay.conf.interface)?;
                let mut peers = shown["peers"].as_array().context("a list of peers")?.iter();
                Ok(peers.all(|peer| peer["connection"]["state"] == "online"))
            })?;
        }
        Ok(tunnels)
    }
}

/// Each kind with itself, and with each later kind.
fn pairs() -> impl Iterator<Item = (usize, usize)> {
    (0..KINDS.len()).flat_map(|a| (a..KINDS.len()).map(move |b| (a, b)))
}

/// The table of docs/routing.md: which pairs become direct, after how long, and why the others do not.
#[test]
fn routers_of_each_kind_with_each() {
    direct(|lab| {
        let crowd = Crowd::new(lab)?;
        let _tunnels = crowd.start(lab)?;
        let mut relayed = Vec::new();
        for (a, b) in pairs() {
            let (from, to) = (&crowd.members[a][0], &crowd.members[b][1]);
            let ping = keeps_asking(from, to)?;
            if let Some(why) = KINDS[a].stays_relayed(KINDS[b]) {
                relayed.push((from, to, why, ping));
                continue;
            }
            let mut last = Value::Null;
            eventually(&format!("{} reaches {} directly", from.name, to.name), SOON, || {
                last = from.shown_peer(to)?;
                Ok(last["endpoint"].is_string())
            })
            .with_context(|| last.to_string())?;
            from.node.reaches(&to.inside, 5)?;
            let time = time_until_direct(lab, from, to)?.or(time_until_direct(lab, to, from)?);
            println!(
                "{} {}: direct after {} ms",
                from.name,
                to.name,
                time.map_or_else(|| "?".to_owned(), |time| time.as_millis().to_string())
            );
        }
        for (from, to, why, ping) in &mut relayed {
            let mut last = Value::Null;
            ping.until("it stays relayed, and says why", SOON, || {
                last = from.shown_peer(to)?;
                Ok(last["not_direct"]["kind"] == *why)
            })
            .with_context(|| format!("{} {}: {last}", from.name, to.name))?;
            ensure!(last["through"].is_string() && last["connection"]["state"] == "online", "{last}");
            println!("{} {}: {}", from.name, to.name, last["not_direct"]["text"]);
        }
        Ok(())
    });
}
