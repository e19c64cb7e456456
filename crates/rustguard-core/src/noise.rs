//! The handshake: Noise_IKpsk2 over X25519, ChaCha20-Poly1305 and BLAKE2s (whitepaper §5.4; Noise, revision 34).
//!
//! ```text
//! initiator                                            responder
//! initiate ──► Initiated ──── e, es, s, ss, payload ──► Claimed::read ──► verify ──► Received
//!                  │                                                                    │
//! verify ──► Answer ◄──────── e, ee, se, psk, payload ────────────────────────────── respond
//!     Initiated::finish ──► SessionKeys                                             SessionKeys
//! ```
//!
//! Each step that succeeds consumes the state before it. Only [`Initiated::verify`] borrows: a forged answer must not
//! end a handshake that waits for the genuine one.
//!
//! The caller supplies the payloads and the [`Labels`], so that another protocol of the same shape can use the same
//! code.
use rustguard_crypto::{
    aead, hash,
    x25519::{PublicKey, SharedSecret, StaticSecret},
};
use zeroize::{Zeroize, ZeroizeOnDrop, Zeroizing};

/// The labels that separate protocols built on this handshake.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Labels {
    /// The Noise protocol name.
    pub construction: &'static [u8],
    /// The prologue.
    pub identifier: &'static [u8],
    /// Prefix of the key of MAC1, 8 bytes.
    pub mac1: &'static [u8; 8],
    /// Prefix of the key of cookie replies, 8 bytes.
    pub cookie: &'static [u8; 8],
}

/// WireGuard's labels (whitepaper §5.4).
pub const WIREGUARD: Labels = Labels {
    construction: b"Noise_IKpsk2_25519_ChaChaPoly_BLAKE2s",
    identifier: b"WireGuard v1 zx2c4 Jason@zx2c4.com",
    mac1: b"mac1----",
    cookie: b"cookie--",
};

/// Why a handshake message was refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum Refused {
    /// A field did not decrypt.
    #[error("a field of the handshake message failed authentication")]
    Forged,
    /// A Diffie-Hellman result was zero.
    #[error("a public key of the handshake is of low order")]
    LowOrder,
}

impl From<aead::Forged> for Refused {
    fn from(_: aead::Forged) -> Self {
        Self::Forged
    }
}

impl From<rustguard_crypto::x25519::LowOrder> for Refused {
    fn from(_: rustguard_crypto::x25519::LowOrder) -> Self {
        Self::LowOrder
    }
}

/// The fields of the first message besides its payload.
#[derive(Clone, Copy, Debug)]
pub struct InitiationFields {
    /// The ephemeral public key.
    pub ephemeral: PublicKey,
    /// The static public key, sealed, with its tag.
    pub static_key: [u8; 48],
    /// The tag of the payload.
    pub tag: [u8; 16],
}

/// The fields of the second message besides its payload.
#[derive(Clone, Copy, Debug)]
pub struct ResponseFields {
    /// The ephemeral public key.
    pub ephemeral: PublicKey,
    /// The tag of the payload.
    pub tag: [u8; 16],
}

/// Both transport keys of a finished handshake. Zeroized on drop; `Debug` prints nothing of them.
#[derive(Zeroize, ZeroizeOnDrop)]
pub struct SessionKeys {
    /// For messages of the initiator.
    pub(crate) from_initiator: [u8; 32],
    /// For messages of the responder.
    pub(crate) from_responder: [u8; 32],
}

impl SessionKeys {
    /// The key for messages of the initiator: a protocol with its own transport messages seals them with it.
    pub fn from_initiator(&self) -> &[u8; 32] {
        &self.from_initiator
    }

    /// The key for messages of the responder.
    pub fn from_responder(&self) -> &[u8; 32] {
        &self.from_responder
    }
}

impl core::fmt::Debug for SessionKeys {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.write_str("SessionKeys(..)")
    }
}

/// The initiator's side, waiting for the answer.
pub struct Initiated {
    symmetric: Symmetric,
    ephemeral: StaticSecret,
}

