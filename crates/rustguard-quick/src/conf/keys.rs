//! The keys of a file. A table has one entry for each key: how it is read and written, how `reload` describes and
//! applies a change, and which changes need a restart. A new key needs an entry, its field in [`Config`] and the
//! function that reads its value.

mod interface;
mod peer;
mod reader;

use super::{Config, Diagnostic, Peer, piece::Piece};
use ipnet::IpNet;
pub(super) use reader::{Line, Places, Reader, read_value};
use std::collections::{BTreeSet, HashMap, HashSet};
use zeroize::Zeroizing;

/// A section of a file, as the type that holds its values.
pub(crate) trait Section: Sized + 'static {
    /// The update of a running device with values of the section.
    type Update;

    /// Its keys, in the order in which messages list them.
    const LISTED: Order<Self>;

    /// In the order of a file that we write: for `[Interface]` as in wg-quick's `save`, for `[Peer]` as in `wg
    /// showconf`.
    const PRINTED: Order<Self>;

    /// In the order in which `reload` lists changes.
    const TOLD: Order<Self>;

    /// In the order in which `reload` lists changes that need a restart.
    const RESTARTED: Order<Self>;

    /// A section without any line.
    fn empty() -> Self;
}

/// The parts of a table, one after the other.
pub(crate) type Order<S> = &'static [&'static [Key<S>]];

/// The definition of a key.
pub(crate) struct Key<S: Section> {
    pub(crate) form: Form,
    read: fn(&mut S, &mut Reader<'_, '_>),
    print: fn(&S) -> Values,
    /// Whether two sections mean the same, although they are written differently.
    pub(crate) same: fn(&S, &S) -> bool,
    pub(crate) told: Told<S>,
    /// A note for the user about a change to this section.
    pub(crate) note: fn(&S) -> Option<&'static str>,
    /// Adds a change to the update of a running device, from the section before and after.
    pub(crate) settle: fn(&mut S::Update, &S, &S),
    pub(crate) restart: &'static [Restart],
}

/// The form of a key in a file.
#[derive(Debug)]
pub(crate) struct Form {
    /// The spelling of wg(8) and wg-quick(8).
    pub(crate) name: &'static str,
    pub(super) kind: Kind,
    pub(super) holds: Holds,
    /// The items of a list contain blanks, so only commas separate them.
    pub(super) phrases: bool,
    /// `wg setconf` knows the key.
    pub(super) of_wg: bool,
    /// The key only has a meaning with a routing protocol.
    pub(super) needs_babel: bool,
}

/// How a file holds the values of a key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    /// One value. If a file has several lines, the last one counts.
    One,
    /// A list whose order has a meaning. If a file has several lines, the last one counts.
    OneList,
    /// A list, in one line or spread over several, whose order has a meaning.
    List,
    /// A list whose order has none.
    Set,
    /// Commands: a line for each, in their order.
    Lines,
}

/// The kinds of values that need care.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Holds {
    Plain,
    Secret,
    PublicKeys,
    /// Names of other peers of the file.
    PeerNames,
}

/// The values of a key, as they are written in a file. Without values, the key is not in the file.
pub(crate) type Values = Vec<Zeroizing<String>>;

