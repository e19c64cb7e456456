//! The command line, as one definition that `--help`, the manual pages and the completions are made of.

pub(crate) mod data_path;
pub(crate) mod enrolment;
pub(crate) mod mesh;
mod token;

use clap::{ArgMatches, Args, CommandFactory as _, Parser, Subcommand, ValueEnum, parser::ValueSource};
use data_path::DataPath;
use std::{ffi::OsString, path::PathBuf};

/// The exit statuses, for `--help` and the manual.
const STATUS: &str = "\
Exit status:
  0  done
  1  failed; standard error says why
  2  wrong usage

Environment:
  RUSTGUARD_TOKEN
                 the token of `serve` and `join`
  RUSTGUARD_LOG  what is logged: error, warn, info, debug, trace, or per module
                 (rustguard_device=debug)
  WG_COLOR_MODE  always, never or auto: colours in `show`
  RUSTGUARD_QUEUES, RUSTGUARD_OFFLOAD, RUSTGUARD_IO, RUSTGUARD_RELAY
                 as the options of `up` of these names
  WG_HIDE_KEYS   never: `show` prints private and preshared keys
  WG_ENDPOINT_RESOLUTION_RETRIES
                 how often `up` tries a name again that cannot be resolved:
                 a number, or infinity (as without it)";

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
        #[command(flatten)]
        data_path: DataPath,
    },

    /// Bring a tunnel down
    ///
    /// Ends what `rustguard up` started and waits until everything is undone. After a crash, undoes what was left.
    Down {
        /// What `up` was given
        #[arg(value_name = "FILE|NAME")]
        target: String,
    },

    /// Let other machines join a network of this one
    ///
    /// Makes the interface and keeps everything for the next start: key, leases, settings. Prints the line that joins. With no
    /// options at all it takes what it was told last time, or the defaults.
    #[command(after_help = "\
Examples:
  rustguard serve
  rustguard serve --pool 10.150.0.0/24 --pool fd15::/64 --endpoint vpn.example.org --detach
  RUSTGUARD_TOKEN=… rustguard serve        windows are opened for this passphrase instead of codes

An invite works until it is used or has expired. A code or passphrase works only while a window is open; see `open`.")]
    Serve(enrolment::Serve),

    /// Join the network of a `serve`, and bring the tunnel up
    ///
    /// Keeps what the server tells in /etc/rustguard/NAME.conf: from then on `rustguard up NAME` brings the tunnel back,
    /// without a token. Tries until it succeeds.
    ///
    /// A server cannot do what it likes with this machine: default routes and name servers are taken from it only with your
    /// consent, and routes over the server itself or over networks of this machine are left out. Each is said.
    #[command(after_help = "\
Examples:
  rustguard join 203.0.113.1:51820 --token rg1-…
  rustguard join vpn.example.org --token - --detach < token
  rustguard join vpn.example.org --token - --accept-default-route --accept-dns < token")]
    Join(enrolment::Join),

    /// Open a pairing window for a minute, or for so many seconds
    ///
    /// While it is open, machines join with the code that is printed, or with the passphrase that `serve` was given. Five
    /// wrong guesses close it.
    Open(enrolment::Open),

    /// Close the pairing window
    Close {
        #[command(flatten)]
        interface: enrolment::Interface,
    },

    /// Admit a machine that waits for approval
    Approve {
        /// The eight digits that it shows
        code: String,
        #[command(flatten)]
        interface: enrolment::Interface,
    },

    /// Show the state of a `serve`: window, invites, peers
    Status(enrolment::Status),

    /// Make, list and revoke invites
    #[command(subcommand)]
    Invite(enrolment::Invite),

    /// List, add, remove and rename the peers of a `serve`
    #[command(subcommand)]
    Peer(enrolment::Peer),

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

    /// Show where prefixes are, as the routing protocol knows it
    ///
    /// For interfaces with `Routing = babel`.
    Routes(Routes),

    /// Show the routers that the routing protocol talks to
    Neighbours(Routes),

    /// Show the way to an address, hop by hop
    ///
    /// First what this node would do: the prefix, next hops, backup, metric and origin, and how far it is from each neighbour.
    /// Then echo requests with growing hop limits find who is on the way. A hop stays `*` where its host does not forward
    /// packets itself (sysctl net.ipv4.ip_forward, net.ipv6.conf.all.forwarding): RustGuard passes them on all the same, but it
    /// is the host that answers.
    #[command(after_help = "\
