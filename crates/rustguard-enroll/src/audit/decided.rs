//! What another server has decided, as lines of the audit log.

use super::{AuditEvent, AuditRecord};
use crate::{
    lease::{InviteRecord, Lease, LeaseState, Origin, UnixSeconds, clean_name},
    store::{Change, State},
};
use core::time::Duration;
use rustguard_core::time::{Instant, Now};

/// The lines about these changes, of a state before them. Changes that nobody has commanded, such as a renewed lease,
/// have none. The reason of a removal is not known here.
pub(crate) fn decided(state: &State, changes: &[Change], at: UnixSeconds, server: &str) -> Vec<AuditRecord> {
    let now = Now { instant: Instant::from_nanos(0), unix: Duration::from_secs(at) };
    let mut records = Vec::new();
    for change in changes {
        match change {
            Change::Lease(lease) => of_lease(state, lease, now, &mut records),
            Change::LeaseGone(key) if !is_key_before(changes, key) => {
                let lease = state.leases.get(key);
                records.extend(lease.map(|lease| AuditRecord::of_lease(AuditEvent::Removed, lease, now)));
            }
            Change::Invite(invite) => records.extend(of_invite(state.invites.get(&invite.id), invite, now)),
            _ => {}
        }
    }
    for record in &mut records {
        record.server = Some(clean_name(server).unwrap_or_default());
    }
    records
}

/// Whether a lease with another key takes the place of the one with this key.
fn is_key_before(changes: &[Change], key: &rustguard_crypto::x25519::PublicKey) -> bool {
    let of_lease = |change: &Change| match change {
        Change::Lease(lease) => lease.old_key.map(|old| old.public_key),
        _ => None,
    };
    changes.iter().filter_map(of_lease).any(|before| before == *key)
}

fn of_lease(state: &State, lease: &Lease, now: Now, records: &mut Vec<AuditRecord>) {
    let record = |event| AuditRecord::of_lease(event, lease, now);
    let Some(before) = state.leases.get(&lease.public_key) else {
        let is_rekeyed = lease.old_key.is_some_and(|old| state.leases.contains_key(&old.public_key));
        records.push(record(match lease.origin {
            _ if is_rekeyed => AuditEvent::KeyRotated,
            Origin::Admin => AuditEvent::PeerAdded,
            Origin::Invite(_) | Origin::Window => AuditEvent::Admitted,
        }));
        return;
    };
    if before.state != LeaseState::Active && lease.state == LeaseState::Active {
        records.push(record(AuditEvent::Confirmed));
    }
    if before.name != lease.name {
        records.push(record(AuditEvent::Renamed));
    }
    for (event, prefixes) in [
        (AuditEvent::PrefixesAllowed, without(&lease.admitted, &before.admitted)),
        (AuditEvent::PrefixesDenied, without(&before.admitted, &lease.admitted)),
    ] {
        if !prefixes.is_empty() {
            records.push(record(event).prefixes(&prefixes));
        }
    }
    if before.announced != lease.announced {
        records.push(record(AuditEvent::Announced).prefixes(&lease.announced));
    }
    for (event, tags) in [
        (AuditEvent::Tagged, without(&lease.tags, &before.tags)),
        (AuditEvent::Untagged, without(&before.tags, &lease.tags)),
    ] {
        if !tags.is_empty() {
            records.push(record(event).tags(&tags));
        }
    }
}

fn without<T: Clone + PartialEq>(these: &[T], others: &[T]) -> Vec<T> {
    these.iter().filter(|it| !others.contains(it)).cloned().collect()
}

fn of_invite(before: Option<&InviteRecord>, invite: &InviteRecord, now: Now) -> Option<AuditRecord> {
    let event = match before {
        None => AuditEvent::InviteMade,
        Some(before) if before.revoked.is_none() && invite.revoked.is_some() => AuditEvent::InviteRevoked,
        Some(_) => return None,
    };
    Some(AuditRecord::new(event, now).token(Some(invite.id)))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::lease::{OldKey, PresharedKey, Terms, TokenId};
    use rustguard_crypto::x25519::PublicKey;

    fn lease(key: u8) -> Lease {
        Lease::new(PublicKey([key; 32]), PresharedKey::from_bytes(&[0; 32]))
    }

    fn told(state: &State, changes: &[Change]) -> Vec<AuditEvent> {
        let records = decided(state, changes, 7, "vpn2");
        assert!(records.iter().all(|record| record.server.as_deref() == Some("vpn2") && record.time == 7));
        records.iter().map(|record| record.event).collect()
    }

    #[test]
    fn what_another_server_decides_is_told_once() {
        let mut state = State::default();
        let invite = InviteRecord {
            id: TokenId([1; 8]),
            public_key: PublicKey([1; 32]),
            serial: 0,
            created: 0,
            expires: None,
            uses: 1,
            uses_left: 1,
            last_used: None,
            revoked: None,
            terms: Terms::default(),
        };
        let joined = Lease { origin: Origin::Invite(invite.id), state: LeaseState::Pending { until: 9 }, ..lease(2) };
        let confirmed = Lease { state: LeaseState::Active, expires: Some(99), ..joined.clone() };
        let renamed = Lease { name: Some("desk".into()), tags: vec!["dev".into()], ..confirmed.clone() };
        let net = "10.0.0.0/24".parse().unwrap();
        let allowed = Lease { tags: Vec::new(), admitted: vec![net], announced: vec![net], ..renamed.clone() };
        let old_key = Some(OldKey { public_key: allowed.public_key, until: 9 });
        let rekeyed = Lease { public_key: PublicKey([3; 32]), old_key, admitted: Vec::new(), ..allowed.clone() };
        let revoked = InviteRecord { revoked: Some(7), ..invite.clone() };
        use AuditEvent::*;
        for (changes, events) in [
            (vec![Change::Time(3), Change::Invite(invite.clone())], &[InviteMade][..]),
            (vec![Change::Lease(joined), Change::Invite(InviteRecord { uses_left: 0, ..invite })], &[Admitted]),
            (vec![Change::Lease(confirmed)], &[Confirmed]),
            (vec![Change::Lease(renamed)], &[Renamed, Tagged]),
            (vec![Change::Lease(allowed.clone())], &[PrefixesAllowed, Announced, Untagged]),
            (vec![Change::LeaseGone(allowed.public_key), Change::Lease(rekeyed.clone())], &[KeyRotated]),
            (vec![Change::Lease(rekeyed.clone()), Change::Lease(lease(4))], &[PeerAdded]),
            (vec![Change::LeaseGone(rekeyed.public_key), Change::Invite(revoked)], &[Removed, InviteRevoked]),
            (vec![Change::LeaseGone(rekeyed.public_key)], &[]),
        ] {
            assert_eq!(told(&state, &changes), events, "{changes:?}");
            changes.into_iter().for_each(|change| state.apply(change));
        }
    }
}
