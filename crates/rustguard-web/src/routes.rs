//! The handling of requests.

use crate::{
    body::Body,
    checks::Refusal,
    live,
    page::{self, Page},
    sessions::{LogIn, Notice},
    state::{State, uptime},
    window::OpenCode,
};
use base64ct::{Base64, Encoding as _};
use http_body_util::{BodyExt as _, Limited};
use hyper::{
    HeaderMap, Method, Request, Response, StatusCode,
    body::{Bytes, Incoming},
    header::{ALLOW, CACHE_CONTROL, CONTENT_TYPE, COOKIE, HeaderName, HeaderValue, LOCATION, SET_COOKIE},
};
use rustguard_serve::request::{Answer, InviteState, Removed, Request as Command, WebEvent};
use std::{
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};
use zeroize::Zeroizing;

/// The longest form, in bytes. The longest real one has some 200.
const FORM_MAX: usize = 4 << 10;
/// The time to receive a form.
const FORM: Duration = Duration::from_secs(5);
/// How long the window stays open, in seconds.
const WINDOW: u64 = 60;
/// Everything is loaded from here only, and no other site can show the page in a frame.
const POLICY: &str = "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; form-action 'self'; base-uri 'none'; frame-ancestors 'none'";
const HTML: &str = "text/html; charset=utf-8";
const STYLE: &str = include_str!("../assets/style.css");
const SCRIPT: &str = include_str!("../assets/live.js");
const ICON: &str = include_str!("../assets/icon.svg");

/// Answers a request. Sets `live` if the answer has no end.
pub(crate) async fn answer(request: Request<Incoming>, state: &Arc<State>, live: &AtomicBool) -> Response<Body> {
    let mut answer = handle(request, state, live).await;
    let headers = answer.headers_mut();
    for (name, value) in [
        ("content-security-policy", POLICY),
        ("x-frame-options", "DENY"),
        ("x-content-type-options", "nosniff"),
        // Not `no-referrer`: browsers would then omit the origin from forms, which are checked by it (the Fetch
        // standard, section 3.2).
        ("referrer-policy", "same-origin"),
        ("cross-origin-opener-policy", "same-origin"),
        ("cross-origin-resource-policy", "same-origin"),
    ] {
        headers.insert(HeaderName::from_static(name), HeaderValue::from_static(value));
    }
    headers.insert(CACHE_CONTROL, HeaderValue::from_static("no-store"));
    answer
}

async fn handle(request: Request<Incoming>, state: &Arc<State>, live: &AtomicBool) -> Response<Body> {
    let (parts, body) = request.into_parts();
    if let Err(refusal) = state.hosts.check(&parts.method, &parts.headers) {
        tracing::debug!("a request to the status page was refused: {refusal:?}");
        return match refusal {
            Refusal::Host => failure(
                state,
                StatusCode::MISDIRECTED_REQUEST,
                "This page is not served under this name",
                "Ask for it by its address, or by a name that the server was given with --web-host.",
            ),
            Refusal::Origin => {
                failure(state, StatusCode::FORBIDDEN, "Refused", "The request did not come from this page.")
            }
        };
    }
    let path = parts.uri.path();
    let secure = state.hosts.is_secure(&parts.headers);
    let session = session_of(&parts.headers, secure);
    match parts.method {
        Method::GET => get(state, path, parts.uri.query(), session, Some(live)).await,
        // The same without the body, which hyper omits.
        Method::HEAD => get(state, path, parts.uri.query(), session, None).await,
        Method::POST => {
            let form = match form(body).await {
                Ok(form) => form,
                Err(status) => {
                    return failure(state, status, "Refused", "The form is too long, or did not arrive in time.");
                }
            };
            post(state, path, &form, session, secure).await
        }
        _ => {
            let mut answer = failure(state, StatusCode::METHOD_NOT_ALLOWED, "Refused", "There are GET, HEAD and POST.");
            answer.headers_mut().insert(ALLOW, HeaderValue::from_static("GET, HEAD, POST"));
            answer
        }
    }
}

