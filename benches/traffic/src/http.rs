//! Small files over HTTP/1.1, as a browser gets them.

use crate::{nanos, say};
use anyhow::{Context as _, Result, ensure};
use http_body_util::{BodyExt as _, Empty, Full};
use hyper::{
    Request, Response, StatusCode,
    body::{Bytes, Incoming},
    client::conn::http1 as client,
    header::HOST,
    server::conn::http1 as server,
    service::service_fn,
};
use hyper_util::rt::TokioIo;
use std::{
    convert::Infallible,
    net::SocketAddr,
    sync::{
        Arc,
        atomic::{AtomicU32, Ordering},
    },
    time::Instant,
};
use tokio::{
    net::{TcpListener, TcpStream},
    runtime::{Builder, Runtime},
    task::JoinSet,
};

/// The number of parallel connections, as browsers open them to one server.
const CONNECTIONS: usize = 6;

fn runtime() -> Result<Runtime> {
    Ok(Builder::new_current_thread().enable_all().build()?)
}

/// Bytes of a file: 1 to 32 KiB, most of them small. The average is 11 KiB.
fn size(file: u32) -> usize {
    1_024 << (file % 6) as usize
}

/// Serves the file N at `/N` until the process is ended.
pub(crate) fn serve(at: SocketAddr) -> Result<Vec<u64>> {
    let runtime = runtime()?;
    let local = tokio::task::LocalSet::new();
    local.block_on(&runtime, async {
        let listener = TcpListener::bind(at).await?;
        say("ready");
        loop {
            let (stream, _) = listener.accept().await?;
            stream.set_nodelay(true)?;
            tokio::task::spawn_local(async {
                // An error means that the client has ended.
                let _ = server::Builder::new().serve_connection(TokioIo::new(stream), service_fn(answer)).await;
            });
        }
    })
}

async fn answer(request: Request<Incoming>) -> Result<Response<Full<Bytes>>, Infallible> {
    let file = request.uri().path().strip_prefix('/').and_then(|file| file.parse().ok());
    let mut response = Response::new(Full::new(Bytes::from(vec![0x5a; file.map_or(0, size)])));
    if file.is_none() {
        *response.status_mut() = StatusCode::NOT_FOUND;
    }
    Ok(response)
}

/// Gets the files 0 to `files - 1`, and checks their lengths.
pub(crate) fn get(from: SocketAddr, files: u32) -> Result<Vec<u64>> {
    say("ready");
    let begun = Instant::now();
    runtime()?.block_on(async {
        let next = Arc::new(AtomicU32::new(0));
        let mut all = JoinSet::new();
        for _ in 0..CONNECTIONS {
            all.spawn(get_some(from, Arc::clone(&next), files));
        }
        while let Some(ended) = all.join_next().await {
            ended??;
        }
        Ok::<_, anyhow::Error>(())
    })?;
    Ok(vec![nanos(begun.elapsed())])
}

/// Gets files one after the other over one connection, as long as there are any left.
async fn get_some(from: SocketAddr, next: Arc<AtomicU32>, files: u32) -> Result<()> {
    let stream = TcpStream::connect(from).await.context("connect")?;
    stream.set_nodelay(true)?;
    let (mut sender, connection) = client::handshake(TokioIo::new(stream)).await?;
    tokio::spawn(connection);
    loop {
        let file = next.fetch_add(1, Ordering::Relaxed);
        if file >= files {
            return Ok(());
        }
        let request = Request::get(format!("/{file}")).header(HOST, from.to_string()).body(Empty::<Bytes>::new())?;
        let body = sender.send_request(request).await?.into_body().collect().await?.to_bytes();
        ensure!(body.len() == size(file), "file {file} has {} bytes instead of {}", body.len(), size(file));
    }
}
