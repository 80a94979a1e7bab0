//! One HTTP request, bounded in time and length, with its faults sorted by what can be done about them.

use std::error::Error;
use std::sync::OnceLock;

use chrono::{DateTime, Utc};
use reqwest::redirect::Policy;
use reqwest::{Client, Response, StatusCode, Url, header};
use serde_json::Value;

use super::error::shortened;
use super::{CarbonSettings, ProviderError};
use crate::units::Seconds;

/// Error bodies are read up to here; longer ones are cut, not refused.
const MAX_ERROR_BYTES: u64 = 64 << 10;

/// A client for one API. Certificates and connection pool are loaded with the first request.
#[derive(Debug)]
pub(super) struct Http {
    connect_timeout: Seconds,
    timeout: Seconds,
    max_body_bytes: u64,
    client: OnceLock<Client>,
}

impl Http {
    pub(super) fn new(settings: &CarbonSettings) -> Self {
        Self {
            connect_timeout: settings.connect_timeout_s,
            timeout: settings.timeout_s,
            max_body_bytes: settings.max_body_bytes,
            client: OnceLock::new(),
        }
    }

    /// The JSON body of a successful answer. `now` gives a meaning to a `Retry-After` that is a date.
    ///
    /// # Errors
    /// Every [`ProviderError`] but `Unreadable` and `Empty`; the latter only for a body without a byte.
    pub(super) async fn get_json(&self, url: &str, now: DateTime<Utc>) -> Result<Value, ProviderError> {
        let malformed = |what: String| ProviderError::Malformed { what, at: "the answer".to_owned() };
        let url = Url::parse(url).map_err(|e| malformed(format!("{e} in the address; check base_url")))?;
        let host = host_of(&url);
        let broken = |e: reqwest::Error| self.broken(&host, &e);
        let request = self.client(&url)?.get(url.clone()).header(header::ACCEPT, "application/json");
        let mut response = request.send().await.map_err(broken)?;
        if !response.status().is_success() {
            return Err(self.refusal(response, now).await);
        }
        let mut body = Vec::new();
        let too_large = || ProviderError::TooLarge { limit_bytes: self.max_body_bytes };
        if response.content_length().is_some_and(|length| length > self.max_body_bytes) {
            return Err(too_large());
        }
        while let Some(chunk) = response.chunk().await.map_err(broken)? {
            body.extend_from_slice(&chunk);
            if body.len() as u64 > self.max_body_bytes {
                return Err(too_large());
            }
        }
        if body.iter().all(u8::is_ascii_whitespace) {
            return Err(ProviderError::Empty { what: "the answer has no content".to_owned() });
        }
        serde_json::from_slice(&body).map_err(|e| {
            let begins = shortened(&String::from_utf8_lossy(&body[..body.len().min(60)]));
            malformed(format!("not JSON ({e}); it begins with {begins:?}. Check that base_url is the API's address"))
        })
    }

    /// Built late: certificates take memory that a daemon with a file as source need not pay.
    fn client(&self, url: &Url) -> Result<&Client, ProviderError> {
        if let Some(client) = self.client.get() {
            return Ok(client);
        }
        // Fails only where somebody installed one before, which is just as well.
        let _ = rustls::crypto::ring::default_provider().install_default();
        let mut builder = Client::builder()
            .user_agent(concat!("wattune/", env!("CARGO_PKG_VERSION")))
            .connect_timeout(self.connect_timeout.to_std())
            .timeout(self.timeout.to_std())
            .pool_max_idle_per_host(1)
            .redirect(Policy::custom(|attempt| {
                let origin = attempt.previous().first().map(Url::origin);
                let elsewhere = origin.is_some_and(|origin| origin != attempt.url().origin());
                if elsewhere || attempt.previous().len() > 3 { attempt.stop() } else { attempt.follow() }
            }));
        if url.scheme() == "http" {
            // No certificate is looked at, so none need be installed on the machine.
            builder = builder.tls_certs_only([]);
        }
        let client = builder.build().map_err(|e| ProviderError::Unreachable {
            host: host_of(url),
            why: format!("the client cannot be set up: {}; are CA certificates installed?", innermost(&e)),
        })?;
        Ok(self.client.get_or_init(|| client))
    }

