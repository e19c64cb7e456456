//! `wg0.json` of wg-easy 14 and earlier.

use super::source::{Peer, Problem, Source};
use jiff::Timestamp;
use rustguard_crypto::x25519::{PublicKey, StaticSecret};
use rustguard_device::key;
use rustguard_enroll::lease::PresharedKey;
use serde::Deserialize;
use std::{
    collections::BTreeMap,
    net::{IpAddr, Ipv4Addr, Ipv6Addr},
};
use zeroize::Zeroizing;

/// The prefix lengths of the addresses. The file does not have them: the program uses fixed ones.
const V4_LENGTH: u8 = 24;
const V6_LENGTH: u8 = 64;
/// The port inside its container. The file does not have it.
const PORT: u16 = 51820;

/// The file. Other fields belong to the web page.
#[derive(Deserialize)]
struct File {
    server: Server,
    #[serde(default)]
    clients: BTreeMap<String, Client>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Server {
    private_key: Zeroizing<String>,
    address: String,
    #[serde(default, alias = "addressV6")]
    address6: Option<String>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Client {
    #[serde(default)]
    name: Option<String>,
    address: String,
    #[serde(default, alias = "addressV6")]
    address6: Option<String>,
    public_key: String,
    #[serde(default)]
    pre_shared_key: Option<Zeroizing<String>>,
    #[serde(default = "enabled")]
    enabled: bool,
    /// In the format of Date.toISOString(). After this time, the program disables the client at its next check, if
    /// there is one.
    #[serde(default)]
    expired_at: Option<String>,
}

fn enabled() -> bool {
    true
}

/// Reads the file.
pub(crate) fn read(text: &str) -> Result<Source, Problem> {
    let file: File = serde_json::from_str(text.trim_start_matches('\u{feff}')).map_err(|error| {
        // The error may quote a value, and that may be a key.
        let (line, column) = (error.line(), error.column());
        Problem(format!(
            "it is no wg0.json of wg-easy (line {line}, column {column}): that has a `server` with a `privateKey` and an `address`, and \
             `clients` with an `address` and a `publicKey` each"
        ))
    })?;
    let mut source = Source { easy: true, port: Some(PORT), ..Source::default() };
    let private = key::from_base64(&file.server.private_key)
        .map_err(|why| Problem(format!("privateKey of the server: {why}")))?;
    source.private_key = Some(StaticSecret::from_bytes(*private));
    let own = |text: &str, length| {
        let address: IpAddr = text.parse().map_err(|_| Problem(format!("`{text}` is not an address of the server")))?;
        ipnet::IpNet::new(address, length)
            .map_err(|_| Problem(format!("`{text}` is an address of the other IP version")))
    };
    let server = &file.server;
    let v6 = server.address.parse::<Ipv6Addr>().is_ok();
    source.addresses.push(own(&server.address, if v6 { V6_LENGTH } else { V4_LENGTH })?);
    if let Some(text) = server.address6.as_deref().filter(|text| !text.is_empty()) {
        source.addresses.push(own(text, V6_LENGTH)?);
    }
    for client in file.clients.values() {
        let name = client.name.as_deref().map(str::trim).filter(|name| !name.is_empty());
        let public = key::from_base64(&client.public_key);
        let public = public.map_err(|why| Problem(format!("publicKey of {}: {why}", name.unwrap_or("a client"))))?;
        if !client.enabled {
            source.disabled.push(name.map_or_else(|| client.public_key.clone(), str::to_owned));
            source.barred.push(PublicKey(*public));
            continue;
        }
        let mut peer = Peer::new(PublicKey(*public));
        peer.name = name.map(str::to_owned);
        peer.expires = expires(client, name)?;
        if let Some(preshared) = client.pre_shared_key.as_ref().filter(|key| !key.is_empty()) {
            let preshared = key::from_base64(preshared);
            let preshared =
                preshared.map_err(|why| Problem(format!("preSharedKey of {}: {why}", name.unwrap_or("a client"))))?;
            peer.preshared_key = PresharedKey::from_bytes(&preshared);
        }
        for text in
            [Some(&client.address), client.address6.as_ref()].into_iter().flatten().filter(|text| !text.is_empty())
        {
            let bare = text.split('/').next().unwrap_or_default();
            let address =
                bare.parse::<Ipv4Addr>().map(IpAddr::V4).or_else(|_| bare.parse::<Ipv6Addr>().map(IpAddr::V6));
            let address = address
                .map_err(|_| Problem(format!("`{text}` is not an address of {}", name.unwrap_or("a client"))))?;
            peer.allowed_ips.push(address.into());
        }
        source.peers.push(peer);
    }
    Ok(source)
}

/// When the client expires.
fn expires(client: &Client, name: Option<&str>) -> Result<Option<Timestamp>, Problem> {
    let Some(text) = client.expired_at.as_deref().filter(|text| !text.is_empty()) else { return Ok(None) };
    text.parse().map(Some).map_err(|_| {
        // Without this error, an expired client would be admitted again.
        Problem(format!(
            "`{text}`, expiredAt of {}, is no time such as 2026-01-31T22:59:59.000Z; correct it in a copy, or write null for a client without \
             an end",
            name.unwrap_or("a client")
        ))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    const KEY: &str = "AQEBAQEBAQEBAQEBAQEBAQEBAQEBAQEBAQEBAQEBAQE=";

    fn file(clients: &str) -> String {
        format!(r#"{{"server":{{"privateKey":"{KEY}","publicKey":"x","address":"10.8.0.1"}},"clients":{clients}}}"#)
    }

    #[test]
    fn clients_are_read_with_their_names_and_disabled_ones_are_left_out() {
        let client = |name: &str, address: &str, enabled: bool| {
            format!(
                r#"{{"id":"i","name":"{name}","address":"{address}","privateKey":"p","publicKey":"{KEY}","preSharedKey":"{KEY}","createdAt":"2021","enabled":{enabled}}}"#
            )
        };
        let clients =
            format!(r#"{{"a":{},"b":{}}}"#, client("Phone", "10.8.0.2", true), client("Old", "10.8.0.3", false));
        let source = read(&file(&clients)).unwrap();
        assert_eq!(source.disabled, ["Old"]);
        assert_eq!((source.peers.len(), source.port), (1, Some(51820)));
        assert_eq!(source.peers[0].name.as_deref(), Some("Phone"));
        assert_eq!(source.peers[0].allowed_ips, ["10.8.0.2/32".parse().unwrap()]);
        assert_eq!(source.addresses, ["10.8.0.1/24".parse().unwrap()]);
        assert!(read(&file("{}")).unwrap().peers.is_empty());
    }

    #[test]
    fn what_is_wrong_is_named_without_the_value_of_a_key() {
        let secret = "c2VjcmV0IHRoYXQgaXMgdG9vIGxvbmcgdG8gYmUgYSBrZXkgb2YgdGhpcyBwcm90b2NvbA==";
        let wrong = |text: &str| read(text).map(drop).unwrap_err().0;
        assert!(wrong("{").contains("no wg0.json"));
        assert!(wrong(r#"{"clients":{}}"#).contains("`server`"));
        let text = wrong(&file("{}").replace(KEY, secret));
        assert!(text.contains("privateKey of the server") && !text.contains(secret), "{text}");
        let text = wrong(&format!(r#"{{"server":{{"privateKey":["{secret}"],"address":"10.8.0.1"}}}}"#));
        assert!(!text.contains(secret), "{text}");
        assert!(wrong(&file("{}").replace("10.8.0.1", "10.8.0")).contains("not an address"));
        let client =
            format!(r#"{{"a":{{"name":"Guest","address":"10.8.0.2","publicKey":"{KEY}","expiredAt":"soon"}}}}"#);
        assert!(wrong(&file(&client)).contains("`soon`, expiredAt of Guest"));
    }
}
