//! Invites: the server's public key and the seed of a one-time key, as text.
use super::{error::TokenError, limits::MAX_ENDPOINT};
use crate::lease::TokenId;
use base32ct::{Base32Unpadded, Encoding as _};
use core::fmt;
use rand_core::CryptoRng;
use rustguard_crypto::{
    hash,
    x25519::{PublicKey, StaticSecret},
};
use zeroize::Zeroizing;

/// The prefix of every invite.
pub const INVITE_PREFIX: &str = "rg1-";

/// The most endpoints of an invite.
pub const MAX_ENDPOINTS: usize = 4;

/// `rg1-…`: contains the server's public key and gives its holder a one-time key. The server stores only the public
/// half of that key.
#[derive(Clone)]
pub struct Invite {
    server: PublicKey,
    seed: Zeroizing<[u8; 32]>,
    endpoints: Vec<String>,
}

impl Invite {
    const VERSION: u8 = 1;
    /// With several endpoints, which programs that know version 1 alone cannot read.
    const SEVERAL: u8 = 2;
    const CHECKSUM: usize = 4;
    /// Version, server's public key, seed, length of the endpoint, checksum.
    const MIN: usize = 1 + 32 + 32 + 1 + Self::CHECKSUM;

    /// A new invite of the server with the public key `server`, which joiners find at one of `endpoints`.
    ///
    /// # Errors
    /// [`TokenError::Endpoint`].
    pub fn generate(
        server: PublicKey,
        endpoints: impl IntoIterator<Item = String>,
        rng: &mut impl CryptoRng,
    ) -> Result<Self, TokenError> {
        let mut seed = Zeroizing::new([0; 32]);
        rng.fill_bytes(&mut *seed);
        let endpoints: Vec<_> = endpoints.into_iter().collect();
        if !are_endpoints(&endpoints) {
            return Err(TokenError::Endpoint);
        }
        Ok(Self { server, seed, endpoints })
    }

    /// Reads `rg1-…`, in upper or lower case.
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
        // The version is checked first, because another version may have another checksum.
        match content.first() {
            Some(&(Self::VERSION | Self::SEVERAL)) => {}
            Some(&version) => return Err(TokenError::InviteVersion(version)),
            None => return Err(TokenError::InviteForm),
        }
        if *checksum != Self::checksum(content) {
            return Err(TokenError::InviteChecksum);
        }
        let (server, rest) = content[1..].split_first_chunk().ok_or(TokenError::InviteForm)?;
        let (seed, rest) = rest.split_first_chunk().ok_or(TokenError::InviteForm)?;
        let (&len, text) = rest.split_first().ok_or(TokenError::InviteForm)?;
        if usize::from(len) != text.len() {
            return Err(TokenError::InviteForm);
        }
        let text = core::str::from_utf8(text).map_err(|_| TokenError::InviteForm)?;
        let endpoints: Vec<_> = match content[0] {
            _ if text.is_empty() => Vec::new(),
            Self::VERSION => vec![text.to_owned()],
            _ => text.split(',').map(str::to_owned).collect(),
        };
        if !are_endpoints(&endpoints) || (content[0] == Self::SEVERAL) != (endpoints.len() > 1) {
            return Err(TokenError::InviteForm);
        }
        Ok(Self { server: PublicKey(*server), seed: Zeroizing::new(*seed), endpoints })
    }

    /// The text to give to a joiner. Any reader of it can join.
    pub fn to_text(&self) -> Zeroizing<String> {
        let endpoint = self.endpoints.join(",");
        let mut bytes = Zeroizing::new(Vec::with_capacity(Self::MIN + endpoint.len()));
        bytes.push(if self.endpoints.len() > 1 { Self::SEVERAL } else { Self::VERSION });
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

    /// The first address of the server as `HOST:PORT`, if the invite contains any.
    pub fn endpoint(&self) -> Option<&str> {
        self.endpoints.first().map(String::as_str)
    }

    /// The addresses as `HOST:PORT` at which servers answer the key of the invite.
    pub fn endpoints(&self) -> impl Iterator<Item = &str> {
        self.endpoints.iter().map(String::as_str)
    }

    /// The id of the invite on the server and in its log.
    pub fn id(&self) -> TokenId {
        token_id(&self.public_key())
    }

    /// The public half of the one-time key. The server stores only this half.
    pub fn public_key(&self) -> PublicKey {
        self.secret().public_key()
    }

    /// The one-time key.
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
        f.debug_struct("Invite")
            .field("server", &self.server)
            .field("endpoints", &self.endpoints)
            .finish_non_exhaustive()
    }
}

/// The id of the invite whose one-time key has this public half.
pub(crate) fn token_id(public_key: &PublicKey) -> TokenId {
    let [a, b, c, d, e, f, g, h, ..] = hash::hash(&[b"RustGuard enrolment token id", &public_key.0]);
    TokenId([a, b, c, d, e, f, g, h])
}

pub(super) fn has_invite_prefix(text: &str) -> bool {
    text.get(..INVITE_PREFIX.len()).is_some_and(|start| start.eq_ignore_ascii_case(INVITE_PREFIX))
}

/// Whether these are endpoints that fit into an invite together.
fn are_endpoints(endpoints: &[String]) -> bool {
    let is_one = |text: &String| !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_graphic());
    let len = endpoints.iter().map(|text| text.len() + 1).sum::<usize>();
    let has_commas = endpoints.len() > 1 && endpoints.iter().any(|text| text.contains(','));
    endpoints.len() <= MAX_ENDPOINTS && len <= MAX_ENDPOINT + 1 && endpoints.iter().all(is_one) && !has_commas
}
