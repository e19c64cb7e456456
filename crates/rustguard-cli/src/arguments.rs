//! The command line: the one definition behind `--help`, the manual pages and the completions.

pub(crate) mod data_path;
mod duration;
pub(crate) mod enrolment;
mod given;
mod help;
pub(crate) mod logging;
pub(crate) mod mesh;
pub(crate) mod metrics;
mod mistakes;
pub(crate) mod ping;
pub(crate) mod policy;
#[cfg(feature = "rootless")]
pub(crate) mod rootless;
pub(crate) mod serve;
mod token;
pub(crate) mod tunnel;
pub(crate) mod web;

use clap::{
    Args, CommandFactory as _, FromArgMatches as _, Parser, Subcommand, ValueEnum,
    error::{ContextKind, ContextValue, ErrorKind},
};
use data_path::DataPath;
pub(crate) use given::given;
use logging::Logging;
use metrics::Metrics;
use mistakes::{behind_the_command, of_variable};
#[cfg(feature = "rootless")]
use rootless::Rootless;
use std::{
    ffi::OsString,
    path::{Component, Path, PathBuf},
};

/// The exit statuses, for `--help` and the manual.
const STATUS: &str = "\
Exit status:
  0  done
  1  failed; standard error says why
  2  wrong usage

Environment:
  RUSTGUARD_TOKEN
                 the token of `serve` and `join`
  RUSTGUARD_LOG  the log level: error, warn, info, debug, trace or off; also for
                 single modules: info,rustguard_device=debug
  RUSTGUARD_LOG_FORMAT
                 the same as `--log-format`
  RUSTGUARD_QUEUES, RUSTGUARD_OFFLOAD, RUSTGUARD_IO, RUSTGUARD_RELAY
                 the same as `--queues`, `--offload`, `--io` and `--relay`
  RUSTGUARD_METRICS, RUSTGUARD_WEB
                 the same as `--metrics` and `--web`
  WG_COLOR_MODE  colours: always, never or auto
  NO_COLOR, CLICOLOR, CLICOLOR_FORCE
                 colours, unless WG_COLOR_MODE says always or never
  WG_HIDE_KEYS   with `never`, `show` prints private and preshared keys
  WG_ENDPOINT_RESOLUTION_RETRIES
                 how often `up` tries to resolve the name of an endpoint again:
                 a number, or infinity (default)";

/// RustGuard: a WireGuard tunnel for the command line
///
/// RustGuard runs WireGuard tunnels from wg-quick's configuration files. It needs no kernel module. `wg` shows and
/// changes its interfaces like any other.
#[derive(Debug, Parser)]
#[command(
    name = "rustguard",
    version,
    after_help = STATUS,
    arg_required_else_help = true,
    override_usage = "rustguard <COMMAND>\n       rustguard --userspace <INTERFACE>"
)]
pub(crate) struct Cli {
    #[command(subcommand)]
    pub(crate) command: Option<Command>,

    /// Create only an interface, and leave its configuration to `wg`
    ///
    /// wg-quick runs a userspace implementation in this way, and needs no option:
    /// WG_QUICK_USERSPACE_IMPLEMENTATION=rustguard wg-quick up wg0
    #[arg(long)]
    pub(crate) userspace: bool,

    /// The same, in the foreground
    #[arg(short, long)]
    pub(crate) foreground: bool,
}

/// The command line with its help.
pub(crate) fn command() -> clap::Command {
    help::grouped(Cli::command())
}

/// Reads this process's command line. A wrong one ends the process with status 2.
pub(crate) fn parse() -> Cli {
    let words: Vec<_> = std::env::args_os().collect();
    let matches = command()
        .try_get_matches_from(&words)
        .unwrap_or_else(|error| behind_the_command(of_variable(error, &words)).exit());
    let cli = Cli::from_arg_matches(&matches).unwrap_or_else(|error| error.exit());
    let wants_interface = cli.userspace || cli.foreground;
    match &cli.command {
        Some(Command::Interface(words)) => match &**words {
            [_] if wants_interface || is_called_as_wireguard_go() => {}
            // A mistyped command must not leave a daemon behind.
            [word, ..] if !wants_interface => unknown_command(&word.to_string_lossy()).exit(),
            words => command()
                .error(ErrorKind::TooManyValues, format!("one interface is expected, and not {}", words.len()))
                .exit(),
        },
        _ if wants_interface => command()
            .error(
                ErrorKind::ArgumentConflict,
                "--userspace and --foreground take the name of an interface: rustguard --userspace wg0",
            )
            .exit(),
        _ => {}
    }
    cli
}

