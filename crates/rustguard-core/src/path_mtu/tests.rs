use super::*;

const START: Instant = Instant::from_nanos(1_000_000_000);

/// A link to a peer that answers, or does not answer.
struct Link {
    answers: bool,
    /// Longer texts are lost.
    longest: u16,
    /// For each of these numbers, one request in so many is lost.
    loss: Option<u32>,
    round_trip: Duration,
    /// The lengths of all requests.
    sent: Vec<u16>,
    replied: usize,
}

impl Link {
    fn new(longest: u16) -> Self {
        Self { answers: true, longest, loss: None, round_trip: Duration::from_millis(20), sent: vec![], replied: 0 }
    }

    /// Runs a check to its end, and returns how long it took.
    fn check(&mut self, path_mtu: &mut PathMtu, from: Instant) -> Duration {
        let (mut now, mut reply) = (from, None);
        for _ in 0..1_000 {
            let due = path_mtu.deadline();
            match reply {
                Some((at, probe)) if due.is_none_or(|due| at <= due) => {
                    (now, reply) = (at, None);
                    path_mtu.reply(probe, now);
                }
                _ => {
                    let Some(due) = due else { return now.since(from) };
                    now = due.max(now);
                    let Some(Message::Request(probe)) = path_mtu.tick(now) else { continue };
                    let text = Message::Request(probe).to_bytes();
                    assert_eq!((text.len(), Message::parse(&text)), (probe.len.into(), Some(Message::Request(probe))));
                    self.sent.push(probe.len);
                    let lost = self.loss.is_some_and(|one_of| (self.sent.len() as u32).is_multiple_of(one_of));
                    if self.answers && probe.len <= self.longest && !lost {
                        self.replied += Message::Reply(probe).to_bytes().len();
                        reply = Some((now + self.round_trip, probe));
                    }
                }
            }
        }
        panic!("the check has no end: {:?}", self.sent);
    }
}

#[test]
fn two_probes_are_enough_where_long_packets_arrive() {
    let (mut path_mtu, mut link) = (PathMtu::default(), Link::new(1_500));
    assert_eq!(path_mtu.deadline(), None, "without traffic nothing is sent");
    path_mtu.traffic(1_420, START);
    assert!(path_mtu.begins());
    path_mtu.stop();
    assert_eq!((path_mtu.begins(), path_mtu.deadline()), (false, None));
    path_mtu.traffic(1_420, START);
    link.check(&mut path_mtu, START);
    assert_eq!((path_mtu.known(), &link.sent[..]), (Known::Reaches(1_420), &[16, 1_420][..]));
    // More traffic leads to a check after ten minutes, or when packets may be longer than the length that was checked.
    path_mtu.traffic(1_420, START + INTERVAL);
    path_mtu.traffic(1_300, START + INTERVAL);
    assert_eq!(path_mtu.deadline(), None);
    path_mtu.traffic(1_500, START + INTERVAL);
    assert!(path_mtu.deadline().is_some());
    link.check(&mut path_mtu, START + INTERVAL);
    path_mtu.traffic(1_500, START + INTERVAL * 3);
    assert!(path_mtu.deadline().is_some());
}

#[test]
fn the_longest_packet_that_arrives_is_found() {
    for longest in [17, 576, 1_280, 1_331, 1_340, 1_419] {
        for loss in [None, Some(7), Some(4)] {
            let (mut path_mtu, mut link) = (PathMtu::default(), Link { loss, ..Link::new(longest) });
            path_mtu.traffic(1_420, START);
            let took = link.check(&mut path_mtu, START);
            assert_eq!(path_mtu.known(), Known::Limit(longest), "{:?}", link.sent);
            let bytes: usize = link.sent.iter().map(|&len| usize::from(len)).sum();
            assert!(link.sent.len() <= 60 && bytes < 60_000, "{} probes, {bytes} bytes", link.sent.len());
            assert!(took < Duration::from_secs(30), "{took:?}");
            assert!(link.replied <= bytes, "nobody is made to send more than was sent");
        }
    }
}

#[test]
fn a_limit_is_taken_back_when_long_packets_arrive_again() {
    let (mut path_mtu, mut link) = (PathMtu::default(), Link::new(1_300));
    path_mtu.traffic(1_420, START);
    link.check(&mut path_mtu, START);
    assert_eq!(path_mtu.known(), Known::Limit(1_300));
    link.longest = 1_500;
    path_mtu.traffic(1_420, START + INTERVAL * 2);
    link.check(&mut path_mtu, START + INTERVAL * 2);
    assert_eq!(path_mtu.known(), Known::Reaches(1_420));
    path_mtu.moved();
    assert_eq!(path_mtu.known(), Known::Nothing);
}

