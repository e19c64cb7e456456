//! A SOCKS5 proxy (RFC 1928) into the tunnel, for TCP and UDP, with users (RFC 1929) if they are given.

use super::{Inside, Way, forward::PAUSE, relay};
use anyhow::{Context as _, Result, bail};
use fast_socks5::{
    ReplyError, Socks5Command, new_udp_header, parse_udp_request, server::Socks5ServerProtocol,
    util::target_addr::TargetAddr,
};
use rustguard_device::HostPort;
use std::{collections::HashMap, io, net::SocketAddr, path::Path, sync::Arc, time::Duration};
use subtle::ConstantTimeEq as _;
use tokio::{
    io::AsyncReadExt as _,
    net::{TcpListener, TcpStream, UdpSocket},
    time::timeout,
};
use zeroize::Zeroizing;

/// How long a client may take to say what it wants.
const PATIENCE: Duration = Duration::from_secs(10);
/// The names that an association for datagrams remembers.
const NAMES: usize = 64;
/// The most bytes of the file with users.
const FILE: u64 = 1 << 16;

/// The users and their passwords.
pub(super) struct Users(HashMap<String, Zeroizing<String>>);

impl Users {
    pub(super) fn read(path: &Path) -> Result<Self> {
        let shown = path.display();
        let file = std::fs::File::open(path).with_context(|| format!("cannot read {shown}"))?;
        let mut text = Zeroizing::new(String::new());
        io::Read::read_to_string(&mut io::Read::take(file, FILE), &mut text)
            .with_context(|| format!("cannot read {shown}"))?;
        let mut users = HashMap::new();
        for (number, line) in text.lines().enumerate().filter(|(_, line)| !line.trim().is_empty()) {
            let Some((name, password)) = line
                .split_once(':')
                .filter(|(name, password)| [name, password].iter().all(|part| (1..=255).contains(&part.len())))
            else {
                bail!("{shown}:{}: a line is NAME:PASSWORD, each of 1 to 255 bytes", number + 1);
            };
            users.insert(name.to_owned(), Zeroizing::new(password.to_owned()));
        }
        if users.is_empty() {
            bail!("{shown} has no users");
        }
        Ok(Self(users))
    }

    fn have(&self, name: &str, password: &Zeroizing<String>) -> bool {
        self.0.get(name).is_some_and(|known| known.as_bytes().ct_eq(password.as_bytes()).into())
    }
}

/// Starts the proxy.
pub(super) async fn start(inside: &Inside, at: SocketAddr, users: Option<Users>) -> Result<Way> {
    if !at.ip().is_loopback() && users.is_none() {
        bail!(
            "everybody who reaches {at} could use the tunnel: give --socks-users FILE, or an address such as 127.0.0.1"
        );
    }
    let listener = TcpListener::bind(at).await.with_context(|| format!("cannot listen at {at}"))?;
    let words = format!("a SOCKS5 proxy is at {}", listener.local_addr()?);
    let (inside, users) = (inside.clone(), users.map(Arc::new));
    let task = tokio::spawn(async move {
        loop {
            let Ok((stream, _)) = listener.accept().await else {
                tokio::time::sleep(PAUSE).await;
                continue;
            };
            let Ok(permit) = Arc::clone(&inside.connections).try_acquire_owned() else { continue };
            let (inside, users) = (inside.clone(), users.clone());
            tokio::spawn(async move {
                let _permit = permit;
                if let Err(error) = serve(&inside, stream, users.as_deref()).await {
                    tracing::debug!("a client of the SOCKS5 proxy: {error:#}");
                }
            });
        }
    });
    Ok(Way { words, task })
}