/// Whether a word that is no command is meant as an interface. wg-quick gives no options. Variables of wg-quick and
/// wireguard-go, or a link with the name `wireguard-go` to this program, show that it calls.
fn is_called_as_wireguard_go() -> bool {
    let variables =
        ["WG_QUICK_USERSPACE_IMPLEMENTATION", "WG_PROCESS_FOREGROUND", "WG_I_PREFER_BUGGY_USERSPACE_TO_POLISHED_KMOD"];
    let name = std::env::args_os().next().map(PathBuf::from);
    name.is_some_and(|name| name.ends_with("wireguard-go"))
        || variables.iter().any(|variable| std::env::var_os(variable).is_some())
}

/// The error for a word that is no command, with the command that was probably meant.
pub(crate) fn unknown_command(word: &str) -> clap::Error {
    let mut error = clap::Error::new(ErrorKind::InvalidSubcommand).with_cmd(&command());
    error.insert(ContextKind::InvalidSubcommand, ContextValue::String(word.to_owned()));
    if let Some(meant) = similar_command(word) {
        error.insert(ContextKind::SuggestedSubcommand, ContextValue::Strings(vec![meant]));
    }
    error
}

/// The subcommands.
#[derive(Debug, Subcommand)]
pub(crate) enum Command {
    /// Any other word: an interface, if wg-quick calls or an option says so.
    #[command(external_subcommand)]
    Interface(Vec<OsString>),

    /// Bring a tunnel up
    ///
    /// Creates the interface and sets up the addresses, routes, DNS servers and hooks of the configuration, as wg-quick
    /// does. The tunnel runs until SIGINT, SIGTERM or `rustguard down`. Then all changes to the host are undone.
    #[command(after_help = "\
Examples:
  rustguard up wg0            wg0.conf in /etc/wireguard or /etc/rustguard
  rustguard up ./home.conf    this file; the interface is called `home`
  rustguard up --detach wg0   in the background; returns when it is up
  rustguard up --rootless --socks 1080 ./home.conf
                              without root: a SOCKS5 proxy leads into the tunnel")]
    Up {
        /// A configuration file, or the name of a file in /etc/wireguard or /etc/rustguard
        #[arg(value_name = "FILE|NAME")]
        target: String,
        /// Go into the background when the tunnel is up
        #[arg(short, long)]
        detach: bool,
        #[cfg(feature = "rootless")]
        #[command(flatten)]
        rootless: Box<Rootless>,
        #[command(flatten)]
        metrics: Metrics,
        #[command(flatten)]
        data_path: DataPath,
        #[command(flatten)]
        logging: Logging,
    },

    /// Run the privileged helper of a tunnel
    #[command(hide = true)]
    Helper {
        interface: String,
        #[arg(long)]
        file: Option<PathBuf>,
        #[arg(long = "socket")]
        sockets: Vec<PathBuf>,
        #[arg(long)]
        stderr: bool,
    },

    /// Take an edited file over into a running tunnel
    ///
    /// Takes over everything in the file or nothing: addresses, routes, DNS, MTU, port, mark, peers, announced
    /// prefixes. Sessions go on. If a step fails, the earlier steps are undone. If a change needs a restart, the output
    /// names it, and nothing is changed. Peers and settings from `wg set` that the file does not have are removed. No
    /// hook runs; PreDown and PostDown of the new file run at the end. SIGHUP to the process of the tunnel does the
    /// same.
    #[command(after_help = "\
Examples:
  rustguard reload --dry-run wg0   what would change
  rustguard reload wg0             from the tunnel's file
  rustguard reload ./home.conf     from this file, the tunnel's from then on
  rustguard reload rg0             a `serve`, from its stored settings
  rustguard reload rg0 --adopt     from what the members know")]
    Reload(tunnel::Reload),

