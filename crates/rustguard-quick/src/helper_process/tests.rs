//! A compromised tunnel, and its privileged helper.

use super::{knowledge::Knowledge, serve};
use crate::{
    conf::{self, File},
    helper::{Answer, DnsEntry, Failure, Field, Journal, Level, Line, Names, Said, Save, Task, Told, When, frame},
    hooks::HookOutput,
};
use rustguard_crypto::x25519::StaticSecret;
use rustguard_device::key;
use rustix::process::getppid;
use std::{
    fs, io,
    os::unix::fs::symlink,
    path::{Path, PathBuf},
    sync::mpsc::{Receiver, channel},
    time::Duration,
};
use tempfile::TempDir;
use tokio::{
    io::{AsyncReadExt as _, AsyncWriteExt as _},
    net::UnixStream,
    task::{JoinHandle, LocalSet},
};

/// A tunnel with a file in a folder of its own.
struct Tunnel {
    folder: TempDir,
    stream: UnixStream,
    helper: JoinHandle<()>,
    last: u64,
    /// The lines that are written into the journal.
    journal: Receiver<Line>,
}

fn conf(lines: &str) -> String {
    format!("[Interface]\nPrivateKey = {}\n{lines}\n", &*key::to_base64(&[7; 32]))
}

impl Tunnel {
    async fn start(lines: &str) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("wg7.conf");
        fs::write(&path, conf(lines)).unwrap();
        let knowledge =
            Knowledge::new("wg7", Some(&path), &[folder.path().join("metrics")], HookOutput::Stderr).unwrap();
        let (stream, theirs) = UnixStream::pair().unwrap();
        let (written, lines) = channel();
        let journal = Journal::start(move |line: &Line| written.send(line.clone()).map_err(io::Error::other)).unwrap();
        let helper = tokio::task::spawn_local(serve(theirs, knowledge, getppid(), journal));
        let mut tunnel = Self { folder, stream, helper, last: 0, journal: lines };
        assert_eq!(tunnel.answer().await, Some((0, Answer::Done)));
        tunnel
    }

    fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    async fn say(&mut self, said: &Said) {
        self.stream.write_all(&frame(said).unwrap()).await.unwrap();
    }

    async fn begin(&mut self, task: Task) -> u64 {
        self.last += 1;
        let number = self.last;
        self.say(&Said::Do { number, task }).await;
        number
    }

    async fn answer(&mut self) -> Option<(u64, Answer)> {
        let length = self.stream.read_u32().await.ok()?;
        let mut bytes = vec![0; usize::try_from(length).unwrap()];
        self.stream.read_exact(&mut bytes).await.ok()?;
        let Told { number, answer } = serde_json::from_slice(&bytes).unwrap();
        Some((number, answer))
    }

    async fn ask(&mut self, task: Task) -> Answer {
        let number = self.begin(task).await;
        let (answered, answer) = self.answer().await.unwrap();
        assert_eq!(answered, number);
        answer
    }

    async fn hook(&mut self, when: When, command: &str) -> Answer {
        self.ask(Task::Hook { when, command: command.to_owned() }).await
    }

    async fn refuses(&mut self, what: &str, task: Task) {
        let answer = self.ask(task).await;
        assert!(matches!(answer, Answer::Failed(Failure::Refused(_))), "{what}: {answer:?}");
    }
}

fn within(test: impl Future<Output = ()>) {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    LocalSet::new().block_on(&runtime, async {
        tokio::time::timeout(Duration::from_secs(60), test).await.expect("in time");
    });
}

fn digest(path: &Path) -> String {
    File::read(path).unwrap().digest()
}

