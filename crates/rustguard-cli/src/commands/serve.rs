//! `rustguard serve`: a tunnel that other machines can join.

mod backup;
mod host_names;
mod import;
mod store;
mod take_over;

use super::invite::unused;
use crate::{
    arguments::{
        self, data_path,
        enrolment::{Interface, TokenSource},
        serve::{Serve, ServeCommand},
    },
    output::words::{UNEXPECTED_ANSWER, span},
    process::{
        detach,
        lifetime::{self, Signals, Wakeup},
        log, metrics, port, runtime,
        sandbox::{self, Needs},
        watchdog, web,
    },
};
use anyhow::{Context as _, Result, bail};
use host_names::HostNames;
use ipnet::IpNet;
use rustguard_device::{
    Device, Relay,
    interface::{self, STATE_DIR},
    kernel::LearnedTables,
};
use rustguard_enroll::{
    server::MAX_ATTEMPTS,
    token::{ADVISED_PASSPHRASE, Passphrase, Token},
};
use rustguard_metrics::{Enrolment, Exporter, Network, Pool, Source};
use rustguard_quick::{
    RunFileError, Session, clean_up, conf,
    helper::Helper,
    helper_process,
    host::{self, Gateway, networks},
    left_behind, run_file,
};
use rustguard_serve::{
    AskError, Backup, Configured, Figures, Folder, Handle, Prepared, Restored, Service, Settings, ask, policy_path,
    request::{Answer, NewInvite, Request, Secret},
};
use rustguard_web::WebServer;
use std::{
    io::{self, Write as _},
    path::Path,
    time::Duration,
};

/// `rustguard serve`, and the commands below it.
pub(crate) fn run(arguments: &Serve) -> Result<()> {
    let name =
        |interface: &Interface| interface::check_name(&interface.interface).map(|()| interface.interface.clone());
    match arguments.command() {
        Some(ServeCommand::Backup { file, interface }) => backup::make(&name(&interface)?, &file),
        Some(ServeCommand::Restore { file, yes, interface }) => backup::restore(&name(&interface)?, &file, yes),
        Some(ServeCommand::TakeOver { dry_run, yes, interface }) => take_over::run(&name(&interface)?, dry_run, yes),
        Some(ServeCommand::Import(import)) => {
            name(&import.interface)?;
            import::run(&import)?;
            if !import.dry_run {
                writeln!(io::stdout(), "Start it: rustguard serve{}", import.interface.option())?;
            }
            Ok(())
        }
        None => serve_until_the_end(arguments),
    }
}

/// Serves until a signal or the end of the interface.
fn serve_until_the_end(arguments: &Serve) -> Result<()> {
    let interface = &arguments.interface.interface;
    interface::check_name(interface)?;
    log::set_interface(interface);
    let token = arguments.token.read()?;
    let passphrase = match &token {
        Some(token) => Some(passphrase(token)?),
        None => None,
    };
    let import = arguments.import();
    if let Some(import) = &import {
        import::run(import)?;
        if import.dry_run || arguments.before.no_up {
            return Ok(());
        }
    }
    if let Err(up) = run_file::check_free(interface) {
        return Err(with_refusal(arguments, up));
    }
    if arguments.detach && !detach::is_child() {
        log::start();
        // The child gets the token through a pipe. The import is done, so the child only starts the imported server.
        let imported = import.is_some();
        let options =
            arguments::given(|id| !TokenSource::IDS.contains(&id) && (!imported || !matches!(id, "imports" | "pools")));
        let line = [vec!["serve".into()], options].concat();
        let key = store::key_from_input(arguments)?;
        let input = match (&token, &key) {
            (Some(_), Some(_)) => {
                bail!(
                    "a token and a store key from standard input cannot go into the background together: give the store key as a file"
                )
            }
            (Some(token), None) => detach::Input::Token(token),
            (None, Some(key)) => detach::Input::StoreKey(key),
            (None, None) => detach::Input::None,
        };
        detach::spawn(interface, &line, input)?;
        let invite = ask(interface, &invite())?;
        let opened = arguments.open.map(|time| ask(interface, &open(time))).transpose()?;
        let status = ask(interface, &Request::Status)?;
        return announce(&status, &invite, opened.as_ref(), arguments);
    }
    detach::enter();
    // It ends after the tunnel.
    let _helper = sandbox(arguments)?;
    log::start();
    let runtime = runtime()?;
    runtime.block_on(async {
        let mut signals = Signals::new()?;
        let mut course = Course { is_first: true, restored: None };
        loop {
            match once(arguments, passphrase.clone(), &mut course, &mut signals).await {
                Ok(None) => break,
                Ok(Some(backup)) => {
                    lifetime::reloading();
                    course.restored = backup::put_in_place(interface, &backup);
                }
                Err(error) => match course.restored.take() {
                    Some(restored) => backup::put_back(interface, &restored, &error)?,
                    None => return Err(error),
                },
            }
            course.is_first = false;
        }
        detach::leave(interface);
        Ok(())
    })
}

