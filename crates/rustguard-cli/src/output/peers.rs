//! The list of peers for people: of a `serve` and of any other tunnel.

use super::{
    colour::Palette,
    columns::{Column, Paint, field, table},
    words::{now, short_bytes, short_span},
};
use crate::escape::escape;
use rustguard_crypto::x25519::PublicKey;
use rustguard_device::{core::constants::REJECT_AFTER_TIME, uapi::ConnectionView};
use std::{
    cmp::Reverse,
    collections::{BTreeMap, HashMap},
    time::Instant,
};

/// The shown characters of a way if there is little room: enough for `direct` and an IPv4 address with its port.
const WAY: usize = "direct 255.255.255.255:65535".len();

/// The number of peers that are shown even if there is no room.
const LEAST: usize = 3;

/// A peer in the list.
#[derive(Clone, Debug)]
pub(crate) struct PeerRow {
    pub(crate) public_key: PublicKey,
    pub(crate) name: Option<String>,
    /// The state of the connection; `None` if the implementation does not report it.
    pub(crate) connection: Option<ConnectionView>,
    /// Its last handshake, in seconds since the epoch.
    pub(crate) last_handshake: Option<u64>,
    /// The cause of a problem, with its remedy.
    pub(crate) problem: Option<String>,
    /// Its addresses, or its allowed IPs.
    pub(crate) addresses: Vec<String>,
    /// The way to it.
    pub(crate) way: Option<String>,
    pub(crate) round_trip: Option<String>,
    /// Why it is not reached directly.
    pub(crate) not_direct: Option<String>,
    /// A decision that waits for the administrator, with the command.
    pub(crate) waiting: Option<String>,
    pub(crate) rx_bytes: u64,
    pub(crate) tx_bytes: u64,
    /// Its role and its tags.
    pub(crate) tag: String,
    /// How it was admitted.
    pub(crate) joined_by: String,
    /// Whether it is a server of the network.
    pub(crate) server: bool,
}

impl PeerRow {
    fn called(&self) -> String {
        self.name.as_deref().map_or_else(|| self.public_key.to_string(), |name| escape(name).into_owned())
    }

    /// Whether the peer is online, and since when it is not.
    fn status(&self, now: u64) -> (String, Option<Paint>) {
        let passed = |since: Option<u64>| since.map(|since| format!(" {}", short_span(now.saturating_sub(since))));
        let (state, since) = match &self.connection {
            Some(connection) => (connection.state.as_str(), connection.since),
            None if self.last_handshake.is_some_and(|at| now.saturating_sub(at) < REJECT_AFTER_TIME.as_secs()) => {
                ("online", None)
            }
            None => ("never connected", None),
        };
        let (word, since, paint): (_, _, Option<Paint>) = match (state, self.last_handshake) {
            ("online", _) => ("online", None, Some(Palette::good)),
            // It was connected before this process started.
            ("never connected", Some(at)) => ("offline", passed(Some(at)), Some(Palette::bad)),
            ("never connected", None) => ("never", None, None),
            ("connecting", _) => ("connecting", passed(since), Some(Palette::warning)),
            ("offline", _) => ("offline", passed(since), Some(Palette::bad)),
            (other, _) => (other, passed(since), None),
        };
        (format!("{}{}", escape(word), since.unwrap_or_default()), paint)
    }

    /// The order if there is no room for all: servers, then peers with a session or a handshake in progress, then peers
    /// by their last handshake.
    fn order(&self) -> (u8, Reverse<u64>, String) {
        let state = self.connection.as_ref().map_or("", |connection| connection.state.as_str());
        let since = self.connection.as_ref().and_then(|connection| connection.since);
        match state {
            _ if self.server => (0, Reverse(0), self.called()),
            "connecting" => (1, Reverse(0), self.called()),
            "online" => (2, Reverse(0), self.called()),
            "offline" => (3, Reverse(since.unwrap_or(0)), self.called()),
            "idle" => (4, Reverse(since.unwrap_or(0)), self.called()),
            _ => (5, Reverse(0), self.called()),
        }
    }

    /// The lines about it below the table.
    fn notes(&self, width: usize, palette: Palette) -> String {
        let not_direct = self.not_direct.as_ref().map(|why| format!("not reached directly: {}", escape(why)));
        let others = [&self.waiting, &self.problem].into_iter().flatten().map(|text| escape(text).into_owned());
        not_direct.into_iter().chain(others).map(|text| field(&self.called(), &text, width, palette)).collect()
    }
}

