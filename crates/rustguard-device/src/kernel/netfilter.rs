//! Checks whether netfilter would process a packet that the host forwards from the tunnel back into it.
//!
//! The check covers the base chains of nftables (family ip, ip6, inet; hook prerouting, forward, postrouting; and those
//! of inet and netdev that hook the interface itself) and the tables of legacy iptables. For the kernel, iptables-nft
//! is nftables. The check ignores:
//!
//! - chains of type nat: they translate addresses, and the usual one, masquerading, concerns other interfaces;
//! - chains without a rule and with the policy accept: they decide nothing;
//! - the guards of tunnels with a default route in nftables, ours and wg-quick's: their rules concern other interfaces.
//!   A guard in iptables counts, because it stands in tables that others use.
//!
//! Prerouting and postrouting count as well as forward, because a packet can be dropped at any of them. The check does
//! not ask which packets a rule would match: an expression can be anything, sets included, and a wrong guess would let
//! through what an administrator forbids.
//!
//! nftables announces its changes (NFNLGRP_NFTABLES), which end the relay within 0.1 s where a processor is free.
//! Legacy iptables does not, so its tables are checked every second from the first packet between peers on. Until the
//! first answer, and when the kernel does not answer, nothing is relayed. tc filters and eBPF programs on the interface
//! are not looked for.

use super::answers::ForwardRules;
use futures_util::FutureExt as _;
use rtnetlink::{
    packet_core::{NetlinkBuffer, NlasIterator},
    sys::{AsyncSocket as _, AsyncSocketExt as _, SocketAddr, TokioSocket, protocols::NETLINK_NETFILTER},
};
use std::{io, sync::Arc, time::Duration};
use tokio::{
    sync::{Notify, mpsc},
    task::JoinHandle,
    time::{Instant, MissedTickBehavior},
};

/// The minimum pause between two checks. Loading a firewall causes thousands of announcements.
const PAUSE: Duration = Duration::from_millis(100);
/// The pause is at least this many times the duration of the last check, up to [`TICK`]: on a busy machine a check
/// takes long because it waits for a processor, and a new rule must not wait nine times as long again.
const REST: u32 = 9;
/// The interval between checks of legacy iptables' tables. Without announcements all of the check is repeated at this
/// interval.
const TICK: Duration = Duration::from_secs(1);
/// The number of dumps that changes may interrupt before the answer is "not known".
const TRIES: usize = 5;

// linux/netfilter/nfnetlink.h, linux/netfilter/nf_tables.h, linux/netlink.h
const SUBSYSTEM: u16 = 10;
const NFNLGRP_NFTABLES: u32 = 7;
const NFT_MSG_NEWCHAIN: u16 = 3;
const NFT_MSG_GETCHAIN: u16 = 4;
const NLMSG_ERROR: u16 = 2;
const NLMSG_DONE: u16 = 3;
const NLM_F_REQUEST: u16 = 0x1;
const NLM_F_DUMP: u16 = 0x300;
const NLM_F_DUMP_INTR: u16 = 0x10;
const HEADER: u32 = 20;
const NFTA_CHAIN_TABLE: u16 = 1;
const NFTA_CHAIN_NAME: u16 = 3;
const NFTA_CHAIN_HOOK: u16 = 4;
const NFTA_CHAIN_POLICY: u16 = 5;
const NFTA_CHAIN_USE: u16 = 6;
const NFTA_CHAIN_TYPE: u16 = 7;
const NFTA_HOOK_HOOKNUM: u16 = 1;
const NFTA_HOOK_DEV: u16 = 3;
const NFTA_HOOK_DEVS: u16 = 4;
const NFPROTO_INET: u8 = 1;
const NFPROTO_IPV4: u8 = 2;
const NFPROTO_NETDEV: u8 = 5;
const NFPROTO_IPV6: u8 = 10;
const HOOK_PREROUTING: u32 = 0;
const HOOK_FORWARD: u32 = 2;
const HOOK_POSTROUTING: u32 = 4;
const HOOK_INGRESS: u32 = 5;
const NF_ACCEPT: u32 = 1;

