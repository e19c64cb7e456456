//! Names that other servers answer.

use super::{
    network::{MEMBERS, ip, query, records, roster, with_edns},
    server::{ask, framed, listening, read, udp},
};
use domain::base::{Message, MessageBuilder, Rtype, Ttl, iana::Rcode};
use rustguard_network::dns::{Server, Upstream, Zone};
use std::{
    net::{Ipv4Addr, SocketAddr},
    sync::{Arc, Mutex},
};
use tokio::{
    io::AsyncWriteExt,
    net::{TcpListener, TcpStream, UdpSocket},
};

/// A server on the laptop that forwards `domains` to `servers`.
async fn start(servers: &[SocketAddr], domains: &[&str]) -> (Server, SocketAddr) {
    let zone = Zone::new(&roster("rg0", 7, MEMBERS), [ip("127.0.0.1")], []);
    let upstream = Upstream::new(servers.iter().copied(), domains.iter().copied());
    listening(Server::start(zone.with_upstream(upstream), 0)).await
}

fn answer(query: &[u8], address: [u8; 4]) -> Vec<u8> {
    let query = Message::from_octets(query).unwrap();
    let mut answer = MessageBuilder::new_vec().start_answer(&query, Rcode::NOERROR).unwrap();
    let name = query.sole_question().unwrap().into_qname();
    answer.push((name, Ttl::ZERO, domain::rdata::A::new(Ipv4Addr::from(address)))).unwrap();
    answer.finish()
}

type Seen = Arc<Mutex<Vec<Vec<u8>>>>;

/// A name server that sends the results of `answers` for each query.
async fn upstream(answers: impl Fn(&[u8]) -> Vec<Vec<u8>> + Send + 'static) -> (SocketAddr, Seen) {
    let socket = UdpSocket::bind("127.0.0.1:0").await.unwrap();
    let (address, seen) = (socket.local_addr().unwrap(), Seen::default());
    let noted = seen.clone();
    tokio::spawn(async move {
        let mut buffer = [0; 1500];
        while let Ok((len, from)) = socket.recv_from(&mut buffer).await {
            noted.lock().unwrap().push(buffer[..len].to_vec());
            for answer in answers(&buffer[..len]) {
                socket.send_to(&answer, from).await.unwrap();
            }
        }
    });
    (address, seen)
}

#[tokio::test]
async fn each_name_goes_to_its_own_servers() {
    let (corp, seen) = upstream(|query| vec![answer(query, [192, 0, 2, 1])]).await;
    let (_server, address) = start(&[corp], &["corp.example", "lab.example"]).await;
    let socket = udp("127.0.0.1", address).await;
    for name in ["corp.example", "www.corp.example", "a.LAB.example"] {
        assert_eq!(records(&ask(&socket, name).await, 0), [format!("{name} A 192.0.2.1")]);
    }
    assert_eq!(records(&ask(&socket, "laptop.rg0.internal").await, 0), ["laptop.rg0.internal A 10.150.0.2"]);
    assert_eq!(ask(&socket, "nobody.rg0.internal").await.header().rcode(), Rcode::NXDOMAIN);
    for name in ["example", "xcorp.example", "corp.example.net", "."] {
        assert_eq!(ask(&socket, name).await.header().rcode(), Rcode::REFUSED, "{name}");
    }
    assert_eq!(seen.lock().unwrap().len(), 3);
}

/// The network's names never leave this machine.
#[tokio::test]
async fn servers_for_everything_are_not_asked_for_members() {
    let (all, seen) = upstream(|query| vec![answer(query, [192, 0, 2, 1])]).await;
    let (_server, address) = start(&[all], &[]).await;
    let socket = udp("127.0.0.1", address).await;
    assert_eq!(records(&ask(&socket, "example.com").await, 0), ["example.com A 192.0.2.1"]);
    for name in ["laptop.rg0.internal", "nobody.rg0.internal", "rg0.internal"] {
        ask(&socket, name).await;
    }
    assert_eq!(seen.lock().unwrap().len(), 1);
}

#[tokio::test]
async fn answers_to_something_else_are_not_taken() {
    let forged = |query: &[u8]| {
        let wrong = answer(query, [192, 0, 2, 66]);
        let mut number = wrong.clone();
        number[1] ^= 1;
        let mut no_answer = wrong.clone();
        no_answer[2] &= 0x7f;
        let mut name = wrong.clone();
        name[13] ^= 1;
        let mut rtype = wrong;
        let end = query.len() - 3;
        rtype[end] ^= 1;
        vec![vec![], number, no_answer, name, rtype, answer(query, [192, 0, 2, 1])]
    };
    let (corp, _) = upstream(forged).await;
    let (_server, address) = start(&[corp], &["corp.example"]).await;
    let socket = udp("127.0.0.1", address).await;
    assert_eq!(records(&ask(&socket, "corp.example").await, 0), ["corp.example A 192.0.2.1"]);
}

