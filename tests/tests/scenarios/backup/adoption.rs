//! An older backup on another machine, and the newest list that members have: `rustguard reload --adopt`.
use super::*;
use rustguard_tests::{Process, eventually};

/// The members on machines 1 to `last`, by the names `m1`, `m2`, …
fn members(lab: &Lab, network: &Network, last: u8) -> Result<Vec<Process>> {
    (1..=last).map(|n| member(lab, network, n)).collect()
}

fn member(lab: &Lab, network: &Network, n: u8) -> Result<Process> {
    let (name, token) = (format!("m{n}"), network.invite(&[])?);
    let process = network.join(lab, n, &["10.1.0.1", "--name", &name, "--token", &token])?;
    reaches_server(network, n.into())?;
    Ok(process)
}

fn inside(network: &Network, n: u8) -> Result<String> {
    network.addresses(n)?.into_iter().next().context("an address")
}

/// The peers of machine `n` by name, each with its entry in `show`.
fn peers(network: &Network, n: usize) -> Result<Vec<(String, Value)>> {
    let shown = network.machines[n - 1].shown(&format!("rg{n}"))?;
    let peers = shown["peers"].as_array().context("peers")?.iter();
    let mut peers: Vec<_> =
        peers.map(|peer| (peer["name"].as_str().unwrap_or_default().to_owned(), peer.clone())).collect();
    peers.sort_unstable_by(|one, other| one.0.cmp(&other.0));
    Ok(peers)
}

fn knows(network: &Network, n: usize, names: &[&str]) -> Result<()> {
    eventually(&format!("machine {n} knows {names:?}"), SOON, || {
        let all = peers(network, n)?;
        // The server is called by the name of its host.
        Ok(all.iter().filter(|(name, _)| name.starts_with('m') || name == "bureau").map(|(name, _)| name).eq(names))
    })
    .with_context(|| format!("{:?}", peers(network, n)))
}

/// How many peers of machine `n` have no preshared key.
fn without_psk(network: &Network, n: usize) -> Result<usize> {
    let keys = network.machines[n - 1].run(&["wg", "show", &format!("rg{n}"), "preshared-keys"])?;
    Ok(keys.lines().filter(|line| line.ends_with("(none)")).count())
}

fn reload(network: &Network, arguments: &[&str]) -> Result<Ended> {
    network.server.end_of(network.server.rustguard()?.args(["reload", "rgs"]).args(arguments))
}

fn problem(network: &Network) -> Result<String> {
    Ok(network.status()?["network"]["problem"].as_str().unwrap_or_default().to_owned())
}

/// The server is lost, and returns on another machine with this backup. On return, it has heard of the newest list.
/// `routes`: that machine is the router between the others, as the previous server was.
fn lost(lab: &Lab, network: &Network, served: Served, path: &Path, routes: bool) -> Result<(Network, Served)> {
    served.crash()?;
    fs::remove_dir_all(STATE)?;
    let network = another(lab, handles(network))?;
    network.server.sh(&format!("sysctl -qw net.ipv4.ip_forward={}", u8::from(routes)))?;
    network.ask(&["serve", "restore", text(path)?])?;
    let served = network.serve(lab, &[])?;
    eventually("a member tells of the newest list", SOON, || Ok(problem(&network)?.contains("that is an older copy")))?;
    let problem = problem(&network)?;
    ensure!(problem.contains("rustguard reload rgs --adopt"), "{problem}");
    Ok((network, served))
}

