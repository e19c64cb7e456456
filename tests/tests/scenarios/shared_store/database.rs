//! Servers on PostgreSQL, which is slow, and which crashes.
use super::{SECOND, SOON, STORE_KEY, TRIES, labels, second_status};
use anyhow::{Context as _, Result, ensure};
use rustguard_tests::{Ended, Lab, Network, Node, Process, eventually, network, scenario_of_rustguard};
use std::{fs, path::PathBuf, process::Command, time::Duration};

const STORE: &str = "postgres://admin@10.1.0.1/vpn?tls=off";
/// Each record takes two seconds from now on.
const SLOW: &str = "CREATE FUNCTION slow() RETURNS trigger LANGUAGE plpgsql AS
    'BEGIN PERFORM pg_sleep(2); RETURN NULL; END';
    CREATE TRIGGER slow BEFORE UPDATE ON rustguard.head FOR EACH STATEMENT EXECUTE FUNCTION slow()";

/// PostgreSQL on the server's node, with a database `vpn` of the superuser `admin`.
struct Database {
    node: Node,
    programs: PathBuf,
    folder: tempfile::TempDir,
    process: Process,
}

impl Database {
    /// `None` if this user cannot become another one: PostgreSQL does not run as root, which a user without rights is
    /// in a user namespace.
    fn start(lab: &Lab, network: &Network) -> Result<Option<Self>> {
        let versions = fs::read_dir("/usr/lib/postgresql").into_iter().flatten().flatten();
        let Some(programs) = versions.map(|it| it.path().join("bin")).find(|it| it.join("initdb").is_file()) else {
            lab.needs("initdb", "postgresql")?;
            return Ok(None);
        };
        let as_nobody = ["--reuid", "65534", "--regid", "65534", "--clear-groups"];
        if !Ended::of(Command::new("setpriv").args(as_nobody).arg("true"))?.success() {
            lab.skip("PostgreSQL, which does not run as root, and no other user is here");
            return Ok(None);
        }
        let folder = tempfile::Builder::new().prefix("rustguard-").tempdir_in("/tmp")?;
        std::os::unix::fs::chown(folder.path(), Some(65534), Some(65534))?;
        let data = folder.path().join("data");
        let node = network.server.clone();
        let mut initdb = node.command("setpriv");
        initdb.args(as_nobody).arg(programs.join("initdb")).args(["-U", "admin", "-A", "trust", "--no-sync", "-D"]);
        let made = node.end_of(initdb.arg(&data))?;
        ensure!(made.success(), "initdb: {made}");
        // The file stays its owner's.
        fs::write(data.join("pg_hba.conf"), "local all all trust\nhost all all 10.1.0.0/24 trust\n")?;
        let process = Self::spawn(&node, &programs, &folder)?;
        let mut database = Self { node, programs, folder, process };
        database.listens()?;
        database.sql("postgres", "CREATE DATABASE vpn")?;
        Ok(Some(database))
    }

    fn spawn(node: &Node, programs: &std::path::Path, folder: &tempfile::TempDir) -> Result<Process> {
        let mut command = node.command("setpriv");
        command.args(["--reuid", "65534", "--regid", "65534", "--clear-groups"]).arg(programs.join("postgres"));
        command.arg("-D").arg(folder.path().join("data")).args(["-h", "10.1.0.1", "-k"]).arg(folder.path());
        node.spawn("postgres", &mut command)
    }

    /// It crashes: all its processes end at once, and the next start goes through its journal.
    fn crash(&mut self) -> Result<()> {
        self.process.stop("QUIT").map(drop)
    }

    fn start_again(&mut self) -> Result<()> {
        self.process = Self::spawn(&self.node, &self.programs, &self.folder)?;
        self.listens()
    }

    fn listens(&mut self) -> Result<()> {
        let (node, programs, folder) = (&self.node, &self.programs, &self.folder);
        self.process.until("PostgreSQL answers", SOON, || {
            let mut psql = node.command(programs.join("psql"));
            psql.args(["-U", "admin", "-d", "postgres", "-c", "SELECT 1", "-h"]).arg(folder.path());
            Ok(node.end_of(&mut psql)?.success())
        })
    }

    /// Runs statements as the superuser.
    fn sql(&self, database: &str, statements: &str) -> Result<()> {
        let mut psql = self.node.command(self.programs.join("psql"));
        psql.args(["-U", "admin", "-v", "ON_ERROR_STOP=1", "-d", database, "-c", statements, "-h"]);
        let ended = self.node.end_of(psql.arg(self.folder.path()))?;
        ensure!(ended.success(), "{ended}");
        Ok(())
    }
}

/// Two servers on PostgreSQL. While each record takes it two seconds, joining takes longer, and nothing else does.
/// After its crash, the servers go on by themselves.
#[test]
fn a_slow_database_makes_joining_slow_and_nothing_else() {
    scenario_of_rustguard("servers on one store", |lab| {
        network(lab, 3, |network| {
            network.server.sh("sysctl -qw net.ipv4.ip_forward=1")?;
            let Some(mut database) = Database::start(lab, network)? else { return Ok(()) };
            let _first = network.serve(lab, &["--store", STORE, "--endpoint", "10.1.0.1"])?;
            let second = ["--store", STORE, "--store-key", STORE_KEY, "--endpoint", "10.1.0.2"];
            let _second = network.serve_on(lab, SECOND, &second)?;
            let token = network.invite(&["--uses", "2"])?;
            let _two = network.join(lab, 2, &["10.1.0.1", "--token", &token, "--name", "two"])?;
            let two = network.addresses(2)?.into_iter().next().context("an address")?;
            let own = network.server_addresses()?.into_iter().next().context("an address")?;

            database.sql("vpn", SLOW)?;
            let mut join = network.join_command(3, &["10.1.0.1", "--token", &token, "--name", "three"])?;
            let mut joining = network.machines[2].spawn("joining", join.arg("--no-up"))?;
            let mut meanwhile = 0;
            joining.until("it has joined", SOON, || {
                let is_in = fs::exists("/etc/rustguard/rg3.conf")?;
                for status in [network.status()?, second_status(network)?] {
                    ensure!(status["store"]["since"].is_null(), "the store is slow, and not gone: {status}");
                }
                network.machines[1].reaches(&own, 1)?;
                network.machines[0].reaches(&two, 1)?;
                meanwhile += usize::from(!is_in);
                Ok(is_in)
            })?;
            ensure!(joining.ended(SOON)?.success(), "{}", joining.log());
            ensure!(meanwhile > 2, "the others waited for the one who joins");
            eventually("the second server has it", SOON, || {
                Ok(labels(&second_status(network)?)?.contains(&"three".to_owned()))
            })?;

            database.crash()?;
            eventually("the server notices", SOON, || Ok(network.status()?["store"]["since"].is_u64()))?;
            network.try_ask(&["invite", "new", "--another"])?.refused(&["postgres://10.1.0.1:5432/vpn"])?;
            network.machines[0].reaches(&two, TRIES)?;
            database.start_again()?;
            database.sql("vpn", "DROP TRIGGER slow ON rustguard.head")?;
            eventually("the server decides again", Duration::from_secs(60), || {
                Ok(network.try_ask(&["invite", "new", "--another"])?.success())
            })
        })
    });
}
