//! Makes the network's rosters from the leases and the settings, and numbers them.
//!
//! A roster contains leases that wait for their first handshake: the machine has used a grant, its lease is durable,
//! and the others have to know it when its first packet arrives. Otherwise the machine would get a roster without
//! itself after its first handshake, and would have to fetch another one. A lease that is never used ends by itself,
//! and later rosters no longer contain its machine.
//!
//! If members have a roster that was not made here, the state folder is an older copy, or a second server runs with a
//! copy of it. If the next roster would then exclude machines or readmit removed ones, nothing is issued until the
//! administrator has decided.

mod adoption;
mod shared;

use super::{
    files::{self, ROSTER, Secrets},
    names::{Names, in_order},
    replaced::Replaced,
};
use crate::settings::Settings;
pub(crate) use adoption::Newest;
use ipnet::IpNet;
use rustguard_core::{
    host_port::HostPort,
    time::{Instant, Now},
};
use rustguard_crypto::x25519::PublicKey;
use rustguard_enroll::{lease::Lease, ledger::Ledger, store::LeaseStore};
use rustguard_network::{
    Folder, FolderError,
    policy::machine,
    roster::{
        Version,
        key::{NetworkKey, NetworkSecret},
        label::Label,
        member::{MAX_ENDPOINTS, MAX_PREFIXES, MAX_TAGS, Member, Role},
        next_term,
        pair::PairSecret,
        roster::Roster,
        server_state::ServerState,
    },
};
use rustguard_policy::{directory::Directory, policy::Policy, sheet::Sheets};
use shared::Shared;
use std::{collections::BTreeSet, net::IpAddr, sync::Arc, time::Duration};
use zeroize::Zeroizing;

/// A roster is issued anew after this time without a change, so that members see that their roster is current.
const FRESH: Duration = Duration::from_secs(3600);
/// The shortest and the longest pause between two rosters. While changes continue, each pause is twice as long as the
/// previous one. The first change after a quiet time is published at once. A roster of 10,000 members costs some ten
/// milliseconds and a megabyte on disk.
const FIRST_PAUSE: Duration = Duration::from_millis(50);
const LONGEST_PAUSE: Duration = Duration::from_millis(400);
const QUIET: Duration = Duration::from_secs(2);
/// The pause after a failure.
const RETRY: Duration = Duration::from_secs(5);

/// Issues the rosters of a network.
pub(crate) struct Issuer {
    secret: NetworkSecret,
    /// The secret from which the preshared keys of pairs are derived.
    pairs: PairSecret,
    folder: Folder,
    server: PublicKey,
    /// The server's previous key, while the server accepts it.
    server_before: Option<PublicKey>,
    /// The key that this machine had as a standby, if it has taken the place of the server.
    standby: Option<PublicKey>,
    /// The log that this server shares with others, if it does.
    shared: Option<Shared>,
    /// The number of a list from a machine that has taken the place of this one.
    replaced: Option<u64>,
    /// The server's name, and the name of its host.
    server_name: Option<String>,
    host: Option<String>,
    interface: String,
    names: Names,
    policy: Option<Arc<Policy>>,
    last: Option<Arc<Roster>>,
    /// The greatest number that is known to have been issued.
    number: u64,
    /// A roster that members have, signed with this network's key and newer than all that were made here.
    theirs: Option<Roster>,
    /// `theirs` has changed, or was decided upon, since the ledger was told.
    theirs_is_new: bool,
    /// When this server started, in seconds since 1970.
    started: u64,
    /// The folder was restored from a backup on another machine, and no member has reported its roster yet.
    waits: bool,
    /// The last known endpoint of the server. It is kept while the machine has no route.
    endpoint: Option<HostPort>,
    /// Something may have changed.
    changed: bool,
    /// The next roster is issued even if nothing has changed.
    anew: bool,
    pause: Duration,
    /// No roster is issued before `not_before`. A new one is issued at `stale_at`.
    not_before: Instant,
    stale_at: Instant,
    /// The failure that was logged.
    failure: Option<String>,
}