    /// Bring a tunnel down
    ///
    /// Ends the tunnel that `rustguard up` started, and waits until all changes to the host are undone. After a crash,
    /// it undoes the changes that remain.
    Down {
        /// The same configuration file or name that `up` was given [default: the only tunnel that is up]
        #[arg(value_name = "FILE|NAME")]
        target: Option<String>,
    },

    /// Run a server that other machines can join
    ///
    /// Creates the interface, and prints the command with which a machine joins. The key, the leases and the settings
    /// are stored for the next start. An option that is not given keeps its stored value; at the first start it has its
    /// default.
    #[command(after_help = "\
Examples:
  rustguard serve
  rustguard serve --pool 10.150.0.0/24 --endpoint vpn.example.org --detach
  RUSTGUARD_TOKEN=… rustguard serve    windows accept this passphrase, not codes

An invite works until it is used or expires. A code or a passphrase works only while a pairing window is open: see `open`.")]
    Serve(Box<serve::Serve>),

    /// Join the network of a `serve`, and bring the tunnel up
    ///
    /// Writes the configuration to /etc/rustguard/NAME.conf. From then on `rustguard up NAME` brings the tunnel up
    /// without a token. `join` tries until it succeeds.
    ///
    /// The server's influence on this machine is limited. Default routes and name servers are accepted only with your
    /// consent. Routes that would cover the server itself or a network of this machine are left out. A message reports
    /// each of them.
    #[command(after_help = "\
Examples:
  rustguard join 203.0.113.1:51820 --token rg1-…
  rustguard join vpn.example.org --token - --detach < token
  rustguard join --token - --accept-default-route --accept-dns < token")]
    Join(enrolment::Join),

    /// Open a pairing window, by default for a minute
    ///
    /// While the window is open, machines can join with the code that this command prints, or with the passphrase that
    /// `serve` was given. Five wrong guesses close the window.
    Open(enrolment::Open),

    /// Close the pairing window
    Close {
        #[command(flatten)]
        interface: enrolment::Served,
    },

    /// Admit a machine that is waiting for approval, or refuse it
    Approve {
        /// The eight digits that the machine shows
        code: String,
        /// Refuse the machine instead
        #[arg(long, conflicts_with = "json")]
        refuse: bool,
        #[command(flatten)]
        interface: enrolment::Served,
        /// Print JSON
        #[arg(long)]
        json: bool,
    },

    /// Print a link to log in to the status page of a `serve`
    ///
    /// The page is there if the server was started with `--web`. The link works once, within five minutes, and begins a
    /// session that ends after 30 minutes without use, and after 12 hours in any case. The audit log records the name
    /// with each action in the session.
    #[command(after_help = "\
Examples:
  rustguard web
  rustguard web --name alice
  rustguard web --end          all sessions and links end")]
    Web {
        /// The name of the user who logs in, for the audit log [default: the user who runs this]
        #[arg(long, value_name = "NAME")]
        name: Option<String>,
        /// End all sessions and links instead
        #[arg(long, conflicts_with = "name")]
        end: bool,
        #[command(flatten)]
        interface: enrolment::Served,
        /// Print JSON
        #[arg(long)]
        json: bool,
    },

    /// Leave a network that this machine has joined
    ///
    /// Tells the server, which removes this machine from the network. Then ends the tunnel, and removes the file that
    /// `join` wrote, with the key and all other data of the network. If no server can be reached, it leaves all the
    /// same, and says how to tell the server.
    #[command(after_help = "Example:\n  rustguard leave rg0")]
    Leave {
        /// The interface [default: the interface of the only network that this machine has joined]
        #[arg(value_name = "NAME")]
        interface: Option<String>,
    },

    /// Change the key of this machine in its network
    #[command(subcommand)]
    Key(enrolment::Key),

