//! RustGuard accepts the configuration files that wg-quick and `wg` accept, with the same meaning, and refuses those
//! that they refuse. Both programs get files as people and programs write them.
use anyhow::{Context as _, Result, ensure};
use rustguard_tests::{Ended, Lab, Node, scenario_of_rustguard};
use std::{fs, process::Command};

const PRIVATE: &str = "yAnz5TF+lXXJte14tji3zlMNq+hd2rYUIgJBgB3fBmk=";
const PUBLIC: &str = "xTIBA5rboUvnH4htodjb6e697QjLERt1NAB4mZqp8Dg=";
const OTHER: &str = "TrMvSoP4jYQlY6RIzBgbssQqY3vxI2Pi+y71lOWWXX0=";

/// Whole files. `K` is the private key, `P` and `Q` are public keys.
const FILES: &[&[u8]] = &[
    b"[Interface]\nPrivateKey = K\n\n[Peer]\nPublicKey = P\nAllowedIPs = 10.0.0.2/32\n",
    b"[Interface]\r\nPrivateKey = K\r\nAddress = 10.0.0.1/24\r\n\r\n[Peer]\r\nPublicKey = P\r\nAllowedIPs = 10.0.0.2/32\r\n",
    b"[Interface]\nPrivateKey = K\n[Peer]\nPublicKey = P\nAllowedIPs = 10.0.0.2/32",
    b"[Interface]\nPrivateKey=K\n[Peer]\nPublicKey=P\nAllowedIPs=10.0.0.2/32\n",
    b"\t[Interface]\t\n  PrivateKey\t=\tK  \n\n \t \n [Peer] \nPublicKey =P\nAllowedIPs= 10.0.0.2/32\n",
    b"[interface]\nprivatekey = K\n[peer]\npublickey = P\nallowedips = 10.0.0.2/32\n",
    b"[INTERFACE]\nPRIVATEKEY = K\n[PEER]\nPUBLICKEY = P\nALLOWEDIPS = 10.0.0.2/32\n",
    b"# a\n#b\n  # c\n[Interface] # d\nPrivateKey = K # e\n[Peer]#f\nPublicKey = P#g\nAllowedIPs = 10.0.0.2/32 # h, i\n",
    b"# caf\xe9 in Latin-1\n[Interface]\nPrivateKey = K # \xff\xfe\n[Peer]\n# \x80\nPublicKey = P\nAllowedIPs = 10.0.0.2/32\n",
    b"[Interface]\nPrivate Key = K\n[ Peer ]\nPublic Key = P\nAllowed IPs = 10.0.0.2/32\n",
    b"[ Interface ]\nPrivateKey = K\n[Peer]\nPublicKey = P\nAllowedIPs = 10.0.0.2/32\n",
    b"[Interface]\nAddress = 10.0.0.1/24\nPrivateKey = K\nDNS = 1.1.1.1\n",
    b"[Interface]\nPrivateKey = K\n[Peer]\nAllowedIPs = 10.0.0.2/32\nPersistentKeepalive = 25\nPublicKey = P\n",
    b"[Interface]\nPrivateKey = K\n[Peer]\nPublicKey = P\nAllowedIPs = 10.0.0.2/32\n[Peer]\nPublicKey = Q\nAllowedIPs = 10.0.0.3/32\n",
    b"[Interface]\nPrivateKey = K\n[Peer]\nPublicKey = P\nAllowedIPs = 10.0.0.2/32\n[Interface]\nListenPort = 51820\n",
    b"[Peer]\nPublicKey = P\nAllowedIPs = 10.0.0.2/32\n[Interface]\nPrivateKey = K\n",
    b"[Interface]\nPrivateKey = K\nListenPort = 1\nListenPort = 2\n",
    b"[Interface]\nPrivateKey = K\n; an ini comment\n",
    b"[Interface]\nPrivateKey = K\nPublicKey = P\n",
    b"[Interface]\nPrivateKey = K\n[Peer]\nPublicKey = P\nAddress = 10.0.0.2/32\n",
    b"[Interface]\nPrivateKey = K\n[Peers]\nPublicKey = P\n",
    b"[Interface]\nPrivateKey = K\n[Peer\nPublicKey = P\n",
    b"PrivateKey = K\n",
    b"[Interface]\nPrivateKey K\n",
    b"[Interface]\nPrivateKey\n",
    b"[Interface]\nPrivateKey = K extra\n",
    b"[Interface]\nPrivateKey = KK\n",
    b"[Interface]\nPrivateKey = short=\n",
    b"[Interface]\nPrivateKey = K\n[Peer]\nAllowedIPs = 10.0.0.2/32\n",
    // Files as programs write them.
    b"[Interface]\nPrivateKey = K\nAddress = 10.8.0.1/24\nListenPort = 51820\nPreUp = \nPostUp = iptables -t nat -A POSTROUTING -s 10.8.0.0/24 -o eth0 -j MASQUERADE; \nPreDown = \nPostDown = \n\n# Client: phone (0a1b)\n[Peer]\nPublicKey = P\nPresharedKey = Q\nAllowedIPs = 10.8.0.2/32\n",
    b"[Interface]\nPrivateKey = K\nAddress = 10.6.0.1/24,fd11::1/64\nMTU = 1420\nListenPort = 51820\n### begin phone ###\n[Peer]\nPublicKey = P\nPresharedKey = Q\nAllowedIPs = 10.6.0.2/32,fd11::2/128\n### end phone ###\n",
    b"[Interface]\nAddress = 10.66.66.1/24,fd42:42:42::1/64\nListenPort = 61951\nPrivateKey = K\nPostUp = iptables -I INPUT -p udp --dport 61951 -j ACCEPT\nPostDown = iptables -D INPUT -p udp --dport 61951 -j ACCEPT\n\n### Client one\n[Peer]\nPublicKey = P\nPresharedKey = Q\nAllowedIPs = 10.66.66.2/32,fd42:42:42::2/128\n",
    b"# Do not alter the commented lines\n# ENDPOINT 203.0.113.9\n\n[Interface]\nAddress = 10.7.0.1/24\nPrivateKey = K\nListenPort = 51820\n\n# BEGIN_PEER laptop\n[Peer]\nPublicKey = P\nPresharedKey = Q\nAllowedIPs = 10.7.0.2/32\n# END_PEER laptop\n",
    b"[Interface]\n# Device: Brave Cat\nPrivateKey = K\nAddress = 10.64.1.2/32,fc00:bbbb:bbbb:bb01::1:1/128\nDNS = 10.64.0.1\n\n[Peer]\nPublicKey = P\nAllowedIPs = 0.0.0.0/0,::0/0\nEndpoint = 193.32.127.66:51820\n",
    b"[Interface]\n# Bouncing = 1\n# NAT-PMP (Port Forwarding) = off\n# VPN Accelerator = on\nPrivateKey = K\nAddress = 10.2.0.2/32\nDNS = 10.2.0.1\n\n[Peer]\n# NL#12\nPublicKey = P\nAllowedIPs = 0.0.0.0/0\nEndpoint = 185.107.56.1:51820\n",
    b"[Interface]\nPrivateKey = K\nAddress = 172.16.0.2/32\nAddress = 2606:4700:110::2/128\nDNS = 1.1.1.1\nMTU = 1280\n[Peer]\nPublicKey = P\nAllowedIPs = 0.0.0.0/0\nAllowedIPs = ::/0\nEndpoint = 162.159.192.1:2408\n",
    b"####################\n# server #\n\n[Interface]\nPrivateKey = K\nListenPort = 51820\nFwMark = 0x1\nTable = auto\nSaveConfig = true\n\n[Peer]\nPublicKey = P\nAllowedIPs = 10.0.0.2/32\nPersistentKeepalive = 0\n",
];

