//! Adoption of the newest roster that members have, if the state here is older.
//!
//! The roster is signed with the network's own key, so it contains decisions of this server itself. It lacks some
//! fields of leases: see [`Ledger::adopt`].

use super::{Issuer, files};
use crate::{
    network::names::fits,
    policy::policy_path,
    settings::Settings,
    words::{called, first, list},
};
use rustguard_core::time::{Instant, Now};
use rustguard_enroll::{
    lease::Lease,
    ledger::{Adoption, Ledger, List, Listed},
    store::LeaseStore,
};
use rustguard_network::{
    FolderError,
    policy::machine,
    roster::{
        label::Label,
        member::{MAX_TAGS, Member, Role},
        roster::Roster,
        settings::Settings as RosterSettings,
    },
};
use rustguard_policy::sheet::Sheets;
use std::collections::BTreeSet;

/// The newest list of members, in the ledger's form.
pub(crate) struct Newest {
    pub(crate) number: u64,
    pub(crate) list: List,
    /// The present name of this server, and its name in the list, if these differ.
    pub(crate) own_name: Option<(String, String)>,
    /// Warnings for the administrator before the adoption.
    pub(crate) warnings: Vec<String>,
}

impl Issuer {
    /// The roster that members have and this server has not made.
    ///
    /// # Errors
    /// Why no roster can be adopted, for people.
    pub(crate) fn newest<S: LeaseStore>(&self, settings: &Settings, ledger: &Ledger<S>) -> Result<Newest, String> {
        let interface = &self.interface;
        let theirs = match &self.theirs {
            Some(theirs) => theirs,
            None if self.waits => {
                return Err(format!(
                    "no member has told yet which list it has: wait until one is connected (`rustguard status` shows them). If none is to come, go on \
                     without: rustguard reload {interface} --restored"
                ));
            }
            None => {
                return Err(
                    "no member has a list that is newer than the one of this server: there is nothing to adopt"
                        .to_owned(),
                );
            }
        };
        let list = self.list(theirs, ledger)?;
        let own = self.own_entry(theirs).map(|own| own.name.clone());
        let present = self.server_name.as_deref().or(Some("server"));
        let own_name = own.filter(|name| !fits(name, present));
        let beside = (theirs.issued() > self.started).then(|| self.beside(theirs));
        let policy = self.other_policy(theirs);
        let others = other_settings(theirs.settings(), &settings.to_roster(interface)).map(|others| {
            format!(
                "the list has other settings, and those of this server hold from the next list on: {others}. To keep the others, change {} and run `rustguard reload {interface}` before",
                self.folder.path("settings.json").display()
            )
        });
        Ok(Newest {
            number: theirs.version().number,
            list,
            own_name: own_name.map(|name| (present.unwrap_or_default().to_owned(), name.to_string())),
            warnings: [beside, policy, others].into_iter().flatten().collect(),
        })
    }

    /// A warning if members enforce another policy than this server's. The list has only the sheet of each member, and
    /// the policy file cannot be restored from the sheets.
    fn other_policy(&self, theirs: &Roster) -> Option<String> {
        let own = own_entry(theirs, self)?;
        let (interface, path) = (&self.interface, policy_path(&self.interface));
        let path = path.display();
        match self.policy.as_deref() {
            None => own.has_sheet().then(|| {
                format!(
                    "members enforce a policy, and this server has none: everything is allowed from the next list on. To keep the policy, put its file \
                     at {path} and run `rustguard reload {interface}` before"
                )
            }),
            Some(policy) if own.clone().with_sheet(&Sheets::new(policy).of(&machine(own))) != *own => Some(format!(
                "members enforce another version of {path}; the one of this server holds from the next list on. If it is older, put the newer one there and run \
                 `rustguard reload {interface}` before"
            )),
            Some(_) => None,
        }
    }

    /// Prepares the adoption of a list: does everything outside the ledger that can fail.
    ///
    /// # Errors
    /// See [`FolderError`]. Nothing that members know has changed then.
    pub(crate) fn before_adoption(&mut self) -> Result<(), FolderError> {
        self.replace_old_pairs()
    }

