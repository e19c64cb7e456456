//! Servers and members on devices in one process: everybody gets the rosters and the keys of pairs.

use rustguard_device::{
    Builder, Device, Event, MemoryBinder, PeerUpdate, Texts, Update,
    crypto::x25519::{PublicKey, StaticSecret},
    tun::memory::{self, MemoryNet},
};
use rustguard_network::{
    Driver, DriverEvent,
    roster::{
        exchange::Exchange,
        key::NetworkSecret,
        member::{Member, Role},
        pair::PairSecret,
        roster::Roster,
        settings::Settings,
        statement::Statement,
    },
};
use std::{net::SocketAddr, sync::Arc, time::Duration};

/// A limit far above every wait in these tests. Only a hang reaches it.
const LONG: Duration = Duration::from_secs(20);

fn secret(n: u8) -> StaticSecret {
    StaticSecret::from_bytes([n; 32])
}

fn key(n: u8) -> PublicKey {
    secret(n).public_key()
}

fn at(n: u8) -> SocketAddr {
    SocketAddr::from(([192, 0, 2, n], 51_820))
}

fn network() -> NetworkSecret {
    NetworkSecret::from_bytes(&[7; 32])
}

fn pair_secret() -> PairSecret {
    PairSecret::from_bytes(&[9; 32])
}

/// Member 1 is a server; the others are not.
fn roster(number: u64, members: &[u8]) -> Roster {
    let member = |n: &u8| {
        let role = if *n == 1 { Role::Server } else { Role::Member };
        Arc::new(Member::new(key(*n), format!("m{n}").parse().unwrap()).with_role(role))
    };
    Roster::issue(&network(), number, 0, Settings::new("rg0".parse().unwrap()), members.iter().map(member)).unwrap()
}

struct Node {
    device: Device,
    texts: Option<Texts>,
    n: u8,
    _host: memory::MemoryHost,
}

impl Node {
    fn start(net: &MemoryNet, n: u8) -> Self {
        let (builder, texts) = Driver::texts(Builder::default());
        let (tun, host) = memory::tun().unwrap();
        let binder = MemoryBinder::new(net.clone(), at(n));
        let device = builder.private_key(secret(n)).start_with(tun, binder).unwrap();
        Self { device, texts: Some(texts), n, _host: host }
    }

    /// Makes `n` a peer, which this node contacts if `calls`.
    async fn knows(&self, n: u8, calls: bool) {
        let peer = PeerUpdate::new(key(n));
        let peer = if calls { peer.endpoint(at(n)).persistent_keepalive(Duration::from_secs(25)) } else { peer };
        self.device.update(Update::new().peer(peer)).await.unwrap();
    }

    fn drive(&mut self, roster: Option<Roster>) -> Driver {
        let exchange = Exchange::new(network().public_key(), roster);
        let exchange = match self.n {
            1 => exchange.with_pair_secret(pair_secret()).taking_statements(),
            _ => exchange,
        };
        Driver::new(exchange, self.device.handle(), self.texts.take().unwrap(), self.device.events())
    }
}

/// Runs the drivers until `wanted` returns a result. After an event of one driver, the futures of the others are
/// dropped.
async fn until<T>(drivers: &mut [&mut Driver], mut wanted: impl FnMut(usize, DriverEvent) -> Option<T>) -> T {
    let run = async {
        loop {
            let nexts = drivers.iter_mut().map(|driver| Box::pin(driver.next()));
            let (event, index, others) = futures_util::future::select_all(nexts).await;
            drop(others);
            if let Some(found) = wanted(index, event) {
                return found;
            }
        }
    };
    tokio::time::timeout(LONG, run).await.expect("it happens")
}

/// Runs the drivers until the one with this index has a roster of this number.
async fn until_newer(drivers: &mut [&mut Driver], wanted: usize, number: u64) {
    let found = |index, event| match event {
        DriverEvent::Newer(roster) => (index == wanted && roster.version().number == number).then_some(()),
        _ => None,
    };
    until(drivers, found).await;
}

