//! A test network, and queries about it.

use domain::base::{Message, MessageBuilder, Name, Rtype, iana::Class};
use ipnet::IpNet;
use rustguard_crypto::x25519::PublicKey;
use rustguard_network::dns::Zone;
use rustguard_roster::{key::NetworkSecret, member::Member, roster::Roster, settings::Settings};
use std::{net::IpAddr, sync::Arc};

/// Members by name, with their addresses.
pub(crate) type Members<'a> = &'a [(&'a str, &'a [&'a str])];

pub(crate) const MEMBERS: Members<'_> = &[
    ("hub", &["10.150.0.1", "fd15::1"]),
    ("laptop", &["10.150.0.2", "fd15::2"]),
    ("phone", &["10.150.0.3"]),
    ("sensor", &["fd15::4"]),
    ("lost", &[]),
];

pub(crate) fn ip(text: &str) -> IpAddr {
    text.parse().unwrap()
}

pub(crate) fn roster(network: &str, number: u64, members: Members<'_>) -> Roster {
    let member = |(index, (name, addresses)): (usize, &(&str, &[&str]))| {
        let member = Member::new(PublicKey([index as u8 + 1; 32]), name.parse().unwrap());
        Arc::new(member.with_addresses(addresses.iter().map(|text| ip(text))))
    };
    let settings = Settings::new(network.parse().unwrap());
    let secret = NetworkSecret::from_bytes(&[9; 32]);
    Roster::issue(&secret, number, 1_800_000_000, settings, members.iter().enumerate().map(member)).unwrap()
}

/// The zone of `rg0` on the laptop.
pub(crate) fn zone() -> Zone {
    zone_with(&["10.150.0.0/24", "fd15::/64"])
}

pub(crate) fn zone_with(pools: &[&str]) -> Zone {
    let pools: Vec<IpNet> = pools.iter().map(|text| text.parse().unwrap()).collect();
    Zone::new(&roster("rg0", 7, MEMBERS), [ip("10.150.0.2"), ip("fd15::2")], pools)
}

/// A query without EDNS, as resolvers send it.
pub(crate) fn query(name: &str, rtype: Rtype) -> Vec<u8> {
    query_of_class(name, rtype, Class::IN)
}

pub(crate) fn query_of_class(name: &str, rtype: Rtype, class: Class) -> Vec<u8> {
    let mut message = MessageBuilder::new_vec();
    message.header_mut().set_id(0x1234);
    message.header_mut().set_rd(true);
    let mut message = message.question();
    message.push((Name::vec_from_str(name).unwrap(), rtype, class)).unwrap();
    message.finish()
}

/// Adds EDNS to the query: the longest accepted answer, and the version.
pub(crate) fn with_edns(mut query: Vec<u8>, size: u16, version: u8) -> Vec<u8> {
    query[11] += 1;
    query.extend_from_slice(&[0, 0, 41]);
    query.extend_from_slice(&size.to_be_bytes());
    query.extend_from_slice(&[0, version, 0, 0, 0, 0]);
    query
}

/// The records of a section, as `name type data`.
pub(crate) fn records(answer: &Message<Vec<u8>>, section: usize) -> Vec<String> {
    use domain::rdata::AllRecordData;
    let (_, answers, authority, _) = answer.sections().unwrap();
    let section = [answers, authority][section];
    let text = |record: domain::base::ParsedRecord<'_, Vec<u8>>| {
        assert_eq!(record.ttl().as_secs(), 0);
        let data = record.to_any_record::<AllRecordData<_, _>>().unwrap();
        format!("{} {} {}", data.owner(), data.rtype(), data.data())
    };
    section.map(|record| text(record.unwrap())).collect()
}