/// Sets `live` if the answer has no end. If it is `None`, only the head of the answer is wanted.
async fn get(
    state: &Arc<State>,
    path: &str,
    query: Option<&str>,
    session: Option<Session>,
    live: Option<&AtomicBool>,
) -> Response<Body> {
    match path {
        "/style.css" => return respond(StatusCode::OK, "text/css; charset=utf-8", STYLE.to_owned()),
        "/live.js" => return respond(StatusCode::OK, "text/javascript; charset=utf-8", SCRIPT.to_owned()),
        "/icon.svg" => return respond(StatusCode::OK, "image/svg+xml", ICON.to_owned()),
        _ => {}
    }
    if let Some(link) = path.strip_prefix("/login/") {
        return respond(StatusCode::OK, HTML, page::login(&state.interface, link).into_string());
    }
    let Some(session) = session else {
        return logged_out(state, "There is no session in this browser, or it has ended.");
    };
    if path == "/live" {
        let asked = query.and_then(|query| form_urlencoded::parse(query.as_bytes()).find(|(name, _)| name == "page"));
        let page = asked.and_then(|(_, page)| match page.split_once('?') {
            Some((path, query)) => Page::at(path, Some(query)),
            None => Page::at(&page, None),
        });
        let Some(page) = page else { return unknown(state) };
        let Some(_) = state.sessions().who(&session.secret, false, uptime()) else {
            return logged_out(state, "The session has ended.");
        };
        let mut answer = Response::new(Body::from(String::new()));
        answer.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static("text/event-stream"));
        let Some(live) = live else { return answer };
        let Ok(permit) = Arc::clone(&state.streams).try_acquire_owned() else {
            return failure(
                state,
                StatusCode::SERVICE_UNAVAILABLE,
                "Too many live pages",
                "Reload the page for the present state.",
            );
        };
        live.store(true, Ordering::Relaxed);
        *answer.body_mut() = live::begin(Arc::clone(state), session.secret.to_string(), page, permit);
        return answer;
    }
    let Some(page) = Page::at(path, query) else { return unknown(state) };
    let Some(who) = state.sessions().who(&session.secret, live.is_some(), uptime()) else {
        return logged_out(state, "The session has ended.");
    };
    // The answer to a HEAD request does not show the notice, so it must stay.
    let notice = live.and_then(|_| state.sessions().take_notice(&session.secret, uptime()));
    match state.show(&page, &who, |shown| page.whole(shown, notice.as_ref()).into_string()).await {
        Some(html) => respond(StatusCode::OK, HTML, html),
        None => failure(
            state,
            StatusCode::SERVICE_UNAVAILABLE,
            "The server does not answer",
            "It is starting or ending. Try again in a moment.",
        ),
    }
}

async fn post(state: &Arc<State>, path: &str, form: &Form, session: Option<Session>, secure: bool) -> Response<Body> {
    if path == "/login" {
        return log_in(state, form.get("link").unwrap_or_default(), secure).await;
    }
    let who = session.as_ref().and_then(|session| state.sessions().who(&session.secret, true, uptime()));
    let (Some(session), Some(who)) = (session, who) else {
        return logged_out(state, "The session has ended. Nothing was done.");
    };
    let token = form.get("token").unwrap_or_default();
    if !rustguard_crypto::hash::ct_eq(token.as_bytes(), who.token.as_bytes()) {
        return failure(
            state,
            StatusCode::FORBIDDEN,
            "Refused",
            "The request did not come from this page. Nothing was done.",
        );
    }
    let ask = async |command| {
        let source = state.source.get()?;
        let answer = source.ask(Some(format!("web: {}", who.label)), command).await;
        state.cache.forget().await;
        answer
    };
    if path == "/logout" {
        ask(Command::WebSession { event: WebEvent::Logout }).await;
        state.sessions().log_out(&session.secret);
        let mut answer = logged_out(state, "You have logged out.");
        *answer.status_mut() = StatusCode::OK;
        set_cookie(&mut answer, "", "; Max-Age=0", secure);
        return answer;
    }
    let Some(act) = Act::of(path, form) else { return unknown(state) };
    let (to, answer) = (act.then, ask(act.command).await);
    let notice = match answer {
        None => Notice { is_error: true, text: "The server does not answer.".to_owned() },
        Some(Answer::Refused { error }) => Notice { is_error: true, text: error },
        Some(answer) => {
            let text = outcome(&answer, act.done);
            if let Answer::Opened { seconds, code: Some(code), .. } = answer {
                *state.code() = Some(OpenCode::new(code, seconds, uptime()));
            }
            Notice { is_error: false, text }
        }
    };
    state.sessions().leave_notice(&session.secret, notice, uptime());
    redirect(to)
}

/// An action to perform.
struct Act {
    command: Command,
    /// The page to show next.
    then: &'static str,
    /// The message for success, unless the answer is more specific.
    done: &'static str,
}

impl Act {
    fn of(path: &str, form: &Form) -> Option<Self> {
        let checked = |name: &str| form.get(name) == Some("yes");
        let code = || form.get("code").unwrap_or_default().to_owned();
        let (command, then, done) = match path {
            "/window/open" => {
                (Command::Open { seconds: WINDOW, approve: checked("approve") }, "/joining", "The window is open.")
            }
            "/window/close" => (Command::Close, "/joining", "The window is closed."),
            "/approve" => (Command::Approve { code: code() }, "/joining", "The machine is admitted."),
            "/refuse" => (Command::Refuse { code: code() }, "/joining", "The machine was refused."),
            _ => match Page::at(path, None)? {
                Page::Remove(key) => {
                    let peer = Base64::encode_string(&key.0);
                    (Command::RemovePeer { peer, revoke: checked("revoke") }, "/", "The machine was removed.")
                }
                _ => return None,
            },
        };
        Some(Self { command, then, done })
    }
}

fn outcome(answer: &Answer, done: &str) -> String {
    match answer {
        Answer::Approved { name: Some(name) } => format!("{} is admitted.", crate::text::shown(name)),
        Answer::Removed(removed) => removal(removed),
        _ => done.to_owned(),
    }
}

