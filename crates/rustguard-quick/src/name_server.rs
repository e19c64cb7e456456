//! A name server in `DNS`: an address, and for a link-local address its interface.

use rustguard_device::interface::check_name;
use serde::{Deserialize, Deserializer, Serialize, Serializer, de::Error as _};
use std::{fmt, net::IpAddr, str::FromStr};

/// A name server: `192.0.2.53`, `2001:db8::53`, or `fe80::1%eth0` with a zone (RFC 4007, section 11).
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct NameServer {
    address: IpAddr,
    zone: Option<Box<str>>,
}

/// A text that is no name server.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("a name server is an IP address; behind a link-local one, `%` and an interface may stand: fe80::1%eth0")]
pub struct NotNameServer;

impl NameServer {
    /// The address.
    pub fn address(&self) -> IpAddr {
        self.address
    }

    /// The interface of a link-local address, by its name or its index.
    pub fn zone(&self) -> Option<&str> {
        self.zone.as_deref()
    }

    /// Whether it can be asked through this interface. Every server without a zone can.
    pub(crate) fn is_at(&self, interface: &str, index: u32) -> bool {
        self.zone().is_none_or(|zone| zone == interface || zone.parse() == Ok(index))
    }
}

impl From<IpAddr> for NameServer {
    fn from(address: IpAddr) -> Self {
        Self { address, zone: None }
    }
}

impl FromStr for NameServer {
    type Err = NotNameServer;

    fn from_str(text: &str) -> Result<Self, NotNameServer> {
        let Some((address, zone)) = text.split_once('%') else {
            return text.parse().map(IpAddr::into).map_err(|_| NotNameServer);
        };
        match address.parse().map_err(|_| NotNameServer)? {
            // Only link-local addresses have a zone.
            IpAddr::V6(address) if address.is_unicast_link_local() && check_name(zone).is_ok() => {
                Ok(Self { address: address.into(), zone: Some(zone.into()) })
            }
            _ => Err(NotNameServer),
        }
    }
}

impl fmt::Display for NameServer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.zone {
            Some(zone) => write!(f, "{}%{zone}", self.address),
            None => self.address.fmt(f),
        }
    }
}

impl Serialize for NameServer {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

impl<'de> Deserialize<'de> for NameServer {
    fn deserialize<D: Deserializer<'de>>(json: D) -> Result<Self, D::Error> {
        String::deserialize(json)?.parse().map_err(D::Error::custom)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_zone_stands_behind_a_link_local_address_only() {
        for text in ["192.0.2.53", "2001:db8::53", "fe80::1", "fe80::1%eth0", "fe80::1%3"] {
            assert_eq!(text.parse::<NameServer>().expect(text).to_string(), text);
        }
        for text in
            ["", "%eth0", "fe80::1%", "fe80::1%eth0%", "fe80::1%a b", "fe80::1%a/b", "2001:db8::1%eth0", "192.0.2.1%lo"]
        {
            assert_eq!(text.parse::<NameServer>(), Err(NotNameServer), "{text}");
        }
        let at = |text: &str| text.parse::<NameServer>().unwrap().is_at("wg0", 7);
        assert!(at("fe80::1") && at("fe80::1%wg0") && at("fe80::1%7") && !at("fe80::1%eth0") && !at("fe80::1%8"));
    }
}
