//! The filter for messages, from the options, `RUSTGUARD_LOG`, and wireguard-go's `LOG_LEVEL`.

use crate::arguments::logging::Logging;
use std::env::VarError;
use tracing_subscriber::filter::{LevelFilter, Targets};

/// The crates whose level can be set.
const CRATES: [&str; 15] = [
    "rustguard",
    "rustguard_babel",
    "rustguard_core",
    "rustguard_crypto",
    "rustguard_device",
    "rustguard_enroll",
    "rustguard_metrics",
    "rustguard_network",
    "rustguard_policy",
    "rustguard_quick",
    "rustguard_roster",
    "rustguard_serve",
    "rustguard_store",
    "rustguard_tun",
    "rustguard_web",
];

/// The libraries that log each step of a connection to a store.
const LIBRARIES: [&str; 6] = ["h2", "hyper_util", "tonic", "tower", "tokio_postgres", "rustls"];

/// The level for each module. An option comes before `RUSTGUARD_LOG`.
///
/// # Errors
/// The value of `RUSTGUARD_LOG` and what is allowed there.
pub(super) fn filter(logging: &Logging, default: LevelFilter) -> Result<Targets, String> {
    // A wrong value is an error also where an option overrides it.
    let from_environment = match std::env::var("RUSTGUARD_LOG") {
        Ok(text) => parse(&text, default)?,
        Err(VarError::NotPresent) => None,
        Err(VarError::NotUnicode(text)) => return Err(wrong(&text.to_string_lossy())),
    };
    let all = |level| Targets::new().with_default(level);
    let targets = match (logging.quiet, logging.verbose) {
        (0, 0) => from_environment.unwrap_or_else(|| all(default)),
        (0, 1) => all(LevelFilter::DEBUG),
        (0, _) => all(LevelFilter::TRACE),
        (1, _) => all(LevelFilter::WARN),
        (_, _) => all(LevelFilter::ERROR),
    };
    let of_libraries = targets.default_level().unwrap_or(default).min(LevelFilter::WARN);
    Ok(LIBRARIES.iter().fold(targets, |targets, library| targets.with_target(*library, of_libraries)))
}

/// The level that wireguard-go takes from `LOG_LEVEL`. wireguard-go ignores all other values, and this function does
/// the same.
pub(super) fn of_wireguard_go(value: Option<&str>) -> Option<LevelFilter> {
    match value? {
        "verbose" | "debug" => Some(LevelFilter::DEBUG),
        "error" => Some(LevelFilter::ERROR),
        "silent" => Some(LevelFilter::OFF),
        _ => None,
    }
}

/// Levels, separated by commas: one for everything, and others for single modules (`MODULE=LEVEL`).
fn parse(text: &str, default: LevelFilter) -> Result<Option<Targets>, String> {
    if text.is_empty() {
        return Ok(None);
    }
    let mut targets = Targets::new().with_default(default);
    for directive in text.split(',').map(str::trim) {
        let (module, level) = match directive.split_once('=') {
            Some((module, level)) => (Some(module), level),
            None => (None, directive),
        };
        let level = level_of(level).ok_or_else(|| wrong(text))?;
        targets = match module {
            Some(module) if is_module(module) => targets.with_target(module, level),
            Some(_) => return Err(wrong(text)),
            None => targets.with_default(level),
        };
    }
    Ok(Some(targets))
}

fn level_of(word: &str) -> Option<LevelFilter> {
    // `LevelFilter` also accepts numbers, and reads an empty word as `error`.
    let known = ["off", "error", "warn", "info", "debug", "trace"];
    known.iter().any(|known| known.eq_ignore_ascii_case(word)).then(|| word.parse().ok())?
}

/// Whether `module` belongs to one of our crates, or can belong to a library.
fn is_module(module: &str) -> bool {
    let name = module.split("::").next().unwrap_or_default();
    let ours = name.starts_with("rustguard");
    let well_formed = !name.is_empty() && module.chars().all(|c| c.is_ascii_alphanumeric() || c == '_' || c == ':');
    if ours { CRATES.contains(&name) && well_formed } else { well_formed }
}

fn wrong(text: &str) -> String {
    format!(
        "RUSTGUARD_LOG is `{text}`. Allowed are error, warn, info, debug, trace and off, and MODULE=LEVEL for a single module; \
         commas separate several. For example: RUSTGUARD_LOG=info,rustguard_device=debug. The modules are {}.",
        CRATES.join(", ")
    )
}

#[cfg(test)]
mod tests {
    use super::*;
    use tracing::Level;

    #[test]
    fn levels_for_everything_and_for_modules() {
        let parse = |text| parse(text, LevelFilter::INFO).unwrap();
        assert!(parse("").is_none());
        let enabled = |text, target, level| parse(text).unwrap().would_enable(target, &level);
        assert!(enabled("DEBUG", "rustguard_device::control", Level::DEBUG));
        assert!(!enabled("warn", "rustguard_device::control", Level::INFO));
        for text in ["rustguard_device=debug", "error, rustguard_device=debug"] {
            assert!(enabled(text, "rustguard_device::control", Level::DEBUG), "{text}");
            assert!(!enabled(text, "rustguard_quick", Level::DEBUG), "{text}");
        }
        assert!(enabled("rustguard_device=debug", "rustguard_quick", Level::INFO), "others stay as they are");
        assert!(enabled("off,rtnetlink=trace", "rtnetlink::x", Level::TRACE));
        assert!(!enabled("off", "rustguard", Level::ERROR));
    }

    #[test]
    fn a_wrong_value_is_named_with_what_is_allowed() {
        for text in
            ["verbose", "5", "rustguard_device", "rustguard_devcie=debug", "debug,", "=debug", "a=b", "x y=debug", "x="]
        {
            let error = parse(text, LevelFilter::INFO).unwrap_err();
            assert!(error.contains(&format!("`{text}`")) && error.contains("warn, info"), "{error}");
        }
    }

    #[test]
    fn log_level_means_what_it_means_to_wireguard_go() {
        for (value, level) in [
            (None, None),
            (Some("verbose"), Some(LevelFilter::DEBUG)),
            (Some("error"), Some(LevelFilter::ERROR)),
            (Some("silent"), Some(LevelFilter::OFF)),
            (Some("loud"), None),
        ] {
            assert_eq!(of_wireguard_go(value), level);
        }
    }
}
