//! One HTTP request, bounded in time and length, with its faults sorted by what can be done about them.

use std::collections::VecDeque;
use std::error::Error;
use std::sync::{Arc, Mutex, OnceLock, PoisonError};

use chrono::{DateTime, TimeDelta, Utc};
use reqwest::header::{HeaderMap, HeaderName, HeaderValue};
use reqwest::redirect::Policy;
use reqwest::{Client, Response, StatusCode, Url, header};
use serde_json::Value;

use super::error::{USUAL_ADVICE, shortened};
use super::redact::Secrets;
use super::settings::Common;
use super::usage::Usage;
use super::{CarbonSettings, Headers, ProviderError};
use wattune_core::ledger::chain::Digest;
use wattune_core::units::Seconds;

/// Error bodies are read up to here; longer ones are cut, not refused.
const MAX_ERROR_BYTES: u64 = 64 << 10;

/// Answers that may be asked for again conditionally; the oldest goes.
const REMEMBERED: usize = 4;

/// Bodies of one answer whose digests are kept; the oldest goes.
const MOST_DIGESTS: usize = 16;

/// A redirection to the same host is followed, a round of them is not.
const MOST_REDIRECTS: u8 = 3;

/// Clocks further apart than this are worth a word.
const SKEW: TimeDelta = TimeDelta::minutes(2);

/// A client for one API. Certificates and connection pool are loaded with the first request.
#[derive(Debug)]
pub(super) struct Http {
    connect_timeout: Seconds,
    timeout: Seconds,
    max_body_bytes: u64,
    headers: Headers,
    secrets: Secrets,
    usage: Arc<Usage>,
    client: OnceLock<Client>,
    remembered: Mutex<Remembered>,
}

#[derive(Debug, Default)]
struct Remembered {
    answers: VecDeque<Known>,
    /// Of the bodies that were read since somebody asked for this last.
    digests: VecDeque<Digest>,
    /// By how much the other side's clock is ahead of ours, by its last answer.
    skew: Option<TimeDelta>,
}

/// An answer with what the server needs to say that it is still the same.
#[derive(Debug)]
struct Known {
    url: Url,
    validator: (HeaderName, HeaderValue),
    digest: Digest,
    /// As text: a tree may take a hundred times the room.
    body: Arc<str>,
}

impl Remembered {
    fn note(&mut self, digest: Option<Digest>) {
        self.digests.extend(digest);
        if self.digests.len() > MOST_DIGESTS {
            self.digests.pop_front();
        }
    }
}

impl Http {
    pub(super) fn new(settings: &CarbonSettings, source: Common<'_>, usage: Arc<Usage>) -> Self {
        Self {
            connect_timeout: source.connect_timeout.unwrap_or(settings.connect_timeout_s),
            timeout: source.timeout.unwrap_or(settings.timeout_s),
            max_body_bytes: settings.max_body_bytes,
            headers: source.headers.clone(),
            secrets: Secrets::default(),
            usage,
            client: OnceLock::new(),
            remembered: Mutex::default(),
        }
    }

    /// How often the source was asked.
    pub(super) fn usage(&self) -> &Usage {
        &self.usage
    }

    /// What was sent, and may be shown by no message.
    pub(super) fn secrets(&self) -> &Secrets {
        &self.secrets
    }

    /// The JSON body of a successful answer; the one from before where the server says that nothing changed. `now`
    /// counts the request, and gives a meaning to a `Retry-After` that is a date.
    ///
    /// # Errors
    /// Every [`ProviderError`] but `Unreadable`; `Empty` only for a body without a byte (as with status 204).
    pub(super) async fn get_json(
        &self,
        url: Url,
        headers: HeaderMap,
        now: DateTime<Utc>,
    ) -> Result<Value, ProviderError> {
        let malformed = |what: String| ProviderError::Malformed { what, at: "the answer".to_owned() };
        let host = host_of(&url);
        let broken = |e: reqwest::Error| self.broken(&host, &e);
        let known = self.known(&url);
        let sent = self.learn(&headers);
        let asking = self.ask(&url, &headers, known.as_ref(), now);
        let too_late = |_| ProviderError::TimedOut { host: host.clone(), after: self.timeout };
        let mut response = tokio::time::timeout(self.timeout.to_std(), asking).await.map_err(too_late)??;
        self.note_skew(&response, now);
        if let (StatusCode::NOT_MODIFIED, Some((_, _, body))) = (response.status(), known) {
            self.note_unchanged(&url);
            return serde_json::from_str(&body).map_err(|e| malformed(e.to_string()));
        }
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
        let mut json: Value = serde_json::from_slice(&body).map_err(|e| {
            let text = self.secrets.without(&String::from_utf8_lossy(&body));
            let begins = shortened(&text.chars().take(60).collect::<String>());
            malformed(format!("not JSON ({e}); it begins with {begins:?}. Check that base_url is the API's address"))
        })?;
        // Of this request alone: a login may give the same token again.
        hide(&mut json, &sent);
        self.remember(url, response.headers(), &json, Digest::of(&body));
        Ok(json)
    }

