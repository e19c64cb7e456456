//! The arguments of `serve`, and of the commands below it.

use super::{
    data_path::DataPath,
    duration,
    enrolment::{Interface, TokenSource, network, on_off},
    logging::Logging,
    metrics::Metrics,
    web::Web,
};
use clap::{Args, Subcommand};
use ipnet::IpNet;
use std::{net::IpAddr, path::PathBuf, time::Duration};

/// `rustguard serve`.
#[derive(Args, Debug)]
#[command(args_conflicts_with_subcommands = true)]
pub(crate) struct Serve {
    #[command(subcommand)]
    pub(crate) command: Option<ServeCommand>,
    #[command(flatten)]
    pub(crate) interface: Interface,
    /// The pool of addresses for joined machines; once for IPv4, once for IPv6 [default: a random /24 of
    /// 10.0.0.0/8 and a random /64 of fd00::/8, which are kept]
    #[arg(long = "pool", value_name = "CIDR", value_parser = network)]
    pub(crate) pools: Vec<IpNet>,
    #[command(flatten)]
    pub(crate) token: TokenSource,
    /// The UDP port [default: 51820]
    #[arg(short, long, value_parser = clap::value_parser!(u16).range(1..))]
    pub(crate) port: Option<u16>,
    /// Open a pairing window at the start, for this time, for example 5m; at most 15m
    #[arg(long, value_name = "TIME", value_parser = duration::window)]
    pub(crate) open: Option<Duration>,
    /// The name or address at which others reach this machine, for invites [default: the address of the default route]
    #[arg(short, long, value_name = "HOST[:PORT]")]
    pub(crate) endpoint: Option<String>,
    /// A prefix that joined machines send through the tunnel, besides the pools; may be repeated
    #[arg(long = "route", value_name = "CIDR", value_parser = network)]
    pub(crate) routes: Vec<IpNet>,
    /// Forward packets of joined machines to the routes, with an address of this machine as their source. Otherwise
    /// the hosts there need a route back [default: off]
    #[arg(long, value_name = "ON|OFF", num_args = 0..=1, default_missing_value = "on", value_parser = on_off, require_equals = true)]
    pub(crate) nat: Option<bool>,
    /// A name server for joined machines; may be repeated
    #[arg(long = "dns", value_name = "ADDRESS")]
    pub(crate) dns: Vec<IpAddr>,
    /// A search domain for joined machines, or `~DOMAIN` for split DNS; may be repeated
    #[arg(long = "search", value_name = "DOMAIN", requires = "dns")]
    pub(crate) search: Vec<String>,
    /// Make no network: packets between joined machines go through this server, which decrypts them, and machines do
    /// not know each other [default: off]
    #[arg(long, value_name = "ON|OFF", num_args = 0..=1, default_missing_value = "on", value_parser = on_off, require_equals = true)]
    pub(crate) star: Option<bool>,
    /// The network's name, part of the names of its members [default: the name of the interface]
    #[arg(long, value_name = "LABEL")]
    pub(crate) name: Option<String>,
    /// The MTU of joined machines, in bytes [default: 1360; with --star, it depends on the way to the server]
    #[arg(long, value_name = "BYTES")]
    pub(crate) mtu: Option<u16>,
    /// Keep joined machines from reaching each other, which needs a star [default: off]
    #[arg(long, value_name = "ON|OFF", num_args = 0..=1, default_missing_value = "on", value_parser = on_off, require_equals = true)]
    pub(crate) isolate: Option<bool>,
    /// Take back the lease of a machine that has been silent for this time, for example 12h or 30d [default: never]
    #[arg(long, value_name = "TIME", value_parser = duration::duration)]
    pub(crate) lease: Option<Duration>,
    /// As --lease, for machines of ephemeral invites: at least 5m [default: 30m]
    #[arg(long, value_name = "TIME", value_parser = duration::duration)]
    pub(crate) ephemeral: Option<Duration>,
    /// Use the default of each option that is not given, instead of its stored value. The pools stay
    #[arg(long)]
    pub(crate) defaults: bool,
    #[command(flatten)]
    pub(crate) store: Store,
    /// Go into the background when the server is ready
    #[arg(short, long)]
    pub(crate) detach: bool,
    #[command(flatten)]
    pub(crate) metrics: Metrics,
    #[command(flatten)]
    pub(crate) web: Web,
    // For `--relay`: `serve` relays all packets between peers, whether the host forwards or not, unless netfilter has
    // rules for forwarded packets.
    #[command(flatten)]
    pub(crate) data_path: DataPath,
    #[command(flatten)]
    pub(crate) logging: Logging,
    #[command(flatten)]
    pub(crate) before: OptionsOfBefore,
}

/// The store that several servers share.
#[derive(Args, Debug)]
pub(crate) struct Store {
    /// Serve together with other machines, on a store that all of them share: etcd://HOST,HOST/PREFIX or
    /// postgres://USER@HOST/DATABASE [default: the state folder alone]
    #[arg(long = "store", value_name = "ADDRESS")]
    pub(crate) address: Option<String>,
    /// The file with the key of the network in the store, from the state folder of another server; `-` is standard
    /// input
    #[arg(long = "store-key", value_name = "FILE", requires = "address")]
    pub(crate) key: Option<PathBuf>,
    /// Go on with a store that was restored from an older backup: what was decided since is lost
    #[arg(long = "accept-older-store")]
    pub(crate) accept_older: bool,
    /// Put the network of this machine into an empty store
    #[arg(long, requires = "address")]
    pub(crate) adopt: bool,
}

