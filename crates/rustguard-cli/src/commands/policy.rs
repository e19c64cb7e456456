//! `rustguard policy`: who may talk to whom, as the file of the server says it. The machines are those of the last roster.

use super::check::{Report, Shown, show_all};
use crate::{
    arguments::{enrolment::Served, policy::Policy as Arguments},
    one,
    output::escape::escape,
};
use anyhow::{Context as _, Result, bail};
use rustguard_policy::{
    diagnostic::{Diagnostic, Severity},
    directory::{Directory, Machine},
    policy::{MAX_POLICY, Policy, Rule},
    rules::Traffic,
    verdict::Verdict,
};
use rustguard_serve::{Folder, known_machines, policy_path, read_policy};
use serde::Serialize;
use std::{
    fmt,
    fs::File,
    io::{self, Read as _, Write as _},
    net::IpAddr,
    path::{Path, PathBuf},
    process::ExitCode,
};

/// The exit status of failures: 1 says no.
pub(crate) const ERROR: u8 = 2;

/// Says in an error that it is one of `policy`, which ends with another status.
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
    opened.with_context(|| format!("cannot read {}", path.display()))?;
    let (policy, mut diagnostics) = Policy::parse(&text);
    let machines = machines(&interface)?;
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

/// The machines of the network that is served here. `None` if there is none, or nobody but root may know.
fn machines(interface: &str) -> Result<Option<Directory>> {
    match Folder::find(interface)? {
        Some(folder) => Ok(known_machines(&folder)?),
        None => Ok(None),
    }
}

/// The policy of a served network, and its machines.
struct Network {
    path: PathBuf,
    policy: Option<Policy>,
    machines: Directory,
}

impl Network {
    fn open(interface: &Served) -> Result<Self> {
        let interface = one::served(interface)?;
        let machines = machines(&interface)?.with_context(|| {
            format!("no network is served at {interface} here, or it has no machines yet; `rustguard serve` makes one")
        })?;
        let path = policy_path(&interface);
        let policy = read_policy(&path)?;
        Ok(Self { path, policy, machines })
    }

    fn machine(&self, name: &str) -> Result<&Machine> {
        self.machines.machine(name).with_context(|| {
            let known: Vec<_> = self.machines.names().take(8).collect();
            format!("no machine is called {name}; there are {}", known.join(", "))
        })
    }

    /// The addresses of a machine, or the address itself.
    fn addresses(&self, text: &str) -> Result<Vec<IpAddr>> {
        match text.parse() {
            Ok(address) => Ok(vec![address]),
            Err(_) => Ok(self.machine(text)?.addresses.clone()),
        }
    }
}

/// What `policy test` says, for programs.
#[derive(Serialize)]
struct Tested<'a> {
    from: &'a str,
    to: &'a str,
    traffic: String,
    verdict: &'static str,
    lines: Vec<Line>,
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
    let traffic = match traffic.map(Traffic::parse).transpose() {
        Ok(traffic) => traffic.unwrap_or_default(),
        Err(wrong) => bail!("{wrong}"),
    };
    let (froms, tos) = (served.addresses(from)?, served.addresses(to)?);
    let pairs = froms.iter().flat_map(|from| tos.iter().map(move |to| (*from, *to)));
    let pairs: Vec<_> = pairs.filter(|(from, to)| from.is_ipv4() == to.is_ipv4()).collect();
    if pairs.is_empty() {
        bail!("{from} and {to} have no addresses of one version of IP");
    }
    let Some(policy) = &served.policy else {
        if json {
            print(&Tested { from, to, traffic: traffic.to_string(), verdict: "allowed", lines: Vec::new() })?;
        } else {
            writeln!(io::stdout(), "yes: there is no policy ({} does not exist)", served.path.display())?;
        }
        return Ok(ExitCode::SUCCESS);
    };
    let rules = policy.all(&served.machines);
    let verdicts: Vec<_> = pairs.iter().map(|(from, to)| rules.verdict(*from, *to, &traffic)).collect();
    let refused = verdicts.iter().all(|verdict| *verdict == Verdict::Refused);
    let allowed = verdicts.iter().all(|verdict| matches!(verdict, Verdict::Allowed(_)));
    let of_verdict = |verdict: &Verdict| match verdict {
        Verdict::Allowed(line) => vec![*line],
        Verdict::Partly(lines) => lines.clone(),
        Verdict::Refused => Vec::new(),
    };
    let mut lines: Vec<_> = verdicts.iter().flat_map(of_verdict).collect();
    lines.sort_unstable();
    lines.dedup();
    let lines: Vec<Line> = policy.rules().iter().filter(|rule| lines.contains(&rule.line)).map(Line::from).collect();
    let path = served.path.display();
    if json {
        let verdict = if allowed {
            "allowed"
        } else if refused {
            "refused"
        } else {
            "partly"
        };
        print(&Tested { from, to, traffic: traffic.to_string(), verdict, lines })?;
    } else if refused {
        writeln!(io::stdout(), "no: no line of {path} allows it")?;
    } else {
        let mut out = io::stdout().lock();
        writeln!(out, "{}", if allowed { "yes" } else { "only in part" })?;
        for Line { line, rule } in lines {
            writeln!(out, "  {path}:{line}: {rule}")?;
        }
    }
    Ok(ExitCode::from(u8::from(!allowed)))
}

/// What `policy show` says, for programs.
#[derive(Serialize)]
struct MachineView<'a> {
    machine: &'a str,
    tags: &'a [String],
    addresses: &'a [IpAddr],
    /// `null` where there is no policy: everybody may talk to everybody.
    may: Option<Vec<Line>>,
    may_be_reached: Option<Vec<Line>>,
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
        });
    }
    let mut out = io::stdout().lock();
    let addresses: Vec<_> = machine.addresses.iter().map(ToString::to_string).collect();
    let tags: Vec<_> = machine.tags.iter().map(|tag| format!("tag:{tag}")).collect();
    writeln!(out, "{}", escape([vec![name.to_owned()], addresses, tags].concat().join(" ").as_str()))?;
    let Some((may, reached)) = may.zip(reached) else {
        writeln!(out, "\nthere is no policy: everybody may talk to everybody")?;
        return Ok(());
    };
    for (title, lines) in [("may begin to talk:", may), ("may be talked to:", reached)] {
        writeln!(out, "\n{title}")?;
        if lines.is_empty() {
            writeln!(out, "  by no line")?;
        }
        lines.iter().try_for_each(|Line { line, rule }| writeln!(out, "  line {line}: {rule}"))?;
    }
    Ok(())
}

fn print<T: Serialize>(value: &T) -> Result<()> {
    let mut out = io::stdout().lock();
    serde_json::to_writer_pretty(&mut out, value)?;
    writeln!(out)?;
    Ok(())
}
