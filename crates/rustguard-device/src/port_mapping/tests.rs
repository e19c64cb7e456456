//! Tests against a router that speaks PCP, or NAT-PMP only, or UPnP, at an address of the loopback network.

use super::*;
use igd_next::aio::{Gateway, tokio::Tokio};
use std::{
    io::{BufRead as _, BufReader, Read as _, Write as _},
    net::{TcpListener, UdpSocket},
};
use tokio::sync::mpsc;

/// A router's answers, one for each request that changes mappings. Each test has an address of its own.
struct Router {
    address: Ipv4Addr,
    /// The lifetimes that were asked for, 0 for the end of a mapping.
    asked: std::sync::mpsc::Receiver<u32>,
}

const OUTSIDE: Ipv4Addr = Ipv4Addr::new(203, 0, 113, 5);

impl Router {
    fn start(last: u8, speaks_pcp: bool, outside: Ipv4Addr) -> Self {
        let address = Ipv4Addr::new(127, 83, 5, last);
        let socket = UdpSocket::bind((address, crab_nat::GATEWAY_PORT)).expect("the port of PCP at a loopback address");
        let (asked, receiver) = std::sync::mpsc::channel();
        std::thread::spawn(move || {
            let mut request = [0; 1100];
            while let Ok((len, from)) = socket.recv_from(&mut request) {
                let request = &request[..len];
                let lifetime = |at: usize| u32::from_be_bytes(request[at..at + 4].try_into().unwrap());
                let answer = match (request[0], request[1]) {
                    // RFC 6887, section 9: unsupported version, and the supported one.
                    (2, _) if !speaks_pcp => [&[0, 0x80, 0, 1][..], &[0; 4]].concat(),
                    // RFC 6887, sections 7.2 and 11.1: the header, the nonce, protocol and ports, the address.
                    (2, 1) => {
                        let _ = asked.send(lifetime(4));
                        let header = [&[2, 0x81, 0, 0][..], &request[4..8], &[0, 0, 0, 1], &[0; 12]].concat();
                        let ports = [&request[40..42], &4_500_u16.to_be_bytes()].concat();
                        let address = outside.to_ipv6_mapped().octets();
                        [&header, &request[24..40], &ports, &address[..]].concat()
                    }
                    // RFC 6886, section 3.2.
                    (0, 0) => [&[0, 0x80, 0, 0, 0, 0, 0, 1][..], &outside.octets()].concat(),
                    // Section 3.3.
                    (0, 1) => {
                        let _ = asked.send(lifetime(8));
                        let port = if lifetime(8) == 0 { 0 } else { 4_501_u16 };
                        let ports = [&request[4..6], &port.to_be_bytes()].concat();
                        [&[0, 0x81, 0, 0, 0, 0, 0, 1][..], &ports, &request[8..12]].concat()
                    }
                    other => panic!("an unknown request: {other:?}"),
                };
                socket.send_to(&answer, from).expect("the loopback takes it");
            }
        });
        Self { address, asked: receiver }
    }

    fn wanted(&self) -> Wanted {
        Wanted { router: self.address, own: Ipv4Addr::LOCALHOST, port: NonZeroU16::new(51820).unwrap() }
    }
}

async fn mapped(router: &Router) -> (PortMapper, mpsc::UnboundedReceiver<Option<SocketAddrV4>>, Option<SocketAddrV4>) {
    let (found, mut receiver) = mpsc::unbounded_channel();
    let mut mapper = PortMapper::new("test", move |mapped| {
        let _ = found.send(mapped);
    });
    mapper.want(Some(router.wanted()));
    let external = receiver.recv().await.expect("the mapper runs");
    (mapper, receiver, external)
}

#[tokio::test]
async fn a_port_is_mapped_by_pcp_and_taken_back_at_the_end() {
    let router = Router::start(1, true, OUTSIDE);
    let (mapper, _receiver, external) = mapped(&router).await;
    assert_eq!(external, Some(SocketAddrV4::new(OUTSIDE, 4_500)));
    drop(mapper);
    assert_eq!(router.asked.try_iter().collect::<Vec<_>>(), [3600, 0]);
}

