//! The names of a file's peers, by which an endpoint names a relay: `via-peer office`.

use super::{
    Peer,
    keys::{Form, Holds},
    spelling::{is_name, nearest},
    value::{self, Problem, VIA_PEER},
};
use rustguard_crypto::x25519::PublicKey;
use std::{borrow::Cow, collections::HashMap};

/// The names, and the peers that have them.
#[derive(Default, PartialEq)]
pub(super) struct PeerNames<'a> {
    /// The first peer with the name, and whether it is the only one.
    peers: HashMap<&'a str, (PublicKey, bool)>,
    names: HashMap<PublicKey, &'a str>,
}

impl<'a> PeerNames<'a> {
    /// The names of these peers. They are only collected if an endpoint leads through a peer, because nothing else
    /// needs them.
    pub(super) fn of(peers: &'a [Peer]) -> Self {
        if !peers.iter().any(Peer::leads_through_peers) {
            return Self::default();
        }
        peers.iter().filter_map(|peer| Some((peer.name.as_deref()?, peer.public_key))).collect()
    }

    /// The peer with this name, for [`value::path`](super::value::path).
    pub(super) fn find(&self, name: &str) -> Result<PublicKey, Problem> {
        match self.peers.get(name) {
            Some(&(key, true)) => Ok(key),
            Some(_) => Err(Problem::new(format!("goes through `{name}`, and several peers have this name"))
                .help("give them different names, or write the public key of the one that is meant")),
            None => {
                let names: Vec<_> = self.peers.keys().copied().collect();
                let help = match nearest(name, &names) {
                    Some(nearest) => format!("did you mean `{nearest}`?"),
                    None if names.is_empty() => {
                        "no peer here has a name: write `# Name = …` above the [Peer] of the relay, or its public key"
                            .to_owned()
                    }
                    None => "the name is that of the comment `# Name = …` above another [Peer]; a public key works too"
                        .to_owned(),
                };
                Err(Problem::new(format!("goes through `{name}`, and no peer here has this name")).help(help))
            }
        }
    }

    /// A value of a key as a file has it.
    pub(super) fn in_file<'e>(&self, key: &Form, value: &'e str) -> Cow<'e, str> {
        if key.holds == Holds::PeerNames { self.written(value) } else { Cow::Borrowed(value) }
    }

    /// An endpoint as a file has it: the key after `via-peer` becomes the name, if only one peer has the name.
    fn written<'e>(&self, endpoint: &'e str) -> Cow<'e, str> {
        let written = || {
            let (key, options) = value::relay_key(endpoint)?;
            let name = *self.names.get(&key)?;
            let only = self.peers.get(name).is_some_and(|&(_, only)| only);
            (only && is_name(name) && value::is_relay_name(name))
                .then(|| Cow::from(format!("{VIA_PEER} {name}{options}")))
        };
        written().unwrap_or(Cow::Borrowed(endpoint))
    }
}

impl<'a> FromIterator<(&'a str, PublicKey)> for PeerNames<'a> {
    fn from_iter<T: IntoIterator<Item = (&'a str, PublicKey)>>(peers: T) -> Self {
        let mut names = Self::default();
        for (name, key) in peers {
            names.peers.entry(name).and_modify(|(_, only)| *only = false).or_insert((key, true));
            names.names.insert(key, name);
        }
        names
    }
}
