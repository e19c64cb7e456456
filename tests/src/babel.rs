//! A hostile Babel router. It announces very many routes, and then retracts them with packet after packet. The packets
//! are built by hand after RFC 8966 §4, without the code under test.
use anyhow::{Context, Result};
use std::{
    fs,
    net::{Ipv6Addr, SocketAddrV6, UdpSocket},
    time::{Duration, Instant},
};

/// The number of prefixes that it announces: 10.66.0.0/32 and the following ones.
pub const HOSTILE_PREFIXES: usize = 32 * IN_A_PACKET;
/// The prefix that covers all of them.
pub const HOSTILE_NET: &str = "10.66.0.0/16";

/// The bytes for TLVs in a packet of 1,296 bytes: 1,244.
const BODY: usize = 1_296 - 48 - 4;
/// The number of updates in a packet, after a Hello, an IHU, a router-id and a next hop.
const IN_A_PACKET: usize = (BODY - 36) / 16;

const PORT: u16 = 6_696;
/// A wildcard retraction: an update without a prefix, with an infinite metric.
const RETRACT_ALL: [u8; 12] = [8, 10, 0, 0, 0, 0, 0x27, 0x10, 0, 0, 0xff, 0xff];
/// The multicast group of all Babel routers of a link.
const GROUP: Ipv6Addr = Ipv6Addr::new(0xff02, 0, 0, 0, 0, 0, 1, 6);

/// A hostile router on an interface.
#[derive(Debug)]
pub struct Hostile {
    socket: UdpSocket,
    seqno: u16,
}

impl Hostile {
    /// Creates a router that speaks to the neighbours on an interface.
    ///
    /// # Errors
    /// If the interface does not exist, or another router has the port.
    pub fn new(interface: &str) -> Result<Self> {
        let index = fs::read_to_string(format!("/sys/class/net/{interface}/ifindex")).context("an interface")?;
        let socket = UdpSocket::bind((Ipv6Addr::UNSPECIFIED, PORT))?;
        socket.connect(SocketAddrV6::new(GROUP, PORT, 0, index.trim().parse()?))?;
        Ok(Self { socket, seqno: 0 })
    }

    /// Announces all prefixes repeatedly, at a rate that any neighbour can process.
    ///
    /// # Errors
    /// If a packet cannot be sent.
    pub fn announce(&mut self, time: Duration) -> Result<u64> {
        self.paced(50, time, |hostile, n| hostile.updates(n, &[]))
    }

    /// Floods with `rate` packets per second. Most packets retract all routes and announce some. Others retract all
    /// routes about a hundred times, or contain about as many Hellos as after restarts of the router.
    ///
    /// # Errors
    /// If a packet cannot be sent.
    pub fn flood(&mut self, rate: u64, time: Duration) -> Result<u64> {
        self.paced(rate, time, |hostile, n| match n % 8 {
            0 => filled(Vec::new(), || RETRACT_ALL.to_vec()),
            1 => filled(Vec::new(), || hostile.hello(1_000)),
            _ => hostile.updates(n, &RETRACT_ALL),
        })
    }

    fn paced(&mut self, rate: u64, time: Duration, mut packet: impl FnMut(&mut Self, usize) -> Vec<u8>) -> Result<u64> {
        let (started, mut sent) = (Instant::now(), 0);
        for n in 0.. {
            while u128::from(sent) >= started.elapsed().as_nanos() * u128::from(rate) / 1_000_000_000 {
                std::thread::sleep(Duration::from_micros(200));
            }
            if started.elapsed() >= time {
                break;
            }
            let packet = packet(self, n);
            self.socket.send(&packet)?;
            sent += 1;
        }
        Ok(sent)
    }

    /// A packet with a part of the announcement after the TLVs `first`. Its IHU says that the router hears its
    /// neighbour well.
    fn updates(&mut self, n: usize, first: &[u8]) -> Vec<u8> {
        let mut tlvs = [&self.hello(1), first].concat();
        // An IHU for every receiver, with a cost of 96.
        tlvs.extend([5, 6, 0, 0, 0, 96, 4, 176]);
        tlvs.extend([6, 10, 0, 0, 6, 6, 6, 6, 6, 6, 6, 6]);
        tlvs.extend([7, 6, 1, 0, 10, 66, 255, 1]);
        let mut next = n * IN_A_PACKET;
        filled(tlvs, || {
            let [.., high, low] = (next % HOSTILE_PREFIXES).to_be_bytes();
            next += 1;
            // An update that is valid for 100 s, with a metric of 100.
            vec![8, 14, 1, 0, 32, 0, 0x27, 0x10, 0, 1, 0, 100, 10, 66, high, low]
        })
    }

    /// A multicast Hello. `step` is the difference of its seqno from that of the previous one.
    fn hello(&mut self, step: u16) -> Vec<u8> {
        self.seqno = self.seqno.wrapping_add(step);
        let [high, low] = self.seqno.to_be_bytes();
        vec![4, 6, 0, 0, high, low, 1, 144]
    }
}

/// The payload of a packet: the TLVs `tlvs`, then as many from `more` as fit, then padding.
fn filled(mut tlvs: Vec<u8>, mut more: impl FnMut() -> Vec<u8>) -> Vec<u8> {
    loop {
        let tlv = more();
        if tlvs.len() + tlv.len() > BODY {
            break;
        }
        tlvs.extend(tlv);
    }
    tlvs.resize(BODY, 0);
    let len = u16::try_from(BODY).expect("a packet's length");
    [&[42, 2][..], &len.to_be_bytes(), &tlvs].concat()
}
