//! The server's own keys: the present key, and after a change also the previous one.
use crate::{
    config::{ConfigError, ServerConfig},
    invite, payload,
};
use rustguard_core::cookie::Checker;
use rustguard_crypto::x25519::{PublicKey, StaticSecret};

/// A key of the server, and the values derived from it.
pub(super) struct OwnKey {
    pub(super) secret: StaticSecret,
    pub(super) public_key: PublicKey,
    pub(super) checker: Checker,
    /// The settings for joiners, encoded. They name the key.
    pub(super) settings: Vec<u8>,
}

impl OwnKey {
    fn new(secret: StaticSecret, config: &ServerConfig) -> Result<Self, ConfigError> {
        let public_key = secret.public_key();
        let checker = Checker::new(&invite::LABELS, &public_key);
        Ok(Self { settings: payload::settings(&public_key, config)?, checker, secret, public_key })
    }
}

/// The keys of the server. An exchange uses the same key from beginning to end: a joiner checks that the server has the
/// key that its invite names.
pub(super) struct OwnKeys {
    present: OwnKey,
    /// The previous key, which invites from before the change name.
    before: Option<OwnKey>,
}

impl OwnKeys {
    pub(super) fn new(
        present: StaticSecret,
        before: Option<StaticSecret>,
        config: &ServerConfig,
    ) -> Result<Self, ConfigError> {
        let before = before.map(|before| OwnKey::new(before, config)).transpose()?;
        Ok(Self { present: OwnKey::new(present, config)?, before })
    }

    pub(super) fn set_config(&mut self, config: &ServerConfig) -> Result<(), ConfigError> {
        let settings = payload::settings(&self.present.public_key, config)?;
        if let Some(before) = &mut self.before {
            before.settings = payload::settings(&before.public_key, config)?;
        }
        self.present.settings = settings;
        Ok(())
    }

    pub(super) fn present(&self) -> &OwnKey {
        &self.present
    }

    /// Whether the server has, or had, this key.
    pub(super) fn contains(&self, key: &PublicKey) -> bool {
        self.all().any(|own| own.public_key == *key)
    }

    /// The key with which an exchange began. If the server no longer has that key, this is the present key, and the
    /// exchange fails.
    pub(super) fn of(&self, key: &PublicKey) -> &OwnKey {
        self.all().find(|own| own.public_key == *key).unwrap_or(&self.present)
    }

    /// The key to which this first message of an invite's holder is addressed, according to its MAC1.
    pub(super) fn addressee(&self, datagram: &[u8]) -> Option<&OwnKey> {
        self.all().find(|own| own.checker.mac1_is_valid(datagram))
    }

    fn all(&self) -> impl Iterator<Item = &OwnKey> {
        [Some(&self.present), self.before.as_ref()].into_iter().flatten()
    }
}
