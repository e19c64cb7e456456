//! The output for people: `trace`, `map` and the demonstrations; `status` of a server and of a joined machine.
use anyhow::{Context as _, Result, ensure};
use rustguard_tests::{Lab, Mesh, Node, network, scenario_of_rustguard};
use serde_json::Value;
use std::{fs, time::Duration};

/// A scenario about a feature that only RustGuard has.
fn ours<F: FnOnce(&Lab) -> Result<()>>(body: F) {
    scenario_of_rustguard("trace, map and demo", body);
}

/// The standard output of `rustguard` with these arguments.
fn says(node: &Node, arguments: &[&str]) -> Result<String> {
    let ended = node.end_of(node.rustguard()?.args(arguments))?;
    ensure!(ended.success(), "{arguments:?}: {ended}");
    Ok(ended.stdout)
}

fn contains(text: &str, parts: &[&str]) -> Result<()> {
    for part in parts {
        ensure!(text.contains(part), "should have `{part}`:\n{text}");
    }
    Ok(())
}

#[test]
fn trace_tells_who_is_on_the_way() {
    ours(|lab| {
        let mesh = Mesh::line(lab)?;
        let [a, b] = mesh.all(["a", "b"])?;
        b.node.sh("sysctl -qw net.ipv4.ip_forward=0 net.ipv6.conf.all.forwarding=0")?;
        let _ups = mesh.start(lab)?;
        mesh.converged()?;
        for (to, prefix, switch) in
            [("10.77.0.3", "10.77.0.3/32", "ip_forward=1"), ("fd77::3", "fd77::3/128", "conf.all.forwarding=1")]
        {
            let text = says(&a.node, &["trace", to, "-i", "wga"])?;
            let first = format!("wga: {to} is in {prefix}\n  next hop      b\n");
            contains(&text, &[&first, " 1  *\n", &format!(" 2  {to} "), switch])?;
        }
        b.node.sh("sysctl -qw net.ipv4.ip_forward=1 net.ipv6.conf.all.forwarding=1")?;
        for (to, hop) in [("10.77.0.3", "10.77.0.2"), ("fd77::3", "fd77::2")] {
            let text = says(&a.node, &["trace", to, "-i", "wga"])?;
            contains(&text, &[&format!(" 1  {hop} (b) "), &format!(" 2  {to} ")])?;
            ensure!(!text.contains('*'), "{text}");
        }
        let json: Value = serde_json::from_str(&says(&a.node, &["trace", "10.77.0.3", "-i", "wga", "--json"])?)?;
        ensure!(json["hops"][0]["name"] == "b" && json["hops"][1]["answer"] == "reached", "{json}");
        ensure!(json["hops"][2].is_null() && json["route"]["next_hops"][0] == "b", "{json}");

        // An address of this host, an unknown address, and an address that the host's routes send elsewhere.
        contains(
            &says(&a.node, &["trace", "10.77.0.1", "-i", "wga"])?,
            &["this host", "has the address and announces it"],
        )?;
        let lost = a.node.end_of(a.node.rustguard()?.args(["trace", "192.0.2.1", "-i", "wga"]))?;
        lost.refused(&["wga", "192.0.2.1", "announce"])?;
        a.node.run(&["ip", "route", "add", "10.77.0.3", "via", "10.1.0.2"])?;
        let text = says(&a.node, &["trace", "10.77.0.3", "-i", "wga"])?;
        contains(&text, &["this host's routes send 10.77.0.3 to to-b", " 2  10.77.0.3 "])?;

        // In this scenario, all interfaces share the folder of sockets.
        let which = a.node.end_of(a.node.rustguard()?.args(["trace", "10.77.0.3"]))?;
        which.refused(&["wga, wgb, wgc", "--interface"])?;
        let none = a.node.end_of(a.node.rustguard()?.args(["map", "-i", "wg-none"]))?;
        none.refused(&["wg-none.sock", "not up"])?;
        Ok(())
    });
}

