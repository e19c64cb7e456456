//! The address of a store, as the command line has it.
//!
//! ```text
//! etcd://[USER@]HOST[:PORT][,HOST[:PORT]…][/PREFIX][?OPTION=VALUE[&OPTION=VALUE…]]
//! postgres://[USER@]HOST[:PORT][,HOST[:PORT]…][/DATABASE][?OPTION=VALUE[&OPTION=VALUE…]]
//! ```
//!
//! | Option | Value |
//! |---|---|
//! | `tls` | `on` or `off`. Without it: on, unless all hosts are this machine's own |
//! | `ca` | a file with the certificates of authorities (PEM); without it, those of the system |
//! | `cert`, `key` | files with a client certificate and its private key (PEM) |
//! | `password-file` | a file with the password of the user; without it, the variable `RUSTGUARD_STORE_PASSWORD` |
//! | `schema` | PostgreSQL: the schema of the log, `rustguard` without it |
//!
//! Without a host, PostgreSQL is reached by its socket in /run/postgresql.
//!
//! An address contains no secret: other users of the machine see command lines.

use core::fmt;
use std::{net::IpAddr, path::PathBuf};

/// The variable with the password.
pub const PASSWORD_VARIABLE: &str = "RUSTGUARD_STORE_PASSWORD";
const MAX_HOSTS: usize = 16;
const DEFAULT_NAME: &str = "rustguard";
/// Where Debian's PostgreSQL has its socket.
const SOCKETS: &str = "/run/postgresql";

/// The address of a store.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StoreAddress {
    /// The kind of store.
    pub engine: Engine,
    /// The user, if one is given.
    pub user: Option<String>,
    /// The hosts and their ports, at least one. A host that begins with `/` is a folder with a socket of PostgreSQL.
    pub hosts: Vec<(String, u16)>,
    /// The prefix of the keys in etcd, without slashes at its ends; the database in PostgreSQL.
    pub place: String,
    /// The schema in PostgreSQL.
    pub schema: String,
    /// Whether connections are encrypted.
    pub tls: bool,
    /// The certificates of authorities.
    pub ca: Option<PathBuf>,
    /// The client certificate and its private key.
    pub identity: Option<(PathBuf, PathBuf)>,
    /// The file with the password.
    pub password_file: Option<PathBuf>,
}

/// A kind of store.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Engine {
    /// etcd, version 3.4 or newer.
    Etcd,
    /// PostgreSQL.
    Postgres,
}

