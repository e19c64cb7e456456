//! Enrolment on a running tunnel. [`Service`] is the part of `rustguard serve` beside the device. [`join`] is the first
//! part of `rustguard join`, before there is a device.
//!
//! [`rustguard_enroll`] has the protocol and the rules of leases, without I/O. [`rustguard_device`] is the tunnel. This
//! crate connects them: it has the sockets, files, the clock and the control socket.
//!
//! ```no_run
//! # async fn serve() -> Result<(), Box<dyn std::error::Error>> {
//! use rustguard_serve::{Folder, Prepared, Service, Settings};
//!
//! let folder = Folder::open("rg0")?;
//! let settings = Settings::load(&folder)?.unwrap_or_else(|| Settings::fresh(&[], true));
//! let prepared = Prepared::new("rg0", &folder, settings, None)?;
//! let addresses = prepared.addresses();
//! let (builder, configured) = prepared.configure(rustguard_device::Device::builder());
//! let device = builder.start("rg0")?;
//! // … set `addresses` on the interface: rustguard_quick::host …
//! Service::start(configured, &device)?.run().await;
//! # Ok(())
//! # }
//! ```
#![forbid(unsafe_code)]

mod audit;
mod backup;
mod clock;
mod counters;
mod documents;
mod endpoints;
mod held;
mod import;
mod imported;
mod join;
mod network;
mod peer;
mod policy;
mod prepare;
pub mod replica;
pub mod request;
mod seat;
mod service;
mod settings;
mod socket;
mod store;
mod words;

pub use backup::{
    Backup, BackupError, Losses, MAX_BACKUP, Restored, Standby, StandbyState, TakenOver, check_backup_place,
    write_backup,
};
pub use counters::Counters;
pub use import::{Import, ImportError, ImportOptions, ImportedPeer, Stored};
pub use join::{JoinError, JoinOptions, Membership, Progress, join};
pub use network::{KnownNetwork, NETWORK_KEY, key_before::KeyBeforeError, replaced::Replaced};
pub use policy::{InForce, PolicyError, PolicyHandle, PutPolicy, policy_path, read_policy, read_policy_text};
pub use prepare::{Configured, PrepareError, Prepared};
pub use rustguard_network::{Folder, FolderError, roster::shown_number};
pub use seat::{Seat, SeatError, SharedStore, read_store_key, store_of};
pub use service::{Figures, FiguresHandle, Handle, Service, StartError, StatusPage, WebLink};
pub use settings::{
    DEFAULT_PORT, LEAST_EPHEMERAL, MAX_MTU, MIN_MTU, NETWORK_MTU, NetworkSettings, Reach, Settings, SettingsChange,
    SettingsError,
};
pub use socket::{AskError, ask, is_served, served};
pub use store::{FileStore, FileStoreError};

/// Bodies of fuzz targets.
#[doc(hidden)]
pub mod fuzz {
    pub use crate::{backup::fuzz as backup, import::fuzz as import};
}

/// The default interface.
pub const DEFAULT_INTERFACE: &str = "rg0";
