//! Relays and members that lie. A relay can only drop, delay, reorder and repeat the datagrams that it forwards, and no
//! sender can make others send more bytes than it sent.
use anyhow::{Context as _, Result, ensure};
use rand::{Rng as _, SeedableRng as _, rngs::StdRng};
use rustguard_core::{forward::Name, node::PeerId};
use rustguard_tests::{
    Conf, HostilePeer, Ip, Lab, LyingRelay, Nat, Node, Overheard, Passing, PeerConf, Program, Relayed, Said, Speaker,
    Tunnel, eventually, scenario_of_rustguard,
};
use std::{
    collections::BTreeMap,
    time::{Duration, Instant},
};

const SOON: Duration = Duration::from_secs(30);
/// The relay's port.
const PORT: u16 = 51_820;
/// Bytes before the WireGuard message. The receiver's name begins at byte 8, the sender's name at byte 16.
const HEADER: usize = 24;
const TO: usize = 8;
const FROM: usize = 16;
/// Bytes that timers cause: keepalives and probes, a few of them as long as the path's MTU. An answer to the texts
/// would come a hundred times.
const BY_TIME: u64 = 6_000;
/// The bytes of a sealed echo reply: 28 of text and 4 of padding, WireGuard, UDP, IPv4.
const ECHO: u64 = 32 + 32 + 8 + 20;

fn forwarding<F: FnOnce(&Lab) -> Result<()>>(body: F) {
    scenario_of_rustguard("ways through a peer", body);
}

/// Two members with a session through the test's own relay.
struct Deceived {
    relayed: Relayed,
    members: [Tunnel; 2],
    relay: LyingRelay,
    /// The latest handshake of the members' session, as each of them reports it.
    sessions: [u64; 2],
}

impl Deceived {
    fn new(lab: &Lab) -> Result<Self> {
        let relayed = Relayed::new(lab, [(Nat::PortKept, Ip::V4), (Nat::None, Ip::V4)], 1)?;
        let (host, speaker) = &relayed.relays[0];
        let (socket, private) = (host.node.udp(("0.0.0.0", PORT))?, speaker.conf.keys.private.clone());
        let keys = relayed.members.each_ref().map(|member| member.conf.keys.public.clone());
        let relay = LyingRelay::start(move || {
            let mut peer = HostilePeer::new(socket, &private)?;
            let members = [peer.add(&keys[0], None)?, peer.add(&keys[1], None)?];
            Ok((peer, members))
        });
        for (member, interface) in relayed.members.iter().zip(["wga", "wgb"]) {
            member.node.count("sent", "output", &format!("oifname {interface}"))?;
            member.node.count("delivered", "input", &format!("iifname {interface}"))?;
        }
        let [a, b] = &relayed.members;
        let members = [a.start(lab)?, b.start(lab)?];
        a.node.reaches(&b.inside, 20)?;
        b.node.reaches(&a.inside, 20)?;
        let sessions = sessions(&members)?;
        Ok(Self { relayed, members, relay, sessions })
    }

    /// Both members reach each other in the same session as before, and nothing else was delivered.
    fn is_unharmed(&self, after: &str) -> Result<()> {
        let [a, b] = &self.relayed.members;
        self.relay.is_honest()?;
        for (from, to) in [(a, b), (b, a)] {
            from.node.reaches(&to.inside, 5).with_context(|| format!("after {after}"))?;
        }
        let sessions = sessions(&self.members)?;
        ensure!(sessions == self.sessions, "{after}: another session, {sessions:?} instead of {:?}", self.sessions);
        for (from, to) in [(a, b), (b, a)] {
            let (delivered, sent) = (to.node.counted("delivered")?, from.node.counted("sent")?);
            ensure!(delivered <= sent, "{after}: {delivered} packets delivered, and only {sent} sent");
        }
        Ok(())
    }

