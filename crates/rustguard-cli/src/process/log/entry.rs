//! One message of the log, and its forms: plain, text, JSON, and for the journal.

use crate::{escape::escape, output::colour::Palette};
use rustguard_quick::helper::{self, Field, Line};
use serde::Serialize;
use serde_json::Value;
use std::{collections::BTreeMap, fmt, time::SystemTime};
use tracing::{
    Event, Level,
    field::{Field as Recorded, Visit},
};
use tracing_subscriber::fmt::{
    format::Writer as Formatted,
    time::{FormatTime as _, SystemTime as Now},
};

/// The field with the name of a peer. The message of such an event does not name the peer.
const PEER: &str = "peer";

/// A message. All its text is escaped, because part of it may come from outside.
#[derive(Clone, Debug)]
pub(super) struct Entry {
    time: String,
    pub(super) level: Level,
    target: &'static str,
    message: String,
    fields: Vec<(&'static str, Value)>,
    /// The reason why the process ends.
    is_last: bool,
}

/// The forms of a message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Form {
    /// Sentences for a person.
    Plain,
    /// Lines with time and level.
    Text,
    /// One object for each line.
    Json,
    /// Lines with a priority, as in sd-daemon(3). The journal adds the time.
    Priority,
}

impl Entry {
    pub(super) fn new(level: Level, message: &str) -> Self {
        Self {
            time: time(),
            level,
            target: "rustguard",
            message: escape(message).into_owned(),
            fields: Vec::new(),
            is_last: false,
        }
    }

    /// The reason why the process ends.
    pub(super) fn last(message: &str) -> Self {
        Self { is_last: true, ..Self::new(Level::ERROR, message) }
    }

    pub(super) fn of_event(event: &Event<'_>) -> Self {
        let metadata = event.metadata();
        let mut entry = Self { target: metadata.target(), ..Self::new(*metadata.level(), "") };
        event.record(&mut entry);
        entry
    }

    /// Reads a line in the form [`Form::Text`]. Returns `None` for other lines, such as the output of hooks.
    pub(super) fn of_text(line: &str) -> Option<Self> {
        let (time, rest) = line.split_once(' ')?;
        if !(time.ends_with('Z') && time.as_bytes().get(10) == Some(&b'T')) {
            return None;
        }
        let (level, message) = rest.trim_start().split_once(' ')?;
        Some(Self { time: time.to_owned(), ..Self::new(level.parse().ok()?, message) })
    }

    /// The whole line.
    pub(super) fn line(&self, form: Form, palette: Palette, interface: Option<&str>) -> String {
        match form {
            Form::Plain => self.plain(palette),
            // The last message tells the user why the command failed, as for any other command.
            Form::Text if self.is_last => self.plain(palette),
            Form::Text => format!("{} {:>5} {}\n", self.time, self.level, self.text()),
            Form::Json => self.json(interface),
            Form::Priority => format!("<{}>{}\n", priority(self.level), self.text()),
        }
    }

    /// The message as a line of the journal. A field that the journal does not know is in the text only.
    pub(super) fn journal_line(&self) -> Line {
        let field = |(name, value): &(&'static str, Value)| Some((Field::of_name(name)?, words(value)));
        Line {
            level: match self.level {
                Level::ERROR => helper::Level::Error,
                Level::WARN => helper::Level::Warn,
                Level::INFO => helper::Level::Info,
                Level::DEBUG => helper::Level::Debug,
                Level::TRACE => helper::Level::Trace,
            },
            target: self.target.to_owned(),
            text: self.text(),
            fields: self.fields.iter().filter_map(field).collect(),
        }
    }

    fn plain(&self, palette: Palette) -> String {
        let text = self.text();
        match self.level {
            Level::ERROR => format!("{} {text}\n", palette.bad("rustguard:").bold()),
            Level::WARN => format!("{} {text}\n", palette.warning("rustguard: warning:").bold()),
            Level::INFO => format!("{text}\n"),
            _ => format!("rustguard: debug: {text}\n"),
        }
    }

    fn json(&self, interface: Option<&str>) -> String {
        #[derive(Serialize)]
        struct Line<'a> {
            time: &'a str,
            level: String,
            message: &'a str,
            target: &'a str,
            #[serde(skip_serializing_if = "Option::is_none")]
            interface: Option<&'a str>,
            #[serde(flatten)]
            fields: BTreeMap<&'static str, &'a Value>,
        }
        let line = Line {
            time: &self.time,
            level: self.level.as_str().to_ascii_lowercase(),
            message: &self.message,
            target: self.target,
            interface,
            fields: self.fields.iter().map(|(name, value)| (*name, value)).collect(),
        };
        // Strings and numbers as values and strings as keys can always be written.
        serde_json::to_string(&line).unwrap_or_default() + "\n"
    }

