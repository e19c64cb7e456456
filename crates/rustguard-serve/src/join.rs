//! Joining: runs the client of rustguard-enroll on a UDP socket until it ends.

use crate::clock::now;
use rustguard_core::host_port::HostPort;
use rustguard_crypto::{random::SystemRng, x25519::StaticSecret};
use rustguard_enroll::{
    client::{Client, Heard, JoinError as Refused, Joined},
    server::ApprovalCode,
    token::Token,
    wire::MAX_DATAGRAM,
};
use std::{
    collections::HashMap,
    io,
    net::{Ipv4Addr, Ipv6Addr, SocketAddr},
    time::Duration,
};
use tokio::net::UdpSocket;

/// The delay before a name that cannot be resolved is tried again.
const RESOLVE_AGAIN: Duration = Duration::from_secs(3);
/// The time without an answer after which the user is told.
const SILENCE: Duration = Duration::from_secs(3);
/// The time without an answer after which the name is resolved again.
const RESOLVE_ANEW: Duration = Duration::from_secs(60);
/// The runtime's timers stop while the machine sleeps, so the clock is checked at least this often.
const LOOK: Duration = Duration::from_secs(5);

/// The progress of a join, for the waiting user.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Progress {
    /// The server's name cannot be resolved now. It is tried again.
    Unresolved(String),
    /// There was no answer for a while. By design a server does not answer a machine without a valid token.
    Silence,
    /// The server's administrator, who sees the same digits, has to approve.
    Waiting(ApprovalCode),
}

