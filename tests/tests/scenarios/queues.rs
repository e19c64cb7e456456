//! The data path's options as users set them: queues with one worker each, and offload off; by flag, by environment, in
//! the background and under stock `wg`.
use anyhow::{Context as _, Result, ensure};
use rustguard_tests::{
    Ended, HUB_A, HUB_B, HUB_C, Hub, INSIDE_B, Lab, Node, Outside, Pair, Program, Subject, Tunnel, Up, eventually,
    scenario, subject, transfer,
};
use std::{ffi::OsString, fs, time::Duration};

/// This package's traffic generator.
const TRAFFIC: &str = env!("CARGO_BIN_EXE_traffic");
const SOON: Duration = Duration::from_secs(10);

/// A scenario about options that the reference does not have.
fn options(lab: &Lab, body: impl FnOnce(&Lab) -> Result<()>) -> Result<()> {
    if subject() == Subject::WireguardGo {
        lab.skip("rustguard's options: wireguard-go is the subject");
        return Ok(());
    }
    body(lab)
}

fn set(name: &'static str, value: &str) -> [(&'static str, OsString); 1] {
    [(name, value.into())]
}

/// The workers of an interface, by their thread names: no other scenario's processes are visible here.
fn workers(interface: &str) -> Result<Vec<String>> {
    let mut names = Vec::new();
    for process in fs::read_dir("/proc")?.flatten() {
        // A process may end while it is examined.
        let Ok(threads) = fs::read_dir(process.path().join("task")) else { continue };
        for thread in threads.flatten() {
            let name = fs::read_to_string(thread.path().join("comm")).unwrap_or_default().trim_end().to_owned();
            if name.starts_with(&format!("rg-{interface}")) && !name.ends_with("-ctl") {
                names.push(name);
            }
        }
    }
    names.sort();
    Ok(names)
}

fn two_workers(interface: &str) -> Result<()> {
    let expected = [format!("rg-{interface}"), format!("rg-{interface}-1")];
    let mut names = Vec::new();
    // A thread sets its own name, so it may take a moment.
    eventually("two workers", SOON, || {
        names = workers(interface)?;
        Ok(names == expected)
    })
    .with_context(|| format!("workers: {names:?}"))
}

/// `rustguard …` to its end, in at most 20 s.
fn rustguard(node: &Node, arguments: &[&str], environment: &[(&str, OsString)]) -> Result<Ended> {
    let program = node.rustguard()?;
    let mut command = node.command("timeout");
    // The program's path is the last argument of `ip netns exec NODE`.
    command.arg("20").args(program.get_args().last()).args(arguments);
    command.envs(environment.iter().map(|(name, value)| (name, value)));
    node.end_of(&mut command)
}

fn every_way(hub: &Hub) -> Result<()> {
    for family in [0, 1] {
        for end in [HUB_A[family], HUB_C[family]] {
            hub.b.reaches(end, 10)?;
        }
        for node in [&hub.a, &hub.c] {
            node.reaches(HUB_B[family], 10)?;
        }
        hub.a.reaches(HUB_C[family], 10)?;
        hub.c.reaches(HUB_A[family], 3)?;
    }
    Ok(())
}

#[test]
fn two_queues_are_two_workers_and_outlive_a_new_port_and_mark() {
    scenario(|lab| {
        options(lab, |lab| {
            let hub = Hub::new(lab)?;
            hub.forward(true)?;
            let (_a, b, _c) = hub.start(lab, Program::Reference, &set("RUSTGUARD_QUEUES", "2"))?;
            two_workers("wgb")?;
            every_way(&hub)?;
            hub.b.count("marked", "output", "udp sport 51900 meta mark 0x77")?;
            hub.b.count("unmarked", "output", "udp sport 51900 meta mark != 0x77")?;
            hub.b.sh("wg set wgb listen-port 51900")?;
            ensure!(b.dump()?.listen_port == 51_900, "wg should show the new port");
            // The old port is closed on all queues.
            let sockets = || hub.b.run(&["ss", "-Hlun", "sport", "=", "51802"]);
            eventually("the old sockets are closed", SOON, || Ok(sockets()?.is_empty()))?;
            let sockets = hub.b.run(&["ss", "-4Hlun", "sport", "=", "51900"])?;
            ensure!(sockets.lines().count() == 2, "one socket for each worker: {sockets}");
            // B sends first, so the others learn the port.
            every_way(&hub)?;
            two_workers("wgb")?;
            hub.b.sh("wg set wgb fwmark 0x77")?;
            let unmarked = hub.b.counted("unmarked")?;
            every_way(&hub)?;
            ensure!(hub.b.counted("marked")? > 0, "nothing was marked");
            ensure!(hub.b.counted("unmarked")? == unmarked, "one of the workers' sockets has no mark");
            b.down()
        })
    });
}

