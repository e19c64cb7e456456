//! The laboratory of the workspace-level suites. It uses real programs and the real kernel, and needs no separate
//! machine.
//!
//! Every test is a [`scenario`]. It runs in its own process, in new mount, network and PID namespaces with an empty
//! `/run`. All its effects (daemons, interfaces, routes, control sockets, `/etc/resolv.conf`) disappear with that
//! process, however it ends. Scenarios therefore see neither each other nor the machine, and can use the same interface
//! names in parallel. Benchmarks run [`isolated`] in the same way.
//!
//! Environment:
//!
//! | Variable | Meaning |
//! |---|---|
//! | `RUSTGUARD_BIN` | the program to test, instead of building it |
//! | `RUSTGUARD_WIREGUARD_GO` | wireguard-go, instead of looking for it in `PATH` and Go's `bin` folder |
//! | `RUSTGUARD_SUBJECT=wireguard-go` | tests the reference (wireguard-go, wg-quick), and so the laboratory itself |
//! | `RUSTGUARD_STAR=1` | runs the suites of enrolment with stars instead of networks (`serve --star`) |
//! | `RUSTGUARD_LONG=1` | runs the scenarios that wait for Rekey-After-Time in real time |
//! | `RUSTGUARD_FLOOD=1` | runs the floods, which take the whole machine |
//! | `CI=true` | a scenario that cannot run fails; otherwise it prints `SKIPPED` and the reason ([`rustguard_skip`]) |
#![forbid(unsafe_code)]

mod babel;
mod delay;
mod enrolment;
mod flood;
mod hostile_peer;
mod hub;
mod isolate;
mod issuer;
mod lab;
mod lying_relay;
mod members;
mod mesh;
mod name_service;
mod nat;
mod pair;
mod process;
mod programs;
mod relayed;
mod streams;
mod tunnel;
mod twice;
mod wg;

pub use babel::{HOSTILE_NET, HOSTILE_PREFIXES, Hostile};
pub use enrolment::{Network, Served, files_in, joined, network, served_log};
pub use flood::{Flood, garbage, stranger};
pub use hostile_peer::{HostilePeer, Traffic};
pub use hub::{HUB_A, HUB_B, HUB_C, Hub};
pub use isolate::{isolated, scenario, scenario_of_rustguard};
pub use issuer::{Issuer, Joined};
pub use lab::{Lab, Node};
pub use lying_relay::{LyingRelay, Overheard, Passing, Said};
pub use members::{Members, members, network_of};
pub use mesh::{Gaps, Mesh, Router, meshed, until_installed};
pub use name_service::NameService;
pub use nat::{Host, Internet, Ip, Nat, Site};
pub use pair::{INSIDE_A, INSIDE_B, Outside, Pair};
pub use process::{Ended, Process, eventually, unfolded};
pub use programs::{Missing, Program, Subject, program_for_everybody, rustguard, subject, wireguard_go};
pub use relayed::{Relayed, Running, Speaker};
pub use streams::{Streams, transfer};
pub use tunnel::{Conf, PeerConf, Tunnel, Up, spawn_until_ready};
pub use twice::{BOTH, LINKS, Loss, Twice, address, paths};
pub use wg::{Dump, DumpPeer, Keypair, preshared_key};

/// Makes two tests of one scenario `fn(&Lab, initiator: Program, responder: Program) -> anyhow::Result<()>`. RustGuard
/// is the initiator in one, and the responder in the other.
#[macro_export]
macro_rules! both_roles {
    ($($(#[$note:meta])* $name:ident => $scenario:ident;)*) => {$(
        $(#[$note])*
        mod $name {
            #[test]
            fn rustguard_initiates() {
                $crate::scenario(|lab| super::$scenario(lab, $crate::Program::Subject, $crate::Program::Reference));
            }

            #[test]
            fn rustguard_responds() {
                $crate::scenario(|lab| super::$scenario(lab, $crate::Program::Reference, $crate::Program::Subject));
            }
        }
    )*};
}
