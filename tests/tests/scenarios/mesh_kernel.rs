//! Learned routes in the kernel's table: they do not capture the tunnel's own packets, they coexist with the routes of
//! another mesh, and they stay as long as they are wanted.
use anyhow::{Result, ensure};
use rustguard_tests::{Conf, Lab, Mesh, PeerConf, Router, Up, eventually, meshed, until_installed};
use std::time::Duration;

const SOON: Duration = Duration::from_secs(60);

/// a – b, where all of 10.0.0.0/8 is allowed and b announces the prefixes in `announce`.
fn pair(lab: &Lab, announce: &str) -> Result<Mesh> {
    let mut mesh = Mesh::new(lab, &["a", "b"], &[["a", "b"]])?;
    for (name, other) in [("a", "b"), ("b", "a")] {
        mesh.get_mut(name)?.peer_mut(other)?.allowed_ips = "10.0.0.0/8, fd77::/16".to_owned();
    }
    mesh.get_mut("b")?.conf.lines.push(format!("Announce = {announce}"));
    Ok(mesh)
}

/// Waits until the kernel does not have the route, and the reason is shown.
fn until_refused(router: &Router, prefix: &str, because: &str) -> Result<()> {
    eventually(&format!("{prefix} is refused"), SOON, || {
        let why = router.route(prefix)?["kernel"].as_str().unwrap_or_default().to_owned();
        Ok(router.installed(prefix)?.is_empty() && why.contains(because))
    })
}

