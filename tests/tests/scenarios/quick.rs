//! `rustguard up` does what wg-quick does; with `RUSTGUARD_SUBJECT=wireguard-go`, wg-quick itself is tested.
use anyhow::{Result, ensure};
use rustguard_tests::{
    Conf, Ended, INSIDE_A, INSIDE_B, Internet, Ip, Lab, NameService, Node, Outside, Pair, PeerConf, Program, Subject,
    Tunnel, Up, eventually, scenario, scenario_of_rustguard, subject,
};
use std::{ffi::OsString, process::Command, time::Duration};

/// Addresses of the internet behind side `b`.
const WORLD: [&str; 2] = ["192.0.2.1", "2001:db8::1"];

/// A pair whose side `b` (wireguard-go) runs, accepts every address from `a`, and has the internet behind it.
fn with_the_world(lab: &Lab, outside: Outside) -> Result<(Pair, Tunnel)> {
    let pair = Pair::new(lab, outside)?;
    pair.b.sh("ip addr add 192.0.2.1/32 dev lo; ip addr add 2001:db8::1/128 dev lo nodad")?;
    let b = Tunnel::start(lab, &pair.b, Program::Reference, &pair.conf_b)?;
    Ok((pair, b))
}

/// A full tunnel in both IP versions: the underlay stays reachable, packets from outside to the tunnel address are
/// dropped, and nothing remains at the end.
fn default_route(lab: &Lab, outside: Outside) -> Result<()> {
    let (mut pair, b) = with_the_world(lab, outside)?;
    pair.conf_a.peers[0].allowed_ips = "0.0.0.0/0, ::/0".to_owned();
    let before = pair.a.traces()?;
    let up = Up::start(lab, &pair.a, &pair.conf_a)?;
    for address in WORLD {
        pair.a.reaches(address, 10)?;
    }
    ensure!(b.dump()?.peers[0].rx > 128 * 2, "the world should have been reached through the tunnel");
    // Routes that are more specific than the default still win: the router is on a connected network.
    pair.a.reaches("10.1.0.1", 1)?;
    pair.a.reaches("fd01::1", 1)?;
    for version in ["-4", "-6"] {
        let rules = pair.a.run(&["ip", version, "rule"])?;
        ensure!(rules.contains("suppress_prefixlength 0"), "no rule that keeps the main table's other routes: {rules}");
        ensure!(rules.contains("not from all fwmark 0xca6c"), "no rule for the mark 51820: {rules}");
    }
    ensure!(up.dump()?.fwmark == "0xca6c", "the sockets should carry the mark");
    ensure!(!pair.a.run(&["nft", "list", "tables"])?.is_empty(), "no nftables guard");
    // A neighbour sends packets to the tunnel's inner address: only the tunnel may deliver those.
    pair.router.sh(&format!("ip route add {}/32 via 10.1.0.2", INSIDE_A[0]))?;
    pair.router.sh(&format!("ip -6 route add {}/128 via fd01::2", INSIDE_A[1]))?;
    for address in INSIDE_A {
        pair.router.does_not_reach(address)?;
    }
    up.down()?;
    same(&before, &pair.a.traces()?)?;
    let up = Up::start(lab, &pair.a, &pair.conf_a)?;
    pair.a.reaches(WORLD[0], 10)?;
    up.down()?;
    same(&before, &pair.a.traces()?)
}

/// Checks that a tunnel left nothing behind; an error shows the lines that differ.
fn same(before: &str, after: &str) -> Result<()> {
    let extra: Vec<_> = after.lines().filter(|line| !before.lines().any(|other| other == *line)).collect();
    let missing: Vec<_> = before.lines().filter(|line| !after.lines().any(|other| other == *line)).collect();
    ensure!(before == after, "left behind: {extra:#?}\nmissing: {missing:#?}");
    Ok(())
}

#[test]
fn default_route_over_ipv4() {
    scenario(|lab| default_route(lab, Outside::V4));
}

