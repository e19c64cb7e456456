//! The key schedule: from the secrets of an exchange to the preshared key of the tunnel.
//!
//! ```text
//! T                            = HASH(label, first message without its MACs, its answer)
//! to_server, to_client, export = KDF3(T, secret of Noise or CPace)
//! c, claim                     = KDF2(export, DH(joiner's WireGuard key, server's WireGuard key))
//! d                            = KDF1(c, HASH(claim message, KEM ciphertext))
//! _, grant, psk                = KDF3(d, KEM shared secret)
//! ```
//!
//! `claim` needs the joiner's private key. `grant` and `psk` need the KEM's private key too.
use crate::{approval::ApprovalCode, kem};
use rustguard_core::noise::SessionKeys;
use rustguard_crypto::{
    aead, hash,
    x25519::{LowOrder, PublicKey, StaticSecret},
};
use zeroize::{Zeroize, ZeroizeOnDrop, Zeroizing};

/// The protocol that the keys belong to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Mode {
    Invite,
    Window,
}

/// The keys of a session after its first exchange.
#[derive(Clone, Zeroize, ZeroizeOnDrop)]
pub(crate) struct Keys {
    to_server: [u8; 32],
    to_client: [u8; 32],
    export: [u8; 32],
}

impl Keys {
    pub(crate) fn from_noise(keys: &SessionKeys, first: &[u8], answer: &[u8]) -> Self {
        let mut secret = Zeroizing::new([0; 64]);
        secret[..32].copy_from_slice(keys.from_initiator());
        secret[32..].copy_from_slice(keys.from_responder());
        Self::new(Mode::Invite, &secret, first, answer)
    }

    pub(crate) fn from_pake(secret: &[u8; 64], first: &[u8], answer: &[u8]) -> Self {
        Self::new(Mode::Window, secret, first, answer)
    }

    fn new(mode: Mode, secret: &[u8; 64], first: &[u8], answer: &[u8]) -> Self {
        let label: &[u8] = match mode {
            Mode::Invite => b"RustGuard enrolment v1 transcript, invite",
            Mode::Window => b"RustGuard enrolment v1 transcript, window",
        };
        // The messages are hashed separately, so that no byte can move from one message to the other.
        let transcript = hash::hash(&[label, &hash::hash(&[first]), &hash::hash(&[answer])]);
        let [to_server, to_client, export] = hash::kdf(&transcript, secret);
        Self { to_server, to_client, export }
    }

    /// The key that seals the proof.
    pub(crate) fn to_server(&self) -> &[u8; 32] {
        &self.to_server
    }

    /// The key that seals welcomes.
    pub(crate) fn to_client(&self) -> &[u8; 32] {
        &self.to_client
    }

    /// Eight digits that depend on all messages up to the proof.
    pub(crate) fn approval_code(&self, proof_text: &[u8]) -> ApprovalCode {
        let bytes = hash::hmac(&self.export, &[b"RustGuard enrolment v1 approval", &hash::hash(&[proof_text])]);
        let [a, b, c, d, e, f, g, h, ..] = bytes;
        let number = u64::from_le_bytes([a, b, c, d, e, f, g, h]) % ApprovalCode::COUNT;
        ApprovalCode(number as u32)
    }

    /// The keys of the claim.
    pub(crate) fn claim(&self, ours: &StaticSecret, theirs: &PublicKey) -> Result<ClaimKeys, LowOrder> {
        let shared = ours.diffie_hellman(theirs)?;
        let [chain, claim] = hash::kdf(&self.export, shared.as_bytes());
        Ok(ClaimKeys { chain, claim })
    }
}

/// The keys that depend on the joiner's WireGuard key.
#[derive(Zeroize, ZeroizeOnDrop)]
pub(crate) struct ClaimKeys {
    chain: [u8; 32],
    claim: [u8; 32],
}

/// The last keys, which depend on the joiner's ML-KEM key too.
#[derive(Zeroize, ZeroizeOnDrop)]
pub(crate) struct GrantKeys {
    /// The key that seals the grant.
    pub(crate) grant: [u8; 32],
    /// The preshared key of a new lease.
    pub(crate) preshared_key: [u8; 32],
}

impl ClaimKeys {
    /// The key that seals the claim.
    pub(crate) fn key(&self) -> &[u8; 32] {
        &self.claim
    }

