//! One HTTP request, bounded in time and length; its faults become errors that name the remedy.

#[cfg(test)]
#[path = "http_tests.rs"]
mod tests;

use std::collections::VecDeque;
use std::error::Error;
use std::sync::{Arc, Mutex, OnceLock, PoisonError};

use chrono::{DateTime, TimeDelta, Utc};
use reqwest::header::{HeaderMap, HeaderName, HeaderValue};
use reqwest::redirect::Policy;
use reqwest::{Client, Response, StatusCode, Url, header};
use serde_json::Value;

use super::quota::Usage;
use super::redact::Secrets;
use super::settings::{Headers, Network, SharedSettings};
use crate::providers::error::{ProviderError, USUAL_ADVICE, shortened};
use wattune_core::ledger::chain::Digest;
use wattune_core::units::Seconds;

/// Maximum length that is read of the body of an error response; longer bodies are cut, not refused.
const MAX_ERROR_BYTES: u64 = 64 << 10;

/// Maximum number of responses that are remembered for conditional requests; the oldest is dropped.
const REMEMBERED: usize = 4;

/// Maximum number of digests of bodies that are kept until [`Http::take_digests`] takes them; the oldest is dropped.
const MOST_DIGESTS: usize = 16;

/// Maximum number of redirects followed per request; only redirects to the same origin are followed.
const MOST_REDIRECTS: u8 = 3;

/// Difference between this machine's clock and the source's above which a note is made.
const SKEW: TimeDelta = TimeDelta::minutes(2);

/// HTTP client for one API. Certificates and connection pool are loaded with the first request.
#[derive(Debug)]
pub(in crate::providers) struct Http {
    connect_timeout: Seconds,
    timeout: Seconds,
    /// Setting that holds `timeout`, in words.
    timeout_setting: &'static str,
    max_body_bytes: u64,
    headers: Headers,
    secrets: Secrets,
    usage: Arc<Usage>,
    client: OnceLock<Client>,
    remembered: Mutex<Remembered>,
}

#[derive(Debug, Default)]
struct Remembered {
    answers: VecDeque<RememberedResponse>,
    /// Digests of the bodies that were read since the digests were last taken.
    digests: VecDeque<Digest>,
    /// The server's clock minus this machine's, from the last response.
    skew: Option<TimeDelta>,
}

/// A response with its validator (`ETag` or modification time), by which the server recognises at the next request that
/// the response has not changed.
#[derive(Debug)]
struct RememberedResponse {
    url: Url,
    validator: (HeaderName, HeaderValue),
    digest: Digest,
    /// The body as JSON text, because a parsed body may take a hundred times the memory.
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
    pub(in crate::providers) fn new(network: Network<'_>, shared: &SharedSettings<'_>, usage: Arc<Usage>) -> Self {
        Self {
            connect_timeout: network.connect_timeout.unwrap_or(shared.connect_timeout),
            timeout: network.timeout.unwrap_or(shared.timeout),
            timeout_setting: if network.timeout.is_some() { "the source's own timeout_s" } else { "carbon.timeout_s" },
            max_body_bytes: shared.max_body_bytes,
            headers: network.headers.clone(),
            secrets: Secrets::default(),
            usage,
            client: OnceLock::new(),
            remembered: Mutex::default(),
        }
    }

    pub(in crate::providers) fn usage(&self) -> &Usage {
        &self.usage
    }

    /// Returns the secrets that were sent, which no message may show.
    pub(in crate::providers) fn secrets(&self) -> &Secrets {
        &self.secrets
    }

    /// Requests `url` and returns the JSON body of a successful response, or the remembered body if the server reports
    /// no change. `now` is the time at which the request is counted, and the reference for a date in `Retry-After`.
    ///
    /// # Errors
    /// Every [`ProviderError`] but `NoKey` and `Unreadable`; `Empty` only for a blank body (as with status 204).
    pub(in crate::providers) async fn get_json(
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
        let too_late = |_| self.timed_out(host.clone());
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
        // Hides only this request's secrets: the response to a login may repeat an earlier token, which is still
        // needed.
        hide(&mut json, &sent);
        self.remember(url, response.headers(), &json, Digest::of(&body));
        Ok(json)
    }

