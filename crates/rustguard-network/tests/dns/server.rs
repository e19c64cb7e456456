//! The server at addresses of this machine.

use super::network::{MEMBERS, ip, query, records, roster};
use domain::base::{Message, Rtype, iana::Rcode};
use rustguard_network::dns::{Server, Zone};
use std::{net::SocketAddr, time::Duration};
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::{TcpListener, TcpSocket, TcpStream, UdpSocket},
};

const LONG: Duration = Duration::from_secs(60);

fn zone(members: super::network::Members<'_>) -> Zone {
    Zone::new(&roster("rg0", 7, members), [ip("127.0.0.1")], [])
}

async fn start() -> (Server, SocketAddr) {
    listening(Server::start(zone(MEMBERS), 0)).await
}

/// Returns the address where it answers. A port that the kernel has chosen for UDP may be in use for TCP. Then it
/// chooses again.
pub(super) async fn listening(mut server: Server) -> (Server, SocketAddr) {
    loop {
        if let Some(address) = server.listening().first().copied() {
            return (server, address);
        }
        server.listening_changed().await;
    }
}

pub(super) async fn udp(from: &str, to: SocketAddr) -> UdpSocket {
    let socket = UdpSocket::bind((ip(from), 0)).await.unwrap();
    socket.connect(to).await.unwrap();
    socket
}

pub(super) async fn ask(socket: &UdpSocket, name: &str) -> Message<Vec<u8>> {
    socket.send(&query(name, Rtype::A)).await.unwrap();
    let mut buffer = vec![0; 1500];
    let len = tokio::time::timeout(LONG, socket.recv(&mut buffer)).await.expect("an answer").unwrap();
    buffer.truncate(len);
    Message::from_octets(buffer).unwrap()
}

pub(super) fn framed(query: &[u8]) -> Vec<u8> {
    [&(query.len() as u16).to_be_bytes(), query].concat()
}

pub(super) async fn read(stream: &mut TcpStream) -> Message<Vec<u8>> {
    let read = async {
        let mut answer = vec![0; usize::from(stream.read_u16().await.unwrap())];
        stream.read_exact(&mut answer).await.unwrap();
        Message::from_octets(answer).unwrap()
    };
    tokio::time::timeout(LONG, read).await.expect("an answer")
}

/// Whether the other end closes the connection without a byte.
async fn closes(stream: &mut TcpStream) -> bool {
    let end = tokio::time::timeout(LONG, stream.read(&mut [0])).await.expect("an end");
    matches!(end, Ok(0) | Err(_))
}

#[tokio::test]
async fn names_are_answered_over_udp_and_tcp() {
    let (_server, address) = start().await;
    let socket = udp("127.0.0.1", address).await;
    assert_eq!(records(&ask(&socket, "laptop.rg0.internal").await, 0), ["laptop.rg0.internal A 10.150.0.2"]);
    let mut stream = TcpStream::connect(address).await.unwrap();
    // Two queries in one segment, as resolvers send them.
    let two =
        [framed(&query("laptop.rg0.internal", Rtype::A)), framed(&query("nobody.rg0.internal", Rtype::A))].concat();
    stream.write_all(&two).await.unwrap();
    assert_eq!(records(&read(&mut stream).await, 0), ["laptop.rg0.internal A 10.150.0.2"]);
    assert_eq!(read(&mut stream).await.header().rcode(), Rcode::NXDOMAIN);
}

/// Another address of this machine plays the role of another member or a router.
#[tokio::test]
async fn a_stranger_gets_no_answer() {
    let (_server, address) = start().await;
    let stranger = udp("127.0.0.2", address).await;
    stranger.send(&query("laptop.rg0.internal", Rtype::A)).await.unwrap();
    let socket = TcpSocket::new_v4().unwrap();
    socket.bind((ip("127.0.0.2"), 0).into()).unwrap();
    let mut stream = socket.connect(address).await.unwrap();
    // The other end may have closed already.
    let _ = stream.write_all(&framed(&query("laptop.rg0.internal", Rtype::A))).await;
    assert!(closes(&mut stream).await);
    // The datagram of the stranger was sent before this one, which is answered.
    let own = udp("127.0.0.1", address).await;
    ask(&own, "laptop.rg0.internal").await;
    let nothing = stranger.try_recv(&mut [0]).unwrap_err();
    assert_eq!(nothing.kind(), std::io::ErrorKind::WouldBlock);
}

#[tokio::test]
async fn a_new_zone_is_answered_from_at_once() {
    let (server, address) = start().await;
    let socket = udp("127.0.0.1", address).await;
    assert_eq!(ask(&socket, "laptop.rg0.internal").await.header().rcode(), Rcode::NOERROR);
    server.set_zone(zone(&[("desk", &["10.150.0.2"])]));
    assert_eq!(ask(&socket, "laptop.rg0.internal").await.header().rcode(), Rcode::NXDOMAIN);
    assert_eq!(records(&ask(&socket, "desk.rg0.internal").await, 0), ["desk.rg0.internal A 10.150.0.2"]);
}

#[tokio::test]
async fn it_ends_with_its_owner() {
    let (server, address) = start().await;
    drop(server);
    // The port is free as soon as the task has ended.
    while UdpSocket::bind(address).await.is_err() {
        tokio::task::yield_now().await;
    }
    assert!(TcpStream::connect(address).await.is_err());
}

#[tokio::test]
async fn connections_are_bounded_in_number_and_size() {
    let (_server, address) = start().await;
    let mut open = Vec::new();
    for _ in 0..16 {
        let mut stream = TcpStream::connect(address).await.unwrap();
        stream.write_all(&framed(&query("laptop.rg0.internal", Rtype::A))).await.unwrap();
        read(&mut stream).await;
        open.push(stream);
    }
    assert!(closes(&mut TcpStream::connect(address).await.unwrap()).await, "the seventeenth");
    let mut one = open.pop().unwrap();
    one.write_all(&framed(&[0; 1233])).await.unwrap();
    assert!(closes(&mut one).await, "a query of 1,233 bytes");
    // Datagrams are answered meanwhile.
    ask(&udp("127.0.0.1", address).await, "laptop.rg0.internal").await;
}

#[tokio::test(start_paused = true)]
async fn a_silent_connection_is_closed() {
    let (_server, address) = start().await;
    let mut silent = TcpStream::connect(address).await.unwrap();
    silent.write_all(&[0]).await.unwrap();
    assert!(closes(&mut silent).await);
}

#[tokio::test(start_paused = true)]
async fn a_taken_port_is_tried_again() {
    let taken = UdpSocket::bind("127.0.0.1:0").await.unwrap();
    let address = taken.local_addr().unwrap();
    let mut server = Server::start(zone(MEMBERS), address.port());
    server.listening_changed().await;
    assert_eq!(server.listening(), []);
    drop(taken);
    let began = tokio::time::Instant::now();
    server.listening_changed().await;
    assert_eq!(server.listening(), [address]);
    assert!(began.elapsed() < Duration::from_secs(1), "soon at first, by the clock of this test");
    drop(TcpListener::bind(address).await.unwrap_err());
}
