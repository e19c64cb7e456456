//! The network of joined machines, on the server that issues its roster.

pub(crate) mod files;
mod issuer;
pub(crate) mod key_before;
pub(crate) mod names;
pub(crate) mod replaced;
mod standbys;

use crate::{
    policy::{self, InForce, PolicyError},
    replica::Documents,
    request::{NetworkPolicy, NetworkView},
    settings::Settings,
};
use files::Secrets;
pub use files::{KEY as NETWORK_KEY, KnownNetwork};
use issuer::{Issuer, Newest};
use key_before::KeyBefore;
use replaced::Replaced;
use rustguard_core::time::{Instant, Now};
use rustguard_crypto::x25519::{PublicKey, StaticSecret};
use rustguard_device::{self as device, Device, Texts};
use rustguard_enroll::{ledger::Ledger, store::LeaseStore};
use rustguard_network::{
    Driver, DriverEvent, Folder, FolderError, Names, Resolver, Upstream,
    policy::directory,
    roster::{
        Version,
        exchange::Exchange,
        key::NetworkKey,
        label::Label,
        member::Role,
        roster::Roster,
        statement::{NewKey, Statement},
    },
    short_name,
};
use rustguard_policy::policy::Policy;
use standbys::Standbys;
use std::{
    collections::{BTreeMap, HashMap},
    net::IpAddr,
    path::Path,
    sync::Arc,
};
use tokio::sync::watch;

/// A network whose state was read. There is no device yet.
pub(crate) struct Planned {
    issuer: Issuer,
    identity: StaticSecret,
    /// The server's previous key.
    before: Option<StaticSecret>,
    in_force: Option<Arc<InForce>>,
}

/// A network on a running device.
pub(crate) struct Network {
    issuer: Issuer,
    /// The server's WireGuard keys, present and previous. A member that wants a new key proves possession of its
    /// private key, using the server's key that it knows.
    identity: StaticSecret,
    before: Option<StaticSecret>,
    driver: Driver,
    names: Names,
    /// The resolver for the names.
    resolver: watch::Sender<Resolver>,
    /// The policy that the device enforces.
    in_force: watch::Sender<Option<Arc<InForce>>>,
    /// The versions of the members' programs, since this server has started.
    programs: HashMap<PublicKey, String>,
    standbys: Standbys,
}

/// A policy that was checked and is to replace the present one.
pub(crate) struct NextPolicy {
    before: Option<Arc<Policy>>,
    next: Option<Arc<Policy>>,
}

/// The policy as a device enforces it.
fn enforced(in_force: Option<&Arc<InForce>>) -> Option<device::policy::Policy> {
    in_force.map(|in_force| device::policy::Policy::new(Arc::clone(&in_force.rules)))
}

impl NextPolicy {
    /// Describes the change for people.
    pub(crate) fn describe(&self) -> (String, String) {
        let count = |policy: &Option<Arc<Policy>>| match policy {
            None => "none".to_owned(),
            Some(policy) => format!("{} rules and {} tests", policy.rules().len(), policy.tests()),
        };
        let (before, next) = (count(&self.before), count(&self.next));
        if before == next { (before, format!("{next}, others")) } else { (before, next) }
    }
}

/// The result of one step of the exchange.
pub(crate) enum Heard {
    Nothing,
    /// A member's statement about itself.
    Statement(PublicKey, Statement),
    /// The device has ended.
    End,
}

impl Planned {
    /// Reads the state of the network. The first time, creates it.
    ///
    /// # Errors
    /// See [`FolderError`].
    pub(crate) fn open(
        folder: &Folder,
        interface: &str,
        identity: StaticSecret,
        before: Option<&KeyBefore>,
        now: Now,
    ) -> Result<Self, FolderError> {
        let secrets = Secrets::open(folder)?;
        let host = rustix::system::uname().nodename().to_str().ok().map(str::to_owned);
        let standby = before.filter(|before| before.of_standby.is_some()).map(KeyBefore::public_key);
        let before = before.and_then(KeyBefore::told);
        let server = (identity.public_key(), before.as_ref().map(StaticSecret::public_key));
        let issuer = Issuer::open(secrets, folder.clone(), interface, server, host, now)?;
        Ok(Self {
            issuer: match standby {
                Some(standby) => issuer.succeeding(standby),
                None => issuer,
            },
            identity,
            before,
            in_force: None,
        })
    }

