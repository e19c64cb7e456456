//! The resolver: looks a name up in a task of its own, again and again until there is an answer.

use crate::{config::EndpointSpec, interface::interface_index};
use rustguard_core::node::PeerId;
use std::{
    io,
    net::{SocketAddr, SocketAddrV6},
    time::Duration,
};
use tokio::sync::mpsc;

/// Waiting times between attempts; the last one repeats.
const BACKOFF: [Duration; 5] = [
    Duration::from_secs(1),
    Duration::from_secs(2),
    Duration::from_secs(5),
    Duration::from_secs(15),
    Duration::from_secs(30),
];

/// Resolves names in tasks of its own.
#[derive(Clone)]
pub(super) struct Resolver {
    /// How often a name is tried again; `None`: without end.
    retries: Option<u32>,
    answers: mpsc::Sender<Resolved>,
}

/// The resolver's answer.
pub(super) struct Resolved {
    pub(super) peer: PeerId,
    /// The number of the peer's endpoint.
    pub(super) path: usize,
    pub(super) name: String,
    /// How often the present address had not answered when the name was asked for. From 1 on, another address is
    /// wanted.
    pub(super) attempt: u32,
    pub(super) answer: io::Result<Vec<SocketAddr>>,
    /// It is not tried again before the next handshake fails.
    pub(super) last: bool,
}

/// A resolution under way. Dropping it ends it.
pub(super) struct Resolving(tokio::task::JoinHandle<()>);

impl Drop for Resolving {
    fn drop(&mut self) {
        self.0.abort();
    }
}

impl Resolving {
    pub(super) fn finished(&self) -> bool {
        self.0.is_finished()
    }

    /// Resolves until there is an answer, with at most `retries` further attempts. Every failure is reported too.
    fn start(
        (peer, path): (PeerId, usize),
        host: String,
        port: u16,
        attempt: u32,
        Resolver { retries, answers }: Resolver,
    ) -> Self {
        Self(tokio::spawn(async move {
            let mut backoff = BACKOFF.iter();
            for retry in 0.. {
                let answer = lookup(&host, port).await;
                let last = answer.is_ok() || retries.is_some_and(|retries| retry >= retries);
                let name = EndpointSpec::Name(host.clone(), port).to_string();
                if answers.send(Resolved { peer, path, name, attempt, answer, last }).await.is_err() || last {
                    return;
                }
                tokio::time::sleep(*backoff.next().unwrap_or(&BACKOFF[BACKOFF.len() - 1])).await;
            }
        }))
    }
}

impl Resolver {
    pub(super) fn new(retries: Option<u32>, answers: mpsc::Sender<Resolved>) -> Self {
        Self { retries, answers }
    }

    /// Begins to resolve the name of the peer's endpoint with this number.
    pub(super) fn start(&self, peer: PeerId, path: usize, (host, port): (String, u16), attempt: u32) -> Resolving {
        Resolving::start((peer, path), host, port, attempt, self.clone())
    }
}

/// A and AAAA, in the order that getaddrinfo prefers (RFC 6724).
async fn lookup(host: &str, port: u16) -> io::Result<Vec<SocketAddr>> {
    if let Some((address, zone)) = host.split_once('%')
        && let Ok(address) = address.parse()
    {
        // An unknown zone gets an error of its own: getaddrinfo only says that it does not know the name.
        let index = interface_index(zone);
        let index =
            index.map_err(|_| io::Error::new(io::ErrorKind::NotFound, format!("there is no interface {zone}")))?;
        return Ok(vec![SocketAddrV6::new(address, port, 0, index).into()]);
    }
    let addresses: Vec<_> = tokio::net::lookup_host((host, port)).await?.collect();
    if addresses.is_empty() {
        return Err(io::Error::new(io::ErrorKind::NotFound, "the name has no address"));
    }
    Ok(addresses)
}
