//! Checks of a request before it is processed, against attacks by web sites in the same browser.
//!
//! - The host has to be one under which the page is served. This excludes names that an attacker makes resolve to this
//!   machine (DNS rebinding).
//! - An act has to come from a page of this server: `Origin`, or `Sec-Fetch-Site` if a browser omits `Origin`.
//! - All requests except the navigation to a page have to come from a page of this server too, if the browser states
//!   their origin.

use hyper::{
    HeaderMap, Method,
    header::{HOST, ORIGIN},
};
use std::net::{IpAddr, SocketAddr};

/// The hosts under which the page is served.
#[derive(Clone, Debug)]
pub(crate) struct Hosts {
    /// Whether they include loopback addresses and `localhost`.
    pub(crate) loopback: bool,
    /// The address at which the page is served.
    pub(crate) address: Option<IpAddr>,
    /// The names that the administrator has set.
    pub(crate) names: Vec<Name>,
    /// Whether the connection is TLS. Otherwise a proxy in front may use TLS.
    pub(crate) tls: bool,
}

/// A name under which browsers request the page.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Name {
    /// With or without a port.
    pub(crate) host: String,
    /// Whether browsers use TLS, which ends here or at a proxy in front.
    pub(crate) https: bool,
}

impl Name {
    /// Reads `vpn.example.org`, `vpn.example.org:8443` or `https://vpn.example.org`. `None` for anything else.
    pub(crate) fn parse(text: &str) -> Option<Self> {
        let (host, https) = text.strip_prefix("https://").map_or((text, false), |host| (host, true));
        let of_host = |c: char| c.is_ascii_alphanumeric() || matches!(c, '-' | '_' | '.' | ':' | '[' | ']');
        (!host.is_empty() && host.chars().all(of_host)).then(|| Self { host: host.to_owned(), https })
    }
}

/// Why a request is refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Refusal {
    /// The page is not served under this host.
    Host,
    /// The request comes from another web site.
    Origin,
}

impl Hosts {
    /// Checks a request.
    ///
    /// # Errors
    /// See [`Refusal`].
    pub(crate) fn check(&self, method: &Method, headers: &HeaderMap) -> Result<(), Refusal> {
        let host = one(headers, HOST.as_str()).filter(|host| self.is_ours(host)).ok_or(Refusal::Host)?;
        let site = one(headers, "sec-fetch-site");
        let from_here = site.is_none_or(|site| site == "same-origin");
        let allowed = if method == Method::GET || method == Method::HEAD {
            // `none` means that the address was typed. A link on another site leads to a page without the session,
            // because the session cookie is `SameSite=Strict`.
            let navigates = one(headers, "sec-fetch-mode").is_some_and(|mode| mode == "navigate");
            from_here || site == Some("none") || navigates
        } else {
            match headers.contains_key(ORIGIN) {
                true => from_here && one(headers, ORIGIN.as_str()).is_some_and(|origin| self.is_origin(origin, host)),
                false => site == Some("same-origin"),
            }
        };
        if allowed { Ok(()) } else { Err(Refusal::Origin) }
    }

    /// Whether the browser uses TLS. Then it accepts a cookie that is restricted to TLS, and no other.
    pub(crate) fn is_secure(&self, headers: &HeaderMap) -> bool {
        self.tls || one(headers, HOST.as_str()).and_then(|host| self.name(host)).is_some_and(|name| name.https)
    }

    /// The configured name for this host.
    fn name(&self, host: &str) -> Option<&Name> {
        let named = |host: &str| self.names.iter().find(|name| name.host.eq_ignore_ascii_case(host));
        named(host).or_else(|| named(without_port(host)))
    }

    fn is_ours(&self, host: &str) -> bool {
        if self.name(host).is_some() {
            return true;
        }
        let name = without_port(host);
        match name.parse::<IpAddr>() {
            Ok(address) => {
                let address = address.to_canonical();
                (self.loopback && address.is_loopback()) || self.address == Some(address)
            }
            Err(_) => self.loopback && name.eq_ignore_ascii_case("localhost"),
        }
    }

    /// Whether an origin is the origin of this page, which was requested under this host.
    fn is_origin(&self, origin: &str, host: &str) -> bool {
        let of = |scheme: &str| origin.strip_prefix(scheme).is_some_and(|rest| rest.eq_ignore_ascii_case(host));
        let by_tls = self.tls || self.name(host).is_some_and(|name| name.https);
        of("https://") || (!by_tls && of("http://"))
    }
}

/// The name or address of a host, without its port and without the brackets of IPv6.
fn without_port(host: &str) -> &str {
    if let Some(rest) = host.strip_prefix('[') {
        // Only a port may follow the bracket: `[::1].example` could be a name that somebody registered.
        return match rest.split_once(']') {
            Some((address, port)) if port.is_empty() || host.parse::<SocketAddr>().is_ok() => address,
            _ => host,
        };
    }
    match host.split_once(':') {
        Some((name, port)) if port.parse::<u16>().is_ok() => name,
        _ => host,
    }
}

/// The value of a header that occurs exactly once.
fn one<'h>(headers: &'h HeaderMap, name: &str) -> Option<&'h str> {
    let mut values = headers.get_all(name).iter();
    let value = values.next()?.to_str().ok()?;
    values.next().is_none().then_some(value)
}

#[cfg(test)]
mod tests {
    use super::*;
    use hyper::header::{HeaderName, HeaderValue};

