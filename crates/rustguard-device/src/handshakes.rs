//! The queues of handshake messages from the workers to control.
//!
//! The worker checks the MACs, which takes about a microsecond. It drops a message with a wrong MAC1, because the
//! sender does not know the local public key; control sees ten such messages a second, for the log. There are three
//! queues. Messages from senders that have proven their address by a cookie have their own queue, which spoofed sources
//! cannot fill. Cookie replies have no MACs, so anybody can send them; they also have their own queue. While all three
//! queues have messages, control reads half of its messages from the first and a quarter from each of the others. A
//! flood in one queue therefore does not block the others.

use crate::{
    drops::{DropReason, Drops},
    fair::FairQueue,
    way::Sender,
};
use arc_swap::ArcSwapOption;
use rustguard_core::{
    cookie::{Screen, Standing},
    time::Instant,
    wire::Kind,
};
use std::{
    sync::atomic::{AtomicU64, Ordering::Relaxed},
    time::Duration,
};
use tokio::sync::mpsc;

/// The length of the longest handshake message, an initiation, in bytes.
pub(crate) const HANDSHAKE_MAX: usize = 148;
/// The number of messages that may wait in each queue. At 36 µs of X25519 each, a full queue is about 20 ms of work.
pub(crate) const HANDSHAKE_QUEUE: usize = 512;

/// The time between two messages with a wrong MAC1 that go to control.
const INVALID_PAUSE: Duration = Duration::from_millis(100);

/// A copy of a handshake message.
pub(crate) struct HandshakeDatagram {
    pub(crate) from: Sender,
    /// The result of checking its MACs; `None` if the worker could not check them.
    pub(crate) standing: Option<Standing>,
    pub(crate) bytes: [u8; HANDSHAKE_MAX],
    pub(crate) len: usize,
}

/// The workers' end of the queues.
pub(crate) struct HandshakeQueues {
    /// Checks MACs. It is `None` while there is no private key, or control has not published it yet.
    pub(crate) screen: ArcSwapOption<Screen>,
    proven: FairQueue<HandshakeDatagram>,
    unproven: FairQueue<HandshakeDatagram>,
    cookies: FairQueue<HandshakeDatagram>,
    invalid: mpsc::Sender<HandshakeDatagram>,
    /// When the next message with a wrong MAC1 may go to control, in nanoseconds.
    next_invalid: AtomicU64,
}

/// Control's end of the queues.
pub(crate) struct HandshakeInbox {
    proven: mpsc::Receiver<HandshakeDatagram>,
    unproven: mpsc::Receiver<HandshakeDatagram>,
    cookies: mpsc::Receiver<HandshakeDatagram>,
    /// A few of the messages with a wrong MAC1.
    invalid: mpsc::Receiver<HandshakeDatagram>,
    /// The number of messages read so far, modulo 256.
    turn: u8,
}

impl HandshakeQueues {
    /// Creates both ends, with `room` messages in each queue.
    pub(crate) fn new(room: usize) -> (Self, HandshakeInbox) {
        let (proven, proven_in) = mpsc::channel(room);
        let (unproven, unproven_in) = mpsc::channel(room);
        let (cookies, cookies_in) = mpsc::channel(room);
        let (invalid, invalid_in) = mpsc::channel(1);
        let [proven, unproven, cookies] = [proven, unproven, cookies].map(FairQueue::new);
        (
            Self {
                screen: ArcSwapOption::empty(),
                proven,
                unproven,
                cookies,
                invalid,
                next_invalid: AtomicU64::new(0),
            },
            HandshakeInbox {
                proven: proven_in,
                unproven: unproven_in,
                cookies: cookies_in,
                invalid: invalid_in,
                turn: 0,
            },
        )
    }

    /// Whether a message with a wrong MAC1 goes to control: about one in [`INVALID_PAUSE`], at most one for each
    /// worker.
    fn may_be_looked_at(&self, now: Instant) -> bool {
        let may = now.as_nanos() >= self.next_invalid.load(Relaxed);
        if may {
            self.next_invalid.store((now + INVALID_PAUSE).as_nanos(), Relaxed);
        }
        may
    }

