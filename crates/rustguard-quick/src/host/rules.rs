//! The tables of nftables, as values. The process that loads them makes the script.

use super::{
    command::{self, find_program},
    error::HostError,
    iptables, nftables,
};
use crate::helper::{self, Answer, Rules, Task};

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

/// Loads or removes tables. Without `nft`, the guard uses rules of iptables, and nothing else happens: no tables exist,
/// or the package of `nft` was removed while they existed, and this program cannot change nftables otherwise.
pub(super) async fn load(interface: &str, rules: Rules) -> Result<(), HostError> {
    match helper::get() {
        Some(helper) => match helper.ask(Task::Rules(rules)).await {
            Answer::Done => Ok(()),
            answer => Err(HostError::helper("change the rules of nftables", interface, answer)),
        },
        None => load_here(interface, &rules).await,
    }
}

/// Loads or removes tables in this process itself.
pub(crate) async fn load_here(interface: &str, rules: &Rules) -> Result<(), HostError> {
    if let Some(nft) = find_program("nft") {
        command::run(&nft, &["-f", "-"], &rules.script(interface)).await?;
    } else if let Rules::Guard { defaults, mark, addresses } = rules {
        return iptables::guard(interface, defaults, *mark, addresses).await;
    }
    if let Rules::NoGuard { v4, v6 } = rules {
        // The guard may be in iptables although `nft` exists now: `nft` may have been installed since.
        iptables::remove(interface, *v4, *v6).await?;
    }
    Ok(())
}
