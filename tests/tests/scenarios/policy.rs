//! Network policy: which packets members and the server accept from whom.
use anyhow::{Context, Result, ensure};
use rustguard_tests::{Network, Node, eventually, network, scenario};
use serde_json::Value;
use std::{
    collections::BTreeMap,
    fs,
    io::{Read as _, Write as _},
    net::{IpAddr, SocketAddr, TcpListener, TcpStream, UdpSocket},
    thread,
    time::Duration,
};

const SOON: Duration = Duration::from_secs(15);
/// How long a test waits for an answer that must not come.
const PATIENCE: Duration = Duration::from_millis(700);
const FILE: &str = "/etc/rustguard/rgs.policy";
/// The stock client. The others are members.
const PHONE: u8 = 5;
/// The second policy allows this in place of `tag:db tcp/7`.
const RELOADED: &str = "tag:db tcp/8";
const PORTS: [u16; 2] = [7, 8];

/// m1 and m4 are dev, m2 is web, m3 is db; the phone has no tag.
const POLICY: &str = "\
allow tag:dev -> tag:db tcp/7
allow tag:web, phone -> tag:db udp/7
allow * -> tag:web icmp
allow tag:db -> tag:dev
allow tag:dev -> phone tcp/8,icmp
test m1 -> m3 tcp/7 allowed
test m2 -> m1 refused
";

#[derive(Clone, Copy, Debug, PartialEq)]
enum Said {
    Tcp(u16),
    Udp,
    Icmp,
}

/// The rules of the file, written a second time.
fn expected(from: u8, to: u8, said: Said) -> bool {
    match (from, to) {
        (1 | 4, 3) => said == Said::Tcp(7),
        (2 | PHONE, 3) => said == Said::Udp,
        (_, 2) => said == Said::Icmp,
        (3, 1 | 4) => true,
        (1 | 4, PHONE) => said == Said::Tcp(8) || said == Said::Icmp,
        _ => false,
    }
}

/// The machines' addresses inside the network.
struct Machines<'n> {
    network: &'n Network,
    addresses: BTreeMap<u8, Vec<IpAddr>>,
}

impl Machines<'_> {
    fn node(&self, n: u8) -> &Node {
        &self.network.machines[usize::from(n) - 1]
    }

    /// Makes a machine answer to TCP and UDP.
    fn answer(&self, n: u8) -> Result<()> {
        for port in PORTS {
            let at = (IpAddr::from([0; 16]), port);
            let (tcp, udp) = self.node(n).inside(|| Ok((TcpListener::bind(at)?, UdpSocket::bind(at)?)))?;
            thread::spawn(move || {
                tcp.incoming().flatten().for_each(|mut stream| {
                    thread::spawn(move || {
                        let mut byte = [0];
                        while stream.read_exact(&mut byte).is_ok() && stream.write_all(&byte).is_ok() {}
                    });
                });
            });
            thread::spawn(move || {
                let mut text = [0; 16];
                while let Ok((len, from)) = udp.recv_from(&mut text) {
                    let _ = udp.send_to(&text[..len], from);
                }
            });
        }
        Ok(())
    }

    /// Whether one try of a machine reaches an address.
    fn may(&self, from: u8, to: IpAddr, said: Said) -> Result<bool> {
        let node = self.node(from);
        match said {
            Said::Tcp(port) => Ok(self.tcp(from, to, port).is_ok()),
            Said::Udp => {
                let any = if to.is_ipv4() { IpAddr::from([0; 4]) } else { [0; 16].into() };
                let socket = node.udp((any, 0))?;
                socket.set_read_timeout(Some(PATIENCE))?;
                // An ICMP error such as "administratively prohibited" appears as an error here.
                let asked = socket.connect((to, 7)).and_then(|()| socket.send(b"?"));
                Ok(asked.and_then(|_| socket.recv(&mut [0; 4])).is_ok())
            }
            Said::Icmp => Ok(node.run(&["ping", "-n", "-c", "1", "-W", "1", &to.to_string()]).is_ok()),
        }
    }

    fn tcp(&self, from: u8, to: IpAddr, port: u16) -> Result<TcpStream> {
        let at = SocketAddr::new(to, port);
        self.node(from).inside(|| Ok(TcpStream::connect_timeout(&at, PATIENCE)?))
    }

    /// Checks one pair in one IP version.
    fn is_as(&self, from: u8, to: u8, address: IpAddr, said: Said, allowed: bool) -> Result<()> {
        let what = || format!("m{from} -> m{to} ({address}), {said:?}");
        if allowed {
            eventually(&what(), SOON, || self.may(from, address, said))
        } else {
            ensure!(!self.may(from, address, said)?, "{} and may not", what());
            Ok(())
        }
    }

    /// Checks all pairs in both IP versions at the same time. Refused packets are tried while other traffic passes
    /// between the same two machines.
    fn are_as(&self, expected: impl Fn(u8, u8, Said) -> bool + Sync) -> Result<usize> {
        let all = [Said::Tcp(7), Said::Tcp(8), Said::Udp, Said::Icmp];
        let pairs: Vec<_> = self
            .addresses
            .iter()
            .flat_map(|(to, addresses)| addresses.iter().map(move |address| (*to, *address)))
            .flat_map(|(to, address)| self.addresses.keys().map(move |from| (*from, to, address)))
            .filter(|(from, to, _)| from != to)
            .collect();
        let check = |(from, to, address): (u8, u8, IpAddr)| {
            all.iter().try_for_each(|said| self.is_as(from, to, address, *said, expected(from, to, *said)))
        };
        let (count, check) = (pairs.len(), &check);
        thread::scope(|scope| {
            let threads: Vec<_> = pairs.into_iter().map(|pair| scope.spawn(move || check(pair))).collect();
            threads.into_iter().try_for_each(|thread| thread.join().expect("no panic"))
        })?;
        Ok(count)
    }
}

