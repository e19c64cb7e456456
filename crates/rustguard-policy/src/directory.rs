//! The machines of a network, as far as a policy names them.

use crate::policy::Item;
use ipnet::IpNet;
use std::{
    collections::{BTreeMap, BTreeSet},
    net::IpAddr,
};

/// One machine of the network.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Machine {
    /// Its name, which no other machine has.
    pub name: String,
    /// Its tags.
    pub tags: Vec<String>,
    /// Its addresses in the network.
    pub addresses: Vec<IpAddr>,
    /// The prefixes behind it.
    pub prefixes: Vec<IpNet>,
    /// Whether it is a server. A server enforces for its stock clients in both directions, so it has all rules.
    pub server: bool,
}

/// The machines of a network.
#[derive(Clone, Debug, Default)]
pub struct Directory {
    machines: Vec<Machine>,
    names: BTreeMap<String, usize>,
    tags: BTreeMap<String, Vec<usize>>,
}

impl Directory {
    /// A directory of these machines.
    pub fn new(machines: impl IntoIterator<Item = Machine>) -> Self {
        let mut directory = Self { machines: machines.into_iter().collect(), ..Self::default() };
        for (at, machine) in directory.machines.iter().enumerate() {
            directory.names.insert(machine.name.clone(), at);
            let tags: BTreeSet<_> = machine.tags.iter().collect();
            tags.into_iter().for_each(|tag| directory.tags.entry(tag.clone()).or_default().push(at));
        }
        directory
    }

    /// All machines.
    pub fn machines(&self) -> &[Machine] {
        &self.machines
    }

    /// The machine with this name.
    pub fn machine(&self, name: &str) -> Option<&Machine> {
        self.names.get(name).map(|at| &self.machines[*at])
    }

    /// The names of all machines.
    pub fn names(&self) -> impl Iterator<Item = &str> {
        self.names.keys().map(String::as_str)
    }

    /// The tags that some machine has.
    pub fn tags(&self) -> impl Iterator<Item = &str> {
        self.tags.keys().map(String::as_str)
    }

    /// The machines that an item names. A prefix names none, `*` all.
    pub(crate) fn named<'d>(&'d self, item: &Item) -> Box<dyn Iterator<Item = &'d Machine> + 'd> {
        match item {
            Item::All => Box::new(self.machines.iter()),
            Item::Machine(name) => Box::new(self.machine(name).into_iter()),
            Item::Tag(tag) => Box::new(self.tags.get(tag).into_iter().flatten().map(|at| &self.machines[*at])),
            Item::Prefix(_) => Box::new(std::iter::empty()),
        }
    }

    /// The addresses of an item. A name stands for the machine only, not for the networks behind it.
    pub(crate) fn prefixes(&self, item: &Item) -> Vec<IpNet> {
        match item {
            Item::All => everything().into(),
            Item::Prefix(prefix) => vec![*prefix],
            Item::Machine(_) | Item::Tag(_) => {
                self.named(item).flat_map(|machine| &machine.addresses).map(|address| (*address).into()).collect()
            }
        }
    }
}

/// All addresses.
pub(crate) fn everything() -> [IpNet; 2] {
    [IpNet::V4(ipnet::Ipv4Net::default()), IpNet::V6(ipnet::Ipv6Net::default())]
}
