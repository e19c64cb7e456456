//! Rosters of several servers on one log.
//!
//! The number of a roster is that of the last roster before the log, and the revision of the log. All that a roster
//! says is in the log, so all servers make the same bytes of the same revision: the ledger's time is the time of issue,
//! and the names are made anew each time, from the leases and from the names that are not those which machines want.

use super::Issuer;
use crate::{
    documents::{self, named, places, rosters, servers},
    network::names::Names,
    replica::Documents,
};
use rustguard_core::time::Now;
use rustguard_crypto::x25519::PublicKey;
use rustguard_device::key;
use rustguard_enroll::{ledger::Ledger, store::LeaseStore};
use rustguard_network::roster::{label::Label, pair::PairSecret};
use std::collections::{BTreeMap, BTreeSet};

/// The contents of the log beside the leases.
pub(super) struct Shared {
    gateway: PublicKey,
    /// The number of the last roster before the log.
    base: u64,
    /// The number of a roster that is made now.
    pub(super) number: u64,
    servers: BTreeSet<PublicKey>,
    /// Where clients are.
    places: BTreeMap<PublicKey, PublicKey>,
    names: BTreeMap<PublicKey, Label>,
    /// A machine that the administrator has named: it gets the name without a number, if that is free.
    pub(super) renamed: Option<PublicKey>,
}

impl Shared {
    /// The names of all machines.
    pub(super) fn names<S: LeaseStore>(&self, ledger: &Ledger<S>) -> Names {
        let mut names = Names::given(self.names.iter().map(|(key, name)| (*key, name.clone())));
        if let Some(renamed) = &self.renamed {
            names.forget(renamed);
        }
        names.settle(&ledger.state().leases);
        names
    }

    /// Whether the machine with this key is one of the servers on the log.
    pub(super) fn is_server(&self, key: &PublicKey) -> bool {
        self.servers.contains(key)
    }

    /// The server at which a client was last.
    pub(super) fn server_of<S: LeaseStore>(&self, client: &PublicKey, ledger: &Ledger<S>) -> Option<PublicKey> {
        let server = self.places.get(client)?;
        (self.is_server(server) && ledger.lease(server).is_some()).then_some(*server)
    }

    /// The server that clients belong to in a roster: the one with the gateway key, or else the first.
    pub(super) fn server_of_clients<S: LeaseStore>(&self, ledger: &Ledger<S>) -> PublicKey {
        let mut servers: Vec<_> = self.servers.iter().filter_map(|key| ledger.lease(key)).collect();
        servers.sort_by_key(|lease| (lease.public_key != self.gateway, lease.created, lease.public_key.0));
        servers.first().map_or(self.gateway, |lease| lease.public_key)
    }
}

impl Issuer {
    /// The issuer of one of several servers on a log.
    pub(crate) fn share(&mut self, gateway: PublicKey, revision: u64, log: &Documents) {
        let base = rosters(log);
        self.shared = Some(Shared {
            gateway,
            base,
            number: base,
            servers: BTreeSet::new(),
            places: BTreeMap::new(),
            names: BTreeMap::new(),
            renamed: None,
        });
        // The log says what would have to be waited for.
        self.waits = false;
        self.follow(revision, log);
    }

    /// Takes note of the log at a revision.
    pub(crate) fn follow(&mut self, revision: u64, log: &Documents) {
        let Some(shared) = &mut self.shared else { return };
        // It changes when a store was set back.
        shared.base = rosters(log);
        let number = shared.base.saturating_add(revision);
        if shared.number == number {
            return;
        }
        (shared.number, shared.renamed) = (number, None);
        shared.servers = servers(log);
        shared.places = places(log);
        shared.names = named(log).filter_map(|(key, name)| Some((key, name.parse().ok()?))).collect();
        self.changed = true;
        let pairs = log.get(documents::PAIR_SECRET).and_then(|text| {
            Some(PairSecret::from_bytes(&*key::from_base64(std::str::from_utf8(text).ok()?.trim_end()).ok()?))
        });
        if let Some(pairs) = pairs {
            self.pairs = pairs;
        }
    }

    /// The names that result from the ledger, which may have staged decisions, and are not those which machines want.
    pub(crate) fn other_names<S: LeaseStore>(&self, ledger: &Ledger<S>) -> BTreeMap<PublicKey, Label> {
        self.shared.as_ref().map(|shared| shared.names(ledger).others()).unwrap_or_default()
    }

    /// Whether a roster is due although nothing has changed: the log needs a record for its number.
    pub(crate) fn needs_touch(&self, now: Now) -> bool {
        let is_told = |number| self.last.as_ref().is_some_and(|last| last.version().number >= number);
        now.instant >= self.stale_at && self.shared.as_ref().is_some_and(|shared| is_told(shared.number))
    }
}