#[test]
fn only_hooks_of_the_file_run_and_know_their_tunnel() {
    within(async {
        let told = tempfile::tempdir().unwrap();
        let out = |name: &str| told.path().join(name).display().to_string();
        let hook = format!("echo %i $INTERFACE $CONFIG_FILE >> {}", out("told"));
        let mut tunnel = Tunnel::start(&format!("PostUp = {hook}\nPostDown = exit 3")).await;
        assert_eq!(tunnel.hook(When::PostUp, &hook).await, Answer::Ended(0));
        let expected = format!("wg7 wg7 {}\n", tunnel.path("wg7.conf").display());
        assert_eq!(fs::read_to_string(out("told")).unwrap(), expected);
        assert_eq!(tunnel.hook(When::PostDown, "exit 3").await, Answer::Ended(3 << 8));
        for (when, command) in [
            (When::PostUp, format!("touch {}", out("forged"))),
            (When::PostUp, format!("{hook}; touch {}", out("forged"))),
            (When::PreDown, hook.clone()),
            (When::PostUp, String::new()),
        ] {
            tunnel.refuses(&command.clone(), Task::Hook { when, command }).await;
        }
        assert_eq!(fs::read_to_string(out("told")).unwrap(), expected);
        assert!(!Path::new(&out("forged")).exists());
    });
}

#[test]
fn another_file_has_to_be_the_tunnels_own() {
    within(async {
        let mut tunnel = Tunnel::start("PostUp = true").await;
        let path = tunnel.path("wg7.conf");
        fs::write(&path, conf("PostUp = true\nPostDown = exit 4")).unwrap();
        // A hook is valid when the tunnel has taken the file over, and not as soon as it is in the file.
        tunnel.refuses("an edit", Task::Hook { when: When::PostDown, command: "exit 4".to_owned() }).await;
        let taken = |path: &Path| Task::Taken { path: path.to_owned(), digest: digest(path) };
        let other = Task::Taken { path: path.clone(), digest: digest(Path::new("/etc/passwd")) };
        assert_eq!(tunnel.ask(other).await, Answer::Failed(Failure::Changed));
        assert_eq!(tunnel.ask(taken(&path)).await, Answer::Done);
        assert_eq!(tunnel.hook(When::PostDown, "exit 4").await, Answer::Ended(4 << 8));

        let elsewhere = tempfile::tempdir().unwrap();
        let (far, near) = (elsewhere.path().join("wg7.conf"), tunnel.path("wg8.conf"));
        for file in [&far, &near] {
            fs::write(file, conf("PostUp = exit 5")).unwrap();
        }
        tunnel.refuses("another folder", taken(&far)).await;
        tunnel.refuses("another tunnel's file", taken(&near)).await;
        fs::remove_file(&path).unwrap();
        symlink(&far, &path).unwrap();
        tunnel.refuses("a link that leads elsewhere", taken(&path)).await;
        tunnel.refuses("its hook", Task::Hook { when: When::PostUp, command: "exit 5".to_owned() }).await;
    });
}

#[test]
fn tunables_and_name_servers_of_others_are_left_alone() {
    within(async {
        let mut tunnel = Tunnel::start("").await;
        let file = tunnel.path("written").display().to_string();
        for name in
            ["kernel/core_pattern", "net/ipv4/conf/../../../kernel/core_pattern", &file, "net/ipv4/tcp_syncookies"]
        {
            tunnel.refuses(name, Task::Sysctl { name: name.to_owned(), value: "1".to_owned() }).await;
        }
        let core = |value: &str| Task::Sysctl { name: "net/ipv4/ip_forward".to_owned(), value: value.to_owned() };
        tunnel.refuses("a value", core("|/tmp/x")).await;
        for name in ["wg8", "eth0", "../wg7", "-x"] {
            let entry = DnsEntry::Resolvconf { name: name.to_owned() };
            tunnel.refuses(name, Task::DropNames(entry)).await;
        }
        for domain in ["a b", "a\nnameserver 1.2.3.4", "$(id)", "`id`", "a;id", "'"] {
            let names: Names = serde_json::from_value(serde_json::json!({
                "entry": { "resolvconf": { "name": "wg7" } }, "servers": [], "search": [domain], "all": false,
            }))
            .unwrap();
            tunnel.refuses(domain, Task::SetNames(names)).await;
        }
    });
}

