//! The course of a demonstration: the echo requests of one member to the other, and their ways.

use anyhow::{Result, bail};
use std::{
    fmt::Write as _,
    io,
    time::{Duration, Instant},
};
use tokio::{
    net::UdpSocket,
    time::{Interval, MissedTickBehavior, interval, sleep_until},
};

/// The interval between echo requests.
pub(super) const TICK: Duration = Duration::from_millis(5);
/// The limit for each step of a demonstration. On a quiet machine, a step takes longer than 15 s only if something is
/// broken.
pub(super) const PATIENCE: Duration = Duration::from_secs(60);
/// The columns of the time line.
const COLUMNS: usize = 60;

/// The row of the time line with the requests that had no answer.
const NO_ANSWER: &str = "no answer";

/// An echo request.
#[derive(Clone, Copy, Debug)]
pub(super) struct Sample {
    /// The time of sending.
    pub(super) at: Instant,
    /// The way by which it left, in a word.
    pub(super) way: &'static str,
    /// The time until the answer, or `None` without an answer.
    pub(super) round_trip: Option<Duration>,
}

impl Sample {
    /// The row of the time line that shows it.
    fn row(&self) -> &'static str {
        self.round_trip.map_or(NO_ANSWER, |_| self.way)
    }
}

/// One member's echo requests to the other.
pub(super) struct Course {
    socket: UdpSocket,
    ticks: Interval,
    samples: Vec<Sample>,
}

/// A demonstration whose requests go on while it waits.
pub(super) trait Going {
    /// Handles the next request, or an earlier event. It can be cancelled.
    async fn go_on(&mut self) -> Result<()>;

    /// Goes on until `done` returns true.
    async fn until(&mut self, since: Instant, what: &str, done: impl Fn(&Self) -> bool) -> Result<()> {
        if !self.wait(PATIENCE.saturating_sub(since.elapsed()), done).await? {
            bail!("this did not happen within {PATIENCE:?}: {what}");
        }
        Ok(())
    }

    /// Goes on until `done` returns true, or until the limit. Returns whether `done` has returned true.
    async fn wait(&mut self, limit: Duration, done: impl Fn(&Self) -> bool) -> Result<bool> {
        let limit = tokio::time::Instant::now() + limit;
        while !done(self) {
            tokio::select! {
                biased;
                () = sleep_until(limit) => return Ok(false),
                gone = self.go_on() => gone?,
            }
        }
        Ok(true)
    }
}

impl Course {
    /// Sends through this socket, which is connected to a service of the other member that runs [`answer`].
    pub(super) fn new(socket: UdpSocket) -> Self {
        let mut ticks = interval(TICK);
        ticks.set_missed_tick_behavior(MissedTickBehavior::Skip);
        Self { socket, ticks, samples: Vec::new() }
    }

    /// Sends the next request, which leaves by this way, or takes an answer. It can be cancelled.
    pub(super) async fn step(&mut self, way: &'static str) -> Result<()> {
        let mut buffer = [0; 16];
        tokio::select! {
            biased;
            received = self.socket.recv(&mut buffer) => self.received(&buffer[..received?]),
            _ = self.ticks.tick() => self.send(way),
        }
        Ok(())
    }

    /// The requests so far, in the order in which they were sent.
    pub(super) fn samples(&self) -> &[Sample] {
        &self.samples
    }

    /// Whether a request of this time or later, which left by this way, has an answer.
    pub(super) fn is_answered(&self, since: Instant, way: &str) -> bool {
        let mut sent = self.samples.iter().rev().take_while(|sample| sample.at >= since);
        sent.any(|sample| sample.way == way && sample.round_trip.is_some())
    }

    fn send(&mut self, way: &'static str) {
        let number = self.samples.len() as u64;
        self.samples.push(Sample { at: Instant::now(), way, round_trip: None });
        // A request that cannot be sent has no answer, like one that is lost.
        let _ = self.socket.try_send(&number.to_be_bytes());
    }

    fn received(&mut self, answer: &[u8]) {
        let number = answer.try_into().map(u64::from_be_bytes).ok().and_then(|number| usize::try_from(number).ok());
        if let Some(sample) = number.and_then(|number| self.samples.get_mut(number)) {
            sample.round_trip.get_or_insert(sample.at.elapsed());
        }
    }
}

/// Answers echo requests until the process ends.
pub(super) async fn answer(socket: UdpSocket) -> io::Result<()> {
    let mut buffer = [0; 16];
    loop {
        let (length, from) = socket.recv_from(&mut buffer).await?;
        socket.send_to(&buffer[..length], from).await?;
    }
}