    /// Asks, also where the same host says that the answer is; each request counts, and the time is for all of them.
    async fn ask(
        &self,
        url: &Url,
        headers: &HeaderMap,
        known: Option<&(HeaderName, HeaderValue, Arc<str>)>,
        now: DateTime<Utc>,
    ) -> Result<Response, ProviderError> {
        let host = host_of(url);
        let client = self.client(url)?;
        let (mut to, mut redirects) = (url.clone(), 0);
        loop {
            let mut request = client.get(to.clone()).header(header::ACCEPT, "application/json");
            for (name, value) in self.headers.resolved() {
                request = request.header(name, value);
            }
            if let Some((name, value, _)) = known {
                request = request.header(name, value);
            }
            self.usage.take(now)?;
            let response = request.headers(headers.clone()).send().await.map_err(|e| self.broken(&host, &e))?;
            let next = redirect(&response, &to).filter(|next| next.origin() == url.origin());
            match next.filter(|_| redirects < MOST_REDIRECTS) {
                Some(next) => (to, redirects) = (next, redirects + 1),
                None => return Ok(response),
            }
        }
    }

    /// Remembers what is sent along with a request, and gives it.
    fn learn(&self, headers: &HeaderMap) -> Secrets {
        let sent = Secrets::default();
        let own = headers.values().map(|value| String::from_utf8_lossy(value.as_bytes()).into_owned());
        for value in self.headers.resolved().map(|(_, value)| value).chain(own) {
            sent.learn(&value);
            self.secrets.learn(&value);
        }
        sent
    }

    fn remembered(&self) -> std::sync::MutexGuard<'_, Remembered> {
        self.remembered.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn known(&self, url: &Url) -> Option<(HeaderName, HeaderValue, Arc<str>)> {
        let remembered = self.remembered();
        let known = remembered.answers.iter().find(|k| k.url == *url)?;
        Some((known.validator.0.clone(), known.validator.1.clone(), Arc::clone(&known.body)))
    }

    /// SHA-256 of the bodies that were read since this was asked last, logins left out.
    pub(super) fn take_digests(&self) -> Vec<Digest> {
        std::mem::take(&mut self.remembered().digests).into()
    }

    fn note_unchanged(&self, url: &Url) {
        let mut remembered = self.remembered();
        let digest = remembered.answers.iter().find(|known| known.url == *url).map(|known| known.digest);
        remembered.note(digest);
    }

    fn remember(&self, url: Url, headers: &HeaderMap, body: &Value, digest: Digest) {
        let by_tag = headers.get(header::ETAG).map(|tag| (header::IF_NONE_MATCH, tag.clone()));
        let by_time = || Some((header::IF_MODIFIED_SINCE, headers.get(header::LAST_MODIFIED)?.clone()));
        let mut remembered = self.remembered();
        // What a login answers says nothing of the grid.
        remembered.note((!url.path().ends_with("/login")).then_some(digest));
        remembered.answers.retain(|k| k.url != url);
        let Some(validator) = by_tag.or_else(by_time) else { return };
        if remembered.answers.len() >= REMEMBERED {
            remembered.answers.pop_front();
        }
        remembered.answers.push_back(Known { url, validator, digest, body: body.to_string().into() });
    }

    fn note_skew(&self, response: &Response, now: DateTime<Utc>) {
        let date = response.headers().get(header::DATE).and_then(|d| d.to_str().ok());
        let theirs = date.and_then(|d| DateTime::parse_from_rfc2822(d).ok());
        self.remembered().skew = theirs.map(|t| t.to_utc() - now);
    }

    /// A word about a clock that is off, this machine's most likely: slots would be taken at the wrong time.
    pub(super) fn skew_note(&self) -> Option<String> {
        let skew = self.remembered().skew.filter(|s| s.abs() > SKEW)?;
        let side = if skew > TimeDelta::zero() { "behind" } else { "ahead of" };
        Some(format!(
            "this machine's clock is {} min {side} the source's; check its time service",
            (skew.num_seconds().abs() + 30) / 60
        ))
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
            .redirect(Policy::none());
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
            let to = to.map(|to| self.secrets.without(to.split(['?', '#']).next().unwrap_or_default()));
            let to = shortened(&to.unwrap_or_default());
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
        let (status_code, message) = (status.as_u16(), said(&String::from_utf8_lossy(&body), &self.secrets));
        match status {
            StatusCode::UNAUTHORIZED | StatusCode::FORBIDDEN => {
                ProviderError::Refused { status: status_code, message, advice: USUAL_ADVICE.to_owned() }
            }
            StatusCode::TOO_MANY_REQUESTS => ProviderError::RateLimited { retry_after },
            StatusCode::SERVICE_UNAVAILABLE if retry_after.is_some() => ProviderError::RateLimited { retry_after },
            _ if status.is_server_error() => ProviderError::ServerError { status: status_code, message },
            _ => ProviderError::Unexpected { status: status_code, message },
        }
    }
}

