//! The changes that a running tunnel cannot take over.

use super::difference::{Changed, Difference};
use crate::conf::{
    Config,
    keys::{self, Key, Section},
};
use std::fmt;

/// A setting that only changes with `down` and `up`.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct NeedsRestart {
    /// The name of the setting in the file.
    pub setting: &'static str,
    /// Why it cannot change while the tunnel runs.
    pub reason: &'static str,
}

impl fmt::Display for NeedsRestart {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} ({})", self.setting, self.reason)
    }
}

impl Difference {
    /// The changes that a running tunnel cannot take over. This must be the difference between these two
    /// configurations.
    pub fn needs_restart(&self, from: &Config, to: &Config) -> Vec<NeedsRestart> {
        let mut needed = of_sections(std::slice::from_ref(&self.interface), from, to);
        needed.extend(of_sections(&self.changed, from, to));
        // If the protocol itself changes, the settings of the old protocol are not listed.
        match needed.iter().position(|needed| needed.setting == "Routing") {
            Some(routing) => vec![needed.swap_remove(routing)],
            None => needed,
        }
    }
}

fn of_sections<S: Section>(sections: &[Changed<S>], from: &Config, to: &Config) -> Vec<NeedsRestart> {
    let of_key = |key: &'static Key<S>| {
        let changes = sections.iter().any(|Changed { from, to }| key.changes(from, to));
        let reasons = key.restart.iter().filter(move |(when, _)| when(changes, from, to));
        reasons.map(|(_, reason)| NeedsRestart { setting: key.form.name, reason })
    };
    keys::all(S::RESTARTED).flat_map(of_key).collect()
}
