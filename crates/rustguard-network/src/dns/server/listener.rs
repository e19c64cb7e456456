//! One address of the server.

use super::{forward, framed};
use crate::dns::{
    query::{MAX_QUERY, NoQuery, Query, Transport},
    zone::Zone,
};
use std::{
    io,
    net::{SocketAddr, TcpListener, UdpSocket},
    sync::Arc,
    time::Duration,
};
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net,
    sync::{Semaphore, watch},
    task::JoinSet,
};

/// The most simultaneous connections to one address. Further ones are closed immediately; their queries fit into
/// datagrams.
const CONNECTIONS: usize = 16;

/// How long a connection may take until its next query is complete.
const PATIENCE: Duration = Duration::from_secs(5);

/// The most queries of one connection.
const QUERIES: usize = 128;

/// The most UDP queries that are forwarded to other servers at a time.
const FORWARDED: usize = 64;

/// How long the socket pauses after an error that no query has caused: the kernel lacks memory, or the process lacks
/// file descriptors.
const REST: Duration = Duration::from_millis(100);

/// How a query is handled.
enum Answer<'a> {
    /// It is not a query.
    None,
    /// This server answers it.
    Here(Vec<u8>),
    /// These servers have to be asked.
    Elsewhere(Query<'a>, Vec<SocketAddr>),
}

type Zones = watch::Receiver<Arc<Zone>>;

/// The tasks that answer at one address. They end when it is dropped.
#[derive(Debug)]
pub(super) struct Listener {
    address: SocketAddr,
    _tasks: JoinSet<()>,
}

impl Listener {
    pub(super) fn start(address: SocketAddr, zones: Zones) -> io::Result<Self> {
        let udp = UdpSocket::bind(address)?;
        let address = udp.local_addr()?;
        let tcp = TcpListener::bind(address)?;
        udp.set_nonblocking(true)?;
        tcp.set_nonblocking(true)?;
        let mut tasks = JoinSet::new();
        tasks.spawn(datagrams(net::UdpSocket::from_std(udp)?, zones.clone()));
        tasks.spawn(connections(net::TcpListener::from_std(tcp)?, zones));
        Ok(Self { address, _tasks: tasks })
    }

    pub(super) fn address(&self) -> SocketAddr {
        self.address
    }
}

async fn datagrams(socket: net::UdpSocket, zones: Zones) {
    let socket = Arc::new(socket);
    // Queries that are forwarded to other servers. They end with this task.
    let mut forwarded = JoinSet::new();
    // One byte more than the longest query, to notice longer ones.
    let mut buffer = [0; MAX_QUERY + 1];
    loop {
        let Ok((len, from)) = socket.recv_from(&mut buffer).await else {
            tokio::time::sleep(REST).await;
            continue;
        };
        let zone = zones.borrow().clone();
        if !zone.own().contains(&from.ip()) {
            continue;
        }
        while forwarded.try_join_next().is_some() {}
        // A full socket means that a program does not read its answers.
        match answer(&zone, &buffer[..len], Transport::Udp) {
            Answer::None => {}
            Answer::Here(answer) => drop(socket.try_send_to(&answer, from)),
            Answer::Elsewhere(query, _) if forwarded.len() >= FORWARDED => {
                drop(socket.try_send_to(&query.fail(), from));
            }
            Answer::Elsewhere(..) => {
                let (socket, query) = (socket.clone(), buffer[..len].to_vec());
                forwarded.spawn(async move {
                    if let Some(answer) = answer_from_anywhere(&zone, &query, Transport::Udp).await {
                        let _ = socket.try_send_to(&answer, from);
                    }
                });
            }
        }
    }
}

async fn connections(listener: net::TcpListener, zones: Zones) {
    let room = Arc::new(Semaphore::new(CONNECTIONS));
    // The tasks of connections end with this set.
    let mut open = JoinSet::new();
    loop {
        let Ok((stream, from)) = listener.accept().await else {
            tokio::time::sleep(REST).await;
            continue;
        };
        while open.try_join_next().is_some() {}
        let own = zones.borrow().own().contains(&from.ip());
        if own && let Ok(place) = room.clone().try_acquire_owned() {
            let zones = zones.clone();
            open.spawn(async move {
                // An error only ends the connection.
                let _ = connection(stream, &zones).await;
                drop(place);
            });
        }
    }
}

async fn connection(mut stream: net::TcpStream, zones: &Zones) -> io::Result<()> {
    for _ in 0..QUERIES {
        let query = tokio::time::timeout(PATIENCE, read(&mut stream)).await??;
        let zone = zones.borrow().clone();
        let Some(answer) = answer_from_anywhere(&zone, &query, Transport::Tcp).await else {
            return Ok(());
        };
        tokio::time::timeout(PATIENCE, stream.write_all(&framed(&answer)?)).await??;
    }
    Ok(())
}

async fn read(stream: &mut net::TcpStream) -> io::Result<Vec<u8>> {
    let len = usize::from(stream.read_u16().await?);
    if len > MAX_QUERY {
        return Err(io::ErrorKind::InvalidData.into());
    }
    let mut query = vec![0; len];
    stream.read_exact(&mut query).await?;
    Ok(query)
}

fn answer<'a>(zone: &Zone, query: &'a [u8], transport: Transport) -> Answer<'a> {
    if query.len() > MAX_QUERY {
        return Answer::None;
    }
    let query = match Query::read(query, transport) {
        Ok(query) => query,
        Err(NoQuery::Error(answer)) => return Answer::Here(answer),
        Err(NoQuery::Silence) => return Answer::None,
    };
    if let Some(answer) = query.answer(zone) {
        return Answer::Here(answer);
    }
    let servers = zone.servers(query.name());
    if servers.is_empty() { Answer::Here(query.refuse()) } else { Answer::Elsewhere(query, servers) }
}

async fn answer_from_anywhere(zone: &Zone, query: &[u8], transport: Transport) -> Option<Vec<u8>> {
    match answer(zone, query, transport) {
        Answer::None => None,
        Answer::Here(answer) => Some(answer),
        Answer::Elsewhere(query, servers) => {
            Some(forward::ask(&query, &servers, transport).await.unwrap_or_else(|| query.fail()))
        }
    }
}
