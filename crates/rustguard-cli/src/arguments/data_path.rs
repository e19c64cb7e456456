//! How packets are moved: the options that `up`, `serve` and `join` share.

use clap::{Args, Command, Parser, ValueEnum};
use std::num::NonZeroUsize;

/// How packets are moved. Each can also be set in the environment, for services.
#[derive(Args, Clone, Debug)]
#[command(next_help_heading = "Data path")]
pub(crate) struct DataPath {
    /// Queues of the interface, each with a thread and sockets of its own [default: one for two cores, at most 8]
    #[arg(long, value_name = "N", env = "RUSTGUARD_QUEUES", hide_env = true, value_parser = clap::value_parser!(u8).range(1..=64))]
    pub(crate) queues: Option<u8>,
    /// Whether whole runs of packets are exchanged with the kernel, as far as it is able to
    #[arg(long, value_enum, default_value_t, env = "RUSTGUARD_OFFLOAD", hide_env = true, value_name = "ON|OFF")]
    pub(crate) offload: Offload,
    /// How to talk to the kernel: `poll` measures best; `uring` is io_uring, for Linux 6.7 or newer
    #[arg(long, value_enum, default_value_t, env = "RUSTGUARD_IO", hide_env = true, value_name = "POLL|URING")]
    pub(crate) io: Io,
    /// What becomes of packets from peer to peer
    ///
    /// `auto`: where the host forwards packets and would route them back into the interface, they take the short way; of a
    /// `serve`, and with `Routing = babel`, all do, whether the host forwards or not. While netfilter has rules that
    /// forwarded packets meet, the host gets all of them. `unfiltered`: as `auto`, past all such rules. `off`: the host
    /// always gets all of them.
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
    /// From the environment alone: wg-quick gives a userspace implementation no options.
    pub(crate) fn from_environment() -> Self {
        #[derive(Parser)]
        struct Environment {
            #[command(flatten)]
            data_path: DataPath,
        }
        Environment::parse_from(["rustguard"]).data_path
    }

    /// Tells a device.
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

    /// Whether an argument is one of these, by its name in clap.
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
