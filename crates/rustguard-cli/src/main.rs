//! The `rustguard` command.
#![forbid(unsafe_code)]

mod arguments;
mod commands;
mod completion;
mod echo;
mod escape;
mod inherited;
mod mesh;
mod netlink;
mod one;
mod output;
mod process;
mod uapi;

use arguments::{Cli, Command, logging::Logging, mesh::Demo};
use clap::error::ErrorKind;
#[cfg(feature = "rootless")]
use commands::rootless;
use commands::{
    check, demo, doctor, down, edit, install, invite, join, keys, leave, map, neighbours, pages, pairing, peer, ping,
    policy, reload, rotate, routes, serve, set, show, status, strip, trace, up, userspace, web,
};
use output::colour;
use process::{harden, log};
use rustguard_quick::{HookOutput, helper_process};
use std::{io, process::ExitCode};

fn main() -> ExitCode {
    completion::answer();
    let (code, last) = match inherited::take().and_then(|()| start()) {
        Ok(code) => (code, None),
        Err(error) if error.is::<ping::Failed>() => (ExitCode::from(ping::ERROR), failure(&error)),
        Err(error) if error.is::<policy::Failed>() => (ExitCode::from(policy::ERROR), failure(&error)),
        Err(error) => (ExitCode::FAILURE, failure(&error)),
    };
    log::finish(last.as_deref());
    code
}

fn start() -> anyhow::Result<ExitCode> {
    colour::init();
    let cli = arguments::parse();
    let (kind, logging) = log_settings(&cli);
    if kind != log::Kind::Other {
        // This has to happen before the log starts its thread.
        rustguard_device::prepare();
    }
    if let Err(wrong) = log::init(kind, &logging) {
        arguments::command().error(ErrorKind::InvalidValue, wrong).exit();
    }
    // The demo is not hardened. Its keys exist only as long as the demo, and it sets its user namespace up through
    // files of /proc/self that a process without core dumps may not write.
    if !matches!(cli.command, Some(Command::Demo { .. })) {
        harden::process();
    }
    // These commands confine themselves first, which requires a single thread.
    let confines = match &cli.command {
        Some(Command::Up { .. } | Command::Interface(_)) => true,
        Some(Command::Serve(arguments)) => arguments.command().is_none(),
        _ => false,
    };
    if !confines {
        log::start();
    }
    run(cli)
}

/// The kind and the settings of the log for this command.
fn log_settings(cli: &Cli) -> (log::Kind, Logging) {
    match &cli.command {
        Some(Command::Up { logging, .. }) => (log::Kind::Tunnel, logging.clone()),
        Some(Command::Serve(arguments)) if arguments.command().is_some() => {
            (log::Kind::Other, arguments.logging.clone())
        }
        Some(Command::Serve(arguments)) => (log::Kind::Tunnel, arguments.logging.clone()),
        Some(Command::Join(arguments)) => (log::Kind::Tunnel, arguments.logging.clone()),
        // An invalid value ends the process.
        Some(Command::Interface(_)) => (log::Kind::WireguardGo, Logging::from_environment()),
        _ => (log::Kind::Other, Logging::default()),
    }
}

