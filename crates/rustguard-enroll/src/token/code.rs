//! Codes: eight symbols for typing. One of them detects typing errors.
use super::error::TokenError;
use core::fmt;
use rand_core::CryptoRng;
use zeroize::{Zeroize as _, Zeroizing};

/// The number of possible secrets of a [`Code`]: four symbols of five bits. The five guesses of a window succeed with a
/// probability of 1 in 209,715.
pub const CODE_SECRETS: u32 = 1 << 20;

/// `XXXX-XXXX`, valid for one window. The first three symbols name the window and are not secret. They key MAC1, so
/// that a sender without them gets no answer. The fourth symbol is a check symbol. The last four are the secret, of 20
/// bits.
///
/// The check symbol depends on the secret too. Neither it nor a value derived from it is ever sent.
#[derive(Clone, PartialEq, Eq)]
pub struct Code(Zeroizing<[u8; 8]>);

impl Code {
    /// Digits and capitals without I, L, O and U, as in Crockford's base 32.
    pub(super) const ALPHABET: &'static [u8; 32] = b"0123456789ABCDEFGHJKMNPQRSTVWXYZ";
    const CHECK: usize = 3;

    /// A random code.
    pub fn generate(rng: &mut impl CryptoRng) -> Self {
        let mut symbols = Zeroizing::new([0; 8]);
        rng.fill_bytes(&mut *symbols);
        symbols.iter_mut().for_each(|symbol| *symbol &= 31);
        symbols[Self::CHECK] = 0;
        let rest = syndrome(&symbols);
        // The weight of the check symbol is not zero, so exactly one value fits.
        let fitting = (0..32).find(|&symbol| gf32_multiply(WEIGHTS[Self::CHECK], symbol) == rest);
        symbols[Self::CHECK] = fitting.expect("multiplying by a weight is a permutation");
        Self(symbols)
    }

    /// Reads a code, in upper or lower case, with or without its dash. O counts as 0; I and L count as 1.
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

    /// `XXXX-XXXX`. It lets any machine join while the window is open.
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

    /// The symbols that name the window.
    pub(crate) fn window(&self) -> [u8; 3] {
        let [a, b, c, ..] = *self.0;
        [a, b, c]
    }

    /// The secret symbols, which an attacker would have to guess.
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

/// Eight symbols with a dash are a code, correct or mistyped. Without the dash only a valid code counts as one, because
/// a passphrase may well have eight letters.
pub(super) fn has_code_form(text: &str) -> bool {
    match text.as_bytes() {
        [first @ .., b'-', _, _, _, _] if first.len() == 4 => {
            text.bytes().enumerate().all(|(i, byte)| i == 4 || byte.is_ascii_alphanumeric())
        }
        bytes => bytes.len() == 8 && !bytes.contains(&b'-') && Code::parse(text).is_ok(),
    }
}

/// Different powers of a generator of GF(32). Each single wrong symbol, and each swap of two different symbols, gives a
/// syndrome that is not zero.
const WEIGHTS: [u8; 8] = [1, 2, 4, 8, 16, 5, 10, 20];

fn syndrome(symbols: &[u8; 8]) -> u8 {
    symbols.iter().zip(WEIGHTS).fold(0, |sum, (&symbol, weight)| sum ^ gf32_multiply(weight, symbol))
}

/// Multiplication in GF(32) modulo x⁵ + x² + 1.
fn gf32_multiply(a: u8, b: u8) -> u8 {
    let mut product = 0_u16;
    for bit in 0..5 {
        // The computation does not branch on the secret.
        product ^= (u16::from(a) << bit) * u16::from(b >> bit & 1);
    }
    for bit in (5..9).rev() {
        product ^= (0b10_0101 << (bit - 5)) * (product >> bit & 1);
    }
    let low = (product & 31) as u8;
    product.zeroize();
    low
}
