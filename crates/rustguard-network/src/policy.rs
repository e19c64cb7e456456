//! The policy of a network: the machines that its names and tags stand for in a roster, and what one machine enforces.

use rustguard_crypto::x25519::PublicKey;
use rustguard_device::policy::Policy;
use rustguard_policy::{
    directory::{Directory, Machine},
    rules::Rules,
    sheet::Sheet,
};
use rustguard_roster::{
    member::{Member, Role},
    roster::Roster,
};
use std::sync::Arc;

/// A machine of a policy, made from its record in the roster.
pub fn machine(member: &Member) -> Machine {
    Machine {
        name: member.name.to_string(),
        tags: member.tags.iter().map(ToString::to_string).collect(),
        addresses: member.addresses.clone(),
        prefixes: member.prefixes.clone(),
        server: member.role == Role::Server,
    }
}

/// The machines of a roster.
pub fn directory(roster: &Roster) -> Directory {
    Directory::new(roster.members().map(|member| machine(member)))
}

/// The traffic that a roster allows to reach a machine.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Enforced {
    /// The network has no policy.
    Everything,
    /// The traffic that these rules allow.
    Rules(Arc<Rules>),
    /// There is a policy, but the sheet of this machine is missing or cannot be read: no traffic is allowed.
    Nothing,
}

impl Enforced {
    /// The same for a device.
    pub fn policy(&self) -> Option<Policy> {
        match self {
            Self::Everything => None,
            Self::Rules(rules) => Some(Policy::new(Arc::clone(rules))),
            Self::Nothing => Some(Policy::new(Arc::default())),
        }
    }
}

/// The policy that the machine with this key enforces. `None` if the roster does not contain it.
pub fn enforced(roster: &Roster, own_key: &PublicKey) -> Option<Enforced> {
    let own = roster.holder(own_key)?;
    if !own.has_sheet() {
        return Some(Enforced::Everything);
    }
    let sheet = roster.sheet(own).and_then(|sheet| Sheet::from_bytes(sheet));
    let rules = sheet.map(|sheet| sheet.rules(&directory(roster), own.name.as_str()));
    Some(rules.map_or(Enforced::Nothing, |rules| Enforced::Rules(Arc::new(rules))))
}

#[cfg(test)]
mod tests {
    use super::*;
    use rustguard_policy::rules::Flow;
    use rustguard_roster::{key::NetworkSecret, settings::Settings};

    #[test]
    fn a_machine_without_its_sheet_refuses_everything() {
        let key = PublicKey([1; 32]);
        let address = [10, 0, 0, 1].into();
        let own = Member::new(key, "desk".parse().unwrap()).with_addresses([address]);
        let other = Member::new(PublicKey([2; 32]), "laptop".parse().unwrap()).with_addresses([[10, 0, 0, 2].into()]);
        let roster = |own: Member, sheet: &[u8]| {
            let settings = Settings::new("rg0".parse().unwrap());
            let members = [own, other.clone()].map(Arc::new);
            Roster::issue_with_sheets(&NetworkSecret::from_bytes(&[7; 32]), 1, 0, settings, members, [sheet.into()])
                .unwrap()
        };
        let flow = Flow { from: [10, 0, 0, 2].into(), to: address, protocol: 1, port: None };
        let sheet = b"rustguard policy 1\n7 allow laptop -> desk icmp\n";
        assert_eq!(enforced(&roster(own.clone(), sheet), &key), Some(Enforced::Everything));
        let Some(Enforced::Rules(rules)) = enforced(&roster(own.clone().with_sheet(sheet), sheet), &key) else {
            panic!("rules")
        };
        assert_eq!(rules.allows(&flow), Some(7));
        // The given sheet does not belong to this roster, and is left out.
        let lost = roster(own.clone().with_sheet(sheet), b"rustguard policy 1\n");
        assert_eq!(enforced(&lost, &key), Some(Enforced::Nothing));
        let later = b"rustguard policy 2\n7 allow laptop -> desk icmp\n";
        assert_eq!(enforced(&roster(own.with_sheet(later), later), &key), Some(Enforced::Nothing));
        assert_eq!(enforced(&lost, &PublicKey([9; 32])), None);
    }
}
