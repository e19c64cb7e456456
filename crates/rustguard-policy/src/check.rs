//! Reading a policy, and checking it against the existing machines.

use crate::{
    diagnostic::{Diagnostic, Severity, Span, similar},
    directory::{Directory, Machine},
    parse,
    policy::{Item, Policy, Test},
    rules::Rules,
    sheet::{MAX_SHEET, Sheet},
    verdict::Verdict,
};
use std::net::IpAddr;

/// The most pairs of addresses of one test.
const MAX_PAIRS: usize = 1 << 20;

impl Policy {
    /// Reads a policy. The result is `None` if there is an error. The diagnostics contain all mistakes that can be
    /// found without knowing the machines.
    pub fn parse(text: &str) -> (Option<Self>, Vec<Diagnostic>) {
        let (policy, mut diagnostics) = parse::parse(text);
        // The sheet of a server has all rules, and is the longest.
        let len = Sheet::of_all(&policy).to_bytes().len();
        if diagnostics.is_empty() && len > MAX_SHEET {
            let message = format!("the rules have {len} bytes without groups; at most {MAX_SHEET} can be distributed");
            let span = Span { line: 1, column: 1, bytes: 0..text.find('\n').unwrap_or(text.len()) };
            let help = "name tags in place of machines".to_owned();
            diagnostics.push(Diagnostic::error(span, message).help(help));
        }
        let wrong = diagnostics.iter().any(|diagnostic| diagnostic.severity == Severity::Error);
        (Some(policy).filter(|_| !wrong), diagnostics)
    }

    /// Checks the policy against the existing machines. Errors: tests that fail. Warnings: unknown names and tags, and
    /// tests that check nothing because of them. An unknown name allows nothing: its machine may not have joined yet.
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
}

/// Why a test fails, or cannot be performed.
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

/// The addresses of one end of a test, with their names for people.
fn ends(item: &Item, directory: &Directory) -> Vec<(IpAddr, String)> {
    match item {
        Item::Prefix(prefix) => vec![(prefix.addr(), prefix.addr().to_string())],
        item => {
            let of = |machine: &Machine| {
                let name = machine.name.clone();
                machine.addresses.iter().map(move |address| (*address, name.clone())).collect::<Vec<_>>()
            };
            directory.named(item).flat_map(of).collect()
        }
    }
}