/// Writes the first message: seals `payload` in place and returns the other fields.
///
/// `ephemeral` must be fresh and random, `static_static` is the shared secret of both static keys.
///
/// # Errors
/// [`Refused::LowOrder`] when `peer` is of low order.
pub fn initiate(
    labels: &Labels,
    identity: &PublicKey,
    peer: &PublicKey,
    static_static: &SharedSecret,
    ephemeral: StaticSecret,
    payload: &mut [u8],
) -> Result<(Initiated, InitiationFields), Refused> {
    let mut symmetric = Symmetric::new(labels, peer);
    let ephemeral_public = ephemeral.public_key();
    symmetric.mix_ephemeral(&ephemeral_public);

    let key = symmetric.mix_key_for_field(ephemeral.diffie_hellman(peer)?.as_bytes());
    let mut static_key = [0; 48];
    let (text, tag) = static_key.split_at_mut(32);
    text.copy_from_slice(&identity.0);
    tag.copy_from_slice(&symmetric.seal(&key, text));

    let key = symmetric.mix_key_for_field(static_static.as_bytes());
    let tag = symmetric.seal(&key, payload);

    let fields = InitiationFields { ephemeral: ephemeral_public, static_key, tag };
    Ok((Initiated { symmetric, ephemeral }, fields))
}

impl Initiated {
    /// Checks the second message, whose payload is decrypted in place. Changes nothing: a forged message costs no more
    /// than this call.
    ///
    /// # Errors
    /// [`Refused`], and the payload is then unspecified.
    pub fn verify(
        &self,
        identity: &StaticSecret,
        preshared_key: &[u8; 32],
        fields: &ResponseFields,
        payload: &mut [u8],
    ) -> Result<Answer, Refused> {
        let mut symmetric = self.symmetric.clone();
        symmetric.mix_ephemeral(&fields.ephemeral);
        let [ephemeral_ephemeral, static_ephemeral] =
            StaticSecret::diffie_hellman_pair([(&self.ephemeral, &fields.ephemeral), (identity, &fields.ephemeral)])?;
        symmetric.mix_key(ephemeral_ephemeral.as_bytes());
        symmetric.mix_key(static_ephemeral.as_bytes());
        let key = symmetric.mix_preshared_key(preshared_key);
        symmetric.open(&key, payload, &fields.tag)?;
        Ok(Answer(symmetric))
    }

    /// Ends the handshake with its verified answer.
    pub fn finish(self, answer: Answer) -> SessionKeys {
        answer.0.split()
    }
}

/// A verified answer.
pub struct Answer(Symmetric);

/// The responder's side, after the first half of the first message: the sender claims to be `peer`.
pub struct Claimed {
    symmetric: Symmetric,
    ephemeral: PublicKey,
    peer: PublicKey,
}

impl Claimed {
    /// Reads the first message up to the initiator's static key, by which the caller finds the peer.
    ///
    /// # Errors
    /// [`Refused`].
    pub fn read(
        labels: &Labels,
        identity: &StaticSecret,
        ephemeral: &PublicKey,
        static_key: &[u8; 48],
    ) -> Result<Self, Refused> {
        let mut symmetric = Symmetric::new(labels, &identity.public_key());
        symmetric.mix_ephemeral(ephemeral);
        let key = symmetric.mix_key_for_field(identity.diffie_hellman(ephemeral)?.as_bytes());
        let (text, tag) = static_key.split_first_chunk().expect("48 bytes are more than 32");
        let mut peer = PublicKey(*text);
        symmetric.open(&key, &mut peer.0, tag.try_into().expect("48 bytes are 32 and 16"))?;
        Ok(Self { symmetric, ephemeral: *ephemeral, peer })
    }

    /// The peer that the initiator claims to be. Anybody who knows our public key can claim that.
    pub fn peer(&self) -> &PublicKey {
        &self.peer
    }

