//! `rustguard reload` and SIGHUP: a running tunnel takes over its edited file completely or not at all, and sessions
//! continue.
use anyhow::{Context as _, Result, ensure};
use rustguard_tests::{
    Conf, Ended, INSIDE_A, INSIDE_B, Keypair, Lab, Network, Node, Outside, Pair, PeerConf, Program, Tunnel, Up,
    eventually, preshared_key, scenario_of_rustguard,
};
use serde_json::{Value, json};
use std::{
    ffi::OsString,
    fs,
    os::unix::{fs::PermissionsExt as _, net::UnixDatagram},
    process::Command,
    time::{Duration, UNIX_EPOCH},
};

const SOON: Duration = Duration::from_secs(20);
/// A network behind `b`, which a reload adds to the file of `a`.
const BEHIND_B: &str = "192.0.2.1";

/// Lines with which a tunnel may start programs later; other tunnels give up this right (`sandbox.rs`).
fn may_start_programs() -> Vec<String> {
    vec!["PostUp = true".to_owned()]
}

/// A running pair with a session. `a` is the subject, `b` is wireguard-go.
struct Running {
    pair: Pair,
    a: Up,
    b: Tunnel,
}

impl Running {
    fn start(lab: &Lab) -> Result<Self> {
        Self::start_with(lab, Pair::new(lab, Outside::V4)?, &[])
    }

    fn start_with(lab: &Lab, pair: Pair, environment: &[(&str, OsString)]) -> Result<Self> {
        pair.b.sh(&format!("ip addr add {BEHIND_B}/32 dev lo"))?;
        let b = Tunnel::start(lab, &pair.b, Program::Reference, &pair.conf_b)?;
        let a = Up::start_with(lab, &pair.a, &pair.conf_a, environment)?;
        pair.a.reaches(INSIDE_B[0], 10)?;
        let running = Self { pair, a, b };
        // `wg` shows whole seconds: another handshake in the same second would be invisible.
        let [ours, theirs] = running.handshakes()?;
        eventually("the second after the handshake", SOON, || Ok(UNIX_EPOCH.elapsed()?.as_secs() > ours.max(theirs)))?;
        Ok(running)
    }

    /// Writes the configuration of `a` to its file.
    fn edit(&self, lab: &Lab) -> Result<()> {
        lab.file("wga.conf", &self.pair.conf_a.wg_quick()).map(drop)
    }

    /// Runs `rustguard reload` with these arguments.
    fn try_reload(&self, arguments: &[&str]) -> Result<Ended> {
        self.pair.a.end_of(self.pair.a.rustguard()?.arg("reload").args(arguments))
    }

    /// Edits the file and takes it over. Returns the changes in words.
    fn reload(&self, lab: &Lab) -> Result<String> {
        self.edit(lab)?;
        let ended = self.try_reload(&["wga"])?;
        ensure!(ended.success(), "reload: {ended}");
        Ok(ended.stdout)
    }

    /// The start time of the session with `b`, as both sides report it.
    fn handshakes(&self) -> Result<[u64; 2]> {
        let b = &self.pair.conf_b.keys.public;
        let a = &self.pair.conf_a.keys.public;
        Ok([self.a.dump()?.peer(b)?.latest_handshake, self.b.dump()?.peer(a)?.latest_handshake])
    }

    /// The state of `a`'s host, and its device from `wg showconf`.
    fn state(&self) -> Result<String> {
        let state = self.pair.a.traces()? + &self.pair.a.sh("wg showconf wga; ip link show dev wga")?;
        // The order of files in a folder varies.
        let mut lines: Vec<_> = state.lines().collect();
        lines.sort_unstable();
        Ok(lines.join("\n"))
    }

    /// Checks that nothing has changed since `before`, and packets still pass.
    fn is_as_before(&self, before: &str) -> Result<()> {
        let after = self.state()?;
        let extra: Vec<_> = after.lines().filter(|line| !before.lines().any(|other| other == *line)).collect();
        let missing: Vec<_> = before.lines().filter(|line| !after.lines().any(|other| other == *line)).collect();
        ensure!(before == after, "new: {extra:#?}\nmissing: {missing:#?}");
        self.pair.a.reaches(INSIDE_B[0], 1)
    }
}

/// Everything that a tunnel could leave on this node. The folders in `/run` also contain the socket of `b`.
fn traces(node: &Node) -> Result<String> {
    let traces = node.traces()?;
    Ok(traces.lines().filter(|line| !line.ends_with("/wgb.sock")).map(|line| format!("{line}\n")).collect())
}

