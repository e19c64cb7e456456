//! The names of members. Each member keeps its name as long as its lease lasts, even if other members join and leave.

use rustguard_crypto::x25519::PublicKey;
use rustguard_enroll::lease::Lease;
use rustguard_network::roster::{label::Label, roster::Roster};
use std::collections::{BTreeMap, HashMap, HashSet};

/// The name of a machine that gave none.
const UNNAMED: &str = "machine";

/// The names and their holders.
#[derive(Default)]
pub(crate) struct Names {
    given: HashMap<[u8; 32], Given>,
    taken: HashSet<Label>,
    /// The start of the search for a free number, for each name that more than one machine wants. Without it, 10,000
    /// machines with one name would need up to 10,000 attempts each.
    next: HashMap<Label, u32>,
}

struct Given {
    wanted: Label,
    name: Label,
}

impl Names {
    /// The names in a roster.
    pub(crate) fn of(roster: &Roster) -> Self {
        let mut names = Self::default();
        for member in roster.members() {
            // The name without its number, if it has one, is compared with the name in the lease: see `name`.
            let given = Given { wanted: member.name.clone(), name: member.name.clone() };
            names.taken.insert(member.name.clone());
            names.given.insert(member.public_key.0, given);
        }
        names
    }

    /// These machines have these names. Others get those that they want.
    pub(crate) fn given(others: impl IntoIterator<Item = (PublicKey, Label)>) -> Self {
        let mut names = Self::default();
        for (key, name) in others {
            if names.taken.insert(name.clone()) {
                names.given.insert(key.0, Given { wanted: name.clone(), name });
            }
        }
        names
    }

    /// The machines whose names are not those that they want.
    pub(crate) fn others(&self) -> BTreeMap<PublicKey, Label> {
        let others = self.given.iter().filter(|(_, given)| given.name != given.wanted);
        others.map(|(key, given)| (PublicKey(*key), given.name.clone())).collect()
    }

    /// The name of the machine with this key, which wants to be called `wanted`. Call this in the order in which the
    /// machines joined.
    pub(crate) fn name(&mut self, key: &PublicKey, wanted: Option<&str>) -> Label {
        let wanted = cleaned(wanted);
        if let Some(given) = self.given.get_mut(&key.0)
            && (given.wanted == wanted || is_numbered(&given.name, &wanted))
        {
            given.wanted = wanted;
            return given.name.clone();
        }
        self.forget(key);
        let name = self.free(&wanted);
        self.taken.insert(name.clone());
        self.given.insert(key.0, Given { wanted, name: name.clone() });
        name
    }

    /// Gives all machines their names, and forgets those of others.
    pub(crate) fn settle(&mut self, leases: &BTreeMap<PublicKey, Lease>) {
        for lease in leases.values() {
            if let Some(old) = &lease.old_key {
                self.renamed(&old.public_key, &lease.public_key);
            }
        }
        self.keep(|key| leases.contains_key(key));
        for lease in in_order(leases.values()) {
            self.name(&lease.public_key, lease.name.as_deref());
        }
    }

    /// A machine has another key, and keeps its name.
    pub(crate) fn renamed(&mut self, before: &PublicKey, key: &PublicKey) {
        if let Some(given) = self.given.remove(&before.0) {
            self.given.insert(key.0, given);
        }
    }

    /// The key of the machine with this name.
    pub(crate) fn key(&self, name: &str) -> Option<PublicKey> {
        self.given.iter().find(|(_, given)| given.name.as_str() == name).map(|(key, _)| PublicKey(*key))
    }

    /// Removes the name. The machine gets another one when the next roster is made.
    pub(crate) fn forget(&mut self, key: &PublicKey) {
        if let Some(given) = self.given.remove(&key.0) {
            self.taken.remove(&given.name);
        }
    }

    /// Removes the names of machines that no longer exist.
    pub(crate) fn keep(&mut self, is_there: impl Fn(&PublicKey) -> bool) {
        let gone: Vec<_> = self.given.keys().map(|key| PublicKey(*key)).filter(|key| !is_there(key)).collect();
        gone.iter().for_each(|key| self.forget(key));
        self.next.retain(|wanted, _| self.taken.contains(wanted));
    }