#[test]
fn default_route_over_ipv6() {
    scenario(|lab| default_route(lab, Outside::V6));
}

/// Without nft, the guard consists of iptables rules, and answers pass a strict reverse-path filter. Without both
/// programs, the tunnel does not start.
#[test]
fn default_route_without_nft() {
    scenario_of_rustguard("a guard by iptables", |lab| {
        lab.needs("iptables-save", "iptables")?;
        // In the mount namespace of this scenario.
        let hide = |program: &str| {
            let script = format!("mount --bind /dev/null \"$(realpath \"$(command -v {program})\")\"");
            let ended = Ended::of(Command::new("sh").args(["-ec", &script]))?;
            ensure!(ended.success(), "{ended}");
            Ok(())
        };
        hide("nft")?;
        let (mut pair, _b) = with_the_world(lab, Outside::V4)?;
        pair.conf_a.peers[0].allowed_ips = "0.0.0.0/0, ::/0".to_owned();
        pair.a.sh("sysctl -qw net.ipv4.conf.all.rp_filter=1 net.ipv4.conf.eth0.rp_filter=1")?;
        let rules = |node: &Node| {
            node.sh("iptables-save | grep -c rustguard || true; ip6tables-save | grep -c rustguard || true")
        };
        let up = Up::start(lab, &pair.a, &pair.conf_a)?;
        for address in WORLD {
            pair.a.reaches(address, 10)?;
        }
        ensure!(rules(&pair.a)? == "3\n3\n", "{}", rules(&pair.a)?);
        pair.router.sh(&format!("ip route add {}/32 via 10.1.0.2", INSIDE_A[0]))?;
        pair.router.does_not_reach(INSIDE_A[0])?;
        up.down()?;
        ensure!(rules(&pair.a)? == "0\n0\n", "left behind: {}", rules(&pair.a)?);
        hide("iptables-save")?;
        let file = lab.path("wga.conf");
        let ended = pair.a.end_of(pair.a.rustguard()?.arg("up").arg(&file))?;
        ended.refused(&["needs nft", "install nftables", "Table = off"])
    });
}

/// Only IPv4 goes through the tunnel: IPv6 is not changed.
#[test]
fn default_route_of_one_version() {
    scenario(|lab| {
        let (mut pair, _b) = with_the_world(lab, Outside::V4)?;
        pair.conf_a.peers[0].allowed_ips = "0.0.0.0/0".to_owned();
        let (before, rules) = (pair.a.traces()?, pair.a.run(&["ip", "-6", "rule"])?);
        let up = Up::start(lab, &pair.a, &pair.conf_a)?;
        pair.a.reaches(WORLD[0], 10)?;
        ensure!(pair.a.run(&["ip", "-6", "rule"])? == rules, "IPv6 rules without an IPv6 default route");
        up.down()?;
        same(&before, &pair.a.traces()?)
    });
}

/// The halves 0.0.0.0/1 and 128.0.0.0/1 are ordinary routes: no mark and no rules are added.
#[test]
fn split_halves_are_ordinary_routes() {
    scenario(|lab| {
        let (mut pair, _b) = with_the_world(lab, Outside::V6)?;
        pair.conf_a.peers[0].allowed_ips = "0.0.0.0/1, 128.0.0.0/1".to_owned();
        let (before, rules) = (pair.a.traces()?, pair.a.run(&["ip", "rule"])?);
        let up = Up::start(lab, &pair.a, &pair.conf_a)?;
        pair.a.reaches(WORLD[0], 10)?;
        ensure!(pair.a.run(&["ip", "rule"])? == rules && up.dump()?.fwmark == "off", "policy for ordinary routes");
        up.down()?;
        same(&before, &pair.a.traces()?)
    });
}

