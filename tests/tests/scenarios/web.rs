//! `--web`: the status page of a server, with curl, and with a real browser (`tests/web/drive.py`).
use anyhow::{Context as _, Result, ensure};
use rustguard_tests::{Lab, Network, eventually, network, rustguard, scenario_of_rustguard};
use serde_json::Value;
use std::{env, fs, path::PathBuf, time::Duration};

const PAGE: &str = "127.0.0.1:9580";
const POLICY: &str = "/etc/rustguard/rgs.policy";
const SOON: Duration = Duration::from_secs(15);
/// The limit for everything that the browser does. It suffices on a busy machine.
const LONG: Duration = Duration::from_secs(300);

/// A client on the server's machine with only forms and cookies.
struct Curl<'n> {
    network: &'n Network,
    jar: String,
}

impl<'n> Curl<'n> {
    /// Logs in with a link for this name.
    fn log_in(lab: &Lab, network: &'n Network, name: &str) -> Result<Self> {
        let link: Value = serde_json::from_str(&network.ask(&["web", "--name", name, "--json"])?)?;
        let url = link["url"].as_str().context("a link")?;
        let secret = url.strip_prefix("http://127.0.0.1:9580/login/").context("the link leads to the page")?;
        let curl = Self { network, jar: lab.path("cookies").display().to_string() };
        let answer = curl.post("/login", &[("link", secret)])?;
        ensure!(answer.starts_with("303 "), "{answer}");
        Ok(curl)
    }

    fn ask(&self, path: &str, more: &[&str]) -> Result<String> {
        let url = format!("http://{PAGE}{path}");
        let fixed = ["curl", "-s", "-b", &self.jar, "-c", &self.jar, &url];
        self.network.server.run(&[&fixed, more].concat())
    }

    /// The HTTP status of the answer to a form.
    fn post(&self, path: &str, fields: &[(&str, &str)]) -> Result<String> {
        let fields: Vec<_> = fields.iter().map(|(name, value)| format!("{name}={value}")).collect();
        let mut more = vec!["-o", "/dev/null", "-w", "%{http_code} ", "-H", "Origin: http://127.0.0.1:9580"];
        more.extend(fields.iter().flat_map(|field| ["--data-urlencode", field]));
        self.ask(path, &more)
    }

    /// The page of the policy with this query.
    fn policy(&self, query: &str) -> Result<String> {
        self.ask(&format!("/policy{query}"), &[])
    }

    fn act(&self, path: &str, fields: &[(&str, &str)]) -> Result<()> {
        let page = self.ask("/joining", &[])?;
        let token = page.split("name=\"token\" value=\"").nth(1).and_then(|rest| rest.split('"').next());
        let token = token.with_context(|| format!("no token: {page}"))?;
        let answer = self.post(path, &[&[("token", token)], fields].concat())?;
        ensure!(answer.starts_with("303 "), "{path}: {answer}");
        Ok(())
    }
}

#[test]
fn a_session_acts_in_its_name_and_ends() {
    scenario_of_rustguard("the status page", |lab| {
        network(lab, 1, |network| {
            let mut served = network.serve(lab, &["--web", PAGE])?;
            let browser = Curl::log_in(lab, network, "alice")?;
            let _joined = network.join(lab, 1, &served.join_arguments())?;
            ensure!(browser.ask("/", &[])?.contains("/member/"), "the machine is on the page");
            browser.act("/window/open", &[])?;
            ensure!(!network.status()?["window"].is_null(), "the window is open");
            browser.act("/window/close", &[])?;
            ensure!(network.status()?["window"].is_null(), "the window is closed");
            for event in ["web-login", "window-opened", "window-closed"] {
                let line = network.audited(event, 1)?;
                ensure!(line["by"] == "web: alice#1" && line["uid"].is_null(), "{line}");
            }
            let line = network.audited("web-link-made", 1)?;
            ensure!(line["by"] == "web: alice" && line["uid"] == 0, "{line}");
            network.try_ask(&["web", "--name", "a<b>"])?.refused(&["no name for the audit log"])?;
            ensure!(network.ask(&["web", "--end"])?.contains("1 session has ended"), "how many");
            let after = browser.ask("/", &[])?;
            ensure!(after.contains("Not logged in") && !after.contains("/member/"), "{after}");
            let log = served.process().log();
            ensure!(log.contains("status page: http://127.0.0.1:9580/"), "{log}");
            served.stop()
        })
    });
}

