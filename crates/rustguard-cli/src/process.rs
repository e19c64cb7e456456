//! This process: background, environment, log, memory, signals.

pub(crate) mod detach;
pub(crate) mod harden;
pub(crate) mod inherited;
pub(crate) mod lifetime;
pub(crate) mod log;
pub(crate) mod metrics;
pub(crate) mod progress;
