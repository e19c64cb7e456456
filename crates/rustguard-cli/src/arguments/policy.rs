//! `rustguard policy`.

use super::enrolment::Served;
use clap::Subcommand;
use std::path::PathBuf;

/// The subcommands of `policy`.
#[derive(Debug, Subcommand)]
pub(crate) enum Policy {
    /// Check a policy, and run its tests
    ///
    /// Reports every error and warning with its line, its column and a remedy. Names and tags are compared with the
    /// machines of the network, if this machine is its server. Changes nothing: `rustguard reload` applies the policy.
    #[command(after_help = "\
Exit status:
  0  no errors (with --strict: no warnings either)
  1  errors, or a test does not hold
  2  the file cannot be read

Examples:
  rustguard policy check
  rustguard policy check ./new.policy --strict")]
    Check {
        /// The file [default: /etc/rustguard/NAME.policy]
        file: Option<PathBuf>,
        /// Fail if there are warnings
        #[arg(long)]
        strict: bool,
        #[command(flatten)]
        interface: Served,
        /// Print JSON
        #[arg(long)]
        json: bool,
    },
    /// Say whether one machine may talk to another, and which line decides
    #[command(after_help = "\
Exit status:
  0  it may
  1  it may not, or only in part
  2  another failure

Examples:
  rustguard policy test laptop db tcp/5432
  rustguard policy test laptop 192.168.1.7 icmp")]
    Test {
        /// The source: a machine, or an address
        from: String,
        /// The destination: a machine, or an address
        to: String,
        /// The traffic, such as tcp/22 or icmp [default: everything]
        #[arg(value_name = "PROTO/PORT")]
        traffic: Option<String>,
        #[command(flatten)]
        interface: Served,
        /// Print JSON
        #[arg(long)]
        json: bool,
    },
    /// Show what a machine may do, and who may talk to it
    Show {
        /// The machine
        machine: String,
        #[command(flatten)]
        interface: Served,
        /// Print JSON
        #[arg(long)]
        json: bool,
    },
}