    /// The message, after the peer that it is about, with the other fields at the end.
    fn text(&self) -> String {
        let peer = self.fields.iter().find(|(name, _)| *name == PEER);
        let mut text = peer.map(|(_, name)| format!("{}: ", words(name))).unwrap_or_default();
        text += &self.message;
        for (name, value) in self.fields.iter().filter(|(name, _)| *name != PEER) {
            if !text.is_empty() {
                text.push(' ');
            }
            text += &format!("{name}={}", words(value));
        }
        text
    }

    fn put(&mut self, field: &Recorded, value: Value) {
        self.fields.push((field.name(), value));
    }
}

impl Visit for Entry {
    fn record_i64(&mut self, field: &Recorded, value: i64) {
        self.put(field, value.into());
    }

    fn record_u64(&mut self, field: &Recorded, value: u64) {
        self.put(field, value.into());
    }

    fn record_bool(&mut self, field: &Recorded, value: bool) {
        self.put(field, value.into());
    }

    fn record_str(&mut self, field: &Recorded, value: &str) {
        let text = escape(value).into_owned();
        if field.name() == "message" { self.message = text } else { self.put(field, text.into()) }
    }

    fn record_debug(&mut self, field: &Recorded, value: &dyn fmt::Debug) {
        self.record_str(field, &format!("{value:?}"));
    }
}

/// The time now, as in RFC 3339.
fn time() -> String {
    let mut text = String::new();
    if Now.format_time(&mut Formatted::new(&mut text)).is_err() {
        // A clock before 1970, or a String that cannot be written to, must not lose the message.
        text = format!("{:?}", SystemTime::now());
    }
    text
}

fn words(value: &Value) -> String {
    match value {
        Value::String(text) => text.clone(),
        value => value.to_string(),
    }
}

/// The priorities of syslog(3), as the journal's library maps levels to them.
fn priority(level: Level) -> u8 {
    match level {
        Level::ERROR => 3,
        Level::WARN => 4,
        Level::INFO => 5,
        Level::DEBUG => 6,
        Level::TRACE => 7,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn entry(level: Level) -> Entry {
        let fields = vec![("peer", "laptop".into()), ("attempts", 3.into())];
        Entry { time: "2026-01-02T03:04:05.678901Z".to_owned(), fields, ..Entry::new(level, "no \u{1b}[2Janswer") }
    }

    #[test]
    fn each_form_has_the_message_its_level_and_its_fields() {
        let line = |level, form| entry(level).line(form, Palette::PLAIN, Some("wg0"));
        let text = r"laptop: no \u{1b}[2Janswer attempts=3";
        assert_eq!(line(Level::INFO, Form::Plain), format!("{text}\n"));
        assert_eq!(line(Level::WARN, Form::Plain), format!("rustguard: warning: {text}\n"));
        assert_eq!(line(Level::ERROR, Form::Plain), format!("rustguard: {text}\n"));
        assert_eq!(line(Level::WARN, Form::Text), format!("2026-01-02T03:04:05.678901Z  WARN {text}\n"));
        assert_eq!(line(Level::WARN, Form::Priority), format!("<4>{text}\n"));
        let json: Value = serde_json::from_str(&line(Level::WARN, Form::Json)).unwrap();
        let expected = serde_json::json!({
            "time": "2026-01-02T03:04:05.678901Z", "level": "warn", "message": r"no \u{1b}[2Janswer",
            "target": "rustguard", "interface": "wg0", "peer": "laptop", "attempts": 3,
        });
        assert_eq!(json, expected);
    }

    #[test]
    fn the_reason_of_the_end_is_said_as_other_commands_say_it() {
        let last = |form| Entry::last("wga is up already").line(form, Palette::PLAIN, None);
        assert_eq!(last(Form::Plain), "rustguard: wga is up already\n");
        assert_eq!(last(Form::Text), "rustguard: wga is up already\n");
        assert!(last(Form::Json).contains(r#""level":"error""#));
    }

    #[test]
    fn a_line_of_the_log_is_read_back_and_others_are_not() {
        let entry = entry(Level::WARN);
        let line = entry.line(Form::Text, Palette::PLAIN, None);
        let read = Entry::of_text(line.trim_end()).unwrap();
        assert_eq!(read.line(Form::Text, Palette::PLAIN, None), line);
        assert_eq!(read.line(Form::Plain, Palette::PLAIN, None), entry.line(Form::Plain, Palette::PLAIN, None));
        for other in ["", "rustguard: no", "2026-01-02T03:04:05Z", "2026-01-02T03:04:05Z LOUD x", "hook says hello Z"] {
            assert!(Entry::of_text(other).is_none(), "{other}");
        }
    }
}
