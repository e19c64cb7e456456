//! The exporter: a listener for scrapers and probes.

use crate::{
    http,
    page::{Source, State},
};
use rustguard_device::{
    listener::{Address, BindError, Listener, Purpose},
    unix_socket::{self, Access, Opener},
};
use std::{net::IpAddr, sync::Arc};

/// Serves metrics and probes until it is dropped, on its own thread.
#[derive(Debug)]
pub struct Exporter {
    listener: Listener,
    state: Arc<State>,
}

impl Exporter {
    /// Opens the socket or port, and begins to answer. Until [`attach`](Self::attach), there are no metrics, and the
    /// tunnel is not ready. `own` are addresses that the machine will have as soon as the tunnel is up.
    ///
    /// # Errors
    /// See [`BindError`].
    pub fn bind(address: &Address, own: &[IpAddr]) -> Result<Self, BindError> {
        Self::bind_by(unix_socket::open, address, own)
    }

    /// As [`bind`](Self::bind), with another function that opens Unix sockets.
    ///
    /// # Errors
    /// See [`BindError`].
    pub fn bind_by(opener: Opener, address: &Address, own: &[IpAddr]) -> Result<Self, BindError> {
        let purpose = Purpose { what: "metrics", access: Access::OwnerAndGroup, opener, connections: 16 };
        let state = Arc::new(State::default());
        let (served, loopback_only) = (Arc::clone(&state), is_loopback(address));
        let listener = Listener::start("rg-metrics", address, purpose, own, move |connection| {
            http::serve(connection, Arc::clone(&served), loopback_only)
        })?;
        Ok(Self { listener, state })
    }

    /// The tunnel is ready: from now on, its metrics are served. Only the first call has an effect.
    pub fn attach(&self, source: Source) {
        self.state.attach(source);
    }

    /// The address. If [`bind`](Self::bind) was given port 0, its port is the one that was chosen.
    pub fn address(&self) -> &Address {
        self.listener.address()
    }

    /// Whether other machines may be able to read the metrics: the address is not a loopback address.
    pub fn is_exposed(&self) -> bool {
        matches!(self.address(), Address::Tcp(_)) && !is_loopback(self.address())
    }
}

fn is_loopback(address: &Address) -> bool {
    matches!(address, Address::Tcp(at) if at.ip().to_canonical().is_loopback())
}
