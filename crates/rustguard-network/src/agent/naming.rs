//! Names on this machine: the own resolver of the tunnel, and the service that is told of it and of the network's name
//! servers.

use crate::{
    dns::Upstream,
    merge::{Host, Merged},
    names::Names,
};
use ipnet::IpNet;
use rustguard_quick::{NameServer, conf::Interface, host::name_service};
use rustguard_roster::{member::Member, roster::Roster};
use std::{
    net::IpAddr,
    time::{Duration, Instant},
};

/// How often this machine is asked for the service that takes name servers.
const ASK: Duration = Duration::from_secs(60);
/// How long that service is left alone after it has failed.
const REST: Duration = Duration::from_secs(600);

/// What a member has for names.
pub(super) struct Naming {
    names: Names,
    /// Where the own resolver passes names on to.
    upstream: Upstream,
    /// The pools of the network that this machine has taken.
    pools: Vec<IpNet>,
    /// What this machine had when the configuration was made.
    host: Host,
    ask_at: Instant,
    unable: Option<Unable>,
}

/// This machine did not take name servers.
struct Unable {
    why: String,
    /// None are tried before.
    until: Instant,
    /// The servers and domains that it had taken before, and keeps.
    dns: Vec<NameServer>,
    dns_search: Vec<String>,
}

impl Naming {
    pub(super) fn new(now: Instant) -> Self {
        Self {
            names: Names::default(),
            upstream: Upstream::default(),
            pools: Vec::new(),
            host: Host::default(),
            ask_at: now,
            unable: None,
        }
    }

    /// Asks this machine for its service. Returns whether a configuration may look different now.
    pub(super) async fn ask(&mut self) -> bool {
        let service = Some(name_service().await);
        let now = Instant::now();
        self.ask_at = now + ASK;
        // A service that has failed is tried again.
        let again = self.unable.as_ref().is_some_and(|unable| unable.until <= now);
        (std::mem::replace(&mut self.host.service, service) != service) | again
    }

    /// The same, if it is time for it.
    pub(super) async fn tick(&mut self, now: Instant) -> bool {
        self.ask_at <= now && self.ask().await
    }

    /// What this machine has, for a configuration that is made now.
    pub(super) fn host(&mut self) -> Host {
        self.host.resolver = self.names.answered();
        self.unable.take_if(|unable| unable.until <= Instant::now());
        let mut host = self.host.clone();
        if self.unable.is_some() {
            host.service = None;
        }
        host
    }

    /// Takes what such a configuration says about names. A service that has failed keeps what it had.
    pub(super) fn settle(&mut self, merged: &mut Merged) {
        let interface = &mut merged.config.interface;
        if let Some(unable) = self.unable.as_ref().filter(|_| interface.dns.is_empty()) {
            merged.refused.push(format!("name servers: {}", unable.why));
            interface.dns.clone_from(&unable.dns);
            interface.dns_search.clone_from(&unable.dns_search);
        }
        self.pools.clone_from(&merged.config.pools);
        if self.unable.is_none() {
            self.upstream = std::mem::take(&mut merged.upstream);
        }
    }

    /// The service did not take the name servers of the last configuration: it is left alone for a while, and keeps
    /// what it has.
    pub(super) fn service_failed(&mut self, why: String, kept: &Interface) {
        let (dns, dns_search) = (kept.dns.clone(), kept.dns_search.clone());
        self.unable = Some(Unable { why, until: Instant::now() + REST, dns, dns_search });
    }

    /// Answers for the names of a roster, as this member of it; for none without.
    pub(super) async fn answer_for(&mut self, member: Option<(&Roster, &Member)>) {
        match member {
            Some((roster, member)) => {
                self.names.follow(roster, &member.addresses as &[IpAddr], &self.pools, self.upstream.clone());
                self.names.tried().await;
            }
            None => self.names.end(),
        }
    }

    /// Whether the own resolver answers elsewhere, or for other names, than the configuration says.
    pub(super) fn has_changed(&self) -> bool {
        self.names.answered() != self.host.resolver
    }

    /// Waits until that may be. Dropping the future loses nothing.
    pub(super) async fn changed(&mut self) {
        self.names.changed().await;
    }
}
