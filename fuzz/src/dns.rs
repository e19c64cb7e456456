//! DNS messages that programs of this machine send.
use rustguard_crypto::x25519::PublicKey;
use rustguard_network::dns::{
    Zone,
    query::{MAX_UDP, NoQuery, Query, Transport},
};
use rustguard_roster::{key::NetworkSecret, member::Member, roster::Roster, settings::Settings};
use std::{
    net::IpAddr,
    sync::{Arc, LazyLock},
};

static ZONE: LazyLock<Zone> = LazyLock::new(|| {
    let own: [IpAddr; 2] = ["10.150.0.2".parse().expect("an address"), "fd15::2".parse().expect("an address")];
    let laptop = Member::new(PublicKey([1; 32]), "laptop".parse().expect("a label")).with_addresses(own);
    let settings = Settings::new("rg0".parse().expect("a label"));
    let secret = NetworkSecret::from_bytes(&[9; 32]);
    let roster = Roster::issue(&secret, 7, 0, settings, [Arc::new(laptop)]).expect("a small roster");
    let pools = ["10.150.0.0/20", "10.151.0.128/25", "fd15::/63"].map(|pool| pool.parse().expect("a prefix"));
    Zone::new(&roster, own, pools)
});

/// Answers the input over both transports, from a zone with one member.
///
/// An answer has the query's number, and at most as many bytes as the query accepts. Only queries get an answer.
pub fn dns(input: &[u8]) {
    for (transport, longest) in [(Transport::Udp, MAX_UDP), (Transport::Tcp, usize::from(u16::MAX))] {
        let (answer, understood) = match Query::read(input, transport) {
            Ok(query) => (query.answer(&ZONE).unwrap_or_else(|| query.refuse()), true),
            Err(NoQuery::Error(answer)) => (answer, false),
            Err(NoQuery::Silence) => continue,
        };
        assert!(input[2] & 0x80 == 0, "an answer was answered");
        assert!(answer.len() >= 12 && answer[..2] == input[..2] && answer[2] & 0x80 != 0);
        assert!(answer.len() <= longest);
        if understood {
            // The same question, in the same case. A pointer can lead to a name in the header only.
            let name = input[12..].split(|byte| *byte == 0).next().expect("the name of the question");
            let plain = name.iter().all(u8::is_ascii);
            assert!(answer[4..6] == [0, 1] && (!plain || answer[12..].starts_with(name)));
        } else {
            // There are no records, so the answer has no more bytes than the header and EDNS.
            assert!(answer.len() <= 12 + 11 && answer[6..10] == [0; 4]);
        }
    }
}
