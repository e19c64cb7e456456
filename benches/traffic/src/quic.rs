//! A stream of QUIC, with quinn's defaults.

use crate::{CHUNK, Counter, say};
use anyhow::{Context as _, Result, ensure};
use quinn::{ClientConfig, Endpoint, ServerConfig};
use rustls::{
    RootCertStore,
    pki_types::{CertificateDer, PrivatePkcs8KeyDer},
};
use std::{
    fmt::Write as _,
    net::{Ipv4Addr, Ipv6Addr, SocketAddr},
    sync::Arc,
    thread,
    time::Duration,
};
use tokio::runtime::{Builder, Runtime};

const NAME: &str = "links.test";

fn runtime() -> Result<Runtime> {
    Ok(Builder::new_current_thread().enable_all().build()?)
}

/// Accepts a connection with a new certificate, and counts the bytes of its stream in this time.
pub(crate) fn receive(at: SocketAddr, time: Duration) -> Result<Vec<u64>> {
    let made = rcgen::generate_simple_self_signed([NAME.to_owned()])?;
    let key = PrivatePkcs8KeyDer::from(made.signing_key.serialize_der());
    let mut text = String::new();
    made.cert.der().iter().try_for_each(|byte| write!(text, "{byte:02x}"))?;
    let config = ServerConfig::with_single_cert(vec![made.cert.der().clone()], key.into())?;
    let counter = Arc::new(Counter::default());
    let all = Arc::clone(&counter);
    let runtime = runtime()?;
    let endpoint = runtime.block_on(async { Endpoint::server(config, at) })?;
    thread::spawn(move || runtime.block_on(count(endpoint, &all)));
    say(&format!("ready {text}"));
    Ok(counter.over(time))
}

async fn count(endpoint: Endpoint, counter: &Counter) -> Result<()> {
    let connection = endpoint.accept().await.context("a closed endpoint")?.await?;
    let mut stream = connection.accept_uni().await?;
    while let Some(chunk) = stream.read_chunk(CHUNK, true).await? {
        counter.add(chunk.bytes.len());
    }
    Ok(())
}

/// Connects, and writes until the receiver has enough and ends.
pub(crate) fn send(to: SocketAddr, certificate: &str) -> Result<Vec<u64>> {
    ensure!(certificate.is_ascii() && certificate.len().is_multiple_of(2), "a certificate in hexadecimal");
    let bytes = (0..certificate.len()).step_by(2).map(|at| u8::from_str_radix(&certificate[at..at + 2], 16));
    let mut roots = RootCertStore::empty();
    roots.add(CertificateDer::from(bytes.collect::<Result<Vec<_>, _>>()?))?;
    let own: SocketAddr =
        if to.is_ipv4() { (Ipv4Addr::UNSPECIFIED, 0).into() } else { (Ipv6Addr::UNSPECIFIED, 0).into() };
    runtime()?.block_on(async {
        let mut endpoint = Endpoint::client(own)?;
        endpoint.set_default_client_config(ClientConfig::with_root_certificates(Arc::new(roots))?);
        let connection = endpoint.connect(to, NAME)?.await?;
        let mut stream = connection.open_uni().await?;
        say("ready");
        let chunk = vec![0x5a; CHUNK];
        while stream.write_all(&chunk).await.is_ok() {}
        Ok(Vec::new())
    })
}
