//! The ways through peers: whether the relays can be reached, and what to check on their side.

use super::{finding::Finding, tunnel::Tunnel};
use crate::{
    output::words::now,
    uapi::{Device, Peer},
};
use rustguard_crypto::x25519::PublicKey;
use rustguard_device::{EndpointSpec, core::constants::REJECT_AFTER_TIME, key::to_base64, uapi::PathWord};

/// The most ways that are listed one by one.
const MOST: usize = 20;

/// The findings about this machine as a relay, and about the relays of the file.
pub(super) fn check(tunnel: &Tunnel, device: &Device) -> Vec<Finding> {
    let mut findings = Vec::new();
    if let Some(forwarded) = device.forwarded {
        findings.push(Finding::fine(
            "relays",
            format!("{} passes sealed datagrams on between its peers: {forwarded} so far", tunnel.name),
        ));
    }
    let peers = tunnel.config.iter().flat_map(|config| &config.peers);
    let mut ways = peers.flat_map(|peer| {
        peer.endpoints.iter().filter_map(|path| match path.endpoint {
            EndpointSpec::Peer(relay) => Some((peer.public_key, relay)),
            _ => None,
        })
    });
    findings.extend(ways.by_ref().take(MOST).filter_map(|(peer, relay)| way(device, peer, relay)));
    let more = ways.count();
    if more > 0 {
        findings.push(Finding::unknown(
            "relays",
            format!("{more} more ways through peers: rustguard show {}", tunnel.name),
        ));
    }
    findings
}

/// A way to a peer. `None` if the running tunnel does not have the peer; another check compares it with the file.
fn way(device: &Device, peer: PublicKey, relay: PublicKey) -> Option<Finding> {
    let find = |key| device.peers.iter().find(|peer| peer.public_key == key);
    let (peer, relay) = (find(peer)?, find(relay)?);
    let (name, via) = (label(peer), label(relay));
    if works(peer, relay) {
        return Some(Finding::fine("relays", format!("the way to {name} through {via} works")));
    }
    if !has_session(relay) {
        return Some(Finding::warning(
            "relays",
            format!("{name} cannot be reached through {via}: there is no session with {via}"),
            format!(
                "what is wrong with {via} is said under its name; `PersistentKeepalive = 25` for {via} keeps the session"
            ),
        ));
    }
    // The relay never answers, so that nobody can make it send.
    Some(Finding::unknown(
        "relays",
        format!(
            "whether {via} passes on what is for {name} cannot be seen from here. Look at {via}: its file needs `Forward = on`, \
             this machine and {name} have to be its peers, and `rustguard show` there has to say that {name} is connected"
        ),
    ))
}

fn works(peer: &Peer, relay: &Peer) -> bool {
    let key = to_base64(&relay.public_key.0);
    let is_it = |through: &Option<String>| through.as_deref() == Some(key.as_str());
    // A peer with only one way has no paths.
    peer.paths.iter().any(|path| is_it(&path.through) && path.state == PathWord::Up)
        || peer.through == Some(relay.public_key) && has_session(peer)
}

fn has_session(peer: &Peer) -> bool {
    !peer.last_handshake.is_zero() && now().saturating_sub(peer.last_handshake) < REJECT_AFTER_TIME
}

fn label(peer: &Peer) -> String {
    peer.name.clone().unwrap_or_else(|| to_base64(&peer.public_key.0).to_string())
}

#[cfg(test)]
mod tests {
    use super::{super::finding::Verdict, *};
    use rustguard_device::uapi::PathView;
    use rustguard_quick::conf::{self, Config, Interface};
    use std::time::Duration;

    /// A tunnel with `far`, which is reached through `office`.
    fn tunnel() -> Tunnel {
        let mut far = conf::Peer::new(PublicKey([1; 32]));
        far.endpoints = vec![EndpointSpec::Peer(PublicKey([2; 32])).into()];
        let config = Config::new(Interface::default(), vec![far, conf::Peer::new(PublicKey([2; 32]))]);
        Tunnel { name: "wg0".to_owned(), config: Some(config), device: None }
    }

    fn device() -> Device {
        let peers = [(1, "far"), (2, "office")]
            .map(|(n, name)| Peer { name: Some(name.to_owned()), ..Peer::new(PublicKey([n; 32])) });
        Device { peers: peers.into(), ..Device::default() }
    }

    fn only(device: &Device) -> Finding {
        let mut findings = check(&tunnel(), device);
        assert_eq!(findings.len(), 1, "{findings:?}");
        findings.remove(0)
    }

    #[test]
    fn a_way_through_a_peer_says_what_has_to_be_looked_at() {
        let mut device = device();
        let finding = only(&device);
        assert_eq!(finding.verdict, Verdict::Warning);
        assert!(finding.text.contains("there is no session with office"), "{finding:?}");
        device.peers[1].last_handshake = now();
        let finding = only(&device);
        assert_eq!(finding.verdict, Verdict::Unknown);
        assert!(finding.text.contains("Look at office: its file needs `Forward = on`"), "{finding:?}");
        // The only way, which works.
        (device.peers[0].through, device.peers[0].last_handshake) = (Some(PublicKey([2; 32])), now());
        assert_eq!(only(&device).verdict, Verdict::Fine);
        device.peers[0].last_handshake = Duration::from_secs(1);
        assert_eq!(only(&device).verdict, Verdict::Unknown, "long ago");
        // One of several, in reserve.
        device.peers[0].through = None;
        device.peers[0].paths = vec![PathView {
            configured: None,
            endpoint: None,
            found: false,
            through: Some(to_base64(&[2; 32]).to_string()),
            local: None,
            state: PathWord::Up,
            round_trip_us: None,
            active: false,
            weight: None,
        }];
        assert_eq!(only(&device).verdict, Verdict::Fine);
    }

    #[test]
    fn a_relay_without_anybody_who_uses_it_is_fine() {
        let device = Device { forwarded: Some(0), ..Device::default() };
        assert_eq!(only(&device).verdict, Verdict::Fine);
    }
}