    fn hosts() -> Hosts {
        Hosts {
            loopback: true,
            address: Some("192.0.2.1".parse().unwrap()),
            names: ["vpn.example:8443", "hub", "https://proxied.example"].map(|name| Name::parse(name).unwrap()).into(),
            tls: false,
        }
    }

    fn check(hosts: &Hosts, method: Method, headers: &[(&'static str, &str)]) -> Result<(), Refusal> {
        let headers =
            headers.iter().map(|(name, value)| (HeaderName::from_static(name), HeaderValue::from_str(value).unwrap()));
        // `from_iter` would keep only the last of several.
        let mut map = HeaderMap::new();
        for (name, value) in headers {
            map.append(name, value);
        }
        hosts.check(&method, &map)
    }

    #[test]
    fn only_hosts_under_which_the_page_is_served() {
        for host in [
            "127.0.0.1:80",
            "127.9.9.9",
            "[::1]:80",
            "[::1]",
            "LocalHost:1",
            "192.0.2.1:9",
            "vpn.example:8443",
            "HUB",
            "hub:1",
            "[::ffff:127.0.0.1]:1",
            "proxied.example",
        ] {
            assert_eq!(check(&hosts(), Method::GET, &[("host", host)]), Ok(()), "{host}");
        }
        for host in [
            "evil.example",
            "127.0.0.1.evil.example",
            "[::1].evil.example",
            "localhost.evil.example",
            "vpn.example:1",
            "192.0.2.2",
            "",
            "localhost:evil",
        ] {
            assert_eq!(check(&hosts(), Method::GET, &[("host", host)]), Err(Refusal::Host), "{host}");
        }
        assert_eq!(check(&hosts(), Method::GET, &[]), Err(Refusal::Host));
        assert_eq!(check(&hosts(), Method::GET, &[("host", "hub"), ("host", "hub")]), Err(Refusal::Host));
        let public = Hosts { loopback: false, ..hosts() };
        assert_eq!(check(&public, Method::GET, &[("host", "localhost")]), Err(Refusal::Host));
    }

    #[test]
    fn an_act_comes_from_a_page_of_this_server() {
        let post = |headers: &[(&'static str, &str)]| {
            check(&hosts(), Method::POST, &[&[("host", "127.0.0.1:80")], headers].concat())
        };
        assert_eq!(post(&[("origin", "http://127.0.0.1:80")]), Ok(()));
        assert_eq!(post(&[("origin", "https://127.0.0.1:80"), ("sec-fetch-site", "same-origin")]), Ok(()));
        assert_eq!(post(&[("sec-fetch-site", "same-origin")]), Ok(()));
        for headers in [
            &[][..],
            &[("origin", "null")],
            &[("origin", "http://evil.example")],
            &[("origin", "http://127.0.0.1:81")],
            &[("origin", "http://127.0.0.1:80.evil.example")],
            &[("origin", "http://127.0.0.1:80"), ("sec-fetch-site", "cross-site")],
            &[("origin", "http://127.0.0.1:80"), ("origin", "http://evil.example")],
            &[("sec-fetch-site", "same-site")],
            &[("sec-fetch-site", "none")],
        ] {
            assert_eq!(post(headers), Err(Refusal::Origin), "{headers:?}");
        }
        let tls = Hosts { tls: true, ..hosts() };
        let host = ("host", "hub");
        assert_eq!(check(&tls, Method::POST, &[host, ("origin", "https://hub")]), Ok(()));
        assert_eq!(check(&tls, Method::POST, &[host, ("origin", "http://hub")]), Err(Refusal::Origin));
    }

    #[test]
    fn a_proxy_with_tls_in_front() {
        let host = ("host", "proxied.example");
        let post = |headers: &[(&'static str, &str)]| check(&hosts(), Method::POST, headers);
        assert_eq!(post(&[host, ("origin", "https://proxied.example")]), Ok(()));
        assert_eq!(post(&[host, ("origin", "http://proxied.example")]), Err(Refusal::Origin));
        assert_eq!(post(&[host, ("origin", "https://proxied.example:444")]), Err(Refusal::Origin));
        // A proxy that uses its own address in requests.
        assert_eq!(post(&[("host", "127.0.0.1:80"), ("origin", "https://proxied.example")]), Err(Refusal::Origin));
        let secure = |host: &str| {
            let mut headers = HeaderMap::new();
            headers.append(HOST, HeaderValue::from_str(host).unwrap());
            hosts().is_secure(&headers)
        };
        assert!(secure("proxied.example") && secure("PROXIED.example:443"));
        assert!(!secure("hub") && !secure("127.0.0.1:80") && !secure("proxied.example.evil.example"));
        for wrong in ["", "https://", "http://x", "https://x/", "https://x/path", "x y", "https://https://x", "é"] {
            assert_eq!(Name::parse(wrong), None, "{wrong}");
        }
    }

    #[test]
    fn another_site_can_lead_to_a_page_and_load_nothing() {
        let get =
            |headers: &[(&'static str, &str)]| check(&hosts(), Method::GET, &[&[("host", "hub")], headers].concat());
        assert_eq!(get(&[("sec-fetch-site", "cross-site"), ("sec-fetch-mode", "navigate")]), Ok(()));
        assert_eq!(get(&[("sec-fetch-site", "none")]), Ok(()));
        for site in ["cross-site", "same-site"] {
            for mode in ["no-cors", "cors", "websocket"] {
                assert_eq!(
                    get(&[("sec-fetch-site", site), ("sec-fetch-mode", mode)]),
                    Err(Refusal::Origin),
                    "{site} {mode}"
                );
            }
        }
    }
}
