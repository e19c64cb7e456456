//! The page over a real port, with a hand-written browser that does not follow good manners.

mod policy;

use crate::{Options, Source, WebServer, snapshot::Live};
use rustguard_device::listener::Address;
use rustguard_serve::{
    PolicyHandle, StatusPage as _,
    request::{Answer, Request},
};
use serde_json::{Value, json};
use std::{
    fs,
    io::{Read as _, Write as _},
    net::{Shutdown, SocketAddr, TcpStream},
    os::unix::{fs::MetadataExt as _, net::UnixStream},
    path::Path,
    sync::{Arc, Mutex},
    time::Duration,
};

/// An answer that takes longer fails the test.
const LONG: Duration = Duration::from_secs(60);
const KEY: [u8; 32] = [7; 32];
const MEMBER: &str = "/member/BwcHBwcHBwcHBwcHBwcHBwcHBwcHBwcHBwcHBwcHBwc";
/// A name that a machine might give itself if all checks before the page failed.
const HOSTILE: &str = "<script>alert(1)</script>\u{202e}\"'><img src=x onerror=alert(1)>";

/// The requests that the service received, with the name of their session.
type Acts = Arc<Mutex<Vec<(String, Request)>>>;

struct Served {
    page: WebServer,
    at: SocketAddr,
    acts: Acts,
    dir: tempfile::TempDir,
}

fn status() -> Value {
    let member = json!({
        "name": HOSTILE, "public_key": rustguard_device::key::to_base64(&KEY).to_string(), "addresses": ["10.0.0.2"], "state": "active",
        "origin": "window", "tags": [HOSTILE], "ephemeral": false, "member": true, "server": false, "prefixes": [], "admitted": [],
        "waiting": [], "created": 1, "expires": null, "last_handshake": 2, "endpoint": "192.0.2.2:7",
        "connection": { "state": "online", "since": 5 }, "problem": { "kind": "x", "text": HOSTILE, "since": 1 },
        "rx_bytes": 3, "tx_bytes": 4,
    });
    json!({
        "answer": "status", "interface": "rg0", "public_key": rustguard_device::key::to_base64(&[1; 32]).to_string(), "port": 51_820,
        "endpoint": "vpn.example:51820", "pools": [], "isolate": false, "routes": [], "nat": false,
        "window": { "seconds_left": 60, "secret": "code", "attempts_left": 5, "approve": true },
        "waiting": [{ "code": "12345678", "name": HOSTILE, "source": "192.0.2.9:1" }], "usable_invites": 0,
        "peers": [member], "counters": [], "network": null,
    })
}

fn serve() -> Served {
    serve_policy(|folder| Some(policy::handle(folder, policy::TEXT)))
}

/// Serves the page with a policy that is created in the server's folder.
fn serve_policy(of: impl FnOnce(&Path) -> Option<PolicyHandle>) -> Served {
    serve_with(&Options::new("127.0.0.1:0".parse().unwrap()), of)
}

fn serve_with(options: &Options, of: impl FnOnce(&Path) -> Option<PolicyHandle>) -> Served {
    let acts = Acts::default();
    let dir = tempfile::tempdir().unwrap();
    let audit = dir.path().join("audit.jsonl");
    fs::write(
        &audit,
        format!("{}\n", json!({ "time": 1, "event": "removed", "name": HOSTILE, "by": HOSTILE, "tags": [HOSTILE] })),
    )
    .unwrap();
    let noted = Arc::clone(&acts);
    let ask = move |session: Option<String>, request: Request| {
        if let Some(session) = session {
            noted.lock().unwrap().push((session, request.clone()));
        }
        let answer = match request {
            Request::Status => status(),
            Request::Open { .. } => json!({ "answer": "opened", "seconds": 60, "code": "ABCD-EFGH", "endpoint": null }),
            Request::Approve { code } if code != "12345678" => json!({ "answer": "refused", "error": "nobody waits" }),
            _ => json!({ "answer": "done" }),
        };
        Some(serde_json::from_value::<Answer>(answer).unwrap())
    };
    let page = WebServer::bind(options, "rg0", &[]).unwrap();
    let live = Live { peers: Vec::new(), policy: Some(policy::refusals()) };
    page.attach(Source::of_functions(ask, live, audit).policy(of(dir.path())));
    let Address::Tcp(at) = *page.address() else { panic!("a port") };
    Served { page, at, acts, dir }
}