/// Lines of `[Interface]`.
const INTERFACE: &[&str] = &[
    "ListenPort = 51820",
    "ListenPort = 0",
    "ListenPort = 65535",
    "ListenPort = 65536",
    "ListenPort = -1",
    "ListenPort = domain",
    "ListenPort = no-such-service",
    "ListenPort =",
    "FwMark = off",
    "FwMark = OFF",
    "FwMark = 0",
    "FwMark = 51820",
    "FwMark = 0xca6c",
    "FwMark = 0XCA6C",
    "FwMark = 4294967295",
    "FwMark = 4294967296",
    "FwMark = 0x",
    "FwMark = mark",
    "Address = 10.0.0.1",
    "Address = 10.0.0.1/24,10.0.1.1/24",
    "Address = 10.0.0.1/24 , fd00::1/64",
    "Address = 10.0.0.1/255.255.255.0",
    "Address=10.0.0.1/24 # inside",
    "Address =",
    "DNS = 1.1.1.1, 2606:4700:4700::1111, example.com",
    "DNS = 1.1.1.1\nDNS = 9.9.9.9",
    "DNS = fe80::1%eth0, fe80::2",
    "DNS =",
    "MTU = 1420",
    "Table = off",
    "Table = OFF",
    "Table = 1234",
    "Table = auto",
    "Table = main",
    "SaveConfig = false",
    "saveconfig=true",
    "PostUp = echo a = b; true",
    "PostUp = echo %i # and no more",
    "PreUp = true\nPreUp = true\nPostDown = false",
    "Endpoint = 192.0.2.1:1",
];

