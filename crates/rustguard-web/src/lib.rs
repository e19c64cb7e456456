//! A status page for the network of a running `rustguard serve`: the map, the members, the policy, the pairing window,
//! approvals, removal and the audit log, over HTTP, for a browser.
//!
//! The pages are rendered here, work without scripts, and load nothing from elsewhere. With scripts, they are live.
//! Every act is sent to the server through its [`Handle`](rustguard_serve::Handle), as commands are through the control
//! socket, and the audit log names the session.
//!
//! Nobody logs in with a password. `rustguard web`, on the machine, asks the server for a link. The link works once,
//! within five minutes.
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
//! The server has its own thread. It asks the service for its state at most once a second, however many browsers ask.
//! The resources that browsers can use are bounded: connections, headers, bodies, times, sessions, live pages.
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
