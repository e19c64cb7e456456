//! Which tests run at the same time.
use crate::{
    binaries::{self, Binaries, Binary},
    outcome::Outcome,
};
use std::{
    collections::VecDeque,
    fs::{self, File},
    num::NonZero,
    path::Path,
    process::{Child, Command, ExitStatus, Stdio},
    sync::{Mutex, PoisonError},
    thread,
    time::{Duration, Instant},
};

/// Binaries whose tests mostly wait. Each test is a separate process.
const WAITING: [&str; 2] = ["scenarios", "smoke"];
/// Binaries that only compute, in simulated time: none of their deadlines is real. While others run, they get the
/// remaining processor time ([`Polite`]), and they start in this order.
const COMPUTING: [&str; 8] =
    ["babel-mesh", "core", "corpus", "roster-distribution", "babel", "core-protocol", "enroll-protocol", "roster"];
/// Binaries that load the machine: their tests run one at a time at the end.
const ALONE: [&str; 1] = ["flood"];
/// Binaries that run again with code paths of the cryptography that this processor would not choose: the binaries, the
/// variable, and its values.
const OTHER_PATHS: ([&str; 2], &str, [&str; 2]) =
    (["crypto", "crypto-primitives"], "RUSTGUARD_AEAD", ["avx2", "single"]);
/// The tests of [`WAITING`] that take longest: they start first, because the last test to end decides when the suite
/// ends.
const LONG: [&str; 8] = [
    "smoke::",
    "web::a_browser_does_every_act",
    "hostile_network::a_huge_roster",
    "direct::routers_of_each_kind",
    "servers::each_of_four_servers",
    "serve::killed_while_machines_join",
    "views::the_demonstration",
    "mesh::a_diamond",
];
/// No binary takes this long, even on a busy machine.
const LIMIT: Duration = Duration::from_secs(1_800);
/// The interval at which a process is checked for its end.
const LOOK: Duration = Duration::from_millis(20);

/// One process to run.
#[derive(Clone, Debug)]
pub(crate) struct Job {
    pub(crate) name: String,
    what: What,
}

#[derive(Clone, Debug)]
enum What {
    /// One test of a binary.
    Test(Binary, String),
    /// All tests of a binary, or those whose names contain one of these parts; optionally on another code path of the
    /// cryptography.
    Binary(Binary, Vec<String>, Option<&'static str>),
    /// The examples in the documentation of all crates.
    Docs,
}

/// The processes of a run, by how they share the machine.
#[derive(Default)]
pub(crate) struct Jobs {
    waiting: Vec<Job>,
    computing: Vec<Job>,
    alone: Vec<Job>,
}

impl Jobs {
    pub(crate) fn of(binaries: &Binaries, filters: &[String]) -> Result<Self, String> {
        let mut jobs = Self::default();
        let wanted = |name: &str| filters.is_empty() || filters.iter().any(|filter| name.contains(filter.as_str()));
        if wanted("docs") {
            jobs.waiting.push(Job { name: "docs".to_owned(), what: What::Docs });
        }
        for binary in &binaries.tests {
            let (waiting, alone) = (WAITING.contains(&&*binary.name), ALONE.contains(&&*binary.name));
            if !waiting && !alone {
                let computes = COMPUTING.contains(&&*binary.name);
                let Some(job) = whole(binary, filters) else { continue };
                if OTHER_PATHS.0.contains(&&*binary.name) {
                    jobs.waiting.extend(OTHER_PATHS.2.map(|path| job.on(path)));
                }
                if computes { &mut jobs.computing } else { &mut jobs.waiting }.push(job);
                continue;
            }
            for test in tests(binary)? {
                let name = format!("{}::{test}", binary.name);
                if wanted(&name) {
                    let job = Job { name, what: What::Test(binary.clone(), test) };
                    if alone { &mut jobs.alone } else { &mut jobs.waiting }.push(job);
                }
            }
        }
        let rank = |job: &Job| LONG.iter().position(|part| job.name.contains(part)).unwrap_or(LONG.len());
        // Whole binaries come before single tests, because each takes longer.
        jobs.waiting.sort_by_key(|job| (matches!(job.what, What::Test(..)), rank(job)));
        jobs.computing.sort_by_key(|job| COMPUTING.iter().position(|name| *name == job.name));
        Ok(jobs)
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.names().next().is_none()
    }