fn says(text: &str, lines: &[&str]) -> Result<()> {
    for line in lines {
        ensure!(text.lines().any(|said| said.starts_with(line)), "\"{line}\" is missing in\n{text}");
    }
    Ok(())
}

#[test]
fn every_kind_of_change_keeps_the_session() {
    scenario_of_rustguard("reload", |lab| {
        let record = lab.path("resolvconf.txt");
        let script = format!("echo \"called $*\" >> {0}; [ \"$1\" != -a ] || cat >> {0}", record.display());
        let mut path = lab.stand_in("resolvconf", &script)?.into_os_string();
        path.push(":");
        path.push(std::env::var_os("PATH").unwrap_or_default());
        let mut pair = Pair::new(lab, Outside::V4)?;
        pair.conf_a.lines = may_start_programs();
        let clean = traces(&pair.a)?;
        let mut running = Running::start_with(lab, pair, &[("PATH", path)])?;
        let began = running.handshakes()?;

        let (psk, third) = (preshared_key()?, Keypair::generate()?.public);
        let conf = &mut running.pair.conf_a;
        conf.addresses = vec!["10.9.0.1/24".into(), "10.77.0.1/32".into(), "fd09::1/64".into()];
        conf.lines = vec!["MTU = 1380".into(), "DNS = 10.9.0.2, corp.example".into(), "FwMark = 0x7".into()];
        conf.listen_port = Some(51_811);
        conf.peers[0].allowed_ips = format!("{}, {BEHIND_B}/32", INSIDE_B.join(", "));
        conf.peers[0].persistent_keepalive = Some(5);
        conf.peers[0].preshared_key = Some(psk.clone());
        conf.peers.push(PeerConf::new(&third, "10.88.0.0/16"));
        running.edit(lab)?;
        let before = running.state()?;
        let dry = running.try_reload(&["--dry-run", "wga"])?;
        ensure!(dry.success(), "{dry}");
        running.is_as_before(&before)?;
        let told = running.reload(lab)?;
        for text in [&dry.stdout, &told] {
            ensure!(!text.contains(&psk), "the preshared key is shown: {text}");
            says(
                text,
                &[
                    "+ Address 10.77.0.1/32",
                    "~ MTU automatic → 1380",
                    "+ DNS 10.9.0.2",
                    "+ DNS search domains corp.example",
                    "~ FwMark automatic → 0x7",
                    "~ ListenPort 51801 → 51811",
                    &format!("+ peer {third}: AllowedIPs 10.88.0.0/16"),
                    &format!("+ peer {}: AllowedIPs {BEHIND_B}/32", running.pair.conf_b.keys.public),
                    &format!("~ peer {}: PersistentKeepalive off → 5 s", running.pair.conf_b.keys.public),
                    &format!("+ peer {}: PresharedKey", running.pair.conf_b.keys.public),
                ],
            )?;
        }
        running.pair.a.reaches(BEHIND_B, 1)?;
        ensure!(running.handshakes()? == began, "there was another handshake");
        let dump = running.a.dump()?;
        ensure!(dump.listen_port == 51_811 && dump.fwmark == "0x7" && dump.peers.len() == 2, "{dump:?}");
        let shown = running.pair.a.sh("ip -br addr show dev wga; ip route show dev wga; ip link show dev wga")?;
        for word in ["10.77.0.1/32", "10.88.0.0/16", "192.0.2.1", "mtu 1380"] {
            ensure!(shown.contains(word), "no {word}: {shown}");
        }
        ensure!(fs::read_to_string(&record)?.contains("nameserver 10.9.0.2"), "DNS was not set");
        ensure!(running.b.dump()?.peers[0].endpoint == "10.1.0.2:51811", "b should have learned the new port");

        // And back again.
        let conf = &mut running.pair.conf_a;
        conf.addresses.remove(1);
        conf.lines.clear();
        conf.listen_port = Some(51_801);
        conf.peers.pop();
        conf.peers[0].allowed_ips = INSIDE_B.join(", ");
        (conf.peers[0].persistent_keepalive, conf.peers[0].preshared_key) = (None, None);
        running.reload(lab)?;
        running.pair.a.reaches(INSIDE_B[0], 1)?;
        ensure!(running.handshakes()? == began, "there was another handshake");
        let last = fs::read_to_string(&record)?;
        ensure!(last.trim_end().lines().last().is_some_and(|line| line.starts_with("called -d")), "DNS stays: {last}");
        running.a.down()?;
        let after = traces(&running.pair.a)?;
        ensure!(after == clean, "before:\n{clean}\nafter:\n{after}");
        Ok(())
    });
}