impl Issuer {
    /// Continues after the last roster in the folder.
    ///
    /// # Errors
    /// See [`FolderError`].
    pub(crate) fn open(
        Secrets { network: secret, pairs }: Secrets,
        folder: Folder,
        interface: &str,
        (server, server_before): (PublicKey, Option<PublicKey>),
        host: Option<String>,
        now: Now,
    ) -> Result<Self, FolderError> {
        let last = files::last_roster(&folder, &secret.public_key())?;
        let waits = folder.read(files::RESTORED)?.is_some();
        // A roster from the future was made with another clock, and counts as stale.
        let age = last.as_ref().and_then(|last| now.unix.as_secs().checked_sub(last.issued()));
        let left = age.map_or(Duration::ZERO, |age| FRESH.saturating_sub(Duration::from_secs(age)));
        let endpoints =
            last.as_ref().and_then(|last| own_entry(last, &server, server_before.as_ref())?.endpoints.first().cloned());
        let server_name = files::own_name(&folder, host.clone())?;
        Ok(Self {
            secret,
            pairs,
            folder,
            server,
            server_before,
            standby: None,
            shared: None,
            replaced: None,
            server_name,
            host,
            interface: interface.to_owned(),
            names: last.as_ref().map(Names::of).unwrap_or_default(),
            policy: None,
            number: last.as_ref().map_or(0, |last| last.version().number),
            theirs: None,
            theirs_is_new: false,
            started: now.unix.as_secs(),
            waits,
            last: last.map(Arc::new),
            endpoint: endpoints,
            changed: true,
            anew: false,
            pause: Duration::ZERO,
            not_before: now.instant,
            stale_at: now.instant + left,
            failure: None,
        })
    }

    /// The issuer of a machine that was the standby with this key. Its rosters are newer than all rosters of the former
    /// server, which may not know of the take-over yet. Its first roster no longer contains the standby, so the number
    /// is raised only once.
    pub(crate) fn succeeding(mut self, standby: PublicKey) -> Self {
        if self.last.as_ref().is_some_and(|last| last.member(&standby).is_some()) {
            self.number = next_term(self.number);
        }
        self.standby = Some(standby);
        self
    }

    /// Whether another machine has taken the place of this one.
    pub(crate) fn replaced(&self) -> Option<Replaced> {
        self.replaced.map(|number| Replaced::by(&self.folder, number))
    }

