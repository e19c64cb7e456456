//! `rustguard set`, `save` and `strip` do what `wg set`, `wg-quick save` and `wg-quick strip` do, and keep the user's
//! formatting and comments in files.
use anyhow::{Result, ensure};
use rustguard_tests::{Conf, Ended, Keypair, Lab, Node, Process, scenario_of_rustguard, spawn_until_ready};
use std::{fs, io::Write as _, os::unix::fs::PermissionsExt as _, path::Path, process::Stdio, time::Duration};

/// A file in an unusual style, with a peer called `office`.
fn hand_made(conf: &Conf, peer: &Keypair, more: &str) -> String {
    format!(
        "# The tunnel to the office.\n\n[Interface]\n  PrivateKey={}   # made in 2019\n  Address=10.9.0.1/24\nListenPort   =   51801\n{more}\n\
         # ---- servers ----\n\n# Name = office\n[Peer]\nPublicKey = {}\nAllowedIPs = 10.8.0.0/24 # the rack\nEndpoint = 192.0.2.9:51820 # old\n",
        conf.keys.private, peer.public
    )
}

fn up(lab: &Lab, node: &Node, file: &Path) -> Result<Process> {
    let mut command = node.rustguard()?;
    spawn_until_ready(lab, node, "wga", command.arg("up").arg(file))
}

fn rustguard(node: &Node, words: &[&str]) -> Result<Ended> {
    node.end_of(node.rustguard()?.args(words))
}

fn changed(node: &Node, words: &[&str]) -> Result<()> {
    let ended = rustguard(node, words)?;
    ensure!(ended.success() && ended.stdout.is_empty() && ended.stderr.is_empty(), "{words:?}: {ended}");
    Ok(())
}

/// Every option of `wg set`, given to `wg` and to RustGuard on two interfaces: the results are equal.
#[test]
fn the_words_of_wg_set_do_what_they_do_there() {
    scenario_of_rustguard("rustguard set", |lab| {
        let node = lab.node("a")?;
        let mut tunnels = Vec::new();
        for name in ["wga", "wgb"] {
            let file = lab.file(&format!("{name}.conf"), &Conf::new(name)?.wg_quick())?;
            let mut command = node.rustguard()?;
            tunnels.push(spawn_until_ready(lab, &node, name, command.arg("up").arg(file))?);
        }
        let [first, second, own] = [Keypair::generate()?, Keypair::generate()?, Keypair::generate()?];
        let key = lab.file("key", &format!("{}\n", own.private))?.display().to_string();
        let all = |port| {
            [
                vec!["listen-port", port, "private-key", &key, "fwmark", "0xca6c"],
                vec![
                    "peer",
                    &first.public,
                    "preshared-key",
                    &key,
                    "endpoint",
                    "192.0.2.1:7",
                    "persistent-keepalive",
                    "25",
                    "allowed-ips",
                    "10.8.0.0/24,fd08::/64",
                    "peer",
                    &second.public,
                    "allowed-ips",
                    "10.7.0.0/16",
                ],
                // Options that remove something.
                vec![
                    "fwmark",
                    "off",
                    "peer",
                    &first.public,
                    "preshared-key",
                    "/dev/null",
                    "persistent-keepalive",
                    "off",
                ],
                vec!["peer", &first.public, "allowed-ips", "10.7.0.0/16"],
                vec!["peer", &second.public, "allowed-ips", ""],
                vec!["peer", &second.public, "remove"],
            ]
        };
        let ports = ["40001", "40002"];
        for (ours, theirs) in all(ports[0]).iter().zip(&all(ports[1])) {
            changed(&node, &[&["set", "wga"][..], ours].concat())?;
            node.run(&[&["wg", "set", "wgb"][..], theirs].concat())?;
            let (one, other) = (set_up(&node, "wga")?, set_up(&node, "wgb")?.replace(ports[1], ports[0]));
            ensure!(one == other, "after {ours:?}: {one}\nand by wg: {other}");
        }
        ensure!(node.run(&["wg", "show", "wga", "peers"])?.trim() == first.public, "the second peer is removed");
        Ok(())
    });
}

