//! The time that `Server::handle` takes. Both sides run in one thread.

use super::{Figures, Pace};
use anyhow::{Result, bail, ensure};
use ipnet::IpNet;
use rand::{Rng as _, SeedableRng as _, rngs::StdRng};
use rustguard_core::time::{Instant, Now};
use rustguard_crypto::{
    hash,
    x25519::{PublicKey, StaticSecret},
};
use rustguard_enroll::{
    action::Action,
    client::{Client, Heard},
    ledger::{Ledger, Policy},
    pool::Pools,
    server::{InviteOptions, MAX_WINDOW, OpenOptions, Server, ServerConfig},
    store::{LeaseStore, MemoryStore},
    token::Token,
};
use rustguard_serve::FileStore;
use std::{
    hint::black_box,
    net::{Ipv4Addr, SocketAddr},
    path::Path,
    time::{self, Duration},
};

/// The time between two machines on the simulated clock. It is long enough for every rate limit, and short enough for a
/// window.
const STEP: Duration = Duration::from_millis(150);
/// Bytes of an initiation that MAC1 covers.
const MACED: usize = 1200;

pub(super) fn measure(pace: &Pace, disk: &Path, figures: &mut Figures) -> Result<()> {
    for (by, code) in [("by invite", false), ("by code", true)] {
        let (mut memory, mut durable) = (Vec::new(), Vec::new());
        for n in 0..pace.samples {
            memory.push(Bench::new(MemoryStore::default())?.enrolments(pace.enrolments, code)?);
            let store = FileStore::open(&disk.join(format!("{by} {n}")))?;
            durable.push(Bench::new(store)?.enrolments(pace.durable_enrolments, code)?);
        }
        figures.add(format!("{by}, in memory: enrolments a second on one core"), memory);
        figures.add(format!("{by}, on the disk: enrolments a second"), durable);
    }

    let mut bench = Bench::new(MemoryStore::default())?;
    let (stranger, garbage) = bench.strangers()?;
    let (key, count) = ([7; 32], pace.datagrams);
    let samples = 0..pace.samples;
    let mac = samples.clone().map(|_| {
        let started = time::Instant::now();
        for _ in 0..count {
            black_box(hash::mac(black_box(&key), &[black_box(&garbage[..MACED])]));
        }
        nanos(started.elapsed(), count)
    });
    figures.add("one BLAKE2s MAC over an initiation, ns", mac.collect::<Vec<_>>());
    let rejected = samples.clone().map(|_| bench.knocks(&garbage, count, Duration::ZERO, Some(0)));
    figures.add("garbage, wrong MAC1, ns", rejected.collect::<Result<Vec<_>>>()?);
    // Each of these costs the server a multiplication on the curve, so there are fewer of them.
    let looked_at = samples.clone().map(|_| bench.knocks(&stranger, count / 20, STEP, Some(0)));
    figures.add("stranger, valid MAC1, no such invite, ns", looked_at.collect::<Result<Vec<_>>>()?);
    // This uses up the allowance.
    bench.knocks(&stranger, 100, Duration::ZERO, None)?;
    let refused = samples.map(|_| bench.knocks(&stranger, count, Duration::ZERO, Some(count)));
    figures.add("stranger beyond the allowance, gets a cookie, ns", refused.collect::<Result<Vec<_>>>()?);
    Ok(())
}

struct Bench<S> {
    server: Server<S>,
    clock: Duration,
    rng: StdRng,
    actions: Vec<Action>,
    machines: u32,
}

impl<S: LeaseStore> Bench<S> {
    fn new(store: S) -> Result<Self> {
        let (mut rng, clock) = (StdRng::seed_from_u64(1), Duration::ZERO);
        let pools: [IpNet; 2] = ["10.150.0.0/16".parse()?, "fd15::/64".parse()?];
        let ledger = Ledger::open(store, Pools::new(&pools)?, Policy::default(), now(clock))?;
        let config = ServerConfig::default()
            .with_addresses(vec!["10.150.0.1".parse()?, "fd15::1".parse()?])
            .with_routes(pools.to_vec());
        let server = Server::new(secret(&mut rng), ledger, &config, now(clock), &mut rng)?;
        Ok(Self { server, clock, rng, actions: Vec::new(), machines: 0 })
    }

