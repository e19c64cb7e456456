//! The state of interfaces for people.

use super::{Device, NONE, Peer, allowed_ips, public_key, secret, to_base64};
use crate::{
    escape::escape,
    output::{
        colour::{Painted, Palette},
        columns::field,
        way,
        words::{ago, bytes, now, span},
    },
};
use rustguard_device::uapi::{ConnectionView, ParityView, PathMtuView, PathView, PathWord, RefusalView};
use std::{
    fmt::{Display, Write as _},
    time::Duration,
};
use zeroize::Zeroizing;

const HIDDEN: &str = "(hidden)";

/// A block for each interface and for each peer, at most `width` columns wide. The peer with the latest handshake comes
/// first.
pub(super) fn page(devices: &[(String, Device)], secrets: bool, width: usize, palette: Palette) -> String {
    let mut page = Page { text: String::new(), palette, width, secrets, now: now() };
    for (index, (name, device)) in devices.iter().enumerate() {
        if index > 0 {
            page.text.push('\n');
        }
        page.device(name, device);
    }
    page.text
}

/// Describes a path: its endpoint, its state, and its use.
fn words(path: &PathView, peers: &[Peer]) -> String {
    let endpoint = match (&path.configured, &path.endpoint, &path.through) {
        (Some(configured), ..) => way::transport(configured).map_or_else(|| configured.clone(), |it| it.to_string()),
        (None, Some(endpoint), _) => way::endpoint(endpoint).into_owned(),
        (None, None, Some(relay)) => format!("via-peer {relay}"),
        (None, None, None) => "unknown endpoint".to_owned(),
    };
    let relay = endpoint.strip_prefix("via-peer ").and_then(|rest| rest.split(' ').next());
    let mut words = match relay {
        Some(key) => endpoint.replacen(key, &way::called(key, peers), 1),
        None => endpoint.clone(),
    };
    if let Some(local) = &path.local {
        let _ = write!(words, " from {local}");
    }
    words += match path.state {
        PathWord::Up => ", works",
        PathWord::Down => ", does not answer",
        PathWord::Unknown if relay.is_some() && path.through.is_none() => ", which is no peer here",
        PathWord::Unknown if path.endpoint.is_none() && path.through.is_none() => ", not resolved",
        PathWord::Unknown => ", not known to work",
    };
    if let Some(us) = path.round_trip_us.filter(|_| path.state == PathWord::Up) {
        let _ = write!(words, ", {:.1} ms", us as f64 / 1e3);
    }
    if let Some(weight) = path.weight {
        words += ", takes flows";
        if path.configured.is_none() {
            let _ = write!(words, " (weight {weight})");
        }
    } else if path.active {
        words += ", in use";
    }
    words
}

/// Describes whether a peer can be talked to.
fn connection_words(now: Duration, connection: &ConnectionView) -> String {
    let ConnectionView { state, since, attempts } = connection;
    let state = escape(state);
    let Some(since) = since else { return state.into_owned() };
    let passed = span(now.as_secs().saturating_sub(*since).max(1));
    match attempts {
        Some(1) => format!("{state} for {passed}, 1 attempt"),
        Some(attempts) => format!("{state} for {passed}, {attempts} attempts"),
        None => format!("{state} for {passed}"),
    }
}

/// Describes which side relays packets from peer to peer, and why. Returns `None` if there are no two peers and no
/// relayed packets.
fn relay(device: &Device) -> Option<String> {
    if device.peers.len() < 2 && device.relayed == 0 {
        return None;
    }
    Some(match (device.relay.as_deref()?, &device.relay_rules) {
        ("on", _) => "on".to_owned(),
        ("isolated", _) => "off, because peers are isolated".to_owned(),
        ("rules", Some(rules)) => format!("by the host, because of {rules} (--relay unfiltered ignores it)"),
        ("unknown", _) => {
            "by the host, until RustGuard knows whether netfilter has rules for forwarded packets".to_owned()
        }
        (_, _) => "by the host".to_owned(),
    })
}

/// Describes the parities that are configured for a peer.
fn parity_words(ParityView { size, accepted, sent, rebuilt }: &ParityView) -> String {
    let used = if *accepted { "" } else { ", not accepted by the peer" };
    format!("1 for {size}{used}; {sent} sent, {rebuilt} lost packets rebuilt")
}

fn plural(count: usize, what: &str) -> String {
    format!("{count} {what}{}", if count == 1 { "" } else { "s" })
}