/// An address that cannot be used. The messages do not repeat the address, which may contain a password by mistake.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum AddressError {
    /// It is no address.
    #[error("the address of a store begins with etcd:// or postgres://, such as etcd://10.0.0.1:2379/home")]
    Scheme,
    /// No host, or too many.
    #[error("the address of a store has 1 to {MAX_HOSTS} hosts, such as etcd://10.0.0.1:2379,10.0.0.2:2379/home")]
    Hosts,
    /// A host or a port cannot be one.
    #[error("`{0}` is no host; write a name or an address, with a port if need be: 10.0.0.1:2379, [2001:db8::1]:2379")]
    Host(String),
    /// The address contains a password.
    #[error(
        "the address of a store contains a password, which other users of this machine could see; put it into a file and \
         write ?password-file=FILE, or into the variable {PASSWORD_VARIABLE}"
    )]
    Password,
    /// A prefix, database, schema or user has characters that it may not have.
    #[error("`{0}` cannot be a {1}: it has 1 to 63 letters, digits and `-_.`{2}")]
    Name(String, &'static str, &'static str),
    /// etcd has a password for users only.
    #[error("the address has a password-file and no user; write the user into the address: etcd://USER@HOST")]
    NoUser,
    /// There is no such option.
    #[error("a store of this kind has no option `{0}`; it has tls, ca, cert, key and password-file{1}")]
    Option(String, &'static str),
    /// The value of an option cannot be one.
    #[error("the option `{0}` needs {1}")]
    Value(String, &'static str),
    /// A certificate without its key, or the reverse.
    #[error("`cert` and `key` belong together: give both or none")]
    Identity,
    /// Files for TLS without TLS.
    #[error("`tls=off` and the files `ca`, `cert` and `key` contradict each other: leave one of them out")]
    NoTls,
    /// The password would cross a network in the clear.
    #[error("etcd is sent the password itself, so `tls=off` is possible with hosts of this machine only")]
    ClearPassword,
}

impl StoreAddress {
    /// Reads an address.
    ///
    /// # Errors
    /// See [`AddressError`].
    pub fn parse(text: &str) -> Result<Self, AddressError> {
        let (scheme, rest) = text.split_once("://").ok_or(AddressError::Scheme)?;
        let engine = match scheme {
            "etcd" => Engine::Etcd,
            "postgres" | "postgresql" => Engine::Postgres,
            _ => return Err(AddressError::Scheme),
        };
        let (rest, options) = rest.split_once('?').unwrap_or((rest, ""));
        let (authority, place) = rest.split_once('/').unwrap_or((rest, ""));
        let (user, hosts) = match authority.rsplit_once('@') {
            Some((user, _)) if user.contains(':') => return Err(AddressError::Password),
            Some((user, hosts)) => (Some(name(user, "user")?), hosts),
            None => (None, authority),
        };
        let port = match engine {
            Engine::Etcd => 2379,
            Engine::Postgres => 5432,
        };
        let hosts = match (engine, hosts) {
            (Engine::Postgres, "") => vec![(SOCKETS.to_owned(), port)],
            _ => hosts.split(',').map(|text| host(text, port)).collect::<Result<Vec<_>, _>>()?,
        };
        if hosts.len() > MAX_HOSTS {
            return Err(AddressError::Hosts);
        }
        let place = place.trim_matches('/');
        let place = match (engine, place) {
            (_, "") => DEFAULT_NAME.to_owned(),
            (Engine::Etcd, place) => name(place, "prefix")?,
            (Engine::Postgres, place) => name(place, "database")?,
        };
        let mut address = Self {
            engine,
            user,
            hosts,
            place,
            schema: DEFAULT_NAME.to_owned(),
            tls: false,
            ca: None,
            identity: None,
            password_file: None,
        };
        let is_own = address.hosts.iter().all(|(host, _)| is_own(host));
        address.tls = !is_own;
        address.set_options(options)?;
        if engine == Engine::Etcd && address.user.is_some() && !address.tls && !is_own {
            return Err(AddressError::ClearPassword);
        }
        if engine == Engine::Etcd && address.user.is_none() && address.password_file.is_some() {
            return Err(AddressError::NoUser);
        }
        Ok(address)
    }

    fn set_options(&mut self, options: &str) -> Result<(), AddressError> {
        let (mut tls, mut cert, mut key) = (None, None, None);
        for option in options.split('&').filter(|option| !option.is_empty()) {
            let (word, value) = option.split_once('=').unwrap_or((option, ""));
            let path = || match value {
                "" => Err(AddressError::Value(word.to_owned(), "the path of a file")),
                path => Ok(Some(PathBuf::from(path))),
            };
            match word {
                "tls" => {
                    tls = match value {
                        "on" => Some(true),
                        "off" => Some(false),
                        _ => return Err(AddressError::Value(word.to_owned(), "`on` or `off`")),
                    }
                }
                "ca" => self.ca = path()?,
                "cert" => cert = path()?,
                "key" => key = path()?,
                "password-file" => self.password_file = path()?,
                "password" => return Err(AddressError::Password),
                "schema" if self.engine == Engine::Postgres => {
                    self.schema = name(value, "schema")?;
                }
                _ => {
                    let more = if self.engine == Engine::Postgres { ", and schema" } else { "" };
                    return Err(AddressError::Option(word.to_owned(), more));
                }
            }
        }
        self.identity = match (cert, key) {
            (Some(cert), Some(key)) => Some((cert, key)),
            (None, None) => None,
            _ => return Err(AddressError::Identity),
        };
        let has_files = self.ca.is_some() || self.identity.is_some();
        if tls == Some(false) && has_files {
            return Err(AddressError::NoTls);
        }
        self.tls = tls.unwrap_or(self.tls || has_files);
        Ok(())
    }

    /// The hosts with their ports, for messages.
    pub(crate) fn hosts_text(&self) -> String {
        let hosts = self.hosts.iter().map(|(host, port)| match host.contains(':') {
            true => format!("[{host}]:{port}"),
            false => format!("{host}:{port}"),
        });
        hosts.collect::<Vec<_>>().join(",")
    }
}

impl fmt::Display for StoreAddress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { engine, place, schema, .. } = self;
        match engine {
            Engine::Etcd => write!(f, "etcd://{}/{place}", self.hosts_text()),
            Engine::Postgres if schema == DEFAULT_NAME => write!(f, "postgres://{}/{place}", self.hosts_text()),
            Engine::Postgres => write!(f, "postgres://{}/{place}?schema={schema}", self.hosts_text()),
        }
    }
}

