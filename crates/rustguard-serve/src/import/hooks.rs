//! Finds the commands in a wg-quick server's hooks whose work `serve` does itself: address translation, and isolation
//! of clients. The user is told of the other commands.

use ipnet::{IpNet, Ipv4Net, Ipv6Net};
use std::{
    collections::BTreeSet,
    net::{Ipv4Addr, Ipv6Addr},
};

/// The effects of hooks.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct Hooks {
    /// Clients reach these networks with an address of the server.
    pub(crate) translated: BTreeSet<IpNet>,
    /// Clients cannot reach each other.
    pub(crate) isolate: bool,
    /// The commands that have no equivalent, as they are in the file.
    pub(crate) others: Vec<String>,
}

/// Reads the commands of PreUp and PostUp.
pub(crate) fn read<'a>(hooks: impl Iterator<Item = &'a str>, interface: &str) -> Hooks {
    let mut found = Hooks::default();
    for command in hooks.flat_map(commands) {
        let words: Vec<_> = command.split_whitespace().map(|word| word.trim_matches(['\'', '"'])).collect();
        if let Some(networks) = translation(&words) {
            found.translated.extend(networks);
        } else if is_isolation(&words, interface) {
            found.isolate = true;
        } else if !is_relay(&words, interface)
            && !is_forwarding(&words)
            && !found.others.iter().any(|other| other == command)
        {
            found.others.push(command.to_owned());
        }
    }
    found
}

/// The single commands of a hook.
fn commands(hook: &str) -> impl Iterator<Item = &str> {
    hook.split(';').flat_map(|part| part.split("&&")).map(str::trim).filter(|command| !command.is_empty())
}

/// The networks that are reached with the server's address, if the command translates addresses.
fn translation(words: &[&str]) -> Option<Vec<IpNet>> {
    let has = |word: &str| words.iter().any(|other| other.eq_ignore_ascii_case(word));
    // The other commands undo address translation.
    if !has("masquerade")
        || words.contains(&"-D")
        || words.contains(&"--delete")
        || words.iter().any(|word| word.starts_with("--remove"))
    {
        return None;
    }
    let v6 = has("ip6tables") || has("ip6") || has("family=ipv6");
    let both = has("inet") || (words.iter().any(|word| word.starts_with("--add-masquerade")) && !v6);
    // A destination that is not the default route: `iptables -d 192.168.1.0/24`.
    let place = words.iter().position(|word| matches!(*word, "-d" | "--destination" | "daddr"));
    let negated = place.is_some_and(|at| at.checked_sub(1).is_some_and(|at| words[at] == "!"));
    let to = place.filter(|_| !negated).and_then(|at| words.get(at + 1)?.parse::<IpNet>().ok());
    if let Some(to) = to {
        return Some(vec![to.trunc()]);
    }
    let v4_route = IpNet::V4(Ipv4Net::new_assert(Ipv4Addr::UNSPECIFIED, 0));
    let v6_route = IpNet::V6(Ipv6Net::new_assert(Ipv6Addr::UNSPECIFIED, 0));
    Some(match (v6, both) {
        (_, true) => vec![v4_route, v6_route],
        (true, false) => vec![v6_route],
        (false, false) => vec![v4_route],
    })
}

/// Whether the command is about packets from the interface into it.
fn inside(words: &[&str], interface: &str) -> bool {
    let is_own = |option: &str, long: &str| {
        words.windows(2).any(|pair| (pair[0] == option || pair[0] == long) && (pair[1] == "%i" || pair[1] == interface))
    };
    is_own("-i", "--in-interface") && is_own("-o", "--out-interface")
}

/// Whether the command drops packets between clients.
fn is_isolation(words: &[&str], interface: &str) -> bool {
    inside(words, interface) && words.iter().any(|word| matches!(*word, "DROP" | "REJECT"))
}