/// The longest time without an answer among requests that were sent between two moments.
pub(super) fn silence(samples: &[Sample], from: Instant, to: Instant) -> Option<Duration> {
    let mut longest = None;
    let mut since = None;
    for sample in samples.iter().filter(|sample| (from..to).contains(&sample.at)) {
        if sample.round_trip.is_none() {
            since.get_or_insert(sample.at);
        } else if let Some(since) = since.take() {
            longest = longest.max(Some(sample.at - since));
        }
    }
    longest
}

/// The median round trip of requests that left by this way between two moments.
pub(super) fn round_trip(samples: &[Sample], way: &str, from: Instant, to: Instant) -> Option<Duration> {
    let wanted = samples.iter().filter(|sample| sample.way == way && (from..to).contains(&sample.at));
    let mut times: Vec<_> = wanted.filter_map(|sample| sample.round_trip).collect();
    times.sort_unstable();
    times.get(times.len() / 2).copied()
}

/// Draws how the requests travelled, over time: a row for each way.
pub(super) fn time_line(samples: &[Sample], ways: &[&str]) -> String {
    let (Some(first), Some(last)) = (samples.first(), samples.last()) else { return String::new() };
    let whole = (last.at - first.at).max(TICK);
    let column = |at: Duration| (at.as_secs_f64() / whole.as_secs_f64() * (COLUMNS - 1) as f64) as usize;
    let mut text = String::new();
    // The answer to the last requests may still be on its way.
    let settled = samples.iter().filter(|sample| sample.round_trip.is_some()).map(|sample| sample.at).max();
    for &name in ways.iter().chain(&[NO_ANSWER]) {
        let mut marks = [' '; COLUMNS];
        for sample in samples.iter().filter(|sample| Some(sample.at) <= settled && sample.row() == name) {
            marks[column(sample.at - first.at)] = '█';
        }
        let marks: String = marks.iter().collect();
        let _ = writeln!(text, "  {name:<13} {}", marks.trim_end());
    }
    let mut scale = String::new();
    for second in 0..=whole.as_secs() {
        let place = column(Duration::from_secs(second));
        let label = format!("{second} s");
        if place >= scale.len() + usize::from(second > 0) && place + label.len() <= COLUMNS {
            let _ = write!(scale, "{:place$}{label}", "", place = place - scale.len());
        }
    }
    let _ = writeln!(text, "  {:<13} {scale}", "");
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    /// `d` and `r` are requests with an answer, directly and through the relay; `.` has none.
    fn samples(states: &str) -> Vec<Sample> {
        let start = Instant::now();
        let answered = |state| (state != '.').then_some(Duration::from_millis(if state == 'd' { 1 } else { 2 }));
        let states = states.chars().enumerate();
        let sample = |(i, state)| Sample {
            at: start + TICK * i as u32,
            way: if state == 'd' { "direct" } else { "relayed" },
            round_trip: answered(state),
        };
        states.map(sample).collect()
    }

    #[test]
    fn silence_is_the_longest_time_that_ended_with_an_answer() {
        let samples = samples("..rrd.d...rr....");
        let between = |from: usize, to: usize| silence(&samples, samples[from].at, samples[to].at);
        assert_eq!(between(0, 15), Some(TICK * 3));
        assert_eq!(between(2, 7), Some(TICK));
        assert_eq!(between(10, 15), None, "it has not ended");
    }

    #[test]
    fn round_trips_are_those_of_one_way() {
        let samples = samples("rrdd..ddr.");
        let all = |way| round_trip(&samples, way, samples[0].at, samples[9].at);
        assert_eq!(all("direct"), Some(Duration::from_millis(1)));
        assert_eq!(all("relayed"), Some(Duration::from_millis(2)));
        assert_eq!(round_trip(&samples, "relayed", samples[2].at, samples[6].at), None);
    }

    #[test]
    fn a_time_line_has_every_state_in_its_row_and_fits() {
        let mut states = "r".repeat(2) + &"d".repeat(400);
        states += &".".repeat(60);
        states += &("r".repeat(300) + &"d".repeat(300) + "...");
        let text = time_line(&samples(&states), &["direct", "relayed"]);
        let rows: Vec<_> = text.lines().map(|line| line.chars().skip(16).collect::<String>()).collect();
        assert!(rows[0].starts_with('█') && rows[1].starts_with('█'), "a short time is seen:\n{text}");
        assert!(rows[0].trim_end().chars().count() == COLUMNS - 1 || rows[0].chars().count() == COLUMNS, "{text}");
        let lost = rows[2].trim_start();
        assert!((2..6).contains(&lost.chars().count()), "only what has not come by the end:\n{text}");
        assert!(rows[3].starts_with("0 s") && rows[3].ends_with("5 s"), "{text}");
        assert!(text.lines().all(|line| line.chars().count() <= 80), "{text}");
        assert_eq!(time_line(&[], &["direct"]), "");
    }
}
