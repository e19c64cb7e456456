//! The address of a service.

use std::{fmt, net::SocketAddr, path::PathBuf, str::FromStr};

/// The address of a service: a Unix socket, or an address and a TCP port. As text: `unix:PATH` or `ADDR:PORT`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Address {
    /// A Unix socket with this absolute path.
    Unix(PathBuf),
    /// An IP address and a TCP port. Port 0 stands for any free port.
    Tcp(SocketAddr),
}

/// The text is not an [`Address`].
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum AddressError {
    /// The path of the socket is relative.
    #[error("the path of the socket, `{0}`, does not begin with /: unix:/run/rustguard/metrics.sock")]
    RelativePath(String),
    /// The text is neither a socket nor an address with a port.
    #[error(
        "`{0}` is neither unix:PATH nor ADDR:PORT: for example unix:/run/rustguard/metrics.sock, 127.0.0.1:9586 or [::1]:9586"
    )]
    Unknown(String),
}

impl FromStr for Address {
    type Err = AddressError;

    fn from_str(text: &str) -> Result<Self, AddressError> {
        match text.strip_prefix("unix:") {
            Some(path) if path.starts_with('/') => Ok(Self::Unix(path.into())),
            Some(path) => Err(AddressError::RelativePath(path.to_owned())),
            None => text.parse().map(Self::Tcp).map_err(|_| AddressError::Unknown(text.to_owned())),
        }
    }
}

impl fmt::Display for Address {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Unix(path) => write!(f, "unix:{}", path.display()),
            Self::Tcp(address) => address.fmt(f),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_socket_or_an_address_with_a_port() {
        for text in ["unix:/run/rustguard/wg0.metrics", "127.0.0.1:9586", "[::1]:0", "0.0.0.0:1"] {
            assert_eq!(text.parse::<Address>().unwrap().to_string(), text);
        }
        assert_eq!("unix:run/x".parse::<Address>(), Err(AddressError::RelativePath("run/x".into())));
        for text in ["", "9586", ":9586", "localhost:9586", "127.0.0.1", "::1:9586", "/run/x", "127.0.0.1:70000"] {
            assert_eq!(text.parse::<Address>(), Err(AddressError::Unknown(text.into())));
        }
    }
}