/// Drops the rights that the tunnel does not need. Before that, the changes that a killed process has left are undone,
/// because this may need other programs.
fn sandbox(arguments: &Serve) -> Result<Option<Helper>> {
    let interface = &*arguments.interface.interface;
    if left_behind(interface) {
        runtime()?.block_on(clean_up(interface))?;
    }
    // Refused settings must not create a folder.
    let before = Folder::find(interface)?.map(|folder| Settings::load(&folder)).transpose()?.flatten();
    let known = before.as_ref().map(|before| before.pools.clone()).unwrap_or_default();
    runtime()?.block_on(async {
        let settings = settings(arguments, before).await?;
        settings.check()?;
        port::check(interface, settings.port, &[])?;
        overlaps(&settings.pools, &known).await
    })?;
    let state = vec![Path::new(STATE_DIR).join(interface), helper_process::spare(interface)];
    let sockets = arguments.metrics.socket().into_iter().chain(arguments.web.socket()).collect();
    let read = arguments.web.files().chain(store::files(arguments)?).collect();
    let uring = arguments.data_path.io == data_path::Io::Uring;
    Ok(sandbox::with_helper(interface, &Needs { state, sockets, read, uring, ..Needs::default() }))
}

/// The error about a running server. It also says why the server would not start with these options, which is better
/// known before it is stopped.
fn with_refusal(arguments: &Serve, up: RunFileError) -> anyhow::Error {
    let refusal = || -> Result<Option<String>> {
        let interface = &arguments.interface.interface;
        let before = Folder::find(interface)?.map(|folder| Settings::load(&folder)).transpose()?.flatten();
        let settings = runtime()?.block_on(settings(arguments, before.clone()))?;
        if before.is_none_or(|before| before == settings) {
            return Ok(None);
        }
        match ask(interface, &Request::CheckSettings { settings: Box::new(settings) }) {
            Err(AskError::Refused(refusal)) => Ok(Some(refusal)),
            _ => Ok(None),
        }
    };
    match refusal() {
        Ok(Some(refusal)) => anyhow::anyhow!("{up}. With these options it would not start again: {refusal}"),
        _ => up.into(),
    }
}

/// The events before this start.
struct Course {
    /// It is the first one of this process.
    is_first: bool,
    /// A backup that was put in place, with which the server has not started yet.
    restored: Option<Restored>,
}

