//! Tokens, by which machines are admitted: invites, codes and passphrases.
//!
//! | Kind | Form | Contents | Protocol |
//! |---|---|---|---|
//! | [`Invite`] | `rg1-` and base32 | the server's public key, a 32-byte seed, an endpoint | A |
//! | [`Code`] | `XXXX-XXXX` | 3 symbols naming the window, 1 check symbol, 4 symbols of secret | B |
//! | [`Passphrase`] | any other text | the administrator's choice | B |
//!
//! Invites and codes contain a checksum, so a typing error is found before anything is sent.
mod code;
mod error;
mod invite;
mod limits;
mod passphrase;

use code::has_code_form;
pub use code::{CODE_SECRETS, Code};
use core::fmt;
pub use error::TokenError;
use invite::has_invite_prefix;
pub(crate) use invite::token_id;
pub use invite::{INVITE_PREFIX, Invite, MAX_ENDPOINTS};
pub use limits::{ADVISED_PASSPHRASE, MAX_ENDPOINT, MAX_PASSPHRASE, MIN_PASSPHRASE};
pub use passphrase::Passphrase;

/// A token by which a machine is admitted. `Debug` shows only the kind.
pub enum Token {
    /// Protocol A.
    Invite(Invite),
    /// Protocol B, with the code of a window.
    Code(Code),
    /// Protocol B, with a passphrase.
    Passphrase(Passphrase),
}

impl Token {
    /// Reads a user's input. White space around it is ignored.
    ///
    /// # Errors
    /// [`TokenError`].
    pub fn parse(text: &str) -> Result<Self, TokenError> {
        let text = text.trim();
        if text.is_empty() {
            Err(TokenError::Empty)
        } else if has_invite_prefix(text) {
            Invite::parse(text).map(Self::Invite)
        } else if has_code_form(text) {
            Code::parse(text).map(Self::Code)
        } else {
            Passphrase::new(text).map(Self::Passphrase)
        }
    }
}

impl fmt::Debug for Token {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Invite(invite) => invite.fmt(f),
            Self::Code(code) => code.fmt(f),
            Self::Passphrase(passphrase) => passphrase.fmt(f),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use base32ct::{Base32Unpadded, Encoding as _};
    use rand::{SeedableRng as _, rngs::StdRng};
    use rustguard_crypto::x25519::PublicKey;

    fn invite(endpoint: Option<&str>) -> Invite {
        let mut rng = StdRng::seed_from_u64(3);
        Invite::generate(PublicKey([7; 32]), endpoint.map(str::to_owned), &mut rng).expect("a good endpoint")
    }

    #[test]
    fn an_invite_survives_being_written_down() {
        for endpoint in [None, Some("vpn.example.org:51820"), Some("[2001:db8::1]:51820")] {
            let made = invite(endpoint);
            for text in [made.to_text().to_string(), made.to_text().to_uppercase(), format!(" {}\n", *made.to_text())] {
                let Ok(Token::Invite(read)) = Token::parse(&text) else { panic!("an invite: {text}") };
                assert_eq!((read.server(), read.endpoint()), (made.server(), endpoint));
                assert_eq!((read.id(), read.public_key()), (made.id(), made.public_key()));
            }
        }
        assert_eq!(invite(None).to_text().len(), 116);
    }

    #[test]
    fn an_invite_of_several_servers_has_their_endpoints() {
        let mut rng = StdRng::seed_from_u64(4);
        let endpoints = ["vpn1.example.org:51820", "[2001:db8::2]:7", "192.0.2.3:51820"].map(str::to_owned);
        let made = Invite::generate(PublicKey([7; 32]), endpoints.clone(), &mut rng).expect("they fit");
        let read = Invite::parse(&made.to_text()).expect("itself");
        assert_eq!(read.endpoints().collect::<Vec<_>>(), endpoints);
        assert_eq!((read.endpoint(), read.id()), (Some("vpn1.example.org:51820"), made.id()));
        // Too many, too long together, and such that could not be told apart.
        for wrong in [vec!["a:1"; 5], vec![&*"x".repeat(128); 2], vec!["a:1,b:2", "c:3"], vec!["a:1", ""]] {
            let made = Invite::generate(PublicKey([7; 32]), wrong.iter().map(|one| (*one).to_owned()), &mut rng);
            assert_eq!(made.err(), Some(TokenError::Endpoint), "{wrong:?}");
        }
    }

