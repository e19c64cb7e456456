//! The server's previous key, after a key change. The server accepts it for [`TIME`].
//!
//! | Step | On disk | Members and invites know |
//! |---|---|---|
//! | 1. The present key is stored as the previous key | `server-key-before`, the same as `key` | the key |
//! | 2. The new key is stored | `server-key-before`, `key` | the previous key |
//! | 3. The roster has both | | the key, or the previous key |
//! | 4. The invites with the previous key are revoked, and the file is removed | `key` | the key |
//!
//! Each step is durable before the next one begins. A restart after step 1 finds the same key twice, and nothing has
//! changed.
//!
//! A standby that has taken the place of the server has that server's key, and its own former key as the second one.
//! Members that were off meanwhile know it as a further server, with the preshared keys of their pairs with it.

use rustguard_core::time::{Instant, Now};
use rustguard_crypto::x25519::{PublicKey, StaticSecret};
use rustguard_device::key;
use rustguard_enroll::lease::InviteRecord;
use rustguard_network::{Folder, FolderError, roster::pair::PairSecret};
use std::{path::PathBuf, time::Duration};
use zeroize::Zeroizing;

const FILE: &str = "server-key-before";
/// How long the previous key is accepted. Members that are off during all of this time do not learn the new key. In
/// stock WireGuard peers, people have to enter it.
pub(crate) const TIME: Duration = Duration::from_secs(7 * 24 * 3600);

/// The same for the key that a standby had before it took the server's place. No other machine has this key, so it may
/// last longer.
pub(crate) const STANDBY_TIME: Duration = Duration::from_secs(30 * 24 * 3600);

/// Why the previous key cannot be read.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum KeyBeforeError {
    /// The file cannot be read.
    #[error(transparent)]
    Folder(#[from] FolderError),
    /// The contents of the file are not valid.
    #[error(
        "{} is damaged ({why}); restore it from a backup, or remove it: invites and machines that know only the server's key from \
         before are then answered no more", path.display()
    )]
    Damaged {
        /// The file.
        path: PathBuf,
        /// The problem.
        why: String,
    },
}

/// The previous key, and how long it is accepted.
pub(crate) struct KeyBefore {
    pub(crate) secret: StaticSecret,
    /// When it ends, in seconds since 1970: for people, and for the next start.
    pub(crate) until: u64,
    /// When it ends on the monotonic clock, which decides while the server runs.
    ends: Instant,
    /// The invites with smaller serial numbers name it.
    pub(crate) next_serial: u64,
    /// For the former key of a standby: the secret from which its preshared keys with members were derived.
    pub(crate) of_standby: Option<PairSecret>,
}

impl KeyBefore {
    /// The key that is replaced at this moment.
    pub(crate) fn new(secret: StaticSecret, next_serial: u64, now: Now) -> Self {
        let until = now.unix.as_secs().saturating_add(TIME.as_secs());
        Self { secret, until, ends: now.instant + TIME, next_serial, of_standby: None }
    }

    /// The key of a standby that takes the place of the server.
    pub(crate) fn of_standby(secret: StaticSecret, pairs: PairSecret, now: Now) -> Self {
        let until = now.unix.as_secs().saturating_add(STANDBY_TIME.as_secs());
        // No invite has ever named it.
        Self { secret, until, ends: now.instant + STANDBY_TIME, next_serial: 0, of_standby: Some(pairs) }
    }

    /// Reads it. `None` if the server's key, which is `present`, has not changed.
    ///
    /// # Errors
    /// See [`KeyBeforeError`].
    pub(crate) fn load(folder: &Folder, present: &PublicKey, now: Now) -> Result<Option<Self>, KeyBeforeError> {
        let Some(text) = folder.read_secret(FILE)? else { return Ok(None) };
        let damaged = |why: &dyn ToString| KeyBeforeError::Damaged { path: folder.path(FILE), why: why.to_string() };
        let text = std::str::from_utf8(&text).map_err(|why| damaged(&why))?;
        let words: Vec<_> = text.split_whitespace().collect();
        let (secret, until, next_serial, pairs) = match *words {
            [secret, until, next_serial] => (secret, until, next_serial, None),
            [secret, until, next_serial, pairs] => (secret, until, next_serial, Some(pairs)),
            _ => return Err(damaged(&"it is not a key and two numbers")),
        };
        let pairs = pairs.map(key::from_base64).transpose().map_err(|why| damaged(&why))?;
        let secret = key::from_base64(secret).map_err(|why| damaged(&why))?;
        let until: u64 = until.parse().map_err(|why| damaged(&why))?;
        // A clock that was set back does not make the time longer.
        let most = if pairs.is_some() { STANDBY_TIME } else { TIME };
        let left = Duration::from_secs(until.saturating_sub(now.unix.as_secs())).min(most);
        let before = Self {
            secret: StaticSecret::from_bytes(*secret),
            until,
            ends: now.instant + left,
            next_serial: next_serial.parse().map_err(|why| damaged(&why))?,
            of_standby: pairs.map(|pairs| PairSecret::from_bytes(&pairs)),
        };
        Ok(Some(before).filter(|before| before.public_key() != *present))
    }

    /// Stores it. It is durable on return.
    ///
    /// # Errors
    /// See [`FolderError`].
    pub(crate) fn store(&self, folder: &Folder) -> Result<(), FolderError> {
        folder.replace(FILE, self.to_text().as_bytes())
    }

