//! `--web`: the status page of a server, by curl, and by a browser that clicks (`tests/web/drive.py`).
use anyhow::{Context as _, Result, ensure};
use rustguard_tests::{Lab, Network, network, rustguard, scenario_of_rustguard};
use serde_json::Value;
use std::{env, fs, path::PathBuf, time::Duration};

const PAGE: &str = "127.0.0.1:9580";
/// The limit for all that the browser does. It suffices on a busy machine.
const LONG: Duration = Duration::from_secs(300);

/// A browser on the server's machine that knows nothing but forms and cookies.
struct Curl<'n> {
    network: &'n Network,
    jar: String,
}

impl<'n> Curl<'n> {
    /// Logs in by a link for this name.
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

    /// The status of the answer to a form.
    fn post(&self, path: &str, fields: &[(&str, &str)]) -> Result<String> {
        let fields: Vec<_> = fields.iter().map(|(name, value)| format!("{name}={value}")).collect();
        let mut more = vec!["-o", "/dev/null", "-w", "%{http_code} ", "-H", "Origin: http://127.0.0.1:9580"];
        more.extend(fields.iter().flat_map(|field| ["--data-urlencode", field]));
        self.ask(path, &more)
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

/// Every act by clicking, with scripts and without; screenshots; axe; attacks. It takes a browser and a minute, so `.ci/run web` has it alone.
#[test]
fn a_browser_does_every_act_by_clicking() {
    scenario_of_rustguard("the status page in a browser", |lab| {
        let Some(axe) = env::var_os("RUSTGUARD_AXE") else {
            lab.skip("the status page in a browser: `.ci/run web` runs it");
            return Ok(());
        };
        if !lab.has("chromedriver", "chromium-driver")? || !lab.has("python3", "python3")? {
            return Ok(());
        }
        network(lab, 3, |network| {
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
