//! A member that sends arbitrary packets, past the checks of its own kernel, against the policy of the receiver.
use anyhow::{Context, Result, ensure};
use rustguard_tests::{Lab, Network, Node, Process, eventually, network, scenario};
use rustix::net::{AddressFamily, Protocol, RecvFlags, SendFlags, SocketFlags, SocketType, recv, sendto, socket_with};
use std::{
    fs,
    io::{Read as _, Write as _},
    net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, TcpListener, TcpStream},
    num::NonZeroU32,
    os::fd::OwnedFd,
    thread,
    time::Duration,
};

const SOON: Duration = Duration::from_secs(15);
const FILE: &str = "/etc/rustguard/rgs.policy";
const TCP: u8 = 6;
const UDP: u8 = 17;
const ICMP: u8 = 1;
const ICMPV6: u8 = 58;
const FRAGMENT: u8 = 44;
const HOP_BY_HOP: u8 = 0;
const ROUTING: u8 = 43;
const DESTINATION: u8 = 60;
const NO_NEXT: u8 = 59;

/// A socket whose packets include the IP header: IPPROTO_RAW (raw(7), net/ipv6/raw.c).
fn raw(node: &Node, family: AddressFamily) -> Result<OwnedFd> {
    let raw = NonZeroU32::new(255).map(Protocol::from_raw);
    node.inside(|| Ok(socket_with(family, SocketType::RAW, SocketFlags::CLOEXEC, raw)?))
}

/// All packets on the interfaces of a node, from the IP header on (packet(7)).
fn tap(node: &Node) -> Result<OwnedFd> {
    const ALL: u16 = 3;
    let all = NonZeroU32::new(u32::from(ALL.to_be())).map(Protocol::from_raw);
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    node.inside(|| Ok(socket_with(AddressFamily::PACKET, SocketType::DGRAM, flags, all)?))
}

struct Sender {
    v4: OwnedFd,
    v6: OwnedFd,
    from: (Ipv4Addr, Ipv6Addr),
    to: (Ipv4Addr, Ipv6Addr),
}

impl Sender {
    /// Sends a packet with this protocol from `from` to `to`.
    fn v4(&self, protocol: u8, id: u16, place: u16, rest: &[u8]) -> Result<()> {
        let mut packet = vec![0x45, 0, 0, 0];
        packet.extend([id.to_be_bytes(), place.to_be_bytes()].concat());
        packet.extend([64, protocol, 0, 0]);
        packet.extend(self.from.0.octets());
        packet.extend(self.to.0.octets());
        packet.extend(rest);
        self.send_v4(&packet)
    }

    fn send_v4(&self, packet: &[u8]) -> Result<()> {
        sendto(&self.v4, packet, SendFlags::empty(), &SocketAddr::from((self.to.0, 0)))?;
        Ok(())
    }

    fn v6(&self, next: u8, rest: &[u8]) -> Result<()> {
        let mut packet = vec![0x60, 0, 0, 0];
        packet.extend((rest.len() as u16).to_be_bytes());
        packet.extend([next, 64]);
        packet.extend(self.from.1.octets());
        packet.extend(self.to.1.octets());
        packet.extend(rest);
        sendto(&self.v6, &packet, SendFlags::empty(), &SocketAddr::from((self.to.1, 0)))?;
        Ok(())
    }
}

/// The offset in bytes of a fragment, and whether more fragments follow.
fn place(offset: u16, more: bool) -> u16 {
    (offset / 8) | if more { 0x2000 } else { 0 }
}

fn udp(ports: [u16; 2], text: &[u8]) -> Vec<u8> {
    let len = 8 + text.len() as u16;
    [&ports[0].to_be_bytes()[..], &ports[1].to_be_bytes(), &len.to_be_bytes(), &[0; 2], text].concat()
}

fn tcp(ports: [u16; 2], flags: u8, text: &[u8]) -> Vec<u8> {
    [&ports[0].to_be_bytes()[..], &ports[1].to_be_bytes(), &[0; 8], &[0x50, flags, 4, 0, 0, 0, 0, 0], text].concat()
}

