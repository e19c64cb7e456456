//! Checks whether packets of a tunnel's machines reach networks behind this host, and whether the answers come back.
//! Changes nothing.

use super::{
    admission::ruleset,
    error::HostError,
    link::is_v6,
    netlink::Netlink,
    tunable::{FORWARDING_V4, FORWARDING_V6},
};
use crate::{
    gateway::Gateway,
    helper::{self, Answer, Chain, Task},
};
use ipnet::IpNet;
use rtnetlink::packet_route::route::{RouteAttribute, RouteType};
use serde_json::Value;
use std::{
    fmt, fs,
    net::{IpAddr, Ipv4Addr, Ipv6Addr},
};

/// An obstacle for packets between a tunnel's machines and the networks behind this host. `Display` is a sentence with
/// the remedy.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub enum Obstacle {
    /// This host forwards no packets of this family.
    ForwardingOff {
        /// IPv6, or else IPv4.
        v6: bool,
    },
    /// This host itself has no route to the network.
    NoRoute {
        /// The network.
        network: IpNet,
    },
    /// A chain of nftables drops forwarded packets, and no rule of its table names the tunnel's interface.
    Dropped {
        /// The family, table and name of the chain.
        chain: String,
        /// Docker made the chain; it has another chain for the rules of users.
        docker: bool,
        /// The tunnel's interface.
        interface: String,
    },
    /// The hosts of the network may have no route back to the tunnel's machines. Only those hosts and their routers
    /// know.
    NoWayBack {
        /// The network.
        network: IpNet,
        /// The addresses of the tunnel's machines.
        pools: Vec<IpNet>,
    },
}

impl Obstacle {
    /// Whether this certainly is an obstacle. Other cases depend on facts that this host cannot know.
    pub fn is_certain(&self) -> bool {
        match self {
            Self::ForwardingOff { .. } | Self::NoRoute { .. } => true,
            Self::Dropped { .. } => false,
            // No host in the Internet has a route to private addresses.
            Self::NoWayBack { network, .. } => network.prefix_len() == 0,
        }
    }
}

impl fmt::Display for Obstacle {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::ForwardingOff { v6 } => {
                let (family, name) = if *v6 { ("IPv6", FORWARDING_V6) } else { ("IPv4", FORWARDING_V4) };
                write!(
                    f,
                    "this host forwards no {family} packets, so joined machines do not get beyond it: sysctl -w {}=1, or --nat",
                    name.replace('/', ".")
                )
            }
            Self::NoRoute { network } => {
                write!(
                    f,
                    "this host has no route to {network}: ip route add {network} …, or leave it out of the routes"
                )
            }
            Self::Dropped { chain, docker: true, interface } => write!(
                f,
                "Docker's chain {chain} drops forwarded packets, and a rule in another table cannot change that: \
                 iptables -I DOCKER-USER -i {interface} -j ACCEPT; iptables -I DOCKER-USER -o {interface} -j ACCEPT"
            ),
            Self::Dropped { chain, docker: false, interface } => write!(
                f,
                "the chain {chain} drops forwarded packets unless one of its rules accepts them: \
                 nft insert rule {chain} iifname {interface} accept; nft insert rule {chain} oifname {interface} accept"
            ),
            Self::NoWayBack { network, pools } => {
                let pools: Vec<_> = pools.iter().map(ToString::to_string).collect();
                let pools = pools.join(" and ");
                if network.prefix_len() == 0 {
                    write!(
                        f,
                        "the Internet has no route back to {pools}: let this host translate addresses (--nat, in a file `Nat = on`)"
                    )
                } else {
                    write!(
                        f,
                        "hosts in {network} answer only if they, or their router, have a route to {pools} by way of this \
                         host: add it there, or let this host translate addresses (--nat, in a file `Nat = on`)"
                    )
                }
            }
        }
    }
}