    fn broken(&self, host: &str, error: &reqwest::Error) -> ProviderError {
        let host = host.to_owned();
        if error.is_timeout() {
            return ProviderError::TimedOut { host, after: self.timeout };
        }
        ProviderError::Unreachable { host, why: innermost(error) }
    }

    async fn refusal(&self, mut response: Response, now: DateTime<Utc>) -> ProviderError {
        let status = response.status();
        let retry_after = retry_after(&response, now);
        if status.is_redirection() {
            let to = response.headers().get(header::LOCATION).map(|to| String::from_utf8_lossy(to.as_bytes()));
            let to = to.map(|to| shortened(to.split(['?', '#']).next().unwrap_or_default())).unwrap_or_default();
            let message = format!("redirects to another place, which is not followed: {to}");
            return ProviderError::Unexpected { status: status.as_u16(), message };
        }
        let mut body = Vec::new();
        while let Ok(Some(chunk)) = response.chunk().await {
            body.extend_from_slice(&chunk);
            if body.len() as u64 > MAX_ERROR_BYTES {
                break;
            }
        }
        let (status_code, message) = (status.as_u16(), said(&body));
        match status {
            StatusCode::UNAUTHORIZED | StatusCode::FORBIDDEN => ProviderError::Refused { status: status_code, message },
            StatusCode::TOO_MANY_REQUESTS => ProviderError::RateLimited { retry_after },
            StatusCode::SERVICE_UNAVAILABLE if retry_after.is_some() => ProviderError::RateLimited { retry_after },
            _ if status.is_server_error() => ProviderError::ServerError { status: status_code, message },
            _ => ProviderError::Unexpected { status: status_code, message },
        }
    }
}

/// Seconds or an HTTP date, both of which the header may hold.
fn retry_after(response: &Response, now: DateTime<Utc>) -> Option<Seconds> {
    let text = response.headers().get(header::RETRY_AFTER)?.to_str().ok()?.trim();
    let seconds = match text.parse::<f64>() {
        Ok(seconds) => Seconds::try_new(seconds)?,
        Err(_) => Seconds::from_delta(DateTime::parse_from_rfc2822(text).ok()?.to_utc() - now),
    };
    Some(seconds.max(Seconds::ZERO).min(Seconds::new(86_400.0)))
}

/// The message in an error body, which may be JSON of several shapes, text or a page.
fn said(body: &[u8]) -> String {
    let text = String::from_utf8_lossy(body);
    if text.trim().is_empty() {
        return "no message".to_owned();
    }
    if let Ok(json) = serde_json::from_slice::<Value>(body) {
        let fields = ["/error/message", "/message", "/detail", "/title", "/error"];
        if let Some(message) = fields.iter().find_map(|field| json.pointer(field)?.as_str()) {
            return shortened(message);
        }
    }
    if text.trim_start().starts_with('<') { "an HTML page".to_owned() } else { shortened(&text) }
}

fn host_of(url: &Url) -> String {
    let host = url.host_str().unwrap_or("the host");
    url.port().map_or_else(|| host.to_owned(), |port| format!("{host}:{port}"))
}

/// The last of the causes: the outer ones repeat the address, which may hold a key.
fn innermost(error: &dyn Error) -> String {
    let mut cause = error;
    while let Some(source) = cause.source() {
        cause = source;
    }
    shortened(&cause.to_string())
}

#[cfg(test)]
mod tests {
    use wiremock::matchers::{header as has_header, path};
    use wiremock::{Mock, MockServer, ResponseTemplate};

    use super::*;

    fn http() -> Http {
        Http::new(&CarbonSettings { timeout_s: Seconds::new(0.5), max_body_bytes: 4096, ..CarbonSettings::default() })
    }

    async fn answered(template: ResponseTemplate) -> Result<Value, ProviderError> {
        let server = MockServer::start().await;
        Mock::given(path("/a")).respond_with(template).mount(&server).await;
        let now = DateTime::parse_from_rfc3339("2025-10-22T23:30:00Z").expect("a time").to_utc();
        http().get_json(&format!("{}/a", server.uri()), now).await
    }

