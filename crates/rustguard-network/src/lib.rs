//! A member of a network on a running tunnel. [`rustguard_roster`] implements the lists of members and their
//! distribution, without I/O. [`rustguard_device`] implements the tunnel. This crate connects them.
//!
//! - [`Driver`] carries the messages of the exchange inside the sessions. Servers run it too.
//! - [`Agent`] is a machine as a member: the tunnel follows the newest roster, as far as its file permits.
//! - [`policy`] derives from a roster what a machine enforces.
//! - [`Names`] resolves the names of the members, with the server of [`dns`].
//! - [`Folder`] is the state folder of an interface.
#![forbid(unsafe_code)]

mod agent;
pub mod dns;
mod driver;
mod folder;
mod identity;
mod lost;
mod merge;
mod names;
pub mod policy;
mod report;
mod state;

pub use agent::{Agent, AgentError, kept_state};
pub use dns::Upstream;
pub use driver::{Driver, DriverEvent};
pub use folder::{Folder, FolderError};
pub use merge::{MTUS, Resolver};
pub use names::Names;
pub use report::{Listed, ListedRole, Report, Standing, short_name};
pub use rustguard_roster as roster;
