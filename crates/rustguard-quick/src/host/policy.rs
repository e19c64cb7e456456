//! A default route through the tunnel: a separate routing table and the policy rules that select it.
//!
//! A plain default route into the tunnel would also capture the tunnel's own encrypted packets. Therefore the route is
//! in a separate table T. The tunnel's sockets set the mark T on their packets, and two rules before the existing ones
//! select the table:
//!
//! ```text
//! P      from all lookup main suppress_prefixlength 0     routes of the main table, except default routes
//! P + 1  not from all fwmark T lookup T                   all other packets without the tunnel's mark
//! ```
//!
//! **Several such tunnels.** The rules of a second tunnel precede the rules of the first. The second tunnel's encrypted
//! packets are therefore routed through the first: each tunnel uses the default route that existed when it started.
//! With only these two rules there would be a loop. The first tunnel's packets have a mark, but not the second tunnel's
//! mark, so they would go into the second tunnel, and its packets would go into the first. A tunnel that finds others
//! therefore adds two more kinds of rule:
//!
//! ```text
//! P      from all lookup main suppress_prefixlength 0
//! P + 1  from all fwmark OTHER goto P + 3                 for packets of older tunnels, these rules do not exist
//! P + 2  not from all fwmark T lookup T
//! P + 3  from all nop
//! ```
//!
//! Packets of a tunnel are therefore only subject to the rules of older tunnels, which rules out loops. The target of
//! each `goto` is a rule of the same tunnel, so it exists in any order in which the tunnels end.

use super::{
    error::HostError,
    link::is_v6,
    netlink::Netlink,
    record::Journal,
    routes::Plan,
    step::{Rule, RuleKind, Step},
    tunable::{self, SRC_VALID_MARK},
};
use futures_util::TryStreamExt;
use ipnet::IpNet;
use rtnetlink::{
    IpVersion,
    packet_route::{
        AddressFamily,
        rule::{RuleAction, RuleAttribute, RuleFlags, RuleMessage},
    },
};
use rustguard_device::kernel::{Family, MAIN_TABLE, already_gone, table_of};
use std::collections::BTreeSet;

/// The first number that is tried for table and mark. wg-quick uses the same one, WireGuard's usual port.
const FIRST_TABLE: u32 = 51820;

/// The priority of the kernel's own rule for the main table. The first tunnel's rules are placed before it.
const MAIN_PRIORITY: u32 = 32766;

/// Sets up the default routes of one tunnel, with its sockets' mark: route, rules and src_valid_mark. A default route
/// that may be learned later uses the same rules. Until then its table is empty, and the rules have no effect.
pub(super) async fn add(netlink: &Netlink, journal: &mut Journal, plan: &Plan, mark: u32) -> Result<(), HostError> {
    let (name, index) = (journal.interface().to_owned(), journal.index());
    for net in &plan.default {
        if !plan.learned {
            netlink.add_route(&name, index, *net, mark).await?;
            journal.record(Step::Route { net: *net, table: mark })?;
        }
        for rule in rules(netlink, Family::of(net.addr()), mark).await? {
            journal.record(Step::Rule(rule))?;
            netlink.add_rule(rule).await?;
        }
        prepare_filter(*net)?;
    }
    Ok(())
}

/// The rules for a default route of this family, in the order in which they are added: the last rule comes first. The
/// rule for the main table's routes therefore exists before the rule that sends all other packets into the tunnel, and
/// each goto finds its target.
pub(super) async fn rules(netlink: &Netlink, family: Family, mark: u32) -> Result<Vec<Rule>, HostError> {
    let mut others = BTreeSet::new();
    for family in Family::in_kernel() {
        others.extend(netlink.dump_rules(family).await?.iter().filter_map(tunnel_mark));
    }
    others.remove(&mark);
    let mut rules = arrange(family, &netlink.dump_rules(family).await?, mark, &others)?;
    rules.sort_by_key(|rule| matches!(rule.kind, RuleKind::IntoTunnel { .. }));
    Ok(rules)
}

