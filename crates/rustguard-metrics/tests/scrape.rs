//! An exporter and hand-written HTTP scrapers, with a device in memory.

use rustguard_device::{
    key::to_base64,
    prelude::*,
    tun::memory::{self, MemoryHost, MemoryNet},
};
use rustguard_metrics::{Address, BindError, Enrolment, Exporter, Pool, Source};
use std::{
    fs,
    io::{Read as _, Write as _},
    net::{IpAddr, Shutdown, SocketAddr, TcpStream},
    os::unix::{
        fs::{MetadataExt as _, PermissionsExt as _, symlink},
        net::{UnixListener, UnixStream},
    },
    path::Path,
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering::Relaxed},
    },
    time::{Duration, Instant},
};
use tokio::sync::Semaphore;

/// An answer that takes longer fails the test.
const LONG: Duration = Duration::from_secs(60);

/// A device whose only peer has this name.
fn device(name: &str) -> (Device, MemoryHost) {
    let peer = PeerUpdate::new(PublicKey([7; 32])).name(name).allowed_ip("10.0.0.2/32".parse::<IpNet>().unwrap());
    let (tun, host) = memory::tun().unwrap();
    let binder = MemoryBinder::new(MemoryNet::default(), "192.0.2.1:51820".parse().unwrap());
    let builder = Device::builder().private_key(StaticSecret::generate().unwrap()).peer(peer);
    (builder.start_with(tun, binder).unwrap(), host)
}

fn bind(address: &str) -> Result<Exporter, BindError> {
    Exporter::bind(&address.parse().unwrap(), &[])
}

fn port(exporter: &Exporter) -> SocketAddr {
    match exporter.address() {
        Address::Tcp(at) => *at,
        other => panic!("{other}"),
    }
}

/// An exporter at a free port, with a device.
fn exporting(name: &str) -> (Exporter, Device, MemoryHost) {
    let (device, host) = device(name);
    let exporter = bind("127.0.0.1:0").unwrap();
    exporter.attach(Source::new("wg0", device.handle()));
    (exporter, device, host)
}

fn talk(mut stream: impl std::io::Read + std::io::Write, request: &str) -> String {
    stream.write_all(request.as_bytes()).unwrap();
    let mut answer = Vec::new();
    // A refused request may end in a reset after the answer.
    let _ = stream.read_to_end(&mut answer);
    String::from_utf8(answer).unwrap()
}

fn connect(at: SocketAddr) -> TcpStream {
    let stream = TcpStream::connect(at).unwrap();
    stream.set_read_timeout(Some(LONG)).unwrap();
    stream
}

fn ask(exporter: &Exporter, line: &str, headers: &str) -> String {
    let at = port(exporter);
    talk(connect(at), &format!("{line} HTTP/1.1\r\nhost: {at}\r\n{headers}\r\n"))
}

fn get(exporter: &Exporter, path: &str) -> String {
    ask(exporter, &format!("GET {path}"), "")
}

fn status(answer: &str) -> &str {
    answer.split(' ').nth(1).unwrap_or_default()
}

fn body(answer: &str) -> &str {
    answer.split_once("\r\n\r\n").map_or("", |(_, body)| body)
}

#[tokio::test]
async fn probes_follow_the_tunnel_from_its_start_to_its_end() {
    let exporter = bind("127.0.0.1:0").unwrap();
    let all =
        |exporter: &Exporter| ["/healthz", "/readyz", "/metrics"].map(|path| status(&get(exporter, path)).to_owned());
    assert_eq!(all(&exporter), ["200", "503", "503"], "it starts");
    let (device, _host) = device("laptop");
    exporter.attach(Source::new("wg0", device.handle()));
    assert_eq!(all(&exporter), ["200", "200", "200"]);
    device.shutdown().await;
    // The last page and the last probe's answer may still be cached.
    let started = Instant::now();
    while all(&exporter)[..2] != ["503", "503"] {
        assert!(started.elapsed() < LONG, "{:?}", all(&exporter));
    }
}

