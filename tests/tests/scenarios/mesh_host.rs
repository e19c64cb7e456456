//! A mesh and the routes of its hosts: learned default routes, a `Table` set by the user, forwarding by the host,
//! announced kernel routes, and pinned prefixes.
use anyhow::{Result, ensure};
use rustguard_tests::{
    Conf, Lab, Mesh, Node, PeerConf, Process, Program, Router, Tunnel, Up, eventually, meshed, until_installed,
};
use std::time::{Duration, Instant};

const SOON: Duration = Duration::from_secs(60);
/// 0.0.0.0/0 and ::/0, and the options of `ip` for their families.
const DEFAULTS: [&str; 2] = ["0.0.0.0/0", "::/0"];
const FAMILIES: [&str; 2] = ["-4", "-6"];
/// A server on the internet.
const SERVICE: [&str; 2] = ["203.0.113.1", "2001:db8:ffff::1"];
/// The table that `Table = auto` uses for a default route.
const TABLE: &str = "51820";

/// a – g1 – g2 – b – a, where all but b have their own access to the internet. g1 and g2 are gateways: they announce
/// default routes, and masquerade the mesh. a reaches g1 by its own default route.
struct Internet {
    mesh: Mesh,
    internet: Node,
}

impl Internet {
    fn new(lab: &Lab) -> Result<Self> {
        let mut mesh = Mesh::new(lab, &["a", "b", "g1", "g2"], &[["a", "g1"], ["a", "b"], ["b", "g2"], ["g1", "g2"]])?;
        let internet = lab.node("internet")?;
        internet.sh("sysctl -qw net.ipv4.ip_forward=1 net.ipv6.conf.all.forwarding=1
                     ip addr add 203.0.113.1/32 dev lo; ip addr add 2001:db8:ffff::1/128 dev lo")?;
        for (net, name) in [(1, "a"), (2, "g1"), (3, "g2")] {
            let node = &mesh.get(name)?.node;
            lab.link((&internet, &format!("to-{name}")), (node, "wan"))?;
            internet.sh(&format!(
                "ip addr add 198.51.{net}.1/24 dev to-{name}; ip addr add 2001:db8:{net}::1/64 dev to-{name}"
            ))?;
            node.sh(&format!(
                "ip addr add 198.51.{net}.2/24 dev wan; ip addr add 2001:db8:{net}::2/64 dev wan
                 ip route add default via 198.51.{net}.1; ip route add default via 2001:db8:{net}::1"
            ))?;
            internet.count(
                &format!("via_{name}"),
                "input",
                &format!("iifname to-{name} meta l4proto {{ icmp, icmpv6 }}"),
            )?;
        }
        for name in ["g1", "g2"] {
            // The forwarding setting shows in the tables (anycast addresses) and outlasts the tunnel, so it is set
            // before.
            mesh.get(name)?.node.sh("sysctl -qw net.ipv4.ip_forward=1 net.ipv6.conf.all.forwarding=1")?;
            // The rules of docs/routing.md.
            mesh.get_mut(name)?.conf.lines.extend(
                [
                    "Announce = 0.0.0.0/0, ::/0",
                    "PostUp = sysctl -qw net.ipv4.ip_forward=1 net.ipv6.conf.all.forwarding=1",
                    "PostUp = nft 'add table inet mesh; add chain inet mesh out { type nat hook postrouting priority 100; }; \
                     add rule inet mesh out oifname wan masquerade'",
                    "PostDown = nft delete table inet mesh",
                ]
                .map(str::to_owned),
            );
        }
        for name in ["a", "b", "g1", "g2"] {
            for peer in &mut mesh.get_mut(name)?.conf.peers {
                peer.allowed_ips = DEFAULTS.join(", ");
            }
        }
        // The datagrams from a to g1 must not enter the tunnel when the default route does.
        mesh.get_mut("a")?.peer_mut("g1")?.endpoint = Some("198.51.2.2:51820".to_owned());
        mesh.get_mut("g1")?.peer_mut("a")?.endpoint = None;
        Ok(Self { mesh, internet })
    }

    /// Waits until a has default routes by that neighbour, and its host's packets leave the mesh at that gateway;
    /// without a neighbour, until they use a's own access.
    fn leaves_by(&self, neighbour: Option<&str>, gateway: &str) -> Result<()> {
        let a = self.mesh.get("a")?;
        for (family, prefix) in DEFAULTS.into_iter().enumerate() {
            match neighbour {
                Some(neighbour) => a.until_via(prefix, &[neighbour])?,
                None => eventually("nobody announces any", SOON, || Ok(a.route(prefix)?["metric"].is_null()))?,
            }
            let expected = if neighbour.is_some() { "default dev wga proto babel" } else { "" };
            eventually("the kernel's table follows", SOON, || {
                let table = in_table(&a.node, family, TABLE)?;
                Ok(table.starts_with(expected) && table.is_empty() == expected.is_empty())
            })?;
            a.node.reaches(SERVICE[family], 10)?;
            let before = self.internet.counted(&format!("via_{gateway}"))?;
            a.node.run(&["ping", "-n", "-q", "-c", "10", "-i", "0.05", "-W", "1", SERVICE[family]])?;
            let seen = self.internet.counted(&format!("via_{gateway}"))? - before;
            ensure!(seen >= 10, "{seen} of 10 packets to {} left by {gateway}", SERVICE[family]);
        }
        Ok(())
    }
}

/// The routes of a table; empty if there is none.
fn in_table(node: &Node, family: usize, table: &str) -> Result<String> {
    node.sh(&format!("ip {} route show table {table} 2>/dev/null || true", FAMILIES[family]))
}

/// Whether the guard of a tunnel's addresses is active.
fn guarded(router: &Router) -> Result<bool> {
    Ok(router.node.run(&["nft", "list", "tables"])?.contains("rustguard-"))
}

/// The nearer gateway is used, the other takes over, and without a gateway the host's own default route works as
/// before.
#[test]
fn default_routes_are_learned() {
    meshed(|lab| {
        let net = Internet::new(lab)?;
        let mesh = &net.mesh;
        let before = mesh.traces()?;
        let [a, b, g1, g2] = mesh.all(["a", "b", "g1", "g2"])?;
        // a must never announce a default route to g1: after a retraction, a neighbour may still use the announced
        // sources for a while.
        let up_g1 = g1.start(lab)?;
        let up_a = a.start(lab)?;
        for prefix in DEFAULTS {
            a.until_via(prefix, &["g1"])?;
        }
        let mut ups = vec![up_a, b.start(lab)?, up_g1, g2.start(lab)?];
        mesh.converged()?;
        net.leaves_by(Some("g1"), "g1")?;
        ensure!(guarded(a)? && guarded(b)?, "a default route through the tunnel, and no guard");

        // A gateway has learned the other's default route, and uses its own.
        ensure!(!g1.route(DEFAULTS[0])?["learned"].as_array().is_none_or(Vec::is_empty), "g1 has not heard of g2");
        for (gateway, name) in [(g1, "g1"), (g2, "g2")] {
            for (family, address) in SERVICE.iter().enumerate() {
                ensure!(in_table(&gateway.node, family, TABLE)?.is_empty(), "{name} has a default route into the mesh");
                let counter = format!("via_{name}");
                let before = net.internet.counted(&counter)?;
                gateway.node.reaches(address, 3)?;
                ensure!(net.internet.counted(&counter)? > before, "{name} takes another's way to the internet");
            }
            ensure!(!guarded(gateway)?, "{name} keeps its own network from its address in the mesh");
        }

        // Packets to the internet are checked like all others: a source must have been announced.
        a.node.run(&["ip", "addr", "add", "10.99.0.1/32", "dev", "wga"])?;
        // Dropped by g1, or by b while the path by g2 has the shorter round trips.
        let dropped_by =
            || Ok::<_, anyhow::Error>(g1.dropped("source_not_announced")? + b.dropped("source_not_announced")?);
        let earlier = dropped_by()?;
        let ping = ["ping", "-n", "-c", "3", "-i", "0.1", "-W", "1", "-I", "10.99.0.1", SERVICE[0]];
        // On a busy machine, a may lose both neighbours for a moment, and then sends nothing to either.
        eventually("three are counted", SOON, || {
            ensure!(a.node.run(&ping).is_err(), "an answer to a source that was not announced");
            Ok(dropped_by()? - earlier >= 3)
        })?;
        a.node.run(&["ip", "addr", "del", "10.99.0.1/32", "dev", "wga"])?;

        let killed = Instant::now();
        ups[2].process()?.stop("KILL")?;
        g1.node.run(&["nft", "delete", "table", "inet", "mesh"])?;
        net.leaves_by(Some("b"), "g2")?;
        println!("from SIGKILL of g1 until a is on the internet by g2: {:?}", killed.elapsed());

        ups.pop().expect("g2 is up").down()?;
        net.leaves_by(None, "a")?;
        eventually("the guard goes", SOON, || Ok(!guarded(a)?))?;

        // A default route of a killed tunnel is cleaned up.
        ups[2] = g1.start(lab)?;
        ups.push(g2.start(lab)?);
        net.leaves_by(Some("g1"), "g1")?;
        ups[0].process()?.stop("KILL")?;
        for address in SERVICE {
            a.node.reaches(address, 3)?;
        }
        ensure!(guarded(a)?, "SIGKILL cannot be cleaned up after: is this still about anything?");
        let down = a.node.end_of(a.node.rustguard()?.args(["down", "wga"]))?;
        ensure!(down.success(), "down after a crash: {down}");
        // The files in /run of the other nodes are in the same folders, and these nodes are still up.
        let own = |traces: &str| traces.lines().filter(|line| !line.starts_with("/run/")).collect::<String>();
        let after = a.node.traces()?;
        ensure!(own(&before[0]) == own(&after) && !after.contains("wga"), "the crash has left something: {after}");
        ups[0] = a.start(lab)?;
        net.leaves_by(Some("g1"), "g1")?;

        mesh.ends_without_traces(ups, &before)
    });
}

/// A gateway that redistributes its default route serves others as long as it has the route, and then uses the other
/// gateway.
#[test]
fn a_gateway_that_loses_its_way_takes_anothers() {
    meshed(|lab| {
        let mut net = Internet::new(lab)?;
        for name in ["g1", "g2"] {
            for line in &mut net.mesh.get_mut(name)?.conf.lines {
                if line.starts_with("Announce") {
                    "Redistribute = default".clone_into(line);
                }
            }
        }
        // Its endpoint must stay reachable when it has no access to the internet.
        net.mesh.get_mut("a")?.peer_mut("g1")?.endpoint = Some("10.1.0.2:51820".to_owned());
        let _ups = net.mesh.start(lab)?;
        net.leaves_by(Some("g1"), "g1")?;
        let g1 = net.mesh.get("g1")?;
        g1.node.sh("ip route del default; ip -6 route del default")?;
        for (family, address) in SERVICE.into_iter().enumerate() {
            g1.until_via(DEFAULTS[family], &["g2"])?;
            g1.node.reaches(address, 10)?;
            net.mesh.get("a")?.node.reaches(address, 10)?;
            let before = net.internet.counted("via_g2")?;
            g1.node.run(&["ping", "-n", "-q", "-c", "5", "-i", "0.05", "-W", "1", address])?;
            ensure!(net.internet.counted("via_g2")? >= before + 5, "g1 has found another way");
        }
        g1.node.sh("ip route add default via 198.51.2.1; ip route add default via 2001:db8:2::1")?;
        net.leaves_by(Some("g1"), "g1")?;
        for family in 0..DEFAULTS.len() {
            eventually("g1 has its own way again", SOON, || Ok(in_table(&g1.node, family, TABLE)?.is_empty()))?;
        }
        Ok(())
    });
}

/// In the user's own table, a default route is a route like any other, and the user makes the rules.
#[test]
fn a_table_of_ones_own_gets_everything() {
    meshed(|lab| {
        let mut net = Internet::new(lab)?;
        let conf = &mut net.mesh.get_mut("a")?.conf;
        conf.lines.push("Table = 77".to_owned());
        // Without a mark, the rules for table 77 must not match the endpoint of g1.
        net.mesh.get_mut("a")?.peer_mut("g1")?.endpoint = Some("10.1.0.2:51820".to_owned());
        let mesh = &net.mesh;
        let a = mesh.get("a")?;
        let rules =
            || a.node.sh("ip rule; ip -6 rule; ip route show table main; ip -6 route show table main | grep -v wga");
        let before = rules()?;
        let _ups = mesh.start(lab)?;
        let (g1, g2) = (mesh.get("g1")?, mesh.get("g2")?);
        for (family, prefix) in DEFAULTS.into_iter().enumerate() {
            a.until_via(prefix, &["g1"])?;
            for router in [g1, g2] {
                a.until_routed(&router.own()[family])?;
                eventually("the table is filled", SOON, || {
                    let table = in_table(&a.node, family, "77")?;
                    Ok(table.contains("default dev wga proto babel") && table.contains(&router.inside[family]))
                })?;
            }
        }
        ensure!(before == rules()?, "main table or rules have changed: {before} is {} now", rules()?);
        ensure!(!guarded(a)?, "a guard that nobody asked for");
        a.node.sh("ip rule add to 203.0.113.0/24 lookup 77; ip -6 rule add to 2001:db8:ffff::/64 lookup 77
                   ip rule add to 10.77.0.0/16 lookup 77; ip -6 rule add to fd77::/16 lookup 77")?;
        for (address, inside) in SERVICE.iter().zip(&g2.inside) {
            let before = net.internet.counted("via_g1")?;
            a.node.reaches(address, 10)?;
            ensure!(net.internet.counted("via_g1")? > before, "not by the mesh");
            a.node.reaches(inside, 10)?;
        }
        Ok(())
    });
}

/// `Table = off`: the engine works, and adds no routes to the kernel.
#[test]
fn without_a_table_routes_are_the_users_affair() {
    meshed(|lab| {
        let mut net = Internet::new(lab)?;
        let conf = &mut net.mesh.get_mut("a")?.conf;
        conf.lines.push("Table = off".to_owned());
        let mesh = &net.mesh;
        let (a, b, g2) = (mesh.get("a")?, mesh.get("b")?, mesh.get("g2")?);
        let rules = || {
            a.node.sh("ip rule; ip -6 rule; nft list tables; ip route show table all proto babel; ip -6 route show table all proto babel")
        };
        let before = rules()?;
        let _ups = mesh.start(lab)?;
        for (family, prefix) in DEFAULTS.into_iter().enumerate() {
            a.until_via(prefix, &["g1"])?;
            a.until_routed(&g2.own()[family])?;
            // It still forwards packets between others.
            b.until_routed(&mesh.get("g1")?.own()[family])?;
            b.node.reaches(&mesh.get("g1")?.inside[family], 10)?;
        }
        let after = rules()?;
        ensure!(before == after, "{before} is {after} now");
        ensure!(!a.node.answers(&g2.inside[0]), "somebody has made a route");
        a.node.sh("ip route add 10.77.0.0/16 dev wga; ip -6 route add fd77::/16 dev wga")?;
        for address in &g2.inside {
            a.node.reaches(address, 10)?;
        }
        Ok(())
    });
}

/// `--relay off`: packets over several nodes pass through the hosts, which see all of them and must forward them.
#[test]
fn hosts_forward_where_nothing_is_relayed() {
    meshed(|lab| {
        let mesh = Mesh::line(lab)?;
        let (a, b, c) = (mesh.get("a")?, mesh.get("b")?, mesh.get("c")?);
        b.node.count("forwarded", "forward", "iifname wgb oifname wgb")?;
        let off = [("RUSTGUARD_RELAY", "off".into())];
        let _ups = [a.start(lab)?, Up::start_with(lab, &b.node, &b.conf, &off)?, c.start(lab)?];
        for prefix in c.own() {
            a.until_routed(&prefix)?;
        }
        for address in &c.inside {
            a.node.does_not_reach(address)?;
        }
        b.node.sh("sysctl -qw net.ipv4.ip_forward=1 net.ipv6.conf.all.forwarding=1")?;
        for (address, other) in c.inside.iter().zip(&b.inside) {
            a.node.reaches(other, 10)?;
            a.node.reaches(address, 10)?;
            let before = b.node.counted("forwarded")?;
            a.node.run(&["ping", "-n", "-q", "-c", "20", "-i", "0.01", "-W", "1", address])?;
            let forwarded = b.node.counted("forwarded")? - before;
            ensure!(forwarded >= 40, "{forwarded} packets through the host of 20 there and 20 back");
        }
        ensure!(b.relayed()? == 0, "{} relayed", b.relayed()?);
        Ok(())
    });
}

/// The networks behind c, and the value of `Redistribute`.
const LAN: [&str; 2] = ["192.168.7.0/24", "fd01:0:0:7::/64"];
const REDISTRIBUTE: &str = "Redistribute = 192.168.0.0/16, fd01::/48, default";

/// a – b – c, where a and c announce routes of their kernels; a machine is in a network behind c.
fn with_a_lan(lab: &Lab) -> Result<(Mesh, Node)> {
    let mut mesh = Mesh::line(lab)?;
    for name in ["a", "b", "c"] {
        let conf = &mut mesh.get_mut(name)?.conf;
        conf.lines.extend((name != "b").then(|| REDISTRIBUTE.to_owned()));
        for peer in &mut conf.peers {
            peer.allowed_ips = DEFAULTS.join(", ");
        }
    }
    let (c, machine) = (&mesh.get("c")?.node, lab.node("machine")?);
    lab.link((c, "lan"), (&machine, "eth0"))?;
    c.sh("sysctl -qw net.ipv4.ip_forward=1 net.ipv6.conf.all.forwarding=1")?;
    machine.sh("ip addr add 192.168.7.2/24 dev eth0; ip addr add fd01:0:0:7::2/64 dev eth0
                ip route add default via 192.168.7.1; ip route add default via fd01:0:0:7::1")?;
    Ok((mesh, machine))
}

#[test]
fn routes_of_the_kernel_are_announced_while_they_are_there() {
    meshed(|lab| {
        let (mut mesh, machine) = with_a_lan(lab)?;
        mesh.get_mut("c")?.conf.lines.push("Announce = 192.168.9.0/24".to_owned());
        let (stock, _babeld) = stock_babeld(lab, &mut mesh)?;
        let (a, c) = (mesh.get("a")?, mesh.get("c")?);
        c.node.sh("ip addr add 192.168.7.1/24 dev lan; ip addr add fd01:0:0:7::1/64 dev lan")?;
        let _ups = mesh.start(lab)?;
        mesh.converged()?;
        // These routes existed before the tunnel; those below come later.
        for (prefix, address) in LAN.iter().zip(["192.168.7.2", "fd01:0:0:7::2"]) {
            until_installed(&a.node, prefix)?;
            a.node.reaches(address, 5)?;
        }
        machine.reaches(&a.inside[0], 5)?;
        let times = [
            ("192.168.8.0/24", "via 192.168.7.2"),
            ("fd01:0:0:8::/64", "via fd01:0:0:7::2"),
            // The kernel does not announce its removal when the link goes down.
            ("192.168.8.128/25", "via 192.168.7.2"),
        ];
        for (prefix, via) in times {
            let started = Instant::now();
            c.node.sh(&format!("ip route add {prefix} {via}"))?;
            until_installed(&a.node, prefix)?;
            println!("{prefix} came after {:?}", started.elapsed());
            until_installed(&stock, prefix)?;
            let started = Instant::now();
            match prefix {
                "192.168.8.128/25" => c.node.run(&["ip", "link", "set", "lan", "down"])?,
                _ => c.node.sh(&format!("ip route del {prefix}"))?,
            };
            a.until_lost(prefix)?;
            println!("{prefix} went after {:?}", started.elapsed());
            let family = if prefix.contains(':') { "-6" } else { "-4" };
            // babeld may keep it as unreachable for a while.
            eventually("babeld forgets it", SOON, || {
                Ok(!stock.run(&["ip", family, "route", "show", "exact", prefix])?.contains("dev wgs"))
            })?;
        }
        for prefix in LAN {
            a.until_lost(prefix)?;
        }
        c.node.sh("ip link set lan up; ip -6 addr replace fd01:0:0:7::1/64 dev lan")?;
        for prefix in LAN {
            until_installed(&a.node, prefix)?;
        }

        // A default route, and routes that `Redistribute` does not cover: these must not be announced at the next
        // change either.
        c.node.sh("ip route add 172.16.0.0/12 via 192.168.7.2; ip route add unreachable 192.168.6.0/24
                   ip route add default via 192.168.7.2")?;
        a.until_via(DEFAULTS[0], &["b"])?;
        eventually("the default route", SOON, || Ok(in_table(&a.node, 0, TABLE)?.starts_with("default dev wga")))?;
        for prefix in ["172.16.0.0/12", "192.168.6.0/24"] {
            ensure!(a.route(prefix)?.is_null(), "{prefix} was not to be announced");
        }
        c.node.run(&["ip", "route", "del", "default"])?;
        eventually("no default route", SOON, || Ok(in_table(&a.node, 0, TABLE)?.is_empty()))?;

        // A configured prefix stays, whatever the kernel's table contains.
        c.node.run(&["ip", "route", "add", "192.168.9.0/24", "via", "192.168.7.2"])?;
        until_installed(&a.node, "192.168.9.0/24")?;
        c.node.sh("ip route del 192.168.9.0/24; ip route add 192.168.10.0/24 via 192.168.7.2")?;
        until_installed(&a.node, "192.168.10.0/24")?;
        until_installed(&a.node, "192.168.9.0/24")
    });
}

/// a does not announce a learned route as its own, but announces one that its own kernel has in addition.
#[test]
fn what_was_learned_is_not_announced_again() {
    meshed(|lab| {
        let (mesh, _machine) = with_a_lan(lab)?;
        let [a, b, c] = mesh.all(["a", "b", "c"])?;
        c.node.sh("ip addr add 192.168.7.1/24 dev lan; ip route add default via 192.168.7.2")?;
        let mut ups = mesh.start(lab)?;
        mesh.converged()?;
        let lan = LAN[0];
        for prefix in [lan, DEFAULTS[0]] {
            a.until_via(prefix, &["b"])?;
        }
        until_installed(&a.node, lan)?;
        let origin = c.route(lan)?["origin"].clone();
        // An unrelated change, after which a has read its table again.
        a.node.sh("ip link add other type veth peer name nobody; ip link set nobody up; ip link set other up
                   ip addr add 192.168.20.1/24 dev other")?;
        until_installed(&b.node, "192.168.20.0/24")?;
        for prefix in [lan, DEFAULTS[0]] {
            ensure!(a.route(prefix)?["local"] == false, "a has learned {prefix}, and announces it as its own");
            b.until_via(prefix, &["c"])?;
            ensure!(b.route(prefix)?["origin"] == origin, "{prefix} has come back");
        }

        // Both now have this network: each uses its own.
        a.node.run(&["ip", "addr", "add", "192.168.7.9/24", "dev", "other"])?;
        eventually("a announces it", SOON, || Ok(a.route(lan)?["local"] == true))?;
        eventually("the learned route gives way", SOON, || Ok(!a.installed(lan)?.contains("babel")))?;
        ensure!(a.installed(lan)?.contains("dev other"), "the kernel's own has gone");
        a.node.run(&["ip", "addr", "del", "192.168.7.9/24", "dev", "other"])?;
        a.until_via(lan, &["b"])?;
        eventually("the learned route is back", SOON, || Ok(a.installed(lan)?.contains("babel")))?;

        // When c stops, its announcements disappear, and nobody else keeps them alive.
        ups.pop().expect("c is up").down()?;
        a.until_lost(lan)?;
        eventually("no default route", SOON, || Ok(b.route(DEFAULTS[0])?["metric"].is_null()))
    });
}

/// A machine with a stock WireGuard and babeld next to b.
fn stock_babeld(lab: &Lab, mesh: &mut Mesh) -> Result<(Node, (Tunnel, Process))> {
    lab.needs("babeld", "babeld")?;
    let node = lab.node("stock")?;
    lab.link((&node, "eth0"), (&mesh.get("b")?.node, "to-stock"))?;
    node.run(&["ip", "addr", "add", "10.200.0.2/24", "dev", "eth0"])?;
    let b = mesh.get_mut("b")?;
    b.node.run(&["ip", "addr", "add", "10.200.0.1/24", "dev", "to-stock"])?;
    let mut conf = Conf::new("wgs")?;
    conf.listen_port = Some(51_820);
    conf.addresses = vec!["10.77.0.99/32".to_owned(), "fe80::99/64".to_owned()];
    let mut peer =
        PeerConf::new(&b.conf.keys.public, "10.77.0.0/16, 192.168.0.0/16, fd01::/16, fe80::/64, ff02::1:6/128");
    peer.endpoint = Some("10.200.0.1:51820".to_owned());
    conf.peers.push(peer);
    b.add_router("stock", &conf.keys, "10.77.0.99/32");
    b.peer_mut("stock")?.endpoint = Some("10.200.0.2:51820".to_owned());
    let tunnel = Tunnel::start(lab, &node, Program::Reference, &conf)?;
    node.sh(
        "ip route del 192.168.0.0/16 dev wgs; ip -6 route del fd01::/16 dev wgs; ip -6 route del ff02::1:6/128 dev wgs",
    )?;
    let file = lab.file("babeld.conf", "interface wgs type tunnel\n")?;
    let mut command = node.command("babeld");
    command.arg("-I").arg(lab.path("babeld.pid")).arg("-S").arg(lab.path("babeld.state")).arg("-c").arg(file);
    let babeld = node.spawn("babeld", &mut command)?;
    Ok((node, (tunnel, babeld)))
}

/// A pinned prefix is accepted only from its origin, whichever neighbour passes it on.
#[test]
fn a_pinned_prefix_has_one_origin() {
    meshed(|lab| {
        // z – a – b – c: the prefix is pinned to c, and z also announces it.
        let mut mesh = Mesh::new(lab, &["a", "b", "c", "z"], &[["a", "b"], ["b", "c"], ["a", "z"]])?;
        let pinned = ["10.77.9.0/24", "fd77:9::/64"];
        let key = mesh.get("c")?.conf.keys.public.clone();
        for name in ["c", "z"] {
            mesh.get_mut(name)?.conf.lines.push(format!("Announce = {}", pinned.join(", ")));
        }
        mesh.get_mut("a")?.conf.lines.push(format!("Pin = {} {key}, {} {key}", pinned[0], pinned[1]));
        let mut ups = Vec::new();
        for name in ["a", "b", "z"] {
            ups.push(mesh.get(name)?.start(lab)?);
        }
        let [a, b, c, z] = mesh.all(["a", "b", "c", "z"])?;
        a.until_routed(&z.own()[0])?;
        eventually("both are refused", SOON, || Ok(a.refused("pinned")? >= 2))?;
        for prefix in pinned {
            ensure!(a.route(prefix)?.is_null(), "{prefix} is believed");
        }
        let told = a.node.end_of(a.node.rustguard()?.args(["neighbours", "wga"]))?;
        ensure!(told.stdout.contains("pinned"), "{told}");

        let mut up = c.start(lab)?;
        for prefix in pinned {
            a.until_via(prefix, &["b"])?;
            until_installed(&a.node, prefix)?;
            // z is nearer, but its route is refused.
            let route = a.route(prefix)?;
            ensure!(route["origin"] == c.route(prefix)?["origin"], "{route}");
            // b would have accepted z's route without a pin.
            b.until_via(prefix, &["c"])?;
        }
        // The pin names c's key, which survives restarts.
        for signal in ["TERM", "KILL"] {
            up.process()?.stop(signal)?;
            a.until_lost(pinned[0])?;
            up = c.start(lab)?;
            a.until_via(pinned[0], &["b"])?;
        }

        // The stored state is damaged: the new router-id has another number, but the same key.
        let before = a.route(pinned[0])?["origin"].clone();
        up.process()?.stop("TERM")?;
        a.until_lost(pinned[0])?;
        std::fs::write("/var/lib/rustguard/wgc/routing", "damaged")?;
        up = c.start(lab)?;
        a.until_via(pinned[0], &["b"])?;
        let origin = a.route(pinned[0])?["origin"].clone();
        let of_key = |origin: &serde_json::Value| origin.as_str().map(|id| id[..12].to_owned());
        ensure!(origin != before && of_key(&origin) == of_key(&before), "{before}, then {origin}");
        up.down()
    });
}
