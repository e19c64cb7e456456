//! Lengths of time on the command line: `90s`, `5m`, `1h30m`, `7d`.

use std::time::Duration;

/// The longest time: ten years can be added to any date without an overflow.
const MAX: u64 = 315_576_000;

/// A length of time: numbers followed by s, m, h, d or w.
pub(crate) fn duration(text: &str) -> Result<Duration, String> {
    let wrong = || {
        format!(
            "`{text}` is not a length of time; write a number followed by s, m, h, d or w, for example 90s, 5m, 24h or 7d"
        )
    };
    let mut seconds = 0_u64;
    let mut rest = text;
    while !rest.is_empty() || text.is_empty() {
        let at = rest.find(|c: char| !c.is_ascii_digit()).ok_or_else(wrong)?;
        let number: u64 = rest[..at].parse().map_err(|_| wrong())?;
        let unit = match rest.as_bytes().get(at).ok_or_else(wrong)? {
            b's' => 1,
            b'm' => 60,
            b'h' => 3_600,
            b'd' => 86_400,
            b'w' => 604_800,
            _ => return Err(wrong()),
        };
        // Saturated, it is past the limit.
        seconds = seconds.saturating_add(number.saturating_mul(unit));
        rest = &rest[at + 1..];
    }
    if !(1..=MAX).contains(&seconds) {
        return Err(format!("`{text}` is not between 1s and ten years"));
    }
    Ok(Duration::from_secs(seconds))
}

/// As `duration`, but a number alone means seconds, for options that have always taken seconds.
pub(crate) fn seconds(text: &str) -> Result<Duration, String> {
    match text.parse() {
        Ok(number) if number <= MAX => Ok(Duration::from_secs(number)),
        _ => duration(text),
    }
}

/// As `duration`, also for times below a second: `200ms`, or `0.2` as in ping(8).
pub(crate) fn fraction(text: &str) -> Result<Duration, String> {
    let wrong = || format!("`{text}` is not a length of time; write for example 200ms, 0.5s, 2s or 1m");
    let seconds = text.strip_suffix('s').unwrap_or(text);
    let parsed = match text.strip_suffix("ms") {
        Some(number) => number.parse::<u32>().ok().map(|number| Duration::from_millis(number.into())),
        // `f64` takes more than digits: a sign, an exponent, `inf`.
        None if seconds.bytes().all(|c| c.is_ascii_digit() || c == b'.') => {
            seconds.parse().ok().and_then(|number| Duration::try_from_secs_f64(number).ok())
        }
        None => return duration(text).map_err(|_| wrong()),
    };
    let time = parsed.ok_or_else(wrong)?;
    let allowed = time >= Duration::from_millis(1) && time.as_secs() <= MAX;
    if allowed { Ok(time) } else { Err(format!("`{text}` is not between 1ms and ten years")) }
}

/// How long a window may be open.
pub(crate) fn window(text: &str) -> Result<Duration, String> {
    let time = seconds(text)?;
    let allowed = (1..=900).contains(&time.as_secs());
    if allowed { Ok(time) } else { Err("a window is open for 1s to 15m".to_owned()) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lengths_of_time() {
        for (text, seconds) in
            [("1s", 1), ("90m", 5_400), ("24h", 86_400), ("7d", 604_800), ("2w", 1_209_600), ("1h30m", 5_400)]
        {
            assert_eq!(duration(text), Ok(Duration::from_secs(seconds)));
        }
        for text in [
            "",
            "24",
            "h",
            "1 h",
            "-1h",
            "0s",
            "1y",
            "1.5h",
            "99999999999999999999d",
            "600w",
            "1hé",
            "é",
            "1h30",
            "1h 5m",
        ] {
            assert!(duration(text).is_err(), "{text}");
        }
    }

    #[test]
    fn times_below_a_second() {
        for (text, ms) in [("200ms", 200), ("0.2", 200), ("0.5s", 500), ("2", 2_000), ("3s", 3_000), ("1m", 60_000)] {
            assert_eq!(fraction(text), Ok(Duration::from_millis(ms)), "{text}");
        }
        for text in
            ["", "s", "ms", ".", "-1", "1e3", "inf", "nan", "0", "0.0001", "1.2.3", "1.5m", "99999999999", "1 s"]
        {
            assert!(fraction(text).is_err(), "{text}");
        }
    }

    #[test]
    fn a_number_alone_is_seconds_where_it_always_was() {
        for (text, number) in [("60", 60), ("5m", 300), ("90s", 90), ("0", 0)] {
            assert_eq!(seconds(text), Ok(Duration::from_secs(number)), "{text}");
        }
        for text in ["-1", "", "1.5", "99999999999999999999"] {
            assert!(seconds(text).is_err(), "{text}");
        }
        assert_eq!(window("5m"), Ok(Duration::from_secs(300)));
        for text in ["0", "901", "16m", "x"] {
            assert!(window(text).is_err(), "{text}");
        }
    }
}