fn talk(mut stream: impl std::io::Read + std::io::Write, request: &str) -> String {
    // A server that refuses may close the connection before it has received everything.
    let _ = stream.write_all(request.as_bytes());
    let mut answer = Vec::new();
    let _ = stream.read_to_end(&mut answer);
    String::from_utf8(answer).unwrap()
}

fn connect(at: SocketAddr) -> TcpStream {
    let stream = TcpStream::connect(at).unwrap();
    stream.set_read_timeout(Some(LONG)).unwrap();
    stream
}

/// A browser with a session.
struct Browser<'s> {
    served: &'s Served,
    cookie: String,
    token: String,
}

impl Served {
    fn link(&self, name: &str) -> String {
        let url = self.page.links().link(name).url.reveal().to_owned();
        let link = url.strip_prefix(&format!("http://{}/login/", self.at)).unwrap_or_else(|| panic!("{url}"));
        link.to_owned()
    }

    /// The secret part of a link, whatever its host name.
    fn secret(&self, name: &str) -> String {
        let url = self.page.links().link(name).url.reveal().to_owned();
        url.rsplit('/').next().unwrap().to_owned()
    }

    fn get(&self, path: &str, headers: &str) -> String {
        talk(connect(self.at), &format!("GET {path} HTTP/1.1\r\nHost: {}\r\n{headers}\r\n", self.at))
    }

    fn post(&self, path: &str, headers: &str, form: &str) -> String {
        let length = form.len();
        let head = format!("POST {path} HTTP/1.1\r\nHost: {}\r\nContent-Length: {length}\r\n{headers}\r\n", self.at);
        talk(connect(self.at), &(head + form))
    }

    fn origin(&self) -> String {
        format!("Origin: http://{}\r\n", self.at)
    }

    fn log_in(&self, link: &str) -> String {
        self.post("/login", &self.origin(), &format!("link={link}"))
    }

    fn browser(&self, name: &str) -> Browser<'_> {
        let answer = self.log_in(&self.link(name));
        let cookie = between(&answer, "set-cookie: ", ";").to_owned();
        let page = self.get("/", &format!("Cookie: {cookie}\r\n"));
        let token = between(&page, "name=\"token\" value=\"", "\"").to_owned();
        Browser { served: self, cookie, token }
    }

    fn folder(&self) -> &Path {
        self.dir.path()
    }

    fn acts(&self) -> Vec<(String, Request)> {
        std::mem::take(&mut self.acts.lock().unwrap())
    }
}

impl Browser<'_> {
    fn get(&self, path: &str) -> String {
        self.served.get(path, &format!("Cookie: {}\r\n", self.cookie))
    }

    fn post(&self, path: &str, form: &str) -> String {
        let headers = format!("Cookie: {}\r\n{}", self.cookie, self.served.origin());
        self.served.post(path, &headers, &format!("token={}&{form}", self.token))
    }
}

fn between<'t>(text: &'t str, before: &str, after: &str) -> &'t str {
    text.split_once(before).and_then(|(_, rest)| rest.split_once(after)).unwrap_or_else(|| panic!("{before}: {text}")).0
}

fn code(answer: &str) -> &str {
    answer.split(' ').nth(1).unwrap_or_default()
}

#[test]
fn a_link_logs_in_once_and_to_look_at_it_does_not_use_it_up() {
    let served = serve();
    let link = served.link("alice");
    for _ in 0..3 {
        let page = served.get(&format!("/login/{link}"), "");
        assert!(code(&page) == "200" && !page.contains("set-cookie"), "{page}");
    }
    for wrong in ["", "x", &"A".repeat(43)] {
        assert_eq!(code(&served.log_in(wrong)), "403", "{wrong}");
    }
    let first = served.log_in(&link);
    assert_eq!(code(&first), "303", "{first}");
    let cookie = between(&first, "set-cookie: ", "\r\n");
    assert!(cookie.starts_with("rustguard=") && cookie.ends_with("; Path=/; HttpOnly; SameSite=Strict"), "{cookie}");
    let second = served.log_in(&link);
    assert!(code(&second) == "403" && !second.contains("set-cookie"), "{second}");
    let who: Vec<_> = served.acts().into_iter().map(|(who, _)| who).collect();
    assert_eq!(who, ["web: alice#1", "web: alice#1"], "it began, and its link was used again");
    assert_eq!(code(&served.log_in(&link)), "403");
    assert!(served.acts().is_empty(), "which is told once");
}

