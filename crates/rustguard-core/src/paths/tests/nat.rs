//! A model of NATs (RFC 4787): which port a mapping has, and from where it lets datagrams in.
use crate::time::Instant;
use alloc::vec::Vec;
use core::{
    net::{Ipv4Addr, SocketAddr, SocketAddrV4},
    time::Duration,
};

/// How long an unsolicited datagram is remembered: OpenWrt's time, twice as long as in Linux.
const UNASKED: Duration = Duration::from_secs(60);

/// The part of the destination on which a mapping, or its filter, depends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Dependence {
    Endpoint,
    Address,
    AddressAndPort,
}

pub(super) const DEPENDENCES: [Dependence; 3] = [Dependence::Endpoint, Dependence::Address, Dependence::AddressAndPort];

impl Dependence {
    /// Whether two destinations are the same for this purpose.
    fn joins(self, one: SocketAddr, other: SocketAddr) -> bool {
        match self {
            Self::Endpoint => true,
            Self::Address => one.ip() == other.ip(),
            Self::AddressAndPort => one == other,
        }
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Kind {
    pub(super) mapping: Dependence,
    pub(super) filtering: Dependence,
    /// The public port is the inside port, for all destinations; otherwise each mapping has another one.
    pub(super) keeps_port: bool,
    pub(super) hairpin: bool,
    /// The router takes an unsolicited datagram from outside as one for itself, as Linux does without a firewall: this
    /// connection then keeps the port towards its source.
    pub(super) takes_unasked: bool,
}

impl Kind {
    /// Whether all destinations see the same port.
    pub(super) fn is_predictable(self) -> bool {
        self.mapping == Dependence::Endpoint || self.keeps_port
    }
}

#[derive(Debug)]
pub(super) struct Nat {
    pub(super) kind: Kind,
    pub(super) ip: Ipv4Addr,
    pub(super) timeout: Duration,
    mappings: Vec<Mapping>,
    /// The ports that unsolicited datagrams have taken, their sources, and when the last one arrived.
    taken: Vec<(u16, SocketAddr, Instant)>,
    next_port: u16,
}

#[derive(Debug)]
struct Mapping {
    inside: SocketAddr,
    port: u16,
    /// Where datagrams went, and when the last one was sent.
    contacts: Vec<(SocketAddr, Instant)>,
}

impl Nat {
    pub(super) fn new(kind: Kind, ip: Ipv4Addr, seed: u64) -> Self {
        Self {
            kind,
            ip,
            timeout: Duration::from_secs(30),
            mappings: Vec::new(),
            taken: Vec::new(),
            next_port: 20_000 + (seed % 9_000) as u16,
        }
    }

    /// All mappings are gone, and later ones have other ports.
    pub(super) fn forget(&mut self) {
        self.mappings.clear();
        self.taken.clear();
    }

    fn expire(&mut self, now: Instant) {
        for mapping in &mut self.mappings {
            mapping.contacts.retain(|(_, at)| now.since(*at) < self.timeout);
        }
        self.mappings.retain(|mapping| !mapping.contacts.is_empty());
        self.taken.retain(|(.., at)| now.since(*at) < UNASKED);
    }

    /// A datagram leaves. Returns its public source.
    pub(super) fn out(&mut self, inside: SocketAddr, to: SocketAddr, now: Instant) -> SocketAddr {
        self.expire(now);
        let Kind { mapping, keeps_port, .. } = self.kind;
        let same = |known: &&mut Mapping| known.inside == inside && mapping.joins(known.contacts[0].0, to);
        let port = match self.mappings.iter_mut().find(same) {
            Some(known) => {
                known.contacts.retain(|(contact, _)| *contact != to);
                known.contacts.push((to, now));
                known.port
            }
            None => {
                self.next_port += 7;
                let taken = self.taken.iter().any(|(port, by, _)| (*port, *by) == (inside.port(), to));
                let port = if keeps_port && !taken { inside.port() } else { self.next_port };
                self.mappings.push(Mapping { inside, port, contacts: [(to, now)].into() });
                port
            }
        };
        SocketAddrV4::new(self.ip, port).into()
    }

    /// A datagram arrives from outside. Returns the inside destination.
    pub(super) fn inside(&mut self, port: u16, from: SocketAddr, now: Instant) -> Option<SocketAddr> {
        self.expire(now);
        let filtering = self.kind.filtering;
        let lets_in = |known: &&Mapping| {
            known.port == port && known.contacts.iter().any(|(contact, _)| filtering.joins(*contact, from))
        };
        let inside = self.mappings.iter().find(lets_in).map(|known| known.inside);
        if inside.is_none() && self.kind.takes_unasked {
            self.taken.retain(|(known, by, _)| (*known, *by) != (port, from));
            self.taken.push((port, from, now));
        }
        inside
    }
}
