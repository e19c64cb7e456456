//! PostgreSQL.

use super::process::{Process, as_nobody, folder, give, ports, program};
use rustguard_store::{LogError, address::StoreAddress, postgres::PostgresLog};
use std::{
    fs,
    net::{Ipv4Addr, TcpStream},
    path::PathBuf,
    process::Command,
    time::Duration,
};
use tempfile::TempDir;

/// A running PostgreSQL with a database `vpn`, whose superuser is `admin`.
pub(crate) struct Database {
    pub(crate) folder: TempDir,
    pub(crate) port: u16,
    postgres: PathBuf,
    psql: PathBuf,
    process: Option<Process>,
}

impl Database {
    /// Starts one with these lines in postgresql.conf, and these in pg_hba.conf.
    pub(crate) fn start(folder: TempDir, settings: &str, access: &str) -> Option<Self> {
        let (initdb, postgres) = (program("initdb", "postgresql")?, program("postgres", "postgresql")?);
        let psql = program("psql", "postgresql-client")?;
        let data = folder.path().join("data");
        let made = as_nobody(&initdb)
            .args(["--username=admin", "--auth=trust", "--encoding=UTF8", "--no-sync", "-D"])
            .arg(&data)
            .output()
            .unwrap();
        assert!(made.status.success(), "initdb: {}", String::from_utf8_lossy(&made.stderr));
        let append = |name: &str, text: &str| {
            let path = data.join(name);
            let old = fs::read_to_string(&path).unwrap_or_default();
            fs::write(&path, old + text).unwrap();
            give(&path);
        };
        append("postgresql.conf", &format!("\n{settings}\n"));
        if !access.is_empty() {
            fs::write(data.join("pg_hba.conf"), "").unwrap();
            append("pg_hba.conf", access);
        }
        let [port] = ports();
        let mut database = Self { folder, port, postgres, psql, process: None };
        database.spawn();
        database.listens();
        database.sql("postgres", "CREATE DATABASE vpn");
        Some(database)
    }

    pub(crate) fn spawn(&mut self) {
        let folder = self.folder.path();
        let arguments = [
            "-D".to_owned(),
            folder.join("data").display().to_string(),
            "-h".to_owned(),
            "127.0.0.1".to_owned(),
            "-p".to_owned(),
            self.port.to_string(),
            "-k".to_owned(),
            folder.display().to_string(),
        ];
        self.process = Some(Process::start(&self.postgres, folder, "postgres", arguments));
    }

    /// Waits until it answers.
    pub(crate) fn listens(&mut self) {
        let (port, psql, folder) = (self.port, self.psql.clone(), self.folder.path().to_owned());
        let answers = || {
            let mut command = Command::new(&psql);
            command.args(["-qAt", "-U", "admin", "-d", "postgres", "-c", "SELECT 1", "-p", &port.to_string(), "-h"]);
            command.arg(&folder).output().unwrap().status.success()
        };
        let listens = || TcpStream::connect((Ipv4Addr::LOCALHOST, port)).is_ok() && answers();
        self.process.as_mut().expect("it runs").until(listens);
    }

    /// Runs statements as the superuser, by the socket.
    pub(crate) fn sql(&self, database: &str, statements: &str) -> String {
        let mut command = Command::new(&self.psql);
        let port = self.port.to_string();
        command.args([
            "-qAt",
            "-v",
            "ON_ERROR_STOP=1",
            "-U",
            "admin",
            "-d",
            database,
            "-c",
            statements,
            "-p",
            &port,
            "-h",
        ]);
        let done = command.arg(self.folder.path()).output().unwrap();
        assert!(done.status.success(), "{statements}: {}", String::from_utf8_lossy(&done.stderr));
        String::from_utf8(done.stdout).unwrap().trim().to_owned()
    }

    /// Ends it with a signal: `QUIT` ends all its processes at once, and the next start goes through the journal, as
    /// after a failure of the power.
    pub(crate) fn stop(&mut self, signal: rustix::process::Signal) {
        self.process.take().expect("it runs").stop(signal);
    }

    /// Ends the connections of all logs.
    pub(crate) fn cut_connections(&self) {
        let cut = "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE application_name = 'rustguard'";
        self.sql("vpn", cut);
    }

    /// Lets all requests wait, as a database that hangs does.
    pub(crate) fn hang(&self, time: Duration) {
        let (table, seconds) = ("rustguard.head", time.as_secs_f64());
        self.sql(
            "vpn",
            &format!("BEGIN; LOCK TABLE {table} IN ACCESS EXCLUSIVE MODE; SELECT pg_sleep({seconds}); COMMIT"),
        );
    }

    pub(crate) fn address(&self, rest: &str) -> String {
        format!("postgres://admin@127.0.0.1:{}/vpn{rest}", self.port)
    }
}

pub(crate) async fn open(address: &str) -> Result<PostgresLog, LogError> {
    PostgresLog::open(&StoreAddress::parse(address).unwrap()).await
}

pub(crate) fn plain(settings: &str) -> Option<Database> {
    Database::start(folder(), settings, "")
}
