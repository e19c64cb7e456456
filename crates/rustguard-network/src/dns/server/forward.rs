//! Queries that other name servers answer, with measures against forged answers (RFC 5452).

use crate::dns::query::{MAX_UDP, Query, Transport};
use std::{
    io,
    net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr},
    time::Duration,
};
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::{TcpStream, UdpSocket},
};

/// How long one server may take. Three of them are tried before resolvers ask again after 5 s.
const PATIENCE: Duration = Duration::from_millis(1500);

/// Asks the servers in turn. `None` if none of them answers.
pub(super) async fn ask(query: &Query<'_>, servers: &[SocketAddr], transport: Transport) -> Option<Vec<u8>> {
    for server in servers {
        let asked = async {
            match transport {
                Transport::Udp => udp(query, *server).await,
                Transport::Tcp => tcp(query, *server).await,
            }
        };
        if let Ok(Ok(answer)) = tokio::time::timeout(PATIENCE, asked).await {
            return Some(answer);
        }
    }
    None
}

/// Each query has its own socket, and so a port that the kernel chooses at random. The socket receives only from this
/// server.
async fn udp(query: &Query<'_>, server: SocketAddr) -> io::Result<Vec<u8>> {
    let any: IpAddr = if server.is_ipv4() { Ipv4Addr::UNSPECIFIED.into() } else { Ipv6Addr::UNSPECIFIED.into() };
    let socket = UdpSocket::bind((any, 0)).await?;
    socket.connect(server).await?;
    let number = number()?;
    socket.send(&query.forward(number)).await?;
    // One byte more than requested, to notice longer answers.
    let mut buffer = [0; MAX_UDP + 1];
    loop {
        // An answer to a different query is forged or late. The right one may still come.
        let len = socket.recv(&mut buffer).await?;
        if let Some(answer) = query.answered(number, &buffer[..len]) {
            return Ok(answer);
        }
    }
}

async fn tcp(query: &Query<'_>, server: SocketAddr) -> io::Result<Vec<u8>> {
    let mut stream = TcpStream::connect(server).await?;
    let number = number()?;
    stream.write_all(&super::framed(&query.forward(number))?).await?;
    let mut answer = vec![0; usize::from(stream.read_u16().await?)];
    stream.read_exact(&mut answer).await?;
    query.answered(number, &answer).ok_or_else(|| io::ErrorKind::InvalidData.into())
}

fn number() -> io::Result<u16> {
    let mut number = [0; 2];
    getrandom::fill(&mut number).map_err(io::Error::other)?;
    Ok(u16::from_be_bytes(number))
}
