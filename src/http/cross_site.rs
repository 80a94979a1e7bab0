//! Protects the API from web pages other than the daemon's own.
//!
//! The API has no passwords on loopback, so web pages of other origins must not reach it: neither by a form or a
//! `fetch` (checked by Origin, Sec-Fetch-Site and media type) nor by a host name of their own that resolves to
//! 127.0.0.1 (checked by Host). The daemon never sends a CORS header.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};

use axum::extract::Request;
use axum::http::uri::Authority;
use axum::http::{HeaderMap, Method, StatusCode, Uri, header};

use super::bso;
use super::connection::Connection;
use super::error::Problem;
use super::peer::Transport;

/// The rules for requests to one listener.
#[derive(Clone, Copy, Debug)]
pub(super) struct CrossSiteGuard {
    check_host: bool,
    tcp: Option<SocketAddr>,
}

/// The reason why a request is refused.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub(super) enum Refusal {
    /// The Host header, or an absolute request target, names another host.
    #[error(
        "the request names host {0:?}; use localhost, 127.0.0.1 or [::1], so that no web page can \
         reach the daemon through a name of its own"
    )]
    Host(String),
    /// A page of another origin made the request.
    #[error("the request comes from a page of {0:?}; only wattune's own page may use this API from a browser")]
    Origin(String),
    /// The browser reports that another site made the request.
    #[error("the request was made by another site (Sec-Fetch-Site: {0}); only wattune's own page may do that")]
    CrossSite(&'static str),
    /// A page embeds the event stream as an image, a script or a frame.
    #[error(
        "events can be read only by programs and wattune's own page: send Accept: text/event-stream, by a fetch or an EventSource"
    )]
    NoListener,
    /// The body's media type is not JSON.
    #[error("the body's content type is {0}; it must be application/json")]
    MediaType(String),
}

impl From<Refusal> for Problem {
    fn from(refusal: Refusal) -> Self {
        let status = match refusal {
            Refusal::Host(_) | Refusal::Origin(_) | Refusal::CrossSite(_) => StatusCode::FORBIDDEN,
            Refusal::NoListener => StatusCode::NOT_ACCEPTABLE,
            Refusal::MediaType(_) => StatusCode::UNSUPPORTED_MEDIA_TYPE,
        };
        Self::new(status, refusal.to_string())
    }
}

impl CrossSiteGuard {
    /// Creates the guard of a TCP listener on `bound`.
    pub(super) const fn tcp(bound: SocketAddr) -> Self {
        Self { check_host: true, tcp: Some(bound) }
    }

    /// Creates the guard of a Unix socket, which accepts any host. `tcp` is the same daemon's TCP address, whose page
    /// may use this socket, too.
    pub(super) const fn unix(tcp: Option<SocketAddr>) -> Self {
        Self { check_host: false, tcp }
    }

    /// Returns the guard of a connection from another machine, which may know the daemon by any host name. Every request of
    /// such a connection needs a token, which no other web page has.
    const fn remote(self) -> Self {
        Self { check_host: false, ..self }
    }

    /// Checks a request that came over `connection`.
    ///
    /// # Errors
    /// The first reason to refuse it.
    pub(super) fn check_from(&self, connection: &Connection, request: &Request) -> Result<(), Refusal> {
        let guard = if matches!(connection.transport(), Transport::Remote { .. }) { self.remote() } else { *self };
        guard.check(request.method(), request.uri(), request.headers())
    }

    /// Checks a request. The error is the first reason to refuse it.
    fn check(&self, method: &Method, uri: &Uri, headers: &HeaderMap) -> Result<(), Refusal> {
        if self.check_host {
            self.check_host(uri, headers)?;
        }
        for origin in headers.get_all(header::ORIGIN) {
            let text = String::from_utf8_lossy(origin.as_bytes()).into_owned();
            if !self.is_own_origin(&text) {
                return Err(Refusal::Origin(text));
            }
        }
        let says =
            |name: &str, word: &[u8]| headers.get_all(name).iter().any(|v| v.as_bytes().eq_ignore_ascii_case(word));
        // Following a link is safe: the page opens as a document of its own, which the other site cannot read.
        // Of Zeus's paths, one begins a trial on GET.
        let is_of_zeus = bso::owns(uri.path());
        let follows_a_link = !is_of_zeus
            && *method == Method::GET
            && says("sec-fetch-mode", b"navigate")
            && says("sec-fetch-dest", b"document");
        // A site ignores ports, so a page of another program on this machine counts as the same site.
        let other = ["cross-site", "same-site"].into_iter().find(|site| says("sec-fetch-site", site.as_bytes()));
        if let Some(site) = other.filter(|_| !follows_a_link) {
            return Err(Refusal::CrossSite(site));
        }
        // Zeus's clients send no media type; their routes accept any, and refuse what is not JSON themselves.
        if changes_something(method) && has_body(headers) && !is_of_zeus { check_media_type(headers) } else { Ok(()) }
    }