/// Whether the command lets packets between clients pass, which `serve` does.
fn is_relay(words: &[&str], interface: &str) -> bool {
    inside(words, interface) && words.contains(&"ACCEPT")
}

/// Whether the command switches forwarding on, or is one of the usual rules that let forwarded packets pass. `serve`
/// switches forwarding on for address translation, and reports at each start what blocks packets.
fn is_forwarding(words: &[&str]) -> bool {
    let rule =
        words.iter().any(|word| word.ends_with("tables")) && words.contains(&"FORWARD") && words.contains(&"ACCEPT");
    let switch = words.first() == Some(&"sysctl") && words.iter().any(|word| word.contains("forward"));
    rule || switch || (words.first() == Some(&"ufw") && words.get(1) == Some(&"route"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn nets(hooks: &Hooks) -> Vec<String> {
        hooks.translated.iter().map(ToString::to_string).collect()
    }

    #[test]
    fn address_translation_is_found_with_its_networks() {
        for (hook, expected) in [
            (
                "iptables -A FORWARD -i %i -j ACCEPT; iptables -t nat -A POSTROUTING -o eth0 -j MASQUERADE",
                &["0.0.0.0/0"][..],
            ),
            ("ip6tables -t nat -A POSTROUTING -o eth0 -j MASQUERADE", &["::/0"]),
            ("iptables -t nat -A POSTROUTING -s 10.8.0.0/24 -d 192.168.1.0/24 -j MASQUERADE", &["192.168.1.0/24"]),
            (
                "firewall-cmd --add-port 51820/udp && firewall-cmd --add-rich-rule='rule family=ipv4 source address=10.66.66.0/24 masquerade' && firewall-cmd --add-rich-rule='rule family=ipv6 source address=fd42::/24 masquerade'",
                &["0.0.0.0/0", "::/0"],
            ),
            ("nft add rule ip nat postrouting oifname eth0 masquerade", &["0.0.0.0/0"]),
            ("nft add rule inet nat postrouting oifname eth0 masquerade", &["0.0.0.0/0", "::/0"]),
            ("iptables -t nat -A POSTROUTING ! -d 10.8.0.0/24 -j MASQUERADE", &["0.0.0.0/0"]),
            ("iptables -t nat -D POSTROUTING -o eth0 -j MASQUERADE", &[]),
        ] {
            assert_eq!(nets(&read([hook].into_iter(), "wg0")), expected, "{hook}");
        }
    }

    #[test]
    fn clients_that_are_kept_apart_stay_so() {
        assert!(read(["iptables -I FORWARD -i wg0 -o wg0 -j DROP"].into_iter(), "wg0").isolate);
        assert!(read(["iptables -I FORWARD -i %i -o %i -j REJECT"].into_iter(), "wg0").isolate);
        for not in ["iptables -I FORWARD -i wg0 -o eth0 -j DROP", "iptables -A FORWARD -i %i -o %i -j ACCEPT"] {
            assert!(!read([not].into_iter(), "wg0").isolate, "{not}");
        }
    }

    #[test]
    fn the_rest_is_named_once() {
        let hooks = [
            "iptables -I INPUT -p udp --dport 51820 -j ACCEPT; logger up",
            "logger up",
            "ip route add 10.0.0.0/8 dev %i",
            "iptables -I FORWARD -i eth0 -o wg0 -j ACCEPT",
            "sysctl -w net.ipv4.ip_forward=1",
            "ufw route allow in on wg0 out on eth0",
            ";;",
        ];
        let found = read(hooks.into_iter(), "wg0");
        assert_eq!(
            found.others,
            ["iptables -I INPUT -p udp --dport 51820 -j ACCEPT", "logger up", "ip route add 10.0.0.0/8 dev %i"]
        );
        // A drop is never taken for a usual rule.
        let drop = "iptables -I FORWARD -i wg0 -o eth0 -j DROP";
        assert_eq!(read([drop].into_iter(), "wg0").others, [drop]);
    }
}