/// Serves until a signal, the end of the interface, or a backup to restore, which is returned.
async fn once(
    arguments: &Serve,
    passphrase: Option<Passphrase>,
    course: &mut Course,
    signals: &mut Signals,
) -> Result<Option<Backup>> {
    let interface = &arguments.interface.interface;
    let session = Session::claim(interface, conf::Config::default()).await?;
    // The service decides what is relayed.
    let mut session = session.hook_output(detach::hook_output()).relays(false);
    let store = tokio::select! {
        store = store::read(arguments, course.is_first) => store?,
        name = signals.end() => bail!("ended by {name} before the store was read"),
    };
    // The settings are checked before the first start makes the folder.
    let before = match &store {
        Some(store) => store.settings()?,
        None => Folder::find(interface)?.map(|folder| Settings::load(&folder)).transpose()?.flatten(),
    };
    let known = before.as_ref().map(|before| before.pools.clone()).unwrap_or_default();
    let mut settings = settings(arguments, before).await?;
    settings.check()?;
    // At the first start, this was checked before.
    if !course.is_first || store.is_some() {
        overlaps(&settings.pools, &known).await?;
    }
    let seat = match store {
        Some(store) => {
            let taken = tokio::select! {
                taken = store.take(interface, settings, arguments.store.adopt) => taken,
                name = signals.end() => bail!("ended by {name} before this machine was a server on the store"),
            };
            let (seat, own) = taken?;
            settings = own;
            Some(seat)
        }
        None => None,
    };
    if settings.nat {
        session = session.nat(Gateway { pools: settings.pools.clone(), networks: settings.routes.clone() });
    }
    let folder = Folder::open(interface)?;
    let prepared = match seat {
        Some(seat) => Prepared::with_seat(interface, &folder, settings, passphrase, seat)?,
        None => Prepared::new(interface, &folder, settings, passphrase)?,
    };
    let prepared = prepared.with_policy(policy_path(interface))?;
    let addresses = usable(prepared.addresses());
    let own: Vec<_> = addresses.iter().map(IpNet::addr).collect();
    let exporter = metrics::bind(&arguments.metrics, &own)?;
    let page = web::bind(&arguments.web, interface, &own)?;
    session.config_mut().interface.addresses = addresses;
    routing(&mut session.config_mut().interface, &prepared);
    let isolates = prepared.isolates();
    let (mut builder, configured) = prepared.configure(arguments.data_path.apply(Device::builder()));
    if arguments.data_path.relay == data_path::Relay::Off && !isolates {
        builder = builder.relay(Relay::Off);
    }
    // The host's own packets need routes to the networks behind machines. The network of the interface leads to the
    // machines themselves.
    builder = builder.routing_tables(LearnedTables::main().networks_only());
    let started = tokio::select! {
        started = session.start(builder) => started.map_err(Into::into),
        name = signals.end() => Err(anyhow::anyhow!("ended by {name} before the tunnel was up")),
    };
    let result = match started {
        Ok(()) => serve(arguments, configured, &mut session, (exporter.as_ref(), page.as_ref()), course, signals).await,
        Err(error) => Err(error),
    };
    drop((exporter, page));
    session.stop().await;
    result
}

/// Serves while the tunnel is up. First prints how machines can join.
async fn serve(
    arguments: &Serve,
    configured: Configured,
    session: &mut Session,
    (exporter, page): (Option<&Exporter>, Option<&WebServer>),
    course: &mut Course,
    signals: &mut Signals,
) -> Result<Option<Backup>> {
    let Some(device) = session.device() else { return Ok(None) };
    let mut service = Service::start(configured, device)?;
    course.restored = None;
    service.settings().limits().iter().for_each(|limit| tracing::warn!("{limit}"));
    if let Some(exporter) = exporter {
        let figures = service.figures();
        let enrolment = move || {
            let figures = figures.clone();
            async move { figures.get().await.map(enrolment) }
        };
        exporter.attach(Source::new(&arguments.interface.interface, device.handle()).enrolment(enrolment));
    }
    if let Some(page) = page {
        let interface = &arguments.interface.interface;
        web::attach(page, interface, &mut service, device, Folder::open(interface)?.path("audit.jsonl"));
    }
    let Settings { pools, routes, nat, .. } = service.settings().clone();
    let gateway = Gateway { pools, networks: routes };
    for obstacle in host::obstacles(&arguments.interface.interface, &gateway, nat).await? {
        if obstacle.is_certain() { tracing::warn!("{obstacle}") } else { tracing::info!("{obstacle}") }
    }
    // If this is a child in the background, the parent prints the invite. In the journal, every user with access to the
    // journal could see it.
    if course.is_first && !detach::is_child() && !log::stderr_is_journal() {
        let invite = service.request(invite()).await;
        let opened = match arguments.open {
            Some(time) => Some(service.request(open(time)).await),
            None => None,
        };
        let status = service.request(Request::Status).await;
        announce(&status, &invite, opened.as_ref(), arguments)?;
    }
    let handle = service.handle();
    let names = HostNames::new(service.resolver());
    let ended = tokio::select! {
        ended = keep(session, signals, &handle, names) => ended,
        () = service.run() => Ok(()),
    };
    service.stop().await;
    ended?;
    if let Some(removed) = service.removed() {
        bail!("{removed}");
    }
    match service.replaced() {
        Some(replaced) => Err(replaced.into()),
        None => Ok(service.take_restored()),
    }
}

