//! Bad input and faults: each error names the thing and the cause, ends with status 1, and leaves nothing behind.
use anyhow::{Context, Result, ensure};
use rustguard_tests::{
    Conf, Ended, INSIDE_A, INSIDE_B, Keypair, Lab, Node, Outside, Pair, PeerConf, Program, Subject, Tunnel, Up,
    eventually, scenario, spawn_until_ready, subject,
};
use std::{fs, net::Ipv4Addr, os::unix::fs::PermissionsExt, path::Path, time::Duration};

const SOON: Duration = Duration::from_secs(10);

/// A scenario about errors of `rustguard` itself, which the reference does not have.
fn fault(lab: &Lab, body: impl FnOnce(&Lab) -> Result<()>) -> Result<()> {
    if subject() == Subject::WireguardGo {
        lab.skip("how rustguard fails: wireguard-go is the subject");
        return Ok(());
    }
    body(lab)
}

/// `rustguard up FILE` with this text is refused, and the node is unchanged afterwards.
fn refused(lab: &Lab, node: &Node, text: &str, words: &[&str]) -> Result<Ended> {
    let file = lab.file("wga.conf", text)?;
    let before = node.traces()?;
    let ended = up(node, &file)?;
    ended.refused(words)?;
    unchanged(node, &before)?;
    Ok(ended)
}

/// `rustguard up FILE`, which is expected to end by itself; `timeout` turns a hang into status 124.
fn up(node: &Node, file: &Path) -> Result<Ended> {
    rustguard(node, &["up", &file.display().to_string()])
}

fn rustguard(node: &Node, arguments: &[&str]) -> Result<Ended> {
    let program = node.rustguard()?;
    let mut command = node.command("timeout");
    // The program's path is the last argument of `ip netns exec NODE`.
    command.arg("20").args(program.get_args().last()).args(arguments);
    node.end_of(&mut command)
}

fn unchanged(node: &Node, before: &str) -> Result<()> {
    let after = node.traces()?;
    ensure!(before == after, "something was left behind. Before:\n{before}\nafter:\n{after}");
    Ok(())
}

/// An interface with one unreachable peer, and everything that a tunnel could leave behind.
fn conf() -> Result<Conf> {
    let mut conf = Conf::new("wga")?;
    conf.addresses = vec!["10.9.0.1/24".to_owned(), "fd09::1/64".to_owned()];
    conf.listen_port = Some(51_801);
    conf.peers = vec![PeerConf::new(&Keypair::generate()?.public, "0.0.0.0/0, ::/0")];
    Ok(conf)
}

