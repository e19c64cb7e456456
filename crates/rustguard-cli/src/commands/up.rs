//! `rustguard up`: a tunnel from a configuration file, in the foreground or detached.

use crate::{
    arguments::{
        self,
        data_path::{DataPath, Io, Relay},
        logging::Logging,
        metrics::Metrics,
    },
    process::{
        detach,
        lifetime::{self, Signals, Wakeup},
        log, metrics, port, progress, runtime,
        sandbox::{self, Needs},
        watchdog,
    },
};
use anyhow::{Context as _, Result, anyhow};
use ipnet::IpNet;
use rustguard_device::{Device, interface::STATE_DIR};
use rustguard_metrics::Source;
use rustguard_network::Agent;
use rustguard_quick::{
    Session, clean_up,
    conf::{self, Config, NameError, Routing},
    helper::Helper,
    host, left_behind,
    reload::{Answer, Reload, Request, Server},
    run_file,
};
use rustguard_serve::{Folder, Settings};
use std::{path::Path, pin::pin, time::Duration};

/// How long a member that does not know its network waits for the server before it reports that it is ready.
const NETWORK_PATIENCE: Duration = Duration::from_secs(2);

/// Whether this machine has the state of a server of this name.
fn is_served(interface: &str) -> bool {
    let folder = Folder::find(interface).ok().flatten();
    folder.is_some_and(|folder| Settings::load(&folder).is_ok_and(|settings| settings.is_some()))
}

/// Brings a tunnel up, and keeps it until a signal or the end of the interface.
pub(crate) fn run(target: &str, detached: bool, metrics: &Metrics, data_path: &DataPath) -> Result<()> {
    let (path, interface) = conf::resolve_name(target).map_err(|error| match error {
        NameError::NotFound { name, .. } if is_served(&name) => {
            anyhow!("{name} is a network that this machine serves: `rustguard serve --interface {name}` starts it")
        }
        error => error.into(),
    })?;
    log::set_interface(&interface);
    if let Some(note) = super::check::place::note(&path).filter(|_| !detach::is_child()) {
        tracing::info!("{note}");
    }
    if detached && !detach::is_child() {
        log::start();
        // The path is made absolute, but symbolic links stay: the interface has its name from the link, not from its
        // target.
        let path = std::path::absolute(&path).with_context(|| format!("cannot open {}", path.display()))?;
        // This process's command is `up`, or `join`, which calls this function.
        let options = arguments::given(|id| DataPath::has(id) || Logging::has(id) || id == Metrics::ID);
        let line = [vec!["up".into(), "--detach".into(), path.into()], options].concat();
        return detach::spawn(&interface, &line, detach::Input::None);
    }
    detach::enter();
    let (config, file) = super::check::load(&path)?;
    // It ends after the tunnel.
    let _helper = sandbox(&path, &interface, &config, metrics, data_path)?;
    log::start();
    let runtime = runtime()?;
    runtime.block_on(async {
        let mut signals = Signals::new()?;
        let own: Vec<_> = config.interface.addresses.iter().map(IpNet::addr).collect();
        let session = Session::claim(&interface, config).await?;
        let exporter = metrics::bind(metrics, &own)?;
        let mut session =
            session.of_file(&file).hook_output(detach::hook_output()).relays(data_path.relay != Relay::Off);
        let mut builder = data_path.apply(Device::builder());
        let mut agent = Agent::open(&interface, session.config_mut())?;
        if let Some(agent) = &mut agent {
            *session.config_mut() = agent.config().await;
            builder = agent.prepare(builder);
        }
        let started = tokio::select! {
            started = session.start(builder) => started.map_err(Into::into),
            name = signals.end() => Err(anyhow::anyhow!("ended by {name} before the tunnel was up")),
        };
        let result = match started {
            Ok(()) => {
                if let (Some(exporter), Some(device)) = (&exporter, session.device()) {
                    exporter.attach(Source::new(&interface, device.handle()));
                }
                tell_obstacles(&interface, session.config_mut()).await;
                if let (Some(agent), Some(device)) = (&mut agent, session.device()) {
                    agent.start(device).await;
                }
                keep(&mut session, &mut agent, &mut signals).await
            }
            Err(error) => Err(error),
        };
        // Hooks write to the terminal themselves: the status line must be gone before.
        log::settle();
        drop(exporter);
        session.stop().await;
        if let Some(agent) = agent {
            agent.stop();
        }
        if result.is_ok() {
            detach::leave(&interface);
        }
        result
    })
}