    /// The relay sends these texts to the members. They do no harm, and no member sends more bytes than it received.
    fn survives(&self, what: &str, texts: Vec<Said>) -> Result<()> {
        let (before, number) = (self.relay.traffic()?, texts.len());
        ensure!(number > 0, "{what}: nothing to say");
        self.relay.says(texts)?;
        self.is_unharmed(what)?;
        let after = self.relay.traffic()?;
        for (before, after) in before.iter().zip(after) {
            let (got, answered) = (after.sent - before.sent, after.received - before.received);
            println!("{what}: {number} texts, {got} bytes to a member, {answered} from it");
            // The relay forwards the echo requests and replies of `is_unharmed` unchanged, so they count equally in
            // both directions.
            ensure!(answered <= got + BY_TIME, "{what}: {answered} bytes for {got}");
        }
        Ok(())
    }
}

fn sessions(members: &[Tunnel; 2]) -> Result<[u64; 2]> {
    let mut all = [0; 2];
    for (session, member) in all.iter_mut().zip(members) {
        *session = member.dump()?.peers[0].latest_handshake;
    }
    Ok(all)
}

/// Replaces each text by the texts that `change` makes from it, for the same receiver.
fn changed(texts: &[Overheard], change: impl Fn(&[u8]) -> Vec<Vec<u8>>) -> Vec<Said> {
    texts.iter().flat_map(|one| change(&one.text).into_iter().map(|text| (1 - one.from, text))).collect()
}

/// The text with other bytes at this place.
fn with(text: &[u8], at: usize, bytes: &[u8]) -> Vec<u8> {
    let mut text = text.to_vec();
    text[at..at + bytes.len()].copy_from_slice(bytes);
    text
}

/// The text with another message after its header.
fn carrying(text: &[u8], message: &[u8]) -> Vec<u8> {
    [&text[..HEADER], message].concat()
}

fn random(rng: &mut StdRng, len: usize) -> Vec<u8> {
    let mut bytes = vec![0; len];
    rng.fill_bytes(&mut bytes);
    bytes
}

/// A packet with an ICMP echo request.
fn echo_request(from: [u8; 4], to: [u8; 4]) -> Vec<u8> {
    let ip = [0x45, 0, 0, 28, 0, 0, 0, 0, 64, 1, 0, 0];
    let mut packet = [&ip[..], &from, &to, &[8, 0, 0xf7, 0xff, 0, 0, 0, 0]].concat();
    let sum: u32 = packet[..20].chunks(2).map(|word| u32::from(word[0]) << 8 | u32::from(word[1])).sum();
    let checksum = !((sum >> 16) + (sum & 0xffff)) as u16;
    packet[10..12].copy_from_slice(&checksum.to_be_bytes());
    packet
}

