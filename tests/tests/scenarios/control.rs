//! Stock `wg` at run time: every `wg set`, setconf, addconf, syncconf, showconf, and ten thousand peers.
use anyhow::{Result, ensure};
use rustguard_tests::{
    Conf, INSIDE_A, INSIDE_B, Keypair, Lab, Outside, Pair, PeerConf, Program, Tunnel, eventually, scenario,
};
use std::{
    fmt::Write as _,
    time::{Duration, Instant},
};

/// A running pair whose side `a` is the subject, with a session.
fn connected(lab: &Lab) -> Result<(Pair, Tunnel, Tunnel)> {
    let pair = Pair::new(lab, Outside::V4)?;
    let (a, b) = pair.start(lab, Program::Subject, Program::Reference)?;
    pair.a.reaches(INSIDE_B[0], 10)?;
    Ok((pair, a, b))
}

#[test]
fn allowed_ips_move_between_peers() {
    scenario(|lab| {
        let (pair, a, _b) = connected(lab)?;
        let (peer_b, nobody) = (&pair.conf_b.keys.public, Keypair::generate()?.public);
        a.set(&format!("peer {nobody} allowed-ips 10.9.0.2/32"))?;
        ensure!(a.dump()?.peer(peer_b)?.allowed_ips == "fd09::2/128", "10.9.0.2 should have moved");
        // Packets cannot leave, because the new peer has no endpoint, and cannot enter, because their source belongs to
        // the new peer.
        pair.a.does_not_reach(INSIDE_B[0])?;
        pair.b.does_not_reach(INSIDE_A[0])?;
        pair.a.reaches(INSIDE_B[1], 2)?;
        a.set(&format!("peer {peer_b} allowed-ips 10.9.0.2/32,fd09::2/128"))?;
        ensure!(a.dump()?.peer(&nobody)?.allowed_ips == "(none)", "and moved back");
        pair.a.reaches(INSIDE_B[0], 2)
    });
}

/// The longest prefix decides which peer may send: a peer with a network may not use an address of another peer as
/// source.
#[test]
fn a_longer_prefix_of_another_peer_rejects() {
    scenario(|lab| {
        let (pair, a, _b) = connected(lab)?;
        a.set(&format!("peer {} allowed-ips 10.9.0.0/24", pair.conf_b.keys.public))?;
        pair.b.reaches(INSIDE_A[0], 2)?;
        a.set(&format!("peer {} allowed-ips 10.9.0.2/32", Keypair::generate()?.public))?;
        pair.b.does_not_reach(INSIDE_A[0])
    });
}

#[test]
fn endpoint_and_listen_port() {
    scenario(|lab| {
        let (pair, a, b) = connected(lab)?;
        let (peer_a, peer_b) = (&pair.conf_a.keys.public, &pair.conf_b.keys.public);
        // Our port changes: the other side is told at once.
        a.set("listen-port 51811")?;
        ensure!(a.dump()?.listen_port == 51_811, "the port should be shown");
        eventually("b has learned the port", Duration::from_secs(5), || {
            Ok(b.dump()?.peer(peer_a)?.endpoint == "10.1.0.2:51811")
        })?;
        pair.a.reaches(INSIDE_B[0], 3)?;
        // The other side's port changes: nothing arrives until the endpoint is set.
        b.set("listen-port 51812")?;
        pair.a.does_not_reach(INSIDE_B[0])?;
        a.set(&format!("peer {peer_b} endpoint 10.2.0.2:51812"))?;
        pair.a.reaches(INSIDE_B[0], 3)?;
        // Back to a random port.
        a.set("listen-port 0")?;
        ensure!(![0, 51_811].contains(&a.dump()?.listen_port), "a port of the kernel's choice should be shown");
        pair.a.reaches(INSIDE_B[0], 3)
    });
}

#[test]
fn fwmark_reaches_the_packets() {
    scenario(|lab| {
        let (pair, a, _b) = connected(lab)?;
        pair.a.count("marked", "output", "udp dport 51802 meta mark 0x1234")?;
        pair.a.reaches(INSIDE_B[0], 1)?;
        ensure!(pair.a.counted("marked")? == 0, "marked before it was asked for");
        a.set("fwmark 0x1234")?;
        ensure!(a.dump()?.fwmark == "0x1234", "wg should show the mark");
        pair.a.reaches(INSIDE_B[0], 2)?;
        let marked = pair.a.counted("marked")?;
        ensure!(marked > 0, "no packet was marked");
        a.set("fwmark off")?;
        pair.a.reaches(INSIDE_B[0], 2)?;
        ensure!(a.dump()?.fwmark == "off" && pair.a.counted("marked")? == marked, "still marked");
        Ok(())
    });
}

