//! `rustguard INTERFACE`: a bare interface that `wg` configures. It is for stock wg-quick
//! (`WG_QUICK_USERSPACE_IMPLEMENTATION=rustguard`) and for other programs that can run wireguard-go.

use crate::{
    arguments::data_path::{DataPath, Io},
    process::{
        detach,
        lifetime::{Signals, notify},
        log, runtime,
        sandbox::{self, Needs},
        watchdog,
    },
};
use anyhow::{Result, bail};
use rustguard_device::{CloseReason, Device, interface, uapi};
use rustguard_quick::{
    helper::{Notification, open_socket},
    run_file::RunFile,
};

/// Creates the interface and serves its UAPI socket, in the background unless `foreground` is set.
pub(crate) fn run(interface: &str, foreground: bool) -> Result<()> {
    interface::check_name(interface)?;
    log::set_interface(interface);
    // This comes first, because an invalid value ends the process.
    let data_path = DataPath::from_environment();
    if !foreground && !detach::is_child() {
        log::start();
        return detach::spawn(interface, &["--userspace".into(), interface.into()], detach::Input::None);
    }
    detach::enter();
    // It ends after the tunnel.
    let _helper = sandbox::with_helper(interface, &Needs { uring: data_path.io == Io::Uring, ..Needs::default() });
    log::start();
    let runtime = runtime()?;
    runtime.block_on(async {
        let mut signals = Signals::new()?;
        let _run = RunFile::claim(interface)?;
        let device = data_path.apply(Device::builder()).start(interface)?;
        let server = uapi::Server::start_by(open_socket, interface, device.handle())?;
        notify(Notification::Ready);
        detach::ready();
        let _watchdog = watchdog::start(interface, device.handle());
        let result = tokio::select! {
            reason = device.closed() => match reason {
                CloseReason::Shutdown | CloseReason::InterfaceDeleted => Ok(()),
                reason => bail!("{interface}: {reason}"),
            },
            _ = signals.end() => Ok(()),
        };
        drop(server);
        device.shutdown().await;
        if result.is_ok() {
            detach::leave(interface);
        }
        result
    })
}
