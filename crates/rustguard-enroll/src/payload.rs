//! The contents of the sealed parts of messages.
mod decision;
mod fields;
mod grant;
mod greeting;
mod joiner;

pub(crate) use decision::Decision;
pub(crate) use grant::GrantText;
pub(crate) use greeting::{Greeting, settings, short_greeting};
#[cfg(test)]
pub(crate) use greeting::{MAX_SETTINGS, settings_unchecked};
pub(crate) use joiner::{Joiner, PROOF_OF_KEY, ProofOfKey};

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        config::{ConfigError, ServerConfig},
        join_error::JoinError,
    };
    use core::{net::Ipv4Addr, time::Duration};
    use ipnet::IpNet;
    use proptest::prelude::*;
    use rustguard_crypto::x25519::PublicKey;
    use zeroize::Zeroizing;

    fn config() -> ServerConfig {
        let parse = |text: &str| text.parse().expect("an address");
        ServerConfig {
            addresses: vec![parse("10.150.0.1"), parse("fd15::1")],
            routes: vec!["10.150.0.0/24".parse().expect("a prefix"), "fd15::/64".parse().expect("a prefix")],
            dns: vec![parse("10.150.0.1")],
            search: vec!["example.org".to_owned()],
            mtu: Some(1420),
            port: None,
            keepalive: Some(25),
        }
    }

    #[test]
    fn settings_come_back_and_damaged_ones_do_not() {
        let server = PublicKey([5; 32]);
        for config in [config(), ServerConfig::default()] {
            let text = settings(&server, &config).expect("fits");
            assert_eq!(Greeting::read(&text), Some(Greeting::Settings(server, config)));
            for cut in 0..text.len() {
                assert_eq!(Greeting::read(&text[..cut]), None, "{cut} bytes");
            }
            assert_eq!(Greeting::read(&[&text[..], &[0]].concat()), None, "something behind");
        }
        assert_eq!(Greeting::read(&short_greeting(Decision::Wait)), Some(Greeting::Wait));
        assert_eq!(Greeting::read(&[99]), None);
    }

    #[test]
    fn settings_that_do_not_fit_are_refused_when_the_server_starts() {
        let server = PublicKey([5; 32]);
        let route: IpNet = "fd15::/64".parse().expect("a prefix");
        let with = |n| ServerConfig { routes: vec![route; n], ..ServerConfig::default() };
        // 43 bytes without routes, and 18 more for each route.
        assert_eq!(settings(&server, &with(62)).expect("fits").len(), 43 + 62 * 18);
        assert!(matches!(settings(&server, &with(63)), Err(ConfigError::TooLong { len: 1177, most: MAX_SETTINGS })));
        assert!(matches!(settings(&server, &with(65)), Err(ConfigError::TooMany { count: 65, most: 64, .. })));
        assert!(settings_unchecked(&server, &with(256)).is_err());
        let search = vec!["x".repeat(256)];
        assert!(settings_unchecked(&server, &ServerConfig { search, ..ServerConfig::default() }).is_err());
    }

    #[test]
    fn a_search_domain_cannot_smuggle_lines() {
        let config = ServerConfig { search: vec!["a\nPostUp=x".to_owned()], ..ServerConfig::default() };
        let text = settings_unchecked(&PublicKey([5; 32]), &config).expect("fits");
        assert_eq!(Greeting::read(&text), None);
    }

    #[test]
    fn joiners_come_back_with_clean_names() {
        let names = [(None, None), (Some("node-1"), Some("node-1")), (Some("a b\x1b[1m"), Some("a-b--1m"))];
        let flags = [(false, false), (true, false), (false, true), (true, true)];
        for ((name, clean), (ephemeral, member)) in names.into_iter().flat_map(|name| flags.map(|flags| (name, flags)))
        {
            let joiner = Joiner { public_key: PublicKey([1; 32]), name: name.map(str::to_owned), ephemeral, member };
            let expected = Joiner { name: clean.map(str::to_owned), ..joiner.clone() };
            let mut proven = Vec::new();
            let text = joiner.initiation_text(&[3; 12], |text| {
                proven = text.to_vec();
                [9; 16]
            });
            assert_eq!(
                Joiner::from_initiation(&text),
                Some(([3; 12], expected.clone(), ProofOfKey { text: &proven, mac: &[9; 16] }))
            );
            assert_eq!(Joiner::from_proof(&joiner.proof_text(&[4; 32])), Some(expected));
        }
        let mut text =
            Joiner { public_key: PublicKey([1; 32]), name: None, ephemeral: false, member: false }.proof_text(&[0; 32]);
        text[65] = 64;
        assert_eq!(Joiner::from_proof(&text), None, "a name of 64 bytes");
    }

    #[test]
    fn grants_come_back() {
        let text = GrantText {
            decision: Decision::Accepted,
            ephemeral: true,
            v4: Some(Ipv4Addr::new(10, 150, 0, 2)),
            v6: None,
            expires: Some(1_800_000_000),
            preshared_key: Zeroizing::new([7; 32]),
            network: None,
        };
        for network in [None, Some([8; 32])] {
            let text = GrantText { network, preshared_key: text.preshared_key.clone(), ..text };
            let read = GrantText::read(&*text.write()).expect("itself");
            assert_eq!((read.decision, read.ephemeral, read.v4, read.v6), (text.decision, true, text.v4, None));
            assert_eq!((read.expires, read.preshared_key), (text.expires, text.preshared_key));
            assert_eq!(read.network, network);
        }
        let zeros = GrantText { network: Some([0; 32]), preshared_key: text.preshared_key.clone(), ..text };
        assert!(GrantText::read(&*zeros.write()).is_none(), "a network key of zeros");
        let errors = [
            JoinError::PoolExhausted(None),
            JoinError::PoolExhausted(Some(Duration::from_secs(77))),
            JoinError::AddressTaken,
            JoinError::Removed,
            JoinError::TokenSpent,
            JoinError::ServerFailed,
            JoinError::QueueFull,
            JoinError::NotApproved,
        ];
        for error in errors {
            let read = GrantText::read(&*GrantText::refused(error).write()).expect("itself");
            assert_eq!(read.decision, Decision::Refused(error));
        }
    }

    proptest! {
        #[test]
        fn no_bytes_panic(text in proptest::collection::vec(any::<u8>(), 0..300)) {
            let _ = (Greeting::read(&text), GrantText::read(&text), Joiner::from_proof(&text));
        }
    }
}