/// An extension header of eight bytes in front of `next`.
fn extension(next: u8, rest: &[u8]) -> Vec<u8> {
    // PadN.
    [&[next, 0, 1, 4, 0, 0, 0, 0], rest].concat()
}

fn fragment(next: u8, id: u8, offset: u16, more: bool, rest: &[u8]) -> Vec<u8> {
    let place = offset | u16::from(more);
    [&[next, 0][..], &place.to_be_bytes(), &[0, 0, 0, id], rest].concat()
}

fn chain(of: u8, count: usize, last: u8, rest: &[u8]) -> Vec<u8> {
    (0..count).fold((last, rest.to_vec()), |(next, rest), _| (of, extension(next, &rest))).1
}

/// An ICMP error of this kind about a packet from `from` to `to`.
fn error_v4(kind: [u8; 2], from: Ipv4Addr, to: Ipv4Addr, protocol: u8, rest: &[u8]) -> Vec<u8> {
    let mut text =
        vec![kind[0], kind[1], 0, 0, 0, 0, 0, 0, 0x45, 0, 0, 20 + rest.len() as u8, 0, 0, 0, 0, 64, protocol, 0, 0];
    text.extend(from.octets());
    text.extend(to.octets());
    text.extend(rest);
    let sum = text.chunks(2).map(|pair| u32::from(pair[0]) << 8 | u32::from(*pair.get(1).unwrap_or(&0))).sum::<u32>();
    let folded = (sum & 0xffff) + (sum >> 16);
    let sum = !(((folded & 0xffff) + (folded >> 16)) as u16);
    text[2..4].copy_from_slice(&sum.to_be_bytes());
    text
}

/// How many packets the device of a machine has refused.
fn refused(node: &Node, interface: &str) -> Result<u64> {
    node.shown(interface)?["policy"]["refused"].as_u64().context("a policy that counts")
}

/// A network whose machines m1, m2 and m3 have joined, under this policy.
fn members(
    lab: &Lab,
    policy: &str,
    body: impl FnOnce(&Network, &[Vec<IpAddr>], &[Process]) -> Result<()>,
) -> Result<()> {
    network(lab, 3, |network| {
        fs::create_dir_all("/etc/rustguard")?;
        fs::write(FILE, policy)?;
        let pools = ["--pool", "10.150.0.0/24", "--pool", "fd15::/64", "--endpoint", "10.1.0.1", "--star=off"];
        let _served = network.serve(lab, &pools)?;
        let (mut tunnels, mut addresses) = (Vec::new(), Vec::new());
        for n in 1..=3 {
            let (server, token) = (format!("10.{n}.0.1"), network.invite(&[])?);
            tunnels.push(network.join(lab, n, &[&server, "--token", &token, "--name", &format!("m{n}")])?);
            let own = network.addresses(n)?;
            addresses.push(own.iter().map(|text| Ok(text.parse()?)).collect::<Result<Vec<IpAddr>>>()?);
        }
        body(network, &addresses, &tunnels)
    })
}

fn both(addresses: &[IpAddr]) -> Result<(Ipv4Addr, Ipv6Addr)> {
    match addresses {
        [IpAddr::V4(v4), IpAddr::V6(v6)] => Ok((*v4, *v6)),
        other => anyhow::bail!("an address of each version: {other:?}"),
    }
}

/// Echoes TCP at this port, byte by byte.
fn answer(node: &Node, port: u16) -> Result<()> {
    let listener = node.inside(|| Ok(TcpListener::bind((Ipv6Addr::UNSPECIFIED, port))?))?;
    thread::spawn(move || {
        listener.incoming().flatten().for_each(|mut stream| {
            thread::spawn(move || {
                let mut byte = [0];
                while stream.read_exact(&mut byte).is_ok() && stream.write_all(&byte).is_ok() {}
            });
        });
    });
    Ok(())
}

fn connect(node: &Node, to: IpAddr, port: u16) -> Result<TcpStream> {
    let stream = node.inside(|| Ok(TcpStream::connect_timeout(&SocketAddr::new(to, port), SOON)?))?;
    stream.set_read_timeout(Some(SOON))?;
    Ok(stream)
}

