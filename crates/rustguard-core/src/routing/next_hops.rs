//! Who gets the packets of a prefix: a weighted set that flows are spread over, and one in reserve.
use crate::node::PeerId;
use alloc::vec::Vec;

/// Most members of a set; a lookup looks at each of them.
pub const MAX_MEMBERS: usize = 8;
/// Greatest weight of a member; a lookup takes one hash per unit.
pub const MAX_WEIGHT: u8 = 8;

/// A member of [`NextHops`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NextHop {
    /// Who.
    pub peer: PeerId,
    /// Its share of the flows, 1 to [`MAX_WEIGHT`].
    pub weight: u8,
}

/// The next hops of a prefix.
///
/// A flow stays on one member for as long as that one is usable, and a member that is lost moves only its own flows
/// (rendezvous hashing: each member draws as many numbers for a flow as it has weight, the highest number wins).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NextHops {
    members: Vec<NextHop>,
    backup: Option<PeerId>,
}

impl NextHops {
    /// Nobody: packets are dropped, with an answer, instead of following a shorter prefix.
    pub const UNREACHABLE: Self = Self { members: Vec::new(), backup: None };

    /// A set, the best first. Weights are brought into their range; members beyond [`MAX_MEMBERS`] and repeated ones are
    /// left out, and so is a backup that is a member.
    pub fn new(members: impl IntoIterator<Item = NextHop>, backup: Option<PeerId>) -> Self {
        let mut kept: Vec<NextHop> = Vec::new();
        for NextHop { peer, weight } in members {
            if kept.len() < MAX_MEMBERS && !kept.iter().any(|member| member.peer == peer) {
                kept.push(NextHop { peer, weight: weight.clamp(1, MAX_WEIGHT) });
            }
        }
        let backup = backup.filter(|&backup| !kept.iter().any(|member| member.peer == backup));
        Self { members: kept, backup }
    }
    /// One next hop and nothing in reserve.
    pub fn single(peer: PeerId) -> Self {
        Self::new([NextHop { peer, weight: 1 }], None)
    }

    /// The members, the best first.
    pub fn members(&self) -> &[NextHop] {
        &self.members
    }
    /// Who takes over when no member is usable.
    pub fn backup(&self) -> Option<PeerId> {
        self.backup
    }
    /// Everyone who may get a packet.
    pub fn peers(&self) -> impl Iterator<Item = PeerId> {
        self.members.iter().map(|member| member.peer).chain(self.backup)
    }
    /// Whether there is nobody.
    pub fn is_unreachable(&self) -> bool {
        self.members.is_empty() && self.backup.is_none()
    }

    /// The next hop of a flow (any hash of its addresses, protocol and ports) among those that are usable; the backup when
    /// no member is; the best member when nobody is, as waiting for it is all that is left.
    pub fn pick(&self, flow: u64, usable: impl Fn(PeerId) -> bool) -> Option<PeerId> {
        let best = match self.members.as_slice() {
            // Nothing to spread: the common case costs no hash.
            [only] => Some(only.peer).filter(|&peer| usable(peer)),
            members => members
                .iter()
                .filter(|member| usable(member.peer))
                .max_by_key(|member| (0..member.weight).map(|draw| score(flow, member.peer, draw)).max())
                .map(|member| member.peer),
        };
        best.or_else(|| self.backup.filter(|&peer| usable(peer))).or_else(|| self.peers().next())
    }
}

/// A number that depends on every bit of its three inputs (the finaliser of SplitMix64, twice).
fn score(flow: u64, peer: PeerId, draw: u8) -> u64 {
    mix(mix(flow) ^ (u64::from(peer.0) << 8 | u64::from(draw)))
}

fn mix(mut z: u64) -> u64 {
    z = z.wrapping_add(0x9e37_79b9_7f4a_7c15);
    z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ (z >> 31)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn set(weights: &[(u32, u8)], backup: Option<u32>) -> NextHops {
        NextHops::new(weights.iter().map(|&(peer, weight)| NextHop { peer: PeerId(peer), weight }), backup.map(PeerId))
    }

    #[test]
    fn flows_are_shared_by_weight() {
        let hops = set(&[(1, 4), (2, 2), (3, 2)], None);
        let mut counts = [0_u32; 4];
        for flow in 0..8_000 {
            counts[hops.pick(flow, |_| true).expect("a usable member").0 as usize] += 1;
        }
        for (peer, expected) in [(1, 4_000_u32), (2, 2_000), (3, 2_000)] {
            assert!(counts[peer].abs_diff(expected) < 250, "peer {peer}: {}", counts[peer]);
        }
    }

    #[test]
    fn a_lost_member_moves_only_its_own_flows() {
        let hops = set(&[(1, 1), (2, 3), (3, 1)], Some(4));
        for flow in 0..2_000 {
            let before = hops.pick(flow, |_| true).expect("a usable member");
            let after = hops.pick(flow, |peer| peer != PeerId(2)).expect("a usable member");
            assert!(after != PeerId(2) && after != PeerId(4));
            assert!(before == PeerId(2) || before == after, "flow {flow} moved from {before:?} to {after:?}");
        }
    }

    #[test]
    fn the_backup_is_last_and_the_best_is_tried_when_nobody_is_usable() {
        let hops = set(&[(1, 1), (2, 1)], Some(3));
        assert_eq!(hops.pick(9, |peer| peer == PeerId(3)), Some(PeerId(3)));
        assert_eq!(hops.pick(9, |_| false), Some(PeerId(1)));
        assert_eq!(set(&[(5, 1)], Some(6)).pick(9, |peer| peer != PeerId(5)), Some(PeerId(6)));
        assert_eq!(set(&[], Some(6)).pick(9, |_| true), Some(PeerId(6)));
        assert_eq!(NextHops::UNREACHABLE.pick(9, |_| true), None);
        assert!(
            NextHops::UNREACHABLE.is_unreachable() && !hops.is_unreachable() && !set(&[], Some(6)).is_unreachable()
        );
    }

    #[test]
    fn sets_are_brought_into_their_bounds() {
        let hops = set(&[(1, 0), (1, 5), (2, 200)], Some(2));
        assert_eq!(
            hops.members(),
            [NextHop { peer: PeerId(1), weight: 1 }, NextHop { peer: PeerId(2), weight: MAX_WEIGHT }]
        );
        assert_eq!(hops.backup(), None);
        let many: Vec<(u32, u8)> = (0..20).map(|peer| (peer, 1)).collect();
        let hops = set(&many, Some(19));
        assert_eq!((hops.members().len(), hops.backup()), (MAX_MEMBERS, Some(PeerId(19))));
        assert_eq!(hops.peers().count(), MAX_MEMBERS + 1);
    }
}
