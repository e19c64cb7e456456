//! An HTTP proxy into the tunnel (RFC 9110 sections 7.6.1 and 9.3.6): CONNECT for everything, and requests with a whole
//! URL for `http:`.

use super::{Inside, Way, listen, relay, users::Users};
use anyhow::Result;
use base64ct::{Base64, Encoding as _};
use http_body_util::{Either, Full};
use hyper::{
    HeaderMap, Method, Request, Response, StatusCode, Uri,
    body::{Bytes, Incoming},
    client,
    header::{CONNECTION, HOST, HeaderName, HeaderValue, PROXY_AUTHENTICATE, PROXY_AUTHORIZATION},
    http::uri::Authority,
    server::conn::http1,
    service::service_fn,
    upgrade,
};
use hyper_util::rt::{TokioIo, TokioTimer};
use rustguard_device::HostPort;
use std::{convert::Infallible, io, net::SocketAddr, sync::Arc, time::Duration};
use tokio::net::TcpStream;
use zeroize::Zeroizing;

/// How long a client may take to send the headers of a request.
const PATIENCE: Duration = Duration::from_secs(10);
/// The longest request line and headers, in bytes.
const REQUEST: usize = 64 << 10;
/// Headers about the connection to the proxy itself (RFC 9110 section 7.6.1). Others may be named by `Connection`.
const OF_A_HOP: [&str; 7] =
    ["connection", "keep-alive", "proxy-authenticate", "proxy-authorization", "proxy-connection", "te", "upgrade"];

type Answer = Response<Either<Incoming, Full<Bytes>>>;

/// Starts the proxy.
pub(super) async fn start(inside: &Inside, at: SocketAddr, users: Option<Arc<Users>>) -> Result<Way> {
    Users::suffice(users.as_deref(), at)?;
    let inside = inside.clone();
    let (at, task) = listen::tcp(at, move |stream| {
        let Some(permit) = inside.room() else { return };
        let (inside, users) = (inside.clone(), users.clone());
        tokio::spawn(async move {
            let _permit = permit;
            serve(inside, stream, users).await;
        });
    })
    .await?;
    Ok(Way { words: format!("an HTTP proxy is at {at}"), task })
}

async fn serve(inside: Inside, stream: TcpStream, users: Option<Arc<Users>>) {
    let service = service_fn(move |request: Request<Incoming>| {
        let (inside, users) = (inside.clone(), users.clone());
        async move { Ok::<_, Infallible>(answer(&inside, request, users.as_deref()).await) }
    });
    let served = http1::Builder::new()
        .timer(TokioTimer::new())
        .header_read_timeout(PATIENCE)
        .max_buf_size(REQUEST)
        .serve_connection(TokioIo::new(stream), service)
        .with_upgrades();
    if let Err(error) = served.await {
        tracing::debug!("a client of the HTTP proxy: {error}");
    }
}

async fn answer(inside: &Inside, request: Request<Incoming>, users: Option<&Users>) -> Answer {
    if users.is_some_and(|users| !is_of(users, request.headers())) {
        let mut answer = say(StatusCode::PROXY_AUTHENTICATION_REQUIRED, "a user and a password are needed\n");
        answer.headers_mut().insert(PROXY_AUTHENTICATE, HeaderValue::from_static("Basic realm=\"rustguard\""));
        return answer;
    }
    let is_tunnel = request.method() == Method::CONNECT;
    let Some(to) = target(request.uri(), is_tunnel) else {
        return say(StatusCode::BAD_REQUEST, "this is a proxy: it takes CONNECT HOST:PORT and http://HOST/…\n");
    };
    let far = match inside.connect(&to).await {
        Ok(far) => far,
        Err(error) => {
            tracing::debug!("{to}: {error}");
            let status = match error.kind() {
                io::ErrorKind::TimedOut => StatusCode::GATEWAY_TIMEOUT,
                _ => StatusCode::BAD_GATEWAY,
            };
            return respond(status, format!("{to}: {error}\n").into());
        }
    };
    if is_tunnel {
        // hyper is done with the connection then, and its permit is free.
        let Some(permit) = inside.room() else {
            return say(StatusCode::SERVICE_UNAVAILABLE, "there are too many connections\n");
        };
        tokio::spawn(async move {
            let _permit = permit;
            let mut far = far;
            // The client has the answer, and its connection is one of bytes from then on.
            if let Ok(upgraded) = upgrade::on(request).await {
                relay::bytes(&mut TokioIo::new(upgraded), &mut far).await;
            }
        });
        return respond(StatusCode::OK, Bytes::new());
    }
    match pass_on(request, far).await {
        Ok(response) => response.map(Either::Left),
        Err(error) => respond(StatusCode::BAD_GATEWAY, format!("{to}: {error}\n").into()),
    }
}

