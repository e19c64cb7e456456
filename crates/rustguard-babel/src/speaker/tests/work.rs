//! The work of one call for a speaker whose tables are full. It is a count of examined items, not a time.
use super::*;
use crate::params::WORK_SLICE;

/// The number of neighbours. Each has as many routes as it may have.
const NEIGHBOURS: u32 = 8;
/// The most work of one call: a slice each of expiring routes, decisions and updates; the routes of one neighbour twice
/// (they end, and their holds are released); and the content of a packet of full size.
const CALL: u64 = 3 * WORK_SLICE + 2 * MAX_ROUTES as u64 + 4_096;

/// Half of the prefixes of a neighbour are announced by all neighbours, the others by it alone.
fn prefix(peer: u32, n: usize) -> IpNet {
    let [.., high, low] = (n as u32).to_be_bytes();
    let second = if n.is_multiple_of(2) { 0 } else { peer as u8 };
    IpNet::new([10, second, high, low].into(), 32).expect("a prefix")
}

struct Full {
    lab: Lab,
    /// The most work of one call so far.
    most: u64,
}

impl Full {
    fn new() -> Self {
        let peers: Vec<PeerId> = (1..=NEIGHBOURS).map(PeerId).collect();
        let mut full = Self { lab: Lab::new(&peers), most: 0 };
        for peer in 1..=NEIGHBOURS {
            full.announce_all(peer, 100);
        }
        full.lab.pass(1_000);
        assert!(full.lab.babel.neighbours().all(|neighbour| neighbour.routes == MAX_ROUTES));
        assert_eq!(full.lab.fib.len(), MAX_ROUTES / 2 * (NEIGHBOURS as usize + 1));
        full.lab.sent.clear();
        full
    }

    fn announce_all(&mut self, peer: u32, metric: u16) {
        let mut announced = 0;
        while announced < MAX_ROUTES {
            let update = |packet: &mut Packet, n| {
                packet.update(prefix(peer, announced + n), route(5, 1, metric), INTERVAL, None);
            };
            announced += self.says(peer, MAX_ROUTES - announced, update).0;
            self.rest();
        }
    }

    /// Sends a packet that is filled with at most `most` TLVs. Returns how many there are, and the work of the call.
    fn says(&mut self, peer: u32, most: usize, mut write: impl FnMut(&mut Packet, usize)) -> (usize, u64) {
        let mut packet = Packet::new();
        let mut n = 0;
        while packet.has_room() && n < most {
            write(&mut packet, n);
            n += 1;
        }
        let packet = ip::wrap(link_local(&PublicKey([peer as u8; 32])), ip::MULTICAST, &packet.finish(0));
        (n, self.tell(Event::Packet { peer: PeerId(peer), packet: &packet }))
    }

    fn tell(&mut self, event: Event<'_>) -> u64 {
        let before = self.lab.babel.work();
        self.lab.tell(event);
        let cost = self.lab.babel.work() - before;
        self.most = self.most.max(cost);
        cost
    }

    /// Does the work that was left over, and returns how much it was.
    fn rest(&mut self) -> u64 {
        let mut cost = 0;
        while self.lab.babel.deadline().is_some_and(|at| at <= self.lab.now) {
            cost += self.tell(Event::Time);
        }
        cost
    }

    /// Sends the same packet again and again, 5 ms apart. Returns the work of all.
    fn floods(&mut self, packets: usize, mut write: impl FnMut(&mut Packet, usize)) -> u64 {
        let mut cost = 0;
        for _ in 0..packets {
            cost += self.says(1, usize::MAX, &mut write).1 + self.rest();
            self.lab.now = self.lab.now + Duration::from_millis(5);
            cost += self.tell(Event::Time) + self.rest();
        }
        cost
    }
}

