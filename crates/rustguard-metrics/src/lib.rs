//! Metrics of a running tunnel for Prometheus and compatible systems, and health probes, over HTTP.
//!
//! ```no_run
//! # async fn example(device: rustguard_device::Device) -> Result<(), Box<dyn std::error::Error>> {
//! use rustguard_metrics::{Exporter, Source};
//!
//! // Answers from here on. The tunnel is not ready yet.
//! let exporter = Exporter::bind(&"127.0.0.1:9586".parse()?, &[])?;
//! // … start the device, set addresses and routes …
//! exporter.attach(Source::new("wg0", device.handle()));
//! # Ok(())
//! # }
//! ```
//!
//! | Path | Answer |
//! |---|---|
//! | `/metrics` | the metrics: OpenMetrics 1.0 for scrapers that ask for it, or else the text format of Prometheus |
//! | `/healthz` | 200 while the process works and the device answers, or else 503 |
//! | `/readyz` | 200 once a [`Source`] was attached, while the device answers and its interface is up, or else 503 |
//!
//! The server has its own thread. The device's control thread takes a snapshot of its state at most once per second,
//! however many scrapers ask. The text is made from it on the server's thread. No scraper delays the tunnel.
//!
//! The data is not secret, but it is not public either: it contains names, public keys and inner addresses of peers.
//! There is no authentication. A Unix socket has the mode 0660. At an address, everybody who reaches the port can read.
#![forbid(unsafe_code)]

mod exporter;
mod families;
mod http;
mod page;
mod snapshot;
mod text_format;

pub use exporter::Exporter;
pub use page::Source;
pub use rustguard_device::listener::{Address, AddressError, BindError};
pub use snapshot::{Enrolment, Network, Pool};
