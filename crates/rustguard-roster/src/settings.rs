//! The settings that apply to all members of a network.

use crate::{
    fields::{self, Unknown, Writer},
    label::Label,
    pair::SecretId,
};
use ipnet::IpNet;
use std::net::IpAddr;

/// The most prefixes of a network's pools.
pub const MAX_POOLS: usize = 8;
/// The most name servers.
pub const MAX_NAME_SERVERS: usize = 8;
/// The most domains that the name servers are asked for.
pub const MAX_DOMAINS: usize = 16;
/// The smallest MTU: the size that every IPv4 host accepts (RFC 791, section 3.1).
pub const MIN_MTU: u16 = 576;
/// The longest settings, in bytes.
pub const MAX_SETTINGS: usize = 8192;

const NAME: u8 = 1;
const MTU: u8 = 2;
const POOLS: u8 = 3;
const NAME_SERVERS: u8 = 4;
const DOMAINS: u8 = 5;
const KEEPALIVE: u8 = 6;
const PAIR_SECRET: u8 = 7;

/// The settings that apply to all members of a network. Each member decides which of them it adopts.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Settings {
    /// The network's name. Members are called `laptop.NAME.internal`.
    pub name: Label,
    /// The tunnel's MTU, in bytes: at least [`MIN_MTU`].
    pub mtu: Option<u16>,
    /// The prefixes from which members get their addresses: at most [`MAX_POOLS`].
    pub pools: Vec<IpNet>,
    /// Name servers: at most [`MAX_NAME_SERVERS`].
    pub name_servers: Vec<IpAddr>,
    /// The domains that the name servers are asked for, in lower case: at most [`MAX_DOMAINS`]. Without any, they are
    /// asked for everything.
    pub domains: Vec<Box<str>>,
    /// The interval between the keepalives that members send to servers, in seconds.
    pub keepalive: Option<u16>,
    /// The secret that the preshared keys of pairs are derived from. When it changes, members ask for all keys again.
    pub pair_secret: Option<SecretId>,
    unknown: Unknown,
}

impl Settings {
    /// The settings of a network, with nothing but its name.
    pub fn new(name: Label) -> Self {
        Self {
            name,
            mtu: None,
            pools: Vec::new(),
            name_servers: Vec::new(),
            domains: Vec::new(),
            keepalive: None,
            pair_secret: None,
            unknown: Unknown::default(),
        }
    }

    /// Checks for errors that members would refuse.
    ///
    /// # Errors
    /// See [`SettingsError`].
    pub fn check(&self) -> Result<(), SettingsError> {
        let counts = [
            ("pools", self.pools.len(), MAX_POOLS),
            ("name servers", self.name_servers.len(), MAX_NAME_SERVERS),
            ("domains", self.domains.len(), MAX_DOMAINS),
        ];
        if let Some((what, count, most)) = counts.into_iter().find(|(_, count, most)| count > most) {
            return Err(SettingsError::TooMany { what, count, most });
        }
        if let Some(mtu) = self.mtu.filter(|mtu| *mtu < MIN_MTU) {
            return Err(SettingsError::Mtu(mtu));
        }
        if let Some(pool) = self.pools.iter().find(|pool| pool.trunc() != **pool) {
            return Err(SettingsError::Pool(*pool));
        }
        match self.domains.iter().find(|domain| !is_domain(domain)) {
            Some(domain) => Err(SettingsError::Domain(domain.clone())),
            None => Ok(()),
        }
    }

    pub(crate) fn write(&self, to: &mut Vec<u8>) {
        let mut record = Writer::new(to);
        let number = |number: &Option<u16>| number.map_or(Vec::new(), |number| number.to_le_bytes().to_vec());
        record.field(NAME, self.name.as_str().as_bytes());
        record.field(MTU, &number(&self.mtu));
        record.list(POOLS, &self.pools, fields::put_prefix);
        record.list(NAME_SERVERS, &self.name_servers, fields::put_address);
        record.list(DOMAINS, &self.domains, |domain, to| to.extend_from_slice(domain.as_bytes()));
        record.field(KEEPALIVE, &number(&self.keepalive));
        record.field(PAIR_SECRET, self.pair_secret.as_ref().map_or(&[][..], |id| id.as_bytes()));
        record.finish(&self.unknown);
    }

    pub(crate) fn to_bytes(&self) -> Vec<u8> {
        let mut text = Vec::new();
        self.write(&mut text);
        text
    }

