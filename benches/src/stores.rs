//! The cost of decisions on a store that several servers share: leases a second from one server and from five at once,
//! the time until another server has heard, and the start of a server that reads 10,000 leases.
//!
//! The stores are those of Debian, started on ports of the loopback interface with their files in /tmp. Each server is
//! a replica (`rustguard_serve::replica`) with a connection of its own. All share this machine's processors and disk.

#[allow(dead_code, unreachable_pub, reason = "the tests of the store use the rest")]
#[path = "../../crates/rustguard-store/tests/engines/cluster.rs"]
mod cluster;
#[allow(dead_code, unreachable_pub, reason = "the tests of the store use the rest")]
#[path = "../../crates/rustguard-store/tests/engines/database.rs"]
mod database;
#[allow(dead_code, unreachable_pub, reason = "the tests of the store use the rest")]
#[path = "../../crates/rustguard-store/tests/engines/process.rs"]
mod process;

use crate::figures::{self, Figures};
use anyhow::{Context as _, Result, ensure};
use clap::Parser;
use rustguard_core::time::{Instant, Now};
use rustguard_crypto::{hash, x25519::PublicKey};
use rustguard_enroll::{
    lease::{PresharedKey, Terms},
    ledger::{Grant, Ledger, Policy, Request},
    pool::Pools,
    store::{LeaseStore, MemoryStore},
};
use rustguard_serve::{FileStore, replica::Replica};
use rustguard_store::{Log, NetworkLog, key::StoreKey, network::Position};
use std::{
    sync::Arc,
    time::{Duration, SystemTime, UNIX_EPOCH},
};

/// Measures what decisions cost on etcd and PostgreSQL, beside a folder, and prints a table. Changes nothing on the
/// machine.
#[derive(Clone, Debug, Parser)]
#[command(name = "stores")]
pub struct Options {
    /// How often each is measured, in turn
    #[arg(long, default_value_t = 5, value_parser = clap::value_parser!(u16).range(1..))]
    pub rounds: u16,
    /// One short round, whose figures mean little
    #[arg(long)]
    pub quick: bool,
    /// Added by `cargo bench`
    #[arg(long, hide = true)]
    pub bench: bool,
}

/// The rows.
pub const ROWS: [&str; 12] = [
    "a folder, one server: leases a second",
    "one etcd, one server: leases a second",
    "one etcd, five servers: leases a second",
    "one etcd: another server has heard after, ms",
    "three etcd, one server: leases a second",
    "three etcd, five servers: leases a second",
    "three etcd: another server has heard after, ms",
    "three etcd: a new server has read the leases after, ms",
    "PostgreSQL, one server: leases a second",
    "PostgreSQL, five servers: leases a second",
    "PostgreSQL: another server has heard after, ms",
    "PostgreSQL: a new server has read the leases after, ms",
];

/// The size of the measurement.
struct Pace {
    rounds: u16,
    /// Leases that a server makes for a figure.
    leases: u32,
    /// Leases that a new server reads.
    read: u32,
}

/// Measures. Returns the table, and the description of the machine.
///
/// # Errors
/// If a store is not installed, or does not start.
pub fn run(options: &Options) -> Result<String> {
    let pace = match options.quick {
        true => Pace { rounds: 1, leases: 4, read: 50 },
        false => Pace { rounds: options.rounds, leases: 200, read: 10_000 },
    };
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    runtime.block_on(measure(&pace))
}

async fn measure(pace: &Pace) -> Result<String> {
    let one = cluster::Cluster::of_one(&[]).context("no etcd: apt install etcd-server")?;
    let three = cluster::Cluster::of_three().context("no etcd: apt install etcd-server")?;
    let database = database::plain("").context("no PostgreSQL: apt install postgresql")?;
    let mut values: Vec<Vec<f64>> = vec![Vec::new(); ROWS.len()];
    for round in 0..pace.rounds {
        values[0].push(in_folder(pace)?);
        let place = format!("round-{round}");
        let etcd = async |cluster: &cluster::Cluster| -> Result<Vec<Arc<dyn Log>>> {
            let mut logs: Vec<Arc<dyn Log>> = Vec::new();
            for _ in 0..6 {
                logs.push(Arc::new(cluster.open(&place).await?));
            }
            Ok(logs)
        };
        on_log(pace, etcd(&one).await?, false, &mut values[1..4]).await?;
        on_log(pace, etcd(&three).await?, round == 0, &mut values[4..8]).await?;
        let mut logs: Vec<Arc<dyn Log>> = Vec::new();
        for _ in 0..6 {
            logs.push(Arc::new(database::open(&database.address(&format!("?schema={place}"))).await?));
        }
        on_log(pace, logs, round == 0, &mut values[8..12]).await?;
    }
    let mut figures = Figures::default();
    for (row, values) in ROWS.iter().zip(values) {
        figures.add(*row, values);
    }
    let mut text = format!(
        "{}; stores on the same machine; {} leases a server and round, a new server reads {}; medians (lowest–highest)\n\n",
        figures::machine(),
        pace.leases,
        pace.read
    );
    text += &figures.table("", &ROWS.map(|row| (row, "")))?;
    Ok(text)
}

