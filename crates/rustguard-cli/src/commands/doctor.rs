//! `rustguard doctor`: checks everything that a tunnel depends on, and reports problems with their remedies. It changes
//! nothing, and sends only name server queries.
//!
//! | File | Looks at |
//! |---|---|
//! | `machine` | permissions, drivers, the clock, name servers, killed tunnels |
//! | `process` | a tunnel's file and process |
//! | `interface` | its interface, addresses and MTU |
//! | `routes` | the routes into the tunnel, and to the endpoints |
//! | `names` | the endpoints' names and the tunnel's name servers |
//! | `firewall` | the rules for packets to the UDP port |
//! | `forwarding` | the switches for packets from peer to peer |
//! | `relays` | the ways through peers |
//! | `server` | the needs of a `serve`: addresses, and routes to the networks behind it |
//! | `peers` | the connection to each peer |
//! | `kernel` | the kernel's state, for the other checks |
//! | `tunnel` | the tunnel that is checked |
//! | `finding` | the result of a check, and how it is shown |

mod finding;
mod firewall;
mod forwarding;
mod interface;
mod kernel;
mod machine;
mod names;
mod peers;
mod process;
mod relays;
mod routes;
mod server;
mod tunnel;

use crate::{
    arguments::tunnel::Doctor,
    output::{columns::WIDTH, screen},
    process::runtime,
    uapi,
};
use anyhow::Result;
use finding::{Finding, Section, Verdict};
use kernel::Kernel;
use rustguard_quick::{TunnelFile, conf};
use serde::Serialize;
use std::{
    io::{self, Write as _},
    path::PathBuf,
    process::ExitCode,
};
use tunnel::Tunnel;

/// The output of `--json`.
#[derive(Serialize)]
struct Report<'a> {
    wrong: usize,
    warnings: usize,
    sections: &'a [Section],
}

/// Runs `doctor`.
pub(crate) fn run(arguments: &Doctor) -> Result<ExitCode> {
    let mut machine = machine::check();
    let targets = match (&arguments.target, uapi::interfaces()) {
        (Some(target), _) => vec![named(target)?],
        (None, Ok(names)) => names.iter().map(|name| named(name)).collect::<Result<_>>()?,
        (None, Err(error)) => {
            machine
                .push(Finding::unknown("interfaces", format!("the tunnels that are up cannot be listed: {error:#}")));
            Vec::new()
        }
    };
    let runtime = runtime()?;
    let mut sections = vec![Section { about: "this machine".to_owned(), file: None, findings: machine }];
    for (about, file) in targets {
        let findings = runtime.block_on(check(&about, file.clone()));
        sections.push(Section { about, file, findings });
    }
    let count = |verdict| sections.iter().map(|section| section.count(verdict)).sum();
    let (wrong, warnings): (usize, usize) = (count(Verdict::Wrong), count(Verdict::Warning));
    let mut out = io::stdout().lock();
    if arguments.json {
        let report = Report { wrong, warnings, sections: &sections };
        writeln!(out, "{}", serde_json::to_string_pretty(&report)?)?;
    } else {
        for section in &sections {
            // Longer lines are hard to read.
            writeln!(out, "{}", section.page(screen::width().min(WIDTH)))?;
        }
        writeln!(out, "{}", summary(wrong, warnings))?;
    }
    let fails = wrong > 0 || (arguments.strict && warnings > 0);
    Ok(ExitCode::from(u8::from(fails)))
}

/// All findings about the tunnel with this interface name.
async fn check(name: &str, file: Option<PathBuf>) -> Vec<Finding> {
    let mut findings = Vec::new();
    let config = file.as_ref().and_then(|file| process::file(file.clone(), &mut findings));
    let device = process::process(name, file.as_deref(), &mut findings);
    let tunnel = Tunnel { name: name.to_owned(), config, device };
    let kernel = match Kernel::open() {
        Ok(kernel) => kernel,
        Err(error) => {
            findings.push(Finding::unknown("kernel", format!("the kernel's interfaces cannot be read: {error:#}")));
            return findings;
        }
    };
    if let (Some(config), None) = (&tunnel.config, &tunnel.device) {
        findings.extend(interface::ipv6(config));
    }
    if let Some(device) = &tunnel.device {
        let interface = interface::check(&kernel, &tunnel).await;
        // An interface that is down or gone has no routes. A finding about routes would only repeat the problem.
        let usable = interface.iter().all(|finding| finding.check != "interface" || finding.verdict == Verdict::Fine);
        findings.extend(interface);
        if usable {
            findings.extend(routes::check(&kernel, &tunnel).await);
        }
        findings.extend(forwarding::check(&tunnel, device));
        findings.extend(relays::check(&tunnel, device));
        findings.extend(server::check(name).await);
        if device.listen_port != 0 {
            for port in device.all_listen_ports() {
                findings.push(firewall::check(port).await);
            }
        }
    }
    findings.extend(names::check(&tunnel, &kernel).await);
    findings.extend(peers::check(&tunnel));
    findings
}

/// The interface of a target, and its file, if there is one. A running tunnel knows its file, which may be anywhere.
fn named(target: &str) -> Result<(String, Option<PathBuf>)> {
    // Only root may read the record.
    if let Ok(Some(file)) = TunnelFile::path_of(target) {
        return Ok((target.to_owned(), Some(file)));
    }
    match conf::resolve_name(target) {
        Ok((file, name)) => Ok((name, Some(file))),
        Err(conf::NameError::NotFound { name, .. }) => Ok((name, None)),
        Err(error) => Err(error.into()),
    }
}

fn summary(wrong: usize, warnings: usize) -> String {
    let plural = if warnings == 1 { "" } else { "s" };
    match (wrong, warnings) {
        (0, 0) => "nothing is wrong".to_owned(),
        (0, _) => format!("nothing is wrong; {warnings} warning{plural}"),
        (_, 0) => format!("{wrong} wrong"),
        _ => format!("{wrong} wrong, {warnings} warning{plural}"),
    }
}
