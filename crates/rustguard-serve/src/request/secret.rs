//! A token or code in an answer.

use serde::{Deserialize, Serialize};
use std::fmt;
use zeroize::Zeroizing;

/// A token or code, with which any holder can join. `Debug` does not show it, and its memory is erased at the end.
#[derive(Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Secret(#[serde(with = "text")] Zeroizing<String>);

impl Secret {
    /// The text.
    pub fn reveal(&self) -> &str {
        &self.0
    }
}

impl From<Zeroizing<String>> for Secret {
    fn from(text: Zeroizing<String>) -> Self {
        Self(text)
    }
}

impl fmt::Debug for Secret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Secret(..)")
    }
}

mod text {
    use super::{Deserialize as _, Zeroizing};
    use serde::{Deserializer, Serializer};

    pub(super) fn serialize<S: Serializer>(text: &str, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(text)
    }

    pub(super) fn deserialize<'de, D: Deserializer<'de>>(json: D) -> Result<Zeroizing<String>, D::Error> {
        String::deserialize(json).map(Zeroizing::new)
    }
}
