//! Scripts for `nft`: a tunnel has its own tables, which are replaced or removed as a whole.

use super::link::is_v6;
use crate::gateway::Gateway;
use ipnet::IpNet;
use std::fmt::Write;

/// The nft commands for the guard of these default routes.
pub(super) fn guard(interface: &str, defaults: &[IpNet], mark: u32, addresses: &[IpNet]) -> String {
    defaults.iter().map(|net| guard_table(interface, is_v6(*net), mark, addresses)).collect()
}

/// The nft commands that remove a table of these families.
pub(super) fn without(name: &str, v4: bool, v6: bool) -> String {
    let families = [v4.then_some("ip"), v6.then_some("ip6")].into_iter().flatten();
    families.map(|family| without_table(family, name)).collect()
}

/// The nft commands for the guard of one family. They replace the contents of an existing table with that name.
fn guard_table(interface: &str, v6: bool, mark: u32, addresses: &[IpNet]) -> String {
    let family = if v6 { "ip6" } else { "ip" };
    let name = guard_name(interface);
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
fn without_table(family: &str, name: &str) -> String {
    format!("add table {family} {name}\ndelete table {family} {name}\n")
}

/// `rustguard-NAME`. An nft identifier must not contain `=` and `+`, but an interface name may.
pub(super) fn guard_name(interface: &str) -> String {
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

/// The nft commands for address translation in these families.
pub(super) fn nat(interface: &str, v4: bool, v6: bool, gateway: &Gateway) -> String {
    let families = [v4.then_some(false), v6.then_some(true)].into_iter().flatten();
    families.map(|v6| nat_table(interface, v6, gateway)).collect()
}

/// The nft commands for address translation in one family. They replace the contents of an existing table with that
/// name.
fn nat_table(interface: &str, v6: bool, gateway: &Gateway) -> String {
    let family = if v6 { "ip6" } else { "ip" };
    let name = nat_name(interface);
    let mut rules = String::new();
    for (pool, network) in gateway.pairs().filter(|(_, network)| is_v6(*network) == v6) {
        let to = if network.prefix_len() == 0 { String::new() } else { format!("{family} daddr {network} ") };
        // Packets from this host to itself with an address in the pool, for example to its own name server, use the
        // loopback interface.
        writeln!(rules, "        {family} saddr {pool} {to}oifname != {{ \"lo\", \"{interface}\" }} masquerade")
            .expect("writing to a string cannot fail");
    }
    format!(
        "{}table {family} {name} {{\n    chain postrouting {{\n        type nat hook postrouting priority 100;\n{rules}    }}\n}}\n",
        without_table(family, &name)
    )
}

/// No guard has such a name, with any name of the interface.
pub(super) fn nat_name(interface: &str) -> String {
    guard_name(interface).replacen('-', "_nat-", 1)
}
