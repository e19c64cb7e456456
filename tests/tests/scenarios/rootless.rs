//! `rustguard up --rootless`: a tunnel of a user without rights, on a machine without /dev/net/tun. The other end is
//! the reference implementation.
use anyhow::{Context as _, Result, ensure};
use rustguard_tests::{
    Ended, INSIDE_A, INSIDE_B, Lab, Node, Outside, Pair, Process, Program, Tunnel, eventually, program_for_everybody,
    scenario_of_rustguard,
};
use std::{fs, path::PathBuf, process::Command, time::Duration};

const SOON: Duration = Duration::from_secs(30);
/// The user and the group `nobody`, if this user can become another one.
const NOBODY: [&str; 5] = ["--reuid", "65534", "--regid", "65534", "--clear-groups"];

/// Side `a`, without rights and without a TUN device.
struct Rootless<'a> {
    lab: &'a Lab,
    node: &'a Node,
    file: PathBuf,
    folder: tempfile::TempDir,
    as_nobody: bool,
}

impl<'a> Rootless<'a> {
    fn new(lab: &'a Lab, pair: &'a Pair, lines: &[&str]) -> Result<Self> {
        let folder = tempfile::Builder::new().prefix("rustguard-").tempdir_in("/tmp")?;
        let mut conf = pair.conf_a.wg_quick();
        for line in lines {
            conf = conf.replacen("[Interface]\n", &format!("[Interface]\n{line}\n"), 1);
        }
        let file = folder.path().join("home.conf");
        fs::write(&file, conf)?;
        let as_nobody = Ended::of(Command::new("setpriv").args(NOBODY).arg("true"))?.success();
        if as_nobody {
            for path in [folder.path(), &file] {
                std::os::unix::fs::chown(path, Some(65534), Some(65534))?;
            }
        }
        Ok(Self { lab, node: &pair.a, file, folder, as_nobody })
    }

    fn command(&self, arguments: &[&str]) -> Result<Command> {
        let mut command = self.node.command("unshare");
        command.args(["-m", "sh", "-ec", "mount --bind /dev/null /dev/net/tun; exec \"$@\"", "sh"]);
        if self.as_nobody {
            command.arg("setpriv").args(NOBODY);
        }
        command.arg(program_for_everybody(self.lab)?).args(["up", "--rootless"]).args(arguments).arg(&self.file);
        Ok(command)
    }

    fn start(&self, arguments: &[&str], says: &str) -> Result<Process> {
        let mut process = self.node.spawn("rootless", &mut self.command(arguments)?)?;
        let log = self.lab.path("rootless.log");
        process.until("it is ready", SOON, || Ok(fs::read_to_string(&log)?.contains(says)))?;
        Ok(process)
    }
}

/// Starts a program of Python on a node, and waits until it says `ready`.
fn python(lab: &Lab, node: &Node, name: &str, text: &str) -> Result<Process> {
    let file = lab.file(&format!("{name}.py"), text)?;
    let mut process = node.spawn(name, node.command("python3").arg("-u").arg(file))?;
    let log = lab.path(&format!("{name}.log"));
    process.until("it is ready", SOON, || Ok(fs::read_to_string(&log)?.contains("ready")))?;
    Ok(process)
}

/// A web server with a file of 4 MB, and an echo of datagrams, at an address.
fn services(lab: &Lab, node: &Node, address: &str) -> Result<(Process, Process)> {
    let web = format!(
        "import http.server\nclass H(http.server.BaseHTTPRequestHandler):\n def do_GET(s):\n  b=s.headers['Host'].encode() if s.path=='/host' else bytes(i*31&255 for i in range(4000))*1000\n  \
         s.send_response(200); s.send_header('Content-Length', str(len(b))); s.end_headers(); s.wfile.write(b)\n\
         w=http.server.ThreadingHTTPServer(('{address}', 80), H)\nprint('ready')\nw.serve_forever()\n"
    );
    let echo = format!(
        "import socket\ns=socket.socket(socket.AF_INET, socket.SOCK_DGRAM)\ns.bind(('{address}', 7))\nprint('ready')\n\
         while True:\n b,a=s.recvfrom(65535)\n s.sendto(b.upper(),a)\n"
    );
    Ok((python(lab, node, "web", &web)?, python(lab, node, "echo", &echo)?))
}

/// Whether `curl` gets the whole file.
fn gets(node: &Node, arguments: &[&str]) -> Result<()> {
    let mut curl = node.command("sh");
    curl.args(["-ec", "curl -sS -m 20 \"$@\" | sha256sum", "sh"]).args(arguments);
    let ended = node.end_of(&mut curl)?;
    let expected = "import hashlib; print(hashlib.sha256(bytes(i*31&255 for i in range(4000))*1000).hexdigest())";
    let expected = node.run(&["python3", "-c", expected])?;
    ensure!(ended.stdout.starts_with(expected.trim()), "{arguments:?}: {ended}");
    Ok(())
}

