//! The names of a network's members, resolved on this machine while its tunnel runs.

use crate::{
    dns::{
        PORT, Server, Upstream, Zone,
        zone::{domain, is_foreign},
    },
    merge::Resolver,
};
use ipnet::IpNet;
use rustguard_roster::{label::Label, roster::Roster, settings};
use std::net::{IpAddr, SocketAddr};

/// The most domains. A link of systemd-resolved takes 256, which have to include those of the network's name servers
/// and `.`.
const MAX_DOMAINS: usize = 256 - settings::MAX_DOMAINS - 1;

/// The server for the names of a network. It starts with the first roster.
#[derive(Debug, Default)]
pub struct Names {
    server: Option<Server>,
    /// The domains that are resolved here.
    domains: Vec<String>,
    /// The network's name that was refused, so that this is logged once.
    refused: Option<Label>,
}

impl Names {
    /// Answers from this roster from now on.
    ///
    /// `own` are this machine's addresses in the network, which have to be on an interface. `pools` are the pools of
    /// the network that this machine accepts. `upstream` are name servers for other domains.
    ///
    /// # Panics
    /// Panics outside a tokio runtime.
    pub fn follow(&mut self, roster: &Roster, own: &[IpAddr], pools: &[IpNet], upstream: Upstream) {
        let network = &roster.settings().name;
        if is_foreign(&domain(network)) {
            if self.refused.as_ref() != Some(network) {
                tracing::warn!(
                    "the names of this network are not answered: others use {network}.internal already; a network called otherwise \
                     has names (`rustguard serve --name`)"
                );
                self.refused = Some(network.clone());
            }
            self.end();
            return;
        }
        let zone = Zone::new(roster, own.iter().copied(), pools.iter().copied()).with_upstream(upstream);
        self.domains = std::iter::once(zone.domain()).chain(zone.reverse_domains()).take(MAX_DOMAINS).collect();
        match &self.server {
            Some(server) => server.set_zone(zone),
            None => self.server = Some(Server::start(zone, PORT)),
        }
    }

    /// Stops answering.
    pub fn end(&mut self) {
        self.server = None;
        self.domains.clear();
    }

    /// Waits until each address was tried.
    pub(crate) async fn tried(&mut self) {
        if let Some(server) = &mut self.server {
            server.tried().await;
        }
    }

    /// Where queries are answered, and for which domains. There are no addresses if that is impossible, because another
    /// program uses the port. `None` if this is not known yet.
    pub fn answered(&self) -> Option<Resolver> {
        let Some(server) = &self.server else { return self.refused.as_ref().map(|_| Resolver::default()) };
        let addresses = server.listening().iter().map(SocketAddr::ip).collect();
        Some(Resolver { addresses, domains: self.domains.clone() })
    }

    /// Waits until [`answered`](Self::answered) returns other addresses. Dropping the future loses nothing.
    pub async fn changed(&mut self) {
        match &mut self.server {
            Some(server) => server.listening_changed().await,
            None => std::future::pending().await,
        }
    }
}