/// RFC 5452, section 9.2.
#[tokio::test]
async fn numbers_are_chosen_anew_and_options_stay_here() {
    let (corp, seen) = upstream(|query| vec![answer(query, [192, 0, 2, 1])]).await;
    let (_server, address) = start(&[corp], &["corp.example"]).await;
    let socket = udp("127.0.0.1", address).await;
    for _ in 0..8 {
        // The client always uses the same ID.
        assert_eq!(ask(&socket, "corp.example").await.header().id(), 0x1234);
    }
    let mut with_cookie = with_edns(query("corp.example", Rtype::A), 4096, 0);
    let len = with_cookie.len();
    with_cookie[len - 1] = 12;
    with_cookie.extend_from_slice(&[0, 10, 0, 8, 1, 2, 3, 4, 5, 6, 7, 8]);
    socket.send(&with_cookie).await.unwrap();
    socket.recv(&mut [0; 1500]).await.unwrap();
    let mut seen = std::mem::take(&mut *seen.lock().unwrap());
    let last = Message::from_octets(seen.pop().unwrap()).unwrap();
    assert_eq!(last.opt().map(|opt| (opt.udp_payload_size(), opt.opt().is_empty())), Some((1232, true)));
    assert!(seen.iter().all(|query| Message::from_octets(&query[..]).unwrap().opt().is_none()));
    let numbers: std::collections::HashSet<_> = seen.iter().map(|query| query[..2].to_vec()).collect();
    assert!(numbers.len() > 1, "{numbers:?}");
}

#[tokio::test]
async fn the_next_server_is_asked_where_one_is_dead() {
    let dead = UdpSocket::bind("127.0.0.1:0").await.unwrap().local_addr().unwrap();
    let (live, _) = upstream(|query| vec![answer(query, [192, 0, 2, 1])]).await;
    let (_server, address) = start(&[dead, live], &["corp.example"]).await;
    let socket = udp("127.0.0.1", address).await;
    assert_eq!(records(&ask(&socket, "corp.example").await, 0), ["corp.example A 192.0.2.1"]);
}

#[tokio::test]
async fn a_long_answer_comes_over_tcp() {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let corp = listener.local_addr().unwrap();
    tokio::spawn(async move {
        let (mut stream, _) = listener.accept().await.unwrap();
        let mut query = vec![0; usize::from(tokio::io::AsyncReadExt::read_u16(&mut stream).await.unwrap())];
        tokio::io::AsyncReadExt::read_exact(&mut stream, &mut query).await.unwrap();
        let query = Message::from_octets(&query[..]).unwrap();
        let mut answer = MessageBuilder::new_vec().start_answer(&query, Rcode::NOERROR).unwrap();
        for last in 0..200 {
            let name = query.sole_question().unwrap().into_qname();
            answer.push((name, Ttl::ZERO, domain::rdata::A::new([192, 0, 2, last].into()))).unwrap();
        }
        stream.write_all(&framed(&answer.finish())).await.unwrap();
        stream.shutdown().await.unwrap();
    });
    let (_server, address) = start(&[corp], &["corp.example"]).await;
    let mut stream = TcpStream::connect(address).await.unwrap();
    stream.write_all(&framed(&query("corp.example", Rtype::A))).await.unwrap();
    assert_eq!(records(&read(&mut stream).await, 0).len(), 200);
}

/// If a server exceeds the limit, the client asks again over TCP, and gets no truncated answer.
#[tokio::test]
async fn an_answer_that_is_too_long_for_a_datagram_is_not_cut_off() {
    let (corp, _) = upstream(|query| vec![[answer(query, [192, 0, 2, 1]), vec![0; 1400]].concat()]).await;
    let (_server, address) = start(&[corp], &["corp.example"]).await;
    let socket = udp("127.0.0.1", address).await;
    socket.send(&with_edns(query("corp.example", Rtype::A), 4096, 0)).await.unwrap();
    let mut buffer = [0; 1500];
    let len = socket.recv(&mut buffer).await.unwrap();
    let answer = Message::from_octets(&buffer[..len]).unwrap();
    assert!(answer.header().tc() && answer.header_counts().ancount() == 0);
}

/// Another machine of the network may be the name server. If this machine is one itself, asking it would never end.
#[tokio::test]
async fn this_machine_does_not_ask_itself() {
    let (_server, address) = start(&[(ip("127.0.0.1"), 53).into()], &["corp.example"]).await;
    let socket = udp("127.0.0.1", address).await;
    assert_eq!(ask(&socket, "corp.example").await.header().rcode(), Rcode::REFUSED);
}

#[tokio::test(start_paused = true)]
async fn silent_servers_are_a_failure_and_few_queries_wait() {
    let (silent, seen) = upstream(|_| vec![]).await;
    let (_server, address) = start(&[silent], &["corp.example"]).await;
    let socket = udp("127.0.0.1", address).await;
    for _ in 0..100 {
        socket.send(&query("corp.example", Rtype::A)).await.unwrap();
    }
    for _ in 0..100 {
        let mut buffer = vec![0; 1500];
        let len = socket.recv(&mut buffer).await.unwrap();
        buffer.truncate(len);
        assert_eq!(Message::from_octets(buffer).unwrap().header().rcode(), Rcode::SERVFAIL);
    }
    assert_eq!(seen.lock().unwrap().len(), 64);
}
