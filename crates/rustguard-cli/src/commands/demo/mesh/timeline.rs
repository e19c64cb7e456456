//! The picture of `demo mesh`: the ring at three moments, and below it the reachability of each pair over time.

use super::ring::{CUT, Log, NAMES, Sample, TICK, Table, path};
use crate::output::svg::Svg;
use std::{
    f64::consts::TAU,
    time::{Duration, Instant},
};

// Lengths in pixels.
const WIDTH: f64 = 980.0;
const RING: f64 = 92.0;
const RINGS: f64 = 200.0;
const LEFT: f64 = 120.0;
const RIGHT: f64 = 110.0;
const TOP: f64 = 444.0;
const ROW: f64 = 26.0;

/// The course of the demonstration.
pub(super) struct Picture {
    /// When the nodes were started.
    pub(super) start: Instant,
    /// When the cable failed.
    pub(super) cut: Instant,
    /// When one end of the cable had given up the other end.
    pub(super) noticed: Instant,
    /// When every pair had exchanged packets again.
    pub(super) healed: Instant,
    /// When the cable worked again.
    pub(super) mended: Instant,
    /// The end of the demonstration.
    pub(super) end: Instant,
    /// The ring at three moments.
    pub(super) stages: [Stage; 3],
    /// The log of each node.
    pub(super) logs: Vec<Log>,
}

/// The ring at one moment.
pub(super) struct Stage {
    /// The name of the moment.
    pub(super) title: String,
    /// The next hops at this moment.
    pub(super) table: Table,
    /// Whether the cable is dead.
    pub(super) dead: bool,
}

/// The reachability of a pair during some time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    Answered,
    Late,
    Lost,
    /// No request has been answered yet.
    Waiting,
}

/// A time during which the state did not change.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Span {
    state: State,
    from: Instant,
    to: Instant,
}

impl Picture {
    /// The whole file.
    pub(super) fn draw(&self) -> String {
        let mut svg = Svg::default();
        let title = format!("A ring of five nodes; the cable between {} and {} fails", NAMES[CUT], NAMES[CUT + 1]);
        svg.text((28.0, 34.0), "title", &title);
        for (index, stage) in self.stages.iter().enumerate() {
            stage.draw(&mut svg, WIDTH * (index as f64 + 0.5) / 3.0);
        }
        self.draw_times(&mut svg);
        let pairs = pairs();
        for (row, &(a, b)) in pairs.iter().enumerate() {
            let samples = self.logs.get(a).map(|log| log.samples.iter().copied().filter(|sample| sample.to == b));
            let samples: Vec<_> = samples.into_iter().flatten().collect();
            self.draw_pair(&mut svg, TOP + row as f64 * ROW, (a, b), &samples);
        }
        let bottom = TOP + pairs.len() as f64 * ROW;
        self.draw_axis(&mut svg, bottom);
        svg.finish((WIDTH, bottom + 78.0), &title)
    }

    fn x(&self, at: Instant) -> f64 {
        let whole = (self.end - self.start).as_secs_f64().max(f64::EPSILON);
        let share = at.saturating_duration_since(self.start).as_secs_f64() / whole;
        LEFT + share.min(1.0) * (WIDTH - LEFT - RIGHT)
    }

    /// Draws the important moments as lines through all rows.
    fn draw_times(&self, svg: &mut Svg) {
        let bottom = TOP + pairs().len() as f64 * ROW;
        svg.text((28.0, TOP - 58.0), "strong", "Echo requests of each pair, 20 a second");
        for (at, class, anchor, words) in [
            (self.cut, "bad", "small end", "the cable fails".to_owned()),
            (self.healed, "good", "small", format!("all pairs connected after {}", seconds(self.healed - self.cut))),
            (self.mended, "line dash", "small", "the cable works again".to_owned()),
        ] {
            let (x, beside) = (self.x(at), if anchor.ends_with("end") { -5.0 } else { 5.0 });
            // Two labels that could overlap are drawn at different heights.
            let y = if at == self.mended { TOP - 8.0 } else { TOP - 24.0 };
            svg.line((x, y - 10.0), (x, bottom + 4.0), class);
            svg.text((x + beside, y), anchor, &words);
        }
    }

