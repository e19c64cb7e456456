//! The names of other nodes.
//!
//! A name travels in a TLV of an experimental type (RFC 8966 §9), after the Router-Id of the node that it names. Other
//! speakers ignore the TLV. A node believes the next hop of its selected route to the origin, and passes that name on.
//! So names travel like routes, and every node on the way can change them. Names have no packets of their own: urgent
//! updates contain them, and every eighth full update.
use crate::{
    name::Name,
    params::{MAX_NAMES, NAME_HOLD},
    wire::types::RouterId,
};
use rustguard_core::{node::PeerId, time::Instant};
use std::collections::BTreeMap;

/// The names of other nodes.
#[derive(Debug, Default)]
pub(crate) struct Names {
    known: BTreeMap<RouterId, KnownName>,
    brought_in: BTreeMap<PeerId, usize>,
    /// Where the next sweep begins.
    swept: Option<RouterId>,
}

#[derive(Debug)]
struct KnownName {
    name: Name,
    /// The neighbour that announced the name, and when it last did.
    via: PeerId,
    said: Instant,
}

impl Names {
    pub(crate) fn get(&self, router_id: RouterId) -> Option<Name> {
        self.known.get(&router_id).map(|known| known.name)
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = (RouterId, Name)> {
        self.known.iter().map(|(&router_id, known)| (router_id, known.name))
    }

    /// Learns the name of an origin from `via`, the next hop to it. A neighbour that invents origins fills only its own
    /// share of the table.
    pub(crate) fn learn(&mut self, router_id: RouterId, name: Name, via: PeerId, now: Instant) {
        if let Some(known) = self.known.get_mut(&router_id).filter(|known| known.via == via) {
            (known.name, known.said) = (name, now);
            return;
        }
        let count = self.brought_in.entry(via).or_default();
        if *count >= MAX_NAMES {
            return;
        }
        *count += 1;
        if let Some(before) = self.known.insert(router_id, KnownName { name, via, said: now }) {
            self.release(before.via);
        }
    }

    /// Forgets names that were not repeated for [`NAME_HOLD`]. Each call looks at a part of them.
    pub(crate) fn sweep(&mut self, now: Instant) {
        let from = self.swept.take().unwrap_or(RouterId::MIN);
        let part: Vec<(RouterId, bool)> =
            self.known.range(from..).take(MAX_NAMES).map(|(&id, known)| (id, known.said + NAME_HOLD <= now)).collect();
        self.swept = part.last().filter(|_| part.len() == MAX_NAMES).map(|&(id, _)| id);
        for (id, _) in part.into_iter().filter(|&(_, old)| old) {
            if let Some(known) = self.known.remove(&id) {
                self.release(known.via);
            }
        }
    }

    fn release(&mut self, via: PeerId) {
        if let Some(count) = self.brought_in.get_mut(&via) {
            *count -= 1;
            if *count == 0 {
                self.brought_in.remove(&via);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn name(text: &str) -> Name {
        Name::new(text.as_bytes()).expect("a name")
    }

    fn id(number: u16) -> RouterId {
        let [high, low] = number.to_be_bytes();
        RouterId::new([1, 2, 3, 4, 5, 6, high, low]).expect("a router-id")
    }

    #[test]
    fn invented_origins_fill_the_share_of_their_neighbour() {
        let (mut names, now) = (Names::default(), Instant::from_nanos(1 << 40));
        let (liar, other) = (PeerId(1), PeerId(2));
        for number in 0..2_000 {
            names.learn(id(number), name("x"), liar, now);
        }
        assert_eq!(names.iter().count(), MAX_NAMES);
        names.learn(id(3_000), name("y"), other, now);
        assert_eq!(names.get(id(3_000)), Some(name("y")));
        // The route to one origin leads through another neighbour now.
        names.learn(id(0), name("z"), other, now);
        names.learn(id(2_000), name("x"), liar, now);
        assert_eq!((names.get(id(0)), names.get(id(2_000))), (Some(name("z")), Some(name("x"))));
        names.learn(id(2_001), name("x"), liar, now);
        assert_eq!(names.get(id(2_001)), None, "full again");
    }

    #[test]
    fn names_that_are_not_repeated_are_forgotten_part_by_part() {
        let (mut names, now) = (Names::default(), Instant::from_nanos(1 << 40));
        let count = u16::try_from(MAX_NAMES).expect("a thousand") + 9;
        for number in 0..count {
            names.learn(id(number), name("x"), PeerId(u32::from(number % 2)), now);
        }
        names.learn(id(7), name("x"), PeerId(1), now + NAME_HOLD / 2);
        let (later, left) = (now + NAME_HOLD, |names: &Names| names.iter().count());
        names.sweep(now + NAME_HOLD / 2);
        assert_eq!(left(&names), usize::from(count));
        // The previous sweep has checked one name already, which is checked again.
        names.sweep(later);
        assert_eq!(left(&names), MAX_NAMES - 1);
        names.sweep(later);
        assert_eq!(names.iter().map(|(router_id, _)| router_id).collect::<Vec<_>>(), [id(7)]);
        names.sweep(now + NAME_HOLD * 2);
        assert!(left(&names) == 0 && names.brought_in.is_empty());
    }
}
