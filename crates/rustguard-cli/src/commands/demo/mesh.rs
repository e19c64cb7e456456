//! `rustguard demo mesh`: five nodes in a ring, all of which send to all others; one cable loses everything for a while, and
//! nobody is told.
//!
//! As in the other demonstration a thread per node lives in a network namespace of its own, with the device that `up` runs.

mod node;
mod ring;
mod timeline;

use super::{become_privileged, secret};
use anyhow::{Context as _, Result, anyhow, bail};
use node::{Ask, Node};
use ring::{CUT, Log, NAMES, Table, path};
use rustguard_crypto::x25519::{PublicKey, StaticSecret};
use std::{
    fs,
    io::Write as _,
    path::{Path, PathBuf},
    thread::JoinHandle,
    time::{Duration, Instant},
};
use timeline::{Picture, Stage};
use tokio::sync::{mpsc, oneshot};

/// How long everything is shown to work, before and after.
const STEADY: Duration = Duration::from_millis(2_000);
/// Nothing in the demo takes this long unless something is broken.
const PATIENCE: Duration = Duration::from_secs(10);
/// How long the way that was there first is waited for: routes do not change back in a hurry.
const BACK: Duration = Duration::from_secs(5);
/// How often nodes are asked how far they are.
const LOOK: Duration = Duration::from_millis(20);

/// Runs the demo, prints what happened, and draws it.
pub(crate) fn run(picture: Option<&Path>) -> Result<()> {
    // Told now rather than after ten seconds.
    if let Some(folder) =
        picture.and_then(Path::parent).filter(|folder| !folder.as_os_str().is_empty() && !folder.is_dir())
    {
        bail!("cannot write the picture: there is no folder {}", folder.display());
    }
    let privileged = become_privileged()?;
    println!(
        "Five nodes in a ring, each in a network namespace of its own{}:\n\n    {} ── ({})\n",
        if privileged { "" } else { " (inside a user namespace: no root needed)" },
        NAMES.join(" ── "),
        NAMES[0],
    );
    let mut ring = Ring::start();
    // The thread's own error is the cause of whatever was waited for in vain.
    let shown = ring.show();
    let logs = ring.end()?;
    let picture_of = Picture { logs, ..shown? };
    let path = write(picture, &picture_of.draw())?;
    println!("\nThe picture is in {}. Nothing else is left behind.", path.display());
    println!(
        "Next: `Routing = babel` in a configuration file of your own, then `rustguard routes`, `trace` and `map`."
    );
    Ok(())
}

/// The nodes, running.
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

    /// What is to be seen, in the order it happens.
    fn show(&mut self) -> Result<Picture> {
        for (index, _) in NAMES.iter().enumerate() {
            let next = self.ask((index + 1) % NAMES.len(), Ask::Namespace)?;
            self.ask(index, |done| Ask::Lay(next, done))?;
        }
        let start = Instant::now();
        for index in 0..NAMES.len() {
            self.ask(index, Ask::Start)?;
        }
        self.until_all_reach_all(start, "each node reaches each other one")?;
        let pairs = NAMES.len() * (NAMES.len() - 1) / 2;
        row("together", start.elapsed(), &format!("from the start until each reached each other: {pairs} pairs"));
        // Metrics settle: which of two ways is the better one is known after some round trips.
        std::thread::sleep(STEADY);
        let before = self.look()?;
        way("the way", &before);

        println!("\n  The cable between {} and {} loses everything from now on.\n", NAMES[CUT], NAMES[CUT + 1]);
        let cut = Instant::now();
        self.cable(Ask::Lose)?;
        let noticed = self.until(cut, "an end of the dead cable notices", |ring| ring.link_is(false))?;
        row("noticed", noticed - cut, "until the first end of the cable had given the other up");
        let healed = self.until_all_reach_all(cut, "all nodes reach each other around the dead cable")?;
        row("healed", healed - cut, "until every pair had exchanged packets again");
        std::thread::sleep(STEADY);
        let during = self.look()?;
        way("the way", &during);

        println!("\n  The cable works again.\n");
        let mended = Instant::now();
        self.cable(Ask::Find)?;
        let back = self.until(mended, "the ends of the cable find each other", |ring| ring.link_is(true))?;
        row("found", back - mended, "until both ends were neighbours again");
        let there = |table: &Table| path(table, CUT, CUT + 1);
        let same = |ring: &Self| Ok(there(&ring.look()?) == there(&before));
        match self.wait(mended, BACK, same)? {
            Some(at) => {
                row("as before", at - mended, &format!("until {} took the way of the beginning again", NAMES[CUT]));
            }
            None => println!("  as before                not yet: a way that works is not left in a hurry"),
        }
        std::thread::sleep(STEADY / 2);
        let after = self.look()?;
        way("the way", &after);
        let stages = [
            Stage { title: "before".into(), table: before, dead: false },
            Stage { title: format!("{:.1} s after the cut", (healed - cut).as_secs_f64()), table: during, dead: true },
            Stage { title: "the cable works again".into(), table: after, dead: false },
        ];
        Ok(Picture { start, cut, noticed, healed, mended, end: Instant::now(), stages, logs: Vec::new() })
    }

    /// Ends all nodes, and returns what they noted.
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

    /// Does something to both ends of the cable.
    fn cable(&self, what: impl Fn(usize, oneshot::Sender<()>) -> Ask) -> Result<()> {
        self.ask(CUT, |done| what(CUT + 1, done))?;
        self.ask(CUT + 1, |done| what(CUT, done))
    }

    /// Whether the cable's ends are neighbours: both, or with false, not both.
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
        self.wait(since, PATIENCE, done)?.with_context(|| format!("not within {PATIENCE:?}: {what}"))
    }

    /// When it was done, if within the limit.
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

fn row(name: &str, took: Duration, what: &str) {
    println!("  {name:<13} {:>6.2} s   {what}", took.as_secs_f64());
}

/// The way between the ends of the cable.
fn way(name: &str, table: &Table) {
    let nodes: Vec<_> = path(table, CUT, CUT + 1).into_iter().map(|node| NAMES[node]).collect();
    println!("  {name:<24}{}", nodes.join(" → "));
}

/// Writes the picture where it was wished, or into a new file that nobody else had a hand in.
fn write(path: Option<&Path>, text: &str) -> Result<PathBuf> {
    if let Some(path) = path {
        fs::write(path, text).with_context(|| format!("cannot write the picture to {}", path.display()))?;
        return Ok(path.to_owned());
    }
    let folder = std::env::temp_dir();
    let file = tempfile::Builder::new().prefix("rustguard-mesh-").suffix(".svg").tempfile_in(&folder);
    let mut file = file.with_context(|| {
        format!("cannot write the picture to {}; --picture FILE puts it elsewhere", folder.display())
    })?;
    file.write_all(text.as_bytes())?;
    Ok(file.keep()?.1)
}
