//! `rustguard up`: a tunnel from a configuration file, in the foreground or detached.

use crate::{
    arguments::{
        self,
        data_path::{DataPath, Relay},
        logging::Logging,
        metrics::Metrics,
    },
    process::{
        detach,
        lifetime::{self, Signals, Wakeup},
        log, metrics, progress, runtime,
    },
};
use anyhow::{Context as _, Result};
use ipnet::IpNet;
use rustguard_device::Device;
use rustguard_metrics::Source;
use rustguard_quick::{
    Session, conf,
    reload::{Answer, Server, Wish},
};
use std::pin::pin;

/// Brings a tunnel up, and keeps it until a signal or the end of the interface.
pub(crate) fn run(target: &str, detached: bool, metrics: &Metrics, data_path: &DataPath) -> Result<()> {
    let (path, interface) = conf::resolve_name(target)?;
    log::set_interface(&interface);
    if detached && !detach::is_child() {
        // The path is made absolute, but symbolic links stay: the interface has its name from the link, not from its
        // target.
        let path = std::path::absolute(&path).with_context(|| format!("cannot open {}", path.display()))?;
        // This process's command is `up`, or `join`, which calls this function.
        let options = arguments::given(|id| DataPath::has(id) || Logging::has(id) || id == Metrics::ID);
        let line = [vec!["up".into(), "--detach".into(), path.into()], options].concat();
        return detach::spawn(&interface, &line, None);
    }
    detach::enter();
    let (config, file) = super::check::load(&path)?;
    let runtime = runtime()?;
    runtime.block_on(async {
        let mut signals = Signals::new()?;
        let own: Vec<_> = config.interface.addresses.iter().map(IpNet::addr).collect();
        let session = Session::claim(&interface, config).await?;
        let exporter = metrics::bind(metrics, &own)?;
        let mut session =
            session.of_file(&file).hook_output(detach::hook_output()).relays(data_path.relay != Relay::Off);
        let started = tokio::select! {
            started = session.start(data_path.apply(Device::builder())) => started.map_err(Into::into),
            name = signals.end() => Err(anyhow::anyhow!("ended by {name} before the tunnel was up")),
        };
        let result = match started {
            Ok(()) => {
                if let (Some(exporter), Some(device)) = (&exporter, session.device()) {
                    exporter.attach(Source::new(&interface, device.handle()));
                }
                keep(&mut session, &mut signals).await
            }
            Err(error) => Err(error),
        };
        drop(exporter);
        session.stop().await;
        if result.is_ok() {
            detach::leave(&interface);
        }
        result
    })
}

/// Runs a tunnel that is up. Takes edited files over until something ends it.
async fn keep(session: &mut Session, signals: &mut Signals) -> Result<()> {
    let interface = session.interface().to_owned();
    let mut requests =
        Server::start(&interface).with_context(|| format!("cannot open the socket for `reload {interface}`"))?;
    lifetime::ready(&interface);
    // The status line comes after the hooks of the start, and is gone before those of the end.
    let mut first_handshake = pin!(match session.device() {
        Some(device) => progress::first_handshake(device),
        None => return Ok(()),
    });
    let mut is_awaited = true;
    loop {
        let Some(device) = session.device() else { return Ok(()) };
        let request = tokio::select! {
            woken = lifetime::wait(&interface, device, signals) => match woken? {
                Wakeup::End => return Ok(()),
                Wakeup::Reload => None,
            },
            request = requests.next() => Some(request),
            () = &mut first_handshake, if is_awaited => {
                is_awaited = false;
                continue;
            }
        };
        let wish = request.as_ref().map_or_else(Wish::new, |request| request.wish.clone());
        let answer = reload(session, &wish).await;
        if let Some(request) = request {
            request.answer(answer);
        }
    }
}

/// Takes a file over, and logs what has changed.
async fn reload(session: &mut Session, wish: &Wish) -> Answer {
    if !wish.dry_run {
        lifetime::reloading();
    }
    let result = session.fulfil(wish).await;
    let interface = session.interface();
    let answer = match result {
        Ok((file, difference)) => {
            let changes = difference.lines();
            if !wish.dry_run {
                tracing::info!("{interface} has taken {} over: {} changes", file.display(), changes.len());
                changes.iter().for_each(|line| tracing::info!("{interface}: {line}"));
            }
            Answer::Changes { file, changes }
        }
        Err(error) => {
            let answer = Answer::from(error);
            if let (Answer::Refused { error, .. }, false) = (&answer, wish.dry_run) {
                tracing::error!("{interface} was not reloaded: {error}");
            }
            answer
        }
    };
    if !wish.dry_run {
        lifetime::reloaded();
    }
    answer
}
