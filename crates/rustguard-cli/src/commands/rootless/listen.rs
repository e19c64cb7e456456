//! Listeners of the host.

use anyhow::{Context as _, Result};
use rustguard_device::unix_socket::{self, Access};
use std::{
    net::SocketAddr,
    os::unix::net::UnixListener as StdUnixListener,
    path::{Path, PathBuf},
    time::Duration,
};
use tokio::{
    net::{TcpListener, TcpStream, UnixListener, UnixStream},
    task::JoinHandle,
    time::sleep,
};

/// The pause after a failed accept. The most likely cause is that the process has no free descriptors.
const PAUSE: Duration = Duration::from_millis(100);

/// Gives each connection to `serve`, which does not wait. Returns the address, and the task, which does not end.
pub(super) async fn tcp(
    at: SocketAddr,
    serve: impl Fn(TcpStream) + Send + 'static,
) -> Result<(SocketAddr, JoinHandle<()>)> {
    let listener = TcpListener::bind(at).await.with_context(|| format!("cannot listen at {at}"))?;
    let at = listener.local_addr()?;
    let task = tokio::spawn(async move {
        loop {
            match listener.accept().await {
                Ok((stream, _)) => {
                    // Without it, small messages wait for acknowledgements.
                    let _ = stream.set_nodelay(true);
                    serve(stream);
                }
                Err(_) => sleep(PAUSE).await,
            }
        }
    });
    Ok((at, task))
}

/// The same at a Unix socket for its owner alone. The file goes with the task.
pub(super) fn unix(path: &Path, serve: impl Fn(UnixStream) + Send + 'static) -> Result<JoinHandle<()>> {
    let cannot = || format!("cannot listen at {}", path.display());
    let listener = StdUnixListener::from(unix_socket::open(path, Access::Owner).with_context(cannot)?);
    let file = File(path.to_owned());
    let listener = UnixListener::from_std(listener).with_context(cannot)?;
    Ok(tokio::spawn(async move {
        let _file = file;
        loop {
            match listener.accept().await {
                Ok((stream, _)) => serve(stream),
                Err(_) => sleep(PAUSE).await,
            }
        }
    }))
}

/// Removes the file of a socket when it is dropped.
struct File(PathBuf);

impl Drop for File {
    fn drop(&mut self) {
        let _ = std::fs::remove_file(&self.0);
    }
}