#[test]
fn table_off_and_table_number() {
    scenario(|lab| {
        let (mut pair, _b) = with_the_world(lab, Outside::V4)?;
        pair.conf_a.peers[0].allowed_ips = "10.9.0.0/24, 192.0.2.0/24, ::/0".to_owned();
        let before = pair.a.traces()?;
        pair.conf_a.lines = vec!["Table = off".to_owned()];
        let up = Up::start(lab, &pair.a, &pair.conf_a)?;
        let routes = pair.a.run(&["ip", "route", "show", "table", "all", "dev", "wga"])?;
        ensure!(!routes.contains("192.0.2.0/24"), "routes with Table = off: {routes}");
        up.down()?;
        pair.conf_a.lines = vec!["Table = 4711".to_owned()];
        let up = Up::start(lab, &pair.a, &pair.conf_a)?;
        let routes = pair.a.run(&["ip", "route", "show", "table", "4711"])?;
        ensure!(routes.contains("192.0.2.0/24 dev wga"), "no route in table 4711: {routes}");
        let routes = pair.a.run(&["ip", "-6", "route", "show", "table", "4711"])?;
        ensure!(routes.contains("default dev wga"), "no default route in table 4711: {routes}");
        ensure!(!pair.a.run(&["ip", "rule"])?.contains("suppress_prefixlength"), "a number asks for no policy");
        pair.a.sh("ip rule add to 192.0.2.0/24 lookup 4711")?;
        pair.a.reaches(WORLD[0], 10)?;
        pair.a.sh("ip rule del to 192.0.2.0/24 lookup 4711")?;
        up.down()?;
        same(&before, &pair.a.traces()?)
    });
}

/// The lowest MTU of the routes to the endpoints, less 80, or the file's value.
#[test]
fn mtu_of_the_path() {
    scenario(|lab| {
        let (mut pair, _b) = with_the_world(lab, Outside::V4)?;
        for (underlay, lines, expected) in [
            ("ip link set eth0 mtu 1400", vec![], "1320"),
            ("ip link set eth0 mtu 1500; ip route add 10.2.0.2 via 10.1.0.1 mtu 1380", vec![], "1300"),
            ("ip route del 10.2.0.2", vec!["MTU = 1350".to_owned()], "1350"),
            ("true", vec![], "1420"),
        ] {
            pair.a.sh(underlay)?;
            pair.conf_a.lines = lines;
            let up = Up::start(lab, &pair.a, &pair.conf_a)?;
            let shown = read_link_mtu(&pair.a)?;
            ensure!(shown == expected, "MTU {shown}, expected {expected} after: {underlay}");
            up.down()?;
        }
        Ok(())
    });
}

fn read_link_mtu(node: &Node) -> Result<String> {
    Ok(node.sh("ip -o link show dev wga | sed 's/.* mtu \\([0-9]*\\) .*/\\1/'")?.trim().to_owned())
}

/// DNS servers are given to resolvconf as wg-quick does, and removed at the end.
#[test]
fn dns_through_resolvconf() {
    scenario(|lab| {
        let (mut pair, _b) = with_the_world(lab, Outside::V4)?;
        pair.conf_a.lines =
            vec!["DNS = 192.0.2.53, example.org".to_owned(), "DNS = 2001:db8::53, fe80::1%eth0".to_owned()];
        let record = lab.path("resolvconf.txt");
        let script = format!("echo \"called $*\" >> {0}; [ \"$1\" != -a ] || cat >> {0}", record.display());
        let folder = lab.stand_in("resolvconf", &script)?;
        let path = path_with(&folder);
        let up = Up::start_with(lab, &pair.a, &pair.conf_a, &[("PATH", path.clone())])?;
        let text = std::fs::read_to_string(&record)?;
        let servers = ["nameserver 192.0.2.53", "nameserver 2001:db8::53", "nameserver fe80::1%eth0"];
        for line in servers.into_iter().chain(["search example.org", "wga -m 0 -x"]) {
            ensure!(text.contains(line), "\"{line}\" is missing in {text}");
        }
        up.down_with(&[("PATH", path)])?;
        let text = std::fs::read_to_string(&record)?;
        let deleted = text.lines().any(|line| line.starts_with("called -d") && line.contains("wga"));
        ensure!(deleted, "not taken back: {text}");
        Ok(())
    });
}

