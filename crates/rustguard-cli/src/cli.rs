//! The command line, as one definition that `--help`, the manual pages and the completions are made of.

use clap::{Args, CommandFactory as _, Parser, Subcommand, ValueEnum};
use std::path::PathBuf;

/// The exit statuses, for `--help` and the manual.
const STATUS: &str = "\
Exit status:
  0  done
  1  failed; standard error says why
  2  wrong usage

Environment:
  RUSTGUARD_LOG  what is logged: error, warn, info, debug, trace, or per module (rustguard_device=debug)
  WG_COLOR_MODE  always, never or auto: colours in `show`
  WG_HIDE_KEYS   never: `show` prints private and preshared keys
  WG_ENDPOINT_RESOLUTION_RETRIES
                 how often `up` tries a name again that cannot be resolved: a number, or infinity (as without it)";

/// RustGuard: a WireGuard tunnel for the command line
///
/// RustGuard runs WireGuard tunnels from wg-quick's configuration files, without a kernel module. `wg` sees and changes
/// its interfaces as it does any other.
#[derive(Debug, Parser)]
#[command(name = "rustguard", version, after_help = STATUS, args_conflicts_with_subcommands = true, arg_required_else_help = true)]
pub(crate) struct Cli {
    #[command(subcommand)]
    pub(crate) command: Option<Command>,

    #[command(flatten)]
    pub(crate) bare: Bare,
}

/// `rustguard INTERFACE`.
#[derive(Args, Debug)]
pub(crate) struct Bare {
    /// Make this interface without configuring it, for `wg` or wg-quick to do so
    ///
    /// This is how wg-quick runs a userspace implementation: WG_QUICK_USERSPACE_IMPLEMENTATION=rustguard wg-quick up wg0
    pub(crate) interface: Option<String>,

    /// Stay in the foreground instead of going into the background when the interface is there
    #[arg(short, long, requires = "interface")]
    pub(crate) foreground: bool,
}

/// What to do.
#[derive(Debug, Subcommand)]
pub(crate) enum Command {
    /// Bring a tunnel up
    ///
    /// Makes the interface, with the addresses, routes, DNS servers and hooks of the configuration, as wg-quick does, and
    /// runs it until SIGINT, SIGTERM or `rustguard down`. Whatever was changed on the host is then undone.
    #[command(after_help = "\
Examples:
  rustguard up wg0                 /etc/wireguard/wg0.conf, or /etc/rustguard/wg0.conf
  rustguard up ./home.conf         that file, and an interface `home`
  rustguard up --detach wg0        in the background; returns when packets can pass")]
    Up {
        /// A configuration file, or the name of one in /etc/wireguard or /etc/rustguard
        #[arg(value_name = "FILE|NAME")]
        target: String,
        /// Go into the background when the tunnel is up
        #[arg(short, long)]
        detach: bool,
    },

    /// Bring a tunnel down
    ///
    /// Ends what `rustguard up` started and waits until everything is undone. After a crash, undoes what was left.
    Down {
        /// What `up` was given
        #[arg(value_name = "FILE|NAME")]
        target: String,
    },

    /// Show the state of interfaces
    ///
    /// Without arguments, everything about all interfaces, for people. With a field, as `wg show` prints it, for scripts.
    /// Interfaces of other userspace implementations are shown as well.
    #[command(after_help = "\
Examples:
  rustguard show
  rustguard show wg0 latest-handshakes
  rustguard show --json | jq '.[].peers[] | {name, rx_bytes}'")]
    Show(Show),

    /// Check configuration files
    ///
    /// Reports every mistake with its line, its column and what to do about it. Nothing is changed.
    #[command(after_help = "\
Exit status:
  0  no errors (with --strict: no warnings either)
  1  errors
  2  a file cannot be read

Examples:
  rustguard check wg0
  rustguard check --strict --json *.conf")]
    Check(Check),

    /// Show what a tunnel is, on this machine alone and without root
    ///
    /// Two nodes in network namespaces of their own: a handshake, round trips, throughput, and a change of address while
    /// the tunnel is in use. Takes a few seconds and leaves nothing behind.
    Demo,

    /// Make a private key
    #[command(
        after_help = "Example:\n  (umask 077; rustguard genkey | tee private.key | rustguard pubkey > public.key)"
    )]
    Genkey,

    /// Make a preshared key
    Genpsk,

    /// Read a private key and print its public key
    Pubkey,

    /// Print the completions for a shell
    #[command(after_help = "Example:\n  rustguard completions bash > /etc/bash_completion.d/rustguard")]
    Completions {
        /// Which
        shell: clap_complete::Shell,
    },

    /// Print the manual, or write its pages
    Man {
        /// Write a page per command into this directory instead
        #[arg(long, value_name = "DIR")]
        dir: Option<PathBuf>,
    },
}

/// `rustguard show`.
#[derive(Args, Debug)]
pub(crate) struct Show {
    /// An interface, `all`, or `interfaces` for a list of their names
    #[arg(default_value = "all", hide_default_value = true)]
    pub(crate) interface: String,
    /// Print this alone, for scripts
    pub(crate) field: Option<Field>,
    /// Print JSON
    #[arg(long, conflicts_with = "field")]
    pub(crate) json: bool,
}

/// What `show` can print alone.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
#[allow(missing_docs, reason = "the names say it, and their help would be their names again")]
pub(crate) enum Field {
    PublicKey,
    PrivateKey,
    ListenPort,
    Fwmark,
    Peers,
    PresharedKeys,
    Endpoints,
    AllowedIps,
    LatestHandshakes,
    Transfer,
    PersistentKeepalive,
    Dump,
}

/// `rustguard check`.
#[derive(Args, Debug)]
pub(crate) struct Check {
    /// Configuration files, or names of some in /etc/wireguard or /etc/rustguard
    #[arg(value_name = "FILE|NAME", required = true)]
    pub(crate) targets: Vec<String>,
    /// Let warnings fail the check as well
    #[arg(long)]
    pub(crate) strict: bool,
    /// Print JSON to standard output instead
    #[arg(long)]
    pub(crate) json: bool,
}

/// The command that somebody who wrote `word` probably meant.
///
/// Interfaces mostly have a digit, commands never.
pub(crate) fn similar_command(word: &str) -> Option<String> {
    if word.contains(|c: char| c.is_ascii_digit()) {
        return None;
    }
    let commands = Cli::command();
    let names = commands.get_subcommands().map(|command| command.get_name());
    let close = names.filter(|name| strsim::damerau_levenshtein(name, word) <= 1 + name.len() / 6);
    close.min_by_key(|name| strsim::damerau_levenshtein(name, word)).map(str::to_owned)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_mistyped_command_is_recognised_and_an_interface_is_not() {
        for (word, meant) in
            [("shwo", Some("show")), ("dwon", Some("down")), ("genky", Some("genkey")), ("chekc", Some("check"))]
        {
            assert_eq!(similar_command(word).as_deref(), meant);
        }
        for name in ["wg0", "up0", "office", "wgtest", "tunnel"] {
            assert_eq!(similar_command(name), None, "{name}");
        }
    }
}
