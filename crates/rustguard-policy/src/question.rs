//! A question to a policy: whether one machine may connect to another, and by which lines.

use crate::{
    diagnostic::similar,
    directory::{Directory, Machine},
    rules::{Rules, Traffic},
    verdict::Verdict,
};
use std::net::IpAddr;

/// The most names of machines in an error.
const NAMED: usize = 8;

/// Whether one end may begin to talk to the other. An end is a machine or an address.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Question {
    pairs: Vec<(IpAddr, IpAddr)>,
    traffic: Traffic,
}

/// Why a question is invalid.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum QuestionError {
    /// No machine has this name.
    #[error("{}", unknown(name, meant.as_deref(), known))]
    Unknown {
        /// The name.
        name: String,
        /// A machine with a similar name.
        meant: Option<String>,
        /// Some of the existing machines.
        known: Vec<String>,
    },
    /// The traffic is malformed. The text is for people.
    #[error("{0}")]
    Traffic(String),
    /// The ends have no common version of IP.
    #[error("{from} and {to} have no addresses of one version of IP")]
    Versions {
        /// The end that begins.
        from: String,
        /// The other end.
        to: String,
    },
}

/// The answer of a policy to a question.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Answer {
    /// How much of it is allowed.
    pub extent: Extent,
    /// The lines that allow it or a part of it, in ascending order.
    pub lines: Vec<u32>,
    /// Pairs of addresses of the two ends between which nothing of it is allowed, if something is allowed between
    /// others. This happens when a line names an address.
    pub refused: Vec<(IpAddr, IpAddr)>,
}

/// How much is allowed, between all addresses of both ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Extent {
    /// All of it.
    Allowed,
    /// Some of it.
    Partly,
    /// Nothing.
    Refused,
}

impl Extent {
    /// A word for programs.
    pub fn word(self) -> &'static str {
        match self {
            Self::Allowed => "allowed",
            Self::Partly => "partly",
            Self::Refused => "refused",
        }
    }
}

impl Question {
    /// A question about these machines. Without `traffic`, it is about all traffic.
    ///
    /// # Errors
    /// See [`QuestionError`].
    pub fn new(from: &str, to: &str, traffic: Option<&str>, machines: &Directory) -> Result<Self, QuestionError> {
        let traffic = traffic.map(Traffic::parse).transpose().map_err(QuestionError::Traffic)?.unwrap_or_default();
        let (froms, tos) = (addresses(from, machines)?, addresses(to, machines)?);
        let pairs = froms.iter().flat_map(|from| tos.iter().map(move |to| (*from, *to)));
        let pairs: Vec<_> = pairs.filter(|(from, to)| from.is_ipv4() == to.is_ipv4()).collect();
        if pairs.is_empty() {
            return Err(QuestionError::Versions { from: from.to_owned(), to: to.to_owned() });
        }
        Ok(Self { pairs, traffic })
    }

    /// The traffic that it is about.
    pub fn traffic(&self) -> &Traffic {
        &self.traffic
    }

    /// The answer according to these rules.
    pub fn answer(&self, rules: &Rules) -> Answer {
        let verdicts: Vec<_> = self.pairs.iter().map(|(from, to)| rules.verdict(*from, *to, &self.traffic)).collect();
        let extent = if verdicts.iter().all(|verdict| *verdict == Verdict::Refused) {
            Extent::Refused
        } else if verdicts.iter().all(|verdict| matches!(verdict, Verdict::Allowed(_))) {
            Extent::Allowed
        } else {
            Extent::Partly
        };
        let is_refused = |(at, verdict): (usize, &Verdict)| (*verdict == Verdict::Refused).then(|| self.pairs[at]);
        let refused = match extent {
            Extent::Partly => verdicts.iter().enumerate().filter_map(is_refused).collect(),
            Extent::Allowed | Extent::Refused => Vec::new(),
        };
        let of_verdict = |verdict: Verdict| match verdict {
            Verdict::Allowed(line) => vec![line],
            Verdict::Partly(lines) => lines,
            Verdict::Refused => Vec::new(),
        };
        let mut lines: Vec<_> = verdicts.into_iter().flat_map(of_verdict).collect();
        lines.sort_unstable();
        lines.dedup();
        Answer { extent, lines, refused }
    }
}

