//! The answers to clients.

use super::{Errno, device::DeviceView, ping::PingView, routing::RoutingView};
use crate::{
    key::{PresharedKey, push_hex},
    ping::{PingError, Pong},
    secrets::Secrets,
    status::{PeerStatus, RoutingStatus, Status},
};
use std::{fmt::Write as _, time::Duration};
use zeroize::Zeroizing;

/// The line that ends every answer, and the blank line after it.
pub(super) fn end(result: Result<(), Errno>) -> String {
    format!("errno={}\n\n", result.err().map_or(0, |Errno(number)| -number))
}

/// The answer to a `get=1`, without the line that ends it.
pub(super) fn get(status: &Status, secrets: &Secrets) -> Zeroizing<String> {
    let mut out = Zeroizing::new(String::with_capacity(256 + 512 * status.peers.len()));
    if let Some(key) = secrets.private_key() {
        out.push_str("private_key=");
        push_hex(&mut out, &Zeroizing::new(key.to_bytes()));
        out.push('\n');
    }
    line(&mut out, "listen_port", status.listen_port);
    if status.fwmark != 0 {
        line(&mut out, "fwmark", status.fwmark);
    }
    for peer in &status.peers {
        self::peer(&mut out, peer, secrets.preshared_key(&peer.public_key));
    }
    out
}

/// The answer to a `get=rustguard-status`, without the line that ends it: one line of JSON.
pub(super) fn status(status: &Status) -> Zeroizing<String> {
    json_line("rustguard_status", &DeviceView::from(status))
}

/// The answer to a `get=rustguard-routing`, without the line that ends it: one line of JSON.
pub(super) fn routing(status: &RoutingStatus) -> Zeroizing<String> {
    json_line("rustguard_routing", &RoutingView::from(status))
}

/// The answer to a `get=rustguard-ping`, without the line that ends it: one line of JSON.
pub(super) fn ping(result: &Result<Pong, PingError>) -> Zeroizing<String> {
    json_line("rustguard_ping", &PingView::from(result))
}

fn peer(out: &mut String, peer: &PeerStatus, preshared_key: Option<&PresharedKey>) {
    out.push_str("public_key=");
    push_hex(out, &peer.public_key.0);
    out.push_str("\npreshared_key=");
    push_hex(out, preshared_key.map_or(&[0; 32], PresharedKey::as_bytes));
    out.push_str("\nprotocol_version=1\n");
    if let Some(endpoint) = peer.endpoint {
        line(out, "endpoint", endpoint);
    }
    let handshake = peer.last_handshake.unwrap_or_default();
    line(out, "last_handshake_time_sec", handshake.as_secs());
    line(out, "last_handshake_time_nsec", handshake.subsec_nanos());
    line(out, "tx_bytes", peer.tx_bytes);
    line(out, "rx_bytes", peer.rx_bytes);
    line(out, "persistent_keepalive_interval", peer.persistent_keepalive.as_ref().map_or(0, Duration::as_secs));
    for net in &peer.allowed_ips {
        line(out, "allowed_ip", net);
    }
}

/// A line of JSON, without secrets.
fn json_line(key: &str, view: &impl serde::Serialize) -> Zeroizing<String> {
    Zeroizing::new(format!("{key}={}\n", serde_json::to_string(view).expect("plain data")))
}