/// Leases a second in a folder, without a log.
fn in_folder(pace: &Pace) -> Result<f64> {
    let folder = process::folder();
    let mut ledger = ledger(FileStore::open(&folder.path().join("leases"))?)?;
    let began = std::time::Instant::now();
    for number in 0..pace.leases {
        ledger.admit(request(0, number), now())?;
    }
    Ok(f64::from(pace.leases) / began.elapsed().as_secs_f64())
}

/// Leases a second from one server and from five, and the time until another one has heard. With `reads`, also how long
/// a new server takes for the leases.
async fn on_log(pace: &Pace, logs: Vec<Arc<dyn Log>>, reads: bool, values: &mut [Vec<f64>]) -> Result<()> {
    let mut replicas = Vec::new();
    for (log, number) in logs.iter().zip(0_u8..) {
        replicas.push(replica(log, number).await?);
    }
    let mut other = replicas.pop().context("six replicas")?;

    let began = std::time::Instant::now();
    admit(&mut replicas[0], 0, pace.leases).await?;
    values[0].push(f64::from(pace.leases) / began.elapsed().as_secs_f64());

    let (began, count) = (std::time::Instant::now(), replicas.len());
    let mut tasks = Vec::new();
    for (mut replica, number) in replicas.into_iter().zip(1_u8..) {
        let leases = pace.leases;
        tasks.push(tokio::spawn(async move { admit(&mut replica, number, leases).await.map(|()| replica) }));
    }
    let mut replicas = Vec::new();
    for task in tasks {
        replicas.push(task.await??);
    }
    values[1].push(f64::from(pace.leases) * count as f64 / began.elapsed().as_secs_f64());

    let mut heard = Vec::new();
    for number in 0..pace.leases.min(50) {
        other.follow(now).await?;
        let lease = request(9, number);
        let hears = async {
            loop {
                if other.follow(now).await?.peers.contains(&lease.public_key) {
                    return Ok::<_, anyhow::Error>(std::time::Instant::now());
                }
                other.wait().await;
            }
        };
        let decides = async {
            // The other one waits already.
            tokio::task::yield_now().await;
            replicas[0].decide(now, |ledger, now| ledger.admit(lease.clone(), now)).await??;
            Ok::<_, anyhow::Error>(std::time::Instant::now())
        };
        let (hears, decides) = tokio::join!(hears, decides);
        heard.push(hears?.saturating_duration_since(decides?).as_secs_f64() * 1e3);
    }
    heard.sort_by(f64::total_cmp);
    values[2].push(heard[heard.len() / 2]);

    if reads {
        let present = u32::try_from(replicas[0].ledger().leases().len())?;
        admit(&mut replicas[0], 10, pace.read.saturating_sub(present)).await?;
        let began = std::time::Instant::now();
        let new = replica(&logs[5], 11).await?;
        values[3].push(began.elapsed().as_secs_f64() * 1e3);
        ensure!(new.ledger().leases().len() >= usize::try_from(pace.read)?, "a new server lacks leases");
    }
    Ok(())
}

async fn admit(replica: &mut Replica<MemoryStore>, server: u8, leases: u32) -> Result<()> {
    for number in 0..leases {
        replica.decide(now, |ledger, now| ledger.admit(request(server, number), now)).await??;
    }
    Ok(())
}

async fn replica(log: &Arc<dyn Log>, server: u8) -> Result<Replica<MemoryStore>> {
    let log = NetworkLog::new(Arc::clone(log), StoreKey::from_bytes(&[7; 32]), Position::START);
    Ok(Replica::open(ledger(MemoryStore::default())?, log, &server.to_string(), now).await?)
}

fn ledger<S: LeaseStore>(store: S) -> Result<Ledger<S>> {
    Ok(Ledger::open(store, Pools::new(&["10.0.0.0/8".parse()?])?, Policy::default(), now())?)
}

fn request(server: u8, number: u32) -> Request {
    let key = hash::hash(&[&[server], &number.to_be_bytes()]);
    Request::new(PublicKey(key), PresharedKey::from_bytes(&key), Grant::Admin(Terms::default()))
}

fn now() -> Now {
    let unix = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or(Duration::ZERO);
    Now { instant: Instant::from_nanos(u64::try_from(unix.as_nanos()).unwrap_or(u64::MAX)), unix }
}
