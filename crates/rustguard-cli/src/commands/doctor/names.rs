//! Names: whether the endpoints' host names are found, and whether the tunnel's name servers are set up and answer.

use super::{
    finding::Finding,
    kernel::{Kernel, Way},
    tunnel::Tunnel,
};
use rustguard_crypto::random;
use rustguard_device::EndpointSpec;
use rustguard_quick::NameServer;
use std::{collections::BTreeSet, net::SocketAddr, time::Duration};
use tokio::{net::UdpSocket, time::timeout};

/// The limit for the system's resolver, which asks several servers.
const RESOLVER: Duration = Duration::from_secs(5);
/// The limit for the answer of one name server.
const ANSWER: Duration = Duration::from_secs(2);
/// The most names that are looked up.
const MOST: usize = 20;
/// The port of name servers.
const DNS: u16 = 53;
/// A query for the name servers of the root zone (RFC 1035 section 4.1), after the identifier: recursion desired, one
/// question; the root's empty name, type NS, class IN. Every resolver can answer it.
const QUERY: [u8; 15] = [1, 0, 0, 1, 0, 0, 0, 0, 0, 0, 0, 0, 2, 0, 1];

/// The findings about the names of one tunnel.
pub(super) async fn check(tunnel: &Tunnel, kernel: &Kernel) -> Vec<Finding> {
    let mut findings = endpoints(tunnel, kernel).await;
    for server in tunnel.name_servers() {
        if tunnel.device.is_some() {
            findings.push(name_server(tunnel, kernel, server).await);
        }
    }
    findings
}

async fn endpoints(tunnel: &Tunnel, kernel: &Kernel) -> Vec<Finding> {
    let Some(config) = &tunnel.config else { return Vec::new() };
    let names: BTreeSet<String> = config
        .peers
        .iter()
        .flat_map(|peer| &peer.endpoints)
        .filter(|path| matches!(path.endpoint, EndpointSpec::Name(..)))
        .map(|path| path.endpoint.to_string())
        .collect();
    let lookups = names.iter().take(MOST).map(async |name| {
        if name.starts_with('[') {
            return zone(name, kernel).await;
        }
        let reason = match timeout(RESOLVER, tokio::net::lookup_host(name)).await {
            Ok(Ok(mut addresses)) => match addresses.next() {
                Some(address) => return Finding::fine("names", format!("{name} is {}", address.ip())),
                None => "it has no address".to_owned(),
            },
            Ok(Err(error)) => error.to_string(),
            Err(_) => format!("no answer within {} s", RESOLVER.as_secs()),
        };
        Finding::wrong(
            "names",
            format!("the endpoint {name} is not found: {reason}"),
            "correct the name, or this machine's name servers in /etc/resolv.conf",
        )
    });
    futures_util::future::join_all(lookups).await
}

/// Checks a link-local address, whose interface has to exist.
async fn zone(endpoint: &str, kernel: &Kernel) -> Finding {
    match kernel.address_of(endpoint).await {
        Some(_) => Finding::fine("names", format!("the interface of {endpoint} is there")),
        None => Finding::wrong(
            "names",
            format!("the interface of the endpoint {endpoint} is not there"),
            "correct its name behind the `%`, or create it",
        ),
    }
}

async fn name_server(tunnel: &Tunnel, kernel: &Kernel, server: &NameServer) -> Finding {
    let mut at = SocketAddr::new(server.address(), DNS);
    if server.zone().is_some() {
        match kernel.address_of(&format!("[{server}]:{DNS}")).await {
            Some(found) => at = found,
            None => {
                return Finding::wrong(
                    "name-server",
                    format!("the interface of the name server {server} of {} is not there", tunnel.name),
                    "correct its name behind the `%`, or create it",
                );
            }
        }
    } else if let Way::Nowhere(reason) = kernel.way_to(server.address()).await {
        return Finding::wrong(
            "name-server",
            format!("the name server {server} of {} cannot be reached: {reason}", tunnel.name),
            "add its address to the AllowedIPs of the peer behind which it is",
        );
    }
    match timeout(ANSWER, ask(at)).await {
        Ok(Ok(())) => Finding::fine("name-server", format!("the name server {server} answers")),
        Ok(Err(error)) => silent(tunnel, server, &error.to_string()),
        Err(_) => silent(tunnel, server, &format!("no answer within {} s", ANSWER.as_secs())),
    }
}

fn silent(tunnel: &Tunnel, server: &NameServer, reason: &str) -> Finding {
    Finding::warning(
        "name-server",
        format!("the name server {server} of {} does not answer: {reason}", tunnel.name),
        "check the tunnel to it and the program on port 53 there, or correct `DNS` in the file",
    )
}

/// Sends one query, and waits for its answer.
async fn ask(server: SocketAddr) -> std::io::Result<()> {
    let any: SocketAddr = if server.is_ipv4() { ([0; 4], 0).into() } else { ([0u16; 8], 0).into() };
    let socket = UdpSocket::bind(any).await?;
    socket.connect(server).await?;
    let identifier = random::bytes::<2>().map_err(std::io::Error::other)?;
    socket.send(&[&identifier[..], &QUERY].concat()).await?;
    let mut answer = [0; 512];
    loop {
        let len = socket.recv(&mut answer).await?;
        if answer[..len].starts_with(&identifier[..]) {
            return Ok(());
        }
    }
}
