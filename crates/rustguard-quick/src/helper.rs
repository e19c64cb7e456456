//! The privileged helper: a process that does the tasks for which a tunnel has given up the rights.
//!
//! The tunnel starts it ([`Helper::start`]) while it still has the rights of the start, and gives them up afterwards.
//! The privileged helper ([`helper_process`](crate::helper_process)) keeps them. It has no network sockets, and its
//! only connection leads to its tunnel. It treats the tunnel as an adversary, because the tunnel reads input from the
//! network:
//!
//! - The tasks are a closed list (`task::Task`). Each consists of typed values. The privileged helper makes the names
//!   of files, tunables, tables and interfaces from its own knowledge.
//! - A hook has to be in the configuration file as the privileged helper has read it (`helper_process::knowledge`).
//! - Its messages to systemd (`notify`) and the journal (`journal`) have a fixed form, without other fields.
//! - It writes only two kinds of files: the tunnel's own configuration, in which hooks stay as they are, and the
//!   records of hooks that have to run later.
//!
//! It ends with the connection, and so with the tunnel, however the tunnel ends. Programs that it runs at that moment
//! end too.
//!
//! A process that has kept its rights has no privileged helper, and does all of this itself. So the functions of
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
