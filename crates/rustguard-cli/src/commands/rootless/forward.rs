//! Ports that lead into the tunnel, and services that are reached from there.

use super::{Inside, Way, relay};
use crate::arguments::rootless::{Expose, Forward, Local};
use anyhow::{Context as _, Result};
use rustguard_device::HostPort;
use std::{
    io,
    net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr},
    os::unix::fs::FileTypeExt as _,
    path::{Path, PathBuf},
    sync::Arc,
    time::Duration,
};
use tokio::{
    io::{AsyncRead, AsyncWrite},
    net::{TcpListener, TcpStream, UdpSocket, UnixListener, UnixStream},
};

/// How long a listener waits after an error, such as the limit of open files.
pub(super) const PAUSE: Duration = Duration::from_millis(100);

/// Starts to forward.
pub(super) async fn forward(inside: &Inside, Forward { from, to }: &Forward) -> Result<Way> {
    let cannot = || format!("cannot listen at {from}");
    let words = format!("{from} leads to {to}");
    let (inside, to) = (inside.clone(), to.clone());
    let task = match from {
        Local::Tcp(at) => {
            let listener = TcpListener::bind(at).await.with_context(cannot)?;
            tokio::spawn(async move {
                loop {
                    match listener.accept().await {
                        Ok((stream, _)) => {
                            let _ = stream.set_nodelay(true);
                            inside.lead(stream, &to);
                        }
                        Err(_) => tokio::time::sleep(PAUSE).await,
                    }
                }
            })
        }
        Local::Unix(path) => {
            let listener = Socket::bind(path).with_context(cannot)?;
            tokio::spawn(async move {
                loop {
                    match listener.0.accept().await {
                        Ok((stream, _)) => inside.lead(stream, &to),
                        Err(_) => tokio::time::sleep(PAUSE).await,
                    }
                }
            })
        }
        Local::Udp(at) => {
            let near = Arc::new(UdpSocket::bind(at).await.with_context(cannot)?);
            tokio::spawn(async move {
                let open = || {
                    let (inside, to) = (inside.clone(), to.clone());
                    async move {
                        let to = inside.resolve(&to).await?;
                        Ok((inside.stack.bind(0)?, to[0]))
                    }
                };
                relay::datagrams(near, open).await;
            })
        }
    };
    Ok(Way { words, task })
}

/// Starts to expose a service.
pub(super) fn expose(inside: &Inside, Expose { port, to }: &Expose) -> Result<Way> {
    let cannot = || format!("cannot listen at port {port} of the tunnel");
    let words = format!("port {port} of the tunnel leads to {to}");
    let (inside, to) = (inside.clone(), to.clone());
    let task = if let Local::Udp(to) = to {
        let near = Arc::new(inside.stack.bind(*port).with_context(cannot)?);
        tokio::spawn(async move {
            let any: IpAddr = if to.is_ipv4() { Ipv4Addr::UNSPECIFIED.into() } else { Ipv6Addr::UNSPECIFIED.into() };
            let open = || async move { Ok((UdpSocket::bind(SocketAddr::new(any, 0)).await?, to)) };
            relay::datagrams(near, open).await;
        })
    } else {
        let mut listener = inside.stack.listen(*port).with_context(cannot)?;
        tokio::spawn(async move {
            // It ends with the tunnel.
            while let Ok(mut stream) = listener.accept().await {
                let Ok(permit) = Arc::clone(&inside.connections).try_acquire_owned() else { continue };
                let to = to.clone();
                tokio::spawn(async move {
                    let _permit = permit;
                    let from = stream.peer_addr();
                    let led = match &to {
                        Local::Unix(path) => lead_to(&mut stream, UnixStream::connect(path)).await,
                        Local::Tcp(at) | Local::Udp(at) => lead_to(&mut stream, TcpStream::connect(at)).await,
                    };
                    if let Err(error) = led {
                        tracing::debug!("{from} does not reach {to}: {error}");
                    }
                });
            }
        })
    };
    Ok(Way { words, task })
}

/// Leads a connection from the tunnel to a service.
async fn lead_to<S: AsyncRead + AsyncWrite + Unpin>(
    stream: &mut rustguard_netstack::TcpStream,
    service: impl Future<Output = io::Result<S>>,
) -> io::Result<()> {
    relay::bytes(stream, &mut service.await?).await;
    Ok(())
}

impl Inside {
    /// Leads a connection of the host into the tunnel, if there are not too many.
    fn lead(&self, mut stream: impl AsyncRead + AsyncWrite + Unpin + Send + 'static, to: &HostPort) {
        let Ok(permit) = Arc::clone(&self.connections).try_acquire_owned() else { return };
        let (inside, to) = (self.clone(), to.clone());
        tokio::spawn(async move {
            let _permit = permit;
            match inside.connect(&to).await {
                Ok(mut far) => relay::bytes(&mut stream, &mut far).await,
                Err(error) => tracing::warn!("{to}: {error}"),
            }
        });
    }
}

/// A Unix socket for its owner alone. The file goes with it.
struct Socket(UnixListener, PathBuf);

impl Socket {
    fn bind(path: &Path) -> io::Result<Self> {
        // One that a killed process has left.
        let is_socket = std::fs::symlink_metadata(path).is_ok_and(|meta| meta.file_type().is_socket());
        if is_socket && std::os::unix::net::UnixStream::connect(path).is_err() {
            std::fs::remove_file(path)?;
        }
        let before = rustix::process::umask(rustix::fs::Mode::from_raw_mode(0o177));
        let bound = UnixListener::bind(path);
        rustix::process::umask(before);
        Ok(Self(bound?, path.to_owned()))
    }
}

impl Drop for Socket {
    fn drop(&mut self) {
        let _ = std::fs::remove_file(&self.1);
    }
}
