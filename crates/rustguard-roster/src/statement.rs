//! A member's statement about itself to the server that issues the roster: the prefixes behind it, its endpoints if it
//! is a server, or that it leaves.
//!
//! It is only the member's claim. The server decides what follows from it: see `rustguard peer allow`.
//!
//! ```text
//! record, with the fields
//!   1: the prefixes that it announces, as in the record of a member
//!   2: where it is reached from outside if it is a server, as in the record of a member
//!   3: 1 if it leaves the network; nothing else counts then
//!   4: the WireGuard key that it wants to have in place of the present one, 32 bytes
//!   5: the proofs that it has the private key to it, of 16 bytes, one for each server
//!   6: the version of its program, 1 to 32 printable characters of ASCII
//! ```

use crate::{
    fields::{self, Unknown, Writer},
    key::NetworkKey,
    member::{MAX_ENDPOINT, MAX_ENDPOINTS, MAX_PREFIXES, MAX_SERVERS},
};
use ipnet::IpNet;
use rustguard_core::host_port::HostPort;
use rustguard_crypto::{
    hash::{ct_eq, hash, hmac},
    x25519::{PublicKey, StaticSecret},
};

/// The most bytes of a statement. It has to fit into one message.
pub const MAX_STATEMENT: usize = 1100;

const PREFIXES: u8 = 1;
const ENDPOINTS: u8 = 2;
const LEAVES: u8 = 3;
const NEW_KEY: u8 = 4;
const PROOFS: u8 = 5;
const PROGRAM: u8 = 6;
/// The longest version of a program, in bytes.
const MAX_PROGRAM: usize = 32;
const PROOF_LABEL: &[u8] = b"rustguard roster v1 new key";
const DIGEST: &[u8] = b"rustguard roster v1 statement";

/// The first bytes of a statement's hash: enough to distinguish it from an earlier one of the same member.
pub(crate) type StatementDigest = [u8; 8];

/// A member's statement about itself.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Statement {
    /// The prefixes that it announces, in order and without repetition: at most [`MAX_PREFIXES`].
    pub prefixes: Vec<IpNet>,
    /// Its endpoints as seen from outside, if it is a server: at most [`MAX_ENDPOINTS`].
    pub endpoints: Vec<HostPort>,
    /// Whether it leaves the network.
    pub leaves: bool,
    /// The key that is to replace its present one.
    pub new_key: Option<NewKey>,
    /// The version of its program, for people: at most 32 printable characters of ASCII.
    program: Option<String>,
    unknown: Unknown,
}

/// A key that a member wants to use, with proofs that it has the private key.
///
/// A proof is 16 bytes of HMAC-BLAKE2s, keyed by the Diffie-Hellman result of the new key and a server's key, over the
/// network's key and all three public keys. Only the machine and that server can compute it, and it has no other use.
/// Without the proof, a member could claim the key of a machine that is in no network yet, and so prevent that machine
/// from ever joining this network.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NewKey {
    public_key: PublicKey,
    proofs: Vec<Proof>,
}

type Proof = [u8; 16];

impl NewKey {
    /// The public key of `secret` for the member whose present key is `member`, with a proof for each of these servers:
    /// the member does not know which of them issues the roster.
    pub fn new(
        secret: &StaticSecret,
        network: &NetworkKey,
        member: &PublicKey,
        servers: impl IntoIterator<Item = PublicKey>,
    ) -> Self {
        let public_key = secret.public_key();
        let proof = |server: PublicKey| proof(secret, &server, [&network.0, &member.0, &public_key.0, &server.0]);
        Self { public_key, proofs: servers.into_iter().filter_map(proof).take(MAX_SERVERS).collect() }
    }

    /// The key.
    pub fn public_key(&self) -> &PublicKey {
        &self.public_key
    }

    /// Whether there is a proof for the server with this private key.
    pub fn is_proven(&self, server: &StaticSecret, network: &NetworkKey, member: &PublicKey) -> bool {
        let own = server.public_key();
        let expected = proof(server, &self.public_key, [&network.0, &member.0, &self.public_key.0, &own.0]);
        expected.is_some_and(|expected| self.proofs.iter().any(|proof| ct_eq(proof, &expected)))
    }
}

