//! A worker: one thread that owns its TUN queues, its sockets and its buffers, and runs each batch to completion.
//!
//! [`tx`] and [`rx`] contain the two directions; this file is the loop around them.

mod busiest;
mod decision;
pub(crate) mod fec;
mod forward_batch;
mod lanes;
mod pace;
mod read_backoff;
mod refuse;
mod relay_batch;
mod resequence;
mod routing_loop;
mod rx;
mod turns;
mod tx;
mod unreachable;

use crate::shared::{
    Shared,
    to_control::{Notice, ToControl},
};
#[cfg(feature = "kernel")]
pub(crate) use lanes::LANES;
use lanes::Lanes;
use pace::Pace;
use parking_lot::{Condvar, Mutex};
use read_backoff::ReadBackoff;
use rustguard_core::time::Instant;
use rustguard_tun::{
    Network, TunQueue, clock,
    wait::{Ready, Waiter, Waker},
};
use std::{
    io,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    thread::JoinHandle,
    time::Duration,
};

/// The name of the sockets in the log.
const UDP: &str = "UDP sockets";

/// Control's handle on a worker. Dropping it stops the worker and waits for it.
pub(crate) struct WorkerHandle {
    mailbox: Arc<Mailbox>,
    waker: Waker,
    thread: Option<JoinHandle<()>>,
}

/// Messages from control, which the worker reads when it is woken.
struct Mailbox {
    /// New sockets, after the listen port changed; none when the sockets are to be closed.
    network: Mutex<Option<Option<Box<dyn Network>>>>,
    /// The worker has taken the new sockets and closed the old ones.
    replaced: Condvar,
    stop: AtomicBool,
    /// There are messages. Read after every batch, so that a flood does not keep control waiting.
    mail: AtomicBool,
}

impl WorkerHandle {
    /// Starts a worker.
    ///
    /// # Errors
    /// When the thread or its eventfd cannot be made.
    pub(crate) fn start(
        name: String,
        shared: Arc<Shared>,
        queues: Vec<Box<dyn TunQueue>>,
        network: Box<dyn Network>,
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
            rx: rx::Rx::new(&*network),
            sending: ReadBackoff::new("TUN device"),
            receiving: ReadBackoff::new(UDP),
            pace: Pace::default(),
            lanes,
            network: Some(network),
            waiter,
            mailbox: Arc::clone(&mailbox),
            shared,
        };
        let thread = std::thread::Builder::new().name(name).spawn(move || worker.run())?;
        Ok(Self { mailbox, waker, thread: Some(thread) })
    }

    /// Gives the worker new sockets, or none. The worker then closes the old ones: see
    /// [`wait_for_replaced`](Self::wait_for_replaced).
    pub(crate) fn replace_network(&self, network: Option<Box<dyn Network>>) {
        *self.mailbox.network.lock() = Some(network);
        self.notify();
    }

    /// Waits until the worker has closed the old sockets, so that their port is free. The worker does so at the end of
    /// its batch, about a hundred microseconds after it gets a core. Returns at `deadline` in any case, and at once if
    /// the worker has ended.
    pub(crate) fn wait_for_replaced(&self, deadline: std::time::Instant) {
        let mut network = self.mailbox.network.lock();
        while network.is_some() && !self.thread.as_ref().is_none_or(JoinHandle::is_finished) {
            if self.mailbox.replaced.wait_until(&mut network, deadline).timed_out() {
                return;
            }
        }
    }
}

impl WorkerHandle {
    fn notify(&self) {
        self.mailbox.mail.store(true, Ordering::Release);
        self.waker.wake();
    }
}

impl Drop for WorkerHandle {
    fn drop(&mut self) {
        self.mailbox.stop.store(true, Ordering::Release);
        self.notify();
        if let Some(thread) = self.thread.take() {
            // The panic hook has printed a panic of the thread; nothing else is to be done here.
            let _ = thread.join();
        }
    }
}