#[test]
fn a_proxy_with_tls_in_front_has_secure_cookies_and_links() {
    let mut options = Options::new("127.0.0.1:0".parse().unwrap());
    options.hosts = vec!["hub".to_owned(), "https://vpn.example.org".to_owned()];
    let served = serve_with(&options, |folder| Some(policy::handle(folder, policy::TEXT)));
    let url = served.page.links().link("alice").url.reveal().to_owned();
    let link = url.strip_prefix("https://vpn.example.org/login/").unwrap_or_else(|| panic!("{url}"));
    let ask = |method: &str, path: &str, headers: &str, form: &str| {
        let length = form.len();
        let head =
            format!("{method} {path} HTTP/1.1\r\nHost: vpn.example.org\r\nContent-Length: {length}\r\n{headers}\r\n");
        talk(connect(served.at), &(head + form))
    };
    let form = format!("link={link}");
    assert_eq!(code(&ask("POST", "/login", "Origin: http://vpn.example.org\r\n", &form)), "403", "not by TLS");
    let answer = ask("POST", "/login", "Origin: https://vpn.example.org\r\n", &form);
    let cookie = between(&answer, "set-cookie: ", "\r\n");
    assert!(cookie.starts_with("__Host-rustguard=") && cookie.ends_with("; SameSite=Strict; Secure"), "{answer}");
    let cookie = cookie.split(';').next().unwrap();
    assert_eq!(code(&ask("GET", "/", &format!("Cookie: {cookie}\r\n"), "")), "200");
    let without = cookie.replace("__Host-", "");
    assert_eq!(
        code(&ask("GET", "/", &format!("Cookie: {without}\r\n"), "")),
        "403",
        "not with a name that plain HTTP can set"
    );
    // Direct requests to the address, beside the proxy, still work.
    let answer = served.post("/login", &served.origin(), &format!("link={}", served.secret("bob")));
    assert!(between(&answer, "set-cookie: ", "\r\n").ends_with("SameSite=Strict"), "{answer}");
}

#[test]
fn a_member_that_is_looked_at_is_asked_for_its_round_trip() {
    let served = serve();
    let browser = served.browser("alice");
    // The first page is rendered before there is an answer, and is reused for a second.
    let until = std::time::Instant::now() + LONG;
    while !browser.get("/").contains(">12 ms</td>") {
        assert!(std::time::Instant::now() < until, "{}", browser.get("/"));
    }
    assert!(browser.get(MEMBER).contains("<dd>12 ms</dd>"));
}

#[test]
fn the_head_of_a_page_is_that_of_the_page() {
    let served = serve();
    let browser = served.browser("alice");
    let head = |path: &str, headers: &str| {
        let answer = talk(connect(served.at), &format!("HEAD {path} HTTP/1.1\r\nHost: {}\r\n{headers}\r\n", served.at));
        assert!(answer.ends_with("\r\n\r\n"), "no body: {answer}");
        answer
    };
    let cookie = format!("Cookie: {}\r\n", browser.cookie);
    for (path, kind) in [("/", "text/html"), ("/style.css", "text/css"), ("/live?page=/", "text/event-stream")] {
        let answer = head(path, &cookie);
        assert!(code(&answer) == "200" && answer.contains(kind) && answer.contains("x-frame-options"), "{answer}");
    }
    assert_eq!(code(&head("/", "")), "403", "nobody has logged in");
    assert_eq!(code(&head("/", "Sec-Fetch-Site: cross-site\r\n")), "403");
    // HEAD does not consume the notice.
    browser.post("/window/open", "");
    head("/joining", &cookie);
    assert!(browser.get("/joining").contains("The window is open."));
    let other =
        talk(connect(served.at), &format!("DELETE / HTTP/1.1\r\nHost: {}\r\n{}\r\n", served.at, served.origin()));
    assert!(code(&other) == "405" && other.contains("allow: GET, HEAD, POST"), "{other}");
}