#[test]
fn four_streams_go_on_while_everything_changes() {
    scenario_of_rustguard("reload", |lab| {
        let mut running = Running::start(lab)?;
        let _server = running.pair.b.spawn("iperf3-server", running.pair.b.command("iperf3").args(["-s", "-1"]))?;
        eventually("iperf3 listens", SOON, || Ok(running.pair.b.sh("ss -ltn")?.contains(":5201")))?;
        let began = running.handshakes()?;
        let spare = Keypair::generate()?.public;
        let mut client = running
            .pair
            .a
            .spawn("iperf3", running.pair.a.command("iperf3").args(["-c", INSIDE_B[0], "-P", "4", "-t", "6", "-J"]))?;
        let established = "ss -tn state established | grep -c 10.9.0.2:5201 || true";
        client.until("four streams", SOON, || Ok(running.pair.a.sh(established)?.trim().parse::<u32>()? >= 4))?;
        for round in 0..8_u16 {
            let odd = round % 2 == 1;
            let conf = &mut running.pair.conf_a;
            conf.listen_port = Some(51_801 + round);
            conf.addresses = vec![format!("{}/{}", INSIDE_A[0], if odd { 32 } else { 24 }), "fd09::1/64".into()];
            conf.lines = vec![format!("MTU = {}", 1400 - 4 * round)];
            conf.peers.truncate(1);
            conf.peers[0].persistent_keepalive = odd.then_some(10);
            // A network moves from one peer to another and back.
            let moving = "10.99.0.0/16";
            conf.peers[0].allowed_ips =
                [INSIDE_B[0], INSIDE_B[1]].into_iter().chain(odd.then_some(moving)).collect::<Vec<_>>().join(", ");
            if !odd {
                conf.peers.push(PeerConf::new(&spare, moving));
            }
            running.reload(lab)?;
        }
        let ended = client.ended(SOON)?;
        ensure!(ended.success(), "iperf3: {ended}");
        let report: Value = serde_json::from_str(&ended.stderr).context(ended.stderr.clone())?;
        let streams = report.pointer("/end/streams").and_then(Value::as_array).context("streams")?;
        ensure!(streams.len() == 4, "{} streams", streams.len());
        for stream in streams {
            let bytes = stream.pointer("/receiver/bytes").and_then(Value::as_u64).unwrap_or(0);
            ensure!(bytes > 0, "a stream without a byte: {stream}");
        }
        ensure!(running.handshakes()? == began, "there was another handshake");
        Ok(())
    });
}

#[test]
fn a_default_route_comes_and_goes() {
    scenario_of_rustguard("reload", |lab| {
        let mut pair = Pair::new(lab, Outside::V4)?;
        pair.conf_a.lines = may_start_programs();
        let mut running = Running::start_with(lab, pair, &[])?;
        let before = running.state()?;
        running.pair.conf_a.peers[0].allowed_ips = "0.0.0.0/0, ::/0".to_owned();
        running.reload(lab)?;
        running.pair.a.reaches(BEHIND_B, 2)?;
        ensure!(running.a.dump()?.fwmark == "0xca6c", "the sockets should carry the mark");
        running.pair.conf_a.lines = vec!["FwMark = 99".to_owned()];
        running.reload(lab)?;
        running.pair.a.reaches(BEHIND_B, 2)?;
        let rules = running.pair.a.sh("ip rule; nft list ruleset")?;
        ensure!(rules.contains("0x63") && !rules.contains("0xca6c"), "the old mark stays: {rules}");
        running.pair.conf_a.lines.clear();
        running.pair.conf_a.peers[0].allowed_ips = INSIDE_B.join(", ");
        running.reload(lab)?;
        running.is_as_before(&before)?;
        running.a.down()
    });
}