/// Since the backup, a member has joined, one was removed, one has changed its key and one its name. Adoption undoes
/// none of these changes, and no machine has to join again.
#[test]
fn the_newest_list_is_adopted_and_nobody_joins_again() {
    scenario(|lab| {
        network(lab, 5, |network| {
            network.server.sh("sysctl -qw net.ipv4.ip_forward=1")?;
            let served = network.serve(lab, &["--star=off", "--endpoint", "10.1.0.1"])?;
            let mut running = members(lab, network, 4)?;
            let path = back_up(lab, network, "old")?;
            running.push(member(lab, network, 5)?);
            for n in 1..=4 {
                network.machines[4].reaches(&inside(network, n)?, TRIES)?;
            }
            let stolen = inside(network, 2)?;
            network.ask(&["peer", "rm", "m2"])?;
            let rotated =
                network.machines[2].end_of(network.machines[2].rustguard()?.args(["key", "rotate", "rg3"]))?;
            ensure!(rotated.success(), "{rotated}");
            network.ask(&["peer", "rename", "m4", "bureau"])?;
            network.ask(&["peer", "tag", "m1", "ci"])?;
            let key = network.machines[2].run(&["wg", "show", "rg3", "public-key"])?.trim().to_owned();
            for n in [1, 3, 4, 5] {
                let names: Vec<_> = [(1, "m1"), (3, "m3"), (4, "bureau"), (5, "m5")]
                    .into_iter()
                    .filter(|(other, _)| *other != n)
                    .collect();
                let mut names: Vec<_> = names.into_iter().map(|(_, name)| name).collect();
                names.sort_unstable();
                knows(network, n, &names)?;
            }
            // While the server is away, the late machine needs a direct path to another member.
            eventually("a direct path of the late machine", SOON, || {
                // Members look for a direct path only when there is traffic.
                network.machines[4].reaches(&inside(network, 1)?, TRIES)?;
                let direct = |(name, peer): &(String, Value)| name == "m1" && peer["through"].is_null();
                Ok(peers(network, 5)?.iter().any(direct))
            })?;
            let issued = roster(network)?;

            let (network, served) = lost(lab, network, served, &path, true)?;
            let said = problem(&network)?;
            for words in
                ["does not have m5", "still has m2, removed since", "present keys of m3", "of m1, m4", "--restored"]
            {
                let sorted = said.replace("m4, m1", "m1, m4");
                ensure!(sorted.contains(words), "{words}: {said}");
            }
            let late = inside(&network, 5)?;
            // Addresses and names that the list gives to the late machine are given to nobody else.
            network.try_ask(&["peer", "add", "phone", "--conf", "-"])?.refused(&["this server has it", "not told"])?;
            let before = names(&network)?;
            let shown = reload(&network, &["--adopt", "--dry-run"])?;
            for line in [
                &format!("+ m5 {late}"),
                &format!("- m2 {stolen}"),
                "~ m3 key ",
                "~ m4 name m4 → bureau",
                "~ m1 tags none → ci",
                "nothing was changed; to adopt list",
            ] {
                ensure!(shown.success() && shown.stdout.contains(line), "{line}: {shown}");
            }
            ensure!(names(&network)? == before && !problem(&network)?.is_empty(), "a dry run has changed something");
            let both = reload(&network, &["--adopt", "--restored"])?;
            ensure!(!both.success() && both.stderr.contains("cannot be used with '--restored'"), "{both}");
            let done = reload(&network, &["--adopt"])?;
            ensure!(done.success() && done.stdout.contains("~ m4 name m4 → bureau"), "{done}");
            ensure!(problem(&network)?.is_empty() && roster(&network)? > issued, "{}", network.status()?);
            reload(&network, &["--adopt"])?.refused(&["there is nothing to adopt"])?;

            for n in [1, 3, 4, 5] {
                reaches_server(&network, n)?;
            }
            for (n, others) in [
                (1, ["bureau", "m3", "m5"]),
                (3, ["bureau", "m1", "m5"]),
                (4, ["m1", "m3", "m5"]),
                (5, ["bureau", "m1", "m3"]),
            ] {
                knows(&network, n, &others)?;
                for other in [1_u8, 3, 4, 5].into_iter().filter(|other| usize::from(*other) != n) {
                    network.machines[n - 1].reaches(&inside(&network, other)?, TRIES)?;
                }
            }
            let known = network.ask(&["peer", "ls", "--json"])?;
            ensure!(known.contains(&key), "the key of the third: {known}");
            ensure!(without_psk(&network, 5)? == 1 && without_psk(&network, 1)? == 0, "with the server alone");
            eventually("the removed machine is out", SOON, || {
                let server = network.server_addresses()?.remove(0);
                Ok(!network.machines[1].answers(&server) && !network.machines[1].answers(&late))
            })?;
            network.audited("list-adopted", 1)?;
            // The latest event counts, because the phone was added before.
            for (event, times, name) in [("peer-added", 2, "m5"), ("removed", 1, "m2"), ("key-rotated", 1, "m3")] {
                ensure!(network.audited(event, times)?["name"] == name, "{event} of {name}");
            }

            // Joining again, while the tunnel is up, brings a preshared key.
            let token = network.invite(&[])?;
            let again = network.machines[4]
                .end_of(network.join_command(5, &["10.1.0.1", "--name", "m5", "--token", &token])?.arg("--detach"))?;
            ensure!(again.success(), "{again}");
            eventually("a preshared key", SOON, || Ok(without_psk(&network, 5)? == 0))?;
            reaches_server(&network, 5)?;
            network.machines[0].reaches(&late, TRIES)?;
            ensure!(names(&network)? == ["bureau", "m1", "m3", "m5", "phone"], "{:?}", names(&network)?);
            eventually("the note of the lost key goes", SOON, || {
                Ok(!Path::new("/var/lib/rustguard/rg5/lost-psk").exists())
            })?;
            drop(running);
            served.stop()
        })
    });
}

