//! The tables of nftables, as values. Whoever loads them makes the script out of these.

use super::{
    command::{self, find_program},
    error::HostError,
    iptables, nftables,
};
use crate::{
    gateway::Gateway,
    outside::{self, Answer, Task},
};
use ipnet::IpNet;
use serde::{Deserialize, Serialize};

/// What becomes of the tables of an interface.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Rules {
    /// The guard of these default routes.
    Guard { defaults: Vec<IpNet>, mark: u32, addresses: Vec<IpNet> },
    /// No guard for these families.
    NoGuard { v4: bool, v6: bool },
    /// Address translation.
    Nat { v4: bool, v6: bool, gateway: Gateway },
    /// No translation for these families.
    NoNat { v4: bool, v6: bool },
}

impl Rules {
    /// The commands for nft.
    fn script(&self, interface: &str) -> String {
        match self {
            Self::Guard { defaults, mark, addresses } => nftables::guard(interface, defaults, *mark, addresses),
            Self::NoGuard { v4, v6 } => nftables::without(&nftables::guard_name(interface), *v4, *v6),
            Self::Nat { v4, v6, gateway } => nftables::nat(interface, *v4, *v6, gateway),
            Self::NoNat { v4, v6 } => nftables::without(&nftables::nat_name(interface), *v4, *v6),
        }
    }
}

/// Loads or removes tables. Without `nft`, the guard is made of rules of iptables, and nothing else happens: there were no tables, or the
/// package of `nft` was removed with them, and this program has no other way to change nftables.
pub(super) async fn load(interface: &str, rules: Rules) -> Result<(), HostError> {
    match outside::get() {
        Some(outside) => match outside.ask(Task::Rules(rules)).await {
            Answer::Done => Ok(()),
            answer => Err(HostError::outside("change the rules of nftables", interface, answer)),
        },
        None => load_here(interface, &rules).await,
    }
}

/// The same by this process itself.
pub(crate) async fn load_here(interface: &str, rules: &Rules) -> Result<(), HostError> {
    if let Some(nft) = find_program("nft") {
        command::run(&nft, &["-f", "-"], &rules.script(interface)).await?;
    } else if let Rules::Guard { defaults, mark, addresses } = rules {
        return iptables::guard(interface, defaults, *mark, addresses).await;
    }
    if let Rules::NoGuard { v4, v6 } = rules {
        // Whichever has put it up: `nft` may have been installed since.
        iptables::remove(interface, *v4, *v6).await?;
    }
    Ok(())
}