/// Where a redirection leads.
fn redirect(response: &Response, from: &Url) -> Option<Url> {
    let status = response.status();
    let moved = status.is_redirection() && status != StatusCode::NOT_MODIFIED;
    let to = response.headers().get(header::LOCATION).filter(|_| moved)?;
    from.join(to.to_str().ok()?).ok()
}

/// Seconds or an HTTP date, both of which the header may hold.
fn retry_after(response: &Response, now: DateTime<Utc>) -> Option<Seconds> {
    patience(response.headers().get(header::RETRY_AFTER)?.to_str().ok()?, now)
}

fn patience(text: &str, now: DateTime<Utc>) -> Option<Seconds> {
    let text = text.trim();
    let seconds = match text.parse::<f64>() {
        Ok(seconds) => Seconds::try_new(seconds)?,
        Err(_) => Seconds::from_delta(DateTime::parse_from_rfc2822(text).ok()?.to_utc() - now),
    };
    Some(seconds.max(Seconds::ZERO).min(Seconds::new(86_400.0)))
}

/// What an error body that is a page for people says.
pub(super) const HTML: &str = "an HTML page";

/// The message in an error body, which may be JSON of several shapes, text or a page.
fn said(text: &str, secrets: &Secrets) -> String {
    if text.trim().is_empty() {
        return "no message".to_owned();
    }
    if let Ok(json) = serde_json::from_str::<Value>(text) {
        let fields = ["/error/message", "/message", "/msg", "/detail", "/detail/0/msg", "/title", "/error"];
        if let Some(message) = fields.iter().find_map(|field| json.pointer(field)?.as_str()) {
            return shortened(&secrets.without(message));
        }
    }
    if text.trim_start().starts_with('<') { HTML.to_owned() } else { shortened(&secrets.without(text)) }
}

/// Hides secrets in all texts of a body: what is odd about them may be quoted.
fn hide(json: &mut Value, secrets: &Secrets) {
    match json {
        Value::String(text) => *text = secrets.without_whole(text),
        Value::Array(items) => items.iter_mut().for_each(|item| hide(item, secrets)),
        Value::Object(members) => members.values_mut().for_each(|member| hide(member, secrets)),
        _ => {}
    }
}

