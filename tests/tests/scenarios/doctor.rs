//! `rustguard doctor` on a healthy set-up, and on broken ones, whose fault it must name.
use anyhow::{Context as _, Result, ensure};
use rustguard_tests::{
    Ended, HUB_B, Hub, Keypair, Lab, Node, Outside, Pair, PeerConf, Program, Tunnel, Up, eventually, network,
    scenario_of_rustguard,
};
use serde_json::Value;
use std::{process::Command, time::Duration};

const SOON: Duration = Duration::from_secs(20);

/// The findings of one run.
struct Report {
    ended: Ended,
    findings: Vec<Value>,
}

impl Report {
    fn of(command: &mut Command) -> Result<Self> {
        let ended = Ended::of(command)?;
        let json: Value = serde_json::from_str(&ended.stdout).with_context(|| ended.to_string())?;
        let sections = json["sections"].as_array().context("sections")?;
        let findings =
            sections.iter().filter_map(|section| section["findings"].as_array()).flatten().cloned().collect();
        Ok(Self { ended, findings })
    }

    /// Checks that `check` has a finding with this verdict and with the words in its text or remedy, that all findings
    /// with the verdict have a remedy where one is needed, and the exit status.
    fn names(&self, verdict: &str, check: &str, words: &[&str]) -> Result<()> {
        let found: Vec<_> = self.findings.iter().filter(|finding| finding["verdict"] == verdict).collect();
        let status = i32::from(self.findings.iter().any(|finding| finding["verdict"] == "wrong"));
        ensure!(self.ended.status.code() == Some(status), "the status should be {status}: {}", self.ended);
        let fits = |finding: &&&Value| {
            let text = format!("{} {}", finding["text"], finding["remedy"]);
            finding["check"] == check && words.iter().all(|word| text.contains(word))
        };
        ensure!(found.iter().any(|finding| fits(&finding)), "no {verdict} {check} with {words:?}: {}", self.ended);
        // The texts of these checks contain the remedy.
        let has_remedy = |finding: &&&Value| {
            ["warning", "wrong"].contains(&verdict)
                && !["peers", "gateway"].iter().any(|check| finding["check"] == *check)
        };
        for finding in found.iter().filter(has_remedy) {
            ensure!(finding["remedy"].is_string(), "without a remedy: {finding}");
        }
        Ok(())
    }

    /// Checks that only these checks are wrong.
    fn only(&self, checks: &[&str]) -> Result<()> {
        for finding in self.findings.iter().filter(|finding| finding["verdict"] == "wrong") {
            ensure!(checks.iter().any(|check| finding["check"] == *check), "wrong as well: {finding}");
        }
        Ok(())
    }
}

/// `rustguard doctor --json TARGET` on a node.
fn doctor(node: &Node, target: &str) -> Result<Report> {
    Report::of(node.rustguard()?.args(["doctor", "--json", target]))
}

/// Two tunnels that work, and the file of the first.
fn healthy(lab: &Lab) -> Result<(Pair, Up, Tunnel, String)> {
    with(lab, |_| {})
}

fn with(lab: &Lab, change: impl FnOnce(&mut Pair)) -> Result<(Pair, Up, Tunnel, String)> {
    let mut pair = Pair::new(lab, Outside::V4)?;
    change(&mut pair);
    let b = Tunnel::start(lab, &pair.b, Program::Reference, &pair.conf_b)?;
    let a = Up::start(lab, &pair.a, &pair.conf_a)?;
    pair.a.reaches("10.9.0.2", 10)?;
    let file = lab.path("wga.conf").display().to_string();
    Ok((pair, a, b, file))
}

/// A scenario with two working tunnels, one of which a script then breaks.
fn broken(lab: &Lab, script: &str, verdict: &str, check: &str, words: &[&str]) -> Result<()> {
    let (pair, _a, _b, file) = healthy(lab)?;
    pair.a.sh(script)?;
    let report = doctor(&pair.a, &file)?;
    report.names(verdict, check, words)?;
    report.only(&[check])
}