    /// The server's own entry in a roster.
    pub(crate) fn own_entry<'r>(&self, roster: &'r Roster) -> Option<&'r Arc<Member>> {
        own_entry(roster, &self.server, self.server_before.as_ref())
    }

    /// The server has another key, or the previous key has ended.
    pub(crate) fn set_keys(&mut self, server: PublicKey, before: Option<PublicKey>) {
        (self.server, self.server_before, self.changed) = (server, before, true);
    }

    /// The network's key.
    pub(crate) fn network(&self) -> NetworkKey {
        self.secret.public_key()
    }

    /// Signs the state of this server, for its standbys.
    pub(crate) fn sign_state(&self, text: Zeroizing<Vec<u8>>, made: u64) -> ServerState {
        ServerState::new(&self.secret, self.number, made, text)
    }

    /// The secret from which the preshared keys of pairs are derived.
    pub(crate) fn pairs(&self) -> &PairSecret {
        &self.pairs
    }

    /// The roster that was issued last.
    pub(crate) fn last(&self) -> Option<&Arc<Roster>> {
        self.last.as_ref()
    }

    /// The names of the members.
    pub(crate) fn names(&self) -> &Names {
        &self.names
    }

    /// Why the last attempt failed.
    pub(crate) fn failure(&self) -> Option<&str> {
        self.failure.as_deref()
    }

    /// Sets the policy from the next roster on; `None`: everything is allowed.
    pub(crate) fn set_policy(&mut self, policy: Option<Arc<Policy>>) {
        (self.policy, self.changed) = (policy, true);
    }

    /// The policy.
    pub(crate) fn policy(&self) -> Option<&Arc<Policy>> {
        self.policy.as_ref()
    }

    /// The machines of the next roster, to which the names and tags of a policy refer.
    pub(crate) fn directory<S: LeaseStore>(&mut self, settings: &Settings, ledger: &Ledger<S>) -> Directory {
        Directory::new(self.members(settings, ledger).0.iter().map(|member| machine(member)))
    }

    /// Leases or settings may have changed.
    pub(crate) fn changed(&mut self) {
        self.changed = true;
    }

    /// The administrator has renamed the machine, and may want the name without a number.
    pub(crate) fn renamed(&mut self, key: &PublicKey) {
        self.names.forget(key);
        self.changed = true;
        if let Some(shared) = &mut self.shared {
            shared.renamed = Some(*key);
        }
    }

    /// Handles a member's roster that may be newer than all rosters made here. If this network's key has signed it, the
    /// next roster gets a greater number.
    pub(crate) fn heard(&mut self, roster: &Roster) {
        // Servers on a log each make the same rosters, when they have read so far.
        if self.shared.is_some() {
            return;
        }
        let known = self.last.as_ref().map(|last| last.version()).max(self.theirs.as_ref().map(Roster::version));
        if roster.network() != self.network() || known >= Some(roster.version()) {
            return;
        }
        let number = roster.version().number;
        let own_term = Version { number: self.number, digest: [0; 8] }.term();
        // If this server waits, it was restored from a backup, which may be the only state left. Then the list is
        // adopted or discarded like any other.
        if roster.version().term() > own_term && !self.waits {
            // This holds even if it cannot be stored: after the next start, members report it again.
            if let Err(error) = Replaced::store(&self.folder, number) {
                tracing::error!("{error}");
            }
            self.replaced = Some(number);
            return;
        }
        self.theirs = Some(roster.clone());
        (self.changed, self.theirs_is_new) = (true, true);
    }

    /// The addresses in the members' roster with their keys, if these have changed since the last call.
    pub(crate) fn take_listed(&mut self) -> Option<Vec<(IpAddr, PublicKey)>> {
        std::mem::take(&mut self.theirs_is_new).then(|| {
            let members = self.theirs.iter().flat_map(Roster::members);
            members.flat_map(|member| member.addresses.iter().map(|&address| (address, member.public_key))).collect()
        })
    }

    /// Continues with this server's own state, at the administrator's request, whatever roster members have. The
    /// alternative is [`adopted`](Self::adopted).
    ///
    /// # Errors
    /// If no member has a newer roster.
    pub(crate) fn go_on(&mut self) -> Result<(), String> {
        if self.theirs.is_none() && !self.waits {
            return Err("no member has a list that is newer than the one of this server: it goes on already".to_owned());
        }
        self.replace_old_pairs().map_err(|error| error.to_string())?;
        self.take_number();
        self.settle();
        self.not_before = Instant::from_nanos(0);
        Ok(())
    }

    /// An administrator waits: changes are published without a pause, even after a failure.
    pub(crate) fn hurry(&mut self) {
        if self.changed {
            self.not_before = Instant::from_nanos(0);
        }
    }

    /// Whether the issuer waits until the first member reports its roster.
    pub(crate) fn waits(&self) -> bool {
        self.waits
    }

    /// Ends the wait, because the roster that members have is known.
    pub(crate) fn settle(&mut self) {
        if !std::mem::take(&mut self.waits) {
            return;
        }
        (self.changed, self.failure, self.not_before) = (true, None, Instant::from_nanos(0));
        if let Err(error) = self.folder.remove(files::RESTORED) {
            tracing::warn!("{error}; the next start waits for a member once more");
        }
    }

    /// Makes another pair secret if members have a newer one: a server that has left knows the secret here.
    fn replace_old_pairs(&mut self) -> Result<(), FolderError> {
        let theirs = self.theirs.as_ref().and_then(|theirs| theirs.settings().pair_secret);
        if theirs.is_some_and(|theirs| theirs != self.pairs.id()) {
            self.pairs = files::new_pair_secret(&self.folder)?;
            tracing::info!(
                "members had another secret of the pairs than the backup: all pairs get other preshared keys"
            );
        }
        Ok(())
    }

    /// Makes the next roster replace the one that members have. A machine that is in both keeps the name that members
    /// know.
    fn take_number(&mut self) {
        if let Some(theirs) = self.theirs.take() {
            self.names = Names::of(&theirs);
            self.number = self.number.max(theirs.version().number);
            (self.changed, self.anew, self.theirs_is_new) = (true, true, true);
        }
    }

    /// When [`issue`](Self::issue) has something to do.
    pub(crate) fn deadline(&self) -> Instant {
        if self.changed { self.not_before } else { self.stale_at.max(self.not_before) }
    }

    /// Makes a roster if one is due and its contents are new. It is durable before this returns.
    pub(crate) fn issue<S: LeaseStore>(
        &mut self,
        settings: &Settings,
        ledger: &Ledger<S>,
        now: Now,
    ) -> Option<Arc<Roster>> {
        if now.instant < self.deadline() || self.replaced.is_some() {
            return None;
        }
        self.changed = false;
        if self
            .shared
            .as_ref()
            .is_some_and(|shared| self.last.as_ref().is_some_and(|last| last.version().number >= shared.number))
        {
            // The log has to have another record first.
            if now.instant >= self.stale_at {
                self.stale_at = now.instant + RETRY;
            }
            return None;
        }
        if self.waits && self.theirs.is_none() {
            // Clients have no roster that could be newer.
            if ledger.leases().any(|lease| lease.member) {
                let interface = &self.interface;
                return self.failed(
                    format!(
                        "this server was restored from a backup on another machine, and signs nothing until a member has told which list it has. A \
                         newer list can be taken over then: rustguard reload {interface} --adopt. If no member is to come, go on without: rustguard \
                         reload {interface} --restored"
                    ),
                    now.instant,
                );
            }
            self.settle();
            self.changed = false;
        }
        if let Some(theirs) = &self.theirs {
            if let Some(why) = self.superseded(theirs, ledger, now) {
                return self.failed(why, now.instant);
            }
            tracing::warn!(
                "members have list {}, which is newer than what {} has: the next one is newer still",
                theirs.version(),
                self.folder.as_path().display()
            );
            if let Err(error) = self.replace_old_pairs() {
                return self.failed(error.to_string(), now.instant);
            }
            self.take_number();
            self.settle();
            self.changed = false;
        }
        let (members, sheets) = self.members(settings, ledger);
        if self.shared.is_none()
            && let Err(error) = self.renew_pairs(&members)
        {
            return self.failed(error.to_string(), now.instant);
        }
        let mut told = settings.to_roster(&self.interface);
        told.pair_secret = Some(self.pairs.id());
        let is_same = self.last.as_ref().is_some_and(|last| {
            *last.settings() == told
                && last.members().len() == members.len()
                && members
                    .iter()
                    .all(|member| last.member(&member.public_key).is_some_and(|old| Arc::ptr_eq(old, member)))
        });
        if is_same && !self.anew && now.instant < self.stale_at {
            return None;
        }
        // Servers that share a log make the same bytes of the same state.
        let (number, time) = match &self.shared {
            Some(shared) => (shared.number, ledger.state().time),
            None => (self.number.saturating_add(1), now.unix.as_secs()),
        };
        let issued = Roster::issue_with_sheets(&self.secret, number, time, told, members, sheets);
        let issued = issued.map_err(|error| error.to_string());
        let stored = issued.and_then(|roster| {
            self.folder.replace(ROSTER, &roster.to_bytes()).map_err(|error| error.to_string())?;
            Ok(roster)
        });
        match stored {
            Ok(roster) => {
                let roster = Arc::new(roster);
                (self.number, self.anew, self.failure) = (number, false, None);
                let was_quiet = self.not_before + QUIET <= now.instant;
                self.pause = if was_quiet { FIRST_PAUSE } else { (self.pause * 2).clamp(FIRST_PAUSE, LONGEST_PAUSE) };
                self.not_before = now.instant + self.pause;
                self.stale_at = now.instant + FRESH;
                self.last = Some(Arc::clone(&roster));
                Some(roster)
            }
            Err(error) => self.failed(error, now.instant),
        }
    }

    fn failed(&mut self, error: String, now: Instant) -> Option<Arc<Roster>> {
        (self.changed, self.not_before) = (true, now + RETRY);
        if self.failure.as_ref() != Some(&error) {
            tracing::error!("members are not told of the latest changes: {error}");
            self.failure = Some(error);
        }
        None
    }

    /// Makes another pair secret if a machine is no longer a server, because that machine knows the present secret. The
    /// new secret is durable before a roster names it.
    fn renew_pairs(&mut self, members: &[Arc<Member>]) -> Result<(), FolderError> {
        let servers = members.iter().filter(|member| member.role == Role::Server);
        // A server that has changed its key is still a server.
        let standby = self.standby.map(|standby| standby.0);
        let servers: BTreeSet<_> = servers.flat_map(|member| member.keys()).map(|key| key.0).chain(standby).collect();
        let Some(last) = self.last.as_ref().filter(|last| last.settings().pair_secret == Some(self.pairs.id())) else {
            return Ok(());
        };
        let lost = last.members().find(|member| member.role == Role::Server && !servers.contains(&member.public_key.0));
        if let Some(lost) = lost {
            let name = lost.name.clone();
            self.pairs = files::new_pair_secret(&self.folder)?;
            tracing::info!("{name} is no server any more: all pairs of members get other preshared keys");
        }
        Ok(())
    }

    /// All members, and their policy sheets. Members that are unchanged since the last roster are the same objects.
    fn members<S: LeaseStore>(
        &mut self,
        settings: &Settings,
        ledger: &Ledger<S>,
    ) -> (Vec<Arc<Member>>, Vec<Arc<[u8]>>) {
        let mut members = Vec::with_capacity(ledger.leases().len() + 1);
        if let Some(shared) = &self.shared {
            // Each server has a lease.
            self.names = shared.names(ledger);
        } else {
            self.endpoint = settings.reached_at().or(self.endpoint.take());
            for lease in ledger.leases() {
                if let Some(old) = &lease.old_key {
                    self.names.renamed(&old.public_key, &lease.public_key);
                }
            }
            if let Some(before) = &self.server_before {
                self.names.renamed(before, &self.server);
            }
            self.names.keep(|key| *key == self.server || ledger.lease(key).is_some());
            let name = self.names.name(&self.server, self.server_name.as_deref().or(Some("server")));
            members.push(self.server(settings, name));
        }
        let of_clients = self.shared.as_ref().map_or(self.server, |shared| shared.server_of_clients(ledger));
        for lease in in_order(ledger.leases()) {
            let name = self.names.name(&lease.public_key, lease.name.as_deref());
            let at = self.shared.as_ref().and_then(|shared| shared.server_of(&lease.public_key, ledger));
            let member = member(lease, name, at.unwrap_or(of_clients));
            let is_gateway = self.shared.as_ref().is_some_and(|shared| shared.is_server(&lease.public_key));
            members.push(if is_gateway { member.as_gateway() } else { member });
        }
        let policy = self.policy.clone();
        let mut sheets = policy.as_deref().map(Sheets::new);
        for member in &mut members {
            // Clients get no sheet: their server has all rules and enforces them.
            if let Some(sheets) = sheets.as_mut().filter(|_| !matches!(member.role, Role::Client(_))) {
                let sheet = sheets.of(&machine(member));
                *member = member.clone().with_sheet(&sheet);
            }
        }
        let last = self.last.as_ref();
        let shared = |member: Member| {
            let old = last.and_then(|last| last.member(&member.public_key)).filter(|old| ***old == member);
            old.cloned().unwrap_or_else(|| Arc::new(member))
        };
        let members = members.into_iter().map(shared).collect();
        (members, sheets.into_iter().flat_map(Sheets::into_all).collect())
    }

    fn is_own(&self, key: &PublicKey) -> bool {
        self.server == *key || self.server_before == Some(*key)
    }

    /// The server's own entry.
    fn server(&self, settings: &Settings, name: Label) -> Member {
        // A duplicate prefix would be announced twice.
        let prefixes: BTreeSet<_> = settings.routes.iter().map(IpNet::trunc).collect();
        let server = Member::new(self.server, name);
        let server = match self.server_before {
            Some(before) => server.with_old_key(before),
            None => server,
        };
        server
            .with_role(Role::Server)
            .with_addresses(settings.own_addresses().iter().map(IpNet::addr))
            .with_endpoints(self.endpoint.clone())
            .with_prefixes(prefixes.into_iter().take(MAX_PREFIXES))
    }
}

