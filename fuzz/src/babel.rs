//! Babel packets for the parser, and for a speaker with neighbours.
use rand::{SeedableRng, rngs::StdRng};
use rustguard_babel::{
    Babel, Config,
    params::WORK_SLICE,
    wire::{
        ip::{HEADERS, PATH, PORT, is_babel},
        parse::Tlvs,
        tlv::Tlv,
    },
};
use rustguard_core::{
    node::PeerId,
    routing::{Action, Event, PeerRoutes, Role, RoutingEngine, Signal},
    time::Instant,
};
use rustguard_crypto::x25519::PublicKey;
use std::time::Duration;

const PEERS: u32 = 3;
/// The limit of routes for each neighbour. It is so small that inputs reach it.
const MAX_ROUTES: usize = 16;
/// The size of full tables. Each neighbour has announced this many prefixes before the input begins. A call that looks
/// at all of them exceeds its limit of work.
const FULL: usize = 1_024;
/// An input that begins with this byte runs with full tables.
const WITH_FULL_TABLES: u8 = 0xff;
/// The limit of work for one call: three slices, and the prefixes in a packet of 255 bytes. In addition, a call may
/// look at the routes of one neighbour twice, to end them and to release their holds.
const CALL: u64 = 3 * WORK_SLICE + 1_024;

/// Reads the input as steps: raw packets, packets in valid headers, whole Babel bodies, signals, and the passing of
/// time.
///
/// After any input, all sent packets are valid and fit into the smallest path. The next deadline is in the future, the
/// work for a moment of time is bounded, and no neighbour has more routes than its limit.
pub fn babel(input: &[u8]) {
    if let Ok(tlvs) = Tlvs::new(input) {
        assert!(tlvs.count() <= input.len() / 2, "more TLVs than bytes for them");
    }
    let _ = is_babel(input);
    let (mut lab, mut steps) = match input.split_first() {
        Some((&WITH_FULL_TABLES, steps)) => (Lab::full(), steps),
        _ => (Lab::new(MAX_ROUTES), input),
    };
    while let Some((&step, rest)) = steps.split_first() {
        steps = rest;
        let peer = PeerId(u32::from(step) % (PEERS + 1));
        match step / 16 % 4 {
            0 => {
                let bytes = take(&mut steps);
                lab.tell(Event::Packet { peer, packet: bytes });
            }
            1 | 2 => {
                let body = take(&mut steps);
                // The header is generated, so that the fuzzer has to find only the body.
                let len = u16::try_from(body.len()).expect("at most 255 bytes");
                lab.deliver(peer, &[&[42, 2][..], &len.to_be_bytes(), body].concat());
            }
            _ => match step % 8 {
                0 => lab.tell(Event::Signal { peer, signal: Signal::Unanswered }),
                1 => lab.tell(Event::Signal { peer, signal: Signal::HandshakeFailed }),
                2 => lab.greet(),
                3 => lab.pass(Duration::from_secs(400)),
                _ => lab.pass(Duration::from_millis(u64::from(step) * 10)),
            },
        }
        lab.check();
    }
    lab.pass(Duration::from_secs(30));
    lab.check();
}

/// Reads a length, and then that many bytes, or fewer at the end of the input.
fn take<'a>(steps: &mut &'a [u8]) -> &'a [u8] {
    let Some((&len, rest)) = steps.split_first() else { return &[] };
    let (bytes, rest) = rest.split_at(usize::from(len).min(rest.len()));
    *steps = rest;
    bytes
}

struct Lab {
    babel: Babel,
    max_routes: usize,
    now: Instant,
    seqno: u16,
}

impl Lab {
    fn new(max_routes: usize) -> Self {
        let config = Config::new(PublicKey([1; 32])).max_routes(max_routes);
        let babel = Babel::new(config, &mut StdRng::seed_from_u64(1));
        let mut lab = Self { babel, max_routes, now: Instant::from_nanos(1 << 50), seqno: 7 };
        let any = ["0.0.0.0/0", "::/0"].map(|text| text.parse().expect("a prefix")).to_vec();
        for peer in (0..PEERS).map(PeerId) {
            lab.tell(Event::Peer { peer, config: &PeerRoutes { allowed_ips: any.clone(), role: Role::Router } });
        }
        lab.tell(Event::Announce { prefix: "10.0.0.0/8".parse().expect("a prefix"), metric: 0 });
        lab.greet();
        lab.greet();
        lab
    }

