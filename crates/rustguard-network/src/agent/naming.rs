//! Names on this machine: the tunnel's own resolver, and the host's name service, which is configured with this
//! resolver and the network's name servers.

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

/// How often the host's name service is detected again.
const ASK: Duration = Duration::from_secs(60);
/// How long the service is not used after it has failed.
const REST: Duration = Duration::from_secs(600);

/// The state of names on a member.
pub(super) struct Naming {
    names: Names,
    /// Where the own resolver forwards other names.
    upstream: Upstream,
    /// The pools of the network that this machine accepts.
    pools: Vec<IpNet>,
    /// The host's name service and resolver when the configuration was made.
    host: Host,
    ask_at: Instant,
    unable: Option<Unable>,
}

/// The host's service refused the name servers.
struct Unable {
    why: String,
    /// No servers are set before this time.
    until: Instant,
    /// The servers and domains that the service accepted before, and keeps.
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

    /// Detects the host's name service. Returns whether a new configuration may differ now.
    pub(super) async fn ask(&mut self) -> bool {
        let service = Some(name_service().await);
        let now = Instant::now();
        self.ask_at = now + ASK;
        // A service that has failed is tried again.
        let again = self.unable.as_ref().is_some_and(|unable| unable.until <= now);
        (std::mem::replace(&mut self.host.service, service) != service) | again
    }

    /// The same, if it is due.
    pub(super) async fn tick(&mut self, now: Instant) -> bool {
        self.ask_at <= now && self.ask().await
    }

    /// The host's name service and resolver, for a configuration that is made now.
    pub(super) fn host(&mut self) -> Host {
        self.host.resolver = self.names.answered();
        self.unable.take_if(|unable| unable.until <= Instant::now());
        let mut host = self.host.clone();
        if self.unable.is_some() {
            host.service = None;
        }
        host
    }

    /// Adopts the name settings of such a configuration. A service that has failed keeps its previous ones.
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

    /// The service refused the name servers of the last configuration: it is not used for a while, and keeps its
    /// present ones.
    pub(super) fn service_failed(&mut self, why: String, kept: &Interface) {
        let (dns, dns_search) = (kept.dns.clone(), kept.dns_search.clone());
        self.unable = Some(Unable { why, until: Instant::now() + REST, dns, dns_search });
    }

    /// Resolves the names of a roster, as this member of it. `None` ends this.
    pub(super) async fn answer_for(&mut self, member: Option<(&Roster, &Member)>) {
        match member {
            Some((roster, member)) => {
                self.names.follow(roster, &member.addresses as &[IpAddr], &self.pools, self.upstream.clone());
                self.names.tried().await;
            }
            None => self.names.end(),
        }
    }

    /// Whether the own resolver now uses other addresses, or other domains, than the configuration.
    pub(super) fn has_changed(&self) -> bool {
        self.names.answered() != self.host.resolver
    }

    /// Waits until that may be so. Dropping the future loses nothing.
    pub(super) async fn changed(&mut self) {
        self.names.changed().await;
    }
}