#[test]
fn a_user_without_rights_reaches_the_tunnel_and_is_reached() {
    scenario_of_rustguard("tunnels without root", |lab| {
        lab.needs("python3", "python3")?;
        let pair = Pair::new(lab, Outside::V4)?;
        let b = Tunnel::start(lab, &pair.b, Program::Reference, &pair.conf_b)?;
        let _services = services(lab, &pair.b, INSIDE_B[0])?;
        let rootless = Rootless::new(lab, &pair, &["PostUp = touch /tmp/never", "MTU = 1400"])?;
        let socket = rootless.folder.path().join("web.sock");
        let socket = socket.to_str().context("a path")?;
        let forward = format!("{socket}=10.9.0.2:80");
        let arguments = [
            ["--socks", "1080"],
            ["--http", "3128"],
            ["--forward", "8080=[fd09::2]:81"],
            ["--forward", "8081=10.9.0.2:80"],
            ["--forward", &forward],
            ["--forward", "udp:5007=10.9.0.2:7"],
            ["--expose", "8000=8081"],
            ["--expose", "udp:5000=127.0.0.1:5007"],
        ];
        let mut process = rootless.start(&arguments.concat(), "a SOCKS5 proxy is at 127.0.0.1:1080")?;
        ensure!(process.log().contains("hooks of the file do not run"), "{}", process.log());
        let a = &pair.a;
        ensure!(!a.run(&["ip", "-br", "link"])?.contains("home"), "there is an interface");

        // Out, by each way.
        gets(a, &["--socks5", "127.0.0.1:1080", "http://10.9.0.2/x"])?;
        gets(a, &["--socks5-hostname", "127.0.0.1:1080", "http://10.9.0.2/x"])?;
        gets(a, &["-x", "http://127.0.0.1:3128", "http://10.9.0.2/x"])?;
        gets(a, &["-x", "http://127.0.0.1:3128", "-p", "http://10.9.0.2/x"])?;
        let mut curl = a.command("curl");
        curl.args(["-sS", "-m", "20", "-x", "http://127.0.0.1:3128", "-H", "Host: other.lab", "http://10.9.0.2/host"]);
        let host = a.end_of(&mut curl)?;
        ensure!(host.stdout == "10.9.0.2", "the host is not that of the URL: {host}");
        gets(a, &["http://127.0.0.1:8081/x"])?;
        gets(a, &["--unix-socket", socket, "http://web/x"])?;
        // In: its echo, and its services, which here are forwarded once more.
        for address in INSIDE_A {
            pair.b.reaches(address, 10)?;
        }
        gets(&pair.b, &["http://10.9.0.1:8000/x"])?;
        let datagram = |at: &str| {
            format!(
                "import socket\ns=socket.socket(socket.AF_INET, socket.SOCK_DGRAM); s.settimeout(10)\ns.sendto(b'x'*1300, {at})\n\
                 assert s.recv(2000)==b'X'*1300"
            )
        };
        a.run(&["python3", "-c", &datagram("('127.0.0.1', 5007)")])?;
        pair.b.run(&["python3", "-c", &datagram("('10.9.0.1', 5000)")])?;
        // Datagrams by SOCKS (RFC 1928 section 7).
        let socks = "import socket, struct\nc=socket.create_connection(('127.0.0.1', 1080)); c.sendall(b'\\5\\1\\0')\nassert c.recv(2)==b'\\5\\0'\n\
             c.sendall(b'\\5\\3\\0\\1'+bytes(6)); r=c.recv(10); assert r[:4]==b'\\5\\0\\0\\1', r\n\
             u=socket.socket(socket.AF_INET, socket.SOCK_DGRAM); u.settimeout(10)\n\
             h=b'\\0\\0\\0\\1'+socket.inet_aton('10.9.0.2')+struct.pack('>H',7)\n\
             u.sendto(h+b'hello', ('127.0.0.1', struct.unpack('>H', r[8:])[0]))\nd=u.recv(100)\nassert d==h+b'HELLO', d";
        a.run(&["python3", "-c", socks])?;

        // What a web site in a browser of this machine can ask for, and what nobody answers.
        for (arguments, status) in [
            (&["http://127.0.0.1:3128/x"][..], "400"),
            (&["-x", "http://127.0.0.1:3128", "http://[fd09::2]:81/"], "502"),
        ] {
            let mut curl = a.command("curl");
            let code =
                a.end_of(curl.args(["-sS", "-m", "20", "-o", "/dev/null", "-w", "%{http_code}"]).args(arguments))?;
            ensure!(code.stdout == status, "{arguments:?}: {code}");
        }
        // What is not exposed is not reached, although the host listens there.
        let hidden = pair.b.end_of(pair.b.command("curl").args(["-sS", "-m", "20", "http://10.9.0.1:8081/x"]))?;
        ensure!(hidden.stderr.contains("refused") || hidden.stderr.contains("Failed to connect"), "{hidden}");

        // A closed port is refused at once, and a silent address is not waited for by others.
        let refused = a.end_of(a.command("curl").args(["-sS", "-m", "20", "http://127.0.0.1:8080/"]))?;
        ensure!(!refused.success(), "{refused}");
        ensure!(process.log().contains("[fd09::2]:81"), "{}", process.log());

        process.signal("TERM")?;
        let ended = process.ended(SOON)?;
        ensure!(ended.success(), "{ended}");
        ensure!(!std::path::Path::new(socket).exists(), "the Unix socket is left behind");
        drop(b);
        Ok(())
    });
}

