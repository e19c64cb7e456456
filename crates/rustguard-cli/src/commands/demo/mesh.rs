//! `rustguard demo mesh`: five nodes in a ring. Every node sends to every other node. One cable loses all packets for a
//! while, without any signal to its ends.
//!
//! As in the other demonstration, each node is a thread in its own network namespace and runs the same device as `up`.

mod node;
mod ring;
mod timeline;

use super::{become_privileged, say, secret};
use anyhow::{Context as _, Result, anyhow, bail};
use node::{Ask, Node};
use ring::{CUT, Log, NAMES, Table, path};
use rustguard_crypto::x25519::{PublicKey, StaticSecret};
use std::{
    fs,
    io::{self, Write as _},
    path::{Path, PathBuf},
    thread::JoinHandle,
    time::{Duration, Instant},
};
use timeline::{Picture, Stage};
use tokio::sync::{mpsc, oneshot};

/// The time for which the working mesh is shown, before the cut and after it.
const STEADY: Duration = Duration::from_millis(2_000);
/// The limit for each step. On a quiet machine, a step takes longer than 10 s only if something is broken.
const PATIENCE: Duration = Duration::from_secs(40);
/// The time to wait for the first path to return. The protocol does not leave a working path at once.
const BACK: Duration = Duration::from_secs(5);
/// The interval at which nodes are asked for their state.
const LOOK: Duration = Duration::from_millis(20);

/// Runs the demo, prints what happened, and draws it.
pub(crate) fn run(picture: Option<&Path>) -> Result<()> {
    // This error is better reported now than after ten seconds.
    if let Some(folder) =
        picture.and_then(Path::parent).filter(|folder| !folder.as_os_str().is_empty() && !folder.is_dir())
    {
        bail!("cannot write the picture: there is no folder {}", folder.display());
    }
    let privileged = become_privileged()?;
    say!(
        "Five nodes in a ring, each in its own network namespace{}:\n\n    {} ── ({})\n",
        if privileged { "" } else { " (inside a user namespace: no root needed)" },
        NAMES.join(" ── "),
        NAMES[0],
    )?;
    let mut ring = Ring::start();
    // If a wait reached its limit because a thread failed, the error of the thread is the cause, so it comes first.
    let shown = ring.show();
    let logs = ring.end()?;
    let picture_of = Picture { logs, ..shown? };
    let path = write(picture, &picture_of.draw())?;
    say!("\nThe picture is in {}. Nothing else is left behind.", path.display())?;
    say!("Next: add `Routing = babel` to your configuration files, then try `rustguard routes`, `trace` and `map`.")?;
    Ok(())
}

/// The running nodes.
struct Ring {
    nodes: Vec<(mpsc::UnboundedSender<Ask>, JoinHandle<Result<Log>>)>,
}

impl Ring {
    fn start() -> Self {
        let secrets: [StaticSecret; NAMES.len()] = std::array::from_fn(|_| secret());
        let keys: [PublicKey; NAMES.len()] = std::array::from_fn(|index| secrets[index].public_key());
        let nodes = secrets.into_iter().enumerate().map(|(index, secret)| {
            let (ask, asked) = mpsc::unbounded_channel();
            let thread = std::thread::spawn(move || Node::run(index, secret, keys, asked).context(NAMES[index]));
            (ask, thread)
        });
        Self { nodes: nodes.collect() }
    }

    /// Runs the stages of the demonstration in order, and prints what happens.
    fn show(&mut self) -> Result<Picture> {
        for (index, _) in NAMES.iter().enumerate() {
            let next = self.ask((index + 1) % NAMES.len(), Ask::Namespace)?;
            self.ask(index, |done| Ask::Lay(next, done))?;
        }
        let start = Instant::now();
        for index in 0..NAMES.len() {
            self.ask(index, Ask::Start)?;
        }
        self.until_all_reach_all(start, "all nodes reach each other")?;
        let pairs = NAMES.len() * (NAMES.len() - 1) / 2;
        row("together", start.elapsed(), &format!("until all {pairs} pairs had exchanged packets, from the start"))?;
        // Metrics settle: the better one of two paths is known after some round trips.
        std::thread::sleep(STEADY);
        let before = self.look()?;
        way("path", &before)?;

        say!("\n  The cable between {} and {} loses all packets from now on.\n", NAMES[CUT], NAMES[CUT + 1])?;
        let cut = Instant::now();
        self.cable(Ask::Lose)?;
        let noticed = self.until(cut, "one end of the dead cable notices the loss", |ring| ring.link_is(false))?;
        row("noticed", noticed - cut, "until one end of the cable had given up the other end")?;
        let healed = self.until_all_reach_all(cut, "all nodes reach each other around the dead cable")?;
        row("healed", healed - cut, "until all pairs had exchanged packets again")?;
        std::thread::sleep(STEADY);
        let during = self.look()?;
        way("path", &during)?;

        say!("\n  The cable works again.\n")?;
        let mended = Instant::now();
        self.cable(Ask::Find)?;
        let back = self.until(mended, "the ends of the cable find each other", |ring| ring.link_is(true))?;
        row("found", back - mended, "until both ends were neighbours again")?;
        let there = |table: &Table| path(table, CUT, CUT + 1);
        let same = |ring: &Self| Ok(there(&ring.look()?) == there(&before));
        match self.wait(mended, BACK, same)? {
            Some(at) => {
                row("as before", at - mended, &format!("until {} used its first path again", NAMES[CUT]))?;
            }
            None => say!("  as before                not yet: the protocol does not leave a working path at once")?,
        }
        std::thread::sleep(STEADY / 2);
        let after = self.look()?;
        way("path", &after)?;
        let stages = [
            Stage { title: "before".into(), table: before, dead: false },
            Stage { title: format!("{:.1} s after the cut", (healed - cut).as_secs_f64()), table: during, dead: true },
            Stage { title: "the cable works again".into(), table: after, dead: false },
        ];
        Ok(Picture { start, cut, noticed, healed, mended, end: Instant::now(), stages, logs: Vec::new() })
    }

