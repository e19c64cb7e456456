//! Checks that the two deciding threads do not hang: the program's own thread, which takes rosters, files and requests,
//! and the control thread of the device.
//!
//! A thread that hangs answers no requests and handles no signals. The workers continue with their last state, so that
//! nobody may notice for hours. Therefore a task makes a round through both threads each second, and a separate thread
//! checks that rounds happen. Each round notifies systemd (`WatchdogSec=` in the units), which restarts a process
//! without rounds.

use super::lifetime::notify;
use rustguard_device::DeviceHandle;
use rustguard_quick::helper::{Notification, is_watched};
use std::{
    fs,
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU64, Ordering::Relaxed},
        mpsc::{RecvTimeoutError, channel},
    },
    thread,
    time::Duration,
};
use tokio::task::JoinHandle;

/// The interval between rounds.
const ROUND: Duration = Duration::from_secs(1);
/// After this number of looks without a round, one look for each [`ROUND`], a thread hangs. Looks are counted instead
/// of time, because a machine that slept, or a process that was stopped, did not look either.
const LOOKS: u32 = 5;

/// Watches until it is dropped.
pub(crate) struct Watchdog(JoinHandle<()>);

impl Drop for Watchdog {
    fn drop(&mut self) {
        self.0.abort();
    }
}

#[derive(Default)]
struct Rounds {
    finished: AtomicU64,
    /// Whether control was asked and has not answered yet.
    at_control: AtomicBool,
}

/// Watches this thread, on whose runtime it is called, and control of the device.
pub(crate) fn start(interface: &str, device: DeviceHandle) -> Watchdog {
    let interface = interface.to_owned();
    let thread = own_thread();
    let long = ROUND.as_secs() * u64::from(LOOKS);
    begin(device, ROUND, move |hang| match hang {
        Hang::Begun { control: Some(doing) } => tracing::error!(
            "{interface}: control has been at work on {doing} for {long} s: nothing is decided any more, and packets go where they went; \
             `rustguard down {interface}` ends it, and please report this"
        ),
        Hang::Begun { control: None } => tracing::error!(
            "{interface}: the program has not come back from what it does for {long} s ({}): no list of members, file or request is taken any \
             more, and packets go where they went; `rustguard down {interface}` ends it, and please report this",
            state(&thread),
        ),
        Hang::Ended { looks } => {
            tracing::warn!("{interface}: it goes on, after {} s", ROUND.as_secs() * u64::from(looks));
        }
    })
}

/// The findings of the looks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Hang {
    /// A hang has begun: of control, with its current work, or else of this thread.
    Begun {
        control: Option<&'static str>,
    },
    Ended {
        looks: u32,
    },
}

fn begin(device: DeviceHandle, round: Duration, mut tell: impl FnMut(Hang) + Send + 'static) -> Watchdog {
    let rounds = Arc::new(Rounds::default());
    let (made, control) = (Arc::clone(&rounds), device.clone());
    let systemd = is_watched();
    // The thread ends with the task: a device that has ended makes no rounds, and does not hang.
    let (alive, watched) = channel::<()>();
    let task = tokio::spawn(async move {
        let _alive = alive;
        loop {
            made.at_control.store(true, Relaxed);
            let answered = device.is_up().await.is_ok();
            made.at_control.store(false, Relaxed);
            if !answered {
                return;
            }
            made.finished.fetch_add(1, Relaxed);
            if systemd {
                notify(Notification::Watchdog);
            }
            tokio::time::sleep(round).await;
        }
    });
    let look = move || {
        let (mut known, mut looks) = (0, 0);
        while watched.recv_timeout(round) == Err(RecvTimeoutError::Timeout) {
            let finished = rounds.finished.load(Relaxed);
            if finished == known {
                looks += 1;
                if looks == LOOKS {
                    // Control may have answered, while this thread has not taken the answer.
                    tell(Hang::Begun { control: control.doing().filter(|_| rounds.at_control.load(Relaxed)) });
                }
            } else {
                if looks >= LOOKS {
                    tell(Hang::Ended { looks });
                }
                (known, looks) = (finished, 0);
            }
        }
    };
    if let Err(error) = thread::Builder::new().name("watchdog".to_owned()).spawn(look) {
        tracing::warn!("a hang would not be noticed: {error}");
    }
    Watchdog(task)
}

/// The folder of this thread in /proc.
fn own_thread() -> String {
    let id = rustix::thread::gettid();
    format!("/proc/self/task/{}", id.as_raw_nonzero())
}

