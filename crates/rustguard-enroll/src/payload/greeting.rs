//! What a response or welcome says: the settings of the network, or why not.
use super::{
    decision::Decision,
    fields::{read_address, read_list, write_address, write_list},
};
use crate::{
    config::{ConfigError, MAX_DNS, MAX_ROUTES, MAX_SEARCH, ServerConfig},
    join_error::JoinError,
    wire::{MAX_DATAGRAM, RESPONSE_OVERHEAD, Reader, WELCOME_OVERHEAD},
};
use ipnet::IpNet;
use rustguard_crypto::x25519::PublicKey;

/// Bytes the settings may take: what fits into the one with more around it of the two messages that carry them.
pub(crate) const MAX_SETTINGS: usize = MAX_DATAGRAM - RESPONSE_OVERHEAD;
const _: () = assert!(WELCOME_OVERHEAD <= RESPONSE_OVERHEAD);

/// What a welcome or response says.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Greeting {
    Settings(PublicKey, ServerConfig),
    Wait,
    Refused(JoinError),
}

/// `decision 1`, which is not followed by settings.
pub(crate) fn short_greeting(decision: Decision) -> Vec<u8> {
    vec![decision.code()]
}

/// The settings: `0 | server 32 | mtu 2 | port 2 | keepalive 2 | addresses | routes | DNS | search`, numbers little-endian with 0
/// for none, each list a count of one byte and its elements.
pub(crate) fn settings(server: &PublicKey, config: &ServerConfig) -> Result<Vec<u8>, ConfigError> {
    // What a joiner takes, less the routes to the server's own addresses that it adds.
    let counts = [
        ("routes", config.routes.len(), MAX_ROUTES - config.addresses.len().min(2)),
        ("name servers", config.dns.len(), MAX_DNS),
        ("search domains", config.search.len(), MAX_SEARCH),
    ];
    if let Some((what, count, most)) = counts.into_iter().find(|(_, count, most)| count > most) {
        return Err(ConfigError::TooMany { what, count, most });
    }
    settings_unchecked(server, config)
}

/// As [`settings`], however many there are of everything.
pub(crate) fn settings_unchecked(server: &PublicKey, config: &ServerConfig) -> Result<Vec<u8>, ConfigError> {
    let mut text = vec![Decision::Accepted.code()];
    text.extend_from_slice(&server.0);
    for number in [config.mtu, config.port, config.keepalive] {
        text.extend_from_slice(&number.unwrap_or(0).to_le_bytes());
    }
    let mut fits = write_list(&mut text, &config.addresses, |to, address| write_address(to, *address));
    fits &= write_list(&mut text, &config.routes, |to, net| {
        write_address(to, net.addr());
        to.push(net.prefix_len());
    });
    fits &= write_list(&mut text, &config.dns, |to, address| write_address(to, *address));
    fits &= config.search.iter().all(|domain| domain.len() <= 255);
    fits &= write_list(&mut text, &config.search, |to, domain| {
        to.push(domain.len() as u8);
        to.extend_from_slice(domain.as_bytes());
    });
    if fits && text.len() <= MAX_SETTINGS {
        Ok(text)
    } else {
        Err(ConfigError::TooLong { len: text.len(), most: MAX_SETTINGS })
    }
}

impl Greeting {
    pub(crate) fn read(text: &[u8]) -> Option<Self> {
        let mut fields = Reader(text);
        let [code] = *fields.take()?;
        match Decision::from_code(code, None)? {
            Decision::Wait => Some(Self::Wait),
            Decision::Refused(error) => Some(Self::Refused(error)),
            Decision::Accepted => {
                let server = PublicKey(*fields.take()?);
                let mut number = || fields.take().map(|bytes| Some(u16::from_le_bytes(*bytes)).filter(|&n| n != 0));
                let (mtu, port, keepalive) = (number()?, number()?, number()?);
                let addresses = read_list(&mut fields, read_address)?;
                let routes = read_list(&mut fields, |from| {
                    let address = read_address(from)?;
                    let [len] = *from.take()?;
                    IpNet::new(address, len).ok()
                })?;
                let dns = read_list(&mut fields, read_address)?;
                let search = read_list(&mut fields, |from| {
                    let [len] = *from.take()?;
                    let domain = core::str::from_utf8(from.take_slice(usize::from(len))?).ok()?;
                    // It ends up in configuration files: no white space, nothing that could begin another line.
                    domain.bytes().all(|byte| byte.is_ascii_graphic()).then(|| domain.to_owned())
                })?;
                let config = ServerConfig { addresses, routes, dns, search, mtu, port, keepalive };
                fields.0.is_empty().then_some(Self::Settings(server, config))
            }
        }
    }
}
