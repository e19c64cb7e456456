//! A policy: who may talk to whom, in lines.
//!
//! ```text
//! # What no line allows is refused.
//! group admins = laptop, desk, tag:ops
//! allow admins -> *
//! allow tag:dev -> tag:db, 10.1.0.0/16 tcp/5432
//! test phone -> db tcp/5432 refused
//! ```

use crate::{
    diagnostic::{Diagnostic, Severity, Span, similar},
    directory::Directory,
    parse,
    rules::{Rules, Traffic},
    verdict::Verdict,
};
use ipnet::IpNet;
use std::{collections::BTreeMap, fmt};

/// The longest policy, in bytes.
pub const MAX_POLICY: usize = 256 << 10;
/// The most rules of a policy.
pub const MAX_RULES: usize = 1_024;
/// The most tests of a policy.
pub const MAX_TESTS: usize = 1_024;
/// The most groups of a policy.
pub const MAX_GROUPS: usize = 256;
/// The most machines, tags and prefixes at one end of a rule, or in a group.
pub const MAX_ITEMS: usize = 1_024;
/// The most ports and protocols of a rule.
pub const MAX_TRAFFIC: usize = 64;
/// The most pairs of addresses of one test.
const MAX_PAIRS: usize = 1 << 20;

/// Whom a line means.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Item {
    /// `*`: every address.
    All,
    /// A machine, by its name.
    Machine(String),
    /// All machines with this tag.
    Tag(String),
    /// The addresses of a prefix, or one address.
    Prefix(IpNet),
}

/// One rule: `allow WHO -> WHOM TRAFFIC`. Groups are replaced by what is in them.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Rule {
    /// The number of its line, from 1.
    pub line: u32,
    /// Who may begin.
    pub who: Vec<Item>,
    /// Who is talked to.
    pub whom: Vec<Item>,
    /// What may be said.
    pub traffic: Traffic,
}

/// One test: `test A -> B TRAFFIC allowed`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Test {
    pub(crate) span: Span,
    pub(crate) from: Vec<Item>,
    pub(crate) to: Vec<Item>,
    pub(crate) traffic: Traffic,
    pub(crate) allowed: bool,
}

/// Who may talk to whom.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Policy {
    pub(crate) rules: Vec<Rule>,
    pub(crate) tests: Vec<Test>,
    pub(crate) groups: BTreeMap<String, Vec<Item>>,
    /// Where names, tags and groups stand, for warnings about those that nobody has.
    pub(crate) mentions: Vec<(Item, Span)>,
    pub(crate) named_groups: Vec<(String, Span)>,
}

impl Policy {
    /// Reads a policy. It is there if there is no error. The diagnostics are all mistakes that can be seen without knowing the machines.
    pub fn parse(text: &str) -> (Option<Self>, Vec<Diagnostic>) {
        let (policy, diagnostics) = parse::parse(text);
        let wrong = diagnostics.iter().any(|diagnostic| diagnostic.severity == Severity::Error);
        (Some(policy).filter(|_| !wrong), diagnostics)
    }

    /// Compares the policy with the machines that there are. Errors: tests that do not hold. Warnings: names and tags that nobody has, and tests
    /// that say nothing because of them. Such a name allows nothing: its machine may not have joined yet.
    pub fn check(&self, directory: &Directory) -> Vec<Diagnostic> {
        let mut diagnostics = Vec::new();
        for (item, span) in &self.mentions {
            let (message, meant) = match item {
                Item::Machine(name) if directory.machine(name).is_none() => {
                    let known = directory.names().chain(self.groups.keys().map(String::as_str));
                    (format!("no machine and no group is called {name}"), similar(name, known).map(str::to_owned))
                }
                Item::Tag(tag) if !directory.tags().any(|known| known == tag) => {
                    let meant = similar(tag, directory.tags()).map(|tag| format!("tag:{tag}"));
                    (format!("no machine has the tag {tag}"), meant)
                }
                _ => continue,
            };
            let help = meant.map(|meant| format!("there is {meant}"));
            diagnostics.push(Diagnostic::warning(span.clone(), message).help(help));
        }
        for (group, span) in &self.named_groups {
            if directory.machine(group).is_some() {
                let message = format!("{group} is a group, and a machine has this name as well: the group is meant");
                let help = format!("give the machine another name: rustguard peer rename {group} NAME");
                diagnostics.push(Diagnostic::warning(span.clone(), message).help(help));
            }
        }
        let rules = self.all(directory);
        diagnostics.extend(self.tests.iter().filter_map(|test| failure(test, directory, &rules)));
        diagnostics.sort_by_key(|diagnostic| diagnostic.span.bytes.start);
        diagnostics
    }