/// The settings of a tunnel, without the byte counters, which handshakes change.
fn set_up(node: &Node, interface: &str) -> Result<String> {
    let dump = node.run(&["wg", "show", interface, "dump"])?;
    // A peer's line has eight fields; the sixth and the seventh are its bytes.
    let constant = |line: &str| {
        let fields: Vec<_> =
            line.split('\t').enumerate().filter(|(at, _)| ![5, 6].contains(at)).map(|(_, field)| field).collect();
        fields.join("\t")
    };
    Ok(dump.lines().map(constant).collect::<Vec<_>>().join("\n"))
}

/// A preshared key from standard input, `+` and `-`, names, several endpoints; an invalid command changes nothing.
#[test]
fn names_standard_input_and_several_endpoints() {
    scenario_of_rustguard("rustguard set", |lab| {
        let node = lab.node("a")?;
        let (conf, peer) = (Conf::new("wga")?, Keypair::generate()?);
        let file = lab.file("wga.conf", &hand_made(&conf, &peer, ""))?;
        let _tunnel = up(lab, &node, &file)?;
        let mut command = node.rustguard()?;
        let mut child = command
            .args(["set", "wga", "peer", "office", "preshared-key", "/dev/stdin"])
            .stdin(Stdio::piped())
            .spawn()?;
        child.stdin.take().expect("it is a pipe").write_all(peer.private.as_bytes())?;
        ensure!(child.wait()?.success(), "a key from standard input");
        ensure!(node.run(&["wg", "show", "wga", "preshared-keys"])?.contains(&peer.private), "the preshared key");
        changed(&node, &["set", "wga", "peer", "office", "allowed-ips", "+10.8.1.0/24,-10.8.0.0/24"])?;
        changed(&node, &["set", "wga", "peer", "office", "allowed-ips", "-10.99.0.0/16"])?;
        let nets = node.run(&["wg", "show", "wga", "allowed-ips"])?;
        ensure!(nets.contains("\t10.8.1.0/24\n"), "{nets}");
        changed(
            &node,
            &["set", "wga", "peer", "office", "endpoint", "192.0.2.1:1, 192.0.2.2:2 weight 2", "name", "head office"],
        )?;
        let json = node.end_of(node.rustguard()?.args(["show", "wga", "--json"]))?.stdout;
        for word in ["head office", "192.0.2.1:1", "192.0.2.2:2"] {
            ensure!(json.contains(word), "{word} is missing in {json}");
        }
        let before = set_up(&node, "wga")?;
        for (words, says) in [
            (&["peer", "ofice", "remove"][..], &["no peer", "ofice"][..]),
            (
                &["listen-port", "51802", "peer", "head office", "alowed-ips", "10.0.0.0/8"],
                &["alowed-ips", "allowed-ips"],
            ),
            (&["peer", "head office", "endpoint", "192.0.2.1"], &["no port"]),
            (&["private-key", &peer.private], &["file"]),
            (&["listen-port", "70000"], &["65535"]),
        ] {
            let ended = rustguard(&node, &[&["set", "wga"][..], words].concat())?;
            ended.refused(says)?;
            ensure!(!ended.stderr.contains(&peer.private), "a key in a message: {ended}");
        }
        rustguard(&node, &["set", "wgz", "listen-port", "1"])?.refused(&["wgz", "not up"])?;
        rustguard(&node, &["set", "wgz", "listen-port", "1", "--save"])?.refused(&["wgz", "not up"])?;
        ensure!(set_up(&node, "wga")? == before, "a mistake changes nothing");
        changed(&node, &["set", "wga", "remove", "head office"])?;
        ensure!(node.run(&["wg", "show", "wga", "peers"])?.trim().is_empty(), "removed by its name");
        ensure!(fs::read_to_string(&file)? == hand_made(&conf, &peer, ""), "without --save the file stays");
        Ok(())
    });
}

