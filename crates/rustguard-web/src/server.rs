//! The server's thread and its connections.

use crate::{
    checks::{Hosts, Name},
    options::{Options, OptionsError},
    routes,
    sessions::LINK,
    snapshot::Source,
    state::{State, uptime},
    tls::{self, TlsAcceptor, TlsError},
};
use hyper::{Request, body::Incoming, server::conn::http1, service::service_fn};
use hyper_util::rt::{TokioIo, TokioTimer};
use rustguard_device::{
    listener::{Address, BindError, Connection, Listener, Purpose},
    unix_socket::Access,
};
use rustguard_quick::helper::open_socket;
use rustguard_serve::{StatusPage, WebLink};
use std::{
    convert::Infallible,
    net::IpAddr,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};
use zeroize::Zeroizing;

/// A browser opens up to six connections, including the one of its live page.
const PURPOSE: Purpose =
    Purpose { what: "the status page", access: Access::Owner, opener: open_socket, connections: 48 };
/// The time for the request's headers, and for the handshake of TLS before them.
const HEADERS: Duration = Duration::from_secs(5);
/// The time limit for the whole connection, unless it carries a live page.
const CONNECTION: Duration = Duration::from_secs(30);
/// The time limit for a live page. The browser reconnects.
const LIVE: Duration = Duration::from_secs(60 * 60);
/// The longest request line and headers, in bytes. A browser sends about 1,500.
const REQUEST_MAX: usize = 16 << 10;
const HEADERS_MAX: usize = 64;

/// Serves the page until it is dropped, on its own thread.
#[derive(Debug)]
pub struct WebServer {
    listener: Listener,
    state: Arc<State>,
}

/// Why the page is not served.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum StartError {
    /// The options do not permit it.
    #[error(transparent)]
    Options(#[from] OptionsError),
    /// The files for TLS are unusable.
    #[error(transparent)]
    Tls(#[from] TlsError),
    /// The socket or the port cannot be opened.
    #[error(transparent)]
    Bind(#[from] BindError),
}

impl WebServer {
    /// Opens the socket or the port, and begins to answer. Until [`attach`](Self::attach), it shows no data. `own` are
    /// addresses that the machine will have as soon as the tunnel is up.
    ///
    /// # Errors
    /// See [`StartError`].
    pub fn bind(options: &Options, interface: &str, own: &[IpAddr]) -> Result<Self, StartError> {
        options.check()?;
        let tls = options.tls.as_ref().map(tls::acceptor).transpose()?;
        let hosts = Hosts {
            loopback: options.ip().is_none_or(|ip| ip.is_loopback()),
            address: options.ip().filter(|ip| !ip.is_unspecified()),
            names: options.names()?,
            tls: tls.is_some(),
        };
        let state = Arc::new(State::new(interface, hosts));
        let served = Arc::clone(&state);
        // A Unix socket is for a proxy on this machine, not for browsers.
        let tls = tls.filter(|_| options.ip().is_some());
        let listener = Listener::start("rg-web", &options.address, PURPOSE, own, move |connection| {
            secured(connection, tls.clone(), Arc::clone(&served))
        })?;
        Ok(Self { listener, state })
    }

    /// The server is running: from now on, its network is shown. Only the first call has an effect.
    pub fn attach(&self, source: Source) {
        let _ = self.state.source.set(source);
    }

    /// The address. If [`bind`](Self::bind) was given port 0, its port is the one that was chosen.
    pub fn address(&self) -> &Address {
        self.listener.address()
    }

    /// Creates links to log in.
    pub fn links(&self) -> Links {
        Links { state: Arc::clone(&self.state), address: self.address().clone() }
    }
}

/// Creates links to log in to a [`WebServer`].
#[derive(Clone, Debug)]
pub struct Links {
    state: Arc<State>,
    address: Address,
}

impl StatusPage for Links {
    fn link(&self, name: &str) -> WebLink {
        let secret =
            self.state.sessions().link(name, uptime()).expect("the operating system had random bytes for the keys");
        // If browsers use TLS, they know no other name.
        let names = &self.state.hosts.names;
        let given = names.iter().find(|name| name.https).or(names.first());
        let https = self.state.hosts.tls || given.is_some_and(|name| name.https);
        let scheme = if https { "https" } else { "http" };
        let (host, hint) = match (&self.address, given) {
            // A proxy in front has its own port.
            (_, Some(Name { host, https: true })) | (Address::Unix(_), Some(Name { host, .. })) => (host.clone(), None),
            (Address::Unix(path), None) => {
                let hint = format!(
                    "The page is at a Unix socket. From another machine, first run: ssh -L 9580:{} root@SERVER",
                    path.display()
                );
                ("127.0.0.1:9580".to_owned(), Some(hint))
            }
            (Address::Tcp(at), Some(Name { host, .. })) if !host.contains(':') => {
                (format!("{host}:{}", at.port()), None)
            }
            (Address::Tcp(_), Some(Name { host, .. })) => (host.clone(), None),
            (Address::Tcp(at), None) => (at.to_string(), None),
        };
        let url = Zeroizing::new(format!("{scheme}://{host}/login/{}", secret.as_str()));
        WebLink { url: url.into(), hint, seconds: LINK.as_secs() }
    }

    fn end(&self) -> usize {
        self.state.sessions().end(uptime())
    }
}

/// Serves one connection, over TLS if it is configured.
async fn secured(stream: Box<dyn Connection>, tls: Option<TlsAcceptor>, state: Arc<State>) {
    let Some(tls) = tls else { return serve(stream, state).await };
    match tokio::time::timeout(HEADERS, tls.accept(stream)).await {
        Ok(Ok(stream)) => serve(Box::new(stream), state).await,
        Ok(Err(error)) => tracing::debug!("a connection to the status page failed: {error}"),
        Err(_) => tracing::debug!("a connection to the status page took too long for its handshake"),
    }
}

/// Serves one connection, which has one request.
async fn serve(connection: Box<dyn Connection>, state: Arc<State>) {
    let live = Arc::new(AtomicBool::new(false));
    let is_live = Arc::clone(&live);
    let service = service_fn(move |request: Request<Incoming>| {
        let (state, live) = (Arc::clone(&state), Arc::clone(&live));
        async move { Ok::<_, Infallible>(routes::answer(request, &state, &live).await) }
    });
    let served = http1::Builder::new()
        .timer(TokioTimer::new())
        .header_read_timeout(HEADERS)
        .max_buf_size(REQUEST_MAX)
        .max_headers(HEADERS_MAX)
        .keep_alive(false)
        .serve_connection(TokioIo::new(connection), service);
    let mut served = std::pin::pin!(served);
    let mut ended = tokio::time::timeout(CONNECTION, served.as_mut()).await;
    if ended.is_err() && is_live.load(Ordering::Relaxed) {
        ended = tokio::time::timeout(LIVE, served).await;
    }
    match ended {
        Ok(Ok(())) => {}
        Ok(Err(error)) => tracing::debug!("a connection to the status page failed: {error}"),
        Err(_) => tracing::debug!("a connection to the status page took too long"),
    }
}
