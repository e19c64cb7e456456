//! Sends runs of datagrams, and handles each error of the kernel.

use super::bind::Pair;
use crate::{LocalAddr, Segments, Sent, Span, sys::Outgoing};
use socket2::Socket;
use std::{io, net::SocketAddr};

/// The maximum number of datagrams in one message (UDP_MAX_SEGMENTS of kernels before 6.9).
pub(super) const MAX_SEGMENTS: usize = 64;
/// The longest UDP payload over IPv4 in bytes. It also limits a run.
pub(super) const MAX_PAYLOAD: usize = 65_507;

/// Sends messages, all of one family. If one fails for good, the next ones are still sent. A run that fails is sent
/// again datagram by datagram, in `singly`. The route may lead through a device that cannot segment (EIO), or have an
/// MTU below the datagrams' size (EINVAL, EMSGSIZE), which fragmentation solves. The next run is tried whole again,
/// because its route may be another one.
pub(super) fn send_all(
    sockets: &Pair,
    give: &mut dyn FnMut(&Socket, &[Outgoing]) -> io::Result<usize>,
    mut rest: &mut [Outgoing],
    singly: &mut Vec<Outgoing>,
    sent: &mut Sent,
) {
    // The attempts for the first remaining message.
    let mut tries = Tries::default();
    while let Some(&first) = rest.first() {
        let Some(socket) = sockets.of(first.to) else {
            sent.failed += datagrams(rest);
            break;
        };
        let error = match give(socket, rest) {
            Ok(count) => {
                sent.sent += datagrams(&rest[..count]);
                rest = &mut rest[count..];
                if let Some(source) = tries.source_lost {
                    sent.source_lost += first.count + forget_source(rest, first.to, source);
                }
                tries = Tries::default();
                continue;
            }
            Err(error) => error,
        };
        match error.raw_os_error() {
            Some(libc::EINTR) => {}
            // The socket's buffer is full, or the kernel has no memory. Waiting here would delay all peers, in both
            // directions.
            Some(libc::EAGAIN | libc::ENOBUFS) => {
                let run = rest.iter().take_while(|datagram| datagram.to == first.to).count();
                sent.failed += datagrams(&rest[..run]);
                rest = &mut rest[run..];
                tries = Tries::default();
            }
            // This may be the error of another datagram. Only an error that comes again belongs to this one.
            _ if !tries.again => {
                tries.again = true;
                forget_pending_error(socket);
            }
            Some(libc::EIO | libc::EINVAL | libc::EMSGSIZE | libc::EOPNOTSUPP) if first.count > 1 => {
                singly.extend(pieces(rest[0]));
                if let Some(source) = tries.source_lost {
                    sent.source_lost += first.count + forget_source(rest, first.to, source);
                }
                send_all(sockets, give, singly, &mut Vec::new(), sent);
                singly.clear();
                rest = &mut rest[1..];
                tries = Tries::default();
            }
            // The local address may no longer exist on this host: let the kernel choose another one. A requested
            // interface is not replaced.
            Some(libc::EINVAL | libc::EADDRNOTAVAIL | libc::ENETUNREACH | libc::EHOSTUNREACH | libc::ENODEV)
                if first.source.is_some_and(|source| !source.bound) =>
            {
                tries = Tries { source_lost: rest[0].source.take(), ..Tries::default() };
            }
            _ => {
                sent.failed += first.count;
                rest = &mut rest[1..];
                tries = Tries::default();
            }
        }
    }
}

/// The attempts for the first message.
#[derive(Default)]
struct Tries {
    again: bool,
    source_lost: Option<LocalAddr>,
}

/// How many of these datagrams one message may carry. Only datagrams that lie end to end can share a message.
pub(super) fn longest_run(segments: &Segments) -> usize {
    if segments.stride != segments.len || segments.len == 0 || segments.last_len == 0 {
        return 1;
    }
    (MAX_PAYLOAD / segments.len).clamp(1, MAX_SEGMENTS)
}

/// Splits a message: each of its datagrams becomes a message of its own.
pub(super) fn pieces(run: Outgoing) -> impl Iterator<Item = Outgoing> {
    let Outgoing { span, size, count, .. } = run;
    let end = span.offset + span.len;
    (0..count).map(move |i| {
        let offset = span.offset + i * size;
        let span = Span { offset, len: size.min(end - offset) };
        Outgoing { span, count: 1, ..run }
    })
}

pub(super) fn datagrams(messages: &[Outgoing]) -> usize {
    messages.iter().map(|message| message.count).sum()
}

/// Clears the error that is pending on the socket (`sk_err`: from ICMP, or from a recvmmsg that stopped in the middle
/// of a batch). The kernel reports it for the next datagram, which did not cause it. An error of the datagram itself
/// appears again when the datagram is offered again.
fn forget_pending_error(socket: &Socket) {
    // If this fails, nothing was pending.
    let _ = socket.take_error();
}

/// Removes a lost source from all datagrams to the same address that would use it. Returns the number of these
/// datagrams.
fn forget_source(datagrams: &mut [Outgoing], to: SocketAddr, lost: LocalAddr) -> usize {
    let same = datagrams.iter_mut().filter(|datagram| datagram.to == to && datagram.source == Some(lost));
    same.map(|message| {
        message.source = None;
        message.count
    })
    .sum()
}