    /// Copies a message to control, unless its MACs are wrong. [`Kind::of`] has checked its length.
    #[cold]
    pub(crate) fn take(&self, from: Sender, datagram: &[u8], now: Instant, drops: &Drops) {
        let screen = self.screen.load();
        let cookie = Kind::of(datagram) == Some(Kind::CookieReply);
        let screen = screen.as_deref().filter(|_| !cookie);
        let standing = screen.map(|screen| screen.judge(from.origin(), datagram, now));
        let copy = || {
            let mut bytes = [0; HANDSHAKE_MAX];
            bytes[..datagram.len()].copy_from_slice(datagram);
            HandshakeDatagram { from, standing, bytes, len: datagram.len() }
        };
        let queue = match standing {
            Some(Standing::Invalid) => {
                // Control logs the likely mistake of the sender.
                if !(self.may_be_looked_at(now) && self.invalid.try_send(copy()).is_ok()) {
                    tracing::debug!(?from, "handshake message refused: MAC1 is wrong");
                    drops.count(DropReason::HandshakeRefused, 1);
                }
                return;
            }
            Some(Standing::Proven) => &self.proven,
            Some(Standing::Unproven) => &self.unproven,
            None if cookie => &self.cookies,
            None => &self.unproven,
        };
        if !queue.push(from.origin(), now, copy) {
            drops.count(DropReason::HandshakeQueueFull, 1);
        }
    }
}

impl HandshakeInbox {
    /// Waits for the next message; `None` once the workers have ended. Dropping the future loses no message.
    pub(crate) async fn recv(&mut self) -> Option<HandshakeDatagram> {
        let Self { proven, unproven, cookies, invalid, turn } = self;
        let queues = match *turn % 4 {
            1 => [unproven, proven, cookies],
            3 => [cookies, proven, unproven],
            _ => [proven, unproven, cookies],
        };
        let message = tokio::select! {
            biased;
            message = first_of(queues) => message,
            Some(message) = invalid.recv() => Some(message),
        };
        *turn = turn.wrapping_add(1);
        message
    }

    #[cfg(test)]
    pub(crate) fn try_recv(&mut self) -> Option<HandshakeDatagram> {
        [&mut self.proven, &mut self.unproven, &mut self.cookies].into_iter().find_map(|queue| queue.try_recv().ok())
    }
}

/// A message from the first of these queues that has one.
async fn first_of(queues: [&mut mpsc::Receiver<HandshakeDatagram>; 3]) -> Option<HandshakeDatagram> {
    let [first, second, third] = queues;
    tokio::select! {
        biased;
        Some(message) = first.recv() => Some(message),
        Some(message) = second.recv() => Some(message),
        message = third.recv() => message,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use rustguard_tun::Endpoint;

    fn from() -> Sender {
        Endpoint::new("192.0.2.1:1".parse().unwrap()).into()
    }

    /// A message of this type, with wrong MACs.
    fn message(kind: u8, len: usize) -> Vec<u8> {
        let mut bytes = vec![0; len];
        bytes[0] = kind;
        bytes
    }

    fn kinds(inbox: &mut HandshakeInbox, count: usize) -> Vec<u8> {
        let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
        runtime.block_on(async {
            let mut kinds = vec![];
            for _ in 0..count {
                kinds.push(inbox.recv().await.expect("the workers are there").bytes[0]);
            }
            kinds
        })
    }

    /// Cookie replies have no MAC1, so their sender does not need the local public key.
    #[test]
    fn cookie_replies_that_anybody_can_make_take_no_place_of_initiations() {
        let (handshakes, mut inbox) = HandshakeQueues::new(8);
        let (drops, now) = (Drops::default(), Instant::from_nanos(1_000_000_000));
        for n in 0..1_000_u32 {
            let remote = (n.to_be_bytes(), 1).into();
            handshakes.take(Endpoint::new(remote).into(), &message(3, 64), now, &drops);
        }
        assert_eq!(drops.snapshot(), [(DropReason::HandshakeQueueFull, 1_000 - 8)]);
        handshakes.take(from(), &message(1, 148), now, &drops);
        assert_eq!(drops.snapshot(), [(DropReason::HandshakeQueueFull, 1_000 - 8)]);
        let kinds = kinds(&mut inbox, 4);
        assert_eq!(kinds.iter().filter(|&&kind| kind == 1).count(), 1, "{kinds:?}");
    }

    /// A single source that has proven its address can send faster than control reads.
    #[test]
    fn who_floods_with_a_cookie_does_not_keep_those_waiting_who_have_none() {
        let (handshakes, mut inbox) = HandshakeQueues::new(64);
        let (drops, now) = (Drops::default(), Instant::from_nanos(1_000_000_000));
        let proven = || HandshakeDatagram {
            from: from(),
            standing: Some(Standing::Proven),
            bytes: [0; HANDSHAKE_MAX],
            len: HANDSHAKE_MAX,
        };
        for _ in 0..32 {
            assert!(handshakes.proven.push(from().origin(), now, proven));
        }
        handshakes.take(from(), &message(1, 148), now, &drops);
        handshakes.take(from(), &message(3, 64), now, &drops);
        let kinds = kinds(&mut inbox, 8);
        assert!(kinds.contains(&1) && kinds.contains(&3), "{kinds:?}");
        assert!(kinds.iter().filter(|&&kind| kind == 0).count() >= 4, "the proven have most turns: {kinds:?}");
    }
}
