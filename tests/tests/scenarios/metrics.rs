//! `--metrics`: the real Prometheus scrapes tunnels, promtool reads their pages, and the dashboard uses only exported
//! metrics.
use anyhow::{Context as _, Result, ensure};
use rustguard_tests::{
    BOTH, Conf, INSIDE_A, INSIDE_B, Keypair, Lab, Node, Outside, Pair, PeerConf, Process, Twice, Up, eventually,
    network, scenario_of_rustguard, spawn_until_ready,
};
use serde_json::Value;
use std::{collections::BTreeSet, ffi::OsString, path::Path, process::Stdio, time::Duration};

const SOON: Duration = Duration::from_secs(60);
const GUIDE: &str = include_str!("../../../docs/guide/metrics.md");
const DASHBOARD: &str = include_str!("../../../packaging/grafana/rustguard.json");

/// A Prometheus that scrapes `target`, a loopback address of the node, every second.
struct Prometheus {
    node: Node,
    process: Process,
}

impl Prometheus {
    fn start(lab: &Lab, node: &Node, target: &str) -> Result<Self> {
        let config = lab.file(
            "prometheus.yml",
            &format!(
                "global: {{ scrape_interval: 1s }}\n\
                 scrape_configs: [{{ job_name: rustguard, static_configs: [{{ targets: ['{target}'] }}] }}]\n"
            ),
        )?;
        let mut command = node.command("prometheus");
        command
            .arg(format!("--config.file={}", config.display()))
            .arg(format!("--storage.tsdb.path={}", lab.path("tsdb").display()))
            .arg("--web.listen-address=127.0.0.1:9090");
        let mut process = node.spawn("prometheus", &mut command)?;
        let ready = || Ok(node.run(&["curl", "-sf", "http://127.0.0.1:9090/-/ready"]).is_ok());
        process.until("Prometheus is ready", SOON, ready)?;
        Ok(Self { node: node.clone(), process })
    }

    /// The answer of the query API. An expression that Prometheus does not accept is an error.
    fn query(&self, expression: &str) -> Result<Vec<Value>> {
        let query = format!("query={expression}");
        let url = "http://127.0.0.1:9090/api/v1/query";
        let answer = self.node.run(&["curl", "-sS", "--data-urlencode", &query, url])?;
        let answer: Value = serde_json::from_str(&answer).with_context(|| answer.clone())?;
        ensure!(answer["status"] == "success", "{expression}: {answer}");
        Ok(answer["data"]["result"].as_array().cloned().unwrap_or_default())
    }

    /// The only value of this expression; `None` while there is none.
    fn value(&self, expression: &str) -> Result<Option<f64>> {
        let all = self.query(expression)?;
        ensure!(all.len() <= 1, "{expression}: {all:?}");
        Ok(all.first().and_then(|one| one["value"][1].as_str()?.parse().ok()))
    }

    fn until(&mut self, expression: &str, is: impl Fn(f64) -> bool) -> Result<f64> {
        let mut last = None;
        eventually(expression, SOON, || {
            last = self.value(expression)?;
            Ok(last.is_some_and(&is))
        })
        .with_context(|| format!("{expression}: {last:?}; {}", self.process.log()))?;
        Ok(last.unwrap_or_default())
    }
}

