//! Passphrases: any text that is neither an invite nor a code.
use super::{
    code::has_code_form,
    error::TokenError,
    invite::has_invite_prefix,
    limits::{ADVISED_PASSPHRASE, MAX_PASSPHRASE, MIN_PASSPHRASE},
};
use core::fmt;
use zeroize::Zeroizing;

/// A secret that the administrator chose. While a window with a passphrase is open, the port answers every sender.
#[derive(Clone, PartialEq, Eq)]
pub struct Passphrase(Zeroizing<String>);

impl Passphrase {
    /// Takes a passphrase byte for byte, without the white space around it.
    ///
    /// # Errors
    /// [`TokenError::PassphraseLength`]; [`TokenError::PassphraseAmbiguous`] if [`Token::parse`](super::Token::parse)
    /// would read the text as another kind of token.
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

    /// Whether it has fewer than [`ADVISED_PASSPHRASE`] characters. Most passphrases that people choose at that length
    /// are among the ten thousand most common ones. The five guesses of a window find one of those with a probability
    /// of 1 in 2,000.
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
