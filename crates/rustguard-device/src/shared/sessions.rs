//! The receiving sides of all sessions, by receiver index.
//!
//! A concurrent map frees removed entries later, many together, but keys must be erased at once. A session therefore
//! keeps its opener behind a pointer that control clears. This erases the key at once, or as soon as the run of packets
//! that uses it is done.

use super::peer::PeerShared;
use arc_swap::{ArcSwapOption, Guard};
use parking_lot::Mutex;
use rustguard_core::{
    fec::Kept,
    lanes,
    session::{Opener, ReplayWindow},
};
use std::sync::{Arc, OnceLock};

/// All sessions of a device.
#[derive(Default)]
pub(crate) struct Sessions(papaya::HashMap<u32, Session>);

/// The receiving side of one session.
pub(crate) struct Session {
    opener: ArcSwapOption<Opener>,
    /// The replay window. It is locked once per run.
    pub(crate) replay: Mutex<ReplayWindow>,
    /// The replay windows of lanes, after we have told the peer that we support lanes. Each is made with the first
    /// authentic packet of its lane.
    lanes: OnceLock<Box<[LaneWindow; lanes::MOST as usize]>>,
    /// Packets that are kept for the peer's parities, after we have accepted parities.
    kept: OnceLock<Box<Mutex<Kept>>>,
    pub(crate) peer: Arc<PeerShared>,
}

/// The window of a lane, from its first packet on.
type LaneWindow = OnceLock<Box<Mutex<ReplayWindow>>>;

/// Access to the map for the duration of a batch.
pub(crate) struct Pinned<'a>(papaya::HashMapRef<'a, u32, Session, std::hash::RandomState, papaya::LocalGuard<'a>>);

impl Sessions {
    pub(crate) fn insert(&self, opener: Arc<Opener>, peer: Arc<PeerShared>) {
        let index = opener.index();
        let session = Session {
            opener: ArcSwapOption::new(Some(opener)),
            replay: Mutex::default(),
            lanes: OnceLock::new(),
            kept: OnceLock::new(),
            peer,
        };
        self.0.pin().insert(index, session);
    }

    /// Removes a session, erases its key, and frees the packets that are kept for parities.
    pub(crate) fn remove(&self, index: u32) {
        if let Some(session) = self.0.pin().remove(&index) {
            session.opener.store(None);
            // Hundreds of kilobytes, which contain plaintext.
            if let Some(kept) = session.kept() {
                *kept.lock() = Kept::default();
            }
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

    /// The peer may send in lanes from now on.
    pub(crate) fn accept_lanes(&self) {
        self.lanes.get_or_init(Box::default);
    }

    /// Whether the peer may send in lanes.
    pub(crate) fn knows_lanes(&self) -> bool {
        self.lanes.get().is_some()
    }

    /// The window of a lane, to be requested after an authentic packet of it. If the peer may not send in lanes, all
    /// counters belong to a single window. `None` for a lane that does not exist.
    pub(crate) fn window(&self, lane: u8) -> Option<&Mutex<ReplayWindow>> {
        let Some(lanes) = self.lanes.get().filter(|_| lane > 0) else { return Some(&self.replay) };
        lanes.get(usize::from(lane - 1)).map(|window| &**window.get_or_init(Box::default))
    }

    /// The number of existing windows of lanes.
    #[cfg(test)]
    pub(crate) fn lane_windows(&self) -> usize {
        self.lanes.get().map_or(0, |lanes| lanes.iter().filter(|window| window.get().is_some()).count())
    }

    /// The peer may send parities from now on.
    pub(crate) fn accept_parities(&self) {
        self.kept.get_or_init(Box::default);
    }

    /// The packets that are kept for the peer's parities; `None` if it may send none.
    pub(crate) fn kept(&self) -> Option<&Mutex<Kept>> {
        self.kept.get().map(|kept| &**kept)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use rustguard_core::{
        fec::{Cover, Group},
        node::PeerId,
        time::Instant,
    };
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

    #[test]
    fn each_lane_has_a_window_and_there_are_only_so_many() {
        let sessions = Sessions::default();
        let peer = Arc::new(PeerShared::new(PeerId(1), PublicKey([1; 32]), Arc::default()));
        sessions.insert(Arc::new(crate::shared::testing::session(7, Instant::from_nanos(0)).1), peer);
        let pinned = sessions.pin();
        let session = pinned.get(7).unwrap();
        for lane in 0..=255 {
            assert!(
                std::ptr::eq(session.window(lane).unwrap(), &session.replay),
                "one for all before they were agreed on"
            );
        }
        assert!(!session.knows_lanes());
        session.accept_lanes();
        session.accept_lanes();
        assert!(session.knows_lanes() && std::ptr::eq(session.window(0).unwrap(), &session.replay));
        for lane in 1..=lanes::MOST {
            for counter in 0..100 {
                let counter = u64::from(lane) << 56 | counter;
                assert_eq!(session.window(lane).unwrap().lock().accept(counter), Ok(()));
                assert!(session.window(lane).unwrap().lock().accept(counter).is_err(), "a copy");
            }
        }
        assert!((lanes::MOST + 1..=255).all(|lane| session.window(lane).is_none()));
        assert_eq!(session.replay.lock().accept(0), Ok(()), "lane 0 has seen nothing of it");
    }

    #[test]
    fn what_a_removed_session_has_kept_is_freed_at_once() {
        let sessions = Sessions::default();
        let peer = Arc::new(PeerShared::new(PeerId(1), PublicKey([1; 32]), Arc::default()));
        let now = Instant::from_nanos(0);
        let mut group = Group::new(2);
        assert!(group.add(0, &[1; 40], now).is_none());
        let parity = group.add(1, &[2; 40], now).unwrap();
        let cover = Cover::of(parity.counter).unwrap();
        for (removed, made) in [(false, Some(1)), (true, None)] {
            sessions.insert(Arc::new(crate::shared::testing::session(7, now).1), Arc::clone(&peer));
            let pinned = sessions.pin();
            let session = pinned.get(7).unwrap();
            assert!(session.kept().is_none());
            session.accept_parities();
            let kept = session.kept().unwrap();
            assert!(kept.lock().packet(0, &[1; 40]).is_none());
            if removed {
                sessions.remove(7);
            }
            assert_eq!(kept.lock().parity(cover, parity.text).map(|rebuilt| rebuilt.counter), made);
        }
    }
}