/// The names of legacy iptables' tables in this network namespace. The files are those of the thread, because its
/// namespace can differ from that of the process.
const LEGACY: [(&str, &str); 2] = [
    ("iptables-legacy", "/proc/thread-self/net/ip_tables_names"),
    ("ip6tables-legacy", "/proc/thread-self/net/ip6_tables_names"),
];

/// Repeats the check in a separate task when something may have changed.
pub(crate) struct RulesWatch {
    asked: Arc<Notify>,
    task: JoinHandle<()>,
}

impl RulesWatch {
    /// Starts the check for packets of the interface. The first result, and each different one, is sent to `found`.
    /// Legacy iptables is included from the first [`ask`](Self::ask) on.
    pub(crate) fn start(interface: String, found: mpsc::Sender<ForwardRules>) -> Self {
        let asked = Arc::new(Notify::new());
        let task = tokio::spawn(watch(interface, found, Arc::clone(&asked)));
        Self { asked, task }
    }

    /// Requests a complete check. Its result is sent even if it has not changed.
    pub(crate) fn ask(&self) {
        self.asked.notify_one();
    }
}

impl Drop for RulesWatch {
    fn drop(&mut self) {
        self.task.abort();
    }
}

async fn watch(interface: String, found: mpsc::Sender<ForwardRules>, asked: Arc<Notify>) {
    // The subscription precedes the check, so a change in between is seen twice and never missed.
    let mut subscription = subscribe();
    let mut ticks = tokio::time::interval(TICK);
    ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    let (mut told, mut tables, mut following) = (None, ForwardRules::Unknown, false);
    let (mut look, mut answer) = (true, false);
    loop {
        let started = Instant::now();
        if look || subscription.is_err() {
            tables = nftables(&interface).await.unwrap_or_else(|error| {
                if told.is_none() {
                    tracing::warn!(
                        "cannot read the rules of nftables, so packets between peers go through the host: {error}"
                    );
                }
                ForwardRules::Unknown
            });
        }
        let now = match (&tables, legacy()) {
            (ForwardRules::None, Some(table)) => ForwardRules::Seen(table),
            (tables, _) => tables.clone(),
        };
        if std::mem::take(&mut answer) || told.as_ref() != Some(&now) {
            told = Some(now.clone());
            if found.send(now).await.is_err() {
                return;
            }
        }
        if look {
            tokio::time::sleep(pause(started.elapsed())).await;
        }
        look = tokio::select! {
            () = changed(&mut subscription) => true,
            () = asked.notified() => {
                (following, answer) = (true, true);
                true
            }
            _ = ticks.tick(), if following || subscription.is_err() || tables == ForwardRules::Unknown => {
                tables == ForwardRules::Unknown
            }
        };
    }
}

/// The pause after a check that took so long.
fn pause(took: Duration) -> Duration {
    took.saturating_mul(REST).clamp(PAUSE, TICK)
}

/// The first table of legacy iptables that applies to forwarded packets, if there is one. Its chains are not read: a
/// table exists only because a program has used it.
fn legacy() -> Option<String> {
    LEGACY.iter().find_map(|(program, path)| {
        // Without the kernel module the file does not exist.
        let names = std::fs::read_to_string(path).unwrap_or_default();
        let table = names.lines().find(|name| *name != "nat")?;
        Some(format!("the table `{}` of {program}", printable(table)))
    })
}

fn subscribe() -> io::Result<TokioSocket> {
    let mut socket = open()?;
    socket.socket_mut().add_membership(NFNLGRP_NFTABLES)?;
    Ok(socket)
}

fn open() -> io::Result<TokioSocket> {
    let mut socket = TokioSocket::new(NETLINK_NETFILTER)?;
    socket.socket_mut().bind(&SocketAddr::new(0, 0))?;
    Ok(socket)
}