#[test]
fn a_peer_without_an_answer_gets_three_short_probes_an_hour() {
    let (mut path_mtu, mut link) = (PathMtu::default(), Link { answers: false, ..Link::new(1_500) });
    for minute in 0..60 {
        let now = START + Duration::from_secs(60) * minute;
        path_mtu.traffic(1_420, now);
        link.check(&mut path_mtu, now);
    }
    assert_eq!((path_mtu.known(), &link.sent[..]), (Known::Silent, &[16; 3][..]));
}

/// A link that fails in the middle of a check sets no limit.
#[test]
fn a_link_that_is_lost_says_nothing_about_lengths() {
    for lost_after in 1..40 {
        let (mut path_mtu, mut link) = (PathMtu::default(), Link::new(1_300));
        path_mtu.traffic(1_420, START);
        let mut now = START;
        while link.sent.len() < lost_after
            && let Some(due) = path_mtu.deadline()
        {
            now = due;
            if let Some(Message::Request(probe)) = path_mtu.tick(now) {
                link.sent.push(probe.len);
                if probe.len <= link.longest {
                    path_mtu.reply(probe, now);
                }
            }
        }
        if path_mtu.deadline().is_none() {
            assert_eq!(path_mtu.known(), Known::Limit(1_300));
            return;
        }
        link.answers = false;
        link.check(&mut path_mtu, now);
        assert!(matches!(path_mtu.known(), Known::Nothing | Known::Silent), "{lost_after}: {:?}", path_mtu.known());
    }
    panic!("no check ended in 40 probes");
}

#[test]
fn a_reply_to_another_request_is_none() {
    let mut path_mtu = PathMtu::default();
    path_mtu.traffic(1_420, START);
    let Some(Message::Request(probe)) = path_mtu.tick(START + SETTLE) else { panic!("a request is due") };
    for other in [Probe { number: probe.number + 1, ..probe }, Probe { len: 1_420, ..probe }] {
        path_mtu.reply(other, START + SETTLE);
        assert!(path_mtu.waiting.is_some());
    }
    path_mtu.reply(probe, START + SETTLE);
    assert_eq!(path_mtu.step, Step::Long);
    path_mtu.reply(probe, START + SETTLE);
    assert_eq!(path_mtu.step, Step::Long, "twice is once");
    path_mtu.stop();
    assert_eq!((path_mtu.deadline(), path_mtu.tick(START + INTERVAL)), (None, None));
}

#[test]
fn a_check_that_is_put_off_begins_later_and_one_under_way_goes_on() {
    let mut path_mtu = PathMtu::default();
    path_mtu.postpone(START);
    assert_eq!(path_mtu.deadline(), None, "there is none");
    path_mtu.traffic(1_420, START);
    path_mtu.postpone(START + SETTLE);
    let later = START + SETTLE + LOOK_AGAIN;
    assert_eq!((path_mtu.deadline(), path_mtu.tick(START + 2 * SETTLE)), (Some(later), None));
    assert!(path_mtu.tick(later).is_some());
    let due = path_mtu.deadline();
    path_mtu.postpone(later);
    assert_eq!(path_mtu.deadline(), due);
}

#[test]
fn other_texts_are_no_messages() {
    let request = Message::Request(Probe { number: 7, len: 32 });
    let text = request.to_bytes();
    assert_eq!(Message::parse(&text), Some(request));
    for len in 0..text.len() {
        assert_eq!(Message::parse(&text[..len]), None, "a request has the length that it names");
    }
    let reply = Message::Reply(Probe { number: 7, len: 1_420 });
    assert_eq!(Message::parse(&reply.to_bytes()), Some(reply));
    for (at, byte) in [(0, 0), (0, 1), (0, 2), (0, 0x45), (0, 0x60), (1, 0), (3, 2)] {
        let mut bad = text.clone();
        bad[at] = byte;
        assert_eq!(Message::parse(&bad), None, "byte {at} is {byte}");
    }
}

#[test]
fn a_ping_is_answered_and_no_check_takes_its_reply() {
    let ping = Probe::ping(1);
    assert!(ping.is_ping());
    let text = Message::Request(ping).to_bytes();
    assert_eq!(Message::parse(&text), Some(Message::Request(ping)));
    assert_eq!(Message::Reply(ping).to_bytes().len(), text.len());

    let mut checks = PathMtu::default();
    let now = Instant::from_nanos(1);
    // The numbers of checks wrap before they reach the numbers of pings.
    checks.number = u32::MAX >> 1;
    checks.traffic(1_420, now);
    let Some(Message::Request(first)) = checks.tick(now + SETTLE) else { panic!("no request") };
    assert!(!first.is_ping());
    checks.reply(Probe::ping(first.number), now + SETTLE);
    assert_eq!(checks.step, Step::Short, "the answer to a ping is no answer to a check");
}
