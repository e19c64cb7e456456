//! Whether netfilter's rules permit relaying.

use crate::{
    interface::Interface,
    kernel::{ForwardRules, RulesWatch},
    relay::Relay,
};
use tokio::sync::mpsc;

/// Open while netfilter has no rule that a forwarded packet would meet.
pub(super) struct RelayGate {
    watch: Option<RulesWatch>,
    pub(super) rules: ForwardRules,
    /// Legacy iptables is followed as well, which takes a look every second.
    following: bool,
}

impl RelayGate {
    /// For a device with an interface. Where the kernel is asked about routes ([`Relay::Auto`]), the watch begins with
    /// the first packet between peers: an idle device is not woken for it.
    pub(super) fn new(relay: &Relay, interface: &Interface, found: mpsc::Sender<ForwardRules>) -> Self {
        if matches!(relay, Relay::Off | Relay::Isolate) {
            return Self::always_open();
        }
        let watch = RulesWatch::start(interface.name.clone(), found);
        let following = *relay != Relay::Auto;
        if following {
            watch.ask();
        }
        Self { watch: Some(watch), rules: ForwardRules::Unknown, following }
    }

    /// A gate that is open whatever rules netfilter has.
    pub(super) fn always_open() -> Self {
        Self { watch: None, rules: ForwardRules::None, following: false }
    }

    pub(super) fn is_open(&self) -> bool {
        self.rules == ForwardRules::None
    }

    /// Follows legacy iptables as well from now on. Nothing is relayed before the first look at it.
    pub(super) fn follow(&mut self) {
        if let Some(watch) = &self.watch
            && !std::mem::replace(&mut self.following, true)
        {
            self.rules = ForwardRules::Unknown;
            watch.ask();
        }
    }
}