/// Drops the rights that the tunnel does not need. Before that, the changes that a killed process has left are undone,
/// because this may need other programs.
fn sandbox(
    path: &Path,
    interface: &str,
    config: &Config,
    metrics: &Metrics,
    data_path: &DataPath,
) -> Result<Option<Helper>> {
    run_file::check_free(interface)?;
    for port in config.interface.listen_port.into_iter().chain(config.interface.more_listen_ports.iter().copied()) {
        port::check(interface, port, &config.interface.listen_addresses)?;
    }
    if left_behind(interface) {
        runtime()?.block_on(clean_up(interface))?;
    }
    let has_state = config.interface.routing == Routing::Babel || config.interface.network.is_some();
    Ok(sandbox::with_helper(
        interface,
        &Needs {
            file: Some(path.to_owned()),
            state: has_state.then(|| Path::new(STATE_DIR).join(interface)).into_iter().collect(),
            sockets: metrics.socket().into_iter().collect(),
            uring: data_path.io == Io::Uring,
            ..Needs::default()
        },
    ))
}

/// Warns of obstacles between other members and the networks that this machine announces.
async fn tell_obstacles(interface: &str, config: &Config) {
    // In a mesh, other nodes forward for it too, and the source addresses are not known in advance.
    let Some(gateway) = config.gateway().filter(|_| !config.interface.routing.learns()) else { return };
    match host::obstacles(interface, &gateway, config.interface.nat == Some(true)).await {
        Ok(obstacles) => obstacles.iter().for_each(|obstacle| {
            if obstacle.is_certain() { tracing::warn!("{obstacle}") } else { tracing::info!("{obstacle}") }
        }),
        Err(error) => tracing::debug!("nobody knows whether others reach the announced networks: {error}"),
    }
}

/// Runs a tunnel that is up. Takes edited files over until something ends it.
async fn keep(session: &mut Session, agent: &mut Option<Agent>, signals: &mut Signals) -> Result<()> {
    let interface = session.interface().to_owned();
    let mut requests =
        Server::start(&interface).with_context(|| format!("cannot open the socket for `reload {interface}`"))?;
    if let Some(agent) = agent
        && let Some(end) = follow_first(session, agent, signals).await
    {
        return end;
    }
    lifetime::ready(&interface);
    let _watchdog = session.device().map(|device| watchdog::start(&interface, device.handle()));
    // The status line comes after the hooks of the start, and disappears before the hooks of the end.
    let mut first_handshake = pin!(match session.device() {
        Some(device) => progress::first_handshake(device),
        None => return Ok(()),
    });
    let mut is_awaited = true;
    loop {
        let Some(device) = session.device() else { return Ok(()) };
        let pending = tokio::select! {
            woken = lifetime::wait(&interface, device, signals) => match woken? {
                Wakeup::End => return Ok(()),
                Wakeup::Reload => None,
            },
            pending = requests.next() => Some(pending),
            () = next_of(agent) => {
                if let Some(agent) = agent {
                    agent.follow(session).await;
                }
                continue;
            }
            () = &mut first_handshake, if is_awaited => {
                is_awaited = false;
                continue;
            }
        };
        let request = pending.as_ref().map(|pending| pending.request.clone());
        let answer = match request.unwrap_or(Request::Reload(Reload::new())) {
            Request::Leave => Answer::Left {
                heard: match agent {
                    Some(agent) => agent.leave().await,
                    None => false,
                },
            },
            Request::Rotate => rotate(agent.as_mut(), session.interface()),
            Request::Reload(request) => reload(session, agent, &request).await,
            _ => Answer::refused("this version does not know the request"),
        };
        if let Some(pending) = pending {
            pending.answer(answer);
        }
    }
}

