//! Runs a configuration file until Ctrl-C: `cargo run -p rustguard-quick --example run_file -- wg0`, as root. Takes the
//! edited file over with SIGHUP, without losing a session.
use rustguard_quick::{Device, Session, reload::Reload};
use std::error::Error;
use tokio::signal::{
    ctrl_c,
    unix::{SignalKind, signal},
};

#[tokio::main(flavor = "current_thread")]
async fn main() -> Result<(), Box<dyn Error>> {
    let target = std::env::args().nth(1).ok_or("the name of a tunnel or the path of its file, please")?;
    let mut hangup = signal(SignalKind::hangup())?;
    let mut session = Session::open(&target).await?;
    let result = tokio::select! {
        started = session.start(Device::builder()) => started,
        _ = ctrl_c() => Ok(()),
    };
    while let (Ok(()), Some(device)) = (&result, session.device()) {
        tokio::select! {
            _ = device.closed() => break,
            _ = ctrl_c() => break,
            _ = hangup.recv() => {}
        }
        match session.fulfil(&Reload::new()).await {
            Ok((_, difference)) => difference.lines().iter().for_each(|line| println!("{line}")),
            Err(error) => println!("{error}"),
        }
    }
    session.stop().await;
    Ok(result?)
}