/// Lines of a `[Peer]` in addition to its key.
const PEER: &[&str] = &[
    "AllowedIPs = 10.0.0.2",
    "AllowedIPs = 10.0.0.5/24",
    "AllowedIPs = 10.0.0.2 / 32",
    "AllowedIPs = 10.0.0.2/32,10.1.0.0/16,fd00::2/128",
    "AllowedIPs = 10.0.0.2/32 ,  10.1.0.0/16",
    "AllowedIPs = 10.0.0.2/32\nAllowedIPs = 10.1.0.0/16",
    "AllowedIPs = 10.0.0.2/32, 10.0.0.2/32",
    "AllowedIPs =",
    "AllowedIPs = 0.0.0.0/0, ::/0",
    "AllowedIPs = ::0/0",
    "AllowedIPs = fd00::2",
    "AllowedIPs = FD00:0:0::2/64",
    "AllowedIPs = 10.0.0.0/08",
    "AllowedIPs = 10.0.0.0/",
    "AllowedIPs = 10.0.0.0/33",
    "AllowedIPs = 10.0.0.0/255.0.0.0",
    "AllowedIPs = 10.0.0.2/32,",
    "AllowedIPs = ,10.0.0.2/32",
    "AllowedIPs = 10.0.0.2/32 10.0.0.3/32",
    "AllowedIPs = 10.0.0.2/32; 10.0.0.3/32",
    "AllowedIPs = 10.0.0",
    "AllowedIPs = 010.0.0.2/32",
    "AllowedIPs = host.example/32",
    "Endpoint = 192.0.2.1:51820",
    "Endpoint = 192.0.2.1 : 51820",
    "Endpoint = [2001:db8::1]:51820",
    "Endpoint = [2001:db8::1] : 51820",
    "Endpoint = [::ffff:192.0.2.1]:51820",
    "Endpoint = localhost:51820",
    "Endpoint = 192.0.2.1:domain",
    "Endpoint = [::1]:domain",
    "Endpoint = 192.0.2.1",
    "Endpoint = 192.0.2.1:",
    "Endpoint = 2001:db8::1",
    "Endpoint = [2001:db8::1]",
    "Endpoint = 192.0.2.1:65536",
    "Endpoint =",
    "PersistentKeepalive = 25",
    "PersistentKeepalive = 0",
    "PersistentKeepalive = off",
    "PersistentKeepalive = OFF",
    "PersistentKeepalive = 65535",
    "PersistentKeepalive = 65536",
    "PersistentKeepalive = -1",
    "PersistentKeepalive = 25s",
    "PersistentKeepalive =",
    "PresharedKey = Q",
    "PresharedKey = AAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAA=",
    "PresharedKey = Q\nPresharedKey = P",
    "PresharedKey =",
    "Name = laptop",
];

