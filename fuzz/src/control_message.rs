//! Control messages, as texts.
use rustguard_core::{
    control_message::{Kind, is_foreign},
    fec,
    forward::{self, HEADER_LEN},
    lanes, path_mtu,
    paths::{Address, Candidates, Locator, MAX_CANDIDATES, MAX_PATHS, NO_PATH, Probe, Version},
    wire::DATA_MIN_LEN,
};
use std::net::SocketAddr;

/// Reads the input as a control message of any kind, after seven bytes for its source address.
///
/// Only the module of its kind may accept a text. An accepted message is written the same way again, except for padding
/// and for fields that its version does not have, and is not longer than before.
pub fn control_message(input: &[u8]) {
    let (from, text) = input.split_at(input.len().min(7));
    let kind = Kind::of(text);
    assert!(kind.is_none() || !is_foreign(text));
    if let Some(read) = Probe::parse(text) {
        assert!(matches!(kind, Some(Kind::ProbeRequest | Kind::ProbeReply)));
        probe(read, text, from);
    }
    if let Some(message) = path_mtu::Message::parse(text) {
        assert!(matches!(kind, Some(Kind::PathMtuRequest | Kind::PathMtuReply)));
        let written = message.to_bytes();
        assert!(written.len() <= text.len() && path_mtu::Message::parse(&written) == Some(message), "{message:?}");
    }
    if let Some(header) = forward::Header::parse(text) {
        assert!(kind == Some(Kind::Forwarded) && text.len() >= HEADER_LEN + DATA_MIN_LEN);
        assert_eq!(header.to_bytes(), text[..HEADER_LEN]);
    }
    if let Some(message) = Candidates::parse(text) {
        assert!(kind == Some(Kind::Candidates) && message.list.len() <= MAX_CANDIDATES);
        let written = message.to_bytes();
        assert!(written.len() <= text.len().min(336) && Candidates::parse(&written) == Some(message));
    }
    if let Some(message) = fec::Message::parse(text) {
        assert!(matches!(kind, Some(Kind::ParityOffer | Kind::ParityAccept)));
        assert_eq!(fec::Message::parse(&message.to_bytes()), Some(message));
    }
    if let Some(message) = lanes::Message::parse(text) {
        assert!(kind.is_some_and(|kind| (Kind::LanesQuestion..=Kind::LaneReply).contains(&kind)));
        assert_eq!(lanes::Message::parse(&message.to_bytes()), Some(message));
    }
}

/// A reply is never longer than its request, and repeats its token.
fn probe(probe: Probe, text: &[u8], from: &[u8]) {
    let byte = |n: usize| from.get(n).copied().unwrap_or(0);
    let ip = [byte(0), byte(1), byte(2), byte(3)];
    let from = SocketAddr::from((ip, u16::from_le_bytes([byte(4), byte(5)])));
    let locator = Locator::from(Address::new(from));
    let written = probe.to_bytes();
    assert!(written.len() <= text.len() && Probe::parse(&written) == Some(probe), "{probe:?}");
    if let Probe::Request(request) = probe {
        let number = usize::from(request.path);
        assert!(number < MAX_PATHS || request.version == Version::V2 && request.path == NO_PATH, "{request:?}");
        let reply = request.reply(byte(6).into(), locator);
        let text = Probe::Reply(reply).to_bytes();
        assert_eq!(text.len(), written.len(), "{request:?}");
        let Some(Probe::Reply(read)) = Probe::parse(&text) else { panic!("{reply:?}") };
        let nowhere = from.ip().is_unspecified() || from.port() == 0;
        assert_eq!((read.clock, read.nonce, read.newest), (request.clock, byte(6).into(), Version::V2));
        if request.version == Version::V2 {
            assert_eq!((read.token, read.seen), (request.token, (!nowhere).then_some(from)));
        }
    }
}