#[test]
fn only_get_and_head_of_three_paths_are_answered() {
    let (exporter, _device, _host) = exporting("laptop");
    for (line, expected) in [
        ("GET /", "404"),
        ("GET /metrics/", "404"),
        ("POST /nothing", "404"),
        ("POST /metrics", "405"),
        ("DELETE /healthz", "405"),
        ("GET /metrics?x=1", "200"),
        ("HEAD /metrics", "200"),
        ("nonsense", "400"),
    ] {
        let answer = ask(&exporter, line, "");
        assert_eq!(status(&answer), expected, "{line}: {answer}");
        assert!(expected == "200" || answer.len() < 300, "{line}: {answer}");
        assert_eq!(body(&answer).is_empty(), line.starts_with("HEAD") || line == "nonsense", "{line}: {answer}");
    }
    assert!(ask(&exporter, "PUT /readyz", "").contains("allow: GET, HEAD"));
    // The body is not read: the answer comes although the body is missing.
    assert_eq!(status(&ask(&exporter, "GET /healthz", "content-length: 1000000\r\n")), "200");
}

#[test]
fn a_web_site_whose_name_resolves_to_loopback_reads_nothing() {
    let (exporter, _device, _host) = exporting("laptop");
    let answer = talk(connect(port(&exporter)), "GET /metrics HTTP/1.1\r\nhost: evil.example:9586\r\n\r\n");
    assert_eq!(status(&answer), "421");
    assert!(!answer.contains("laptop"), "{answer}");
}

#[test]
fn connections_that_are_held_open_keep_nobody_out() {
    let (exporter, _device, _host) = exporting("laptop");
    let mut held: Vec<TcpStream> = (0..40).map(|_| connect(port(&exporter))).collect();
    for stream in &mut held {
        // The oldest ones are closed already.
        let _ = stream.write_all(b"GET /metrics HTTP/1.1\r\n");
    }
    assert_eq!(status(&get(&exporter, "/metrics")), "200");
    // The remaining ones end by themselves, within the time limit for headers.
    for mut stream in held {
        let _ = stream.read_to_end(&mut Vec::new());
    }
}

/// Each page asks for the state of enrolment once.
#[test]
fn scrapers_that_hang_up_make_no_further_snapshots() {
    let (device, _host) = device("laptop");
    let (asked, release) = (Arc::new(AtomicUsize::new(0)), Arc::new(Semaphore::new(0)));
    let exporter = bind("127.0.0.1:0").unwrap();
    let (count, wait) = (Arc::clone(&asked), Arc::clone(&release));
    exporter.attach(Source::new("rg0", device.handle()).enrolment(move || {
        count.fetch_add(1, Relaxed);
        let wait = Arc::clone(&wait);
        async move { wait.acquire().await.ok().map(|_| Enrolment::default()) }
    }));
    for _ in 0..10 {
        let mut stream = connect(port(&exporter));
        stream.write_all(b"GET /metrics HTTP/1.1\r\nhost: localhost\r\n\r\n").unwrap();
        while asked.load(Relaxed) == 0 {
            std::thread::yield_now();
        }
        stream.shutdown(Shutdown::Write).unwrap();
        // The end of the connection shows that the server has noticed the disconnection.
        let _ = stream.read_to_end(&mut Vec::new());
    }
    release.add_permits(100);
    assert_eq!(status(&get(&exporter, "/metrics")), "200");
    // One snapshot for all of them. On a busy machine, its page may be older than a second when the last one asks.
    let asked = asked.load(Relaxed);
    assert!((1..=2).contains(&asked), "{asked}");
}

