//! The configured endpoints of a peer, and its paths where there are several.

use crate::{config::PathSpec, control::resolver::Resolving};
use rustguard_core::{
    node::PeerId,
    paths::{Choice, Flows, Paths},
    time::Instant,
};
use std::{collections::BTreeSet, sync::Arc};

/// A configured endpoint.
pub(in crate::control) struct ConfiguredEndpoint {
    pub(in crate::control) spec: PathSpec,
    pub(in crate::control) resolving: Option<Resolving>,
    /// The resolver's last answer was an error.
    pub(in crate::control) unresolved: Option<Unresolved>,
    /// How often another of the name's addresses was wanted.
    pub(in crate::control) attempts: u32,
    /// The index of the interface by which datagrams leave; 0: there is no such interface now.
    pub(super) interface: Option<u32>,
}

/// Why an endpoint's name is not resolved.
pub(in crate::control) struct Unresolved {
    /// The resolver's error.
    pub(in crate::control) cause: String,
    /// When it was first told.
    pub(in crate::control) since: Instant,
}

impl ConfiguredEndpoint {
    pub(super) fn new(spec: PathSpec) -> Self {
        Self { spec, resolving: None, unresolved: None, attempts: 0, interface: None }
    }
}

/// What control keeps for a peer with several paths.
pub(in crate::control) struct PeerPaths {
    pub(in crate::control) paths: Paths,
    pub(super) flows: Arc<Flows>,
    /// The choice that the workers have.
    pub(super) choice: Choice,
    pub(super) deadline: Option<Instant>,
}

impl PeerPaths {
    pub(super) fn new(paths: Paths) -> Self {
        Self { paths, flows: Arc::default(), choice: Choice::default(), deadline: None }
    }
}

/// When the paths of each peer are due. Only peers with several paths are in it.
pub(in crate::control) type Schedule = BTreeSet<(Instant, PeerId)>;
