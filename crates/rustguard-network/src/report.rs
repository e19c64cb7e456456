//! A running member's view of its network, for other processes: `/run/rustguard/NAME.network`, which only root can
//! read.

use ipnet::IpNet;
use rustguard_device::interface::run_file;
use rustguard_quick::run_file;
use rustguard_roster::{
    member::{Member, Role},
    roster::Roster,
};
use serde::{Deserialize, Serialize};
use std::{collections::HashMap, fs, io, net::IpAddr};

/// The state of a member. Texts from the network are labels, addresses and prefixes only.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
#[non_exhaustive]
pub struct Report {
    /// The network's key.
    pub key: String,
    /// The network's name. `None` while there is no roster.
    pub name: Option<String>,
    /// The public key that this machine uses, in base64.
    pub own_key: String,
    /// This machine's name in the network.
    pub own_name: Option<String>,
    /// Whether the roster contains this machine.
    pub standing: Standing,
    /// The number of the roster.
    pub number: u64,
    /// When it was issued, by the clock of the issuer: seconds since 1970. Servers issue one every hour. An older one
    /// means that newer ones are withheld, or that there is no server.
    pub issued: u64,
    /// The number of members, this machine included.
    pub members: usize,
    /// The number of members that are no peers yet, because no server has sent the key of the pair.
    pub without_key: usize,
    /// Whether this machine's file makes it a standby.
    pub standby: bool,
    /// On a standby: when the server state on its disk was made, in seconds since 1970.
    pub server_state: Option<u64>,
    /// The parts of the roster that this machine does not accept, with the reasons.
    pub refused: Vec<String>,
    /// All members, in the order of their names, this machine included.
    pub list: Vec<Listed>,
}

/// A member as the roster has it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct Listed {
    /// Its name in the network, a label.
    pub name: String,
    /// Its WireGuard key, in base64.
    pub public_key: String,
    /// Its addresses in the network.
    pub addresses: Vec<IpAddr>,
    /// Its role.
    pub role: ListedRole,
    /// The name of the server that decrypts for a client.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub server: Option<String>,
    /// Its tags.
    #[serde(default)]
    pub tags: Vec<String>,
    /// The prefixes behind it.
    #[serde(default)]
    pub prefixes: Vec<IpNet>,
}

/// The role of a member.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
#[non_exhaustive]
pub enum ListedRole {
    /// It has sessions with all others.
    Member,
    /// It also relays sealed datagrams.
    Server,
    /// A stock WireGuard, for which a server decrypts.
    Client,
}

/// The members of a roster, in the order of their names.
pub(crate) fn listed(roster: &Roster) -> Vec<Listed> {
    let servers: HashMap<_, _> = roster
        .members()
        .filter(|member| member.role == Role::Server)
        .map(|member| (member.public_key, member.name.to_string()))
        .collect();
    let listed = |member: &Member| {
        let (role, server) = match &member.role {
            Role::Server => (ListedRole::Server, None),
            Role::Client(server) => (ListedRole::Client, servers.get(server).cloned()),
            _ => (ListedRole::Member, None),
        };
        Listed {
            name: member.name.to_string(),
            public_key: member.public_key.to_string(),
            addresses: member.addresses.clone(),
            role,
            server,
            tags: member.tags.iter().map(ToString::to_string).collect(),
            prefixes: member.prefixes.clone(),
        }
    };
    let mut list: Vec<_> = roster.members().map(|member| listed(member)).collect();
    list.sort_unstable_by(|a, b| a.name.cmp(&b.name));
    list
}

/// A name as users write it, `Laptop` or `laptop.home.internal` with or without a final dot, in the form of the roster:
/// `laptop`.
pub fn short_name(word: &str, network: Option<&str>) -> String {
    let lower = word.to_ascii_lowercase();
    let name = lower.strip_suffix('.').unwrap_or(&lower);
    let short = network.and_then(|network| name.strip_suffix(".internal")?.strip_suffix(network)?.strip_suffix('.'));
    short.unwrap_or(name).to_owned()
}

/// Whether a machine is a member.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
#[non_exhaustive]
pub enum Standing {
    /// No roster contains this machine yet. The tunnel follows its file only.
    #[default]
    Waiting,
    /// The roster contains it.
    Member,
    /// The roster contained it, and no longer does.
    Removed,
}

impl Report {
    /// The report of a running member. `None` if the interface does not belong to a member.
    ///
    /// # Errors
    /// The file cannot be read.
    pub fn read(interface: &str) -> io::Result<Option<Self>> {
        match fs::read(run_file(interface, "network")) {
            Ok(text) => Ok(Some(serde_json::from_slice(&text)?)),
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
            Err(error) => Err(error),
        }
    }

    /// The member that a user means: by its name, with or without the network's, its key, or one of its addresses.
    pub fn listed(&self, word: &str) -> Option<&Listed> {
        let address = word.parse::<IpAddr>().ok();
        let name = short_name(word, self.name.as_deref());
        let is_meant = |listed: &&Listed| {
            listed.name == name
                || listed.public_key == word
                || address.is_some_and(|address| listed.addresses.contains(&address))
        };
        self.list.iter().find(is_meant)
    }

    pub(crate) fn write(&self, interface: &str) -> io::Result<()> {
        let text = serde_json::to_vec(self).expect("plain data");
        run_file::replace(&run_file(interface, "network"), &text)
    }

    pub(crate) fn remove(interface: &str) {
        // If the file does not exist, there is nothing to remove, and `/run` is in memory.
        let _ = fs::remove_file(run_file(interface, "network"));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn members_as_people_call_them() {
        let report: Report = serde_json::from_value(json!({
            "name": "home",
            "list": [
                { "name": "desk", "public_key": "KEY=", "addresses": ["10.1.0.2", "fd00::2"], "role": "member" },
                { "name": "home", "public_key": "OTHER=", "addresses": [], "role": "server" },
            ],
        }))
        .unwrap();
        for (word, name) in [
            ("desk", Some("desk")),
            ("Desk", Some("desk")),
            ("desk.home.internal", Some("desk")),
            ("DESK.home.internal.", Some("desk")),
            ("home.home.internal", Some("home")),
            ("KEY=", Some("desk")),
            ("10.1.0.2", Some("desk")),
            ("fd00:0::2", Some("desk")),
            ("home", Some("home")),
            ("desk.other.internal", None),
            ("deskhome.internal", None),
            ("home.internal", None),
            ("10.1.0.3", None),
            ("", None),
        ] {
            assert_eq!(report.listed(word).map(|listed| listed.name.as_str()), name, "{word}");
        }
    }
}
