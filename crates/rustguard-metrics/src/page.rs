//! The tunnel whose metrics are served, and the page that all scrapers share for a second.

use crate::{
    families,
    snapshot::{Enrolment, Snapshot},
    text_format,
};
use hyper::body::Bytes;
use rustguard_device::DeviceHandle;
use std::{
    pin::Pin,
    sync::{Arc, OnceLock},
    time::{Duration, SystemTime},
};
use tokio::{
    sync::{Mutex, OwnedMutexGuard},
    time::Instant,
};

/// How long a page is reused for further scrapers, so that they cannot make the device take unlimited snapshots.
const FRESH: Duration = Duration::from_secs(1);
/// How long probes are answered without asking the device again.
const PROBED: Duration = Duration::from_millis(100);
/// The time limit for the device's answer. Its control thread answers within milliseconds, even with thousands of
/// peers.
const DEVICE: Duration = Duration::from_secs(5);

/// The tunnel whose metrics are served.
pub struct Source {
    interface: String,
    device: DeviceHandle,
    enrolment: Option<Box<dyn Fn() -> AskedEnrolment + Send + Sync>>,
}

type AskedEnrolment = Pin<Box<dyn Future<Output = Option<Enrolment>> + Send>>;

impl Source {
    /// A tunnel with this name, which is the value of the label `interface`.
    pub fn new(interface: impl Into<String>, device: DeviceHandle) -> Self {
        Self { interface: interface.into(), device, enrolment: None }
    }

    /// Sets the function that returns the state of enrolment. It is called for each snapshot, on the server's thread.
    #[must_use]
    pub fn enrolment<F>(mut self, ask: impl Fn() -> F + Send + Sync + 'static) -> Self
    where
        F: Future<Output = Option<Enrolment>> + Send + 'static,
    {
        self.enrolment = Some(Box::new(move || Box::pin(ask())));
        self
    }
}

impl std::fmt::Debug for Source {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Source").field("interface", &self.interface).finish_non_exhaustive()
    }
}

/// The form of the metrics.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Format {
    OpenMetrics,
    /// The text format of Prometheus, version 0.0.4.
    Text,
}

/// The state that all connections share.
#[derive(Debug, Default)]
pub(crate) struct State {
    source: OnceLock<Source>,
    page: Arc<Mutex<Option<Page>>>,
    up: Arc<Mutex<Option<Up>>>,
}

/// When the device was asked, and whether the interface was up.
type Up = (Instant, bool);

/// The metrics at one moment. The text format is only made on request.
#[derive(Debug)]
struct Page {
    openmetrics: Bytes,
    text: Option<Bytes>,
}

impl State {
    /// The tunnel is ready. Only the first call has an effect.
    pub(crate) fn attach(&self, source: Source) {
        let _ = self.source.set(source);
    }

    /// Whether the process works.
    pub(crate) async fn health(self: &Arc<Self>) -> Result<&'static str, &'static str> {
        match self.source.get() {
            None => Ok("the tunnel is starting\n"),
            Some(_) => self.is_up().await.map(|_| "ok\n"),
        }
    }

    /// Whether the tunnel is ready.
    pub(crate) async fn readiness(self: &Arc<Self>) -> Result<&'static str, &'static str> {
        if self.is_up().await? { Ok("ready\n") } else { Err("the interface is down\n") }
    }

    async fn is_up(self: &Arc<Self>) -> Result<bool, &'static str> {
        let mut known = Arc::clone(&self.up).lock_owned().await;
        if let Some((at, up)) = *known
            && at.elapsed() < PROBED
        {
            return Ok(up);
        }
        let state = Arc::clone(self);
        to_its_end(async move {
            let up = state.source()?.is_up().await?;
            *known = Some((Instant::now(), up));
            Ok(up)
        })
        .await
    }

    fn source(&self) -> Result<&Source, &'static str> {
        self.source.get().ok_or("the tunnel is starting\n")
    }

    /// The metrics. One scraper at a time triggers a page, and others wait for it.
    pub(crate) async fn page(self: &Arc<Self>, format: Format) -> Result<Bytes, &'static str> {
        let mut page = Arc::clone(&self.page).lock_owned().await;
        if page.is_none() {
            let state = Arc::clone(self);
            page = to_its_end(async move { state.make(page).await }).await?;
        }
        let page = page.as_mut().expect("it was made if there was none");
        Ok(match format {
            Format::OpenMetrics => page.openmetrics.clone(),
            Format::Text => {
                let convert = || {
                    let text = std::str::from_utf8(&page.openmetrics).expect("it was made from a String");
                    text_format::from_openmetrics(text).into()
                };
                page.text.get_or_insert_with(convert).clone()
            }
        })
    }
}

impl State {
    async fn make(&self, mut page: Shared) -> Result<Shared, &'static str> {
        let openmetrics = families::render(self.source()?.snapshot().await?);
        *page = Some(Page { openmetrics: openmetrics.into(), text: None });
        let stale = Arc::clone(&self.page);
        tokio::spawn(async move {
            tokio::time::sleep(FRESH).await;
            // The page may have megabytes, which must not stay in memory until the next scrape.
            *stale.lock().await = None;
        });
        Ok(page)
    }
}

type Shared = OwnedMutexGuard<Option<Page>>;

/// Runs a request to the device to its end and keeps the answer, even if the client disconnects meanwhile. Otherwise
/// clients that ask and disconnect could cause unlimited work for the device.
async fn to_its_end<T: Send + 'static>(
    question: impl Future<Output = Result<T, &'static str>> + Send + 'static,
) -> Result<T, &'static str> {
    tokio::spawn(question).await.unwrap_or(Err("the metrics could not be made\n"))
}

const GONE: &str = "the tunnel has ended\n";

impl Source {
    async fn is_up(&self) -> Result<bool, &'static str> {
        within(async { self.device.is_up().await.map_err(|_| GONE) }).await
    }

    async fn snapshot(&self) -> Result<Snapshot, &'static str> {
        let snapshot = async {
            let status = self.device.status().await.map_err(|_| GONE)?;
            let routing = self.device.routing().await.map_err(|_| GONE)?;
            let enrolment = match &self.enrolment {
                Some(ask) => ask().await,
                None => None,
            };
            let at = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
            Ok(Snapshot { interface: self.interface.clone(), status, routing, enrolment, at })
        };
        within(snapshot).await
    }
}

async fn within<T>(answer: impl Future<Output = Result<T, &'static str>>) -> Result<T, &'static str> {
    tokio::time::timeout(DEVICE, answer).await.unwrap_or(Err("the tunnel does not answer\n"))
}