    /// Sends the request and follows redirections to the same origin. Each request counts towards the quota; the
    /// caller's time-out covers all of them.
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
            self.usage.reserve(now)?;
            let response = request.headers(headers.clone()).send().await.map_err(|e| self.broken(&host, &e))?;
            let next = redirect(&response, &to).filter(|next| next.origin() == url.origin());
            match next.filter(|_| redirects < MOST_REDIRECTS) {
                Some(next) => (to, redirects) = (next, redirects + 1),
                None => return Ok(response),
            }
        }
    }

    /// Stores the secrets that are sent with a request, so that no message shows them, and returns them.
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

    /// Returns the SHA-256 digests of the bodies that were read since the last call, without those of logins.
    pub(in crate::providers) fn take_digests(&self) -> Vec<Digest> {
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
        // The response to a login contains no values of the signal.
        remembered.note((!url.path().ends_with("/login")).then_some(digest));
        remembered.answers.retain(|k| k.url != url);
        let Some(validator) = by_tag.or_else(by_time) else { return };
        if remembered.answers.len() >= REMEMBERED {
            remembered.answers.pop_front();
        }
        remembered.answers.push_back(RememberedResponse { url, validator, digest, body: body.to_string().into() });
    }

    fn note_skew(&self, response: &Response, now: DateTime<Utc>) {
        let date = response.headers().get(header::DATE).and_then(|d| d.to_str().ok());
        let theirs = date.and_then(|d| DateTime::parse_from_rfc2822(d).ok());
        // A cache on the way keeps the date, and says how old the response is.
        let age = response.headers().get(header::AGE).and_then(|age| age.to_str().ok()?.parse::<u32>().ok());
        let age = TimeDelta::seconds(age.unwrap_or(0).into());
        self.remembered().skew = theirs.map(|t| t.to_utc() + age - now);
    }

    /// Returns a note if this machine's clock and the source's differ: values would then be applied at the wrong time.
    pub(in crate::providers) fn skew_note(&self) -> Option<String> {
        let skew = self.remembered().skew.filter(|s| s.abs() > SKEW)?;
        let side = if skew > TimeDelta::zero() { "behind" } else { "ahead of" };
        Some(format!(
            "this machine's clock is {} min {side} the source's; check this machine's time synchronisation (NTP)",
            (skew.num_seconds().abs() + 30) / 60
        ))
    }

    /// Returns the client, built at first use: its certificates take memory, which is saved if a file is the only
    /// source.
    fn client(&self, url: &Url) -> Result<&Client, ProviderError> {
        if let Some(client) = self.client.get() {
            return Ok(client);
        }
        // Fails only if a crypto provider is installed already, which will do.
        let _ = rustls::crypto::ring::default_provider().install_default();
        let mut builder = Client::builder()
            .user_agent(concat!("wattune/", env!("CARGO_PKG_VERSION")))
            .connect_timeout(self.connect_timeout.to_std())
            .timeout(self.timeout.to_std())
            .pool_max_idle_per_host(1)
            .redirect(Policy::none());
        if url.scheme() == "http" {
            // Plain HTTP checks no certificates, so none need be installed on the machine.
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
        match (error.is_timeout(), error.is_connect()) {
            (true, true) => {
                let why = format!("no connection within {} s", self.connect_timeout.get());
                ProviderError::Unreachable { host, why }
            }
            (true, false) => self.timed_out(host),
            (false, _) => ProviderError::Unreachable { host, why: innermost(error) },
        }
    }

    fn timed_out(&self, host: String) -> ProviderError {
        ProviderError::TimedOut { host, after: self.timeout, setting: self.timeout_setting }
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
        let (status_code, message) = (status.as_u16(), message_in(&String::from_utf8_lossy(&body), &self.secrets));
        if let (StatusCode::SERVICE_UNAVAILABLE, Some(retry_after)) = (status, retry_after) {
            return ProviderError::Unavailable { retry_after };
        }
        match status {
            StatusCode::UNAUTHORIZED | StatusCode::FORBIDDEN => {
                ProviderError::Refused { status: status_code, message, advice: USUAL_ADVICE.to_owned() }
            }
            StatusCode::TOO_MANY_REQUESTS => ProviderError::RateLimited { retry_after },
            _ if status.is_server_error() => ProviderError::ServerError { status: status_code, message },
            _ => ProviderError::Unexpected { status: status_code, message },
        }
    }
}

fn redirect(response: &Response, from: &Url) -> Option<Url> {
    let status = response.status();
    let moved = status.is_redirection() && status != StatusCode::NOT_MODIFIED;
    let to = response.headers().get(header::LOCATION).filter(|_| moved)?;
    from.join(to.to_str().ok()?).ok()
}

/// Reads the header `Retry-After`, which holds seconds or an HTTP date, as the time to wait.
fn retry_after(response: &Response, now: DateTime<Utc>) -> Option<Seconds> {
    parse_retry_after(response.headers().get(header::RETRY_AFTER)?.to_str().ok()?, now)
}

fn parse_retry_after(text: &str, now: DateTime<Utc>) -> Option<Seconds> {
    let text = text.trim();
    let seconds = match text.parse::<f64>() {
        Ok(seconds) => Seconds::try_new(seconds)?,
        Err(_) => Seconds::from_delta(DateTime::parse_from_rfc2822(text).ok()?.to_utc() - now),
    };
    Some(seconds.max(Seconds::ZERO).min(Seconds::new(86_400.0)))
}

/// Message in place of an error body that is an HTML page.
pub(in crate::providers) const HTML: &str = "an HTML page";

/// Returns the message in an error body: in one of several JSON fields, or plain text.
fn message_in(text: &str, secrets: &Secrets) -> String {
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

/// Hides secrets in all texts of a JSON body, because errors may quote them.
fn hide(json: &mut Value, secrets: &Secrets) {
    match json {
        Value::String(text) => *text = secrets.without_whole(text),
        Value::Array(items) => items.iter_mut().for_each(|item| hide(item, secrets)),
        Value::Object(members) => members.values_mut().for_each(|member| hide(member, secrets)),
        _ => {}
    }
}

/// Runs the readers of refusals on any bytes, which must not cause a panic.
#[cfg(any(test, feature = "fuzzing"))]
pub(in crate::providers) fn read_any(body: &[u8], now: DateTime<Utc>) {
    let hidden = Secrets::default();
    hidden.learn("2026-08-22");
    let text = hidden.without(&String::from_utf8_lossy(body));
    if let Ok(mut tree) = serde_json::from_slice(body) {
        hide(&mut tree, &hidden);
    }
    let message = message_in(&text, &hidden);
    assert!(message.chars().count() <= 200, "messages are short");
    let _ =
        (parse_retry_after(&text, now), super::time::parse_time(&text, true), super::time::parse_time(&text, false));
}

fn host_of(url: &Url) -> String {
    let host = url.host_str().unwrap_or("the host");
    url.port().map_or_else(|| host.to_owned(), |port| format!("{host}:{port}"))
}

/// Returns the innermost cause of an error: the outer ones repeat the address, which may contain a key.
fn innermost(error: &dyn Error) -> String {
    let mut cause = error;
    while let Some(source) = cause.source() {
        cause = source;
    }
    shortened(&cause.to_string())
}
