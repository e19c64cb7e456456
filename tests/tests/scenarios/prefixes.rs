//! Prefixes behind members: a network that several machines lead to.
use anyhow::{Context as _, Result, ensure};
use rustguard_tests::{
    Conf, Gaps, Host, Internet, Ip, Lab, Node, PeerConf, Streams, Tunnel, Up, eventually, network,
    scenario_of_rustguard, unfolded,
};
use serde_json::Value;
use std::time::Duration;

const SOON: Duration = Duration::from_secs(30);
/// A machine of the office, and its network.
const PRINTER: &str = "192.168.1.7";
const OFFICE: &str = "192.168.1.0/24";

/// A scenario about what only RustGuard has.
fn ours<F: FnOnce(&Lab) -> Result<()>>(body: F) {
    scenario_of_rustguard("prefixes of several peers", body);
}

/// An office with two gateways, one of which is far from the user.
///
/// ```text
///                ┌── near  10.9.0.1 ──┐
/// user 10.9.0.3 ─┤                    ├── printer 192.168.1.7
///                └── far   10.9.0.2 ──┘
/// ```
struct Office {
    internet: Internet,
    user: Node,
    /// Near and far.
    gateways: [Gateway; 2],
    printer: Node,
    conf: Conf,
}

struct Gateway {
    name: &'static str,
    host: Host,
    conf: Conf,
    /// The network between it and the printer.
    lan: u8,
}

impl Gateway {
    fn key(&self) -> &str {
        &self.conf.keys.public
    }

    fn plug_in(&self) -> Result<()> {
        let net = self.lan;
        self.host.node.sh(&format!("ip link set lan up; ip route replace {OFFICE} via 192.168.{net}.2")).map(drop)
    }
}

impl Office {
    fn new(lab: &Lab) -> Result<Self> {
        let mut internet = Internet::new(lab)?;
        let user = internet.host(lab, "user", Ip::V4)?;
        let printer = lab.node("printer")?;
        // As a router of the office: it leaves a gateway whose link is down.
        printer.sh(&format!(
            "ip addr add {PRINTER}/32 dev lo
             sysctl -qw net.ipv4.conf.all.ignore_routes_with_linkdown=1 net.ipv4.conf.default.ignore_routes_with_linkdown=1
             sysctl -qw net.ipv4.conf.all.rp_filter=0 net.ipv4.conf.default.rp_filter=0"
        ))?;
        let mut conf = Conf::new("wgu")?;
        conf.addresses = vec!["10.9.0.3/24".to_owned()];
        conf.lines = vec!["Routing = members".to_owned()];
        let mut gateway = |name: &'static str, lan: u8| -> Result<Gateway> {
            let host = internet.host(lab, name, Ip::V4)?;
            lab.link((&host.node, "lan"), (&printer, name))?;
            host.node.sh(&format!(
                "ip addr add 192.168.{lan}.1/24 dev lan
                 sysctl -qw net.ipv4.ip_forward=1 net.ipv4.conf.all.rp_filter=0 net.ipv4.conf.default.rp_filter=0"
            ))?;
            printer.sh(&format!(
                "ip addr add 192.168.{lan}.2/24 dev {name}
                 ip route add default via 192.168.{lan}.1 metric {lan}"
            ))?;
            let mut own = Conf::new(&format!("wg{name}"))?;
            own.listen_port = Some(51_820);
            let address = format!("10.9.0.{}", lan - 1);
            own.addresses = vec![format!("{address}/24")];
            own.peers.push(PeerConf::new(&conf.keys.public, "10.9.0.3/32"));
            let mut peer = PeerConf::new(&own.keys.public, &format!("{address}/32, {OFFICE}"));
            peer.endpoint = Some(host.at(51_820).to_string());
            conf.peers.push(peer);
            let gateway = Gateway { name, host, conf: own, lan };
            gateway.plug_in()?;
            Ok(gateway)
        };
        let gateways = [gateway("near", 2)?, gateway("far", 3)?];
        // The first of the file is not the one that is taken.
        conf.peers.reverse();
        // Longer than a busy machine takes for a round trip.
        internet.delay("far", Duration::from_millis(100))?;
        Ok(Self { internet, user: user.node, gateways, printer, conf })
    }

    fn start(&self, lab: &Lab) -> Result<(Vec<Tunnel>, Up)> {
        let tunnels = self
            .gateways
            .iter()
            .map(|gateway| Tunnel::start(lab, &gateway.host.node, rustguard_tests::Program::Subject, &gateway.conf));
        Ok((tunnels.collect::<Result<_>>()?, Up::start(lab, &self.user, &self.conf)?))
    }

    /// What `routes --json` of the user says about the office.
    fn route(&self) -> Result<Value> {
        let ended = self.user.end_of(self.user.rustguard()?.args(["routes", "wgu", "--json"]))?;
        let routes: Value = serde_json::from_str(&ended.stdout).with_context(|| format!("routes --json: {ended}"))?;
        let mut all = routes.as_array().context("a list")?.iter();
        all.find(|route| route["prefix"] == OFFICE).cloned().context("the route to the office")
    }

    fn until_by(&self, gateway: &Gateway) -> Result<()> {
        eventually(&format!("the office is reached by {}", gateway.name), SOON, || {
            Ok(self.route()?["next_hops"][0] == gateway.key())
        })
        .with_context(|| self.route().map(|route| route.to_string()).unwrap_or_default())
    }

    /// Cuts a gateway off, as without power.
    fn kill(&self, gateway: &Gateway) -> Result<()> {
        self.internet.unplug(gateway.name)?;
        gateway.host.node.run(&["ip", "link", "set", "lan", "down"]).map(drop)
    }

    fn revive(&self, gateway: &Gateway) -> Result<()> {
        gateway.plug_in()?;
        self.internet.plug(gateway.name)
    }
}