/// A neighbour announces networks that contain its own endpoint, now or later.
#[test]
fn a_learned_route_does_not_catch_the_tunnels_own_packets() {
    meshed(|lab| {
        let mesh = pair(lab, "10.1.0.2/32, 10.1.0.0/16, 10.50.0.0/16")?;
        let (a, b) = (mesh.get("a")?, mesh.get("b")?);
        let _ups = mesh.start(lab)?;
        mesh.converged()?;
        // 10.1.0.2 is reached by the connected network 10.1.0.0/24: a learned route with a shorter prefix is harmless,
        // a longer one is not.
        until_installed(&a.node, "10.1.0.0/16")?;
        until_installed(&a.node, "10.50.0.0/16")?;
        until_refused(a, "10.1.0.2/32", "endpoint 10.1.0.2")?;
        let told = a.node.end_of(a.node.rustguard()?.args(["routes", "wga"]))?;
        ensure!(told.stdout.contains("10.1.0.2/32 is not in the kernel's table"), "{told}");
        a.node.reaches(&b.inside[0], 2)?;

        // The prefix of the host's own route becomes shorter than the learned one, and longer again.
        a.node.sh("ip route add 10.0.0.0/8 dev to-b; ip route del 10.1.0.0/24 dev to-b")?;
        until_refused(a, "10.1.0.0/16", "endpoint 10.1.0.2")?;
        a.node.reaches(&b.inside[0], 5)?;
        a.node.sh("ip route add 10.1.0.0/24 dev to-b src 10.1.0.1")?;
        until_installed(&a.node, "10.1.0.0/16")?;
        ensure!(a.route("10.1.0.0/16")?["kernel"].is_null(), "{}", a.route("10.1.0.0/16")?);

        // b moves into a learned network, and back. The reverse-path filter must not drop its packets.
        a.node.sh("for each in all to-b; do echo 0 > /proc/sys/net/ipv4/conf/$each/rp_filter; done")?;
        b.node.sh("ip addr add 10.50.0.2/24 dev to-a; ip addr del 10.1.0.2/24 dev to-a
                   ip route add 10.1.0.0/24 dev to-a src 10.50.0.2")?;
        until_refused(a, "10.50.0.0/16", "endpoint 10.50.0.2")?;
        until_installed(&a.node, "10.1.0.2/32")?;
        a.node.reaches(&b.inside[0], 5)?;
        b.node.sh(
            "ip route del 10.1.0.0/24 dev to-a; ip addr add 10.1.0.2/24 dev to-a; ip addr del 10.50.0.2/24 dev to-a",
        )?;
        until_installed(&a.node, "10.50.0.0/16")?;
        until_refused(a, "10.1.0.2/32", "endpoint 10.1.0.2")
    });
}

/// A rule for the mark keeps the tunnel's packets out of the main table: no learned route can do harm.
#[test]
fn with_a_mark_a_route_over_an_endpoint_is_harmless() {
    meshed(|lab| {
        let mut mesh = pair(lab, "10.1.0.2/32")?;
        mesh.get_mut("a")?.conf.lines.push("FwMark = 7".to_owned());
        let (a, b) = (mesh.get("a")?, mesh.get("b")?);
        a.node.sh("ip rule add fwmark 7 lookup 7; ip route add 10.1.0.0/24 dev to-b table 7")?;
        let _ups = mesh.start(lab)?;
        mesh.converged()?;
        until_installed(&a.node, "10.1.0.2/32")?;
        a.node.reaches(&b.inside[0], 2)?;
        // Without the rule, the learned route is refused.
        a.node.run(&["ip", "rule", "del", "fwmark", "7"])?;
        until_refused(a, "10.1.0.2/32", "endpoint 10.1.0.2")?;
        a.node.reaches(&b.inside[0], 5)
    });
}

/// Two meshes on two interfaces of one host share one prefix: when one mesh loses it, the kernel has the route of the
/// other.
#[test]
fn two_meshes_on_one_host_share_a_prefix() {
    meshed(|lab| {
        let shared = ["10.77.9.0/24", "fd77:9::/64"];
        let mut mesh = Mesh::new(lab, &["a", "b", "c"], &[["a", "b"], ["a", "c"]])?;
        for name in ["b", "c"] {
            mesh.get_mut(name)?.conf.lines.push(format!("Announce = {}", shared.join(", ")));
        }
        // The second interface has the second peer.
        let mut second = Conf::new("wgz")?;
        second.listen_port = Some(51_821);
        second.addresses = vec!["10.77.0.99/32".to_owned(), "fd77::99/128".to_owned()];
        second.lines = vec!["Routing = babel".to_owned()];
        second.peers.extend(mesh.get_mut("a")?.conf.peers.pop());
        let peer: &mut PeerConf = mesh.get_mut("c")?.peer_mut("a")?;
        peer.public_key.clone_from(&second.keys.public);
        peer.endpoint = Some("10.2.0.1:51821".to_owned());
        let (a, b, c) = (mesh.get("a")?, mesh.get("b")?, mesh.get("c")?);
        let _first = a.start(lab)?;
        let _second = Up::start(lab, &a.node, &second)?;
        let has = |what: &str, [first, second]: [bool; 2]| {
            eventually(what, SOON, || {
                let mut all = true;
                for prefix in shared {
                    let routes = a.installed(prefix)?;
                    all &= routes.contains("dev wga ") == first && routes.contains("dev wgz ") == second;
                }
                Ok(all)
            })
        };
        let mut ups = [b.start(lab)?, c.start(lab)?];
        has("both", [true, true])?;
        for (n, router) in [b, c].into_iter().enumerate() {
            for signal in ["TERM", "KILL"] {
                ups[n].process()?.stop(signal)?;
                has("the other", [n == 1, n == 0])?;
                ups[n] = router.start(lab)?;
                has("both again", [true, true])?;
            }
        }
        Ok(())
    });
}

/// A deleted route is added again. If it is deleted again and again, this is shown, and adding slows down.
#[test]
fn a_learned_route_is_put_back() {
    meshed(|lab| {
        let mesh = pair(lab, "10.77.9.0/24")?;
        let (a, b) = (mesh.get("a")?, mesh.get("b")?);
        let _ups = mesh.start(lab)?;
        mesh.converged()?;
        for prefix in b.own() {
            let family = if prefix.contains(':') { "-6" } else { "-4" };
            until_installed(&a.node, &prefix)?;
            // Another route replaces it with the same metric.
            a.node.run(&["ip", family, "route", "replace", &prefix, "dev", "to-b", "metric", "2048"])?;
            eventually("it is back beside the other", SOON, || Ok(a.installed(&prefix)?.contains("dev wga ")))?;
            a.node.run(&["ip", family, "route", "del", &prefix, "dev", "to-b", "metric", "2048"])?;
            for _ in 0..5 {
                a.node.run(&["ip", family, "route", "del", &prefix, "dev", "wga"])?;
                until_installed(&a.node, &prefix)?;
            }
            a.node.run(&["ip", family, "route", "del", &prefix, "dev", "wga"])?;
            until_refused(a, &prefix, "again and again")?;
        }
        // All routes are deleted at once, and the slowdown of one does not delay the others.
        until_installed(&a.node, "10.77.9.0/24")?;
        a.node.run(&["ip", "route", "flush", "proto", "babel"])?;
        until_installed(&a.node, "10.77.9.0/24")
    });
}