fn unknown(name: &str, meant: Option<&str>, known: &[String]) -> String {
    match (meant, known) {
        (Some(meant), _) => format!("no machine is called {name}; did you mean {meant}?"),
        (None, []) => format!("no machine is called {name}; none has joined yet"),
        (None, known) => format!("no machine is called {name}; there are {}", known.join(", ")),
    }
}

/// The machine with this name.
///
/// # Errors
/// [`QuestionError::Unknown`], which suggests a similar name.
pub fn named<'d>(name: &str, machines: &'d Directory) -> Result<&'d Machine, QuestionError> {
    machines.machine(name).ok_or_else(|| QuestionError::Unknown {
        name: name.to_owned(),
        meant: similar(name, machines.names()).map(str::to_owned),
        known: machines.names().take(NAMED).map(str::to_owned).collect(),
    })
}

/// The addresses of a machine, or the address itself.
fn addresses(end: &str, machines: &Directory) -> Result<Vec<IpAddr>, QuestionError> {
    match end.parse() {
        Ok(address) => Ok(vec![address]),
        Err(_) => Ok(named(end, machines)?.addresses.clone()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::policy::Policy;

    #[test]
    fn all_addresses_of_both_ends_have_to_be_allowed() {
        let machine = |name: &str, addresses: &[&str]| Machine {
            name: name.to_owned(),
            addresses: addresses.iter().map(|address| address.parse().unwrap()).collect(),
            ..Machine::default()
        };
        let machines = Directory::new([
            machine("laptop", &["10.0.0.1", "fd00::1"]),
            machine("db", &["10.0.0.2", "fd00::2"]),
            machine("old", &["10.0.0.3"]),
            machine("new", &["fd00::4"]),
        ]);
        let text = "allow laptop -> db tcp/1\nallow laptop -> 10.0.0.2 icmp\nallow laptop -> db tcp/2";
        let rules = Policy::parse(text).0.unwrap().all(&machines);
        let ask = |from: &str, to: &str, traffic: Option<&str>| {
            let question = Question::new(from, to, traffic, &machines).map_err(|error| error.to_string())?;
            let Answer { extent, lines, .. } = question.answer(&rules);
            Ok::<_, String>((extent.word(), lines))
        };
        assert_eq!(ask("laptop", "db", Some("tcp/1")), Ok(("allowed", vec![1])));
        assert_eq!(ask("laptop", "db", Some("icmp")), Ok(("partly", vec![2])), "not by IPv6");
        let icmp = Question::new("laptop", "db", Some("icmp"), &machines).unwrap().answer(&rules);
        assert_eq!(icmp.refused, [("fd00::1".parse().unwrap(), "fd00::2".parse().unwrap())]);
        assert_eq!(ask("laptop", "10.0.0.2", Some("icmp")), Ok(("allowed", vec![2])));
        assert_eq!(ask("laptop", "db", None), Ok(("partly", vec![1, 2, 3])));
        assert_eq!(ask("db", "laptop", None), Ok(("refused", vec![])));
        assert_eq!(
            ask("nobody", "db", None).unwrap_err(),
            "no machine is called nobody; there are db, laptop, new, old"
        );
        assert_eq!(ask("latpop", "db", None).unwrap_err(), "no machine is called latpop; did you mean laptop?");
        assert_eq!(ask("old", "new", None).unwrap_err(), "old and new have no addresses of one version of IP");
        assert!(ask("old", "db", Some("tpc/1")).unwrap_err().contains("tpc"));
    }
}