/// systemd-resolved asks the name servers of a link through that link.
#[test]
fn a_name_server_at_another_interface_is_refused_with_resolved() {
    scenario_of_rustguard("systemd-resolved", |lab| {
        let (mut pair, _b) = with_the_world(lab, Outside::V4)?;
        let Some(resolved) = NameService::start(lab, &pair.a)? else { return Ok(()) };
        pair.conf_a.lines = vec!["DNS = fe80::1%wga".to_owned()];
        let up = Up::start(lab, &pair.a, &pair.conf_a)?;
        let told = resolved.told().join("\n");
        ensure!(told.contains("SetLinkDNS") && told.contains("254"), "{told}");
        up.down()?;
        pair.conf_a.lines = vec!["DNS = fe80::1%eth0".to_owned()];
        let file = lab.file("wga.conf", &pair.conf_a.wg_quick())?;
        let refused = pair.a.end_of(pair.a.rustguard()?.arg("up").arg(&file))?;
        refused.refused(&["fe80::1%eth0", "systemd-resolved", "DNS line"])?;
        ensure!(pair.a.sh("ip link show wga").is_err(), "the interface is left behind");
        Ok(())
    });
}

fn path_with(folder: &std::path::Path) -> OsString {
    let mut path = folder.as_os_str().to_owned();
    path.push(":");
    path.push(std::env::var_os("PATH").unwrap_or_default());
    path
}

/// Hooks run in order, with `%i` replaced, and keep their `#`; each sees the state of the set-up at its time.
#[test]
fn hooks() {
    scenario(|lab| {
        let (mut pair, _b) = with_the_world(lab, Outside::V4)?;
        let record = lab.path("hooks.txt").display().to_string();
        // Debian's wg-quick still cuts hooks at a `#`.
        let number = if subject() == Subject::RustGuard { "#1" } else { "1" };
        let link = "$(ip link show dev %i >/dev/null 2>&1 && echo there || echo gone)";
        let address = "$(ip -br addr show dev %i 2>/dev/null | grep -q 10.9.0.1 && echo there || echo gone)";
        for (key, word) in [
            ("PreUp", "pre-up-1"),
            ("PreUp", "pre-up-2"),
            ("PostUp", "post-up"),
            ("PreDown", "pre-down"),
            ("PostDown", "post-down"),
        ] {
            pair.conf_a
                .lines
                .push(format!("{key} = echo \"{word} {number} %i link {link} address {address}\" >> {record}"));
        }
        let up = Up::start(lab, &pair.a, &pair.conf_a)?;
        up.down()?;
        let text = std::fs::read_to_string(&record)?;
        let lines: Vec<_> = text.lines().map(|line| line.replacen(" #1", " 1", 1)).collect();
        ensure!(number == "1" || text.matches("#1").count() == 5, "a hook lost its #: {text}");
        ensure!(
            lines
                == [
                    "pre-up-1 1 wga link gone address gone",
                    "pre-up-2 1 wga link gone address gone",
                    "post-up 1 wga link there address there",
                    "pre-down 1 wga link there address there",
                    "post-down 1 wga link gone address gone",
                ],
            "the hooks wrote: {text}"
        );
        Ok(())
    });
}

