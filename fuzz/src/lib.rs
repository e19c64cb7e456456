//! The bodies of the fuzz targets. Each takes any bytes, and panics if a property in its documentation does not hold.
//!
//! With `fuzz/run TARGET`, a fuzzer chooses the bytes. The suite `tests/tests/corpus.rs` replays the committed corpus
//! and seeded mutations of it with an ordinary compiler.
#![forbid(unsafe_code)]

mod aead;
mod babel;
mod backup;
mod candidates;
mod config;
mod control_message;
mod dissect;
mod dns;
mod enrolment;
mod fec;
mod forward;
mod import;
mod messages;
mod offload;
mod paths;
mod policy;
mod roster;
mod roster_lab;
mod roster_message;
mod steps;
mod uapi;

pub use aead::aead;
pub use babel::babel;
pub use backup::backup;
pub use candidates::candidates;
pub use config::config;
pub use control_message::control_message;
pub use dissect::dissect;
pub use dns::dns;
pub use enrolment::enrolment;
pub use fec::fec;
pub use forward::forward;
pub use import::import;
pub use messages::messages;
pub use offload::offload;
pub use paths::paths;
pub use policy::policy;
pub use roster::roster;
pub use roster_message::roster_message;
pub use uapi::uapi;

/// A target's name and body, and the folder of its corpus below `fuzz/corpus`.
pub const TARGETS: [(&str, fn(&[u8])); 19] = [
    ("aead", aead),
    ("babel", babel),
    ("backup", backup),
    ("candidates", candidates),
    ("config", config),
    ("control_message", control_message),
    ("dissect", dissect),
    ("dns", dns),
    ("enrolment", enrolment),
    ("forward", forward),
    ("import", import),
    ("messages", messages),
    ("offload", offload),
    ("fec", fec),
    ("paths", paths),
    ("policy", policy),
    ("roster", roster),
    ("roster_message", roster_message),
    ("uapi", uapi),
];