#[test]
fn no_page_has_a_secret() {
    let (private, preshared) = ([0x5a; 32], [0xa5; 32]);
    let peer = PeerUpdate::new(PublicKey([7; 32])).name("laptop").preshared_key(PresharedKey::from_bytes(&preshared));
    let (tun, _host) = memory::tun().unwrap();
    let binder = MemoryBinder::new(MemoryNet::default(), "192.0.2.1:51820".parse().unwrap());
    let builder = Device::builder().private_key(StaticSecret::from_bytes(private)).peer(peer);
    let device = builder.start_with(tun, binder).unwrap();
    let exporter = bind("127.0.0.1:0").unwrap();
    exporter.attach(Source::new("wg0", device.handle()));
    let page = get(&exporter, "/metrics");
    assert!(page.contains("friendly_name=\"laptop\""), "{page}");
    for secret in [private, preshared] {
        let hexadecimal = format!("{:02x}", secret[0]).repeat(32);
        assert!(!page.contains(&*to_base64(&secret)) && !page.to_lowercase().contains(&hexadecimal), "{page}");
    }
}

#[test]
fn headers_without_end_are_refused() {
    let (exporter, _device, _host) = exporting("laptop");
    let long = format!("x: {}\r\n", "y".repeat(20_000));
    let many = "x: y\r\n".repeat(200);
    for headers in [long, many] {
        assert_eq!(status(&ask(&exporter, "GET /metrics", &headers)), "431");
    }
    assert_eq!(status(&get(&exporter, "/metrics")), "200");
}

#[test]
fn both_formats_have_the_same_samples() {
    let (exporter, _device, _host) = exporting("laptop");
    let openmetrics = ask(&exporter, "GET /metrics", "accept: application/openmetrics-text;version=1.0.0\r\n");
    let text = get(&exporter, "/metrics");
    assert!(openmetrics.contains("content-type: application/openmetrics-text; version=1.0.0"));
    assert!(text.contains("content-type: text/plain; version=0.0.4"));
    assert!(body(&openmetrics).ends_with("\n# EOF\n") && !text.contains("# EOF"));
    assert!(openmetrics.contains("# TYPE wireguard_sent_bytes counter\n# UNIT wireguard_sent_bytes bytes\n"));
    assert!(text.contains("# TYPE wireguard_sent_bytes_total counter\nwireguard_sent_bytes_total{"));
    let samples = |page: &str| -> Vec<String> {
        body(page).lines().filter(|line| !line.starts_with('#')).map(str::to_owned).collect()
    };
    assert_eq!(samples(&openmetrics), samples(&text));
    let labels = format!(
        "{{interface=\"wg0\",public_key=\"{}\",friendly_name=\"laptop\"",
        "BwcHBwcHBwcHBwcHBwcHBwcHBwcHBwcHBwcHBwcHBwc="
    );
    for sample in [
        format!("wireguard_sent_bytes_total{labels},allowed_ips=\"10.0.0.2/32\"}} 0"),
        format!("wireguard_latest_handshake_seconds{labels},allowed_ips=\"10.0.0.2/32\"}} 0"),
        format!("rustguard_peer_handshakes_total{labels}}} 0"),
        "rustguard_peers{interface=\"wg0\",state=\"never connected\"} 1".to_owned(),
        "rustguard_peers{interface=\"wg0\",state=\"online\"} 0".to_owned(),
        format!("rustguard_peer_connection{labels},state=\"never connected\"}} 1"),
        "rustguard_interface_up{interface=\"wg0\"} 1".to_owned(),
        "rustguard_dropped_packets_total{interface=\"wg0\",reason=\"forged\"} 0".to_owned(),
        format!("rustguard_build_info{{version=\"{}\"}} 1", env!("CARGO_PKG_VERSION")),
    ] {
        assert!(samples(&text).contains(&sample), "{sample}\n{text}");
    }
    // There was no handshake, so there is no time since one.
    assert!(!text.contains("wireguard_latest_handshake_delay_seconds"));
}