/// Whether the thread computes or waits in the kernel, and for what (proc_pid_stat(5), proc_pid_wchan(5)).
fn state(thread: &str) -> String {
    let read = |file: &str| fs::read_to_string(format!("{thread}/{file}")).unwrap_or_default();
    let stat = read("stat");
    // The name before it may have any character.
    match stat.rsplit_once(") ").and_then(|(_, rest)| rest.chars().next()) {
        Some('R') => "it computes".to_owned(),
        Some('D' | 'S') => match read("wchan").as_str() {
            "" | "0" => "it waits in the kernel".to_owned(),
            place => format!("it waits in the kernel, in {place}"),
        },
        _ => "its state cannot be read".to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::process::runtime;
    use rustguard_device::{
        Device, PeerUpdate, Update,
        core::time::Instant,
        prelude::MemoryBinder,
        routing::{Action, Event, RoutingEngine},
        tun::memory::{self, MemoryNet},
    };
    use std::sync::mpsc::{Receiver, Sender, TryRecvError};

    /// Hangs at the addition of a peer until it is told to go on.
    struct Stuck(Receiver<()>);

    impl RoutingEngine for Stuck {
        fn handle(&mut self, event: Event<'_>, _now: Instant, _out: &mut Vec<Action>) {
            if let Event::Peer { .. } = event {
                let _ = self.0.recv();
            }
        }
    }

    /// Runs the body beside a watchdog that looks every five milliseconds. `Sender` lets a device go on that has got a
    /// peer.
    fn watched(body: impl AsyncFnOnce(Receiver<Hang>, Device, Sender<()>)) {
        runtime().unwrap().block_on(async {
            let (tun, _host) = memory::tun().unwrap();
            let binder = MemoryBinder::new(MemoryNet::default(), "192.0.2.1:1".parse().unwrap());
            let (go_on, stuck) = channel();
            let device = Device::builder().routing(Stuck(stuck)).start_with(tun, binder).unwrap();
            let (told, hangs) = channel();
            let _watchdog = begin(device.handle(), Duration::from_millis(5), move |hang| {
                // The test may be over.
                let _ = told.send(hang);
            });
            body(hangs, device, go_on).await;
        });
    }

    /// Lets the runtime work until the watchdog reports something.
    async fn next(hangs: &Receiver<Hang>) -> Hang {
        loop {
            match hangs.try_recv() {
                Ok(hang) => return hang,
                Err(_) => tokio::time::sleep(Duration::from_millis(1)).await,
            }
        }
    }

    #[test]
    fn a_thread_that_does_not_come_back_is_told_of_once_and_so_is_its_return() {
        watched(async |hangs, _device, _go_on| {
            // This blocks the thread of the runtime, so no round is made meanwhile.
            assert_eq!(hangs.recv(), Ok(Hang::Begun { control: None }));
            assert_eq!(hangs.recv_timeout(Duration::from_millis(100)), Err(RecvTimeoutError::Timeout), "once");
            assert!(matches!(next(&hangs).await, Hang::Ended { looks } if looks >= LOOKS));
        });
    }

    #[test]
    fn a_device_that_has_ended_does_not_hang() {
        watched(async |hangs, device, _go_on| {
            device.shutdown().await;
            // The watchdog has to end, and not report a hang for ever. Before that, it may correctly report a machine
            // that is too busy for a round within the looks of the test.
            let ended = async {
                loop {
                    match hangs.try_recv() {
                        Err(TryRecvError::Disconnected) => break,
                        _ => tokio::time::sleep(Duration::from_millis(1)).await,
                    }
                }
            };
            tokio::time::timeout(Duration::from_secs(60), ended).await.expect("the watchdog ends with its device");
        });
    }

    #[test]
    fn control_that_does_not_come_back_is_named_with_what_it_does() {
        watched(async |hangs, device, go_on| {
            let handle = device.handle();
            let update = Update::default().peer(PeerUpdate::new(rustguard_crypto::x25519::PublicKey([7; 32])));
            let added = tokio::spawn(async move { handle.update(update).await });
            // Before control stays there, a busy machine may keep this thread from a round.
            while next(&hangs).await != (Hang::Begun { control: Some("a command") }) {}
            drop(go_on);
            assert!(matches!(next(&hangs).await, Hang::Ended { looks } if looks >= LOOKS));
            added.await.unwrap().unwrap();
        });
    }

    #[test]
    fn the_kernel_says_what_a_thread_does() {
        let own = own_thread();
        assert_eq!(state(&own), "it computes");
        let (sent, received) = channel();
        let (end, ended) = channel::<()>();
        let waiting = thread::spawn(move || {
            sent.send(own_thread()).unwrap();
            let _ = ended.recv();
        });
        let other = received.recv().unwrap();
        while !state(&other).starts_with("it waits in the kernel") {
            thread::yield_now();
        }
        drop(end);
        waiting.join().unwrap();
        assert_eq!(state("/proc/self/task/0"), "its state cannot be read");
    }
}