#[test]
fn private_key_changes() {
    scenario(|lab| {
        let (pair, a, b) = connected(lab)?;
        let new = Keypair::generate()?;
        let file = lab.file("new-key", &new.private)?;
        a.set(&format!("private-key {}", file.display()))?;
        let shown = a.dump()?;
        ensure!(shown.public_key == new.public && shown.private_key == new.private, "wg should show the new key");
        b.set(&format!("peer {} remove", pair.conf_a.keys.public))?;
        b.set(&format!("peer {} allowed-ips 10.9.0.1/32,fd09::1/128", new.public))?;
        // b has dropped the session of the old key. a would notice after 15 s only; a newly added peer begins with a
        // handshake.
        a.set(&format!("peer {} remove", pair.conf_b.keys.public))?;
        a.set(&format!("peer {} allowed-ips 10.9.0.2/32 endpoint 10.2.0.2:51802", pair.conf_b.keys.public))?;
        pair.a.reaches(INSIDE_B[0], 10)?;
        ensure!(b.dump()?.peer(&new.public)?.latest_handshake > 0, "the handshake should be the new key's");
        Ok(())
    });
}

#[test]
fn showconf_is_a_fixed_point_of_setconf() {
    scenario(|lab| {
        let (pair, a, _b) = connected(lab)?;
        let show = || pair.a.run(&["wg", "showconf", a.interface()]);
        a.set("fwmark 0xcafe")?;
        let psk = lab.file("psk", &rustguard_tests::preshared_key()?)?;
        a.set(&format!(
            "peer {} endpoint [fd02::7]:7 persistent-keepalive 25 preshared-key {} allowed-ips 10.77.0.0/16,fd77::/48",
            Keypair::generate()?.public,
            psk.display()
        ))?;
        let before = show()?;
        for word in ["ListenPort = 51801", "FwMark = 0xcafe", "Endpoint = [fd02::7]:7", "PersistentKeepalive = 25"] {
            ensure!(before.contains(word), "\"{word}\" is missing from showconf:\n{before}");
        }
        let file = lab.file("shown.conf", &before)?.display().to_string();
        pair.a.run(&["wg", "setconf", a.interface(), &file])?;
        let after = show()?;
        ensure!(sorted(&after) == sorted(&before), "was\n{before}\nis\n{after}");
        pair.a.reaches(INSIDE_B[0], 10)
    });
}

/// The order of peers is not promised; the order of the lines of one peer is.
fn sorted(conf: &str) -> Vec<&str> {
    let mut sections: Vec<&str> = conf.split("\n\n").map(str::trim).collect();
    sections.sort_unstable();
    sections
}

#[test]
fn addconf_and_syncconf_keep_the_session() {
    scenario(|lab| {
        let (pair, a, b) = connected(lab)?;
        let peer_b = &pair.conf_b.keys.public;
        let handshake = a.dump()?.peer(peer_b)?.latest_handshake;
        let received = b.dump()?.peers[0].rx;
        let more = PeerConf::new(&Keypair::generate()?.public, "10.78.0.0/16");
        let file = lab.file("more.conf", &more.section())?.display().to_string();
        pair.a.run(&["wg", "addconf", a.interface(), &file])?;
        ensure!(a.dump()?.peers.len() == 2, "addconf should add");

        // Without the added peer, and with a new one: unchanged peers are not touched.
        let mut conf = pair.conf_a.clone();
        let other = PeerConf::new(&Keypair::generate()?.public, "10.79.0.0/16");
        conf.peers.push(other.clone());
        let file = lab.file("sync.conf", &conf.wg())?.display().to_string();
        pair.a.run(&["wg", "syncconf", a.interface(), &file])?;
        let shown = a.dump()?;
        ensure!(shown.peers.len() == 2 && shown.peer(&other.public_key).is_ok(), "syncconf should replace: {shown:?}");
        ensure!(shown.peer(peer_b)?.latest_handshake == handshake, "the session of the unchanged peer is gone");
        pair.a.reaches(INSIDE_B[0], 1)?;
        let grown = b.dump()?.peers[0].rx - received;
        ensure!(grown == 128, "one ping is 128 bytes; a handshake would be 148 more: {grown}");
        Ok(())
    });
}

