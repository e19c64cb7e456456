//! The decision of a policy about two machines: allowed, refused, or allowed in part, and by which line.

use crate::{
    directory::{Directory, Machine},
    parse,
    policy::{Policy, Rule},
    rules::{Rules, Traffic},
};
use std::net::IpAddr;

/// The decision of a policy about two addresses and some traffic.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// This line allows all of it, or is the first of several that together do.
    Allowed(u32),
    /// These lines allow a part of it.
    Partly(Vec<u32>),
    /// No line allows any of it.
    Refused,
}

impl Policy {
    /// All rules with the addresses of these machines, for [`Rules::verdict`].
    pub fn all(&self, directory: &Directory) -> Rules {
        let rules = self.rules.iter().fold(Rules::builder(), |rules, rule| {
            let addresses = |items: &[_]| items.iter().flat_map(|item| directory.prefixes(item)).collect::<Vec<_>>();
            rules.allow(rule.line, addresses(&rule.who), addresses(&rule.whom), rule.traffic.clone())
        });
        rules.build()
    }

    /// The rules by which a machine may begin to talk to others.
    pub fn rules_from<'p>(&'p self, machine: &'p Machine) -> impl Iterator<Item = &'p Rule> {
        self.rules.iter().filter(|rule| rule.who.iter().any(|item| machine.is_named(item)))
    }

    /// The rules that allow traffic to a machine, or to the networks behind it.
    pub fn rules_to<'p>(&'p self, machine: &'p Machine) -> impl Iterator<Item = &'p Rule> {
        self.rules.iter().filter(|rule| rule.whom.iter().any(|item| machine.is_concerned(item)))
    }
}

impl Traffic {
    /// Reads `tcp/5432`, `icmp`, `udp/53,tcp/53`.
    ///
    /// # Errors
    /// An error text for people.
    pub fn parse(text: &str) -> Result<Self, String> {
        parse::traffic(text).map_err(|wrong| match &wrong.help {
            Some(help) => format!("{}; {help}", wrong.message),
            None => wrong.message.clone(),
        })
    }
}

impl Rules {
    /// The decision of the rules about traffic from one address to another.
    pub fn verdict(&self, from: IpAddr, to: IpAddr, traffic: &Traffic) -> Verdict {
        let rules: Vec<_> = self.between(from, to).collect();
        let mut lines = Vec::new();
        for (line, allowed) in &rules {
            if allowed.touches(traffic, from.is_ipv4()) {
                lines.push(*line);
            }
        }
        let together = rules.iter().map(|(_, allowed)| *allowed);
        match lines.first() {
            None => Verdict::Refused,
            Some(first) if traffic.is_within(together, from.is_ipv4()) => Verdict::Allowed(*first),
            Some(_) => Verdict::Partly(lines),
        }
    }
}
