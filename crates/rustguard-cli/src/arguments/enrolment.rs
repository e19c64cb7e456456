//! The arguments of `join`, and of the commands for a running `serve`.

use super::{data_path::DataPath, duration, logging::Logging, metrics::Metrics};
use clap::{Args, Subcommand};
use ipnet::IpNet;
use std::{net::IpAddr, path::PathBuf, time::Duration};

/// The interface of a server or of a joined machine.
#[derive(Args, Clone, Debug)]
pub(crate) struct Interface {
    /// The interface
    #[arg(short, long, default_value = rustguard_serve::DEFAULT_INTERFACE, value_name = "NAME")]
    pub(crate) interface: String,
}

impl Interface {
    /// ` --interface NAME` for commands in messages, if it is not the default.
    pub(crate) fn option(&self) -> String {
        let default = self.interface == rustguard_serve::DEFAULT_INTERFACE;
        if default { String::new() } else { format!(" --interface {}", self.interface) }
    }
}

/// The interface of a running server.
#[derive(Args, Clone, Debug)]
pub(crate) struct Served {
    /// The interface [default: the one that is served]
    #[arg(short, long, value_name = "NAME")]
    pub(crate) interface: Option<String>,
}

impl Served {
    /// ` --interface NAME` for commands in messages, if it was given and is not the default of `serve`.
    pub(crate) fn option(&self) -> String {
        let given = self.interface.as_deref().filter(|&name| name != rustguard_serve::DEFAULT_INTERFACE);
        given.map(|name| format!(" --interface {name}")).unwrap_or_default()
    }
}