/// SaveConfig writes the current state into the file when the interface goes down.
#[test]
fn save_config() {
    scenario(|lab| {
        let (mut pair, _b) = with_the_world(lab, Outside::V4)?;
        pair.conf_a.lines = vec!["SaveConfig = true".to_owned(), "MTU = 1400".to_owned()];
        let up = Up::start(lab, &pair.a, &pair.conf_a)?;
        let added = PeerConf::new(&Conf::new("unused")?.keys.public, "10.80.0.0/16");
        pair.a.sh(&format!("wg set wga peer {} allowed-ips {}", added.public_key, added.allowed_ips))?;
        up.down()?;
        let text = std::fs::read_to_string(lab.path("wga.conf"))?;
        for line in [
            "Address = 10.9.0.1/24",
            "Address = fd09::1/64",
            "SaveConfig = true",
            "MTU = 1400",
            "ListenPort = 51801",
            &format!("PrivateKey = {}", pair.conf_a.keys.private),
            &format!("PublicKey = {}", pair.conf_b.keys.public),
            &format!("PublicKey = {}", added.public_key),
            "AllowedIPs = 10.80.0.0/16",
            "Endpoint = 10.2.0.2:51802",
        ] {
            ensure!(text.contains(line), "\"{line}\" is missing in\n{text}");
        }
        // The written file can be brought up.
        let up = pair.a.wg_quick("up", &lab.path("wga.conf"))?;
        ensure!(up.success(), "{up}");
        pair.a.reaches(INSIDE_B[0], 10)?;
        let down = pair.a.wg_quick("down", &lab.path("wga.conf"))?;
        ensure!(down.success(), "{down}");
        Ok(())
    });
}

/// Stock wg-quick with RustGuard beneath it, as with any other userspace implementation.
#[test]
fn beneath_stock_wg_quick() {
    scenario(|lab| {
        let (mut pair, b) = with_the_world(lab, Outside::V4)?;
        pair.conf_a.peers[0].allowed_ips = "0.0.0.0/0, ::/0".to_owned();
        let before = pair.a.traces()?;
        let file = lab.file("wga.conf", &pair.conf_a.wg_quick())?;
        let up = pair.a.wg_quick("up", &file)?;
        ensure!(up.success(), "wg-quick up: {up}");
        if !up.stderr.contains("userspace implementation") {
            lab.skip("stock wg-quick with RustGuard beneath it: this kernel has WireGuard, which wg-quick prefers");
            return Ok(());
        }
        for address in WORLD {
            pair.a.reaches(address, 10)?;
        }
        ensure!(b.dump()?.peers[0].rx > 128, "through the tunnel");
        let down = pair.a.wg_quick("down", &file)?;
        ensure!(down.success(), "wg-quick down: {down}");
        // wg-quick deletes the link; the daemon then notices and removes its socket.
        eventually("nothing is left", Duration::from_secs(5), || Ok(pair.a.traces()? == before))
    });
}

/// A second full tunnel uses another mark and table; both end without a trace.
#[test]
fn two_default_routes() {
    scenario(|lab| {
        let (mut pair, _b) = with_the_world(lab, Outside::V4)?;
        pair.conf_a.peers[0].allowed_ips = "0.0.0.0/0".to_owned();
        let before = pair.a.traces()?;
        let first = Up::start(lab, &pair.a, &pair.conf_a)?;
        let mut conf = Conf::new("wga2")?;
        conf.addresses = vec!["10.11.0.1/24".to_owned()];
        conf.peers = vec![PeerConf::new(&Conf::new("unused")?.keys.public, "0.0.0.0/0")];
        conf.peers[0].endpoint = Some("10.2.0.2:9".to_owned());
        let second = Up::start(lab, &pair.a, &conf)?;
        let (one, two) = (first.dump()?.fwmark, second.dump()?.fwmark);
        ensure!(one != two, "both use the mark {one}");
        second.down()?;
        pair.a.reaches(WORLD[0], 10)?;
        first.down()?;
        same(&before, &pair.a.traces()?)
    });
}

/// The MTU changes under a running tunnel, from the smallest to the largest, and packets of that size pass.
#[test]
fn mtu_changes_at_run_time() {
    scenario(|lab| {
        let (pair, _b) = with_the_world(lab, Outside::V4)?;
        let up = Up::start(lab, &pair.a, &pair.conf_a)?;
        pair.a.reaches(INSIDE_B[0], 10)?;
        for mtu in [576_u32, 1280, 1420, 9000, 65_535, 577, 1421] {
            pair.a.sh(&format!("ip link set wga mtu {mtu}"))?;
            pair.b.sh(&format!("ip link set wgb mtu {mtu}"))?;
            // The size excludes 28 bytes of IPv4 and ICMP headers. UDP carries at most 65,535 bytes, so the largest
            // payload is smaller than the MTU.
            let size = (mtu - 28).min(65_000).to_string();
            pair.a.run(&["ping", "-n", "-c", "3", "-i", "0.2", "-W", "2", "-s", &size, INSIDE_B[0]])?;
        }
        ensure!(up.dump()?.peers[0].rx > 0, "alive");
        up.down()
    });
}

