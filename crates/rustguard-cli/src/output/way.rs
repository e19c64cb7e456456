//! The way to a peer, in words.

use crate::{escape::escape, uapi::Peer};
use rustguard_device::{TransportAddress, key::from_base64};
use std::{borrow::Cow, time::Duration};

/// `direct 203.0.113.7:51820`, `through office`, or `transport 7` for a transport of an embedder. For a peer without a
/// session, the address alone, because nothing shows that the peer is there.
pub(crate) fn words(peer: &Peer, peers: &[Peer]) -> Option<String> {
    if let Some(relay) = peer.through {
        return Some(format!("through {}", called(&relay.to_string(), peers)));
    }
    let endpoint = peer.endpoint.as_deref()?;
    if let Some(transport) = transport(endpoint) {
        return Some(transport.to_string());
    }
    let endpoint = escape(endpoint).into_owned();
    // While a direct way is searched for, it is not known whether this address is one.
    let state = peer.connection.as_ref().filter(|_| peer.not_direct.is_none());
    Some(direct(&endpoint, state.map(|connection| connection.state.as_str())))
}

/// The name of the peer with this key, or the key.
pub(crate) fn called(key: &str, peers: &[Peer]) -> String {
    escape(named(key, peers).unwrap_or(key)).into_owned()
}

/// The name of the peer with this key, if it has one.
pub(crate) fn named<'p>(key: &str, peers: &'p [Peer]) -> Option<&'p str> {
    // Decoded once: a node may have 10,000 peers, and each of them a relay.
    let named = from_base64(key).ok().and_then(|key| peers.iter().find(|peer| peer.public_key.0 == *key));
    named.and_then(|peer| peer.name.as_deref())
}

/// Why a connected peer is not reached directly, if direct ways are searched for.
pub(crate) fn not_direct(peer: &Peer) -> Option<&str> {
    let why = peer.not_direct.as_ref().filter(|_| peer.through.is_some())?;
    let connected = peer.connection.as_ref().is_some_and(|connection| is_connected(&connection.state));
    connected.then_some(why.text.as_str())
}

fn is_connected(state: &str) -> bool {
    matches!(state, "online" | "idle")
}

/// The embedder's transport that the endpoint stands for.
pub(crate) fn transport(endpoint: &str) -> Option<TransportAddress> {
    TransportAddress::of(endpoint.parse().ok()?)
}

/// An endpoint in words.
pub(crate) fn endpoint(endpoint: &str) -> Cow<'_, str> {
    transport(endpoint).map_or_else(|| escape(endpoint), |transport| transport.to_string().into())
}

/// The way to a peer that is reached at an address.
pub(crate) fn direct(endpoint: &str, state: Option<&str>) -> String {
    if state.is_some_and(is_connected) { format!("direct {endpoint}") } else { endpoint.to_owned() }
}

/// The round trip of the way in use, if this side has measured it.
pub(crate) fn round_trip(peer: &Peer) -> Option<String> {
    Some(format!("{} ms", milliseconds(Duration::from_micros(peer.round_trip_us?))))
}

/// A round trip in milliseconds, with three digits.
pub(crate) fn milliseconds(time: Duration) -> String {
    let ms = time.as_secs_f64() * 1e3;
    let digits = if ms < 10.0 {
        2
    } else if ms < 100.0 {
        1
    } else {
        0
    };
    format!("{ms:.digits$}")
}

#[cfg(test)]
mod tests {
    use super::*;
    use rustguard_crypto::x25519::PublicKey;
    use rustguard_device::uapi::{ConnectionView, NotDirectView};

    #[test]
    fn ways_in_words() {
        let office = Peer { name: Some("off\u{1b}ice".to_owned()), ..Peer::new(PublicKey([1; 32])) };
        let mut peer = Peer::new(PublicKey([2; 32]));
        let words = |peer: &Peer| words(peer, std::slice::from_ref(&office));
        assert_eq!((words(&peer), round_trip(&peer)), (None, None));
        peer.endpoint = Some("192.0.2.7:1".to_owned());
        assert_eq!(words(&peer).as_deref(), Some("192.0.2.7:1"), "nobody knows that it is there");
        peer.connection = Some(ConnectionView { state: "online".to_owned(), since: None, attempts: None });
        assert_eq!(words(&peer).as_deref(), Some("direct 192.0.2.7:1"));
        peer.endpoint = Some("[100::7]:1".to_owned());
        assert_eq!(words(&peer).as_deref(), Some("transport 7"));
        peer.endpoint = Some("192.0.2.7:1".to_owned());
        let why = NotDirectView { kind: "no-answer".to_owned(), text: "no address answers".to_owned() };
        peer.not_direct = Some(why);
        assert_eq!(words(&peer).as_deref(), Some("192.0.2.7:1"), "it is only tried");
        assert_eq!(not_direct(&peer), None, "nothing is relayed");
        peer.through = Some(office.public_key);
        assert_eq!(not_direct(&peer), Some("no address answers"));
        assert_eq!(words(&peer).as_deref(), Some("through off\\u{1b}ice"));
        peer.through = Some(PublicKey([3; 32]));
        assert!(words(&peer).unwrap().starts_with("through AwMD"));
        peer.connection.as_mut().unwrap().state = "connecting".to_owned();
        assert_eq!(not_direct(&peer), None, "it is not reached at all");
        peer.round_trip_us = Some(23_400);
        assert_eq!(round_trip(&peer).as_deref(), Some("23.4 ms"));
    }

    #[test]
    fn round_trips_have_three_digits() {
        let ms = |us| milliseconds(Duration::from_micros(us));
        assert_eq!([540, 2_130, 23_440, 123_400].map(ms), ["0.54", "2.13", "23.4", "123"]);
    }
}