#[test]
fn nobody_sees_or_does_anything_without_a_session() {
    let served = serve();
    let browser = served.browser("alice");
    served.acts();
    let paths = ["/", "/policy", "/joining", "/log", MEMBER, "/live?page=/"];
    for path in paths {
        for cookie in ["", "Cookie: rustguard=x\r\n", "Cookie: rustguard=\r\n"] {
            let page = served.get(path, cookie);
            assert!(
                code(&page) == "403" && !page.contains("10.0.0.2") && !page.contains("vpn.example"),
                "{path}: {page}"
            );
        }
    }
    // A second cookie with the same name, as another server on this host could set it.
    assert_eq!(code(&served.get("/", &format!("Cookie: {}; rustguard=x\r\n", browser.cookie))), "403");
    let form = format!("token={}", browser.token);
    for path in ["/window/open", "/approve", &format!("{MEMBER}/remove")] {
        assert_eq!(code(&served.post(path, &served.origin(), &form)), "403", "{path}");
    }
    assert_eq!(served.acts(), []);
    assert_eq!(code(&browser.get("/")), "200");
    // The session ends by logging out, or by `rustguard web --end`.
    assert_eq!(code(&browser.post("/logout", "")), "200");
    assert_eq!(code(&browser.get("/")), "403");
    let other = served.browser("bob");
    assert_eq!(served.page.links().end(), 1);
    assert_eq!([code(&other.get("/")), code(&other.post("/window/open", ""))], ["403", "403"]);
}

#[test]
fn an_act_needs_the_token_of_its_session_and_an_origin_of_ours() {
    let served = serve();
    let (browser, other) = (served.browser("alice"), served.browser("bob"));
    served.acts();
    let cookie = format!("Cookie: {}\r\n", browser.cookie);
    let with_origin = cookie.clone() + &served.origin();
    for form in [
        String::new(),
        "token=".into(),
        "token=x".into(),
        format!("token={}", other.token),
        format!("token={}&token=x", browser.token),
    ] {
        assert_eq!(code(&served.post("/window/open", &with_origin, &form)), "403", "{form}");
    }
    let form = format!("token={}", browser.token);
    for origin in [
        "",
        "Origin: null\r\n",
        "Origin: http://evil.example\r\n",
        "Origin: http://127.0.0.1:1\r\n",
        "Sec-Fetch-Site: cross-site\r\n",
        "Sec-Fetch-Site: same-site\r\n",
    ] {
        assert_eq!(code(&served.post("/window/open", &(cookie.clone() + origin), &form)), "403", "{origin}");
        // Another site cannot log anybody in either.
        let link = served.link("mallory");
        assert_eq!(code(&served.post("/login", origin, &format!("link={link}"))), "403", "{origin}");
    }
    // Fields in the address are not a form.
    assert_eq!(code(&served.get(&format!("/window/open?{form}"), &cookie)), "404");
    assert_eq!(served.acts(), []);
    assert_eq!(code(&browser.post("/window/open", "")), "303");
    assert_eq!(served.acts().len(), 1);
}

#[test]
fn a_name_that_was_made_to_resolve_to_this_machine_is_not_ours() {
    let served = serve();
    let browser = served.browser("alice");
    for host in ["evil.example", "evil.example:80", "127.0.0.1.evil.example", ""] {
        let answer =
            talk(connect(served.at), &format!("GET / HTTP/1.1\r\nHost: {host}\r\nCookie: {}\r\n\r\n", browser.cookie));
        assert!(code(&answer) == "421" && !answer.contains("10.0.0.2"), "{host}: {answer}");
    }
    let answer = talk(connect(served.at), &format!("GET / HTTP/1.0\r\nCookie: {}\r\n\r\n", browser.cookie));
    assert_eq!(code(&answer), "421", "no host at all");
}

#[test]
fn each_act_reaches_the_service_once_in_the_name_of_its_session() {
    let served = serve();
    let browser = served.browser("alice");
    served.acts();
    let key = rustguard_device::key::to_base64(&KEY).to_string();
    let remove = |revoke| Request::RemovePeer { peer: key.clone(), revoke };
    for (path, form, to, request) in [
        ("/window/open", "", "/joining", Request::Open { seconds: 60, approve: false }),
        ("/window/open", "approve=yes", "/joining", Request::Open { seconds: 60, approve: true }),
        ("/window/close", "", "/joining", Request::Close),
        ("/approve", "code=12345678", "/joining", Request::Approve { code: "12345678".into() }),
        ("/refuse", "code=12345678", "/joining", Request::Refuse { code: "12345678".into() }),
        (&format!("{MEMBER}/remove"), "", "/", remove(false)),
        (&format!("{MEMBER}/remove"), "revoke=yes", "/", remove(true)),
        ("/approve", "code=%3Cb%3E", "/joining", Request::Approve { code: "<b>".into() }),
    ] {
        let answer = browser.post(path, form);
        assert!(code(&answer) == "303" && answer.contains(&format!("location: {to}\r\n")), "{path}: {answer}");
        assert_eq!(served.acts(), [("web: alice#1".to_owned(), request)]);
    }
    // The refusal is shown once.
    assert!(browser.get("/joining").contains("nobody waits"));
    assert!(!browser.get("/joining").contains("nobody waits"));
    assert_eq!(code(&browser.post(MEMBER, "")), "404");
}