struct Worker {
    lanes: Lanes,
    /// None while the interface is down.
    network: Option<Box<dyn Network>>,
    tx: tx::Tx,
    rx: rx::Rx,
    /// The pauses of the two directions after failed reads.
    sending: ReadBackoff,
    receiving: ReadBackoff,
    pace: Pace,
    waiter: Waiter,
    mailbox: Arc<Mailbox>,
    shared: Arc<Shared>,
}

impl Worker {
    fn run(mut self) {
        let panicked = Err(io::Error::other("the worker panicked"));
        let mut end = End { control: self.shared.control.clone(), result: panicked };
        end.result = self.run_until_stopped();
    }

    fn run_until_stopped(&mut self) -> io::Result<()> {
        loop {
            // Both directions in turn, a batch each, so that neither starves the other.
            match self.wait(self.pace.looks())? {
                Some(Found { lanes, network }) => {
                    let stream = self.pace.found(now());
                    let received = network.map_or(Ok(false), |ready| self.receive(ready))?;
                    lanes.map_or(Ok(()), |ready| self.send(ready, stream, !received))?;
                    self.pace.ended(now());
                }
                None => self.pace.found_nothing(),
            }
            self.rx.release(&mut self.lanes, &self.shared)?;
            if self.mailbox.mail.load(Ordering::Relaxed) && !self.read_mail() {
                return Ok(());
            }
        }
    }

    /// Receives a batch from the sockets that are ready. Returns whether there was anything.
    fn receive(&mut self, ready: Ready) -> io::Result<bool> {
        let result = self.rx.run(&mut self.network, ready, &mut self.lanes, &self.shared);
        self.receiving.outcome(result, now)
    }

    /// Sends a batch from the lanes that are ready. In a stream, lanes are read until they are empty. Where packets
    /// come singly, lanes are read once: another attempt would be a system call without a result.
    fn send(&mut self, ready: Ready, stream: bool, alone: bool) -> io::Result<()> {
        self.lanes.ask(ready, !stream);
        let result = self.tx.run(&mut self.lanes, &mut self.network, stream && alone, &self.shared);
        self.sending.outcome(result, now).map(drop)
    }

    /// Waits for something to read, mail, a packet that has waited long enough, or the end of a pause. With
    /// `only_look`, it does not wait. A direction that pauses is not polled, because it may be readable.
    fn wait(&mut self, only_look: bool) -> io::Result<Option<Found>> {
        let sending = self.sending.pause(now).then(|| self.sending.paused()).flatten();
        let receiving = self.receiving.pause(now).then(|| self.receiving.paused()).flatten();
        let until = [sending, receiving, self.rx.deadline()].into_iter().flatten().min();
        let timeout = if only_look { Some(Duration::ZERO) } else { until.map(|until| until.since(now())) };
        let lanes = self.lanes.fds().filter(|_| sending.is_none());
        let network = self.network.fds().filter(|_| receiving.is_none());
        if !self.waiter.wait(lanes.chain(network), timeout)?.ready {
            return Ok(None);
        }
        let lanes = if sending.is_none() { self.lanes.count() } else { 0 };
        let network = if receiving.is_none() { self.network.fds().count() } else { 0 };
        let ready = |first, count| Some(self.waiter.ready(first)).filter(|ready| !ready.is_empty(count));
        Ok(Some(Found { lanes: ready(0, lanes), network: ready(lanes, network) }))
    }

    /// Returns false when the worker is to stop.
    fn read_mail(&mut self) -> bool {
        // Cleared first: mail that arrives while this function runs is read the next time.
        self.mailbox.mail.swap(false, Ordering::Acquire);
        let mut mail = self.mailbox.network.lock();
        if let Some(network) = mail.take() {
            self.rx.replace_network(&network);
            self.receiving = ReadBackoff::new(UDP);
            self.network = network;
            self.mailbox.replaced.notify_all();
        }
        drop(mail);
        !self.mailbox.stop.load(Ordering::Acquire)
    }
}

/// The ready lanes and sockets, if there are any.
struct Found {
    lanes: Option<Ready>,
    network: Option<Ready>,
}

/// Tells control how the worker ended, also after a panic.
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