    /// Makes this the network of one of several servers on a log. `gateway`: the key that all of them answer.
    pub(crate) fn share(&mut self, gateway: &StaticSecret, revision: u64, documents: &Documents) {
        self.before = (gateway.public_key() != self.identity.public_key()).then(|| gateway.clone());
        self.issuer.share(gateway.public_key(), revision, documents);
    }

    /// The network's key.
    pub(crate) fn key(&self) -> NetworkKey {
        self.issuer.network()
    }

    /// Reads the policy in a file, and checks it with the machines of the last roster. Returns whether members enforce
    /// another policy.
    ///
    /// # Errors
    /// See [`PolicyError`].
    pub(crate) fn read_policy(&mut self, path: &Path) -> Result<bool, PolicyError> {
        let last = self.issuer.last();
        let policy = policy::next(path, last.map(|last| &**last))?;
        let is_in_force = policy::is_in_force(last.map(|last| &**last), policy.as_deref());
        self.in_force = match &policy {
            Some(policy) => {
                let machines = last.map(|last| directory(last)).unwrap_or_default();
                policy::check(path, policy, &machines, is_in_force)?;
                Some(Arc::new(InForce::new(Arc::clone(policy), machines)))
            }
            None => None,
        };
        self.issuer.set_policy(policy);
        Ok(!is_in_force)
    }

    /// The policy that the server enforces from the first packet on.
    pub(crate) fn policy(&self) -> Option<device::policy::Policy> {
        enforced(self.in_force.as_ref())
    }

    /// Takes part in the exchange of rosters on a device that was built with these texts.
    pub(crate) fn start(self, device: &Device, texts: Texts) -> Network {
        let roster = self.issuer.last().map(|roster| Roster::clone(roster));
        let exchange = Exchange::new(self.issuer.network(), roster).with_pair_secret(self.issuer.pairs().clone());
        let driver = Driver::new(exchange.taking_statements(), device.handle(), texts, device.events());
        let mut network = Network {
            driver,
            issuer: self.issuer,
            identity: self.identity,
            before: self.before,
            names: Names::default(),
            resolver: watch::Sender::default(),
            in_force: watch::Sender::new(self.in_force),
            programs: HashMap::new(),
            standbys: Standbys::default(),
        };
        network.answer();
        network
    }
}

impl Network {
    /// Takes part in the exchange until something happens that concerns the service.
    pub(crate) async fn next(&mut self) -> Heard {
        let event = tokio::select! {
            event = self.driver.next() => event,
            () = self.names.changed() => {
                self.tell_resolver();
                return Heard::Nothing;
            }
        };
        match event {
            DriverEvent::Newer(roster) => {
                self.issuer.heard(&roster);
                Heard::Nothing
            }
            DriverEvent::Statement { member, statement } => Heard::Statement(member, statement),
            DriverEvent::Ended => Heard::End,
            _ => Heard::Nothing,
        }
    }

    /// Whether a member has proved that it has the private key of the new key that it wants.
    pub(crate) fn is_proven(&self, member: &PublicKey, key: &NewKey) -> bool {
        let own = [Some(&self.identity), self.before.as_ref()];
        own.into_iter().flatten().any(|own| key.is_proven(own, &self.issuer.network(), member))
    }

    /// The server has another key, or the previous key has ended. The next roster contains the change.
    pub(crate) fn set_keys(&mut self, identity: StaticSecret, before: Option<StaticSecret>) {
        self.issuer.set_keys(identity.public_key(), before.as_ref().map(StaticSecret::public_key));
        (self.identity, self.before) = (identity, before);
    }

    /// Whether a connected member has a list that is newer than the last one here. `None` if no member has reported its
    /// list.
    pub(crate) fn hears_of_newer(&self) -> Option<bool> {
        let own = self.issuer.last().map(|last| last.version());
        self.driver.versions().filter_map(|(_, has)| has).map(|has| Some(has) > own).reduce(|a, b| a || b)
    }

    /// The error that another machine has taken the place of this server, if a members' list shows this.
    pub(crate) fn replaced(&self) -> Option<Replaced> {
        self.issuer.replaced()
    }

    /// Why the last roster could not be issued.
    pub(crate) fn failure(&self) -> Option<&str> {
        self.issuer.failure()
    }