    /// Enrols `count` machines, one after the other. Returns how many the server can enrol in a second.
    fn enrolments(&mut self, count: usize, code: bool) -> Result<f64> {
        let mut spent = Duration::ZERO;
        if code {
            ensure!(STEP * u32::try_from(count)? < MAX_WINDOW, "more than a window takes");
        }
        let options = OpenOptions::default().with_duration(MAX_WINDOW);
        let opened = if code {
            Some(self.server.open(options, now(self.clock), &mut self.rng, &mut self.actions)?)
        } else {
            None
        };
        for _ in 0..count {
            let token = match opened.as_ref().and_then(|opened| opened.code.clone()) {
                Some(code) => Token::Code(code),
                None => {
                    let (options, now) = (InviteOptions::default(), now(self.clock));
                    Token::Invite(self.server.new_invite(options, now, &mut self.rng, &mut self.actions)?)
                }
            };
            spent += self.enrolment(token)?;
        }
        Ok(count as f64 / spent.as_secs_f64())
    }

    /// Enrols one machine, up to its lease and its first handshake. Returns the server's time for the machine's
    /// messages.
    fn enrolment(&mut self, token: Token) -> Result<Duration> {
        self.clock += STEP;
        let now = now(self.clock);
        self.machines += 1;
        let from = SocketAddr::from((Ipv4Addr::from(0x0a00_0000 + self.machines), 40_000));
        let key = secret(&mut self.rng);
        let public_key = key.public_key();
        let mut client = Client::new(token, key, now)?.with_name("machine".to_owned());
        let mut spent = Duration::ZERO;
        while let Some(datagram) = client.poll(now, &mut self.rng)? {
            let (took, answers) = self.handle(from, &datagram, now);
            spent += took;
            ensure!(!answers.is_empty(), "the server is silent");
            for answer in answers {
                match client.handle(&answer, now, &mut self.rng) {
                    Heard::Progress => {}
                    Heard::Joined(_) => {
                        self.confirmed(&public_key, now);
                        return Ok(spent);
                    }
                    other => bail!("enrolment: {other:?}"),
                }
            }
        }
        bail!("the client has nothing to say")
    }

    /// Gives a datagram to the server. Returns the time that it took, and the answers.
    fn handle(&mut self, from: SocketAddr, datagram: &[u8], now: Now) -> (Duration, Vec<Vec<u8>>) {
        self.actions.clear();
        let started = time::Instant::now();
        self.server.handle(from, datagram, now, &mut self.rng, &mut self.actions);
        let took = started.elapsed();
        let answers = self.actions.drain(..).filter_map(|action| match action {
            Action::Send { bytes, .. } => Some(bytes),
            _ => None,
        });
        (took, answers.collect())
    }

    fn confirmed(&mut self, peer: &PublicKey, now: Now) {
        self.server.handshake_completed(peer, now, &mut self.actions);
        self.server.tick(now, &mut self.actions);
    }

    /// The first message of a machine without an invite of this server, and the same message with a wrong MAC1.
    fn strangers(&mut self) -> Result<(Vec<u8>, Vec<u8>)> {
        let (options, now) = (InviteOptions::default(), now(self.clock));
        let token = self.server.new_invite(options, now, &mut self.rng, &mut self.actions)?.to_text();
        Ok((rustguard_tests::stranger(&token)?, rustguard_tests::garbage(&token)?))
    }

    /// Gives the same datagram to the server `count` times, with `pause` in between. Returns nanoseconds per datagram.
    /// With `answered`, exactly that number of them has to be answered.
    fn knocks(&mut self, datagram: &[u8], count: u32, pause: Duration, answered: Option<u32>) -> Result<f64> {
        let from = SocketAddr::from(([192, 0, 2, 1], 40_000));
        self.actions.clear();
        let started = time::Instant::now();
        for _ in 0..count {
            self.clock += pause;
            self.server.handle(from, black_box(datagram), now(self.clock), &mut self.rng, &mut self.actions);
        }
        let nanos = nanos(started.elapsed(), count);
        let answers = self.actions.iter().filter(|action| matches!(action, Action::Send { .. })).count();
        let wrong = answered.filter(|&answered| usize::try_from(answered) != Ok(answers));
        ensure!(wrong.is_none(), "{answers} of {count} were answered, not {wrong:?}");
        self.actions.clear();
        Ok(nanos)
    }
}

fn nanos(time: Duration, count: u32) -> f64 {
    time.as_secs_f64() * 1e9 / f64::from(count)
}

fn secret(rng: &mut StdRng) -> StaticSecret {
    let mut key = [0; 32];
    rng.fill_bytes(&mut key);
    StaticSecret::from_bytes(key)
}

/// Both clocks at this time after the start.
pub(super) fn now(clock: Duration) -> Now {
    const BOOTED: Duration = Duration::from_secs(1_000);
    const EPOCH: Duration = Duration::from_secs(1_700_000_000);
    Now { instant: Instant::from_nanos(0) + BOOTED + clock, unix: EPOCH + clock }
}
