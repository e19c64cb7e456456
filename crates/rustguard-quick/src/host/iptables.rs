//! The guard of a default route in rules of iptables, for machines without `nft`. The rules are wg-quick's, each with a
//! comment that identifies it.

use super::{
    command::{self, find_program},
    error::HostError,
    link::is_v6,
};
use ipnet::IpNet;
use std::{fmt::Write as _, path::PathBuf};

/// The programs of one family.
struct Programs {
    save: PathBuf,
    restore: PathBuf,
}

fn programs(v6: bool) -> Option<Programs> {
    let name = if v6 { "ip6tables" } else { "iptables" };
    let find = |what: &str| find_program(&format!("{name}-{what}"));
    Some(Programs { save: find("save")?, restore: find("restore")? })
}

/// Options of iptables-restore(8): it keeps the rules of others, and waits five seconds for another program that
/// changes rules.
const RESTORE: [&str; 3] = ["-n", "-w", "5"];

/// Whether the guard of an interface can be made for these families. For iptables, a name that ends in `+` is a
/// wildcard for many interfaces.
pub(super) fn can_guard(interface: &str, v4: bool, v6: bool) -> bool {
    let is_there = |(wanted, v6): (bool, bool)| !wanted || programs(v6).is_some();
    !interface.ends_with('+') && [(v4, false), (v6, true)].into_iter().all(is_there)
}

/// Replaces the existing guard by the guard of these default routes.
pub(super) async fn guard(
    interface: &str,
    defaults: &[IpNet],
    mark: u32,
    addresses: &[IpNet],
) -> Result<(), HostError> {
    for v6 in defaults.iter().map(|net| is_v6(*net)) {
        remove(interface, !v6, v6).await?;
        let Some(Programs { restore, .. }) = programs(v6) else { continue };
        command::run(&restore, &RESTORE, &script(interface, v6, mark, addresses)).await?;
    }
    Ok(())
}

/// Removes the guard of an interface for these families, if it is there.
pub(super) async fn remove(interface: &str, v4: bool, v6: bool) -> Result<(), HostError> {
    for v6 in [(v4, false), (v6, true)].into_iter().filter_map(|(wanted, v6)| wanted.then_some(v6)) {
        let Some(Programs { save, restore }) = programs(v6) else { continue };
        let rules = command::output(&save, &[]).await.unwrap_or_default();
        let without = without(&rules, interface);
        if !without.is_empty() {
            command::run(&restore, &RESTORE, &without).await?;
        }
    }
    Ok(())
}

/// The comment that identifies the rules of an interface. The names of interfaces need no escape inside quotes.
fn comment(interface: &str) -> String {
    format!("--comment \"rustguard {interface}\"")
}

/// The rules of one family, for iptables-restore(8).
fn script(interface: &str, v6: bool, mark: u32, addresses: &[IpNet]) -> String {
    let comment = comment(interface);
    let mut script = String::from("*raw\n");
    for address in addresses.iter().filter(|address| is_v6(**address) == v6) {
        writeln!(
            script,
            "-I PREROUTING ! -i {interface} -d {} -m addrtype ! --src-type LOCAL -m comment {comment} -j DROP",
            address.addr()
        )
        .expect("writing to a string cannot fail");
    }
    write!(
        script,
        "COMMIT\n*mangle\n\
         -I POSTROUTING -p udp -m mark --mark {mark} -m comment {comment} -j CONNMARK --save-mark\n\
         -I PREROUTING -p udp -m comment {comment} -j CONNMARK --restore-mark\n\
         COMMIT\n"
    )
    .expect("writing to a string cannot fail");
    script
}

/// Commands that remove the rules of an interface, from the output of iptables-save(8). Empty if it has none.
fn without(rules: &str, interface: &str) -> String {
    let comment = comment(interface);
    let mut script = String::new();
    let mut table = "";
    for line in rules.lines() {
        if line.starts_with('*') {
            table = line;
        } else if let Some(rule) = line.strip_prefix("-A ").filter(|rule| rule.contains(&comment)) {
            writeln!(script, "{table}\n-D {rule}\nCOMMIT").expect("writing to a string cannot fail");
        }
    }
    script
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_rules_of_the_interface_are_removed() {
        let rules = "*raw\n:PREROUTING ACCEPT [0:0]\n\
            -A PREROUTING ! -i wg0 -d 10.0.0.2/32 -m addrtype ! --src-type LOCAL -m comment --comment \"rustguard wg0\" -j DROP\n\
            -A PREROUTING -m comment --comment \"rustguard wg01\" -j DROP\nCOMMIT\n\
            *mangle\n-A PREROUTING -p udp -m comment --comment \"rustguard wg0\" -j CONNMARK --restore-mark\n\
            -A PREROUTING -p udp -j ACCEPT\nCOMMIT\n";
        let removed = without(rules, "wg0");
        assert_eq!(removed.matches("-D ").count(), 2, "{removed}");
        assert!(removed.starts_with("*raw\n-D PREROUTING ! -i wg0 ") && !removed.contains("wg01"), "{removed}");
        assert!(removed.contains("*mangle\n-D PREROUTING -p udp -m comment"), "{removed}");
        assert_eq!(without(rules, "wg1"), "");
    }
}
