//! The output of `ping`.

use crate::{
    escape::escape,
    output::way::{milliseconds, transport},
    uapi::{Device, Peer},
};
use anyhow::Result;
use rustguard_device::{TransportAddress, key::to_base64, uapi::WayView};
use rustguard_network::Listed;
use serde::Serialize;
use std::{
    collections::HashMap,
    fmt::Write as _,
    io::{self, Write as _},
    net::IpAddr,
    process::ExitCode,
    time::Duration,
};

/// A request and its outcome.
pub(super) struct Asked {
    pub(super) outcome: Outcome,
    /// It was an echo request, to this address.
    pub(super) echo: Option<IpAddr>,
}

/// The outcome of a request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Outcome {
    Answer { round_trip_us: u64, asked: WayView, way: WayView },
    Error { kind: String, text: String },
}

impl Asked {
    /// A request inside the session.
    pub(super) fn ours(outcome: Outcome) -> Self {
        Self { outcome, echo: None }
    }

    /// Whether request and answer travelled directly.
    pub(super) fn is_direct(&self) -> bool {
        matches!(&self.outcome, Outcome::Answer { asked: WayView::Direct(_), way: WayView::Direct(_), .. })
    }
}

/// The way to a peer that is in use.
pub(super) fn way(peer: &Peer) -> Option<WayView> {
    match (&peer.through, &peer.endpoint) {
        (Some(relay), _) => Some(WayView::Relayed(to_base64(&relay.0).to_string())),
        (None, Some(endpoint)) => Some(match transport(endpoint) {
            Some(transport) => WayView::Transport(transport.number()),
            None => WayView::Direct(endpoint.clone()),
        }),
        (None, None) => None,
    }
}

/// The name of a peer, or its key.
pub(super) fn called(peer: &Peer) -> String {
    peer.name.as_deref().map_or_else(|| peer.public_key.to_string(), |name| escape(name).into_owned())
}

/// The output and the counts so far.
pub(super) struct Report {
    json: bool,
    interface: String,
    name: Option<String>,
    called: String,
    key: String,
    /// Whether it is a client of the peer.
    client: bool,
    /// The names of peers, by their keys in base64.
    names: HashMap<String, String>,
    sent: u64,
    /// The round trips, in microseconds.
    answers: Answers,
    direct: bool,
    /// The relay of the last answer, if that was not direct.
    indirect: Option<String>,
    /// Whether the user was told that echo requests are sent.
    echo: bool,
    /// The cause that was written last.
    cause: Option<String>,
}

#[derive(Default)]
struct Answers {
    count: u64,
    least: u64,
    most: u64,
    sum: u64,
}

/// A request in `--json`.
#[derive(Serialize)]
struct Line<'a> {
    sequence: u64,
    peer: Option<&'a str>,
    public_key: &'a str,
    /// `null` without an answer.
    round_trip_us: Option<u64>,
    /// The way of the answer, `direct` or `through`.
    way: Option<&'a str>,
    /// The peer's address, for a direct way.
    endpoint: Option<&'a str>,
    /// The public key of the relay.
    through: Option<&'a str>,
    through_name: Option<&'a str>,
    /// Whether request and answer travelled directly.
    direct: bool,
    /// The address of an echo request.
    echo: Option<IpAddr>,
    error: Option<Failure<'a>>,
}

#[derive(Serialize)]
struct Failure<'a> {
    kind: &'a str,
    text: &'a str,
}

impl Report {
    pub(super) fn new(json: bool, interface: &str, peer: &Peer, device: &Device) -> Self {
        let names = device.peers.iter().filter_map(|peer| Some((peer.public_key.to_string(), peer.name.clone()?)));
        Self {
            json,
            interface: interface.to_owned(),
            name: peer.name.clone(),
            called: called(peer),
            key: peer.public_key.to_string(),
            client: false,
            names: names.collect(),
            sent: 0,
            answers: Answers::default(),
            direct: false,
            indirect: None,
            echo: false,
            cause: None,
        }
    }

    /// It is about a client of the peer.
    pub(super) fn of_client(&mut self, client: &Listed) {
        self.called = escape(&client.name).into_owned();
        (self.name, self.key) = (Some(client.name.clone()), client.public_key.clone());
        self.client = true;
    }

    /// The number of requests.
    pub(super) fn sent(&self) -> u64 {
        self.sent
    }

    /// The end came before an answer to the last request.
    pub(super) fn given_up(&mut self) {
        self.sent += 1;
    }

    /// Writes the outcome of a request.
    pub(super) fn line(&mut self, asked: Asked) -> Result<()> {
        self.sent += 1;
        if let Outcome::Answer { round_trip_us, asked: out, way } = &asked.outcome {
            self.answers.add(*round_trip_us);
            self.direct |= asked.is_direct();
            let indirect = [way, out].into_iter().find(|way| !matches!(way, WayView::Direct(_)));
            self.indirect = indirect.map(|way| self.words(way));
        }
        let text = if self.json { self.json(&asked)? } else { self.text(&asked) };
        let mut stdout = io::stdout().lock();
        writeln!(stdout, "{text}")?;
        Ok(stdout.flush()?)
    }