#[test]
fn the_code_of_the_window_is_shown_to_those_who_are_logged_in() {
    let served = serve();
    let browser = served.browser("alice");
    assert!(!browser.get("/joining").contains("ABCD-EFGH"));
    browser.post("/window/open", "");
    let page = browser.get("/joining");
    assert!(
        page.contains("rustguard join vpn.example:51820 --token ABCD-EFGH") && page.contains("class=\"qr\""),
        "{page}"
    );
    assert!(!served.get("/joining", "").contains("ABCD-EFGH"));
}

#[test]
fn what_machines_say_is_text_in_every_place() {
    let served = serve();
    let browser = served.browser("alice");
    for path in ["/", "/policy", "/joining", "/log", MEMBER, &format!("{MEMBER}/remove")] {
        let page = browser.get(path);
        assert_eq!(code(&page), "200", "{path}");
        assert!(page.contains("&lt;script&gt;") && page.contains(r"\u{202e}"), "{path}: {page}");
        assert!(!page.contains("<script>") && !page.contains("<img") && !page.contains('\u{202e}'), "{path}: {page}");
        // Only the script of the head is there.
        assert_eq!(page.matches("<script").count(), 1, "{path}");
    }
    let link = served.get("/login/%22%3E%3Cscript%3Ealert(1)%3C/script%3E", "");
    assert!(!link.contains("<script>"), "{link}");
}

#[test]
fn every_answer_forbids_frames_foreign_scripts_and_copies() {
    let served = serve();
    let browser = served.browser("alice");
    let answers = [
        browser.get("/"),
        browser.get("/none"),
        served.get("/", ""),
        served.get("/live.js", ""),
        served.get("/login/x", ""),
        browser.post("/window/open", ""),
        served.post("/window/open", "", ""),
    ];
    for answer in answers {
        let head = answer.split("\r\n\r\n").next().unwrap();
        for header in [
            "content-security-policy: default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; form-action 'self'; base-uri 'none'; frame-ancestors 'none'",
            "x-frame-options: DENY",
            "x-content-type-options: nosniff",
            "cache-control: no-store",
            "referrer-policy: same-origin",
            "cross-origin-opener-policy: same-origin",
        ] {
            assert!(head.contains(header), "{header}: {head}");
        }
    }
    // Of two such attributes, a browser uses only the first.
    for path in ["/", "/policy", "/joining", "/log", MEMBER] {
        let page = browser.get(path);
        let twice =
            page.split('<').find(|tag| tag.split('>').next().is_some_and(|tag| tag.matches(" class=").count() > 1));
        assert_eq!(twice, None, "{path}");
    }
    // The content security policy would block these, and the page would be broken.
    let page = browser.get("/");
    for inline in [" style=", " onclick=", "<style", "javascript:", "http://", "https://"] {
        assert!(!page.contains(inline), "{inline}: {page}");
    }
}

#[test]
fn what_is_too_long_is_refused() {
    let served = serve();
    let browser = served.browser("alice");
    let long = "x".repeat(40 << 10);
    let answer = served.get("/", &format!("X-Long: {long}\r\n"));
    assert!(answer.is_empty() || code(&answer) == "431", "{answer}");
    let answer = served.get(&format!("/{long}"), "");
    assert!(answer.is_empty() || ["414", "431"].contains(&code(&answer)), "{answer}");
    let many: String = (0..100).map(|n| format!("X-{n}: 1\r\n")).collect();
    let answer = served.get("/", &many);
    assert!(answer.is_empty() || code(&answer) == "431", "{answer}");
    served.acts();
    let answer = browser.post("/window/open", &format!("more={long}"));
    assert!(answer.is_empty() || code(&answer) == "413", "{answer}");
    assert_eq!(served.acts(), []);
    for method in ["PUT", "DELETE", "OPTIONS", "TRACE"] {
        let origin = served.origin();
        let answer = talk(connect(served.at), &format!("{method} / HTTP/1.1\r\nHost: {}\r\n{origin}\r\n", served.at));
        assert_eq!(code(&answer), "405", "{method}");
    }
}

