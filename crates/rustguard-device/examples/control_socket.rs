//! A tunnel on an interface of the kernel, which `wg` shows and configures. The interface stays down and has no
//! addresses: use the crate `rustguard-quick`, or `ip addr` and `ip link`. The example needs root, or CAP_NET_ADMIN.
//!
//! ```text
//! # cargo run -p rustguard-device --example control_socket -- wg-example
//! # wg set wg-example listen-port 51820 peer … allowed-ips 10.0.0.2/32
//! # wg show wg-example
//! ```

use rustguard_device::{
    prelude::*,
    uapi::{SOCKET_DIR, Server},
};
use std::{error::Error, future::Future, path::Path};

#[tokio::main(flavor = "current_thread")]
pub(crate) async fn main() -> Result<(), Box<dyn Error>> {
    let interface = std::env::args().nth(1).unwrap_or_else(|| "wg-example".to_owned());
    let interrupted = async {
        // Without a handler for Ctrl-C, the signal itself ends the program.
        let _ = tokio::signal::ctrl_c().await;
    };
    run(&interface, Path::new(SOCKET_DIR), interrupted).await
}

/// Runs the tunnel until it ends by itself, or until `stop` is ready.
pub(crate) async fn run(interface: &str, sockets: &Path, stop: impl Future<Output = ()>) -> Result<(), Box<dyn Error>> {
    let device = Device::builder().private_key(StaticSecret::generate()?).start(interface)?;
    let server = Server::start_in(sockets, interface, device.handle())?;
    println!("{} answers `wg show {interface}`", server.path().display());
    tokio::select! {
        reason = device.closed() => println!("{interface}: {reason}"),
        () = stop => device.shutdown().await,
    }
    Ok(())
}