    /// A member's statement is stored in its lease. Tells the member so.
    pub(crate) fn stored(&mut self, member: &PublicKey, statement: &Statement) {
        self.driver.stored(member, statement);
        match statement.program() {
            Some(version) => self.programs.insert(*member, version.to_owned()),
            None => self.programs.remove(member),
        };
        // Drops members that were removed or have another key.
        if let Some(last) = self.issuer.last() {
            self.programs.retain(|key, _| last.member(key).is_some());
        }
    }

    /// The version of a member's program, if the member has reported it since this server has started.
    pub(crate) fn program(&self, member: &PublicKey) -> Option<&str> {
        self.programs.get(member).map(String::as_str)
    }

    /// Reads the policy in a file, checks it with the present machines, and returns the change, if there is any.
    ///
    /// # Errors
    /// See [`PolicyError`].
    pub(crate) fn next_policy<S: LeaseStore>(
        &mut self,
        path: &Path,
        settings: &Settings,
        ledger: &Ledger<S>,
    ) -> Result<Option<NextPolicy>, PolicyError> {
        let next = policy::next(path, self.issuer.last().map(|last| &**last))?;
        if let Some(policy) = &next {
            let is_in_force = next.as_ref() == self.issuer.policy();
            policy::check(path, policy, &self.issuer.directory(settings, ledger), is_in_force)?;
        }
        Ok((next.as_ref() != self.issuer.policy())
            .then_some(NextPolicy { before: self.issuer.policy().cloned(), next }))
    }

    /// Tells the members of another policy with the next roster.
    pub(crate) fn set_policy(&mut self, next: NextPolicy) {
        self.issuer.set_policy(next.next);
    }

    /// Leases or settings may have changed.
    pub(crate) fn changed(&mut self) {
        self.issuer.changed();
    }

    /// Takes note of the log that this server shares, at a revision.
    pub(crate) fn follow(&mut self, revision: u64, documents: &Documents) {
        self.issuer.follow(revision, documents);
    }

    /// See [`Issuer::other_names`].
    pub(crate) fn other_names<S: LeaseStore>(&self, ledger: &Ledger<S>) -> BTreeMap<PublicKey, Label> {
        self.issuer.other_names(ledger)
    }

    /// See [`Issuer::needs_touch`].
    pub(crate) fn needs_touch(&self, now: Now) -> bool {
        self.issuer.needs_touch(now)
    }

    /// The administrator has named this machine.
    pub(crate) fn renamed(&mut self, key: &PublicKey) {
        self.issuer.renamed(key);
    }

    /// Continues with this server's own state, at the administrator's request, although members have a newer roster.
    ///
    /// # Errors
    /// If no member has a newer roster.
    pub(crate) fn go_on(&mut self) -> Result<(), String> {
        self.issuer.go_on()
    }

    /// The newest list that members have, if this server has not made it.
    ///
    /// # Errors
    /// Why no list can be adopted.
    pub(crate) fn newest<S: LeaseStore>(&self, settings: &Settings, ledger: &Ledger<S>) -> Result<Newest, String> {
        self.issuer.newest(settings, ledger)
    }

    /// Prepares the adoption of a list.
    ///
    /// # Errors
    /// See [`FolderError`].
    pub(crate) fn before_adoption(&mut self) -> Result<(), FolderError> {
        self.issuer.before_adoption()
    }

    /// The leases now agree with the newest list.
    pub(crate) fn adopted(&mut self) {
        self.issuer.adopted();
    }

    /// See [`Issuer::take_listed`].
    pub(crate) fn take_listed(&mut self) -> Option<Vec<(IpAddr, PublicKey)>> {
        self.issuer.take_listed()
    }

    /// When [`issue`](Self::issue) has something to do.
    pub(crate) fn deadline(&self) -> Instant {
        self.issuer.deadline()
    }

    /// Issues a roster with the changes at once.
    ///
    /// # Errors
    /// Why members are not told.
    pub(crate) fn publish<S: LeaseStore>(
        &mut self,
        settings: &Settings,
        ledger: &Ledger<S>,
        now: Now,
    ) -> Result<(), String> {
        self.issuer.hurry();
        self.issue(settings, ledger, now);
        self.issuer.failure().map_or(Ok(()), |why| Err(why.to_owned()))
    }