#[test]
fn what_wg_set_has_made_goes_and_a_peer_that_has_moved_stays() {
    scenario_of_rustguard("reload", |lab| {
        let mut running = Running::start(lab)?;
        let (b, stranger) = (running.pair.conf_b.keys.public.clone(), Keypair::generate()?.public);
        running.pair.a.sh(&format!("wg set wga fwmark 5 peer {stranger} allowed-ips 10.66.0.0/16"))?;
        running.b.set("listen-port 51812")?;
        running.pair.b.reaches(INSIDE_A[0], 5)?;
        let moved = running.a.dump()?.peer(&b)?.endpoint.clone();
        ensure!(moved == "10.2.0.2:51812", "{moved}");
        running.pair.conf_a.peers[0].persistent_keepalive = Some(20);
        let told = running.reload(lab)?;
        says(&told, &[&format!("- peer {stranger}"), "~ FwMark 0x5 → automatic"])?;
        let dump = running.a.dump()?;
        ensure!(dump.peers.len() == 1 && dump.fwmark == "off", "{dump:?}");
        ensure!(dump.peer(&b)?.endpoint == moved, "the file's endpoint has not changed: {dump:?}");
        // The file's endpoint changes.
        running.pair.conf_a.peers[0].endpoint = Some("[fd02::2]:51812".into());
        running.reload(lab)?;
        ensure!(running.a.dump()?.peer(&b)?.endpoint == "[fd02::2]:51812", "{:?}", running.a.dump()?);
        running.pair.a.reaches("fd02::2", 5)?;
        running.pair.a.reaches(INSIDE_B[0], 5)?;
        // Without an endpoint in the file, the peer keeps its endpoint.
        running.pair.conf_a.peers[0].endpoint = None;
        running.reload(lab)?;
        ensure!(running.a.dump()?.peer(&b)?.endpoint == "[fd02::2]:51812", "{:?}", running.a.dump()?);
        let again = running.try_reload(&["wga"])?;
        ensure!(again.success() && again.stdout.contains("nothing to change"), "{again}");
        Ok(())
    });
}

/// `rustguard set` adds no routes.
#[test]
fn a_prefix_that_set_has_saved_gets_its_route() {
    scenario_of_rustguard("reload", |lab| {
        let running = Running::start(lab)?;
        let b = &running.pair.conf_b.keys.public;
        let mut command = running.pair.a.rustguard()?;
        let set = command.args(["set", "wga", "peer", b, "allowed-ips", &format!("+{BEHIND_B}/32"), "--save"]);
        let set = running.pair.a.end_of(set)?;
        ensure!(set.success(), "{set}");
        let reloaded = running.try_reload(&["wga"])?;
        ensure!(reloaded.success(), "{reloaded}");
        says(&reloaded.stdout, &[&format!("+ Route {BEHIND_B}/32")])?;
        running.pair.a.reaches(BEHIND_B, 1)
    });
}

#[test]
fn a_step_that_fails_undoes_the_others() {
    scenario_of_rustguard("reload", |lab| {
        let mut running = Running::start(lab)?;
        running.pair.a.sh("ip route add 10.40.0.0/16 dev eth0")?;
        let (before, began) = (running.state()?, running.handshakes()?);
        let good = running.pair.conf_a.clone();
        let conf = &mut running.pair.conf_a;
        conf.listen_port = Some(51_811);
        conf.addresses = vec!["10.9.0.9/24".into()];
        conf.lines = vec!["MTU = 1300".into(), "FwMark = 9".into()];
        conf.peers[0].allowed_ips = "10.30.0.0/16".into();
        conf.peers.push(PeerConf::new(&Keypair::generate()?.public, "10.9.0.2/32, 10.40.0.0/16"));
        running.edit(lab)?;
        running.try_reload(&["wga"])?.refused(&["10.40.0.0/16", "already has a route", "everything is as before"])?;
        running.is_as_before(&before)?;
        // Another process has the port.
        running.pair.conf_a = good;
        running.pair.conf_a.listen_port = Some(51_900);
        running.pair.conf_a.addresses.push("10.77.0.1/32".into());
        let mut other = Conf::new("other")?;
        other.listen_port = Some(51_900);
        let _other = Up::start(lab, &running.pair.a, &other)?;
        let before = running.state()?;
        running.edit(lab)?;
        running.try_reload(&["wga"])?.refused(&["51900", "everything is as before"])?;
        running.is_as_before(&before)?;
        ensure!(running.handshakes()? == began, "there was another handshake");
        Ok(())
    });
}

