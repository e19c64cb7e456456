//! The peers that get the packets of a prefix: a weighted set over which flows are spread, and one peer in reserve.
use crate::peer::PeerId;
use alloc::vec::Vec;

/// Most members of a set; a lookup checks each of them.
pub const MAX_MEMBERS: usize = 8;
/// Greatest weight of a member; a lookup computes one hash per unit.
pub const MAX_WEIGHT: u8 = 8;

/// A member of [`NextHops`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NextHop {
    /// The peer.
    pub peer: PeerId,
    /// Its share of the flows, 1 to [`MAX_WEIGHT`].
    pub weight: u8,
}

/// The next hops of a prefix.
///
/// A flow stays on one member for as long as that member is usable. If a member is lost, only its own flows move
/// (rendezvous hashing: each member draws as many numbers for a flow as it has weight, the highest number wins).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NextHops {
    members: Vec<NextHop>,
    backup: Option<PeerId>,
}

impl NextHops {
    /// No next hop: packets are dropped and answered with ICMP, and do not follow a shorter prefix.
    pub const UNREACHABLE: Self = Self { members: Vec::new(), backup: None };

    /// A set, the best first. Weights are brought into their range. Members beyond [`MAX_MEMBERS`], repeated ones, and
    /// a backup that is also a member are left out.
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

    /// The peer that takes over when no member is usable.
    pub fn backup(&self) -> Option<PeerId> {
        self.backup
    }

    /// Every peer that may get a packet.
    pub fn peers(&self) -> impl Iterator<Item = PeerId> {
        self.members.iter().map(|member| member.peer).chain(self.backup)
    }

    /// Whether there is no next hop.
    pub fn is_unreachable(&self) -> bool {
        self.members.is_empty() && self.backup.is_none()
    }

    /// The next hop of a flow. `flow` is any hash of its addresses, protocol and ports. If no member is usable, it is
    /// the backup; if the backup is not usable either, it is the best member.
    pub fn pick(&self, flow: u64, usable: impl Fn(PeerId) -> bool) -> Option<PeerId> {
        let best = match self.members.as_slice() {
            // Nothing to spread: the common case costs no hash.
            [only] => Some(only.peer).filter(|&peer| usable(peer)),
            members => among(members, mix(flow), &usable),
        };
        best.or_else(|| self.backup.filter(|&peer| usable(peer))).or_else(|| self.peers().next())
    }
}

/// The usable member with the highest number for a flow. Mostly the first that is tried is usable, and no other is
/// tried.
fn among(members: &[NextHop], flow: u64, usable: impl Fn(PeerId) -> bool) -> Option<PeerId> {
    let mut passed_over = 0_u8;
    loop {
        let left = members.iter().enumerate().filter(|&(place, _)| passed_over >> place & 1 == 0);
        let (place, member) = left.max_by_key(|(_, member)| member.highest(flow))?;
        if usable(member.peer) {
            return Some(member.peer);
        }
        passed_over |= 1 << place;
    }
}

impl NextHop {
    /// The highest number that this member draws for a flow. The flow's hash is already mixed. The two halves of a
    /// product together depend on every bit of the factors: one multiplication for each number is enough.
    fn highest(&self, flow: u64) -> u64 {
        let first = u64::from(self.peer.0).wrapping_mul(0xd1b5_4a32_d192_ed03);
        let draw = |nth: u64| {
            let product = u128::from(flow ^ first.wrapping_add(nth.wrapping_mul(GOLDEN))) * u128::from(MULTIPLIER);
            (product >> 64) as u64 ^ product as u64
        };
        (0..u64::from(self.weight)).map(draw).max().unwrap_or(0)
    }
}

/// 2^64 divided by the golden ratio: its multiples are far from each other.
const GOLDEN: u64 = 0x9e37_79b9_7f4a_7c15;
/// An odd number without a pattern in its bits.
const MULTIPLIER: u64 = 0xbf58_476d_1ce4_e5b9;

/// The finaliser of SplitMix64: all bits depend on all bits.
fn mix(mut z: u64) -> u64 {
    z = z.wrapping_add(GOLDEN);
    z = (z ^ (z >> 30)).wrapping_mul(MULTIPLIER);
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

    /// For peers with any numbers, similar or not: a share is off by less than five standard deviations.
    #[test]
    fn shares_are_fair_for_any_peers() {
        for peers in [[0, 1, 2], [1, 2, 3], [7, 1_000, 65_536], [0x8000_0000, 0xffff_ffff, 5]] {
            for weights in [[1, 1, 1], [8, 8, 8], [8, 7, 1], [3, 8, 5]] {
                let set: Vec<(u32, u8)> = peers.into_iter().zip(weights).collect();
                let (hops, sum) = (self::set(&set, None), weights.iter().map(|&weight| f64::from(weight)).sum::<f64>());
                let mut counts = [0_u32; 3];
                for flow in 0..20_000_u64 {
                    let peer = hops.pick(flow << 3, |_| true).expect("a usable member");
                    counts[peers.iter().position(|&known| PeerId(known) == peer).expect("a member")] += 1;
                }
                for (place, weight) in weights.into_iter().enumerate() {
                    let share = f64::from(weight) / sum;
                    let (expected, deviation) = (20_000.0 * share, (20_000.0 * share * (1.0 - share)).sqrt());
                    let off = (f64::from(counts[place]) - expected).abs() / deviation;
                    assert!(off < 5.0, "{peers:?} {weights:?}: {counts:?}, {off:.1} deviations");
                }
            }
        }
    }

    /// If a set is rebuilt without a member, or with another weight, the flows of the other members do not move.
    #[test]
    fn a_new_set_moves_no_more_than_it_must() {
        let (before, without) = (set(&[(1, 8), (2, 8), (3, 4)], None), set(&[(2, 8), (1, 8)], Some(9)));
        let lighter = set(&[(1, 7), (2, 8), (3, 4)], None);
        for flow in 0..4_000 {
            let [was, lost, less] =
                [&before, &without, &lighter].map(|hops| hops.pick(flow, |_| true).expect("a member"));
            assert!(was == PeerId(3) || was == lost, "flow {flow} moved from {was:?} to {lost:?}");
            assert!(was == PeerId(1) || was == less, "flow {flow} moved from {was:?} to {less:?}");
        }
    }

    #[test]
    fn who_is_passed_over_is_asked_once() {
        let hops = set(&[(1, 8), (2, 8), (3, 8), (4, 8)], Some(5));
        for flow in 0..100 {
            let asked = core::cell::RefCell::new(Vec::new());
            let usable = |peer| {
                asked.borrow_mut().push(peer);
                peer == PeerId(4) || peer == PeerId(5)
            };
            assert_eq!(hops.pick(flow, usable), Some(PeerId(4)));
            let mut asked = asked.into_inner();
            let all = asked.len();
            asked.sort_unstable();
            asked.dedup();
            assert_eq!(asked.len(), all, "twice");
        }
        let asked = core::cell::Cell::new(0);
        hops.pick(1, |_| asked.replace(asked.get() + 1) < 9);
        assert_eq!(asked.get(), 1, "only the winner");
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
