//! Stock `wg`: keys and `wg show … dump`.
use crate::lab::run;
use anyhow::{Context, Result, ensure};
use std::{
    io::Write,
    process::{Command, Stdio},
};

/// A static key pair, in base64.
#[derive(Clone, Debug)]
pub struct Keypair {
    /// The private key.
    pub private: String,
    /// The public key.
    pub public: String,
}

impl Keypair {
    /// Generates a key pair with `wg`.
    pub fn generate() -> Result<Self> {
        let private = run(Command::new("wg").arg("genkey"))?.trim().to_owned();
        let mut child = Command::new("wg").arg("pubkey").stdin(Stdio::piped()).stdout(Stdio::piped()).spawn()?;
        child.stdin.take().context("a pipe to wg")?.write_all(private.as_bytes())?;
        let public = String::from_utf8(child.wait_with_output()?.stdout)?.trim().to_owned();
        Ok(Self { private, public })
    }
}

/// Generates a preshared key with `wg`.
pub fn preshared_key() -> Result<String> {
    Ok(run(Command::new("wg").arg("genpsk"))?.trim().to_owned())
}

/// The output of `wg show INTERFACE dump`.
#[derive(Clone, Debug)]
pub struct Dump {
    /// The private key, `(none)` if there is none.
    pub private_key: String,
    /// The public key.
    pub public_key: String,
    /// The UDP port.
    pub listen_port: u16,
    /// The firewall mark, `off` if there is none.
    pub fwmark: String,
    /// The peers.
    pub peers: Vec<DumpPeer>,
}

/// One peer of [`Dump`].
#[derive(Clone, Debug)]
pub struct DumpPeer {
    /// Its public key.
    pub public_key: String,
    /// The preshared key, `(none)` if there is none.
    pub preshared_key: String,
    /// The endpoint, `(none)` if it is not known.
    pub endpoint: String,
    /// The allowed IPs in the format of `wg`.
    pub allowed_ips: String,
    /// Seconds since 1970. 0 means never.
    pub latest_handshake: u64,
    /// Bytes received.
    pub rx: u64,
    /// Bytes sent.
    pub tx: u64,
    /// The persistent keepalive, in seconds or `off`.
    pub persistent_keepalive: String,
}

impl Dump {
    pub(crate) fn parse(text: &str) -> Result<Self> {
        let mut lines = text.lines().map(|line| line.split('\t').collect::<Vec<_>>());
        let head = lines.next().context("a line for the interface")?;
        ensure!(head.len() == 4, "a line for the interface has 4 fields: {head:?}");
        let peers = lines
            .map(|peer| {
                ensure!(peer.len() == 8, "a line for a peer has 8 fields: {peer:?}");
                Ok(DumpPeer {
                    public_key: peer[0].to_owned(),
                    preshared_key: peer[1].to_owned(),
                    endpoint: peer[2].to_owned(),
                    allowed_ips: peer[3].to_owned(),
                    latest_handshake: peer[4].parse()?,
                    rx: peer[5].parse()?,
                    tx: peer[6].parse()?,
                    persistent_keepalive: peer[7].to_owned(),
                })
            })
            .collect::<Result<_>>()?;
        Ok(Self {
            private_key: head[0].to_owned(),
            public_key: head[1].to_owned(),
            listen_port: head[2].parse()?,
            fwmark: head[3].to_owned(),
            peers,
        })
    }

    /// The peer with this key.
    pub fn peer(&self, public_key: &str) -> Result<&DumpPeer> {
        self.peers.iter().find(|peer| peer.public_key == public_key).context("the peer is not there")
    }
}