/// Looks for obstacles between the machines of the tunnel `interface` and the networks of `gateway`. With `translated`,
/// their packets get this host's address, so they need no way back.
///
/// # Errors
/// The kernel's answers cannot be read. Without `nft` its rules are not checked.
pub async fn obstacles(interface: &str, gateway: &Gateway, translated: bool) -> Result<Vec<Obstacle>, HostError> {
    let mut found = Vec::new();
    if gateway.networks.is_empty() {
        return Ok(found);
    }
    for (v6, name) in [(false, FORWARDING_V4), (true, FORWARDING_V6)] {
        let concerns = gateway.networks.iter().any(|network| is_v6(*network) == v6);
        if concerns && fs::read_to_string(format!("/proc/sys/{name}")).is_ok_and(|value| value.trim() == "0") {
            found.push(Obstacle::ForwardingOff { v6 });
        }
    }
    let netlink = Netlink::open()?;
    for &network in &gateway.networks {
        if !has_route(&netlink, network).await {
            found.push(Obstacle::NoRoute { network });
        }
    }
    let chains = match helper::get() {
        Some(helper) => match helper.ask(Task::Dropping(gateway.networks.clone())).await {
            Answer::Chains(chains) => chains,
            answer => return Err(HostError::helper("look at the rules of nftables", interface, answer)),
        },
        None => dropping_here(interface, &gateway.networks).await,
    };
    let interface = || interface.to_owned();
    found.extend(chains.into_iter().map(|Chain { name, docker }| Obstacle::Dropped {
        chain: name,
        docker,
        interface: interface(),
    }));
    if !translated {
        let ways = gateway.networks.iter().map(|&network| {
            let pools = gateway.pools.iter().filter(|pool| is_v6(**pool) == is_v6(network)).map(IpNet::trunc).collect();
            Obstacle::NoWayBack { network, pools }
        });
        found.extend(ways.filter(|way| !matches!(way, Obstacle::NoWayBack { pools, .. } if pools.is_empty())));
    }
    Ok(found)
}

/// Whether this host has a route to the first address of the network that a machine can have.
async fn has_route(netlink: &Netlink, network: IpNet) -> bool {
    // Addresses of the Internet, reserved for documentation (RFC 5737, RFC 3849).
    let address: IpAddr = match network {
        IpNet::V4(net) if net.prefix_len() == 0 => Ipv4Addr::new(198, 51, 100, 1).into(),
        IpNet::V6(net) if net.prefix_len() == 0 => Ipv6Addr::new(0x2001, 0xdb8, 0, 0, 0, 0, 0, 1).into(),
        IpNet::V4(net) => net.hosts().next().unwrap_or(net.network()).into(),
        // The first address belongs to the routers (RFC 4291, section 2.6.1).
        IpNet::V6(net) => net.hosts().nth(1).unwrap_or(net.network()).into(),
    };
    let route = netlink.route_to(address, None).await;
    route.is_some_and(|route| {
        let through = route.attributes.iter().any(|attribute| matches!(attribute, RouteAttribute::Oif(_)));
        through && matches!(route.header.kind, RouteType::Unicast | RouteType::Local)
    })
}

/// The chains that drop packets that are forwarded to these networks. Empty if `nft` cannot show them.
pub(crate) async fn dropping_here(interface: &str, networks: &[IpNet]) -> Vec<Chain> {
    ruleset().await.map_or_else(Vec::new, |rules| dropping(&rules, interface, networks))
}