Examples:
  rustguard trace 10.77.0.5
  rustguard trace fd77::5 -i wg0 --json | jq '.hops[].name'")]
    Trace(mesh::Trace),

    /// Draw the mesh as this node knows it
    ///
    /// Neighbours with cost and round trip, origins further away with metric and via whom, prefixes, clients. Who is between a
    /// neighbour and a node further away is known there, not here.
    #[command(after_help = "\
Examples:
  rustguard map -o mesh.svg
  rustguard map --format dot | dot -Tpng > mesh.png")]
    Map(mesh::Map),

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
    Demo {
        #[command(subcommand)]
        what: Option<mesh::Demo>,
    },

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

/// `rustguard routes` and `rustguard neighbours`.
#[derive(Args, Debug)]
pub(crate) struct Routes {
    /// The interface
    #[arg(value_name = "NAME")]
    pub(crate) interface: String,
    /// Print JSON
    #[arg(long)]
    pub(crate) json: bool,
    /// Show it anew every second, until Ctrl-C
    #[arg(short, long, conflicts_with = "json")]
    pub(crate) watch: bool,
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

/// The options of this process's command that were given on its command line, of those that `wanted` names. What comes from the
/// environment is not among them: a child inherits that.
pub(crate) fn given(wanted: impl Fn(&str) -> bool) -> Vec<OsString> {
    let command = Cli::command();
    let matches = command.clone().get_matches();
    let (command, matches) = match matches.subcommand() {
        Some((name, matches)) => (command.find_subcommand(name).expect("it was just parsed"), matches),
        None => (&command, &matches),
    };
    options(command, matches, wanted)
}

fn options(command: &clap::Command, matches: &ArgMatches, wanted: impl Fn(&str) -> bool) -> Vec<OsString> {
    let mut options = Vec::new();
    for argument in command.get_arguments() {
        let id = argument.get_id().as_str();
        let Some(long) = argument.get_long().filter(|_| wanted(id)) else { continue };
        if matches.value_source(id) != Some(ValueSource::CommandLine) {
            continue;
        }
        if !argument.get_action().takes_values() {
            options.push(format!("--{long}").into());
            continue;
        }
        for value in matches.get_raw(id).into_iter().flatten() {
            let mut option = OsString::from(format!("--{long}="));
            option.push(value);
            options.push(option);
        }
    }
    options
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
    use clap::Command;

    /// Clap breaks longer lines at the left edge, in the middle of a column.
    #[test]
    fn examples_fit_into_a_hundred_columns() {
        fn check(command: &Command) {
            let texts = [command.get_after_help(), command.get_after_long_help()];
            for text in texts.into_iter().flatten().map(ToString::to_string) {
                for line in text.lines().filter(|line| line.starts_with(' ')) {
                    assert!(line.chars().count() <= 100, "{}: {line}", command.get_name());
                }
            }
            command.get_subcommands().for_each(check);
        }
        check(&Cli::command());
    }

    #[test]
    fn options_are_passed_on_as_they_were_given() {
        let given = |line: &str, wanted: &dyn Fn(&str) -> bool| {
            let command = Cli::command();
            let matches = command.clone().try_get_matches_from(line.split(' ')).unwrap();
            let (name, matches) = matches.subcommand().unwrap();
            options(command.find_subcommand(name).unwrap(), matches, wanted)
        };
        let line =
            "rustguard serve -d --pool 10.1.0.0/24 --pool=fd15::/64 -p 7 --token x --isolate --lease 2w --queues 2";
        assert_eq!(
            given(line, &|id| !enrolment::TokenSource::IDS.contains(&id)),
            [
                "--pool=10.1.0.0/24",
                "--pool=fd15::/64",
                "--port=7",
                "--isolate=on",
                "--lease=2w",
                "--detach",
                "--queues=2"
            ]
        );
        let line = "rustguard join host --token x -d --name n --io uring --relay=off";
        assert_eq!(given(line, &DataPath::has), ["--io=uring", "--relay=off"]);
        assert_eq!(given("rustguard up wg0", &|_| true), [""; 0]);
    }

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
