//! The answers to clients.

use super::{
    Errno,
    connection::{ConnectionView, ProblemView, UnresolvedView},
    path::{NotDirectView, ParityView, PathMtuView, PathView},
    ping::PingView,
    policy::{PolicyView, RefusalView},
    routing::RoutingView,
};
use crate::{
    key::{PresharedKey, push_hex, to_base64},
    ping::{PingError, Pong},
    secrets::Secrets,
    status::{DropCount, PeerStatus, RelayStatus, RoutingStatus, Status},
};
use std::{fmt::Write as _, time::Duration};
use zeroize::Zeroizing;

/// The line that ends every answer, and the blank line after it.
pub(super) fn end(result: Result<(), Errno>) -> String {
    format!("errno={}\n\n", result.err().map_or(0, |Errno(number)| -number))
}

/// The answer to a `get`, without the line that ends it. With `names`, it also has peers' names and paths, and
/// counters.
pub(super) fn status(status: &Status, secrets: &Secrets, names: bool) -> Zeroizing<String> {
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
    if names {
        for port in &status.more_listen_ports {
            line(&mut out, "rustguard_listen_port", port);
        }
        for address in &status.listen_addresses {
            line(&mut out, "rustguard_listen_address", address);
        }
        match &status.relaying {
            RelayStatus::Rules(what) => line(&mut out, "rustguard_relay", format!("rules {what}")),
            other => line(&mut out, "rustguard_relay", other.word()),
        }
        if status.relayed > 0 {
            line(&mut out, "rustguard_relayed", status.relayed);
        }
        if status.forward {
            line(&mut out, "rustguard_forward", true);
            line(&mut out, "rustguard_forwarded", status.forwarded);
        }
        if status.unannounced > 0 {
            line(&mut out, "rustguard_unannounced", status.unannounced);
        }
        if let Some(policy) = &status.policy {
            line(&mut out, "rustguard_policy", json(&PolicyView::from(policy)));
            for refusal in &policy.refusals {
                line(&mut out, "rustguard_refusal", json(&RefusalView::from(refusal)));
            }
        }
        drops(&mut out, &status.drops);
        for counter in &status.counters {
            line(&mut out, &format!("rustguard_counter_{}", counter.name), counter.value);
        }
    }
    for peer in &status.peers {
        self::peer(&mut out, peer, secrets.preshared_key(&peer.public_key), names);
    }
    out
}

/// The answer to a `get=rustguard-routing`, without the line that ends it: one line of JSON.
pub(super) fn routing(status: &RoutingStatus) -> Zeroizing<String> {
    Zeroizing::new(format!("rustguard_routing={}\n", json(&RoutingView::from(status))))
}

/// The answer to a `get=rustguard-ping`, without the line that ends it: one line of JSON.
pub(super) fn ping(result: &Result<Pong, PingError>) -> Zeroizing<String> {
    Zeroizing::new(format!("rustguard_ping={}\n", json(&PingView::from(result))))
}

