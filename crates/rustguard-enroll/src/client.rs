//! The joiner's side.
mod joined;

use crate::token::Token;
pub use joined::{Heard, JoinError, Joined};
use rand_core::CryptoRng;
use rustguard_core::time::{Instant, Now};
use rustguard_crypto::x25519::StaticSecret;

/// Joins a network. It speaks to one server, whose address is the embedder's business.
#[derive(Debug)]
pub struct Client {}

#[expect(clippy::todo, unused_variables, reason = "the bodies follow")]
impl Client {
    /// Begins to join. `identity` is this machine's WireGuard key, which the embedder has stored already.
    ///
    /// # Errors
    /// [`JoinError::BadKey`].
    pub fn new(
        token: Token,
        identity: StaticSecret,
        name: Option<&str>,
        now: Now,
        rng: &mut impl CryptoRng,
    ) -> Result<Self, JoinError> {
        todo!()
    }
    /// The datagram to send now, if any.
    pub fn poll(&mut self, now: Now, rng: &mut impl CryptoRng) -> Option<Vec<u8>> {
        todo!()
    }
    /// When [`Client::poll`] has something to send.
    pub fn deadline(&self) -> Option<Instant> {
        todo!()
    }
    /// Takes a datagram from the server's address.
    pub fn handle(&mut self, datagram: &[u8], now: Now, rng: &mut impl CryptoRng) -> Heard {
        todo!()
    }
}
