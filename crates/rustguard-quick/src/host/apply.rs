//! The set-up itself, step by step.

use super::{
    config::HostConfig,
    dns,
    error::{HostError, Warning},
    guard, mtu,
    netlink::Netlink,
    policy,
    record::{Journal, Record},
    routes::{self, Plan},
    step::Step,
    undo::{cleanup, undo},
};
use rustguard_device::{interface, kernel::Link};

/// The mark the tunnel's sockets need: the configured one; otherwise, when a default route is to go into the tunnel,
/// the first number from 51820 that no route and no rule of this host uses as table or mark; otherwise none.
///
/// Set it on the sockets and as [`HostConfig::fwmark`] before [`apply`]: until the sockets carry it, a default route
/// would send their packets into the tunnel again.
pub async fn choose_fwmark(config: &HostConfig) -> Result<Option<u32>, HostError> {
    resolve_mark(&Netlink::open()?, config, &Plan::new(config)).await
}

/// Sets the host up for the tunnel.
///
/// # Errors
/// When a step fails, what was done before is undone, and the error says what failed. Should undoing fail as well,
/// that is logged, and what is left stays in the record for [`cleanup`].
pub async fn apply(config: &HostConfig) -> Result<Applied, HostError> {
    check_name(&config.interface)?;
    // The interface is the caller's and new, so a record under its name is of an earlier process, which is gone.
    if let Some(path) = &config.record {
        cleanup(path).await?;
    }

    let netlink = Netlink::open()?;
    let link = netlink.link_by_name(&config.interface).await?;
    let link = link.ok_or_else(|| HostError::NoSuchInterface(config.interface.clone()))?;
    let journal = Journal::new(&config.interface, link.index, config.record.clone());
    let mut applied = Applied { journal, mtu: link.mtu, fwmark: None, warnings: Vec::new() };
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

/// A host that is set up. Dropping this leaves everything in place; [`undo`](Self::undo) takes it back.
#[derive(Debug)]
#[must_use = "dropping this leaves routes, rules and DNS in place; call undo at the end"]
pub struct Applied {
    journal: Journal,
    mtu: u32,
    fwmark: Option<u32>,
    warnings: Vec<Warning>,
}

impl Applied {
    /// The interface's MTU, bytes.
    pub fn mtu(&self) -> u32 {
        self.mtu
    }

    /// The mark the tunnel's sockets must carry.
    pub fn fwmark(&self) -> Option<u32> {
        self.fwmark
    }

    /// What was left out.
    pub fn warnings(&self) -> &[Warning] {
        &self.warnings
    }

    /// What was done.
    pub fn record(&self) -> &Record {
        self.journal.get()
    }

    /// Undoes everything, last to first. Quicker after the interface is deleted, when only what outlives it is left
    /// to undo.
    ///
    /// # Errors
    /// All that can be undone is undone; the first failure is returned, and the record stays for [`cleanup`].
    pub async fn undo(self) -> Result<(), HostError> {
        undo(self.journal, &Netlink::open()?).await
    }

    async fn set_up(&mut self, config: &HostConfig, netlink: &Netlink, link: Link) -> Result<(), HostError> {
        let name = &config.interface;
        let plan = Plan::new(config);
        self.fwmark = resolve_mark(netlink, config, &plan).await?;
        self.mtu = mtu::compute(netlink, config, self.fwmark).await?;

        // The MTU first: an interface with less than 1,280 bytes takes no IPv6 address.
        self.journal.record(Step::Link { mtu: link.mtu, up: link.up })?;
        netlink.set_link(name, link.index, self.mtu, link.up).await?;
        for address in &config.addresses {
            if netlink.add_address(name, link.index, *address).await? {
                self.journal.record(Step::Address(*address))?;
            }
        }
        if config.learned {
            // An engine learns as soon as the interface is up, and puts the guard up with the first default route.
            self.warnings.extend(guard::foresee(&mut self.journal, &plan.default)?);
        }
        netlink.set_link(name, link.index, self.mtu, true).await?;

        dns::add(&mut self.journal, config).await?;

        routes::add(netlink, &mut self.journal, &plan).await?;
        if let Some(mark) = self.fwmark
            && !plan.default.is_empty()
        {
            policy::add(netlink, &mut self.journal, &plan, mark).await?;
            if !config.learned {
                let warning = guard::add(&mut self.journal, &plan.default, mark, &config.addresses).await?;
                self.warnings.extend(warning);
            }
        }
        Ok(())
    }
}

async fn resolve_mark(netlink: &Netlink, config: &HostConfig, plan: &Plan) -> Result<Option<u32>, HostError> {
    match config.mark() {
        None if !plan.default.is_empty() => policy::unused_table(netlink).await.map(Some),
        mark => Ok(mark),
    }
}

/// The names wg-quick accepts. They go into nft's script and onto resolvconf's command line, so nothing else may.
fn check_name(name: &str) -> Result<(), HostError> {
    if interface::check_name(name).is_ok() && !name.starts_with('-') {
        Ok(())
    } else {
        Err(HostError::InterfaceName(name.to_owned()))
    }
}
