//! Configurations for stock WireGuard, as a file or as a QR code for the apps.

use super::{
    qr, screen,
    words::{UNEXPECTED_ANSWER, warn_of_reach},
};
use anyhow::{Context as _, Result, bail};
use ipnet::IpNet;
use rustguard_crypto::x25519::StaticSecret;
use rustguard_device::{EndpointSpec, Host, HostPort, key};
use rustguard_quick::conf;
use rustguard_serve::{
    ask,
    request::{AddPeer, Added, Answer, Request},
};
use serde::Serialize;
use std::{
    fs::OpenOptions,
    io::{self, Write as _},
    os::unix::fs::OpenOptionsExt as _,
    path::PathBuf,
    time::Duration,
};

/// The interval of keepalives. A phone is usually behind address translation.
const KEEPALIVE: Duration = Duration::from_secs(25);

/// The form of the configuration.
pub(crate) enum Form {
    /// A QR code on standard output.
    Qr,
    /// A file, or standard output for `-`.
    File(PathBuf),
}

/// The output of `--json`.
#[derive(Serialize)]
struct Report<'a> {
    answer: &'static str,
    name: &'a str,
    public_key: &'a str,
    addresses: &'a [IpNet],
    /// The server's endpoint in the configuration.
    endpoint: Option<&'a str>,
    /// The configuration, with its secrets. Absent if it is in a file.
    #[serde(skip_serializing_if = "Option::is_none")]
    config: Option<&'a str>,
}

/// Adds a peer, and outputs its configuration. Without a public key in `peer`, this function generates the keys. Then
/// only the configuration contains the private key.
pub(crate) fn add(interface: &str, mut peer: AddPeer, form: &Form, json: bool) -> Result<()> {
    let mut private_key = None;
    if peer.public_key.is_empty() {
        let key = StaticSecret::generate()?;
        peer.public_key = key::to_base64(&key.public_key().0).to_string();
        private_key = Some(key);
    }
    // The output is opened first, because a peer without its configuration would be useless.
    let mut out = open(form)?;
    let (name, public_key) = (peer.name.clone(), peer.public_key.clone());
    let Answer::Added(added) = ask(interface, &Request::AddPeer(peer))? else { bail!(UNEXPECTED_ANSWER) };
    warn_of_reach(added.endpoint.as_deref());
    let text = conf::to_text(&config(&added, private_key)?);
    let is_kept = form.is_kept();
    if json {
        let (addresses, endpoint) = (&*added.addresses, added.endpoint.as_deref());
        let config = (!is_kept).then_some(text.as_str());
        let report = Report { answer: "added", name: &name, public_key: &public_key, addresses, endpoint, config };
        writeln!(io::stdout(), "{}", serde_json::to_string_pretty(&report)?)?;
    }
    match form {
        Form::File(_) if json && !is_kept => Ok(()),
        Form::File(_) => out.write_all(text.as_bytes()),
        Form::Qr => {
            let picture = qr::draw(&text)
                .context("the configuration is too long for a QR code: use `peer add NAME --conf FILE`")?;
            let columns = picture.lines().next().map_or(0, |line| line.chars().count());
            let narrow = screen::columns().filter(|terminal| *terminal < columns).map_or_else(String::new, |terminal| {
                format!(
                    "The code takes {columns} columns, and this terminal has {terminal}: make it wider, or its font smaller, until the code is a \
                     square.\n"
                )
            });
            writeln!(
                out,
                "{picture}{narrow}{name}: scan this code with the WireGuard app. It contains the private key, which is not stored anywhere else."
            )
        }
    }
    .context("the peer was added, but its configuration could not be written; remove the peer and try again")
}

impl Form {
    /// Whether the configuration goes into a file.
    fn is_kept(&self) -> bool {
        matches!(self, Self::File(path) if path.as_os_str() != "-")
    }
}

fn open(form: &Form) -> Result<Box<dyn io::Write>> {
    match form {
        Form::File(path) if form.is_kept() => {
            let file = OpenOptions::new().write(true).create_new(true).mode(0o600).open(path);
            Ok(Box::new(file.with_context(|| format!("cannot create {}", path.display()))?))
        }
        _ => Ok(Box::new(io::stdout())),
    }
}

fn config(added: &Added, private_key: Option<StaticSecret>) -> Result<conf::Config> {
    let Some(endpoint) = &added.endpoint else { bail!(UNEXPECTED_ANSWER) };
    let at = endpoint.parse::<HostPort>().with_context(|| format!("`{endpoint}` is not HOST:PORT"))?;
    if matches!(at.host(), Host::Zone(..)) {
        bail!("`{at}` contains an interface, which other machines do not know");
    }
    let endpoint = EndpointSpec::from(at);
    let mut interface = conf::Interface::default();
    interface.private_key = private_key;
    interface.addresses = added.addresses.clone();
    interface.dns = added.dns.iter().copied().map(Into::into).collect();
    interface.dns_search = added.search.clone();
    let mut server = conf::Peer::new(added.server_key);
    server.preshared_key = Some(added.preshared_key.clone());
    server.endpoints = vec![endpoint.into()];
    server.allowed_ips = added.allowed_ips.clone();
    server.persistent_keepalive = Some(KEEPALIVE);
    Ok(conf::Config::new(interface, vec![server]))
}
