//! The handshake: Noise_IKpsk2 over X25519, ChaCha20-Poly1305 and BLAKE2s (paper §5.4.2–5.4.5).
//!
//! Every state is a type; a transition consumes it. What can fail because of somebody else's message borrows instead: a
//! forged response must not end the handshake that it pretends to answer.
//!
//! The labels are an argument ([`Labels`]), so that other protocols of ours can use this very handshake and can never be
//! confused with WireGuard.

use crate::{
    tai64n::{self, Tai64n},
    wire::{Initiation, Response},
};
use rustguard_crypto::{
    aead::{self, TAG_LEN},
    hash::{self, HASH_LEN},
    x25519::{PublicKey, SharedSecret, StaticSecret},
};
use zeroize::{Zeroize as _, Zeroizing};

/// What distinguishes one protocol over this handshake from another.
#[derive(Clone, Copy, Debug)]
pub struct Labels {
    /// The Noise protocol name.
    pub construction: &'static [u8],
    /// Who uses it.
    pub identifier: &'static [u8],
}

/// WireGuard's (paper §5.4).
pub const WIREGUARD: Labels = Labels {
    construction: b"Noise_IKpsk2_25519_ChaChaPoly_BLAKE2s",
    identifier: b"WireGuard v1 zx2c4 Jason@zx2c4.com",
};

/// Why a message did not become a handshake. Never told to the sender.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Refused {
    /// A field failed authentication.
    Forged,
    /// A Diffie-Hellman result was zero: a public key of low order.
    LowOrder,
}

/// The two keys that a handshake leaves.
pub struct Keys {
    /// For what this side sends.
    pub send: Zeroizing<[u8; 32]>,
    /// For what it receives.
    pub receive: Zeroizing<[u8; 32]>,
}

/// Chaining key and hash.
#[derive(Clone)]
struct Transcript {
    chaining_key: Zeroizing<[u8; HASH_LEN]>,
    hash: [u8; HASH_LEN],
}

impl Transcript {
    fn new(labels: Labels, responder: &PublicKey) -> Self {
        let chaining_key = hash::hash(&[labels.construction]);
        let hash = hash::hash(&[&hash::hash(&[&chaining_key, labels.identifier]), &responder.0]);
        Self { chaining_key: Zeroizing::new(chaining_key), hash }
    }

    fn mix_hash(&mut self, data: &[u8]) {
        self.hash = hash::hash(&[&self.hash, data]);
    }

    fn mix_key(&mut self, input: &[u8]) {
        let [mut chaining_key] = hash::kdf::<1>(&self.chaining_key, input);
        self.chaining_key.copy_from_slice(&chaining_key);
        chaining_key.zeroize();
    }

    /// Mixes, and gives a key for one message field.
    fn mix_key_for_field(&mut self, input: &[u8]) -> Zeroizing<[u8; 32]> {
        let mut outputs = Zeroizing::new(hash::kdf::<2>(&self.chaining_key, input));
        self.chaining_key.copy_from_slice(&outputs[0]);
        Zeroizing::new(core::mem::take(&mut outputs[1]))
    }

    /// The `psk2` token (Noise §9).
    fn mix_preshared_key(&mut self, preshared_key: &[u8; 32]) -> Zeroizing<[u8; 32]> {
        let mut outputs = Zeroizing::new(hash::kdf::<3>(&self.chaining_key, preshared_key));
        self.chaining_key.copy_from_slice(&outputs[0]);
        self.mix_hash(&outputs[1]);
        Zeroizing::new(core::mem::take(&mut outputs[2]))
    }

    /// Seals a field of `N` bytes; `M` is `N` and the tag.
    fn seal<const N: usize, const M: usize>(&mut self, key: &[u8; 32], field: &[u8; N]) -> [u8; M] {
        const { assert!(N + TAG_LEN == M) };
        let mut sealed = [0; M];
        sealed[..N].copy_from_slice(field);
        let tag = aead::seal_once(key, 0, &self.hash, &mut sealed[..N]);
        sealed[N..].copy_from_slice(&tag);
        self.mix_hash(&sealed);
        sealed
    }

    fn open<const N: usize, const M: usize>(&mut self, key: &[u8; 32], sealed: &[u8; M]) -> Result<[u8; N], Refused> {
        const { assert!(N + TAG_LEN == M) };
        let (mut field, mut tag) = ([0; N], [0; TAG_LEN]);
        field.copy_from_slice(&sealed[..N]);
        tag.copy_from_slice(&sealed[N..]);
        aead::open_once(key, 0, &self.hash, &mut field, &tag).map_err(|_| Refused::Forged)?;
        self.mix_hash(sealed);
        Ok(field)
    }

    /// The last step, for the initiator; the responder swaps the two.
    fn split(&self) -> (Zeroizing<[u8; 32]>, Zeroizing<[u8; 32]>) {
        let mut outputs = Zeroizing::new(hash::kdf::<2>(&self.chaining_key, &[]));
        (Zeroizing::new(core::mem::take(&mut outputs[0])), Zeroizing::new(core::mem::take(&mut outputs[1])))
    }
}

fn agree(secret: &StaticSecret, public: &PublicKey) -> Result<SharedSecret, Refused> {
    secret.diffie_hellman(public).map_err(|_| Refused::LowOrder)
}

/// An initiation is on its way.
pub struct InitiationSent {
    transcript: Transcript,
    ephemeral: StaticSecret,
}

