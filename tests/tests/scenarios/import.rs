//! `rustguard serve import` takes over servers of wg-quick and wg-easy, and their clients do not notice.
use anyhow::{Context, Result, ensure};
use rustguard_tests::{Lab, Network, Served, eventually, network, scenario};
use std::{
    fs,
    os::unix::fs::{MetadataExt as _, PermissionsExt as _},
    path::{Path, PathBuf},
    time::Duration,
};

const SOON: Duration = Duration::from_secs(15);
/// The limit of tries for a client, which may first have to find out that its session belongs to the previous server.
const TRIES: u32 = 60;
const STATE: &str = "/var/lib/rustguard/rgs";

/// A server's file as a tool writes it, and the file of one of its clients.
struct Fixture {
    name: &'static str,
    /// The file to import.
    file: &'static str,
    /// The server's addresses inside.
    server: &'static [&'static str],
    /// The client's name after the import.
    client: &'static str,
}

const FIXTURES: [Fixture; 14] = [
    Fixture { name: "wireguard-install", file: "wg0.conf", server: &["10.66.66.1", "fd42:42:42::1"], client: "laptop" },
    Fixture { name: "nyr", file: "wg0.conf", server: &["10.7.0.1"], client: "desk" },
    Fixture { name: "pivpn", file: "wg0.conf", server: &["10.6.0.1", "fd11:5ee:bad:c0de::a06:1"], client: "pi" },
    Fixture { name: "algo", file: "wg0.conf", server: &["10.49.0.1", "2001:db8:a160::1"], client: "phone" },
    Fixture { name: "streisand", file: "wg0.conf", server: &["10.192.122.1"], client: "" },
    Fixture { name: "linuxserver", file: "wg0.conf", server: &["10.13.13.1"], client: "peer1" },
    Fixture { name: "unraid", file: "wg0.conf", server: &["10.253.0.1", "fc00:253::1"], client: "MyPhone" },
    Fixture { name: "handmade", file: "wg0.conf", server: &["10.44.5.254"], client: "Bob" },
    Fixture { name: "ipv6-only", file: "wg0.conf", server: &["fd6c:1::1"], client: "six" },
    Fixture { name: "site-to-site", file: "wg0.conf", server: &["172.31.255.1"], client: "office" },
    Fixture { name: "windows", file: "wg0.conf", server: &["10.91.0.1"], client: "one" },
    Fixture { name: "wireguard-ui", file: "wg0.conf", server: &["10.252.1.0"], client: "Joris" },
    Fixture { name: "wg-easy", file: "wg0.conf", server: &["10.8.0.1"], client: "Living-room-TV" },
    Fixture { name: "wg-easy", file: "wg0.json", server: &["10.8.0.1"], client: "Living-room-TV" },
];

fn folder(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../crates/rustguard-serve/tests/import").join(name)
}

/// A copy of a fixture's file in the laboratory's folder, with the mode that the tools use.
fn file(lab: &Lab, fixture: &str, from: &str, to: &str) -> Result<PathBuf> {
    let text = fs::read_to_string(folder(fixture).join(from))?;
    let path = lab.file(to, &text)?;
    fs::set_permissions(&path, fs::Permissions::from_mode(0o600))?;
    Ok(path)
}

fn text(path: &Path) -> Result<&str> {
    path.to_str().context("a path of text")
}

/// Imports the server of this file, and serves it with these options.
fn taken_over(lab: &Lab, network: &Network, old: &Path, options: &[&str]) -> Result<Served> {
    network.ask(&["serve", "import", text(old)?])?;
    network.serve(lab, options)
}

/// Imports the server of each tool. A stock client with its unchanged file then reaches the server.
fn go_on(lab: &Lab, fixtures: &[Fixture]) -> Result<()> {
    network(lab, 1, |network| {
        for fixture in fixtures {
            goes_on(lab, network, fixture).with_context(|| format!("{}/{}", fixture.name, fixture.file))?;
        }
        Ok(())
    })
}

fn goes_on(lab: &Lab, network: &Network, fixture: &Fixture) -> Result<()> {
    let old = file(lab, fixture.name, fixture.file, fixture.file)?;
    let client = file(lab, fixture.name, "client.conf", "stock.conf")?;
    let served = taken_over(lab, network, &old, &["--endpoint", "10.1.0.1"])?;
    network.machines[0].stock_client("up", &client)?;
    for address in fixture.server {
        network.machines[0].reaches(address, TRIES)?;
    }
    let peers = network.status()?["peers"].clone();
    let active = peers.as_array().context("peers")?.iter().filter(|peer| peer["last_handshake"].is_u64());
    let names: Vec<_> = active.map(|peer| peer["name"].as_str().unwrap_or_default().to_owned()).collect();
    ensure!(names == [fixture.client], "who is connected: {names:?}");
    network.machines[0].stock_client("down", &client)?;
    served.stop()?;
    fs::remove_dir_all(STATE)?;
    Ok(())
}