#[test]
fn nothing_is_wrong_with_a_healthy_tunnel() {
    scenario_of_rustguard("doctor", |lab| {
        let (pair, _a, _b, file) = healthy(lab)?;
        let ended = Ended::of(pair.a.rustguard()?.args(["doctor", "--strict", &file]))?;
        ensure!(ended.success() && ended.stdout.ends_with("nothing is wrong\n"), "{ended}");
        for line in ended.stdout.lines() {
            ensure!(line.chars().count() <= 80, "too wide: {line}");
        }
        // Without a target, all running tunnels are checked: both are in this scenario's /run, one of them in another
        // namespace.
        let report = Report::of(pair.a.rustguard()?.args(["doctor", "--json"]))?;
        report.names("wrong", "interface", &["wgb", "namespace"])
    });
}

#[test]
fn a_default_route_is_healthy_too() {
    scenario_of_rustguard("doctor", |lab| {
        let (pair, _a, _b, file) = with(lab, |pair| pair.conf_a.peers[0].allowed_ips = "0.0.0.0/0, ::/0".to_owned())?;
        let ended = Ended::of(pair.a.rustguard()?.args(["doctor", "--strict", &file]))?;
        ensure!(ended.success(), "{ended}");
        // Without the policy rules, packets use the old default route.
        pair.a.sh("ip rule flush; ip rule add lookup main pref 32766; ip rule add lookup default pref 32767")?;
        let report = doctor(&pair.a, &file)?;
        report.names("wrong", "routes", &["0.0.0.0/0", "eth0"])
    });
}

#[test]
fn an_interface_that_is_down() {
    scenario_of_rustguard("doctor", |lab| {
        broken(lab, "ip link set wga down", "wrong", "interface", &["down", "ip link set wga up"])
    });
}

#[test]
fn an_address_that_was_removed() {
    scenario_of_rustguard("doctor", |lab| {
        broken(
            lab,
            "ip addr del 10.9.0.1/24 dev wga; ip route add 10.9.0.2 dev wga",
            "wrong",
            "addresses",
            &["10.9.0.1"],
        )
    });
}

#[test]
fn a_route_that_shadows_the_tunnel() {
    scenario_of_rustguard("doctor", |lab| {
        broken(lab, "ip route add 10.9.0.2/32 via 10.1.0.1", "wrong", "routes", &["10.9.0.2/32", "eth0"])
    });
}

#[test]
fn a_rule_that_shadows_the_tunnel() {
    scenario_of_rustguard("doctor", |lab| {
        broken(
            lab,
            "ip rule add to 10.9.0.0/24 lookup 99; ip route add default via 10.1.0.1 table 99",
            "wrong",
            "routes",
            &["10.9.0.2/32", "eth0", "ip rule"],
        )
    });
}

#[test]
fn no_route_to_the_endpoint() {
    scenario_of_rustguard("doctor", |lab| {
        broken(lab, "ip route del default", "wrong", "endpoint-route", &["10.2.0.2:51802", "unreachable"])
    });
}

#[test]
fn an_endpoint_inside_the_tunnel() {
    scenario_of_rustguard("doctor", |lab| {
        broken(lab, "ip route add 10.2.0.2/32 dev wga", "wrong", "endpoint-route", &["10.2.0.2:51802", "wga itself"])
    });
}

