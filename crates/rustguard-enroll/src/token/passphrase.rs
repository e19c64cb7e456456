//! Passphrases: whatever is neither an invite nor a code.
use super::{
    code::has_code_form,
    error::TokenError,
    invite::has_invite_prefix,
    limits::{ADVISED_PASSPHRASE, MAX_PASSPHRASE, MIN_PASSPHRASE},
};
use core::fmt;
use zeroize::Zeroizing;

/// A secret that the administrator chose. The port answers everybody while a window for one is open.
#[derive(Clone, PartialEq, Eq)]
pub struct Passphrase(Zeroizing<String>);

impl Passphrase {
    /// Takes a passphrase as it is, byte for byte, but for white space around it.
    ///
    /// # Errors
    /// [`TokenError::PassphraseLength`]; [`TokenError::PassphraseAmbiguous`] for what [`Token::parse`](super::Token::parse) takes for something
    /// else.
    pub fn new(text: &str) -> Result<Self, TokenError> {
        let text = text.trim();
        if has_invite_prefix(text) || has_code_form(text) {
            Err(TokenError::PassphraseAmbiguous)
        } else if !(MIN_PASSPHRASE..=MAX_PASSPHRASE).contains(&text.len()) {
            Err(TokenError::PassphraseLength)
        } else {
            Ok(Self(Zeroizing::new(text.to_owned())))
        }
    }

    /// Whether it has fewer than [`ADVISED_PASSPHRASE`] characters. What people choose at that length is mostly among the most
    /// common ten thousand, of which the five guesses of a window find one in 2,000.
    pub fn is_short(&self) -> bool {
        self.0.chars().count() < ADVISED_PASSPHRASE
    }

    /// Its bytes.
    pub(crate) fn as_bytes(&self) -> &[u8] {
        self.0.as_bytes()
    }
}

impl fmt::Debug for Passphrase {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Passphrase(..)")
    }
}
