//! The key of this machine, which can change while its tunnel runs.
//!
//! | Step | On disk | Other members know |
//! |---|---|---|
//! | 1. The next key is made | `key-next` | the key |
//! | 2. A server gets it, and has stored it | | the key, or the next |
//! | 3. The roster has it: it is the key from now on | `key-before`, `key`, the file of the interface | |
//! | 4. `key-next` is removed | | the next, or the key before |
//! | 5. The roster no longer has the key before | `key-before` is removed | the key |
//!
//! Each step is durable before the next one begins, and continues after a restart. From the first step to the last, the
//! device has both keys: it answers to both, and its own handshakes use both in turn.

use crate::folder::{Folder, FolderError, KEY};
use rustguard_crypto::x25519::{PublicKey, StaticSecret};
use rustguard_roster::roster::Roster;
use std::time::{Duration, Instant};

const NEXT: &str = "key-next";
const BEFORE: &str = "key-before";
/// How long the other members have to get the roster with the next key. Meanwhile this machine answers to both keys,
/// and uses the previous one.
const CHANGE_AFTER: Duration = Duration::from_secs(1);

/// The keys of this machine.
pub(crate) struct Identity {
    folder: Folder,
    /// The key in use.
    key: StaticSecret,
    /// The key that will replace it.
    next: Option<StaticSecret>,
    /// The previous key, which members may still use.
    before: Option<StaticSecret>,
    /// When the next key comes into use.
    change_at: Option<Instant>,
    /// The file of the interface has a different key.
    unsaved: bool,
    /// Whether the user knows that the file cannot be written.
    pub(crate) warned: bool,
}

/// The effect of a roster on the keys.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Change {
    Nothing,
    /// It has the next key, which will be used soon.
    Soon,
    /// It no longer has the previous key.
    Settled,
}

impl Identity {
    /// Continues where the machine stopped. `key` is the key in the interface's file.
    pub(crate) fn load(folder: Folder, key: StaticSecret, roster: Option<&Roster>) -> Result<Self, FolderError> {
        let next = folder.stored_key(NEXT)?;
        let before = folder.stored_key(BEFORE)?.filter(|before| before.public_key() != key.public_key());
        let mut identity = Self { folder, key, next, before, change_at: None, unsaved: false, warned: false };
        if identity.next.as_ref().is_some_and(|next| next.public_key() == identity.public_key()) {
            // Only the file of the next key was left over.
            identity.finish()?;
        } else if identity.next.is_some() && roster.is_some_and(|roster| identity.is_known_by_next(roster)) {
            identity.change()?;
        }
        Ok(identity)
    }

    /// The key in use.
    pub(crate) fn key(&self) -> &StaticSecret {
        &self.key
    }

    pub(crate) fn public_key(&self) -> PublicKey {
        self.key.public_key()
    }

    /// The key that is to be sent to a server.
    pub(crate) fn next(&self) -> Option<&StaticSecret> {
        self.next.as_ref().filter(|next| next.public_key() != self.public_key())
    }

    /// The second key of the device.
    pub(crate) fn second(&self) -> Option<&StaticSecret> {
        self.next().or(self.before.as_ref())
    }

    /// Makes the next key, or returns the one that was made before. It is durable when this returns.
    pub(crate) fn begin(&mut self) -> Result<StaticSecret, FolderError> {
        if let Some(next) = self.next() {
            return Ok(next.clone());
        }
        let next = StaticSecret::generate().map_err(FolderError::Random)?;
        self.folder.store_key(NEXT, &next)?;
        self.next = Some(next.clone());
        Ok(next)
    }

    /// Follows a roster that is in use now.
    pub(crate) fn follow(&mut self, roster: &Roster, now: Instant) -> Change {
        if self.next().is_some() && self.is_known_by_next(roster) {
            let is_new = self.change_at.is_none();
            // A machine that was off for more than a day is known by the next key only.
            let is_known = roster.holder(&self.public_key()).is_some();
            self.change_at.get_or_insert(if is_known { now + CHANGE_AFTER } else { now });
            return if is_new { Change::Soon } else { Change::Nothing };
        }
        let kept = roster.member(&self.public_key()).and_then(|member| member.old_key);
        if self.before.as_ref().is_some_and(|before| Some(before.public_key()) != kept)
            && roster.member(&self.public_key()).is_some()
        {
            self.before = None;
            self.remove(BEFORE);
            return Change::Settled;
        }
        Change::Nothing
    }

    /// When [`change`](Self::change) is to be called.
    pub(crate) fn change_at(&self) -> Option<Instant> {
        self.change_at
    }

    /// Uses the next key from now on. The previous one is durable, so that members that do not know the new one get
    /// answers.
    pub(crate) fn change(&mut self) -> Result<(), FolderError> {
        let Some(next) = self.next().cloned() else { return Ok(()) };
        self.folder.store_key(BEFORE, &self.key)?;
        self.folder.store_key(KEY, &next)?;
        self.before = Some(std::mem::replace(&mut self.key, next));
        (self.change_at, self.unsaved, self.warned) = (None, true, false);
        Ok(())
    }

    /// Tries the change again later, because writing to the disk failed.
    pub(crate) fn change_later(&mut self, now: Instant) {
        self.change_at = Some(now + Duration::from_secs(30));
    }

    /// Whether the file of the interface has to get the key.
    pub(crate) fn is_unsaved(&self) -> bool {
        self.unsaved
    }

    /// The file of the interface has the key: this completes the change.
    pub(crate) fn saved(&mut self) {
        if let Err(error) = self.finish() {
            // The next start removes it.
            tracing::debug!("{error}");
        }
    }