    fn check_host(&self, uri: &Uri, headers: &HeaderMap) -> Result<(), Refusal> {
        let mut hosts = headers.get_all(header::HOST).iter();
        let host = hosts.next().map(|host| String::from_utf8_lossy(host.as_bytes())).unwrap_or_default();
        // Most clients send the address as it is, which takes less time to compare than to take apart.
        let is_address = |text: &str| text.parse().is_ok_and(|address: SocketAddr| self.tcp == Some(address));
        let known = |text: &str| is_address(text) || parse(text).is_some_and(|(name, _)| self.is_own_host(&name));
        if !known(&host) || hosts.next().is_some() {
            return Err(Refusal::Host(host.into_owned()));
        }
        // An absolute request target takes precedence over Host (RFC 9112 §3.2.2).
        match uri.authority() {
            Some(authority) if !known(authority.as_str()) => Err(Refusal::Host(authority.to_string())),
            _ => Ok(()),
        }
    }

    fn is_own_host(&self, host: &HostName) -> bool {
        match host {
            HostName::Name(name) => name.eq_ignore_ascii_case("localhost"),
            HostName::Address(ip) => {
                *ip == IpAddr::V4(Ipv4Addr::LOCALHOST)
                    || *ip == IpAddr::V6(Ipv6Addr::LOCALHOST)
                    || self.tcp.is_some_and(|bound| bound.ip() == *ip)
            }
        }
    }

    fn is_own_origin(&self, origin: &str) -> bool {
        let Some(own) = self.tcp else { return false };
        let authority = origin.strip_prefix("http://").and_then(parse);
        authority.is_some_and(|(host, port)| self.is_own_host(&host) && port.unwrap_or(80) == own.port())
    }
}

/// Checks that a request may receive events. A page that shows the events as an image or a frame, or opens them as a
/// link, would hold a connection for as long as it is shown, so only programs and `fetch` or `EventSource` are
/// accepted.
pub(super) fn check_listener(headers: &HeaderMap) -> Result<(), Refusal> {
    let fetched = headers.get("sec-fetch-dest").is_none_or(|dest| dest.as_bytes().eq_ignore_ascii_case(b"empty"));
    let mut accepted =
        headers.get_all(header::ACCEPT).iter().map(|v| String::from_utf8_lossy(v.as_bytes()).to_lowercase());
    let takes = |text: &str| text.trim() == "*/*" || text.contains("text/event-stream");
    let wanted = headers.get(header::ACCEPT).is_none() || accepted.any(|text| takes(&text));
    if fetched && wanted { Ok(()) } else { Err(Refusal::NoListener) }
}

enum HostName {
    Name(String),
    Address(IpAddr),
}

/// Parses `host`, `host:port`, `[v6]` or `[v6]:port`; `None` for anything else.
fn parse(text: &str) -> Option<(HostName, Option<u16>)> {
    let authority: Authority = text.parse().ok()?;
    let (host, port) = (authority.host(), authority.port_u16());
    // User names and invalid ports are refused.
    let rest = text.strip_prefix(host)?;
    if !(rest.is_empty() || rest.starts_with(':') && port.is_some()) {
        return None;
    }
    let name = match host.strip_prefix('[') {
        Some(v6) => HostName::Address(IpAddr::V6(v6.strip_suffix(']')?.parse().ok()?)),
        None => match host.parse() {
            Ok(v4) => HostName::Address(IpAddr::V4(v4)),
            Err(_) => HostName::Name(host.to_owned()),
        },
    };
    Some((name, port))
}

fn changes_something(method: &Method) -> bool {
    !matches!(*method, Method::GET | Method::HEAD | Method::OPTIONS | Method::TRACE)
}

