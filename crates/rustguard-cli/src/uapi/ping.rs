//! Pings through the control socket, on one connection.

use super::{PATIENCE, explain, from_json, socket};
use anyhow::{Context as _, Result, bail};
use rustguard_crypto::x25519::PublicKey;
use rustguard_device::{
    interface,
    uapi::{Errno, PingView, ping_request},
};
use std::time::Duration;
use tokio::{
    io::{AsyncBufReadExt as _, AsyncReadExt as _, AsyncWriteExt as _, BufReader},
    net::UnixStream,
    time::timeout,
};

/// The longest line of an answer, in bytes.
const LINE_MAX: u64 = 4096;

/// A connection on which a device is asked to ping.
pub(crate) struct Pinger {
    interface: String,
    stream: BufReader<UnixStream>,
}

impl Pinger {
    /// Connects to the socket of a device.
    pub(crate) async fn open(interface: &str) -> Result<Self> {
        interface::check_name(interface)?;
        let path = socket(interface);
        let stream = UnixStream::connect(&path).await.map_err(|error| explain(error, &path))?;
        Ok(Self { interface: interface.to_owned(), stream: BufReader::new(stream) })
    }

    /// Pings a peer.
    ///
    /// # Errors
    /// The device cannot be asked. A missing answer of the peer is no error.
    pub(crate) async fn ping(&mut self, peer: &PublicKey, wait: Duration) -> Result<PingView> {
        let request = ping_request(peer, wait) + "\n";
        match timeout(wait + PATIENCE, self.exchange(&request)).await {
            Ok(answer) => answer,
            Err(_) => bail!("{} does not answer on its control socket", self.interface),
        }
    }

    async fn exchange(&mut self, request: &str) -> Result<PingView> {
        // A device that has ended breaks the pipe, or resets it. This must not be confused with a closed pipe at the
        // output of this command.
        if self.stream.write_all(request.as_bytes()).await.is_err() {
            bail!("{} has ended", self.interface);
        }
        let mut view = None;
        loop {
            let mut line = String::new();
            if (&mut self.stream).take(LINE_MAX).read_line(&mut line).await.unwrap_or(0) == 0 {
                bail!("{} has ended", self.interface);
            }
            match line.trim_end_matches('\n').split_once('=') {
                Some(("rustguard_ping", json)) => {
                    view = Some(from_json(json).with_context(|| format!("the answer of {}", self.interface))?);
                }
                Some(("errno", "0")) => {}
                Some(("errno", errno)) if errno.parse() == Ok(-Errno::EPROTO.0) => bail!(
                    "the process of {0} is older than this program, and cannot ping: `rustguard down {0}`, and up again",
                    self.interface
                ),
                Some(("errno", errno)) => bail!("{} refuses the request: errno {errno}", self.interface),
                None if line == "\n" => break,
                _ => {}
            }
        }
        view.with_context(|| format!("{} did not answer the request", self.interface))
    }
}