/// `rustguard up` compared with wg-quick: the same rules, routes and addresses from the same file.
#[test]
fn same_result_as_wg_quick() {
    scenario(|lab| {
        if subject() == Subject::WireguardGo {
            lab.skip("the comparison with wg-quick: wg-quick is the subject");
            return Ok(());
        }
        let (mut pair, _b) = with_the_world(lab, Outside::V4)?;
        pair.conf_a.peers[0].allowed_ips = "0.0.0.0/0, ::/0, 10.9.0.0/24, 10.50.0.0/16, fd50::/64".to_owned();
        let network = |node: &Node| {
            // The kernel gives every TUN device a random link-local address, which is left out.
            node.sh("ip -br addr show dev wga; ip rule; ip -6 rule; ip route show table all dev wga
                     ip -6 route show table all dev wga; wg show wga fwmark; ip -o link show dev wga | grep -o 'mtu [0-9]*'")
                .map(|text| text.split(' ').filter(|word| !word.starts_with("fe80::")).collect::<Vec<_>>().join(" "))
        };
        let up = Up::start(lab, &pair.a, &pair.conf_a)?;
        let ours = network(&pair.a)?;
        up.down()?;
        let file = lab.file("wga.conf", &pair.conf_a.wg_quick())?;
        let stock = pair.a.wg_quick("up", &file)?;
        ensure!(stock.success(), "{stock}");
        let theirs = network(&pair.a)?;
        let down = pair.a.wg_quick("down", &file)?;
        ensure!(down.success(), "{down}");
        same(&theirs, &ours)
    });
}

/// In a full tunnel, the first initiation leaves during the set-up, and its answer returns 80 ms later, when a strict
/// reverse-path filter already checks the mark.
#[test]
fn the_handshake_of_a_full_tunnel_needs_one_initiation_under_a_strict_filter() {
    scenario_of_rustguard("the handshake of `up`", |lab| {
        let mut internet = Internet::new(lab)?;
        let (a, b) = (internet.host(lab, "a", Ip::V4)?, internet.host(lab, "b", Ip::V4)?);
        for name in ["a", "b"] {
            internet.delay(name, Duration::from_millis(40))?;
        }
        a.node.sh("for each in /proc/sys/net/ipv4/conf/*/rp_filter; do echo 1 > $each; done")?;
        let (mut conf_a, mut conf_b) = (Conf::new("wga")?, Conf::new("wgb")?);
        conf_a.addresses.push(format!("{}/24", INSIDE_A[0]));
        conf_b.addresses.push(format!("{}/24", INSIDE_B[0]));
        conf_b.listen_port = Some(51_802);
        conf_a.peers.push(PeerConf::new(&conf_b.keys.public, "0.0.0.0/0"));
        conf_a.peers[0].endpoint = Some(b.at(51_802).to_string());
        conf_b.peers.push(PeerConf::new(&conf_a.keys.public, &format!("{}/32", INSIDE_A[0])));
        b.node.count("initiations", "input", "udp dport 51802 udp length 156")?;
        let _b = Tunnel::start(lab, &b.node, Program::Reference, &conf_b)?;
        let _a = Up::start(lab, &a.node, &conf_a)?;
        eventually("a session", Duration::from_secs(20), || {
            Ok(a.node.shown("wga")?["peers"][0]["latest_handshake"].is_number())
        })?;
        let initiations = b.node.counted("initiations")?;
        ensure!(initiations == 1, "{initiations} initiations: the answer to the first was lost");
        Ok(())
    });
}