/// The chains that drop forwarded packets by their policy, where no rule of the table accepts the tunnel's interface.
fn dropping(rules: &Value, interface: &str, networks: &[IpNet]) -> Vec<Chain> {
    let Some(items) = rules["nftables"].as_array() else { return Vec::new() };
    let concerns = |family: &Value| match family.as_str() {
        Some("inet") => true,
        Some("ip") => networks.iter().any(|network| !is_v6(*network)),
        Some("ip6") => networks.iter().any(|network| is_v6(*network)),
        _ => false,
    };
    let of_table = |item: &Value, chain: &Value| item["family"] == chain["family"] && item["table"] == chain["table"];
    let mut found = Vec::new();
    for chain in items.iter().filter_map(|item| item.get("chain")) {
        if chain["hook"] != "forward" || chain["policy"] != "drop" || !concerns(&chain["family"]) {
            continue;
        }
        let accepts = |item: &Value| {
            item.get("rule").is_some_and(|rule| of_table(rule, chain) && accepts_interface(&rule["expr"], interface))
        };
        if items.iter().any(accepts) {
            continue;
        }
        let docker = |item: &Value| {
            item.get("chain").is_some_and(|other| of_table(other, chain) && other["name"] == "DOCKER-USER")
        };
        let word = |value: &Value| value.as_str().unwrap_or_default().to_owned();
        found.push(Chain {
            name: format!("{} {} {}", word(&chain["family"]), word(&chain["table"]), word(&chain["name"])),
            docker: items.iter().any(docker),
        });
    }
    found
}

/// Whether a rule names the interface and accepts.
fn accepts_interface(expressions: &Value, interface: &str) -> bool {
    let Some(expressions) = expressions.as_array() else { return false };
    let names = |expression: &Value| {
        let matched = &expression["match"];
        matched["right"] == interface
            && (matched["left"]["meta"]["key"] == "iifname" || matched["left"]["meta"]["key"] == "oifname")
    };
    expressions.iter().any(names) && expressions.iter().any(|expression| expression.get("accept").is_some())
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn chain(family: &str, table: &str, name: &str, policy: Option<&str>) -> Value {
        json!({ "chain": { "family": family, "table": table, "name": name, "hook": policy.map(|_| "forward"), "policy": policy } })
    }

    fn accept(family: &str, table: &str, interface: &str) -> Value {
        let names = json!({ "match": { "op": "==", "left": { "meta": { "key": "iifname" } }, "right": interface } });
        json!({ "rule": { "family": family, "table": table, "chain": "FORWARD", "expr": [names, { "accept": null }] } })
    }

    #[test]
    fn chains_that_drop_what_is_forwarded_are_found() {
        let v4 = ["192.168.50.0/24".parse().unwrap()];
        let found = |items: Vec<Value>| dropping(&json!({ "nftables": items }), "rg0", &v4);
        assert_eq!(found(vec![chain("ip", "filter", "FORWARD", Some("accept"))]), []);
        assert_eq!(found(vec![chain("ip6", "filter", "FORWARD", Some("drop"))]), [], "not a network of this family");
        let plain =
            found(vec![chain("inet", "fw", "forward", Some("drop")), chain("ip", "filter", "DOCKER-USER", None)]);
        assert!(matches!(&*plain, [Chain { docker: false, .. }]), "{plain:?}");
        let said = |chain: &Chain| {
            let (chain, docker) = (chain.name.clone(), chain.docker);
            Obstacle::Dropped { chain, docker, interface: "rg0".to_owned() }.to_string()
        };
        assert!(said(&plain[0]).contains("nft insert rule inet fw forward iifname rg0 accept"), "{plain:?}");
        let docker = vec![chain("ip", "filter", "FORWARD", Some("drop")), chain("ip", "filter", "DOCKER-USER", None)];
        let by_docker = found(docker.clone());
        assert!(said(&by_docker[0]).contains("iptables -I DOCKER-USER -i rg0 -j ACCEPT"), "{by_docker:?}");
        assert_eq!(found([docker.clone(), vec![accept("ip", "filter", "rg0")]].concat()), []);
        assert_eq!(found([docker.clone(), vec![accept("ip", "filter", "eth0")]].concat()), by_docker);
        assert_eq!(found([docker, vec![accept("ip", "other", "rg0")]].concat()), by_docker, "an accept elsewhere");
    }
}
