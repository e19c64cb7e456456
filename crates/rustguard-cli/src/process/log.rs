//! The log on standard error. A separate thread writes it, because a pipe without a reader or a blocked journal must
//! not stop the tunnel. Lines that do not fit into the queue are lost and counted. The number of lost lines is written
//! before the next line.
//!
//! The standard error of a detached tunnel is a file in `/run`, which is in memory. The file is limited to [`LOG_MAX`]
//! bytes, and one older file of that size is kept.

use rustguard_device::interface::RUN_DIR;
use std::{
    fs::{self, File, OpenOptions},
    io::{self, Write},
    os::{
        fd::AsFd as _,
        unix::fs::{MetadataExt as _, OpenOptionsExt as _},
    },
    path::{Path, PathBuf},
    sync::{
        Arc, OnceLock,
        atomic::{AtomicU64, Ordering},
        mpsc::{self, Receiver, RecvTimeoutError, SyncSender, TrySendError},
    },
    thread,
    time::{Duration, Instant},
};
use tracing_subscriber::{
    EnvFilter,
    filter::LevelFilter,
    fmt::{MakeWriter, writer::BoxMakeWriter},
};

/// The most lines in the queue.
const QUEUE: usize = 1_024;
/// The time for which the end of the process waits for the queue.
const PATIENCE: Duration = Duration::from_secs(1);
/// The limit for the log of a detached tunnel, in bytes. It applies to the current file and to the older one.
pub(crate) const LOG_MAX: u64 = 1 << 20;

/// The queue of this process.
static LINES: OnceLock<Lines> = OnceLock::new();

/// Starts the log. A `tunnel` logs at the level info through the queue, and never waits for a reader. Other commands
/// log warnings, and write them without another thread, because only a process with a single thread can enter a user
/// namespace.
pub(crate) fn init(tunnel: bool) {
    let level = if tunnel { LevelFilter::INFO } else { LevelFilter::WARN };
    let filter = EnvFilter::builder().with_default_directive(level.into()).with_env_var("RUSTGUARD_LOG");
    let writer = if tunnel {
        let sink: Box<dyn Write + Send> = match detached_log() {
            Some(file) => Box::new(file),
            None => Box::new(io::stderr()),
        };
        BoxMakeWriter::new(LINES.get_or_init(|| Lines::start(sink, QUEUE)).clone())
    } else {
        BoxMakeWriter::new(io::stderr)
    };
    let subscriber = tracing_subscriber::fmt()
        .with_env_filter(filter.from_env_lossy())
        .with_writer(writer)
        .with_ansi(io::IsTerminal::is_terminal(&io::stderr()))
        .with_target(false);
    // The journal adds the time itself.
    if stderr_is_journal() { subscriber.without_time().init() } else { subscriber.init() }
}

/// Whether standard error is the journal. systemd sets `JOURNAL_STREAM` to the device and the inode of the journal's
/// socket (systemd.exec(5)). A program that a service starts inherits the variable even if its standard error is
/// another file.
pub(crate) fn stderr_is_journal() -> bool {
    let Ok(journal) = std::env::var("JOURNAL_STREAM") else { return false };
    let Ok(stderr) = io::stderr().as_fd().try_clone_to_owned() else { return false };
    File::from(stderr).metadata().is_ok_and(|stderr| journal == format!("{}:{}", stderr.dev(), stderr.ino()))
}

/// Writes one more line after the queue, and waits until all is written, for at most [`PATIENCE`]. Has to be called
/// before the process ends.
pub(crate) fn finish(last: Option<String>) {
    match (LINES.get(), last) {
        (Some(lines), last) => drop(lines.finish(last, PATIENCE)),
        // An error in writing the last line cannot be reported.
        (None, Some(last)) => drop(writeln!(io::stderr(), "{last}")),
        (None, None) => {}
    }
}

/// The log file of a detached tunnel, if standard error is one.
fn detached_log() -> Option<BoundedFile> {
    let path = fs::read_link("/proc/self/fd/2").ok()?;
    if path.extension()? != "log" || path.parent()? != Path::new(RUN_DIR) {
        return None;
    }
    let file = File::from(io::stderr().as_fd().try_clone_to_owned().ok()?);
    let taken = |file: &File| rustix::stdio::dup2_stderr(file).map_err(io::Error::from);
    Some(BoundedFile { file, path, max: LOG_MAX, taken })
}