/// Parts of files that RustGuard treats differently, with the reason.
const DIFFERENT: &[(&str, &str)] = &[
    ("10.0.0.2 / 32", "a blank is between two addresses, as in wg-quick's own keys"),
    ("ListenPort = 65536", "wg takes the port modulo 65536"),
    ("192.0.2.1:65536", "wg takes the port modulo 65536"),
    ("ListenPort =\n", "an empty value is none, as with wg-quick's own keys"),
];

/// The output of `wg showconf` after the program has converted the file for `wg setconf`; `None` if either refuses.
fn taken(node: &Node, mut strip: Command, file: &str) -> Result<Option<String>> {
    let stripped = node.end_of(strip.arg("strip").arg(file))?;
    if !stripped.success() {
        return Ok(None);
    }
    let for_wg = format!("{file}.stripped");
    fs::write(&for_wg, &stripped.stdout)?;
    if !node.end_of(node.command("wg").args(["setconf", "wgx", &for_wg]))?.success() {
        return Ok(None);
    }
    let mut shown: Vec<_> = node.run(&["wg", "showconf", "wgx"])?.lines().map(str::to_owned).collect();
    // Without a configured port, the port is random.
    let port =
        stripped.stdout.to_lowercase().lines().rev().find_map(|line| Some(line.strip_prefix("listenport")?.to_owned()));
    let is_set = port.is_some_and(|port| port.trim_matches(['=', ' ']) != "0");
    shown.retain(|line| !line.starts_with("ListenPort = ") || is_set);
    Ok(Some(shown.join("\n")))
}

fn files() -> Vec<Vec<u8>> {
    let (head, tail) = ("[Interface]\nPrivateKey = K\n", "[Peer]\nPublicKey = P\nAllowedIPs = 10.9.9.9/32\n");
    let interface = INTERFACE.iter().map(|line| format!("{head}{line}\n{tail}").into_bytes());
    let peer = PEER.iter().map(|line| format!("{head}[Peer]\nPublicKey = P\n{line}\n").into_bytes());
    let whole = FILES.iter().map(|file| file.to_vec());
    let keys = |file: Vec<u8>| {
        // Keys only follow a `=`. Latin-1 bytes stay unchanged.
        let mut bytes = Vec::new();
        for word in file.split_inclusive(|byte| b" =\n\r#\t".contains(byte)) {
            let end = word.iter().position(|byte| b" =\n\r#\t".contains(byte)).unwrap_or(word.len());
            let known = match &word[..end] {
                b"K" => PRIVATE,
                b"P" => PUBLIC,
                b"Q" => OTHER,
                _ => "",
            };
            bytes.extend_from_slice(if known.is_empty() { &word[..end] } else { known.as_bytes() });
            bytes.extend_from_slice(&word[end..]);
        }
        bytes
    };
    whole.chain(interface).chain(peer).map(keys).collect()
}

#[test]
fn what_wg_quick_takes_is_taken_alike() {
    scenario_of_rustguard("a comparison with wg-quick", |lab: &Lab| {
        let node = lab.node("a")?;
        let bare = node.end_of(node.rustguard()?.args(["--userspace", "wgx"]))?;
        ensure!(bare.success(), "{bare}");
        let mut wrong = Vec::new();
        let mut taken_by_both = 0;
        for (n, text) in files().into_iter().enumerate() {
            let file = lab.path(&format!("g{n}.conf"));
            fs::write(&file, &text)?;
            let file = file.to_str().context("a path")?;
            node.run(&["chmod", "600", file])?;
            let theirs = taken(&node, node.command("wg-quick"), file)?;
            let ours = taken(&node, node.rustguard()?, file)?;
            taken_by_both += usize::from(theirs.is_some() && ours.is_some());
            let text = String::from_utf8_lossy(&text).into_owned();
            let is_expected = DIFFERENT.iter().any(|(part, _)| text.contains(part));
            if (theirs != ours) != is_expected {
                let said: Ended = node.end_of(node.rustguard()?.args(["strip", file]))?;
                wrong.push(format!("{text}\nwg-quick and wg: {theirs:#?}\nwe: {ours:#?}\n{}", said.stderr));
            }
        }
        println!("{taken_by_both} files are taken by both");
        ensure!(wrong.is_empty() && taken_by_both > 60, "{}", wrong.join("\n--------\n"));
        Ok(())
    });
}