fn has_body(headers: &HeaderMap) -> bool {
    headers.contains_key(header::TRANSFER_ENCODING)
        || headers.get(header::CONTENT_LENGTH).is_some_and(|length| length.as_bytes() != b"0")
}

fn check_media_type(headers: &HeaderMap) -> Result<(), Refusal> {
    let mut types = headers.get_all(header::CONTENT_TYPE).iter();
    let Some(given) = types.next() else { return Err(Refusal::MediaType("missing".into())) };
    let text = String::from_utf8_lossy(given.as_bytes()).into_owned();
    let essence = text.split(';').next().unwrap_or_default().trim();
    if essence.eq_ignore_ascii_case("application/json") && types.next().is_none() {
        Ok(())
    } else {
        Err(Refusal::MediaType(format!("{text:?}")))
    }
}

#[cfg(test)]
mod tests {
    use axum::http::{HeaderName, HeaderValue};

    use super::*;

    fn headers(pairs: &[(&str, &str)]) -> HeaderMap {
        let mut headers = HeaderMap::new();
        for (name, value) in pairs {
            let name: HeaderName = name.parse().expect("header name");
            headers.append(name, HeaderValue::from_str(value).expect("header value"));
        }
        headers
    }

    fn decide(guard: CrossSiteGuard, method: &str, uri: &str, pairs: &[(&str, &str)]) -> Result<(), Refusal> {
        let method = method.parse().expect("method");
        guard.check(&method, &uri.parse().expect("URI"), &headers(pairs))
    }

    fn tcp(address: &str) -> CrossSiteGuard {
        CrossSiteGuard::tcp(address.parse().expect("address"))
    }

    #[test]
    fn only_loopback_hosts_are_answered_on_tcp() {
        let own = ["localhost", "LocalHost:4938", "127.0.0.1", "127.0.0.1:9", "[::1]", "[::1]:4938", "localhost:80"];
        for host in own {
            assert_eq!(decide(tcp("127.0.0.1:4938"), "GET", "/", &[("host", host)]), Ok(()), "{host}");
        }
        let others = [
            "",
            "evil.example",
            "localhost.evil.example:4938",
            "127.0.0.1.evil.example",
            "127.0.0.2",
            "10.0.0.1:4938",
            "evil.example@localhost",
            "user@127.0.0.1:4938",
            "localhost:",
            "localhost:99999",
            "[::1].evil.example",
            "[::1",
            "::1",
            "[::ffff:127.0.0.1]",
            "localhost localhost",
            "localhost,evil.example",
            "0.0.0.0:4938",
        ];
        for host in others {
            let refused = decide(tcp("127.0.0.1:4938"), "GET", "/", &[("host", host)]);
            assert_eq!(refused, Err(Refusal::Host(host.into())), "{host}");
        }
        assert_eq!(decide(tcp("127.0.0.2:80"), "GET", "/", &[("host", "127.0.0.2:80")]), Ok(()));
        assert_eq!(decide(tcp("127.0.0.1:80"), "GET", "/", &[]), Err(Refusal::Host(String::new())));
        let twice = [("host", "localhost"), ("host", "evil.example")];
        assert_eq!(decide(tcp("127.0.0.1:80"), "GET", "/", &twice), Err(Refusal::Host("localhost".into())));
        let absolute = decide(tcp("127.0.0.1:80"), "GET", "http://evil.example/v1/status", &[("host", "localhost")]);
        assert_eq!(absolute, Err(Refusal::Host("evil.example".into())));
    }

    #[test]
    fn only_the_daemons_page_uses_the_api_from_a_browser() {
        let table = [
            ("http://localhost:4938", true),
            ("http://127.0.0.1:4938", true),
            ("http://[::1]:4938", true),
            ("http://localhost", false),
            ("http://localhost:3000", false),
            ("https://localhost:4938", false),
            ("http://evil.example:4938", false),
            ("http://localhost:4938.evil.example", false),
            ("http://localhost:4938/", false),
            ("null", false),
            ("", false),
        ];
        for (origin, allowed) in table {
            let pairs = [("host", "localhost:4938"), ("origin", origin)];
            let decision = decide(tcp("127.0.0.1:4938"), "GET", "/v1/status", &pairs);
            let expected = if allowed { Ok(()) } else { Err(Refusal::Origin(origin.into())) };
            assert_eq!(decision, expected, "{origin}");
            let through_socket = decide(CrossSiteGuard::unix(None), "GET", "/v1/status", &pairs);
            assert_eq!(through_socket, Err(Refusal::Origin(origin.into())), "{origin}");
        }
        for (site, allowed) in [("cross-site", false), ("same-origin", true), ("same-site", false), ("none", true)] {
            let pairs = [("host", "localhost"), ("sec-fetch-site", site)];
            let decision = decide(tcp("127.0.0.1:4938"), "GET", "/", &pairs);
            assert_eq!(decision, if allowed { Ok(()) } else { Err(Refusal::CrossSite(site)) }, "{site}");
        }
    }

