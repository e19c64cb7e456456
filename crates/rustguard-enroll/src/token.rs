//! Tokens: what a machine shows to be let in. An invite, a code or a passphrase.
//!
//! | Kind | Looks like | Holds | Opens |
//! |---|---|---|---|
//! | [`Invite`] | `rg1-` and base32 | the server's public key, a 32-byte seed, an endpoint | protocol A |
//! | [`Code`] | `XXXX-XXXX` | 3 symbols naming the window, 1 check symbol, 4 symbols of secret | protocol B |
//! | [`Passphrase`] | anything else | what the administrator chose | protocol B |
//!
//! Invites and codes carry a checksum: a typing error is found before anything is sent.
use crate::lease::TokenId;
use base32ct::{Base32Unpadded, Encoding as _};
use core::fmt;
use rand_core::CryptoRng;
use rustguard_crypto::{
    hash,
    x25519::{PublicKey, StaticSecret},
};
use zeroize::{Zeroize as _, Zeroizing};

/// What an invite begins with.
pub const INVITE_PREFIX: &str = "rg1-";
/// Bytes of the longest endpoint in an invite: a DNS name of 253, a colon, a port would be 259, but a length is one byte.
pub const MAX_ENDPOINT: usize = 255;
/// Bytes of the shortest passphrase. Short is bearable: a guess costs one of five attempts of a window.
pub const MIN_PASSPHRASE: usize = 6;
/// Characters of a passphrase that is not worth a warning: see [`Passphrase::is_short`].
pub const ADVISED_PASSPHRASE: usize = 10;
/// Bytes of the longest passphrase.
pub const MAX_PASSPHRASE: usize = 128;
/// Possible secrets of a [`Code`]: four symbols of five bits. Five guesses in a window find one in 209,715.
pub const CODE_SECRETS: u32 = 1 << 20;

/// What a machine shows to be let in. `Debug` says the kind and no more.
pub enum Token {
    /// Protocol A.
    Invite(Invite),
    /// Protocol B, with the code of a window.
    Code(Code),
    /// Protocol B, with a passphrase.
    Passphrase(Passphrase),
}

/// Why a text is not a token.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum TokenError {
    /// No text at all.
    #[error("the token is empty; paste the invite, code or passphrase that the server shows")]
    Empty,
    /// An invite with characters that base32 has not, or cut short.
    #[error("the invite is damaged: it is cut short, or has characters that no invite has; paste it again, all of it")]
    InviteForm,
    /// An invite whose checksum does not hold.
    #[error("the invite was mistyped: its checksum does not match; paste it again, all of it")]
    InviteChecksum,
    /// An invite of a version that this program does not know.
    #[error("the invite is of version {0}, which this program does not know; update RustGuard on this machine")]
    InviteVersion(u8),
    /// An endpoint that does not fit into an invite.
    #[error("the endpoint of an invite has 1 to {MAX_ENDPOINT} bytes without spaces")]
    Endpoint,
    /// A code with characters that codes do not use.
    #[error("the code was mistyped: codes have digits and letters, but no U")]
    CodeForm,
    /// A code whose check symbol does not match.
    #[error("the code was mistyped: its check symbol does not match; compare it with what the server shows")]
    CodeChecksum,
    /// A passphrase too short or too long.
    #[error("a passphrase has {MIN_PASSPHRASE} to {MAX_PASSPHRASE} bytes")]
    PassphraseLength,
    /// A passphrase with the form of an invite or a code.
    #[error("the passphrase looks like an invite or a code and would be taken for one; choose another")]
    PassphraseAmbiguous,
}

impl Token {
    /// Reads what a user gave; white space around it does not count.
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

/// `rg1-…`: names the server and gives its holder a one-time key, of which the server keeps the public half.
#[derive(Clone)]
pub struct Invite {
    server: PublicKey,
    seed: Zeroizing<[u8; 32]>,
    endpoint: Option<String>,
}

impl Invite {
    const VERSION: u8 = 1;
    const CHECKSUM: usize = 4;
    /// Version, server's public key, seed, length of the endpoint, checksum.
    const MIN: usize = 1 + 32 + 32 + 1 + Self::CHECKSUM;

    /// A new invite of the server with the public key `server`, which joiners find at `endpoint`.
    ///
    /// # Errors
    /// [`TokenError::Endpoint`].
    pub fn generate(server: PublicKey, endpoint: Option<String>, rng: &mut impl CryptoRng) -> Result<Self, TokenError> {
        let mut seed = Zeroizing::new([0; 32]);
        rng.fill_bytes(&mut *seed);
        if endpoint.as_deref().is_some_and(|endpoint| !is_endpoint(endpoint)) {
            return Err(TokenError::Endpoint);
        }
        Ok(Self { server, seed, endpoint })
    }

