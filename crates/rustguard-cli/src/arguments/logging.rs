//! The options for messages, which the commands that run a tunnel share.

use clap::{ArgAction, Args, Command, Parser, ValueEnum};

/// The level and the form of messages.
#[derive(Args, Clone, Debug, Default)]
#[command(next_help_heading = "Messages")]
pub(crate) struct Logging {
    /// Say more; given twice, say everything
    #[arg(short, long, action = ArgAction::Count)]
    pub(crate) verbose: u8,
    /// Say only warnings and errors; given twice, only errors
    #[arg(short, long, action = ArgAction::Count, conflicts_with = "verbose")]
    pub(crate) quiet: u8,
    /// The form of messages: sentences, lines with time and level, or JSON [default: plain on a terminal, text
    /// elsewhere]
    #[arg(long, value_enum, value_name = "PLAIN|TEXT|JSON", env = "RUSTGUARD_LOG_FORMAT", hide_env = true)]
    pub(crate) log_format: Option<LogFormat>,
}

/// `--log-format`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
#[allow(missing_docs, reason = "the option's help says it")]
pub(crate) enum LogFormat {
    Plain,
    Text,
    Json,
}

impl Logging {
    /// Reads the environment only: wg-quick gives a userspace implementation no options.
    pub(crate) fn from_environment() -> Self {
        #[derive(Parser)]
        struct Environment {
            #[command(flatten)]
            logging: Logging,
        }
        Environment::try_parse_from(["rustguard"]).unwrap_or_else(|error| super::of_variable(error, &[]).exit()).logging
    }

    /// Whether `id` is the clap identifier of one of these options.
    pub(crate) fn has(id: &str) -> bool {
        Self::augment_args(Command::new("")).get_arguments().any(|argument| argument.get_id() == id)
    }
}
