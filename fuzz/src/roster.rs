//! Rosters as files.
use crate::roster_lab::{ISSUER, issued, network};
use rustguard_crypto::x25519::PublicKey;
use rustguard_roster::{
    plan::{LocalConsent, Plan},
    roster::Roster,
};

/// Reads the input as a file of a roster, whole or inside a genuine one.
///
/// Nothing panics. What is read is what the network's key has signed, so that it comes out as it went in, and there is a plan for each
/// of its members.
pub fn roster(input: &[u8]) {
    read(input);
    // The first bytes say where the others replace those of a genuine file.
    let Some((&at, bytes)) = input.split_first_chunk::<2>() else { return };
    let genuine = issued(3).to_bytes();
    let at = usize::from(u16::from_le_bytes(at)) % (genuine.len() + 1);
    let mut changed = genuine.clone();
    let end = genuine.len().min(at + bytes.len());
    changed[at..end].copy_from_slice(&bytes[..end - at]);
    changed.extend_from_slice(&bytes[end - at..]);
    assert_eq!(read(&changed), changed == genuine, "a changed file is a roster");
}

/// Whether it is a roster.
fn read(text: &[u8]) -> bool {
    let Some(roster) = Roster::from_bytes(text, &network()) else { return false };
    assert_eq!(roster.to_bytes(), text);
    assert!(Plan::new(&roster, &PublicKey([0; 32]), &LocalConsent::default()).is_none());
    for member in roster.members() {
        assert!(Plan::new(&roster, &member.public_key, &LocalConsent::default()).is_some());
    }
    // Only genuine ones are signed, and the fuzzer does not have the key.
    assert!(roster.version().number <= ISSUER);
    true
}