/// Sends a request to its server, and returns the answer.
async fn pass_on(
    mut request: Request<Incoming>,
    far: rustguard_netstack::TcpStream,
) -> hyper::Result<Response<Incoming>> {
    let (mut sender, connection) = client::conn::http1::handshake(TokioIo::new(far)).await?;
    tokio::spawn(async move {
        let _ = connection.await;
    });
    strip(request.headers_mut());
    // The server gets the path alone, and the host of the URL, whatever the client has said (RFC 9112 section 3.2.2).
    let uri = std::mem::take(request.uri_mut());
    *request.uri_mut() = uri.path_and_query().map_or("/", |path| path.as_str()).parse().unwrap_or_default();
    if let Some(host) = uri.authority().and_then(|host| without_user(host).parse().ok()) {
        request.headers_mut().insert(HOST, host);
    }
    let mut response = sender.send_request(request).await?;
    strip(response.headers_mut());
    Ok(response)
}

/// Where a request goes. `None` if it is none for a proxy, such as one of a web site that a browser on this machine has
/// open: those have a path alone.
fn target(uri: &Uri, is_tunnel: bool) -> Option<HostPort> {
    let port = match (is_tunnel, uri.port_u16(), uri.scheme_str()) {
        (true, Some(port), None) => port,
        (false, port, Some("http")) => port.unwrap_or(80),
        _ => return None,
    };
    format!("{}:{port}", uri.host()?).parse().ok()
}

/// The host and the port.
fn without_user(authority: &Authority) -> &str {
    authority.as_str().rsplit('@').next().unwrap_or_default()
}

/// Removes headers about the connection.
fn strip(headers: &mut HeaderMap) {
    let named = headers.get_all(CONNECTION).iter().filter_map(|value| value.to_str().ok());
    let named: Vec<HeaderName> =
        named.flat_map(|value| value.split(',')).filter_map(|name| name.trim().parse().ok()).collect();
    for name in named {
        headers.remove(name);
    }
    for name in OF_A_HOP {
        headers.remove(name);
    }
}

/// Whether the request names a user and the password (RFC 7617).
fn is_of(users: &Users, headers: &HeaderMap) -> bool {
    let given = headers.get(PROXY_AUTHORIZATION).and_then(|value| value.to_str().ok());
    let encoded = given.and_then(|given| given.split_once(' ')).filter(|(kind, _)| kind.eq_ignore_ascii_case("basic"));
    let decoded = encoded.and_then(|(_, encoded)| Base64::decode_vec(encoded.trim()).ok()).map(Zeroizing::new);
    let text = decoded.as_ref().and_then(|decoded| std::str::from_utf8(decoded).ok());
    text.and_then(|text| text.split_once(':')).is_some_and(|(name, password)| users.have(name, password))
}

fn say(status: StatusCode, text: &'static str) -> Answer {
    respond(status, Bytes::from_static(text.as_bytes()))
}

fn respond(status: StatusCode, text: Bytes) -> Answer {
    let mut answer = Response::new(Either::Right(Full::new(text)));
    *answer.status_mut() = status;
    answer
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_requests_for_a_proxy_have_a_target() {
        let to = |uri: &str, is_tunnel| target(&uri.parse().unwrap(), is_tunnel).map(|to| to.to_string());
        assert_eq!(to("web.lab:443", true).as_deref(), Some("web.lab:443"));
        assert_eq!(to("[fd00::1]:443", true).as_deref(), Some("[fd00::1]:443"));
        assert_eq!(to("http://web.lab/x?y", false).as_deref(), Some("web.lab:80"));
        assert_eq!(to("http://10.0.0.1:8080/", false).as_deref(), Some("10.0.0.1:8080"));
        for (uri, is_tunnel) in [("/x", false), ("https://web.lab/", false), ("web.lab", true), ("*", false)] {
            assert_eq!(to(uri, is_tunnel), None, "{uri}");
        }
    }

    #[test]
    fn headers_of_the_connection_are_not_passed_on() {
        let mut headers = HeaderMap::new();
        for (name, value) in [
            ("connection", "close, X-Mine"),
            ("x-mine", "1"),
            ("proxy-authorization", "Basic YTpi"),
            ("proxy-connection", "keep-alive"),
            ("host", "web.lab"),
        ] {
            headers.insert(name.parse::<HeaderName>().unwrap(), value.parse().unwrap());
        }
        strip(&mut headers);
        assert_eq!(headers.keys().map(HeaderName::as_str).collect::<Vec<_>>(), ["host"]);
    }
}
