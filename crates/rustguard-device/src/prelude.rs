//! The imports of a program that embeds a tunnel: `use rustguard_device::prelude::*;`.

pub use crate::{
    AllowedIpChange, Change, CloseReason, Device, DeviceHandle, DropReason, EndpointSpec, Event, Events, MemoryBinder,
    PathSpec, PeerStatus, PeerUpdate, PingError, Pong, PresharedKey, Relay, StartError, Status, Update, UpdateError,
    Way,
};
pub use ipnet::IpNet;
pub use rustguard_crypto::x25519::{PublicKey, StaticSecret};
