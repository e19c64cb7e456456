//! `--web` and what belongs to it.

use clap::Args;
use rustguard_web::{Address, Options, TlsFiles};
use std::path::PathBuf;

/// `--web`. Services can set it in the environment.
#[derive(Args, Clone, Debug)]
pub(crate) struct Web {
    /// Serve a status page for browsers at this Unix socket or TCP port: unix:PATH or ADDR:PORT
    ///
    /// The page shows the network, and can open the pairing window, approve and remove machines. `rustguard web`
    /// prints a link to log in. The address has to be a loopback address, such as 127.0.0.1:9580. From elsewhere,
    /// reach it by `ssh -L 9580:127.0.0.1:9580`.
    #[arg(long, value_name = "unix:PATH|ADDR:PORT", env = "RUSTGUARD_WEB", hide_env = true)]
    pub(crate) web: Option<Address>,
    /// With --web: permit an address that other machines can reach. It needs --web-cert and --web-key
    #[arg(long, requires_all = ["web", "web_cert"])]
    pub(crate) web_public: bool,
    /// With --web: use TLS with this certificate, a PEM file that also contains the intermediate certificates
    #[arg(long, value_name = "FILE", requires_all = ["web", "web_key"])]
    pub(crate) web_cert: Option<PathBuf>,
    /// With --web: the private key of the certificate, PEM
    #[arg(long, value_name = "FILE", requires = "web_cert")]
    pub(crate) web_key: Option<PathBuf>,
    /// With --web: a name in the URL of browsers, besides the address; https://NAME if a proxy in front uses TLS; may
    /// be repeated
    #[arg(long = "web-host", value_name = "NAME[:PORT]", requires = "web")]
    pub(crate) web_hosts: Vec<String>,
}

impl Web {
    /// The path of the socket, if it is one.
    pub(crate) fn socket(&self) -> Option<PathBuf> {
        match &self.web {
            Some(Address::Unix(path)) => Some(path.clone()),
            _ => None,
        }
    }

    /// The files that the running process reads again.
    pub(crate) fn files(&self) -> impl Iterator<Item = PathBuf> {
        [&self.web_cert, &self.web_key].into_iter().flatten().cloned()
    }

    /// The options of the page, if there is to be one.
    pub(crate) fn options(&self) -> Option<Options> {
        let mut options = Options::new(self.web.clone()?);
        options.public = self.web_public;
        options.tls =
            self.web_cert.clone().zip(self.web_key.clone()).map(|(certificate, key)| TlsFiles { certificate, key });
        options.hosts.clone_from(&self.web_hosts);
        Some(options)
    }
}
