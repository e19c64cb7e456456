//! Texts for people: times and amounts in words, and texts from machines, which may contain anything.

/// The most characters that are shown of a text that a machine has chosen.
const LONGEST: usize = 80;

/// A text from a machine, made harmless: limited in length, with characters that are invisible or change the reading
/// direction replaced by escapes such as `\u{202e}`. The templates escape it for HTML.
pub(crate) fn shown(text: &str) -> String {
    bounded(text, LONGEST)
}

/// The same with another bound.
pub(crate) fn bounded(text: &str, longest: usize) -> String {
    let mut shown = String::new();
    for (n, c) in text.chars().enumerate() {
        if n == longest {
            shown.push('…');
            break;
        }
        if is_invisible(c) { shown.extend(c.escape_unicode()) } else { shown.push(c) }
    }
    shown
}

/// Control characters, marks of the reading direction, and characters without width (UTR #36, UTS #39).
fn is_invisible(c: char) -> bool {
    c.is_control()
        || matches!(
            c,
            '\u{ad}' | '\u{34f}' | '\u{61c}' | '\u{115f}' | '\u{1160}' | '\u{180e}' | '\u{200b}'..='\u{200f}' | '\u{2028}'..='\u{202e}'
            | '\u{2060}'..='\u{206f}' | '\u{3164}' | '\u{fe00}'..='\u{fe0f}' | '\u{feff}' | '\u{ffa0}' | '\u{fff0}'..='\u{fffb}'
            | '\u{e0000}'..='\u{e0fff}'
        )
}

/// A number of bytes: `3 B`, `1.5 KiB`.
pub(crate) fn bytes(n: u64) -> String {
    const UNITS: [&str; 5] = ["KiB", "MiB", "GiB", "TiB", "PiB"];
    if n < 1024 {
        return format!("{n} B");
    }
    // f64 is exact enough for two digits of any u64.
    let (mut amount, mut unit) = (n as f64 / 1024.0, 0);
    while amount >= 1000.0 && unit + 1 < UNITS.len() {
        amount /= 1024.0;
        unit += 1;
    }
    if amount < 10.0 { format!("{amount:.1} {}", UNITS[unit]) } else { format!("{amount:.0} {}", UNITS[unit]) }
}

/// How long ago a time was, in its largest unit. Both are seconds since the epoch.
pub(crate) fn ago(now: u64, then: u64) -> String {
    let of = |n: u64, unit: &str| format!("{n} {unit}{} ago", if n == 1 { "" } else { "s" });
    match now.saturating_sub(then) {
        0..10 => "now".to_owned(),
        // Otherwise the page would change every second.
        seconds @ 10..60 => of(seconds / 10 * 10, "second"),
        seconds @ 60..3_600 => of(seconds / 60, "minute"),
        seconds @ 3_600..86_400 => of(seconds / 3_600, "hour"),
        seconds => of(seconds / 86_400, "day"),
    }
}

/// A time as `2026-11-23 22:15:07`, in UTC. The argument is in seconds since the epoch.
pub(crate) fn utc(time: u64) -> String {
    let (days, second) = (time / 86_400, time % 86_400);
    // Howard Hinnant, "chrono-Compatible Low-Level Date Algorithms": civil_from_days. Years begin with March there.
    let shifted = days + 719_468;
    let (era, day_of_era) = (shifted / 146_097, shifted % 146_097);
    let year_of_era = (day_of_era - day_of_era / 1_460 + day_of_era / 36_524 - day_of_era / 146_096) / 365;
    let day_of_year = day_of_era - (365 * year_of_era + year_of_era / 4 - year_of_era / 100);
    let from_march = (5 * day_of_year + 2) / 153;
    let day = day_of_year - (153 * from_march + 2) / 5 + 1;
    let month = if from_march < 10 { from_march + 3 } else { from_march - 9 };
    let year = year_of_era + era * 400 + u64::from(month <= 2);
    format!("{year:04}-{month:02}-{day:02} {:02}:{:02}:{:02}", second / 3_600, second / 60 % 60, second % 60)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_text_of_a_machine_is_bounded_and_cannot_hide_anything() {
        assert_eq!(shown("Zoë's 電話"), "Zoë's 電話");
        assert_eq!(
            shown("moc.\u{202e}elpmaxe\u{2066}\u{200b}\u{7}\n"),
            r"moc.\u{202e}elpmaxe\u{2066}\u{200b}\u{7}\u{a}"
        );
        assert_eq!(shown(&"x".repeat(1_000_000)), "x".repeat(LONGEST) + "…");
    }

    #[test]
    fn times_and_amounts() {
        for (time, text) in [
            (0, "1970-01-01 00:00:00"),
            (951_782_400, "2000-02-29 00:00:00"),
            (1_795_475_707, "2026-11-23 23:15:07"),
            (4_102_444_799, "2099-12-31 23:59:59"),
        ] {
            assert_eq!(utc(time), text);
        }
        assert_eq!(
            [5, 59, 61, 7_200, 200_000].map(|s| ago(1_000_000, 1_000_000 - s)),
            ["now", "50 seconds ago", "1 minute ago", "2 hours ago", "2 days ago"]
        );
        assert_eq!(ago(1, 2), "now");
        assert_eq!(
            [0, 1_023, 1_536, 12 << 20, 1_000 << 20].map(bytes),
            ["0 B", "1023 B", "1.5 KiB", "12 MiB", "1.0 GiB"]
        );
    }
}