    /// The contents of its file.
    pub(crate) fn to_text(&self) -> Zeroizing<String> {
        let secret = key::to_base64(&Zeroizing::new(self.secret.to_bytes()));
        let pairs = self.of_standby.as_ref().map(|pairs| key::to_base64(pairs.as_bytes()));
        let pairs = pairs.as_ref().map_or("", |pairs| &***pairs);
        let space = if pairs.is_empty() { "" } else { " " };
        Zeroizing::new(format!("{} {} {}{space}{pairs}\n", *secret, self.until, self.next_serial))
    }

    /// Removes it from the disk.
    ///
    /// # Errors
    /// See [`FolderError`].
    pub(crate) fn remove(folder: &Folder) -> Result<(), FolderError> {
        folder.remove(FILE)
    }

    /// Whether its time is over.
    pub(crate) fn has_ended(&self, now: Instant) -> bool {
        self.ends <= now
    }

    /// Postpones its end until `at`, because the end could not be stored.
    pub(crate) fn end_later(&mut self, at: Instant) {
        self.ends = at;
    }

    /// How long it is accepted from now on.
    pub(crate) fn left(&self, now: Instant) -> Duration {
        self.ends.since(now)
    }

    /// The previous key for the roster. The former key of a standby is not in it, because it was never the server's
    /// key.
    pub(crate) fn told(&self) -> Option<StaticSecret> {
        self.of_standby.is_none().then(|| self.secret.clone())
    }

    pub(crate) fn public_key(&self) -> PublicKey {
        self.secret.public_key()
    }

    /// Whether the invite names this key. Its token is useless when the key has ended.
    pub(crate) fn is_named_by(&self, invite: &InviteRecord) -> bool {
        invite.serial < self.next_serial
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const YEAR: Duration = Duration::from_secs(1_767_225_600);

    /// So many seconds after the first second of a year.
    fn at(seconds: u64) -> Now {
        let since = Duration::from_secs(seconds);
        Now { instant: Instant::from_nanos(5_000_000_000) + since, unix: YEAR + since }
    }

    fn before(folder: &Folder, present: &StaticSecret) -> Option<KeyBefore> {
        KeyBefore::load(folder, &present.public_key(), at(0)).unwrap()
    }

    /// The server stops after each step, and starts again with the files on disk. It always has the key that members
    /// and invites know.
    #[test]
    fn a_power_cut_at_any_step_leaves_the_key_that_members_know() {
        let dir = tempfile::tempdir().unwrap();
        let folder = Folder::open_at(&dir.path().join("rg0")).unwrap();
        let old = folder.private_key().unwrap();
        assert!(before(&folder, &old).is_none());

        let until = YEAR.as_secs() + TIME.as_secs();
        KeyBefore::new(old.clone(), 3, at(0)).store(&folder).unwrap();
        let present = folder.private_key().unwrap();
        assert_eq!(present.public_key(), old.public_key());
        assert!(before(&folder, &present).is_none(), "nothing has changed yet");

        let new = StaticSecret::from_bytes([5; 32]);
        folder.replace_private_key(&new).unwrap();
        let present = folder.private_key().unwrap();
        assert_eq!(present.public_key(), new.public_key());
        let kept = before(&folder, &present).expect("the key before");
        assert_eq!((kept.public_key(), kept.until, kept.next_serial), (old.public_key(), until, 3));

        KeyBefore::remove(&folder).unwrap();
        assert!(before(&folder, &present).is_none());
    }

    /// The wall clock may be set at any time. While the server runs, this neither ends the key nor prolongs its time. A
    /// restart uses the wall clock, and grants at most the whole time.
    #[test]
    fn a_clock_that_is_set_does_not_move_the_end_while_the_server_runs() {
        let (dir, week) = (tempfile::tempdir().unwrap(), TIME.as_secs());
        let folder = Folder::open_at(&dir.path().join("rg0")).unwrap();
        let kept = KeyBefore::new(folder.private_key().unwrap(), 3, at(0));
        kept.store(&folder).unwrap();
        let new = StaticSecret::from_bytes([5; 32]).public_key();
        let load = |now| KeyBefore::load(&folder, &new, now).unwrap().expect("the key before");
        for kept in [kept, load(at(0))] {
            assert!(!kept.has_ended(at(week - 1).instant) && kept.has_ended(at(week).instant));
        }
        let (day, year) = (Duration::from_secs(24 * 3600), 365 * Duration::from_secs(24 * 3600));
        assert_eq!(load(at(24 * 3600)).left(at(24 * 3600).instant), TIME - day);
        let now = at(0);
        assert_eq!(load(Now { unix: now.unix - year, ..now }).left(now.instant), TIME);
        assert!(load(Now { unix: now.unix + year, ..now }).has_ended(now.instant));
    }

    #[test]
    fn a_damaged_file_is_named_and_left_as_it_is() {
        let dir = tempfile::tempdir().unwrap();
        let folder = Folder::open_at(&dir.path().join("rg0")).unwrap();
        let present = folder.private_key().unwrap().public_key();
        for text in ["", "no key", "no key 7", "AQEBAQEBAQEBAQEBAQEBAQEBAQEBAQEBAQEBAQEBAQE= -7 3"] {
            folder.replace(FILE, text.as_bytes()).unwrap();
            let error = KeyBefore::load(&folder, &present, at(0)).map(drop).unwrap_err().to_string();
            assert!(error.contains(FILE) && error.contains("damaged") && error.contains("remove it"), "{error}");
            assert_eq!(folder.read(FILE).unwrap().unwrap()[..], *text.as_bytes());
        }
    }
}