/// The list, at most `width` columns wide and, with `height`, about this number of lines long; peers that do not fit
/// are counted. `addresses` is the heading of the addresses. `rates` has the bytes per second from and to each peer.
pub(crate) fn list(
    rows: &[PeerRow],
    addresses: &'static str,
    rates: &Rates,
    (width, height): (usize, Option<usize>),
    palette: Palette,
) -> String {
    let notes: Vec<_> = rows.iter().map(|row| row.notes(width, palette)).collect();
    let lines = |notes: &str| notes.matches('\n').count();
    let all = rows.len() + 1 + notes.iter().map(|notes| lines(notes)).sum::<usize>();
    let Some(height) = height.filter(|height| all > *height) else {
        return whole(rows, addresses, rates, width, palette) + &notes.concat();
    };
    let mut sorted: Vec<_> = rows.iter().zip(notes).collect();
    sorted.sort_by_cached_key(|(row, _)| row.order());
    // The heading and the last line need two lines.
    let mut left = height.saturating_sub(2);
    let fits = |(_, notes): &&(&PeerRow, String)| {
        let room = left.checked_sub(1 + lines(notes));
        left = room.unwrap_or(0);
        room.is_some()
    };
    let count = sorted.iter().take_while(fits).count().max(LEAST).min(sorted.len());
    let (shown, counted) = sorted.split_at(count);
    let rows: Vec<_> = shown.iter().map(|(row, _)| (*row).clone()).collect();
    let mut text = whole(&rows, addresses, rates, width, palette);
    shown.iter().for_each(|(_, notes)| text += notes);
    let mut states = BTreeMap::<String, usize>::new();
    for (row, _) in counted {
        let (status, _) = row.status(0);
        *states.entry(status.split(' ').next().unwrap_or_default().to_owned()).or_default() += 1;
    }
    let states: Vec<_> = states.iter().map(|(state, count)| format!("{count} {state}")).collect();
    let more = format!("{} more ({}); `| less` shows all", counted.len(), states.join(", "));
    if counted.is_empty() { text } else { text + &field("and", &more, width, palette) }
}

/// The table of all rows.
fn whole(rows: &[PeerRow], addresses: &'static str, rates: &Rates, width: usize, palette: Palette) -> String {
    let now = now().as_secs();
    let (statuses, paints): (Vec<_>, Vec<_>) = rows.iter().map(|row| row.status(now)).unzip();
    let cells = |cell: fn(&PeerRow) -> String| rows.iter().map(cell);
    let traffic = rows.iter().map(|row| match rates.0.get(&row.public_key) {
        Some((rx, tx)) => format!("{}/s, {}/s", short_bytes(*rx), short_bytes(*tx)),
        None => format!("{}, {}", short_bytes(row.rx_bytes), short_bytes(row.tx_bytes)),
    });
    // IPv4 comes first. An address of IPv6 has up to 39 characters, and a list of prefixes any number.
    let first = |row: &PeerRow| row.addresses.first().cloned().unwrap_or_default();
    let more = |row: &PeerRow| row.addresses.get(1..).unwrap_or_default().join(", ");
    let columns = vec![
        Column::new("NAME", rows.iter().map(PeerRow::called)).shortest(16),
        Column::new("STATUS", statuses.into_iter()).painted(paints.into_iter()),
        Column::new(addresses, cells(first)),
        Column::new("", cells(more)).left_out(5),
        Column::new("WAY", cells(|row| row.way.clone().unwrap_or_default())).left_out(2).shortest(WAY),
        Column::new("RTT", cells(|row| row.round_trip.clone().unwrap_or_default())).left_out(3),
        Column::new("IN, OUT", traffic).left_out(1),
        Column::new("TAG", cells(|row| escape(&row.tag).into_owned())).left_out(4).shortest(8),
        Column::new("JOINED BY", cells(|row| row.joined_by.clone())).left_out(6),
    ];
    table(columns, width, palette)
}

/// The bytes per second of each peer, from one page to the next.
#[derive(Default)]
pub(crate) struct Rates(Counters);

/// Bytes received and sent.
type Counters = HashMap<PublicKey, (u64, u64)>;

/// The counters of the previous page.
#[derive(Default)]
pub(crate) struct Before(Option<(Instant, Counters)>);

