//! The output of a test process, and the sum of all of them.
use std::{
    collections::{BTreeMap, BTreeSet},
    fmt,
    time::Duration,
};

/// The number of slowest tests that are named.
const SLOWEST: usize = 10;
/// The maximum of names per reason in the summary.
const NAMES: usize = 4;

/// The result of one process.
#[derive(Debug)]
pub(crate) struct Outcome {
    name: String,
    passed: u32,
    failed: BTreeSet<String>,
    /// The reason for each skipped test.
    skipped: BTreeMap<String, String>,
    /// The whole output of a process with a failure.
    text: Option<String>,
    took: Duration,
}

impl Outcome {
    /// `single`: the process was one test. `problem`: how the process ended, if it failed.
    pub(crate) fn read(name: &str, single: bool, text: &str, problem: Option<String>, took: Duration) -> Self {
        let skipped: BTreeMap<_, _> = text.lines().filter_map(|line| skipped(name, single, line)).collect();
        let mut failed: BTreeSet<String> = text.lines().filter_map(|line| failed(name, single, line)).collect();
        if problem.is_some() && failed.is_empty() {
            failed.insert(name.to_owned());
        }
        let one = u32::from(problem.is_none());
        // A scenario also prints the count of its process in the namespaces. A binary without libtest counts as one
        // test.
        let counted = if single { one } else { text.lines().filter_map(counted).reduce(|a, b| a + b).unwrap_or(one) };
        let text = problem.map(|problem| format!("{text}\n{name}: {problem}"));
        Self {
            name: name.to_owned(),
            passed: counted.saturating_sub(skipped.len() as u32),
            failed,
            skipped,
            text,
            took,
        }
    }

    pub(crate) fn print(&self) {
        if let Some(text) = &self.text {
            println!("\n---- {}\n{text}\n---- {} FAILED", self.name, self.name);
        }
    }
}

/// Parses `SKIPPED join::x: no wireguard-go`, as the test `join::x` of the binary `name` prints it.
fn skipped(name: &str, single: bool, line: &str) -> Option<(String, String)> {
    let (test, reason) = line.strip_prefix("SKIPPED ")?.split_once(": ")?;
    let test = if single { name.to_owned() } else { format!("{name}::{test}") };
    Some((test, reason.to_owned()))
}

/// Parses libtest's `test join::x ... FAILED`.
fn failed(name: &str, single: bool, line: &str) -> Option<String> {
    let test = line.strip_prefix("test ")?.strip_suffix(" ... FAILED")?;
    Some(if single { name.to_owned() } else { format!("{name}::{test}") })
}

/// The number of passed tests, from libtest's `test result: ok. 12 passed; 0 failed; …`.
fn counted(line: &str) -> Option<u32> {
    line.strip_prefix("test result: ")?.split_once(". ")?.1.split_once(" passed;")?.0.parse().ok()
}

/// The result of one round of the suite.
pub(crate) struct Summary {
    passed: u32,
    failed: BTreeSet<String>,
    /// The skipped tests by reason.
    skipped: BTreeMap<String, BTreeSet<String>>,
    slowest: Vec<(Duration, String)>,
}

impl Summary {
    pub(crate) fn of(outcomes: &[Outcome]) -> Self {
        let mut skipped: BTreeMap<String, BTreeSet<String>> = BTreeMap::new();
        for (test, reason) in outcomes.iter().flat_map(|outcome| &outcome.skipped) {
            skipped.entry(reason.clone()).or_default().insert(test.clone());
        }
        let mut slowest: Vec<_> = outcomes.iter().map(|outcome| (outcome.took, outcome.name.clone())).collect();
        slowest.sort_by(|a, b| b.cmp(a));
        slowest.truncate(SLOWEST);
        Self {
            passed: outcomes.iter().map(|outcome| outcome.passed).sum(),
            failed: outcomes.iter().flat_map(|outcome| outcome.failed.iter().cloned()).collect(),
            skipped,
            slowest,
        }
    }

    pub(crate) fn passed(&self) -> bool {
        self.failed.is_empty()
    }
}

impl fmt::Display for Summary {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let slowest = self.slowest.iter().map(|(took, name)| format!("{name} {:.0} s", took.as_secs_f32()));
        writeln!(f, "slowest: {}", slowest.collect::<Vec<_>>().join(", "))?;
        for name in &self.failed {
            writeln!(f, "FAILED {name}")?;
        }
        let skipped: BTreeSet<_> = self.skipped.values().flatten().collect();
        write!(f, "{} passed, {} failed, {} skipped", self.passed, self.failed.len(), skipped.len())?;
        for (at, (reason, tests)) in self.skipped.iter().enumerate() {
            let names = tests.iter().take(NAMES).map(String::as_str).collect::<Vec<_>>().join(", ");
            let more = tests.len().saturating_sub(NAMES);
            let more = if more > 0 { format!(" and {more} more") } else { String::new() };
            write!(f, "{} {reason} ({names}{more})", if at == 0 { ":" } else { ";" })?;
        }
        writeln!(f)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: Duration = Duration::from_secs(1);

    #[test]
    fn what_was_skipped_has_not_passed() {
        let text =
            "SKIPPED dns::x: no dbus-daemon\nSKIPPED dns::x: nor this\ntest result: ok. 3 passed; 0 failed; 0 ignored;";
        let outcome = Outcome::read("quick", false, text, None, SECOND);
        assert_eq!((outcome.passed, outcome.skipped.len(), outcome.failed.len()), (2, 1, 0));
        let single =
            Outcome::read("scenarios::a::b", true, "SKIPPED a::b: no nft\ntest result: ok. 1 passed;", None, SECOND);
        assert_eq!(single.passed, 0);
        let line = Summary::of(&[outcome, single]).to_string();
        let last = line.lines().last().unwrap();
        assert!(
            last.starts_with("2 passed, 0 failed, 2 skipped: no nft (scenarios::a::b); nor this (quick::dns::x)"),
            "{last}"
        );
    }

    #[test]
    fn failures_are_named() {
        let text = "test a::b ... FAILED\ntest result: FAILED. 4 passed; 1 failed;";
        let outcome = Outcome::read("core", false, text, Some("exit status: 101".to_owned()), SECOND);
        assert_eq!((outcome.passed, outcome.failed.len()), (4, 1));
        assert!(!Summary::of(&[outcome]).passed());
        // A process that ends without output has failed as well.
        let killed = Outcome::read("tun", false, "", Some("signal: 9".to_owned()), SECOND);
        assert_eq!((killed.passed, killed.failed.into_iter().collect::<Vec<_>>()), (0, vec!["tun".to_owned()]));
    }

    #[test]
    fn a_binary_without_libtest_is_one_test() {
        assert_eq!(Outcome::read("tun-user_namespace", false, "ok\n", None, SECOND).passed, 1);
    }
}