/// `--save`, `save` and SaveConfig change only the affected lines, and never a file that was edited meanwhile.
#[test]
fn saving_keeps_what_people_wrote() {
    scenario_of_rustguard("saved files", |lab| {
        let node = lab.node("a")?;
        let (conf, peer, new) = (Conf::new("wga")?, Keypair::generate()?, Keypair::generate()?);
        let text = hand_made(&conf, &peer, "SaveConfig = true\n");
        let real = lab.file("real", &text)?;
        fs::set_permissions(&real, fs::Permissions::from_mode(0o640))?;
        let file = lab.path("wga.conf");
        std::os::unix::fs::symlink("real", &file)?;
        let mut tunnel = up(lab, &node, &file)?;

        // One change, in one line.
        changed(&node, &["set", "wga", "peer", "office", "endpoint", "192.0.2.10:5", "--save"])?;
        let text = text.replace("192.0.2.9:51820 # old", "192.0.2.10:5 # old");
        ensure!(fs::read_to_string(&file)? == text, "{}", fs::read_to_string(&file)?);
        // A run-time change is not in the file until the whole configuration is saved.
        changed(&node, &["set", "wga", "peer", &new.public, "allowed-ips", "10.6.0.0/16"])?;
        changed(&node, &["set", "wga", "--save", "peer", "office", "persistent-keepalive", "9"])?;
        let text = format!("{text}PersistentKeepalive = 9\n");
        ensure!(fs::read_to_string(&file)? == text, "{}", fs::read_to_string(&file)?);
        // A peer that is not in the file is written completely.
        changed(&node, &["set", "wga", "peer", &new.public, "name", "laptop", "--save"])?;
        let text = format!("{text}\n# Name = laptop\n[Peer]\nPublicKey = {}\nAllowedIPs = 10.6.0.0/16\n", new.public);
        ensure!(fs::read_to_string(&file)? == text, "{}", fs::read_to_string(&file)?);
        changed(&node, &["set", "wga", "listen-port", "51900"])?;
        changed(&node, &["save", "wga"])?;
        let text = text.replace("   51801", "   51900");
        ensure!(fs::read_to_string(&file)? == text, "{}", fs::read_to_string(&file)?);
        ensure!(file.is_symlink() && fs::metadata(&real)?.permissions().mode() & 0o777 == 0o640, "link and mode stay");

        // SaveConfig at the end.
        changed(&node, &["set", "wga", "remove", "laptop"])?;
        let ended = tunnel.stop("TERM")?;
        ensure!(ended.success(), "{ended}");
        let text = text[..text.find("\n# Name = laptop").expect("the peer is in the file")].to_owned();
        ensure!(fs::read_to_string(&file)? == text, "{}", fs::read_to_string(&file)?);

        // A file that was edited meanwhile is not overwritten.
        let mut tunnel = up(lab, &node, &file)?;
        let theirs = format!("{text}# edited\n");
        fs::write(&real, &theirs)?;
        for words in [&["save", "wga"][..], &["set", "wga", "remove", "office", "--save"]] {
            rustguard(&node, words)?.refused(&["wga.conf", "changed", "reload"])?;
        }
        ensure!(node.run(&["wg", "show", "wga", "peers"])?.contains(&peer.public), "what cannot be saved is not done");
        let ended = tunnel.stop("TERM")?;
        ended.says(&["wga.conf", "was changed"])?;
        ensure!(fs::read_to_string(&file)? == theirs, "{}", fs::read_to_string(&file)?);
        Ok(())
    });
}