fn run(cli: Cli) -> anyhow::Result<ExitCode> {
    let Some(command) = cli.command else {
        // clap requires a command or an option already.
        arguments::command().error(ErrorKind::MissingSubcommand, "a command is needed").exit();
    };
    match command {
        Command::Interface(words) => userspace::run(&words[0].to_string_lossy(), cli.foreground),
        #[cfg(feature = "rootless")]
        Command::Up { target, rootless, metrics, data_path, .. } if rootless.rootless => {
            rootless::run(&target, &rootless, &metrics, &data_path)
        }
        Command::Up { target, detach, metrics, data_path, .. } => up::run(&target, detach, &metrics, &data_path),
        Command::Helper { interface, file, sockets, stderr } => {
            let output = if stderr { HookOutput::Stderr } else { HookOutput::Inherit };
            let journal = log::journal_for_a_tunnel(&interface);
            helper_process::run(&interface, file.as_deref(), &sockets, output, journal).map_err(anyhow::Error::from)
        }
        Command::Down { target } => down::run(target.as_deref()),
        Command::Key(arguments::enrolment::Key::Rotate { interface, yes }) => rotate::run(interface.as_deref(), yes),
        Command::Leave { interface } => leave::run(interface.as_deref()),
        Command::Reload(arguments) => reload::run(&arguments),
        Command::Serve(arguments) => serve::run(&arguments),
        Command::Join(arguments) => join::run(&arguments),
        Command::Open(arguments) => pairing::open(&arguments),
        Command::Close { interface } => pairing::close(&interface),
        Command::Approve { code, refuse: true, interface, .. } => pairing::refuse(code, &interface),
        Command::Approve { code, interface, json, .. } => pairing::approve(&code, &interface, json),
        Command::Web { name, end, interface, json } => web::run(name, end, &interface, json),
        Command::Ping(arguments) => return ping::run(&arguments),
        Command::Status(arguments) => status::run(&arguments),
        Command::Invite(command) => invite::run(&command),
        Command::Peer(command) => peer::run(&command),
        Command::Policy(command) => return policy::run(&command),
        Command::Demo { what } => run_demo(what),
        Command::Trace(arguments) => trace::run(&arguments),
        Command::Map(arguments) => map::run(&arguments),
        Command::Check(arguments) => return check::run(&arguments),
        Command::Doctor(arguments) => return doctor::run(&arguments),
        Command::Routes(arguments) => routes::run(&arguments),
        Command::Neighbours(arguments) => neighbours::run(&arguments),
        Command::Show(arguments) => return show::run(&arguments),
        Command::Set(arguments) => set::run(&arguments),
        Command::Save { interface } => set::save(&one::tunnel(interface.as_deref())?),
        Command::Strip { target } => strip::run(&target),
        Command::Edit { target } => edit::run(target.as_deref()),
        Command::Genkey => keys::genkey(),
        Command::Genpsk => keys::genpsk(),
        Command::Pubkey => keys::pubkey(),
        Command::Install { installation, root } => install::install(&installation, root.as_deref()),
        Command::Uninstall(arguments) => install::uninstall(&arguments),
        Command::Completions { shell } => pages::completions(shell),
        Command::Man { dir } => pages::man(dir.as_deref()),
    }
    .map(|()| ExitCode::SUCCESS)
}

fn run_demo(what: Option<Demo>) -> anyhow::Result<()> {
    match what {
        None => demo::run(),
        Some(Demo::Mesh { picture }) => demo::mesh::run(picture.as_deref()),
        Some(Demo::Nat) => demo::nat::run(),
        Some(Demo::Network) => demo::network::run(),
        Some(Demo::Servers) => demo::servers::run(),
        Some(Demo::Command { parent, program, words }) => demo::machine::command(parent, program.as_deref(), &words),
    }
}

/// The reason of a failure in one line. It has no backtrace, because users do not need one.
fn failure(error: &anyhow::Error) -> Option<String> {
    // A closed pipe, as in `rustguard show | head`, is no failure that users need to see.
    let broken_pipe = |cause: &(dyn std::error::Error + 'static)| {
        let io = cause.downcast_ref::<io::Error>().map(io::Error::kind);
        // serde_json keeps the kind only.
        let kind = io.or_else(|| cause.downcast_ref::<serde_json::Error>()?.io_error_kind());
        kind == Some(io::ErrorKind::BrokenPipe)
    };
    let unheard = error.chain().any(broken_pipe) || error.is::<check::Reported>();
    (!unheard).then(|| message(error))
}

/// The error and its causes. The text of some errors already contains the text of their cause.
fn message(error: &anyhow::Error) -> String {
    let mut text = String::new();
    for cause in error.chain().map(ToString::to_string) {
        match (text.is_empty(), text.ends_with(&cause)) {
            (true, _) => text = cause,
            (_, true) => {}
            (false, false) => text += &format!(": {cause}"),
        }
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_cause_is_said_once() {
        let refused = || io::Error::from(io::ErrorKind::PermissionDenied);
        let error = anyhow::Error::new(refused()).context(format!("cannot add it: {}", refused())).context("wg0");
        assert_eq!(message(&error), "wg0: cannot add it: permission denied");
        assert_eq!(message(&anyhow::Error::new(refused()).context("wg0")), "wg0: permission denied");
    }
}
