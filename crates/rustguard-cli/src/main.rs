//! The `rustguard` command.
#![forbid(unsafe_code)]

mod check;
mod cli;
mod daemon;
mod demo;
mod detach;
mod down;
mod harden;
mod hooks;
mod inherited;
mod invite;
mod join;
mod keys;
mod links;
mod mesh;
mod networks;
mod pages;
mod peer;
mod routing;
mod runfile;
mod serve;
mod session;
mod show;
mod stock;
mod svg;
mod token;
mod uapi;
mod up;
mod window;
mod words;

use clap::{CommandFactory as _, Parser as _};
use cli::{Cli, Command};
use std::{
    fs::File,
    io::{self, IsTerminal as _, Write as _},
    os::{fd::AsFd as _, unix::fs::MetadataExt as _},
    process::ExitCode,
};
use tracing_subscriber::{EnvFilter, filter::LevelFilter};

fn main() -> ExitCode {
    if let Err(error) = inherited::take() {
        return failure(&error);
    }
    let cli = Cli::parse();
    log(&cli);
    // The demo's keys live as long as the demo, and its user namespace is set up through files of /proc/self that a process
    // without core dumps may not write.
    if !matches!(cli.command, Some(Command::Demo { .. })) {
        harden::process();
    }
    run(cli).unwrap_or_else(|error| failure(&error))
}

fn run(cli: Cli) -> anyhow::Result<ExitCode> {
    let Some(command) = cli.command else {
        return match cli.bare.interface {
            Some(interface) => {
                // `rustguard shwo` must not leave a daemon behind; `-f shwo` shows that an interface is meant.
                if !cli.bare.foreground
                    && let Some(meant) = cli::similar_command(&interface)
                {
                    anyhow::bail!(
                        "there is no command {interface}; did you mean `rustguard {meant}`? For an interface of this name: rustguard -f {interface}"
                    );
                }
                daemon::run(&interface, cli.bare.foreground).map(|()| ExitCode::SUCCESS)
            }
            // clap asks for one or the other already.
            None => Cli::command().error(clap::error::ErrorKind::MissingSubcommand, "what shall be done?").exit(),
        };
    };
    match command {
        Command::Up { target, detach, data_path } => up::run(&target, detach, &data_path),
        Command::Down { target } => down::run(&target),
        Command::Serve(arguments) => serve::run(&arguments),
        Command::Join(arguments) => join::run(&arguments),
        Command::Open(arguments) => window::open(&arguments),
        Command::Close { interface } => window::close(&interface),
        Command::Approve { code, interface } => window::approve(&code, &interface),
        Command::Status(arguments) => window::status(&arguments),
        Command::Invite(command) => invite::run(&command),
        Command::Peer(command) => peer::run(&command),
        Command::Demo { what: None } => demo::run(),
        Command::Demo { what: Some(cli::mesh::Demo::Mesh { picture }) } => demo::mesh::run(picture.as_deref()),
        Command::Trace(arguments) => mesh::trace::run(&arguments),
        Command::Map(arguments) => mesh::map::run(&arguments),
        Command::Check(arguments) => return check::run(&arguments),
        Command::Routes(arguments) => routing::routes(&arguments),
        Command::Neighbours(arguments) => routing::neighbours(&arguments),
        Command::Show(arguments) => return show::run(&arguments),
        Command::Genkey => keys::genkey(),
        Command::Genpsk => keys::genpsk(),
        Command::Pubkey => keys::pubkey(),
        Command::Completions { shell } => pages::completions(shell),
        Command::Man { dir } => pages::man(dir.as_deref()),
    }
    .map(|()| ExitCode::SUCCESS)
}

/// Logs go to standard error. A tunnel tells what becomes of it; the other commands only what is wrong.
fn log(cli: &Cli) {
    let level = match cli.command {
        Some(Command::Up { .. } | Command::Serve(_) | Command::Join(_)) | None => LevelFilter::INFO,
        _ => LevelFilter::WARN,
    };
    let filter = EnvFilter::builder().with_default_directive(level.into()).with_env_var("RUSTGUARD_LOG");
    let subscriber = tracing_subscriber::fmt()
        .with_env_filter(filter.from_env_lossy())
        .with_writer(io::stderr)
        .with_ansi(io::stderr().is_terminal())
        .with_target(false);
    // The journal stamps every line itself.
    if stderr_is_journal() { subscriber.without_time().init() } else { subscriber.init() }
}

/// Whether standard error is the journal: systemd names the device and the inode of the socket it has made for it
/// (systemd.exec(5)), which a program that is merely started by a service inherits the name of, but not the socket.
pub(crate) fn stderr_is_journal() -> bool {
    let Ok(journal) = std::env::var("JOURNAL_STREAM") else { return false };
    let Ok(stderr) = io::stderr().as_fd().try_clone_to_owned() else { return false };
    File::from(stderr).metadata().is_ok_and(|stderr| journal == format!("{}:{}", stderr.dev(), stderr.ino()))
}

/// Says why it failed, on one line, without a backtrace: it is for people who did not write this program.
fn failure(error: &anyhow::Error) -> ExitCode {
    // `rustguard show | head` is no failure to be told of.
    let broken_pipe = |cause: &(dyn std::error::Error + 'static)| {
        cause.downcast_ref::<io::Error>().is_some_and(|cause| cause.kind() == io::ErrorKind::BrokenPipe)
    };
    if !error.chain().any(broken_pipe) && !error.is::<check::Reported>() {
        // Nobody to tell it to is no reason for another failure.
        let _ = writeln!(io::stderr(), "rustguard: {error:#}");
    }
    ExitCode::FAILURE
}
