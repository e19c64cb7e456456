//! A policy: which machines may talk to which others, in lines.
//!
//! ```text
//! # What no line allows is refused.
//! group admins = laptop, desk, tag:ops
//! allow admins -> *
//! allow tag:dev -> tag:db, 10.1.0.0/16 tcp/5432
//! test phone -> db tcp/5432 refused
//! ```

use crate::{diagnostic::Span, rules::Traffic};
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

/// One item at an end of a line. It stands for machines or addresses.
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

/// One rule: `allow WHO -> WHOM TRAFFIC`. Groups are replaced by their contents.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Rule {
    /// The number of its line, from 1.
    pub line: u32,
    /// The ends that may begin.
    pub who: Vec<Item>,
    /// The ends that they may talk to.
    pub whom: Vec<Item>,
    /// The traffic that is allowed.
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

/// A policy that was read.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Policy {
    pub(crate) rules: Vec<Rule>,
    pub(crate) tests: Vec<Test>,
    pub(crate) groups: BTreeMap<String, Vec<Item>>,
    /// The places of names, tags and groups, for warnings about unknown ones.
    pub(crate) mentions: Vec<(Item, Span)>,
    pub(crate) named_groups: Vec<(String, Span)>,
}

impl Policy {
    /// The rules, in the order of the file.
    pub fn rules(&self) -> &[Rule] {
        &self.rules
    }

    /// Whether everything is allowed between everybody.
    pub fn allows_everything(&self) -> bool {
        let is_all = |items: &[Item]| items.contains(&Item::All);
        self.rules.iter().any(|rule| is_all(&rule.who) && is_all(&rule.whom) && rule.traffic == Traffic::any())
    }

    /// How many tests it has.
    pub fn tests(&self) -> usize {
        self.tests.len()
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

/// In the policy language, without groups.
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
