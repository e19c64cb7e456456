//! Rosters as files.
use crate::roster_lab::{ISSUER, issued, network, secret};
use rustguard_crypto::x25519::PublicKey;
use rustguard_roster::{
    plan::{LocalConsent, Plan},
    roster::Roster,
    server_state::ServerState,
};
use zeroize::Zeroizing;

/// Reads the input as a file of a roster, or of a server's state, as a whole or as a change to a genuine file.
///
/// Nothing panics. Only files that the network's key has signed are accepted: they are written unchanged, and there is
/// a plan for each of their members.
pub fn roster(input: &[u8]) {
    read(input);
    read_state(input);
    // The first bytes are the place at which the others replace those of a genuine file.
    let Some((&at, bytes)) = input.split_first_chunk::<2>() else { return };
    let state = ServerState::new(&secret(), 3, 7, Zeroizing::new(vec![5; 100_000])).to_bytes();
    let changed = changed_file(&state, at, bytes);
    assert_eq!(read_state(&changed), changed == **state, "a changed file is a state");
    let genuine = issued(3).to_bytes();
    let changed = changed_file(&genuine, at, bytes);
    assert_eq!(read(&changed), changed == genuine, "a changed file is a roster");
}

/// A file with other bytes from this place on.
fn changed_file(genuine: &[u8], at: [u8; 2], bytes: &[u8]) -> Vec<u8> {
    let at = usize::from(u16::from_le_bytes(at)) % (genuine.len() + 1);
    let mut changed = genuine.to_vec();
    let end = genuine.len().min(at + bytes.len());
    changed[at..end].copy_from_slice(&bytes[..end - at]);
    changed.extend_from_slice(&bytes[end - at..]);
    changed
}

/// Whether it is the state of a server.
fn read_state(text: &[u8]) -> bool {
    let Some(state) = ServerState::from_bytes(text, &network()) else { return false };
    assert_eq!(state.to_bytes()[..], *text);
    true
}

/// Whether it is a roster.
fn read(text: &[u8]) -> bool {
    let Some(roster) = Roster::from_bytes(text, &network()) else { return false };
    assert_eq!(roster.to_bytes(), text);
    assert!(Plan::new(&roster, &PublicKey([0; 32]), &LocalConsent::default()).is_none());
    for member in roster.members() {
        assert!(Plan::new(&roster, &member.public_key, &LocalConsent::default()).is_some());
    }
    // The fuzzer does not have the key, so only genuine rosters have a valid signature.
    assert!(roster.version().number <= ISSUER);
    true
}