    /// Opens the payload in place, which proves that the initiator has the private key it claims.
    ///
    /// # Errors
    /// [`Refused::Forged`].
    pub fn verify(
        mut self,
        static_static: &SharedSecret,
        payload: &mut [u8],
        tag: &[u8; 16],
    ) -> Result<Received, Refused> {
        let key = self.symmetric.mix_key_for_field(static_static.as_bytes());
        self.symmetric.open(&key, payload, tag)?;
        Ok(Received { symmetric: self.symmetric, ephemeral: self.ephemeral, peer: self.peer })
    }
}

/// The responder's side, with an authentic first message. It may still be a replay: the caller detects that by the
/// payload.
pub struct Received {
    symmetric: Symmetric,
    ephemeral: PublicKey,
    peer: PublicKey,
}

impl Received {
    /// Writes the second message: seals `payload` in place, returns the other fields and the keys.
    ///
    /// `ephemeral` must be fresh and random.
    ///
    /// # Errors
    /// [`Refused::LowOrder`] when a key of the initiator is of low order.
    pub fn respond(
        self,
        preshared_key: &[u8; 32],
        ephemeral: StaticSecret,
        payload: &mut [u8],
    ) -> Result<(ResponseFields, SessionKeys), Refused> {
        let mut symmetric = self.symmetric;
        let ephemeral_public = ephemeral.public_key();
        symmetric.mix_ephemeral(&ephemeral_public);
        let [ephemeral_ephemeral, static_ephemeral] =
            StaticSecret::diffie_hellman_pair([(&ephemeral, &self.ephemeral), (&ephemeral, &self.peer)])?;
        symmetric.mix_key(ephemeral_ephemeral.as_bytes());
        symmetric.mix_key(static_ephemeral.as_bytes());
        let key = symmetric.mix_preshared_key(preshared_key);
        let tag = symmetric.seal(&key, payload);
        Ok((ResponseFields { ephemeral: ephemeral_public, tag }, symmetric.split()))
    }
}

/// Noise's symmetric state: the chaining key and the transcript hash. Each field has a key of its own, used once.
#[derive(Clone, Zeroize, ZeroizeOnDrop)]
struct Symmetric {
    chaining_key: [u8; 32],
    hash: [u8; 32],
}

type FieldKey = Zeroizing<[u8; 32]>;

impl Symmetric {
    fn new(labels: &Labels, responder: &PublicKey) -> Self {
        let chaining_key = hash::hash(&[labels.construction]);
        let hash = hash::hash(&[&chaining_key, labels.identifier]);
        let mut symmetric = Self { chaining_key, hash };
        symmetric.mix_hash(&responder.0, &[]);
        symmetric
    }

    fn mix_hash(&mut self, text: &[u8], tag: &[u8]) {
        self.hash = hash::hash(&[&self.hash, text, tag]);
    }

    /// With a preshared key in the pattern, Noise mixes an ephemeral key into the chaining key as well.
    fn mix_ephemeral(&mut self, ephemeral: &PublicKey) {
        self.mix_hash(&ephemeral.0, &[]);
        self.mix_key(&ephemeral.0);
    }

    fn mix_key(&mut self, input: &[u8; 32]) {
        [self.chaining_key] = hash::kdf(&self.chaining_key, input);
    }

    fn mix_key_for_field(&mut self, input: &[u8; 32]) -> FieldKey {
        let key;
        [self.chaining_key, key] = hash::kdf(&self.chaining_key, input);
        Zeroizing::new(key)
    }

    fn mix_preshared_key(&mut self, preshared_key: &[u8; 32]) -> FieldKey {
        let (mut temporary, key);
        [self.chaining_key, temporary, key] = hash::kdf(&self.chaining_key, preshared_key);
        self.mix_hash(&temporary, &[]);
        temporary.zeroize();
        Zeroizing::new(key)
    }

    fn seal(&mut self, key: &FieldKey, text: &mut [u8]) -> [u8; 16] {
        let tag = aead::seal_once(key, 0, &self.hash, text);
        self.mix_hash(text, &tag);
        tag
    }

