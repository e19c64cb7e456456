//! The receiving sides of all sessions, by receiver index.
//!
//! A concurrent map frees removed entries later, many together, but keys must be erased at once. A session therefore
//! keeps its opener behind a pointer that control clears. The key is erased at once, or as soon as the run of packets
//! that is using it is done.

use crate::shared::peer::PeerShared;
use arc_swap::{ArcSwapOption, Guard};
use parking_lot::Mutex;
use rustguard_core::session::{Opener, ReplayWindow};
use std::sync::Arc;

/// All sessions of a device.
#[derive(Default)]
pub(crate) struct Sessions(papaya::HashMap<u32, Session>);

/// The receiving side of one session.
pub(crate) struct Session {
    opener: ArcSwapOption<Opener>,
    /// The replay window. It is locked once per run.
    pub(crate) replay: Mutex<ReplayWindow>,
    pub(crate) peer: Arc<PeerShared>,
}

/// Access to the map for the duration of a batch.
pub(crate) struct Pinned<'a>(papaya::HashMapRef<'a, u32, Session, std::hash::RandomState, papaya::LocalGuard<'a>>);

impl Sessions {
    pub(crate) fn insert(&self, opener: Arc<Opener>, peer: Arc<PeerShared>) {
        let index = opener.index();
        let session = Session { opener: ArcSwapOption::new(Some(opener)), replay: Mutex::default(), peer };
        self.0.pin().insert(index, session);
    }

    /// Removes a session and erases its key.
    pub(crate) fn remove(&self, index: u32) {
        if let Some(session) = self.0.pin().remove(&index) {
            session.opener.store(None);
        }
    }

    pub(crate) fn pin(&self) -> Pinned<'_> {
        Pinned(self.0.pin())
    }
}

impl Pinned<'_> {
    pub(crate) fn get(&self, index: u32) -> Option<&Session> {
        self.0.get(&index)
    }
}

impl Session {
    /// The opener of the session's packets; `None` if the session was just removed. It may be held for one run, not
    /// longer.
    pub(crate) fn opener(&self) -> Guard<Option<Arc<Opener>>> {
        self.opener.load()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use rustguard_core::{node::PeerId, time::Instant};
    use rustguard_crypto::x25519::PublicKey;

    #[test]
    fn a_removed_sessions_key_is_freed_at_once_or_with_the_run_that_uses_it() {
        let sessions = Sessions::default();
        let peer = Arc::new(PeerShared::new(PeerId(1), PublicKey([1; 32]), Arc::default()));
        let new = |index| {
            let opener = Arc::new(crate::shared::testing::session(index, Instant::from_nanos(0)).1);
            let weak = Arc::downgrade(&opener);
            sessions.insert(opener, Arc::clone(&peer));
            weak
        };
        // The map's collector frees many entries together. Each of these keys must be freed before that.
        for index in 0..100 {
            let key = new(index);
            assert!(key.upgrade().is_some());
            sessions.remove(index);
            assert!(key.upgrade().is_none(), "session {index}");
        }
        let key = new(7);
        {
            let pinned = sessions.pin();
            let session = pinned.get(7).expect("it is there");
            let opener = session.opener();
            sessions.remove(7);
            assert!(opener.is_some() && key.upgrade().is_some(), "a run is being opened");
            assert!(session.opener().is_none(), "the next one is not");
            drop(opener);
            assert!(key.upgrade().is_none());
        }
        assert!(sessions.pin().get(7).is_none());
    }
}