fn reload(network: &Network) -> Result<rustguard_tests::Ended> {
    network.server.end_of(network.server.rustguard()?.args(["reload", "rgs"]))
}

fn addresses(texts: &[String]) -> Result<Vec<IpAddr>> {
    texts.iter().map(|text| Ok(text.parse()?)).collect()
}

#[test]
fn receivers_enforce_the_policy() {
    scenario(|lab| {
        network(lab, 5, |network| {
            network.server.sh("sysctl -qw net.ipv4.ip_forward=1")?;
            fs::create_dir_all("/etc/rustguard")?;
            fs::write(FILE, "alow m1 -> m2\n")?;
            let arguments = ["--pool", "10.150.0.0/24", "--pool", "fd15::/64", "--endpoint", "10.1.0.1", "--star=off"];
            let mut wrong = network.server.rustguard()?;
            let ended = network.server.end_of(wrong.args(["serve", "-i", "rgs"]).args(arguments))?;
            ended.refused(&["rgs.policy:1:1", "did you mean `allow`"])?;

            fs::write(FILE, POLICY)?;
            let served = network.serve(lab, &arguments)?;
            let mut tunnels = Vec::new();
            let mut machines = Machines { network, addresses: BTreeMap::new() };
            for (n, tag) in [(1, "dev"), (2, "web"), (3, "db"), (4, "dev")] {
                let (server, token) = (format!("10.{n}.0.1"), network.invite(&["--tag", tag])?);
                tunnels.push(network.join(lab, n, &[&server, "--token", &token, "--name", &format!("m{n}")])?);
                machines.addresses.insert(n, addresses(&network.addresses(n)?)?);
            }
            let stock = network.ask(&["peer", "add", "phone", "--conf", "-"])?;
            let own = stock.lines().find_map(|line| line.strip_prefix("Address = ")).context("addresses")?;
            let own: Vec<_> = own.split(", ").filter_map(|it| Some(it.split_once('/')?.0.to_owned())).collect();
            machines.addresses.insert(PHONE, addresses(&own)?);
            let lines = stock.lines().filter(|line| !line.starts_with("DNS"));
            let stock: String = lines.map(|line| format!("{}\n", line.replace("10.1.0.1", "10.5.0.1"))).collect();
            machines.node(PHONE).stock_client("up", &lab.file("phone.conf", &stock)?)?;
            (1..=PHONE).try_for_each(|n| machines.answer(n))?;

            let pairs = machines.are_as(expected)?;
            ensure!(pairs == 40, "{pairs} pairs");
            let said = network.ask(&["policy", "test", "m1", "m3", "tcp/7"])?;
            ensure!(said.contains("yes") && said.contains("rgs.policy:1: allow tag:dev -> tag:db tcp/7"), "{said}");
            let no = network.try_ask(&["policy", "test", "m2", "m3", "tcp/7"])?;
            ensure!(no.status.code() == Some(1) && no.stdout.starts_with("no"), "{no}");
            let shown: Value = serde_json::from_str(&network.ask(&["policy", "show", "m3", "--json"])?)?;
            ensure!(shown["may"][0]["line"] == 3 && shown["may_be_reached"][1]["line"] == 2, "{shown}");
            network.ask(&["policy", "check", "--strict"])?;

            // Without a restart, a connection that the new policy refuses ends, and one that it allows begins.
            let db = machines.addresses[&3][0];
            let mut open = machines.tcp(1, db, 7)?;
            open.set_read_timeout(Some(PATIENCE))?;
            let mut answers = || open.write_all(b"?").is_ok() && open.read_exact(&mut [0]).is_ok();
            ensure!(answers(), "a connection is answered");
            fs::write(FILE, "alow\n")?;
            reload(network)?.refused(&["rgs.policy:1:1", "nothing was changed"])?;
            fs::write(FILE, format!("{POLICY}test m4 -> m3 tcp/7 refused\n"))?;
            reload(network)?.refused(&["this test fails for m4 -> m3", "nothing was changed"])?;
            ensure!(answers(), "a policy that is refused changes nothing");
            let other = POLICY.replace("tag:db tcp/7", RELOADED).replace("m3 tcp/7 allowed", "m3 tcp/7 refused");
            fs::write(FILE, &other)?;
            let asked = ["policy", "test", "m4", "m3", "tcp/8"];
            let said = network.ask(&asked)?;
            ensure!(said.contains("yes") && said.contains("not in force"), "of a file that was not reloaded: {said}");
            let reloaded = reload(network)?;
            ensure!(reloaded.success() && reloaded.stdout.contains("policy"), "{reloaded}");
            ensure!(
                network.audited("policy-changed", 2)?["uid"] == 0,
                "with the start, which nobody asked for by the socket, and now"
            );
            eventually("it is in force", SOON, || Ok(!network.ask(&asked)?.contains("not in force")))?;
            eventually("the connection has ended", SOON, || Ok(!answers()))?;
            machines.is_as(4, 3, db, Said::Tcp(8), true)?;
            machines.is_as(4, 3, db, Said::Tcp(7), false)?;
            fs::remove_file(FILE)?;
            reload(network)?.refused(&["is gone", "nothing was changed"])?;

            // A member that reboots without any server refuses the same as before.
            let ping = ["ping", "m3", "-i", "rg4", "--until-direct", "--timeout", "20"];
            let pinged = machines.node(4).end_of(machines.node(4).rustguard()?.args(ping))?;
            ensure!(pinged.success(), "{pinged}");
            for (n, other) in [(3, "10.4.0.2:"), (4, "10.3.0.2:")] {
                let known = format!("/var/lib/rustguard/rg{n}/member-addresses");
                let is_known = || Ok(fs::read_to_string(&known).is_ok_and(|text| text.contains(other)));
                eventually("the way is on disk", SOON, is_known)?;
            }
            // The reloaded policy comes with the roster, which is written shortly after the policy is enforced.
            let kept = || Ok(String::from_utf8_lossy(&fs::read("/var/lib/rustguard/rg3/roster")?).contains(RELOADED));
            eventually("the policy is on disk", SOON, kept)?;
            served.crash()?;
            drop(tunnels.remove(2));
            let _again = network.up(lab, 3)?;
            machines.is_as(4, 3, db, Said::Tcp(8), true)?;
            machines.is_as(4, 3, db, Said::Tcp(7), false)?;
            machines.is_as(4, 3, db, Said::Icmp, false)?;
            let drops = machines.node(3).shown("rg3")?;
            ensure!(drops.to_string().contains("\"policy\""), "{drops}");
            Ok(())
        })
    });
}