/// Describes packets that the policy has refused.
fn refused(now: Duration, refusal: &RefusalView, peers: &[Peer]) -> String {
    let RefusalView { at, peer, from, to, packets, traffic: what, why, .. } = refusal;
    let (what, why) = (escape(what), escape(why));
    let packets = if *packets == 1 { String::new() } else { format!(", {packets} packets") };
    let when = ago(now, Duration::from_secs(*at));
    format!("{what} from {from} ({}) to {to}: {why}{packets}, {when}", way::called(peer, peers))
}

/// Counts by reason; `None` if there are none. Multicast and empty datagrams are left out, because healthy hosts send
/// some: `--json` has them.
fn dropped(drops: &[(String, u64)]) -> Option<String> {
    let drops = drops.iter().filter(|(reason, _)| !["multicast", "empty"].contains(&&**reason));
    let drops: Vec<_> = drops.map(|(reason, count)| format!("{count} {reason}")).collect();
    Some(drops.join(", ")).filter(|drops| !drops.is_empty())
}

struct Page {
    text: String,
    palette: Palette,
    width: usize,
    secrets: bool,
    now: Duration,
}

impl Page {
    fn device(&mut self, name: &str, device: &Device) {
        self.title("interface", name, Palette::good);
        self.line("public key", &*public_key(device));
        self.secret("private key", device.public_key.is_some(), device.private_key.as_ref());
        if device.listen_ports.is_empty() {
            self.line("listening port", device.listen_port);
        } else {
            let ports: Vec<_> = device.all_listen_ports().map(|port| port.to_string()).collect();
            self.line("listening ports", ports.join(", "));
        }
        if !device.listen_addresses.is_empty() {
            let addresses: Vec<_> = device.listen_addresses.iter().map(ToString::to_string).collect();
            self.line("listening address", addresses.join(", "));
        }
        if device.fwmark != 0 {
            self.line("fwmark", format!("{:#x}", device.fwmark));
        }
        if let Some(relay) = relay(device) {
            self.line("relay", relay);
        }
        if device.relayed > 0 {
            self.line("relayed", format!("{} packets from peer to peer", device.relayed));
        }
        if let Some(forwarded) = device.forwarded {
            self.line("forwarding", format!("on, {forwarded} sealed datagrams from peer to peer"));
        }
        if device.unannounced > 0 {
            let text =
                format!("{} packets accepted with sources that their routers do not announce", device.unannounced);
            self.line("unannounced", text);
        }
        if let Some(policy) = &device.policy {
            let (rules, connections) = (plural(policy.rules, "rule"), plural(policy.connections, "connection"));
            self.line("policy", format!("{rules}, {connections}, {} packets refused", policy.refused));
            for refusal in &policy.refusals {
                self.line("refused", refused(self.now, refusal, &device.peers));
            }
        }
        if let Some(drops) = dropped(&device.drops) {
            self.line("dropped", drops);
        }
        if !device.counters.is_empty() {
            let counters: Vec<_> = device.counters.iter().map(|(name, count)| format!("{count} {name}")).collect();
            self.line("enrolment", counters.join(", "));
        }
        let mut peers: Vec<_> = device.peers.iter().collect();
        peers.sort_by_key(|peer| std::cmp::Reverse(peer.last_handshake));
        peers.into_iter().for_each(|peer| self.peer(peer, &device.peers));
    }

    fn peer(&mut self, peer: &Peer, peers: &[Peer]) {
        self.text.push('\n');
        let key = to_base64(&peer.public_key.0);
        match &peer.name {
            Some(name) => {
                self.title("peer", name, Palette::warning);
                self.line("public key", &*key);
            }
            None => self.title("peer", &key, Palette::warning),
        }
        if peer.has_preshared_key {
            self.secret("preshared key", true, peer.preshared_key.as_ref());
        }
        match (&peer.endpoint, &peer.unresolved) {
            (Some(endpoint), _) => self.line("endpoint", way::endpoint(endpoint)),
            (None, Some(unresolved)) => self.line("endpoint", format!("{}, not resolved", escape(&unresolved.name))),
            (None, None) => {}
        }
        // If there is only one way, the endpoint shows it.
        if let Some(way) = way::words(peer, peers).filter(|_| peer.through.is_some() || !peer.paths.is_empty()) {
            let way = std::iter::once(way).chain(way::round_trip(peer)).collect::<Vec<_>>().join(", ");
            match way::not_direct(peer) {
                Some(why) => self.line("way", format!("{way} ({})", escape(why))),
                None => self.line("way", way),
            }
        }
        if let Some(connection) = &peer.connection {
            self.line("connection", connection_words(self.now, connection));
        }
        if let Some(problem) = &peer.problem {
            self.line("problem", escape(&problem.text));
        }
        for path in &peer.paths {
            self.line("path", words(path, peers));
        }
        self.line("allowed ips", allowed_ips(peer, ", "));
        if !peer.last_handshake.is_zero() {
            self.line("latest handshake", ago(self.now, peer.last_handshake));
        }
        if peer.rx_bytes > 0 || peer.tx_bytes > 0 {
            self.line("transfer", format!("{} received, {} sent", bytes(peer.rx_bytes), bytes(peer.tx_bytes)));
        }
        if peer.persistent_keepalive > 0 {
            self.line("persistent keepalive", format!("every {}", span(peer.persistent_keepalive.into())));
        }
        if let Some(PathMtuView { datagram, limited: true, .. }) = peer.path_mtu {
            self.line("path mtu", datagram);
        }
        if let Some(parity) = &peer.parity {
            self.line("parity", parity_words(parity));
        }
        if peer.lanes > 0 {
            self.line("lanes", peer.lanes);
        }
        if let Some(drops) = dropped(&peer.drops) {
            self.line("dropped", drops);
        }
    }

