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
    rules::{self, Rules},
    step::Step,
};
use ipnet::IpNet;
use std::fmt::Write;

/// Adds the guard for the families of `defaults`.
///
/// # Errors
/// Also where this machine has neither `nft` nor iptables: without the guard, answers would not pass a strict reverse path filter, and
/// everybody on the local network could look into the tunnel's connections.
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

/// The nft commands for the guard of these default routes.
pub(super) fn script(interface: &str, defaults: &[IpNet], mark: u32, addresses: &[IpNet]) -> String {
    defaults.iter().map(|net| table(interface, is_v6(*net), mark, addresses)).collect()
}

/// The nft commands that remove a table of these families.
pub(super) fn without(name: &str, v4: bool, v6: bool) -> String {
    let families = [v4.then_some("ip"), v6.then_some("ip6")].into_iter().flatten();
    families.map(|family| without_table(family, name)).collect()
}

/// The nft commands for one family. They replace the contents of an existing table with that name.
fn table(interface: &str, v6: bool, mark: u32, addresses: &[IpNet]) -> String {
    let family = if v6 { "ip6" } else { "ip" };
    let name = table_name(interface);
    let mut script = without_table(family, &name);

    let mut spoofed = String::new();
    for address in addresses.iter().filter(|address| is_v6(**address) == v6) {
        let address = address.addr();
        writeln!(spoofed, "        iifname != \"{interface}\" {family} daddr {address} fib saddr type != local drop")
            .expect("writing to a string cannot fail");
    }
    writeln!(
        script,
        r#"table {family} {name} {{
    chain preraw {{
        type filter hook prerouting priority -300;
{spoofed}    }}
    chain premangle {{
        type filter hook prerouting priority -150;
        meta l4proto udp meta mark set ct mark
    }}
    chain postmangle {{
        type filter hook postrouting priority -150;
        meta l4proto udp mark {mark} ct mark set mark
    }}
}}"#
    )
    .expect("writing to a string cannot fail");
    script
}

/// nft has no "delete if it exists" before 1.0.6. Adding an existing table changes nothing, so the table certainly
/// exists when it is deleted.
pub(super) fn without_table(family: &str, name: &str) -> String {
    format!("add table {family} {name}\ndelete table {family} {name}\n")
}

/// `rustguard-NAME`. An nft identifier must not contain `=` and `+`, but an interface name may.
pub(super) fn table_name(interface: &str) -> String {
    let mut name = String::from("rustguard-");
    for character in interface.chars() {
        match character {
            '=' => name.push_str("_3d"),
            '+' => name.push_str("_2b"),
            other => name.push(other),
        }
    }
    name
}