    #[test]
    fn a_link_on_another_site_opens_only_the_page() {
        let table = [
            ("GET", "navigate", "document", true),
            ("GET", "navigate", "iframe", false),
            ("GET", "no-cors", "document", false),
            ("GET", "cors", "empty", false),
            ("POST", "navigate", "document", false),
            ("DELETE", "navigate", "document", false),
        ];
        for (method, mode, dest, allowed) in table {
            for site in ["cross-site", "same-site"] {
                let pairs = [
                    ("host", "localhost"),
                    ("sec-fetch-site", site),
                    ("sec-fetch-mode", mode),
                    ("sec-fetch-dest", dest),
                ];
                let decision = decide(tcp("127.0.0.1:4938"), method, "/", &pairs);
                let expected = if allowed { Ok(()) } else { Err(Refusal::CrossSite(site)) };
                assert_eq!(decision, expected, "{method} {mode} {dest} {site}");
            }
        }
    }

    #[test]
    fn requests_that_a_form_can_send_are_refused() {
        let table = [
            ("POST", "5", Some("application/json"), true),
            ("POST", "5", Some("Application/JSON; charset=utf-8"), true),
            ("POST", "5", Some("text/plain"), false),
            ("POST", "5", Some("application/x-www-form-urlencoded"), false),
            ("POST", "5", Some("application/json-evil"), false),
            ("POST", "5", None, false),
            ("PUT", "5", None, false),
            ("PATCH", "5", Some("text/plain"), false),
            ("DELETE", "5", Some("text/plain"), false),
            ("DELETE", "0", None, true),
            ("GET", "5", Some("text/plain"), true),
        ];
        for (method, length, media_type, allowed) in table {
            let mut pairs = vec![("host", "localhost"), ("content-length", length)];
            pairs.extend(media_type.map(|t| ("content-type", t)));
            let decision = decide(tcp("127.0.0.1:4938"), method, "/v1/jobs", &pairs);
            assert_eq!(decision.is_ok(), allowed, "{method} {media_type:?}: {decision:?}");
            assert_eq!(decide(CrossSiteGuard::unix(None), method, "/v1/jobs", &pairs).is_ok(), allowed);
        }
        let chunked = [("host", "localhost"), ("transfer-encoding", "chunked")];
        let refused = decide(tcp("127.0.0.1:4938"), "POST", "/v1/jobs", &chunked);
        assert_eq!(refused, Err(Refusal::MediaType("missing".into())));
    }

    #[test]
    fn events_are_refused_to_images_and_links() {
        let table: [(&[(&str, &str)], bool); 9] = [
            (&[], true),
            (&[("accept", "*/*")], true),
            (&[("accept", "text/event-stream")], true),
            (&[("accept", "text/event-stream"), ("sec-fetch-dest", "empty")], true),
            (&[("accept", "application/json, text/event-stream;q=0.9")], true),
            (&[("accept", "image/avif,image/webp,*/*;q=0.8")], false),
            (&[("accept", "text/html,application/xhtml+xml,*/*;q=0.8")], false),
            (&[("accept", "*/*"), ("sec-fetch-dest", "script")], false),
            (&[("accept", "text/event-stream"), ("sec-fetch-dest", "document")], false),
        ];
        for (pairs, allowed) in table {
            assert_eq!(check_listener(&headers(pairs)).is_ok(), allowed, "{pairs:?}");
        }
    }

    #[test]
    fn hosts_are_not_checked_on_the_socket() {
        for host in ["localhost", "wattune", "evil.example"] {
            assert_eq!(decide(CrossSiteGuard::unix(None), "GET", "/", &[("host", host)]), Ok(()));
        }
    }
}
