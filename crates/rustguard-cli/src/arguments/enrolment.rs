//! `serve`, `join` and what belongs to them.

use super::data_path::DataPath;
use clap::{Args, Subcommand};
use ipnet::IpNet;
use std::{net::IpAddr, path::PathBuf, time::Duration};

/// The interface a server or a joined machine has.
#[derive(Args, Clone, Debug)]
pub(crate) struct Interface {
    /// The interface
    #[arg(short, long, default_value = rustguard_serve::DEFAULT_INTERFACE, value_name = "NAME")]
    pub(crate) interface: String,
}

impl Interface {
    /// ` --interface NAME` for a command that is shown, where it is not the default.
    pub(crate) fn option(&self) -> String {
        let default = self.interface == rustguard_serve::DEFAULT_INTERFACE;
        if default { String::new() } else { format!(" --interface {}", self.interface) }
    }
}

/// A token, from wherever it is safe.
#[derive(Args, Clone, Debug)]
pub(crate) struct TokenSource {
    /// The token; `-` reads it from standard input
    ///
    /// On the command line it can be seen by everybody on this machine (`ps`), and stays in the shell's history. The
    /// environment, RUSTGUARD_TOKEN, and a file do not have that problem.
    #[arg(short, long, value_name = "TOKEN")]
    pub(crate) token: Option<String>,
    /// Read the token from this file
    #[arg(long, value_name = "FILE", conflicts_with = "token")]
    pub(crate) token_file: Option<PathBuf>,
}

impl TokenSource {
    /// The names of these arguments in clap.
    pub(crate) const IDS: [&str; 2] = ["token", "token_file"];
}

/// `rustguard serve`.
#[derive(Args, Debug)]
pub(crate) struct Serve {
    #[command(flatten)]
    pub(crate) interface: Interface,
    /// Where addresses are taken from; once for IPv4, once for IPv6 [default: 10.150.0.0/24 and a random fd…/64]
    #[arg(long = "pool", value_name = "CIDR")]
    pub(crate) pools: Vec<IpNet>,
    #[command(flatten)]
    pub(crate) token: TokenSource,
    /// The UDP port [default: 51820]
    #[arg(short, long, value_parser = clap::value_parser!(u16).range(1..))]
    pub(crate) port: Option<u16>,
    /// Open a pairing window at the start, for so many seconds
    #[arg(long, value_name = "SECONDS", value_parser = clap::value_parser!(u64).range(1..=900))]
    pub(crate) open: Option<u64>,
    /// What others reach this machine by, for invites [default: the address of the default route]
    #[arg(short, long, value_name = "HOST[:PORT]")]
    pub(crate) endpoint: Option<String>,
    /// Another prefix that joined machines send through the tunnel, besides the pools
    #[arg(long = "route", value_name = "CIDR")]
    pub(crate) routes: Vec<IpNet>,
    /// A name server for joined machines
    #[arg(long = "dns", value_name = "ADDRESS")]
    pub(crate) dns: Vec<IpAddr>,
    /// A search domain for joined machines
    #[arg(long = "search", value_name = "DOMAIN", requires = "dns")]
    pub(crate) search: Vec<String>,
    /// Whether joined machines are kept from reaching each other [default: off]
    #[arg(long, value_name = "ON|OFF", num_args = 0..=1, default_missing_value = "on", value_parser = on_off, require_equals = true)]
    pub(crate) isolate: Option<bool>,
    /// Take leases back from machines that were not heard of for so long, as in 12h or 30d [default: never]
    #[arg(long, value_name = "TIME", value_parser = duration)]
    pub(crate) lease: Option<Duration>,
    /// Take the defaults for what is not said here, instead of what was said at an earlier start; pools stay
    #[arg(long)]
    pub(crate) defaults: bool,
    /// Go into the background when it is ready
    #[arg(short, long)]
    pub(crate) detach: bool,
    // --relay: for `serve` everything from peer to peer takes the short way, whether the host forwards or not, unless
    // netfilter has rules for what it forwards.
    #[command(flatten)]
    pub(crate) data_path: DataPath,
}