/// How `reload` describes a change.
pub(crate) enum Told<S: Section> {
    /// By the values in the file, or this text without values.
    Values(&'static str),
    /// In words: a line for each of these settings.
    Words(&'static [Part<S>]),
    /// By the added and removed prefixes.
    Nets(fn(&S) -> &[IpNet]),
    /// Only that something changes, because the values are or may contain secrets.
    Hidden,
    /// As [`Hidden`](Self::Hidden), and whether it is added or removed.
    Secret,
}

/// A part of a key that is described separately: its name, and its value in words.
pub(crate) type Part<S> = (&'static str, fn(&S) -> String);

/// When a change of a configuration needs a restart, and why. The condition gets whether the key itself changes, and
/// both configurations.
pub(crate) type Restart = (fn(bool, &Config, &Config) -> bool, &'static str);

impl<S: Section> Key<S> {
    /// A key that is read and printed in this way, without other effects.
    const fn new(
        name: &'static str,
        kind: Kind,
        read: fn(&mut S, &mut Reader<'_, '_>),
        print: fn(&S) -> Values,
    ) -> Self {
        let form = Form { name, kind, holds: Holds::Plain, phrases: false, of_wg: false, needs_babel: false };
        let (told, restart): (_, &[_]) = (Told::Values(""), &[]);
        Self { form, read, print, told, same: |_, _| false, note: |_| None, settle: |_, _, _| {}, restart }
    }

    const fn of_wg(mut self) -> Self {
        self.form.of_wg = true;
        self
    }

    const fn holds(mut self, holds: Holds) -> Self {
        self.form.holds = holds;
        self
    }

    const fn phrases(mut self) -> Self {
        self.form.phrases = true;
        self
    }

    const fn needs_babel(mut self) -> Self {
        self.form.needs_babel = true;
        self
    }

    const fn told(mut self, told: Told<S>) -> Self {
        self.told = told;
        self
    }

    const fn same(mut self, same: fn(&S, &S) -> bool) -> Self {
        self.same = same;
        self
    }

    const fn note(mut self, note: fn(&S) -> Option<&'static str>) -> Self {
        self.note = note;
        self
    }

    const fn settle(mut self, settle: fn(&mut S::Update, &S, &S)) -> Self {
        self.settle = settle;
        self
    }

    const fn restart(mut self, restart: &'static [Restart]) -> Self {
        self.restart = restart;
        self
    }
}

/// The keys in an order.
pub(crate) fn all<S: Section>(order: Order<S>) -> impl Iterator<Item = &'static Key<S>> {
    order.iter().copied().flatten()
}

/// The names of a section's keys.
pub(super) fn names<S: Section>() -> Vec<&'static str> {
    all(S::LISTED).map(|key| key.form.name).collect()
}

/// The key with this name, in any case.
pub(super) fn named<S: Section>(name: &str) -> Option<&'static Key<S>> {
    all(S::LISTED).find(|key| key.form.name.eq_ignore_ascii_case(name))
}

impl<S: Section> Key<S> {
    /// Reads a line with this key.
    pub(super) fn read<'a>(
        &'static self,
        section: &mut S,
        line: Line<'a>,
        places: &mut Places<'a>,
        diagnostics: &mut Vec<Diagnostic>,
    ) {
        places.lines.push((&self.form, line.value));
        (self.read)(section, &mut Reader { form: &self.form, line, places, diagnostics });
    }

    /// An item of a list as [`values`](Self::values) has it, unless it cannot be read.
    pub(super) fn canonical(&'static self, item: &str) -> Option<String> {
        let (mut section, mut diagnostics, value) = (S::empty(), Vec::new(), Piece::of(item));
        let line = Line { key: value, value, raw: value };
        self.read(&mut section, line, &mut Places::default(), &mut diagnostics);
        self.values(&section).pop().map(|value| value.to_string())
    }

    /// The values of the key, as they are written in a file.
    pub(crate) fn values(&self, section: &S) -> Values {
        (self.print)(section)
    }

    /// The values in words, or the word for none.
    pub(crate) fn words(&self, section: &S, none: &str) -> String {
        let values = self.values(section);
        if values.is_empty() { none.to_owned() } else { joined(values.iter().map(|value| value.as_str())) }
    }

    /// Whether it is a change for a running tunnel.
    pub(crate) fn changes(&self, from: &S, to: &S) -> bool {
        !(self.same)(from, to)
            && match &self.told {
                Told::Values(none) => self.words(from, none) != self.words(to, none),
                Told::Words(parts) => parts.iter().any(|(_, words)| words(from) != words(to)),
                Told::Nets(of) => nets(of(from)) != nets(of(to)),
                Told::Hidden | Told::Secret => !self.agrees(from, to),
            }
    }

    /// Whether both sections have the same values. The order does not count where it has no meaning.
    pub(super) fn agrees(&self, one: &S, other: &S) -> bool {
        let (these, those) = (self.values(one), self.values(other));
        if self.form.kind == Kind::Set { set(&these) == set(&those) } else { these == those }
    }
}

/// Whether two configurations mean the same. The order of peers, and of lists that are sets, does not matter.
pub(super) fn same(one: &Config, other: &Config) -> bool {
    fn agree<S: Section>(one: &S, other: &S) -> bool {
        all(S::PRINTED).all(|key| key.agrees(one, other))
    }
    let others: HashMap<_, _> = other.peers.iter().map(|peer| (peer.public_key, peer)).collect();
    let same_peer =
        |peer: &Peer| others.get(&peer.public_key).is_some_and(|other| other.name == peer.name && agree(peer, *other));
    agree(&one.interface, &other.interface) && one.peers.len() == other.peers.len() && one.peers.iter().all(same_peer)
}

/// Values without their order.
pub(super) fn set(values: &[Zeroizing<String>]) -> HashSet<&str> {
    values.iter().map(|value| value.as_str()).collect()
}

/// Prefixes without their order.
fn nets(nets: &[IpNet]) -> BTreeSet<IpNet> {
    nets.iter().copied().collect()
}

fn list(values: impl IntoIterator<Item = impl ToString>) -> Values {
    values.into_iter().map(|value| Zeroizing::new(value.to_string())).collect()
}

fn switch(on: Option<bool>) -> Values {
    list(on.map(|on| if on { "on" } else { "off" }))
}

fn joined(values: impl IntoIterator<Item = impl ToString>) -> String {
    values.into_iter().map(|value| value.to_string()).collect::<Vec<_>>().join(", ")
}