/// `promtool check metrics` for a page in the text format.
fn check(lab: &Lab, page: &str) -> Result<()> {
    let file = lab.file("page.txt", page)?;
    let mut command = std::process::Command::new("promtool");
    let output = command.args(["check", "metrics"]).stdin(Stdio::from(std::fs::File::open(file)?)).output()?;
    let said = format!("{}{}", String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    ensure!(output.status.success() && said.trim().is_empty(), "promtool: {said}");
    Ok(())
}

fn environment(address: &str) -> [(&'static str, OsString); 1] {
    [("RUSTGUARD_METRICS", address.into())]
}

fn by_socket(path: &Path) -> Result<String> {
    let mut command = std::process::Command::new("curl");
    let output = command.args(["-sf", "--unix-socket"]).arg(path).arg("http://localhost/metrics").output()?;
    ensure!(output.status.success(), "curl {}: {}", path.display(), output.status);
    Ok(String::from_utf8(output.stdout)?)
}

#[test]
fn prometheus_sees_the_bytes_of_a_ping() {
    scenario_of_rustguard("metrics", |lab| {
        lab.needs("prometheus", "prometheus")?;
        lab.needs("curl", "curl")?;
        let mut pair = Pair::new(lab, Outside::V4)?;
        pair.conf_b.peers[0].lines = vec!["# Name = alice".to_owned()];
        let mut b = Up::start_with(lab, &pair.b, &pair.conf_b, &environment("127.0.0.1:9586"))?;
        ensure!(b.process()?.log().contains("http://127.0.0.1:9586/metrics"), "{}", b.process()?.log());
        let _a = Up::start(lab, &pair.a, &pair.conf_a)?;
        let mut prometheus = Prometheus::start(lab, &pair.b, "127.0.0.1:9586")?;
        prometheus.until("up{job='rustguard'}", |up| up == 1.0)?;
        // `up` has already sent a first handshake.
        pair.a.reaches(INSIDE_B[0], 10)?;
        let received = "wireguard_received_bytes_total{interface='wgb',friendly_name='alice'}";
        let before = prometheus.until(received, |bytes| bytes > 0.0)?;
        pair.a.run(&["ping", "-c", "3", "-i", "0.2", "-s", "1000", INSIDE_B[0]])?;
        prometheus.until(received, |bytes| bytes >= before + 3_000.0)?;
        prometheus.until("rustguard_peers{state='online'}", |peers| peers == 1.0)?;
        // The names and labels are the same as in prometheus_wireguard_exporter.
        let labels = &prometheus.query(received)?[0]["metric"];
        ensure!(labels["public_key"] == pair.conf_a.keys.public.as_str(), "{labels}");
        ensure!(labels["allowed_ips"] == format!("{}/32,{}/128", INSIDE_A[0], INSIDE_A[1]), "{labels}");
        prometheus.until("wireguard_latest_handshake_delay_seconds", |age| age < 120.0)?;
        let epoch = prometheus.until("time() - wireguard_latest_handshake_seconds", |age| (0.0..120.0).contains(&age));
        epoch?;
        b.down()?;
        prometheus.until("up{job='rustguard'}", |up| up == 0.0)?;
        Ok(())
    });
}

/// A tunnel with two paths and Babel, and an absent peer; it has dropped a packet of its other peer.
fn everything(lab: &Lab) -> Result<(Twice, Vec<Up>)> {
    let mut twice = Twice::new(lab, BOTH)?;
    let babel = || vec!["Routing = babel".to_owned()];
    (twice.conf_a.lines, twice.conf_b.lines) = (babel(), babel());
    twice.conf_a.peers[0].lines = vec!["# Name = b".to_owned(), "Role = router".to_owned()];
    twice.conf_b.peers[0].lines = vec!["# Name = a".to_owned(), "Role = router".to_owned()];
    let mut ghost = PeerConf::new(&Keypair::generate()?.public, "10.66.0.1/32");
    (ghost.endpoint, ghost.persistent_keepalive) = (Some("10.1.0.9:51820".to_owned()), Some(1));
    ghost.lines = ["# Name = ghost", "Role = client", "Parity = 7"].map(str::to_owned).into();
    twice.conf_a.peers.push(ghost);
    let start = |node: &Node, conf: &Conf| {
        let address = format!("unix:/run/rustguard/{}.metrics", conf.interface);
        Up::start_with(lab, node, conf, &environment(&address))
    };
    let ups = vec![start(&twice.b, &twice.conf_b)?, start(&twice.a, &twice.conf_a)?];
    twice.a.reaches(INSIDE_B[0], 20)?;
    twice.until_up()?;
    // A source that `b` does not allow.
    twice.a.run(&["ip", "addr", "add", "10.9.0.77/32", "dev", "wga"])?;
    twice.a.does_not_reach_from("10.9.0.77", INSIDE_B[0])?;
    Ok((twice, ups))
}

/// The names of samples in a page.
fn names(page: &str) -> impl Iterator<Item = String> {
    let samples = page.lines().filter(|line| !line.starts_with('#'));
    samples.filter_map(|line| Some(line.split(['{', ' ']).next()?.to_owned()))
}

/// The names of metrics in an expression or a document.
fn metrics_in(text: &str) -> impl Iterator<Item = &str> {
    let words = text.split(|c: char| !(c.is_ascii_alphanumeric() || c == '_'));
    words.filter(|word| word.starts_with("rustguard_") || word.starts_with("wireguard_"))
}

/// Each expression of the dashboard, as Grafana sends it.
fn expressions(json: &Value, all: &mut Vec<String>) {
    match json {
        Value::Object(fields) => {
            if let Some(expression) = fields.get("expr").and_then(Value::as_str) {
                let sent = expression.replace("$__rate_interval", "1m");
                all.push(sent.replace("$instance", ".*").replace("$interface", ".*"));
            }
            fields.values().for_each(|field| expressions(field, all));
        }
        Value::Array(items) => items.iter().for_each(|item| expressions(item, all)),
        _ => {}
    }
}

#[test]
fn promtool_reads_each_page_and_the_dashboard_uses_what_is_exported() {
    scenario_of_rustguard("metrics", |lab| {
        lab.needs("prometheus", "prometheus")?;
        lab.needs("promtool", "prometheus")?;
        lab.needs("curl", "curl")?;
        let (twice, ups) = everything(lab)?;
        let socket = Path::new("/run/rustguard/wga.metrics");
        eventually("the peer that is not there is called", SOON, || {
            Ok(by_socket(socket)?.contains("rustguard_peer_connection_attempts{"))
        })?;
        eventually("its problem is known", SOON, || {
            let page = by_socket(socket)?;
            let mut problems = page.lines().filter(|line| line.starts_with("rustguard_peer_problem{"));
            Ok(problems.any(|line| line.contains("friendly_name=\"ghost\"")))
        })?;
        // The page of this moment is kept: a change of path discards the probed value.
        let mut probed = String::new();
        eventually("the path MTU is probed", SOON, || {
            twice.a.reaches(INSIDE_B[0], 5)?;
            probed = by_socket(socket)?;
            Ok(probed.contains("rustguard_peer_path_mtu_bytes{"))
        })?;
        eventually("the round trip of the neighbour is known", SOON, || {
            Ok(by_socket(socket)?.contains("rustguard_neighbour_round_trip_seconds{"))
        })?;
        let mut pages = vec![probed, by_socket(socket)?, by_socket(Path::new("/run/rustguard/wgb.metrics"))?];
        network(lab, 3, |network| {
            // Connections are counted only when there is a policy.
            std::fs::create_dir_all("/etc/rustguard")?;
            std::fs::write("/etc/rustguard/rgs.policy", "allow * -> *\n")?;
            let served = network.serve(lab, &["--metrics", "127.0.0.1:0"])?;
            let options = ["--metrics", "unix:/run/rustguard/rg1.metrics"];
            let _joined = network.join(lab, 1, &[&served.join_arguments()[..], &options].concat())?;
            network.reaches_server(1)?;
            let log = std::fs::read_to_string(lab.path("serve.log"))?;
            let url = log.split_whitespace().find(|word| word.ends_with("/metrics")).context("the port is told")?;
            let page = network.server.run(&["curl", "-sf", url])?;
            ensure!(page.contains("rustguard_leases{interface=\"rgs\",state=\"active\"} 1"), "{page}");
            ensure!(page.contains("rustguard_events_total{interface=\"rgs\",event=\"admitted\"} 1"), "{page}");
            pages.push(page);
            // If two members announce the same network, the other members choose one, and a metric names it.
            let mut gateways = Vec::new();
            for n in [2, 3] {
                let (name, token) = (format!("gateway{n}"), network.invite(&["--allow", "192.168.9.0/24"])?);
                let at = format!("10.{n}.0.1");
                let arguments = [&at, "--token", &token, "--name", &name, "--announce", "192.168.9.0/24"];
                gateways.push(network.join(lab, n, &arguments)?);
            }
            let socket = Path::new("/run/rustguard/rg1.metrics");
            eventually("who holds the network is told", SOON, || Ok(by_socket(socket)?.contains("prefix_holder{")))?;
            pages.push(by_socket(socket)?);
            let mut prometheus = Prometheus::start(
                lab,
                &network.server,
                url.trim_start_matches("http://").trim_end_matches("/metrics"),
            )?;
            prometheus.until("up{job='rustguard'}", |up| up == 1.0)?;
            let mut exported: BTreeSet<String> = pages.iter().flat_map(|page| names(page)).collect();
            // A server without a store has no metric of one. `shared_store` reads it.
            exported.insert("rustguard_store_available".to_owned());
            // The guide lists exactly the exported metrics.
            let documented: BTreeSet<String> = metrics_in(GUIDE).map(str::to_owned).collect();
            ensure!(documented == exported, "the guide has {documented:#?}, the pages have {exported:#?}");
            let dashboard: Value = serde_json::from_str(DASHBOARD)?;
            let mut all = Vec::new();
            expressions(&dashboard["panels"], &mut all);
            ensure!(all.len() > 20, "the dashboard has {} expressions", all.len());
            for expression in &all {
                prometheus.query(expression)?;
                for name in metrics_in(expression) {
                    ensure!(exported.contains(name), "{name} is not exported: {exported:#?}");
                }
            }
            Ok(())
        })?;
        for page in &pages {
            check(lab, page)?;
        }
        // The label of a learned path is a number, because the peer chooses the address.
        ensure!(pages[2].contains("path=\"shown-1\"") && !pages[2].contains("path=\"10."), "{}", pages[2]);
        for up in ups {
            up.down()?;
        }
        ensure!(!socket.exists(), "the socket goes with the tunnel");
        drop(twice);
        Ok(())
    });
}

#[test]
fn metrics_that_cannot_be_served_are_an_error_before_there_is_a_tunnel() {
    scenario_of_rustguard("metrics", |lab| {
        let pair = Pair::new(lab, Outside::V4)?;
        let before = pair.b.traces()?;
        let file = lab.file("wgb.conf", &pair.conf_b.wg_quick())?;
        std::fs::write(lab.path("file"), "precious")?;
        let open = lab.path("open");
        std::fs::create_dir(&open)?;
        pair.b.run(&["chmod", "777", &open.display().to_string()])?;
        for (address, status, words) in [
            ("10.99.0.1:9586".to_owned(), 1, "does not have this address"),
            (format!("unix:{}", lab.path("file").display()), 1, "not a socket"),
            (format!("unix:{}/metrics", open.display()), 1, "chmod go-w"),
            ("localhost:9586".to_owned(), 2, "127.0.0.1:9586"),
        ] {
            for detach in [false, true] {
                let mut command = pair.b.rustguard()?;
                command.args(["up", "--metrics", &address]).arg(&file).args(detach.then_some("--detach"));
                let ended = pair.b.end_of(&mut command)?;
                ensure!(ended.status.code() == Some(status), "{address}: {ended}");
                ended.says(&[words])?;
                ensure!(pair.b.traces()? == before, "{address} left something");
            }
        }
        ensure!(std::fs::read_to_string(lab.path("file"))? == "precious");
        Ok(())
    });
}

/// Metrics are served at the tunnel's own address, although the interface gets it later; also in the background, at a
/// port that is printed.
#[test]
fn a_tunnel_serves_metrics_at_its_own_address() {
    scenario_of_rustguard("metrics", |lab| {
        lab.needs("curl", "curl")?;
        let pair = Pair::new(lab, Outside::V4)?;
        let file = lab.file("wgb.conf", &pair.conf_b.wg_quick())?;
        let mut command = pair.b.rustguard()?;
        command.args(["up", "--detach", "--metrics", &format!("{}:0", INSIDE_B[0])]).arg(&file);
        let ended = pair.b.end_of(&mut command)?;
        ensure!(ended.success(), "{ended}");
        ended.says(&["everybody who can reach", "names, public keys and addresses"])?;
        let text = format!("{}{}", ended.stdout, ended.stderr);
        let url = text.split_whitespace().find(|word| word.ends_with("/metrics")).context("the port is told")?;
        let _a = Up::start(lab, &pair.a, &pair.conf_a)?;
        pair.a.reaches(INSIDE_B[0], 10)?;
        let ready = url.replace("/metrics", "/readyz");
        ensure!(pair.a.run(&["curl", "-sS", &ready])? == "ready\n", "through the tunnel");
        pair.b.run(&["ip", "link", "set", "wgb", "down"])?;
        eventually("the tunnel is not ready", SOON, || {
            Ok(pair.b.run(&["curl", "-s", "--max-time", "5", &ready])? == "the interface is down\n")
        })?;
        pair.b.end_of(pair.b.rustguard()?.arg("down").arg(&file))?;
        Ok(())
    });
}

/// A user who may not open the socket gets nothing.
#[test]
fn another_user_cannot_read_metrics_from_the_socket() {
    scenario_of_rustguard("metrics", |lab| {
        let pair = Pair::new(lab, Outside::V4)?;
        let mut command = pair.b.rustguard()?;
        let file = lab.file("wgb.conf", &pair.conf_b.wg_quick())?;
        command.arg("up").arg(&file).args(["--metrics", "unix:/run/rustguard/wgb.metrics"]);
        let _up = spawn_until_ready(lab, &pair.b, "wgb", &mut command)?;
        let ask = ["curl", "-sS", "--unix-socket", "/run/rustguard/wgb.metrics", "http://localhost/metrics"];
        ensure!(pair.b.run(&ask)?.contains("rustguard_peers"), "root reads");
        let nobody = ["setpriv", "--reuid=65534", "--regid=65534", "--clear-groups"];
        let mut command = pair.b.command(nobody[0]);
        let ended = pair.b.end_of(command.args(&nobody[1..]).args(ask))?;
        ensure!(!ended.success() && !ended.stdout.contains("rustguard"), "{ended}");
        Ok(())
    });
}