/// Ten thousand peers with ten allowed IPs each, beside one real peer, which must still be reached. The time is printed
/// and not judged: `benches/benches/peers.rs` measures it.
#[test]
fn ten_thousand_peers() {
    scenario(|lab| {
        let (pair, a, _b) = connected(lab)?;
        let mut text = pair.conf_a.wg();
        for peer in 0..10_000_u32 {
            let mut key = [0x5a; 32];
            key[..4].copy_from_slice(&peer.to_be_bytes());
            let prefixes: Vec<String> =
                (0..10).map(|n| format!("11.{}.{}.{}/28", peer >> 8, peer & 255, n << 4)).collect();
            // Writing to a String cannot fail.
            let _ = write!(text, "{}", PeerConf::new(&base64(&key), &prefixes.join(",")).section());
        }
        let file = lab.file("many.conf", &text)?.display().to_string();
        let started = Instant::now();
        pair.a.run(&["wg", "setconf", a.interface(), &file])?;
        println!("\n10,000 peers, 100,000 allowed IPs: setconf in {:?}", started.elapsed());
        let started = Instant::now();
        let shown = a.dump()?;
        println!("show dump in {:?}", started.elapsed());
        ensure!(shown.peers.len() == 10_001, "{} peers", shown.peers.len());
        let prefixes: usize = shown.peers.iter().map(|peer| peer.allowed_ips.split(',').count()).sum();
        ensure!(prefixes == 100_002, "{prefixes} allowed IPs");
        pair.a.reaches(INSIDE_B[0], 10)?;
        pair.a.run(&[
            "wg",
            "setconf",
            a.interface(),
            &lab.file("one.conf", &pair.conf_a.wg())?.display().to_string(),
        ])?;
        ensure!(a.dump()?.peers.len() == 1, "and gone again");
        pair.a.reaches(INSIDE_B[0], 10)
    });
}

fn base64(bytes: &[u8]) -> String {
    const ALPHABET: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    let mut text = String::new();
    for chunk in bytes.chunks(3) {
        let word = chunk.iter().fold(0_u32, |word, byte| word << 8 | u32::from(*byte)) << (8 * (3 - chunk.len()));
        for digit in 0..4 {
            let index = (word >> (18 - 6 * digit)) & 63;
            text.push(if digit <= chunk.len() { char::from(ALPHABET[index as usize]) } else { '=' });
        }
    }
    text
}

/// The errno of each answer to a request that is refused.
#[test]
fn refusals_have_an_errno() {
    scenario(|lab| {
        let (pair, a, _b) = connected(lab)?;
        let ask = |request: &str| -> Result<String> {
            use std::io::{Read, Write};
            let mut socket = std::os::unix::net::UnixStream::connect("/run/wireguard/wga.sock")?;
            socket.write_all(request.as_bytes())?;
            socket.shutdown(std::net::Shutdown::Write)?;
            let mut answer = String::new();
            socket.read_to_string(&mut answer)?;
            Ok(answer)
        };
        let fine = ask("get=1\n\n")?;
        ensure!(fine.ends_with("errno=0\n\n"), "get: {fine}");
        for request in ["set=1\nlisten_port=70000\n\n", "set=1\nprivate_key=zz\n\n", "set=1\nno_such_key=1\n\n"] {
            let answer = ask(request)?;
            ensure!(answer.starts_with("errno=") && !answer.starts_with("errno=0"), "{request:?}: {answer:?}");
        }
        // None of the refused requests has stopped anything.
        pair.a.reaches(INSIDE_B[0], 2)?;
        ensure!(a.dump()?.peers.len() == 1, "still one peer");
        Ok(())
    });
}

/// Two interfaces on one node, each with its own peers and socket.
#[test]
fn two_interfaces_on_one_node() {
    scenario(|lab| {
        let (pair, a, _b) = connected(lab)?;
        let mut second = Conf::new("wga2")?;
        second.addresses = vec!["10.10.0.1/24".to_owned()];
        let mut other = Conf::new("wgb2")?;
        other.addresses = vec!["10.10.0.2/24".to_owned()];
        other.listen_port = Some(51_900);
        second.peers.push(PeerConf::new(&other.keys.public, "10.10.0.2/32"));
        second.peers[0].endpoint = Some("10.2.0.2:51900".to_owned());
        other.peers.push(PeerConf::new(&second.keys.public, "10.10.0.1/32"));
        let _other = Tunnel::start(lab, &pair.b, Program::Reference, &other)?;
        let mut second = Tunnel::start(lab, &pair.a, Program::Subject, &second)?;
        pair.a.reaches("10.10.0.2", 10)?;
        pair.a.reaches(INSIDE_B[0], 2)?;
        let interfaces = pair.a.run(&["wg", "show", "interfaces"])?;
        ensure!(interfaces.contains("wga") && interfaces.contains("wga2"), "wg sees {interfaces}");
        second.process().stop("TERM")?;
        eventually("its socket is gone", Duration::from_secs(5), || {
            Ok(!std::path::Path::new("/run/wireguard/wga2.sock").exists())
        })?;
        pair.a.reaches(INSIDE_B[0], 2)?;
        ensure!(a.dump()?.listen_port == 51_801, "the first goes on");
        Ok(())
    });
}
