//! Endless echo requests, and the time of each answer.

use crate::tunnel::agent::Echo;
use anyhow::{Context as _, Result};
use rustguard_tests::Node;
use std::{
    net::IpAddr,
    sync::{
        Arc, Mutex, PoisonError,
        atomic::{AtomicBool, Ordering},
    },
    thread::{self, JoinHandle},
    time::{Duration, Instant},
};

/// The time from one request to the next.
const EVERY: Duration = Duration::from_millis(5);
/// So many successive answers with a short round trip show that a path is direct.
const STEADY: usize = 10;

/// Echo requests from a node to an address inside the network, until this is dropped.
pub(crate) struct Echoes {
    answers: Arc<Mutex<Vec<Answer>>>,
    ends: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

/// An answered request.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Answer {
    pub(crate) sent: Instant,
    pub(crate) answered: Instant,
}

impl Echoes {
    /// Starts sending. The address does not have to be reachable yet.
    pub(crate) fn start(node: &Node, to: IpAddr) -> Result<Self> {
        let echo = node.inside(|| Echo::new(to))?;
        let (answers, ends) = (Arc::default(), Arc::new(AtomicBool::new(false)));
        let (theirs, until) = (Arc::clone(&answers), Arc::clone(&ends));
        let thread = thread::spawn(move || send(echo, &theirs, &until));
        Ok(Self { answers, ends, thread: Some(thread) })
    }

    /// Waits for the first answer to a request that was sent after `since`.
    pub(crate) fn first(&self, since: Instant, limit: Duration) -> Result<Answer> {
        let answer = self.until(limit, |answers| answers.iter().find(|answer| answer.sent >= since).copied());
        answer.with_context(|| format!("no answer within {limit:?}"))
    }

    /// Waits for the first of several successive answers with a round trip below `limit_of_trip`. `None` if they do not
    /// come in time.
    pub(crate) fn steady(&self, since: Instant, limit_of_trip: Duration, limit: Duration) -> Option<Answer> {
        self.until(limit, |answers| {
            let answers: Vec<_> = answers.iter().filter(|answer| answer.sent >= since).collect();
            let mut runs = answers.windows(STEADY);
            let run = runs.find(|run| run.iter().all(|answer| answer.answered - answer.sent < limit_of_trip));
            run.map(|run| *run[0])
        })
    }

    fn until(&self, limit: Duration, find: impl Fn(&[Answer]) -> Option<Answer>) -> Option<Answer> {
        let begun = Instant::now();
        loop {
            let found = find(&self.answers.lock().unwrap_or_else(PoisonError::into_inner));
            if found.is_some() || begun.elapsed() > limit {
                return found;
            }
            thread::sleep(Duration::from_millis(20));
        }
    }
}

impl Drop for Echoes {
    fn drop(&mut self) {
        self.ends.store(true, Ordering::Relaxed);
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

fn send(mut echo: Echo, answers: &Mutex<Vec<Answer>>, ends: &AtomicBool) {
    let mut sent = vec![None; 1 << 16];
    while !ends.load(Ordering::Relaxed) {
        let now = Instant::now();
        // Without a route or a tunnel, sending fails; the next request may succeed.
        let _ = echo.request();
        sent[usize::from(echo.sequence())] = Some(now);
        loop {
            let left = EVERY.saturating_sub(now.elapsed());
            if left.is_zero() {
                break;
            }
            match echo.answered(left) {
                Ok(Some(sequence)) => {
                    if let Some(sent) = sent[usize::from(sequence)].take() {
                        let answer = Answer { sent, answered: Instant::now() };
                        answers.lock().unwrap_or_else(PoisonError::into_inner).push(answer);
                    }
                }
                Ok(None) => {}
                Err(_) => thread::sleep(left),
            }
        }
    }
}
