//! Passes the tunnel's name servers to systemd-resolved or resolvconf.
//!
//! With resolvconf, the tunnel's servers answer all queries while the tunnel is up (`-x`), as under wg-quick. resolved
//! can ask several sets of servers:
//!
//! | Tunnel | Names that its servers are asked for |
//! |---|---|
//! | everything is routed into it | all (the routing domain `~.`): nothing leaks to the local network |
//! | part of it, and `~corp.example` in the file | names below corp.example and the search domains |
//! | part of it | all, beside the servers of other interfaces; the first positive answer counts |

use super::{
    command::{self, find_program},
    config::HostConfig,
    error::{DROP_NAMES, HostError, SET_NAMES},
    record::Journal,
    step::{Step, is_plain},
};
use crate::{
    NameServer,
    helper::{self, Answer, DnsEntry, NameService, Names, Task},
};
use serde::Serialize;
use std::{future::Future, net::IpAddr, time::Duration};
use zbus::Connection;

/// How long the system bus and resolved may take to answer. A bus that does not answer must not block the tunnel.
const PATIENCE: Duration = Duration::from_secs(5);

const RESOLVED: &str = "org.freedesktop.resolve1";

/// Debian's resolvconf sorts its entries by the patterns in this file.
const INTERFACE_ORDER: &str = "/etc/resolvconf/interface-order";

/// Address families, as in the methods of resolved (Linux' AF_INET and AF_INET6).
const AF_INET: i32 = 2;
const AF_INET6: i32 = 10;

/// The most domains of a tunnel, and the longest one.
const DOMAINS: usize = 1024;
const LONGEST_DOMAIN: usize = 255;

impl Names {
    /// Checks that these are domains without characters that a shell script of resolvconf could misinterpret.
    pub(crate) fn check(&self) -> Result<(), String> {
        let is_of_domains = |character: char| character.is_alphanumeric() || "-_.~".contains(character);
        let is_none = |domain: &&String| domain.len() > LONGEST_DOMAIN || !domain.chars().all(is_of_domains);
        match self.search.iter().find(is_none) {
            Some(domain) => Err(format!("`{domain}` is no domain")),
            None if self.search.len() > DOMAINS => Err(format!("there are more than {DOMAINS} domains")),
            None => Ok(()),
        }
    }
}

/// The service that manages the name servers of a tunnel. If the system bus does not answer within 5 s, resolved does
/// not count.
pub async fn name_service() -> NameService {
    match helper::get() {
        Some(helper) => match helper.ask(Task::NameService).await {
            Answer::Service(service) => service,
            _ => NameService::None,
        },
        None => name_service_here().await,
    }
}

/// As `name_service`, in this process itself.
pub(crate) async fn name_service_here() -> NameService {
    match within(resolved()).await.flatten() {
        Some(_) => NameService::Resolved,
        None if find_program("resolvconf").is_some() => NameService::Resolvconf,
        None => NameService::None,
    }
}

/// Passes the configured servers on. Without servers nothing happens, even if there are search domains.
pub(super) async fn add(journal: &mut Journal, config: &HostConfig) -> Result<(), HostError> {
    if config.dns.is_empty() {
        return Ok(());
    }
    let interface = &config.interface;
    let entry = match name_service().await {
        NameService::Resolved => {
            if let Some(server) = config.dns.iter().find(|server| !server.is_at(interface, journal.index())) {
                return Err(HostError::ServerElsewhere { interface: interface.clone(), server: server.to_string() });
            }
            DnsEntry::Resolved
        }
        NameService::Resolvconf => {
            if let Some(domain) = some_names(&config.dns_search, config.routes_everything()) {
                let (interface, domain) = (interface.clone(), domain.to_owned());
                return Err(HostError::NoSplitDns { interface, domain });
            }
            let order = std::fs::read_to_string(INTERFACE_ORDER).unwrap_or_default();
            DnsEntry::Resolvconf { name: format!("{}{interface}", entry_prefix(&order)) }
        }
        NameService::None => return Err(HostError::NoDnsBackend { interface: interface.clone() }),
    };
    journal.record(Step::Dns(entry.clone()))?;
    let names = Names {
        entry,
        servers: config.dns.clone(),
        search: config.dns_search.clone(),
        all: config.routes_everything(),
    };
    match helper::get() {
        Some(helper) => match helper.ask(Task::SetNames(names)).await {
            Answer::Done => Ok(()),
            answer => Err(HostError::helper(SET_NAMES, interface, answer)),
        },
        None => set_names_here(interface, journal.index(), &names).await,
    }
}