#[test]
fn the_map_has_neighbours_and_what_is_behind_them() {
    ours(|lab| {
        let mut mesh = Mesh::line(lab)?;
        let phone = rustguard_tests::Keypair::generate()?;
        mesh.get_mut("a")?.add_client("phone", &phone, "10.77.0.99/32");
        let a = mesh.get("a")?;
        let _ups = mesh.start(lab)?;
        mesh.converged()?;
        let dot = says(&a.node, &["map", "-i", "wga", "--format", "dot"])?;
        let lines =
            ["\"b\\ncost ", "\\nmetric ", "10.77.0.3/32", "\"phone\\nclient, silent\\n10.77.0.99/32\"", "n2 -- n3"];
        contains(&dot, &lines)?;
        let map: Value = serde_json::from_str(&says(&a.node, &["map", "-i", "wga", "--json"])?)?;
        let nodes = map["nodes"].as_array().context("nodes")?;
        let kinds: Vec<_> = nodes.iter().filter_map(|node| node["kind"].as_str()).collect();
        ensure!(kinds == ["here", "client", "neighbour", "further"] && nodes[2]["usable"] == true, "{map}");
        let edges = map["edges"].as_array().context("edges")?;
        ensure!(edges.iter().any(|edge| (&edge["from"], &edge["to"]) == (&2.into(), &3.into())), "{map}");
        let file = lab.path("mesh.svg");
        let name = file.to_str().context("a path in UTF-8")?;
        ensure!(says(&a.node, &["map", "-i", "wga", "-o", name])?.is_empty());
        contains(&fs::read_to_string(&file)?, &["<svg ", ">b</text>", ">10.77.0.3/32</text>", ">phone</text>"])?;
        let denied = a.node.end_of(a.node.rustguard()?.args(["map", "-i", "wga", "-o", "/no/such/folder/x"]))?;
        denied.refused(&["/no/such/folder/x", "no such file"])
    });
}

#[test]
fn an_interface_without_a_protocol_has_no_map() {
    ours(|lab| {
        let node = lab.node("alone")?;
        let none = node.end_of(node.rustguard()?.args(["map"]))?;
        none.refused(&["no interface", "Routing = babel"])?;
        let conf = rustguard_tests::Conf::new("wgplain")?;
        let _up = rustguard_tests::Up::start(lab, &node, &conf)?;
        for arguments in [&["map", "-i", "wgplain"][..], &["trace", "10.0.0.1", "-i", "wgplain"]] {
            let ended = node.end_of(node.rustguard()?.args(arguments))?;
            ended.refused(&["wgplain has no routing protocol", "Routing = babel"])?;
        }
        let mut command = node.command("setpriv");
        command.args(["--reuid", "65534", "--regid", "65534", "--clear-groups"]);
        node.end_of(command.arg(rustguard_tests::rustguard()?).arg("map"))?.refused(&["may not ask", "as root"])?;
        Ok(())
    });
}

#[test]
fn the_demonstration_of_a_mesh_heals_and_leaves_a_picture() {
    ours(|lab| {
        let node = lab.node("demo")?;
        let before = node.traces()?;
        let file = lab.path("demo.svg");
        let picture = file.to_str().context("a path in UTF-8")?;
        let folder = node.end_of(node.rustguard()?.args(["demo", "mesh", "--picture", "/no/such/folder/x"]))?;
        folder.refused(&["/no/such/folder", "picture"])?;
        let text = says(&node, &["demo", "mesh", "--picture", picture])?;
        contains(&text, &["bob → cem\n", "bob → ann → eli → dia → cem\n", "  healed  ", "  found  ", picture])?;
        let svg = fs::read_to_string(&file)?;
        contains(&svg, &["all pairs connected after", ">bob – cem</text>", "nothing lost", "bad dots", " s lost<"])?;
        ensure!(before == node.traces()?, "something is left behind");
        Ok(())
    });
}

