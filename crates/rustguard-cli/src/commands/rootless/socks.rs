//! A SOCKS5 proxy (RFC 1928) into the tunnel, for TCP and UDP, with users (RFC 1929) if they are given.

use super::{Inside, Way, listen, relay, users::Users};
use anyhow::{Context as _, Result};
use fast_socks5::{
    ReplyError, Socks5Command, new_udp_header, parse_udp_request, server::Socks5ServerProtocol,
    util::target_addr::TargetAddr,
};
use rustguard_device::HostPort;
use std::{
    collections::HashMap,
    io,
    net::{IpAddr, SocketAddr},
    sync::Arc,
    time::Duration,
};
use tokio::{
    io::AsyncReadExt as _,
    net::{TcpStream, UdpSocket},
    time::timeout,
};
use zeroize::Zeroizing;

/// How long a client may take to say what it wants.
const PATIENCE: Duration = Duration::from_secs(10);
/// The names that an association for datagrams remembers.
const NAMES: usize = 64;

/// Starts the proxy.
pub(super) async fn start(inside: &Inside, at: SocketAddr, users: Option<Arc<Users>>) -> Result<Way> {
    Users::suffice(users.as_deref(), at)?;
    let inside = inside.clone();
    let (at, task) = listen::tcp(at, move |stream| {
        let Some(permit) = inside.room() else { return };
        let (inside, users) = (inside.clone(), users.clone());
        tokio::spawn(async move {
            let _permit = permit;
            if let Err(error) = serve(&inside, stream, users.as_deref()).await {
                tracing::debug!("a client of the SOCKS5 proxy: {error:#}");
            }
        });
    })
    .await?;
    Ok(Way { words: format!("a SOCKS5 proxy is at {at}"), task })
}

async fn serve(inside: &Inside, stream: TcpStream, users: Option<&Users>) -> Result<()> {
    let own = stream.local_addr()?;
    let client = stream.peer_addr()?;
    let asked = async {
        let protocol = match users {
            None => Socks5ServerProtocol::accept_no_auth(stream).await?,
            Some(users) => {
                let check = |name: String, password: String| users.have(&name, &Zeroizing::new(password));
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
            // A client may say by which port it sends. Otherwise the first datagram of its address does.
            let known = match target {
                TargetAddr::Ip(at) if at.port() > 0 => Some(SocketAddr::new(client.ip(), at.port())),
                _ => None,
            };
            tokio::select! {
                relayed = associate(inside, &near, &far, client.ip(), known) => relayed?,
                // The association ends with the connection.
                _ = stream.read_u8() => {}
            }
        }
        Socks5Command::TCPBind => protocol.reply_error(&ReplyError::CommandNotSupported).await?,
    }
    Ok(())
}

/// Relays datagrams of a client, which sends by one port.
async fn associate(
    inside: &Inside,
    near: &UdpSocket,
    far: &rustguard_netstack::UdpSocket,
    client: IpAddr,
    mut known: Option<SocketAddr>,
) -> Result<()> {
    let mut from_client = vec![0; 65_535];
    let mut from_tunnel = vec![0; 65_535];
    let mut names: HashMap<String, SocketAddr> = HashMap::new();
    loop {
        tokio::select! {
            received = near.recv_from(&mut from_client) => {
                // An error is an answer of ICMP to an earlier datagram.
                let Ok((len, from)) = received else { continue };
                if from.ip() != client || known.is_some_and(|known| known != from) {
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