#[test]
fn a_file_that_cannot_be_used_changes_nothing() {
    scenario_of_rustguard("reload", |lab| {
        let running = Running::start(lab)?;
        let (file, before) = (lab.path("wga.conf"), running.state()?);
        let good = running.pair.conf_a.wg_quick();
        lab.file("wga.conf", &good.replace("[Peer]", "Adress = 10.0.0.1\nMTU = many\n[Peer]"))?;
        let refused = running.try_reload(&["wga"])?;
        refused.refused(&["Adress", "MTU", "wga.conf:"])?;
        running.a_is_told_by_signal(lab, "line")?;
        lab.file("wga.conf", &good)?;
        fs::set_permissions(&file, fs::Permissions::from_mode(0o666))?;
        running.try_reload(&["wga"])?.refused(&["everybody on this machine may change", "chmod 600"])?;
        fs::remove_file(&file)?;
        running.try_reload(&["wga"])?.refused(&["cannot read", "wga.conf", "No such file"])?;
        running.try_reload(&[&file.display().to_string()])?.refused(&["cannot read", "No such file"])?;
        lab.file("wga.conf", &good.replace("[Peer]", "Routing = babel\n[Peer]"))?;
        running.try_reload(&["wga"])?.refused(&["need a restart", "Routing", "rustguard down wga"])?;
        running.try_reload(&["--dry-run", "wga"])?.refused(&["need a restart", "Routing"])?;
        running.try_reload(&["nosuch"])?.refused(&["nosuch", "not up"])?;
        running.is_as_before(&before)
    });
}

/// In another network namespace, addresses and routes are not changed. Everything else is.
#[test]
fn an_interface_that_was_moved_takes_over_what_does_not_concern_the_host() {
    scenario_of_rustguard("reload", |lab| {
        let mut pair = Pair::new(lab, Outside::V4)?;
        pair.conf_a.lines = vec!["Table = off".into()];
        let mut running = Running::start_with(lab, pair, &[])?;
        let container = lab.node("container")?;
        running.pair.a.sh("ip link set wga netns container")?;
        container.sh(&format!("ip addr add {}/24 dev wga; ip link set wga up", INSIDE_A[0]))?;
        container.reaches(INSIDE_B[0], 10)?;
        let good = running.pair.conf_a.clone();
        running.pair.conf_a.addresses.push("10.77.0.1/32".into());
        running.pair.conf_a.peers[0].persistent_keepalive = Some(25);
        running.edit(lab)?;
        let place = "not in the network namespace any more";
        running.try_reload(&["wga"])?.refused(&["wga", place, "everything is as before"])?;
        running.pair.conf_a = good;
        running.pair.conf_a.peers[0].persistent_keepalive = Some(24);
        let third = Keypair::generate()?.public;
        running.pair.conf_a.peers.push(PeerConf::new(&third, "10.88.0.0/16"));
        let told = running.reload(lab)?;
        ensure!(told.contains("PersistentKeepalive off → 24 s"), "{told}");
        says(&told, &[&format!("+ peer {third}: AllowedIPs 10.88.0.0/16")])?;
        container.reaches(INSIDE_B[0], 5)
    });
}

/// Other users can use neither the socket nor the signal.
#[test]
fn another_user_cannot_reload_a_tunnel() {
    scenario_of_rustguard("reload", |lab| {
        let running = Running::start(lab)?;
        let before = running.state()?;
        if !Command::new("setpriv").args(["--reuid", "65534", "true"]).status().is_ok_and(|status| status.success()) {
            lab.skip("another user at the socket: this user namespace has only one");
            return Ok(());
        }
        // The checkout may be in a folder that `nobody` cannot enter.
        let copy = lab.path("rustguard");
        fs::copy(rustguard_tests::rustguard()?, &copy)?;
        fs::set_permissions(&copy, fs::Permissions::from_mode(0o755))?;
        let as_nobody = |program: &[&str]| {
            let mut command = running.pair.a.command("setpriv");
            command.args(["--reuid", "65534", "--regid", "65534", "--clear-groups"]).args(program);
            running.pair.a.end_of(&mut command)
        };
        let reload = [&*copy.display().to_string(), "reload", "wga"];
        as_nobody(&reload)?.refused(&["is closed to you", "sudo"])?;
        // Also with a more permissive mode.
        fs::set_permissions("/run/rustguard/wga.sock", fs::Permissions::from_mode(0o666))?;
        as_nobody(&reload)?.refused(&["only root may reload"])?;
        let id = fs::read_to_string("/run/rustguard/wga.pid")?;
        as_nobody(&["kill", "-s", "HUP", &id])?.refused(&["not permitted"])?;
        running.is_as_before(&before)
    });
}

impl Running {
    /// Sends SIGHUP, and waits for the refusal in the log of `a`.
    fn a_is_told_by_signal(&self, lab: &Lab, word: &str) -> Result<()> {
        self.pair.a.sh("kill -s HUP $(cat /run/rustguard/wga.pid)")?;
        let refused = |log: &str| log.lines().any(|line| line.contains("was not reloaded") && line.contains(word));
        eventually("the refusal in the log", SOON, || Ok(refused(&fs::read_to_string(lab.path("wga.log"))?)))
    }
}