/// Prepares the reverse path filter for a default route of this family.
pub(super) fn prepare_filter(default: IpNet) -> Result<(), HostError> {
    if is_v6(default) { Ok(()) } else { set_src_valid_mark() }
}

/// The first number from 51820 that no route and no rule uses as table or mark.
pub(super) async fn unused_table(netlink: &Netlink) -> Result<u32, HostError> {
    let mut used = BTreeSet::new();
    for family in Family::in_kernel() {
        for rule in netlink.dump_rules(family).await? {
            used.extend(rule.attributes.iter().filter_map(|attribute| match attribute {
                RuleAttribute::Table(number) | RuleAttribute::FwMark(number) => Some(*number),
                _ => None,
            }));
        }
    }
    for table in (FIRST_TABLE..).filter(|table| !used.contains(table)) {
        let mut empty = true;
        for family in Family::in_kernel() {
            empty &= netlink.dump_routes(family, Some(table), None).await?.iter().all(|route| table_of(route) != table);
        }
        if empty {
            return Ok(table);
        }
    }
    unreachable!("there are far fewer rules and routes than table numbers")
}

impl Netlink {
    async fn dump_rules(&self, family: Family) -> Result<Vec<RuleMessage>, HostError> {
        let version = match family {
            Family::V4 => IpVersion::V4,
            Family::V6 => IpVersion::V6,
        };
        let rules = self.handle().rule().get(version).execute().try_collect().await;
        rules.map_err(|error| HostError::netlink("list the policy rules", &error))
    }

    pub(super) async fn add_rule(&self, rule: Rule) -> Result<(), HostError> {
        let mut request = self.handle().rule().add();
        *request.message_mut() = rule.message();
        request
            .execute()
            .await
            .map_err(|error| HostError::netlink(format!("add the policy rule {}", rule.priority), &error))
    }

    pub(super) async fn delete_rule(&self, rule: Rule) -> Result<(), HostError> {
        match self.handle().rule().del(rule.message()).execute().await {
            Ok(()) => Ok(()),
            Err(error) if already_gone(&error) => Ok(()),
            Err(error) => Err(HostError::netlink(format!("remove the policy rule {}", rule.priority), &error)),
        }
    }
}

impl Rule {
    fn message(&self) -> RuleMessage {
        let mut message = RuleMessage::default();
        message.header.family = if self.v6 { AddressFamily::Inet6 } else { AddressFamily::Inet };
        message.attributes.push(RuleAttribute::Priority(self.priority));
        match self.kind {
            RuleKind::MainWithoutDefault => {
                message.header.action = RuleAction::ToTable;
                message.attributes.push(RuleAttribute::Table(MAIN_TABLE));
                message.attributes.push(RuleAttribute::SuppressPrefixLen(0));
            }
            RuleKind::Exempt { mark, target } => {
                message.header.action = RuleAction::Goto;
                message.attributes.push(RuleAttribute::FwMark(mark));
                message.attributes.push(RuleAttribute::Goto(target));
            }
            RuleKind::IntoTunnel { mark } => {
                message.header.action = RuleAction::ToTable;
                message.header.flags = RuleFlags::Invert;
                message.attributes.push(RuleAttribute::FwMark(mark));
                message.attributes.push(RuleAttribute::Table(mark));
            }
            RuleKind::End => message.header.action = RuleAction::Nop,
        }
        message
    }
}

/// The mark of the tunnel to which a `not fwmark MARK lookup TABLE` rule belongs. wg-quick's rules have the same form.
fn tunnel_mark(rule: &RuleMessage) -> Option<u32> {
    if rule.header.action != RuleAction::ToTable || !rule.header.flags.contains(RuleFlags::Invert) {
        return None;
    }
    rule.attributes.iter().find_map(|attribute| match attribute {
        RuleAttribute::FwMark(mark) => Some(*mark),
        _ => None,
    })
}