    /// Show a tunnel, its network, or a `serve` with invites and peers
    Status(enrolment::Status),

    /// Create, list and revoke invites
    #[command(subcommand)]
    Invite(enrolment::Invite),

    /// List, add, remove and rename the peers of a `serve`
    #[command(subcommand)]
    Peer(enrolment::Peer),

    /// Check, test and show who may talk to whom in a network
    ///
    /// The policy is /etc/rustguard/NAME.policy on the server. `rustguard reload` applies it.
    #[command(subcommand)]
    Policy(policy::Policy),

    /// Send requests to a peer, and show the way of each answer
    ///
    /// The requests travel inside the session, and the peer's RustGuard answers them: no address is needed, and no
    /// firewall of the peer sees them. Each answer is shown with its round trip and its way: direct, or through the
    /// peer that relays. A peer that runs another WireGuard does not answer such requests. It gets echo requests (ICMP)
    /// instead, to a single address in its AllowedIPs, and the output says so.
    #[command(after_help = "\
Exit status:
  0  there was an answer (with --until-direct: a direct one)
  1  there was none
  2  another failure

Examples:
  rustguard ping office
  rustguard ping office --until-direct
  rustguard ping office -c 3 --json | jq .round_trip_us")]
    Ping(ping::Ping),

    /// Show the state of interfaces
    ///
    /// Without arguments, shows everything about all interfaces. With a field, prints that field in the format of `wg
    /// show`, for scripts. Interfaces of other userspace implementations are shown too.
    #[command(after_help = "\
Examples:
  rustguard show
  rustguard show wg0 latest-handshakes
  rustguard show --json | jq '.[].peers[] | {name, rx_bytes}'")]
    Show(tunnel::Show),

    /// Change a running interface, with the words of `wg set`
    ///
    /// Everything that is not named stays as it is. Routes of the host do not change: `rustguard reload` adds the
    /// routes of new allowed IPs from the file. With `--save`, the file that the tunnel was started from gets the same
    /// change, and keeps its comments, its order and everything else.
    #[command(after_help = tunnel::SET_WORDS)]
    Set(tunnel::Set),

    /// Save the state of a running interface to its file
    ///
    /// It does what `wg-quick save` does. Port, mark, keys and peers are taken from the interface. Comments, order and
    /// all other lines stay. A file that was changed after the tunnel had read it is left alone.
    Save {
        /// The interface [default: the only tunnel that is up]
        #[arg(value_name = "NAME")]
        interface: Option<String>,
    },

    /// Edit a configuration file, and take it over
    ///
    /// Starts the editor in $VISUAL or $EDITOR, or else vi, with a private copy of the file. When the editor ends, the
    /// copy is checked as `rustguard check` does. A copy with errors can be edited again or discarded. Then it takes
    /// the place of the file in one step, and the tunnel is reloaded if it runs with this file.
    #[command(after_help = "Example:\n  EDITOR=nano rustguard edit wg0")]
    Edit {
        /// A configuration file, or the name of a file in /etc/wireguard or /etc/rustguard [default: the file of the
        /// only tunnel that is up]
        #[arg(value_name = "FILE|NAME")]
        target: Option<String>,
    },

    /// Print the part of a file that `wg setconf` reads, like wg-quick
    #[command(after_help = "Example:\n  wg syncconf wg0 <(rustguard strip wg0)")]
    Strip {
        /// A configuration file, or the name of a file in /etc/wireguard or /etc/rustguard
        #[arg(value_name = "FILE|NAME")]
        target: String,
    },

    /// Show the routes of the routing engine
    ///
    /// In a mesh (`Routing = babel`), shows each route with its prefix, next hops, metric and origin. In a network, and
    /// with `Routing = members`, shows each route with the member that gets its packets, the round trip, the age, and
    /// the other members that have the prefix.
    Routes(mesh::Routes),

    /// Show the neighbours of the routing protocol
    Neighbours(mesh::Routes),