    fn text(&mut self, asked: &Asked) -> String {
        let mut text = String::new();
        if let Some(address) = asked.echo.filter(|_| !self.echo) {
            self.echo = true;
            let _ = match self.client {
                true => {
                    writeln!(text, "{} is a client of its server: these are echo requests to {address}", self.called)
                }
                false => writeln!(
                    text,
                    "{} does not answer requests of RustGuard, as another WireGuard would not:\n\
                 these are echo requests to {address}, and the ways are those in use",
                    self.called
                ),
            };
        }
        let _ = match &asked.outcome {
            Outcome::Answer { round_trip_us, asked: out, way } => {
                let _ = write!(
                    text,
                    "{}: {} ms, {}",
                    self.called,
                    milliseconds(Duration::from_micros(*round_trip_us)),
                    self.words(way)
                );
                // Each end chooses its way by itself.
                if out == way { Ok(()) } else { write!(text, " (asked {})", self.words(out)) }
            }
            // The kind is enough, or the cause was written before.
            Outcome::Error { kind, text: why } if kind == "no-answer" || self.cause.as_ref() == Some(why) => {
                write!(text, "{}: no answer", self.called)
            }
            Outcome::Error { text: why, .. } => {
                self.cause = Some(why.clone());
                write!(text, "{}: no answer: {}", self.called, escape(why))
            }
        };
        text
    }

    fn json(&self, asked: &Asked) -> Result<String> {
        let mut line = Line {
            sequence: self.sent,
            peer: self.name.as_deref(),
            public_key: &self.key,
            round_trip_us: None,
            way: None,
            endpoint: None,
            through: None,
            through_name: None,
            direct: asked.is_direct(),
            echo: asked.echo,
            error: None,
        };
        match &asked.outcome {
            Outcome::Answer { round_trip_us, way, .. } => {
                line.round_trip_us = Some(*round_trip_us);
                match way {
                    WayView::Direct(endpoint) => (line.way, line.endpoint) = (Some("direct"), Some(endpoint.as_str())),
                    WayView::Relayed(relay) => {
                        (line.way, line.through) = (Some("through"), Some(relay.as_str()));
                        line.through_name = self.names.get(relay).map(String::as_str);
                    }
                    WayView::Transport(_) => line.way = Some("transport"),
                }
            }
            Outcome::Error { kind, text } => line.error = Some(Failure { kind, text }),
        }
        Ok(serde_json::to_string(&line)?)
    }

    /// A way in words.
    fn words(&self, way: &WayView) -> String {
        match way {
            WayView::Direct(address) => format!("direct {}", escape(address)),
            WayView::Relayed(relay) => format!("through {}", self.named(relay)),
            WayView::Transport(number) => format!("by {}", TransportAddress::new(*number)),
        }
    }

    /// The name of the peer with this key, or the key.
    fn named(&self, key: &str) -> String {
        escape(self.names.get(key).map_or(key, String::as_str)).into_owned()
    }

    /// Writes the summary. `why` says why the peer is not reached directly. Returns the exit status.
    pub(super) fn end(&self, until_direct: bool, why: Option<&str>) -> Result<ExitCode> {
        if !self.json {
            let text = self.summary(until_direct, why);
            writeln!(io::stdout(), "\n{text}")?;
        }
        let success = if until_direct { self.direct } else { self.answers.count > 0 };
        Ok(ExitCode::from(u8::from(!success)))
    }

    fn summary(&self, until_direct: bool, why: Option<&str>) -> String {
        let plural = |count: u64, noun: &str| format!("{count} {noun}{}", if count == 1 { "" } else { "s" });
        let Answers { count, least, most, sum } = self.answers;
        let mut text = format!("{}, {}", plural(self.sent, "request"), plural(count, "answer"));
        if let Some(mean) = sum.checked_div(count) {
            let [least, mean, most] = [least, mean, most].map(|us| milliseconds(Duration::from_micros(us)));
            let _ = write!(text, "; round trip: least {least}, mean {mean}, most {most} ms");
        }
        if until_direct && !self.direct {
            match &self.indirect {
                Some(indirect) => {
                    let _ = write!(text, "\n{} is still reached {indirect}", self.called);
                    let _ = why.map_or(Ok(()), |why| write!(text, ": {}", escape(why)));
                }
                None => drop(write!(text, "\n{} was not reached", self.called)),
            }
        }
        if count == 0 && self.sent > 0 {
            let _ = write!(text, "\n`rustguard doctor {}` looks for the cause", self.interface);
        }
        text
    }
}

impl Answers {
    fn add(&mut self, round_trip_us: u64) {
        self.least = if self.count == 0 { round_trip_us } else { self.least.min(round_trip_us) };
        self.most = self.most.max(round_trip_us);
        self.sum = self.sum.saturating_add(round_trip_us);
        self.count += 1;
    }
}