    pub(crate) fn grant(&self, claim: &[u8], ciphertext: &[u8; kem::CIPHERTEXT_LEN], shared: &[u8; 32]) -> GrantKeys {
        let [mut chain] = hash::kdf(&self.chain, &hash::hash(&[&hash::hash(&[claim]), ciphertext]));
        let [mut rest, grant, preshared_key] = hash::kdf(&chain, shared);
        chain.zeroize();
        rest.zeroize();
        GrantKeys { grant, preshared_key }
    }
}

/// The joiner's share commits to the text of the proof, with its nonce. Without the commitment, a man in the middle who
/// knows the passphrase could choose shares until both sides show the same digits.
pub(crate) fn commitment(proof_text: &[u8]) -> [u8; 32] {
    hash::hash(&[b"RustGuard enrolment v1 commitment", proof_text])
}

/// Seals `text` and appends its tag. The bytes before it in the message are authenticated too.
pub(crate) fn seal(key: &[u8; 32], counter: u64, message: &mut Vec<u8>, text: &[u8]) {
    let start = message.len();
    message.extend_from_slice(text);
    let (header, text) = message.split_at_mut(start);
    let tag = aead::seal_once(key, counter, header, text);
    message.extend_from_slice(&tag);
}

/// Opens the output of [`seal`]; `header` is the bytes before the text.
pub(crate) fn open(
    key: &[u8; 32],
    counter: u64,
    header: &[u8],
    text: &[u8],
    tag: &[u8; 16],
) -> Option<Zeroizing<Vec<u8>>> {
    let mut text = Zeroizing::new(text.to_vec());
    aead::open_once(key, counter, header, &mut text, tag).ok()?;
    Some(text)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_input_changes_every_key() {
        let all =
            |mode, secret: u8, first: &[u8], answer: &[u8], node: u8, claim: &[u8], ciphertext: u8, shared: u8| {
                let keys = Keys::new(mode, &[secret; 64], first, answer);
                let server = StaticSecret::from_bytes([9; 32]).public_key();
                let claims = keys.claim(&StaticSecret::from_bytes([node; 32]), &server).expect("honest keys");
                let grant = claims.grant(claim, &[ciphertext; kem::CIPHERTEXT_LEN], &[shared; 32]);
                let key = *claims.key();
                [keys.to_server, keys.to_client, keys.export, key, grant.grant, grant.preshared_key]
            };
        let base = all(Mode::Window, 1, b"first", b"answer", 2, b"claim", 3, 4);
        // Each changed input affects the key with the given number and all later keys.
        let changed = [
            (all(Mode::Invite, 1, b"first", b"answer", 2, b"claim", 3, 4), 0),
            (all(Mode::Window, 7, b"first", b"answer", 2, b"claim", 3, 4), 0),
            (all(Mode::Window, 1, b"firs", b"tanswer", 2, b"claim", 3, 4), 0),
            (all(Mode::Window, 1, b"first", b"other", 2, b"claim", 3, 4), 0),
            (all(Mode::Window, 1, b"first", b"answer", 7, b"claim", 3, 4), 3),
            (all(Mode::Window, 1, b"first", b"answer", 2, b"other", 3, 4), 4),
            (all(Mode::Window, 1, b"first", b"answer", 2, b"claim", 7, 4), 4),
            (all(Mode::Window, 1, b"first", b"answer", 2, b"claim", 3, 7), 4),
        ];
        for (i, (keys, from)) in changed.iter().enumerate() {
            for (j, (a, b)) in base.iter().zip(keys).enumerate() {
                assert_eq!(a == b, j < *from, "change {i}, key {j}");
            }
        }
        for (i, key) in base.iter().enumerate() {
            assert!(!base[..i].contains(key), "keys are pairwise different");
        }
    }

    #[test]
    fn header_text_counter_and_key_are_authenticated() {
        let mut message = b"header".to_vec();
        seal(&[1; 32], 2, &mut message, b"text");
        let (text, tag) = (&message[6..10], message[10..].first_chunk().expect("a tag"));
        assert_eq!(open(&[1; 32], 2, b"header", text, tag).as_deref(), Some(&b"text".to_vec()));
        assert!(open(&[1; 32], 2, b"headel", text, tag).is_none());
        assert!(open(&[1; 32], 3, b"header", text, tag).is_none());
        assert!(open(&[2; 32], 2, b"header", text, tag).is_none());
        assert!(open(&[1; 32], 2, b"header", b"none", tag).is_none());
    }
}
