//! A model of NATs (RFC 4787): which port a mapping has, and whose datagrams it lets in.
use crate::time::Instant;
use alloc::vec::Vec;
use core::{
    net::{Ipv4Addr, SocketAddr, SocketAddrV4},
    time::Duration,
};

/// How long an unasked datagram is remembered: OpenWrt's time, twice that of Linux.
const UNASKED: Duration = Duration::from_secs(60);

/// What a mapping, or what may come in by it, depends on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Dependence {
    Endpoint,
    Address,
    AddressAndPort,
}

pub(super) const DEPENDENCES: [Dependence; 3] = [Dependence::Endpoint, Dependence::Address, Dependence::AddressAndPort];

impl Dependence {
    /// Whether two destinations are one for this.
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
    /// The port outside is the one inside, for all destinations; otherwise each mapping has another one.
    pub(super) keeps_port: bool,
    pub(super) hairpin: bool,
    /// A datagram from outside that nobody has asked for is taken for the router itself, as Linux does without a
    /// firewall: its connection keeps the port towards its source.
    pub(super) takes_unasked: bool,
}

impl Kind {
    /// Whether the port that one destination sees is the port for all others.
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
    /// The ports that unasked datagrams have taken, from where, and when the last one came.
    taken: Vec<(u16, SocketAddr, Instant)>,
    next_port: u16,
}

#[derive(Debug)]
struct Mapping {
    inside: SocketAddr,
    port: u16,
    /// Where datagrams went, and when the last one did.
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

    /// All mappings are gone, and those to come have other ports.
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

    /// A datagram leaves; where it seems to come from.
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

    /// A datagram comes in; whom it is for.
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