/// The sending end of the queue.
#[derive(Clone)]
struct Lines {
    queue: SyncSender<Message>,
    lost: Arc<AtomicU64>,
}

enum Message {
    Line(Vec<u8>),
    /// Reports that everything before it is written.
    Finish(mpsc::Sender<()>),
}

impl Lines {
    fn start(mut sink: impl Write + Send + 'static, room: usize) -> Self {
        let (queue, messages) = mpsc::sync_channel(room);
        let lost = Arc::new(AtomicU64::new(0));
        let lines = Self { queue, lost: Arc::clone(&lost) };
        let write = move || write_all(&messages, &mut sink, &lost);
        if let Err(error) = thread::Builder::new().name("rg-log".to_owned()).spawn(write) {
            let _ =
                writeln!(io::stderr(), "rustguard: cannot start the thread of the log, so nothing is logged: {error}");
        }
        lines
    }

    fn send(&self, line: &[u8]) {
        // The receiving end exists as long as the process.
        if let Err(TrySendError::Full(_) | TrySendError::Disconnected(_)) =
            self.queue.try_send(Message::Line(line.to_vec()))
        {
            self.lost.fetch_add(1, Ordering::Relaxed);
        }
    }

    /// Returns whether all of it was written.
    fn finish(&self, last: Option<String>, patience: Duration) -> bool {
        let until = Instant::now() + patience;
        let (written, done) = mpsc::channel();
        let last = last.map(|last| Message::Line(format!("{last}\n").into_bytes()));
        for mut message in last.into_iter().chain([Message::Finish(written)]) {
            while let Err(TrySendError::Full(back)) = self.queue.try_send(message) {
                if Instant::now() >= until {
                    return false;
                }
                message = back;
                thread::sleep(Duration::from_millis(5));
            }
        }
        !matches!(
            done.recv_timeout(until.saturating_duration_since(Instant::now())),
            Err(RecvTimeoutError::Timeout | RecvTimeoutError::Disconnected)
        )
    }
}

/// The work of the thread.
fn write_all(messages: &Receiver<Message>, sink: &mut impl Write, lost: &AtomicU64) {
    while let Ok(message) = messages.recv() {
        let lost = lost.swap(0, Ordering::Relaxed);
        // An error in writing the log cannot be reported.
        if lost > 0 {
            let text = format!("({lost} lines of the log are lost here: standard error was not read in time)\n");
            let _ = sink.write_all(text.as_bytes());
        }
        match message {
            Message::Line(line) => drop(sink.write_all(&line)),
            Message::Finish(written) => {
                let _ = sink.flush();
                let _ = written.send(());
            }
        }
    }
}