fn echoes(stream: &mut TcpStream) -> Result<()> {
    stream.write_all(b"?")?;
    Ok(stream.read_exact(&mut [0])?)
}

#[test]
fn what_a_member_makes_by_hand_ends_at_the_receiver() {
    scenario(|lab| {
        let policy = "allow m1 -> m2 udp/53,tcp/9\nallow m2 -> m3 tcp/7\nallow m3 -> m2 tcp/7\n";
        members(lab, policy, |network, addresses, _tunnels| {
            let [m1, m2, m3] = [0, 1, 2].map(|at| &network.machines[at]);
            let sender = Sender {
                v4: raw(m1, AddressFamily::INET)?,
                v6: raw(m1, AddressFamily::INET6)?,
                from: both(&addresses[0])?,
                to: both(&addresses[1])?,
            };
            let (own, victim) = (sender.from.0, sender.to.0);
            let third = both(&addresses[2])?.0;
            // A connection that m2 began, and one that m3 began with m2.
            [m2, m3].into_iter().try_for_each(|node| answer(node, 7))?;
            let mut open = [connect(m2, third.into(), 7)?, connect(m3, victim.into(), 7)?];

            // Before m2 has the list with all machines, it refuses more packets.
            let tap = tap(m2)?;
            let mut seen: Vec<Vec<u8>> = Vec::new();
            let mut look = |text: &[u8]| {
                let mut buffer = [0; 2048];
                while let Ok((_, len)) = recv(&tap, &mut buffer[..], RecvFlags::empty()) {
                    let packet = &buffer[..len];
                    let from = match packet.first().map(|first| first >> 4) {
                        Some(4) => packet.get(12..16) == Some(&own.octets()),
                        Some(6) => packet.get(8..24) == Some(&sender.from.1.octets()),
                        _ => false,
                    };
                    if from {
                        seen.push(packet.to_vec());
                    }
                }
                seen.iter().any(|packet| packet.ends_with(text))
            };
            eventually("m1 reaches m2 where it may", SOON, || {
                sender.v4(UDP, 1, 0, &udp([1_000, 53], b"may"))?;
                Ok(look(b"may"))
            })?;
            let before = refused(m2, "rg2")?;

            let mut hostile = 0;
            let mut no = |sent: Result<()>| {
                hostile += 1;
                sent.with_context(|| format!("hostile packet {hostile}"))
            };
            // Plain packets that are not allowed.
            no(sender.v4(UDP, 2, 0, &udp([1_000, 54], b"no")))?;
            no(sender.v4(TCP, 2, 0, &tcp([1_000, 7], 2, b"no")))?;
            // Tiny first fragments: the TCP flags or the port come in the next fragment (RFC 1858).
            let segment = tcp([1_000, 9], 2, b"no");
            no(sender.v4(TCP, 3, place(0, true), &segment[..8]))?;
            no(sender.v4(TCP, 3, place(8, false), &segment[8..]))?;
            no(sender.v6(FRAGMENT, &fragment(TCP, 3, 0, true, &segment[..8])))?;
            no(sender.v6(FRAGMENT, &fragment(TCP, 3, 8, false, &segment[8..])))?;
            no(sender.v6(FRAGMENT, &fragment(DESTINATION, 4, 0, true, &extension(TCP, &[]))))?;
            // Fragments that come before the first one, or after a first one that was refused.
            no(sender.v4(UDP, 5, place(24, false), b"no no no"))?;
            no(sender.v4(UDP, 6, place(0, true), &udp([1_000, 54], b"no no no no no n")))?;
            no(sender.v4(UDP, 6, place(24, false), b"no no no"))?;
            no(sender.v6(FRAGMENT, &fragment(UDP, 7, 24, false, b"no no no")))?;
            // After a first fragment that has passed: overlaps its header (RFC 5722).
            sender.v4(UDP, 8, place(0, true), &udp([1_000, 53], b"first ok first o"))?;
            no(sender.v4(UDP, 8, place(8, true), b"no no no"))?;
            no(sender.v4(UDP, 8, place(0, true), &udp([1_000, 54], b"no no no no no n")))?;
            no(sender.v4(UDP, 8, place(24, false), b"no no no"))?;
            // A length that is allowed only in the last fragment.
            no(sender.v4(UDP, 9, place(0, true), &udp([1_000, 53], b"no")))?;
            // Extension headers: in front of a forbidden packet, too many, in a wrong order, twice, and with a routing
            // header.
            let wanted = tcp([1_000, 7], 2, b"no");
            no(sender.v6(HOP_BY_HOP, &extension(DESTINATION, &extension(TCP, &wanted))))?;
            no(sender.v6(DESTINATION, &chain(DESTINATION, 20, UDP, &udp([1_000, 53], b"no"))))?;
            no(sender.v6(DESTINATION, &extension(HOP_BY_HOP, &extension(UDP, &udp([1_000, 53], b"no")))))?;
            no(sender.v6(
                FRAGMENT,
                &fragment(FRAGMENT, 10, 0, true, &fragment(UDP, 10, 0, true, &udp([1_000, 53], b"no"))),
            ))?;
            no(sender.v6(ROUTING, &[&[UDP, 0, 0, 1, 0, 0, 0, 0], &udp([1_000, 53], b"no")[..]].concat()))?;
            no(sender.v6(NO_NEXT, b"no"))?;
            no(sender.v6(DESTINATION, &[UDP, 200, 1, 4, 0, 0, 0, 0]))?;
            // ICMP errors: about a packet that m2 never sent to m1, about m1's own packet, about an error; and a
            // redirect.
            let inner = udp([40_000, 53], b"")[..8].to_vec();
            no(sender.v4(ICMP, 11, 0, &error_v4([3, 3], victim, own, UDP, &inner)))?;
            no(sender.v4(ICMP, 11, 0, &error_v4([3, 1], own, victim, UDP, &udp([1_000, 53], b""))))?;
            no(sender.v4(ICMP, 11, 0, &error_v4([3, 1], victim, own, ICMP, &[3, 1, 0, 0, 0, 0, 0, 0])))?;
            no(sender.v4(ICMP, 11, 0, &error_v4([11, 0], third, victim, TCP, &tcp([7, 7], 16, b""))))?;
            no(sender.v4(ICMP, 11, 0, &error_v4([5, 1], victim, own, UDP, &inner)))?;
            no(sender.v6(
                ICMPV6,
                &[&[1, 4, 0, 0, 0, 0, 0, 0], &[0x60, 0, 0, 0, 0, 8, UDP, 64][..], &[9; 32], &inner].concat(),
            ))?;
            no(sender.v4(ICMP, 11, 0, &[8, 0, 0, 0, 0, 1, 0, 1]))?;
            // TCP: contradictory flags to an allowed port, and invalid headers.
            for flags in [2 | 1, 2 | 4, 2 | 1 | 16, 2 | 4 | 16, 1 | 2 | 4 | 8 | 16 | 32] {
                no(sender.v4(TCP, 12, 0, &tcp([1_001, 9], flags, b"no")))?;
            }
            no(sender.v4(TCP, 12, 0, &[&tcp([1_001, 9], 2, b"")[..12], &[0x40, 2, 4, 0, 0, 0, 0, 0]].concat()))?;
            no(sender.v4(TCP, 12, 0, &[&tcp([1_001, 9], 2, b"")[..12], &[0xf0, 2, 4, 0, 0, 0, 0, 0]].concat()))?;
            no(sender.v4(TCP, 12, 0, &tcp([1_001, 9], 2, b"")[..19]))?;
            no(sender.v4(UDP, 12, 0, &udp([1_000, 53], b"")[..4]))?;
            // Into a connection between m2 and another machine, which m1 does not take part in.
            no(sender.v4(TCP, 13, 0, &tcp([7, open[0].local_addr()?.port()], 16, b"no")))?;
            no(sender.v4(TCP, 13, 0, &tcp([7, open[0].local_addr()?.port()], 4, b"")))?;
            // A loose source route to a third machine.
            let mut route = vec![0x47, 0, 0, 0, 0, 14, 0, 0, 64, UDP, 0, 0];
            route.extend([own.octets(), victim.octets()].concat());
            route.extend([131, 7, 4].into_iter().chain(third.octets()).chain([0]));
            route.extend(udp([1_000, 53], b"no"));
            no(sender.send_v4(&route))?;

            eventually("each of them is refused", SOON, || Ok(refused(m2, "rg2")? - before >= hostile))?;
            ensure!(refused(m2, "rg2")? - before == hostile, "and nothing else: {}", refused(m2, "rg2")? - before);
            // Allowed packets pass in the same ways: behind options, and in fragments.
            eventually("what is allowed comes behind extension headers", SOON, || {
                sender.v6(HOP_BY_HOP, &extension(DESTINATION, &extension(UDP, &udp([1_000, 53], b"yes 6"))))?;
                Ok(look(b"yes 6"))
            })?;
            eventually("and in fragments", SOON, || {
                sender.v4(UDP, 20, place(0, true), &udp([1_000, 53], b"first ok first o"))?;
                sender.v4(UDP, 20, place(24, false), b"yes last")?;
                Ok(look(b"yes last"))
            })?;
            let allowed: [&[u8]; 4] = [b"may", b"first ok first o", b"yes 6", b"yes last"];
            let reached: Vec<_> =
                seen.iter().filter(|packet| !allowed.iter().any(|text| packet.ends_with(text))).collect();
            ensure!(reached.is_empty(), "nothing else reaches the host: {reached:02x?}");
            open.iter_mut().try_for_each(echoes).context("the connections of others go on")
        })
    });
}

