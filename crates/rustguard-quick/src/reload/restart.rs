//! The changes that a running tunnel cannot take over.

use super::difference::Difference;
use crate::conf::Config;
use ipnet::IpNet;
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

const SPEAKER: &str = "the Babel speaker gets it when it starts";
const TABLES: &str = "the routes that Babel has learned are in the tables of the start";

impl Difference {
    /// The changes that a running tunnel with the configuration `from` cannot take over.
    pub fn needs_restart(&self, from: &Config) -> Vec<NeedsRestart> {
        let interface = &self.interface;
        // A network brings an engine with it.
        if interface.routing.is_some() && interface.network.is_none() {
            let reason = "the routing protocol is chosen when the tunnel starts";
            return vec![NeedsRestart { setting: "Routing", reason }];
        }
        let mut needed = Vec::new();
        let mut to = from.clone();
        self.apply_to(&mut to);
        let several = [from, &to].iter().any(|config| !config.interface.more_listen_ports.is_empty());
        if interface.more_listen_ports.is_some() || several && interface.listen_port.is_some() {
            let reason = "several ports are bound when the tunnel starts";
            needed.push(NeedsRestart { setting: "ListenPort", reason });
        }
        let translates = |config: &Config| config.interface.nat == Some(true);
        if interface.nat.is_some()
            || translates(from) && !(interface.announce.is_empty() && interface.addresses.is_empty())
        {
            let reason = "the rules of address translation are made when the tunnel starts";
            needed.push(NeedsRestart { setting: "Nat", reason });
        }
        if interface.listen_addresses.is_some() {
            let reason = "the sockets get their addresses when the tunnel starts";
            needed.push(NeedsRestart { setting: "ListenAddress", reason });
        }
        if interface.network.is_some() {
            let reason = "the tunnel takes part in a network from its start on";
            needed.push(NeedsRestart { setting: "Network", reason });
        }
        // Without a routing protocol its settings have no effect.
        if !from.interface.routing.learns() {
            return needed;
        }
        let first_v4 = |config: &Config| config.interface.addresses.iter().find(|net| net.addr().is_ipv4()).copied();
        let guarded = has_default(from) && !interface.addresses.is_empty();
        let settings = [
            // A member of a network changes its key while it runs. The speaker keeps its identity until the next start.
            (
                interface.private_key.is_some() && from.interface.network.is_none(),
                "PrivateKey",
                "the identity of the Babel speaker is made of it",
            ),
            (interface.redistribute.is_some(), "Redistribute", SPEAKER),
            (interface.pins.is_some(), "Pin", SPEAKER),
            (interface.source_check.is_some(), "SourceCheck", "the workers get it when they start"),
            (interface.node_name.is_some(), "NodeName", SPEAKER),
            (first_v4(from) != first_v4(&to), "Address", "the Babel speaker uses the first IPv4 address as its own"),
            (guarded, "Address", "the guard of a learned default route protects the addresses of the start"),
            (interface.table.is_some(), "Table", TABLES),
            (
                defaults(from) != defaults(&to),
                "AllowedIPs",
                "a default route may be learned or not; that is prepared when the tunnel starts",
            ),
            (has_default(from) && interface.fwmark.is_some(), "FwMark", TABLES),
        ];
        let changed = settings.into_iter().filter(|(changes, ..)| *changes);
        needed.extend(changed.map(|(_, setting, reason)| NeedsRestart { setting, reason }));
        needed
    }
}

/// Whether a default route of IPv4 and of IPv6 may be learned.
fn defaults(config: &Config) -> [bool; 2] {
    let nets = || config.peers.iter().flat_map(|peer| &peer.allowed_ips).filter(|net| net.prefix_len() == 0);
    [nets().any(|net| matches!(net, IpNet::V4(_))), nets().any(|net| matches!(net, IpNet::V6(_)))]
}

fn has_default(config: &Config) -> bool {
    defaults(config).contains(&true)
}
