//! The steps of the set-up.

use super::{
    config::HostConfig,
    dns,
    error::{HostError, Warning},
    guard, mtu, nat,
    netlink::Netlink,
    policy,
    record::{Journal, Record},
    routes::{self, Plan},
    step::Step,
    undo::{cleanup, undo},
};
use rustguard_device::{interface, kernel::Link};

/// The mark for the tunnel's sockets. It is the configured mark, if there is one. Otherwise, if a default route goes
/// into the tunnel, it is the first number from 51820 that no route and no rule of this host uses as table or mark.
/// Otherwise it is `None`.
///
/// Set the mark on the sockets and as [`HostConfig::fwmark`] before [`apply`]. A default route would send packets of
/// sockets without the mark back into the tunnel.
pub async fn choose_fwmark(config: &HostConfig) -> Result<Option<u32>, HostError> {
    resolve_mark(&Netlink::open()?, config, &Plan::new(config)).await
}

/// Sets the host up for the tunnel.
///
/// # Errors
/// If a step fails, the earlier steps are undone, and the error describes the failure. If undoing fails too, that is
/// logged, and the remaining steps stay in the record for [`cleanup`].
pub async fn apply(config: &HostConfig) -> Result<Applied, HostError> {
    check_name(&config.interface)?;
    // The interface is new and belongs to the caller, so a record with its name was left by an earlier process, which
    // has ended.
    if let Some(path) = &config.record {
        cleanup(path).await?;
    }

    let netlink = Netlink::open()?;
    let link = netlink.link_by_name(&config.interface).await?;
    let link = link.ok_or_else(|| HostError::NoSuchInterface(config.interface.clone()))?;
    let journal = Journal::new(&config.interface, link.index, config.record.clone());
    let mut applied = Applied { journal, config: config.clone(), mtu: link.mtu, fwmark: None, warnings: Vec::new() };
    match applied.set_up(config, &netlink, link).await {
        Ok(()) => Ok(applied),
        Err(error) => {
            if undo(applied.journal, &netlink).await.is_err() {
                tracing::warn!("`{}` could not be rolled back completely", config.interface);
            }
            Err(error)
        }
    }
}

/// A host that is set up. Dropping this changes nothing on the host; [`undo`](Self::undo) reverts the set-up.
#[derive(Debug)]
#[must_use = "dropping this leaves routes, rules and DNS in place; call undo at the end"]
pub struct Applied {
    pub(super) journal: Journal,
    pub(super) config: HostConfig,
    pub(super) mtu: u32,
    pub(super) fwmark: Option<u32>,
    warnings: Vec<Warning>,
}

impl Applied {
    /// The configuration of the set-up.
    pub fn config(&self) -> &HostConfig {
        &self.config
    }

    /// The interface's MTU in bytes.
    pub fn mtu(&self) -> u32 {
        self.mtu
    }

    /// The mark the tunnel's sockets must carry.
    pub fn fwmark(&self) -> Option<u32> {
        self.fwmark
    }

    /// The parts of the set-up that were left out.
    pub fn warnings(&self) -> &[Warning] {
        &self.warnings
    }

    /// The changes that were made.
    pub fn record(&self) -> &Record {
        self.journal.get()
    }

    /// Undoes everything in reverse order. This is faster after the interface was deleted, because only changes that
    /// outlive it remain.
    ///
    /// # Errors
    /// Every step that can be undone is undone. The first failure is returned, and the record stays for [`cleanup`].
    pub async fn undo(self) -> Result<(), HostError> {
        undo(self.journal, &Netlink::open()?).await
    }

    async fn set_up(&mut self, config: &HostConfig, netlink: &Netlink, link: Link) -> Result<(), HostError> {
        let name = &config.interface;
        let plan = Plan::new(config);
        self.fwmark = resolve_mark(netlink, config, &plan).await?;
        self.mtu = mtu::compute(netlink, config, self.fwmark).await?;

        // The MTU comes first: an interface with an MTU below 1,280 bytes accepts no IPv6 address.
        self.journal.record(Step::Link { mtu: link.mtu, up: link.up })?;
        netlink.set_link(name, link.index, self.mtu, link.up).await?;
        for address in &config.addresses {
            if netlink.add_address(name, link.index, *address).await? {
                self.journal.record(Step::Address(*address))?;
            }
        }
        if config.learned {
            // A routing engine learns routes as soon as the interface is up. The guard is added with the first learned
            // default route.
            self.warnings.extend(guard::foresee(&mut self.journal, &plan.default)?);
        }
        let mark = self.fwmark.filter(|_| !plan.default.is_empty());
        if let (Some(mark), false) = (mark, config.learned) {
            // The first initiation leaves as soon as the interface is up. The answer passes a strict reverse path
            // filter because of the mark that the guard has stored for the connection.
            plan.default.iter().try_for_each(|net| policy::prepare_filter(*net))?;
            guard::add(&mut self.journal, &plan.default, mark, &config.addresses).await?;
        }
        netlink.set_link(name, link.index, self.mtu, true).await?;

        dns::add(&mut self.journal, config).await?;
        if let Some(gateway) = &config.nat {
            nat::add(&mut self.journal, gateway).await?;
        }

        routes::add(netlink, &mut self.journal, &plan).await?;
        if let Some(mark) = mark {
            policy::add(netlink, &mut self.journal, &plan, mark).await?;
        }
        Ok(())
    }
}

pub(super) async fn resolve_mark(
    netlink: &Netlink,
    config: &HostConfig,
    plan: &Plan,
) -> Result<Option<u32>, HostError> {
    match config.mark() {
        None if !plan.default.is_empty() => policy::unused_table(netlink).await.map(Some),
        mark => Ok(mark),
    }
}

/// The interface names that wg-quick accepts. They become part of nft's script and of resolvconf's command line, so no
/// other characters are permitted.
fn check_name(name: &str) -> Result<(), HostError> {
    if interface::check_name(name).is_ok() && !name.starts_with('-') {
        Ok(())
    } else {
        Err(HostError::InterfaceName(name.to_owned()))
    }
}