#[test]
fn a_signal_reloads_and_systemd_is_told() {
    scenario_of_rustguard("reload", |lab| {
        let mut pair = Pair::new(lab, Outside::V4)?;
        pair.conf_a.lines = vec!["PostUp = echo up >> /run/hooks".into(), "PostDown = echo old >> /run/hooks".into()];
        let file = lab.file("wga.conf", &pair.conf_a.wg_quick())?;
        let socket = lab.path("systemd");
        let notifications = UnixDatagram::bind(&socket)?;
        notifications.set_read_timeout(Some(SOON))?;
        let mut command = pair.a.rustguard()?;
        let mut a = pair.a.spawn("wga", command.arg("up").arg(&file).env("NOTIFY_SOCKET", &socket))?;
        let next = || -> Result<String> {
            let mut message = [0; 4096];
            let len = notifications.recv(&mut message)?;
            Ok(String::from_utf8_lossy(&message[..len]).into_owned())
        };
        ensure!(next()?.contains("READY=1"));
        pair.conf_a.lines = vec!["MTU = 1333".into(), "PostUp = echo up >> /run/hooks".into()];
        pair.conf_a.lines.push("PostDown = echo new >> /run/hooks".into());
        lab.file("wga.conf", &pair.conf_a.wg_quick())?;
        a.signal("HUP")?;
        let told = next()?;
        ensure!(told.contains("RELOADING=1") && told.contains("MONOTONIC_USEC="), "{told}");
        ensure!(next()?.contains("READY=1"));
        ensure!(pair.a.sh("ip link show dev wga")?.contains("mtu 1333"), "not reloaded: {}", a.log());
        // With mistakes in the file, systemd is still told that the reload is over.
        lab.file("wga.conf", "[Interface]\n")?;
        a.signal("HUP")?;
        ensure!(next()?.contains("RELOADING=1") && next()?.contains("READY=1"));
        let ended = a.stop("TERM")?;
        ensure!(ended.success(), "{ended}");
        let hooks = fs::read_to_string("/run/hooks")?;
        ensure!(hooks == "up\nnew\n", "PostUp runs once, and PostDown is that of the new file: {hooks}");
        Ok(())
    });
}

/// As with `WatchdogSec=` in the unit.
#[test]
fn systemd_is_told_of_each_round() {
    scenario_of_rustguard("the watchdog", |lab| {
        let pair = Pair::new(lab, Outside::V4)?;
        let file = lab.file("wga.conf", &pair.conf_a.wg_quick())?;
        let socket = lab.path("systemd");
        let notifications = UnixDatagram::bind(&socket)?;
        notifications.set_read_timeout(Some(SOON))?;
        let mut command = pair.a.rustguard()?;
        command.arg("up").arg(&file).env("NOTIFY_SOCKET", &socket).env("WATCHDOG_USEC", "60000000");
        let mut a = pair.a.spawn("wga", &mut command)?;
        for expected in ["READY=1", "WATCHDOG=1", "WATCHDOG=1", "WATCHDOG=1"] {
            let mut message = [0; 4096];
            let len = notifications.recv(&mut message)?;
            let told = String::from_utf8_lossy(&message[..len]);
            ensure!(told.contains(expected), "{told}");
        }
        let ended = a.stop("TERM")?;
        ensure!(ended.success(), "{ended}");
        Ok(())
    });
}

#[test]
fn reloads_at_the_same_time_wait_for_each_other() {
    scenario_of_rustguard("reload", |lab| {
        let mut running = Running::start(lab)?;
        let mut waiting = Vec::new();
        for n in 0..8 {
            running.pair.conf_a.addresses = vec!["10.9.0.1/24".into(), format!("10.77.0.{n}/32")];
            running.edit(lab)?;
            let mut command = running.pair.a.rustguard()?;
            waiting.push(running.pair.a.spawn(&format!("reload-{n}"), command.args(["reload", "wga"]))?);
        }
        for reload in &mut waiting {
            let ended = reload.ended(SOON)?;
            ensure!(ended.success(), "{ended}");
        }
        running.reload(lab)?;
        let shown = running.pair.a.sh("ip -br addr show dev wga")?;
        ensure!(shown.matches("10.77.0.").count() == 1 && shown.contains("10.77.0.7/32"), "{shown}");
        running.pair.a.reaches(INSIDE_B[0], 1)
    });
}