#[test]
fn a_packet_is_a_bounded_amount_of_work() {
    let us = link_local(&PublicKey([9; 32]));
    let mut full = Full::new();
    let report = |what: &str, cost: u64, limit: u64| {
        println!("{what}: {cost} of {limit}");
        assert!(cost <= limit, "{what}: {cost}, and {limit} is the limit");
    };
    let ten = 10 * 4_096;
    report("requests for everything", full.floods(10, |packet, _| packet.route_request(None)), ten);
    let cost = full.floods(10, |packet, n| packet.route_request(Some(prefix(2, n))));
    report("requests for prefixes", cost, ten);
    let cost = full.floods(10, |packet, n| packet.seqno_request(prefix(2, n), id(5), Seqno(7), 9));
    report("requests for numbers", cost, ten);
    let cost = full.floods(10, |packet, n| packet.ack_request(n as u16, 1));
    report("requests for acknowledgment", cost, ten);
    let cost = full.floods(10, |packet, _| packet.update(prefix(1, 0), route(5, 1, 1_000), INTERVAL, None));
    report("an update that is not followed", cost, ten);
    let mut metric = 100;
    let cost = full.floods(10, |packet, n| {
        metric = 300 - metric;
        packet.update(prefix(1, n % 40), route(5, 1, metric), INTERVAL, None);
    });
    report("updates that contradict each other", cost, 2 * ten);
    let mut rxcost = 100;
    let cost = full.floods(10, |packet, n| {
        rxcost = if n == 0 { 3_100 - rxcost } else { rxcost };
        packet.ihu(us, rxcost, 90, None);
    });
    report("a link that costs something else in every packet", cost, 4 * MAX_ROUTES as u64 * u64::from(NEIGHBOURS));
    // The first packet has an effect: a decision about each prefix, and triggered updates.
    let all = MAX_ROUTES as u64 * 4 * u64::from(NEIGHBOURS);
    report("all is retracted", full.floods(1, |packet, _| packet.retract_all(INTERVAL)), all);
    report("and again", full.floods(10, |packet, _| packet.retract_all(INTERVAL)), ten);
    full.announce_all(1, 100);
    let mut seqno = 0_u16;
    let mut hello = |packet: &mut Packet, _| {
        seqno = seqno.wrapping_add(1_000);
        packet.hello(Seqno(seqno), 30);
    };
    report("a restart", full.floods(1, &mut hello), all);
    report("and again", full.floods(10, &mut hello), 2 * ten);
    assert!(full.most <= CALL, "a call cost {}, and {CALL} is the limit", full.most);
}

#[test]
fn a_lost_neighbour_is_a_bounded_amount_of_work_at_a_time() {
    let mut full = Full::new();
    full.lab.alive.clear();
    let (mut lost, mut at) = (0, full.lab.now);
    while lost < NEIGHBOURS as usize {
        at = at + Duration::from_millis(50);
        full.lab.now = at;
        full.tell(Event::Time);
        full.rest();
        lost = full.lab.babel.neighbours().filter(|neighbour| neighbour.cost.is_none()).count();
    }
    assert!(full.lab.fib.values().all(|hops| *hops == NextHops::UNREACHABLE));
    assert!(full.most <= CALL, "a call cost {}, and {CALL} is the limit", full.most);
}

/// Clients are heard five times a second, in most cases without an effect.
#[test]
fn an_event_of_a_client_concerns_that_client() {
    const CLIENTS: u32 = 10_000;
    let mut lab = Lab::new(&[A, B]);
    let client = |n: u32| PeerId(100 + n);
    for n in 0..CLIENTS {
        lab.peer(client(n), Role::Client, &[&format!("10.9.{}.{}/32", n / 256, n % 256)]);
    }
    let mut full = Full { lab, most: 0 };
    full.rest();
    let mut now = full.lab.now;
    for n in 0..CLIENTS {
        full.tell(Event::Signal { peer: client(n), signal: Signal::Heard { data: Some(now) } });
    }
    // All clients come, and are announced at the normal metric a second later.
    full.lab.pass(3_000);
    full.rest();
    for round in 0..3 {
        full.lab.now = full.lab.now + Duration::from_millis(1);
        full.tell(Event::Time);
        full.rest();
        (full.most, now) = (0, full.lab.now);
        for n in 0..CLIENTS {
            full.tell(Event::Signal { peer: client(n), signal: Signal::Heard { data: Some(now) } });
        }
        assert!(full.most <= 4, "round {round}: {} looked at for one of them", full.most);
    }
}

/// Hellos that contradict each other in one packet count as one restart, and only the first of them counts.
#[test]
fn a_neighbour_starts_again_once_in_a_packet() {
    let mut lab = Lab::new(&[A, B]);
    lab.alive.remove(&A);
    let update = |packet: &mut Packet| packet.update(p(), route(5, 1, 100), INTERVAL, None);
    lab.says(A, |packet| {
        packet.hello(Seqno(10_000), 30);
        packet.hello(Seqno(20_000), 30);
        update(packet);
    });
    let known = |lab: &Lab| lab.babel.routes().any(|report| report.prefix == p() && !report.learned.is_empty());
    assert!(known(&lab));
    lab.says(A, |packet| packet.hello(Seqno(10_001), 30));
    assert!(known(&lab), "it goes on from the first");
    lab.says(A, |packet| packet.hello(Seqno(20_001), 30));
    assert!(!known(&lab), "it starts again");
}