    /// Ends all nodes, and returns their logs.
    fn end(self) -> Result<Vec<Log>> {
        let (asks, threads): (Vec<_>, Vec<_>) = self.nodes.into_iter().unzip();
        drop(asks);
        let ended = threads.into_iter().map(|thread| thread.join().map_err(|_| anyhow!("a node's thread panicked"))?);
        ended.collect::<Vec<_>>().into_iter().collect()
    }

    /// Asks a node, and waits for the answer.
    fn ask<T>(&self, node: usize, ask: impl FnOnce(oneshot::Sender<T>) -> Ask) -> Result<T> {
        let (answer, answered) = oneshot::channel();
        let gone = || anyhow!("{} has ended", NAMES[node]);
        self.nodes[node].0.send(ask(answer)).map_err(|_| gone())?;
        answered.blocking_recv().map_err(|_| gone())
    }

    fn look(&self) -> Result<Table> {
        let mut table = Table::default();
        for (node, row) in table.iter_mut().enumerate() {
            *row = self.ask(node, Ask::Look)?;
        }
        Ok(table)
    }

    /// Sends a request about the cable to both of its ends.
    fn cable(&self, what: impl Fn(usize, oneshot::Sender<()>) -> Ask) -> Result<()> {
        self.ask(CUT, |done| what(CUT + 1, done))?;
        self.ask(CUT + 1, |done| what(CUT, done))
    }

    /// With `usable`, whether both ends of the cable have each other as neighbours. Otherwise, whether at least one end
    /// does not.
    fn link_is(&self, usable: bool) -> Result<bool> {
        let here = self.ask(CUT, |answer| Ask::Hears(CUT + 1, answer))?;
        let there = self.ask(CUT + 1, |answer| Ask::Hears(CUT, answer))?;
        Ok((here && there) == usable)
    }

    fn until_all_reach_all(&self, since: Instant, what: &str) -> Result<Instant> {
        self.until(since, what, |ring| {
            let mut all = true;
            for node in 0..NAMES.len() {
                all &= ring.ask(node, |answer| Ask::Reaches(since, answer))?;
            }
            Ok(all)
        })
    }

    fn until(&self, since: Instant, what: &str, done: impl Fn(&Self) -> Result<bool>) -> Result<Instant> {
        self.wait(since, PATIENCE, done)?.with_context(|| format!("this did not happen within {PATIENCE:?}: {what}"))
    }

    /// Waits until `done` returns true. Returns the time of that, or `None` after the limit.
    fn wait(&self, since: Instant, limit: Duration, done: impl Fn(&Self) -> Result<bool>) -> Result<Option<Instant>> {
        while !done(self)? {
            if since.elapsed() > limit {
                return Ok(None);
            }
            std::thread::sleep(LOOK);
        }
        Ok(Some(Instant::now()))
    }
}

fn row(name: &str, took: Duration, what: &str) -> io::Result<()> {
    say!("  {name:<13} {:>6.2} s   {what}", took.as_secs_f64())
}

/// Prints the path between the ends of the cable.
fn way(name: &str, table: &Table) -> io::Result<()> {
    let nodes: Vec<_> = path(table, CUT, CUT + 1).into_iter().map(|node| NAMES[node]).collect();
    say!("  {name:<24}{}", nodes.join(" → "))
}

/// Writes the picture to the given path, or into a new file that no other user can have prepared.
fn write(path: Option<&Path>, text: &str) -> Result<PathBuf> {
    if let Some(path) = path {
        fs::write(path, text).with_context(|| format!("cannot write the picture to {}", path.display()))?;
        return Ok(path.to_owned());
    }
    let folder = std::env::temp_dir();
    let file = tempfile::Builder::new().prefix("rustguard-mesh-").suffix(".svg").tempfile_in(&folder);
    let mut file = file.with_context(|| {
        format!("cannot write the picture to {}; choose another place with --picture FILE", folder.display())
    })?;
    file.write_all(text.as_bytes())?;
    Ok(file.keep()?.1)
}