#[test]
fn another_identity_ends_the_sessions() {
    scenario_of_rustguard("reload", |lab| {
        let mut running = Running::start(lab)?;
        let (old, new) = (running.pair.conf_a.keys.clone(), Keypair::generate()?);
        running.b.set(&format!("peer {} remove", old.public))?;
        running.b.set(&format!("peer {} allowed-ips {}", new.public, INSIDE_A.map(|a| a.to_owned()).join(",")))?;
        running.pair.conf_a.keys = new.clone();
        let told = running.reload(lab)?;
        says(&told, &["~ PrivateKey changed (another identity: all sessions end"])?;
        ensure!(!told.contains(&new.private) && !told.contains(&old.private), "a key is shown: {told}");
        running.pair.a.reaches(INSIDE_B[0], 5)
    });
}

#[test]
fn a_tunnel_in_the_background_reads_its_own_file_or_another_one() {
    scenario_of_rustguard("reload", |lab| {
        let mut pair = Pair::new(lab, Outside::V4)?;
        let clean = traces(&pair.a)?;
        let file = lab.file("wga.conf", &pair.conf_a.wg_quick())?;
        let folder = file.parent().context("a folder")?;
        let mut command = pair.a.rustguard()?;
        let up = pair.a.end_of(command.args(["up", "--detach", "./wga.conf"]).current_dir(folder))?;
        ensure!(up.success(), "{up}");
        let mtu = |mtu: &str| -> Result<()> {
            let shown = pair.a.sh("ip link show dev wga")?;
            ensure!(shown.contains(mtu), "not {mtu}: {shown}");
            Ok(())
        };
        let reload = |arguments: &[&str], folder: &str| -> Result<Value> {
            let mut command = pair.a.rustguard()?;
            let ended = pair.a.end_of(command.args(["reload", "--json"]).args(arguments).current_dir(folder))?;
            ensure!(ended.success(), "{ended}");
            Ok(serde_json::from_str(&ended.stdout)?)
        };
        pair.conf_a.lines = vec!["MTU = 1301".into()];
        lab.file("wga.conf", &pair.conf_a.wg_quick())?;
        let told = reload(&["wga"], "/")?;
        ensure!(told["applied"] == true && told["changes"][0]["to"] == "1301", "{told}");
        ensure!(told["file"].as_str().is_some_and(|told| told == file.display().to_string()), "{told}");
        mtu("mtu 1301")?;
        // Another file for the same interface, given by a relative path, becomes the tunnel's file.
        pair.conf_a.lines = vec!["MTU = 1302".into()];
        fs::create_dir(lab.path("new"))?;
        lab.file("new/wga.conf", &pair.conf_a.wg_quick())?;
        let dry = reload(&["-n", "./wga.conf"], &lab.path("new").display().to_string())?;
        ensure!(dry["applied"] == false && dry["changes"][0]["from"] == "1301", "{dry}");
        mtu("mtu 1301")?;
        reload(&["./wga.conf"], &lab.path("new").display().to_string())?;
        mtu("mtu 1302")?;
        // It is the only tunnel, so it needs no name.
        let told = reload(&[], "/")?;
        ensure!(told["interface"] == "wga" && told["changes"] == json!([]), "another file was read: {told}");
        let down = pair.a.end_of(pair.a.rustguard()?.args(["down", &file.display().to_string()]))?;
        ensure!(down.success(), "{down}");
        let after = traces(&pair.a)?;
        ensure!(after == clean, "before:\n{clean}\nafter:\n{after}");
        // A pipe cannot be read again.
        let mut command = pair.a.command("sh");
        let rustguard = rustguard_tests::rustguard()?;
        let script = format!("cat {} | {} up /dev/stdin", file.display(), rustguard.display());
        let mut piped = pair.a.spawn("stdin", command.args(["-c", &script]))?;
        piped.until("up", SOON, || Ok(fs::exists("/run/rustguard/stdin.sock")?))?;
        pair.a
            .end_of(pair.a.rustguard()?.args(["reload", "stdin"]))?
            .refused(&["no regular file", "cannot be read again"])
    });
}

