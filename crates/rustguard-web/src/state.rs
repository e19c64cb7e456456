//! The state that all connections of the page share.

use crate::{
    checks::Hosts,
    log,
    page::{Page, Shown},
    policy,
    sessions::{Sessions, Who},
    snapshot::{Cache, Source},
    window::OpenCode,
};
use std::{
    sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError},
    time::Duration,
};
use tokio::sync::Semaphore;

/// The most simultaneous live pages. Further ones are refused, and those pages do not update.
pub(crate) const STREAMS: usize = 8;

/// The time since the machine started.
pub(crate) fn uptime() -> Duration {
    Duration::from_nanos(rustguard_tun::clock::boottime_nanos())
}

/// The state that all connections share.
#[derive(Debug)]
pub(crate) struct State {
    pub(crate) interface: String,
    pub(crate) hosts: Hosts,
    pub(crate) source: OnceLock<Source>,
    sessions: Mutex<Sessions>,
    pub(crate) cache: Cache,
    policy: policy::Cache,
    pub(crate) code: Mutex<Option<OpenCode>>,
    pub(crate) streams: Arc<Semaphore>,
}

impl State {
    pub(crate) fn new(interface: &str, hosts: Hosts) -> Self {
        Self {
            interface: interface.to_owned(),
            hosts,
            source: OnceLock::new(),
            sessions: Mutex::default(),
            cache: Cache::default(),
            policy: policy::Cache::default(),
            code: Mutex::default(),
            streams: Arc::new(Semaphore::new(STREAMS)),
        }
    }

    /// The sessions. No code may wait while they are locked.
    pub(crate) fn sessions(&self) -> MutexGuard<'_, Sessions> {
        self.sessions.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The code of the window that was opened here.
    pub(crate) fn code(&self) -> MutexGuard<'_, Option<OpenCode>> {
        self.code.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Renders something from the present state. `None` if the server does not answer.
    pub(crate) async fn show<T>(&self, page: &Page, who: &Who, make: impl FnOnce(&Shown<'_>) -> T) -> Option<T> {
        let source = self.source.get()?;
        let snapshot = self.cache.get(source).await?;
        let now = uptime();
        let code = {
            let mut code = self.code();
            // Forgets the code once its window has ended, for whatever reason.
            *code = code
                .take()
                .filter(|code| snapshot.status.window.as_ref().is_some_and(|window| code.is_of(window, now)));
            code.clone()
        };
        // About 100 KB, mostly from the page cache.
        let log = if *page == Page::Log { log::last(&source.audit).unwrap_or_default() } else { Vec::new() };
        let policy = match (page, &source.policy) {
            (Page::Policy(_), Some(handle)) => Some(self.policy.get(handle.clone()).await?),
            _ => None,
        };
        let (interface, code, policy) = (&self.interface, code.as_ref(), policy.as_deref());
        Some(make(&Shown { interface, who, snapshot: &snapshot, code, log: &log, policy }))
    }
}