macro_rules! refused_text {
    ($($(#[$note:meta])* $name:ident: $change:expr => $words:expr;)*) => {$(
        $(#[$note])*
        #[test]
        fn $name() {
            scenario(|lab| fault(lab, |lab| {
                let change: fn(String) -> String = $change;
                refused(lab, &lab.node("a")?, &change(conf()?.wg_quick()), &$words).map(drop)
            }));
        }
    )*};
}

refused_text! {
    /// The error has the key, its line and the most similar known key.
    unknown_key: |text| text.replace("ListenPort", "ListenPrt") => ["ListenPrt", "ListenPort", "wga.conf:3"];
    wrong_base64: |text| text.replace("PublicKey = ", "PublicKey = !") => ["PublicKey", "base64"];
    key_too_short: |text| text.replace("[Peer]", "[Peer]\nPresharedKey = AAAA") => ["PresharedKey", "32"];
    duplicate_peer: |text| {
        let peer = text[text.find("[Peer]").unwrap_or_default()..].to_owned();
        text + "\n" + &peer
    } => ["PublicKey"];
    bad_port: |text| text.replace("51801", "70000") => ["ListenPort", "70000"];
    bad_address: |text| text.replace("10.9.0.1/24", "10.9.0.1/33") => ["10.9.0.1/33"];
    no_private_key: |text| text.replace("PrivateKey", "#") => ["PrivateKey"];
    not_a_configuration: |_| "\u{0}\u{1}\u{2}nonsense".to_owned() => ["wga.conf"];
}

#[test]
fn missing_file() {
    scenario(|lab| {
        fault(lab, |lab| {
            let node = lab.node("a")?;
            up(&node, Path::new("/etc/wireguard/no-such.conf"))?
                .refused(&["/etc/wireguard/no-such.conf", "no such file"])?;
            // A name is looked up in folders, which the error lists.
            rustguard(&node, &["up", "nosuch"])?.refused(&[
                "nosuch",
                "/etc/wireguard/nosuch.conf",
                "/etc/rustguard/nosuch.conf",
            ])
        })
    });
}

/// A warning, not an error: many wg-quick files have this mode.
#[test]
fn world_readable_file() {
    scenario(|lab| {
        fault(lab, |lab| {
            let pair = Pair::new(lab, Outside::V4)?;
            let file = lab.file("wga.conf", &pair.conf_a.wg_quick())?;
            fs::set_permissions(&file, fs::Permissions::from_mode(0o644))?;
            let node = &pair.a;
            let mut command = node.rustguard()?;
            let mut process = spawn_until_ready(lab, node, "world", command.arg("up").arg(&file))?;
            let ended = process.stop("TERM")?;
            ensure!(ended.success(), "{ended}");
            ended.says(&["wga.conf", "readable"])
        })
    });
}

/// No name server answers: the tunnel starts, reports it, and keeps trying; it connects when the name exists.
#[test]
fn unresolvable_endpoint() {
    scenario(|lab| {
        fault(lab, |lab| {
            let mut pair = Pair::new(lab, Outside::V4)?;
            let _b = Tunnel::start(lab, &pair.b, Program::Reference, &pair.conf_b)?;
            pair.conf_a.peers[0].endpoint = Some("peer.example.invalid:51802".to_owned());
            pair.conf_a.peers[0].persistent_keepalive = Some(1);
            let mut up = Up::start(lab, &pair.a, &pair.conf_a)?;
            eventually("the name is in the log", SOON, || Ok(up.process()?.log().contains("peer.example.invalid")))?;
            lab.host("10.2.0.2", "peer.example.invalid")?;
            eventually("the name is found and the handshake done", Duration::from_secs(30), || {
                Ok(up.dump()?.peers[0].latest_handshake > 0)
            })?;
            up.down()
        })
    });
}

#[test]
fn port_in_use() {
    scenario(|lab| {
        fault(lab, |lab| {
            let node = lab.node("a")?;
            let mut first = conf()?;
            first.interface = "wgz".to_owned();
            first.peers.clear();
            first.addresses.clear();
            let first = Up::start(lab, &node, &first)?;
            // The error names the tunnel that has the port, and the command that ends it.
            refused(
                lab,
                &node,
                &conf()?.wg_quick(),
                &["cannot start wga", "the tunnel wgz", "51801", "rustguard down wgz"],
            )?;
            first.down()?;
            let _program = node.udp((Ipv4Addr::UNSPECIFIED, 51_801))?;
            refused(lab, &node, &conf()?.wg_quick(), &["51801", "in use by another program"]).map(drop)
        })
    });
}

/// A full /run, and a plain file in place of the TUN device.
#[test]
fn a_full_run_and_no_tun_device() {
    scenario(|lab| {
        fault(lab, |lab| {
            let node = lab.node("a")?;
            let file = lab.file("wga.conf", &conf()?.wg_quick())?;
            // `ip netns exec` uses its own mount namespace, so both commands must run in one shell.
            let with = |before: &str| {
                let mut command = node.command("sh");
                command.args(["-c", &format!("{before}; exec timeout 20 \"$0\" up \"$1\"")]);
                node.end_of(command.arg(rustguard_tests::rustguard()?).arg(&file))
            };
            let full = with(
                "mkdir -p /run/rustguard; mount -t tmpfs -o size=4k tmpfs /run/rustguard; head -c 8192 /dev/zero >/run/rustguard/full",
            )?;
            full.refused(&["/run/rustguard", "/run is full", "du -x /run"])?;
            let no_device = with("mount -t tmpfs tmpfs /dev/net; : >/dev/net/tun")?;
            no_device.refused(&["/dev/net/tun is no TUN device", "modprobe tun"])
        })
    });
}

#[test]
fn without_permission() {
    scenario(|lab| {
        fault(lab, |lab| {
            let node = lab.node("a")?;
            let file = lab.file("wga.conf", &conf()?.wg_quick())?;
            fs::set_permissions(&file, fs::Permissions::from_mode(0o644))?;
            let before = node.traces()?;
            // A copy, because the build may be in a folder that only its owner can enter.
            let copy = lab.path("rustguard");
            let program = node.rustguard()?;
            fs::copy(program.get_args().last().context("the program's path")?, &copy)?;
            let mut command = node.command("setpriv");
            command
                .args(["--reuid", "65534", "--regid", "65534", "--clear-groups", "--"])
                .arg(&copy)
                .arg("up")
                .arg(&file);
            let ended = node.end_of(&mut command)?;
            if ended.stderr.contains("setpriv:") {
                lab.skip("a start without permission: a user namespace has no second user");
                return Ok(());
            }
            ended.refused(&["wga", "CAP_NET_ADMIN"])?;
            unchanged(&node, &before)
        })
    });
}

#[test]
fn down_by_another_user() {
    scenario(|lab| {
        fault(lab, |lab| {
            let node = lab.node("a")?;
            let up = Up::start(lab, &node, &conf()?)?;
            let copy = lab.path("rustguard");
            fs::copy(rustguard_tests::rustguard()?, &copy)?;
            let down = |name: &str| {
                let mut command = node.command("setpriv");
                command.args(["--reuid", "65534", "--regid", "65534", "--clear-groups", "--"]);
                node.end_of(command.arg(&copy).args(["down", name]))
            };
            let ended = down("wga")?;
            if ended.stderr.contains("setpriv:") {
                lab.skip("the end of a tunnel by another user: a user namespace has no second user");
            } else {
                ended.refused(&["cannot end wga", "another user", "sudo"])?;
                down("wgb")?.refused(&["wgb is not up", "rustguard show"])?;
            }
            up.down()
        })
    });
}

#[test]
fn interface_exists() {
    scenario(|lab| {
        fault(lab, |lab| {
            let node = lab.node("a")?;
            node.sh("ip link add wga type veth peer name wgpeer; ip link set wga up")?;
            eventually("the link is up", SOON, || {
                Ok(node.run(&["ip", "-br", "link", "show", "wga"])?.contains("wga"))
            })?;
            refused(lab, &node, &conf()?.wg_quick(), &["wga", "exists"]).map(drop)
        })
    });
}

#[test]
fn second_up_of_the_same_name() {
    scenario(|lab| {
        fault(lab, |lab| {
            let node = lab.node("a")?;
            let first = Up::start(lab, &node, &conf()?)?;
            refused(lab, &node, &fs::read_to_string(lab.path("wga.conf"))?, &["wga"])?;
            ensure!(first.dump()?.listen_port == 51_801, "the first should not notice");
            first.down()
        })
    });
}

/// A kernel without IPv6: an IPv4 tunnel runs, and an IPv6 address is refused with the reason.
#[test]
fn no_ipv6() {
    scenario(|lab| {
        fault(lab, |lab| {
            let mut pair = Pair::new(lab, Outside::V4)?;
            let _b = Tunnel::start(lab, &pair.b, Program::Reference, &pair.conf_b)?;
            pair.a.sh("sysctl -qw net.ipv6.conf.all.disable_ipv6=1 net.ipv6.conf.default.disable_ipv6=1")?;
            refused(lab, &pair.a, &pair.conf_a.wg_quick(), &["fd09::1", "IPv6"])?;
            pair.conf_a.addresses.pop();
            pair.conf_a.peers[0].allowed_ips = INSIDE_B[0].to_owned();
            let up = Up::start(lab, &pair.a, &pair.conf_a)?;
            pair.a.reaches(INSIDE_B[0], 10)?;
            up.down()
        })
    });
}

/// A hook fails: everything before it is undone, including PostUp.
#[test]
fn failing_hooks() {
    scenario(|lab| {
        fault(lab, |lab| {
            let node = lab.node("a")?;
            for key in ["PreUp", "PostUp"] {
                let mut conf = conf()?;
                conf.lines = vec![format!("{key} = echo the-hook-speaks >&2; exit 3")];
                refused(lab, &node, &conf.wg_quick(), &[key, "3", "the-hook-speaks"])?;
            }
            Ok(())
        })
    });
}

/// The signals that ask for an end: status 0, and nothing remains, including DNS and hooks.
#[test]
fn signals() {
    scenario(|lab| {
        fault(lab, |lab| {
            let node = lab.node("a")?;
            let before = node.traces()?;
            for signal in ["INT", "TERM"] {
                let mut conf = conf()?;
                let record = lab.path(signal);
                conf.lines = vec![format!("PostDown = touch {}", record.display())];
                let mut up = Up::start(lab, &node, &conf)?;
                ensure!(node.traces()? != before, "a running tunnel should show");
                let ended = up.process()?.stop(signal)?;
                ensure!(ended.success(), "after SIG{signal}: {ended}");
                ensure!(record.exists(), "PostDown did not run after SIG{signal}");
                unchanged(&node, &before)?;
            }
            Ok(())
        })
    });
}

/// A crash leaves rules, the guard and a socket. The next `up` removes them and starts; `down` only removes them.
#[test]
fn killed_and_started_again() {
    scenario(|lab| {
        fault(lab, |lab| {
            let node = lab.node("a")?;
            let before = node.traces()?;
            let mut up = Up::start(lab, &node, &conf()?)?;
            up.process()?.stop("KILL")?;
            ensure!(node.traces()? != before, "SIGKILL cannot be cleaned up after: is this test still about anything?");
            Up::start(lab, &node, &conf()?)?.down()?;
            unchanged(&node, &before)?;

            let mut up = Up::start(lab, &node, &conf()?)?;
            up.process()?.stop("KILL")?;
            let down = rustguard(&node, &["down", &lab.path("wga.conf").display().to_string()])?;
            ensure!(down.success(), "down after a crash: {down}");
            unchanged(&node, &before)
        })
    });
}

/// A process that hangs does not react to SIGTERM either. `down` kills it when SIGTERM has no effect, and removes
/// everything.
#[test]
fn a_process_that_hangs_is_ended() {
    scenario(|lab| {
        fault(lab, |lab| {
            let node = lab.node("a")?;
            let before = node.traces()?;
            let mut up = Up::start(lab, &node, &conf()?)?;
            up.process()?.signal("STOP")?;
            let target = lab.path("wga.conf").display().to_string();
            let down = rustguard(&node, &["down", &target])?;
            ensure!(down.success(), "{down}");
            down.says(&["answers nobody", "killed"])?;
            unchanged(&node, &before)
        })
    });
}

/// A crash loses the sessions, and the other side keeps sealing for them until nothing has come back for 15 seconds. A
/// restarted tunnel therefore calls its peers before it has anything to send, unless the configuration forbids it.
#[test]
fn reachable_again_after_a_crash_with_nothing_to_say() {
    scenario(|lab| {
        fault(lab, |lab| {
            let mut pair = Pair::new(lab, Outside::V4)?;
            pair.conf_b.peers[0].endpoint = Some("10.1.0.2:51801".to_owned());
            let _a = Tunnel::start(lab, &pair.a, Program::Reference, &pair.conf_a)?;
            let crash = |up: Up| -> Result<Up> {
                pair.a.reaches(INSIDE_B[0], 10)?;
                let mut up = up;
                up.process()?.stop("KILL")?;
                Up::start(lab, &pair.b, &pair.conf_b)
            };
            let greeted = |up: &Up| Ok(up.dump()?.peers.iter().all(|peer| peer.latest_handshake > 0));
            let up = Up::start(lab, &pair.b, &pair.conf_b)?;
            eventually("a handshake at the start", SOON, || greeted(&up))?;
            let up = crash(up)?;
            eventually("a handshake after the crash", SOON, || greeted(&up))?;
            pair.a.run(&["ping", "-n", "-c", "1", "-W", "5", INSIDE_B[0]])?;

            let mut conf = pair.conf_b.clone();
            conf.lines.push("HandshakeOnUp = false".to_owned());
            let mut up = up;
            up.process()?.stop("KILL")?;
            let up = Up::start(lab, &pair.b, &conf)?;
            let ping = Ended::of(pair.a.command("ping").args(["-n", "-c", "1", "-W", "1", INSIDE_B[0]]))?;
            ensure!(
                !ping.success() && !greeted(&up)?,
                "without HandshakeOnUp the dead session stays for a while: {ping}"
            );
            up.down()
        })
    });
}

#[test]
fn interface_deleted_from_outside() {
    scenario(|lab| {
        fault(lab, |lab| {
            let node = lab.node("a")?;
            let before = node.traces()?;
            let mut conf = conf()?;
            let record = lab.path("post-down");
            conf.lines = vec![format!("PostDown = touch {}", record.display())];
            let mut up = Up::start(lab, &node, &conf)?;
            node.run(&["ip", "link", "del", "wga"])?;
            let ended = up.process()?.ended(SOON)?;
            ended.says(&["wga"])?;
            ensure!(ended.status.code().is_some(), "ended by a signal: {ended}");
            ensure!(record.exists(), "PostDown did not run");
            unchanged(&node, &before)
        })
    });
}

#[test]
fn down_ends_a_running_one_and_only_that() {
    scenario(|lab| {
        fault(lab, |lab| {
            let node = lab.node("a")?;
            let before = node.traces()?;
            let mut up = Up::start(lab, &node, &conf()?)?;
            let file = lab.path("wga.conf").display().to_string();
            let down = rustguard(&node, &["down", &file])?;
            ensure!(down.success(), "down: {down}");
            unchanged(&node, &before)?;
            let ended = up.process()?.ended(SOON)?;
            ensure!(ended.success(), "the foreground process: {ended}");
            rustguard(&node, &["down", &file])?.refused(&["wga", "not"])?;
            // An interface of another program with this name is left alone.
            node.sh("ip link add wga type veth peer name wgpeer")?;
            rustguard(&node, &["down", &file])?.refused(&["wga"])?;
            node.run(&["ip", "link", "show", "wga"]).map(drop)
        })
    });
}

/// `--detach` returns only when packets can pass; the daemon then runs without the caller.
#[test]
fn detach() {
    scenario(|lab| {
        fault(lab, |lab| {
            let mut pair = Pair::new(lab, Outside::V4)?;
            // Output of hooks must not look like the child's ready message, and later output must not kill the hook.
            let record = lab.path("post-down");
            pair.conf_a.lines =
                vec!["PostUp = echo up".to_owned(), format!("PostDown = echo down && touch {}", record.display())];
            let _b = Tunnel::start(lab, &pair.b, Program::Reference, &pair.conf_b)?;
            let before = pair.a.traces()?;
            let file = lab.file("wga.conf", &pair.conf_a.wg_quick())?.display().to_string();
            let started = rustguard(&pair.a, &["up", "--detach", &file])?;
            ensure!(started.success(), "up --detach: {started}");
            let routes = pair.a.run(&["ip", "route", "get", INSIDE_B[0]])?;
            ensure!(routes.contains("dev wga"), "returned before it was ready: {routes}");
            pair.a.reaches(INSIDE_B[0], 10)?;
            let down = rustguard(&pair.a, &["down", &file])?;
            ensure!(down.success(), "down: {down}");
            ensure!(record.exists(), "PostDown did not run to its end");
            unchanged(&pair.a, &before)?;
            // If the start fails, the caller gets the error.
            let broken = lab.file("wga.conf", &pair.conf_a.wg_quick().replace("51801", "99999"))?.display().to_string();
            rustguard(&pair.a, &["up", "--detach", &broken])?.refused(&["ListenPort"])
        })
    });
}

/// Invalid datagrams of every kind and length do not stop the tunnel.
#[test]
fn nonsense_on_the_port() {
    scenario(|lab| {
        let pair = Pair::new(lab, Outside::V4)?;
        let (_a, _b) = pair.start(lab, Program::Reference, Program::Subject)?;
        pair.a.reaches(INSIDE_B[0], 10)?;
        pair.b.count("nonsense", "input", "udp dport 51802")?;
        // The router sends to b's port: empty, short and long datagrams, and the first bytes of every message type.
        pair.router.sh("exec 2>/dev/null
             for size in 1 3 4 31 32 64 92 148 149 1500 9000 60000; do
                 for kind in 0 1 2 3 4 5 255; do
                     { printf \"\\\\$(printf %o $kind)\\\\0\\\\0\\\\0\"; head -c $size /dev/urandom; } > /run/nonsense
                     bash -c 'cat /run/nonsense > /dev/udp/10.2.0.2/51802'
                     bash -c 'cat /run/nonsense > /dev/udp/fd02::2/51802'
                 done
             done")?;
        let arrived = pair.b.counted("nonsense")?;
        ensure!(arrived >= 2 * 12 * 7, "{arrived} datagrams arrived: is this test still about anything?");
        pair.a.reaches(INSIDE_B[0], 1)?;
        pair.b.reaches(INSIDE_A[1], 1)
    });
}

/// The host's first packet at the moment when the interface comes up waits for a session like any other packet: at the
/// start, in a hook, after a pause, and in another namespace, which the kernel does not announce.
#[test]
fn what_is_sent_in_the_moment_of_coming_up_arrives() {
    scenario(|lab| {
        let mut pair = Pair::new(lab, Outside::V4)?;
        let ping = format!("ping -n -q -c 1 -W 3 {}", INSIDE_B[0]);
        pair.conf_a.lines.push(format!("PostUp = {ping}"));
        let _b = Tunnel::start(lab, &pair.b, Program::Reference, &pair.conf_b)?;
        let _a = Tunnel::start(lab, &pair.a, Program::Subject, &pair.conf_a)?;
        let again = format!("ip link set wga down; sleep 0.5; ip link set wga up; {ping}");
        for _ in 0..3 {
            pair.a.sh(&again).context("set down and up")?;
        }
        let other = lab.node("elsewhere")?;
        pair.a.run(&["ip", "link", "set", "wga", "netns", "elsewhere"])?;
        other.sh(&format!("ip addr add {}/24 dev wga; ip link set wga up; {ping}", INSIDE_A[0])).context("moved")?;
        let shown = pair.a.shown("wga")?["dropped"].clone();
        ensure!(shown["staging_full"].is_null(), "{shown}");
        Ok(())
    });
}

/// `ip link set down` closes the port and ends sessions and keepalives; `up` starts again on the port that was
/// configured meanwhile.
#[test]
fn set_down_and_up_again() {
    scenario(|lab| {
        let mut pair = Pair::new(lab, Outside::V4)?;
        pair.conf_a.peers[0].persistent_keepalive = Some(1);
        let (a, b) = (
            Tunnel::start(lab, &pair.a, Program::Subject, &pair.conf_a)?,
            Tunnel::start(lab, &pair.b, Program::Reference, &pair.conf_b)?,
        );
        pair.a.reaches(INSIDE_B[0], 10)?;
        let port = |port: u16, open: bool| {
            eventually(&format!("port {port}: {open}"), SOON, || {
                let sockets = pair.a.run(&["ss", "-Hlun", &format!("sport = :{port}")])?;
                Ok(sockets.trim().is_empty() != open)
            })
        };
        pair.b.count("initiations", "input", "udp dport 51802 udp length 156")?;
        pair.b.count("datagrams", "input", "udp dport 51802")?;
        for (before, after) in [(51_801, 51_801), (51_801, 51_899)] {
            port(before, true)?;
            pair.a.run(&["ip", "link", "set", "wga", "down"])?;
            port(before, false)?;
            pair.b.does_not_reach(INSIDE_A[0])?;
            if after != before {
                a.set(&format!("listen-port {after}"))?;
                port(after, false)?;
            }
            let (initiations, all) = (pair.b.counted("initiations")?, pair.b.counted("datagrams")?);
            // A keepalive per second would have been counted by now.
            pair.b.does_not_reach(INSIDE_A[0])?;
            ensure!(pair.b.counted("datagrams")? == all, "something was sent while the interface was down");
            pair.a.run(&["ip", "link", "set", "wga", "up"])?;
            port(after, true)?;
            // The keepalive starts a session: nobody has sent anything else.
            eventually("a new session", SOON, || Ok(pair.b.counted("initiations")? > initiations))?;
            pair.a.reaches(INSIDE_B[0], 10)?;
            pair.b.reaches(INSIDE_A[0], 10)?;
        }
        ensure!(b.dump()?.peers[0].endpoint.ends_with(":51899"), "{}", b.dump()?.peers[0].endpoint);
        Ok(())
    });
}
