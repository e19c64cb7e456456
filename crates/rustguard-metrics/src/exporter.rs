//! The server's thread.

use crate::{
    http,
    page::{Source, State},
};
use rustguard_device::{
    listener::{Address, BindError, Listener, Purpose},
    unix_socket::Access,
};
use std::{io, net::IpAddr, sync::Arc, thread::JoinHandle};
use tokio::{runtime::Runtime, sync::Notify};

const PURPOSE: Purpose = Purpose { what: "metrics", access: Access::OwnerAndGroup, connections: 16 };
/// Serves metrics and probes until it is dropped, on a thread of its own.
#[derive(Debug)]
pub struct Exporter {
    address: Address,
    state: Arc<State>,
    stop: Arc<Notify>,
    thread: Option<JoinHandle<()>>,
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
        self.state.attach(source);
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