#[tokio::test]
async fn a_roster_comes_to_members_and_from_them_to_others() {
    let net = MemoryNet::default();
    let [mut server, mut member, mut last] = [1, 2, 3].map(|n| Node::start(&net, n));
    let (mut server_driver, mut member_driver) = (server.drive(Some(roster(1, &[1, 2, 3]))), member.drive(None));
    let mut last_driver = last.drive(None);
    server.knows(2, false).await;
    member.knows(1, true).await;
    member.knows(3, false).await;
    last.knows(2, true).await;
    // The last one has no session with the server.
    until_newer(&mut [&mut server_driver, &mut member_driver, &mut last_driver], 2, 1).await;
    // A roster that is issued while all are connected is distributed immediately.
    server_driver.issue(roster(2, &[1, 2, 3]));
    until_newer(&mut [&mut server_driver, &mut member_driver, &mut last_driver], 2, 2).await;
    assert_eq!(member_driver.roster().unwrap().version(), last_driver.roster().unwrap().version());
}

#[tokio::test]
async fn a_server_tells_the_keys_of_a_members_pairs() {
    let net = MemoryNet::default();
    let [mut server, mut member] = [1, 2].map(|n| Node::start(&net, n));
    let all = roster(1, &[1, 2, 3]);
    let (mut server_driver, mut driver) = (server.drive(Some(all.clone())), member.drive(Some(all)));
    server.knows(2, false).await;
    member.knows(1, true).await;
    driver.want_keys([key(3)]);
    let told = |_, event| match event {
        DriverEvent::PairKey { member, key, .. } => Some((member, key)),
        _ => None,
    };
    let told = until(&mut [&mut server_driver, &mut driver], told).await;
    assert_eq!(told, (key(3), pair_secret().preshared_key(&key(2), &key(3))));
}

#[tokio::test]
async fn what_a_member_announces_comes_to_the_server_until_it_is_stored() {
    let net = MemoryNet::default();
    let [mut server, mut member] = [1, 2].map(|n| Node::start(&net, n));
    let all = roster(1, &[1, 2]);
    let (mut server_driver, mut driver) = (server.drive(Some(all.clone())), member.drive(Some(all)));
    server.knows(2, false).await;
    member.knows(1, true).await;
    let announced = Statement::new(["192.168.1.0/24".parse().unwrap()]);
    driver.state(announced.clone());
    let stated = |_, event| match event {
        DriverEvent::Statement { member, statement } => Some((member, statement)),
        _ => None,
    };
    // The statement is repeated until it is stored.
    for _ in 0..2 {
        let told = until(&mut [&mut server_driver, &mut driver], stated).await;
        assert_eq!(told, (key(2), announced.clone()));
    }
    server_driver.stored(&key(2), &announced);
    let other = Statement::new([]);
    driver.state(other.clone());
    let told = until(&mut [&mut server_driver, &mut driver], stated).await;
    assert_eq!(told, (key(2), other));
}

#[tokio::test]
async fn sessions_from_before_the_driver_count_and_the_end_of_the_device_is_told() {
    let net = MemoryNet::default();
    let [mut server, mut member] = [1, 2].map(|n| Node::start(&net, n));
    let mut events = [server.device.events(), member.device.events()];
    server.knows(2, false).await;
    member.knows(1, true).await;
    for events in &mut events {
        let complete = async { while !matches!(events.recv().await.unwrap(), Event::HandshakeComplete { .. }) {} };
        tokio::time::timeout(LONG, complete).await.expect("a session");
    }
    let (mut server_driver, mut driver) = (server.drive(Some(roster(5, &[1, 2]))), member.drive(None));
    until_newer(&mut [&mut server_driver, &mut driver], 1, 5).await;
    member.device.shutdown().await;
    until(&mut [&mut driver], |_, event| matches!(event, DriverEvent::Ended).then_some(())).await;
}
