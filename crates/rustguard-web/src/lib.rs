//! A status page for the network of a running `rustguard serve`: the map, the members, the policy, the pairing window,
//! approvals, removal and the audit log, over HTTP, for a browser.
//!
//! The pages are made here, work without scripts, and load nothing from elsewhere. With scripts they are live. Every
//! act goes to the server by its [`Handle`](rustguard_serve::Handle), as the commands do by the control socket, and the
//! audit log says whose session it was.
//!
//! Nobody logs in by a password. `rustguard web` asks the server, on the machine, for a link; it works once, within
//! five minutes.
//!
//! ```no_run
//! # async fn example(mut service: rustguard_serve::Service, device: rustguard_device::Device) -> Result<(), Box<dyn std::error::Error>> {
//! use rustguard_web::{Options, Source, WebServer};
//!
//! let page = WebServer::bind(&Options::new("127.0.0.1:9580".parse()?), "rg0", &[])?;
//! service.set_page(page.links());
//! let source = Source::new("rg0", service.handle(), device.handle(), "/var/lib/rustguard/rg0/audit.jsonl".into());
//! page.attach(source.policy(service.policy()));
//! service.run().await;
//! # Ok(())
//! # }
//! ```
//!
//! The server is a thread of its own. It asks the service for its state at most once a second, whatever browsers ask
//! for, and what browsers can hold of it is bounded: connections, headers, bodies, times, sessions, live pages.
#![forbid(unsafe_code)]

mod body;
mod checks;
mod live;
mod log;
mod map;
mod options;
mod page;
mod policy;
mod qr;
mod round_trips;
mod routes;
mod server;
mod sessions;
mod snapshot;
mod state;
#[cfg(test)]
mod tests;
mod text;
mod tls;
mod window;

pub use options::{Options, OptionsError, TlsFiles};
pub use rustguard_device::listener::{Address, AddressError, BindError};
pub use server::{Links, StartError, WebServer};
pub use snapshot::Source;
pub use tls::TlsError;
