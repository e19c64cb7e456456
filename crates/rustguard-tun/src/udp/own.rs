//! Separate sockets for the few senders that send the most.
//!
//! All peers share the buffer of one socket, so a peer that floods it takes the room of all others. A socket that is
//! connected to one sender gets that sender's datagrams in a separate buffer, and is read in turn with the others. It
//! only receives: datagrams to the sender leave from the shared socket.

use super::bind::{Pair, connected};
use crate::{Endpoint, LocalAddr, clock};
use socket2::Socket;
use std::{
    net::{IpAddr, SocketAddr},
    os::fd::{AsFd, BorrowedFd},
    time::Duration,
};

/// The most such sockets at a time. Each has a buffer of up to 7 MiB, which uses only the memory that its sender fills.
pub(super) const MOST: usize = 8;
/// A sender that was silent for this time loses its socket when another sender needs the place.
const SILENT: Duration = Duration::from_secs(10);

/// A socket of one sender.
pub(super) struct Own {
    pub(super) socket: Socket,
    remote: SocketAddr,
    pub(super) owner: u64,
    /// The local port at which it receives.
    pub(super) port: u16,
    /// When it last had a datagram (CLOCK_BOOTTIME, nanoseconds).
    heard: u64,
}

/// All such sockets, in the order of their creation.
#[derive(Default)]
pub(super) struct Owns(Vec<Own>);

impl Owns {
    pub(super) fn len(&self) -> usize {
        self.0.len()
    }

    pub(super) fn get(&self, n: usize) -> Option<&Own> {
        self.0.get(n)
    }

    /// Records that this socket had a datagram.
    pub(super) fn heard(&mut self, n: usize) {
        self.0[n].heard = clock::boottime_nanos();
    }

    pub(super) fn fds(&self) -> impl Iterator<Item = BorrowedFd<'_>> {
        self.0.iter().map(|own| own.socket.as_fd())
    }

    /// Gives a sender its own socket, unless it has one, or all places are taken by as many owners. `pair` is where it
    /// was heard. A failure changes nothing: the sender stays at the shared socket.
    pub(super) fn add(&mut self, from: &Endpoint, owner: u64, pair: &Pair, offload: bool) {
        let Endpoint { remote, local, .. } = *from;
        let (Some(shared), Some(LocalAddr { ip, .. })) = (pair.of(remote), local) else { return };
        if ip.is_ipv4() != remote.is_ipv4() || ip.is_unspecified() || is_link_local(ip) {
            return;
        }
        if self.0.iter().any(|own| own.remote == remote && own.port == pair.port) {
            return;
        }
        let now = clock::boottime_nanos();
        self.0.retain(|own| Duration::from_nanos(now.saturating_sub(own.heard)) < SILENT);
        if self.0.len() == MOST && !self.make_room() {
            return;
        }
        if let Ok(socket) = connected(shared, SocketAddr::new(ip, pair.port), remote, offload) {
            self.0.push(Own { socket, remote, owner, port: pair.port, heard: now });
        }
    }

    /// Closes one socket of the owner with the most sockets, if any owner has several. So an owner that floods from
    /// many ports cannot occupy all places. Returns whether a socket was closed.
    fn make_room(&mut self) -> bool {
        let count = |owner| self.0.iter().filter(|own| own.owner == owner).count();
        let most = self.0.iter().map(|own| (count(own.owner), own.owner)).max();
        let Some((2.., owner)) = most else { return false };
        let of_owner = self.0.iter().enumerate().filter(|(_, own)| own.owner == owner);
        let oldest = of_owner.min_by_key(|(_, own)| own.heard).map(|(n, _)| n).expect("it has several");
        self.0.remove(oldest);
        true
    }
}

/// A local address of this kind is only valid with its interface, and a connected socket would be bound to that
/// interface.
fn is_link_local(ip: IpAddr) -> bool {
    matches!(ip, IpAddr::V6(ip) if ip.is_unicast_link_local())
}