/// A machine is renamed, so a test of the policy fails. The policy stays in force, and the server still starts.
#[test]
fn a_test_that_fails_later_does_not_keep_a_server_from_starting() {
    scenario(|lab| {
        network(lab, 1, |network| {
            fs::create_dir_all("/etc/rustguard")?;
            let arguments = ["--pool", "10.150.0.0/24", "--endpoint", "10.1.0.1", "--star=off"];
            let served = network.serve(lab, &arguments)?;
            let token = network.invite(&[])?;
            let _joined = network.join(lab, 1, &["10.1.0.1", "--token", &token, "--name", "m1"])?;
            let policy =
                format!("allow m1 -> * tcp/22\ntest {} -> 192.168.1.7 tcp/22 allowed\n", network.addresses(1)?[0]);
            fs::write(FILE, &policy)?;
            // Until the list of members contains the machine, the policy cannot use its name.
            eventually("the policy is taken", SOON, || Ok(reload(network)?.success()))?;
            network.ask(&["peer", "rename", "m1", "other"])?;
            let asked = ["policy", "test", "other", "192.168.1.7", "tcp/22"];
            let is_refused = || Ok(network.try_ask(&asked)?.stdout.starts_with("no: no line"));
            eventually("the machine has another name", SOON, is_refused)?;
            // Settings can still be reloaded.
            ensure!(reload(network)?.success(), "{}", reload(network)?);
            served.stop()?;
            let mut again = network.serve(lab, &arguments)?;
            let log = again.process().log();
            ensure!(log.contains("rgs.policy:2:1: this test fails") && log.contains("stays so"), "{log}");
            ensure!(!network.try_ask(&asked)?.stdout.contains("not in force"), "{}", network.try_ask(&asked)?);
            again.stop()?;
            // Changed rules with a failing test are refused, also at the start.
            fs::write(FILE, policy.replace("tcp/22\n", "tcp/23\n"))?;
            let mut command = network.server.rustguard()?;
            let ended = network.server.end_of(command.args(["serve", "-i", "rgs"]).args(arguments))?;
            ended.refused(&["this test fails", "rgs.policy:2:1"])
        })
    });
}

