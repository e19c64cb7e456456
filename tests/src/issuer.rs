//! A network's server that sends whatever a test wants: it has the network's key, forwards, and distributes pair keys.
use crate::{Keypair, Node};
use anyhow::{Context as _, Result, anyhow};
use rustguard_device::{
    Device, PeerUpdate, PresharedKey,
    crypto::x25519::{PublicKey, StaticSecret},
    ipnet::IpNet,
    key,
};
use rustguard_network::{
    Driver, DriverEvent,
    roster::{
        exchange::Exchange,
        key::{NetworkKey, NetworkSecret},
        member::{Member, Role},
        pair::PairSecret,
        roster::Roster,
        settings::Settings,
    },
};
use std::{
    net::IpAddr,
    sync::{Arc, mpsc},
    thread::JoinHandle,
    time::UNIX_EPOCH,
};

/// A machine that has joined.
#[derive(Clone, Debug)]
pub struct Joined {
    /// Its keys.
    pub keys: Keypair,
    /// The preshared key of its session with the server.
    pub preshared_key: String,
    /// Its address inside.
    pub inside: String,
}

type Orders = tokio::sync::mpsc::UnboundedSender<(Roster, PairSecret)>;

/// The server, on a thread in the namespace of its node, with the interface `rgs`.
pub struct Issuer {
    orders: Option<Orders>,
    thread: Option<JoinHandle<Result<()>>>,
    keys: Keypair,
}

fn secret() -> NetworkSecret {
    NetworkSecret::from_bytes(&[7; 32])
}

fn pairs(n: u8) -> PairSecret {
    PairSecret::from_bytes(&[n; 32])
}

fn public(text: &str) -> Result<PublicKey> {
    Ok(PublicKey(*key::from_base64(text)?))
}

impl Issuer {
    /// The key of the network.
    pub fn network() -> NetworkKey {
        secret().public_key()
    }

    /// The initial settings of a test.
    pub fn settings() -> Result<Settings> {
        let mut settings = Settings::new("lab".parse()?);
        settings.pools = vec!["10.150.0.0/24".parse()?];
        Ok(settings)
    }

    /// Starts the server, with these keys, for machines that have joined. It has the address 10.150.0.1 inside.
    pub fn start(node: &Node, keys: &Keypair, joined: &[Joined]) -> Result<Self> {
        let (orders, mut receiver) = tokio::sync::mpsc::unbounded_channel::<(Roster, PairSecret)>();
        let (ready, is_ready) = mpsc::channel();
        let (node, own, joined) = (node.clone(), keys.clone(), joined.to_vec());
        let thread = std::thread::spawn(move || {
            node.inside(|| {
                let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
                runtime.block_on(async {
                    let own = StaticSecret::from_bytes(*key::from_base64(&own.private)?);
                    let mut builder = Device::builder().private_key(own).listen_port(51_820).forward(true);
                    for machine in &joined {
                        let preshared = PresharedKey::from_bytes(&*key::from_base64(&machine.preshared_key)?);
                        let address: IpAddr = machine.inside.parse()?;
                        let peer = PeerUpdate::new(public(&machine.keys.public)?).preshared_key(preshared);
                        builder = builder.peer(peer.allowed_ip(IpNet::from(address)));
                    }
                    let (builder, texts) = Driver::texts(builder);
                    let device = builder.start("rgs")?;
                    let exchange = Exchange::new(secret().public_key(), None);
                    let exchange = exchange.with_pair_secret(pairs(9));
                    let mut driver = Driver::new(exchange, device.handle(), texts, device.events());
                    ready.send(())?;
                    loop {
                        tokio::select! {
                            roster = receiver.recv() => match roster {
                                Some((roster, pairs)) => {
                                    driver.renew_pair_secret(&pairs);
                                    driver.issue(roster);
                                }
                                None => break,
                            },
                            event = driver.next() => if matches!(event, DriverEvent::Ended) {
                                return Err(anyhow!("the server's device has ended"));
                            },
                        }
                    }
                    device.shutdown().await;
                    Ok(())
                })
            })
        });
        let issuer = Self { orders: Some(orders), thread: Some(thread), keys: keys.clone() };
        if is_ready.recv().is_err() {
            issuer.stop()?;
            return Err(anyhow!("the server did not start"));
        }
        Ok(issuer)
    }

    /// The server as a member.
    pub fn itself(&self, endpoint: &str) -> Result<Member> {
        let server = Member::new(public(&self.keys.public)?, "hub".parse()?).with_role(Role::Server);
        Ok(server
            .with_addresses(["10.150.0.1".parse()?])
            .with_endpoints([endpoint.parse().map_err(|_| anyhow!("{endpoint}"))?]))
    }

    /// A machine as a member.
    pub fn member(machine: &Joined, name: &str) -> Result<Member> {
        Ok(Member::new(public(&machine.keys.public)?, name.parse()?).with_addresses([machine.inside.parse()?]))
    }

    /// Issues a roster.
    pub fn issue(&self, number: u64, settings: Settings, members: Vec<Member>) -> Result<()> {
        self.issue_with(9, number, settings, members)
    }

    /// Issues a roster, and derives the pair keys from a secret whose bytes all have this value. [`Issuer::issue`] uses
    /// nines.
    pub fn issue_with(&self, secret_of: u8, number: u64, settings: Settings, members: Vec<Member>) -> Result<()> {
        self.tell(Self::signed(number, UNIX_EPOCH.elapsed()?.as_secs(), settings, members, secret_of)?, secret_of)
    }

    /// Issues a roster with this time, in seconds since 1970.
    pub fn issue_at(&self, time: u64, number: u64, settings: Settings, members: Vec<Member>) -> Result<()> {
        self.tell(Self::signed(number, time, settings, members, 9)?, 9)
    }

    /// The key of a pair of machines, derived from the secret of nines.
    pub fn key_of_pair(one: &Joined, other: &Joined) -> Result<String> {
        let key = pairs(9).preshared_key(&public(&one.keys.public)?, &public(&other.keys.public)?);
        Ok(key::to_base64(key.as_bytes()).to_string())
    }

    /// A roster that was not sent to anybody.
    pub fn unissued(number: u64, members: Vec<Member>) -> Result<Roster> {
        Self::signed(number, 0, Self::settings()?, members, 9)
    }

    fn signed(number: u64, time: u64, mut settings: Settings, members: Vec<Member>, secret_of: u8) -> Result<Roster> {
        settings.pair_secret = Some(pairs(secret_of).id());
        Ok(Roster::issue(&secret(), number, time, settings, members.into_iter().map(Arc::new))?)
    }

    fn tell(&self, roster: Roster, secret_of: u8) -> Result<()> {
        let pairs = pairs(secret_of);
        self.orders.as_ref().context("it runs")?.send((roster, pairs)).map_err(|_| anyhow!("the server has ended"))
    }

    /// Ends the server: its interface disappears, and nobody answers.
    pub fn stop(mut self) -> Result<()> {
        self.end()
    }

    fn end(&mut self) -> Result<()> {
        drop(self.orders.take());
        match self.thread.take().map(JoinHandle::join) {
            Some(Ok(ended)) => ended,
            Some(Err(_)) => Err(anyhow!("the server has panicked")),
            None => Ok(()),
        }
    }
}

impl Drop for Issuer {
    fn drop(&mut self) {
        // The scenario has already failed with this error.
        let _ = self.end();
    }
}
