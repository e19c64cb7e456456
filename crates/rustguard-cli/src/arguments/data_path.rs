//! The options of the data path, which `up`, `serve` and `join` share.

use clap::{Args, Command, Parser, ValueEnum};
use std::num::NonZeroUsize;

/// The options of the data path. Services can set each of them in the environment.
#[derive(Args, Clone, Debug)]
#[command(next_help_heading = "Data path")]
pub(crate) struct DataPath {
    /// The number of queues of the interface. Each has its own thread and sockets [default: one for two cores, at most
    /// 8]
    #[arg(long, value_name = "N", env = "RUSTGUARD_QUEUES", hide_env = true, value_parser = clap::value_parser!(u8).range(1..=64))]
    pub(crate) queues: Option<u8>,
    /// Exchange runs of packets with the kernel instead of single packets, where the kernel supports it
    #[arg(long, value_enum, default_value_t, env = "RUSTGUARD_OFFLOAD", hide_env = true, value_name = "ON|OFF")]
    pub(crate) offload: Offload,
    /// The interface to the kernel: `poll` is the fastest in measurements; `uring` is io_uring, for Linux 6.7 or newer
    #[arg(long, value_enum, default_value_t, env = "RUSTGUARD_IO", hide_env = true, value_name = "POLL|URING")]
    pub(crate) io: Io,
    /// Relay packets from peer to peer inside the tunnel, without the host
    ///
    /// `auto`: RustGuard relays packets that the host would forward back into the interface. With `serve` and with
    /// `Routing = babel` it relays all packets between peers, whether the host forwards or not. While netfilter has
    /// rules for forwarded packets, the host gets all of them. `unfiltered`: as `auto`, but netfilter's rules are
    /// ignored. `off`: the host gets all packets.
    #[arg(
        long,
        value_enum,
        default_value_t,
        env = "RUSTGUARD_RELAY",
        hide_env = true,
        value_name = "AUTO|UNFILTERED|OFF"
    )]
    pub(crate) relay: Relay,
}

impl DataPath {
    /// Reads the environment only: wg-quick gives a userspace implementation no options.
    pub(crate) fn from_environment() -> Self {
        #[derive(Parser)]
        struct Environment {
            #[command(flatten)]
            data_path: DataPath,
        }
        Environment::try_parse_from(["rustguard"])
            .unwrap_or_else(|error| super::of_variable(error, &[]).exit())
            .data_path
    }

    /// Configures a device.
    pub(crate) fn apply(&self, builder: rustguard_device::Builder) -> rustguard_device::Builder {
        let builder = builder
            .offload(match self.offload {
                Offload::On => rustguard_device::Offload::On,
                Offload::Off => rustguard_device::Offload::Off,
            })
            .io(match self.io {
                Io::Poll => rustguard_device::Io::Poll,
                Io::Uring => rustguard_device::Io::Uring,
            })
            .relay(match self.relay {
                Relay::Auto | Relay::Unfiltered => rustguard_device::Relay::Auto,
                Relay::Off => rustguard_device::Relay::Off,
            });
        let builder = if self.relay == Relay::Unfiltered { builder.relay_unfiltered() } else { builder };
        match self.queues.and_then(|queues| NonZeroUsize::new(queues.into())) {
            Some(queues) => builder.queues(queues),
            None => builder,
        }
    }

    /// Whether `id` is the clap identifier of one of these options.
    pub(crate) fn has(id: &str) -> bool {
        Self::augment_args(Command::new("")).get_arguments().any(|argument| argument.get_id() == id)
    }
}

/// `--offload`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
#[allow(missing_docs, reason = "the option's help says it")]
pub(crate) enum Offload {
    #[default]
    On,
    Off,
}

/// `--io`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
#[allow(missing_docs, reason = "the option's help says it")]
pub(crate) enum Io {
    #[default]
    Poll,
    Uring,
}

/// `--relay`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
#[allow(missing_docs, reason = "the option's help says it")]
pub(crate) enum Relay {
    #[default]
    Auto,
    Unfiltered,
    Off,
}
