//! A sheet: the lines of a policy that concern one member, in the form that is sent to it.
//!
//! ```text
//! rustguard policy 1
//! 4 allow tag:dev -> tag:db tcp/5432
//! ```
//!
//! The number is the line number in the policy. Names and tags refer to the roster, from which the member derives the
//! addresses. So a machine that joins does not change any other machine's sheet.

use crate::{
    directory::{Directory, Machine, everything},
    parse,
    policy::{Item, MAX_RULES, Policy, Rule},
    rules::Rules,
};
use ipnet::IpNet;
use std::{collections::HashMap, fmt::Write as _, sync::Arc};

/// The longest sheet, in bytes.
pub const MAX_SHEET: usize = 128 << 10;

const FIRST: &str = "rustguard policy 1\n";

/// The lines of a policy that concern one member.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Sheet {
    rules: Vec<Rule>,
}

impl Sheet {
    /// The sheet of a server: all rules.
    pub(crate) fn of_all(policy: &Policy) -> Self {
        Self { rules: policy.rules.clone() }
    }

    /// The lines that allow traffic to this machine, or to the networks behind it. Their right sides are reduced to the
    /// items that concern it. A server gets all lines, because it enforces the policy for its stock clients, including
    /// the traffic that they send.
    pub fn of(policy: &Policy, machine: &Machine) -> Self {
        if machine.server {
            return Self::of_all(policy);
        }
        let concerns = |rule: &Rule| {
            let whom: Vec<_> = rule.whom.iter().filter(|item| machine.is_concerned(item)).cloned().collect();
            (!whom.is_empty()).then(|| Rule { whom, ..rule.clone() })
        };
        Self { rules: policy.rules.iter().filter_map(concerns).collect() }
    }

    /// Whether it allows everything from everybody.
    pub fn allows_everything(&self) -> bool {
        let policy = Policy { rules: self.rules.clone(), ..Policy::default() };
        policy.allows_everything()
    }

    /// Whether it is a server's sheet under that policy: the same rules in the same order, regardless of line numbers.
    pub fn is_all_of(&self, policy: &Policy) -> bool {
        let said = |rule: &Rule| Rule { line: 0, ..rule.clone() };
        self.rules.iter().map(said).eq(policy.rules.iter().map(said))
    }

    /// The form that is sent.
    pub fn to_bytes(&self) -> Vec<u8> {
        let mut text = FIRST.to_owned();
        for rule in &self.rules {
            // Writing to a text cannot fail.
            let _ = writeln!(text, "{} {rule}", rule.line);
        }
        text.into_bytes()
    }

    /// Reads a sheet. `None` for text that [`to_bytes`](Self::to_bytes) does not produce: a later version may write
    /// more, and a member that cannot read its sheet has to refuse everything.
    pub fn from_bytes(text: &[u8]) -> Option<Self> {
        let text = std::str::from_utf8(text).ok().filter(|text| text.len() <= MAX_SHEET)?;
        let lines = text.strip_prefix(FIRST)?;
        let rule = |line: &str| {
            let (number, rule) = line.split_once(' ')?;
            parse::rule(rule, number.parse().ok()?)
        };
        let rules = lines.lines().take(MAX_RULES + 1).map(rule).collect::<Option<Vec<_>>>()?;
        let sheet = Self { rules };
        (sheet.rules.len() <= MAX_RULES && sheet.to_bytes() == text.as_bytes()).then_some(sheet)
    }

    /// The rules that the member with this name has to enforce. If it is not in the directory, they allow nothing.
    pub fn rules(&self, directory: &Directory, name: &str) -> Rules {
        let Some(machine) = directory.machine(name) else { return Rules::default() };
        let own: Vec<IpNet> = machine.responsible().collect();
        let rules = self.rules.iter().fold(Rules::builder(), |rules, rule| {
            let who = rule.who.iter().flat_map(|item| directory.prefixes(item));
            let whom = rule.whom.iter().flat_map(|item| match item {
                // This includes multicast addresses.
                Item::All => everything().into(),
                item if machine.server => directory.prefixes(item),
                item => common(&directory.prefixes(item), &own),
            });
            rules.allow(rule.line, who, whom.collect::<Vec<_>>(), rule.traffic.clone())
        });
        rules.build()
    }
}

/// Makes the sheets of many machines. Machines concerned by the same lines, such as machines with the same tags, share
/// one sheet.
#[derive(Debug)]
pub struct Sheets<'p> {
    policy: &'p Policy,
    /// The sheets by the rules, and the items of their right sides, that concern a machine.
    known: HashMap<Vec<(u16, u16)>, Arc<[u8]>>,
}

impl<'p> Sheets<'p> {
    /// Makes the sheets of this policy.
    pub fn new(policy: &'p Policy) -> Self {
        Self { policy, known: HashMap::new() }
    }

    /// The sheet of a machine, in the form that is sent.
    pub fn of(&mut self, machine: &Machine) -> Arc<[u8]> {
        let mut concern = Vec::new();
        for (rule, at) in self.policy.rules.iter().zip(0..) {
            let items = rule.whom.iter().zip(0..);
            concern
                .extend(items.filter(|(item, _)| machine.server || machine.is_concerned(item)).map(|(_, of)| (at, of)));
        }
        let policy = self.policy;
        self.known.entry(concern).or_insert_with(|| Sheet::of(policy, machine).to_bytes().into()).clone()
    }

    /// All sheets that were made.
    pub fn into_all(self) -> impl Iterator<Item = Arc<[u8]>> {
        self.known.into_values()
    }
}

/// The addresses that are in both lists.
fn common(one: &[IpNet], other: &[IpNet]) -> Vec<IpNet> {
    let both = |a: &IpNet, b: &IpNet| {
        if a.contains(b) {
            Some(*b)
        } else if b.contains(a) {
            Some(*a)
        } else {
            None
        }
    };
    one.iter().flat_map(|a| other.iter().filter_map(move |b| both(a, b))).collect()
}

impl Machine {
    /// The addresses that it has, and the prefixes behind it.
    fn responsible(&self) -> impl Iterator<Item = IpNet> {
        self.addresses.iter().map(|address| (*address).into()).chain(self.prefixes.iter().copied())
    }

    /// Whether an item refers to this machine.
    pub(crate) fn is_named(&self, item: &Item) -> bool {
        match item {
            Item::All => true,
            Item::Machine(name) => self.name == *name,
            Item::Tag(tag) => self.tags.contains(tag),
            Item::Prefix(prefix) => self.addresses.iter().any(|address| prefix.contains(address)),
        }
    }

    /// Whether an item refers to this machine, or to networks behind it.
    pub(crate) fn is_concerned(&self, item: &Item) -> bool {
        let overlaps = |own: IpNet, prefix: &IpNet| own.contains(prefix) || prefix.contains(&own);
        self.is_named(item) || matches!(item, Item::Prefix(net) if self.responsible().any(|own| overlaps(own, net)))
    }
}