/// Why joining failed.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum JoinError {
    /// The server refused, or the token is not valid.
    #[error(transparent)]
    Refused(#[from] Refused),
    /// The socket could not be opened.
    #[error("cannot open a UDP socket: {0}")]
    Socket(#[from] io::Error),
}

/// A machine, and the network that it wants to join.
#[derive(Debug)]
pub struct JoinOptions {
    servers: Vec<HostPort>,
    token: Token,
    identity: StaticSecret,
    name: Option<String>,
    ephemeral: bool,
}

impl JoinOptions {
    /// The machine with the key `identity` joins at `server` by `token`. The caller has stored the key before, because
    /// the server gives the lease to this key.
    pub fn new(server: HostPort, token: Token, identity: StaticSecret) -> Self {
        Self { servers: vec![server], token, identity, name: None, ephemeral: false }
    }

    /// Adds other servers of the network, which are tried in turn until one answers.
    #[must_use]
    pub fn with_others(mut self, others: impl IntoIterator<Item = HostPort>) -> Self {
        self.servers.extend(others);
        self
    }

    /// Sets the machine's name.
    #[must_use]
    pub fn with_name(self, name: impl Into<Option<String>>) -> Self {
        Self { name: name.into(), ..self }
    }

    /// Sets whether the server ends the lease when this machine is silent for long.
    #[must_use]
    pub fn with_ephemeral(self, ephemeral: bool) -> Self {
        Self { ephemeral, ..self }
    }
}

/// The result of a join.
#[derive(Debug)]
#[non_exhaustive]
pub struct Membership {
    /// The server's settings. [`Joined::accept`] checks them.
    pub joined: Joined,
    /// The server's endpoints: first the address that answered, then the other addresses of its name.
    pub endpoints: Vec<SocketAddr>,
    /// Which of the servers has answered: 0 is the one of [`JoinOptions::new`].
    pub server: usize,
}

/// Joins a network. There is no time limit; drop the future to stop.
///
/// # Errors
/// See [`JoinError`].
pub async fn join(options: JoinOptions, mut progress: impl FnMut(Progress)) -> Result<Membership, JoinError> {
    let JoinOptions { servers, token, identity, name, ephemeral } = options;
    let mut client = Client::new(token, identity, now())?.with_name(name).with_ephemeral(ephemeral).with_member(true);
    let mut way = Way::new(resolve(&servers, &mut progress).await).await?;
    let (mut heard, mut told) = (false, false);
    let (mut since, mut last_code) = (now().instant, None);
    let mut buffer = [0; MAX_DATAGRAM + 1];
    loop {
        while let Some(datagram) = client.poll(now(), &mut SystemRng)? {
            way.send(&datagram, heard).await?;
        }
        let mut wait = client.deadline().map_or(LOOK, |deadline| deadline.since(now().instant)).min(LOOK);
        if !heard && !told {
            wait = wait.min(SILENCE.saturating_sub(now().instant.since(since)));
        }
        let received = tokio::time::timeout(wait, way.socket.recv_from(&mut buffer)).await;
        let silent = now().instant.since(since);
        if !heard && !told && silent >= SILENCE {
            told = true;
            progress(Progress::Silence);
        }
        if silent >= RESOLVE_ANEW {
            // The server may have a new address.
            since = now().instant;
            way = Way::new(resolve(&servers, &mut progress).await).await?;
            heard = false;
        }
        // Otherwise the wait is over, or an earlier datagram caused an ICMP error. In both cases the loop continues and
        // sends again when it is due.
        let Ok(Ok((len, from))) = received else { continue };
        // Also of a server that takes longer than the next one was tried.
        if !way.servers.contains_key(&from) {
            continue;
        }
        let answer = client.handle(&buffer[..len], now(), &mut SystemRng);
        if !matches!(answer, Heard::Nothing) {
            (heard, since, way.to) = (true, now().instant, from);
        }
        match answer {
            Heard::Nothing | Heard::Progress => {}
            Heard::Waiting(code) => {
                if last_code.replace(code) != Some(code) {
                    progress(Progress::Waiting(code));
                }
            }
            Heard::Joined(joined) => {
                let server = way.servers.get(&way.to).copied().unwrap_or_default();
                return Ok(Membership { joined: *joined, endpoints: way.all(), server });
            }
            Heard::Failed(why) => return Err(why.into()),
        }
    }
}

/// The server's addresses, and the one in use. An address that answers is kept.
struct Way {
    /// The addresses, and whose they are.
    servers: HashMap<SocketAddr, usize>,
    addresses: Vec<SocketAddr>,
    next: usize,
    to: SocketAddr,
    socket: UdpSocket,
}

impl Way {
    async fn new(found: Vec<(SocketAddr, usize)>) -> io::Result<Self> {
        let addresses: Vec<_> = found.iter().map(|(address, _)| *address).collect();
        let to = addresses[0];
        Ok(Self { servers: found.into_iter().collect(), addresses, next: 0, to, socket: bind(to).await? })
    }

    /// The address in use, then the other addresses of the same server.
    fn all(&self) -> Vec<SocketAddr> {
        let is_same = |address: &SocketAddr| self.servers.get(address) == self.servers.get(&self.to);
        let others = self.addresses.iter().copied().filter(|address| *address != self.to && is_same(address));
        std::iter::once(self.to).chain(others).collect()
    }

    /// Sends to the address that answers. Until one does, sends to each address in turn.
    async fn send(&mut self, datagram: &[u8], answers: bool) -> io::Result<()> {
        if !answers {
            let to = self.addresses[self.next % self.addresses.len()];
            self.next += 1;
            if to.is_ipv4() != self.to.is_ipv4() {
                self.socket = bind(to).await?;
            }
            self.to = to;
        }
        // An address that is unreachable now is tried again later.
        if let Err(error) = self.socket.send_to(datagram, self.to).await {
            tracing::debug!("cannot send to {}: {error}", self.to);
        }
        Ok(())
    }
}

/// All addresses of the servers, and whose they are; at least one. The first address of each server comes before the
/// second of any.
async fn resolve(servers: &[HostPort], progress: &mut impl FnMut(Progress)) -> Vec<(SocketAddr, usize)> {
    let mut told = false;
    loop {
        let (mut found, mut cause) = (Vec::new(), "it has no address".to_owned());
        for (server, at) in servers.iter().enumerate() {
            match tokio::net::lookup_host((&*at.host().to_string(), at.port())).await {
                Ok(addresses) => found.extend(addresses.enumerate().map(|(nth, address)| (nth, address, server))),
                Err(error) => cause = error.to_string(),
            }
        }
        if !found.is_empty() {
            // The order of the servers stays.
            found.sort_by_key(|(nth, ..)| *nth);
            return found.into_iter().map(|(_, address, server)| (address, server)).collect();
        }
        if !told {
            told = true;
            progress(Progress::Unresolved(cause));
        }
        tokio::time::sleep(RESOLVE_AGAIN).await;
    }
}

async fn bind(to: SocketAddr) -> io::Result<UdpSocket> {
    match to {
        SocketAddr::V4(_) => UdpSocket::bind((Ipv4Addr::UNSPECIFIED, 0)).await,
        SocketAddr::V6(_) => UdpSocket::bind((Ipv6Addr::UNSPECIFIED, 0)).await,
    }
}