#[test]
fn a_name_cannot_forge_a_sample_or_steer_a_terminal() {
    let name = format!("a\"}} 1\nforged 1\n\\\u{1b}[2J{}", "x".repeat(10_000));
    let (exporter, _device, _host) = exporting(&name);
    let page = get(&exporter, "/metrics");
    assert!(page.contains("friendly_name=\"a\\\"} 1\u{fffd}forged 1\u{fffd}\\\\\u{fffd}[2J"), "{page}");
    assert!(body(&page).lines().all(|line| !line.starts_with("forged") && line.len() < 1_000));
    assert!(!page.contains('\u{1b}'));
}

#[test]
fn enrolment_is_asked_for() {
    let (device, _host) = device("laptop");
    let exporter = bind("127.0.0.1:0").unwrap();
    exporter.attach(Source::new("rg0", device.handle()).enrolment(|| async {
        let mut enrolment = Enrolment::default();
        enrolment.pools = vec![Pool::new("10.150.0.0".parse().unwrap(), 24, 3)];
        (enrolment.active, enrolment.pending, enrolment.window_open) = (2, 1, true);
        Some(enrolment)
    }));
    let page = get(&exporter, "/metrics");
    for sample in [
        "rustguard_leases{interface=\"rg0\",state=\"active\"} 2",
        "rustguard_leases{interface=\"rg0\",state=\"pending\"} 1",
        "rustguard_pool_leased_addresses{interface=\"rg0\",pool=\"10.150.0.0/24\"} 3",
        "rustguard_pool_addresses{interface=\"rg0\",pool=\"10.150.0.0/24\"} 256.0",
        "rustguard_pairing_window_open{interface=\"rg0\"} 1",
    ] {
        assert!(page.lines().any(|line| line == sample), "{sample}\n{page}");
    }
}

/// Within a runtime, as in the program.
#[tokio::test]
async fn a_port_that_is_taken_or_an_address_that_is_not_ours_is_refused() {
    let exporter = bind("127.0.0.1:0").unwrap();
    let taken = bind(&exporter.address().to_string()).unwrap_err();
    assert!(matches!(taken, BindError::Taken { .. }) && taken.to_string().contains("a port of its own"), "{taken}");
    let foreign = bind("192.0.2.1:0").unwrap_err();
    assert!(matches!(foreign, BindError::NotOurs { .. }) && foreign.to_string().contains("ip addr"), "{foreign}");
    // The addresses of the tunnel are set later.
    let own: [IpAddr; 2] = ["192.0.2.1".parse().unwrap(), "2001:db8::1".parse().unwrap()];
    for at in ["192.0.2.1:0", "[2001:db8::1]:0"] {
        assert!(Exporter::bind(&at.parse().unwrap(), &own).unwrap().is_exposed());
    }
    assert!(!exporter.is_exposed() && bind("0.0.0.0:0").unwrap().is_exposed());
    // The port is free again immediately.
    let at = exporter.address().to_string();
    get(&exporter, "/healthz");
    drop(exporter);
    bind(&at).unwrap();
}

fn unix(path: &Path) -> Result<Exporter, BindError> {
    bind(&format!("unix:{}", path.display()))
}

#[test]
fn a_unix_socket_is_for_its_owner_and_group_and_replaces_only_a_dead_one() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("run").join("wg0.metrics");
    let (device, _host) = device("laptop");
    let exporter = unix(&path).unwrap();
    exporter.attach(Source::new("wg0", device.handle()));
    assert_eq!(fs::metadata(&path).unwrap().mode() & 0o777, 0o660);
    // A program in between, such as socat, may use any host name.
    let answer = talk(UnixStream::connect(&path).unwrap(), "GET /metrics HTTP/1.1\r\nhost: any.example\r\n\r\n");
    assert!(answer.contains("friendly_name=\"laptop\""), "{answer}");
    let taken = unix(&path).unwrap_err();
    assert!(matches!(taken, BindError::Taken { .. }) && taken.to_string().contains("a socket of its own"), "{taken}");
    drop(exporter);
    assert!(!path.exists());
    // A killed process leaves its socket behind.
    drop(UnixListener::bind(&path).unwrap());
    drop(unix(&path).unwrap());
    fs::write(&path, "precious").unwrap();
    let error = unix(&path).unwrap_err();
    assert!(matches!(error, BindError::NotASocket { .. }), "{error}");
    assert_eq!(fs::read_to_string(&path).unwrap(), "precious");
}