    #[tokio::test]
    async fn statuses_are_sorted_by_what_can_be_done() {
        let status = |code| ResponseTemplate::new(code).set_body_string("<html>sorry</html>");
        let page = "an HTML page".to_owned();
        assert_eq!(answered(status(401)).await, Err(ProviderError::Refused { status: 401, message: page.clone() }));
        assert_eq!(answered(status(502)).await, Err(ProviderError::ServerError { status: 502, message: page.clone() }));
        assert_eq!(answered(status(404)).await, Err(ProviderError::Unexpected { status: 404, message: page }));
        let wait = |text: &str| answered(status(429).insert_header("retry-after", text));
        let limited = |s: f64| Err(ProviderError::RateLimited { retry_after: Some(Seconds::new(s)) });
        assert_eq!(wait("120").await, limited(120.0));
        assert_eq!(wait("Wed, 22 Oct 2025 23:31:00 GMT").await, limited(60.0));
        assert_eq!(wait("Wed, 22 Oct 2025 23:29:00 GMT").await, limited(0.0));
        assert_eq!(wait("1e300").await, limited(86_400.0));
        assert_eq!(wait("soon").await, Err(ProviderError::RateLimited { retry_after: None }));
        let unavailable = status(503).insert_header("retry-after", "9");
        assert_eq!(answered(unavailable).await, limited(9.0));
    }

    #[tokio::test]
    async fn messages_of_error_bodies_are_found() {
        let body = |text: &str| ResponseTemplate::new(400).set_body_string(text);
        for (text, message) in [
            (
                r#"{"error":{"code":"400 Bad Request","message":"Please enter a valid start datetime"}}"#,
                "Please enter a valid start datetime",
            ),
            (r#"{"detail":"no such\n zone"}"#, "no such zone"),
            ("plain\u{1b}[31m text", "plain [31m text"),
            ("", "no message"),
        ] {
            let expected = ProviderError::Unexpected { status: 400, message: message.to_owned() };
            assert_eq!(answered(body(text)).await, Err(expected), "{text}");
        }
    }

    #[tokio::test]
    async fn bodies_are_bounded_and_must_be_json() {
        let ok = |text: String| ResponseTemplate::new(200).set_body_string(text);
        let long = answered(ok(format!("\"{}\"", "x".repeat(5000)))).await;
        assert_eq!(long, Err(ProviderError::TooLarge { limit_bytes: 4096 }));
        assert!(matches!(answered(ok(" \n".to_owned())).await, Err(ProviderError::Empty { .. })));
        let cut = answered(ok(r#"{"data":[{"from":"#.to_owned())).await.expect_err("truncated").to_string();
        assert!(cut.contains("not JSON") && cut.contains("base_url"), "{cut}");
    }

    #[tokio::test]
    async fn redirects_stay_at_home() {
        let elsewhere = ResponseTemplate::new(302).insert_header("location", "http://example.invalid/b?key=secret");
        let error = answered(elsewhere).await.expect_err("not followed").to_string();
        assert!(error.contains("302") && error.contains("example.invalid/b") && !error.contains("secret"), "{error}");

        let server = MockServer::start().await;
        let home = ResponseTemplate::new(301).insert_header("location", "/b");
        Mock::given(path("/a")).respond_with(home).mount(&server).await;
        let agent = has_header("user-agent", concat!("wattune/", env!("CARGO_PKG_VERSION")));
        Mock::given(path("/b"))
            .and(agent)
            .respond_with(ResponseTemplate::new(200).set_body_json(1))
            .mount(&server)
            .await;
        let answer = http().get_json(&format!("{}/a", server.uri()), DateTime::UNIX_EPOCH).await;
        assert_eq!(answer, Ok(Value::from(1)));
    }

    #[tokio::test]
    async fn slow_and_absent_servers_are_told_apart() {
        let slow = answered(ResponseTemplate::new(200).set_delay(std::time::Duration::from_secs(5))).await;
        assert!(matches!(slow, Err(ProviderError::TimedOut { .. })), "{slow:?}");

        // Bound and dropped: nobody listens there.
        let port = std::net::TcpListener::bind("127.0.0.1:0").and_then(|l| l.local_addr()).expect("a free port").port();
        let url = format!("http://127.0.0.1:{port}/a?key=secret");
        let absent = http().get_json(&url, DateTime::UNIX_EPOCH).await.expect_err("nobody there");
        assert!(matches!(absent, ProviderError::Unreachable { .. }), "{absent:?}");
        assert!(absent.to_string().contains("refused") && !absent.to_string().contains("secret"), "{absent}");
    }
}