/// The server's entry in a roster. The last roster before a power cut may have the key from before a key change.
fn own_entry<'r>(roster: &'r Roster, server: &PublicKey, before: Option<&PublicKey>) -> Option<&'r Arc<Member>> {
    roster.member(server).or_else(|| roster.member(before?))
}

/// The machine of a lease.
fn member(lease: &Lease, name: Label, server: PublicKey) -> Member {
    let role = match (lease.member, lease.server.is_server()) {
        (true, false) => Role::Member,
        (true, true) => Role::Server,
        (false, _) => Role::Client(server),
    };
    let mut plain = Member::new(lease.public_key, name).with_addresses(lease.addresses()).with_role(role);
    // The preshared key was lost with the state. The machine has to know this before it can have a session with this
    // server.
    if lease.member && lease.preshared_key.is_zero() {
        plain = plain.with_no_psk(server);
    }
    let prefixes: BTreeSet<_> = lease.prefixes().map(|prefix| prefix.trunc()).collect();
    let mut member = plain
        .clone()
        .with_prefixes(prefixes.into_iter().take(MAX_PREFIXES))
        .with_endpoints(lease.endpoints.iter().take(MAX_ENDPOINTS).cloned());
    let tags: BTreeSet<_> = lease.tags.iter().filter_map(|tag| Label::clean(tag)).collect();
    member.tags = tags.into_iter().take(MAX_TAGS).collect();
    member.old_key = lease.old_key.map(|old| old.public_key);
    // Invalid statements of one machine must not prevent a roster for the others.
    if member.check().is_ok() { member } else { plain }
}

#[cfg(test)]
mod tests;