#[test]
fn a_folder_where_others_could_put_a_socket_is_refused() {
    let dir = tempfile::tempdir().unwrap();
    let inner = dir.path().join("inner");
    fs::create_dir(&inner).unwrap();
    for (mode, works) in [(0o777, false), (0o1777, false), (0o775, false), (0o755, true)] {
        fs::set_permissions(&inner, fs::Permissions::from_mode(mode)).unwrap();
        let result = unix(&inner.join("socket"));
        assert_eq!(result.is_ok(), works, "{mode:o}: {result:?}");
        assert!(works || matches!(result, Err(BindError::UnsafeFolder { .. })), "{result:?}");
    }
    // The same for a socket inside such a folder, unless the folder has the sticky bit, as /tmp does.
    for (mode, works) in [(0o777, false), (0o1777, true)] {
        fs::set_permissions(dir.path(), fs::Permissions::from_mode(mode)).unwrap();
        assert_eq!(unix(&inner.join("socket")).is_ok(), works, "{mode:o}");
    }
}

/// Somebody else's link to a good folder can be redirected later: the socket is created and removed without using the
/// link.
#[test]
fn a_link_that_changes_moves_no_socket() {
    let dir = tempfile::tempdir().unwrap();
    let (folder, other, link) = (dir.path().join("folder"), dir.path().join("other"), dir.path().join("link"));
    fs::create_dir(&folder).unwrap();
    fs::create_dir(&other).unwrap();
    fs::write(other.join("metrics"), "precious").unwrap();
    symlink(&folder, &link).unwrap();
    let exporter = unix(&link.join("metrics")).unwrap();
    fs::remove_file(&link).unwrap();
    symlink(&other, &link).unwrap();
    drop(exporter);
    assert!(!folder.join("metrics").exists());
    assert_eq!(fs::read_to_string(other.join("metrics")).unwrap(), "precious");
}

/// Prints the cost of 10,000 peers.
#[tokio::test]
async fn ten_thousand_peers_are_one_page() {
    const PEERS: u32 = 10_000;
    let (device, _host) = device("laptop");
    let peers = (0..PEERS).map(|n| {
        let mut key = [1; 32];
        key[..4].copy_from_slice(&n.to_be_bytes());
        let address = IpAddr::from(std::net::Ipv4Addr::from_bits(0x0a01_0000 + n));
        PeerUpdate::new(PublicKey(key)).name(format!("peer-{n}")).allowed_ip(address)
    });
    device.update(Update::new().peers(peers)).await.unwrap();
    let started = Instant::now();
    let snapshot = device.status().await.unwrap();
    println!("snapshot: {:?} for {} peers", started.elapsed(), snapshot.peers.len());
    drop(snapshot);
    let exporter = bind("127.0.0.1:0").unwrap();
    exporter.attach(Source::new("wg0", device.handle()));
    let started = Instant::now();
    let page = get(&exporter, "/metrics");
    println!("scrape: {:?}, {} bytes", started.elapsed(), page.len());
    let named = |name: &str| body(&page).lines().filter(|line| line.starts_with(name)).count();
    assert_eq!(named("wireguard_sent_bytes_total{"), PEERS as usize + 1);
    // The control thread answers while the page is made from its snapshot.
    let (device, handle) = (device.handle(), tokio::task::spawn_blocking(move || get(&exporter, "/metrics").len()));
    let mut answers = 0;
    let mut longest = Duration::ZERO;
    while !handle.is_finished() {
        let asked = Instant::now();
        assert_eq!(device.is_up().await, Ok(true));
        longest = longest.max(asked.elapsed());
        answers += 1;
    }
    println!("control answered {answers} times during a scrape, the slowest in {longest:?}");
    assert!(handle.await.unwrap() >= page.len() / 2);
}
