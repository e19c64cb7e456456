//! The list of peers for people: of a `serve` and of any other tunnel.

use super::{
    colour::Palette,
    columns::{Column, Paint, field, table},
    escape::escape,
    words::{now, short_bytes, short_span},
};
use rustguard_crypto::x25519::PublicKey;
use rustguard_device::{core::constants::REJECT_AFTER_TIME, uapi::ConnectionView};
use std::{collections::HashMap, time::Instant};

/// The characters of a way that are shown where there is little room: those of `direct` and an IPv4 address with its port.
const WAY: usize = "direct 255.255.255.255:65535".len();

/// A peer in the list.
#[derive(Clone, Debug)]
pub(crate) struct PeerRow {
    pub(crate) public_key: PublicKey,
    pub(crate) name: Option<String>,
    /// Whether it can be talked to; `None` if the implementation does not report it.
    pub(crate) connection: Option<ConnectionView>,
    /// Its last handshake, in seconds since the epoch.
    pub(crate) last_handshake: Option<u64>,
    /// The cause of a problem, with its remedy.
    pub(crate) problem: Option<String>,
    /// Its addresses, or its allowed IPs.
    pub(crate) addresses: Vec<String>,
    /// How it is reached.
    pub(crate) way: Option<String>,
    pub(crate) round_trip: Option<String>,
    /// Why it is not reached directly.
    pub(crate) not_direct: Option<String>,
    pub(crate) rx_bytes: u64,
    pub(crate) tx_bytes: u64,
    /// Words about it.
    pub(crate) tag: String,
    /// How it was admitted.
    pub(crate) joined_by: String,
}

impl PeerRow {
    fn called(&self) -> String {
        self.name.as_deref().map_or_else(|| self.public_key.to_string(), |name| escape(name).into_owned())
    }

    /// Whether the peer is there, and since when not.
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
            // It was connected before this process has started.
            ("never connected", Some(at)) => ("offline", passed(Some(at)), Some(Palette::bad)),
            ("never connected", None) => ("never", None, None),
            ("connecting", _) => ("connecting", passed(since), Some(Palette::warning)),
            ("offline", _) => ("offline", passed(since), Some(Palette::bad)),
            (other, _) => (other, passed(since), None),
        };
        (format!("{}{}", escape(word), since.unwrap_or_default()), paint)
    }
}

/// The list, at most `width` columns wide. `addresses` is the heading of the addresses. `rates` has the bytes per second from each peer
/// and to it.
pub(crate) fn list(rows: &[PeerRow], addresses: &'static str, rates: &Rates, width: usize, palette: Palette) -> String {
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
    let mut text = table(columns, width, palette);
    for row in rows {
        if let Some(why) = &row.not_direct {
            text += &field(&row.called(), &format!("not reached directly: {}", escape(why)), width, palette);
        }
        if let Some(problem) = &row.problem {
            text += &field(&row.called(), &escape(problem), width, palette);
        }
    }
    text
}

/// The bytes per second of each peer, from one page to the next.
#[derive(Default)]
pub(crate) struct Rates(Counters);

/// Bytes received and sent.
type Counters = HashMap<PublicKey, (u64, u64)>;

/// The counters of the page before.
#[derive(Default)]
pub(crate) struct Before(Option<(Instant, Counters)>);

impl Before {
    /// The rates since the page before.
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
            rx_bytes: 1_536,
            tx_bytes: 3,
            tag: "ci".to_owned(),
            joined_by: "window".to_owned(),
        }
    }

    fn listed(rows: &[PeerRow], width: usize) -> String {
        list(rows, "ADDRESS", &Rates::default(), width, Palette::PLAIN)
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

    /// The longest of everything: a name of 63 characters, addresses and endpoints of IPv6, a problem of many words.
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
        // What fits is there.
        let text = listed(&[row("laptop", "online", 1)], 80);
        assert!(text.contains("192.0.2.7:51820") && text.contains("TAG") && text.contains("JOINED BY"), "{text}");
    }

    #[test]
    fn a_name_steers_no_terminal_and_states_have_colours() {
        let text = listed(&[row("a\u{1b}[2J", "online", 1)], 80);
        assert!(!text.contains('\u{1b}'), "{text}");
        let text = list(&[row("a", "online", 1)], "ADDRESS", &Rates::default(), 80, Palette::COLOURED);
        assert!(text.contains("\u{1b}[32monline"), "{text}");
    }
}
