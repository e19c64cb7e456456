//! The joiner, as an initiation and a proof describe it.
use crate::{
    lease::{MAX_NAME, clean_name},
    wire::{INITIATION_TEXT, PROOF_TEXT, Reader},
};
use rustguard_core::wire::TIMESTAMP_LEN;
use rustguard_crypto::x25519::PublicKey;

/// The joiner asks for an ephemeral lease.
const FLAG_EPHEMERAL: u8 = 1;
/// The joiner can be a member of a network: it wants the network's key, and understands the roster.
const FLAG_MEMBER: u8 = 2;
/// Bytes of the proof of the joiner's WireGuard key in an initiation.
pub(crate) const PROOF_OF_KEY: usize = 16;

/// A machine that wants to join.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Joiner {
    pub(crate) public_key: PublicKey,
    pub(crate) name: Option<String>,
    /// The joiner asks the server to end the lease when it is silent for long.
    pub(crate) ephemeral: bool,
    /// The joiner can be a member of a network.
    pub(crate) member: bool,
}

impl Joiner {
    /// `public key 32 | flags 1 | length 1 | name`.
    fn write(&self, to: &mut Vec<u8>) {
        let name = self.name.as_deref().unwrap_or_default().as_bytes();
        let name = &name[..name.len().min(MAX_NAME)];
        to.extend_from_slice(&self.public_key.0);
        let flags = [(self.ephemeral, FLAG_EPHEMERAL), (self.member, FLAG_MEMBER)];
        to.push(flags.iter().filter(|(set, _)| *set).map(|(_, flag)| flag).sum());
        to.push(name.len() as u8);
        to.extend_from_slice(name);
    }

    fn read(from: &mut Reader<'_>) -> Option<Self> {
        let public_key = PublicKey(*from.take()?);
        let [flags, len] = *from.take()?;
        let name = from.take_slice(usize::from(len))?;
        if usize::from(len) > MAX_NAME {
            return None;
        }
        let name = clean_name(&String::from_utf8_lossy(name));
        Some(Self { public_key, name, ephemeral: flags & FLAG_EPHEMERAL != 0, member: flags & FLAG_MEMBER != 0 })
    }

    /// The text of an initiation: `timestamp 12 | joiner | proof 16 | zeros`. `prove` makes the proof of the preceding
    /// bytes.
    pub(crate) fn initiation_text(
        &self,
        timestamp: &[u8; TIMESTAMP_LEN],
        prove: impl FnOnce(&[u8]) -> [u8; PROOF_OF_KEY],
    ) -> [u8; INITIATION_TEXT] {
        let mut text = timestamp.to_vec();
        self.write(&mut text);
        let proof = prove(&text);
        text.extend_from_slice(&proof);
        padded(text)
    }

    /// The timestamp, the joiner and its proof. A program that makes no proof sends zeros there.
    pub(crate) fn from_initiation(text: &[u8]) -> Option<([u8; TIMESTAMP_LEN], Self, ProofOfKey<'_>)> {
        let mut fields = Reader(text);
        let (timestamp, joiner) = (*fields.take()?, Self::read(&mut fields)?);
        let proven = &text[..text.len() - fields.0.len()];
        Some((timestamp, joiner, ProofOfKey { text: proven, mac: fields.take()? }))
    }

    /// The text of a proof: `nonce 32 | joiner | zeros`.
    pub(crate) fn proof_text(&self, nonce: &[u8; 32]) -> [u8; PROOF_TEXT] {
        let mut text = nonce.to_vec();
        self.write(&mut text);
        padded(text)
    }

    pub(crate) fn from_proof(text: &[u8]) -> Option<Self> {
        let mut fields = Reader(text);
        fields.take::<32>()?;
        Self::read(&mut fields)
    }
}

fn padded<const N: usize>(mut text: Vec<u8>) -> [u8; N] {
    text.resize(N, 0);
    text.try_into().expect("resized to N")
}

/// The part of an initiation that proves the joiner's WireGuard key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct ProofOfKey<'t> {
    /// The bytes that precede the proof.
    pub(crate) text: &'t [u8],
    pub(crate) mac: &'t [u8; PROOF_OF_KEY],
}