/// Two run at the same time without disturbing each other. Neither finds `nft` in its PATH.
#[test]
fn the_demonstration_of_nats_becomes_direct_and_falls_back_to_the_relay() {
    ours(|lab| {
        let node = lab.node("demo")?;
        let before = node.traces()?;
        let demos = ["first", "second"].map(|name| {
            let mut command = node.command("env");
            node.spawn(name, command.arg("PATH=/nowhere").arg(rustguard_tests::rustguard()?).args(["demo", "nat"]))
        });
        for (demo, name) in demos.into_iter().zip(["first", "second"]) {
            let ended = demo?.ended(Duration::from_secs(60))?;
            ensure!(ended.success(), "{ended}");
            let text = fs::read_to_string(lab.path(&format!("{name}.log")))?;
            let direct = "alice → router → router → bob\n";
            let relayed = "alice → router → relay → router → bob\n";
            let seen = ["alice sends to 198.51.100.3:51820", "bob sends to 198.51.100.2:51820"];
            contains(&text, &[&seen[..], &[relayed, "  silence  "]].concat())?;
            let unanswered = text.lines().find(|line| line.starts_with("  no answer  "));
            ensure!(unanswered.is_some_and(|row| row.contains('█')), "nobody noticed the block: {text}");
            let paths: Vec<_> = text.split_inclusive('\n').filter(|line| line.contains("  path  ")).collect();
            // The demonstration waits for the return to the direct path only for a limited time, so the third path is
            // not checked.
            ensure!(paths.len() == 3 && paths[0].ends_with(direct) && paths[1].ends_with(relayed), "{text}");
            for line in text.lines() {
                ensure!(line.chars().count() <= 80, "{line}");
            }
        }
        ensure!(before == node.traces()?, "something is left behind");
        Ok(())
    });
}

#[test]
fn the_demonstration_of_nats_says_what_it_needs() {
    ours(|lab| {
        let node = lab.node("demo")?;
        let before = node.traces()?;
        let nft = lab.stand_in("nft", "echo 'no nf_tables here' >&2; exit 1")?;
        let mut command = node.command("env");
        command.arg(format!("PATH={}:/usr/bin:/bin", nft.display())).arg(rustguard_tests::rustguard()?);
        node.end_of(command.args(["demo", "nat"]))?.refused(&[
            "nft",
            "nf_tables with masquerade",
            "no nf_tables here",
        ])?;
        let mut command = node.command("unshare");
        command.args(["-m", "sh", "-ec"]).arg(
            "for nft in /usr/sbin/nft /sbin/nft /usr/bin/nft; do [ ! -f $nft ] || mount --bind /dev/null $nft; done
             PATH=/nowhere exec \"$0\" demo nat",
        );
        node.end_of(command.arg(rustguard_tests::rustguard()?))?.refused(&["nft", "not installed", "nftables"])?;
        ensure!(before == node.traces()?, "something is left behind");
        Ok(())
    });
}

/// It finds `nft` without a PATH, and does not use the host's own state.
#[test]
fn the_demonstration_of_a_network_outlives_its_first_server() {
    ours(|lab| {
        let node = lab.node("demo")?;
        let before = node.traces()?;
        let mut command = node.command("env");
        command.arg("PATH=/nowhere").arg(rustguard_tests::rustguard()?).args(["demo", "network"]);
        let ended = node.spawn("network", &mut command)?.ended(Duration::from_secs(60))?;
        let text = fs::read_to_string(lab.path("network.log"))?;
        ensure!(ended.success(), "{ended}: {text}");
        contains(
            &text,
            &["alice# rustguard join 198.51.100.1:51820 --token …\n", "  joined  ", "  direct  ", "  silence  "],
        )?;
        ensure!(!text.contains("rg1-"), "a token is shown: {text}");
        let paths: Vec<_> =
            text.lines().filter_map(|line| line.trim_start().strip_prefix("path ")).map(str::trim).collect();
        let direct = "alice → router → router → bob";
        ensure!(paths == [direct, direct, "alice → router → backup → router → bob"], "{paths:?}");
        for line in text.lines() {
            ensure!(line.chars().count() <= 80, "{line}");
        }
        ensure!(before == node.traces()?, "something is left behind");
        Ok(())
    });
}

