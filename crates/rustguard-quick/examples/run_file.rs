//! Runs a configuration file until Ctrl-C: `cargo run -p rustguard-quick --example run_file -- wg0`, as root.
use rustguard_quick::{Device, Session};
use std::error::Error;

#[tokio::main(flavor = "current_thread")]
async fn main() -> Result<(), Box<dyn Error>> {
    let target = std::env::args().nth(1).ok_or("the name of a tunnel or the path of its file, please")?;
    let mut session = Session::open(&target).await?;
    let result = tokio::select! {
        started = session.start(Device::builder()) => started,
        _ = tokio::signal::ctrl_c() => Ok(()),
    };
    if let (Ok(()), Some(device)) = (&result, session.device()) {
        tokio::select! { _ = device.closed() => {}, _ = tokio::signal::ctrl_c() => {} }
    }
    session.stop().await;
    Ok(result?)
}