/// Whatever a refusal holds, nothing that reads it may panic.
pub(super) fn read_any(body: &[u8], now: DateTime<Utc>) {
    let hidden = Secrets::default();
    hidden.learn("2026-08-22");
    let text = hidden.without(&String::from_utf8_lossy(body));
    if let Ok(mut tree) = serde_json::from_slice(body) {
        hide(&mut tree, &hidden);
    }
    let message = said(&text, &hidden);
    assert!(message.chars().count() <= 200, "messages are short");
    let _ = (patience(&text, now), super::time::parse_time(&text, true), super::time::parse_time(&text, false));
    for status in [401, 403] {
        let refused = ProviderError::Refused { status, message: message.clone(), advice: String::new() };
        super::electricity_maps::explain(refused.clone());
        super::watttime::explain(refused);
    }
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
        let settings =
            CarbonSettings { timeout_s: Seconds::new(0.5), max_body_bytes: 4096, ..CarbonSettings::default() };
        Http::new(&settings, settings.uk_carbon_intensity.common(), Usage::load(None, "test", 100))
    }

    fn now() -> DateTime<Utc> {
        DateTime::parse_from_rfc3339("2025-10-22T23:30:00Z").expect("a time").to_utc()
    }

    async fn get(http: &Http, server: &MockServer) -> Result<Value, ProviderError> {
        let url = Url::parse(&format!("{}/a", server.uri())).expect("an address");
        http.get_json(url, HeaderMap::new(), now()).await
    }

    async fn answered(template: ResponseTemplate) -> Result<Value, ProviderError> {
        let server = MockServer::start().await;
        Mock::given(path("/a")).respond_with(template).mount(&server).await;
        get(&http(), &server).await
    }

    #[tokio::test]
    async fn an_unchanged_answer_is_not_sent_again() {
        let server = MockServer::start().await;
        let first = ResponseTemplate::new(200).insert_header("etag", "\"1\"").set_body_string("[1]");
        let same = ResponseTemplate::new(304);
        Mock::given(has_header("if-none-match", "\"1\"")).respond_with(same).expect(2).mount(&server).await;
        Mock::given(path("/a")).respond_with(first).expect(1).mount(&server).await;
        let http = http();
        for _ in 0..3 {
            assert_eq!(get(&http, &server).await, Ok(serde_json::json!([1])));
        }
        assert_eq!(http.usage().requests(now()).last_hour, 3);
    }

    #[tokio::test]
    async fn a_clock_that_is_off_is_noticed_and_headers_are_sent() {
        let server = MockServer::start().await;
        let late =
            ResponseTemplate::new(200).insert_header("date", "Wed, 22 Oct 2025 23:40:00 GMT").set_body_string("1");
        Mock::given(has_header("x-blobr-key", "k")).respond_with(late).mount(&server).await;
        let settings: CarbonSettings =
            toml::from_str("[uk_carbon_intensity]\nheaders = { X-BLOBR-KEY = \"k\" }").expect("right");
        let http = Http::new(&settings, settings.uk_carbon_intensity.common(), Usage::load(None, "test", 1));
        assert_eq!(get(&http, &server).await, Ok(serde_json::json!(1)));
        assert!(http.skew_note().is_some_and(|n| n.contains("10 min behind")));
        assert!(matches!(get(&http, &server).await, Err(ProviderError::QuotaSpent { per_hour: 1, .. })));
    }

    #[tokio::test]
    async fn what_was_sent_is_shown_by_no_message_and_no_answer() {
        const SECRET: &str = "s3cret-of-a-gateway";
        let settings: CarbonSettings = toml::from_str(&format!(
            "[uk_carbon_intensity]\nheaders = {{ X-Key = \"Bearer {SECRET}\", X-Version = \"2\" }}"
        ))
        .expect("right");
        let long = format!("{}{SECRET}", "a".repeat(190));
        for answer in [
            ResponseTemplate::new(500).set_body_string(long.clone()),
            ResponseTemplate::new(302).insert_header("location", format!("https://elsewhere.example/{SECRET}")),
            ResponseTemplate::new(401).set_body_string(format!("<p>{SECRET}")),
            ResponseTemplate::new(200).set_body_string(format!("{}{SECRET}", "a".repeat(50))),
            ResponseTemplate::new(200).set_body_string(format!("[{{\"error\": \"2 of Bearer {SECRET}\"}}]")),
        ] {
            let server = MockServer::start().await;
            Mock::given(path("/a")).respond_with(answer).mount(&server).await;
            let http = Http::new(&settings, settings.uk_carbon_intensity.common(), Usage::load(None, "test", 10));
            let told = match get(&http, &server).await {
                Ok(body) => body.to_string(),
                Err(error) => error.to_string(),
            };
            assert!(!told.contains(&SECRET[..6]), "{told}");
            assert!(!told.starts_with("[{") || told.contains("2 of …"), "{told}");
        }
    }

    #[tokio::test]
    async fn statuses_are_sorted_by_what_can_be_done() {
        let status = |code| ResponseTemplate::new(code).set_body_string("<html>sorry</html>");
        let page = "an HTML page".to_owned();
        assert_eq!(
            answered(status(401)).await,
            Err(ProviderError::Refused { status: 401, message: page.clone(), advice: USUAL_ADVICE.to_owned() })
        );
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
        let http = http();
        assert_eq!(get(&http, &server).await, Ok(Value::from(1)));
        assert_eq!(http.usage().requests(now()).last_hour, 2, "each request counts");

        let server = MockServer::start().await;
        let round = ResponseTemplate::new(302).insert_header("location", "/a");
        Mock::given(path("/a")).respond_with(round).expect(4).mount(&server).await;
        let error = get(&super::tests::http(), &server).await.expect_err("no end").to_string();
        assert!(error.contains("302"), "{error}");
    }

    #[tokio::test]
    async fn slow_and_absent_servers_are_told_apart() {
        let slow = answered(ResponseTemplate::new(200).set_delay(std::time::Duration::from_secs(5))).await;
        assert!(matches!(slow, Err(ProviderError::TimedOut { .. })), "{slow:?}");

        // Bound and dropped: nobody listens there.
        let port = std::net::TcpListener::bind("127.0.0.1:0").and_then(|l| l.local_addr()).expect("a free port").port();
        let url = format!("http://127.0.0.1:{port}/a?key=secret");
        let absent = http()
            .get_json(Url::parse(&url).expect("an address"), HeaderMap::new(), now())
            .await
            .expect_err("nobody there");
        assert!(matches!(absent, ProviderError::Unreachable { .. }), "{absent:?}");
        assert!(absent.to_string().contains("refused") && !absent.to_string().contains("secret"), "{absent}");
    }
}
