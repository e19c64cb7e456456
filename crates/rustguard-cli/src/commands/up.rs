//! `rustguard up`: a tunnel from a configuration file, in the foreground or detached.

use crate::{
    arguments::{
        self,
        data_path::{DataPath, Relay},
        logging::Logging,
    },
    process::{
        detach,
        lifetime::{Signals, run_until_ended},
        log,
    },
};
use anyhow::{Context as _, Result};
use rustguard_device::Device;
use rustguard_quick::{Session, conf};

/// Brings a tunnel up, and keeps it until a signal or the end of the interface.
pub(crate) fn run(target: &str, detached: bool, data_path: &DataPath) -> Result<()> {
    let (path, interface) = conf::resolve_name(target)?;
    log::set_interface(&interface);
    if detached && !detach::is_child() {
        // The path is made absolute, but symbolic links stay: the interface has its name from the link, not from its
        // target.
        let path = std::path::absolute(&path).with_context(|| format!("cannot open {}", path.display()))?;
        // This process's command is `up`, or `join`, which calls this function.
        let options = arguments::given(|id| DataPath::has(id) || Logging::has(id));
        let line = [vec!["up".into(), "--detach".into(), path.into()], options].concat();
        return detach::spawn(&interface, &line, None);
    }
    detach::enter();
    let (config, file) = super::check::load(&path)?;
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    runtime.block_on(async {
        let mut signals = Signals::new()?;
        let session = Session::claim(&interface, config).await?;
        let mut session =
            session.of_file(&file).hook_output(detach::hook_output()).relays(data_path.relay != Relay::Off);
        let started = tokio::select! {
            started = session.start(data_path.apply(Device::builder())) => started.map_err(Into::into),
            name = signals.recv() => Err(anyhow::anyhow!("ended by {name} before the tunnel was up")),
        };
        let result = match (started, session.device()) {
            (Ok(()), Some(device)) => run_until_ended(&interface, device, &mut signals).await,
            (started, _) => started,
        };
        session.stop().await;
        if result.is_ok() {
            detach::leave(&interface);
        }
        result
    })
}