fn name(text: &str, what: &'static str) -> Result<String, AddressError> {
    let is_plain = |c: char| c.is_ascii_alphanumeric() || "-_./".contains(c);
    let is_name =
        (1..=63).contains(&text.len()) && text.chars().all(is_plain) && text.split('/').all(|part| !part.is_empty());
    // A slash divides prefixes only.
    let is_prefix = what == "prefix";
    if is_name && (is_prefix || !text.contains('/')) {
        Ok(text.to_owned())
    } else {
        let parts = if is_prefix { ", in parts with single slashes between them" } else { "" };
        Err(AddressError::Name(text.to_owned(), what, parts))
    }
}

fn host(text: &str, default_port: u16) -> Result<(String, u16), AddressError> {
    let wrong = || AddressError::Host(text.to_owned());
    if text.is_empty() {
        return Err(AddressError::Hosts);
    }
    let (host, port) = match text.strip_prefix('[') {
        Some(rest) => {
            let (host, rest) = rest.split_once(']').ok_or_else(wrong)?;
            let is_v6 = host.parse::<IpAddr>().is_ok_and(|address| address.is_ipv6());
            let port = if rest.is_empty() { None } else { Some(rest.strip_prefix(':').ok_or_else(wrong)?) };
            (is_v6.then_some(host).ok_or_else(wrong)?, port)
        }
        None => match text.split_once(':') {
            Some((host, port)) => (host, Some(port)),
            None => (text, None),
        },
    };
    let is_plain = |c: char| c.is_ascii_alphanumeric() || "-_.".contains(c);
    if host.is_empty() || host.len() > 253 || !(host.chars().all(is_plain) || host.contains(':')) {
        return Err(wrong());
    }
    let port = port.map_or(Ok(default_port), |port| port.parse().map_err(|_| wrong()))?;
    if port == 0 {
        return Err(wrong());
    }
    Ok((host.to_owned(), port))
}

