//! A tunnel that does not work reports the likely cause once in the log, and also in `show` and `show --json`.
use anyhow::{Context, Result, ensure};
use rustguard_core::{
    node::{Action, Node as Protocol, PeerConfig, PeerId},
    time::{Instant, Now},
};
use rustguard_crypto::x25519::{PublicKey, StaticSecret};
use rustguard_tests::{
    Flood, INSIDE_B, Keypair, Lab, Node, Outside, Pair, Program, Tunnel, eventually, preshared_key,
    scenario_of_rustguard,
};
use serde_json::Value;
use std::time::{Duration, SystemTime};

/// The program that sends single datagrams.
const TRAFFIC: &str = env!("CARGO_BIN_EXE_traffic");
/// The limit for a report, which comes after eight seconds.
const TOLD: Duration = Duration::from_secs(40);

fn scenario<F: FnOnce(&Lab) -> Result<()>>(body: F) {
    scenario_of_rustguard("causes in words", body);
}

/// One side of the tunnel, whose only peer is the other side.
struct Side<'a> {
    node: &'a Node,
    tunnel: Tunnel,
}

impl<'a> Side<'a> {
    /// Starts side `a`, which begins handshakes.
    fn initiator(lab: &Lab, pair: &'a Pair) -> Result<Self> {
        Ok(Self { node: &pair.a, tunnel: Tunnel::start(lab, &pair.a, Program::Subject, &pair.conf_a)? })
    }

    fn responder(lab: &Lab, pair: &'a Pair) -> Result<Self> {
        Ok(Self { node: &pair.b, tunnel: Tunnel::start(lab, &pair.b, Program::Subject, &pair.conf_b)? })
    }

    fn peer(&self) -> Result<Value> {
        let ended = self.node.end_of(self.node.rustguard()?.args(["show", self.tunnel.interface(), "--json"]))?;
        ensure!(ended.success(), "{ended}");
        let shown: Value = serde_json::from_str(&ended.stdout)?;
        Ok(shown[0]["peers"][0].clone())
    }

    /// Waits for the state of the connection.
    fn is(&mut self, state: &str, limit: Duration) -> Result<Value> {
        let mut peer = Value::Null;
        let (node, interface) = (self.node, self.tunnel.interface().to_owned());
        self.tunnel.process().until(state, limit, || {
            let ended = node.end_of(node.rustguard()?.args(["show", &interface, "--json"]))?;
            peer = serde_json::from_str::<Value>(&ended.stdout)?[0]["peers"][0].clone();
            Ok(peer["connection"]["state"] == state)
        })?;
        Ok(peer)
    }

    /// The number of warnings in the log that have all these words.
    fn warnings(&mut self, words: &[&str]) -> usize {
        let log = self.tunnel.process().log();
        log.lines().filter(|line| line.contains("WARN") && words.iter().all(|word| line.contains(word))).count()
    }

    /// Waits for a warning that has all these words.
    fn warns(&mut self, words: &[&str]) -> Result<()> {
        eventually(&format!("a warning with {words:?}"), TOLD, || Ok(self.warnings(words) > 0))
    }

    /// How many handshake messages were refused.
    fn refused(&self) -> Result<u64> {
        let ended = self.node.end_of(self.node.rustguard()?.args(["show", self.tunnel.interface(), "--json"]))?;
        let shown: Value = serde_json::from_str(&ended.stdout)?;
        Ok(shown[0]["dropped"]["handshake_refused"].as_u64().unwrap_or(0))
    }

    /// The warning is in the log, and the same cause in `show`.
    fn blames(&mut self, kind: &str, words: &[&str]) -> Result<()> {
        self.warns(words)?;
        let peer = self.peer()?;
        ensure!(peer["problem"]["kind"] == kind, "{kind}: {peer:#}");
        let text = peer["problem"]["text"].as_str().context("a text")?;
        ensure!(words.iter().all(|word| text.contains(word)), "{text}");
        ensure!(peer["problem"]["since"].as_u64() > Some(1_000_000_000), "{peer:#}");
        let ended = self.node.end_of(self.node.rustguard()?.args(["show", self.tunnel.interface()]))?;
        ensure!(ended.unfolded().contains(&format!("problem: {text}")), "{ended}");
        Ok(())
    }