/// Waits for a change of nftables. Never returns if there are no announcements.
async fn changed(subscription: &mut io::Result<TokioSocket>) {
    let Ok(socket) = subscription else { return std::future::pending().await };
    let mut unread = [0; 64];
    let mut received = socket.recv(&mut &mut unread[..]).await;
    // The other messages of a burst are already there.
    while let (true, Some(more)) = (received.is_ok(), socket.recv(&mut &mut unread[..]).now_or_never()) {
        received = more;
    }
    match received {
        // Messages that did not fit into the buffer are changes too.
        Err(error) if error.raw_os_error() != Some(rustix::io::Errno::NOBUFS.raw_os_error()) => {
            *subscription = Err(error);
        }
        _ => {}
    }
}

/// The base chain that applies to forwarded packets of the interface. If there are several, it is the one that hooks
/// forward.
///
/// # Errors
/// The kernel did not answer.
async fn nftables(interface: &str) -> io::Result<ForwardRules> {
    for _ in 0..TRIES {
        let mut chains = match dump(interface).await {
            // The kernel has no nftables, or no netlink of netfilter at all, so it has no such chains.
            Err(error)
                if error.kind() == io::ErrorKind::InvalidInput
                    || error.raw_os_error() == Some(rustix::io::Errno::PROTONOSUPPORT.raw_os_error()) =>
            {
                return Ok(ForwardRules::None);
            }
            dumped => match dumped? {
                Some(chains) => chains,
                // A change interrupted the dump.
                None => continue,
            },
        };
        chains.sort_by_key(|chain| chain.hook != HOOK_FORWARD);
        return Ok(chains.first().map_or(ForwardRules::None, |chain| ForwardRules::Seen(chain.words())));
    }
    Err(io::Error::other("it changes all the time"))
}

/// All base chains that matter; `None` if they changed during the dump.
async fn dump(interface: &str) -> io::Result<Option<Vec<Chain>>> {
    let socket = open()?;
    socket.send(&request()).await?;
    let mut chains = Vec::new();
    let mut torn = false;
    loop {
        let (datagram, _) = socket.recv_from_full().await?;
        let mut rest = &datagram[..];
        while !rest.is_empty() {
            let message = NetlinkBuffer::new_checked(rest).map_err(io::Error::other)?;
            torn |= message.flags() & NLM_F_DUMP_INTR != 0;
            match message.message_type() {
                NLMSG_DONE => return Ok((!torn).then_some(chains)),
                NLMSG_ERROR => {
                    let code = message.payload().first_chunk().map_or(0, |code| i32::from_ne_bytes(*code));
                    return Err(io::Error::from_raw_os_error(-code));
                }
                kind if kind == SUBSYSTEM << 8 | NFT_MSG_NEWCHAIN => {
                    chains.extend(Chain::parse(message.payload())?.filter(|chain| chain.counts(interface)));
                }
                _ => {}
            }
            let padded = (message.length() as usize).next_multiple_of(4);
            rest = rest.get(padded..).unwrap_or_default();
        }
    }
}

/// Requests all chains of all families: a netlink header and a header of nfnetlink (family, version, resource).
fn request() -> Vec<u8> {
    let mut bytes = Vec::new();
    bytes.extend(HEADER.to_ne_bytes());
    bytes.extend((SUBSYSTEM << 8 | NFT_MSG_GETCHAIN).to_ne_bytes());
    bytes.extend((NLM_F_REQUEST | NLM_F_DUMP).to_ne_bytes());
    bytes.extend([0; 12]);
    bytes
}

/// A base chain.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
struct Chain {
    family: u8,
    table: String,
    name: String,
    kind: String,
    hook: u32,
    /// For the families inet and netdev, the interfaces that it hooks.
    devices: Vec<String>,
    accepts: bool,
    /// The number of its rules. If the kernel does not report it, the chain counts as having some.
    rules: u32,
}

