//! The changes that an adopted list of members makes.
use super::PublicKey;
use crate::words::{called, list};
use rustguard_enroll::{lease::Lease, ledger::Adoption};
use serde::{Deserialize, Serialize};
use std::{collections::BTreeSet, fmt, net::IpAddr};

/// The answer to [`Request::Adopt`](super::Request::Adopt).
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct Adopted {
    /// The number of the list.
    pub list: u64,
    /// Whether the changes were made.
    pub adopted: bool,
    /// The changes.
    pub changes: Vec<MachineChange>,
    /// Warnings for the administrator before the adoption.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub warnings: Vec<String>,
}

/// A list's change of one machine.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "change", rename_all = "kebab-case")]
#[non_exhaustive]
pub enum MachineChange {
    /// Only the list has it.
    Comes {
        /// Its name.
        machine: String,
        /// Its key.
        #[serde(with = "super::text")]
        public_key: PublicKey,
        /// Its addresses.
        addresses: Vec<IpAddr>,
        /// Its role.
        role: String,
        /// A note for the user.
        note: String,
    },
    /// The list does not have it.
    Goes {
        /// Its name.
        machine: String,
        /// Its key.
        #[serde(with = "super::text")]
        public_key: PublicKey,
        /// Its addresses.
        addresses: Vec<IpAddr>,
    },
    /// The list has another value.
    Changes {
        /// Its name before.
        machine: String,
        /// The changed field: `key`, `name`, `tags`, `prefixes`, `addresses`, `role` or `endpoints`.
        setting: String,
        /// The old value.
        from: String,
        /// The value in the list.
        to: String,
    },
}

impl MachineChange {
    /// All changes, new machines first.
    pub(crate) fn all(adoption: &Adoption) -> Vec<Self> {
        let came = adoption.came.iter().map(|lease| Self::Comes {
            machine: called(lease),
            public_key: lease.public_key,
            addresses: lease.addresses().collect(),
            role: role(lease).to_owned(),
            note: note(lease),
        });
        let gone = adoption.gone.iter().map(|lease| Self::Goes {
            machine: called(lease),
            public_key: lease.public_key,
            addresses: lease.addresses().collect(),
        });
        let changed = adoption.changed.iter().flat_map(|(before, after)| Self::between(before, after));
        came.chain(gone).chain(changed).collect()
    }

    /// Another name of the server itself.
    pub(crate) fn of_own_name((from, to): (String, String)) -> Self {
        Self::Changes { machine: format!("{from} (this server)"), setting: "name".to_owned(), from, to }
    }

    fn between(before: &Lease, after: &Lease) -> Vec<Self> {
        let prefixes = |lease: &Lease| list(lease.prefixes().collect::<BTreeSet<_>>());
        let values = |lease: &Lease| {
            [
                ("key", lease.public_key.to_string()),
                ("name", lease.name.clone().unwrap_or_else(|| "none".to_owned())),
                ("tags", list(&lease.tags)),
                ("prefixes", prefixes(lease)),
                ("addresses", list(lease.addresses())),
                ("role", role(lease).to_owned()),
                ("endpoints", list(&lease.endpoints)),
            ]
        };
        let pairs = values(before).into_iter().zip(values(after)).filter(|(from, to)| from != to);
        let change = |((setting, from), (_, to)): ((&str, String), (&str, String))| Self::Changes {
            machine: called(before),
            setting: setting.to_owned(),
            from,
            to,
        };
        pairs.map(change).collect()
    }
}

impl fmt::Display for MachineChange {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Comes { machine, addresses, role, note, .. } => {
                write!(f, "+ {machine} {}, {role} ({note})", list(addresses))
            }
            Self::Goes { machine, addresses, .. } => write!(f, "- {machine} {}", list(addresses)),
            Self::Changes { machine, setting, from, to } => write!(f, "~ {machine} {setting} {from} → {to}"),
        }
    }
}

fn role(lease: &Lease) -> &'static str {
    match (lease.member, lease.is_server()) {
        (_, true) => "a further server",
        (true, false) => "a member",
        (false, false) => "a client",
    }
}

/// Lists do not contain preshared keys.
fn note(lease: &Lease) -> String {
    if lease.member {
        return "its preshared key with this server is lost: it has none until it joins again".to_owned();
    }
    let name = called(lease);
    format!("its preshared key is lost, and it does not connect: rustguard peer rm {name}; rustguard peer add {name}")
}
