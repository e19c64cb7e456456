//! The documents of a log that several servers share: files that all of them have.

use crate::replica::Documents;
use rustguard_crypto::x25519::PublicKey;
use rustguard_device::key;
use std::collections::{BTreeMap, BTreeSet};
use zeroize::Zeroizing;

/// The private key that all servers answer, in base64. The file of the state folder has the same name.
pub(crate) const GATEWAY_KEY: &str = "gateway-key";
/// The seed of the key that signs rosters, in base64.
pub(crate) const NETWORK_KEY: &str = "network-key";
/// The secret from which the preshared keys of pairs are derived, in base64.
pub(crate) const PAIR_SECRET: &str = "pair-secret";
/// The settings that all servers share, as in `settings.json`.
pub(crate) const SETTINGS: &str = "settings";
/// The text of the policy.
pub(crate) const POLICY: &str = "policy";
/// The number of the last roster before the log began.
pub(crate) const ROSTERS: &str = "rosters";
/// The beginning of the name of a server's document. Its public key in base64 follows.
pub(crate) const SERVER: &str = "server/";
/// The beginning of the name of the document that says at which server a client is. Its key in base64 follows.
pub(crate) const PLACE: &str = "at/";
/// The beginning of the name of the document with a member's name, if that is not the one which the machine wants. Its
/// key in base64 follows.
pub(crate) const NAME: &str = "name/";
/// The most documents. Each client has one, if it has been at another server than the first.
pub(crate) const MAX_DOCUMENTS: usize = 60_000;

/// The public keys of the servers on the store.
pub(crate) fn servers(documents: &Documents) -> BTreeSet<PublicKey> {
    let names = documents.keys().filter_map(|name| name.strip_prefix(SERVER));
    names.filter_map(|name| Some(PublicKey(*key::from_base64(name).ok()?))).collect()
}

/// The names of members that are not those which the machines want, by the keys of the members.
pub(crate) fn named(documents: &Documents) -> impl Iterator<Item = (PublicKey, &str)> {
    let names = documents.range(NAME.to_owned()..).take_while(|(name, _)| name.starts_with(NAME));
    names.filter_map(|(name, text)| {
        let key = key::from_base64(name.strip_prefix(NAME)?).ok()?;
        Some((PublicKey(*key), std::str::from_utf8(text).ok()?))
    })
}

/// The name of the document with a member's name.
pub(crate) fn name_document(member: &PublicKey) -> String {
    format!("{NAME}{}", *key::to_base64(&member.0))
}

/// The number of the last roster before the log began.
pub(crate) fn rosters(documents: &Documents) -> u64 {
    let number = documents.get(ROSTERS).and_then(|text| std::str::from_utf8(text).ok()?.parse().ok());
    number.unwrap_or(0)
}

/// The servers at which clients were last, by the keys of the clients.
pub(crate) fn places(documents: &Documents) -> BTreeMap<PublicKey, PublicKey> {
    let places = documents.range(PLACE.to_owned()..).take_while(|(name, _)| name.starts_with(PLACE));
    let place = |(name, server): (&String, &Zeroizing<Vec<u8>>)| {
        let client = key::from_base64(name.strip_prefix(PLACE)?).ok()?;
        let server = key::from_base64(std::str::from_utf8(server).ok()?).ok()?;
        Some((PublicKey(*client), PublicKey(*server)))
    };
    places.filter_map(place).collect()
}

/// The name of the document that says at which server a client is.
pub(crate) fn place_document(client: &PublicKey) -> String {
    format!("{PLACE}{}", *key::to_base64(&client.0))
}

/// The name of a server's document.
pub(crate) fn server_document(key: &PublicKey) -> String {
    format!("{}{}", SERVER, *key::to_base64(&key.0))
}

/// A key in a document.
pub(crate) fn secret(documents: &Documents, name: &'static str) -> Option<Zeroizing<[u8; 32]>> {
    key::from_base64(std::str::from_utf8(documents.get(name)?).ok()?.trim_end()).ok()
}

pub(crate) fn base64(secret: &[u8; 32]) -> Zeroizing<Vec<u8>> {
    Zeroizing::new(format!("{}\n", *key::to_base64(secret)).into_bytes())
}