/// Begins to change the key of a member.
fn rotate(agent: Option<&mut Agent>, interface: &str) -> Answer {
    match agent.map(Agent::rotate) {
        Some(Ok(key)) => Answer::Rotating { public_key: key.to_string() },
        Some(Err(error)) => Answer::refused(error),
        None => Answer::refused(format!(
            "{interface} is no member of a network; to change the key of a tunnel by hand: put another PrivateKey into its file, the public \
             key into the files of its peers, and `rustguard reload`"
        )),
    }
}

/// Lets a member learn its network, so that the others can be reached as soon as the tunnel is ready. It does not wait
/// long for a silent server. `Some` if something has ended the tunnel meanwhile.
async fn follow_first(session: &mut Session, agent: &mut Agent, signals: &mut Signals) -> Option<Result<()>> {
    let interface = session.interface().to_owned();
    let mut patience = pin!(tokio::time::sleep(NETWORK_PATIENCE));
    while !agent.is_complete() {
        let device = session.device()?;
        tokio::select! {
            woken = lifetime::wait(&interface, device, signals) => match woken {
                Ok(Wakeup::End) => return Some(Ok(())),
                // The file was read a moment ago.
                Ok(Wakeup::Reload) => {}
                Err(error) => return Some(Err(error)),
            },
            () = agent.next() => agent.follow(session).await,
            () = &mut patience => {
                tracing::warn!("{interface}: the network's server does not answer; `rustguard show {interface}` says why");
                break;
            }
        }
    }
    None
}

/// Waits until the tunnel has to follow its network.
async fn next_of(agent: &mut Option<Agent>) {
    match agent {
        Some(agent) => agent.next().await,
        None => std::future::pending().await,
    }
}

/// The configuration of a file, extended with the network. `before` becomes the file that the agent had.
async fn extended(agent: &mut Option<Agent>, config: Config, before: &mut Option<Config>) -> Config {
    match agent {
        // A file without `Network`, or with another one, needs a restart: the session says so.
        Some(agent) if config.interface.network.is_some() => {
            *before = Some(agent.set_file(config));
            agent.config().await
        }
        _ => config,
    }
}

/// Takes a file over, and logs what has changed.
async fn reload(session: &mut Session, agent: &mut Option<Agent>, request: &Reload) -> Answer {
    if !request.dry_run {
        lifetime::reloading();
    }
    let mut before = None;
    let result = session.fulfil_with(request, async |config| extended(agent, config, &mut before).await).await;
    if let (Some(agent), Some(before)) = (agent, before) {
        if request.dry_run || result.is_err() {
            agent.set_file(before);
            // The previous file, which is in use again, now decides what is refused.
            agent.config().await;
        }
        agent.write_report();
    }
    let interface = session.interface();
    let answer = match result {
        Ok((file, difference)) => {
            let changes = difference.lines();
            if !request.dry_run {
                tracing::info!("{interface} has taken {} over: {} changes", file.display(), changes.len());
                changes.iter().for_each(|line| tracing::info!("{interface}: {line}"));
            }
            Answer::Changes { file, changes }
        }
        Err(error) => {
            let answer = Answer::from(error);
            if let (Answer::Refused { error, .. }, false) = (&answer, request.dry_run) {
                tracing::error!("{interface} was not reloaded: {error}");
            }
            answer
        }
    };
    if !request.dry_run {
        lifetime::reloaded();
    }
    answer
}
