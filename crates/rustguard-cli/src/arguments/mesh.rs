//! The arguments of the commands that look at a mesh, and of the demonstration of one.

use clap::{Args, Subcommand, ValueEnum};
use std::{net::IpAddr, path::PathBuf};

/// `rustguard trace`.
#[derive(Args, Debug)]
pub(crate) struct Trace {
    /// Where to: an address inside the mesh
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
    /// A picture for browsers, or the input of Graphviz
    #[arg(long, value_enum, default_value_t)]
    pub(crate) format: Format,
    /// Write it into this file instead of to standard output
    #[arg(short, long, value_name = "FILE")]
    pub(crate) output: Option<PathBuf>,
}

/// The interface that is part of the mesh.
#[derive(Args, Debug)]
pub(crate) struct Interface {
    /// The interface [default: the one with a routing protocol]
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
    /// Show a mesh that heals: five nodes in a ring, and a link that goes dead without a word
    ///
    /// Every node sends to every other. One link loses everything, later it works again; what that does to whom is printed,
    /// and drawn over time. Takes about ten seconds and leaves nothing behind but the picture.
    Mesh {
        /// Where the picture (SVG) goes [default: a new file in the temporary folder]
        #[arg(long, value_name = "FILE")]
        picture: Option<PathBuf>,
    },
}