    /// Reads settings. `None` for bytes that [`to_bytes`](Self::to_bytes) does not produce.
    pub(crate) fn read(text: &[u8]) -> Option<Self> {
        let mut rest = text;
        let mut record = fields::record(&mut rest)?;
        let mut name = None;
        let mut settings = Self::new(Label::clean("none")?);
        while let Some((kind, value)) = record.next()? {
            match kind {
                NAME => name = Some(fields::text(value)?),
                MTU => settings.mtu = Some(number(value)?),
                POOLS => settings.pools = fields::list(value, MAX_POOLS, fields::prefix)?,
                NAME_SERVERS => settings.name_servers = fields::list(value, MAX_NAME_SERVERS, fields::address)?,
                DOMAINS => settings.domains = fields::list(value, MAX_DOMAINS, domain)?,
                KEEPALIVE => settings.keepalive = Some(number(value)?),
                PAIR_SECRET => settings.pair_secret = Some(SecretId::from_bytes(value.try_into().ok()?)),
                _ => settings.unknown.push(kind, value),
            }
        }
        let settings = Self { name: name?, ..settings };
        (settings.to_bytes() == text && text.len() <= MAX_SETTINGS).then_some(settings)
    }
}

/// Why settings cannot be in a roster.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum SettingsError {
    /// A list is too long.
    #[error("{count} {what} are too many; at most {most} fit into the roster")]
    TooMany {
        /// The elements of the list.
        what: &'static str,
        /// How many there are.
        count: usize,
        /// How many there may be.
        most: usize,
    },
    /// The MTU is too small.
    #[error("an MTU of {0} is too small; the smallest is {MIN_MTU}")]
    Mtu(u16),
    /// A pool has bits set behind its length.
    #[error("the pool {0} has bits behind its length; write {net}", net = .0.trunc())]
    Pool(IpNet),
    /// A text is no domain name.
    #[error("{0:?} is not a domain name; write one in lower case, such as corp.example")]
    Domain(Box<str>),
}

fn number(value: &[u8]) -> Option<u16> {
    value.try_into().ok().map(u16::from_le_bytes)
}

fn domain(value: &[u8]) -> Option<Box<str>> {
    std::str::from_utf8(value).ok().filter(|text| is_domain(text)).map(Into::into)
}

/// Whether the text is a domain name made of labels, and not readable as an address.
fn is_domain(text: &str) -> bool {
    let only_digits = || text.bytes().all(|byte| byte.is_ascii_digit() || byte == b'.');
    text.len() <= 253 && text.split('.').all(|label| label.parse::<Label>().is_ok()) && !only_digits()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn settings() -> Settings {
        Settings {
            mtu: Some(1360),
            pools: vec!["10.150.0.0/24".parse().unwrap(), "fd15::/64".parse().unwrap()],
            name_servers: vec!["10.150.0.1".parse().unwrap()],
            domains: vec!["corp.example".into()],
            keepalive: Some(25),
            pair_secret: Some(SecretId::from_bytes([5; 16])),
            ..Settings::new("rg0".parse().unwrap())
        }
    }

    #[test]
    fn what_is_written_is_read() {
        for settings in [settings(), Settings::new("rg0".parse().unwrap())] {
            assert_eq!(settings.check(), Ok(()));
            assert_eq!(Settings::read(&settings.to_bytes()), Some(settings));
        }
        let mut longer = settings().to_bytes();
        longer.push(0);
        assert_eq!(Settings::read(&longer), None);
    }

    #[test]
    fn an_mtu_holds_a_packet() {
        let small = Settings { mtu: Some(575), ..settings() };
        assert_eq!(small.check().unwrap_err().to_string(), "an MTU of 575 is too small; the smallest is 576");
        assert_eq!(Settings { mtu: Some(576), ..settings() }.check(), Ok(()));
    }

    #[test]
    fn domains_are_names() {
        for wrong in ["", ".", "a..b", "~a", "a.", "10.0.0.1", "a b", "a\u{1b}b", "A.b"] {
            let settings = Settings { domains: vec![wrong.into()], ..settings() };
            assert_eq!(settings.check(), Err(SettingsError::Domain(wrong.into())), "{wrong:?}");
            assert_eq!(Settings::read(&settings.to_bytes()), None, "{wrong:?}");
        }
    }
}
