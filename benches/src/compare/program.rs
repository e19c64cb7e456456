//! The interface of a compared program.

use super::{nebula::Nebula, rustguard, tailscale::Tailscale};
use anyhow::{Result, bail};
use clap::ValueEnum;
use rustguard_tests::{Host, Lab, Node, Process};
use std::{
    env,
    path::{Path, PathBuf},
    process::Command,
};

/// One of the two members.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Who {
    /// The member at the site `home`.
    Home,
    /// The member at the site `office`, which joins first.
    Office,
}

impl Who {
    /// The name of the member, in files and on the server.
    pub(super) fn name(self) -> &'static str {
        match self {
            Self::Home => "home",
            Self::Office => "office",
        }
    }
}

/// A network of a server and two members. Each round begins with a new one, which has no state yet.
pub(super) trait Network {
    /// Starts everything that members need on a server: relays, lighthouses, control. All of it is ready on return.
    fn serve(&mut self, lab: &Lab, server: &Host) -> Result<Process>;

    /// Makes a machine without state a member, as a user would. May return before the member reaches anybody.
    fn join(&mut self, lab: &Lab, node: &Node, who: Who) -> Result<Process>;

    /// Restarts the program on a machine that is a member.
    fn restart(&mut self, lab: &Lab, node: &Node, who: Who) -> Result<Process>;

    /// The interface of a member.
    fn interface(&self, who: Who) -> String;
}

/// The compared programs.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Program {
    /// RustGuard by `serve` and `join`.
    Rustguard,
    /// Tailscale, with its test control server and DERP.
    Tailscale,
    /// Nebula.
    Nebula,
}

impl Program {
    /// The heading of its column.
    pub(super) fn heading(self) -> &'static str {
        match self {
            Self::Rustguard => "RustGuard",
            Self::Tailscale => "Tailscale",
            Self::Nebula => "Nebula",
        }
    }

    /// The programs that it needs besides RustGuard, and where to get them.
    fn needs(self) -> &'static [(&'static str, &'static str)] {
        match self {
            Self::Rustguard => &[],
            Self::Tailscale => &[
                ("tailscaled", "go install tailscale.com/cmd/tailscaled"),
                ("tailscale", "go install tailscale.com/cmd/tailscale"),
                ("tailscale-control", "go build -o DIR/tailscale-control, in benches/control"),
            ],
            Self::Nebula => &[
                ("nebula", "go install github.com/slackhq/nebula/cmd/nebula"),
                ("nebula-cert", "go install github.com/slackhq/nebula/cmd/nebula-cert"),
            ],
        }
    }

    /// The installation hint for the first required program that is missing.
    pub(super) fn missing(self) -> Option<&'static str> {
        self.needs().iter().find(|(program, _)| find(program).is_err()).map(|(_, how)| *how)
    }

    /// Its version, as it reports it.
    pub(super) fn version(self) -> Result<String> {
        let (program, argument) = match self {
            Self::Rustguard => (rustguard_tests::rustguard()?, "--version"),
            Self::Tailscale => (find("tailscaled")?, "--version"),
            Self::Nebula => (find("nebula")?, "-version"),
        };
        version(&program, argument)
    }

    /// A network without state.
    pub(super) fn network(self, lab: &Lab) -> Result<Box<dyn Network>> {
        Ok(match self {
            Self::Rustguard => Box::new(rustguard::Joined::new()?),
            Self::Tailscale => Box::new(Tailscale::new(lab)?),
            Self::Nebula => Box::new(Nebula::new(lab)?),
        })
    }
}

/// The version that a program prints when it is called with this argument.
pub(crate) fn version(program: &Path, argument: &str) -> Result<String> {
    let output = Command::new(program).arg(argument).output()?;
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    let mut words = text.split_whitespace().map(|word| word.trim_start_matches('v'));
    let version = words.find(|word| word.starts_with(|c: char| c.is_ascii_digit()));
    // A program built with `go install` reports 1.104.5-ERR-BuildInfo.
    Ok(version.and_then(|word| word.split('-').next()).unwrap_or("of an unknown version").to_owned())
}

/// The path of a program in `PATH` or Go's `bin` folder.
pub(crate) fn find(program: &str) -> Result<PathBuf> {
    let mut folders: Vec<PathBuf> = env::var_os("PATH").iter().flat_map(env::split_paths).collect();
    folders.extend(env::var_os("GOBIN").map(PathBuf::from));
    folders.extend(env::var_os("HOME").map(|path| PathBuf::from(path).join("go/bin")));
    match folders.iter().map(|folder| folder.join(program)).find(|path| path.is_file()) {
        Some(path) => Ok(path),
        None => bail!("{program} is not installed"),
    }
}