    /// The user has changed the key in the file. True: the key is not part of a change, and is used from now on.
    pub(crate) fn file_has(&mut self, key: &StaticSecret) -> bool {
        let public_key = key.public_key();
        let is = |known: Option<&StaticSecret>| known.is_some_and(|known| known.public_key() == public_key);
        if is(Some(&self.key)) || is(self.next()) || self.unsaved && is(self.before.as_ref()) {
            return false;
        }
        (self.key, self.next, self.before) = (key.clone(), None, None);
        (self.change_at, self.unsaved) = (None, false);
        self.remove(NEXT);
        self.remove(BEFORE);
        true
    }

    /// Whether the roster knows this machine by the next key.
    fn is_known_by_next(&self, roster: &Roster) -> bool {
        self.next.as_ref().is_some_and(|next| roster.member(&next.public_key()).is_some())
    }

    fn finish(&mut self) -> Result<(), FolderError> {
        self.folder.store_key(KEY, &self.key)?;
        self.folder.remove(NEXT)?;
        (self.next, self.unsaved) = (None, false);
        Ok(())
    }

    fn remove(&self, name: &str) {
        if let Err(error) = self.folder.remove(name) {
            tracing::warn!("{error}; it has a key that is used no more");
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use rustguard_roster::{key::NetworkSecret, member::Member, settings::Settings};
    use std::sync::Arc;

    fn folder(dir: &tempfile::TempDir) -> Folder {
        Folder::open_at(&dir.path().join("rg0")).unwrap()
    }

    /// A roster that knows this machine by a key and a previous one.
    fn roster(key: PublicKey, before: Option<PublicKey>) -> Roster {
        let mut member = Member::new(key, "me".parse().unwrap());
        member.old_key = before;
        let settings = Settings::new("rg0".parse().unwrap());
        Roster::issue(&NetworkSecret::from_bytes(&[7; 32]), 1, 0, settings, [Arc::new(member)]).unwrap()
    }

    /// The machine stops after each step, and starts again with the data on disk. It always has a key that the network
    /// knows.
    #[test]
    fn a_power_cut_at_any_step_leaves_a_key_that_the_network_knows() {
        let (now, old) = (Instant::now(), StaticSecret::from_bytes([5; 32]));
        // After each step: the key in the interface's file, the roster on disk, and the roster of the other members.
        for step in 0..6 {
            let dir = tempfile::tempdir().unwrap();
            folder(&dir).store_key(KEY, &old).unwrap();
            let mut file = old.clone();
            let mut on_disk = roster(old.public_key(), None);
            let mut of_others = on_disk.clone();
            let mut identity = Identity::load(folder(&dir), file.clone(), Some(&on_disk)).unwrap();
            let mut next = None;
            if step >= 1 {
                next = Some(identity.begin().unwrap());
            }
            if step >= 2 {
                of_others = roster(next.as_ref().unwrap().public_key(), Some(old.public_key()));
            }
            if step >= 3 {
                on_disk = of_others.clone();
                assert_eq!(identity.follow(&on_disk, now), Change::Soon);
                assert_eq!(identity.change_at(), Some(now + CHANGE_AFTER));
                assert_eq!(identity.follow(&on_disk, now), Change::Nothing);
            }
            if step >= 4 {
                identity.change().unwrap();
                assert!(identity.is_unsaved());
            }
            if step >= 5 {
                file = identity.key().clone();
                identity.saved();
            }
            drop(identity);

            let mut identity = Identity::load(folder(&dir), file, Some(&on_disk)).unwrap();
            let keys = [Some(identity.public_key()), identity.second().map(StaticSecret::public_key)];
            let present = of_others.members().next().unwrap();
            assert!(keys.contains(&Some(present.public_key)), "step {step}");
            assert_eq!(identity.is_unsaved(), step == 3 || step == 4, "step {step}");
            // With the newest roster, the change is completed.
            identity.follow(&of_others, now);
            identity.change().unwrap();
            identity.saved();
            if step >= 2 {
                assert_eq!(identity.public_key(), next.unwrap().public_key(), "step {step}");
                assert_eq!(identity.second().map(StaticSecret::public_key), Some(old.public_key()), "step {step}");
                let settled = roster(identity.public_key(), None);
                assert_eq!(identity.follow(&settled, now), Change::Settled, "step {step}");
                assert!(identity.second().is_none());
                let again = Identity::load(folder(&dir), identity.key().clone(), Some(&settled)).unwrap();
                assert!(again.second().is_none() && !again.is_unsaved(), "step {step}");
            }
        }
    }

    #[test]
    fn a_machine_that_was_off_for_long_uses_the_next_key_at_once() {
        let dir = tempfile::tempdir().unwrap();
        let (now, old) = (Instant::now(), StaticSecret::from_bytes([5; 32]));
        let mut identity = Identity::load(folder(&dir), old, None).unwrap();
        let next = identity.begin().unwrap().public_key();
        assert_eq!(identity.follow(&roster(next, None), now), Change::Soon);
        assert_eq!(identity.change_at(), Some(now));
    }

    #[test]
    fn a_key_that_the_user_has_put_into_the_file_is_used() {
        let dir = tempfile::tempdir().unwrap();
        let [old, own] = [5, 6].map(|byte| StaticSecret::from_bytes([byte; 32]));
        let mut identity = Identity::load(folder(&dir), old.clone(), None).unwrap();
        let next = identity.begin().unwrap();
        assert!(!identity.file_has(&old) && !identity.file_has(&next));
        assert!(identity.file_has(&own));
        assert_eq!((identity.public_key(), identity.second().is_none()), (own.public_key(), true));
        assert!(Identity::load(folder(&dir), own, None).unwrap().second().is_none(), "nothing is left over");
    }
}