/// The tunnel's rules, last rule first. Their priorities directly precede the first existing rule, where the kernel
/// also puts a rule without a priority.
fn arrange(
    family: Family,
    existing: &[RuleMessage],
    mark: u32,
    others: &BTreeSet<u32>,
) -> Result<Vec<Rule>, HostError> {
    let priority = |rule: &RuleMessage| {
        rule.attributes.iter().find_map(|attribute| match attribute {
            RuleAttribute::Priority(priority) => Some(*priority),
            _ => None,
        })
    };
    // The kernel's rule for the local table is at 0 and stays first.
    let first = existing.iter().filter_map(priority).filter(|priority| *priority > 0).min().unwrap_or(MAIN_PRIORITY);

    let target = first - 1;
    let mut kinds = Vec::with_capacity(others.len() + 3);
    if !others.is_empty() {
        kinds.push(RuleKind::End);
    }
    kinds.push(RuleKind::IntoTunnel { mark });
    kinds.extend(others.iter().map(|other| RuleKind::Exempt { mark: *other, target }));
    kinds.push(RuleKind::MainWithoutDefault);

    // Rule 0 belongs to the kernel, so priorities from 1 to first - 1 are available.
    let needed = u32::try_from(kinds.len()).unwrap_or(u32::MAX);
    if first <= needed {
        return Err(HostError::NoRuleRoom { first, needed });
    }
    let rules = kinds.into_iter().zip((1..first).rev());
    Ok(rules.map(|(kind, priority)| Rule { v6: family == Family::V6, priority, kind }).collect())
}

/// Makes the reverse path filter use the mark for the answers to marked packets. A strict filter would drop them
/// otherwise. The setting stays afterwards, as with wg-quick: other tunnels may depend on it, and it has no effect
/// without marks.
fn set_src_valid_mark() -> Result<(), HostError> {
    // If it is already set, a read-only /proc/sys, as in containers, does no harm.
    if std::fs::read_to_string(tunable::path(SRC_VALID_MARK)).is_ok_and(|value| value.trim() == "1") {
        return Ok(());
    }
    tunable::write(SRC_VALID_MARK, "1").map_err(|source| {
        let (name, value) = (SRC_VALID_MARK.replace('/', "."), "1".to_owned());
        HostError::SysctlNotSet { name, value, source }
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(priority: u32) -> RuleMessage {
        let mut rule = RuleMessage::default();
        rule.attributes.push(RuleAttribute::Priority(priority));
        rule
    }

    #[test]
    fn the_first_tunnel_gets_wg_quicks_two_rules() {
        let rules = arrange(Family::V4, &[RuleMessage::default(), at(32766), at(32767)], 7, &BTreeSet::new()).unwrap();
        let expected = [(32765, RuleKind::IntoTunnel { mark: 7 }), (32764, RuleKind::MainWithoutDefault)];
        assert_eq!(rules, expected.map(|(priority, kind)| Rule { v6: false, priority, kind }));
    }

    #[test]
    fn packets_of_older_tunnels_skip_the_rules_of_a_newer_one() {
        let rules = arrange(Family::V6, &[at(32764), at(32765), at(32766)], 9, &BTreeSet::from([7, 8])).unwrap();
        let expected = [
            (32763, RuleKind::End),
            (32762, RuleKind::IntoTunnel { mark: 9 }),
            (32761, RuleKind::Exempt { mark: 7, target: 32763 }),
            (32760, RuleKind::Exempt { mark: 8, target: 32763 }),
            (32759, RuleKind::MainWithoutDefault),
        ];
        assert_eq!(rules, expected.map(|(priority, kind)| Rule { v6: true, priority, kind }));
    }

    #[test]
    fn rules_that_leave_no_room_are_reported() {
        assert_eq!(arrange(Family::V4, &[at(3)], 7, &BTreeSet::new()).unwrap().len(), 2);
        let error = arrange(Family::V4, &[at(2)], 7, &BTreeSet::new()).unwrap_err();
        assert!(matches!(error, HostError::NoRuleRoom { first: 2, needed: 2 }), "{error}");
    }
}
