//! The privileged helper: what a tunnel that has given up its rights cannot do itself, another process of its own does
//! for it.
//!
//! The tunnel starts it ([`Helper::start`]) while it still has the rights of the start, and gives them up afterwards.
//! The privileged helper ([`helper_process`](crate::helper_process)) keeps them. It has no socket of a network and one
//! connection: to its tunnel. It treats the tunnel as an adversary, because that reads what comes from the network:
//!
//! - The tasks are a closed list (`task::Task`). Each is made of values with a type. Names of files, tunables, tables
//!   and interfaces are made by the privileged helper, out of what it knows itself.
//! - A hook has to stand in the configuration file as this process has read it (`helper_process::knowledge`).
//! - What it tells systemd (`notify`) and the journal (`journal`) has a form, and no other field.
//! - Of files it writes the tunnel's own configuration, in which hooks stay as they are, and the records of hooks that
//!   are owed.
//!
//! It ends when the connection does, and so with the tunnel, however that ends. What it runs at that moment ends too.
//!
//! A process that has not given anything up has no privileged helper, and does all of this itself. So the functions of
//! [`host`](crate::host) and the session ask `get` first.

mod client;
mod journal;
mod line;
pub(crate) mod notify;
mod task;
mod values;

pub use client::{Helper, exists, open_socket, swap_state, swap_state_back};
pub(crate) use client::{get, unexpected};
pub(crate) use journal::Journal;
pub use journal::log;
pub use line::{Field, Level, Line};
pub use notify::{is_watched, notify};
pub use task::Notification;
pub(crate) use task::{Answer, Failure, Said, Save, Task, Told, When, frame, length, send_with};
pub(crate) use values::{Chain, Names, Rules};
pub use values::{DnsEntry, NameService};
