//! Figures of enrolment, for metrics.

use super::{Service, commands::state_of};
use crate::{
    clock::now,
    request::{InviteState, NetworkView, StoreView},
};
use ipnet::IpNet;
use rustguard_enroll::store::LeaseStore;
use tokio::sync::{mpsc, oneshot};

/// Figures of enrolment.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Figures {
    /// The pools, and the number of their addresses that are leased.
    pub pools: Vec<(IpNet, usize)>,
    /// The leases of machines that have completed a handshake, or that an administrator added.
    pub active: usize,
    /// The leases of machines that have not completed a handshake yet.
    pub pending: usize,
    /// The invites that can be used.
    pub usable_invites: usize,
    /// Whether the pairing window is open.
    pub window_open: bool,
    /// The machines that wait for approval.
    pub waiting: usize,
    /// The network, if joined machines are members of one.
    pub network: Option<NetworkView>,
    /// The store, if several servers share one.
    pub store: Option<StoreView>,
}

/// Asks a running [`Service`] for its figures, from any thread. From [`Service::figures`].
#[derive(Clone, Debug)]
pub struct FiguresHandle(pub(super) mpsc::Sender<oneshot::Sender<Figures>>);

impl FiguresHandle {
    /// The figures; `None` once the service has ended.
    pub async fn get(&self) -> Option<Figures> {
        let (answer, answered) = oneshot::channel();
        self.0.send(answer).await.ok()?;
        answered.await.ok()
    }
}

impl<S: LeaseStore> Service<S> {
    pub(super) fn count(&self) -> Figures {
        let (ledger, time) = (self.server.ledger(), now().unix.as_secs());
        let pools = self.settings.own_addresses().into_iter().map(|own| {
            let leased = ledger.leases().flat_map(|lease| lease.addresses()).filter(|address| own.contains(address));
            (own.trunc(), leased.count())
        });
        let pending = ledger.leases().filter(|lease| lease.is_pending()).count();
        Figures {
            pools: pools.collect(),
            active: ledger.leases().len() - pending,
            pending,
            usable_invites: ledger.invites().filter(|invite| state_of(invite, time) == InviteState::Usable).count(),
            window_open: self.server.window().is_some(),
            waiting: self.server.pending_approvals().len(),
            network: self.network.as_ref().map(|network| network.view(&self.settings, &self.interface)),
            store: self.store_view(),
        }
    }
}