/// Passes servers on, in this process itself.
pub(crate) async fn set_names_here(interface: &str, index: u32, names: &Names) -> Result<(), HostError> {
    let none = || HostError::NoDnsBackend { interface: interface.to_owned() };
    let Names { entry, servers: addresses, search, all } = names;
    match entry {
        DnsEntry::Resolved => {
            let bus = within(resolved()).await.flatten().ok_or_else(none)?;
            let index = link_argument(index);
            call(&bus, interface, "SetLinkDNS", &(index, servers(addresses))).await?;
            call(&bus, interface, "SetLinkDomains", &(index, domains(search, *all))).await?;
            // Without this setting, resolved guesses from the domains whether to ask these servers for other names too.
            call(&bus, interface, "SetLinkDefaultRoute", &(index, some_names(search, *all).is_none())).await
        }
        DnsEntry::Resolvconf { name } if entry.is_of(interface) => {
            let program = find_program("resolvconf").ok_or_else(none)?;
            command::run(&program, &["-a", name, "-m", "0", "-x"], &resolv_conf(addresses, search)).await
        }
        DnsEntry::Resolvconf { .. } => Err(none()),
    }
}

/// Withdraws an entry. `index` is the interface's index if it still exists. resolved removes the settings of deleted
/// links itself.
pub(super) async fn remove(entry: &DnsEntry, interface: &str, index: Option<u32>) -> Result<(), HostError> {
    match helper::get() {
        Some(helper) => match helper.ask(Task::DropNames(entry.clone())).await {
            Answer::Done => Ok(()),
            answer => Err(HostError::helper(DROP_NAMES, interface, answer)),
        },
        None => drop_names_here(entry, interface, index).await,
    }
}

/// Withdraws an entry, in this process itself.
pub(crate) async fn drop_names_here(entry: &DnsEntry, interface: &str, index: Option<u32>) -> Result<(), HostError> {
    match entry {
        DnsEntry::Resolved => match (index, within(resolved()).await.flatten()) {
            (Some(index), Some(bus)) => call(&bus, interface, "RevertLink", &(link_argument(index),)).await,
            // Without the interface or without resolved there are no settings to withdraw.
            _ => Ok(()),
        },
        DnsEntry::Resolvconf { name } => match find_program("resolvconf") {
            Some(program) => command::run(&program, &["-d", name, "-f"], "").await,
            None => Err(HostError::NoDnsBackend { interface: interface.to_owned() }),
        },
    }
}

/// Connects to the system bus if resolved runs on it. resolved is not started: on a host where it is installed but
/// disabled, it would accept the servers, but nobody would query it.
async fn resolved() -> Option<Connection> {
    let bus = Connection::system().await.ok()?;
    let answer = bus
        .call_method(
            Some("org.freedesktop.DBus"),
            "/org/freedesktop/DBus",
            Some("org.freedesktop.DBus"),
            "NameHasOwner",
            &RESOLVED,
        )
        .await
        .ok()?;
    answer.body().deserialize::<bool>().ok()?.then_some(bus)
}

