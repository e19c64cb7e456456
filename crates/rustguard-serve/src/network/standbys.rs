//! The state of this server for its standbys. It is made after changes, at a limited rate.

use super::Network;
use crate::{request::StandbyView, settings::Settings};
use rustguard_core::time::{Instant, Now};
use rustguard_crypto::x25519::PublicKey;
use rustguard_enroll::{lease::Lease, ledger::Ledger, store::LeaseStore};
use std::time::Duration;
use zeroize::Zeroizing;

/// The shortest time between two states. Making one takes milliseconds, or some ten milliseconds with 10,000 machines.
const PAUSE: Duration = Duration::from_millis(250);
/// The next state waits this many times as long as the last one took to make, so that joins are not delayed.
const SHARE: u32 = 10;
/// How often to check the files whose changes are not reported, such as the peers' endpoints. Also the pause after a
/// failure.
const LOOK: Duration = Duration::from_secs(60);
/// A state in transmission is not replaced by the next one for this time. Otherwise a distant standby would never get a
/// complete state. Meanwhile, every `POLL`, the server checks whether all standbys have it.
const ON_ITS_WAY: Duration = Duration::from_secs(3);
const POLL: Duration = Duration::from_millis(100);

/// The last state for standbys, and when the next one is due.
#[derive(Default)]
pub(super) struct Standbys {
    decided: Option<(Decided, Settings)>,
    /// The bytes of the last state, by their hash, and when it was made in milliseconds since 1970.
    last: Option<([u8; 32], u64)>,
    /// When standbys were told of it.
    told_at: Instant,
    not_before: Instant,
    look_at: Instant,
    /// The failure that was logged.
    failure: Option<String>,
}

/// Identifies all decisions of the administrator and of machines, so that they can be compared.
#[derive(PartialEq)]
struct Decided {
    commits: u64,
    roster: u64,
    keys: [Option<PublicKey>; 2],
}

impl Network {
    fn decided<S: LeaseStore>(&self, ledger: &Ledger<S>) -> Decided {
        let keys = [Some(self.identity.public_key()), self.before.as_ref().map(|before| before.public_key())];
        let roster = self.issuer.last().map_or(0, |last| last.version().number);
        Decided { commits: ledger.commits(), roster, keys }
    }

    /// When standbys may have to be told again.
    pub(crate) fn standbys_deadline<S: LeaseStore>(
        &self,
        settings: &Settings,
        ledger: &Ledger<S>,
        now: Instant,
    ) -> Instant {
        let Standbys { told_at, not_before, look_at, .. } = self.standbys;
        let decided = self.decided(ledger);
        if self.standbys.decided.as_ref().is_some_and(|(last, with)| *last == decided && with == settings) {
            look_at
        } else if now < told_at + ON_ITS_WAY && self.is_on_its_way() {
            not_before.max(now + POLL)
        } else {
            not_before
        }
    }

    /// Whether a connected standby does not have the last state yet.
    fn is_on_its_way(&self) -> bool {
        let present = self.standbys.last.map(|(_, made)| made);
        let is_connected = |key: &PublicKey| self.driver.versions().any(|(connected, _)| connected == *key);
        self.driver.standbys().any(|(key, stored)| stored != present && is_connected(&key))
    }

    /// Tells the standbys of the state that `make` returns, if it differs from the last one.
    pub(crate) fn tell_standbys<S: LeaseStore>(
        &mut self,
        settings: &Settings,
        ledger: &Ledger<S>,
        make: impl FnOnce() -> Result<Zeroizing<Vec<u8>>, String>,
        now: impl Fn() -> Now,
    ) {
        let began = now();
        self.standbys.decided = Some((self.decided(ledger), settings.clone()));
        self.standbys.look_at = began.instant + LOOK;
        self.standbys.not_before = began.instant + PAUSE;
        let standbys: Vec<_> = ledger.leases().filter(|lease| lease.is_standby()).map(key).collect();
        if standbys.is_empty() && self.driver.standbys().next().is_none() {
            return;
        }
        match make() {
            Ok(text) => {
                let hash = rustguard_crypto::hash::hash(&[&text]);
                let is_same = self.standbys.last.is_some_and(|(last, _)| last == hash);
                let told: Vec<_> = self.driver.standbys().map(|(key, _)| key).collect();
                if !is_same || told != standbys {
                    // Greater than the time of every earlier state, even if the clock was set back.
                    let wall = u64::try_from(began.unix.as_millis()).unwrap_or(u64::MAX);
                    let ledger = ledger.state().time.saturating_add(1).saturating_mul(1_000);
                    let last = self.standbys.last.map_or(0, |(_, made)| made.saturating_add(1));
                    let made = wall.max(ledger).max(last);
                    self.driver.tell_state(self.issuer.sign_state(text, made), standbys);
                    (self.standbys.last, self.standbys.told_at) = (Some((hash, made)), began.instant);
                }
                self.standbys.failure = None;
            }
            Err(error) => {
                if self.standbys.failure.as_ref() != Some(&error) {
                    tracing::error!("standbys do not get the latest changes: {error}");
                    self.standbys.failure = Some(error);
                }
            }
        }
        let ended = now().instant;
        self.standbys.not_before = ended + (ended.since(began.instant) * SHARE).max(PAUSE);
    }

    /// The standbys, and the state that each has.
    pub(super) fn standbys(&self) -> Vec<StandbyView> {
        let present = self.standbys.last.map(|(_, made)| made);
        let view = |(key, stored): (PublicKey, Option<u64>)| {
            let member = self.issuer.last().and_then(|last| last.member(&key));
            StandbyView {
                // A standby that has just joined is in no list yet.
                name: member.map_or_else(|| key.to_string(), |member| member.name.to_string()),
                stored: stored.map(|made| made / 1_000),
                current: stored.is_some() && stored == present,
            }
        };
        self.driver.standbys().map(view).collect()
    }
}

fn key(lease: &Lease) -> PublicKey {
    lease.public_key
}