    /// Reads `rg1-…`, in capitals or not.
    ///
    /// # Errors
    /// [`TokenError`].
    pub fn parse(text: &str) -> Result<Self, TokenError> {
        if !has_invite_prefix(text) {
            return Err(TokenError::InviteForm);
        }
        let digits = Zeroizing::new(text.get(INVITE_PREFIX.len()..).unwrap_or_default().to_ascii_lowercase());
        let mut bytes = Zeroizing::new([0; Self::MIN + MAX_ENDPOINT]);
        let bytes = Base32Unpadded::decode(digits.as_bytes(), &mut *bytes).map_err(|_| TokenError::InviteForm)?;
        let (content, checksum) = bytes.split_last_chunk().ok_or(TokenError::InviteForm)?;
        // The version first: another one may sum otherwise.
        match content.first() {
            Some(&Self::VERSION) => {}
            Some(&version) => return Err(TokenError::InviteVersion(version)),
            None => return Err(TokenError::InviteForm),
        }
        if *checksum != Self::checksum(content) {
            return Err(TokenError::InviteChecksum);
        }
        let (server, rest) = content[1..].split_first_chunk().ok_or(TokenError::InviteForm)?;
        let (seed, rest) = rest.split_first_chunk().ok_or(TokenError::InviteForm)?;
        let (&len, endpoint) = rest.split_first().ok_or(TokenError::InviteForm)?;
        if usize::from(len) != endpoint.len() {
            return Err(TokenError::InviteForm);
        }
        let endpoint = match core::str::from_utf8(endpoint) {
            Ok("") => None,
            Ok(endpoint) if is_endpoint(endpoint) => Some(endpoint.to_owned()),
            _ => return Err(TokenError::InviteForm),
        };
        Ok(Self { server: PublicKey(*server), seed: Zeroizing::new(*seed), endpoint })
    }

    /// The text to hand over. Whoever reads it can join.
    pub fn to_text(&self) -> Zeroizing<String> {
        let endpoint = self.endpoint.as_deref().unwrap_or_default();
        let mut bytes = Zeroizing::new(Vec::with_capacity(Self::MIN + endpoint.len()));
        bytes.push(Self::VERSION);
        bytes.extend_from_slice(&self.server.0);
        bytes.extend_from_slice(&*self.seed);
        bytes.push(u8::try_from(endpoint.len()).expect("an endpoint has at most 255 bytes"));
        bytes.extend_from_slice(endpoint.as_bytes());
        let checksum = Self::checksum(&bytes);
        bytes.extend_from_slice(&checksum);
        let digits = Zeroizing::new(Base32Unpadded::encode_string(&bytes));
        let mut text = Zeroizing::new(String::with_capacity(INVITE_PREFIX.len() + digits.len()));
        text.push_str(INVITE_PREFIX);
        text.push_str(&digits);
        text
    }

    /// The server's public key.
    pub fn server(&self) -> &PublicKey {
        &self.server
    }

    /// Where the server is, as `HOST:PORT`, if the invite says so.
    pub fn endpoint(&self) -> Option<&str> {
        self.endpoint.as_deref()
    }

    /// By what the server and its log know the invite.
    pub fn id(&self) -> TokenId {
        token_id(&self.public_key())
    }

    /// The public half of the one-time key, which is all that the server keeps.
    pub fn public_key(&self) -> PublicKey {
        self.secret().public_key()
    }

    /// The one-time key of its holder.
    pub(crate) fn secret(&self) -> StaticSecret {
        let bytes = Zeroizing::new(hash::hash(&[b"RustGuard enrolment v1 invite key", &*self.seed]));
        StaticSecret::from_bytes(*bytes)
    }

    fn checksum(content: &[u8]) -> [u8; Self::CHECKSUM] {
        let [a, b, c, d, ..] = hash::hash(&[b"RustGuard enrolment invite checksum", content]);
        [a, b, c, d]
    }
}

impl fmt::Debug for Invite {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Invite").field("server", &self.server).field("endpoint", &self.endpoint).finish_non_exhaustive()
    }
}

/// The id of the invite whose one-time key has this public half.
pub(crate) fn token_id(public_key: &PublicKey) -> TokenId {
    let [a, b, c, d, e, f, g, h, ..] = hash::hash(&[b"RustGuard enrolment token id", &public_key.0]);
    TokenId([a, b, c, d, e, f, g, h])
}

/// `XXXX-XXXX`, good for one window. The first three symbols name the window and are not secret: they key MAC1, so that who
/// sends without them hears nothing. The fourth is a check symbol. The last four are the secret, of 20 bits.
///
/// The check symbol depends on the secret too, so neither it nor anything made of it is ever sent.
#[derive(Clone, PartialEq, Eq)]
pub struct Code(Zeroizing<[u8; 8]>);

impl Code {
    /// Digits and capitals without I, L, O and U, as in Crockford's base 32.
    const ALPHABET: &'static [u8; 32] = b"0123456789ABCDEFGHJKMNPQRSTVWXYZ";
    const CHECK: usize = 3;

    /// A random code.
    pub fn generate(rng: &mut impl CryptoRng) -> Self {
        let mut symbols = Zeroizing::new([0; 8]);
        rng.fill_bytes(&mut *symbols);
        symbols.iter_mut().for_each(|symbol| *symbol &= 31);
        symbols[Self::CHECK] = 0;
        let rest = syndrome(&symbols);
        // The weight of the check symbol is not zero, so that exactly one value fits.
        let fitting = (0..32).find(|&symbol| gf32_multiply(WEIGHTS[Self::CHECK], symbol) == rest);
        symbols[Self::CHECK] = fitting.expect("multiplying by a weight is a permutation");
        Self(symbols)
    }

