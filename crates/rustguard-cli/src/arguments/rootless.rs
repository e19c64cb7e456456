//! The options of `rustguard up --rootless`.

use clap::Args;
use rustguard_device::HostPort;
use std::{
    fmt,
    net::{IpAddr, Ipv4Addr, SocketAddr},
    path::PathBuf,
    str::FromStr,
};

/// A tunnel without root and without a TUN device, and the ways into it.
#[derive(Args, Clone, Debug)]
#[command(next_help_heading = "Without root")]
pub(crate) struct Rootless {
    /// Run without root and without an interface: only the options below, and embedders, use the tunnel
    ///
    /// This process has TCP and UDP inside the tunnel itself. It changes nothing on the host, and runs no hooks.
    #[arg(long, conflicts_with = "detach")]
    pub(crate) rootless: bool,
    /// Offer a SOCKS5 proxy into the tunnel, for TCP and UDP, at this port of 127.0.0.1
    #[arg(long, value_name = "[ADDRESS:]PORT", requires = "rootless", value_parser = listen)]
    pub(crate) socks: Option<SocketAddr>,
    /// Offer an HTTP proxy into the tunnel at this port of 127.0.0.1
    #[arg(long, value_name = "[ADDRESS:]PORT", requires = "rootless", value_parser = listen)]
    pub(crate) http: Option<SocketAddr>,
    /// The users of the proxies, a line NAME:PASSWORD for each
    #[arg(long, value_name = "FILE", requires = "rootless")]
    pub(crate) proxy_users: Option<PathBuf>,
    /// Forward a port of 127.0.0.1, udp:PORT or a Unix socket to a machine inside the tunnel
    #[arg(long = "forward", value_name = "LOCAL=HOST:PORT", requires = "rootless")]
    pub(crate) forwards: Vec<Forward>,
    /// Let machines inside the tunnel reach a service here: PORT or udp:PORT of this end, and its address or Unix
    /// socket
    #[arg(long = "expose", value_name = "PORT=LOCAL", requires = "rootless")]
    pub(crate) exposed: Vec<Expose>,
}

/// `--forward`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Forward {
    pub(crate) from: Local,
    pub(crate) to: HostPort,
}

/// `--expose`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Expose {
    pub(crate) port: u16,
    pub(crate) to: Local,
}

/// Something on this machine.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Local {
    Tcp(SocketAddr),
    Udp(SocketAddr),
    Unix(PathBuf),
}

impl fmt::Display for Local {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Tcp(at) => at.fmt(f),
            Self::Udp(at) => write!(f, "udp:{at}"),
            Self::Unix(path) => path.display().fmt(f),
        }
    }
}

impl FromStr for Forward {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let (from, to) = halves(text, "LOCAL=HOST:PORT, for example 8080=10.0.0.1:80")?;
        let to = to.parse().map_err(|error| format!("`{to}` is not HOST:PORT: {error}"))?;
        Ok(Self { from: local(from)?, to })
    }
}

impl FromStr for Expose {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let (port, to) = halves(text, "PORT=LOCAL, for example 80=127.0.0.1:8080")?;
        let (is_udp, port) = port.strip_prefix("udp:").map_or((false, port), |port| (true, port));
        let port = port.parse().ok().filter(|port| *port > 0).ok_or_else(|| format!("`{port}` is no port"))?;
        let to = match (local(to)?, is_udp) {
            (Local::Tcp(at), true) => Local::Udp(at),
            (Local::Udp(_), false) => return Err(format!("`{text}`: datagrams come to udp:{port}")),
            (Local::Unix(_), true) => return Err(format!("`{text}`: a Unix socket takes no datagrams from here")),
            (to, _) => to,
        };
        Ok(Self { port, to })
    }
}

fn halves<'t>(text: &'t str, form: &str) -> Result<(&'t str, &'t str), String> {
    text.split_once('=').ok_or_else(|| format!("it has the form {form}"))
}

fn local(text: &str) -> Result<Local, String> {
    if text.contains('/') {
        return Ok(Local::Unix(text.into()));
    }
    match text.strip_prefix("udp:") {
        Some(at) => listen(at).map(Local::Udp),
        None => listen(text).map(Local::Tcp),
    }
}

/// A port of 127.0.0.1, or an address and a port.
fn listen(text: &str) -> Result<SocketAddr, String> {
    let port = text.parse().ok().map(|port: u16| SocketAddr::new(IpAddr::from(Ipv4Addr::LOCALHOST), port));
    let at = port.or_else(|| text.parse().ok()).filter(|at| at.port() > 0);
    at.ok_or_else(|| format!("`{text}` is not PORT, ADDRESS:PORT or [IPv6]:PORT"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ways_into_the_tunnel_are_read() {
        let at = |text: &str| text.parse::<SocketAddr>().unwrap();
        for (text, from, to) in [
            ("8080=10.0.0.1:80", Local::Tcp(at("127.0.0.1:8080")), "10.0.0.1:80"),
            ("[::1]:8080=web.example:80", Local::Tcp(at("[::1]:8080")), "web.example:80"),
            ("udp:0.0.0.0:53=[fd00::1]:53", Local::Udp(at("0.0.0.0:53")), "[fd00::1]:53"),
            ("/run/db.sock=db:5432", Local::Unix("/run/db.sock".into()), "db:5432"),
        ] {
            assert_eq!(text.parse(), Ok(Forward { from, to: to.parse().unwrap() }), "{text}");
        }
        for (text, port, to) in [
            ("80=8080", 80, Local::Tcp(at("127.0.0.1:8080"))),
            ("udp:53=192.0.2.1:53", 53, Local::Udp(at("192.0.2.1:53"))),
            ("22=./ssh.sock", 22, Local::Unix("./ssh.sock".into())),
        ] {
            assert_eq!(text.parse(), Ok(Expose { port, to }), "{text}");
        }
        for text in ["8080", "x=10.0.0.1:80", "8080=10.0.0.1", "0=10.0.0.1:80", "80=", "=10.0.0.1:80"] {
            assert!(text.parse::<Forward>().is_err(), "{text}");
        }
        for text in ["80", "0=80", "udp:53=/run/x", "53=udp:53", "70000=80", "80=name:80"] {
            assert!(text.parse::<Expose>().is_err(), "{text}");
        }
    }
}