#[test]
fn somebody_who_is_slow_or_has_many_connections_keeps_nobody_out() {
    let served = serve();
    let browser = served.browser("alice");
    let mut slow: Vec<_> = (0..100).map(|_| connect(served.at)).collect();
    for stream in &mut slow {
        // Connections beyond the limit are closed already.
        let _ = stream.write_all(b"GET / HTTP/1.1\r\nHost: ");
    }
    assert_eq!(code(&browser.get("/")), "200");
    // A client that never completes its form does not block others either. Its time is limited, and others have their
    // own connections.
    let mut stream = connect(served.at);
    let head =
        format!("POST /window/open HTTP/1.1\r\nHost: {}\r\n{}Content-Length: 100\r\n\r\n", served.at, served.origin());
    stream.write_all(head.as_bytes()).unwrap();
    assert_eq!(code(&browser.get("/")), "200");
    let mut answer = String::new();
    let _ = stream.read_to_string(&mut answer);
    assert!(answer.is_empty() || code(&answer) == "408", "{answer}");
}

#[test]
fn a_live_page_ends_with_its_session_and_their_number_is_bounded() {
    let served = serve();
    let browser = served.browser("alice");
    let live = || {
        let mut stream = connect(served.at);
        let request = format!("GET /live?page=/ HTTP/1.1\r\nHost: {}\r\nCookie: {}\r\n\r\n", served.at, browser.cookie);
        stream.write_all(request.as_bytes()).unwrap();
        let mut first = [0; 15];
        stream.read_exact(&mut first).unwrap();
        (stream, String::from_utf8(first.to_vec()).unwrap().contains("200"))
    };
    let mut streams: Vec<_> = (0..crate::state::STREAMS).map(|_| live()).collect();
    assert!(streams.iter().all(|(_, is_live)| *is_live));
    assert!(!live().1, "one more");
    let (mut stream, _) = streams.remove(0);
    // Disconnected browsers free their places. The server notices this when it writes, or immediately.
    for (stream, _) in streams {
        stream.shutdown(Shutdown::Both).unwrap();
    }
    browser.post("/logout", "");
    let mut rest = String::new();
    stream.read_to_string(&mut rest).unwrap();
    assert!(rest.contains("content-type: text/event-stream") && rest.contains("event: parts\n"), "{rest}");
    assert!(rest.contains("event: ended\n") && !rest.contains("<script>"), "{rest}");
}

#[test]
fn a_unix_socket_is_for_its_owner_and_served_once() {
    let dir = tempfile::Builder::new()
        .permissions(std::os::unix::fs::PermissionsExt::from_mode(0o755))
        .tempdir_in("/run")
        .or_else(|_| tempfile::tempdir_in("."))
        .unwrap();
    let path = dir.path().join("page");
    // A socket that a killed process left behind.
    drop(std::os::unix::net::UnixListener::bind(&path).unwrap());
    let options = Options::new(Address::Unix(path.clone()));
    let page = WebServer::bind(&options, "rg0", &[]).unwrap();
    assert_eq!(fs::metadata(&path).unwrap().mode() & 0o777, 0o600);
    let second = WebServer::bind(&options, "rg0", &[]).unwrap_err().to_string();
    assert!(second.contains("the status page") && second.contains("another program listens"), "{second}");
    let link = page.links().link("alice");
    assert!(
        link.url.reveal().starts_with("http://127.0.0.1:9580/login/")
            && link.hint.is_some_and(|hint| hint.contains("ssh -L"))
    );
    let ask = |host: &str| {
        talk(UnixStream::connect(&path).unwrap(), &format!("GET /login/x HTTP/1.1\r\nHost: {host}\r\n\r\n"))
    };
    assert_eq!([code(&ask("localhost:9580")), code(&ask("evil.example"))], ["200", "421"]);
    drop(page);
    assert!(!path.exists());
}
