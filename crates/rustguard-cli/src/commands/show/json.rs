//! The state of interfaces for programs: the reports of their devices, each with its name.

use super::Device;
use serde::Serialize;
use std::io::{self, Write};

/// An interface. [`DeviceView`](rustguard_device::uapi::DeviceView) describes the fields.
#[derive(Serialize)]
pub(in crate::commands) struct JsonDevice<'a> {
    interface: &'a str,
    #[serde(flatten)]
    device: Device,
}

/// Prints an array of interfaces. Without `secrets`, private and preshared keys are left out.
pub(super) fn print(out: &mut impl Write, devices: Vec<(String, Device)>, secrets: bool) -> io::Result<()> {
    let (names, devices): (Vec<_>, Vec<_>) = devices.into_iter().unzip();
    let shown = devices.into_iter().map(|device| if secrets { device } else { device.without_secrets() });
    let shown: Vec<_> = names.iter().zip(shown).map(|(interface, device)| JsonDevice { interface, device }).collect();
    serde_json::to_writer_pretty(&mut *out, &shown)?;
    writeln!(out)
}

/// An interface without its keys.
pub(in crate::commands) fn device(interface: &str, device: Device) -> JsonDevice<'_> {
    JsonDevice { interface, device: device.without_secrets() }
}