/// By flag and by environment, with `--detach`, and down again.
#[test]
fn options_survive_the_way_into_the_background() {
    scenario(|lab| {
        options(lab, |lab| {
            let hub = Hub::new(lab)?;
            let file = lab.file("wgb.conf", &hub.conf_b.wg_quick())?.display().to_string();
            let _a = Tunnel::start(lab, &hub.a, Program::Reference, &hub.conf_a)?;
            for (flags, environment, relayed) in [
                (&["--queues", "2", "--relay=off", "--offload", "off"][..], vec![], false),
                (&[], [set("RUSTGUARD_QUEUES", "2"), set("RUSTGUARD_RELAY", "off")].concat(), false),
                // The command line takes precedence.
                (
                    &["--queues=2", "--relay", "auto"],
                    [set("RUSTGUARD_QUEUES", "1"), set("RUSTGUARD_RELAY", "off")].concat(),
                    true,
                ),
            ] {
                let up = rustguard(&hub.b, &[&["up", "--detach"], flags, &[&file]].concat(), &environment)?;
                ensure!(up.success(), "up --detach {flags:?}: {up}");
                two_workers("wgb")?;
                hub.forward(true)?;
                let c = Tunnel::start(lab, &hub.c, Program::Reference, &hub.conf_c)?;
                hub.a.reaches(HUB_C[0], 30)?;
                for _ in 0..5 {
                    hub.a.reaches(HUB_C[0], 2)?;
                }
                if relayed {
                    // Until the device knows that the host forwards, the host forwards the packets itself.
                    eventually("packets are relayed", SOON, || {
                        hub.a.reaches(HUB_C[0], 2)?;
                        Ok(hub.relayed()? > 0)
                    })
                    .with_context(|| format!("{flags:?}, {environment:?}"))?;
                } else {
                    ensure!(hub.relayed()? == 0, "{flags:?}, {environment:?}: {} relayed", hub.relayed()?);
                }
                drop(c);
                let down = rustguard(&hub.b, &["down", &file], &[])?;
                ensure!(down.success(), "down: {down}");
                ensure!(workers("wgb")?.is_empty(), "still there: {:?}", workers("wgb")?);
            }
            Ok(())
        })
    });
}

/// `rustguard INTERFACE`, as wg-quick runs it: options can come only from the environment.
#[test]
fn the_bare_interface_takes_its_options_from_the_environment() {
    scenario(|lab| {
        options(lab, |lab| {
            let node = lab.node("a")?;
            let started = rustguard(&node, &["--userspace", "wgx"], &set("RUSTGUARD_QUEUES", "2"))?;
            ensure!(started.success(), "{started}");
            two_workers("wgx")?;
            node.run(&["ip", "link", "del", "wgx"])?;
            eventually("it ends with its interface", SOON, || Ok(workers("wgx")?.is_empty()))?;
            let refused = rustguard(&node, &["--userspace", "wgx"], &set("RUSTGUARD_QUEUES", "many"))?;
            ensure!(refused.status.code() == Some(2), "{refused}");
            refused.says(&["RUSTGUARD_QUEUES", "many"])?;
            let left = node.sh("ls /run/rustguard")?;
            ensure!(left.trim().is_empty(), "left behind: {left}");
            Ok(())
        })
    });
}

/// Packets are handled one by one: slower, with the same result.
#[test]
fn without_offload_streams_arrive_both_ways() {
    scenario(|lab| {
        options(lab, |lab| {
            let pair = Pair::new(lab, Outside::V4)?;
            let _b = Tunnel::start(lab, &pair.b, Program::Reference, &pair.conf_b)?;
            let _a = Up::start_with(lab, &pair.a, &pair.conf_a, &set("RUSTGUARD_OFFLOAD", "off"))?;
            pair.a.reaches(INSIDE_B[0], 10)?;
            for family in [0, 1] {
                transfer(TRAFFIC, &pair.a, &pair.b, INSIDE_B[family])?;
                transfer(TRAFFIC, &pair.b, &pair.a, rustguard_tests::INSIDE_A[family])?;
            }
            Ok(())
        })
    });
}

/// Several sockets of one tunnel share a port, but never with another program.
#[test]
fn a_port_that_is_taken_is_refused_with_several_queues_too() {
    scenario(|lab| {
        options(lab, |lab| {
            let hub = Hub::new(lab)?;
            let mut taken = hub.conf_a.clone();
            taken.listen_port = hub.conf_b.listen_port;
            for holder in [Program::Reference, Program::Subject] {
                // In the second run, the holder also shares its port between two sockets.
                let (_tunnel, _up) = match holder {
                    Program::Reference => (Some(Tunnel::start(lab, &hub.b, holder, &taken)?), None),
                    Program::Subject => {
                        (None, Some(Up::start_with(lab, &hub.b, &taken, &set("RUSTGUARD_QUEUES", "2"))?))
                    }
                };
                let before = hub.b.traces()?;
                let file = lab.file("wgb.conf", &hub.conf_b.wg_quick())?.display().to_string();
                rustguard(&hub.b, &["up", "--queues", "2", &file], &[])?.refused(&["51802"])?;
                // The holder may still be adding routes to its own interface.
                let after = hub.b.traces()?;
                let left = after.lines().find(|line| !line.contains(&taken.interface) && !before.contains(line));
                ensure!(left.is_none(), "this was left behind: {left:?}");
            }
            Ok(())
        })
    });
}
