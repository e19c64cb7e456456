//! The part of HTTP that scrapers and probes need: one GET or HEAD on each connection, with limits on time and size.

use crate::page::{Format, State};
use http_body_util::Full;
use hyper::{
    HeaderMap, Method, Request, Response, StatusCode,
    body::{Bytes, Incoming},
    header::{ACCEPT, ALLOW, CACHE_CONTROL, CONTENT_TYPE, HOST, HeaderValue, X_CONTENT_TYPE_OPTIONS},
    server::conn::http1,
    service::service_fn,
};
use hyper_util::rt::{TokioIo, TokioTimer};
use rustguard_device::listener::Connection;
use std::{
    convert::Infallible,
    net::{IpAddr, SocketAddr},
    sync::Arc,
    time::Duration,
};

/// The time limit for the request's headers.
const HEADERS: Duration = Duration::from_secs(5);
/// The time limit for the whole connection. Prometheus gives up after ten seconds by default (`scrape_timeout`).
const CONNECTION: Duration = Duration::from_secs(30);
/// The longest request line and headers, in bytes. Prometheus sends some 300.
const REQUEST_MAX: usize = 8 << 10;
const HEADERS_MAX: usize = 64;

const OPENMETRICS: &str = "application/openmetrics-text; version=1.0.0; charset=utf-8";
const TEXT: &str = "text/plain; version=0.0.4; charset=utf-8";
const PLAIN: &str = "text/plain; charset=utf-8";

/// Serves one connection. With `loopback_only`, the request has to name a loopback address as its host. Otherwise a web
/// site whose name resolves to 127.0.0.1 (DNS rebinding) could make a browser on this machine request the page, and
/// read the answer.
pub(crate) async fn serve(connection: Box<dyn Connection>, state: Arc<State>, loopback_only: bool) {
    let service = service_fn(move |request: Request<Incoming>| {
        let state = Arc::clone(&state);
        async move { Ok::<_, Infallible>(answer(&request, &state, loopback_only).await) }
    });
    let served = http1::Builder::new()
        .timer(TokioTimer::new())
        .header_read_timeout(HEADERS)
        .max_buf_size(REQUEST_MAX)
        .max_headers(HEADERS_MAX)
        .keep_alive(false)
        .serve_connection(TokioIo::new(connection), service);
    match tokio::time::timeout(CONNECTION, served).await {
        Ok(Ok(())) => {}
        Ok(Err(error)) => tracing::debug!("a connection for metrics failed: {error}"),
        Err(_) => tracing::debug!("a connection for metrics took longer than {} s", CONNECTION.as_secs()),
    }
}

async fn answer(request: &Request<Incoming>, state: &Arc<State>, loopback_only: bool) -> Response<Full<Bytes>> {
    if loopback_only && !names_loopback(request.headers()) {
        return say(StatusCode::MISDIRECTED_REQUEST, "ask for the address, 127.0.0.1 or [::1], or for localhost\n");
    }
    let path = request.uri().path();
    if !["/metrics", "/healthz", "/readyz"].contains(&path) {
        return say(StatusCode::NOT_FOUND, "there are /metrics, /healthz and /readyz\n");
    }
    if !matches!(*request.method(), Method::GET | Method::HEAD) {
        let mut answer = say(StatusCode::METHOD_NOT_ALLOWED, "GET and HEAD are allowed\n");
        answer.headers_mut().insert(ALLOW, HeaderValue::from_static("GET, HEAD"));
        return answer;
    }
    let probe = |result: Result<&'static str, &'static str>| match result {
        Ok(text) => say(StatusCode::OK, text),
        Err(text) => say(StatusCode::SERVICE_UNAVAILABLE, text),
    };
    match path {
        "/healthz" => probe(state.health().await),
        "/readyz" => probe(state.readiness().await),
        _ => {
            let format = format(request.headers());
            match state.page(format).await {
                Ok(page) => {
                    let form = if format == Format::OpenMetrics { OPENMETRICS } else { TEXT };
                    respond(StatusCode::OK, form, page)
                }
                Err(text) => say(StatusCode::SERVICE_UNAVAILABLE, text),
            }
        }
    }
}

/// OpenMetrics is for scrapers that ask for it, as Prometheus does since 2.5.
fn format(headers: &HeaderMap) -> Format {
    let mut accepted = headers.get_all(ACCEPT).iter().filter_map(|value| value.to_str().ok());
    if accepted.any(|value| value.contains("application/openmetrics-text")) {
        Format::OpenMetrics
    } else {
        Format::Text
    }
}

/// Whether the host of the request is a loopback address or `localhost`.
fn names_loopback(headers: &HeaderMap) -> bool {
    // HTTP/1.0 has no such header, and no browser uses HTTP/1.0.
    let Some(host) = headers.get(HOST) else { return true };
    let Ok(host) = host.to_str() else { return false };
    let address = match host.parse::<SocketAddr>() {
        Ok(with_port) => Some(with_port.ip()),
        Err(_) => host.strip_prefix('[').and_then(|v6| v6.strip_suffix(']')).unwrap_or(host).parse().ok(),
    };
    address.is_some_and(|address: IpAddr| address.to_canonical().is_loopback())
        || host.split(':').next().is_some_and(|name| name.eq_ignore_ascii_case("localhost"))
}

fn say(status: StatusCode, text: &'static str) -> Response<Full<Bytes>> {
    respond(status, PLAIN, Bytes::from_static(text.as_bytes()))
}

fn respond(status: StatusCode, form: &'static str, body: Bytes) -> Response<Full<Bytes>> {
    let mut response = Response::new(Full::new(body));
    *response.status_mut() = status;
    let headers = response.headers_mut();
    headers.insert(CONTENT_TYPE, HeaderValue::from_static(form));
    headers.insert(CACHE_CONTROL, HeaderValue::from_static("no-store"));
    // A web site could load the page as a script, and would see its errors.
    headers.insert(X_CONTENT_TYPE_OPTIONS, HeaderValue::from_static("nosniff"));
    response
}

#[cfg(test)]
mod tests {
    use super::*;

    fn headers(name: hyper::header::HeaderName, value: &str) -> HeaderMap {
        HeaderMap::from_iter([(name, HeaderValue::from_str(value).unwrap())])
    }

    #[test]
    fn a_scraper_gets_the_format_that_it_asks_for() {
        let prometheus = "application/openmetrics-text;version=1.0.0,application/openmetrics-text;version=0.0.1;q=0.75,\
                          text/plain;version=0.0.4;q=0.5,*/*;q=0.1";
        assert_eq!(format(&headers(ACCEPT, prometheus)), Format::OpenMetrics);
        assert_eq!(format(&headers(ACCEPT, "*/*")), Format::Text);
        assert_eq!(format(&HeaderMap::new()), Format::Text);
    }

    #[test]
    fn a_name_that_resolves_to_loopback_is_not_loopback() {
        for host in
            ["127.0.0.1:9586", "127.8.8.8", "[::1]:9586", "[::ffff:127.0.0.1]:9586", "localhost:9586", "LocalHost"]
        {
            assert!(names_loopback(&headers(HOST, host)), "{host}");
        }
        for host in
            ["evil.example:9586", "127.0.0.1.evil.example", "[::2]:9586", "[::1].evil.example", "10.0.0.1:9586", ""]
        {
            assert!(!names_loopback(&headers(HOST, host)), "{host}");
        }
    }
}