#[test]
fn the_policy_and_questions_to_it() {
    scenario_of_rustguard("the policy on the status page", |lab| {
        network(lab, 1, |network| {
            fs::create_dir_all("/etc/rustguard")?;
            fs::write(POLICY, "# who may what\nallow m1 -> * icmp,tcp/22\n")?;
            let served = network.serve(lab, &["--web", PAGE])?;
            let _joined = network.join(lab, 1, &[&served.join_arguments()[..], &["--name", "m1"]].concat())?;
            let browser = Curl::log_in(lab, network, "alice")?;
            // While somebody looks at the page, the server measures round trips itself. The machine has also reported
            // its version.
            eventually("a round trip", SOON, || Ok(browser.ask("/", &[])?.contains(" ms</td>")))?;
            let version = || Ok(network.status()?["peers"][0]["version"] == env!("CARGO_PKG_VERSION"));
            eventually("the version of the machine's program", SOON, version)?;
            let status = network.ask(&["status"])?;
            ensure!(status.contains(concat!("versions: ", env!("CARGO_PKG_VERSION"), " (m1)")), "{status}");
            // Before the list of members contains the machine, its name is unknown.
            let question = "?from=m1&to=192.168.1.7&traffic=tcp/22";
            eventually("yes", SOON, || Ok(browser.policy(question)?.contains("<strong>Yes</strong>")))?;
            let page = browser.policy(question)?;
            ensure!(page.contains("line 2") && page.contains("# who may what"), "{page}");
            let command = ["policy", "test", "m1", "192.168.1.7", "tcp/22"];
            ensure!(network.ask(&command)?.starts_with("yes\n"), "the command says the same");
            let page = browser.policy("?from=m1&to=192.168.1.7&traffic=tcp/23")?;
            ensure!(page.contains("<strong>No</strong>"), "{page}");
            // The page shows refused packets with the name of the machine.
            let server = network.server_addresses()?;
            let refused = || {
                let asked = network.machines[0].run(&["curl", "-s", "-m", "2", &format!("http://{}:23/", server[0])]);
                ensure!(asked.is_err(), "the policy refuses it");
                let page = browser.policy("")?;
                Ok(page.contains("tcp/23</th>") && page.contains(">m1 (") && page.contains("no line allows it"))
            };
            eventually("the refusal on the page", SOON, refused)?;
            // A newer file with a mistake is refused, and the page shows the place of the mistake.
            fs::write(POLICY, "allow m1 -> *\nalow m1 -> *\n")?;
            network.server.end_of(network.server.rustguard()?.args(["reload", "rgs"]))?.refused(&["rgs.policy:2:1"])?;
            let page = browser.policy("")?;
            ensure!(
                page.contains("line 2, column 1") && page.contains("^^^^") && page.contains("it has mistakes"),
                "{page}"
            );
            ensure!(
                browser.policy("?from=m1&to=192.168.1.7&traffic=tcp/23")?.contains("<strong>No</strong>"),
                "as before"
            );
            // `status` shows that there is a policy.
            ensure!(network.ask(&["status"])?.contains("policy: 1 rule, 0 tests"), "{}", network.ask(&["status"])?);
            ensure!(network.status()?["network"]["policy"]["rules"] == 1, "{}", network.status()?);
            fs::write(POLICY, "allow * -> *\n")?;
            network.server.end_of(network.server.rustguard()?.args(["reload", "rgs"]))?.says(&[])?;
            fs::remove_file(POLICY)?;
            network.server.end_of(network.server.rustguard()?.args(["reload", "rgs"]))?.says(&[])?;
            eventually("the end of the policy", SOON, || Ok(browser.policy("")?.contains("There is no policy")))?;
            ensure!(network.status()?["network"]["policy"].is_null(), "{}", network.status()?);
            served.stop()
        })
    });
}