/// Endless flows from one member, more than the receiver's table can hold.
#[test]
fn a_flood_of_flows_leaves_the_connections_of_others() {
    /// More than the table's capacity.
    const FLOWS: u32 = 90_000;
    scenario(|lab| {
        let policy = "allow m1 -> m2 udp\nallow m2 -> m3 tcp/7\nallow m3 -> m2 tcp/7\n";
        members(lab, policy, |network, addresses, _tunnels| {
            let [m1, m2, m3] = [0, 1, 2].map(|at| &network.machines[at]);
            let (victim, third) = (both(&addresses[1])?.0, both(&addresses[2])?.0);
            [m2, m3].into_iter().try_for_each(|node| answer(node, 7))?;
            // Only m2's table lets the answers of the first connection in: no rule allows packets of m3 from port 7.
            let mut open = [connect(m2, third.into(), 7)?, connect(m3, victim.into(), 7)?];
            let sender = Sender {
                v4: raw(m1, AddressFamily::INET)?,
                v6: raw(m1, AddressFamily::INET6)?,
                from: both(&addresses[0])?,
                to: both(&addresses[1])?,
            };
            let known = || m2.shown("rg2")?["policy"]["connections"].as_u64().context("connections");
            // Some are lost on the way: repeat with other ports until the table is full.
            let mut flow = 0_u32;
            eventually("the table is full", Duration::from_secs(60), || {
                for _ in 0..FLOWS / 6 {
                    flow = flow.wrapping_add(1);
                    let ports = [(flow % 60_000) as u16 + 1_024, (flow / 60_000) as u16 + 1_024];
                    // A full send queue does not matter here.
                    let _ = sender.v4(UDP, 1, 0, &udp(ports, b""));
                }
                open.iter_mut().try_for_each(echoes).context("a connection goes on meanwhile")?;
                Ok(known()? > 60_000)
            })?;
            open.iter_mut().try_for_each(echoes).context("the connections of others go on")?;
            let mut more = [connect(m2, third.into(), 7)?, connect(m3, victim.into(), 7)?];
            for _ in 0..FLOWS / 6 {
                flow = flow.wrapping_add(1);
                let _ =
                    sender.v4(UDP, 1, 0, &udp([(flow % 60_000) as u16 + 1_024, (flow / 60_000) as u16 + 1_024], b""));
            }
            more.iter_mut().chain(&mut open).try_for_each(echoes).context("and those that have begun since")
        })
    });
}