/// All kinds of lies that a relay can make from the texts that it has overheard.
#[test]
fn a_relay_that_lies_changes_nothing() {
    forwarding(|lab| {
        let deceived = Deceived::new(lab)?;
        let texts = deceived.relay.overheard()?;
        ensure!(texts.iter().all(|one| one.text.len() > HEADER), "short texts: {texts:?}");
        // Messages of every type: initiation, response, data.
        for kind in [1, 2, 4] {
            ensure!(texts.iter().any(|one| one.text[HEADER] == kind), "no message of type {kind} overheard");
        }
        let rng = &mut StdRng::seed_from_u64(14);
        let lies: Vec<(&str, Vec<Said>)> = vec![
            ("replays", changed(&texts, |text| vec![text.to_vec(); 20])),
            (
                "old messages in another order",
                changed(&texts, |text| vec![text.to_vec(); 2]).into_iter().rev().collect(),
            ),
            ("truncated", changed(&texts, |text| (0..text.len()).map(|len| text[..len].to_vec()).collect())),
            ("longer", changed(&texts, |text| (1..100).map(|more| [text, &vec![0; more]].concat()).collect())),
            ("each bit of the header and of the beginning of the message", {
                let flipped = |text: &[u8], bit: usize| {
                    let mut text = text.to_vec();
                    text[bit / 8] ^= 1 << (bit % 8);
                    text
                };
                changed(&texts, |text| (0..(HEADER + 16) * 8).map(|bit| flipped(text, bit)).collect())
            }),
            ("names swapped", {
                changed(&texts, |text| {
                    let (to, from) = (&text[TO..FROM], &text[FROM..HEADER]);
                    vec![[&text[..TO], from, to, &text[HEADER..]].concat(), with(text, TO, from), with(text, FROM, to)]
                })
            }),
            ("names of nobody", {
                let nobody = random(rng, 16);
                let each = |text: &[u8]| {
                    vec![with(text, TO, &nobody), with(text, TO, &[0; 16]), with(text, FROM, &nobody[..8])]
                };
                changed(&texts, each)
            }),
            ("to the sender itself", texts.iter().map(|one| (one.from, one.text.clone())).collect()),
            ("to the sender itself, under the other's name", {
                let swap = |text: &[u8]| [&text[..TO], &text[FROM..HEADER], &text[TO..FROM], &text[HEADER..]].concat();
                texts.iter().map(|one| (one.from, swap(&one.text))).collect()
            }),
            ("hops", changed(&texts, |text| (0..=255).map(|hops| with(text, 4, &[hops])).collect())),
            ("inside each other", {
                changed(&texts, |text| {
                    (1..8).map(|depth| (0..depth).fold(text.to_vec(), |inner, _| carrying(text, &inner))).collect()
                })
            }),
            ("data for the indices in use", {
                let beyond = u64::MAX.to_le_bytes();
                let data = texts.iter().filter(|one| one.text[HEADER] == 4).cloned().collect::<Vec<_>>();
                changed(&data, |text| vec![with(text, HEADER + 8, &beyond), carrying(text, &text[HEADER..HEADER + 32])])
            }),
            ("random messages", {
                let mut all = Vec::new();
                for (kind, len) in [(1, 148), (2, 92), (3, 64), (4, 32), (4, 128), (4, 1_400), (0, 60), (255, 60)] {
                    for one in texts.iter().take(20) {
                        let mut message = random(rng, len);
                        message[..4].copy_from_slice(&[kind, 0, 0, 0]);
                        all.push((1 - one.from, carrying(&one.text, &message)));
                    }
                }
                all
            }),
            ("no message", changed(&texts, |text| (0..HEADER).map(|len| text[..len].to_vec()).collect())),
            ("packets of its own in the other's name", {
                let echo = |from, to| echo_request([10, 9, 0, from], [10, 9, 0, to]);
                (0..100).flat_map(|_| [(0, echo(2, 1)), (1, echo(1, 2))]).collect()
            }),
        ];
        for (what, texts) in lies {
            deceived.survives(what, texts)?;
        }
        deceived.relay.end()
    });
}

/// Interference with messages in transit: it costs time and packets, but no session, and nothing is delivered twice.
#[test]
fn a_relay_that_drops_delays_and_repeats_costs_packets_only() {
    forwarding(|lab| {
        let deceived = Deceived::new(lab)?;
        let [a, b] = &deceived.relayed.members;
        let honest = |one: &Overheard| (1 - one.from, one.text.clone());
        let mut n = 0;
        let mut nth = move || {
            n += 1;
            n
        };
        let mut held = Vec::new();
        let ways: Vec<(&str, Passing)> = vec![
            ("drops every third", Box::new(move |one| if nth() % 3 == 0 { vec![] } else { vec![honest(&one)] })),
            ("repeats each", Box::new(move |one| vec![honest(&one); 5])),
            ("sends a wrong one before each", {
                Box::new(move |one| {
                    let mut wrong = one.text.clone();
                    *wrong.last_mut().unwrap_or(&mut 0) ^= 1;
                    let short = one.text[..one.text.len() - 1].to_vec();
                    vec![(1 - one.from, wrong), (1 - one.from, short), (one.from, one.text.clone()), honest(&one)]
                })
            }),
            ("holds four and sends them in the other order", {
                Box::new(move |one| {
                    held.push(honest(&one));
                    if held.len() < 4 { vec![] } else { held.drain(..).rev().collect() }
                })
            }),
        ];
        for (what, passing) in ways {
            deceived.relay.passes(passing)?;
            // A third of the requests is lost, and a third of the replies.
            eventually(&format!("20 answers by a relay that {what}"), SOON, || {
                let ping = ["ping", "-n", "-q", "-c", "20", "-i", "0.02", "-W", "1", &b.inside];
                let ended = a.node.end_of(a.node.command(ping[0]).args(&ping[1..]))?;
                println!("{what}: {}", ended.stdout);
                ensure!(!ended.stdout.contains("duplicates"), "{what}: {ended}");
                Ok(ended.success())
            })?;
            deceived.is_unharmed(what)?;
        }
        deceived.relay.end()
    });
}