/// Options of version 0.1 that are commands of `serve` now. No help shows them, and the next version removes them.
#[derive(Args, Debug)]
pub(crate) struct OptionsOfBefore {
    #[arg(long = "import", value_name = "FILE", num_args = 1.., hide = true)]
    pub(crate) imports: Vec<PathBuf>,
    #[arg(long, hide = true, requires = "imports", conflicts_with_all = ["detach", "no_up"])]
    pub(crate) dry_run: bool,
    #[arg(long, hide = true, requires = "imports", conflicts_with = "detach")]
    pub(crate) no_up: bool,
    #[arg(long, value_name = "FILE", hide = true, conflicts_with_all = ["imports", "detach"])]
    pub(crate) backup: Option<PathBuf>,
    #[arg(long, value_name = "FILE", hide = true, conflicts_with_all = ["imports", "detach", "backup"])]
    pub(crate) restore: Option<PathBuf>,
    #[arg(long, hide = true, requires = "restore")]
    pub(crate) yes: bool,
}

impl Serve {
    /// The command of `serve`, also if it was given as an option of version 0.1.
    pub(crate) fn command(&self) -> Option<ServeCommand> {
        let (before, interface) = (&self.before, self.interface.clone());
        if let Some(file) = before.backup.clone() {
            return Some(ServeCommand::Backup { file, interface });
        }
        if let Some(file) = before.restore.clone() {
            return Some(ServeCommand::Restore { file, yes: before.yes, interface });
        }
        self.command.clone()
    }

    /// The import that options of version 0.1 ask for. `serve` starts after it, unless an option forbids it.
    pub(crate) fn import(&self) -> Option<ServeImport> {
        let OptionsOfBefore { imports, dry_run, .. } = &self.before;
        (!imports.is_empty()).then(|| ServeImport {
            files: imports.clone(),
            pools: self.pools.clone(),
            port: self.port,
            dry_run: *dry_run,
            interface: self.interface.clone(),
        })
    }
}

/// The commands of `rustguard serve`.
#[derive(Clone, Debug, Subcommand)]
pub(crate) enum ServeCommand {
    /// Write everything that another machine needs to be this server into a file
    ///
    /// The server may run meanwhile. The file contains all keys of the network.
    #[command(after_help = "\
Examples:
  rustguard serve backup /root/rg0.backup
  rustguard serve backup - | age -p > rg0.backup.age")]
    Backup {
        /// The file; `-` is standard output
        file: PathBuf,
        #[command(flatten)]
        interface: Interface,
    },

    /// Put a backup in place of the server's state
    ///
    /// A running server starts again with it.
    #[command(after_help = "\
Examples:
  rustguard serve restore /root/rg0.backup
  age -d rg0.backup.age | rustguard serve restore -")]
    Restore {
        /// The backup; `-` is standard input
        file: PathBuf,
        /// Restore even if machines joined or were removed since the backup
        #[arg(long)]
        yes: bool,
        #[command(flatten)]
        interface: Interface,
    },

    /// On a standby: take the place of the network's server, which is gone for good
    ///
    /// The replaced server signs nothing any more as soon as any member tells it. `rustguard serve` starts this one.
    #[command(after_help = "\
Examples:
  rustguard serve take-over --dry-run
  rustguard serve take-over && rustguard serve -d")]
    TakeOver {
        /// Only say what would be taken over
        #[arg(long)]
        dry_run: bool,
        /// Take over even if the server has answered within three minutes
        #[arg(long)]
        yes: bool,
        #[command(flatten)]
        interface: Interface,
    },

    /// Take an existing WireGuard server over: its key, its addresses and its clients, which stay as they are
    ///
    /// `rustguard serve` starts it afterwards.
    #[command(after_help = "\
Examples:
  rustguard serve import /etc/wireguard/wg0.conf --dry-run
  rustguard serve import ~/.wg-easy/wg0.json")]
    Import(ServeImport),
}

/// `rustguard serve import`.
#[derive(Args, Clone, Debug)]
pub(crate) struct ServeImport {
    /// The file of wg-quick, or wg0.json of wg-easy; both may be given
    #[arg(value_name = "FILE", required = true)]
    pub(crate) files: Vec<PathBuf>,
    /// The pool of addresses for machines that join; once for IPv4, once for IPv6 [default: the networks of the
    /// server's addresses]
    #[arg(long = "pool", value_name = "CIDR", value_parser = network)]
    pub(crate) pools: Vec<IpNet>,
    /// The UDP port [default: the port of the server]
    #[arg(short, long, value_parser = clap::value_parser!(u16).range(1..))]
    pub(crate) port: Option<u16>,
    /// Only say what would be taken over, and what not
    #[arg(long)]
    pub(crate) dry_run: bool,
    #[command(flatten)]
    pub(crate) interface: Interface,
}
