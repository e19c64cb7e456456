//! The nftables guard that goes with a default route through the tunnel.
//!
//! Two things follow from routing everything by mark. The tunnel's addresses have to be safe from packets that arrive
//! on another interface and claim to be for them (CVE-2019-14899: an attacker on the local network probes connections
//! inside the tunnel), and the answers to marked packets need the mark back for the reverse path filter. Rules as
//! wg-quick's, in a table of the tunnel's own. Where the default route is learned, they come and go with it: a gateway that has
//! none of its own in the tunnel is reached by its network at the tunnel's address as well.

use super::{
    command::{self, find_program},
    error::{HostError, Warning},
    link::is_v6,
    record::Journal,
    step::Step,
};
use ipnet::IpNet;
use std::fmt::Write;

/// Puts the guard up for the families of `defaults`. Without `nft` on this machine there is none, and a warning says
/// so.
pub(super) async fn add(
    journal: &mut Journal,
    defaults: &[IpNet],
    mark: u32,
    addresses: &[IpNet],
) -> Result<Option<Warning>, HostError> {
    let warning = foresee(journal, defaults)?;
    put_up(journal.interface(), defaults, mark, addresses).await?;
    Ok(warning)
}

/// Notes the guard that may be [put up](put_up) for these families at any time from now on, so that it goes with the rest.
pub(super) fn foresee(journal: &mut Journal, defaults: &[IpNet]) -> Result<Option<Warning>, HostError> {
    if defaults.is_empty() {
        return Ok(None);
    }
    if find_program("nft").is_none() {
        return Ok(Some(Warning::NoNft));
    }
    let step = Step::Guard { v4: defaults.iter().any(|net| !is_v6(*net)), v6: defaults.iter().any(|net| is_v6(*net)) };
    journal.record(step)?;
    Ok(None)
}

/// Puts a guard up that is foreseen; without `nft`, there is none.
pub(super) async fn put_up(
    interface: &str,
    defaults: &[IpNet],
    mark: u32,
    addresses: &[IpNet],
) -> Result<(), HostError> {
    let Some(nft) = find_program("nft") else { return Ok(()) };
    let tables = defaults.iter().map(|net| table(interface, is_v6(*net), mark, addresses));
    command::run(&nft, &["-f", "-"], &tables.collect::<String>()).await
}

/// Takes the guard of an interface down, if it is there.
pub(super) async fn remove(interface: &str, v4: bool, v6: bool) -> Result<(), HostError> {
    // Without nft now, there was no guard, or it went away with the package; the kernel has no other interface for it
    // here.
    let Some(nft) = find_program("nft") else { return Ok(()) };
    let mut script = String::new();
    for family in [v4.then_some("ip"), v6.then_some("ip6")].into_iter().flatten() {
        script.push_str(&without_table(family, &table_name(interface)));
    }
    command::run(&nft, &["-f", "-"], &script).await
}

/// The nft commands for one family, replacing whatever a table of that name held.
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

/// nft has no "delete if it exists" before 1.0.6; adding a table that exists changes nothing, and then there is one
/// to delete.
fn without_table(family: &str, name: &str) -> String {
    format!("add table {family} {name}\ndelete table {family} {name}\n")
}

/// `rustguard-NAME`. An nft identifier has no `=` and no `+`, which an interface name may contain.
fn table_name(interface: &str) -> String {
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