impl Chain {
    /// Parses the bytes after the netlink header; `None` for a chain without a hook, which is only a jump target.
    ///
    /// # Errors
    /// The data is too short. A chain that cannot be parsed is never treated as irrelevant.
    fn parse(payload: &[u8]) -> io::Result<Option<Self>> {
        Self::read(payload).ok_or_else(|| io::Error::other("a chain of nftables that is cut short"))
    }

    fn read(payload: &[u8]) -> Option<Option<Self>> {
        let (head, attributes) = payload.split_at_checked(4)?;
        let mut chain = Self { family: head[0], rules: 1, ..Self::default() };
        let mut hooked = false;
        for attribute in NlasIterator::new(attributes) {
            let attribute = attribute.ok()?;
            let value = attribute.value();
            match attribute.kind() {
                NFTA_CHAIN_TABLE => chain.table = text(value),
                NFTA_CHAIN_NAME => chain.name = text(value),
                NFTA_CHAIN_TYPE => chain.kind = text(value),
                NFTA_CHAIN_POLICY => chain.accepts = number(value) == Some(NF_ACCEPT),
                NFTA_CHAIN_USE => chain.rules = number(value)?,
                NFTA_CHAIN_HOOK => {
                    hooked = true;
                    for attribute in NlasIterator::new(value) {
                        let attribute = attribute.ok()?;
                        let value = attribute.value();
                        match attribute.kind() {
                            NFTA_HOOK_HOOKNUM => chain.hook = number(value)?,
                            NFTA_HOOK_DEV => chain.devices.push(text(value)),
                            NFTA_HOOK_DEVS => {
                                let devices = NlasIterator::new(value).flatten();
                                chain.devices.extend(devices.map(|device| text(device.value())));
                            }
                            _ => {}
                        }
                    }
                }
                _ => {}
            }
        }
        Some(hooked.then_some(chain))
    }

    /// Whether the chain applies to packets that come from the interface and go back to it, and could affect them.
    fn counts(&self, interface: &str) -> bool {
        // A device may be a prefix of names. Kernels that support this report it in a separate attribute.
        let here = || self.devices.is_empty() || self.devices.iter().any(|device| interface.starts_with(&**device));
        let met = match (self.family, self.hook) {
            (NFPROTO_INET, HOOK_INGRESS) | (NFPROTO_NETDEV, _) => here(),
            (NFPROTO_INET | NFPROTO_IPV4 | NFPROTO_IPV6, HOOK_PREROUTING | HOOK_FORWARD | HOOK_POSTROUTING) => true,
            _ => false,
        };
        let guard = ["rustguard-", "wg-quick-"].iter().any(|prefix| self.table.starts_with(prefix));
        met && self.kind != "nat" && !guard && (self.rules > 0 || !self.accepts)
    }

    fn words(&self) -> String {
        let family = match self.family {
            NFPROTO_INET => "inet",
            NFPROTO_IPV4 => "ip",
            NFPROTO_IPV6 => "ip6",
            _ => "netdev",
        };
        format!("the chain `{}` in the table `{family} {}` of nftables", printable(&self.name), printable(&self.table))
    }
}

/// Attributes of nftables are in network byte order.
fn number(value: &[u8]) -> Option<u32> {
    value.first_chunk().map(|bytes| u32::from_be_bytes(*bytes))
}

fn text(value: &[u8]) -> String {
    String::from_utf8_lossy(value).trim_end_matches('\0').to_owned()
}