    pub(crate) fn names(&self) -> impl Iterator<Item = &str> {
        [&self.waiting, &self.computing, &self.alone].into_iter().flatten().map(|job| job.name.as_str())
    }
}

/// The job of a binary whose tests share a process, unless the filters exclude all of them.
fn whole(binary: &Binary, filters: &[String]) -> Option<Job> {
    let named = |filter: &&String| binary.name.contains(filter.as_str());
    let parts: Vec<String> = match filters.iter().find(named) {
        Some(_) => Vec::new(),
        None => filters
            .iter()
            .filter_map(|filter| filter.strip_prefix(&binary.name)?.strip_prefix("::"))
            .map(str::to_owned)
            .collect(),
    };
    if parts.is_empty() && !filters.is_empty() && !filters.iter().any(|filter| named(&filter)) {
        return None;
    }
    Some(Job { name: binary.name.clone(), what: What::Binary(binary.clone(), parts, None) })
}

/// The tests of a binary. Ignored tests are for people, who run them with `--ignored`.
fn tests(binary: &Binary) -> Result<Vec<String>, String> {
    let list = |arguments: &[&str]| -> Result<Vec<String>, String> {
        let output = Command::new(&binary.path)
            .current_dir(&binary.folder)
            .args(["--list", "--format", "terse"])
            .args(arguments)
            .output();
        let output = output.map_err(|error| format!("{}: {error}", binary.path.display()))?;
        let text = String::from_utf8_lossy(&output.stdout).into_owned();
        Ok(text.lines().filter_map(|line| line.strip_suffix(": test")).map(str::to_owned).collect())
    };
    let ignored = list(&["--ignored"])?;
    Ok(list(&[])?.into_iter().filter(|test| !ignored.contains(test)).collect())
}

/// Runs everything once. Prints what fails as soon as it fails.
pub(crate) fn run(jobs: &Jobs, binaries: &Binaries, scenarios: usize, long: bool) -> Vec<Outcome> {
    let logs = binaries.workspace.join("target/suite");
    // If this fails, the first log fails too.
    let _ = fs::create_dir_all(&logs);
    let outcomes = Mutex::new(Vec::new());
    let queue = |jobs: &[Job]| Mutex::new(VecDeque::from(jobs.to_vec()));
    let (waiting, computing, alone) = (queue(&jobs.waiting), queue(&jobs.computing), queue(&jobs.alone));
    let polite = Mutex::new(Polite::default());
    let work = |queue: &Mutex<VecDeque<Job>>, polite: Option<&Mutex<Polite>>| {
        // The lock must not be held while the job runs.
        let next = || lock(queue).pop_front();
        while let Some(job) = next() {
            let outcome = one(&job, binaries, &logs, polite, long);
            outcome.print();
            lock(&outcomes).push(outcome);
        }
    };
    let processors = thread::available_parallelism().map_or(1, NonZero::get);
    thread::scope(|scope| {
        let waiting: Vec<_> = (0..scenarios).map(|_| scope.spawn(|| work(&waiting, None))).collect();
        for _ in 0..processors {
            scope.spawn(|| work(&computing, Some(&polite)));
        }
        for worker in waiting {
            // The scope reports the panic.
            let _ = worker.join();
        }
        lock(&polite).end();
    });
    work(&alone, None);
    outcomes.into_inner().unwrap_or_else(PoisonError::into_inner)
}

fn lock<T>(mutex: &Mutex<T>) -> std::sync::MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Processes that run only when nobody else wants the processors (SCHED_IDLE), until the waiting tests have ended.
/// After that, they run normally: otherwise a user's program that takes all processors would stop them for ever.
#[derive(Default)]
struct Polite {
    over: bool,
    running: Vec<u32>,
}

impl Polite {
    fn end(&mut self) {
        self.over = true;
        for process in self.running.drain(..) {
            // Without root, this may fail, and the process keeps its policy.
            let command = ["--all-tasks", "--other", "--pid", "0", &process.to_string()];
            let _ = Command::new("chrt").args(command).stdout(Stdio::null()).stderr(Stdio::null()).status();
        }
    }