/// The service's figures as metrics.
fn enrolment(figures: Figures) -> Enrolment {
    let (mut enrolment, store) = (Enrolment::default(), figures.store);
    enrolment.pools =
        figures.pools.iter().map(|(net, leased)| Pool::new(net.addr(), net.prefix_len(), *leased)).collect();
    enrolment.active = figures.active;
    enrolment.pending = figures.pending;
    enrolment.usable_invites = figures.usable_invites;
    enrolment.window_open = figures.window_open;
    enrolment.waiting = figures.waiting;
    enrolment.network = figures.network.map(|view| {
        let mut network = Network::default();
        (network.roster, network.issued) = (view.roster, view.issued.unwrap_or_default());
        (network.members, network.clients, network.lagging) = (view.members, view.clients, view.lagging.len());
        network.store_available = store.map(|store| store.since.is_none());
        network.standbys = view.standbys.len();
        network.standbys_lagging = view.standbys.iter().filter(|standby| !standby.current).count();
        network
    });
    enrolment
}

/// Sets the routing engine. Several machines may have the same prefix. The server of a network speaks Babel from its
/// start, so that a further server can join while it runs.
fn routing(interface: &mut conf::Interface, prepared: &Prepared) {
    interface.routing = conf::Routing::Members;
    if let Some(network) = prepared.network() {
        interface.routing = conf::Routing::of_member(true);
        interface.network = Some(conf::NetworkKey(network.0));
        interface.private_key = Some(prepared.identity().clone());
        interface.handshake_on_up = Some(true);
    }
}

/// Waits until something ends the tunnel. SIGHUP reads the settings again. Meanwhile this host is told which server
/// resolves the names of the network.
async fn keep(session: &mut Session, signals: &mut Signals, service: &Handle, mut names: HostNames) -> Result<()> {
    let interface = session.interface().to_owned();
    lifetime::ready(&interface);
    let _watchdog = session.device().map(|device| watchdog::start(&interface, device.handle()));
    loop {
        let Some(device) = session.device() else { return Ok(()) };
        tokio::select! {
            woken = lifetime::wait(&interface, device, signals) => match woken? {
                Wakeup::End => return Ok(()),
                Wakeup::Reload => reload(&interface, service).await,
            },
            () = names.due() => names.tell(session).await,
        }
    }
}

async fn reload(interface: &str, service: &Handle) {
    lifetime::reloading();
    match service.request(Request::Reload { dry_run: false, restored: false }).await {
        Some(Answer::Refused { error }) => tracing::error!("{interface} was not reloaded: {error}"),
        Some(Answer::Reloaded(reloaded)) => {
            tracing::info!("{interface} has taken {} over", reloaded.file.display());
        }
        _ => {}
    }
    lifetime::reloaded();
}

fn invite() -> Request {
    Request::NewInvite(NewInvite::default())
}

fn open(time: Duration) -> Request {
    Request::Open { seconds: time.as_secs(), approve: false }
}

/// Prints the pools, and how machines can join.
fn announce(status: &Answer, invite: &Answer, opened: Option<&Answer>, arguments: &Serve) -> Result<()> {
    let interface = &*arguments.interface.option();
    let Answer::Status(status) = status else { bail!(UNEXPECTED_ANSWER) };
    let endpoint = status.endpoint.as_deref().unwrap_or("HOST");
    let mut out = io::stdout().lock();
    let pools: Vec<_> = status.pools.iter().map(|pool| pool.prefix.to_string()).collect();
    let own: Vec<_> = status.pools.iter().map(|pool| pool.address.to_string()).collect();
    writeln!(out, "Machines get addresses from {}; this machine has {}.\n", pools.join(" and "), own.join(" and "))?;
    match invite {
        Answer::Invite { token, .. } => {
            writeln!(
                out,
                "To join, run this on the other machine within a day (for more invites: `rustguard invite new{interface}`):\n"
            )?;
            writeln!(out, "    rustguard join {endpoint} --token {}\n", token.reveal())?;
        }
        Answer::Unused { invite } => writeln!(out, "No invite was made: {}.\n", unused(invite, interface))?,
        // The server runs all the same: it serves joined machines, and machines may join with a code.
        Answer::Refused { error } => tracing::warn!("cannot create an invite: {error}"),
        _ => bail!(UNEXPECTED_ANSWER),
    }
    match opened {
        None => {
            writeln!(out, "The window for codes and passphrases is closed; `rustguard open{interface}` opens it.")?;
        }
        Some(Answer::Opened { seconds, code, .. }) => {
            let token = code.as_ref().map_or("PASSPHRASE", Secret::reveal);
            writeln!(out, "Or, for {}:\n\n    rustguard join {endpoint} --token {token}\n", span(*seconds))?;
        }
        Some(Answer::Refused { error }) => bail!("cannot open the window: {error}"),
        Some(_) => bail!(UNEXPECTED_ANSWER),
    }
    if let Some(line) = store::line_for_another_server(&arguments.interface.interface)? {
        writeln!(out, "\nFor another server at HOST, run this here:\n\n    {line}\n")?;
    }
    out.flush()?;
    Ok(())
}