/// Explains how the machine could join again.
fn removal(removed: &Removed) -> String {
    let name = crate::text::shown(&removed.peer);
    let usable = removed.invite.as_ref().filter(|invite| invite.state == InviteState::Usable);
    match usable {
        Some(invite) => format!(
            "{name} was removed. The invite {} that it joined with can still be used: `rustguard invite revoke {}` ends it.",
            invite.id, invite.id
        ),
        None if removed.window_open => format!(
            "{name} was removed. It had joined by the pairing window, which is open: close it, unless other machines are to join."
        ),
        None if removed.passphrase => format!("{name} was removed. It may know the passphrase for windows."),
        None => format!("{name} was removed."),
    }
}

async fn log_in(state: &Arc<State>, link: &str, secure: bool) -> Response<Body> {
    let tell = async |label: &str, event| {
        if let Some(source) = state.source.get() {
            source.ask(Some(format!("web: {label}")), Command::WebSession { event }).await;
        }
    };
    // Not inside the `match`: it would hold the lock while the service is informed.
    let outcome = state.sessions().log_in(link, uptime());
    let (secret, who) = match outcome {
        Ok(LogIn::Began(secret, who)) => (secret, who),
        refused => {
            if let Ok(LogIn::Again(label)) = refused {
                tracing::warn!("a link to the status page was used again, which had begun the session {label}");
                tell(&label, WebEvent::LinkReused).await;
            }
            return logged_out(
                state,
                "This link was used already, or is older than five minutes, or is not of this server.",
            );
        }
    };
    tell(&who.label, WebEvent::Login).await;
    let mut answer = redirect("/");
    set_cookie(&mut answer, &secret, "", secure);
    answer
}

/// The session that the browser claims. It is not verified yet.
struct Session {
    secret: Zeroizing<String>,
}

fn session_of(headers: &HeaderMap, secure: bool) -> Option<Session> {
    let name = cookie_name(secure);
    let cookies =
        headers.get_all(COOKIE).iter().filter_map(|value| value.to_str().ok()).flat_map(|value| value.split(';'));
    let mut ours = cookies.filter_map(|cookie| cookie.trim().split_once('=')).filter(|(of, _)| *of == name);
    let (_, secret) = ours.next()?;
    // If there are two, one is from somebody else.
    ours.next().is_none().then(|| Session { secret: Zeroizing::new(secret.to_owned()) })
}

/// With the prefix, browsers accept it only from this host, and only over TLS (RFC 6265bis, section 4.1.3).
fn cookie_name(secure: bool) -> &'static str {
    if secure { "__Host-rustguard" } else { "rustguard" }
}

fn set_cookie(answer: &mut Response<Body>, secret: &str, more: &str, secure: bool) {
    let (name, by_tls) = (cookie_name(secure), if secure { "; Secure" } else { "" });
    let text = Zeroizing::new(format!("{name}={secret}; Path=/; HttpOnly; SameSite=Strict{by_tls}{more}"));
    if let Ok(mut value) = HeaderValue::from_str(&text) {
        value.set_sensitive(true);
        answer.headers_mut().insert(SET_COOKIE, value);
    }
}

/// The fields of a form.
struct Form(Vec<(String, Zeroizing<String>)>);

impl Form {
    /// The value of a field that occurs exactly once.
    fn get(&self, name: &str) -> Option<&str> {
        let mut values = self.0.iter().filter(|(other, _)| other == name);
        let (_, value) = values.next()?;
        values.next().is_none().then_some(value.as_str())
    }
}

async fn form(body: Incoming) -> Result<Form, StatusCode> {
    let read = tokio::time::timeout(FORM, Limited::new(body, FORM_MAX).collect()).await;
    let bytes: Bytes =
        read.map_err(|_| StatusCode::REQUEST_TIMEOUT)?.map_err(|_| StatusCode::PAYLOAD_TOO_LARGE)?.to_bytes();
    let fields = form_urlencoded::parse(&bytes);
    Ok(Form(fields.map(|(name, value)| (name.into_owned(), Zeroizing::new(value.into_owned()))).collect()))
}

fn unknown(state: &State) -> Response<Body> {
    failure(state, StatusCode::NOT_FOUND, "No such page", "There is no page with this address.")
}

fn logged_out(state: &State, why: &str) -> Response<Body> {
    respond(StatusCode::FORBIDDEN, HTML, page::logged_out(&state.interface, why).into_string())
}

fn failure(state: &State, status: StatusCode, title: &str, why: &str) -> Response<Body> {
    respond(status, HTML, page::failure(&state.interface, title, why).into_string())
}

/// Makes the browser request the next page, so that a reload does not repeat the act.
fn redirect(to: &'static str) -> Response<Body> {
    let mut answer = respond(StatusCode::SEE_OTHER, HTML, String::new());
    answer.headers_mut().insert(LOCATION, HeaderValue::from_static(to));
    answer
}

fn respond(status: StatusCode, form: &'static str, body: String) -> Response<Body> {
    let mut response = Response::new(Body::from(body));
    *response.status_mut() = status;
    response.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static(form));
    response
}
