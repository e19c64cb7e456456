//! The arguments of the commands for meshes, and of the demonstrations.

use clap::{Args, Subcommand, ValueEnum};
use std::{ffi::OsString, net::IpAddr, path::PathBuf};

/// `rustguard trace`.
#[derive(Args, Debug)]
pub(crate) struct Trace {
    /// The destination: an address inside the mesh
    pub(crate) address: IpAddr,
    #[command(flatten)]
    pub(crate) interface: Interface,
    /// Print JSON
    #[arg(long)]
    pub(crate) json: bool,
}

/// `rustguard map`.
#[derive(Args, Debug)]
pub(crate) struct Map {
    #[command(flatten)]
    pub(crate) interface: Interface,
    /// The format: a picture for browsers, or the input of Graphviz
    #[arg(long, value_enum, default_value_t)]
    pub(crate) format: Format,
    /// Print JSON
    #[arg(long, conflicts_with = "format")]
    pub(crate) json: bool,
    /// Write the map into this file instead of to standard output
    #[arg(short, long, value_name = "FILE")]
    pub(crate) output: Option<PathBuf>,
}

/// The interface that is part of the mesh.
#[derive(Args, Debug)]
pub(crate) struct Interface {
    /// The interface [default: the only one that the command fits]
    #[arg(short, long, value_name = "NAME")]
    pub(crate) interface: Option<String>,
}

/// `--format`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
#[allow(missing_docs, reason = "the option's help says it")]
pub(crate) enum Format {
    #[default]
    Svg,
    Dot,
}

/// `rustguard demo …`.
#[derive(Debug, Subcommand)]
pub(crate) enum Demo {
    /// Demonstrate a mesh that heals: five nodes in a ring, and a link that fails silently
    ///
    /// Every node sends to every other node. One link loses all packets, and later works again. The effects are
    /// printed, and drawn over time. Takes about ten seconds and leaves nothing behind but the picture.
    Mesh {
        /// The file for the picture (SVG) [default: a new file in the temporary folder]
        #[arg(long, value_name = "FILE")]
        picture: Option<PathBuf>,
    },

    /// Demonstrate a direct way through two NATs, and a relay that takes over
    ///
    /// Two nodes are behind routers that translate addresses, and begin to talk through a relay. They find a direct
    /// way. It is blocked, and later opened again. The effects are timed. Needs nft. Takes about six seconds and leaves
    /// nothing behind.
    Nat,

    /// Demonstrate a network that others join: direct, and through another server when one dies
    ///
    /// Two servers, and two members behind routers that translate addresses. `serve`, `invite` and `join` run as on
    /// machines of their own. The members talk through a server, then directly. A server is killed, the direct way is
    /// blocked, and they talk through the other server. The effects are timed. Needs nft. Takes about six seconds and
    /// leaves nothing behind.
    Network,

    /// Demonstrate three servers on one store: one dies while machines join, and then the store
    ///
    /// Each of three servers admits machines and signs the list of members. One is killed while a machine joins.
    /// Later the store is killed as well, and comes back. The effects are timed. Needs etcd. Takes about ten seconds
    /// and leaves nothing behind.
    Servers,

    /// Run a command of a demonstration, which ends with it
    #[command(hide = true)]
    Command {
        /// Run this program in place of rustguard
        #[arg(long)]
        program: Option<PathBuf>,
        /// The process of the demonstration
        parent: i32,
        /// The arguments of the command
        #[arg(trailing_var_arg = true, allow_hyphen_values = true, required = true)]
        words: Vec<OsString>,
    },
}

/// `rustguard routes` and `rustguard neighbours`.
#[derive(Args, Debug)]
pub(crate) struct Routes {
    /// The interface [default: the one with a routing protocol]
    #[arg(value_name = "NAME")]
    pub(crate) interface: Option<String>,
    /// Print JSON
    #[arg(long)]
    pub(crate) json: bool,
    /// Update the output every second until Ctrl-C
    #[arg(short, long, conflicts_with = "json")]
    pub(crate) watch: bool,
}