/// The token: from the command line, standard input or a file.
#[derive(Args, Clone, Debug)]
pub(crate) struct TokenSource {
    /// The token; `-` reads it from standard input
    ///
    /// Every user of this machine can see a token on the command line (`ps`), and the shell keeps it in its history. A
    /// token in the environment (RUSTGUARD_TOKEN) or in a file stays private.
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

/// `rustguard join`.
#[derive(Args, Debug)]
pub(crate) struct Join {
    /// The server: a name or an address. Most invites contain it. The others of the invite are tried after it
    #[arg(value_name = "HOST[:PORT]")]
    pub(crate) server: Option<String>,
    #[command(flatten)]
    pub(crate) token: TokenSource,
    #[command(flatten)]
    pub(crate) interface: Interface,
    /// The name of this machine on the server [default: the host name]
    #[arg(short, long)]
    pub(crate) name: Option<String>,
    /// Let the server forget this machine when it has been silent for a while, for example a container
    #[arg(long)]
    pub(crate) ephemeral: bool,
    /// Accept a default route from the server: all traffic goes through the tunnel [default: ask; without a terminal,
    /// off]
    #[arg(long, value_name = "ON|OFF", num_args = 0..=1, default_missing_value = "on", value_parser = on_off, require_equals = true)]
    pub(crate) accept_default_route: Option<bool>,
    /// Accept name servers from the server, which then resolve all names [default: ask; without a terminal, off]
    #[arg(long, value_name = "ON|OFF", num_args = 0..=1, default_missing_value = "on", value_parser = on_off, require_equals = true)]
    pub(crate) accept_dns: Option<bool>,
    /// Accept this route from the server although it overlaps a network of this machine, or has addresses of the
    /// Internet; may be repeated
    #[arg(long = "accept-route", value_name = "CIDR", value_parser = network)]
    pub(crate) accept_routes: Vec<IpNet>,
    /// Announce a network behind this machine to the members of the network; the server's administrator admits it with
    /// `rustguard peer allow`; may be repeated
    #[arg(long, value_name = "CIDR", value_parser = network)]
    pub(crate) announce: Vec<IpNet>,
    /// Forward packets to the networks of --announce, with an address of this machine as their source, so that hosts
    /// there need no route back
    #[arg(long, requires = "announce")]
    pub(crate) nat: bool,
    /// Be a further server of the network, reachable at this name or address; needs an invite of `rustguard invite new
    /// --server`
    #[arg(long, value_name = "HOST[:PORT]")]
    pub(crate) endpoint: Option<String>,
    /// Keep the state of the server on this machine as well, so that it can take its place (`rustguard serve
    /// take-over`); needs an invite of `rustguard invite new --standby`
    #[arg(long, requires = "endpoint")]
    pub(crate) standby: bool,
    /// Give up when the machine has not joined within this time, for example 90s or 5m; 0 tries without end
    #[arg(long, value_name = "TIME", default_value = "0", value_parser = duration::seconds)]
    pub(crate) timeout: Duration,
    /// Go into the background when the tunnel is up
    #[arg(short, long)]
    pub(crate) detach: bool,
    /// Write the configuration without bringing the tunnel up
    #[arg(long, conflicts_with = "detach")]
    pub(crate) no_up: bool,
    #[command(flatten)]
    pub(crate) metrics: Metrics,
    #[command(flatten)]
    pub(crate) data_path: DataPath,
    #[command(flatten)]
    pub(crate) logging: Logging,
}

/// `rustguard open`.
#[derive(Args, Debug)]
pub(crate) struct Open {
    /// How long the window is open, for example 90s or 5m; at most 15m. A number alone means seconds
    #[arg(value_name = "TIME", default_value = "60s", value_parser = duration::window)]
    pub(crate) time: Duration,
    /// Let each machine wait until `rustguard approve` admits it
    #[arg(long)]
    pub(crate) approve: bool,
    #[command(flatten)]
    pub(crate) interface: Served,
    /// Print JSON
    #[arg(long)]
    pub(crate) json: bool,
}

/// `rustguard status`.
#[derive(Args, Debug)]
pub(crate) struct Status {
    /// The interface [default: the one that is served, or else the only tunnel that is up]
    #[arg(value_name = "NAME", conflicts_with = "interface")]
    pub(crate) name: Option<String>,
    #[command(flatten)]
    pub(crate) interface: Served,
    /// Print JSON
    #[arg(long)]
    pub(crate) json: bool,
    /// Update the output every second, with throughput, until Ctrl-C
    #[arg(short, long, conflicts_with = "json")]
    pub(crate) watch: bool,
}

/// `rustguard invite`.
#[derive(Debug, Subcommand)]
pub(crate) enum Invite {
    /// Create an invite, and print the command that joins with it
    #[command(after_help = "\
Examples:
  rustguard invite new                    one machine, within a day
  rustguard invite new --uses 10 --expires 7d --tag ci
  rustguard invite new --tag site --allow 192.168.1.0/24
                                          a machine with a network behind it
  rustguard invite new --count 10 --json  ten invites for one machine each
  rustguard invite new --qr --name phone  for a WireGuard app, valid for a day")]
    New {
        /// How many machines may use the invite
        #[arg(long, default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..))]
        uses: u32,
        /// How long the invite can be used, for example 90m, 24h or 7d
        #[arg(long, value_name = "TIME", default_value = "24h", value_parser = duration::duration)]
        expires: Duration,
        /// A tag for the peers of this invite; may be repeated
        #[arg(long = "tag", value_name = "TAG")]
        tags: Vec<String>,
        /// The address for the machine; once for IPv4, once for IPv6
        #[arg(long = "address", value_name = "ADDRESS", conflicts_with = "uses")]
        addresses: Vec<IpAddr>,
        /// A prefix behind the machines of this invite, which they may announce; may be repeated
        #[arg(long = "allow", value_name = "CIDR", value_parser = network)]
        prefixes: Vec<IpNet>,
        /// With --allow: a default route is intended
        #[arg(long, requires = "prefixes")]
        default_route: bool,
        /// Admit a further server of the network, which forwards for the members and tells them the roster
        #[arg(long, conflicts_with = "uses")]
        server: bool,
        /// Admit a further server that can take the place of this one: it gets all keys of the network
        #[arg(long, conflicts_with = "uses")]
        standby: bool,
        /// Remove the machines of this invite when they have been silent for a while
        #[arg(long)]
        ephemeral: bool,
        /// The name or address of the server, instead of the one that the server has found
        #[arg(short, long, value_name = "HOST[:PORT]")]
        endpoint: Option<String>,
        /// Create the invite although one like it (same uses and terms) has not been used yet
        #[arg(long)]
        another: bool,
        /// Revoke unused invites like this one, whose tokens may be lost
        #[arg(long, conflicts_with = "another")]
        replace: bool,
        /// Create several invites; with --json, a list
        #[arg(long, value_name = "NUMBER", value_parser = clap::value_parser!(u16).range(1..=1000), conflicts_with_all = ["replace", "addresses"])]
        count: Option<u16>,
        /// Show a complete configuration for a WireGuard app as a QR code. Unused, it expires like an invite
        #[arg(long, conflicts_with_all = ["uses", "tags", "prefixes", "server", "standby", "ephemeral", "json", "another", "replace", "count"])]
        qr: bool,
        /// With --qr: the name of the peer
        #[arg(long, requires = "qr", default_value = "phone")]
        name: String,
        #[command(flatten)]
        interface: Served,
        /// Print JSON
        #[arg(long)]
        json: bool,
    },
    /// List invites
    Ls {
        #[command(flatten)]
        interface: Served,
        /// Print JSON
        #[arg(long)]
        json: bool,
    },
    /// Revoke an invite. Machines that have joined with it stay
    Revoke {
        /// The identifier of the invite, as `invite ls` shows it
        id: String,
        #[command(flatten)]
        interface: Served,
    },
}

/// `rustguard key`.
#[derive(Debug, Subcommand)]
pub(crate) enum Key {
    /// Give this machine another key in its network
    ///
    /// The machine makes a new WireGuard key, stores it, and tells the server inside its session. Addresses, name and
    /// connections stay. Each other machine refuses the old key as soon as it has the list of members with the new key,
    /// within a second if it is connected. For machines that are off meanwhile, this machine answers to the old key for
    /// a day.
    ///
    /// The first server answers to its old key for 7 days. Its earlier invites are valid until then. An administrator
    /// has to give the new key to stock WireGuard peers: the command lists them, and changes nothing without `--yes`.
    ///
    /// Anyone with a copy of the key can do the same. If an attacker controlled a machine, remove it (`rustguard peer
    /// rm`).
    #[command(after_help = "Example:\n  rustguard key rotate rg0")]
    Rotate {
        /// The interface [default: the only tunnel that is up]
        #[arg(value_name = "NAME")]
        interface: Option<String>,
        /// On the first server: change its key although some peers do not learn the new key from the list of members
        #[arg(long)]
        yes: bool,
    },
}

/// `rustguard peer`.
#[derive(Debug, Subcommand)]
pub(crate) enum Peer {
    /// List peers
    Ls {
        #[command(flatten)]
        interface: Served,
        /// Print JSON
        #[arg(long)]
        json: bool,
        /// Update the output every second, with throughput, until Ctrl-C
        #[arg(short, long, conflicts_with = "json")]
        watch: bool,
    },
    /// Add a peer that runs another WireGuard, and make a configuration for it
    ///
    /// The private key in the configuration is generated here, shown once, and not stored.
    #[command(group(clap::ArgGroup::new("form").required(true).args(["qr", "conf", "public_key"])), after_help = "\
Examples:
  rustguard peer add phone --qr                 scan it with the WireGuard app
  rustguard peer add router --conf router.conf  for wg-quick; `-` prints it
  rustguard peer add box --public-key \"$KEY\"    the peer has its own key",
        override_usage = "rustguard peer add [OPTIONS] <NAME> <--qr|--conf FILE|--public-key KEY>")]
    Add {
        /// The name of the peer
        name: String,
        /// Show the configuration as a QR code
        #[arg(long)]
        qr: bool,
        /// Write the configuration into this file; `-` prints it
        #[arg(long, value_name = "FILE")]
        conf: Option<PathBuf>,
        /// The peer's public key, if the peer has generated its own keys
        #[arg(long, value_name = "KEY")]
        public_key: Option<String>,
        /// The address of the peer; once for IPv4, once for IPv6
        #[arg(long = "address", value_name = "ADDRESS")]
        addresses: Vec<IpAddr>,
        /// The name or address of the server, instead of the one that the server has found
        #[arg(short, long, value_name = "HOST[:PORT]")]
        endpoint: Option<String>,
        #[command(flatten)]
        interface: Served,
        /// Print JSON: the key and the addresses of the peer, and the configuration unless it goes into a file
        #[arg(long, conflicts_with = "qr")]
        json: bool,
    },
    /// Remove a peer. Its sessions end at once, and its key is not admitted again
    ///
    /// The machine could generate another key and join as another peer, with the same invite if it is still valid, or
    /// through an open window. The output says how the peer joined; --revoke closes that way.
    Rm {
        /// Name, address or public key
        peer: String,
        /// Also revoke the invite with which the peer joined, or close the window. Other peers that joined in this way
        /// stay
        #[arg(long)]
        revoke: bool,
        #[command(flatten)]
        interface: Served,
        /// Print JSON
        #[arg(long)]
        json: bool,
    },
    /// Give a peer another name
    Rename {
        /// Name, address or public key
        peer: String,
        /// The new name
        name: String,
        #[command(flatten)]
        interface: Served,
    },
    /// Admit more prefixes behind a peer
    ///
    /// A member of the network gets traffic for a prefix when it announces the prefix, or a part of it. Any other peer
    /// gets it at once.
    #[command(after_help = "\