/// Two connections begin before there is a policy. Without a matching rule, a machine keeps only the connection that it
/// began itself.
#[test]
fn what_runs_when_the_first_policy_comes_stays_whose_it_is() {
    scenario(|lab| {
        network(lab, 2, |network| {
            fs::create_dir_all("/etc/rustguard")?;
            let _served = network.serve(lab, &["--pool", "10.150.0.0/24", "--endpoint", "10.1.0.1", "--star=off"])?;
            let (mut tunnels, mut addresses) = (Vec::new(), Vec::new());
            for n in 1..=2 {
                let (server, token) = (format!("10.{n}.0.1"), network.invite(&[])?);
                tunnels.push(network.join(lab, n, &[&server, "--token", &token, "--name", &format!("m{n}")])?);
                addresses.push(network.addresses(n)?[0].parse::<IpAddr>()?);
            }
            let [m1, m2] = [0, 1].map(|at| &network.machines[at]);
            // The listener is closed afterwards, so a listening socket does not reveal who began the connection.
            let pair = |from: &Node, to: &Node, address: IpAddr, port: u16| -> Result<(TcpStream, TcpStream)> {
                let listener = to.inside(|| Ok(TcpListener::bind((IpAddr::from([0; 4]), port))?))?;
                let at = SocketAddr::new(address, port);
                let stream = from.inside(|| Ok(TcpStream::connect_timeout(&at, SOON)?))?;
                let (other, _) = listener.accept()?;
                [&stream, &other].into_iter().try_for_each(|it| it.set_read_timeout(Some(PATIENCE * 4)))?;
                Ok((stream, other))
            };
            let crosses = |from: &mut TcpStream, to: &mut TcpStream| {
                from.write_all(b"?").is_ok() && to.read_exact(&mut [0]).is_ok()
            };
            let (mut mine, mut far) = pair(m2, m1, addresses[0], 8)?;
            let (mut theirs, mut here) = pair(m1, m2, addresses[1], 7)?;
            ensure!(crosses(&mut theirs, &mut here) && crosses(&mut far, &mut mine), "without a policy");
            fs::write(FILE, "allow m2 -> m1 tcp/8\n")?;
            ensure!(reload(network)?.success(), "{}", reload(network)?);
            for (node, interface) in [(m1, "rg1"), (m2, "rg2")] {
                eventually("it is in force", SOON, || Ok(!node.shown(interface)?["policy"].is_null()))?;
            }
            ensure!(crosses(&mut mine, &mut far) && crosses(&mut far, &mut mine), "what m2 has begun goes on");
            // m2 sends first on it: this must not make it a connection that m2 began.
            here.write_all(b"?")?;
            ensure!(!crosses(&mut theirs, &mut here), "what m1 has begun ends");
            Ok(())
        })
    });
}