    /// The warning was written once, and the log reports that the problem has ended.
    fn is_mended(&mut self, kind: &str, words: &[&str]) -> Result<()> {
        let peer = self.is("online", TOLD)?;
        ensure!(peer["problem"].is_null(), "{peer:#}");
        // Lines about a peer are rate-limited: the second waits up to ten seconds.
        eventually("the end of the trouble", TOLD, || {
            let log = self.tunnel.process().log();
            Ok(log.lines().any(|line| line.contains("INFO") && line.contains("works again") && line.contains(kind)))
        })?;
        ensure!(self.warnings(words) == 1, "{words:?} is told once:\n{}", self.tunnel.process().log());
        Ok(())
    }
}

/// From never connected to online and, after the other side has stopped, to connecting.
#[test]
fn the_states_of_a_connection() {
    scenario(|lab| {
        let pair = Pair::new(lab, Outside::V4)?;
        let mut b = Side::responder(lab, &pair)?;
        ensure!(b.peer()?["connection"]["state"] == "never connected", "{:#}", b.peer()?);
        let mut a = Side::initiator(lab, &pair)?;
        pair.a.reaches(INSIDE_B[0], 10)?;
        for side in [&mut a, &mut b] {
            let peer = side.is("online", TOLD)?;
            ensure!(peer["connection"]["since"].as_u64() > Some(1_000_000_000), "{peer:#}");
            ensure!(peer["problem"].is_null(), "{peer:#}");
        }
        b.tunnel.crash()?;
        // The session still exists on this side. Its packets are not answered, so handshakes begin after 15 s.
        let _ = pair.a.run(&["ping", "-n", "-c", "1", "-W", "1", INSIDE_B[0]]);
        let peer = a.is("connecting", TOLD)?;
        ensure!(peer["connection"]["attempts"].as_u64() >= Some(1), "{peer:#}");
        a.blames("port-unreachable", &["nobody listens", "51802"])?;
        let mut b = Side::responder(lab, &pair)?;
        b.is("online", TOLD)?;
        a.is_mended("port-unreachable", &["nobody listens"])
    });
}

#[test]
fn a_firewall_on_the_way() {
    scenario(|lab| {
        let pair = Pair::new(lab, Outside::V4)?;
        pair.router.drop("forward", "udp dport 51802")?;
        let _b = Side::responder(lab, &pair)?;
        let mut a = Side::initiator(lab, &pair)?;
        a.blames("no-answer", &["nothing comes back", "10.2.0.2:51802", "firewall", "by eth0"])?;
        let peer = a.is("connecting", TOLD)?;
        ensure!(peer["connection"]["attempts"].as_u64() >= Some(2), "{peer:#}");
        pair.router.sh("nft flush ruleset")?;
        a.is_mended("no-answer", &["nothing comes back"])
    });
}

/// An nftables rule, at this hook of the router or of the called host, answers with an ICMP message.
fn is_said(lab: &Lab, outside: Outside, at_host: bool, rule: &str, kind: &str, words: &[&str]) -> Result<()> {
    let pair = Pair::new(lab, outside)?;
    let (node, hook) = if at_host { (&pair.b, "input") } else { (&pair.router, "forward") };
    node.sh(&format!(
        "nft add table inet lab
         nft add chain inet lab said '{{ type filter hook {hook} priority 0; }}'
         nft add rule inet lab said udp dport 51802 {rule}"
    ))?;
    let _b = Side::responder(lab, &pair)?;
    let mut a = Side::initiator(lab, &pair)?;
    a.blames(kind, words)?;
    node.sh("nft flush ruleset")?;
    a.is_mended(kind, words)
}

#[test]
fn a_router_that_forbids() {
    let words = ["the router 10.1.0.1 forbids", "51802 of 10.2.0.2"];
    scenario(|lab| is_said(lab, Outside::V4, false, "reject with icmp admin-prohibited", "prohibited", &words));
}

#[test]
fn a_host_that_forbids_over_ipv6() {
    scenario(|lab| {
        is_said(
            lab,
            Outside::V6,
            true,
            "reject with icmpv6 admin-prohibited",
            "prohibited",
            &["fd02::2 itself forbids"],
        )
    });
}

#[test]
fn a_router_without_a_route_over_ipv6() {
    let words = ["the router fd01::1 has no route to fd02::2"];
    scenario(|lab| is_said(lab, Outside::V6, false, "reject with icmpv6 no-route", "network-unreachable", &words));
}

#[test]
fn a_router_that_does_not_find_the_host() {
    let words = ["10.2.0.2 cannot be reached", "the router 10.1.0.1 does not find that machine"];
    scenario(|lab| is_said(lab, Outside::V4, false, "reject with icmp host-unreachable", "host-unreachable", &words));
}

#[test]
fn a_router_that_rejects_the_port() {
    let words = ["the router 10.1.0.1 rejects", "firewall"];
    scenario(|lab| is_said(lab, Outside::V4, false, "reject with icmp port-unreachable", "undelivered", &words));
}