    /// The leases now agree with the newest roster, and the next roster follows it.
    pub(crate) fn adopted(&mut self) {
        if let Some(theirs) = &self.theirs {
            let own = own_entry(theirs, self);
            self.endpoint = own.and_then(|own| own.endpoints.first().cloned()).or(self.endpoint.take());
            if let Some((name, host)) = own.map(|own| own.name.to_string()).zip(self.host.as_deref()) {
                if let Err(error) = files::keep_own_name(&self.folder, &name, host) {
                    tracing::warn!("{error}; with the next start, this server is called {host} in the network");
                }
                self.server_name = Some(name);
            }
        }
        self.take_number();
        self.settle();
        self.not_before = Instant::from_nanos(0);
    }

    /// Why a roster that members have cannot be replaced without a decision of the administrator.
    pub(super) fn superseded<S: LeaseStore>(&self, theirs: &Roster, ledger: &Ledger<S>, now: Now) -> Option<String> {
        let (path, interface) = (self.folder.as_path().display(), &self.interface);
        if theirs.issued() > self.started {
            return Some(format!(
                "{}. Stop one of them; if this one is to go on: rustguard reload {interface} --adopt takes over what that list says, and rustguard \
                 reload {interface} --restored discards it",
                self.beside(theirs)
            ));
        }
        let (differs, adopt) = match self.compared(theirs, ledger, now) {
            Ok((differences, why_not)) => {
                let differs = self.differs(&differences)?;
                let adopt = match why_not {
                    None => format!(
                        "To take over what the list says: rustguard reload {interface} --adopt (--dry-run shows it before)"
                    ),
                    Some(why) => {
                        format!("The list cannot be taken over yet: {why}; then: rustguard reload {interface} --adopt")
                    }
                };
                (format!(", and {differs}"), adopt)
            }
            Err(why) => (String::new(), format!("The list cannot be taken over: {why}")),
        };
        Some(format!(
            "members have list {}, which is newer than {path}: that is an older copy{differs}. {adopt}. Or stop this server and put a newer \
             copy there. Or go on without the list, with which machines that came since have to join again, and those that were removed are back: \
             rustguard reload {interface} --restored",
            theirs.version(),
        ))
    }

    /// The differences from a newer roster, and why it cannot be adopted, if so.
    fn compared<S: LeaseStore>(
        &self,
        theirs: &Roster,
        ledger: &Ledger<S>,
        now: Now,
    ) -> Result<(Adoption, Option<String>), String> {
        let list = self.list(theirs, ledger)?;
        let differences = ledger.differences(&list, now).map_err(|error| error.to_string())?;
        Ok((differences, ledger.adoption(&list, now).err().map(|error| error.to_string())))
    }

    /// The differences that the administrator has to decide about.
    fn differs(&self, adoption: &Adoption) -> Option<String> {
        let has_not = first(adoption.came.iter().map(called)).map(|names| format!("it does not have {names}"));
        let is_back =
            first(adoption.gone.iter().map(called)).map(|names| format!("it still has {names}, removed since"));
        let (rekeyed, others): (Vec<_>, Vec<_>) =
            adoption.changed.iter().partition(|(before, after)| before.public_key != after.public_key);
        let rekeyed = first(rekeyed.iter().map(|(before, _)| called(before)));
        let rekeyed = rekeyed.map(|names| format!("it does not have the present keys of {names}"));
        // Other differences count only after a restore from a backup, whose leases are as old as its roster. In a copy
        // of the folder, the leases may be newer than the roster.
        let others = others.iter().filter(|(before, after)| self.waits && is_another(before, after));
        let others = first(others.map(|(before, _)| called(before)));
        let others = others.map(|names| format!("it has other names, tags, prefixes, addresses or roles of {names}"));
        let differs: Vec<_> = [has_not, is_back, rekeyed, others].into_iter().flatten().collect();
        (!differs.is_empty()).then(|| differs.join(", and "))
    }

    fn beside(&self, theirs: &Roster) -> String {
        format!(
            "members have list {}, which was made elsewhere while this server runs: another server has a copy of {}",
            theirs.version(),
            self.folder.as_path().display()
        )
    }