#[test]
fn a_rootless_tunnel_says_what_it_cannot_do() {
    scenario_of_rustguard("tunnels without root", |lab| {
        let pair = Pair::new(lab, Outside::V4)?;
        let refused = |lines: &[&str], arguments: &[&str], words: &[&str]| {
            let rootless = Rootless::new(lab, &pair, lines)?;
            rootless.node.end_of(&mut rootless.command(arguments)?)?.refused(words)
        };
        refused(&["Routing = babel"], &[], &["Routing = babel", "takes an interface"])?;
        refused(&["MTU = 1200"], &[], &["1200", "1280"])?;
        refused(&[], &["--socks", "0.0.0.0:1080"], &["everybody", "--proxy-users"])?;
        refused(&[], &["--http", "0.0.0.0:3128"], &["everybody", "--proxy-users"])?;
        refused(&[], &["--socks", "1080", "--proxy-users", "/nowhere"], &["/nowhere", "No such file"])?;
        refused(&[], &["--socks", "1080", "--proxy-users", "/etc/hostname"], &["/etc/hostname:1", "NAME:PASSWORD"])?;
        refused(&[], &["--forward", "/proc/nowhere/x.sock=10.9.0.2:80"], &["/proc/nowhere/x.sock", "No such file"])?;
        refused(&[], &["--expose", "80=8080", "--expose", "80=8081"], &["port 80", "taken"])?;
        for wrong in [
            &["up", "--rootless", "--forward", "80", "x"][..],
            &["up", "--rootless", "--expose", "80", "x"],
            &["up", "--socks", "1080", "x"],
            &["up", "--rootless", "--detach", "x"],
            &["up", "--proxy-users", "x", "x"],
        ] {
            pair.a.end_of(pair.a.rustguard()?.args(wrong))?.is_misuse()?;
        }
        Ok(())
    });
}

/// With users, a client without the right password reaches nothing.
#[test]
fn the_proxy_asks_for_a_password() {
    scenario_of_rustguard("tunnels without root", |lab| {
        lab.needs("python3", "python3")?;
        let pair = Pair::new(lab, Outside::V4)?;
        let _b = Tunnel::start(lab, &pair.b, Program::Reference, &pair.conf_b)?;
        let _services = services(lab, &pair.b, INSIDE_B[0])?;
        let rootless = Rootless::new(lab, &pair, &[])?;
        let users = rootless.folder.path().join("users");
        fs::write(&users, "ann:a long: password\n\nbob:b\n")?;
        if rootless.as_nobody {
            std::os::unix::fs::chown(&users, Some(65534), Some(65534))?;
        }
        let users = users.to_str().context("a path")?;
        let proxies = ["--socks", "0.0.0.0:1080", "--http", "0.0.0.0:3128", "--proxy-users", users];
        let _process = rootless.start(&proxies, "an HTTP proxy is at")?;
        gets(&pair.a, &["-x", "http://127.0.0.1:3128", "-U", "ann:a long: password", "http://10.9.0.2/x"])?;
        gets(&pair.a, &["--socks5", "127.0.0.1:1080", "-U", "ann:a long: password", "http://10.9.0.2/x"])?;
        for user in [&[][..], &["-U", "ann:b"], &["-U", "eve:b"]] {
            for proxy in [["--socks5", "127.0.0.1:1080"], ["-x", "http://127.0.0.1:3128"]] {
                let mut curl = pair.a.command("curl");
                curl.args(["-sSf", "-m", "20"]).args(proxy).args(user).arg("http://10.9.0.2/x");
                ensure!(!pair.a.end_of(&mut curl)?.success(), "{user:?} may use {proxy:?}");
            }
        }
        // A client that says nothing holds nobody up.
        let silent = "import socket,time\ns=[socket.create_connection(('127.0.0.1',1080)) for _ in range(50)]\nprint('ready')\ntime.sleep(60)";
        let _silent = python(lab, &pair.a, "silent", silent)?;
        eventually("another client is served", SOON, || {
            gets(&pair.a, &["--socks5", "127.0.0.1:1080", "-U", "bob:b", "http://10.9.0.2/x"]).map(|()| true)
        })
    });
}