/// `None` for a key of low order.
fn proof(secret: &StaticSecret, other: &PublicKey, [network, member, new, server]: [&[u8; 32]; 4]) -> Option<Proof> {
    let shared = secret.diffie_hellman(other).ok()?;
    hmac(shared.as_bytes(), &[PROOF_LABEL, network, member, new, server]).first_chunk().copied()
}

impl Statement {
    /// A statement that announces these prefixes. Bits behind their lengths are cleared.
    pub fn new(prefixes: impl IntoIterator<Item = IpNet>) -> Self {
        let mut prefixes: Vec<_> = prefixes.into_iter().map(|prefix| prefix.trunc()).collect();
        prefixes.sort_unstable();
        prefixes.dedup();
        Self { prefixes, ..Self::default() }
    }

    /// Sets [`endpoints`](Self::endpoints).
    #[must_use]
    pub fn with_endpoints(self, endpoints: impl IntoIterator<Item = HostPort>) -> Self {
        Self { endpoints: endpoints.into_iter().collect(), ..self }
    }

    /// The statement of a member that leaves the network.
    pub fn leaving() -> Self {
        Self { leaves: true, ..Self::default() }
    }

    /// Sets [`new_key`](Self::new_key).
    #[must_use]
    pub fn with_new_key(self, key: impl Into<Option<NewKey>>) -> Self {
        Self { new_key: key.into(), ..self }
    }

    /// Sets the version of the program, for people. It is omitted if it is not a short printable text, or if the
    /// statement has no room for it.
    #[must_use]
    pub fn with_program(self, version: &str) -> Self {
        let told = Self { program: program(version.as_bytes()), ..self.clone() };
        if told.check().is_ok() { told } else { self }
    }

    /// The version of the member's program.
    pub fn program(&self) -> Option<&str> {
        self.program.as_deref()
    }

    /// Checks for errors that a server would refuse.
    ///
    /// # Errors
    /// See [`StatementError`].
    pub fn check(&self) -> Result<(), StatementError> {
        let count = self.prefixes.len();
        if count > MAX_PREFIXES {
            return Err(StatementError::TooMany(count));
        }
        let count = self.endpoints.len();
        if count > MAX_ENDPOINTS || self.endpoints.iter().any(|endpoint| endpoint.to_string().len() > MAX_ENDPOINT) {
            return Err(StatementError::Endpoints(count));
        }
        let len = self.to_bytes().len();
        if len > MAX_STATEMENT { Err(StatementError::TooLong(len)) } else { Ok(()) }
    }

    pub(crate) fn to_bytes(&self) -> Vec<u8> {
        let mut bytes = Vec::new();
        let mut record = Writer::new(&mut bytes);
        record.list(PREFIXES, &self.prefixes, fields::put_prefix);
        record.list(ENDPOINTS, &self.endpoints, |endpoint, to| to.extend_from_slice(endpoint.to_string().as_bytes()));
        record.field(LEAVES, if self.leaves { &[1] } else { &[] });
        if let Some(NewKey { public_key, proofs }) = &self.new_key {
            record.field(NEW_KEY, &public_key.0);
            record.list(PROOFS, proofs, |proof, to| to.extend_from_slice(proof));
        }
        record.field(PROGRAM, self.program.as_deref().unwrap_or_default().as_bytes());
        record.finish(&self.unknown);
        bytes
    }

    /// Reads the statement at the beginning of `text`. `None` for bytes that [`to_bytes`](Self::to_bytes) does not
    /// produce.
    pub(crate) fn read(text: &[u8]) -> Option<Self> {
        let mut rest = text;
        let mut record = fields::record(&mut rest)?;
        let bytes = &text[..text.len() - rest.len()];
        let mut statement = Self::default();
        while let Some((kind, value)) = record.next()? {
            match kind {
                PREFIXES => statement.prefixes = fields::list(value, MAX_PREFIXES, fields::prefix)?,
                ENDPOINTS => statement.endpoints = fields::list(value, MAX_ENDPOINTS, fields::text)?,
                LEAVES => statement.leaves = value == [1],
                NEW_KEY => {
                    let public_key = PublicKey(value.try_into().ok()?);
                    statement.new_key = Some(NewKey { public_key, proofs: Vec::new() });
                }
                PROOFS => {
                    let proofs = fields::list(value, MAX_SERVERS, |proof| proof.try_into().ok())?;
                    statement.new_key.as_mut()?.proofs = proofs;
                }
                PROGRAM if program(value).is_some() => statement.program = program(value),
                // Fields of a later version have no effect here, but they are part of the statement.
                _ => statement.unknown.push(kind, value),
            }
        }
        let in_order = statement.prefixes.is_sorted_by(|a, b| a < b);
        (in_order && bytes.len() <= MAX_STATEMENT && statement.to_bytes() == bytes).then_some(statement)
    }