#[tokio::test]
async fn a_router_that_speaks_nat_pmp_only_is_asked_by_that() {
    let router = Router::start(2, false, OUTSIDE);
    let (mapper, _receiver, external) = mapped(&router).await;
    assert_eq!(external, Some(SocketAddrV4::new(OUTSIDE, 4_501)));
    drop(mapper);
    assert_eq!(router.asked.try_iter().collect::<Vec<_>>(), [3600, 0]);
}

#[tokio::test]
async fn a_mapping_that_nobody_wants_any_more_is_taken_back() {
    let router = Router::start(3, true, OUTSIDE);
    let (mut mapper, mut receiver, _) = mapped(&router).await;
    mapper.want(None);
    assert_eq!(receiver.recv().await, Some(None));
    assert_eq!(router.asked.try_iter().collect::<Vec<_>>(), [3600, 0]);
    mapper.want(Some(router.wanted()));
    assert!(receiver.recv().await.flatten().is_some(), "and made again");
}

#[tokio::test]
async fn a_mapping_behind_a_second_translation_is_taken_back() {
    for (last, speaks_pcp) in [(4, true), (5, false)] {
        let router = Router::start(last, speaks_pcp, Ipv4Addr::new(100, 64, 0, 1));
        assert!(Mapping::by_pcp(router.wanted()).await.is_err());
        assert_eq!(router.asked.try_iter().collect::<Vec<_>>(), [3600, 0]);
    }
}

/// Serves UPnP's actions, and reports another external address each time.
fn upnp_router() -> Gateway<Tokio> {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let addr = listener.local_addr().unwrap();
    std::thread::spawn(move || {
        let mut outside = OUTSIDE.octets();
        for connection in listener.incoming() {
            let mut connection = BufReader::new(connection.unwrap());
            let (mut action, mut len) = (String::new(), 0);
            loop {
                let mut line = String::new();
                connection.read_line(&mut line).unwrap();
                if line.trim().is_empty() {
                    break;
                }
                let Some((name, value)) = line.trim().split_once(':') else { continue };
                let value = value.trim();
                match &*name.to_lowercase() {
                    "content-length" => len = value.parse().unwrap(),
                    "soapaction" => action = value.trim_matches('"').rsplit('#').next().unwrap().to_owned(),
                    _ => {}
                }
            }
            connection.read_exact(&mut vec![0; len]).unwrap();
            let said = if action == "GetExternalIPAddress" {
                let ip = Ipv4Addr::from(outside);
                outside[3] += 1;
                format!("<NewExternalIPAddress>{ip}</NewExternalIPAddress>")
            } else {
                String::new()
            };
            let body = format!("<Envelope><Body><{action}Response>{said}</{action}Response></Body></Envelope>");
            let len = body.len();
            let answer = format!("HTTP/1.1 200 OK\r\nContent-Length: {len}\r\nConnection: close\r\n\r\n{body}");
            connection.get_mut().write_all(answer.as_bytes()).unwrap();
        }
    });
    Gateway {
        addr,
        root_url: String::new(),
        control_url: "/control".into(),
        control_schema_url: String::new(),
        control_schema: [("AddPortMapping".into(), vec!["NewExternalPort".into()])].into(),
        service_type: "urn:schemas-upnp-org:service:WANIPConnection:1".into(),
        provider: Tokio,
    }
}

#[tokio::test]
async fn a_renewal_by_upnp_hears_of_another_address_outside() {
    let port = NonZeroU16::new(51820).unwrap();
    let wanted = Wanted { router: Ipv4Addr::LOCALHOST, own: Ipv4Addr::LOCALHOST, port };
    let mut mapping = Mapping::at_gateway(wanted, upnp_router()).await.unwrap();
    let external = mapping.external;
    assert_eq!(*external.ip(), OUTSIDE);
    assert!(mapping.renew().await);
    assert_eq!(mapping.external, SocketAddrV4::new(Ipv4Addr::new(203, 0, 113, 6), external.port()));
}

#[test]
fn only_addresses_that_others_can_send_to_are_outside() {
    for inside in
        ["10.0.0.1", "172.16.0.1", "192.168.1.1", "100.64.0.1", "127.0.0.1", "169.254.0.1", "0.0.0.0", "224.0.0.1"]
    {
        assert!(!is_outside(inside.parse().unwrap()), "{inside}");
    }
    for outside in ["203.0.113.5", "100.128.0.1", "100.63.0.1", "8.8.8.8"] {
        assert!(is_outside(outside.parse().unwrap()), "{outside}");
    }
}