    /// The rules, in the order of the file.
    pub fn rules(&self) -> &[Rule] {
        &self.rules
    }

    /// Whether everybody may say everything to everybody.
    pub fn allows_everything(&self) -> bool {
        let is_all = |items: &[Item]| items.contains(&Item::All);
        self.rules.iter().any(|rule| is_all(&rule.who) && is_all(&rule.whom) && rule.traffic == Traffic::any())
    }

    /// How many tests it has.
    pub fn tests(&self) -> usize {
        self.tests.len()
    }
}

/// Why a test does not hold, or cannot be made.
fn failure(test: &Test, directory: &Directory, rules: &Rules) -> Option<Diagnostic> {
    let ends = |items: &[Item]| items.iter().flat_map(|item| ends(item, directory)).collect::<Vec<_>>();
    let (froms, tos) = (ends(&test.from), ends(&test.to));
    if froms.len().saturating_mul(tos.len()) > MAX_PAIRS {
        let message = format!("this test is about more than {MAX_PAIRS} pairs of addresses");
        return Some(Diagnostic::error(test.span.clone(), message).help("name fewer machines".to_owned()));
    }
    let mut tried = false;
    for (from, from_name) in &froms {
        for (to, to_name) in &tos {
            if from.is_ipv4() != to.is_ipv4() || from == to {
                continue;
            }
            tried = true;
            let what = match (test.allowed, rules.verdict(*from, *to, &test.traffic)) {
                (true, Verdict::Allowed(_)) | (false, Verdict::Refused) => continue,
                (true, Verdict::Refused) => "no line allows it".to_owned(),
                (true, Verdict::Partly(lines)) => format!("line {} allows only a part of it", lines[0]),
                (false, Verdict::Allowed(line)) => format!("line {line} allows it"),
                (false, Verdict::Partly(lines)) => format!("line {} allows a part of it", lines[0]),
            };
            let message = format!("this test fails for {from_name} -> {to_name}: {what}");
            return Some(Diagnostic::error(test.span.clone(), message));
        }
    }
    (!tried).then(|| {
        let message = "nothing is tested: there are no two such machines with addresses of one version of IP";
        Diagnostic::warning(test.span.clone(), message)
    })
}

/// The addresses that a test means, with their names for people.
fn ends(item: &Item, directory: &Directory) -> Vec<(std::net::IpAddr, String)> {
    match item {
        Item::Prefix(prefix) => vec![(prefix.addr(), prefix.addr().to_string())],
        item => {
            let of = |machine: &crate::directory::Machine| {
                let name = machine.name.clone();
                machine.addresses.iter().map(move |address| (*address, name.clone())).collect::<Vec<_>>()
            };
            directory.named(item).flat_map(of).collect()
        }
    }
}

impl fmt::Display for Item {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::All => f.write_str("*"),
            Self::Machine(name) => f.write_str(name),
            Self::Tag(tag) => write!(f, "tag:{tag}"),
            Self::Prefix(prefix) if prefix.prefix_len() == prefix.max_prefix_len() => write!(f, "{}", prefix.addr()),
            Self::Prefix(prefix) => write!(f, "{prefix}"),
        }
    }
}

/// As the language writes it, without groups.
impl fmt::Display for Rule {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("allow ")?;
        put_items(f, &self.who)?;
        f.write_str(" -> ")?;
        put_items(f, &self.whom)?;
        if self.traffic != Traffic::any() {
            write!(f, " {}", self.traffic)?;
        }
        Ok(())
    }
}

fn put_items(f: &mut fmt::Formatter<'_>, items: &[Item]) -> fmt::Result {
    for (at, item) in items.iter().enumerate() {
        write!(f, "{}{item}", if at > 0 { ", " } else { "" })?;
    }
    Ok(())
}

#[cfg(test)]
mod tests;
