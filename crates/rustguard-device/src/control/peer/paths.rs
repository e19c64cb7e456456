//! The configured endpoints of a peer, and its paths where there are several.

use crate::{config::PathSpec, control::resolver::Resolving};
use rustguard_core::{
    paths::{Address, Choice, Flows, Paths},
    time::Instant,
};
use std::{net::SocketAddr, sync::Arc};

/// A configured endpoint.
pub(in crate::control) struct ConfiguredEndpoint {
    pub(in crate::control) spec: PathSpec,
    pub(in crate::control) resolving: Option<Resolving>,
    /// The resolver's last answer was an error.
    pub(in crate::control) unresolved: Option<Box<Unresolved>>,
    /// The address that was taken for the name.
    pub(in crate::control) address: Option<SocketAddr>,
    /// The index of the interface by which datagrams leave; 0: there is no such interface now.
    pub(in crate::control) interface: Option<u32>,
}

/// Why an endpoint's name is not resolved.
pub(in crate::control) struct Unresolved {
    /// The resolver's error.
    pub(in crate::control) cause: String,
    /// When the name first could not be resolved.
    pub(in crate::control) since: Instant,
}

impl ConfiguredEndpoint {
    pub(in crate::control) fn new(spec: PathSpec) -> Self {
        Self { spec, resolving: None, unresolved: None, address: None, interface: None }
    }

    /// The destination for a datagram to this address of the endpoint; `None` while the interface does not exist.
    pub(in crate::control) fn address_at(&self, remote: SocketAddr) -> Option<Address> {
        match self.interface {
            None => Some(Address::new(remote)),
            Some(0) => None,
            Some(interface) => Some(Address { interface, ..Address::new(remote) }),
        }
    }

    /// Keeps the resolver's error, if there is one. Returns whether it differs from the last one.
    pub(in crate::control) fn answered(&mut self, error: Option<String>, now: Instant) -> bool {
        let before = self.unresolved.take();
        let other = before.as_ref().map(|before| &before.cause) != error.as_ref();
        let since = before.map_or(now, |before| before.since);
        self.unresolved = error.map(|cause| Box::new(Unresolved { cause, since }));
        other
    }
}

/// Control's state of a peer with several paths.
pub(in crate::control) struct PeerPaths {
    pub(in crate::control) paths: Paths,
    /// Made once flows are spread over several paths.
    pub(in crate::control) flows: Option<Arc<Flows>>,
    /// The choice that the workers have.
    pub(in crate::control) choice: Choice,
}

impl PeerPaths {
    pub(in crate::control) fn new(paths: Paths) -> Self {
        Self { paths, flows: None, choice: Choice::default() }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::{net::SocketAddr, time::Duration};

    #[test]
    fn an_error_of_the_resolver_is_new_once_and_as_old_as_the_first() {
        let spec = PathSpec::from(SocketAddr::from(([192, 0, 2, 1], 1)));
        let mut endpoint = ConfiguredEndpoint::new(spec);
        let start = Instant::from_nanos(0);
        let errors = [Some("no answer"), Some("no answer"), Some("no such name"), None, None, Some("no answer")];
        let told = (0..).zip(errors).map(|(second, error)| {
            let other = endpoint.answered(error.map(str::to_owned), start + Duration::from_secs(second));
            (other, endpoint.unresolved.as_ref().map(|unresolved| unresolved.since.since(start)))
        });
        let since = |second| Some(Duration::from_secs(second));
        let expected =
            [(true, since(0)), (false, since(0)), (true, since(0)), (true, None), (false, None), (true, since(5))];
        assert_eq!(told.collect::<Vec<_>>(), expected);
    }
}