    fn open(&mut self, key: &FieldKey, text: &mut [u8], tag: &[u8; 16]) -> Result<(), Refused> {
        let mixed = hash::hash(&[&self.hash, text, tag]);
        aead::open_once(key, 0, &self.hash, text, tag)?;
        self.hash = mixed;
        Ok(())
    }

    fn split(self) -> SessionKeys {
        let [from_initiator, from_responder] = hash::kdf(&self.chaining_key, &[]);
        SessionKeys { from_initiator, from_responder }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use hex_literal::hex;

    const OTHER: Labels = Labels { identifier: b"another protocol", ..WIREGUARD };
    const PSK: [u8; 32] = [7; 32];

    fn secret(fill: u8) -> StaticSecret {
        StaticSecret::from_bytes([fill; 32])
    }

    fn begin(payload: &mut [u8]) -> (Initiated, InitiationFields) {
        let (ours, theirs) = (secret(1), secret(2).public_key());
        let static_static = ours.diffie_hellman(&theirs).expect("honest keys");
        initiate(&WIREGUARD, &ours.public_key(), &theirs, &static_static, secret(3), payload).expect("honest keys")
    }

    fn read(labels: &Labels, fields: &InitiationFields, payload: &mut [u8]) -> Result<Received, Refused> {
        let responder = secret(2);
        let claimed = Claimed::read(labels, &responder, &fields.ephemeral, &fields.static_key)?;
        let static_static = responder.diffie_hellman(claimed.peer())?;
        claimed.verify(&static_static, payload, &fields.tag)
    }

    /// The constants that every implementation starts from.
    #[test]
    fn wireguards_prologue() {
        let chaining_key = hash::hash(&[WIREGUARD.construction]);
        let hash = hash::hash(&[&chaining_key, WIREGUARD.identifier]);
        assert_eq!(chaining_key, hex!("60e26daef327efc02ec335e2a025d2d016eb4206f87277f52d38d1988b78cd36"));
        assert_eq!(hash, hex!("2211b361081ac566691243db458ad5322d9c6c662293e8b70ee19c65ba079ef3"));
    }

    #[test]
    fn both_sides_get_the_same_keys_and_payloads_of_any_length() {
        let mut payload = *b"a payload of more than twelve bytes";
        let (initiated, fields) = begin(&mut payload);
        assert_ne!(&payload, b"a payload of more than twelve bytes");
        let received = read(&WIREGUARD, &fields, &mut payload).expect("honest");
        assert_eq!(&payload, b"a payload of more than twelve bytes");
        assert_eq!(received.peer, secret(1).public_key());

        let mut payload = *b"answer";
        let (fields, theirs) = received.respond(&PSK, secret(4), &mut payload).expect("honest");
        let forged = ResponseFields { tag: [0; 16], ..fields };
        assert!(initiated.verify(&secret(1), &PSK, &forged, &mut payload.clone()).is_err());
        assert!(initiated.verify(&secret(1), &[8; 32], &fields, &mut payload.clone()).is_err(), "another psk");
        let answer = initiated.verify(&secret(1), &PSK, &fields, &mut payload).expect("a forgery ends nothing");
        assert_eq!(&payload, b"answer");
        let ours = initiated.finish(answer);
        assert_eq!((ours.from_initiator, ours.from_responder), (theirs.from_initiator, theirs.from_responder));
        assert_ne!(ours.from_initiator, ours.from_responder);
    }

    #[test]
    fn other_labels_and_changed_bytes_are_refused() {
        let mut payload = [5; 12];
        let (_, fields) = begin(&mut payload);
        assert!(read(&OTHER, &fields, &mut payload.clone()).is_err());
        for i in 0..48 {
            let mut fields = fields;
            fields.static_key[i] ^= 1;
            assert!(read(&WIREGUARD, &fields, &mut payload.clone()).is_err());
        }
        for i in 0..12 {
            let mut payload = payload;
            payload[i] ^= 1;
            assert!(read(&WIREGUARD, &fields, &mut payload).is_err());
        }
        assert!(read(&WIREGUARD, &fields, &mut payload).is_ok());
    }
}