impl Write for &Lines {
    /// The subscriber writes one whole line with each call.
    fn write(&mut self, line: &[u8]) -> io::Result<usize> {
        self.send(line);
        Ok(line.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

impl<'a> MakeWriter<'a> for Lines {
    type Writer = &'a Self;

    fn make_writer(&'a self) -> Self::Writer {
        self
    }
}

/// A file that is renamed when it is full, and replaced by a new one.
struct BoundedFile {
    file: File,
    path: PathBuf,
    max: u64,
    /// Called with a new file, to make it standard error, because panics and hooks write there.
    taken: fn(&File) -> io::Result<()>,
}

/// The path of the older file.
pub(crate) fn older(log: &Path) -> PathBuf {
    log.with_extension("log.old")
}

impl BoundedFile {
    fn put_aside(&mut self) -> io::Result<()> {
        // At the end of the tunnel the file is removed while this process still writes to it.
        let ours = self.file.metadata()?.ino();
        if fs::metadata(&self.path)?.ino() != ours {
            return Err(io::ErrorKind::NotFound.into());
        }
        fs::rename(&self.path, older(&self.path))?;
        let new = OpenOptions::new().create_new(true).append(true).mode(0o600).open(&self.path)?;
        (self.taken)(&new)?;
        self.file = new;
        Ok(())
    }
}

impl Write for BoundedFile {
    fn write(&mut self, line: &[u8]) -> io::Result<usize> {
        // The length comes from the file system, because hooks write to the file, too.
        if self.file.metadata()?.len() + line.len() as u64 > self.max && self.put_aside().is_err() {
            self.file.set_len(0)?;
        }
        self.file.write(line)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.file.flush()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::PermissionsExt as _;

    const MINUTE: Duration = Duration::from_secs(60);

    /// Takes lines only on request, like a pipe with a slow reader.
    struct Stalled {
        begun: mpsc::Sender<()>,
        go: Receiver<()>,
        taken: mpsc::Sender<String>,
    }

    impl Write for Stalled {
        fn write(&mut self, line: &[u8]) -> io::Result<usize> {
            self.begun.send(()).map_err(io::Error::other)?;
            self.go.recv().map_err(io::Error::other)?;
            self.taken.send(String::from_utf8_lossy(line).into_owned()).map_err(io::Error::other)?;
            Ok(line.len())
        }

        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    #[test]
    fn nobody_waits_for_a_reader_and_what_is_lost_is_counted() {
        let (go, wait) = mpsc::channel();
        let (taken, read) = mpsc::channel();
        let (begun, stalled) = mpsc::channel();
        let lines = Lines::start(Stalled { begun, go: wait, taken }, 4);
        // `send` returns although nothing is read. The writer has one line, and four lines wait.
        lines.send(b"line 0\n");
        stalled.recv_timeout(MINUTE).unwrap();
        for n in 1..100 {
            lines.send(format!("line {n}\n").as_bytes());
        }
        assert!(!lines.finish(Some("the end".to_owned()), Duration::ZERO), "nor for the end");
        // The reader continues.
        for _ in 0..6 {
            go.send(()).unwrap();
        }
        let texts: Vec<_> = (0..6).map(|_| read.recv_timeout(MINUTE).unwrap()).collect();
        assert_eq!(texts[0], "line 0\n");
        assert!(texts[1].starts_with("(95 lines"), "{texts:?}");
        assert_eq!(texts[2..], ["line 1\n", "line 2\n", "line 3\n", "line 4\n"]);
    }

    #[test]
    fn the_end_waits_for_what_was_said_before() {
        let (go, wait) = mpsc::channel();
        let (taken, read) = mpsc::channel();
        let (begun, _stalled) = mpsc::channel();
        let lines = Lines::start(Stalled { begun, go: wait, taken }, 4);
        for _ in 0..3 {
            go.send(()).unwrap();
        }
        lines.send(b"one\n");
        (&lines).write_all(b"two\n").unwrap();
        assert!(lines.finish(Some("three".to_owned()), MINUTE));
        assert_eq!(read.try_iter().collect::<Vec<_>>(), ["one\n", "two\n", "three\n"]);
    }

    #[test]
    fn a_file_and_the_one_before_it_are_bounded_and_private() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("wg0.log");
        let file = OpenOptions::new().create(true).append(true).mode(0o600).open(&path).unwrap();
        let mut log = BoundedFile { file, path: path.clone(), max: 10_000, taken: |_| Ok(()) };
        let sizes = || [&path, &older(&path)].map(|path| fs::metadata(path).map_or(0, |file| file.len()));
        for n in 0..1_000 {
            writeln!(log, "{n:099}").unwrap();
            assert!(sizes().iter().all(|&size| size <= 10_000), "{:?}", sizes());
        }
        assert_eq!(sizes(), [10_000, 10_000]);
        assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 2);
        for path in [&path, &older(&path)] {
            assert_eq!(fs::metadata(path).unwrap().permissions().mode() & 0o777, 0o600);
        }
        assert!(fs::read_to_string(&path).unwrap().ends_with("999\n"));
        // After the end of the tunnel the file is removed, and it must not come back.
        fs::remove_file(&path).unwrap();
        for _ in 0..200 {
            writeln!(log, "{:099}", 0).unwrap();
        }
        assert!(!path.exists() && log.file.metadata().unwrap().len() <= 10_000);
    }
}