    fn draw_pair(&self, svg: &mut Svg, y: f64, (a, b): (usize, usize), samples: &[Sample]) {
        svg.text((LEFT - 12.0, y + 14.0), "end", &format!("{} – {}", NAMES[a], NAMES[b]));
        for span in spans(samples) {
            let class = match span.state {
                State::Answered => "fill-good",
                State::Late => "fill-slow",
                State::Lost => "fill-bad",
                State::Waiting => "fill-none",
            };
            let (from, to) = (self.x(span.from), self.x(span.to));
            svg.bar((from, y + 3.0), (to - from, ROW - 10.0), class);
        }
        let lost = outage(samples, self.cut, self.mended);
        let (class, words) = match lost {
            Some(time) => ("small text-bad", format!("{} lost", seconds(time))),
            None => ("small muted", "nothing lost".to_owned()),
        };
        svg.text((WIDTH - RIGHT + 12.0, y + 14.0), class, &words);
    }

    fn draw_axis(&self, svg: &mut Svg, y: f64) {
        let whole = (self.end - self.start).as_secs();
        for second in 0..=whole {
            let x = self.x(self.start + Duration::from_secs(second));
            svg.line((x, y + 4.0), (x, y + 9.0), "line");
            svg.text((x, y + 24.0), "small muted middle", &format!("{second} s"));
        }
        let noticed = format!("one end of the cable noticed after {}", seconds(self.noticed - self.cut));
        let mut x = LEFT;
        for (class, words) in [
            ("fill-good", "answered".to_owned()),
            ("fill-slow", format!("answered, but after more than {} ms", TICK.as_millis())),
            ("fill-bad", format!("lost; {noticed}")),
            ("fill-none", "before the first answer".to_owned()),
        ] {
            svg.bar((x, y + 46.0), (14.0, 12.0), class);
            svg.text((x + 20.0, y + 56.0), "small muted", &words);
            x += 52.0 + words.len() as f64 * 6.0;
        }
    }
}

impl Stage {
    fn draw(&self, svg: &mut Svg, x: f64) {
        let way = path(&self.table, CUT, CUT + 1);
        svg.text((x, 70.0), "middle strong", &self.title);
        let place = |node: usize, radius: f64| {
            let turn = TAU * (node as f64 / NAMES.len() as f64 - 0.25);
            (x + radius * turn.cos(), RINGS + radius * turn.sin())
        };
        for node in 0..NAMES.len() {
            let next = (node + 1) % NAMES.len();
            let on_way = way.windows(2).any(|pair| pair == [node, next] || pair == [next, node]);
            let class = match (node == CUT && self.dead, on_way) {
                (true, _) => "bad dots",
                (false, true) => "good",
                (false, false) => "line",
            };
            svg.line(place(node, RING), place(next, RING), class);
        }
        for (node, name) in NAMES.iter().enumerate() {
            let (x, y) = place(node, RING);
            svg.rect((x - 27.0, y - 14.0), (54.0, 28.0), if way.contains(&node) { "here" } else { "box" }, "");
            svg.text((x, y + 4.5), "middle", name);
        }
        let names: Vec<_> = way.iter().map(|&node| NAMES[node]).collect();
        svg.text((x, RINGS + RING + 48.0), "small middle muted", &format!("{} to {}:", NAMES[CUT], NAMES[CUT + 1]));
        svg.text((x, RINGS + RING + 65.0), "small middle", &names.join(" → "));
    }
}

/// Every two nodes, once.
fn pairs() -> Vec<(usize, usize)> {
    (0..NAMES.len()).flat_map(|a| (a + 1..NAMES.len()).map(move |b| (a, b))).collect()
}

fn seconds(time: Duration) -> String {
    format!("{:.2} s", time.as_secs_f64())
}