    pub(crate) fn digest(&self) -> StatementDigest {
        let digest = hash(&[DIGEST, &self.to_bytes()]);
        *digest.first_chunk().expect("a hash has 32 bytes")
    }
}

/// The version of a program, if it is short and printable.
fn program(text: &[u8]) -> Option<String> {
    let is_proper = (1..=MAX_PROGRAM).contains(&text.len()) && text.iter().all(u8::is_ascii_graphic);
    is_proper.then(|| String::from_utf8_lossy(text).into_owned())
}

/// Why a statement cannot be sent.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum StatementError {
    /// There are too many prefixes.
    #[error("{0} prefixes are announced; a member announces at most 64")]
    TooMany(usize),
    /// There are too many endpoints, or one is longer than a domain name with a port.
    #[error("{0} endpoints of a server; at most 4 are told, of at most 255 bytes each")]
    Endpoints(usize),
    /// The statement does not fit into a message.
    #[error(
        "the announced prefixes take {0} bytes, with the proofs of a new key; a message has room for 1,100, which is 55 prefixes of IPv6"
    )]
    TooLong(usize),
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::{collection::vec, prelude::*};
    use std::net::IpAddr;

    fn prefix() -> impl Strategy<Value = IpNet> {
        (any::<IpAddr>(), 0u8..=128)
            .prop_map(|(address, len)| IpNet::new(address, len.min(if address.is_ipv4() { 32 } else { 128 })).unwrap())
    }

    proptest! {
        #[test]
        fn what_is_written_is_read(
            prefixes in vec(prefix(), 0..=MAX_PREFIXES),
            endpoints in vec("[a-z]{1,9}\\.[a-z]{1,9}:[1-9][0-9]{0,3}", 0..=MAX_ENDPOINTS),
            leaves: bool,
            new_key: Option<([u8; 32], Vec<[u8; 16]>)>,
            program: Option<(u8, u8)>,
            padding in vec(Just(0), 0..16),
        ) {
            let endpoints = endpoints.into_iter().map(|text| text.parse().unwrap());
            let new_key = new_key.map(|(key, mut proofs)| {
                proofs.truncate(MAX_SERVERS);
                NewKey { public_key: PublicKey(key), proofs }
            });
            let statement = Statement { leaves, new_key, ..Statement::new(prefixes).with_endpoints(endpoints) };
            let bare = statement.check();
            let statement = match program {
                Some((major, minor)) => statement.with_program(&format!("{major}.{minor}.0")),
                None => statement,
            };
            prop_assert_eq!(statement.check(), bare, "a version takes nobody's room");
            let mut text = statement.to_bytes();
            let fits = statement.check().is_ok();
            prop_assert_eq!(fits, text.len() <= MAX_STATEMENT);
            text.extend_from_slice(&padding);
            prop_assert_eq!(Statement::read(&text), fits.then_some(statement));
        }

        #[test]
        fn whatever_is_read_comes_out_as_it_went_in(text in vec(any::<u8>(), 0..64)) {
            if let Some(statement) = Statement::read(&text) {
                let bytes = statement.to_bytes();
                prop_assert_eq!(&bytes[..], &text[..bytes.len()]);
            }
        }
    }

    #[test]
    fn a_version_is_short_and_printable_or_is_not_known() {
        let of = |version: &str| Statement::default().with_program(version);
        assert_eq!(of("1.2.3-rc.1+build").program(), Some("1.2.3-rc.1+build"));
        for wrong in ["", "a b", "1.2\n", "\u{202e}1", "é", &"1".repeat(33)] {
            assert_eq!(of(wrong).program(), None, "{wrong}");
            // A member may send a malformed version anyway. The rest of its statement is still used.
            let text = [
                &(3 + wrong.len() as u16).to_le_bytes()[..],
                &[6],
                &(wrong.len() as u16).to_le_bytes(),
                wrong.as_bytes(),
            ]
            .concat();
            let read = Statement::read(&text);
            assert_eq!(
                read.as_ref().map(|it| (it.program(), it.to_bytes() == text)),
                (!wrong.is_empty()).then_some((None, true))
            );
        }
        assert_ne!(of("1.0.0").digest(), of("1.0.1").digest(), "a server hears of an update");
    }

    #[test]
    fn fields_of_a_later_version_change_the_digest_and_nothing_else() {
        let statement = Statement::new(["10.0.0.0/8".parse().unwrap()]);
        let mut text = statement.to_bytes();
        text.extend_from_slice(&[9, 1, 0, 7]);
        let len = (text.len() - 2) as u16;
        text[..2].copy_from_slice(&len.to_le_bytes());
        let later = Statement::read(&text).unwrap();
        assert_eq!(later.prefixes, statement.prefixes);
        assert!(later.digest() != statement.digest() && later.to_bytes() == text);
    }

    #[test]
    fn only_who_has_the_private_key_can_prove_a_new_key_and_only_to_one_server() {
        let [old, new, server, other] = [1, 2, 3, 4].map(|byte| StaticSecret::from_bytes([byte; 32]));
        let (network, member) = (NetworkKey([9; 32]), old.public_key());
        let servers = [&other, &server].map(StaticSecret::public_key);
        let key = NewKey::new(&new, &network, &member, servers);
        assert!(key.is_proven(&server, &network, &member) && key.is_proven(&other, &network, &member));
        assert!(!key.is_proven(&old, &network, &member), "no proof was made for it");
        assert!(!key.is_proven(&server, &NetworkKey([8; 32]), &member), "another network");
        assert!(!key.is_proven(&server, &network, &other.public_key()), "of another member");
        let stolen = NewKey { public_key: other.public_key(), ..key };
        assert!(!stolen.is_proven(&server, &network, &member), "another key");
        let none = NewKey::new(&new, &network, &member, [PublicKey([0; 32])]);
        assert!(none.proofs.is_empty(), "a key of low order proves nothing");
        assert!(
            !NewKey { public_key: PublicKey([0; 32]), proofs: vec![[0; 16]] }.is_proven(&server, &network, &member)
        );
    }

    #[test]
    fn one_statement_has_one_form() {
        let [a, b] = ["10.0.0.0/8", "10.1.0.0/16"].map(|text| text.parse().unwrap());
        assert_eq!(Statement::new([b, a, b]), Statement::new([a, b]));
        let backwards = Statement { prefixes: vec![b, a], ..Statement::default() };
        assert_eq!(Statement::read(&backwards.to_bytes()), None);
        let twice = Statement { prefixes: vec![a, a], ..Statement::default() };
        assert_eq!(Statement::read(&twice.to_bytes()), None);
    }

    #[test]
    fn what_is_too_much_is_named() {
        let nets = |v6: bool| {
            (0..70_u8).map(move |n| match v6 {
                true => format!("fd{n:02x}::/64").parse::<IpNet>().unwrap(),
                false => format!("10.{n}.0.0/16").parse().unwrap(),
            })
        };
        assert_eq!(Statement::new(nets(false)).check(), Err(StatementError::TooMany(70)));
        assert_eq!(Statement::new(nets(false).take(64)).check(), Ok(()));
        let at = |name: &str| format!("{name}:51820").parse::<HostPort>().unwrap();
        let reached = |endpoints: Vec<HostPort>| Statement::default().with_endpoints(endpoints).check();
        assert_eq!(reached(vec![at("a"); 5]), Err(StatementError::Endpoints(5)));
        assert_eq!(reached(vec![at(&"a".repeat(300))]), Err(StatementError::Endpoints(1)));
        assert_eq!(reached(vec![at("a"); 4]), Ok(()));
        assert!(matches!(Statement::new(nets(true).take(64)).check(), Err(StatementError::TooLong(_))));
        assert_eq!(Statement::new(nets(true).take(55)).check(), Ok(()), "as the message says");
    }
}