#[test]
fn streams_survive_the_nearer_of_two_gateways() {
    ours(|lab| {
        lab.needs("iperf3", "iperf3")?;
        let office = Office::new(lab)?;
        let _tunnels = office.start(lab)?;
        let [near, far] = &office.gateways;
        office.user.reaches(PRINTER, 20)?;
        office.until_by(near)?;
        let mut streams = Streams::start(&office.user, &office.printer, PRINTER)?;
        let mut gaps = Gaps::start(&office.user, "gaps", PRINTER)?;
        office.kill(near)?;
        office.until_by(far)?;
        streams.go_on()?;
        gaps.goes_on(20)?;
        println!("the longest silence when the nearer gateway dies is {:?}", gaps.longest());
        ensure!(!gaps.longest().is_zero(), "nothing was lost: the gateway was not in use");
        // It comes back, and the streams stay where they are.
        office.revive(near)?;
        eventually("the nearer one is known to answer again", SOON * 2, || {
            let route = office.route()?;
            let all = route["learned"].as_array().context("who has it")?;
            Ok(all.iter().any(|learned| learned["from"] == near.key() && learned["feasible"] == true))
        })?;
        let moved = gaps.longest();
        streams.go_on()?;
        ensure!(office.route()?["next_hops"][0] == far.key(), "flows were moved: {}", office.route()?);
        gaps.goes_on(20)?;
        println!("and {:?} when it comes back (with that before)", gaps.longest().max(moved));
        drop((streams, gaps));
        office.until_by(near)?;
        office.user.reaches(PRINTER, 5)
    });
}

/// Nobody sends while the gateway dies: the first packet finds out.
#[test]
fn an_idle_user_finds_the_other_gateway() {
    ours(|lab| {
        let office = Office::new(lab)?;
        let _tunnels = office.start(lab)?;
        let [near, far] = &office.gateways;
        office.user.reaches(PRINTER, 20)?;
        office.until_by(near)?;
        office.kill(near)?;
        ensure!(office.route()?["next_hops"][0] == near.key(), "nobody has asked yet");
        office.user.reaches(PRINTER, 10)?;
        office.until_by(far)
    });
}

/// A member offers the network behind it. Nobody sends there before the server's administrator has admitted it; then all do: members, the
/// server itself, and a stock peer of the server.
#[test]
fn a_network_behind_a_member_is_reached_once_it_is_admitted() {
    ours(|lab| {
        network(lab, 3, |network| {
            let served = network.serve(lab, &["--pool", "10.150.0.0/24", "--endpoint", "10.1.0.1"])?;
            let [office, laptop, phone] = &network.machines[..] else { unreachable!("three machines") };
            let printer = lab.node("printer")?;
            lab.link((office, "lan"), (&printer, "eth0"))?;
            office.sh("ip addr add 192.168.1.1/24 dev lan")?;
            // It has no route back: the office translates.
            printer.sh(&format!("ip addr add {PRINTER}/24 dev eth0"))?;
            let mut arguments = served.join_arguments();
            arguments.extend(["--name", "office", "--announce", OFFICE, "--nat"]);
            let _office = network.join(lab, 1, &arguments)?;
            let token = network.invite(&[])?;
            let _laptop = network.join(lab, 2, &["10.1.0.1", "--token", &token, "--name", "laptop"])?;
            eventually("the server says what to do", SOON, || {
                Ok(unfolded(&network.ask(&["status"])?).contains(&format!("rustguard peer allow office {OFFICE}")))
            })?;
            laptop.does_not_reach(PRINTER)?;
            network.server.does_not_reach(PRINTER)?;
            network.ask(&["peer", "allow", "office", OFFICE])?;
            laptop.reaches(PRINTER, 40)?;
            network.server.reaches(PRINTER, 10)?;
            // A phone, with the network in its file.
            let conf = network.ask(&["peer", "add", "phone", "--conf", "-"])?;
            let conf = conf.replace("AllowedIPs = ", &format!("AllowedIPs = {OFFICE}, "));
            let file = lab.file("phone.conf", &conf)?;
            ensure!(phone.wg_quick("up", &file)?.success(), "the phone does not start");
            phone.reaches(PRINTER, 20)?;
            // It is taken back.
            network.ask(&["peer", "deny", "office", OFFICE])?;
            eventually("nobody goes there", SOON, || Ok(laptop.does_not_reach(PRINTER).is_ok()))?;
            network.server.does_not_reach(PRINTER)?;
            phone.does_not_reach(PRINTER)?;
            served.stop()
        })
    });
}