/// Without etcd, it says what it needs.
#[test]
fn the_demonstration_of_servers_outlives_a_server_and_the_store() {
    ours(|lab| {
        lab.needs("etcd", "etcd-server")?;
        let node = lab.node("demo")?;
        let before = node.traces()?;
        let ended =
            node.spawn("servers", node.rustguard()?.args(["demo", "servers"]))?.ended(Duration::from_secs(60))?;
        let text = fs::read_to_string(lab.path("servers.log"))?;
        ensure!(ended.success(), "{ended}: {text}");
        let done = ["carol has its tunnel\n", "dave has its tunnel\n", "alice knows it\n", "vpn2 makes invites again"];
        contains(&text, &[&done[..], &["does not answer", "--token …\n"]].concat())?;
        ensure!(!text.contains("rg1-"), "a token is shown: {text}");
        for line in text.lines() {
            ensure!(line.chars().count() <= 80, "{line}");
        }
        ensure!(before == node.traces()?, "something is left behind");
        let mut command = node.command("env");
        command.arg("PATH=/nowhere").arg(rustguard_tests::rustguard()?).args(["demo", "servers"]);
        node.end_of(&mut command)?.refused(&["etcd", "not installed", "etcd-server"])?;
        Ok(())
    });
}

/// After SIGKILL, the demonstration cannot end the commands that it has started.
#[test]
fn the_commands_of_a_demonstration_end_with_it_when_it_is_killed() {
    ours(|lab| {
        let node = lab.node("demo")?;
        let mut demo = node.spawn("network", node.rustguard()?.args(["demo", "network"]))?;
        let log = lab.path("network.log");
        demo.until("it has begun", Duration::from_secs(20), || Ok(demo_says(&log, "joined")))?;
        let mut commands = Vec::new();
        for task in fs::read_dir(format!("/proc/{}/task", demo.id()))? {
            let children = fs::read_to_string(task?.path().join("children"))?;
            commands.extend(children.split_whitespace().map(str::to_owned));
        }
        ensure!(commands.len() >= 3, "{commands:?}");
        demo.stop("KILL")?;
        let alive = |id: &String| std::path::Path::new("/proc").join(id).join("exe").exists();
        rustguard_tests::eventually("the commands have ended", Duration::from_secs(5), || {
            Ok(!commands.iter().any(alive))
        })
    });
}

#[test]
fn demonstrations_end_with_ctrl_c_and_leave_nothing() {
    ours(|lab| {
        let node = lab.node("demo")?;
        let before = node.traces()?;
        lab.needs("etcd", "etcd-server")?;
        let demos = [&["demo"][..], &["demo", "mesh"], &["demo", "nat"], &["demo", "network"], &["demo", "servers"]];
        for arguments in demos {
            let temporary = lab.path("temporary");
            fs::create_dir_all(&temporary)?;
            // A shell's background jobs and their children ignore SIGINT; this restores the default.
            let mut command = node.command("env");
            command.arg("--default-signal=INT").arg(rustguard_tests::rustguard()?);
            command.args(arguments).env("TMPDIR", &temporary);
            let name = arguments.join("-");
            let mut demo = node.spawn(&name, &mut command)?;
            let log = lab.path(&format!("{name}.log"));
            demo.until("it has begun", Duration::from_secs(10), || {
                Ok(["handshake", "together", "joined"].iter().any(|word| demo_says(&log, word)))
            })?;
            demo.signal("INT")?;
            let ended = demo.ended(Duration::from_secs(5))?;
            ensure!(!ended.success(), "it was interrupted: {ended}");
            ensure!(fs::read_dir(&temporary)?.next().is_none(), "a file is left behind");
            ensure!(before == node.traces()?, "something is left behind");
        }
        Ok(())
    });
}

fn demo_says(log: &std::path::Path, word: &str) -> bool {
    fs::read_to_string(log).is_ok_and(|text| text.contains(word))
}