#[test]
fn hooks_in_the_file_stay_whatever_the_tunnel_saves() {
    within(async {
        let mut tunnel = Tunnel::start("# mine\nPostUp = true").await;
        let path = tunnel.path("wg7.conf");
        let other = StaticSecret::from_bytes([8; 32]);
        let answer = tunnel.ask(Task::Save(Save::PrivateKey(key::to_base64(&other.to_bytes())))).await;
        assert_eq!(answer, Answer::Saved(digest(&path)));
        let text = fs::read_to_string(&path).unwrap();
        assert_eq!(
            text,
            conf("# mine\nPostUp = true").replace(&*key::to_base64(&[7; 32]), &key::to_base64(&other.to_bytes()))
        );

        let peer = &*key::to_base64(&other.public_key().0);
        let device = format!(
            "[Interface]\nPrivateKey = {}\nListenPort = 5\nPostUp = id\nPreDown = id\nDNS = 1.2.3.4\n\n[Peer]\nPublicKey = {peer}\n",
            &*key::to_base64(&[9; 32])
        );
        let save = |digest: String| Task::Save(Save::Device { digest, device: device.clone().into() });
        assert_eq!(tunnel.ask(save("0".repeat(64))).await, Answer::Failed(Failure::Changed));
        assert_eq!(tunnel.ask(save(digest(&path))).await, Answer::Saved(digest(&path)));
        let config = conf::parse(&fs::read_to_string(&path).unwrap()).0.unwrap();
        assert_eq!((config.interface.listen_port, config.peers.len()), (Some(5), 1));
        assert_eq!(config.interface.post_up, ["true"]);
        assert!(config.interface.pre_down.is_empty() && config.interface.dns.is_empty());
        for keys in [("x", "y"), ("true", "id")] {
            let keys = vec![(keys.0.to_owned(), keys.1.to_owned())];
            tunnel.refuses("no keys", Task::Save(Save::PeerKeys(keys))).await;
        }
    });
}

#[test]
fn only_sockets_of_the_tunnel_are_opened() {
    within(async {
        let mut tunnel = Tunnel::start("").await;
        let listen = |path: PathBuf| Task::Listen { path, group: false };
        for path in [tunnel.path("other"), "/run/rustguard/wg8.sock".into(), "/run/docker.sock".into()] {
            tunnel.refuses(&path.display().to_string(), listen(path.clone())).await;
            assert!(path == Path::new("/run/docker.sock") || !path.exists());
        }
        let path = tunnel.path("metrics");
        // By another path to the same folder.
        let folder = tunnel.folder.path().join("..").join(tunnel.folder.path().file_name().unwrap());
        assert_eq!(tunnel.ask(listen(folder.join("metrics"))).await, Answer::Done);
        assert!(path.exists());
        // The socket counts as in use until the descriptor in transit is closed.
        fs::remove_file(&path).unwrap();
        fs::write(&path, "no socket").unwrap();
        let answer = tunnel.ask(listen(path)).await;
        assert!(matches!(answer, Answer::Failed(Failure::System { code: Some(17), .. })), "{answer:?}");
    });
}

#[test]
fn the_journal_gets_lines_with_fields_of_a_closed_list() {
    within(async {
        let mut tunnel = Tunnel::start("").await;
        let fields = vec![(Field::Peer, "laptop".to_owned())];
        let line = |text: &str, fields: &[_]| Line {
            level: Level::Warn,
            target: "rustguard".to_owned(),
            text: text.to_owned(),
            fields: fields.to_vec(),
        };
        let said = line("no answer", &fields);
        assert_eq!(tunnel.ask(Task::Log(said.clone())).await, Answer::Done);
        assert_eq!(tunnel.journal.try_recv(), Ok(said));
        tunnel.refuses("a long line", Task::Log(line(&"x".repeat(1 << 20), &[]))).await;
        tunnel.refuses("many fields", Task::Log(line("x", &vec![fields[0].clone(); 100]))).await;
        assert!(tunnel.journal.try_recv().is_err());
    });
}

