//! The names of nodes. A name is a claim of the origin, for people to read: nothing is decided by it.
//!
//! A name travels in a TLV of an experimental type (RFC 8966 §9), behind the Router-Id of the node that it names. Other speakers ignore the
//! TLV. A node believes the neighbour that its selected route to the origin goes by, and passes that name on. So names travel like routes,
//! and every node on the way can change them. Names have no packets of their own: urgent updates contain them, and every eighth full update.
use crate::{
    params::{MAX_NAMES, NAME_HOLD},
    wire::types::RouterId,
};
use core::{error::Error, fmt, str::FromStr};
use rustguard_core::{node::PeerId, time::Instant};
use std::collections::BTreeMap;

/// A name: 1 to 63 ASCII letters, digits, `-`, `_` and `.`, the first one a letter or a digit. So a name cannot control a terminal, does
/// not look like another one in a different alphabet, and does not end a column of a table.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Name {
    len: u8,
    bytes: [u8; Name::MAX],
}

impl Name {
    /// The most bytes, as many as in a label of the DNS.
    pub const MAX: usize = 63;

    /// A name of these bytes.
    ///
    /// # Errors
    ///
    /// If they are not a name: too many, none, or others than those above.
    pub fn new(text: &[u8]) -> Result<Self, InvalidName> {
        let allowed = |byte: &u8| byte.is_ascii_alphanumeric() || b"-_.".contains(byte);
        let begins_well = text.first().is_some_and(u8::is_ascii_alphanumeric);
        if text.len() > Self::MAX || !begins_well || !text.iter().all(allowed) {
            return Err(InvalidName);
        }
        let mut bytes = [0; Self::MAX];
        bytes[..text.len()].copy_from_slice(text);
        Ok(Self { len: u8::try_from(text.len()).map_err(|_| InvalidName)?, bytes })
    }

    /// The name.
    pub fn as_str(&self) -> &str {
        core::str::from_utf8(self.as_bytes()).unwrap_or_default()
    }

    pub(crate) fn as_bytes(&self) -> &[u8] {
        &self.bytes[..usize::from(self.len)]
    }
}

impl FromStr for Name {
    type Err = InvalidName;

    fn from_str(text: &str) -> Result<Self, InvalidName> {
        Self::new(text.as_bytes())
    }
}

impl fmt::Display for Name {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

/// These bytes are not a [`Name`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct InvalidName;

impl fmt::Display for InvalidName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a node name is 1 to 63 ASCII letters, digits, '-', '_' and '.', and begins with a letter or digit")
    }
}

impl Error for InvalidName {}

impl fmt::Debug for Name {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.as_str().fmt(f)
    }
}

/// What other nodes are called.
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
    /// The neighbour that brought it in, and when it last did.
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

    /// The route to this origin goes by `via`, which says what the origin is called. A neighbour that invents origins fills only its own
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
    fn a_name_has_no_bytes_that_a_terminal_interprets() {
        let longest = "x".repeat(Name::MAX);
        for good in ["a", "office", "gw-1.example.com", "7_8", &longest] {
            assert_eq!(name(good).as_str(), good);
        }
        let too_long = longest + "x";
        for bad in [
            "",
            "-a",
            ".a",
            "a b",
            "a\n",
            "\x1b[31m",
            "a\x7f",
            "a\u{9b}",
            "Zo\u{eb}",
            "\u{430}",
            "a\u{202e}b",
            "a(b)",
            "a#b",
            &too_long,
        ] {
            assert_eq!(Name::new(bad.as_bytes()), Err(InvalidName), "{bad:?}");
        }
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
        // The route to one of them goes by another neighbour now.
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
        // One of them was looked at last time and is looked at again.
        names.sweep(later);
        assert_eq!(left(&names), MAX_NAMES - 1);
        names.sweep(later);
        assert_eq!(names.iter().map(|(router_id, _)| router_id).collect::<Vec<_>>(), [id(7)]);
        names.sweep(now + NAME_HOLD * 2);
        assert!(left(&names) == 0 && names.brought_in.is_empty());
    }
}