#[test]
fn servers_of_scripts() {
    scenario(|lab| go_on(lab, &FIXTURES[..5]));
}

#[test]
fn servers_of_containers_and_people() {
    scenario(|lab| go_on(lab, &FIXTURES[5..10]));
}

#[test]
fn servers_of_other_systems_and_web_pages() {
    scenario(|lab| go_on(lab, &FIXTURES[10..]));
}

/// A client is connected to a server of wg-quick, which is replaced. The client only notices a short silence. Machines
/// join and reach the client, and a second import of the same file keeps everything that the new server has learned.
#[test]
fn a_connected_client_keeps_its_configuration() {
    scenario(|lab| {
        network(lab, 2, |network| {
            let old = file(lab, "pivpn", "wg0.conf", "wg0.conf")?;
            let client = file(lab, "pivpn", "client.conf", "stock.conf")?;
            let before = fs::read(&client)?;
            network.server.stock_client("up", &old)?;
            network.machines[0].stock_client("up", &client)?;
            network.machines[0].reaches("10.6.0.1", TRIES)?;

            // While the old tunnel is up, the import is refused.
            network
                .try_ask(&["serve", "import", text(&old)?])?
                .refused(&["10.6.0.1 is an address of this machine", "wg-quick down wg0"])?;
            ensure!(!Path::new(STATE).exists(), "a refused import leaves no state");

            network.server.stock_client("down", &old)?;
            let served = taken_over(lab, network, &old, &["--endpoint", "10.1.0.1"])?;
            network.machines[0].reaches("10.6.0.1", TRIES)?;
            network.machines[0].reaches("fd11:5ee:bad:c0de::a06:1", 10)?;
            ensure!(fs::read(&client)? == before, "the client's file was changed");
            ensure!(fs::metadata(format!("{STATE}/key"))?.mode() & 0o077 == 0, "a key that others can read");

            // A machine joins in addition.
            let stays = network.join(lab, 2, &served.join_arguments())?;
            network.reaches_server(2)?;
            let joined = network.addresses(2)?;
            ensure!(joined[0] == "10.6.0.3", "the lowest address that nobody has: {joined:?}");
            network.machines[0].reaches(&joined[0], 20)?;
            network.machines[1].reaches("10.6.0.2", 20)?;

            // The same import again, after changes on the new server.
            network.ask(&["peer", "rm", "anna.home"])?;
            drop(stays);
            served.stop()?;
            let said = network.ask(&["serve", "import", text(&old)?])?;
            ensure!(said.contains("was taken over before, and nothing is changed"), "{said}");
            let served = network.serve(lab, &[])?;
            network.machines[0].reaches("10.6.0.1", TRIES)?;
            let peers = network.ask(&["peer", "ls", "--json"])?;
            ensure!(peers.contains("\"pi\"") && !peers.contains("anna.home") && peers.contains("10.6.0.3"), "{peers}");
            network.machines[0].stock_client("down", &client)?;
            served.stop()
        })
    });
}

/// Two sites: the server calls the office, which cannot call the server. The networks behind both are reachable.
#[test]
fn a_site_that_the_server_calls() {
    scenario(|lab| {
        network(lab, 1, |network| {
            let old = file(lab, "site-to-site", "wg0.conf", "wg0.conf")?;
            let client = fs::read_to_string(folder("site-to-site").join("client.conf"))?;
            let silent: String =
                client.lines().filter(|line| !line.starts_with("Endpoint")).map(|line| format!("{line}\n")).collect();
            let client = lab.file("stock.conf", &silent)?;
            network.machines[0].stock_client("up", &client)?;
            let served = taken_over(lab, network, &old, &[])?;
            network.server.reaches("192.168.10.1", TRIES)?;
            // Changes survive a restart, and the office is called again.
            network.ask(&["peer", "rename", "office", "branch"])?;
            network.ask(&["peer", "deny", "branch", "10.77.0.0/16"])?;
            served.stop()?;
            let served = network.serve(lab, &[])?;
            network.server.reaches("192.168.10.1", TRIES)?;
            let peers = network.ask(&["peer", "ls", "--json"])?;
            ensure!(peers.contains("branch") && !peers.contains("10.77.0.0/16"), "{peers}");
            network.machines[0].stock_client("down", &client)?;
            served.stop()
        })
    });
}

