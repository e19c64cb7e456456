//! The guard for a default route through the tunnel, in nftables, or in iptables where there is no `nft`.
//!
//! Routing by mark has two consequences. The tunnel's addresses must be protected from packets that arrive on another
//! interface with such a destination (CVE-2019-14899: an attacker on the local network probes connections inside the
//! tunnel). Answers to marked packets need the mark for the reverse path filter. The rules are the same as wg-quick's,
//! in a table for this tunnel. With a learned default route, the guard is added and removed together with the route. A
//! gateway without its own default route in the tunnel must also be reachable from its local network at the tunnel's
//! address.

use super::{
    command::find_program,
    error::{HostError, Warning},
    iptables,
    link::is_v6,
    record::Journal,
    rules,
    step::Step,
};
use crate::helper::Rules;
use ipnet::IpNet;

/// Adds the guard for the families of `defaults`.
///
/// # Errors
/// Also where this machine has neither `nft` nor iptables: without the guard, answers would not pass a strict reverse
/// path filter, and anyone on the local network could probe the tunnel's connections.
pub(super) async fn add(
    journal: &mut Journal,
    defaults: &[IpNet],
    mark: u32,
    addresses: &[IpNet],
) -> Result<(), HostError> {
    if foresee(journal, defaults)?.is_some() {
        return Err(HostError::DefaultWithoutRules);
    }
    put_up(journal.interface(), defaults, mark, addresses).await
}

/// Records the guard that may be [added](put_up) for these families at any time from now on, so that it is undone with
/// the rest. Without the programs for it, it records nothing and returns a warning.
pub(super) fn foresee(journal: &mut Journal, defaults: &[IpNet]) -> Result<Option<Warning>, HostError> {
    if defaults.is_empty() {
        return Ok(None);
    }
    let (v4, v6) = (defaults.iter().any(|net| !is_v6(*net)), defaults.iter().any(|net| is_v6(*net)));
    if find_program("nft").is_none() && !iptables::can_guard(journal.interface(), v4, v6) {
        return Ok(Some(Warning::NoRules));
    }
    journal.record(Step::Guard { v4, v6 })?;
    Ok(None)
}

/// Adds a guard that was recorded before. Without the programs for it, it adds nothing.
pub(super) async fn put_up(
    interface: &str,
    defaults: &[IpNet],
    mark: u32,
    addresses: &[IpNet],
) -> Result<(), HostError> {
    if defaults.is_empty() {
        return Ok(());
    }
    rules::load(interface, Rules::Guard { defaults: defaults.to_vec(), mark, addresses: addresses.to_vec() }).await
}

/// Removes the guard of an interface, if there is one.
pub(super) async fn remove(interface: &str, v4: bool, v6: bool) -> Result<(), HostError> {
    rules::load(interface, Rules::NoGuard { v4, v6 }).await
}
