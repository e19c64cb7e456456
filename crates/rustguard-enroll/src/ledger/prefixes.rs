//! The prefixes behind peers: those that the administrator admits, and those that members announce.
use super::{
    Ledger,
    error::{LedgerError, Peer, PrefixError},
};
use crate::{
    lease::{Lease, MAX_PREFIXES},
    store::LeaseStore,
    usable::{is_special, is_wide},
};
use ipnet::IpNet;
use rustguard_core::{host_port::HostPort, time::Now};
use rustguard_crypto::x25519::PublicKey;
use std::collections::BTreeSet;

/// The largest number of prefixes, of all members together, that are announced and not admitted.
pub(crate) const MAX_WAITING: usize = 4096;

impl<S: LeaseStore> Ledger<S> {
    /// Admits more prefixes behind a peer. Returns false if all of them are already admitted. See
    /// [`check_prefixes`](Self::check_prefixes).
    pub fn allow(
        &mut self,
        key: &PublicKey,
        prefixes: &[IpNet],
        default_route: bool,
        now: Now,
    ) -> Result<bool, LedgerError> {
        let lease = self.state.leases.get(key).ok_or(LedgerError::UnknownPeer(*key))?;
        let mut all = lease.admitted.clone();
        all.extend(self.check_prefixes(prefixes, default_route)?);
        // Prefixes admitted earlier are not checked: one may be an intended default route, or lie in a pool that has
        // grown.
        all.sort_unstable();
        all.dedup();
        if all.len() > MAX_PREFIXES {
            return Err(PrefixError::TooMany(all.len()).into());
        }
        self.change(key, now, |lease| Lease { admitted: all, ..lease })
    }

    /// Takes prefixes back that were admitted.
    pub fn deny(&mut self, key: &PublicKey, prefixes: &[IpNet], now: Now) -> Result<bool, LedgerError> {
        let lease = self.state.leases.get(key).ok_or(LedgerError::UnknownPeer(*key))?;
        let prefixes: Vec<_> = prefixes.iter().map(IpNet::trunc).collect();
        if let Some(prefix) = prefixes.iter().find(|prefix| !lease.admitted.contains(prefix)) {
            return Err(LedgerError::NotAdmitted(Peer::of_lease(lease), *prefix));
        }
        self.change(key, now, |mut lease| {
            lease.admitted.retain(|prefix| !prefixes.contains(prefix));
            lease
        })
    }
}

impl<S: LeaseStore> Ledger<S> {
    /// Records what a member announces, as [`heard`](Self::heard) returned it.
    pub(crate) fn announce(&mut self, key: &PublicKey, announced: Vec<IpNet>, now: Now) -> Result<bool, LedgerError> {
        self.change(key, now, |lease| Lease { announced, ..lease })
    }

    /// Records the endpoints that a further server reports.
    pub(crate) fn reached_at(
        &mut self,
        key: &PublicKey,
        endpoints: Vec<HostPort>,
        now: Now,
    ) -> Result<bool, LedgerError> {
        self.change(key, now, |lease| Lease { endpoints, ..lease })
    }
}

impl<S> Ledger<S> {
    /// The prefixes of an announcement that are kept, in order, and whether some were left out for lack of room.
    /// Admitted prefixes are kept first. The others wait for admission, at most [`MAX_WAITING`] of all members.
    pub(crate) fn heard(&self, member: &Lease, prefixes: &[IpNet]) -> (Vec<IpNet>, bool) {
        let usable = |prefix: &IpNet| !is_special(prefix) && self.pool_around(prefix).is_none();
        let said: BTreeSet<_> = prefixes.iter().map(IpNet::trunc).filter(usable).collect();
        let (mut heard, waiting): (Vec<_>, Vec<_>) = said.into_iter().partition(|prefix| member.admits(prefix));
        let others = self.state.leases.values().filter(|lease| lease.public_key != member.public_key);
        // The count is needed only if a prefix has to wait.
        let room = if waiting.is_empty() {
            0
        } else {
            MAX_WAITING.saturating_sub(others.map(|lease| lease.waiting().count()).sum())
        };
        let most = MAX_PREFIXES.saturating_sub(heard.len()).min(room);
        let left_out = heard.len() > MAX_PREFIXES || waiting.len() > most;
        heard.truncate(MAX_PREFIXES);
        heard.extend(waiting.into_iter().take(most));
        heard.sort_unstable();
        (heard, left_out)
    }

    /// Checks prefixes that are to be admitted, and returns them in order, without host bits. A prefix that contains a
    /// pool is no error: the addresses of the pool stay with their peers, because their routes are more specific.
    ///
    /// # Errors
    /// See [`PrefixError`]. `default_route` says that default routes are intended.
    pub fn check_prefixes(&self, prefixes: &[IpNet], default_route: bool) -> Result<Vec<IpNet>, PrefixError> {
        let prefixes: BTreeSet<_> = prefixes.iter().map(IpNet::trunc).collect();
        for &prefix in &prefixes {
            if is_special(&prefix) {
                return Err(PrefixError::Special(prefix));
            }
            if is_wide(&prefix) && !default_route {
                return Err(PrefixError::DefaultRoute(prefix));
            }
            if let Some(pool) = self.pool_around(&prefix) {
                return Err(PrefixError::Pool(prefix, pool));
            }
        }
        if prefixes.len() > MAX_PREFIXES {
            return Err(PrefixError::TooMany(prefixes.len()));
        }
        Ok(prefixes.into_iter().collect())
    }

    /// The pool that contains the prefix.
    fn pool_around(&self, prefix: &IpNet) -> Option<IpNet> {
        let v4 = self.pools.v4().map(|(net, _)| IpNet::V4(net));
        let v6 = self.pools.v6().map(|(net, _)| IpNet::V6(net));
        [v4, v6].into_iter().flatten().find(|pool| pool.contains(prefix))
    }
}