#[test]
fn a_firewall_that_admits_no_peer() {
    scenario_of_rustguard("doctor", |lab| {
        let (pair, _a, _b, file) = healthy(lab)?;
        pair.a.sh("nft add table inet strict
                   nft add chain inet strict input '{ type filter hook input priority 0; policy drop; }'
                   nft add rule inet strict input ct state established,related accept
                   nft add rule inet strict input tcp dport 22 accept")?;
        let report = doctor(&pair.a, &file)?;
        report.names("warning", "firewall", &["51801", "inet strict input"])?;
        report.only(&[])?;
        // The remedy works as it is printed.
        pair.a.sh("nft insert rule inet strict input udp dport 51801 accept")?;
        doctor(&pair.a, &file)?.names("fine", "firewall", &["51801"])?;
        let ended = Ended::of(pair.a.rustguard()?.args(["doctor", "--strict", &file]))?;
        ensure!(ended.success(), "{ended}");
        Ok(())
    });
}

/// `nft` does not show the rules of legacy iptables, but the kernel applies them.
#[test]
fn a_firewall_of_the_older_iptables() {
    scenario_of_rustguard("doctor", |lab| {
        let (pair, _a, _b, file) = healthy(lab)?;
        lab.needs("iptables-legacy", "iptables")?;
        doctor(&pair.a, &file)?.names("fine", "firewall", &["51801"])?;
        pair.a.sh("iptables-legacy -P INPUT DROP; iptables-legacy -A INPUT -p tcp --dport 22 -j ACCEPT
                   iptables-legacy -A INPUT -m conntrack --ctstate RELATED,ESTABLISHED -j ACCEPT")?;
        let report = doctor(&pair.a, &file)?;
        report.names("warning", "firewall", &["51801", "INPUT of iptables-legacy"])?;
        report.only(&[])?;
        pair.a.sh("iptables-legacy -I INPUT -p udp --dport 51801 -j ACCEPT")?;
        doctor(&pair.a, &file)?.names("fine", "firewall", &["51801"])
    });
}

/// A home network with the same addresses as the network at work: the route with the better metric takes the traffic of
/// both.
#[test]
fn an_own_network_that_the_tunnel_takes() {
    scenario_of_rustguard("doctor", |lab| {
        broken(
            lab,
            "ip link add lan type veth peer name there; ip link set lan up; ip link set there up; ip addr add 192.168.7.5/24 dev lan noprefixroute
             ip route add 192.168.7.0/24 dev lan metric 100; ip route add 192.168.7.0/24 dev wga",
            "warning",
            "routes",
            &["192.168.7.0/24", "network of lan", "AllowedIPs"],
        )
    });
}

/// A disk was copied: both machines have the same key, and each takes over the other's sessions. `doctor` on their peer
/// reports it.
#[test]
fn two_machines_with_one_key() {
    scenario_of_rustguard("doctor", |lab| {
        let mut hub = Hub::new(lab)?;
        (hub.conf_c.keys, hub.conf_c.addresses) = (hub.conf_a.keys.clone(), hub.conf_a.addresses.clone());
        hub.conf_b.peers.truncate(1);
        hub.conf_b.peers[0].endpoint = None;
        let (_b, _a, _c) = hub.start(lab, Program::Reference, &[])?;
        let asks = |twin: &Node| twin.spawn("ping", twin.command("ping").args(["-n", "-q", "-i", "0.2", HUB_B[0]]));
        let _asking = [asks(&hub.a)?, asks(&hub.c)?];
        eventually("a finding", SOON, || {
            let words = ["two machines have one key", "10.1.0.2", "10.3.0.2"];
            Ok(doctor(&hub.b, "wgb")?.names("wrong", "peers", &words).is_ok())
        })?;
        let peer = hub.b.shown("wgb")?["peers"][0].clone();
        ensure!(peer["problem"]["kind"] == "two-places", "{peer:#}");
        Ok(())
    });
}

#[test]
fn an_mtu_that_is_too_large() {
    scenario_of_rustguard("doctor", |lab| {
        broken(lab, "ip link set wga mtu 1500", "warning", "mtu", &["1500", "1440", "eth0"])
    });
}

/// The MTU must fit two layers of WireGuard, and the relay's own settings cannot be checked from here.
#[test]
fn a_way_through_a_peer() {
    scenario_of_rustguard("doctor", |lab| {
        let through = |pair: &mut Pair| {
            let mut far = PeerConf::new(&Keypair::generate().expect("wg makes keys").public, "10.9.0.3/32");
            far.endpoint = Some(format!("via-peer {}", pair.conf_b.keys.public));
            pair.conf_a.peers.push(far);
            pair.conf_a.lines.push("Forward = on".to_owned());
        };
        let (pair, _a, _b, file) = with(lab, through)?;
        let report = doctor(&pair.a, &file)?;
        report.names("fine", "mtu", &["the MTU of 1360 bytes", "second layer through a peer"])?;
        report.names("unknown", "relays", &["its file needs `Forward = on`"])?;
        report.names("fine", "relays", &["between its peers: 0 so far"])?;
        report.only(&["peers"])?;
        pair.a.sh("ip link set wga mtu 1420")?;
        doctor(&pair.a, &file)?.names("warning", "mtu", &["1384 bytes only", "MTU = 1360"])
    });
}

#[test]
fn an_endpoint_whose_name_is_unknown() {
    scenario_of_rustguard("doctor", |lab| {
        let mut pair = Pair::new(lab, Outside::V4)?;
        pair.conf_a.peers[0].endpoint = Some("vpn.invalid:51802".to_owned());
        let _a = Up::start(lab, &pair.a, &pair.conf_a)?;
        let file = lab.path("wga.conf").display().to_string();
        let report = doctor(&pair.a, &file)?;
        report.names("wrong", "names", &["vpn.invalid:51802", "resolv.conf"])?;
        report.only(&["names"])?;
        // The resolver's answer reaches the tunnel itself a moment later; this must not become a second finding.
        eventually("the name has one finding", SOON, || {
            Ok(!doctor(&pair.a, &file)?.findings.iter().any(|finding| finding["check"] == "peers"))
        })
    });
}

#[test]
fn a_name_server_that_is_silent() {
    scenario_of_rustguard("doctor", |lab| {
        let (pair, a, _b, file) = healthy(lab)?;
        // The file names a server behind the tunnel, and no DNS server listens there.
        let text = std::fs::read_to_string(&file)?.replacen("[Interface]", "[Interface]\nDNS = 10.9.0.2", 1);
        std::fs::write(&file, text)?;
        let report = doctor(&pair.a, &file)?;
        report.names("warning", "name-server", &["10.9.0.2"])?;
        report.only(&[])?;
        drop(a);
        Ok(())
    });
}

#[test]
fn a_file_that_was_edited_and_not_taken_over() {
    scenario_of_rustguard("doctor", |lab| {
        let (pair, _a, _b, file) = healthy(lab)?;
        let text = std::fs::read_to_string(&file)? + "PersistentKeepalive = 25\n";
        std::fs::write(&file, text)?;
        // The name is enough: the running tunnel knows its file.
        let report = doctor(&pair.a, "wga")?;
        report.names("warning", "file", &["changed", "rustguard reload wga"])?;
        report.only(&[])?;
        pair.a.run(&[&rustguard_tests::rustguard()?.display().to_string(), "reload", "wga"])?;
        let ended = Ended::of(pair.a.rustguard()?.args(["doctor", "--strict", "wga"]))?;
        ensure!(ended.success(), "{ended}");
        Ok(())
    });
}

#[test]
fn a_file_with_a_mistake() {
    scenario_of_rustguard("doctor", |lab| {
        let (pair, _a, _b, file) = healthy(lab)?;
        let text = std::fs::read_to_string(&file)?.replacen("AllowedIPs", "AlowedIPs", 1);
        std::fs::write(&file, text)?;
        let report = doctor(&pair.a, &file)?;
        report.names("wrong", "file", &["AlowedIPs", "AllowedIPs", "line"])
    });
}

#[test]
fn a_tunnel_that_is_not_up_or_not_there() {
    scenario_of_rustguard("doctor", |lab| {
        let (pair, a, _b, file) = healthy(lab)?;
        a.down()?;
        doctor(&pair.a, &file)?.names("wrong", "process", &["not up", &format!("rustguard up {file}")])?;
        doctor(&pair.a, "no-such")?.names("wrong", "process", &["no tunnel no-such"])?;
        let ended = Ended::of(pair.a.rustguard()?.args(["doctor", "a/name that is none"]))?;
        ended.refused(&["not an interface name"])
    });
}

#[test]
fn a_tunnel_that_was_killed() {
    scenario_of_rustguard("doctor", |lab| {
        let (pair, mut a, _b, file) =
            with(lab, |pair| pair.conf_a.peers[0].allowed_ips = "0.0.0.0/0, ::/0".to_owned())?;
        a.process()?.signal("KILL")?;
        a.process()?.ended(Duration::from_secs(10))?;
        let report = doctor(&pair.a, &file)?;
        report.names("warning", "killed-tunnel", &["wga", "rustguard down wga"])?;
        report.only(&["process"])
    });
}

#[test]
fn a_peer_that_nobody_reaches() {
    scenario_of_rustguard("doctor", |lab| {
        let pair = Pair::new(lab, Outside::V4)?;
        let _a = Up::start(lab, &pair.a, &pair.conf_a)?;
        let file = lab.path("wga.conf").display().to_string();
        // Directly after the start, nothing is wrong yet.
        let report = doctor(&pair.a, &file)?;
        report.names("unknown", "peers", &["has not answered yet", "10.2.0.2:51802"])?;
        report.only(&[])?;
        eventually("the cause is known", Duration::from_secs(40), || {
            let report = doctor(&pair.a, &file)?;
            Ok(report.names("wrong", "peers", &["51802", "10.2.0.2"]).and_then(|()| report.only(&["peers"])).is_ok())
        })
    });
}

#[test]
fn a_hub_that_does_not_forward() {
    scenario_of_rustguard("doctor", |lab| {
        let (pair, _a, _b, file) = with(lab, |pair| {
            let mut third = pair.conf_a.peers[0].clone();
            third.public_key = Keypair::generate().expect("wg genkey").public;
            (third.allowed_ips, third.endpoint) = ("10.9.0.3/32".to_owned(), None);
            pair.conf_a.peers.push(third);
        })?;
        let report = doctor(&pair.a, &file)?;
        report.names("warning", "forwarding", &["IPv4", "sysctl -w net.ipv4.ip_forward=1"])?;
        report.only(&[])
    });
}

/// A `serve` with a full pool, a private endpoint, and a route to a network that it does not forward to.
#[test]
fn a_server_that_nobody_gets_beyond() {
    scenario_of_rustguard("doctor", |lab| {
        network(lab, 1, |network| {
            let served = network.serve(lab, &["--pool", "10.60.0.0/30", "--route", "10.1.0.0/24"])?;
            network.ask(&["peer", "add", "laptop", "--conf", "-"])?;
            let report = doctor(&network.server, "rgs")?;
            report.names("warning", "pool", &["10.60.0.0/30", "full"])?;
            report.names("wrong", "gateway", &["IPv4", "sysctl -w net.ipv4.ip_forward=1"])?;
            report.names("unknown", "endpoint", &["10.1.0.1:51820", "--endpoint"])?;
            report.only(&["gateway"])?;
            served.stop()
        })
    });
}

#[test]
fn a_machine_without_the_tun_driver() {
    scenario_of_rustguard("doctor", |lab| {
        let (pair, _a, _b, file) = healthy(lab)?;
        // `ip netns exec` uses its own mount namespace, so both commands must run in one shell.
        let mut command = pair.a.command("sh");
        command.args(["-c", "mount -t tmpfs tmpfs /dev/net; exec \"$0\" doctor --json \"$1\""]);
        let report = Report::of(command.arg(rustguard_tests::rustguard()?).arg(&file))?;
        report.names("wrong", "tun", &["/dev/net/tun", "modprobe tun"])?;
        report.only(&["tun"])
    });
}

#[test]
fn a_user_without_permission() {
    scenario_of_rustguard("doctor", |lab| {
        let (pair, _a, _b, file) = healthy(lab)?;
        let mut command = pair.a.command("setpriv");
        command.args(["--reuid", "65534", "--regid", "65534", "--clear-groups"]);
        command.arg(rustguard_tests::rustguard()?).args(["doctor", "--json", &file]);
        let report = Report::of(&mut command)?;
        report.names("wrong", "permission", &["sudo rustguard doctor"])?;
        report.names("unknown", "process", &["as root"])?;
        report.only(&["permission", "tun"])?;
        let killed = report.findings.iter().find(|finding| finding["check"] == "killed-tunnel");
        ensure!(killed.is_none(), "{killed:?}");
        Ok(())
    });
}

/// An endpoint with a link-local address: every lookup needs its interface.
#[test]
fn an_endpoint_of_one_link() {
    scenario_of_rustguard("doctor", |lab| {
        let mut pair = Pair::new(lab, Outside::V6)?;
        lab.link((&pair.a, "wan0"), (&pair.b, "wan0"))?;
        pair.b.sh("ip addr add fe80::b/64 dev wan0 nodad")?;
        pair.conf_a.peers[0].endpoint = Some("[fe80::b%wan0]:51802".to_owned());
        let (_a, _b) = (Up::start(lab, &pair.a, &pair.conf_a)?, Up::start(lab, &pair.b, &pair.conf_b)?);
        pair.a.reaches("10.9.0.2", 10)?;
        let report = doctor(&pair.a, "wga")?;
        report.names("fine", "names", &["[fe80::b%wan0]:51802"])?;
        report.names("fine", "endpoint-route", &[])?;
        report.names("fine", "mtu", &[])?;
        report.only(&[])?;
        pair.a.sh("ip link set wan0 down")?;
        doctor(&pair.a, "wga")?.names("wrong", "endpoint-route", &["[fe80::b%wan0]:51802"])?;
        pair.a.sh("ip link del wan0")?;
        doctor(&pair.a, "wga")?.names("wrong", "names", &["[fe80::b%wan0]:51802", "interface"])
    });
}

#[test]
fn ipv6_that_is_off() {
    scenario_of_rustguard("doctor", |lab| {
        let (pair, a, _b, file) = healthy(lab)?;
        pair.a.sh("sysctl -qw net.ipv6.conf.wga.disable_ipv6=1")?;
        let report = doctor(&pair.a, &file)?;
        report.names("wrong", "ipv6", &["fd09::1", "net.ipv6.conf.wga.disable_ipv6=0"])?;
        report.only(&["ipv6", "routes"])?;
        a.down()?;
        doctor(&pair.a, &file)?.only(&["process"])?;
        pair.a.sh("sysctl -qw net.ipv6.conf.all.disable_ipv6=1 net.ipv6.conf.default.disable_ipv6=1")?;
        let report = doctor(&pair.a, &file)?;
        report.names("wrong", "ipv6", &["fd09::", "cannot start"])?;
        report.only(&["ipv6", "process"])
    });
}

#[test]
fn a_clock_that_is_behind() {
    scenario_of_rustguard("doctor", |lab| {
        let (pair, _a, _b, file) = healthy(lab)?;
        // A program file with a modification time in the future looks like a clock that was set back.
        let program = lab.path("rustguard");
        std::fs::copy(rustguard_tests::rustguard()?, &program)?;
        let hour = Duration::from_secs(3600);
        std::fs::File::options().append(true).open(&program)?.set_modified(std::time::SystemTime::now() + hour)?;
        let report = Report::of(pair.a.command(&program).args(["doctor", "--json", &file]))?;
        report.names("wrong", "clock", &["behind", "timedatectl"])?;
        report.only(&["clock"])
    });
}

#[test]
fn a_program_that_was_replaced() {
    scenario_of_rustguard("doctor", |lab| {
        let pair = Pair::new(lab, Outside::V4)?;
        let program = lab.path("rustguard");
        std::fs::copy(rustguard_tests::rustguard()?, &program)?;
        let file = lab.file("wga.conf", &pair.conf_a.wg_quick())?;
        let mut command = pair.a.command(&program);
        let _a = rustguard_tests::spawn_until_ready(lab, &pair.a, "wga", command.arg("up").arg(&file))?;
        std::fs::remove_file(&program)?;
        let report = doctor(&pair.a, &file.display().to_string())?;
        report.names("warning", "version", &["replaced", "rustguard down wga"])
    });
}

/// A set-up: its name, a script for the machines, and its changes to the two configuration files.
type SetUp = (&'static str, &'static str, fn(&mut Pair));

const SET_UPS: &[SetUp] = &[
    ("IPv6 outside", "", |pair| pair.conf_a.peers[0].endpoint = Some("[fd02::2]:51802".to_owned())),
    ("any port", "", |pair| pair.conf_a.listen_port = None),
    ("a preshared key", "", |pair| {
        let key = Some(Keypair::generate().expect("wg genkey").private);
        pair.conf_a.peers[0].preshared_key.clone_from(&key);
        pair.conf_b.peers[0].preshared_key = key;
    }),
    ("a laptop", "", |pair| pair.conf_a.peers[0].persistent_keepalive = Some(25)),
    ("everything of IPv4", "", |pair| pair.conf_a.peers[0].allowed_ips = "0.0.0.0/0".to_owned()),
    ("everything in halves", "", |pair| {
        pair.conf_a.peers[0].allowed_ips = "0.0.0.0/1, 128.0.0.0/1, ::/1, 8000::/1".to_owned();
        // As with wg-quick, two half routes also cover the endpoint.
        pair.conf_a.lines = vec!["PreUp = ip route replace 10.2.0.2/32 via 10.1.0.1".to_owned()];
    }),
    ("everything, and a strict filter of reverse paths", "sysctl -qw net.ipv4.conf.all.rp_filter=1", |pair| {
        pair.conf_a.peers[0].allowed_ips = "0.0.0.0/0, ::/0".to_owned();
    }),
    ("IPv4 alone", "", |pair| {
        pair.conf_a.addresses.pop();
        pair.conf_a.peers[0].allowed_ips = "10.9.0.2/32".to_owned();
    }),
    ("addresses without a network", "", |pair| {
        pair.conf_a.addresses = vec!["10.9.0.1/32".to_owned(), "fd09::1/128".to_owned()];
        pair.conf_a.peers[0].allowed_ips = "10.9.0.0/24, fd09::/64".to_owned();
    }),
    ("a network behind the other side", "", |pair| {
        pair.conf_a.peers[0].allowed_ips += ", 192.168.50.0/24";
    }),
    ("a table of its own", "", |pair| {
        pair.conf_a.lines = vec!["Table = 77".to_owned(), "PostUp = ip rule add lookup 77 pref 77".to_owned()];
    }),
    ("own routes", "", |pair| {
        pair.conf_a.lines = vec!["Table = off".to_owned(), "PostUp = ip route add 10.99.0.0/16 dev %i".to_owned()];
    }),
    ("a mark", "", |pair| pair.conf_a.lines = vec!["FwMark = 0x51820".to_owned()]),
    ("a smaller MTU", "", |pair| pair.conf_a.lines = vec!["MTU = 1280".to_owned()]),
    ("a file that is saved at the end", "", |pair| pair.conf_a.lines = vec!["SaveConfig = true".to_owned()]),
    ("an address to listen at", "", |pair| pair.conf_a.lines = vec!["ListenAddress = 10.1.0.2".to_owned()]),
    ("several endpoints", "", |pair| {
        pair.conf_a.peers[0].endpoint = Some("10.2.0.2:51802, [fd02::2]:51802".to_owned());
    }),
    ("a hub, and a phone that was never seen", "sysctl -qw net.ipv4.ip_forward=1 net.ipv6.conf.all.forwarding=1", |pair| {
        let mut phone = PeerConf::new(&Keypair::generate().expect("wg genkey").public, "10.9.0.3/32, fd09::3/128");
        phone.lines = vec!["# Name = phone".to_owned()];
        pair.conf_b.peers.push(phone);
    }),
    ("a firewall with a rule for the port", "nft 'add table inet fw; add chain inet fw in { type filter hook input priority 0; policy drop; }'
        nft 'add rule inet fw in ct state established,related accept; add rule inet fw in udp dport { 51801, 51802 } accept'
        nft 'add rule inet fw in iifname { wga, wgb } accept; add rule inet fw in meta l4proto ipv6-icmp accept'", |_| {}),
    ("routers of a mesh", "", |pair| {
        for conf in [&mut pair.conf_a, &mut pair.conf_b] {
            conf.lines = vec!["Routing = babel".to_owned()];
        }
    }),
    ("direct paths and parities", "", |pair| {
        for conf in [&mut pair.conf_a, &mut pair.conf_b] {
            conf.peers[0].lines = vec!["Direct = on".to_owned(), "Parity = 7".to_owned()];
        }
    }),
];

/// `--strict` is only useful if a healthy set-up has no findings.
#[test]
fn set_ups_without_a_mistake_have_nothing_to_say() {
    scenario_of_rustguard("doctor", |lab| {
        for (n, (name, script, change)) in SET_UPS.iter().enumerate() {
            let mut pair = Pair::named(lab, Outside::V4, &n.to_string())?;
            change(&mut pair);
            pair.a.sh(script)?;
            pair.b.sh(script)?;
            let b = Up::start(lab, &pair.b, &pair.conf_b)?;
            let a = Up::start(lab, &pair.a, &pair.conf_a)?;
            pair.a.reaches("10.9.0.2", 10).with_context(|| (*name).to_owned())?;
            for (node, conf) in [(&pair.a, &pair.conf_a), (&pair.b, &pair.conf_b)] {
                let ended = node.end_of(node.rustguard()?.args(["doctor", "--strict", &conf.interface]))?;
                ensure!(ended.success(), "{name}, {}: {ended}", conf.interface);
            }
            a.down()?;
            b.down()?;
        }
        Ok(())
    });
}

/// A network in its usual state: most members exchange no traffic, a phone never connected, and one machine is off.
#[test]
fn a_healthy_network_has_nothing_to_say() {
    scenario_of_rustguard("a network", |lab| {
        network(lab, 3, |network| {
            let served = network.serve(lab, &["--endpoint", "10.1.0.1"])?;
            let mut machines = Vec::new();
            for n in 1..=3 {
                let token = network.invite(&[])?;
                machines.push(network.join(lab, n, &["10.1.0.1", "--token", &token])?);
            }
            network.ask(&["peer", "add", "phone", "--conf", "-"])?;
            network.reaches_server(1)?;
            machines.pop().context("the third")?.stop("INT")?;
            for (node, name) in [(&network.server, "rgs"), (&network.machines[0], "rg1"), (&network.machines[1], "rg2")]
            {
                let ended = node.end_of(node.rustguard()?.args(["doctor", "--strict", name]))?;
                ensure!(ended.success(), "{name}: {ended}");
            }
            served.stop()
        })
    });
}
