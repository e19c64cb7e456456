//! Names of members, networks and tags: one label of a domain name.

use std::{fmt, str::FromStr};

/// The longest label, in bytes (RFC 1035, section 2.3.4).
pub const MAX_LABEL: usize = 63;

/// Names that programs resolve by themselves in the domains of their host, and trust: a browser's proxy (WPAD), a
/// tunnel for all IPv6 packets (ISATAP, RFC 5214), the host itself (RFC 6761, section 6.3).
const OF_PROGRAMS: [&str; 3] = ["isatap", "localhost", "wpad"];

/// One label of a domain name: 1 to 63 lower-case letters, digits and `-`, not beginning or ending with `-` (RFC 1123,
/// section 2.1).
///
/// Names come from other machines and appear in terminals, logs, files and answers of the resolver. No other characters
/// are permitted there.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Label(Box<str>);

/// A text is not a [`Label`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("a name has 1 to 63 lower-case letters, digits and `-`, and neither begins nor ends with `-`")]
pub struct InvalidLabel;

impl Label {
    /// The text.
    pub fn as_str(&self) -> &str {
        &self.0
    }

    /// Whether programs resolve this name by themselves and trust its holder: `wpad`, `isatap` and `localhost`. No
    /// member can be resolved by such a name.
    pub fn is_of_programs(&self) -> bool {
        OF_PROGRAMS.contains(&self.as_str())
    }

    /// Makes a label of a foreign name, such as a host name: letters become lower-case, and any other character except
    /// digits becomes `-`. Excess length, and `-` at the beginning and the end, are cut off. `None` if nothing is left.
    pub fn clean(name: &str) -> Option<Self> {
        let kept = |c: char| if c.is_ascii_alphanumeric() { c.to_ascii_lowercase() } else { '-' };
        let text: String = name.chars().map(kept).skip_while(|&c| c == '-').take(MAX_LABEL).collect();
        text.trim_end_matches('-').parse().ok()
    }

    /// This label, or, if it is taken according to `taken`, the first free one with a number appended: `laptop`,
    /// `laptop-2`.
    #[must_use]
    pub fn or_numbered(self, mut taken: impl FnMut(&Self) -> bool) -> Self {
        if !taken(&self) {
            return self;
        }
        (2..)
            .map(|number| self.numbered(number))
            .find(|label| !taken(label))
            .expect("there are more numbers than members")
    }

    /// This label with a number appended: `laptop-2`. The label is shortened if both together are too long.
    #[must_use]
    pub fn numbered(&self, number: u32) -> Self {
        let end = format!("-{number}");
        let kept = self.0[..self.0.len().min(MAX_LABEL - end.len())].trim_end_matches('-');
        Self(format!("{kept}{end}").into())
    }
}

impl FromStr for Label {
    type Err = InvalidLabel;

    fn from_str(text: &str) -> Result<Self, InvalidLabel> {
        let of_label = |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit() || byte == b'-';
        let valid = (1..=MAX_LABEL).contains(&text.len())
            && text.bytes().all(of_label)
            && !text.starts_with('-')
            && !text.ends_with('-');
        if valid { Ok(Self(text.into())) } else { Err(InvalidLabel) }
    }
}

impl fmt::Display for Label {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(&self.0)
    }
}

impl fmt::Debug for Label {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(&self.0, f)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn label(text: &str) -> Label {
        text.parse().unwrap()
    }

    #[test]
    fn what_is_a_label() {
        let longest = "a".repeat(63);
        for text in ["a", "0", "laptop", "a--b", "10", &longest] {
            assert_eq!(label(text).to_string(), text);
        }
        let too_long = "a".repeat(64);
        for text in ["", "-a", "a-", "-", "A", "a.b", "a b", "a_b", "ä", "a\n", "\u{202e}a", &too_long] {
            assert_eq!(text.parse::<Label>(), Err(InvalidLabel), "{text:?}");
        }
    }

    #[test]
    fn names_from_outside_become_labels() {
        for (name, expected) in [("Anna's Laptop", "anna-s-laptop"), ("--x_y--", "x-y"), ("\u{1b}[31mred", "31mred")] {
            assert_eq!(Label::clean(name), Some(label(expected)), "{name:?}");
        }
        assert_eq!(Label::clean("\u{1b}\n--"), None);
        assert_eq!(Label::clean(&format!("{}-bcd", "a".repeat(62))), Some(label(&"a".repeat(62))));
    }

    #[test]
    fn a_taken_name_gets_a_number() {
        let taken = [label("laptop"), label("laptop-2")];
        assert_eq!(label("laptop").or_numbered(|label| taken.contains(label)), label("laptop-3"));
        assert_eq!(label("home").or_numbered(|label| taken.contains(label)), label("home"));
        let long = label(&"a".repeat(63));
        let next = long.clone().or_numbered(|label| *label == long);
        assert_eq!(next, label(&format!("{}-2", "a".repeat(61))));
    }
}