/// A machine that reaches only the server does not receive the newer list. One command brings it back under its name
/// and address, while its tunnel is up.
#[test]
fn a_late_machine_with_no_way_to_the_list_joins_again_in_one_command() {
    scenario(|lab| {
        network(lab, 2, |network| {
            let served = network.serve(lab, &["--star=off", "--endpoint", "10.1.0.1"])?;
            let first = member(lab, network, 1)?;
            let path = back_up(lab, network, "old")?;
            let late = member(lab, network, 2)?;
            network.machines[0].reaches(&inside(network, 2)?, TRIES)?;
            knows(network, 1, &["m2"])?;
            // Outside the tunnel, the two reach only the server.
            let (network, served) = lost(lab, network, served, &path, false)?;
            let done = reload(&network, &["--adopt"])?;
            ensure!(done.success() && done.stdout.contains("+ m2 "), "{done}");
            let address = inside(&network, 2)?;
            let token = network.invite(&[])?;
            let again = network.machines[1]
                .end_of(&mut network.join_command(2, &["10.1.0.1", "--name", "m2", "--token", &token])?)?;
            ensure!(again.success(), "{again}");
            reaches_server(&network, 2)?;
            ensure!(inside(&network, 2)? == address && names(&network)? == ["m1", "m2"], "{:?}", names(&network)?);
            network.machines[0].reaches(&address, TRIES)?;
            ensure!(without_psk(&network, 2)? == 0, "a session without a preshared key");
            drop((first, late));
            served.stop()
        })
    });
}

/// Since the backup, a further server has joined, and there is a policy. That server remains a server. A list does not
/// contain the policy file: `--dry-run` warns that members enforce a policy. Once the file is back, the policy stays in
/// force.
#[test]
fn a_further_server_and_a_policy_since_the_backup() {
    const POLICY: &str = "/etc/rustguard/rgs.policy";
    scenario(|lab| {
        network(lab, 3, |network| {
            network.server.sh("sysctl -qw net.ipv4.ip_forward=1")?;
            let served = network.serve(lab, &["--star=off", "--endpoint", "10.1.0.1"])?;
            let first = member(lab, network, 1)?;
            let path = back_up(lab, network, "old")?;
            let token = network.invite(&["--server"])?;
            let further =
                network.join(lab, 2, &["10.1.0.1", "--name", "m2", "--endpoint", "10.2.0.2", "--token", &token])?;
            reaches_server(network, 2)?;
            let late = member(lab, network, 3)?;
            let inside = [1, 2, 3].map(|n| inside(network, n)).into_iter().collect::<Result<Vec<_>>>()?;
            knows(network, 1, &["m2", "m3"])?;
            network.machines[0].reaches(&inside[2], TRIES)?;
            network.machines[2].reaches(&inside[0], TRIES)?;
            let policy = "allow m1 -> *\nallow m2 -> *\nallow m3 -> m2\n";
            fs::create_dir_all("/etc/rustguard")?;
            fs::write(POLICY, policy)?;
            let reloaded = reload(network, &[])?;
            ensure!(reloaded.success(), "{reloaded}");
            let is_enforced = |network: &Network| {
                eventually("the policy is enforced", SOON, || Ok(!network.machines[2].answers(&inside[0])))?;
                network.machines[0].reaches(&inside[2], TRIES)?;
                network.machines[2].reaches(&inside[1], TRIES)
            };
            is_enforced(network)?;

            fs::remove_file(POLICY)?;
            let (network, served) = lost(lab, network, served, &path, true)?;
            let shown = reload(&network, &["--adopt", "--dry-run"])?;
            for (n, words) in [(2, ", a further server (its preshared key"), (3, ", a member (its preshared key")] {
                let line = format!("+ m{n} {}", inside[n - 1]);
                let line = shown.stdout.lines().find(|said| said.starts_with(&line));
                ensure!(shown.success() && line.is_some_and(|line| line.contains(words)), "{words}: {shown}");
            }
            ensure!(shown.stderr.contains("members enforce a policy") && shown.stderr.contains(POLICY), "{shown}");
            // Until the file is there again, nobody may do more than before.
            network.machines[2].reaches(&inside[0], 1).err().context("the policy is enforced")?;
            fs::write(POLICY, policy)?;
            reload(&network, &[])?.refused(&["this server has it", "not told", "--adopt"])?;
            let done = reload(&network, &["--adopt"])?;
            ensure!(done.success() && !done.stderr.contains("policy"), "{done}");
            let known: Value = serde_json::from_str(&network.ask(&["peer", "ls", "--json"])?)?;
            let servers: Vec<_> =
                known.as_array().context("a list")?.iter().filter(|peer| peer["server"] == true).collect();
            ensure!(servers.len() == 1 && servers[0]["name"] == "m2", "{known}");
            is_enforced(&network)?;
            network.machines[0].reaches(&inside[1], TRIES)?;
            drop((first, further, late));
            served.stop()
        })
    });
}