#[test]
fn datagrams_that_are_passed_on_too_often() {
    scenario(|lab| {
        let pair = Pair::new(lab, Outside::V4)?;
        // As if the datagram had gone through a routing loop.
        pair.a.sh("nft add table inet lab
             nft add chain inet lab out '{ type filter hook output priority 0; }'
             nft add rule inet lab out udp dport 51802 ip ttl set 1")?;
        let mut a = Side::initiator(lab, &pair)?;
        a.blames("hop-limit", &["go in a circle", "the router 10.1.0.1 reports"])
    });
}

#[test]
fn a_wrong_port() {
    scenario(|lab| {
        let mut pair = Pair::new(lab, Outside::V6)?;
        pair.conf_a.peers[0].endpoint = Some("[fd02::2]:51999".to_owned());
        let _b = Side::responder(lab, &pair)?;
        let mut a = Side::initiator(lab, &pair)?;
        a.blames("port-unreachable", &["nobody listens", "51999", "fd02::2"])
    });
}

#[test]
fn no_route_and_a_firewall_of_this_host() {
    scenario(|lab| {
        let pair = Pair::new(lab, Outside::V4)?;
        pair.a.sh("ip route del default")?;
        let _b = Side::responder(lab, &pair)?;
        let mut a = Side::initiator(lab, &pair)?;
        a.blames("send-failed", &["refuses to send to 10.2.0.2:51802", "Network is unreachable", "no route"])?;
        pair.a.sh("ip route add default via 10.1.0.1")?;
        a.is_mended("send-failed", &["no route"])?;
        drop(a);
        // A rule that rejects the host's own datagrams also gives an error of the system.
        pair.a.drop("output", "udp dport 51802")?;
        let mut a = Side::initiator(lab, &pair)?;
        a.blames("send-failed", &["refuses to send", "firewall", "by eth0, gateway 10.1.0.1"])
    });
}

#[test]
fn a_gateway_that_is_not_there() {
    scenario(|lab| {
        let pair = Pair::new(lab, Outside::V4)?;
        pair.a.sh("ip route replace default via 10.1.0.77")?;
        let mut a = Side::initiator(lab, &pair)?;
        a.blames("host-unreachable", &["10.2.0.2 cannot be reached", "gateway 10.1.0.77"])
    });
}

fn a_key_that_no_peer_has(lab: &Lab, program: Program) -> Result<()> {
    let mut pair = Pair::new(lab, Outside::V4)?;
    pair.conf_b.peers[0].public_key = Keypair::generate()?.public;
    pair.conf_a.peers[0].persistent_keepalive = Some(5);
    let mut b = Side::responder(lab, &pair)?;
    let _a = Tunnel::start(lab, &pair.a, program, &pair.conf_a)?;
    b.warns(&["10.1.0.2:51801", &pair.conf_a.keys.public, "no peer has"])?;
    // The other side tries again, which must not add a second line.
    eventually("three initiations", TOLD, || Ok(b.refused()? >= 3))?;
    ensure!(b.warnings(&["no peer has"]) == 1, "once:\n{}", b.tunnel.process().log());
    Ok(())
}

#[test]
fn a_key_that_no_peer_has_from_rustguard() {
    scenario(|lab| a_key_that_no_peer_has(lab, Program::Subject));
}

#[test]
fn a_key_that_no_peer_has_from_wireguard_go() {
    scenario(|lab| a_key_that_no_peer_has(lab, Program::Reference));
}

/// Both sides begin handshakes. On one side, the entry for the other has a wrong key.
#[test]
fn the_peer_at_the_endpoint_has_another_key() {
    scenario(|lab| {
        let mut pair = Pair::new(lab, Outside::V4)?;
        let key = pair.conf_b.keys.public.clone();
        pair.conf_a.peers[0].public_key = Keypair::generate()?.public;
        pair.conf_b.peers[0].endpoint = Some("10.1.0.2:51801".to_owned());
        pair.conf_a.peers[0].persistent_keepalive = Some(5);
        pair.conf_b.peers[0].persistent_keepalive = Some(5);
        let mut a = Side::initiator(lab, &pair)?;
        let mut b = Side::responder(lab, &pair)?;
        a.blames("other-key", &["10.2.0.2:51802", &key, "correct the PublicKey here"])?;
        b.blames("not-for-us", &["10.1.0.2:51801", "another public key than ours"])
    });
}

fn preshared_keys_that_differ(lab: &Lab, initiator: Program, responder: Program) -> Result<()> {
    let mut pair = Pair::new(lab, Outside::V4)?;
    pair.conf_a.peers[0].preshared_key = Some(preshared_key()?);
    pair.conf_b.peers[0].preshared_key = Some(preshared_key()?);
    pair.conf_a.peers[0].persistent_keepalive = Some(5);
    let b = Tunnel::start(lab, &pair.b, responder, &pair.conf_b)?;
    let a = Tunnel::start(lab, &pair.a, initiator, &pair.conf_a)?;
    if initiator == Program::Subject {
        let mut a = Side { node: &pair.a, tunnel: a };
        a.blames("preshared-key", &["the other side answers", "preshared keys differ"])
    } else {
        let mut b = Side { node: &pair.b, tunnel: b };
        b.blames("unconfirmed", &["begins handshakes", "do not arrive", "preshared keys differ"])
    }
}

#[test]
fn preshared_keys_that_differ_seen_by_the_initiator() {
    scenario(|lab| preshared_keys_that_differ(lab, Program::Subject, Program::Reference));
}

#[test]
fn preshared_keys_that_differ_seen_by_the_responder() {
    scenario(|lab| preshared_keys_that_differ(lab, Program::Reference, Program::Subject));
}

/// The other side has restarted with a clock that is an hour slow: the test sends its messages in its place.
#[test]
fn a_clock_that_is_behind() {
    scenario(|lab| {
        let pair = Pair::new(lab, Outside::V4)?;
        let mut b = Side::responder(lab, &pair)?;
        let started = std::time::Instant::now();
        let unix = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH)?;
        let rng = &mut rand::rng();
        let mut client = |unix| -> Result<(Protocol, PeerId)> {
            let now = Now { instant: Instant::from_nanos(0), unix };
            let mut node = Protocol::new(now.instant, rng);
            // Both kinds of keys are 32 bytes in base64.
            let private: PublicKey = pair.conf_a.keys.private.parse()?;
            node.set_private_key(Some(StaticSecret::from_bytes(private.0)), &mut Vec::new());
            let server = node.add_peer(PeerConfig::new(pair.conf_b.keys.public.parse()?))?;
            Ok((node, server))
        };
        let send = |(node, server): &mut (Protocol, PeerId), unix: Duration| -> Result<()> {
            let mut actions = Vec::new();
            let now = Now { instant: Instant::from_nanos(0) + started.elapsed(), unix: unix + started.elapsed() };
            node.handshake_now(*server, now, &mut rand::rng(), &mut actions);
            let datagram = actions.iter().find_map(|action| match action {
                Action::Send { datagram, .. } => Some(datagram.clone()),
                _ => None,
            });
            let to = "10.2.0.2:51802".parse()?;
            let once = Flood::new(to, Duration::from_micros(1_500), datagram.context("an initiation")?);
            let flood = format!("{TRAFFIC} flood {}", Flood { rate: Some(1_000), ..once });
            // On a busy machine, the flood's time may end before its first datagram.
            while pair.a.sh(&flood)?.starts_with("0 ") {}
            Ok(())
        };
        send(&mut client(unix)?, unix)?;
        eventually("the first initiation is taken", TOLD, || Ok(b.peer()?["rx_bytes"].as_u64() > Some(0)))?;

        // An hour, and half a minute for delays on a busy machine.
        let late = unix - Duration::from_secs(3_630);
        let words = ["the clock of the other side is 60 minutes behind", "set the clock there"];
        let mut restarted = client(late)?;
        // Three initiations in a row must arrive at the pace of their timestamps. A peer that retries also waits in
        // between.
        for _ in 0..20 {
            send(&mut restarted, late)?;
            std::thread::sleep(Duration::from_secs(2));
            if b.warnings(&words) > 0 {
                break;
            }
        }
        b.blames("clock-behind", &words)
    });
}

/// The answers are lost on the way. The responder cannot distinguish this from a wrong preshared key.
#[test]
fn answers_that_do_not_arrive() {
    scenario(|lab| {
        let mut pair = Pair::new(lab, Outside::V4)?;
        pair.conf_a.peers[0].persistent_keepalive = Some(5);
        pair.router.drop("forward", "udp sport 51802")?;
        let mut b = Side::responder(lab, &pair)?;
        let _a = Tunnel::start(lab, &pair.a, Program::Reference, &pair.conf_a)?;
        b.blames("unconfirmed", &["begins handshakes", "do not arrive"])?;
        pair.router.sh("nft flush ruleset")?;
        b.is_mended("unconfirmed", &["begins handshakes"])
    });
}
