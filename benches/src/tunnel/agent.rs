//! Traffic inside a namespace. Each `Agent` is another process of this program, with one job in one node.
//!
//! An environment variable contains the job. A line of the output contains the result. If the program is a test, there
//! is other output as well.

use anyhow::{Context as _, Result, bail, ensure};
use rustguard_tests::{Flood, Node};
use socket2::{Domain, Protocol, Socket, Type};
use std::{
    env,
    io::{BufRead as _, BufReader, ErrorKind, Read as _, Write as _},
    marker::PhantomData,
    net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, TcpListener, TcpStream, UdpSocket},
    process::{Child, ChildStdout, Command, Stdio},
    thread,
    time::{Duration, Instant, SystemTime},
};

const JOB: &str = "RUSTGUARD_BENCH_AGENT";
const PORT: u16 = 5_201;
/// Bytes per write to a TCP stream, and read from one.
const CHUNK: usize = 128 << 10;
/// The time that a job may take beyond its own duration. After it, the agent ends.
const PATIENCE: Duration = Duration::from_secs(30);
/// After this time without a datagram, a receiver assumes the end.
const SILENCE: Duration = Duration::from_millis(300);
/// The length of the ICMP data, as in ping.
const PING_DATA: usize = 56;

/// A process with a job whose result is a `T`. Dropping it kills the process.
pub(crate) struct Agent<T> {
    job: String,
    child: Child,
    output: BufReader<ChildStdout>,
    /// The rest of its line `agent ready`.
    greeting: String,
    result: PhantomData<T>,
}

/// Round trips.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Ping {
    /// The median.
    pub(crate) p50: Duration,
    /// The 99th percentile.
    pub(crate) p99: Duration,
}

/// The time since 1970, which two processes can compare.
pub(crate) fn unix_time() -> Duration {
    SystemTime::UNIX_EPOCH.elapsed().unwrap_or_default()
}

impl Agent<(u64, Duration)> {
    /// Accepts a connection and reads it to its end. The result is the number of bytes, and the time. The agent listens
    /// when this function returns.
    pub(crate) fn tcp_sink(node: &Node, at: IpAddr) -> Result<Self> {
        Self::start(node, &format!("tcp-sink {at}"))
    }

    /// Counts datagrams until their end. The result is their number, and the time from the first to the last.
    pub(crate) fn udp_sink(node: &Node, at: IpAddr) -> Result<Self> {
        Self::start(node, &format!("udp-sink {at}"))
    }
}

impl Agent<u64> {
    /// Writes to a connection for `time`. The result is the number of bytes.
    pub(crate) fn tcp_source(node: &Node, to: IpAddr, time: Duration) -> Result<Self> {
        Self::start(node, &format!("tcp-source {to} {}", time.as_nanos()))
    }

    /// Sends datagrams of `size` bytes for `time`, at `rate` per second or as fast as possible. The result is their
    /// number.
    pub(crate) fn udp_source(node: &Node, to: IpAddr, size: usize, rate: Option<u64>, time: Duration) -> Result<Self> {
        Self::start(node, &format!("udp-source {to} {} {size} {}", time.as_nanos(), rate.unwrap_or(0)))
    }
}

impl Agent<u64> {
    /// Floods. The result is the number of datagrams.
    pub(crate) fn flood(node: &Node, flood: &Flood) -> Result<Self> {
        Self::start(node, &format!("flood {flood}"))
    }
}

impl Agent<Ping> {
    /// Sends `count` echo requests. Each is sent after the reply to the previous one, and at least `interval` after
    /// that request.
    pub(crate) fn ping(node: &Node, to: IpAddr, count: u32, interval: Duration) -> Result<Self> {
        Self::start(node, &format!("ping {to} {count} {}", interval.as_nanos()))
    }
}

impl Agent<Duration> {
    /// Sends an echo request every millisecond until one is answered. The result is the time of the answer since 1970.
    /// The agent has begun when this function returns.
    pub(crate) fn first_ping(node: &Node, to: IpAddr) -> Result<Self> {
        Self::start(node, &format!("first-ping {to}"))
    }
}