/// An endpoint through a peer, by the relay's name: to the device, to the file, and back.
#[test]
fn a_way_through_a_peer() {
    scenario_of_rustguard("rustguard set", |lab| {
        let node = lab.node("a")?;
        let (conf, office, far) = (Conf::new("wga")?, Keypair::generate()?, Keypair::generate()?);
        let file = lab.file("wga.conf", &hand_made(&conf, &office, ""))?;
        let _tunnel = up(lab, &node, &file)?;
        let read = || Ok::<_, anyhow::Error>(fs::read_to_string(&file)?);
        let set = |words: &[&str]| changed(&node, &[&["set", "wga"], words, &["--save"]].concat());

        set(&["forward", "on", "peer", &far.public, "name", "far", "allowed-ips", "10.8.7.0/24"])?;
        set(&["peer", "far", "endpoint", "192.0.2.7:1, via-peer office", "direct", "off"])?;
        let text = read()?;
        let section = format!(
            "# Name = far\n[Peer]\nPublicKey = {}\nAllowedIPs = 10.8.7.0/24\nEndpoint = 192.0.2.7:1, via-peer office\nDirect = off\n",
            far.public
        );
        ensure!(text.ends_with(&section) && text.contains("Forward      =   on\n"), "{text}");
        let json = rustguard(&node, &["show", "wga", "--json"])?.stdout;
        ensure!(json.contains(&format!("via-peer {}", office.public)), "{json}");
        rustguard(&node, &["check", &file.display().to_string()])?.says(&[])?;
        // The tunnel and the file agree.
        changed(&node, &["save", "wga"])?;
        ensure!(read()? == text, "{}", read()?);
        let difference = rustguard(&node, &["reload", "--dry-run", "wga"])?;
        ensure!(!difference.stdout.contains("Forward"), "{difference}");

        // The current name of the relay is written.
        set(&["peer", "office", "name", "head office"])?;
        let renamed =
            text.replace("# Name = office", "# Name = head office").replace("via-peer office", "via-peer head office");
        ensure!(read()? == renamed, "{}", read()?);
        let stranger = format!("via-peer {}", Keypair::generate()?.public);
        for (words, says) in [
            (&["peer", "far", "endpoint", "via-peer ofice"][..], &["endpoint", "ofice"][..]),
            (&["peer", "far", "endpoint", "via-peer far"], &["the peer itself"]),
            (&["peer", "far", "endpoint", &stranger], &["no peer with this key"]),
            (
                &["peer", "far", "endpoint", "via-peer head office", "peer", "head office", "endpoint", "via-peer far"],
                &["a relay is reached at an address", "give head office an address"],
            ),
            (&["remove", "head office", "--save"], &["wga.conf", "an Endpoint of far leads through a peer"]),
            (&["forward", "yes"], &["`on` or `off`"]),
        ] {
            rustguard(&node, &[&["set", "wga"][..], words].concat())?.refused(says)?;
        }
        ensure!(
            node.run(&["wg", "show", "wga", "peers"])?.contains(&office.public),
            "what cannot be saved is not done"
        );

        // Settings changed since the file was read count as differences.
        rustguard(&node, &["reload", "wga"])?.says(&[])?;
        let before = read()?;
        set(&["peer", "far", "endpoint", "192.0.2.6:1, via-peer head office"])?;
        fs::write(&file, &before)?;
        let ended = rustguard(&node, &["reload", "wga"])?;
        ensure!(ended.stdout.contains("192.0.2.7:1, via-peer head office"), "{ended}");
        let json = rustguard(&node, &["show", "wga", "--json"])?.stdout;
        ensure!(json.contains("192.0.2.7:1") && !json.contains("192.0.2.6:1"), "{json}");

        // `wg` only knows the address.
        let stripped = rustguard(&node, &["strip", &file.display().to_string()])?.stdout;
        ensure!(stripped.contains("Endpoint = 192.0.2.7:1\n") && !stripped.contains("on\n"), "{stripped}");
        Ok(())
    });
}

/// `wg setconf` accepts the output of `strip`, and an interface without a file cannot be saved.
#[test]
fn strip_is_for_wg_and_a_bare_interface_has_no_file() {
    scenario_of_rustguard("rustguard strip", |lab| {
        let node = lab.node("a")?;
        let (conf, peer) = (Conf::new("wga")?, Keypair::generate()?);
        let more = "DNS = 192.0.2.53\nPostUp = true\nHandshakeOnUp = false\n";
        let file = lab.file("wga.conf", &hand_made(&conf, &peer, more))?;
        let mut bare = node.spawn("bare", node.rustguard()?.args(["-f", "wga"]))?;
        bare.until("the control socket", Duration::from_secs(10), || Ok(node.run(&["wg", "show", "wga"]).is_ok()))?;
        let stripped = rustguard(&node, &["strip", &file.display().to_string()])?;
        ensure!(stripped.success(), "{stripped}");
        let stripped = lab.file("stripped", &stripped.stdout)?;
        node.run(&["wg", "setconf", "wga", &stripped.display().to_string()])?;
        let shown = node.run(&["wg", "showconf", "wga"])?;
        for word in [&conf.keys.private, &peer.public, "51801", "192.0.2.9:51820", "10.8.0.0/24"] {
            ensure!(shown.contains(word), "{word} is missing in {shown}");
        }
        rustguard(&node, &["save", "wga"])?.refused(&["wga", "not started from a file"])?;
        let broken = lab.file("broken.conf", "[Interface]\nPort = 1\n")?;
        let ended = rustguard(&node, &["strip", &broken.display().to_string()])?;
        ensure!(ended.status.code() == Some(1) && ended.stdout.is_empty(), "{ended}");
        Ok(())
    });
}