fn state(sample: &Sample) -> State {
    match sample.round_trip {
        None => State::Lost,
        Some(time) if time > TICK => State::Late,
        Some(_) => State::Answered,
    }
}

/// Joins consecutive requests with the same state into spans. The last request is left out, because its answer may not
/// have had enough time.
fn spans(samples: &[Sample]) -> Vec<Span> {
    let mut spans: Vec<Span> = Vec::new();
    let first = samples.iter().position(|sample| sample.round_trip.is_some()).unwrap_or(samples.len());
    for (index, pair) in samples.windows(2).enumerate() {
        let state = if index < first { State::Waiting } else { state(&pair[0]) };
        let (from, to) = (pair[0].at, pair[1].at);
        match spans.last_mut() {
            Some(last) if last.state == state => last.to = to,
            _ => spans.push(Span { state, from, to }),
        }
    }
    spans
}

/// The longest time without an answer among the requests between two moments.
fn outage(samples: &[Sample], from: Instant, to: Instant) -> Option<Duration> {
    let lost = spans(samples).into_iter().filter(|span| span.state == State::Lost && span.from < to && span.to > from);
    lost.map(|span| span.to - span.from).max()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn samples(start: Instant, states: &str) -> Vec<Sample> {
        let round_trip = |c| match c {
            '+' => Some(Duration::from_millis(1)),
            '~' => Some(TICK * 2),
            _ => None,
        };
        let samples = states.chars().enumerate();
        samples.map(|(i, c)| Sample { to: 1, at: start + TICK * i as u32, round_trip: round_trip(c) }).collect()
    }

    #[test]
    fn what_is_alike_is_one_bar() {
        let start = Instant::now();
        let found: Vec<_> = spans(&samples(start, "++---~++"))
            .into_iter()
            .map(|span| (span.state, (span.from - start).as_millis(), (span.to - start).as_millis()))
            .collect();
        assert_eq!(
            found,
            [(State::Answered, 0, 100), (State::Lost, 100, 250), (State::Late, 250, 300), (State::Answered, 300, 350)]
        );
        let waited = spans(&samples(start, "--+"));
        assert_eq!(waited, [Span { state: State::Waiting, from: start, to: start + TICK * 2 }]);
        assert!(spans(&[]).is_empty() && spans(&samples(start, "-")).is_empty());
    }

    #[test]
    fn an_outage_is_the_longest_one_in_its_time() {
        let start = Instant::now();
        let samples = samples(start, "-----+--+---+");
        let between = |from: u32, to: u32| outage(&samples, start + TICK * from, start + TICK * to);
        assert_eq!(between(5, 13), Some(TICK * 3));
        assert_eq!(between(5, 9), Some(TICK * 2));
        assert_eq!(between(8, 9), None);
        assert_eq!(between(0, 5), None, "it had not begun");
    }

    #[test]
    fn the_picture_has_every_pair_and_every_moment() {
        let start = Instant::now();
        let at = |second| start + Duration::from_secs(second);
        let ring: Table = std::array::from_fn(|from| std::array::from_fn(|to| (from != to).then_some(to)));
        let stage = |title: &str, dead| Stage { title: title.into(), table: ring, dead };
        let logs = (0..NAMES.len()).map(|_| Log { samples: samples(start, "+++---+++") }).collect();
        let picture = Picture {
            start,
            cut: at(2),
            noticed: at(3),
            healed: at(4),
            mended: at(6),
            end: at(8),
            stages: [stage("one", false), stage("two", true), stage("three", false)],
            logs,
        };
        let text = picture.draw();
        for (a, b) in pairs() {
            assert!(text.contains(&format!(">{} – {}<", NAMES[a], NAMES[b])), "{a} {b}");
        }
        for words in ["all pairs connected after 2.00 s", "noticed after 1.00 s", ">two<", ">8 s<", "bad dots"] {
            assert!(text.contains(words), "{words}");
        }
        assert_eq!(picture.x(at(100)), picture.x(at(8)));
    }
}