    /// Issues a roster if one is due. It is durable before anybody is told.
    pub(crate) fn issue<S: LeaseStore>(&mut self, settings: &Settings, ledger: &Ledger<S>, now: Now) {
        // A member that has the last roster of this server knows of no newer one, because it was told the number of
        // each.
        let own = self.issuer.last().map(|last| last.version()).filter(|_| self.issuer.waits());
        if own.is_some_and(|own| self.driver.versions().any(|(_, has)| has == Some(own))) {
            self.issuer.settle();
        }
        if let Some(roster) = self.issuer.issue(settings, ledger, now) {
            self.driver.renew_pair_secret(self.issuer.pairs());
            let in_force = |policy| Arc::new(InForce::new(policy, directory(&roster)));
            let in_force = self.issuer.policy().cloned().map(in_force);
            self.driver.enforce(enforced(in_force.as_ref()));
            self.in_force.send_replace(in_force);
            self.driver.issue(roster);
            self.answer();
        }
    }

    /// Answers queries for the names of the last roster on this machine.
    fn answer(&mut self) {
        if let Some(roster) = self.issuer.last() {
            let own = self.issuer.own_entry(roster).map_or(&[][..], |member| &member.addresses);
            self.names.follow(roster, own, &roster.settings().pools, Upstream::default());
            self.tell_resolver();
        }
    }

    /// The policy that is enforced.
    pub(crate) fn in_force(&self) -> watch::Receiver<Option<Arc<InForce>>> {
        self.in_force.subscribe()
    }

    /// The resolver for the network's names on this machine: its addresses and domains. At first there are none.
    pub(crate) fn resolver(&self) -> watch::Receiver<Resolver> {
        self.resolver.subscribe()
    }

    fn tell_resolver(&self) {
        let now = self.names.answered().unwrap_or_default();
        self.resolver.send_if_modified(|known| {
            *known != now && {
                *known = now;
                true
            }
        });
    }

    /// Whether this machine is connected and receives rosters.
    pub(crate) fn tells(&self, key: &PublicKey) -> bool {
        self.driver.versions().any(|(member, has)| member == *key && has.is_some())
    }

    /// The key of the machine that has this name in the network, such as `laptop` or `laptop.home.internal`.
    pub(crate) fn named(&self, name: &str) -> Option<PublicKey> {
        let network = self.issuer.last().map(|last| last.settings().name.as_str());
        self.issuer.names().key(&short_name(name, network))
    }

    /// The network for people and programs.
    pub(crate) fn view(&self, settings: &Settings, interface: &str) -> NetworkView {
        let last = self.issuer.last();
        let own = last.map(|last| last.version());
        let members = || last.into_iter().flat_map(|last| last.members());
        let clients = members().filter(|member| matches!(member.role, Role::Client(_))).count();
        let versions = self.versions();
        // A member that has not reported its roster yet does not count: it is told of the roster, and answers within
        // seconds.
        let lags = |key: &PublicKey| versions.get(&key.0).copied().flatten().is_some_and(|has| Some(has) < own);
        let lagging = members().filter(|member| !matches!(member.role, Role::Client(_)) && lags(&member.public_key));
        NetworkView {
            name: settings.to_roster(interface).name.to_string(),
            key: self.issuer.network(),
            roster: own.map_or(0, |version| version.number),
            issued: last.map(|last| last.issued()),
            members: members().count() - clients,
            clients,
            lagging: lagging.map(|member| member.name.to_string()).collect(),
            standbys: self.standbys(),
            problem: self.issuer.failure().map(str::to_owned),
            policy: self
                .issuer
                .policy()
                .map(|policy| NetworkPolicy { rules: policy.rules().len(), tests: policy.tests() }),
        }
    }

    /// The names of machines in the network, and the numbers of the rosters that they have.
    pub(crate) fn places(&self) -> impl Fn(&PublicKey) -> (Option<String>, Option<u64>) {
        let versions = self.versions();
        move |key| {
            let member = self.issuer.last().and_then(|last| last.member(key));
            let is_client = member.is_some_and(|member| matches!(member.role, Role::Client(_)));
            let has = versions.get(&key.0).copied().flatten().filter(|_| !is_client);
            (member.map(|member| member.name.to_string()), has.map(|version| version.number))
        }
    }

    /// The rosters that the connected machines have reported.
    fn versions(&self) -> HashMap<[u8; 32], Option<Version>> {
        self.driver.versions().map(|(key, version)| (key.0, version)).collect()
    }
}
