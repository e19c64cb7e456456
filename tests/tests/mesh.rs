//! Meshes of real daemons: routers that speak Babel, with each other, with babeld and BIRD, and for clients that do not.
use anyhow::{Result, ensure};
use rustguard_tests::{Lab, Mesh, Subject, eventually, scenario, subject};
use std::time::{Duration, Instant};

const SOON: Duration = Duration::from_secs(30);

/// A scenario about what only RustGuard has.
fn meshed(lab: &Lab, body: impl FnOnce(&Lab) -> Result<()>) -> Result<()> {
    if subject() == Subject::WireguardGo {
        lab.skip("routing by Babel: wireguard-go is the subject");
        return Ok(());
    }
    body(lab)
}

#[test]
fn a_line_is_one_network() {
    scenario(|lab| {
        meshed(lab, |lab| {
            let mesh = Mesh::line(lab)?;
            let [a, b, c] = ["a", "b", "c"].map(|name| mesh.get(name));
            let (a, b, c) = (a?, b?, c?);
            let before: Vec<String> =
                mesh.routers().iter().map(|router| router.node.traces()).collect::<Result<_>>()?;
            b.node.sh("sysctl -qw net.ipv4.ip_forward=0 net.ipv6.conf.all.forwarding=0")?;
            b.node.count("forwarded", "forward", "iifname wgb")?;
            let started = Instant::now();
            let mut ups = mesh.start(lab)?;
            mesh.converged()?;
            println!("from the start of the first until all reach all: {:?}", started.elapsed());

            for address in &c.inside {
                let relayed = b.relayed()?;
                a.node.run(&["ping", "-n", "-q", "-i", "0.01", "-c", "20", "-W", "1", address])?;
                let relayed = b.relayed()? - relayed;
                ensure!(relayed >= 40, "{relayed} packets relayed of 20 there and 20 back");
            }
            ensure!(b.node.counted("forwarded")? == 0, "the host of b has forwarded packets");
            for prefix in c.own() {
                let route = a.installed(&prefix)?;
                ensure!(route.contains("dev wga proto babel"), "{prefix}: {route}");
            }

            let left = Instant::now();
            ups.pop().expect("c is up").down()?;
            for prefix in c.own() {
                a.until_lost(&prefix)?;
            }
            println!("from SIGTERM of c until a has no route to it: {:?}", left.elapsed());
            while let Some(up) = ups.pop() {
                up.down()?;
            }
            b.node.run(&["nft", "delete", "table", "inet", "lab"])?;
            for (router, before) in mesh.routers().iter().zip(before) {
                let after = router.node.traces()?;
                ensure!(before == after, "{} has been changed. Before:\n{before}\nafter:\n{after}", router.name);
            }
            Ok(())
        })
    });
}

#[test]
fn a_killed_router_comes_back() {
    scenario(|lab| {
        meshed(lab, |lab| {
            let mesh = Mesh::line(lab)?;
            let mut ups = mesh.start(lab)?;
            mesh.converged()?;
            let (a, b, c) = (mesh.get("a")?, mesh.get("b")?, mesh.get("c")?);
            // Twice: the second time there are numbers of a run that was continued.
            for _ in 0..2 {
                let killed = Instant::now();
                ups[1].process()?.stop("KILL")?;
                for prefix in c.own() {
                    a.until_lost(&prefix)?;
                }
                println!("from SIGKILL of b until a has no route to c: {:?}", killed.elapsed());
                let started = Instant::now();
                ups[1] = b.start(lab)?;
                mesh.converged()?;
                println!("from the new start of b until all reach all: {:?}", started.elapsed());
            }
            Ok(())
        })
    });
}

#[test]
fn a_traceroute_shows_who_relays() {
    scenario(|lab| {
        meshed(lab, |lab| {
            let mesh = Mesh::line(lab)?;
            let (a, b, c) = (mesh.get("a")?, mesh.get("b")?, mesh.get("c")?);
            b.node.sh("sysctl -qw net.ipv4.ip_forward=1 net.ipv6.conf.all.forwarding=1")?;
            let _ups = mesh.start(lab)?;
            mesh.converged()?;
            for (family, says) in ["Time to live exceeded", "Time exceeded"].into_iter().enumerate() {
                let ping = |hops| {
                    let mut command = a.node.command("ping");
                    a.node.end_of(command.args(["-n", "-c", "1", "-W", "2", "-t", hops, &c.inside[family]]))
                };
                let ended = ping("1")?;
                let from = format!("From {}", b.inside[family]);
                ensure!(ended.stdout.contains(&from) && ended.stdout.contains(says), "{ended}");
                let ended = ping("2")?;
                ensure!(ended.success(), "two hops should do: {ended}");
            }
            Ok(())
        })
    });
}

/// Five in a ring: the way round stays when one link is lost.
#[test]
fn a_ring_goes_the_other_way_round() {
    scenario(|lab| {
        meshed(lab, |lab| {
            let mesh = Mesh::ring(lab)?;
            let _ups = mesh.start(lab)?;
            mesh.converged()?;
            let (a, b) = (mesh.get("a")?, mesh.get("b")?);
            let prefix = &b.own()[0];
            a.until_via(prefix, &["b"])?;
            a.node.run(&["ip", "link", "set", "to-b", "down"])?;
            a.until_via(prefix, &["e"])?;
            a.node.reaches(&b.inside[0], 3)?;
            a.node.run(&["ip", "link", "set", "to-b", "up"])?;
            a.until_via(prefix, &["b"])?;
            mesh.converged()
        })
    });
}