    fn title(&mut self, what: &str, name: &str, paint: fn(Palette, String) -> Painted<String>) {
        let (what, name) =
            (paint(self.palette, what.to_owned()).bold(), paint(self.palette, escape(name).into_owned()));
        let _ = writeln!(self.text, "{what}: {name}");
    }

    fn line(&mut self, key: &str, value: impl Display) {
        self.text += &field(key, &value.to_string(), self.width, self.palette);
    }

    /// A secret key, which may be missing. Its value is known here only if it is to be shown.
    fn secret(&mut self, what: &str, exists: bool, key: Option<&Zeroizing<[u8; 32]>>) {
        match exists {
            false => self.line(what, NONE),
            true if !self.secrets => self.line(what, HIDDEN),
            true => self.line(what, &*secret(key)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use rustguard_crypto::x25519::{PublicKey, StaticSecret};
    use rustguard_device::uapi::{NotDirectView, PolicyView, ProblemView, STATUS_VERSION};

    fn device() -> Device {
        let peer = |byte: u8, name: Option<&str>, handshake| Peer {
            name: name.map(str::to_owned),
            has_preshared_key: true,
            preshared_key: Some(Zeroizing::new([byte; 32])),
            endpoint: Some("[2001:db8::1]:9".to_owned()),
            allowed_ips: vec!["10.0.0.0/8".parse().unwrap(), "fd00::/8".parse().unwrap()],
            last_handshake: Duration::from_secs(handshake),
            rx_bytes: 1536,
            tx_bytes: 3,
            persistent_keepalive: 25,
            path_mtu: Some(PathMtuView { packet: 1_340, datagram: 1_400, limited: byte == 2 }),
            parity: (byte == 2).then_some(ParityView { size: 7, accepted: true, sent: 12, rebuilt: 3 }),
            lanes: if byte == 2 { 4 } else { 0 },
            drops: vec![("multicast".to_owned(), 9), ("replayed".to_owned(), u64::from(byte))],
            ..Peer::new(PublicKey([byte; 32]))
        };
        Device {
            version: STATUS_VERSION,
            public_key: Some(StaticSecret::from_bytes([8; 32]).public_key()),
            private_key: Some(Zeroizing::new([8; 32])),
            listen_port: 51_820,
            fwmark: 0xca6c,
            relay: Some("rules".to_owned()),
            relay_rules: Some("the chain `x`".to_owned()),
            relayed: 12,
            unannounced: 5,
            drops: vec![("empty".to_owned(), 2), ("forged".to_owned(), 3), ("multicast".to_owned(), 4)],
            counters: vec![("admitted".to_owned(), 4)],
            peers: vec![peer(1, None, 0), peer(2, Some("laptop"), 100)],
            ..Device::default()
        }
    }

    fn page(secrets: bool, palette: Palette) -> String {
        text(&device(), secrets, palette, Duration::from_secs(100 + 3600 + 61))
    }

    fn text(device: &Device, secrets: bool, palette: Palette, now: Duration) -> String {
        let mut page = Page { text: String::new(), palette, width: 80, secrets, now };
        page.device("wg0", device);
        page.text
    }

    #[test]
    fn a_page() {
        let public = public_key(&device());
        let expected = format!(
            "interface: wg0\n  public key: {}\n  private key: (hidden)\n  listening port: 51820\n  fwmark: 0xca6c\n  \
             relay: by the host, because of the chain `x` (--relay unfiltered ignores it)\n  relayed: 12 packets from peer to peer\n  unannounced: 5 packets accepted with sources that their routers do not\n    announce\n  dropped: 3 forged\n  enrolment: 4 admitted\n\n\
             peer: laptop\n  public key: AgICAgICAgICAgICAgICAgICAgICAgICAgICAgICAgI=\n  preshared key: (hidden)\n  \
             endpoint: [2001:db8::1]:9\n  allowed ips: 10.0.0.0/8, fd00::/8\n  latest handshake: 1 hour, 1 minute, 1 second ago\n  \
             transfer: 1.50 KiB received, 3 B sent\n  persistent keepalive: every 25 seconds\n  \
             path mtu: 1400\n  parity: 1 for 7; 12 sent, 3 lost packets rebuilt\n  lanes: 4\n  dropped: 2 replayed\n\n\
             peer: AQEBAQEBAQEBAQEBAQEBAQEBAQEBAQEBAQEBAQEBAQE=\n  preshared key: (hidden)\n  endpoint: [2001:db8::1]:9\n  \
             allowed ips: 10.0.0.0/8, fd00::/8\n  transfer: 1.50 KiB received, 3 B sent\n  persistent keepalive: every 25 seconds\n  dropped: 1 replayed\n",
            *public
        );
        assert_eq!(page(false, Palette::PLAIN), expected);
    }

    #[test]
    fn a_policy_and_what_it_has_refused() {
        let refusal = |byte: u8, traffic: &str, packets, why: &str| RefusalView {
            name: None,
            traffic: traffic.to_owned(),
            why: why.to_owned(),
            at: 100,
            peer: to_base64(&[byte; 32]).to_string(),
            from: [10, 0, 0, byte].into(),
            to: [10, 0, 0, 9].into(),
            protocol: 0,
            port: None,
            packets,
            reason: String::new(),
        };
        let mut device = device();
        device.policy = Some(PolicyView {
            rules: 1,
            connections: 0,
            capacity: 65_536,
            refused: 7,
            refusals: vec![
                refusal(2, "tcp/22", 3, "no line allows it"),
                refusal(1, "icmp", 1, "an ICMP error about no known connection"),
                refusal(2, "proto/47", 1, "no line allows it"),
            ],
        });
        let text = text(&device, false, Palette::PLAIN, Duration::from_secs(105));
        assert!(
            text.contains(
                "\n  policy: 1 rule, 0 connections, 7 packets refused\n  \
                 refused: tcp/22 from 10.0.0.2 (laptop) to 10.0.0.9: no line allows it, 3\n    \
                 packets, 5 seconds ago\n  \
                 refused: icmp from 10.0.0.1 (AQEBAQEBAQEBAQEBAQEBAQEBAQEBAQEBAQEBAQEBAQE=) to\n    \
                 10.0.0.9: an ICMP error about no known connection, 5 seconds ago\n  \
                 refused: proto/47 from 10.0.0.2 (laptop) to 10.0.0.9: no line allows it, 5\n    \
                 seconds ago\n"
            ),
            "{text}"
        );
    }

    #[test]
    fn the_connection_and_what_is_wrong_with_it() {
        let mut device = device();
        device.peers[0].connection =
            Some(ConnectionView { state: "connecting".to_owned(), since: Some(3000), attempts: Some(4) });
        device.peers[0].problem =
            Some(ProblemView { kind: "no-answer".to_owned(), text: "nothing comes back".to_owned(), since: 3000 });
        device.peers[1].connection = Some(ConnectionView::default());
        let text = text(&device, false, Palette::PLAIN, Duration::from_secs(3061));
        assert!(
            text.contains(
                "\n  connection: connecting for 1 minute, 1 second, 4 attempts\n  problem: nothing comes back\n"
            ),
            "{text}"
        );
        assert!(text.contains("\n  connection: never connected\n"), "{text}");
    }

    /// The longest possible names, addresses of IPv6, several paths, problems of many words.
    #[test]
    fn a_page_fits_eighty_columns() {
        let mut device = device();
        let address = "fd15:aaaa:bbbb:cccc:dddd:eeee:1111:2222";
        let endpoint = format!("[{address}%interface-name1]:51820");
        device.listen_addresses = vec![address.parse().unwrap(); 3];
        device.relay_rules = Some("the chain `x` ".repeat(9));
        (device.relayed, device.unannounced) = (u64::MAX, u64::MAX);
        device.drops = (0..20).map(|n| (format!("reason_{n}"), u64::MAX)).collect();
        device.counters.clone_from(&device.drops);
        for peer in &mut device.peers {
            peer.name = Some("x".repeat(63));
            peer.endpoint = Some(endpoint.clone());
            peer.through = Some(peer.public_key);
            peer.connection =
                Some(ConnectionView { state: "connecting".to_owned(), since: Some(1), attempts: Some(u32::MAX) });
            let text = "nothing comes back from there ".repeat(9);
            peer.problem = Some(ProblemView { kind: "no-answer".to_owned(), text, since: 1 });
            peer.paths = vec![
                PathView {
                    found: false,
                    configured: Some(endpoint.clone()),
                    endpoint: Some(endpoint.clone()),
                    through: None,
                    local: Some(address.to_owned()),
                    state: PathWord::Up,
                    round_trip_us: Some(u64::MAX),
                    active: true,
                    weight: None,
                };
                3
            ];
            peer.allowed_ips = vec![format!("{address}/128").parse().unwrap(); 9];
            (peer.rx_bytes, peer.tx_bytes, peer.persistent_keepalive) = (u64::MAX, u64::MAX, u16::MAX);
            peer.drops.clone_from(&device.drops);
        }
        let text = text(&device, true, Palette::PLAIN, Duration::from_secs(u32::MAX.into()));
        for line in text.lines() {
            assert!(line.chars().count() <= 80, "{} columns: {line}", line.chars().count());
        }
        let flat = text.split_whitespace().collect::<Vec<_>>().join(" ");
        for words in [&*endpoint, "problem: nothing comes back from there nothing", "reason_19", &"x".repeat(63)] {
            assert!(flat.contains(words), "{words}: {text}");
        }
    }

    #[test]
    fn a_peer_with_a_choice_of_ways_says_which_is_in_use() {
        let mut device = device();
        let shown = |device: &Device| text(device, false, Palette::PLAIN, Duration::from_secs(200));
        assert!(!shown(&device).contains("\n  way:"), "the endpoint says it");
        let laptop = device.peers[1].public_key;
        let peer = &mut device.peers[0];
        (peer.endpoint, peer.through) = (None, Some(laptop));
        assert!(shown(&device).contains("\n  way: through laptop\n"), "{}", shown(&device));
        device.peers[0].paths = vec![PathView {
            configured: Some(format!("via-peer {laptop} weight 2")),
            found: false,
            endpoint: None,
            through: Some(laptop.to_string()),
            local: None,
            state: PathWord::Up,
            round_trip_us: Some(23_400),
            active: true,
            weight: None,
        }];
        device.peers[0].round_trip_us = Some(23_400);
        assert!(shown(&device).contains("\n  way: through laptop, 23.4 ms\n"), "{}", shown(&device));
        let path = "\n  path: via-peer laptop weight 2, works, 23.4 ms, in use\n";
        assert!(shown(&device).contains(path), "{}", shown(&device));
        device.peers[0].connection =
            Some(ConnectionView { state: "online".to_owned(), since: Some(1), attempts: None });
        let text = "no address of the peer answers".to_owned();
        device.peers[0].not_direct = Some(NotDirectView { kind: "no-answer".to_owned(), text });
        let words = "\n  way: through laptop, 23.4 ms (no address of the peer answers)\n";
        assert!(shown(&device).contains(words), "{}", shown(&device));
        // The relay was removed.
        device.peers.remove(1);
        let path = &mut device.peers[0].paths[0];
        (path.through, path.state, path.active) = (None, PathWord::Unknown, false);
        let words = shown(&device).split_whitespace().collect::<Vec<_>>().join(" ");
        assert!(words.contains(&format!("path: via-peer {laptop} weight 2, which is no peer here")), "{words}");
    }

    #[test]
    fn a_node_that_forwards_says_so() {
        let device = Device { forwarded: Some(7), ..device() };
        let shown = text(&device, false, Palette::PLAIN, Duration::from_secs(200));
        assert!(shown.contains("\n  forwarding: on, 7 sealed datagrams from peer to peer\n"), "{shown}");
    }

    #[test]
    fn secrets_and_colours_only_when_asked_for() {
        assert!(
            page(true, Palette::PLAIN).contains("private key: CAgI")
                && page(true, Palette::PLAIN).contains("preshared key: AQEB")
        );
        assert!(page(false, Palette::COLOURED).contains("\x1b[1m\x1b[32minterface\x1b[0m: \x1b[32mwg0\x1b[0m"));
    }
}
