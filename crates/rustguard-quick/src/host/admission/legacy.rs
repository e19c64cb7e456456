//! The admission check for the older iptables. The kernel keeps these rules beside those of nftables, and `nft` does
//! not show them.

use super::{Admission, MAX_RULES};
use crate::host::command;
use std::{collections::HashMap, fs};

/// The most chains that lead from one to the next. Without a bound, a list with a loop would have no end.
const MAX_DEPTH: usize = 64;

/// The programs that list the rules of each family, and the kernel's list of tables in use (x_tables.c).
const FAMILIES: [(&str, &str); 2] =
    [("iptables-legacy", "/proc/net/ip_tables_names"), ("ip6tables-legacy", "/proc/net/ip6_tables_names")];

/// The verdict of the INPUT chains of the older iptables on datagrams to this UDP port.
pub(super) async fn admission(port: u16) -> Admission {
    let mut unclear = false;
    for (program, tables) in FAMILIES {
        let tables = fs::read_to_string(tables).unwrap_or_default();
        if !tables.lines().any(|table| table == "filter") {
            continue;
        }
        let rules = match command::find_program(program) {
            Some(path) => command::output(&path, &["-S"]).await,
            None => None,
        };
        match rules.as_deref().map(|rules| judge(rules, port)) {
            Some(Some(true)) => {}
            Some(Some(false)) => return Admission::DroppedByIptables { program },
            Some(None) | None => unclear = true,
        }
    }
    if unclear { Admission::Unclear } else { Admission::Admitted }
}

/// Whether the datagram is accepted, by the output of `iptables-legacy -S`. `None` if this depends on rules that are
/// not understood.
fn judge(rules: &str, port: u16) -> Option<bool> {
    let mut chains: HashMap<&str, Vec<Vec<&str>>> = HashMap::new();
    let mut policy = true;
    for line in rules.lines() {
        let words: Vec<_> = line.split_whitespace().collect();
        match words[..] {
            ["-P", "INPUT", verdict] => policy = verdict == "ACCEPT",
            ["-A", chain, ref rule @ ..] => chains.entry(chain).or_default().push(rule.to_vec()),
            _ => {}
        }
    }
    let mut walk = Walk { chains, port, left: MAX_RULES, depth: 0 };
    match walk.chain("INPUT") {
        Verdict::Decided(accepted) => Some(accepted),
        Verdict::Undecided => Some(policy),
        Verdict::Unclear => None,
    }
}

struct Walk<'a> {
    chains: HashMap<&'a str, Vec<Vec<&'a str>>>,
    port: u16,
    /// How many more rules are looked at. The kernel allows no loop of chains, but chains that are reached many times.
    left: usize,
    /// The number of chains that led here.
    depth: usize,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Verdict {
    Decided(bool),
    Undecided,
    Unclear,
}

impl Walk<'_> {
    fn chain(&mut self, name: &str) -> Verdict {
        for rule in self.chains.get(name).cloned().unwrap_or_default() {
            let Some(left) = self.left.checked_sub(1) else { return Verdict::Unclear };
            self.left = left;
            let Some((target, is_goto)) = target(&rule) else { continue };
            let matches = matches(&rule, self.port);
            if matches == Some(false) {
                continue;
            }
            let verdict = match target {
                "ACCEPT" => Verdict::Decided(true),
                "DROP" | "REJECT" => Verdict::Decided(false),
                "RETURN" if matches.is_some() => return Verdict::Undecided,
                "LOG" | "NFLOG" | "ULOG" => Verdict::Undecided,
                chain if self.chains.contains_key(chain) && self.depth < MAX_DEPTH => {
                    self.depth += 1;
                    let verdict = self.chain(chain);
                    self.depth -= 1;
                    verdict
                }
                chain if self.chains.contains_key(chain) => Verdict::Unclear,
                // The name of a user's chain without rules, which decides nothing. Other targets change packets, or
                // decide in unknown ways.
                chain if chain.chars().any(char::is_lowercase) => Verdict::Undecided,
                _ => Verdict::Unclear,
            };
            match (verdict, matches) {
                (Verdict::Undecided, Some(_)) if is_goto => return Verdict::Undecided,
                (Verdict::Undecided, _) => {}
                (verdict, Some(_)) => return verdict,
                (_, None) => return Verdict::Unclear,
            }
        }
        Verdict::Undecided
    }
}

/// The target of a rule, and whether the rest of its chain is then skipped.
fn target<'a>(rule: &[&'a str]) -> Option<(&'a str, bool)> {
    let at = rule.iter().position(|word| matches!(*word, "-j" | "-g"))?;
    Some((rule.get(at + 1)?, rule[at] == "-g"))
}