fn line(out: &mut String, key: &str, value: impl std::fmt::Display) {
    writeln!(out, "{key}={value}").expect("writing to a String cannot fail");
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        config::PathSpec,
        drops::DropReason,
        key::to_base64,
        status::{
            Cause, Connection, Counter, DropCount, ParityStatus, PathMtu, PathStatus, PolicyStatus, Problem, Refusal,
            RelayStatus,
        },
    };
    use rustguard_core::paths::{PathPolicy, Relayed, State};
    use rustguard_crypto::x25519::{PublicKey, StaticSecret};
    use std::net::SocketAddr;

    fn sample() -> Status {
        let at: SocketAddr = "[2001:db8::1]:9".parse().unwrap();
        Status {
            public_key: None,
            up: true,
            listen_port: 51820,
            more_listen_ports: vec![51821],
            listen_addresses: vec!["192.0.2.1".parse().unwrap()],
            fwmark: 7,
            peers: vec![PeerStatus {
                name: Some("laptop".into()),
                public_key: PublicKey([0xab; 32]),
                has_preshared_key: false,
                endpoint: Some(at),
                through: None,
                not_direct: Some(Relayed::NoAnswer),
                unresolved: None,
                paths: vec![PathStatus {
                    found: false,
                    configured: Some(PathSpec::from(at).policy(PathPolicy::Weighted(2))),
                    endpoint: Some(at),
                    through: None,
                    local: None,
                    state: State::Up,
                    round_trip: Some(Duration::from_micros(1_500)),
                    active: true,
                    weight: Some(2),
                }],
                persistent_keepalive: Some(Duration::from_secs(25)),
                last_handshake: Some(Duration::new(1_700_000_000, 5)),
                handshakes: 1,
                rx_bytes: 11,
                tx_bytes: 22,
                allowed_ips: vec!["10.0.0.0/8".parse().unwrap()],
                path_mtu: Some(PathMtu { packet: 1_340, datagram: 1_400, limited: true }),
                parity: Some(ParityStatus { size: 7, accepted: true, sent: 12, rebuilt: 3 }),
                lanes: 2,
                drops: vec![DropCount { reason: DropReason::NotIp, packets: 6 }],
                connection: Connection::Connecting { since: Duration::from_secs(5), attempts: 3 },
                problem: Some(Problem::new(Cause::NoAnswer { endpoint: at, route: None }, Duration::from_secs(5))),
            }],
            relaying: RelayStatus::Rules("the chain `forward`".into()),
            relayed: 7,
            forward: true,
            forwarded: 9,
            unannounced: 8,
            drops: vec![DropCount { reason: DropReason::Forged, packets: 3 }],
            policy: Some(PolicyStatus {
                rules: 5,
                connections: 6,
                capacity: 7,
                refused: 8,
                refusals: vec![Refusal {
                    at: Duration::from_millis(1_700_000_000_900),
                    peer: PublicKey([0xab; 32]),
                    from: [10, 0, 0, 1].into(),
                    to: [10, 0, 0, 2].into(),
                    protocol: 6,
                    port: Some(22),
                    packets: 3,
                    reason: "not-allowed",
                }],
            }),
            counters: vec![Counter::new("admitted", 4)],
        }
    }

    #[test]
    fn a_device_as_wg_reads_it() {
        let hex = "ab".repeat(32);
        let zeros = "00".repeat(32);
        assert_eq!(
            *get(&sample(), &Secrets::default()),
            format!(
                "listen_port=51820\nfwmark=7\npublic_key={hex}\npreshared_key={zeros}\nprotocol_version=1\n\
                 endpoint=[2001:db8::1]:9\nlast_handshake_time_sec=1700000000\nlast_handshake_time_nsec=5\ntx_bytes=22\n\
                 rx_bytes=11\npersistent_keepalive_interval=25\nallowed_ip=10.0.0.0/8\n"
            )
        );
    }

    #[test]
    fn secrets_stand_where_wg_reads_them() {
        let key = StaticSecret::from_bytes([0x48; 32]);
        let preshared = PresharedKey::from_bytes(&[0xcd; 32]);
        let secrets = Secrets::new(Some(key), [(PublicKey([0xab; 32]), preshared)]);
        let text = get(&sample(), &secrets);
        assert!(text.starts_with(&format!("private_key={}\nlisten_port=", "48".repeat(32))));
        assert!(text.contains(&format!("\npreshared_key={}\n", "cd".repeat(32))));
    }

    /// The form of version 1, which programs read.
    #[test]
    fn a_status_says_everything_and_comes_back() {
        let text = status(&sample());
        let json = text.strip_prefix("rustguard_status=").and_then(|text| text.strip_suffix('\n')).unwrap();
        assert!(!json.contains('\n'));
        let laptop = to_base64(&[0xab; 32]);
        let expected = serde_json::json!({
            "version": 1, "public_key": null, "listen_port": 51820,
            "listen_ports": [51820, 51821], "listen_addresses": ["192.0.2.1"], "fwmark": 7, "relay": "rules",
            "relay_rules": "the chain `forward`", "relayed": 7, "forwarded": 9, "unannounced": 8,
            "policy": {"rules": 5, "connections": 6, "capacity": 7, "refused": 8, "refusals": [{
                "name": "laptop", "traffic": "tcp/22", "why": "no line allows it", "at": 1_700_000_000, "peer": *laptop,
                "from": "10.0.0.1", "to": "10.0.0.2", "protocol": 6, "port": 22, "packets": 3, "reason": "not-allowed"
            }]},
            "dropped": {"forged": 3}, "enrolment": {"admitted": 4},
            "peers": [{
                "name": "laptop", "public_key": *laptop, "has_preshared_key": false,
                "endpoint": "[2001:db8::1]:9", "way": "direct",
                "not_direct": {"kind": "no-answer", "text": "no address of the peer answers"}, "round_trip_us": 1_500,
                "paths": [{
                    "configured": "[2001:db8::1]:9 weight 2", "endpoint": "[2001:db8::1]:9", "local": null, "state": "up",
                    "round_trip_us": 1_500, "active": true, "weight": 2
                }],
                "connection": {"state": "connecting", "since": 5, "attempts": 3},
                "problem": {"kind": "no-answer", "text": sample().peers[0].problem.as_ref().unwrap().to_string(), "since": 5},
                "allowed_ips": ["10.0.0.0/8"], "latest_handshake": 1_700_000_000, "rx_bytes": 11, "tx_bytes": 22,
                "persistent_keepalive": 25, "path_mtu": {"packet": 1_340, "datagram": 1_400, "limited": true},
                "parity": {"size": 7, "accepted": true, "sent": 12, "rebuilt": 3}, "lanes": 2, "dropped": {"not_ip": 6}
            }]
        });
        assert_eq!(serde_json::from_str::<serde_json::Value>(json).unwrap(), expected);
        let again: DeviceView = serde_json::from_str(json).unwrap();
        assert_eq!(serde_json::to_value(&again).unwrap(), expected);
        // A program may add the keys to the output, but they are not read back.
        let mut with_keys = again;
        with_keys.private_key = Some(Zeroizing::new([0x48; 32]));
        with_keys.peers[0].preshared_key = Some(Zeroizing::new([0xcd; 32]));
        let shown = serde_json::to_string(&with_keys).unwrap();
        assert!(shown.contains(&*to_base64(&[0x48; 32])) && shown.contains(&*to_base64(&[0xcd; 32])), "{shown}");
        let read: DeviceView = serde_json::from_str(&shown).unwrap();
        assert!(read.private_key.is_none() && read.peers[0].preshared_key.is_none());
        assert_eq!(serde_json::to_value(with_keys.without_secrets()).unwrap(), expected);
    }

    #[test]
    fn a_status_of_another_version_is_read_as_far_as_it_goes() {
        let empty = serde_json::from_value::<DeviceView>(serde_json::to_value(DeviceView::default()).unwrap()).unwrap();
        assert!(!empty.is_rustguard() && empty.peers.is_empty() && empty.fwmark == 0);
        let text = r#"{"version":2,"new":[1],"fwmark":null,"peers":[{"public_key":"KEY","also":{"new":1}}]}"#;
        let device: DeviceView = serde_json::from_str(&text.replace("KEY", &to_base64(&[7; 32]))).unwrap();
        assert!(device.is_rustguard() && device.peers[0].public_key == PublicKey([7; 32]));
        assert_eq!((device.peers[0].last_handshake, device.peers[0].connection.is_none()), (Duration::ZERO, true));
        assert!(serde_json::from_str::<DeviceView>(r#"{"peers":[{"public_key":"x"}]}"#).is_err());
    }

    #[test]
    fn errors_are_negative() {
        assert_eq!(end(Ok(())), "errno=0\n\n");
        assert_eq!(end(Err(Errno::EINVAL)), "errno=-22\n\n");
    }
}