    /// Reads a code: in capitals or not, with or without its dash, O for 0, I and L for 1.
    ///
    /// # Errors
    /// [`TokenError::CodeForm`], [`TokenError::CodeChecksum`].
    pub fn parse(text: &str) -> Result<Self, TokenError> {
        let mut symbols = Zeroizing::new([0; 8]);
        let mut at = symbols.iter_mut();
        for byte in text.bytes().enumerate().filter(|&(i, byte)| !(i == 4 && byte == b'-')).map(|(_, byte)| byte) {
            let byte = match byte.to_ascii_uppercase() {
                b'O' => b'0',
                b'I' | b'L' => b'1',
                byte => byte,
            };
            let value = Self::ALPHABET.iter().position(|&symbol| symbol == byte).ok_or(TokenError::CodeForm)?;
            *at.next().ok_or(TokenError::CodeForm)? = value as u8;
        }
        if at.next().is_some() {
            return Err(TokenError::CodeForm);
        }
        if syndrome(&symbols) != 0 {
            return Err(TokenError::CodeChecksum);
        }
        Ok(Self(symbols))
    }

    /// `XXXX-XXXX`. Whoever reads it while the window is open can join.
    pub fn to_text(&self) -> Zeroizing<String> {
        let mut text = Zeroizing::new(String::with_capacity(9));
        for (i, &symbol) in self.0.iter().enumerate() {
            if i == 4 {
                text.push('-');
            }
            text.push(char::from(Self::ALPHABET[usize::from(symbol & 31)]));
        }
        text
    }

    /// What names the window.
    pub(crate) fn window(&self) -> [u8; 3] {
        let [a, b, c, ..] = *self.0;
        [a, b, c]
    }

    /// What has to be guessed.
    pub(crate) fn secret(&self) -> Zeroizing<[u8; 4]> {
        let [.., a, b, c, d] = *self.0;
        Zeroizing::new([a, b, c, d])
    }
}

impl fmt::Debug for Code {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Code(..)")
    }
}

/// A secret that the administrator chose. The port answers everybody while a window for one is open.
#[derive(Clone, PartialEq, Eq)]
pub struct Passphrase(Zeroizing<String>);

impl Passphrase {
    /// Takes a passphrase as it is, byte for byte, but for white space around it.
    ///
    /// # Errors
    /// [`TokenError::PassphraseLength`]; [`TokenError::PassphraseAmbiguous`] for what [`Token::parse`] takes for something
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

fn has_invite_prefix(text: &str) -> bool {
    text.get(..INVITE_PREFIX.len()).is_some_and(|start| start.eq_ignore_ascii_case(INVITE_PREFIX))
}

/// With its dash, anything in the form of a code is meant as one, right or mistyped. Without it, only what is one: eight
/// letters are a likely passphrase.
fn has_code_form(text: &str) -> bool {
    match text.as_bytes() {
        [first @ .., b'-', _, _, _, _] if first.len() == 4 => {
            text.bytes().enumerate().all(|(i, byte)| i == 4 || byte.is_ascii_alphanumeric())
        }
        bytes => bytes.len() == 8 && !bytes.contains(&b'-') && Code::parse(text).is_ok(),
    }
}

fn is_endpoint(text: &str) -> bool {
    (1..=MAX_ENDPOINT).contains(&text.len()) && text.bytes().all(|byte| byte.is_ascii_graphic())
}

/// Powers of a generator of GF(32), all different: each single wrong symbol, and each two that changed places, give a
/// syndrome that is not zero.
const WEIGHTS: [u8; 8] = [1, 2, 4, 8, 16, 5, 10, 20];

fn syndrome(symbols: &[u8; 8]) -> u8 {
    symbols.iter().zip(WEIGHTS).fold(0, |sum, (&symbol, weight)| sum ^ gf32_multiply(weight, symbol))
}

/// In GF(32) modulo x⁵ + x² + 1.
fn gf32_multiply(a: u8, b: u8) -> u8 {
    let mut product = 0_u16;
    for bit in 0..5 {
        // No branch on the secret.
        product ^= (u16::from(a) << bit) * u16::from(b >> bit & 1);
    }
    for bit in (5..9).rev() {
        product ^= (0b10_0101 << (bit - 5)) * (product >> bit & 1);
    }
    let low = (product & 31) as u8;
    product.zeroize();
    low
}

#[cfg(test)]
mod tests {
    use super::*;
    use rand::{SeedableRng as _, rngs::StdRng};

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
        let other = Base32Unpadded::encode_string(&[2; 80]);
        assert_eq!(Token::parse(&format!("rg1-{other}")).err(), Some(TokenError::InviteVersion(2)));
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
        assert_eq!(shown, "Invite { server: PublicKey(BwcHBwcH…), endpoint: None, .. }");
    }
}