    /// A lab whose neighbours have all announced as many prefixes as they may. Half of the prefixes are the same for
    /// all neighbours.
    fn full() -> Self {
        let mut lab = Self::new(FULL);
        for peer in 0..PEERS {
            let all: Vec<usize> = (0..FULL).collect();
            for part in all.chunks(64) {
                let mut body = vec![6, 10, 0, 0, 1, 2, 3, 4, 5, 6, 7, 8, 7, 6, 1, 0, 10, 0, 0, 1];
                for n in part {
                    let [.., high, low] = n.to_be_bytes();
                    let second = if n % 2 == 0 { 100 } else { 101 + peer.to_le_bytes()[0] };
                    // An update that is valid for 300 s, with a metric of 100.
                    body.extend([8, 14, 1, 0, 32, 0, 0x75, 0x30, 0, 1, 0, 100, 10, second, high, low]);
                }
                let len = u16::try_from(body.len()).expect("a short packet");
                lab.deliver(PeerId(peer), &[&[42, 2][..], &len.to_be_bytes(), &body].concat());
            }
        }
        assert!(lab.babel.neighbours().all(|neighbour| neighbour.routes == FULL), "the tables are full");
        lab
    }

    fn tell(&mut self, event: Event<'_>) {
        let (mut out, before) = (Vec::new(), self.babel.work());
        self.babel.handle(event, self.now, &mut out);
        let work = self.babel.work() - before;
        let limit = CALL + 2 * self.max_routes as u64;
        assert!(work <= limit, "one call looked at {work} things, {limit} at most");
        assert!(out.len() < 20_000, "{} actions at once", out.len());
        for action in out {
            if let Action::Send { packet, .. } = action {
                assert!(packet.len() <= PATH && is_babel(&packet), "{packet:?}");
                let mut tlvs = Tlvs::new(&packet[HEADERS..]).expect("what is sent is a packet");
                for tlv in tlvs.by_ref() {
                    if let Tlv::Update { prefix, .. } = tlv {
                        assert_eq!(prefix, prefix.trunc());
                    }
                }
                assert_eq!(tlvs.malformed(), 0);
            }
        }
        let deadline = self.babel.deadline().expect("there are neighbours");
        assert!(deadline > self.now || work >= WORK_SLICE, "a deadline that has passed");
    }

    fn deliver(&mut self, peer: PeerId, body: &[u8]) {
        let packet = wrap(body);
        self.tell(Event::Packet { peer, packet: &packet });
    }

    /// All neighbours send a Hello and an IHU.
    fn greet(&mut self) {
        let [high, low] = self.seqno.to_be_bytes();
        self.seqno = self.seqno.wrapping_add(1);
        for peer in (0..PEERS).map(PeerId) {
            self.deliver(peer, &[42, 2, 0, 16, 4, 6, 0, 0, high, low, 1, 144, 5, 6, 0, 0, 0, 96, 4, 176]);
        }
    }

    /// Lets time pass from deadline to deadline, as a caller would.
    fn pass(&mut self, time: Duration) {
        let until = self.now + time;
        let mut steps = 0;
        while let Some(deadline) = self.babel.deadline().filter(|&deadline| deadline <= until) {
            self.now = deadline;
            self.tell(Event::Time);
            steps += 1;
            assert!(steps < 100_000, "{steps} deadlines in {time:?}");
        }
        self.now = until;
    }

    fn check(&self) {
        assert!(self.babel.neighbours().all(|neighbour| neighbour.routes <= self.max_routes));
        if self.max_routes == FULL {
            // Counting would take longer than the step.
            return;
        }
        let routes: usize = self.babel.neighbours().map(|neighbour| neighbour.routes).sum();
        let held = self.babel.routes().filter(|route| route.learned.is_empty()).count();
        assert!(self.babel.routes().count() <= routes + held + 1);
    }
}

/// Adds valid headers to a body.
fn wrap(body: &[u8]) -> Vec<u8> {
    let len = u16::try_from(body.len() + 8).expect("a short body").to_be_bytes();
    let port = PORT.to_be_bytes();
    let source = [0xfe, 0x80, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 5];
    let destination = [0xff, 2, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1, 0, 6];
    let mut packet =
        [&[0x60, 0, 0, 0][..], &len, &[17, 1], &source, &destination, &port, &port, &len, &[0, 0], body].concat();
    let words = packet[8..].chunks(2).map(|pair| u32::from(pair[0]) << 8 | u32::from(*pair.get(1).unwrap_or(&0)));
    let mut sum = words.sum::<u32>() + 17 + u32::from(u16::from_be_bytes(len));
    while sum > 0xffff {
        sum = (sum & 0xffff) + (sum >> 16);
    }
    let checksum = match !u16::try_from(sum).expect("folded") {
        0 => 0xffff,
        checksum => checksum,
    };
    packet[46..48].copy_from_slice(&checksum.to_be_bytes());
    packet
}