Examples:
  rustguard peer allow office 192.168.1.0/24
  rustguard peer allow exit 0.0.0.0/0 --default-route")]
    Allow {
        /// Name, address or public key
        peer: String,
        /// The prefixes
        #[arg(value_name = "CIDR", required = true, value_parser = network)]
        prefixes: Vec<IpNet>,
        /// A default route is intended
        #[arg(long)]
        default_route: bool,
        #[command(flatten)]
        interface: Served,
        /// Print JSON
        #[arg(long)]
        json: bool,
    },
    /// Take back prefixes that were admitted
    Deny {
        /// Name, address or public key
        peer: String,
        /// The prefixes
        #[arg(value_name = "CIDR", required = true, value_parser = network)]
        prefixes: Vec<IpNet>,
        #[command(flatten)]
        interface: Served,
        /// Print JSON
        #[arg(long)]
        json: bool,
    },
    /// Give a peer tags
    Tag(Tags),
    /// Take tags from a peer
    Untag(Tags),
}

/// The tags of a peer.
#[derive(Args, Clone, Debug)]
pub(crate) struct Tags {
    /// Name, address or public key
    pub(crate) peer: String,
    /// The tags
    #[arg(value_name = "TAG", required = true)]
    pub(crate) tags: Vec<String>,
    #[command(flatten)]
    pub(crate) interface: Served,
    /// Print JSON
    #[arg(long)]
    pub(crate) json: bool,
}

/// A network, such as 10.83.41.0/24.
pub(super) fn network(text: &str) -> Result<IpNet, String> {
    text.parse().map_err(|_| match text.parse::<IpAddr>() {
        Ok(address) => {
            let (net, one) = if address.is_ipv4() { (24, 32) } else { (64, 128) };
            format!("it has no prefix length; write {address}/{net} for a network, or {address}/{one} for one address")
        }
        Err(_) => "it is not a network; write an address and the prefix length, for example 10.83.41.0/24".to_owned(),
    })
}

pub(super) fn on_off(text: &str) -> Result<bool, String> {
    match text {
        "on" => Ok(true),
        "off" => Ok(false),
        _ => Err("the value must be `on` or `off`".to_owned()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn networks_need_a_prefix_length() {
        assert_eq!(network("10.0.0.0/8"), Ok("10.0.0.0/8".parse().unwrap()));
        assert!(network("10.83.41.0").unwrap_err().contains("write 10.83.41.0/24"));
        assert!(network("fd00::").unwrap_err().contains("write fd00::/64"));
        for none in ["", "10.0.0.0/33", "10.0.0/8", "example.org"] {
            assert!(network(none).unwrap_err().contains("not a network"), "{none}");
        }
    }
}
