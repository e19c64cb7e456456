//! etcd with one member or three.

use super::process::{PAUSE, Process, START, folder, ports, program};
use rustguard_store::{LogError, address::StoreAddress, etcd::EtcdLog};
use std::{
    net::{Ipv4Addr, TcpStream},
    path::{Path, PathBuf},
    process::Command,
    time::Instant,
};
use tempfile::TempDir;

/// Running members of etcd.
pub(crate) struct Cluster {
    pub(crate) folder: TempDir,
    program: PathBuf,
    /// The ports for clients and for other members.
    ports: Vec<(u16, u16)>,
    arguments: Vec<String>,
    pub(crate) members: Vec<Option<Process>>,
}

impl Cluster {
    /// Starts one member with these arguments.
    pub(crate) fn of_one(arguments: &[&str]) -> Option<Self> {
        let [client, peer] = ports();
        Self::start(folder(), vec![(client, peer)], arguments)
    }

    /// Starts one member with files in a folder that exists already.
    pub(crate) fn in_folder(folder: TempDir, arguments: &[&str]) -> Option<Self> {
        let [client, peer] = ports();
        Self::start(folder, vec![(client, peer)], arguments)
    }

    /// Starts three members.
    pub(crate) fn of_three() -> Option<Self> {
        let [a, b, c, d, e, f] = ports();
        Self::start(folder(), vec![(a, b), (c, d), (e, f)], &[])
    }

    fn start(folder: TempDir, ports: Vec<(u16, u16)>, arguments: &[&str]) -> Option<Self> {
        let program = program("etcd", "etcd-server")?;
        let members = ports.iter().map(|_| None).collect();
        let arguments = arguments.iter().map(|argument| (*argument).to_owned()).collect();
        let mut cluster = Self { folder, program, ports, arguments, members };
        for member in 0..cluster.ports.len() {
            cluster.spawn(member);
        }
        for member in 0..cluster.ports.len() {
            cluster.listens(member);
        }
        Some(cluster)
    }

    /// Starts a member, also again.
    pub(crate) fn spawn(&mut self, member: usize) {
        let (client, peer) = self.ports[member];
        let scheme =
            if self.arguments.iter().any(|argument| argument.starts_with("--cert-file")) { "https" } else { "http" };
        let initial = self.ports.iter().enumerate().map(|(n, (_, peer))| format!("m{n}=http://127.0.0.1:{peer}"));
        let initial = initial.collect::<Vec<_>>().join(",");
        let arguments = [
            format!("--name=m{member}"),
            format!("--data-dir={}", self.folder.path().join(format!("m{member}")).display()),
            format!("--listen-client-urls={scheme}://127.0.0.1:{client}"),
            format!("--advertise-client-urls={scheme}://127.0.0.1:{client}"),
            format!("--listen-peer-urls=http://127.0.0.1:{peer}"),
            format!("--initial-advertise-peer-urls=http://127.0.0.1:{peer}"),
            format!("--initial-cluster={initial}"),
        ];
        let arguments = arguments.iter().chain(&self.arguments);
        let process = Process::start(&self.program, self.folder.path(), &format!("m{member}"), arguments);
        self.members[member] = Some(process);
    }

    /// Waits until a member takes connections.
    pub(crate) fn listens(&mut self, member: usize) {
        let port = self.ports[member].0;
        let process = self.members[member].as_mut().expect("it runs");
        process.until(|| TcpStream::connect((Ipv4Addr::LOCALHOST, port)).is_ok());
    }

    /// The address of a log in it.
    pub(crate) fn address(&self, place: &str) -> String {
        let hosts: Vec<_> = self.ports.iter().map(|(client, _)| format!("127.0.0.1:{client}")).collect();
        format!("etcd://{}/{place}", hosts.join(","))
    }

    /// Opens a log in it.
    pub(crate) async fn open(&self, place: &str) -> Result<EtcdLog, LogError> {
        opened(&self.address(place)).await
    }

    /// Runs etcdctl on the first member.
    pub(crate) fn etcdctl(&self, arguments: &str) -> Option<String> {
        let etcdctl = program("etcdctl", "etcd-client")?;
        let mut command = Command::new(etcdctl);
        command.env("ETCDCTL_API", "3").args(["--dial-timeout=60s", "--command-timeout=60s"]);
        command.arg(format!("--endpoints=127.0.0.1:{}", self.ports[0].0));
        let done = command.args(arguments.split(' ')).output().unwrap();
        assert!(done.status.success(), "etcdctl {arguments}: {}", String::from_utf8_lossy(&done.stderr));
        Some(String::from_utf8(done.stdout).unwrap())
    }

    pub(crate) fn path(&self) -> &Path {
        self.folder.path()
    }
}

/// Opens a log, without patience.
pub(crate) async fn open(address: &str) -> Result<EtcdLog, LogError> {
    EtcdLog::open(&StoreAddress::parse(address).unwrap()).await
}

/// Opens a log. Members that have just started listen before they have a leader.
pub(crate) async fn opened(address: &str) -> Result<EtcdLog, LogError> {
    let started = Instant::now();
    loop {
        match open(address).await {
            Err(error) if error.is_unknown() && started.elapsed() < START => tokio::time::sleep(PAUSE).await,
            result => return result,
        }
    }
}