/// Names may have any contents. This makes them safe for a log and for lines of the control socket.
fn printable(name: &str) -> String {
    name.chars().take(64).map(|c| if c.is_ascii_graphic() && c != '`' { c } else { '?' }).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn attribute(kind: u16, value: &[u8]) -> Vec<u8> {
        let mut bytes = Vec::new();
        bytes.extend(u16::try_from(value.len() + 4).unwrap().to_ne_bytes());
        bytes.extend(kind.to_ne_bytes());
        bytes.extend(value);
        bytes.resize(bytes.len().next_multiple_of(4), 0);
        bytes
    }

    fn message(family: u8, kind: &str, hook: u32, rules: u32, policy: u32, device: Option<&str>) -> Vec<u8> {
        let mut nested = attribute(NFTA_HOOK_HOOKNUM, &hook.to_be_bytes());
        nested.extend(device.map(|name| attribute(NFTA_HOOK_DEV, name.as_bytes())).unwrap_or_default());
        let mut bytes = vec![family, 0, 0, 0];
        bytes.extend(attribute(NFTA_CHAIN_TABLE, b"filter\0"));
        bytes.extend(attribute(NFTA_CHAIN_NAME, b"line\nbreak\0"));
        bytes.extend(attribute(NFTA_CHAIN_HOOK | 0x8000, &nested));
        bytes.extend(attribute(NFTA_CHAIN_POLICY, &policy.to_be_bytes()));
        bytes.extend(attribute(NFTA_CHAIN_USE, &rules.to_be_bytes()));
        bytes.extend(attribute(NFTA_CHAIN_TYPE, format!("{kind}\0").as_bytes()));
        bytes
    }

    #[test]
    fn a_check_that_waited_for_a_processor_delays_no_rule_for_long() {
        let ms = Duration::from_millis;
        assert_eq!([0, 20, 3_000, u64::MAX].map(|took| pause(ms(took))), [ms(100), ms(180), TICK, TICK]);
    }

    #[test]
    fn chains_that_forwarded_packets_meet_count() {
        let counts = |bytes: &[u8]| Chain::parse(bytes).unwrap().unwrap().counts("wg0");
        for family in [NFPROTO_INET, NFPROTO_IPV4, NFPROTO_IPV6] {
            for (hook, met) in [(0, true), (1, false), (2, true), (3, false), (4, true)] {
                assert_eq!(counts(&message(family, "filter", hook, 1, NF_ACCEPT, None)), met, "{family} {hook}");
                assert_eq!(counts(&message(family, "filter", hook, 0, 0, None)), met, "policy drop");
                assert!(!counts(&message(family, "filter", hook, 0, NF_ACCEPT, None)), "empty");
                assert!(!counts(&message(family, "nat", hook, 1, NF_ACCEPT, None)), "nat");
            }
        }
        assert!(!counts(&message(7, "filter", 2, 1, NF_ACCEPT, None)), "bridge");
        for (device, here) in [(Some("wg0"), true), (Some("wg"), true), (Some("eth0"), false), (None, true)] {
            assert_eq!(counts(&message(NFPROTO_NETDEV, "filter", 0, 1, NF_ACCEPT, device)), here, "{device:?}");
            assert_eq!(counts(&message(NFPROTO_INET, "filter", HOOK_INGRESS, 1, NF_ACCEPT, device)), here);
        }
    }

    #[test]
    fn the_guards_of_tunnels_do_not_count() {
        let mut chain = Chain::parse(&message(NFPROTO_IPV4, "filter", 0, 1, NF_ACCEPT, None)).unwrap().unwrap();
        for (table, counts) in [("rustguard-wg7", false), ("wg-quick-wg7", false), ("mangle", true)] {
            table.clone_into(&mut chain.table);
            assert_eq!(chain.counts("wg0"), counts, "{table}");
        }
    }

    #[test]
    fn names_do_not_break_lines() {
        let chain = Chain::parse(&message(NFPROTO_INET, "filter", 2, 1, NF_ACCEPT, None)).unwrap().unwrap();
        assert_eq!(chain.words(), "the chain `line?break` in the table `inet filter` of nftables");
    }

    #[test]
    fn a_message_cut_anywhere_is_no_panic() {
        let bytes = message(NFPROTO_INET, "filter", 2, 1, NF_ACCEPT, Some("wg0"));
        for len in 0..bytes.len() {
            let _ = Chain::parse(&bytes[..len]);
        }
        assert!(Chain::parse(&bytes[..bytes.len() - 4]).is_err(), "and no chain");
        assert_eq!(Chain::parse(&[NFPROTO_INET, 0, 0, 0]).unwrap(), None, "no hook");
    }
}
