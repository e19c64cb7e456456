//! A network for the targets about rosters.
use rustguard_crypto::{hash::hash, x25519::PublicKey};
use rustguard_roster::{
    key::{NetworkKey, NetworkSecret},
    member::{Member, Role},
    roster::Roster,
    settings::Settings,
};
use std::{net::IpAddr, sync::Arc};

/// The highest issued number.
pub(crate) const ISSUER: u64 = 8;

pub(crate) fn secret() -> NetworkSecret {
    NetworkSecret::from_bytes(&[9; 32])
}

pub(crate) fn network() -> NetworkKey {
    secret().public_key()
}

pub(crate) fn key(number: u8) -> PublicKey {
    PublicKey(hash(&[&[number]]))
}

/// The roster with this number: a server, and this number of other members. The fourth is a client, which takes no part
/// in the exchange.
pub(crate) fn issued(number: u64) -> Roster {
    let mut settings = Settings::new("rg0".parse().expect("a label"));
    settings.mtu = Some(1_360);
    settings.pools = vec!["10.150.0.0/24".parse().expect("a prefix")];
    settings.name_servers = vec![IpAddr::from([10, 150, 0, 1])];
    settings.domains = vec!["corp.example".into()];
    let members = (0..=number as u8).map(|member| {
        let name = format!("m{member}").parse().expect("a label");
        let one = Member::new(key(member), name).with_addresses([IpAddr::from([10, 150, 0, member + 1])]);
        Arc::new(match member {
            0 => one.with_role(Role::Server).with_endpoints(["hub.example:51820".parse().expect("an endpoint")]),
            2 => one.with_prefixes(["192.168.1.0/24".parse().expect("a prefix")]).with_old_key(key(200)),
            4 => one.with_role(Role::Client(key(0))),
            _ => one,
        })
    });
    Roster::issue(&secret(), number, number, settings, members).expect("a good roster")
}
