//! Probes, as texts.
use rustguard_core::paths::{Address, MAX_PATHS, NO_PATH, Place, Probe, Version, is_probe};
use std::net::SocketAddr;

/// Reads the input as the text of a probe, after seven bytes that are an address where it came from.
///
/// What is understood is written the same way again, apart from what a version has no field for. A reply is never longer
/// than its request, and repeats its token.
pub fn probe(input: &[u8]) {
    let (head, text) = input.split_at(input.len().min(7));
    let byte = |n: usize| head.get(n).copied().unwrap_or(0);
    let ip = [byte(0), byte(1), byte(2), byte(3)];
    let from = SocketAddr::from((ip, u16::from_le_bytes([byte(4), byte(5)])));
    let place = Place::from(Address::new(from));
    let Some(probe) = Probe::parse(text) else { return };
    assert!(is_probe(text));
    let written = probe.to_bytes();
    assert!(written.len() <= text.len() && Probe::parse(&written) == Some(probe), "{probe:?}");
    if let Probe::Request(request) = probe {
        let number = usize::from(request.path);
        assert!(number < MAX_PATHS || request.version == Version::V2 && request.path == NO_PATH, "{request:?}");
        let reply = request.reply(byte(6).into(), place);
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