fn peer(out: &mut String, peer: &PeerStatus, preshared_key: Option<&PresharedKey>, names: bool) {
    out.push_str("public_key=");
    push_hex(out, &peer.public_key.0);
    out.push_str("\npreshared_key=");
    push_hex(out, preshared_key.map_or(&[0; 32], PresharedKey::as_bytes));
    out.push_str("\nprotocol_version=1\n");
    if names && let Some(name) = &peer.name {
        line(out, "rustguard_name", name);
    }
    if let Some(endpoint) = peer.endpoint {
        line(out, "endpoint", endpoint);
    }
    if let Some(relay) = peer.through.filter(|_| names) {
        line(out, "rustguard_through", &*to_base64(&relay.0));
    }
    if let Some(reason) = peer.not_direct.filter(|_| names) {
        line(out, "rustguard_not_direct", json(&NotDirectView::from(reason)));
    }
    if let Some(unresolved) = peer.unresolved.as_ref().filter(|_| names) {
        line(out, "rustguard_unresolved", json(&UnresolvedView::from(unresolved)));
    }
    for path in peer.paths.iter().filter(|_| names) {
        line(out, "rustguard_path", json(&PathView::from(path)));
    }
    if names {
        line(out, "rustguard_connection", json(&ConnectionView::from(&peer.connection)));
        if let Some(problem) = &peer.problem {
            line(out, "rustguard_problem", json(&ProblemView::from(problem)));
        }
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
    if names {
        if let Some(path_mtu) = &peer.path_mtu {
            line(out, "rustguard_path_mtu", json(&PathMtuView::from(path_mtu)));
        }
        if let Some(parity) = &peer.parity {
            line(out, "rustguard_parity", json(&ParityView::from(parity)));
        }
        if peer.lanes > 0 {
            line(out, "rustguard_lanes", peer.lanes);
        }
        drops(out, &peer.drops);
    }
}

fn drops(out: &mut String, drops: &[DropCount]) {
    for drop in drops {
        line(out, &format!("rustguard_drop_{}", drop.reason.name()), drop.packets);
    }
}

fn json(view: &impl serde::Serialize) -> String {
    serde_json::to_string(view).expect("plain data")
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
        status::{Cause, Connection, Counter, ParityStatus, PathMtu, PathStatus, PolicyStatus, Problem, Refusal},
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
            *status(&sample(), &Secrets::default(), false),
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
        let text = status(&sample(), &secrets, false);
        assert!(text.starts_with(&format!("private_key={}\nlisten_port=", "48".repeat(32))));
        assert!(text.contains(&format!("\npreshared_key={}\n", "cd".repeat(32))));
    }

    #[test]
    fn names_and_drops_only_for_those_who_ask() {
        let text = &**status(&sample(), &Secrets::default(), true);
        assert!(
            text.contains(
                "\nrustguard_relay=rules the chain `forward`\nrustguard_relayed=7\nrustguard_forward=true\nrustguard_forwarded=9\nrustguard_unannounced=8\n"
            )
        );
        assert!(text.contains("\nrustguard_name=laptop\n") && text.contains("\nrustguard_drop_forged=3\n"));
        assert!(
            text.contains(
                "\nrustguard_not_direct={\"kind\":\"no-answer\",\"text\":\"no address of the peer answers\"}\n"
            )
        );
        assert!(text.contains("\nrustguard_counter_admitted=4\n"));
        let key = to_base64(&[0xab; 32]);
        assert!(
            text.contains(&format!(
                "\nrustguard_policy={{\"rules\":5,\"connections\":6,\"capacity\":7,\"refused\":8,\"refusals\":[]}}\n\
                 rustguard_refusal={{\"at\":1700000000,\"peer\":\"{}\",\"from\":\"10.0.0.1\",\"to\":\"10.0.0.2\",\
                 \"protocol\":6,\"port\":22,\"packets\":3,\"reason\":\"not-allowed\"}}\n",
                *key
            )),
            "{text}"
        );
        assert!(text.ends_with("\nallowed_ip=10.0.0.0/8\nrustguard_path_mtu={\"packet\":1340,\"datagram\":1400,\"limited\":true}\nrustguard_parity={\"size\":7,\"accepted\":true,\"sent\":12,\"rebuilt\":3}\nrustguard_lanes=2\nrustguard_drop_not_ip=6\n"), "{text}");
        assert!(
            text.contains("\nrustguard_connection={\"state\":\"connecting\",\"since\":5,\"attempts\":3}\n"),
            "{text}"
        );
        assert!(
            text.contains("\nrustguard_problem={\"kind\":\"no-answer\",\"text\":\"nothing comes back from "),
            "{text}"
        );
    }

    #[test]
    fn errors_are_negative() {
        assert_eq!(end(Ok(())), "errno=0\n\n");
        assert_eq!(end(Err(Errno::EINVAL)), "errno=-22\n\n");
    }
}