impl<T: FromNumbers> Agent<T> {
    fn start(node: &Node, job: &str) -> Result<Self> {
        // In the namespaces, the arguments of a test are `--exact NAME`, so no other test runs beside the job. Without
        // this check, a test that does not begin with `ran_as_agent` would start itself endlessly.
        ensure!(
            env::var_os(JOB).is_none(),
            "an agent starts no agents: its test or benchmark begins with ran_as_agent()"
        );
        let mut command: Command = node.command(env::current_exe()?);
        Self::of(command.args(env::args_os().skip(1)).env(JOB, job), job)
    }

    /// Starts another program that uses the agents' output lines, and waits until it is ready.
    pub(crate) fn of(command: &mut Command, job: &str) -> Result<Self> {
        let mut child =
            command.stdin(Stdio::null()).stdout(Stdio::piped()).spawn().with_context(|| format!("start {job}"))?;
        let output = BufReader::new(child.stdout.take().context("a pipe from the agent")?);
        let mut agent = Self { job: job.to_owned(), child, output, greeting: String::new(), result: PhantomData };
        agent.greeting = agent.line("ready")?.trim().to_owned();
        Ok(agent)
    }

    /// The rest of its line `agent ready`.
    pub(crate) fn greeting(&self) -> &str {
        &self.greeting
    }

    /// Waits for the end of the job, and returns its result.
    pub(crate) fn result(mut self) -> Result<T> {
        let numbers: Vec<u64> = self.line("result")?.split_whitespace().map(str::parse).collect::<Result<_, _>>()?;
        T::from_numbers(&numbers).context("an agent's result with too few numbers")
    }

    /// The rest of the next line that contains `agent WORD`. The agent's time limit also limits this wait.
    fn line(&mut self, word: &str) -> Result<String> {
        let mut line = String::new();
        while self.output.read_line(&mut line)? > 0 {
            // libtest ends no line before it runs a test.
            if let Some((_, rest)) = line.split_once("agent ") {
                let rest = rest.trim_end();
                return rest.strip_prefix(word).map(str::to_owned).with_context(|| format!("{}: {rest}", self.job));
            }
            line.clear();
        }
        bail!("{}: ended without a word", self.job)
    }
}

