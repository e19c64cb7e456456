//! Ports that lead into the tunnel, and services that are reached from there.

use super::{Inside, Way, listen, relay};
use crate::arguments::rootless::{Expose, Forward, Local};
use anyhow::{Context as _, Result};
use rustguard_device::HostPort;
use rustguard_netstack::TcpListener;
use std::{
    io,
    net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr},
    sync::Arc,
};
use tokio::{
    io::{AsyncRead, AsyncWrite},
    net::{TcpStream, UdpSocket, UnixStream},
    task::JoinHandle,
};

/// Starts to forward.
pub(super) async fn forward(inside: &Inside, Forward { from, to }: &Forward) -> Result<Way> {
    let words = format!("{from} leads to {to}");
    let (inside, to) = (inside.clone(), to.clone());
    let task = match from {
        Local::Tcp(at) => listen::tcp(*at, move |stream| inside.lead(stream, &to)).await?.1,
        Local::Unix(path) => listen::unix(path, move |stream| inside.lead(stream, &to))?,
        Local::Udp(at) => {
            let near = UdpSocket::bind(at).await.with_context(|| format!("cannot listen at {from}"))?;
            tokio::spawn(async move {
                let open = || {
                    let (inside, to) = (inside.clone(), to.clone());
                    async move {
                        let to = inside.resolve(&to).await?;
                        Ok((inside.stack.bind(0)?, to[0]))
                    }
                };
                relay::datagrams(Arc::new(near), open).await;
            })
        }
    };
    Ok(Way { words, task })
}

/// Starts to expose a service.
pub(super) fn expose(inside: &Inside, Expose { port, to }: &Expose) -> Result<Way> {
    let cannot = || format!("cannot listen at port {port} of the tunnel");
    let words = format!("port {port} of the tunnel leads to {to}");
    let task = match to.clone() {
        Local::Udp(to) => {
            let near = Arc::new(inside.stack.bind(*port).with_context(cannot)?);
            let any: IpAddr = if to.is_ipv4() { Ipv4Addr::UNSPECIFIED.into() } else { Ipv6Addr::UNSPECIFIED.into() };
            tokio::spawn(async move {
                let open = || async move { Ok((UdpSocket::bind(SocketAddr::new(any, 0)).await?, to)) };
                relay::datagrams(near, open).await;
            })
        }
        Local::Tcp(to) => accept(inside, inside.stack.listen(*port).with_context(cannot)?, move || async move {
            let service = TcpStream::connect(to).await?;
            service.set_nodelay(true)?;
            Ok(service)
        }),
        Local::Unix(to) => {
            accept(inside, inside.stack.listen(*port).with_context(cannot)?, move || UnixStream::connect(to.clone()))
        }
    };
    Ok(Way { words, task })
}

/// Leads the connections of a port of the tunnel to a service, which `open` connects to.
fn accept<S, O>(inside: &Inside, mut listener: TcpListener, open: impl Fn() -> O + Send + 'static) -> JoinHandle<()>
where
    S: AsyncRead + AsyncWrite + Unpin + Send,
    O: Future<Output = io::Result<S>> + Send + 'static,
{
    let room = Arc::clone(&inside.from_tunnel);
    tokio::spawn(async move {
        // It ends with the tunnel.
        while let Ok(mut stream) = listener.accept().await {
            let Ok(permit) = Arc::clone(&room).try_acquire_owned() else { continue };
            let service = open();
            tokio::spawn(async move {
                let _permit = permit;
                match service.await {
                    Ok(mut service) => relay::bytes(&mut stream, &mut service).await,
                    Err(error) => tracing::debug!("{} does not reach its service: {error}", stream.peer_addr()),
                }
            });
        }
    })
}

impl Inside {
    /// Leads a connection of the host into the tunnel, if there are not too many.
    fn lead(&self, mut stream: impl AsyncRead + AsyncWrite + Unpin + Send + 'static, to: &HostPort) {
        let Some(permit) = self.room() else { return };
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