    /// Show the path to an address, hop by hop
    ///
    /// First shows the decision of this node: prefix, next hops, backup, metric, origin, and the distance by way of
    /// each neighbour. Then echo requests with increasing hop limits find the hosts on the path. A hop is `*` if its
    /// host does not forward packets (sysctl net.ipv4.ip_forward, net.ipv6.conf.all.forwarding). RustGuard on that host
    /// forwards packets nevertheless, but the answer to an echo request comes from the host.
    #[command(after_help = "\
Examples:
  rustguard trace 10.77.0.5
  rustguard trace fd77::5 -i wg0 --json | jq '.hops[].name'")]
    Trace(mesh::Trace),

    /// Draw the mesh or the network as this node knows it
    ///
    /// For a network, it shows servers and members, which of them are reached directly, and which server relays to each
    /// of the others.
    ///
    /// For a mesh, it shows neighbours with cost and round-trip time, distant origins with metric and next hop,
    /// prefixes, and clients. A node does not know the nodes between its neighbours and a distant origin, so the map
    /// does not show them.
    #[command(after_help = "\
Examples:
  rustguard map -o mesh.svg
  rustguard map --format dot | dot -Tpng > mesh.png
  rustguard map --json | jq '.nodes[].name'")]
    Map(mesh::Map),

    /// Check configuration files
    ///
    /// Reports every error and warning with its line, its column and a remedy. Changes nothing.
    #[command(after_help = "\
Exit status:
  0  no errors (with --strict: no warnings either)
  1  errors
  2  a file cannot be read

Examples:
  rustguard check wg0
  rustguard check --strict --json *.conf")]
    Check(tunnel::Check),

    /// Find out why a tunnel does not work
    ///
    /// Looks at everything that a tunnel depends on: permissions, drivers, clock, configuration file, interface,
    /// addresses, routes, MTU, firewall, name servers, peers. Prints one line for each check, and a remedy where
    /// something is wrong. Changes nothing.
    #[command(after_help = "\
Exit status:
  0  nothing is wrong (with --strict: no warnings either)
  1  something is wrong

Examples:
  rustguard doctor                 this machine and all tunnels that are up
  rustguard doctor wg0
  rustguard doctor --json | jq '.sections[].findings[].verdict'")]
    Doctor(tunnel::Doctor),

    /// Demonstrate a tunnel on this machine, without root
    ///
    /// Runs two nodes in separate network namespaces: a handshake, round trips, throughput, and a change of address
    /// while the tunnel is in use. Takes a few seconds and leaves nothing behind.
    Demo {
        #[command(subcommand)]
        what: Option<mesh::Demo>,
    },

    /// Generate a private key
    #[command(after_help = "Example:\n  (umask 077; rustguard genkey | tee wg.key | rustguard pubkey > wg.pub)")]
    Genkey,

    /// Generate a preshared key
    Genpsk,

    /// Read a private key from standard input, and print its public key
    Pubkey,

    /// Install the program, units, manual and completions
    ///
    /// Everything goes below the prefix, and the units start the program from there, as with a package. `/etc` is not
    /// touched. Over an earlier version, tunnels that systemd runs are restarted, and continue with the new program.
    #[command(after_help = "\
Examples:
  cargo build --release && sudo target/release/rustguard install
  rustguard install --root build/root --prefix /usr    for a package")]
    Install {
        #[command(flatten)]
        installation: Installation,
        /// A folder that contains the prefix, for packages; services do not change
        #[arg(long, value_name = "DIR", conflicts_with = "only_services")]
        root: Option<PathBuf>,
    },

    /// Remove what `install` has installed
    ///
    /// Ends the tunnels that systemd runs, and disables their units. Configuration files, keys and the state of
    /// networks stay: /etc/rustguard, /etc/wireguard and /var/lib/rustguard.
    Uninstall(Installation),

    /// Print the completion script for a shell
    ///
    /// `install` installs the scripts of bash, fish and zsh. They ask the program for interfaces, files and peers.
    #[command(after_help = "Example:\n  source <(rustguard completions bash)")]
    Completions {
        /// The shell
        shell: Shell,
    },

    /// Print the manual page, or write all pages
    Man {
        /// Write a page for each command, and rustguard.conf(5), into this directory instead
        #[arg(long, value_name = "DIR")]
        dir: Option<PathBuf>,
    },
}

