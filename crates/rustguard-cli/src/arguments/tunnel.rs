//! The arguments of the commands for running tunnels (`show`, `set`, `reload`, `doctor`) and for their files (`check`).

use clap::{Args, ValueEnum};

/// `rustguard show`.
#[derive(Args, Debug)]
pub(crate) struct Show {
    /// An interface, `all`, or `interfaces` for a list of their names
    #[arg(default_value = "all", hide_default_value = true)]
    pub(crate) interface: String,
    /// Print only this field, for scripts
    pub(crate) field: Option<Field>,
    /// Print JSON
    #[arg(long, conflicts_with = "field")]
    pub(crate) json: bool,
    /// Update the output every second until Ctrl-C
    #[arg(short, long, conflicts_with_all = ["json", "field"])]
    pub(crate) watch: bool,
}

impl Show {
    /// Whether all interfaces are requested.
    pub(crate) fn is_all(&self) -> bool {
        self.interface == "all"
    }
}

/// A single field that `show` can print.
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

impl Field {
    /// Whether it has secret keys.
    pub(crate) fn is_secret(self) -> bool {
        matches!(self, Self::PrivateKey | Self::PresharedKeys | Self::Dump)
    }
}

/// The words of `set`, for its help.
pub(super) const SET_WORDS: &str = "\
Words for the interface, which come first:
  listen-port PORT
  private-key FILE
  fwmark MARK                     a number, 0x and a number, or off

Words for a peer:
  peer PUBLICKEY|NAME             begins a peer; a new public key adds one
  remove
  preshared-key FILE
  endpoint HOST:PORT
  persistent-keepalive SECONDS    or off
  allowed-ips IP/LENGTH,...       in place of all; `` for none
  allowed-ips +IP/LENGTH,-...     adds and removes

Beyond `wg set`:
  remove PUBLICKEY|NAME           short for `peer PUBLICKEY|NAME remove`
  endpoint 'HOST:PORT via eth0, HOST:PORT'
                                  several endpoints, with their options
  endpoint 'via-peer PUBLICKEY|NAME'
                                  through another peer, which forwards
  name NAME
  direct on|off                   whether direct paths are looked for
  parity N|off                    a byte of parity for N of data, 2 to 20
  role router|client              in a mesh
  forward on|off                  for the interface: pass sealed datagrams on
                                  between peers

Keys come from files. /dev/stdin or - is standard input; an empty file removes the key.

Examples:
  rustguard set wg0 peer office endpoint 203.0.113.7:51820
  rustguard set wg0 peer office allowed-ips +10.8.1.0/24 --save
  rustguard set wg0 remove laptop --save
  rustguard genpsk | rustguard set wg0 peer office preshared-key /dev/stdin";

/// `rustguard set`.
#[derive(Args, Debug)]
pub(crate) struct Set {
    /// The interface
    #[arg(value_name = "NAME")]
    pub(crate) interface: String,
    /// The changes
    #[arg(value_name = "WORD", required = true, allow_hyphen_values = true)]
    pub(crate) words: Vec<String>,
    /// Change the configuration file too
    #[arg(long)]
    pub(crate) save: bool,
}

/// `rustguard reload`.
#[derive(Args, Debug)]
pub(crate) struct Reload {
    /// The name of a tunnel, or another configuration file for it [default: the only tunnel that is up]
    #[arg(value_name = "NAME|FILE")]
    pub(crate) target: Option<String>,
    /// Show the changes, and make none
    #[arg(short = 'n', long)]
    pub(crate) dry_run: bool,
    /// For `serve` with a state folder that is an older copy: take over the newest list of members, and nothing else
    #[arg(long, conflicts_with = "restored")]
    pub(crate) adopt: bool,
    /// For `serve` with a state folder that is an older copy: discard the newest list of members, and go on with the
    /// machines of the copy. Machines that joined later have to join again
    #[arg(long, conflicts_with = "dry_run")]
    pub(crate) restored: bool,
    /// Print JSON
    #[arg(long)]
    pub(crate) json: bool,
}

/// `rustguard doctor`.
#[derive(Args, Debug)]
pub(crate) struct Doctor {
    /// An interface, or a configuration file. By default, all interfaces that are up
    #[arg(value_name = "FILE|NAME")]
    pub(crate) target: Option<String>,
    /// Also end with status 1 if there are warnings
    #[arg(long)]
    pub(crate) strict: bool,
    /// Print JSON
    #[arg(long)]
    pub(crate) json: bool,
}

/// `rustguard check`.
#[derive(Args, Debug)]
pub(crate) struct Check {
    /// Configuration files, or the names of files in /etc/wireguard or /etc/rustguard
    #[arg(value_name = "FILE|NAME", required = true)]
    pub(crate) targets: Vec<String>,
    /// Fail if there are warnings
    #[arg(long)]
    pub(crate) strict: bool,
    /// Print JSON to standard output
    #[arg(long)]
    pub(crate) json: bool,
}