/// `rustguard join`.
#[derive(Args, Debug)]
pub(crate) struct Join {
    /// Where the server is, a name or an address; an invite may know it
    #[arg(value_name = "HOST[:PORT]")]
    pub(crate) server: Option<String>,
    #[command(flatten)]
    pub(crate) token: TokenSource,
    #[command(flatten)]
    pub(crate) interface: Interface,
    /// What this machine is called on the server [default: the host name]
    #[arg(short, long)]
    pub(crate) name: Option<String>,
    /// Let the server forget this machine when it has been silent for a while: for containers, and machines on loan
    #[arg(long)]
    pub(crate) ephemeral: bool,
    /// Take a default route from the server, and send everything by way of it [default: ask; without a terminal, off]
    #[arg(long, value_name = "ON|OFF", num_args = 0..=1, default_missing_value = "on", value_parser = on_off, require_equals = true)]
    pub(crate) accept_default_route: Option<bool>,
    /// Take name servers from the server, and ask them for every name [default: ask; without a terminal, off]
    #[arg(long, value_name = "ON|OFF", num_args = 0..=1, default_missing_value = "on", value_parser = on_off, require_equals = true)]
    pub(crate) accept_dns: Option<bool>,
    /// Take this route from the server although it overlaps a network of this machine
    #[arg(long = "accept-route", value_name = "CIDR")]
    pub(crate) accept_routes: Vec<IpNet>,
    /// Give up when the server has not answered for so many seconds; 0 tries for ever
    #[arg(long, value_name = "SECONDS", default_value_t = 0)]
    pub(crate) timeout: u64,
    /// Go into the background when the tunnel is up
    #[arg(short, long)]
    pub(crate) detach: bool,
    /// Write the configuration, and do not bring the tunnel up
    #[arg(long, conflicts_with = "detach")]
    pub(crate) no_up: bool,
    #[command(flatten)]
    pub(crate) data_path: DataPath,
}

/// `rustguard open`.
#[derive(Args, Debug)]
pub(crate) struct Open {
    /// How long, at most 900
    #[arg(default_value_t = 60, value_parser = clap::value_parser!(u64).range(1..=900))]
    pub(crate) seconds: u64,
    /// Let joiners wait until `rustguard approve` admits them
    #[arg(long)]
    pub(crate) approve: bool,
    #[command(flatten)]
    pub(crate) interface: Interface,
    /// Print JSON
    #[arg(long)]
    pub(crate) json: bool,
}

/// `rustguard status`.
#[derive(Args, Debug)]
pub(crate) struct Status {
    #[command(flatten)]
    pub(crate) interface: Interface,
    /// Print JSON
    #[arg(long)]
    pub(crate) json: bool,
    /// Show it anew every second, with throughput, until Ctrl-C
    #[arg(short, long, conflicts_with = "json")]
    pub(crate) watch: bool,
}

/// `rustguard invite`.
#[derive(Debug, Subcommand)]
pub(crate) enum Invite {
    /// Make an invite, and print the line that joins with it
    #[command(after_help = "\
Examples:
  rustguard invite new                                 one machine, within a day
  rustguard invite new --uses 10 --expires 7d --tag ci
  rustguard invite new --qr --name phone               a code for a WireGuard app, usable for a day")]
    New {
        /// How many machines may use it
        #[arg(long, default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..))]
        uses: u32,
        /// How long it can be used, as in 90m, 24h or 7d
        #[arg(long, value_name = "TIME", default_value = "24h", value_parser = duration)]
        expires: Duration,
        /// What it is for: peers are listed with it
        #[arg(long)]
        tag: Option<String>,
        /// The address its machine gets; once for IPv4, once for IPv6
        #[arg(long = "address", value_name = "ADDRESS", conflicts_with = "uses")]
        addresses: Vec<IpAddr>,
        /// Remove its machines when they have been silent for a while
        #[arg(long)]
        ephemeral: bool,
        /// Where the server can be reached, instead of what it found out itself
        #[arg(short, long, value_name = "HOST[:PORT]")]
        endpoint: Option<String>,
        /// For a stock WireGuard app: show a finished configuration as a QR code; unused, it expires like the invite
        #[arg(long, conflicts_with_all = ["uses", "tag", "ephemeral", "json"])]
        qr: bool,
        /// With --qr: what the peer is called
        #[arg(long, requires = "qr", default_value = "phone")]
        name: String,
        #[command(flatten)]
        interface: Interface,
        /// Print JSON
        #[arg(long)]
        json: bool,
    },
    /// List invites
    Ls {
        #[command(flatten)]
        interface: Interface,
        /// Print JSON
        #[arg(long)]
        json: bool,
    },
    /// Let an invite not work any more; who joined by it stays
    Revoke {
        /// Which, as `invite ls` shows it
        id: String,
        #[command(flatten)]
        interface: Interface,
    },
}