/// A self-signed certificate for `vpn.example.org` and 10.1.0.1, and its key.
fn new_certificate(lab: &Lab, network: &Network, name: &str) -> Result<(String, String)> {
    let path = |end: &str| lab.path(&format!("{name}.{end}")).display().to_string();
    let (certificate, key) = (path("pem"), path("key"));
    network.server.run(&[
        "openssl",
        "req",
        "-x509",
        "-newkey",
        "ec",
        "-pkeyopt",
        "ec_paramgen_curve:prime256v1",
        "-nodes",
        "-days",
        "2",
        "-subj",
        "/CN=vpn.example.org",
        "-addext",
        "subjectAltName=DNS:vpn.example.org,IP:10.1.0.1",
        "-keyout",
        &key,
        "-out",
        &certificate,
    ])?;
    Ok((certificate, key))
}

#[test]
fn another_machine_gets_the_page_by_tls() {
    scenario_of_rustguard("the status page by TLS", |lab| {
        lab.needs("openssl", "openssl")?;
        network(lab, 1, |network| {
            let (certificate, key) = new_certificate(lab, network, "vpn")?;
            let (_, other) = new_certificate(lab, network, "other")?;
            let public = |certificate, key| {
                let fixed = ["--web", "10.1.0.1:9580", "--web-public", "--web-host", "vpn.example.org"];
                [&fixed[..], &["--web-cert", certificate, "--web-key", key]].concat()
            };
            // Wrong files are refused before the tunnel starts.
            let none = format!("{key}.none");
            for (certificate, key, words) in [
                (&certificate, &certificate, "no private key in PEM"),
                (&certificate, &other, "take the key that this was made for"),
                (&certificate, &none, "No such file"),
                (&key, &key, "no certificate in PEM"),
            ] {
                let mut command = network.server.rustguard()?;
                let ended =
                    network.server.end_of(command.args(["serve", "-i", "rgs"]).args(public(certificate, key)))?;
                ended.refused(&[words, "/"])?;
            }
            let served = network.serve(lab, &public(&certificate, &key))?;
            let client = &network.machines[0];
            let jar = lab.path("jar").display().to_string();
            let curl = |url: &str, more: &[&str]| {
                let resolve = ["--resolve", "vpn.example.org:9580:10.1.0.1", "--resolve", "evil.example:9580:10.1.0.1"];
                let fixed = ["curl", "-s", "-m", "10", "--cacert", &certificate, "-b", &jar, "-c", &jar, url];
                client.run(&[&fixed, &resolve[..], more].concat())
            };
            for host in ["10.1.0.1", "vpn.example.org"] {
                let page = curl(&format!("https://{host}:9580/"), &[])?;
                ensure!(page.contains("Not logged in"), "{page}");
            }
            // Neither without TLS nor under another name.
            let plain = curl("http://10.1.0.1:9580/", &[]).unwrap_or_default();
            ensure!(!plain.contains("RustGuard"), "{plain}");
            let status = ["-k", "-o", "/dev/null", "-w", "%{http_code}"];
            ensure!(curl("https://evil.example:9580/", &[]).is_err(), "the certificate is not for this name");
            ensure!(curl("https://evil.example:9580/", &status)?.starts_with("421"), "another name");
            let link: Value = serde_json::from_str(&network.ask(&["web", "--name", "alice", "--json"])?)?;
            let (page, secret) = link["url"].as_str().and_then(|url| url.split_once("/login/")).context("a link")?;
            ensure!(page == "https://vpn.example.org:9580", "{page}");
            let form = format!("link={secret}");
            let origin = format!("Origin: {page}");
            let answer = curl(&format!("{page}/login"), &["-i", "-H", &origin, "--data-urlencode", &form])?;
            ensure!(answer.contains("__Host-rustguard=") && answer.contains("; Secure"), "{answer}");
            let shown = curl(&format!("{page}/joining"), &[])?;
            ensure!(shown.contains("The window is closed."), "{shown}");
            served.stop()
        })
    });
}

