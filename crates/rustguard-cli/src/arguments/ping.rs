//! The arguments of `ping`.

use super::duration::fraction;
use clap::{Args, value_parser};
use std::time::Duration;

/// The shortest time between two requests. The device sends at most 100 in a second, to all peers together.
const INTERVAL_MIN: Duration = Duration::from_millis(100);
/// The longest time for which the device waits for an answer.
const WAIT_MAX: Duration = Duration::from_secs(10);

/// `rustguard ping`.
#[derive(Args, Debug)]
pub(crate) struct Ping {
    /// The peer: its name, or its public key. In a network also its address, or its whole name (desk.home.internal)
    #[arg(value_name = "PEER")]
    pub(crate) peer: String,
    /// The interface [default: the only tunnel that is up]
    #[arg(short, long, value_name = "NAME")]
    pub(crate) interface: Option<String>,
    /// End after this many requests
    #[arg(short, long, value_name = "N", value_parser = value_parser!(u64).range(1..))]
    pub(crate) count: Option<u64>,
    /// The time between two requests [default: 1s; with --until-direct 200ms]
    #[arg(long, value_name = "TIME", value_parser = interval)]
    pub(crate) interval: Option<Duration>,
    /// The time to wait for each answer
    #[arg(short = 'W', long, value_name = "TIME", default_value = "2s", value_parser = wait)]
    pub(crate) wait: Duration,
    /// End after this time [default: never; with --until-direct 30s]
    #[arg(short = 'w', long, value_name = "TIME", value_parser = fraction)]
    pub(crate) timeout: Option<Duration>,
    /// End with the first answer whose request and answer travelled directly
    #[arg(long)]
    pub(crate) until_direct: bool,
    /// Print JSON: one object in a line for each request
    #[arg(long)]
    pub(crate) json: bool,
}

fn interval(text: &str) -> Result<Duration, String> {
    let time = fraction(text)?;
    if time >= INTERVAL_MIN { Ok(time) } else { Err("at most ten requests can be sent in a second: 100ms".to_owned()) }
}

fn wait(text: &str) -> Result<Duration, String> {
    let time = fraction(text)?;
    if time <= WAIT_MAX { Ok(time) } else { Err("an answer that takes longer than 10s is lost".to_owned()) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_have_limits() {
        assert_eq!(interval("0.1"), Ok(INTERVAL_MIN));
        assert!(interval("99ms").is_err() && interval("0").is_err());
        assert_eq!(wait("10s"), Ok(WAIT_MAX));
        assert!(wait("10.1").is_err());
    }
}