    /// A roster in the ledger's form.
    fn list<S: LeaseStore>(&self, theirs: &Roster, ledger: &Ledger<S>) -> Result<List, String> {
        if own_entry(theirs, self).is_none() {
            return Err(format!(
                "the list that members have does not know this server by its key {}, which was changed after the backup: members do not answer \
                 this one, and have to join again. Restore a newer backup, or go on without the list: rustguard reload {} --restored",
                self.server, self.interface
            ));
        }
        let others = theirs.members().filter(|member| !self.is_own(&member.public_key));
        Ok(List::new(theirs.issued(), others.map(|member| listed(member, theirs, ledger)).collect()))
    }
}

/// The settings for all members that differ, with the values of the list and of this server.
fn other_settings(theirs: &RosterSettings, ours: &RosterSettings) -> Option<String> {
    let values = |settings: &RosterSettings| {
        [
            ("name", settings.name.to_string()),
            ("MTU", list(settings.mtu)),
            ("pools", list(&settings.pools)),
            ("name servers", list(&settings.name_servers)),
            ("search domains", list(&settings.domains)),
        ]
    };
    let pairs = values(theirs).into_iter().zip(values(ours)).filter(|(there, here)| there != here);
    let others: Vec<_> = pairs.map(|((what, there), (_, here))| format!("{what} {there} (here {here})")).collect();
    (!others.is_empty()).then(|| others.join("; "))
}

/// The server's entry in a roster.
fn own_entry<'r>(roster: &'r Roster, issuer: &Issuer) -> Option<&'r Member> {
    issuer.own_entry(roster).map(|own| &**own)
}

/// One machine of a roster, matched with its lease.
fn listed<S: LeaseStore>(member: &Member, theirs: &Roster, ledger: &Ledger<S>) -> Listed {
    let by_key = ledger.lease(&member.public_key).or_else(|| ledger.lease(member.old_key.as_ref()?));
    // Two more matches: a machine that has changed its key here since then, and a machine whose key in the backup is no
    // longer in any list.
    let lease = by_key.or_else(|| ledger.formerly(&member.public_key));
    let lease = lease.or_else(|| ledger.leases().find(|lease| is_same_machine(lease, member, theirs)));
    let name = lease.is_none_or(|lease| !fits(&member.name, lease.name.as_deref()));
    let tags = lease.map(|lease| {
        let tags: BTreeSet<_> = lease.tags.iter().filter_map(|tag| Label::clean(tag)).collect();
        tags.into_iter().take(MAX_TAGS).eq(member.tags.iter().cloned())
    });
    let mut listed = Listed::new(member.public_key);
    listed.lease = lease.map(|lease| lease.public_key);
    listed.old_key = member.old_key;
    listed.name = name.then(|| member.name.to_string());
    listed.addresses.clone_from(&member.addresses);
    listed.member = !matches!(member.role, Role::Client(_));
    listed.server = member.role == Role::Server;
    listed.tags = (tags != Some(true)).then(|| member.tags.iter().map(ToString::to_string).collect());
    listed.prefixes.clone_from(&member.prefixes);
    listed.endpoints.clone_from(&member.endpoints);
    listed
}

/// Whether the lease and the member are one machine, which changed its key so long ago that the roster does not have
/// the old key.
fn is_same_machine(lease: &Lease, member: &Member, theirs: &Roster) -> bool {
    lease.member
        && !matches!(member.role, Role::Client(_))
        && lease.created < theirs.issued()
        && theirs.holder(&lease.public_key).is_none()
        && !member.addresses.is_empty()
        && lease.addresses().eq(member.addresses.iter().copied())
        && fits(&member.name, lease.name.as_deref())
}

/// Whether the leases differ in fields that people see.
fn is_another(before: &Lease, after: &Lease) -> bool {
    let seen = |lease: &Lease| {
        let prefixes: BTreeSet<_> = lease.prefixes().collect();
        let addresses: Vec<_> = lease.addresses().collect();
        (lease.name.clone(), lease.tags.clone(), prefixes, addresses, lease.member, lease.is_server())
    };
    seen(before) != seen(after)
}
