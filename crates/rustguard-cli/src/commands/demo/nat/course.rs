//! What happened during the demonstration: the echo requests of one member to the other, and how they travelled.

use std::{
    fmt::Write as _,
    time::{Duration, Instant},
};

/// The interval between echo requests.
pub(super) const TICK: Duration = Duration::from_millis(5);
/// The columns of the time line.
const COLUMNS: usize = 60;

/// An echo request.
#[derive(Clone, Copy, Debug)]
pub(super) struct Sample {
    /// The time of sending.
    pub(super) at: Instant,
    /// Whether it left directly, not through the relay.
    pub(super) direct: bool,
    /// The time until the answer, or `None` without an answer.
    pub(super) round_trip: Option<Duration>,
}

impl Sample {
    /// The row of the time line that shows it.
    fn row(&self) -> &'static str {
        match self.round_trip {
            None => "no answer",
            Some(_) if self.direct => "direct",
            Some(_) => "relayed",
        }
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

/// The median round trip of requests that left directly, or not, between two moments.
pub(super) fn round_trip(samples: &[Sample], direct: bool, from: Instant, to: Instant) -> Option<Duration> {
    let wanted = samples.iter().filter(|sample| sample.direct == direct && (from..to).contains(&sample.at));
    let mut times: Vec<_> = wanted.filter_map(|sample| sample.round_trip).collect();
    times.sort_unstable();
    times.get(times.len() / 2).copied()
}

/// Draws how the requests travelled, over time.
pub(super) fn time_line(samples: &[Sample]) -> String {
    let (Some(first), Some(last)) = (samples.first(), samples.last()) else { return String::new() };
    let whole = (last.at - first.at).max(TICK);
    let column = |at: Duration| (at.as_secs_f64() / whole.as_secs_f64() * (COLUMNS - 1) as f64) as usize;
    let mut text = String::new();
    // The answer to the last requests may still be on its way.
    let settled = samples.iter().filter(|sample| sample.round_trip.is_some()).map(|sample| sample.at).max();
    for name in ["direct", "relayed", "no answer"] {
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
        let sample =
            |(i, state)| Sample { at: start + TICK * i as u32, direct: state == 'd', round_trip: answered(state) };
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
        let all = |direct| round_trip(&samples, direct, samples[0].at, samples[9].at);
        assert_eq!(all(true), Some(Duration::from_millis(1)));
        assert_eq!(all(false), Some(Duration::from_millis(2)));
        assert_eq!(round_trip(&samples, false, samples[2].at, samples[6].at), None);
    }

    #[test]
    fn a_time_line_has_every_state_in_its_row_and_fits() {
        let mut states = "r".repeat(2) + &"d".repeat(400);
        states += &".".repeat(60);
        states += &("r".repeat(300) + &"d".repeat(300) + "...");
        let text = time_line(&samples(&states));
        let rows: Vec<_> = text.lines().map(|line| line.chars().skip(16).collect::<String>()).collect();
        assert!(rows[0].starts_with('█') && rows[1].starts_with('█'), "a short time is seen:\n{text}");
        assert!(rows[0].trim_end().chars().count() == COLUMNS - 1 || rows[0].chars().count() == COLUMNS, "{text}");
        let lost = rows[2].trim_start();
        assert!((2..6).contains(&lost.chars().count()), "only what has not come by the end:\n{text}");
        assert!(rows[3].starts_with("0 s") && rows[3].ends_with("5 s"), "{text}");
        assert!(text.lines().all(|line| line.chars().count() <= 80), "{text}");
        assert_eq!(time_line(&[]), "");
    }
}
