//! A worker: one thread that owns its TUN queues, its sockets and its buffers, and runs each batch to completion.
//!
//! [`tx`] and [`rx`] tell the two directions from top to bottom; this file is the loop around them.

mod decision;
pub(crate) mod detour;
mod forward_batch;
mod lanes;
mod read_backoff;
mod relay_batch;
mod routing_loop;
mod rx;
pub(crate) mod seal;
mod tx;
mod unreachable;

use crate::shared::{
    Shared,
    to_control::{Notice, ToControl},
};
#[cfg(feature = "kernel")]
pub(crate) use lanes::LANES;
use lanes::Lanes;
use parking_lot::{Condvar, Mutex};
use read_backoff::ReadBackoff;
use rustguard_core::time::Instant;
use rustguard_tun::{
    Network, TunQueue, clock,
    wait::{Waiter, Waker},
};
use std::{
    io,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    thread::JoinHandle,
};

/// How often a worker looks for packets without finding any before it sleeps, after [`BUSY`] batches without a pause: the next
/// packets are probably a few microseconds away, and sleeping and waking takes longer. A TCP stream beside pings gains 5 %, the median
/// of the pings falls by a third, and the processor time per byte stays (medians of three rounds on two virtual cores).
const LOOKS: u32 = 4;
/// Batches without a pause.
const BUSY: u32 = 8;
/// The name of the sockets in the log.
const UDP: &str = "UDP sockets";

/// Control's handle on a worker. Dropping it stops the worker and waits for it.
pub(crate) struct WorkerHandle<N> {
    mailbox: Arc<Mailbox<N>>,
    waker: Waker,
    thread: Option<JoinHandle<()>>,
}

/// What control leaves for the worker to find when it is woken.
struct Mailbox<N> {
    /// New sockets, after the listen port changed; none, when they are to be closed.
    network: Mutex<Option<Option<N>>>,
    /// The worker has them, and the old ones are closed.
    replaced: Condvar,
    stop: AtomicBool,
    /// Something was left. Read after every batch, so that a flood does not keep control waiting.
    mail: AtomicBool,
}

impl<N: Network> WorkerHandle<N> {
    /// Starts a worker.
    ///
    /// # Errors
    /// When the thread or its eventfd cannot be made.
    pub(crate) fn start<T: TunQueue>(
        name: String,
        shared: Arc<Shared>,
        queues: Vec<T>,
        network: N,
    ) -> io::Result<Self> {
        let lanes = Lanes::new(queues);
        let (waiter, waker) = Waiter::new()?;
        let mailbox = Arc::new(Mailbox {
            network: Mutex::new(None),
            replaced: Condvar::new(),
            stop: AtomicBool::new(false),
            mail: AtomicBool::new(false),
        });
        let worker = Worker {
            tx: tx::Tx::new(&lanes),
            rx: rx::Rx::new(&network),
            sending: ReadBackoff::new("TUN device"),
            receiving: ReadBackoff::new(UDP),
            lanes,
            network: Some(network),
            waiter,
            mailbox: Arc::clone(&mailbox),
            shared,
        };
        let thread = std::thread::Builder::new().name(name).spawn(move || worker.run())?;
        Ok(Self { mailbox, waker, thread: Some(thread) })
    }

    /// Gives the worker new sockets, or none; the old ones are closed once it has seen that: see
    /// [`wait_for_replaced`](Self::wait_for_replaced).
    pub(crate) fn replace_network(&self, network: Option<N>) {
        *self.mailbox.network.lock() = Some(network);
        self.notify();
    }

    /// Waits until the worker has closed the old sockets, so that their port is free. That is at the end of its batch, a hundred
    /// microseconds from when it gets a core. Returns at `deadline` in any case, and at once if the worker has ended.
    pub(crate) fn wait_for_replaced(&self, deadline: std::time::Instant) {
        let mut network = self.mailbox.network.lock();
        while network.is_some() && !self.thread.as_ref().is_none_or(JoinHandle::is_finished) {
            if self.mailbox.replaced.wait_until(&mut network, deadline).timed_out() {
                return;
            }
        }
    }
}

