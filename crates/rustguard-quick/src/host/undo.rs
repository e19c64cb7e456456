//! Undoing a set-up, last step first.

use super::{
    dns,
    error::HostError,
    guard,
    netlink::Netlink,
    record::{self, Journal},
    step::Step,
};
use std::path::Path;

/// Undoes what a process that was killed left behind, and removes its state file. Answers `false` when there is no
/// such file, or it tells of another network namespace, where this process cannot do anything.
///
/// To be called when it is certain that no tunnel of that name is running; [`apply`](super::apply) does so itself.
///
/// # Errors
/// Everything that can be undone is undone; the first failure is returned, and the file then stays.
pub async fn cleanup(path: &Path) -> Result<bool, HostError> {
    let Some(journal) = record::read(path)? else { return Ok(false) };
    tracing::info!("cleaning up what an earlier `{}` left behind", journal.interface());
    undo(journal, &Netlink::open()?).await?;
    Ok(true)
}

/// Undoes every step, last to first, as far as possible. The first failure is returned, the others are logged.
pub(super) async fn undo(mut journal: Journal, netlink: &Netlink) -> Result<(), HostError> {
    // The index alone could meanwhile be another interface's.
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
    }
}