/// A lying member at an honest relay that also has another member and a stock peer.
struct Pestered {
    relayed: Relayed,
    _tunnels: [Tunnel; 4],
    stock: Node,
    liar: HostilePeer,
    /// The relay as the liar's peer.
    at_relay: PeerId,
    /// The keys of the liar and of the stock peer.
    keys: [String; 2],
}

impl Pestered {
    fn new(lab: &Lab) -> Result<Self> {
        let mut relayed = Relayed::new(lab, [(Nat::PortKept, Ip::V4), (Nat::None, Ip::V4)], 1)?;
        let (home, liars) = (relayed.internet.host(lab, "stock", Ip::V4)?, relayed.internet.host(lab, "liar", Ip::V4)?);
        let (mut stock, liar) = (Conf::new("wgstock")?, Conf::new("wgliar")?);
        let (host, relay) = &mut relayed.relays[0];
        for (conf, inside) in [(&stock, "10.9.2.1/32"), (&liar, "10.9.2.2/32")] {
            relay.conf.peers.push(PeerConf::new(&conf.keys.public, inside));
        }
        stock.addresses = vec!["10.9.2.1/32".to_owned()];
        let mut peer = relay.peer();
        peer.endpoint = Some(host.at(PORT).to_string());
        stock.peers.push(peer);
        let running = relay.start(lab)?;
        let stock_tunnel = Tunnel::start(lab, &home.node, Program::Reference, &stock)?;
        home.node.reaches(&relay.inside, 10)?;
        let mut liar_peer = HostilePeer::new(liars.node.udp(("0.0.0.0", PORT))?, &liar.keys.private)?;
        let at_relay = liar_peer.add(&relay.conf.keys.public, Some(host.at(PORT)))?;
        liar_peer.connect(at_relay)?;
        let (a, b) = (relayed.members[0].start(lab)?, relayed.members[1].start(lab)?);
        relayed.members[0].node.reaches(&relayed.members[1].inside, 20)?;
        let node = &relayed.relays[0].0.node;
        node.count("in", "input", "iifname eth0 meta l4proto udp")?;
        node.count("out", "output", "oifname eth0 meta l4proto udp")?;
        node.count("to-liar", "output", &format!("oifname eth0 ip daddr {}", liars.v4))?;
        let keys = [liar.keys.public, stock.keys.public];
        Ok(Self { relayed, _tunnels: [running, stock_tunnel, a, b], stock: home.node, liar: liar_peer, at_relay, keys })
    }

    /// Sends each of these texts a hundred times to the relay. The relay must send no more bytes than it receives, and
    /// none of them to the liar. Members and the stock peer must still work. Returns the increase of each drop counter.
    fn says(&mut self, what: &str, texts: &[Vec<u8>]) -> Result<BTreeMap<String, u64>> {
        let (before, dropped_before) = (self.counted()?, self.dropped()?);
        for text in texts {
            for _ in 0..100 {
                self.liar.send(self.at_relay, text)?;
            }
            // Prevents an overflow of the socket's buffer.
            self.settle().with_context(|| format!("after {what}"))?;
        }
        let (host, relay) = &self.relayed.relays[0];
        let [a, b] = &self.relayed.members;
        a.node.reaches(&b.inside, 5).with_context(|| format!("after {what}"))?;
        self.stock.reaches(&relay.inside, 5).with_context(|| format!("after {what}"))?;
        let now = self.counted()?;
        let [to_liar, sent, got] = [0, 1, 2].map(|n| now[n] - before[n]);
        let mut dropped = self.dropped()?;
        dropped.iter_mut().for_each(|(reason, count)| *count -= dropped_before.get(reason).copied().unwrap_or(0));
        dropped.retain(|_, count| *count > 0);
        println!("{what}: {got} bytes in, {sent} bytes out, {to_liar} of them to the liar; dropped: {dropped:?}");
        ensure!(sent <= got + BY_TIME, "{what}: {sent} bytes for {got}");
        let echoes = texts.len() as u64 * ECHO;
        ensure!(to_liar <= echoes + BY_TIME, "{what}: {to_liar} bytes to {}, {echoes} of them echo replies", host.v4);
        Ok(dropped)
    }

