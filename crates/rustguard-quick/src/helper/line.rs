//! A line of the log that a confined tunnel has the privileged helper write into the journal.
//!
//! The fields are a closed list, because the journal trusts some other fields from uid 0: `OBJECT_PID=` assigns a line
//! to another service.

use serde::{Deserialize, Serialize};

/// A line of the log, for the journal.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Line {
    /// Its priority.
    pub level: Level,
    /// The module that logs it.
    pub target: String,
    /// The sentence.
    pub text: String,
    /// Fields for programs.
    pub fields: Vec<(Field, String)>,
}

/// The priority of a line.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[expect(missing_docs, reason = "the levels of every log in Rust")]
pub enum Level {
    Error,
    Warn,
    Info,
    Debug,
    Trace,
}

/// A field of a line.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum Field {
    /// The peer that the line is about.
    Peer,
    /// The address that something came from.
    From,
    /// The local user who asked.
    Uid,
    /// The configuration file.
    File,
    /// A line of that file.
    Line,
    /// A column of that line.
    Column,
    /// The remedy.
    Help,
}

impl Field {
    const ALL: [Self; 7] = [Self::Peer, Self::From, Self::Uid, Self::File, Self::Line, Self::Column, Self::Help];

    /// Its name, in small letters.
    pub fn name(self) -> &'static str {
        match self {
            Self::Peer => "peer",
            Self::From => "from",
            Self::Uid => "uid",
            Self::File => "file",
            Self::Line => "line",
            Self::Column => "column",
            Self::Help => "help",
        }
    }

    /// The field of this name.
    pub fn of_name(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|field| field.name() == name)
    }
}