    fn ended(&mut self, process: u32) {
        self.running.retain(|&running| running != process);
    }
}

fn one(job: &Job, binaries: &Binaries, logs: &Path, polite: Option<&Mutex<Polite>>, long: bool) -> Outcome {
    let started = Instant::now();
    // The lock is held until the process is registered.
    let mut politeness = polite.map(lock);
    let is_polite = politeness.as_ref().is_some_and(|polite| !polite.over);
    let mut command = job.command(binaries, is_polite);
    // `cargo test` also sets this for the tests of `rustguard-cli`. Without it, the laboratory would call cargo.
    if std::env::var_os("RUSTGUARD_BIN").is_none() {
        command.env("RUSTGUARD_BIN", &binaries.program);
    }
    if long {
        command.env("RUSTGUARD_LONG", "1");
    }
    // With one thread, libtest runs tests in the main thread, which does not have the test's name for `SKIPPED`.
    if thread::available_parallelism().map_or(1, NonZero::get) == 1 {
        command.env("RUST_TEST_THREADS", "2");
    }
    // A file, because a pipe would stay open as long as any forgotten descendant runs.
    let log = logs.join(format!("{}.log", job.name.replace("::", "-")));
    let spawned =
        File::create(&log).and_then(|file| command.stdin(Stdio::null()).stdout(file.try_clone()?).stderr(file).spawn());
    if let (Some(polite), Ok(child)) = (&mut politeness, &spawned) {
        polite.running.push(child.id());
    }
    drop(politeness);
    let ended = spawned.and_then(|mut child| {
        let ended = within(&mut child, LIMIT);
        if let Some(polite) = polite {
            lock(polite).ended(child.id());
        }
        ended
    });
    let text = String::from_utf8_lossy(&fs::read(&log).unwrap_or_default()).into_owned();
    let problem = match ended {
        Ok(Some(status)) if status.success() => None,
        Ok(Some(status)) => Some(status.to_string()),
        Ok(None) => Some(format!("not done after {LIMIT:?}")),
        Err(error) => Some(error.to_string()),
    };
    if problem.is_none() {
        // A log that cannot be removed does no harm.
        let _ = fs::remove_file(&log);
    }
    let single = matches!(job.what, What::Test(..));
    Outcome::read(&job.name, single, &text, problem, started.elapsed())
}

impl Job {
    /// The same job on another code path of the cryptography.
    fn on(&self, path: &'static str) -> Self {
        let what = match self.what.clone() {
            What::Binary(binary, parts, _) => What::Binary(binary, parts, Some(path)),
            what => what,
        };
        Self { name: format!("{} ({path})", self.name), what }
    }

    fn command(&self, binaries: &Binaries, polite: bool) -> Command {
        let program = |path: &Path| {
            if !polite {
                return Command::new(path);
            }
            let mut command = Command::new("chrt");
            command.args(["--idle", "0"]).arg(path);
            command
        };
        match &self.what {
            What::Test(binary, test) => {
                let mut command = program(&binary.path);
                command
                    .current_dir(&binary.folder)
                    .args(["--exact", test, "--nocapture"])
                    .env("CARGO_MANIFEST_DIR", &binary.folder);
                command
            }
            What::Binary(binary, parts, path) => {
                let mut command = program(&binary.path);
                command.current_dir(&binary.folder).args(parts).env("CARGO_MANIFEST_DIR", &binary.folder);
                if let Some(path) = path {
                    command.env(OTHER_PATHS.1, path);
                }
                command
            }
            What::Docs => {
                let mut command = binaries::cargo(&binaries.workspace);
                command.args(["test", "--workspace", "--doc", "--profile", &binaries.profile]);
                command
            }
        }
    }
}

fn within(child: &mut Child, limit: Duration) -> std::io::Result<Option<ExitStatus>> {
    let started = Instant::now();
    while started.elapsed() < limit {
        if let Some(status) = child.try_wait()? {
            return Ok(Some(status));
        }
        thread::sleep(LOOK);
    }
    child.kill()?;
    child.wait()?;
    Ok(None)
}

/// Loops that take processor time, as other programs of a user do. They end when this is dropped or when the program
/// ends, also when it is killed.
pub(crate) struct Busy(Vec<Child>);

impl Busy {
    pub(crate) fn start(count: usize) -> Self {
        let spin = || {
            Command::new("sh").args(["-c", "while kill -0 $PPID; do :; done 2>/dev/null"]).stdin(Stdio::null()).spawn()
        };
        Self((0..count).filter_map(|_| spin().inspect_err(|error| println!("no busy loop: {error}")).ok()).collect())
    }
}

impl Drop for Busy {
    fn drop(&mut self) {
        for child in &mut self.0 {
            // The loop runs for ever, so the process still exists.
            let _ = child.kill();
            let _ = child.wait();
        }
    }
}