/// `OBJECT_PID=` would assign a line to another service, and `MAINPID=` would make another process the main process of
/// the unit.
#[test]
fn no_other_field_is_written_and_nothing_else_is_told_to_systemd() {
    for task in [
        r#"{"log":{"level":"info","target":"x","text":"x","fields":[["object_pid","1"]]}}"#,
        r#"{"log":{"level":"info","target":"x","text":"x","fields":[],"OBJECT_PID":"1"}}"#,
        r#"{"notify":"MAINPID=1"}"#,
        r#"{"notify":"watchdog_trigger"}"#,
        r#"{"notify":{"status":"x"}}"#,
    ] {
        within(async {
            let mut tunnel = Tunnel::start("").await;
            let said = format!(r#"{{"do":{{"number":1,"task":{task}}}}}"#);
            tunnel.stream.write_u32(u32::try_from(said.len()).unwrap()).await.unwrap();
            tunnel.stream.write_all(said.as_bytes()).await.unwrap();
            assert_eq!(tunnel.answer().await, None, "{task}");
            tunnel.helper.await.unwrap();
            assert!(tunnel.journal.try_recv().is_err(), "{task}");
        });
    }
}

/// A hook that never ends by itself, and the file in which it writes that it runs.
fn endless(folder: &TempDir) -> (String, PathBuf) {
    let out = folder.path().join("pid");
    (format!("sleep 1000 & echo $! > {}; wait", out.display()), out)
}

async fn pid(out: &Path) -> String {
    loop {
        match fs::read_to_string(out) {
            Ok(pid) if pid.ends_with('\n') => return pid.trim().to_owned(),
            _ => tokio::time::sleep(Duration::from_millis(5)).await,
        }
    }
}

/// Processes that a hook has started are killed with it, and end a moment later.
async fn gone(pid: &str) {
    while is_alive(pid) {
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
}

fn is_alive(pid: &str) -> bool {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
    stat.rsplit(") ").next().is_some_and(|state| !state.is_empty() && !state.starts_with('Z'))
}

#[test]
fn what_runs_ends_with_the_wish_for_it_and_with_the_tunnel() {
    within(async {
        let folder = tempfile::tempdir().unwrap();
        let (hook, out) = endless(&folder);
        let mut tunnel = Tunnel::start(&format!("PreUp = {hook}")).await;
        let task = || Task::Hook { when: When::PreUp, command: hook.clone() };
        let number = tunnel.begin(task()).await;
        let first = pid(&out).await;
        // Other tasks are done meanwhile.
        assert!(matches!(tunnel.ask(Task::NameService).await, Answer::Service(_)));
        tunnel.say(&Said::Cancel { number }).await;
        let (ended, answer) = tunnel.answer().await.unwrap();
        assert!(ended == number && matches!(answer, Answer::Failed(_)), "{answer:?}");
        gone(&first).await;

        fs::remove_file(&out).unwrap();
        tunnel.begin(task()).await;
        let second = pid(&out).await;
        let Tunnel { stream, helper, .. } = tunnel;
        drop(stream);
        helper.await.unwrap();
        gone(&second).await;
    });
}

#[test]
fn what_is_no_task_ends_the_connection() {
    for bytes in [&b"\0\0\0\x02{}"[..], b"\xff\xff\xff\xff", b"\0\0\0\x0e{\"do\":\"forever\"}"] {
        within(async {
            let mut tunnel = Tunnel::start("").await;
            tunnel.stream.write_all(bytes).await.unwrap();
            assert_eq!(tunnel.answer().await, None);
            tunnel.helper.await.unwrap();
        });
    }
}

#[test]
fn a_flood_of_tasks_is_bounded() {
    within(async {
        let folder = tempfile::tempdir().unwrap();
        let (hook, out) = endless(&folder);
        let mut tunnel = Tunnel::start(&format!("PreUp = {hook}")).await;
        for _ in 0..16 {
            tunnel.begin(Task::Hook { when: When::PreUp, command: hook.clone() }).await;
        }
        pid(&out).await;
        tunnel.refuses("one too many", Task::NameService).await;
        let Tunnel { stream, helper, .. } = tunnel;
        drop(stream);
        helper.await.unwrap();
    });
}
