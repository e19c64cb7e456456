//! `rustguard policy`: the permissions in the server's policy file. The machines come from the last roster.

use super::check::{Report, Shown, show_all};
use crate::{
    arguments::{enrolment::Served, policy::Policy as Arguments},
    escape::escape,
    one,
};
use anyhow::{Context as _, Result, bail};
use rustguard_policy::{
    diagnostic::{Diagnostic, Severity},
    directory::{Directory, Machine},
    policy::{MAX_POLICY, Policy, Rule},
    question::{self, Extent, Question},
};
use rustguard_serve::{Folder, KnownNetwork, policy_path, read_policy};
use serde::Serialize;
use std::{
    fmt,
    fs::File,
    io::{self, Read as _, Write as _},
    net::IpAddr,
    path::{Path, PathBuf},
    process::ExitCode,
};

/// The exit status of failures; 1 means no.
pub(crate) const ERROR: u8 = 2;

/// Marks an error as one of `policy`, which ends with another status.
#[derive(Debug)]
pub(crate) struct Failed;

impl fmt::Display for Failed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("cannot answer")
    }
}

/// Runs `policy`.
pub(crate) fn run(arguments: &Arguments) -> Result<ExitCode> {
    match arguments {
        Arguments::Check { file, strict, interface, json } => check(file.as_deref(), *strict, interface, *json),
        Arguments::Test { from, to, traffic, interface, json } => test(from, to, traffic.as_deref(), interface, *json),
        Arguments::Show { machine, interface, json } => show(machine, interface, *json).map(|()| ExitCode::SUCCESS),
    }
    .context(Failed)
}

fn check(file: Option<&Path>, strict: bool, interface: &Served, json: bool) -> Result<ExitCode> {
    let interface = one::served_or_default(interface)?;
    let path = file.map_or_else(|| policy_path(&interface), Path::to_owned);
    let mut text = String::new();
    let opened = File::open(&path).and_then(|file| file.take(MAX_POLICY as u64 + 1).read_to_string(&mut text));
    if file.is_none() && opened.as_ref().is_err_and(|error| error.kind() == io::ErrorKind::NotFound) {
        bail!("{interface} has no policy: {} does not exist; name another file, or put one there", path.display());
    }
    opened.with_context(|| format!("cannot read {}", path.display()))?;
    let (policy, mut diagnostics) = Policy::parse(&text);
    let machines = known(&interface)?.map(|known| known.machines());
    if let (Some(policy), Some(machines)) = (&policy, &machines) {
        diagnostics = policy.check(machines);
    }
    if json {
        let mut out = io::stdout().lock();
        let shown: Vec<_> = diagnostics.iter().map(shown).collect();
        serde_json::to_writer_pretty(&mut out, &Report::new(&path, &text, &shown))?;
        writeln!(out)?;
    } else {
        show_all(&path, &text, diagnostics.iter().map(shown))?;
        if let Some(policy) = policy.filter(|_| severest(&diagnostics) != Some(Severity::Error)) {
            let (rules, tests, path) = (policy.rules().len(), policy.tests(), path.display());
            let known =
                if machines.is_some() { "" } else { "; names and tests are not compared: no network is served here" };
            writeln!(io::stdout(), "{path}: {rules} rules, {tests} tests{known}")?;
        }
    }
    let fails = severest(&diagnostics) >= Some(if strict { Severity::Warning } else { Severity::Error });
    Ok(ExitCode::from(u8::from(fails)))
}

fn severest(diagnostics: &[Diagnostic]) -> Option<Severity> {
    diagnostics.iter().map(|diagnostic| diagnostic.severity).max()
}

fn shown(diagnostic: &Diagnostic) -> Shown<'_> {
    Shown {
        error: diagnostic.severity == Severity::Error,
        message: &diagnostic.message,
        line: diagnostic.span.line as usize,
        column: diagnostic.span.column as usize,
        bytes: diagnostic.span.bytes.clone(),
        help: diagnostic.help.as_deref(),
    }
}

/// The network that is served here. `None` if there is none, or if only root may read it.
fn known(interface: &str) -> Result<Option<KnownNetwork>> {
    match Folder::find(interface)? {
        Some(folder) => Ok(KnownNetwork::read(&folder)?),
        None => Ok(None),
    }
}

/// The policy of a served network, and its machines.
struct Network {
    path: PathBuf,
    policy: Option<Policy>,
    machines: Directory,
    /// Whether this policy is the one that members enforce.
    in_force: bool,
}

impl Network {
    fn open(interface: &Served) -> Result<Self> {
        let interface = one::served(interface)?;
        let known = known(&interface)?.with_context(|| {
            format!("no network is served at {interface} here, or it has no machines yet; `rustguard serve` makes one")
        })?;
        let path = policy_path(&interface);
        let policy = read_policy(&path)?;
        let in_force = known.enforces(policy.as_ref());
        Ok(Self { path, policy, machines: known.machines(), in_force })
    }

