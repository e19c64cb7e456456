//! The policy: which packets of peers this device accepts for itself and for the networks behind it.
//!
//! [`Builder::policy`](crate::Builder::policy) and [`DeviceHandle::set_policy`](crate::DeviceHandle::set_policy) set
//! it. Every packet of a peer is judged that goes to the host, or that is decrypted here and relayed to another peer.
//! It passes if it belongs to a flow that this host began, or to a flow that the [`Rules`] allow. Answers of such a
//! flow and ICMP errors about it pass too. Packets of the host always pass. TCP connections that the host began before
//! there was a policy continue; the kernel's lists of sockets (`/proc/net/tcp`) contain them. An earlier UDP flow
//! counts as begun by the host if its port here is a dynamic port, or equal to the port of the other end.
//!
//! A refused packet is answered (a TCP reset, or ICMP "administratively prohibited"), so that programs do not wait, and
//! counted ([`DropReason::Policy`](crate::DropReason::Policy), [`Status::policy`](crate::Status::policy)).
//!
//! ```
//! use rustguard_device::{Device, policy::{Policy, Rules, Traffic}};
//!
//! let web = Rules::builder()
//!     .allow(1, ["10.0.0.0/24".parse()?], ["10.0.0.2/32".parse()?], Traffic::tcp([443..=443]))
//!     .build();
//! let builder = Device::builder().policy(Some(Policy::new(web.into())));
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

mod before;
mod conntrack;
mod fragments;
pub(crate) mod gate;
pub(crate) mod refusals;
pub(crate) mod seat;

use ipnet::IpNet;
use rustguard_core::{allowed_ips::AllowedIps, dissect::Tuple, node::PeerId, packet::IpHead};
pub use rustguard_policy::rules::{Flow, Rules, Traffic};
use std::{collections::HashSet, net::IpAddr, sync::Arc};

/// Entries of a device's table. Each takes 80 bytes, and 40 in the index. A full table takes 8 MB.
const CAPACITY: usize = 65_536;

/// A policy for one device.
#[derive(Clone, Debug, PartialEq)]
pub struct Policy {
    rules: Arc<Rules>,
    others: Vec<IpNet>,
    own: Vec<IpNet>,
}

impl Policy {
    /// A policy of these rules. Every packet of a peer is judged.
    pub fn new(rules: Arc<Rules>) -> Self {
        Self { rules, others: Vec::new(), own: Vec::new() }
    }

    /// Adds prefixes of members that enforce a policy themselves. A packet for them that this device relays is not
    /// judged here.
    ///
    /// If the host's network stack forwards the packet instead of the device, only prefixes of a single address count.
    /// In any other prefix, the host could have an address of its own, and the packet could be for the host.
    #[must_use]
    pub fn others(mut self, prefixes: impl IntoIterator<Item = IpNet>) -> Self {
        self.others.extend(prefixes);
        self
    }

    /// Adds prefixes that this device protects: its own addresses, the networks behind it, and peers that enforce no
    /// policy. Packets for these prefixes are judged, unless a longer prefix of [`others`](Self::others) contains the
    /// destination. Packets from them are judged with any destination.
    #[must_use]
    pub fn own(mut self, prefixes: impl IntoIterator<Item = IpNet>) -> Self {
        self.own.extend(prefixes);
        self
    }
}

/// Where a packet of a peer goes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Scope {
    /// To the host's network stack.
    Host,
    /// To another peer.
    Relayed,
}

/// A policy, prepared for look-ups.
struct Judge {
    rules: Arc<Rules>,
    /// The owner of each prefix: [`OWN`] or [`OTHERS`].
    prefixes: AllowedIps,
    /// Single addresses of others.
    addresses: HashSet<IpAddr>,
}

const OWN: PeerId = PeerId(0);
const OTHERS: PeerId = PeerId(1);

impl Judge {
    fn new(policy: &Policy) -> Self {
        let single = |net: &IpNet| net.prefix_len() == net.max_prefix_len();
        let mut prefixes = AllowedIps::default();
        let mut addresses: HashSet<_> = policy.others.iter().filter(|net| single(net)).map(IpNet::addr).collect();
        for &net in &policy.others {
            prefixes.insert(net, OTHERS);
        }
        for &net in &policy.own {
            prefixes.insert(net, OWN);
            addresses.remove(&net.addr());
        }
        Self { rules: Arc::clone(&policy.rules), prefixes, addresses }
    }

    fn allows(&self, tuple: &Tuple) -> bool {
        let (from, to) = (tuple.source(), tuple.destination());
        self.rules.allows(&Flow { from, to, protocol: tuple.protocol, port: tuple.destination_port() }).is_some()
    }

    /// Whether another member judges the packet.
    fn is_for_others(&self, head: &IpHead, scope: Scope) -> bool {
        let for_others = match scope {
            Scope::Host => self.addresses.contains(&head.destination),
            Scope::Relayed => self.prefixes.lookup(head.destination) == Some(OTHERS),
        };
        for_others && self.prefixes.lookup(head.source) != Some(OWN)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn net(text: &str) -> IpNet {
        text.parse().unwrap()
    }

    #[test]
    fn what_others_judge_is_not_judged_here() {
        let policy = Policy::new(Arc::default())
            .others(["10.0.0.3/32", "10.0.0.9/32", "192.168.0.0/16", "0.0.0.0/0"].map(net))
            .own(["10.0.0.2/32", "10.0.0.9/32", "192.168.7.0/24"].map(net));
        let judge = Judge::new(&policy);
        let for_others = |from: &str, to: &str, scope| {
            let head = IpHead { source: from.parse().unwrap(), destination: to.parse().unwrap(), len: 20 };
            judge.is_for_others(&head, scope)
        };
        // (destination, whether others judge it if it is relayed, if it goes to the host)
        for (to, relayed, host) in [
            ("10.0.0.3", true, true),
            ("10.0.0.2", false, false),
            // The same prefix in both.
            ("10.0.0.9", false, false),
            ("192.168.7.1", false, false),
            ("192.168.8.1", true, false),
            ("8.8.8.8", true, false),
            ("fd00::1", false, false),
        ] {
            assert_eq!(for_others("10.0.0.1", to, Scope::Relayed), relayed, "{to}");
            assert_eq!(for_others("10.0.0.1", to, Scope::Host), host, "{to}");
            assert!(!for_others("192.168.7.1", to, Scope::Relayed), "from one whom this device answers for");
            assert!(!for_others("192.168.7.1", to, Scope::Host), "from one whom this device answers for");
        }
        let judge = Judge::new(&Policy::new(Arc::default()));
        let head = IpHead { source: [10, 0, 0, 1].into(), destination: [10, 0, 0, 3].into(), len: 20 };
        assert!(!judge.is_for_others(&head, Scope::Relayed) && !judge.is_for_others(&head, Scope::Host));
    }
}