/// `rustguard peer`.
#[derive(Debug, Subcommand)]
pub(crate) enum Peer {
    /// List peers
    Ls {
        #[command(flatten)]
        interface: Interface,
        /// Print JSON
        #[arg(long)]
        json: bool,
    },
    /// Add a peer that runs a stock WireGuard: make a configuration for it
    ///
    /// The private key in it is made here, shown once, and not kept.
    #[command(group(clap::ArgGroup::new("form").required(true).args(["qr", "conf", "public_key"])), after_help = "\
Examples:
  rustguard peer add phone --qr                        scan it with the WireGuard app
  rustguard peer add router --conf router.conf         for wg-quick; `-` prints it
  rustguard peer add box --public-key \"$KEY\"           a key made elsewhere; prints all but the key")]
    Add {
        /// What it is called
        name: String,
        /// Show the configuration as a QR code
        #[arg(long)]
        qr: bool,
        /// Write the configuration into this file; `-` prints it
        #[arg(long, value_name = "FILE")]
        conf: Option<PathBuf>,
        /// The peer's public key, where it has made its keys itself
        #[arg(long, value_name = "KEY")]
        public_key: Option<String>,
        /// The address it gets; once for IPv4, once for IPv6
        #[arg(long = "address", value_name = "ADDRESS")]
        addresses: Vec<IpAddr>,
        /// Where it reaches the server, instead of what the server found out itself
        #[arg(short, long, value_name = "HOST[:PORT]")]
        endpoint: Option<String>,
        #[command(flatten)]
        interface: Interface,
    },
    /// Remove a peer: its sessions end at once, and no grant given before lets its key in again
    ///
    /// Its machine may make another key, though, and come back as another peer: by the same invite, if that can still be used, or
    /// by an open window. What is printed says by what it came; --revoke withdraws that.
    Rm {
        /// Name, address or public key
        peer: String,
        /// Also revoke the invite by which it came, or close the window; other peers that came by it stay
        #[arg(long)]
        revoke: bool,
        #[command(flatten)]
        interface: Interface,
    },
    /// Give a peer another name
    Rename {
        /// Name, address or public key
        peer: String,
        /// The new name
        name: String,
        #[command(flatten)]
        interface: Interface,
    },
}

fn on_off(text: &str) -> Result<bool, String> {
    match text {
        "on" => Ok(true),
        "off" => Ok(false),
        _ => Err("it is `on` or `off`".to_owned()),
    }
}

/// A length of time: a number with s, m, h, d or w behind it.
fn duration(text: &str) -> Result<Duration, String> {
    let wrong = || format!("`{text}` is no time: a number with s, m, h, d or w behind it, as in 90m, 24h or 7d");
    let at = text.find(|c: char| !c.is_ascii_digit()).ok_or_else(wrong)?;
    let number: u64 = text[..at].parse().map_err(|_| wrong())?;
    let unit = match &text[at..] {
        "s" => 1,
        "m" => 60,
        "h" => 3_600,
        "d" => 86_400,
        "w" => 604_800,
        _ => return Err(wrong()),
    };
    // Ten years are enough for everybody, and small enough to be added to a date.
    let seconds = number.checked_mul(unit).filter(|&seconds| (1..=315_576_000).contains(&seconds));
    seconds.map(Duration::from_secs).ok_or_else(|| format!("`{text}` is not between 1s and ten years"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lengths_of_time() {
        for (text, seconds) in [("1s", 1), ("90m", 5_400), ("24h", 86_400), ("7d", 604_800), ("2w", 1_209_600)] {
            assert_eq!(duration(text), Ok(Duration::from_secs(seconds)));
        }
        for text in ["", "24", "h", "1 h", "-1h", "0s", "1y", "1.5h", "99999999999999999999d", "600w", "1hé", "é"] {
            assert!(duration(text).is_err(), "{text}");
        }
    }
}
