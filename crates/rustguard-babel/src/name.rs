//! The name of a node. It is a claim of the origin, for people to read. No decision depends on it.
use core::{error::Error, fmt, str::FromStr};

/// A name: 1 to 63 ASCII letters, digits, `-`, `_` and `.`, the first one a letter or a digit. So a name cannot control
/// a terminal, does not look like another one in a different alphabet, and does not end a column of a table.
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

#[cfg(test)]
mod tests {
    use super::*;

    fn name(text: &str) -> Name {
        Name::new(text.as_bytes()).expect("a name")
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
}