/// A service of a member keeps sending to a client, as a music service does. The first policy forbids this: it must
/// stop at once, and stay stopped after the member restarts. Answers to the member's own requests still arrive.
#[test]
fn a_service_of_a_member_that_starts_again_goes_on_with_nobody() {
    scenario(|lab| {
        network(lab, 2, |network| {
            fs::create_dir_all("/etc/rustguard")?;
            let _served = network.serve(lab, &["--pool", "10.150.0.0/24", "--endpoint", "10.1.0.1", "--star=off"])?;
            let (mut tunnels, mut addresses) = (Vec::new(), Vec::new());
            for n in 1..=2 {
                let (server, token) = (format!("10.{n}.0.1"), network.invite(&[])?);
                tunnels.push(network.join(lab, n, &[&server, "--token", &token, "--name", &format!("m{n}")])?);
                addresses.push(network.addresses(n)?[0].parse::<IpAddr>()?);
            }
            let [m1, m2] = [0, 1].map(|at| &network.machines[at]);
            let any = IpAddr::from([0; 4]);
            let (service, listener) = (m2.udp((any, 5_004))?, m1.udp((any, 0))?);
            let listens = SocketAddr::new(addresses[0], listener.local_addr()?.port());
            let serves = SocketAddr::new(addresses[1], 5_004);
            [&service, &listener].into_iter().try_for_each(|it| it.set_read_timeout(Some(PATIENCE)))?;
            // The service sends first, and the listener then sends too.
            let goes_on = || -> bool {
                let sent = service.send_to(b"music", listens).is_ok() && listener.send_to(b"more", serves).is_ok();
                sent && service.recv(&mut [0; 8]).is_ok()
            };
            eventually("it goes on without a policy", SOON, || Ok(goes_on()))?;
            fs::write(FILE, "allow m2 -> m1\n")?;
            ensure!(reload(network)?.success(), "{}", reload(network)?);
            let in_force = |n: usize, node: &Node| {
                eventually("it is in force", SOON, || Ok(!node.shown(&format!("rg{n}"))?["policy"].is_null()))
            };
            in_force(1, m1)?;
            in_force(2, m2)?;
            ensure!((0..4).all(|_| !goes_on()), "with its first policy");
            let ended = tunnels.remove(1).stop("TERM")?;
            ensure!(ended.success(), "{ended}");
            let _again = network.up(lab, 2)?;
            in_force(2, m2)?;
            let (asks, answers) = (m2.udp((any, 0))?, m1.udp((any, 7))?);
            [&asks, &answers].into_iter().try_for_each(|it| it.set_read_timeout(Some(PATIENCE)))?;
            eventually("the member asks others", SOON, || {
                asks.send_to(b"?", (addresses[0], 7))?;
                let Ok((_, from)) = answers.recv_from(&mut [0; 8]) else { return Ok(false) };
                answers.send_to(b"!", from)?;
                Ok(asks.recv(&mut [0; 8]).is_ok())
            })?;
            ensure!((0..4).all(|_| !goes_on()), "after a restart");
            Ok(())
        })
    });
}
