//! Prefixes behind members: one network that several machines can reach.
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

/// A scenario about a feature that only RustGuard has.
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
    /// The last number of the network between it and the printer.
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
        // As on a router of the office: it stops using a gateway whose link is down.
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
        // The first peer of the file is not the one in use.
        conf.peers.reverse();
        // Longer than a round trip on a busy machine.
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

    /// The office's entry in `routes --json` of the user.
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

    /// Cuts a gateway off, as a power failure does.
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
        // It returns, and the streams stay where they are.
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

/// Nobody sends while the gateway fails: the first packet must detect it.
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

/// A member offers the network behind it. Nobody sends packets there before the server's administrator has admitted it;
/// then members, the server itself, and a stock peer of the server do.
#[test]
fn a_network_behind_a_member_is_reached_once_it_is_admitted() {
    ours(|lab| {
        network(lab, 3, |network| {
            let served = network.serve(lab, &["--pool", "10.150.0.0/24", "--endpoint", "10.1.0.1"])?;
            let [office, laptop, phone] = &network.machines[..] else { unreachable!("three machines") };
            let printer = lab.node("printer")?;
            lab.link((office, "lan"), (&printer, "eth0"))?;
            office.sh("ip addr add 192.168.1.1/24 dev lan")?;
            // The printer has no route back, so the office uses NAT.
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
            // A phone whose file contains the network.
            let conf = network.ask(&["peer", "add", "phone", "--conf", "-"])?;
            let conf = conf.replace("AllowedIPs = ", &format!("AllowedIPs = {OFFICE}, "));
            let file = lab.file("phone.conf", &conf)?;
            ensure!(phone.wg_quick("up", &file)?.success(), "the phone does not start");
            phone.reaches(PRINTER, 20)?;
            // The permission is revoked.
            network.ask(&["peer", "deny", "office", OFFICE])?;
            eventually("nobody goes there", SOON, || Ok(laptop.does_not_reach(PRINTER).is_ok()))?;
            network.server.does_not_reach(PRINTER)?;
            phone.does_not_reach(PRINTER)?;
            served.stop()
        })
    });
}

/// An exit announces everything, including its own network. It remains a member, and others use it to reach the
/// Internet.
#[test]
fn an_exit_stays_in_its_network_and_leads_to_the_internet() {
    ours(|lab| {
        network(lab, 3, |network| {
            let served = network.serve(lab, &[])?;
            // 9.9.9.9 is behind the exit, and knows no address of the network.
            let (exit, internet) = (&network.machines[1], lab.node("internet")?);
            lab.link((exit, "wan"), (&internet, "wan"))?;
            exit.sh("ip addr add 192.0.2.2/24 dev wan; ip addr add 2001:db8:2::2/64 dev wan nodad
                     ip route add 9.9.9.9 via 192.0.2.9; ip -6 route add 2620:fe::9 via 2001:db8:2::9")?;
            internet.sh("ip addr add 192.0.2.9/24 dev wan; ip addr add 2001:db8:2::9/64 dev wan nodad
                         ip addr add 9.9.9.9/32 dev lo; ip addr add 2620:fe::9/128 dev lo")?;
            let token = network.invite(&["--allow", "0.0.0.0/0", "--allow", "::/0", "--default-route"])?;
            let announce = ["--announce", "0.0.0.0/0", "--announce", "::/0", "--nat"];
            let mut exit =
                network.join(lab, 2, &[&["10.2.0.1", "--token", &token, "--name", "exit"], &announce[..]].concat())?;
            let _user = network.join(lab, 1, &[&served.join_arguments()[..], &["--accept-default-route"]].concat())?;
            let other = network.invite(&[])?;
            let _other = network.join(lab, 3, &["10.3.0.1", "--token", &other, "--name", "other"])?;
            for n in 1..=3 {
                network.reaches_server(n)?;
            }
            // Members with and without the default route and the exit reach each other.
            for (from, to) in [(1_u8, 2), (2, 1), (2, 3), (3, 2), (1, 3)] {
                for address in network.addresses(to)? {
                    eventually("members reach each other", SOON, || {
                        Ok(network.machines[usize::from(from - 1)].answers(&address))
                    })
                    .with_context(|| format!("m{from} to {address} of m{to}"))?;
                }
            }
            internet.count("by_exit", "input", "ip saddr 192.0.2.2")?;
            for address in ["9.9.9.9", "2620:fe::9"] {
                network.machines[0].reaches(address, 10).context("by the exit")?;
                ensure!(!network.machines[2].answers(address), "who has not accepted it does not go by the exit");
            }
            ensure!(internet.counted("by_exit")? > 0, "under the address of the exit");
            for (n, expected) in [(1, false), (2, false), (3, true)] {
                let node = &network.machines[n - 1];
                let said = node.end_of(node.rustguard()?.args(["status", &format!("rg{n}")]))?;
                ensure!(said.success() && said.unfolded().contains("not taken") == expected, "m{n}: {said}");
            }
            // The exit fails. Traffic to the Internet must not fall back to the machine's own uplink.
            let user = &network.machines[0];
            network.server.count("own_uplink", "prerouting", "iifname to1 ip daddr 9.9.9.9")?;
            exit.signal("STOP")?;
            user.does_not_reach("9.9.9.9")?;
            ensure!(network.server.counted("own_uplink")? == 0, "past the exit, in the clear");
            exit.signal("CONT")?;
            user.reaches("9.9.9.9", 20)?;
            exit.stop("KILL")?;
            user.does_not_reach("9.9.9.9")?;
            ensure!(network.server.counted("own_uplink")? == 0, "past the exit, in the clear");
            let accept = |n: usize, what: &str| -> Result<()> {
                let node = &network.machines[n - 1];
                node.sh(&format!(
                    "sed -i '/^Accept/d; s/^\\[Interface\\]/&\\nAccept = {what}/' /etc/rustguard/rg{n}.conf"
                ))?;
                let reloaded = node.end_of(node.rustguard()?.args(["reload", &format!("rg{n}")]))?;
                ensure!(reloaded.success(), "{reloaded}");
                Ok(())
            };
            accept(1, "routes")?;
            let _ = user.run(&["ping", "-n", "-c", "1", "-W", "1", "9.9.9.9"]);
            ensure!(network.server.counted("own_uplink")? == 1, "back to the own uplink, once it is told so");
            network.reaches_server(1)?;
            // Accepted later in the file, which `status` shows. The exit has been restarted.
            let _exit = network.up(lab, 2)?;
            let late = &network.machines[2];
            accept(3, "routes, default-route")?;
            late.reaches("9.9.9.9", 10)?;
            let said = late.end_of(late.rustguard()?.args(["status", "rg3"]))?;
            ensure!(!said.unfolded().contains("not taken"), "{said}");
            Ok(())
        })
    });
}
