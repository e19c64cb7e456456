//! The names of a network's members, asked by the resolver of the C library.
use anyhow::{Context as _, Result, ensure};
use rustguard_tests::{NameService, Network, Node, eventually, network, scenario, scenario_of_rustguard, served_log};
use std::time::Duration;

const SOON: Duration = Duration::from_secs(15);
const POOLS: [&str; 5] = ["--name", "home", "--pool", "10.60.0.0/24", "--pool=fd60::/64"];
/// The server's own addresses in the network.
const SERVER: [&str; 2] = ["10.60.0.1", "fd60::1"];

/// Waits until the node resolves the question to these answers, and to nothing else.
fn until_known(node: &Node, asked: &str, known: &[&str]) -> Result<()> {
    eventually(&format!("{asked} is {known:?}"), SOON, || Ok(node.resolved(asked)? == known))
}

/// The addresses of a peer of the server, once the network has its name.
fn addresses(network: &Network, name: &str) -> Result<Vec<String>> {
    let mut addresses = Vec::new();
    eventually(&format!("a peer called {name}"), SOON, || {
        let status = network.status()?;
        let mut peers = status["peers"].as_array().into_iter().flatten();
        let peer = peers.find(|peer| peer["label"] == name);
        let known = peer.and_then(|peer| peer["addresses"].as_array()).into_iter().flatten();
        addresses = known.filter_map(|address| Some(address.as_str()?.to_owned())).collect();
        addresses.sort();
        Ok(!addresses.is_empty())
    })?;
    Ok(addresses)
}

/// A peer is known by its name. A new name takes effect at once, and a removed peer is unknown.
#[test]
fn the_server_answers_for_the_names_of_peers() {
    scenario(|lab| {
        network(lab, 1, |network| {
            let served = network.serve(lab, &POOLS)?;
            network.ask(&["peer", "add", "Phone", "--conf", "-"])?;
            for own in SERVER {
                network.server.name_servers(&[own])?;
                let addresses = addresses(network, "phone")?;
                let addresses: Vec<&str> = addresses.iter().map(String::as_str).collect();
                ensure!(addresses.len() == 2, "{addresses:?}");
                until_known(&network.server, "phone.home.internal", &addresses)?;
                ensure!(network.server.resolved("PHONE.Home.internal")? == addresses, "names have no case");
                for address in &addresses {
                    ensure!(network.server.resolved(address)? == ["phone.home.internal"], "{address}");
                }
                let mut here = SERVER;
                here.sort_unstable();
                ensure!(network.server.resolved("home.internal")? == here, "the network itself");
                ensure!(network.server.resolved("example.com")?.is_empty(), "another name");

                network.ask(&["peer", "rename", "phone", "tablet"])?;
                until_known(&network.server, "tablet.home.internal", &addresses)?;
                ensure!(network.server.resolved("phone.home.internal")?.is_empty(), "the old name");
                network.ask(&["peer", "rm", "tablet"])?;
                until_known(&network.server, "tablet.home.internal", &[])?;
                ensure!(network.server.resolved(addresses[0])?.is_empty(), "the address of a removed peer");
                network.ask(&["peer", "add", "Phone", "--conf", "-"])?;
            }
            served.stop()?;
            ensure!(network.server.resolved("phone.home.internal")?.is_empty(), "after the end");
            Ok(())
        })
    });
}

/// Also where NAT rewrites everything that leaves this machine from the pool: its own queries do not leave it.
#[test]
fn an_exit_answers_its_own_machine() {
    scenario(|lab| {
        network(lab, 1, |network| {
            let served =
                network.serve(lab, &[&POOLS[..], &["--nat", "--route", "0.0.0.0/0", "--route", "::/0"]].concat())?;
            network.ask(&["peer", "add", "Phone", "--conf", "-"])?;
            for own in SERVER {
                network.server.name_servers(&[own])?;
                let addresses = addresses(network, "phone")?;
                let addresses: Vec<&str> = addresses.iter().map(String::as_str).collect();
                until_known(&network.server, "phone.home.internal", &addresses).with_context(|| own.to_owned())?;
            }
            served.stop()
        })
    });
}

/// Neither the network in front of the server nor a peer inside the tunnel can use it as a resolver or for
/// amplification.
#[test]
fn nobody_but_the_machine_itself_is_answered() {
    scenario(|lab| {
        network(lab, 1, |network| {
            let served = network.serve(lab, &POOLS)?;
            let _machine = network.join(lab, 1, &served.join_arguments())?;
            network.reaches_server(1)?;
            network.server.name_servers(&SERVER)?;
            until_known(&network.server, "home.internal", &SERVER)?;
            let machine = &network.machines[0];
            // At its address in the network in front, and at its tunnel addresses.
            for server in ["10.1.0.1", SERVER[0], SERVER[1]] {
                machine.name_servers(&[server])?;
                ensure!(machine.resolved("home.internal")?.is_empty(), "{server} has answered");
            }
            served.stop()
        })
    });
}

/// If another program has the port, this is reported, and the tunnel works without it.
#[test]
fn a_taken_port_is_said_and_stops_nothing() {
    scenario(|lab| {
        network(lab, 1, |network| {
            let taken = network.server.udp("0.0.0.0:53")?;
            let served = network.serve(lab, &POOLS)?;
            let _machine = network.join(lab, 1, &served.join_arguments())?;
            network.reaches_server(1)?;
            let said = "another program has port 53 there";
            eventually("a word about the port", SOON, || Ok(served_log(lab)?.contains(said)))?;
            ensure!(served_log(lab)?.matches(said).count() == 1, "once, and only for IPv4: {}", served_log(lab)?);
            network.server.name_servers(&[SERVER[1]])?;
            until_known(&network.server, "home.internal", &SERVER)?;
            drop(taken);
            served.stop()
        })
    });
}

/// systemd-resolved on the server's host asks the server for the names of the network only, also after a change of the
/// domain. The setting disappears together with the interface.
#[test]
fn resolved_of_the_servers_host_is_told_to_ask_the_server() {
    scenario_of_rustguard("names of a network", |lab| {
        network(lab, 1, |network| {
            let Some(resolved) = NameService::start(lab, &network.server)? else { return Ok(()) };
            let served = network.serve(lab, &["--name", "home", "--pool", "10.60.0.0/24"])?;
            let mut told = Vec::new();
            let mut until_told = |words: &str| {
                let mut all = Vec::new();
                eventually(words, SOON, || {
                    all.extend(resolved.told());
                    Ok(all.iter().any(|told: &String| told == words))
                })
                .with_context(|| format!("{all:?}"))?;
                told.extend(all);
                anyhow::Ok(())
            };
            until_told("SetLinkDefaultRoute false")?;
            served.stop()?;
            let served = network.serve(lab, &["--name", "office"])?;
            until_told("SetLinkDomains ~office.internal ~0.60.10.in-addr.arpa")?;
            served.stop()?;
            for expected in ["SetLinkDNS 10.60.0.1", "SetLinkDomains ~home.internal ~0.60.10.in-addr.arpa"] {
                ensure!(told.iter().any(|told| told == expected), "{expected}: {told:?}");
            }
            Ok(())
        })
    });
}