    fn free(&mut self, wanted: &Label) -> Label {
        if !self.taken.contains(wanted) {
            return wanted.clone();
        }
        let first = self.next.get(wanted).copied().unwrap_or(2);
        let free = |number: &u32| !self.taken.contains(&wanted.numbered(*number));
        let number = (first..).find(free).expect("there are more numbers than machines");
        self.next.insert(wanted.clone(), number.saturating_add(1));
        wanted.numbered(number)
    }
}

/// The leases in the order in which their machines joined.
pub(crate) fn in_order<'l>(leases: impl Iterator<Item = &'l Lease>) -> Vec<&'l Lease> {
    let mut leases: Vec<_> = leases.collect();
    leases.sort_by_key(|lease| (lease.created, lease.public_key.0));
    leases
}

/// Whether a machine that calls itself `wanted` may have this name in the network.
pub(crate) fn fits(name: &Label, wanted: Option<&str>) -> bool {
    let wanted = cleaned(wanted);
    *name == wanted || is_numbered(name, &wanted)
}

/// The name that a machine wants, as a valid label. No machine gets a name that programs trust.
fn cleaned(wanted: Option<&str>) -> Label {
    let wanted = wanted.and_then(Label::clean).filter(|wanted| !wanted.is_of_programs());
    wanted.or_else(|| Label::clean(UNNAMED)).expect("a label")
}

/// Whether `name` is `wanted` followed by a number.
fn is_numbered(name: &Label, wanted: &Label) -> bool {
    let number = name.as_str().rsplit_once('-').and_then(|(_, number)| number.parse().ok());
    number.is_some_and(|number| *name == wanted.numbered(number))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn key(n: u8) -> PublicKey {
        PublicKey([n; 32])
    }

    #[test]
    fn a_name_stays_when_others_leave() {
        let mut names = Names::default();
        let mut name = |n: u8, wanted: &str| names.name(&key(n), Some(wanted)).to_string();
        assert_eq!(
            [name(1, "Laptop"), name(2, "laptop"), name(3, "laptop")],
            ["laptop", "laptop-2", "laptop-3"].map(str::to_owned)
        );
        names.keep(|other| *other != key(1));
        let mut name = |n: u8, wanted: &str| names.name(&key(n), Some(wanted)).to_string();
        assert_eq!([name(2, "laptop"), name(3, "laptop")], ["laptop-2", "laptop-3"].map(str::to_owned));
        assert_eq!(name(4, "laptop"), "laptop", "the name is free");
        assert_eq!(name(5, "laptop-2"), "laptop-2-2", "and this one is not");
    }

    #[test]
    fn another_name_is_given_on_request() {
        let mut names = Names::default();
        names.name(&key(1), Some("laptop"));
        assert_eq!(names.name(&key(2), Some("laptop")).as_str(), "laptop-2");
        assert_eq!(names.name(&key(2), Some("desk")).as_str(), "desk");
        assert_eq!((names.key("desk"), names.key("laptop-2")), (Some(key(2)), None));
        // The lease says `laptop` before and after. Only the request shows that the number is to be dropped.
        assert_eq!(names.name(&key(3), Some("laptop")).as_str(), "laptop-3", "numbers are not given twice");
        names.keep(|other| *other != key(1));
        assert_eq!(names.name(&key(3), Some("laptop")).as_str(), "laptop-3");
        names.forget(&key(3));
        assert_eq!(names.name(&key(3), Some("laptop")).as_str(), "laptop");
    }

    #[test]
    fn names_that_programs_trust_are_nobodys() {
        let mut names = Names::default();
        let all = [(1, "WPAD"), (2, "isatap"), (3, "localhost")].map(|(n, wanted)| names.name(&key(n), Some(wanted)));
        assert_eq!(all.map(|name| name.to_string()), ["machine", "machine-2", "machine-3"]);
        assert_eq!(names.name(&key(2), Some("isatap")).as_str(), "machine-2", "it stays");
        assert_eq!(names.name(&key(4), Some("wpad-2")).as_str(), "wpad-2");
    }

    #[test]
    fn machines_without_a_name_have_one() {
        let mut names = Names::default();
        assert_eq!(names.name(&key(1), None).as_str(), "machine");
        assert_eq!(names.name(&key(2), Some("..")).as_str(), "machine-2");
    }
}