    /// Writes a note if members enforce another policy.
    fn say_whether_in_force(&self, out: &mut impl io::Write) -> io::Result<()> {
        if self.in_force {
            return Ok(());
        }
        let path = self.path.display();
        match self.policy {
            Some(_) => writeln!(
                out,
                "\nnot in force: members enforce other rules than those in {path}; `rustguard reload` takes these"
            ),
            None => writeln!(out, "\nnot in force: {path} is gone, and members go on enforcing the policy before"),
        }
    }

    fn machine(&self, name: &str) -> Result<&Machine> {
        Ok(question::named(name, &self.machines)?)
    }
}

/// The output of `policy test --json`.
#[derive(Serialize)]
struct Tested<'a> {
    from: &'a str,
    to: &'a str,
    traffic: String,
    verdict: &'static str,
    lines: Vec<Line>,
    /// Whether members enforce this policy.
    in_force: bool,
}

/// A rule, for programs.
#[derive(Serialize)]
struct Line {
    line: u32,
    rule: String,
}

impl From<&Rule> for Line {
    fn from(rule: &Rule) -> Self {
        Self { line: rule.line, rule: rule.to_string() }
    }
}

fn test(from: &str, to: &str, traffic: Option<&str>, interface: &Served, json: bool) -> Result<ExitCode> {
    let served = Network::open(interface)?;
    let question = Question::new(from, to, traffic, &served.machines)?;
    let traffic = question.traffic().to_string();
    let Some(policy) = &served.policy else {
        if json {
            let (verdict, in_force) = (Extent::Allowed.word(), served.in_force);
            print(&Tested { from, to, traffic, verdict, lines: Vec::new(), in_force })?;
        } else {
            let mut out = io::stdout().lock();
            writeln!(out, "yes: there is no policy ({} does not exist)", served.path.display())?;
            served.say_whether_in_force(&mut out)?;
        }
        return Ok(ExitCode::SUCCESS);
    };
    let answer = question.answer(&policy.all(&served.machines));
    let lines: Vec<Line> =
        policy.rules().iter().filter(|rule| answer.lines.contains(&rule.line)).map(Line::from).collect();
    let path = served.path.display();
    if json {
        print(&Tested { from, to, traffic, verdict: answer.extent.word(), lines, in_force: served.in_force })?;
    } else {
        let mut out = io::stdout().lock();
        match answer.extent {
            Extent::Allowed => writeln!(out, "yes")?,
            Extent::Partly => writeln!(out, "only in part")?,
            Extent::Refused => writeln!(out, "no: no line of {path} allows it")?,
        }
        for Line { line, rule } in lines {
            writeln!(out, "  {path}:{line}: {rule}")?;
        }
        served.say_whether_in_force(&mut out)?;
    }
    Ok(ExitCode::from(u8::from(answer.extent != Extent::Allowed)))
}

/// The output of `policy show --json`.
#[derive(Serialize)]
struct MachineView<'a> {
    machine: &'a str,
    tags: &'a [String],
    addresses: &'a [IpAddr],
    /// `null` without a policy: every machine may talk to every other.
    may: Option<Vec<Line>>,
    may_be_reached: Option<Vec<Line>>,
    /// Whether members enforce this policy.
    in_force: bool,
}

fn show(name: &str, interface: &Served, json: bool) -> Result<()> {
    let served = Network::open(interface)?;
    let machine = served.machine(name)?;
    let may = served.policy.as_ref().map(|policy| policy.rules_from(machine).map(Line::from).collect::<Vec<_>>());
    let reached = served.policy.as_ref().map(|policy| policy.rules_to(machine).map(Line::from).collect::<Vec<_>>());
    if json {
        return print(&MachineView {
            machine: name,
            tags: &machine.tags,
            addresses: &machine.addresses,
            may,
            may_be_reached: reached,
            in_force: served.in_force,
        });
    }
    let mut out = io::stdout().lock();
    let addresses: Vec<_> = machine.addresses.iter().map(ToString::to_string).collect();
    let tags: Vec<_> = machine.tags.iter().map(|tag| format!("tag:{tag}")).collect();
    writeln!(out, "{}", escape([vec![name.to_owned()], addresses, tags].concat().join(" ").as_str()))?;
    let Some((may, reached)) = may.zip(reached) else {
        writeln!(out, "\nthere is no policy: everybody may talk to everybody")?;
        return Ok(served.say_whether_in_force(&mut out)?);
    };
    for (title, lines) in [("may begin to talk:", may), ("may be talked to:", reached)] {
        writeln!(out, "\n{title}")?;
        if lines.is_empty() {
            writeln!(out, "  by no line")?;
        }
        lines.iter().try_for_each(|Line { line, rule }| writeln!(out, "  line {line}: {rule}"))?;
    }
    Ok(served.say_whether_in_force(&mut out)?)
}

fn print<T: Serialize>(value: &T) -> Result<()> {
    let mut out = io::stdout().lock();
    serde_json::to_writer_pretty(&mut out, value)?;
    writeln!(out)?;
    Ok(())
}