impl<N> WorkerHandle<N> {
    fn notify(&self) {
        self.mailbox.mail.store(true, Ordering::Release);
        self.waker.wake();
    }
}

impl<N> Drop for WorkerHandle<N> {
    fn drop(&mut self) {
        self.mailbox.stop.store(true, Ordering::Release);
        self.notify();
        if let Some(thread) = self.thread.take() {
            // A panic there was printed by the panic hook; there is nothing left to do about it here.
            let _ = thread.join();
        }
    }
}

struct Worker<T, N> {
    lanes: Lanes<T>,
    /// None while the interface is down.
    network: Option<N>,
    tx: tx::Tx,
    rx: rx::Rx,
    /// The pauses of the two directions after failed reads.
    sending: ReadBackoff,
    receiving: ReadBackoff,
    waiter: Waiter,
    mailbox: Arc<Mailbox<N>>,
    shared: Arc<Shared>,
}

impl<T: TunQueue, N: Network> Worker<T, N> {
    fn run(mut self) {
        let panicked = Err(io::Error::other("the worker panicked"));
        let mut end = End { control: self.shared.control.clone(), result: panicked };
        end.result = self.run_until_stopped();
    }

    fn run_until_stopped(&mut self) -> io::Result<()> {
        let (mut busy, mut looks) = (0_u32, 0);
        loop {
            // Both directions in turn, a batch each, so that neither starves the other; wait only when both are dry.
            let received = self.receive()?;
            let sent = self.send(!received)?;
            if received || sent {
                (busy, looks) = (busy.saturating_add(1), 0);
            } else if busy >= BUSY && looks < LOOKS {
                looks += 1;
            } else {
                (busy, looks) = (0, 0);
                self.wait()?;
            }
            if self.mailbox.mail.load(Ordering::Relaxed) && !self.read_mail() {
                return Ok(());
            }
        }
    }

    /// Receives a batch, unless the direction pauses.
    fn receive(&mut self) -> io::Result<bool> {
        if self.receiving.pause(now) {
            return Ok(false);
        }
        let result = self.rx.run(&mut self.network, &mut self.lanes, &self.shared);
        self.receiving.outcome(result, now)
    }

    /// Sends a batch, unless the direction pauses.
    fn send(&mut self, alone: bool) -> io::Result<bool> {
        if self.sending.pause(now) {
            return Ok(false);
        }
        let result = self.tx.run(&mut self.lanes, &mut self.network, alone, &self.shared);
        self.sending.outcome(result, now)
    }

    /// Waits until there is something to read, mail, or a pause ends. A direction that pauses is left out: it may be readable.
    fn wait(&mut self) -> io::Result<()> {
        let (sending, receiving) = (self.sending.paused(), self.receiving.paused());
        let until = [sending, receiving].into_iter().flatten().min();
        let lanes = self.lanes.fds().filter(|_| sending.is_none());
        let network = self.network.fds().filter(|_| receiving.is_none());
        self.waiter.wait(lanes.chain(network), until.map(|until| until.since(now()))).map(drop)
    }

    /// Returns false when the worker is to stop.
    fn read_mail(&mut self) -> bool {
        // Cleared first: mail that comes during the rest is read the next time.
        self.mailbox.mail.swap(false, Ordering::Acquire);
        let mut mail = self.mailbox.network.lock();
        if let Some(network) = mail.take() {
            self.rx = rx::Rx::new(&network);
            self.receiving = ReadBackoff::new(UDP);
            self.network = network;
            self.mailbox.replaced.notify_all();
        }
        drop(mail);
        !self.mailbox.stop.load(Ordering::Acquire)
    }
}

/// Tells control how the worker ended, also when that was by unwinding.
struct End {
    control: ToControl,
    result: io::Result<()>,
}

impl Drop for End {
    fn drop(&mut self) {
        self.control.notify(Notice::WorkerEnded(std::mem::replace(&mut self.result, Ok(()))));
    }
}

/// The time of a batch: read once, used for every run in it.
fn now() -> Instant {
    Instant::from_nanos(clock::boottime_nanos())
}