impl Before {
    /// The rates since the previous page.
    pub(crate) fn rates(&mut self, rows: &[PeerRow]) -> Rates {
        let counters = rows.iter().map(|row| (row.public_key, (row.rx_bytes, row.tx_bytes))).collect();
        let Some((at, before)) = self.0.replace((Instant::now(), counters)) else { return Rates::default() };
        let seconds = at.elapsed().as_secs_f64().max(0.001);
        let per_second = |new: u64, old: u64| (new.saturating_sub(old) as f64 / seconds) as u64;
        let rate = |row: &PeerRow| {
            let (rx, tx) = before.get(&row.public_key)?;
            Some((row.public_key, (per_second(row.rx_bytes, *rx), per_second(row.tx_bytes, *tx))))
        };
        Rates(rows.iter().filter_map(rate).collect())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn row(name: &str, state: &str, ago: u64) -> PeerRow {
        let since = (state != "never connected").then(|| now().as_secs() - ago);
        PeerRow {
            public_key: PublicKey([2; 32]),
            name: Some(name.to_owned()),
            connection: Some(ConnectionView { state: state.to_owned(), since, attempts: None }),
            last_handshake: None,
            problem: None,
            addresses: vec!["10.150.0.2".to_owned()],
            way: Some("direct 192.0.2.7:51820".to_owned()),
            round_trip: None,
            not_direct: None,
            waiting: None,
            rx_bytes: 1_536,
            tx_bytes: 3,
            tag: "ci".to_owned(),
            joined_by: "window".to_owned(),
            server: false,
        }
    }

    fn listed(rows: &[PeerRow], width: usize) -> String {
        list(rows, "ADDRESS", &Rates::default(), (width, None), Palette::PLAIN)
    }

    #[test]
    fn a_peer_is_online_or_offline_since_or_never_was() {
        let mut away = row("away", "never connected", 0);
        away.last_handshake = Some(now().as_secs() - 7_300);
        let rows = [
            row("laptop", "online", 30),
            row("phone", "offline", 3 * 86_400 + 5),
            row("new", "never connected", 0),
            row("slow", "connecting", 20),
            row("calm", "idle", 600),
            away,
        ];
        let text = listed(&rows, 100);
        let lines: Vec<_> = text.lines().collect();
        assert_eq!(lines[0], "NAME    STATUS          ADDRESS     WAY                     IN, OUT  TAG  JOINED BY");
        assert_eq!(lines[1], "laptop  online          10.150.0.2  direct 192.0.2.7:51820  1.5K, 3  ci   window");
        for (line, words) in
            lines[2..].iter().zip(["offline 3d ", "never ", "connecting 20s", "idle 10m", "offline 2h"])
        {
            assert!(line.contains(words), "{words}: {text}");
        }
    }

    /// The longest possible values: a name of 63 characters, addresses and endpoints of IPv6, a problem of many words.
    #[test]
    fn a_list_fits_eighty_columns() {
        let mut long = row(&"x".repeat(63), "connecting", 80 * 86_400);
        let address = "fd15:aaaa:bbbb:cccc:dddd:eeee:1111:2222";
        long.addresses = vec![address.to_owned(), "10.150.0.2".to_owned()];
        long.way = Some(format!("direct [{address}]:51820"));
        long.round_trip = Some("23.4 ms".to_owned());
        long.not_direct = Some("no address of the peer answers ".repeat(3));
        (long.rx_bytes, long.tx_bytes) = (u64::MAX, u64::MAX);
        (long.tag, long.joined_by) = ("t".repeat(64), "invite 0123456789abcdef".to_owned());
        long.problem = Some("nothing comes back from there ".repeat(9));
        let mut nameless = row("", "online", 1);
        nameless.name = None;
        for rows in [vec![long.clone()], vec![long, nameless, row("b", "offline", 5)]] {
            let text = listed(&rows, 80);
            for line in text.lines() {
                assert!(line.chars().count() <= 80, "{} columns: {line}", line.chars().count());
            }
            assert!(text.contains(address) && text.contains("connecting 80d") && text.contains("comes back"), "{text}");
        }
        // Everything that fits is shown.
        let text = listed(&[row("laptop", "online", 1)], 80);
        assert!(text.contains("192.0.2.7:51820") && text.contains("TAG") && text.contains("JOINED BY"), "{text}");
    }

    #[test]
    fn a_name_steers_no_terminal_and_states_have_colours() {
        let text = listed(&[row("a\u{1b}[2J", "online", 1)], 80);
        assert!(!text.contains('\u{1b}'), "{text}");
        let text = list(&[row("a", "online", 1)], "ADDRESS", &Rates::default(), (80, None), Palette::COLOURED);
        assert!(text.contains("\u{1b}[32monline"), "{text}");
    }

    #[test]
    fn where_there_is_no_room_servers_and_whoever_is_there_come_first() {
        let mut rows: Vec<_> = (0..1_000).map(|n| row(&format!("m{n:03}"), "idle", 600)).collect();
        rows[7] = row("talks", "online", 1);
        rows[8] = row("gone", "offline", 9_000);
        rows[9] = row("called", "connecting", 4);
        rows[9].problem = Some("nothing comes back".to_owned());
        rows[900] = PeerRow { server: true, ..row("hub", "offline", 9_000) };
        let listed = |height| list(&rows, "ADDRESS", &Rates::default(), (80, height), Palette::PLAIN);
        let text = listed(Some(9));
        let lines: Vec<_> = text.lines().collect();
        for (line, name) in
            lines[1..].iter().zip(["hub ", "called ", "talks ", "gone ", "m000 ", "m001 ", "  called: "])
        {
            assert!(line.starts_with(name), "{name}: {text}");
        }
        assert_eq!(lines[8], "  and: 994 more (994 idle); `| less` shows all", "{text}");
        // Without a terminal, everything is shown, in the given order.
        let text = listed(None);
        assert_eq!(text.lines().count(), 1_002);
        assert!(text.lines().nth(1).is_some_and(|line| line.starts_with("m000 ")), "{text}");
    }
}
