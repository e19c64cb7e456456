//! One speaker among many neighbours.
//!
//! The speaker runs in a simulated mesh once, and its events are recorded. The measurement gives these events to new
//! speakers, without the mesh. It acts like the device: it asks for the deadline after every call, and reports what
//! WireGuard saw of each peer five times a second.
//!
//! Each neighbour announces a prefix of its own. The other prefixes belong to ten nodes behind the neighbours. Some or
//! all of the neighbours have routes to all of these nodes.

use super::Pace;
use crate::figures::{Figures, resident};
use anyhow::Result;
use rustguard_babel::Babel;
use rustguard_core::{
    node::PeerId,
    routing::{Event, Signal},
    time::Instant,
};
use rustguard_sim::{Log, Sim, prefix};
use std::time::Duration;

/// Nodes behind the neighbours.
const ORIGINS: usize = 10;
/// How often the device reports signals.
const SAMPLE: Duration = Duration::from_millis(200);
/// The measured time of the start, and of the loss of a link, which returns after half of this time.
const EVENT: Duration = Duration::from_secs(10);

/// The events at which the phases of the measurement begin.
struct Life {
    /// The simulation. It is kept, because the speakers would reuse its memory, and the measurement would miss that.
    mesh: Sim,
    log: Log,
    started: Instant,
    /// Links carry traffic, and nothing else happens.
    busy: Instant,
    lost: Instant,
    back: Instant,
    idle: Instant,
    end: Instant,
}

/// The cost of one phase.
#[derive(Default)]
struct Took {
    total: Duration,
    longest: Duration,
}

/// Memory that must not be freed before the end.
pub(super) type Kept = (Sim, Vec<Babel>);

/// The rows of one mesh.
pub(super) fn measure(pace: &Pace, ways: &str, carriers: usize, figures: &mut Figures) -> Result<Kept> {
    let life = live(pace, carriers);
    let mut speakers: Vec<Babel> = Vec::new();
    let (mut starts, mut longest_starts, mut busy, mut idle) = (vec![], vec![], vec![], vec![]);
    let (mut losses, mut longest_losses, mut memory) = (vec![], vec![], vec![]);
    for _ in 0..pace.rounds {
        let before = resident("self")?;
        let mut speaker = life.log.newborn();
        let mut at = 0;
        let mut until = |instant| {
            let mut took = Took::default();
            at = life.log.replay(&mut speaker, at, instant, |call| {
                let started = std::time::Instant::now();
                let actions = call();
                let elapsed = started.elapsed();
                drop(actions);
                took.total += elapsed;
                took.longest = took.longest.max(elapsed);
            });
            took
        };
        let start = until(life.started);
        until(life.busy);
        let steady = until(life.lost);
        let loss = until(life.back);
        until(life.idle);
        let quiet = until(life.end);
        starts.push(millis(start.total));
        longest_starts.push(millis(start.longest));
        busy.push(millis(steady.total) / life.lost.since(life.busy).as_secs_f64());
        idle.push(millis(quiet.total) / life.end.since(life.idle).as_secs_f64());
        losses.push(millis(loss.total));
        longest_losses.push(millis(loss.longest));
        // The first speaker fills the memory that the simulation freed. All speakers are kept, so further growth is
        // theirs.
        speakers.push(speaker);
        if speakers.len() > 1 {
            memory.push(resident("self")?.saturating_sub(before) as f64 / 1e6);
        }
    }
    for (row, values) in [
        ("start, ms of a core", starts),
        ("start, longest call, ms", longest_starts),
        ("busy, ms of a core a second", busy),
        ("idle, ms of a core a second", idle),
        ("one lost and back, ms of a core", losses),
        ("one lost and back, longest call, ms", longest_losses),
        ("memory, MB", memory),
    ] {
        figures.add(format!("speaker, {ways}: {row}"), values);
    }
    Ok((life.mesh, speakers))
}

/// All phases, with this many routes to each node behind the neighbours.
fn live(pace: &Pace, carriers: usize) -> Life {
    let (neighbours, behind) = (1..=pace.neighbours, pace.neighbours + 1..=pace.neighbours + ORIGINS);
    let carried = (1..=carriers).flat_map(|carrier| behind.clone().map(move |origin| (carrier, origin)));
    let edges: Vec<(usize, usize)> = neighbours.map(|neighbour| (0, neighbour)).chain(carried).collect();
    let nodes = 1 + pace.neighbours + ORIGINS;
    let mut sim = Sim::new(nodes, &edges, 1);
    sim.stop(0);
    for number in nodes..=pace.prefixes {
        let origin = pace.neighbours + 1 + number % ORIGINS;
        sim.tell(origin, Event::Announce { prefix: prefix(number), metric: 0 });
    }
    sim.run(Duration::from_secs(20));

    sim.log = Some(Log::of(0));
    sim.start(0);
    with_traffic(&mut sim, pace, EVENT);
    assert_eq!(sim.nodes[0].fib.len(), pace.prefixes.max(nodes - 1), "the mesh is not whole");
    let started = sim.local(0);
    with_traffic(&mut sim, pace, EVENT);
    let busy = sim.local(0);
    with_traffic(&mut sim, pace, pace.alone);
    let lost = sim.local(0);
    sim.set_link(0, 1, false);
    with_traffic(&mut sim, pace, EVENT / 2);
    sim.set_link(0, 1, true);
    with_traffic(&mut sim, pace, EVENT / 2);
    let back = sim.local(0);
    // Links are busy for a while after the last traffic.
    sim.run(Duration::from_secs(20));
    let idle = sim.local(0);
    sim.run(pace.alone);
    let end = sim.local(0);
    let log = sim.log.take().expect("what was put there");
    Life { mesh: sim, log, started, busy, lost, back, idle, end }
}

/// Lets time pass with data on all links of node 0.
fn with_traffic(sim: &mut Sim, pace: &Pace, time: Duration) {
    for _ in 0..time.as_nanos() / SAMPLE.as_nanos() {
        for neighbour in 1..=pace.neighbours {
            if sim.links[&(0, neighbour)].up {
                let peer = PeerId(u32::try_from(neighbour).expect("a small number"));
                sim.tell(0, Event::Signal { peer, signal: Signal::Heard { data: Some(sim.local(0)) } });
                sim.tell(0, Event::Signal { peer, signal: Signal::Carried });
                sim.tell(neighbour, Event::Signal { peer: PeerId(0), signal: Signal::Carried });
            }
        }
        sim.run(SAMPLE);
    }
}

fn millis(time: Duration) -> f64 {
    time.as_secs_f64() * 1e3
}
