//! The functions of `wg-quick` for Rust programs: read a configuration file, start the tunnel, set up the host, and
//! undo everything at the end.
//!
//! ```no_run
//! use rustguard_quick::{Device, Session};
//!
//! # async fn example() -> Result<(), Box<dyn std::error::Error>> {
//! let mut session = Session::open("wg0").await?; // /etc/wireguard/wg0.conf
//! let started = session.start(Device::builder()).await;
//! if let (Ok(()), Some(device)) = (&started, session.device()) {
//!     tokio::select! {
//!         reason = device.closed() => println!("{reason}"),
//!         _ = tokio::signal::ctrl_c() => {}
//!     }
//! }
//! session.stop().await;
//! # Ok(started?)
//! # }
//! ```
//!
//! A [`Session`] is a complete tunnel. It claims its interface for one process ([`run_file`]), runs hooks, and records
//! all changes to the host, so that they can be undone even after a crash. Its two parts can be used without it: the
//! [files](conf), and the [set-up of the host](host) for an interface that another program made. A session that runs
//! takes over an edited file without losing a connection: see [`reload`].
//!
//! The feature `babel`, enabled by default, supports files with `Routing = babel`.
#![forbid(unsafe_code)]

mod aside;
#[cfg(feature = "babel")]
mod babel;
mod chain;
pub mod conf;
mod configure;
mod error;
mod gateway;
pub mod helper;
pub mod helper_process;
mod hooks;
pub mod host;
mod name_server;
mod overhead;
mod program;
pub mod reload;
#[cfg(feature = "babel")]
mod routing_state;
pub mod rpc;
pub mod run_file;
mod session;
mod session_record;

pub use aside::free_name;
pub use conf::FileError;
pub use configure::configured;
pub use error::{RoutingError, SessionError};
pub use hooks::{HookError, HookOutput};
pub use name_server::{NameServer, NotNameServer};
pub use run_file::RunFileError;
pub use rustguard_device::{Builder, Device};
pub use session::{Session, clean_up, left_behind};
pub use session_record::{SaveTunnelError, TunnelFile};
