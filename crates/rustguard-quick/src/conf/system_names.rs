//! Names for numbers on this machine, which `ip` and `wg` accept in place of the numbers.

use std::{fs, iter, path::PathBuf};

/// The files of iproute2 with names of routing tables, in the order of their use. Each also has a folder with more such
/// files.
const TABLES: [&str; 2] = ["/etc/iproute2/rt_tables", "/usr/share/iproute2/rt_tables"];

/// The number of a routing table with this name.
pub(super) fn table(name: &str) -> Option<u32> {
    let in_folder = |file: &str| {
        let entries = fs::read_dir(format!("{file}.d")).into_iter().flatten().flatten();
        let mut paths: Vec<_> = entries.map(|entry| entry.path()).collect();
        paths.retain(|path| path.extension().is_some_and(|extension| extension == "conf"));
        paths.sort();
        paths
    };
    let files = TABLES.iter().flat_map(|file| iter::once(PathBuf::from(file)).chain(in_folder(file)));
    files.filter_map(|file| fs::read_to_string(file).ok()).find_map(|text| table_in(&text, name))
}

/// The number of a table in a file of names: `200 vpn` (ip-route(8)).
fn table_in(text: &str, name: &str) -> Option<u32> {
    text.lines().find_map(|line| {
        let mut words = line.split('#').next()?.split_whitespace();
        let number = unsigned(words.next()?)?;
        (words.next()? == name && number > 0).then_some(number)
    })
}

/// The UDP port of a service with this name.
pub(super) fn udp_service(name: &str) -> Option<u16> {
    service_in(&fs::read_to_string("/etc/services").ok()?, name)
}

/// The port of a service in a file of services: `domain 53/udp alias` (services(5)).
fn service_in(text: &str, name: &str) -> Option<u16> {
    text.lines().find_map(|line| {
        let mut words = line.split('#').next()?.split_whitespace();
        let (first, port) = (words.next()?, words.next()?.strip_suffix("/udp")?.parse().ok()?);
        (iter::once(first).chain(words).any(|word| word == name) && port > 0).then_some(port)
    })
}

/// A number as wg accepts it, decimal or hexadecimal after `0x`.
pub(super) fn unsigned(text: &str) -> Option<u32> {
    // The parsers of `u32` accept a sign; wg does not.
    if text.starts_with(['+', '-']) {
        return None;
    }
    match text.strip_prefix("0x").or_else(|| text.strip_prefix("0X")) {
        Some(hex) if !hex.starts_with(['+', '-']) => u32::from_str_radix(hex, 16).ok(),
        Some(_) => None,
        None => text.parse().ok(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_service_has_a_port_by_its_name_or_another_one() {
        let text =
            "# comment\ndomain\t53/tcp\ndomain\t\t53/udp # name\nipsec-nat-t 4500/udp ike-nat\nbroken\nzero 0/udp\n";
        assert_eq!(service_in(text, "domain"), Some(53));
        assert_eq!(service_in(text, "ike-nat"), Some(4_500));
        for name in ["name", "broken", "zero", "", "53"] {
            assert_eq!(service_in(text, name), None, "{name}");
        }
    }

    #[test]
    fn a_table_has_a_number_by_its_name() {
        let text = "#\n255 local\n0x65 hex\n200 vpn # here\n0 unspec\n";
        assert_eq!(
            (table_in(text, "vpn"), table_in(text, "hex"), table_in(text, "unspec")),
            (Some(200), Some(101), None)
        );
    }
}
