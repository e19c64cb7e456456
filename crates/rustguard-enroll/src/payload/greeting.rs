//! The contents of a response or welcome: the settings of the network, or the reason of a refusal.
use super::{
    decision::Decision,
    fields::{read_address, read_list, write_address, write_list},
};
use crate::{
    config::{ConfigError, ServerConfig},
    join_error::JoinError,
    wire::{MAX_DATAGRAM, RESPONSE_OVERHEAD, Reader, WELCOME_OVERHEAD},
};
use ipnet::IpNet;
use rustguard_crypto::x25519::PublicKey;

/// The largest size of the settings in bytes: the space in a response, which has the larger overhead of the two
/// messages that carry them.
pub(crate) const MAX_SETTINGS: usize = MAX_DATAGRAM - RESPONSE_OVERHEAD;
const _: () = assert!(WELCOME_OVERHEAD <= RESPONSE_OVERHEAD);

/// The contents of a welcome or response.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Greeting {
    Settings(PublicKey, ServerConfig),
    Wait,
    Refused(JoinError),
}

/// `decision 1`, without settings.
pub(crate) fn short_greeting(decision: Decision) -> Vec<u8> {
    vec![decision.code()]
}

/// The settings: `0 | server 32 | mtu 2 | port 2 | keepalive 2 | addresses | routes | DNS | search`. Numbers are
/// little-endian, and 0 means none. Each list is a count of one byte and its elements.
pub(crate) fn settings(server: &PublicKey, config: &ServerConfig) -> Result<Vec<u8>, ConfigError> {
    config.check_contents()?;
    settings_unchecked(server, config)
}

impl ServerConfig {
    /// Checks that joiners accept the settings, and that they fit into one datagram.
    ///
    /// # Errors
    /// See [`ConfigError`].
    pub fn check(&self) -> Result<(), ConfigError> {
        settings(&PublicKey([0; 32]), self).map(drop)
    }
}

/// Like [`settings`], without the checks of the contents.
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
                    // The text is written to configuration files, so white space and line breaks are not permitted.
                    domain.bytes().all(|byte| byte.is_ascii_graphic()).then(|| domain.to_owned())
                })?;
                let config = ServerConfig { addresses, routes, dns, search, mtu, port, keepalive };
                fields.0.is_empty().then_some(Self::Settings(server, config))
            }
        }
    }
}