/// Whether a new UDP datagram to the port, not from this host, fulfils the conditions of a rule. `None` if this is not
/// known.
fn matches(rule: &[&str], port: u16) -> Option<bool> {
    let mut words = rule.iter().copied();
    let mut known = true;
    while let Some(word) = words.next() {
        let holds = match word {
            "-j" | "-g" => break,
            "-m" | "--comment" => words.next().and(Some(true)),
            "-p" => words.next().map(|protocol| matches!(protocol, "udp" | "all")),
            "-i" => words.next().and_then(|interface| (interface == "lo").then_some(false)),
            "--state" | "--ctstate" => words.next().map(|states| states.split(',').any(|state| state == "NEW")),
            "--dport" | "--dports" => words.next().and_then(|ports| covers(ports, port)),
            "!" => {
                // Skips the negated condition.
                words.nth(1);
                None
            }
            // Another condition, such as an address or a limit.
            _ => None,
        };
        match holds {
            Some(true) => {}
            Some(false) => return Some(false),
            None => known = false,
        }
    }
    known.then_some(true)
}

/// Whether a list of ports and ranges has the port.
fn covers(ports: &str, port: u16) -> Option<bool> {
    let mut covered = false;
    for range in ports.split(',') {
        let (first, last) = range.split_once(':').unwrap_or((range, range));
        let (first, last): (u16, u16) = (first.parse().ok()?, last.parse().ok()?);
        covered |= (first..=last).contains(&port);
    }
    Some(covered)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn judged(rules: &[&str]) -> Option<bool> {
        judge(&rules.join("\n"), 51_820)
    }

    #[test]
    fn the_first_rule_that_is_about_the_datagram_decides_or_else_the_policy() {
        let (drop, accept) = ("-P INPUT DROP", "-P INPUT ACCEPT");
        assert_eq!(judged(&[]), Some(true));
        assert_eq!(judged(&[accept, "-P FORWARD DROP"]), Some(true));
        assert_eq!(judged(&[drop]), Some(false));
        for rule in [
            "-A INPUT -p udp -m udp --dport 51820 -j ACCEPT",
            "-A INPUT -p udp -m multiport --dports 53,51000:52000 -j ACCEPT",
            "-A INPUT -p udp -m conntrack --ctstate NEW,ESTABLISHED -j ACCEPT",
            "-A INPUT -p udp -m udp --dport 51820 -m comment --comment WireGuard -j ACCEPT",
        ] {
            assert_eq!(judged(&[drop, rule]), Some(true), "{rule}");
        }
        for rule in [
            "-A INPUT -i lo -j ACCEPT",
            "-A INPUT -p tcp -m tcp --dport 22 -j ACCEPT",
            "-A INPUT -p udp -m udp --dport 53 -j ACCEPT",
            "-A INPUT -m state --state RELATED,ESTABLISHED -j ACCEPT",
            "-A INPUT -j LOG",
            "-A OUTPUT -j ACCEPT",
        ] {
            assert_eq!(judged(&[drop, rule]), Some(false), "{rule}");
            assert_eq!(
                judged(&[accept, rule, "-A INPUT -p udp -j REJECT --reject-with icmp-port-unreachable"]),
                Some(false)
            );
        }
    }

    #[test]
    fn chains_are_followed() {
        let allow = "-A allowed -p udp -m udp --dport 51820 -j ACCEPT";
        let rules = ["-P INPUT DROP", "-N allowed", allow, "-A allowed -j RETURN", "-A INPUT -j allowed"];
        assert_eq!(judged(&rules), Some(true));
        assert_eq!(judged(&[&rules[..2], &rules[3..]].concat()), Some(false));
        assert_eq!(judged(&["-N empty", "-A INPUT -j empty", "-A INPUT -j DROP"]), Some(false));
        let endless = ["-A INPUT -j a", "-A a -j b", "-A a -j b", "-A b -j INPUT"];
        assert_eq!(judged(&endless), None, "no kernel has such rules");
    }

    #[test]
    fn what_is_not_understood_is_not_judged() {
        for rule in [
            "-A INPUT -s 192.0.2.0/24 -j ACCEPT",
            "-A INPUT ! -p tcp -j DROP",
            "-A INPUT -i eth0 -p udp -j DROP",
            "-A INPUT -p udp -m limit --limit 5/sec -j ACCEPT",
            "-A INPUT -j NFQUEUE --queue-num 0",
        ] {
            assert_eq!(judged(&["-P INPUT DROP", rule]), None, "{rule}");
        }
    }
}