async fn serve(inside: &Inside, stream: TcpStream, users: Option<&Users>) -> Result<()> {
    let _ = stream.set_nodelay(true);
    let own = stream.local_addr()?;
    let client = stream.peer_addr()?;
    let asked = async {
        let protocol = match users {
            None => Socks5ServerProtocol::accept_no_auth(stream).await?,
            Some(users) => {
                let check = |name: String, password| users.have(&name, &Zeroizing::new(password));
                Socks5ServerProtocol::accept_password_auth(stream, check).await?.0
            }
        };
        protocol.read_command().await
    };
    let (protocol, command, target) = timeout(PATIENCE, asked).await.context("it says nothing")??;
    match command {
        Socks5Command::TCPConnect => {
            let target = host_port(&target)?;
            match inside.connect(&target).await {
                Ok(mut far) => {
                    let mut stream = protocol.reply_success(SocketAddr::from(([0, 0, 0, 0], 0))).await?;
                    relay::bytes(&mut stream, &mut far).await;
                }
                Err(error) => {
                    tracing::debug!("{target}: {error}");
                    protocol.reply_error(&reply(&error)).await?;
                }
            }
        }
        Socks5Command::UDPAssociate => {
            let near = UdpSocket::bind(SocketAddr::new(own.ip(), 0)).await?;
            let far = match inside.stack.bind(0) {
                Ok(far) => far,
                Err(error) => return Ok(protocol.reply_error(&reply(&error)).await?),
            };
            let mut stream = protocol.reply_success(near.local_addr()?).await?;
            tokio::select! {
                relayed = associate(inside, &near, &far, client) => relayed?,
                // The association ends with the connection.
                _ = stream.read_u8() => {}
            }
        }
        Socks5Command::TCPBind => protocol.reply_error(&ReplyError::CommandNotSupported).await?,
    }
    Ok(())
}

/// Relays datagrams of a client. The first one says its port; others are not heard.
async fn associate(
    inside: &Inside,
    near: &UdpSocket,
    far: &rustguard_netstack::UdpSocket,
    client: SocketAddr,
) -> Result<()> {
    let mut from_client = vec![0; 65_535];
    let mut from_tunnel = vec![0; 65_535];
    let mut names: HashMap<String, SocketAddr> = HashMap::new();
    let mut known = None;
    loop {
        tokio::select! {
            received = near.recv_from(&mut from_client) => {
                // An error is an answer of ICMP to an earlier datagram.
                let Ok((len, from)) = received else { continue };
                if from.ip() != client.ip() || known.is_some_and(|known| known != from) {
                    continue;
                }
                // Fragments (RFC 1928 section 7) are dropped, as by most proxies.
                let Ok((0, target, bytes)) = parse_udp_request(&from_client[..len]).await else { continue };
                known = Some(from);
                let target = host_port(&target)?;
                let text = target.to_string();
                let to = match names.get(&text) {
                    Some(to) => *to,
                    None => {
                        let Ok(found) = inside.resolve(&target).await else { continue };
                        if names.len() >= NAMES {
                            names.clear();
                        }
                        names.insert(text, found[0]);
                        found[0]
                    }
                };
                let _ = far.send_to(bytes, to).await;
            }
            received = far.recv_from(&mut from_tunnel) => {
                let (len, from) = received?;
                let Some(to) = known else { continue };
                let mut datagram = new_udp_header(from)?;
                datagram.extend_from_slice(&from_tunnel[..len]);
                let _ = near.send_to(&datagram, to).await;
            }
        }
    }
}

fn host_port(target: &TargetAddr) -> Result<HostPort> {
    let text = match target {
        TargetAddr::Ip(at) => at.to_string(),
        TargetAddr::Domain(name, port) => format!("{name}:{port}"),
    };
    text.parse().with_context(|| format!("`{text}` is no address"))
}

fn reply(error: &io::Error) -> ReplyError {
    match error.kind() {
        io::ErrorKind::ConnectionRefused => ReplyError::ConnectionRefused,
        io::ErrorKind::TimedOut | io::ErrorKind::NotFound => ReplyError::HostUnreachable,
        io::ErrorKind::AddrNotAvailable => ReplyError::NetworkUnreachable,
        _ => ReplyError::GeneralFailure,
    }
}