/// Clients of a tool that uses NAT reach the Internet as before. Here, the Internet is a machine without a route to
/// them.
#[test]
fn the_internet_stays_in_reach() {
    scenario(|lab| {
        lab.needs("nft", "nftables")?;
        network(lab, 2, |network| {
            let old = file(lab, "wg-easy", "wg0.json", "wg0.json")?;
            let client = fs::read_to_string(folder("wg-easy").join("client.conf"))?;
            let all = client.replace("AllowedIPs = 10.8.0.0/24", "AllowedIPs = 10.8.0.0/24, 10.2.0.2/32");
            let client = lab.file("stock.conf", &all)?;
            network.machines[1].sh("ip route del default")?;
            let served = taken_over(lab, network, &old, &["--endpoint", "10.1.0.1"])?;
            network.machines[0].stock_client("up", &client)?;
            network.machines[0].reaches("10.8.0.1", TRIES)?;
            network.machines[0].reaches("10.2.0.2", 10)?;
            network.machines[0].stock_client("down", &client)?;
            served.stop()
        })
    });
}

/// Refused imports give a reason and leave no trace; so does a dry run.
#[test]
fn refusals() {
    scenario(|lab| {
        network(lab, 1, |network| {
            let import = |arguments: &[&str]| network.try_ask(&[&["serve", "import"], arguments].concat());
            let algo = file(lab, "algo", "wg0.conf", "algo.conf")?;
            let client = file(lab, "algo", "client.conf", "client.conf")?;
            let nyr = file(lab, "nyr", "wg0.conf", "nyr.conf")?;
            import(&["/etc"])?.refused(&["/etc", "no file"])?;
            import(&[text(&lab.path("none.conf"))?])?.refused(&["none.conf"])?;
            import(&[text(&client)?])?.refused(&["the configuration of a client", "vpn.lab:51820"])?;
            import(&[text(&algo)?, text(&nyr)?])?.refused(&["different private keys"])?;
            let twice = fs::read_to_string(&algo)?.replace("10.49.0.3/32", "10.49.0.2/32");
            import(&[text(&lab.file("twice.conf", &twice)?)?])?
                .refused(&["10.49.0.2/32 is among the AllowedIPs of phone and of laptop"])?;
            let broken = fs::read_to_string(&algo)?.replace("ListenPort", "ListnPort");
            import(&[text(&lab.file("broken.conf", &broken)?)?])?.refused(&["line 3", "did you mean `ListenPort`"])?;
            import(&[text(&algo)?, "--pool", "10.1.0.0/16"])?.refused(&["overlaps"])?;
            let database = lab.path("wg-easy.db");
            fs::write(&database, b"SQLite format 3\0 and more")?;
            import(&[text(&database)?])?.refused(&["wg-easy 15", "wg0.conf"])?;
            let looked = import(&[text(&algo)?, "--dry-run"])?;
            ensure!(looked.success() && looked.stdout.contains("would be taken over"), "{looked}");
            ensure!(looked.stdout.contains("phone  10.49.0.2, 2001:db8:a160::2"), "{looked}");
            ensure!(
                !Path::new("/var/lib/rustguard").exists() || fs::read_dir("/var/lib/rustguard")?.next().is_none(),
                "state was made"
            );

            let done = import(&[text(&algo)?])?;
            ensure!(done.success() && done.stdout.ends_with("Start it: rustguard serve --interface rgs\n"), "{done}");
            ensure!(import(&[text(&algo)?])?.stdout.contains("was taken over before"), "the same again");
            import(&[text(&nyr)?])?.refused(&["was imported before", "rustguard peer"])?;
            fs::remove_file(format!("{STATE}/imported.json"))?;
            import(&[text(&algo)?])?.refused(&["another server or of a member", "--interface"])?;

            // With the command of version 0.1: in the background at once, with the given pool.
            fs::remove_dir_all(STATE)?;
            let mut command = network.server.rustguard()?;
            command.args(["serve", "-i", "rgs", "--detach", "--pool", "10.7.0.0/16", "--import", text(&nyr)?]);
            let ended = network.server.end_of(&mut command)?;
            ensure!(ended.success() && ended.stdout.contains("is taken over as rgs"), "{ended}");
            let pools = network.status()?["pools"].clone();
            ensure!(pools[0]["prefix"] == "10.7.0.0/16" && pools[0]["address"] == "10.7.0.1", "{pools}");
            import(&[text(&algo)?])?.refused(&["is served already"])?;
            let ended = network.server.end_of(network.server.rustguard()?.args(["down", "rgs"]))?;
            ensure!(ended.success(), "{ended}");
            eventually("the end", SOON, || Ok(!Path::new("/run/rustguard/rgs.ctl").exists()))
        })
    });
}
