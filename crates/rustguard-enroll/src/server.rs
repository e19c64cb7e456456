//! The server's side.
mod options;

use crate::{
    action::{Action, PeerConfig},
    lease::{Lease, Terms, TokenId},
    ledger::Ledger,
    store::LeaseStore,
    token::Invite,
};
pub use options::{
    ApprovalCode, DEFAULT_INVITE, DEFAULT_WINDOW, InviteOptions, MAX_WINDOW, OpenOptions, Opened, PendingApproval,
    ServerConfig, ServerError, WindowStatus,
};
use rand_core::CryptoRng;
use rustguard_core::time::{Instant, Now};
use rustguard_crypto::x25519::{PublicKey, StaticSecret};
use std::net::SocketAddr;

/// Enrols machines.
#[derive(Debug)]
pub struct Server<S> {
    ledger: Ledger<S>,
}

#[expect(clippy::todo, unused_variables, reason = "the bodies follow")]
impl<S: LeaseStore> Server<S> {
    /// A server without an open window. `identity` is the WireGuard key of the tunnel.
    ///
    /// # Errors
    /// [`ServerError::SettingsTooLong`].
    pub fn new(
        identity: StaticSecret,
        ledger: Ledger<S>,
        config: ServerConfig,
        now: Now,
        rng: &mut impl CryptoRng,
    ) -> Result<Self, ServerError> {
        Ok(Self { ledger })
    }
    /// Takes a datagram.
    pub fn handle(
        &mut self,
        from: SocketAddr,
        datagram: &[u8],
        now: Now,
        rng: &mut impl CryptoRng,
        actions: &mut Vec<Action>,
    ) {
    }
    /// A peer completed a WireGuard handshake.
    pub fn handshake_completed(&mut self, peer: &PublicKey, now: Now, actions: &mut Vec<Action>) {}
    /// Does what is due by the time.
    pub fn tick(&mut self, now: Now, actions: &mut Vec<Action>) {}
    /// When [`Server::tick`] has something to do.
    pub fn deadline(&self) -> Option<Instant> {
        None
    }
    /// The peers the device must have: to install at start.
    pub fn peers(&self) -> impl Iterator<Item = PeerConfig> {
        core::iter::empty()
    }
    /// Invites and leases.
    pub fn ledger(&self) -> &Ledger<S> {
        &self.ledger
    }
    /// Opens a window.
    ///
    /// # Errors
    /// [`ServerError::WindowDuration`], [`ServerError::WindowOpen`].
    pub fn open(
        &mut self,
        options: OpenOptions,
        now: Now,
        rng: &mut impl CryptoRng,
        actions: &mut Vec<Action>,
    ) -> Result<Opened, ServerError> {
        todo!()
    }
    /// Closes the window. False if none is open.
    pub fn close(&mut self, now: Now, actions: &mut Vec<Action>) -> bool {
        todo!()
    }
    /// The open window.
    pub fn window(&self) -> Option<WindowStatus> {
        todo!()
    }
    /// Who waits for approval.
    pub fn pending_approvals(&self) -> Vec<PendingApproval> {
        todo!()
    }
    /// Lets in who shows this code.
    ///
    /// # Errors
    /// [`ServerError::NobodyWaits`].
    pub fn approve(&mut self, code: ApprovalCode, now: Now, actions: &mut Vec<Action>) -> Result<(), ServerError> {
        todo!()
    }
    /// Makes an invite.
    ///
    /// # Errors
    /// [`ServerError::Token`], [`ServerError::Ledger`].
    pub fn new_invite(
        &mut self,
        options: InviteOptions,
        now: Now,
        rng: &mut impl CryptoRng,
        actions: &mut Vec<Action>,
    ) -> Result<Invite, ServerError> {
        todo!()
    }
    /// Withdraws an invite; who came in by it stays.
    ///
    /// # Errors
    /// [`ServerError::Ledger`].
    pub fn revoke_invite(&mut self, id: &TokenId, now: Now, actions: &mut Vec<Action>) -> Result<(), ServerError> {
        todo!()
    }
    /// Adds a peer by hand, for a config of a stock WireGuard app. Its lease has the preshared key.
    ///
    /// # Errors
    /// [`ServerError::Refused`].
    pub fn add_peer(
        &mut self,
        public_key: PublicKey,
        name: Option<&str>,
        terms: Terms,
        now: Now,
        rng: &mut impl CryptoRng,
        actions: &mut Vec<Action>,
    ) -> Result<Lease, ServerError> {
        todo!()
    }
    /// Removes a peer: nothing older than this lets it in again.
    ///
    /// # Errors
    /// [`ServerError::Ledger`].
    pub fn remove_peer(&mut self, peer: &PublicKey, now: Now, actions: &mut Vec<Action>) -> Result<(), ServerError> {
        todo!()
    }
    /// Gives a peer another name.
    ///
    /// # Errors
    /// [`ServerError::Ledger`].
    pub fn rename_peer(
        &mut self,
        peer: &PublicKey,
        name: &str,
        now: Now,
        actions: &mut Vec<Action>,
    ) -> Result<(), ServerError> {
        todo!()
    }
}