fn passphrase(token: &str) -> Result<Passphrase> {
    match Token::parse(token)? {
        Token::Passphrase(passphrase) => {
            if passphrase.is_short() && !detach::is_child() {
                tracing::warn!(
                    "the passphrase has fewer than {ADVISED_PASSPHRASE} characters. Each window permits {MAX_ATTEMPTS} guesses. If \
                     the passphrase is one of the 10,000 most common ones, an attacker who tries those finds it in one window of 2,000. \
                     Choose a longer passphrase, or none: an attacker finds a code in one window of 209,715"
                );
            }
            Ok(passphrase)
        }
        Token::Invite(_) => {
            bail!("`serve` takes a passphrase or no token; this is an invite, which a server issues")
        }
        Token::Code(_) => {
            bail!("this passphrase has the form of a code and would be read as one; choose another passphrase")
        }
    }
}

/// The stored settings, changed by the options on the command line.
async fn settings(said: &Serve, before: Option<Settings>) -> Result<Settings> {
    let is_first = before.is_none();
    let mut settings = match before {
        Some(before) if said.defaults => Settings { pools: before.pools, ..Settings::default() },
        Some(before) => before,
        None => Settings::fresh(
            &networks::known().await.context("cannot list this machine's networks")?,
            host::ipv6_available(),
        ),
    };
    // An import has taken them over already, with the server's address.
    if !said.pools.is_empty() && said.before.imports.is_empty() {
        match is_first {
            true => settings.pools.clone_from(&said.pools),
            false => settings.set_pools(&said.pools),
        }
    }
    if let Some(port) = said.port {
        settings.port = port;
    }
    if let Some(endpoint) = &said.endpoint {
        settings.endpoint = Some(endpoint.clone());
    }
    if !said.routes.is_empty() {
        settings.routes.clone_from(&said.routes);
    }
    if !said.dns.is_empty() {
        settings.dns.clone_from(&said.dns);
        settings.search.clone_from(&said.search);
    }
    if let Some(isolate) = said.isolate {
        settings.isolate = isolate;
    }
    if let Some(star) = said.star {
        settings.network.star = star;
    }
    if let Some(name) = &said.name {
        settings.network.name = Some(name.clone());
    }
    if let Some(mtu) = said.mtu {
        settings.network.mtu = Some(mtu);
    }
    if let Some(nat) = said.nat {
        settings.nat = nat;
    }
    if let Some(lease) = said.lease {
        settings.lease_seconds = Some(lease.as_secs());
    }
    if let Some(ephemeral) = said.ephemeral {
        settings.ephemeral_seconds = Some(ephemeral.as_secs());
    }
    Ok(settings)
}

/// Removes the addresses that this host cannot have, and warns of each.
fn usable(mut addresses: Vec<IpNet>) -> Vec<IpNet> {
    if !host::ipv6_available() {
        for address in addresses.extract_if(.., |address| matches!(address, IpNet::V6(_))) {
            tracing::warn!(
                "IPv6 is disabled on this machine: {address} is left out, and joined machines cannot reach it"
            );
        }
    }
    addresses
}

/// Refuses a new pool that overlaps a network of this host, because the pool would cut the network off.
///
/// For a stored pool, this is only a warning, because the machine may have moved into such a network.
async fn overlaps(pools: &[IpNet], known: &[IpNet]) -> Result<()> {
    let networks = networks::addresses().await.context("cannot list this machine's addresses")?;
    for pool in pools {
        // Two networks overlap if one of them contains the other.
        let Some(network) = networks.iter().find(|network| network.contains(pool) || pool.contains(*network)) else {
            continue;
        };
        if !known.contains(pool) {
            bail!("the pool {} overlaps {network} of this host; choose another: --pool CIDR", pool.trunc());
        }
        tracing::warn!("the pool {} overlaps {network} of this host: one of them cannot be reached", pool.trunc());
    }
    Ok(())
}