    /// Bytes at the relay: to the liar, to all, and from all. They are read in this order, so all bytes that were sent
    /// had been received before.
    fn counted(&self) -> Result<[u64; 3]> {
        let node = &self.relayed.relays[0].0.node;
        Ok([node.counted_bytes("to-liar")?, node.counted_bytes("out")?, node.counted_bytes("in")?])
    }

    /// The packets that the relay has dropped, by reason.
    fn dropped(&self) -> Result<BTreeMap<String, u64>> {
        let (_, relay) = &self.relayed.relays[0];
        Ok(serde_json::from_value(relay.node.shown(&relay.conf.interface)?["dropped"].take())?)
    }

    /// Waits until the relay has handled everything from the liar: its host answers an echo request that was sent last.
    fn settle(&mut self) -> Result<()> {
        self.liar.send(self.at_relay, &echo_request([10, 9, 2, 2], [10, 9, 1, 1]))?;
        let sent = Instant::now();
        while self.liar.receive(Duration::from_millis(100))?.is_none() {
            ensure!(sent.elapsed() < SOON, "no echo reply from the relay");
        }
        Ok(())
    }

    fn name(&self, key: &str) -> Result<[u8; 8]> {
        Ok(*Name::of(&key.parse()?).as_bytes())
    }
}

/// A text with these names and a message.
fn text(to: [u8; 8], from: [u8; 8], hops: u8, message: &[u8]) -> Vec<u8> {
    [&[5, b'R', b'G', 1, hops, 0, 0, 0], &to[..], &from[..], message].concat()
}

#[test]
fn a_member_that_lies_makes_nobody_send_more_than_it_does() {
    forwarding(|lab| {
        let mut pestered = Pestered::new(lab)?;
        let [liar, stock] = pestered.keys.each_ref().map(|key| pestered.name(key));
        let key = |speaker: &Speaker| pestered.name(&speaker.conf.keys.public);
        let [a, b] = &pestered.relayed.members;
        let (liar, stock, a, b, relay) = (liar?, stock?, key(a)?, key(b)?, key(&pestered.relayed.relays[0].1)?);
        let rng = &mut StdRng::seed_from_u64(14);
        let mut data = random(rng, 128);
        data[..4].copy_from_slice(&[4, 0, 0, 0]);
        let mut initiation = random(rng, 148);
        initiation[..4].copy_from_slice(&[1, 0, 0, 0]);
        let both = |to, from, hops| vec![text(to, from, hops, &data), text(to, from, hops, &initiation)];
        pestered.says("to members that do not know it", &[both(a, liar, 8), both(b, liar, 255)].concat())?;
        let lies = [
            ("names of other members", [both(a, b, 8), both(b, a, 8), both(b, stock, 8)].concat()),
            ("names of nobody", [both([7; 8], liar, 8), both(a, [7; 8], 8), both([0; 8], [0; 8], 8)].concat()),
            ("to itself", [both(liar, liar, 8), both(liar, a, 8)].concat()),
            ("too many relays", both(a, liar, 0)),
            (
                "to the relay",
                [both(relay, liar, 8), both(relay, a, 8), both(relay, relay, 8), both(a, relay, 8)].concat(),
            ),
            ("other versions and kinds, and short ones", {
                let good = text(a, liar, 8, &data);
                let mut all = vec![with(&good, 3, &[2]), with(&good, 1, b"X"), with(&good, 5, &[1, 0, 0])];
                all.extend((0..HEADER + 32).map(|len| good[..len].to_vec()));
                all
            }),
        ];
        for (what, texts) in lies {
            let (number, dropped) = (texts.len() as u64 * 100, pestered.says(what, &texts)?);
            let dropped: u64 = dropped.values().sum();
            ensure!(dropped > number * 9 / 10, "{what}: {dropped} of {number} are counted as dropped");
        }
        // A stock peer silently drops what it cannot read.
        pestered.says("to a stock peer", &both(stock, liar, 8))?;
        let nested = text(a, liar, 8, &text(b, liar, 8, &text(a, b, 8, &data)));
        pestered.says("inside each other", &[nested])?;
        Ok(())
    });
}