#[test]
fn a_page_is_not_for_other_machines_unless_that_is_meant() {
    scenario_of_rustguard("where the status page may be", |lab| {
        network(lab, 1, |network| {
            let serve = |options: &[&str]| {
                let mut command = network.server.rustguard()?;
                network.server.end_of(command.args(["serve", "-i", "rgs"]).args(options))
            };
            serve(&["--web", "0.0.0.0:9580"])?.refused(&["--web-public", "ssh -L"])?;
            serve(&["--web", "10.1.0.1:9580"])?.refused(&["--web-public"])?;
            for (options, words) in [
                (&["--web", "127.0.0.1"][..], "neither unix:PATH nor ADDR:PORT"),
                (&["--web", "unix:/run/x", "--web-public"], "--web-cert"),
                (&["--web-host", "x"], "--web"),
            ] {
                let ended = serve(options)?;
                ended.is_misuse()?;
                ensure!(ended.stderr.contains(words), "{ended}");
            }
            let served = network.serve(lab, &[])?;
            network.try_ask(&["web"])?.refused(&["no status page", "serve --web"])?;
            served.stop()
        })
    });
}

/// Every action by clicking, with scripts and without; screenshots; axe; attacks. It needs a browser and a minute, so
/// only `.ci/run` runs it.
#[test]
fn a_browser_does_every_act_by_clicking() {
    scenario_of_rustguard("the status page in a browser", |lab| {
        let Some(axe) = env::var_os("RUSTGUARD_AXE") else {
            lab.skip("no axe-core (RUSTGUARD_AXE), `.ci/run` fetches it");
            return Ok(());
        };
        lab.needs("chromedriver", "chromium-driver")?;
        lab.needs("python3", "python3")?;
        network(lab, 3, |network| {
            fs::create_dir_all("/etc/rustguard")?;
            fs::write(POLICY, "allow m1, m2 -> * icmp,tcp/22\nallow laptop -> *\n")?;
            let served = network.serve(lab, &["--web", PAGE])?;
            let _first = network.join(lab, 1, &[&served.join_arguments()[..], &["--name", "m1"]].concat())?;
            let folder = env::var_os("RUSTGUARD_SCREENSHOTS").map_or_else(|| lab.path("web"), PathBuf::from);
            fs::create_dir_all(&folder)?;
            for left in ["code", "done"] {
                let _ = fs::remove_file(folder.join(left));
            }
            let mut command = network.server.command("python3");
            command.arg(concat!(env!("CARGO_MANIFEST_DIR"), "/web/drive.py")).arg(&folder);
            command.env("RUSTGUARD_AXE", axe).env("RUSTGUARD_BIN", rustguard()?);
            let mut driver = network.server.spawn("drive", &mut command)?;
            driver.until("the window is open", LONG, || Ok(folder.join("code").exists()))?;
            let code = fs::read_to_string(folder.join("code"))?;
            let joining = |n: u8, name: &str| {
                let server = format!("10.{n}.0.1");
                let mut command = network.join_command(n, &[&server, "--token", &code, "--name", name])?;
                network.machines[usize::from(n) - 1].spawn(name, &mut command)
            };
            let _machines = (joining(2, "m2")?, joining(3, "m3")?);
            let ended = driver.ended(LONG)?;
            ensure!(ended.success() && folder.join("done").exists(), "{ended}");
            println!("{}", ended.stderr);
            served.stop()
        })
    });
}