/// Whether a host is this machine.
fn is_own(host: &str) -> bool {
    host == "localhost" || host.starts_with('/') || host.parse::<IpAddr>().is_ok_and(|address| address.is_loopback())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_are_read() {
        let etcd = StoreAddress::parse("etcd://10.0.0.1:2379,etcd2.example.org,[2001:db8::3]/home/lan/").unwrap();
        assert_eq!(etcd.engine, Engine::Etcd);
        let hosts: Vec<_> = etcd.hosts.iter().map(|(host, port)| (&**host, *port)).collect();
        assert_eq!(hosts, [("10.0.0.1", 2379), ("etcd2.example.org", 2379), ("2001:db8::3", 2379)]);
        assert_eq!((&*etcd.place, etcd.tls), ("home/lan", true));
        assert_eq!(etcd.to_string(), "etcd://10.0.0.1:2379,etcd2.example.org:2379,[2001:db8::3]:2379/home/lan");

        let own = StoreAddress::parse("etcd://localhost").unwrap();
        assert_eq!((&*own.place, own.tls, &*own.to_string()), ("rustguard", false, "etcd://localhost:2379/rustguard"));
        let socket = StoreAddress::parse("postgres:///vpn").unwrap();
        assert_eq!((&*socket.hosts[0].0, socket.tls), (SOCKETS, false));
        let own = StoreAddress::parse("etcd://127.0.0.1?ca=/etc/ca.pem").unwrap();
        assert!(own.tls, "with files for it");

        let text = "postgres://rustguard@db1:5433,db2/vpn?schema=home&cert=/c&key=/k&password-file=/p&tls=on";
        let postgres = StoreAddress::parse(text).unwrap();
        assert_eq!(postgres.user.as_deref(), Some("rustguard"));
        assert_eq!((postgres.hosts[0].1, postgres.hosts[1].1), (5433, 5432));
        assert_eq!((&*postgres.place, &*postgres.schema), ("vpn", "home"));
        assert_eq!(postgres.identity, Some(("/c".into(), "/k".into())));
        assert_eq!(postgres.password_file, Some("/p".into()));
        assert_eq!(postgres.to_string(), "postgres://db1:5433,db2:5432/vpn?schema=home");
    }

    #[test]
    fn a_wrong_address_is_told_what_is_wrong() {
        let refused = |text: &str| StoreAddress::parse(text).unwrap_err().to_string();
        for text in ["", "home", "etcd:", "http://10.0.0.1:2379", "Etcd://a", "/var/lib/rustguard"] {
            assert!(refused(text).contains("begins with etcd:// or postgres://"), "{text}");
        }
        for text in ["etcd://", "etcd:///home", "etcd://a,,b", &format!("etcd://{}", ["a"; 17].join(","))] {
            assert!(refused(text).contains("1 to 16 hosts"), "{text}");
        }
        for text in
            ["etcd://a:b", "etcd://a:0", "etcd://a:70000", "etcd://[::1", "etcd://[a]:1", "etcd://a b", "etcd://::1"]
        {
            assert!(refused(text).contains("is no host"), "{text}");
        }
        for text in ["etcd://root:secret@a", "postgres://u:secret@a/db", "postgres://a/db?password=secret"] {
            let error = refused(text);
            assert!(error.contains("contains a password") && !error.contains("secret"), "{error}");
        }
        for text in
            ["etcd://a/b//c", "etcd://a/b c", "postgres://a/b/c", "postgres://a/b?schema=", "postgres://a?schema=a/b"]
        {
            assert!(refused(text).contains("cannot be a"), "{text}");
        }
        assert!(refused("etcd://a?sslmode=require").contains("no option `sslmode`; it has tls, ca,"));
        assert!(refused("etcd://a?schema=b").contains("no option `schema`"));
        assert!(refused("postgres://a?shema=b").contains("and schema"));
        assert!(refused("etcd://a?tls=yes").contains("`on` or `off`"));
        assert!(refused("etcd://a?ca=").contains("the path of a file"));
        assert_eq!(StoreAddress::parse("etcd://a?cert=/c"), Err(AddressError::Identity));
        assert_eq!(StoreAddress::parse("etcd://a?password-file=/p"), Err(AddressError::NoUser));
        assert!(StoreAddress::parse("postgres://a?password-file=/p").is_ok(), "PostgreSQL has the user of the system");
        assert!(refused("postgres://a/b/c").ends_with("digits and `-_.`"));
        assert_eq!(StoreAddress::parse("etcd://a?tls=off&ca=/c"), Err(AddressError::NoTls));
        assert_eq!(StoreAddress::parse("etcd://root@10.0.0.1?tls=off"), Err(AddressError::ClearPassword));
        assert!(StoreAddress::parse("etcd://root@127.0.0.1?tls=off").is_ok());
        assert!(StoreAddress::parse("postgres://root@10.0.0.1?tls=off").is_ok(), "the password is not sent (SCRAM)");
    }
}