/// On a member and on the server, the map shows the machines of the network and how each is reached.
#[test]
fn the_map_of_a_network_has_servers_and_members() {
    scenario_of_rustguard("enrolment", |lab| {
        network(lab, 2, |network| {
            let served = network.serve(lab, &["--pool", "10.150.0.0/24", "--name", "home"])?;
            let _first = network.join(lab, 1, &[&served.join_arguments()[..], &["--name", "desk"]].concat())?;
            let token = network.invite(&[])?;
            let _second = network.join(lab, 2, &["10.2.0.1", "--token", &token, "--name", "tv"])?;
            let tv = network.addresses(2)?.into_iter().next().context("an address")?;
            network.machines[0].reaches(&tv, 5)?;
            let dot = says(&network.machines[0], &["map", "-i", "rg1", "--format", "dot"])?;
            contains(
                &dot,
                &["The network home, as desk knows it", "\\nserver, direct 10.1.0.1:51820", &format!("{tv}\"")],
            )?;
            let edges = dot.lines().filter(|line| line.contains(" -- ")).count();
            ensure!(edges == 2, "the server and the other member: {dot}");
            let map: Value = serde_json::from_str(&says(&network.machines[0], &["map", "-i", "rg1", "--json"])?)?;
            let nodes = map["nodes"].as_array().context("nodes")?;
            let kinds: Vec<_> = nodes.iter().filter_map(|node| node["kind"].as_str()).collect();
            ensure!(kinds == ["here", "server", "member"] && nodes[1]["usable"] == true, "{map}");
            let map: Value = serde_json::from_str(&says(&network.server, &["map", "-i", "rgs", "--json"])?)?;
            let names: Vec<_> = map["nodes"].as_array().context("nodes")?.iter().map(|node| &node["name"]).collect();
            let mut command = network.machines[0].rustguard()?;
            let elsewhere = network.machines[0].end_of(command.args(["peer", "ls", "-i", "rg1"]))?;
            elsewhere.refused(&["member of home", "run the command on its server"])?;
            network.ask(&["peer", "tag", "TV.home.internal.", "den"])?;
            ensure!(network.status()?["peers"].to_string().contains("\"den\""), "the tag");
            ensure!(
                names[1..] == ["desk", "tv"] && map["edges"].as_array().is_some_and(|edges| edges.len() == 2),
                "{map}"
            );
            served.stop()
        })
    });
}

/// `status` of a `serve`, and of a machine that has joined it: each shows the other as present, on pages of at most 80
/// columns.
#[test]
fn status_shows_a_server_its_machines_and_a_machine_its_server() {
    scenario_of_rustguard("enrolment", |lab| {
        network(lab, 1, |network| {
            let served = network.serve(lab, &["--pool", "10.150.0.0/24", "--route", "10.99.0.0/16"])?;
            let _joined = network.join(lab, 1, &served.join_arguments())?;
            network.reaches_server(1)?;
            let machine = |arguments: &[&str]| {
                let mut command = network.machines[0].rustguard()?;
                let ended = network.machines[0].end_of(command.args(["status", "-i", "rg1"]).args(arguments))?;
                ensure!(ended.success(), "{ended}");
                Ok(ended.stdout)
            };
            let addresses = network.addresses(1)?;
            let page = machine(&[])?;
            for words in ["interface: rg1\n", &addresses[0], "routes: 10.", "10.99.0.0/16", "online", "10.1.0.1:"] {
                ensure!(page.contains(words), "{words}: {page}");
            }
            let served_page = network.ask(&["status"])?;
            ensure!(served_page.contains("online") && served_page.contains(&addresses[0]), "{served_page}");
            let listed = network.ask(&["peer", "ls"])?;
            ensure!(listed.contains("online") && listed.contains("10.1.0.2:"), "{listed}");
            // Lists are also read by scripts, so nothing in them is cut off.
            for line in [page, served_page].iter().flat_map(|page| page.lines()) {
                ensure!(line.chars().count() <= 80, "{line}");
            }
            let json: Value = serde_json::from_str(&machine(&["--json"])?)?;
            ensure!(json["addresses"][0].as_str().is_some_and(|it| it.starts_with(&addresses[0])), "{json}");
            ensure!(json["peers"][0]["connection"]["state"] == "online", "{json}");
            ensure!(json["routes"].as_array().is_some_and(|it| it.contains(&"10.99.0.0/16".into())), "{json}");
            Ok(())
        })
    });
}