#[test]
fn after_a_crash_what_a_reload_has_made_is_cleaned_up() {
    scenario_of_rustguard("reload", |lab| {
        let mut pair = Pair::new(lab, Outside::V4)?;
        pair.conf_a.lines = may_start_programs();
        let clean = traces(&pair.a)?;
        let mut running = Running::start_with(lab, pair, &[])?;
        running.pair.conf_a.peers[0].allowed_ips = "0.0.0.0/0, ::/0".to_owned();
        running.pair.conf_a.lines = vec!["PostDown = echo of the new file >> /run/hooks".into()];
        running.reload(lab)?;
        running.a.process()?.stop("KILL")?;
        let down = running.pair.a.end_of(running.pair.a.rustguard()?.args(["down", "wga"]))?;
        ensure!(down.success(), "{down}");
        let after = traces(&running.pair.a)?;
        ensure!(after == clean, "before:\n{clean}\nafter:\n{after}");
        let hooks = fs::read_to_string("/run/hooks").unwrap_or_default();
        ensure!(hooks == "of the new file\n", "PostDown: {hooks:?}; {down}");
        Ok(())
    });
}

/// A `serve` takes changed settings over as well.
#[test]
fn a_server_takes_its_settings_over() {
    scenario_of_rustguard("reload", |lab| {
        let network = Network::new(lab, 2)?;
        let served = network.serve(lab, &["--pool", "192.168.77.0/24", "--port", "4500"])?;
        let _machine = network.join(lab, 1, &served.join_arguments())?;
        network.reaches_server(1)?;
        let file = "/var/lib/rustguard/rgs/settings.json";
        let stored: Value = serde_json::from_str(&fs::read_to_string(file)?)?;
        let began = |node: &Node| node.run(&["wg", "show", "rgs", "latest-handshakes"]);
        let before = began(&network.server)?;
        let edit = |change: &dyn Fn(&mut Value)| -> Result<()> {
            let mut settings = stored.clone();
            change(&mut settings["settings"]);
            Ok(fs::write(file, settings.to_string())?)
        };
        let reload = |arguments: &[&str]| {
            network.server.end_of(network.server.rustguard()?.args(["reload", "rgs"]).args(arguments))
        };
        edit(&|settings| {
            settings["port"] = 4501.into();
            settings["routes"] = vec!["10.200.0.0/16"].into();
        })?;
        let expected = ["~ port 4500 → 4501", "~ routes none → 10.200.0.0/16 (members take it over"];
        let dry = reload(&["--dry-run"])?;
        says(&dry.stdout, &expected)?;
        ensure!(network.status()?["port"] == 4500, "a dry run changes nothing");
        let told = reload(&[])?;
        ensure!(told.success(), "{told}");
        says(&told.stdout, &expected)?;
        ensure!(network.status()?["port"] == 4501, "{}", network.status()?);
        network.reaches_server(1)?;
        ensure!(began(&network.server)? == before, "there was another handshake");
        let joined = network.try_join(2, &["--token", &network.invite(&[])?])?;
        ensure!(joined.success(), "{joined}");
        let conf = fs::read_to_string("/etc/rustguard/rg2.conf")?;
        ensure!(conf.contains("10.200.0.0/16") && conf.contains(":4501"), "the second machine got: {conf}");

        // Settings that need a restart, and damaged ones, change nothing.
        edit(&|settings| {
            settings["lease_seconds"] = 9_999.into();
            settings["port"] = 4502.into();
        })?;
        reload(&[])?.refused(&["need a restart", "lease_seconds without limit → 9999 s", "nothing was changed"])?;
        // Settings that the next start would refuse are refused while the server runs.
        edit(&|settings| settings["pools"] = vec!["192.168.78.0/24"].into())?;
        let refusal = ["outside of the address pool", "192.168.77."];
        reload(&["--dry-run"])?.refused(&[&refusal[..], &["nothing was changed"]].concat())?;
        edit(&|settings| settings["isolate"] = true.into())?;
        reload(&[])?.refused(&["cannot be in a star", "nothing was changed"])?;
        edit(&|_| ())?;
        let again = |options: &[&str]| {
            let serve = ["serve", "--interface", "rgs"];
            network.server.end_of(network.server.rustguard()?.args(serve).args(options))
        };
        again(&["--pool", "192.168.78.0/24"])?
            .refused(&[&refusal[..], &["is up", "would not start again"]].concat())?;
        let other = again(&["--port", "4509"])?;
        other.refused(&["is up"])?;
        ensure!(!other.stderr.contains("would not start"), "{other}");
        fs::write(file, "{")?;
        reload(&[])?.refused(&["settings.json", "damaged"])?;
        ensure!(network.status()?["port"] == 4501, "{}", network.status()?);

        // By a signal.
        edit(&|settings| settings["port"] = 4503.into())?;
        network.server.sh("kill -s HUP $(cat /run/rustguard/rgs.pid)")?;
        eventually("the new port", SOON, || Ok(network.status()?["port"] == 4503))?;
        network.reaches_server(1)?;
        served.stop()
    });
}
