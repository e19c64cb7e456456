//! Undoing a set-up, last step first.

use super::{
    dns,
    error::HostError,
    guard, nat,
    netlink::Netlink,
    record::{self, Journal},
    step::Step,
};
use std::path::Path;

/// Undoes the changes of a process that was killed, and removes its state file. Returns `false` if there is no such
/// file, or if it belongs to another network namespace, where this process cannot change anything.
///
/// Call this only when no tunnel with that name runs. [`apply`](super::apply) calls it itself.
///
/// # Errors
/// Every step that can be undone is undone. The first failure is returned, and the file then stays.
pub async fn cleanup(path: &Path) -> Result<bool, HostError> {
    let Some(journal) = record::read(path)? else { return Ok(false) };
    tracing::info!("cleaning up what an earlier `{}` left behind", journal.interface());
    undo(journal, &Netlink::open()?).await?;
    Ok(true)
}

/// Undoes all steps that it can, in reverse order. It returns the first failure and logs the others.
pub(super) async fn undo(mut journal: Journal, netlink: &Netlink) -> Result<(), HostError> {
    // The index alone may meanwhile belong to another interface.
    let link = netlink.link_by_name(journal.interface()).await?;
    let present = link.is_some_and(|link| link.index == journal.index());

    let mut outcome = Ok(());
    for step in journal.take_steps().into_iter().rev() {
        if !present && !step.outlives_interface() {
            continue;
        }
        if let Err(error) = undo_step(&journal, netlink, &step, present).await {
            tracing::warn!("{error}");
            outcome = outcome.and(Err(error));
        }
    }
    outcome?;
    journal.remove_file()
}

async fn undo_step(journal: &Journal, netlink: &Netlink, step: &Step, present: bool) -> Result<(), HostError> {
    let (interface, index) = (journal.interface(), journal.index());
    match step {
        Step::Address(address) => netlink.delete_address(interface, index, *address).await,
        Step::Link { mtu, up } => netlink.set_link(interface, index, *mtu, *up).await,
        Step::Dns(entry) => dns::remove(entry, interface, present.then_some(index)).await,
        Step::Route { net, table } => netlink.delete_route(interface, index, *net, *table).await,
        Step::Rule(rule) => netlink.delete_rule(*rule).await,
        Step::Guard { v4, v6 } => guard::remove(interface, *v4, *v6).await,
        Step::Nat { v4, v6 } => nat::remove(interface, *v4, *v6).await,
        Step::Sysctl(sysctl) => nat::reset(journal, sysctl),
    }
}