/// A shell with completions.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
#[allow(missing_docs, reason = "the names say it, and their help would be their names again")]
pub(crate) enum Shell {
    Bash,
    Elvish,
    Fish,
    Zsh,
}

/// `rustguard install` and `rustguard uninstall`.
#[derive(Args, Debug)]
pub(crate) struct Installation {
    /// The folder for bin, lib and share
    #[arg(long, value_name = "DIR", default_value = "/usr/local", value_parser = absolute)]
    pub(crate) prefix: PathBuf,
    /// Only the services, as the scripts of a package do: `install` takes the installed files into use, `uninstall`
    /// ends the tunnels
    #[arg(long)]
    pub(crate) only_services: bool,
}

fn absolute(text: &str) -> Result<PathBuf, String> {
    let normal = |component| matches!(component, Component::RootDir | Component::Normal(_));
    let path = Path::new(text);
    // The path becomes a part of units: a blank would end the name of the program there, and `%` begins a specifier.
    let plain = text.chars().all(|c| c.is_ascii_alphanumeric() || "/-_.+".contains(c));
    if path.is_absolute() && path.components().all(normal) && plain {
        Ok(path.components().collect())
    } else {
        Err("it must begin with `/`, and have only letters, digits and -_.+ in its names".to_owned())
    }
}

/// Names of commands in other programs.
const WORDS_OF_OTHERS: [(&str, &str); 10] = [
    ("start", "up"),
    ("connect", "up"),
    ("run", "up"),
    ("stop", "down"),
    ("disconnect", "down"),
    ("restart", "reload"),
    ("list", "status"),
    ("ls", "status"),
    ("logs", "status"),
    ("peers", "peer"),
];

/// Returns the command with a similar name, or the command that other programs call `word`.
fn similar_command(word: &str) -> Option<String> {
    if let Some((_, command)) = WORDS_OF_OTHERS.iter().find(|(other, _)| *other == word) {
        return Some((*command).to_owned());
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
    fn a_wrong_value_of_a_variable_names_the_variable() {
        let words = |line: &str| line.split(' ').map(OsString::from).collect::<Vec<_>>();
        let said = |line: &str, words: &[OsString]| {
            let error = command().try_get_matches_from(line.split(' ')).unwrap_err();
            of_variable(error, words).to_string()
        };
        // The option's value stands for the variable's value, because a test cannot set variables of its process.
        let line = "rustguard up wg0 --queues=many";
        let by_variable = said(line, &words("rustguard up wg0"));
        assert!(by_variable.contains("'many' for 'RUSTGUARD_QUEUES'"), "{by_variable}");
        for line in [line, "rustguard up wg0 --queues many"] {
            let by_option = said(line, &words(line));
            assert!(by_option.contains("'many' for '--queues <N>'"), "{by_option}");
        }
    }

    #[test]
    fn an_option_before_the_command_that_it_belongs_to_is_shown_behind_it() {
        let error = command().try_get_matches_from("rustguard serve -i rg1 backup rg1.backup".split(' ')).unwrap_err();
        let text = behind_the_command(error).to_string();
        assert!(text.contains("tip: options of 'backup' stand behind it: 'backup --interface <NAME>'"), "{text}");
        let other = command().try_get_matches_from(["rustguard", "serve", "--pool"]).unwrap_err();
        let before = other.to_string();
        assert_eq!(behind_the_command(other).to_string(), before);
    }

    #[test]
    fn an_unknown_word_is_named_with_the_command_that_was_meant() {
        let slips = [("shwo", "show"), ("dwon", "down"), ("genky", "genkey"), ("chekc", "check")];
        for (word, meant) in slips.into_iter().chain(WORDS_OF_OTHERS) {
            let text = unknown_command(word).to_string();
            assert!(text.contains(word) && text.contains(&format!("'{meant}'")), "{text}");
        }
        for word in ["office", "wgtest", "tunnel"] {
            assert_eq!(similar_command(word), None, "{word}");
        }
    }
}
