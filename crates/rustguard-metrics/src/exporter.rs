//! The server's thread, and the page that all scrapers of one second share.

use crate::{
    families,
    http::{self, Format},
    snapshot::{Enrolment, Snapshot},
    text_format,
};
use hyper::body::Bytes;
use rustguard_device::{
    DeviceHandle,
    listener::{Address, BindError, Listener, Purpose},
    unix_socket::Access,
};
use std::{
    io,
    net::IpAddr,
    pin::Pin,
    sync::{Arc, OnceLock},
    thread::JoinHandle,
    time::{Duration, SystemTime},
};
use tokio::{
    runtime::Runtime,
    sync::{Mutex, Notify, OwnedMutexGuard},
    time::Instant,
};

const PURPOSE: Purpose = Purpose { what: "metrics", access: Access::OwnerAndGroup, connections: 16 };
/// For so long, a page is given to further scrapers. They cannot make the device take snapshots without end.
const FRESH: Duration = Duration::from_secs(1);
/// For so long, probes are answered without asking the device again.
const PROBED: Duration = Duration::from_millis(100);
/// The time for the device's answer. Its control thread answers within milliseconds, also with thousands of peers.
const DEVICE: Duration = Duration::from_secs(5);

/// Serves metrics and probes until it is dropped, on a thread of its own.
#[derive(Debug)]
pub struct Exporter {
    address: Address,
    state: Arc<State>,
    stop: Arc<Notify>,
    thread: Option<JoinHandle<()>>,
}

/// A tunnel of which metrics are served.
pub struct Source {
    interface: String,
    device: DeviceHandle,
    enrolment: Option<Box<dyn Fn() -> AskedEnrolment + Send + Sync>>,
}

type AskedEnrolment = Pin<Box<dyn Future<Output = Option<Enrolment>> + Send>>;

impl Source {
    /// A tunnel with this name, which the metrics have as the label `interface`.
    pub fn new(interface: impl Into<String>, device: DeviceHandle) -> Self {
        Self { interface: interface.into(), device, enrolment: None }
    }

    /// Sets the function that says how enrolment stands. It is asked for each snapshot, on the server's thread.
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

impl Exporter {
    /// Opens the socket or port, and starts to answer. Until [`attach`](Self::attach), there are no metrics, and the tunnel
    /// is not ready. `own` are addresses that the machine does not have yet, but will have as soon as the tunnel is up.
    ///
    /// # Errors
    /// See [`BindError`].
    pub fn bind(address: &Address, own: &[IpAddr]) -> Result<Self, BindError> {
        let io = |cause| BindError::Io { what: PURPOSE.what, address: address.clone(), cause };
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().map_err(io)?;
        let (state, stop) = (Arc::new(State::default()), Arc::new(Notify::new()));
        let listener = match listen(&runtime, address, own, &state) {
            Ok(listener) => listener,
            Err(error) => {
                // To drop it would wait for its threads, of which there are none, and tokio forbids that where it is used.
                runtime.shutdown_background();
                return Err(error);
            }
        };
        let address = listener.local_addr().map_or_else(|| address.clone(), Address::Tcp);
        let thread = spawn(runtime, listener, address.clone(), Arc::clone(&state), Arc::clone(&stop)).map_err(io)?;
        Ok(Self { address, state, stop, thread: Some(thread) })
    }

    /// The tunnel is ready: from now on there are its metrics. Only the first call has an effect.
    pub fn attach(&self, source: Source) {
        let _ = self.state.source.set(source);
    }

    /// The address. Its port is the one that was chosen, where [`bind`](Self::bind) was given port 0.
    pub fn address(&self) -> &Address {
        &self.address
    }

    /// Whether other machines may be able to read what is served: the address is not a loopback address.
    pub fn is_exposed(&self) -> bool {
        matches!(self.address, Address::Tcp(at) if !at.ip().to_canonical().is_loopback())
    }
}

impl Drop for Exporter {
    fn drop(&mut self) {
        self.stop.notify_one();
        if let Some(thread) = self.thread.take() {
            // The panic hook has printed a panic of that thread.
            let _ = thread.join();
        }
    }
}

fn listen(runtime: &Runtime, address: &Address, own: &[IpAddr], state: &Arc<State>) -> Result<Listener, BindError> {
    let _entered = runtime.enter();
    match address {
        Address::Unix(path) => {
            let state = Arc::clone(state);
            Listener::unix(path, PURPOSE, move |client| {
                let served = http::serve(client.stream, Arc::clone(&state), false);
                async move {
                    served.await;
                    Ok(())
                }
            })
        }
        Address::Tcp(at) => Listener::tcp(*at, PURPOSE, own),
    }
}

fn spawn(
    runtime: Runtime,
    listener: Listener,
    address: Address,
    state: Arc<State>,
    stop: Arc<Notify>,
) -> io::Result<JoinHandle<()>> {
    let loopback_only = matches!(address, Address::Tcp(at) if at.ip().to_canonical().is_loopback());
    std::thread::Builder::new().name("rg-metrics".into()).spawn(move || {
        runtime.block_on(async {
            tokio::select! {
                () = listener.accept(|stream| http::serve(stream, Arc::clone(&state), loopback_only)) => {}
                () = stop.notified() => {}
            }
            // The socket goes within the runtime that serves it.
            drop(listener);
        });
    })
}

/// What all connections share.
#[derive(Debug, Default)]
pub(crate) struct State {
    source: OnceLock<Source>,
    page: Arc<Mutex<Option<Page>>>,
    up: Arc<Mutex<Option<Up>>>,
}

/// Whether the interface was up, and when the device said so.
type Up = (Instant, bool);

/// The metrics of a moment. The text format is made when it is asked for.
#[derive(Debug)]
struct Page {
    openmetrics: Bytes,
    text: Option<Bytes>,
}

impl State {
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

    /// The metrics. One scraper at a time makes a page, and others wait for it.
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
            // It may have megabytes, which do not stay until the next scrape.
            *stale.lock().await = None;
        });
        Ok(page)
    }
}

type Shared = OwnedMutexGuard<Option<Page>>;

/// Runs a question to the device to its end and keeps the answer, also if the client hangs up meanwhile. Otherwise clients that ask
/// and hang up would make the device answer without end.
async fn to_its_end<T: Send + 'static>(
    question: impl Future<Output = Result<T, &'static str>> + Send + 'static,
) -> Result<T, &'static str> {
    tokio::spawn(question).await.unwrap_or(Err("the metrics could not be made\n"))
}

const GONE: &str = "the tunnel has ended\n";

impl Source {
    async fn is_up(&self) -> Result<bool, &'static str> {
        within(async { self.device.is_up().await.ok_or(GONE) }).await
    }

    async fn snapshot(&self) -> Result<Snapshot, &'static str> {
        let snapshot = async {
            let status = self.device.status().await.ok_or(GONE)?;
            let routing = self.device.routing().await.ok_or(GONE)?;
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
