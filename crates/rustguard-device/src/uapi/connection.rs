//! The connection to a peer and its problem, in the form of the socket and of `show --json`.

use crate::status::{Connection, Problem, UnresolvedEndpoint};
use serde::{Deserialize, Serialize};

/// Whether a peer can be reached.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ConnectionView {
    /// `never connected`, `connecting`, `online`, `idle` or `offline`.
    pub state: String,
    /// When the state began, in seconds since the Unix epoch; absent for a peer that was never connected.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub since: Option<u64>,
    /// The number of initiations without an answer, while connecting.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub attempts: Option<u32>,
}

/// A problem between this side and a peer.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ProblemView {
    /// The kind of problem in one word that does not change between versions, such as `no-answer`.
    pub kind: String,
    /// A sentence with the likely cause and the remedy.
    pub text: String,
    /// When the problem began, in seconds since the Unix epoch.
    pub since: u64,
}

/// An endpoint whose name has no address yet.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct UnresolvedView {
    /// The name and the port.
    pub name: String,
    /// The resolver's error; `null` during the first attempt.
    pub error: Option<String>,
}

/// Never connected.
impl Default for ConnectionView {
    fn default() -> Self {
        Self::from(&Connection::NeverConnected)
    }
}

impl From<&Connection> for ConnectionView {
    fn from(connection: &Connection) -> Self {
        Self {
            state: connection.word().to_owned(),
            since: connection.since().map(|since| since.as_secs()),
            attempts: connection.attempts(),
        }
    }
}

impl From<&Problem> for ProblemView {
    fn from(problem: &Problem) -> Self {
        Self { kind: problem.kind().to_owned(), text: problem.to_string(), since: problem.since.as_secs() }
    }
}

impl From<&UnresolvedEndpoint> for UnresolvedView {
    fn from(unresolved: &UnresolvedEndpoint) -> Self {
        Self { name: unresolved.name.clone(), error: unresolved.error.clone() }
    }
}