    #[test]
    fn mistyped_token_every_changed_character_of_an_invite_is_noticed() {
        let text = invite(Some("192.0.2.1:1")).to_text();
        for at in INVITE_PREFIX.len()..text.len() {
            for replacement in ["a", "b", "7", "0", "-", "é", ""] {
                let mut mistyped = text.to_string();
                mistyped.replace_range(at..=at, replacement);
                if mistyped != *text {
                    assert!(Token::parse(&mistyped).is_err(), "{mistyped}");
                }
            }
        }
        assert_eq!(Token::parse("rg1-").err(), Some(TokenError::InviteForm));
        assert_eq!(Token::parse(&format!("{}{}", *text, "a".repeat(600))).err(), Some(TokenError::InviteForm));
        let other = Base32Unpadded::encode_string(&[3; 80]);
        assert_eq!(Token::parse(&format!("rg1-{other}")).err(), Some(TokenError::InviteVersion(3)));
    }

    #[test]
    fn endpoints_that_do_not_fit_are_refused() {
        let mut rng = StdRng::seed_from_u64(3);
        for endpoint in ["", "a b:1", "x\n:1", &"x".repeat(256)] {
            let made = Invite::generate(PublicKey([7; 32]), Some(endpoint.to_owned()), &mut rng);
            assert_eq!(made.err(), Some(TokenError::Endpoint), "{endpoint}");
        }
        let longest = "x".repeat(255);
        let made = Invite::generate(PublicKey([7; 32]), Some(longest.clone()), &mut rng).expect("fits");
        assert_eq!(Invite::parse(&made.to_text()).expect("itself").endpoint(), Some(&*longest));
    }

    #[test]
    fn codes_are_read_as_people_type_them() {
        let mut rng = StdRng::seed_from_u64(5);
        for _ in 0..200 {
            let code = Code::generate(&mut rng);
            let text = code.to_text().to_string();
            let sloppy = text.to_lowercase().replace('-', "").replace('0', "o").replace('1', "l");
            for text in [&text, &sloppy, &text.replace('1', "I")] {
                let Ok(Token::Code(read)) = Token::parse(text) else { panic!("a code: {text}") };
                assert_eq!(read, code);
            }
        }
    }

    #[test]
    fn mistyped_token_every_wrong_symbol_and_transposition_of_a_code_is_noticed() {
        let mut rng = StdRng::seed_from_u64(6);
        for _ in 0..20 {
            let text = Code::generate(&mut rng).to_text().to_string();
            for at in (0..9).filter(|&at| at != 4) {
                for &symbol in Code::ALPHABET {
                    let mut bytes = text.clone().into_bytes();
                    bytes[at] = symbol;
                    let mistyped = String::from_utf8(bytes).expect("ASCII");
                    assert_eq!(Token::parse(&mistyped).is_ok(), mistyped == text, "{text} {mistyped}");
                }
                for other in (at + 1..9).filter(|&other| other != 4) {
                    let mut bytes = text.clone().into_bytes();
                    bytes.swap(at, other);
                    let mistyped = String::from_utf8(bytes).expect("ASCII");
                    assert_eq!(Token::parse(&mistyped).is_ok(), mistyped == text, "{text} {mistyped}");
                }
            }
        }
        assert_eq!(Token::parse("UUUU-UUUU").err(), Some(TokenError::CodeForm));
    }

    #[test]
    fn a_passphrase_is_what_cannot_be_anything_else() {
        assert!(matches!(Token::parse("mysecret"), Ok(Token::Passphrase(_))));
        assert!(matches!(Token::parse("correct horse"), Ok(Token::Passphrase(_))));
        assert_eq!(Token::parse(" ").err(), Some(TokenError::Empty));
        assert_eq!(Token::parse("12345").err(), Some(TokenError::PassphraseLength));
        assert_eq!(Token::parse(&"x".repeat(129)).err(), Some(TokenError::PassphraseLength));
        let code = Code::generate(&mut StdRng::seed_from_u64(1)).to_text();
        for text in ["rg1-hello", "RG1-hello", "abcd-efgh", &*code, &code.replace('-', "")] {
            assert_eq!(Passphrase::new(text).err(), Some(TokenError::PassphraseAmbiguous), "{text}");
        }
    }

    #[test]
    fn nothing_secret_is_in_debug_output() {
        let code = Code::generate(&mut StdRng::seed_from_u64(1));
        assert_eq!(format!("{:?}", Token::Code(code)), "Code(..)");
        assert_eq!(format!("{:?}", Token::parse("mysecret")), "Ok(Passphrase(..))");
        let shown = format!("{:?}", Token::Invite(invite(None)));
        assert_eq!(shown, "Invite { server: PublicKey(BwcHBwcH…), endpoints: [], .. }");
    }
}
