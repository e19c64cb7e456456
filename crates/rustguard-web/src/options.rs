//! Where and to whom the page is served.

use crate::checks::Name;
use rustguard_device::listener::Address;
use std::{net::IpAddr, path::PathBuf};

/// Where and to whom the page is served.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct Options {
    /// The socket or the port.
    pub address: Address,
    /// Whether the administrator intends an address that other machines can reach.
    pub public: bool,
    /// The files for TLS.
    pub tls: Option<TlsFiles>,
    /// Names under which browsers may request the page, besides its address. A name with a port is valid only with
    /// this port. `https://NAME`: browsers use TLS, which a proxy in front terminates.
    pub hosts: Vec<String>,
}

/// The files for TLS, in PEM.
#[derive(Clone, Debug)]
pub struct TlsFiles {
    /// The certificate, and the intermediate certificates.
    pub certificate: PathBuf,
    /// Its private key.
    pub key: PathBuf,
}

/// Why the page must not be served in this way.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum OptionsError {
    /// Other machines may reach the address.
    #[error(
        "other machines may reach {0}: serve the page at 127.0.0.1 or a Unix socket, and forward it with `ssh -L`; or, if it is meant, give --web-public, --web-cert and --web-key"
    )]
    Public(Address),
    /// Other machines may reach the address, and there is no TLS.
    #[error(
        "other machines may reach {0}, and everybody between could read and change the page: give a certificate and its key, --web-cert FILE --web-key FILE"
    )]
    WithoutTls(Address),
    /// A Unix socket has no TLS.
    #[error("{0} is a Unix socket, which has no TLS: leave --web-cert and --web-key out")]
    TlsOnSocket(Address),
    /// The address stands for all addresses of the machine, and no name was given.
    #[error(
        "{0} stands for all addresses of this machine: say by which name browsers ask for the page, --web-host NAME"
    )]
    NoHost(Address),
    /// A name for the page is malformed.
    #[error(
        "`{0}` is no name by which browsers ask for the page: write vpn.example.org, vpn.example.org:8443, or https://vpn.example.org if a proxy in front speaks TLS"
    )]
    Host(String),
}

impl Options {
    /// The page at this address, with nothing else allowed.
    pub fn new(address: Address) -> Self {
        Self { address, public: false, tls: None, hosts: Vec::new() }
    }

    /// Checks that the page may be served in this way.
    ///
    /// # Errors
    /// See [`OptionsError`].
    pub fn check(&self) -> Result<(), OptionsError> {
        self.names()?;
        let at = match &self.address {
            Address::Unix(_) if self.tls.is_some() => return Err(OptionsError::TlsOnSocket(self.address.clone())),
            Address::Unix(_) => return Ok(()),
            Address::Tcp(at) => at.ip().to_canonical(),
        };
        if at.is_loopback() {
            return Ok(());
        }
        if !self.public {
            return Err(OptionsError::Public(self.address.clone()));
        }
        if self.tls.is_none() {
            return Err(OptionsError::WithoutTls(self.address.clone()));
        }
        if at.is_unspecified() && self.hosts.is_empty() {
            return Err(OptionsError::NoHost(self.address.clone()));
        }
        Ok(())
    }

    /// The names, parsed.
    pub(crate) fn names(&self) -> Result<Vec<Name>, OptionsError> {
        self.hosts.iter().map(|name| Name::parse(name).ok_or_else(|| OptionsError::Host(name.clone()))).collect()
    }

    /// The IP address, if the page is served at a port.
    pub(crate) fn ip(&self) -> Option<IpAddr> {
        match &self.address {
            Address::Unix(_) => None,
            Address::Tcp(at) => Some(at.ip().to_canonical()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn other_machines_reach_it_only_with_consent_and_tls() {
        let of = |address: &str| Options::new(address.parse().unwrap());
        for fine in ["unix:/run/x", "127.0.0.1:0", "127.9.9.9:80", "[::1]:80", "[::ffff:127.0.0.1]:1"] {
            assert_eq!(of(fine).check(), Ok(()), "{fine}");
        }
        let tls = Some(TlsFiles { certificate: "c".into(), key: "k".into() });
        for public in ["0.0.0.0:80", "[::]:80", "10.0.0.1:80", "192.0.2.1:80", "[fe80::1]:80", "[::ffff:10.0.0.1]:80"] {
            let mut options = of(public);
            let at = options.address.clone();
            assert_eq!(options.check(), Err(OptionsError::Public(at.clone())));
            options.tls = tls.clone();
            assert_eq!(options.check(), Err(OptionsError::Public(at.clone())));
            (options.public, options.tls) = (true, None);
            assert_eq!(options.check(), Err(OptionsError::WithoutTls(at.clone())));
            options.tls = tls.clone();
            let all = options.ip().unwrap().is_unspecified();
            assert_eq!(options.check(), if all { Err(OptionsError::NoHost(at)) } else { Ok(()) });
            options.hosts = vec!["vpn.example".to_owned()];
            assert_eq!(options.check(), Ok(()));
        }
        let named = |host: &str| Options { hosts: vec![host.to_owned()], ..of("unix:/run/x") }.check();
        assert_eq!(named("https://vpn.example.org"), Ok(()));
        assert_eq!(named("http://vpn.example.org"), Err(OptionsError::Host("http://vpn.example.org".to_owned())));
        assert!(matches!(Options { tls, ..of("unix:/run/x") }.check(), Err(OptionsError::TlsOnSocket(_))));
    }
}