/// Makes an initiation, without MACs. `static_shared` is the Diffie-Hellman result of both static keys.
///
/// # Errors
/// [`Refused::LowOrder`] when the peer's static key is unusable.
pub fn initiate(
    labels: Labels,
    own: &PublicKey,
    peer: &PublicKey,
    static_shared: &SharedSecret,
    ephemeral: StaticSecret,
    sender: u32,
    timestamp: Tai64n,
) -> Result<(InitiationSent, Initiation), Refused> {
    let mut message = Initiation::new();
    let mut transcript = Transcript::new(labels, peer);
    let public = ephemeral.public_key();
    message.set(4, &sender.to_le_bytes());
    message.set(8, &public.0);
    transcript.mix_hash(&public.0);
    transcript.mix_key(&public.0);
    let key = transcript.mix_key_for_field(agree(&ephemeral, peer)?.as_bytes());
    message.set(40, &transcript.seal::<32, 48>(&key, &own.0));
    let key = transcript.mix_key_for_field(static_shared.as_bytes());
    message.set(88, &transcript.seal::<{ tai64n::LEN }, 28>(&key, timestamp.as_bytes()));
    Ok((InitiationSent { transcript, ephemeral }, message))
}

impl InitiationSent {
    /// Reads the response. Borrows: only a caller that has the keys drops the handshake.
    ///
    /// # Errors
    /// When the response is not an authentic answer to this initiation.
    pub fn read_response(
        &self,
        own: &StaticSecret,
        preshared_key: &[u8; 32],
        message: &Response,
    ) -> Result<Keys, Refused> {
        let mut transcript = self.transcript.clone();
        let ephemeral = PublicKey(*message.ephemeral());
        transcript.mix_hash(&ephemeral.0);
        transcript.mix_key(&ephemeral.0);
        transcript.mix_key(agree(&self.ephemeral, &ephemeral)?.as_bytes());
        transcript.mix_key(agree(own, &ephemeral)?.as_bytes());
        let key = transcript.mix_preshared_key(preshared_key);
        let [] = transcript.open::<0, TAG_LEN>(&key, message.encrypted_nothing())?;
        let (send, receive) = transcript.split();
        Ok(Keys { send, receive })
    }
}

/// An initiation whose sender says who it is; it is not proved yet.
pub struct InitiationOpened {
    transcript: Transcript,
    initiator_ephemeral: PublicKey,
    initiator: PublicKey,
    encrypted_timestamp: [u8; 28],
}

/// An authentic initiation, ready to be answered.
pub struct InitiationReceived {
    transcript: Transcript,
    initiator_ephemeral: PublicKey,
    initiator: PublicKey,
    timestamp: Tai64n,
}

impl InitiationOpened {
    /// Opens the initiator's static key: one Diffie-Hellman.
    ///
    /// # Errors
    /// When the message was not made for this public key.
    pub fn open(labels: Labels, own: &StaticSecret, message: &Initiation) -> Result<Self, Refused> {
        let mut transcript = Transcript::new(labels, &own.public_key());
        let initiator_ephemeral = PublicKey(*message.ephemeral());
        transcript.mix_hash(&initiator_ephemeral.0);
        transcript.mix_key(&initiator_ephemeral.0);
        let key = transcript.mix_key_for_field(agree(own, &initiator_ephemeral)?.as_bytes());
        let initiator = PublicKey(transcript.open::<32, 48>(&key, message.encrypted_static())?);
        Ok(Self { transcript, initiator_ephemeral, initiator, encrypted_timestamp: *message.encrypted_timestamp() })
    }

    /// Who the sender says it is.
    pub fn initiator(&self) -> &PublicKey {
        &self.initiator
    }

    /// Opens the timestamp with the Diffie-Hellman result of both static keys: this proves who the sender is.
    ///
    /// # Errors
    /// When it is somebody else.
    pub fn authenticate(mut self, static_shared: &SharedSecret) -> Result<InitiationReceived, Refused> {
        let key = self.transcript.mix_key_for_field(static_shared.as_bytes());
        let timestamp =
            Tai64n::from_bytes(self.transcript.open::<{ tai64n::LEN }, 28>(&key, &self.encrypted_timestamp)?);
        let Self { transcript, initiator_ephemeral, initiator, .. } = self;
        Ok(InitiationReceived { transcript, initiator_ephemeral, initiator, timestamp })
    }
}

impl InitiationReceived {
    /// When the initiator says that it sent this.
    pub fn timestamp(&self) -> Tai64n {
        self.timestamp
    }

    /// Answers: the response, without MACs, and the keys.
    ///
    /// # Errors
    /// [`Refused::LowOrder`] when a key of the initiator is unusable.
    pub fn respond(
        mut self,
        preshared_key: &[u8; 32],
        ephemeral: &StaticSecret,
        sender: u32,
        receiver: [u8; 4],
    ) -> Result<(Keys, Response), Refused> {
        let transcript = &mut self.transcript;
        let mut message = Response::new();
        let public = ephemeral.public_key();
        message.set(4, &sender.to_le_bytes());
        message.set(8, &receiver);
        message.set(12, &public.0);
        transcript.mix_hash(&public.0);
        transcript.mix_key(&public.0);
        transcript.mix_key(agree(ephemeral, &self.initiator_ephemeral)?.as_bytes());
        transcript.mix_key(agree(ephemeral, &self.initiator)?.as_bytes());
        let key = transcript.mix_preshared_key(preshared_key);
        message.set(44, &transcript.seal::<0, TAG_LEN>(&key, &[]));
        let (receive, send) = transcript.split();
        Ok((Keys { send, receive }, message))
    }
}
