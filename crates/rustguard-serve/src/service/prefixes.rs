//! The commands for the prefixes behind peers, and for their tags.

use super::{
    Service,
    commands::{Result, text},
};
use crate::{
    clock::now,
    request::{Answer, PeerChanged},
    words::called,
};
use ipnet::IpNet;
use rustguard_crypto::x25519::PublicKey;
use rustguard_enroll::store::LeaseStore;

/// The most overlaps that an answer names.
const NAMED: usize = 8;

impl<S: LeaseStore> Service<S> {
    pub(super) fn allow_prefixes(&mut self, peer: &str, prefixes: &[IpNet], default_route: bool) -> Result<Answer> {
        let key = self.find(peer)?;
        self.server.allow_prefixes(&key, prefixes, default_route, now(), &mut self.actions).map_err(text)?;
        let prefixes: Vec<_> = prefixes.iter().map(IpNet::trunc).collect();
        let notes = self.notes(&key, &prefixes);
        self.peer_changed(&key, notes)
    }

    pub(super) fn deny_prefixes(&mut self, peer: &str, prefixes: &[IpNet]) -> Result<Answer> {
        let key = self.find(peer)?;
        self.server.deny_prefixes(&key, prefixes, now(), &mut self.actions).map_err(text)?;
        self.peer_changed(&key, Vec::new())
    }

    pub(super) fn tag_peer(&mut self, peer: &str, tags: &[String]) -> Result<Answer> {
        let key = self.find(peer)?;
        self.server.tag_peer(&key, tags, now(), &mut self.actions).map_err(text)?;
        self.peer_changed(&key, Vec::new())
    }

    pub(super) fn untag_peer(&mut self, peer: &str, tags: &[String]) -> Result<Answer> {
        let key = self.find(peer)?;
        self.server.untag_peer(&key, tags, now(), &mut self.actions).map_err(text)?;
        self.peer_changed(&key, Vec::new())
    }

    fn peer_changed(&self, key: &PublicKey, notes: Vec<String>) -> Result<Answer> {
        let lease = self.server.ledger().lease(key).ok_or("the peer was removed meanwhile")?;
        Ok(Answer::PeerChanged(PeerChanged {
            peer: called(lease),
            tags: lease.tags.clone(),
            admitted: lease.admitted.clone(),
            waiting: lease.waiting().collect(),
            notes,
        }))
    }

    /// Effects of newly admitted prefixes that the administrator may not expect.
    fn notes(&self, key: &PublicKey, prefixes: &[IpNet]) -> Vec<String> {
        let ledger = self.server.ledger();
        let mut notes = Vec::new();
        for own in self.settings.own_addresses() {
            for prefix in prefixes.iter().filter(|prefix| prefix.contains(&own.trunc())) {
                notes.push(format!(
                    "{prefix} contains the pool {}, whose addresses stay with their machines",
                    own.trunc()
                ));
            }
        }
        let others = ledger.leases().filter(|other| other.public_key != *key);
        let others = others.flat_map(|other| other.admitted.iter().map(move |net| (net, called(other))));
        let routes: Vec<_> = self.settings.routes.iter().map(IpNet::trunc).collect();
        let own = routes.iter().map(|net| (net, "this server".to_owned()));
        let mut overlaps = others.chain(own).flat_map(|(net, who)| {
            let overlapped = prefixes.iter().filter(move |prefix| net.contains(*prefix) || prefix.contains(net));
            overlapped.map(move |prefix| (prefix, net, who.clone()))
        });
        for (prefix, net, who) in overlaps.by_ref().take(NAMED) {
            notes.push(if prefix == net {
                format!("{who} has {net} as well: members send to the nearest of those that answer")
            } else {
                let (longer, shorter) =
                    if prefix.prefix_len() > net.prefix_len() { (prefix, net) } else { (net, prefix) };
                format!("{prefix} overlaps {net} of {who}: {longer} is preferred to {shorter}, whoever answers")
            });
        }
        let more = overlaps.count();
        if more > 0 {
            notes.push(format!("{more} more overlaps; `rustguard peer ls --json`"));
        }
        if let Some(lease) = ledger.lease(key).filter(|lease| lease.member) {
            let said: Vec<_> = lease.prefixes().collect();
            let unsaid = prefixes.iter().filter(|prefix| !said.iter().any(|net| prefix.contains(net)));
            let unsaid: Vec<_> = unsaid.map(ToString::to_string).collect();
            if !unsaid.is_empty() {
                let peer = called(lease);
                notes.push(format!(
                    "{peer} does not announce {}: nothing is sent there until it does",
                    unsaid.join(", ")
                ));
            }
        }
        notes
    }
}