impl<T> Drop for Agent<T> {
    fn drop(&mut self) {
        // Both calls fail only if the process has ended already.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// The result of a job, from the numbers of the agent's line.
pub(crate) trait FromNumbers: Sized {
    fn from_numbers(numbers: &[u64]) -> Option<Self>;
}

impl FromNumbers for u64 {
    fn from_numbers(numbers: &[u64]) -> Option<Self> {
        numbers.first().copied()
    }
}

impl FromNumbers for Vec<u64> {
    fn from_numbers(numbers: &[u64]) -> Option<Self> {
        Some(numbers.to_vec())
    }
}

impl FromNumbers for Duration {
    fn from_numbers(numbers: &[u64]) -> Option<Self> {
        numbers.first().copied().map(Self::from_nanos)
    }
}

impl FromNumbers for (u64, Duration) {
    fn from_numbers(numbers: &[u64]) -> Option<Self> {
        let &[count, nanos] = numbers else { return None };
        Some((count, Duration::from_nanos(nanos)))
    }
}

impl FromNumbers for Ping {
    fn from_numbers(numbers: &[u64]) -> Option<Self> {
        let &[p50, p99] = numbers else { return None };
        Some(Self { p50: Duration::from_nanos(p50), p99: Duration::from_nanos(p99) })
    }
}

/// Does the job of this process, if it was started as an agent. Returns whether it was; then the caller has nothing
/// else to do.
pub fn ran_as_agent() -> bool {
    let Ok(job) = env::var(JOB) else { return false };
    let time = job.split(' ').nth(2).and_then(|nanos| nanos.parse().ok()).map_or(Duration::ZERO, Duration::from_nanos);
    thread::spawn(move || {
        thread::sleep(PATIENCE + time);
        say("gave up");
        std::process::exit(1);
    });
    match work(&job) {
        Ok(numbers) => {
            let numbers: Vec<_> = numbers.iter().map(u64::to_string).collect();
            say(&format!("result {}", numbers.join(" ")));
        }
        Err(error) => say(&format!("failed: {error:#}")),
    }
    true
}

fn say(line: &str) {
    // An error means that the parent has ended.
    let _ = writeln!(std::io::stdout(), "agent {line}");
}

fn work(job: &str) -> Result<Vec<u64>> {
    if let Some(flood) = job.strip_prefix("flood ") {
        let flood = Flood::from_words(flood.split(' '))?;
        say("ready");
        return Ok(vec![flood.run()?]);
    }
    let mut words = job.split(' ');
    let (kind, address) = (words.next().unwrap_or_default(), words.next().context("an address")?.parse()?);
    let numbers: Vec<u64> = words.map(str::parse).collect::<Result<_, _>>()?;
    let at = SocketAddr::new(address, PORT);
    match (kind, &*numbers) {
        ("tcp-sink", []) => tcp_sink(at),
        ("tcp-source", &[nanos]) => tcp_source(at, Duration::from_nanos(nanos)),
        ("udp-sink", []) => udp_sink(at),
        ("udp-source", &[nanos, size, rate]) => udp_source(at, Duration::from_nanos(nanos), size.try_into()?, rate),
        ("ping", &[count, nanos]) => ping(address, count, Duration::from_nanos(nanos)),
        ("first-ping", []) => first_ping(address),
        _ => bail!("not a job"),
    }
}

fn tcp_sink(at: SocketAddr) -> Result<Vec<u64>> {
    let listener = TcpListener::bind(at)?;
    say("ready");
    let (mut stream, _) = listener.accept()?;
    let started = Instant::now();
    let (mut buffer, mut bytes) = (vec![0; CHUNK], 0);
    loop {
        match stream.read(&mut buffer)? {
            0 => return Ok(vec![bytes, nanos(started.elapsed())]),
            n => bytes += n as u64,
        }
    }
}

fn tcp_source(to: SocketAddr, time: Duration) -> Result<Vec<u64>> {
    let mut stream = TcpStream::connect_timeout(&to, PATIENCE)?;
    say("ready");
    let (started, chunk, mut bytes) = (Instant::now(), vec![0x5a; CHUNK], 0);
    while started.elapsed() < time {
        bytes += stream.write(&chunk)? as u64;
    }
    Ok(vec![bytes])
}

fn udp_sink(at: SocketAddr) -> Result<Vec<u64>> {
    let socket = Socket::new(Domain::for_address(at), Type::DGRAM, Some(Protocol::UDP))?;
    // The buffer is as large as the system permits, so that all datagrams from the tunnel are counted.
    let _ = socket.set_recv_buffer_size(4 << 20);
    socket.bind(&at.into())?;
    let socket = UdpSocket::from(socket);
    say("ready");
    let mut buffer = [0; 2048];
    socket.recv(&mut buffer)?;
    let started = Instant::now();
    let (mut count, mut last) = (1, started);
    socket.set_read_timeout(Some(SILENCE))?;
    loop {
        match socket.recv(&mut buffer) {
            Ok(_) => (count, last) = (count + 1, Instant::now()),
            Err(error) if error.kind() == ErrorKind::WouldBlock => return Ok(vec![count, nanos(last - started)]),
            Err(error) => return Err(error.into()),
        }
    }
}

fn udp_source(to: SocketAddr, time: Duration, size: usize, rate: u64) -> Result<Vec<u64>> {
    let socket = UdpSocket::bind(if to.is_ipv4() {
        SocketAddr::from((Ipv4Addr::UNSPECIFIED, 0))
    } else {
        (Ipv6Addr::UNSPECIFIED, 0).into()
    })?;
    socket.connect(to)?;
    say("ready");
    let (started, datagram, mut sent) = (Instant::now(), vec![0x5a; size], 0);
    loop {
        let elapsed = started.elapsed();
        if elapsed >= time {
            return Ok(vec![sent]);
        }
        if rate > 0 && sent >= u64::try_from(elapsed.as_nanos() * u128::from(rate) / 1_000_000_000)? {
            // The next few are sent at once. A timer for each would use a core that the daemons need.
            thread::sleep(Duration::from_micros(500));
            continue;
        }
        match socket.send(&datagram) {
            Ok(_) => sent += 1,
            // A flood may fill a queue of the kernel.
            Err(error) if matches!(error.raw_os_error(), Some(libc::ENOBUFS)) => {}
            Err(error) => return Err(error.into()),
        }
    }
}

fn ping(to: IpAddr, count: u64, interval: Duration) -> Result<Vec<u64>> {
    let mut echo = Echo::new(to)?;
    echo.socket.set_read_timeout(Some(Duration::from_secs(1)))?;
    say("ready");
    let mut times = Vec::new();
    for _ in 0..count {
        let sent = Instant::now();
        echo.request()?;
        if echo.reply()? {
            times.push(nanos(sent.elapsed()));
        }
        thread::sleep(interval.saturating_sub(sent.elapsed()));
    }
    ensure!(times.len() as u64 * 10 >= count * 9, "{} of {count} echo requests answered", times.len());
    times.sort_unstable();
    let quantile = |percent: usize| times[(times.len() * percent / 100).min(times.len() - 1)];
    Ok(vec![quantile(50), quantile(99)])
}

fn first_ping(to: IpAddr) -> Result<Vec<u64>> {
    const LOOKS: u32 = 5;
    let mut echo = Echo::new(to)?;
    echo.socket.set_nonblocking(true)?;
    say("ready");
    loop {
        // Sending may fail until the tunnel is up.
        let _ = echo.request();
        for _ in 0..LOOKS {
            if matches!(echo.reply(), Ok(true)) {
                return Ok(vec![nanos(unix_time())]);
            }
            thread::sleep(Duration::from_millis(1) / LOOKS);
        }
    }
}

/// Echo requests by a ping socket (`net.ipv4.ping_group_range`). The kernel sets the identifier and the checksum, and
/// delivers only the replies to this socket.
pub(crate) struct Echo {
    socket: UdpSocket,
    to: SocketAddr,
    sequence: u16,
}

impl Echo {
    pub(crate) fn new(to: IpAddr) -> Result<Self> {
        let to = SocketAddr::new(to, 0);
        let protocol = if to.is_ipv4() { Protocol::ICMPV4 } else { Protocol::ICMPV6 };
        let socket = Socket::new(Domain::for_address(to), Type::DGRAM, Some(protocol))?;
        Ok(Self { socket: socket.into(), to, sequence: 0 })
    }

    /// Sends the next request.
    pub(crate) fn request(&mut self) -> std::io::Result<usize> {
        self.sequence = self.sequence.wrapping_add(1);
        let mut message = [0; 8 + PING_DATA];
        message[0] = if self.to.is_ipv4() { 8 } else { 128 };
        message[6..8].copy_from_slice(&self.sequence.to_be_bytes());
        self.socket.send_to(&message, self.to)
    }

    /// The number of the last request.
    pub(crate) fn sequence(&self) -> u16 {
        self.sequence
    }

    /// Waits for a reply, and returns the number of its request. `None` if there is none within `limit`, which must not
    /// be zero.
    pub(crate) fn answered(&mut self, limit: Duration) -> std::io::Result<Option<u16>> {
        self.socket.set_read_timeout(Some(limit))?;
        self.next_reply()
    }

    /// Whether a reply to the last request arrived in time. Replies to older requests are ignored.
    fn reply(&mut self) -> std::io::Result<bool> {
        loop {
            match self.next_reply()? {
                Some(sequence) if sequence == self.sequence => return Ok(true),
                Some(_) => {}
                None => return Ok(false),
            }
        }
    }

    /// The number in the next reply. `None` if there is none in time.
    fn next_reply(&mut self) -> std::io::Result<Option<u16>> {
        let mut message = [0; 8 + PING_DATA];
        loop {
            match self.socket.recv(&mut message) {
                Ok(n) if n >= 8 => return Ok(Some(u16::from_be_bytes([message[6], message[7]]))),
                Ok(_) => {}
                Err(error) if error.kind() == ErrorKind::WouldBlock => return Ok(None),
                Err(error) => return Err(error),
            }
        }
    }
}

fn nanos(time: Duration) -> u64 {
    u64::try_from(time.as_nanos()).unwrap_or(u64::MAX)
}