async fn call<B>(bus: &Connection, interface: &str, method: &'static str, body: &B) -> Result<(), HostError>
where
    B: Serialize + zbus::zvariant::DynamicType,
{
    let answer = within(bus.call_method(
        Some(RESOLVED),
        "/org/freedesktop/resolve1",
        Some("org.freedesktop.resolve1.Manager"),
        method,
        body,
    ))
    .await;
    let reason = match answer {
        Some(Ok(_)) => return Ok(()),
        Some(Err(error)) => error.to_string(),
        None => format!("no answer within {} s", PATIENCE.as_secs()),
    };
    Err(HostError::Resolved { action: method.to_owned(), interface: interface.to_owned(), reason })
}

async fn within<T>(future: impl Future<Output = T>) -> Option<T> {
    tokio::time::timeout(PATIENCE, future).await.ok()
}

/// The `a(iay)` argument of SetLinkDNS.
fn servers(servers: &[NameServer]) -> Vec<(i32, Vec<u8>)> {
    let server = |server: &NameServer| match server.address() {
        IpAddr::V4(address) => (AF_INET, address.octets().to_vec()),
        IpAddr::V6(address) => (AF_INET6, address.octets().to_vec()),
    };
    servers.iter().map(server).collect()
}

/// The first domain that limits the names for which the servers are asked, with its `~`; `None` if the names are not
/// limited.
fn some_names(search: &[String], all: bool) -> Option<&str> {
    let mut routed = search.iter().map(String::as_str).filter(|domain| domain.starts_with('~'));
    let first = routed.clone().next();
    first.filter(|_| !all && routed.all(|domain| domain != "~."))
}

/// The `a(sb)` argument of SetLinkDomains. The flag is true for a domain that only routes queries, and false for a
/// search domain, which does both. `all` adds the domain of all names.
fn domains(search: &[String], all: bool) -> Vec<(&str, bool)> {
    let all = (all && search.iter().all(|domain| domain != "~.")).then_some((".", true));
    let search = search.iter().map(|domain| match domain.strip_prefix('~') {
        Some(domain) => (domain, true),
        None => (domain.as_str(), false),
    });
    search.chain(all).collect()
}

/// The D-Bus signature has a signed index. The kernel's indices are positive ints.
fn link_argument(index: u32) -> i32 {
    i32::try_from(index).expect("an interface index is a positive int in the kernel")
}

fn resolv_conf(servers: &[NameServer], search: &[String]) -> String {
    let mut text: String = servers.iter().map(|server| format!("nameserver {server}\n")).collect();
    let search: Vec<_> = search.iter().map(String::as_str).filter(|domain| !domain.starts_with('~')).collect();
    if !search.is_empty() {
        text.push_str(&format!("search {}\n", search.join(" ")));
    }
    text
}

/// The first plain `PREFIX*` pattern of Debian's interface-order, with a dot, usually "tun.". An entry with this prefix
/// sorts first.
fn entry_prefix(interface_order: &str) -> String {
    let mut prefixes = interface_order.lines().filter_map(|line| line.strip_suffix('*'));
    prefixes.find(|prefix| is_plain(prefix)).map(|prefix| format!("{prefix}.")).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_entry_sorts_before_everything_the_system_knows() {
        let debian =
            "# interface-order(5)\nlo.inet6\nlo.@(dnsmasq|pdnsd)\nlo.!(pdns|pdns-recursor)\nlo\ntun*\ntap*\neth*\n";
        assert_eq!(entry_prefix(debian), "tun.");
        assert_eq!(entry_prefix("lo.*\n@(br)?(ath|wlan)*([^.]).wpa\n"), "");
        assert_eq!(entry_prefix(""), "");
    }

    #[test]
    fn resolvconf_reads_servers_and_one_line_of_domains() {
        let servers = ["10.0.0.1".parse().unwrap(), "fd00::1".parse().unwrap()];
        let text = resolv_conf(&servers, &["corp.example".into(), "example".into()]);
        assert_eq!(text, "nameserver 10.0.0.1\nnameserver fd00::1\nsearch corp.example example\n");
        assert_eq!(resolv_conf(&servers[..1], &[]), "nameserver 10.0.0.1\n");
    }
}
