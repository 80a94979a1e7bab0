//! Errors of sources and of their settings.

use chrono::{DateTime, Utc};

use super::client::redact::Secrets;
use wattune_core::units::Seconds;

/// Reason why a source gave no usable answer. Each message names the fault and the remedy; none contains a secret.
#[expect(missing_docs, reason = "the messages explain the fields")]
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
pub enum ProviderError {
    /// The connection could not be made, or broke.
    #[error("{host} cannot be reached ({why}); check the network, the host name and the proxy. Trying again")]
    Unreachable {
        /// Host name, with the port if it is not the default one.
        host: String,
        why: String,
    },
    /// The answer was not complete in time.
    #[error("{host} did not answer completely within {} s; raise {setting} if this is usual", after.get())]
    TimedOut {
        /// Host name, with the port if it is not the default one.
        host: String,
        after: Seconds,
        /// Setting that holds `after`, in words.
        setting: &'static str,
    },
    /// The source refused the key, or the key's access to the data. The next request follows an hour later, because
    /// earlier ones would not help.
    #[error("refused with status {status} ({message}); {advice}. Trying hourly")]
    Refused {
        /// HTTP status, 401 or 403.
        status: u16,
        /// Message in the response body, shortened.
        message: String,
        advice: String,
    },
    /// The key is missing or cannot be read. No request was made.
    #[error("{what}")]
    NoKey { what: String },
    /// The configured number of requests per hour is used up. No request was made.
    #[error("the limit of {per_hour} requests an hour is reached, the next one is sent after {}; raise requests_per_hour if your \
             subscription allows more", until.format("%H:%M:%SZ"))]
    QuotaSpent { per_hour: u32, until: DateTime<Utc> },
    /// The source reports too many requests.
    #[error("the service reports too many requests{}; raise carbon.poll_interval_s, or the source's own interval, if \
             this is usual", wait(*retry_after))]
    RateLimited { retry_after: Option<Seconds> },
    /// The service is out of order for a time that it names.
    #[error("the service is unavailable and asks to wait {} s; the fault is at the service", retry_after.get().ceil())]
    Unavailable { retry_after: Seconds },
    /// The source's server failed.
    #[error("the service failed with status {status} ({message}); the fault is at the service. Trying again")]
    ServerError {
        /// HTTP status, 500 to 599.
        status: u16,
        /// Message in the response body, shortened.
        message: String,
    },
    /// The response is not what was requested: a redirection, "not found", or an error in spite of status 200.
    #[error("answered with status {status} ({message}); check the zone and the address in the settings")]
    Unexpected {
        status: u16,
        /// Message in the response body, or the redirection's target, shortened.
        message: String,
    },
    /// The response body is longer than allowed; the rest was not read.
    #[error("the response has more than {limit_bytes} bytes; if that is expected, raise carbon.max_body_bytes")]
    TooLarge { limit_bytes: u64 },
    /// The answer cannot be parsed.
    #[error("{at}: {what}")]
    Malformed { what: String, at: String },
    /// The answer is well-formed, but without a single usable value.
    #[error("no usable value: {what}")]
    Empty { what: String },
    /// The source's file does not exist or cannot be read.
    #[error("{path} cannot be read ({why}); check {table}.file.path and the permissions")]
    Unreadable {
        /// Table of the settings that names the file, `carbon` or `price`.
        table: &'static str,
        path: String,
        why: String,
    },
}

impl ProviderError {
    /// Returns a refusal whose message is `body`.
    #[cfg(any(test, feature = "fuzzing"))]
    pub(super) fn refused_with(body: &[u8]) -> Self {
        Self::Refused { status: 403, message: shortened(&String::from_utf8_lossy(body)), advice: String::new() }
    }

    /// Returns the error without the secrets that were sent (keys, tokens), because the source's message may repeat
    /// them.
    #[must_use]
    pub(super) fn cleaned(mut self, secrets: &Secrets) -> Self {
        match &mut self {
            Self::Unreachable { why: text, .. }
            | Self::Refused { message: text, .. }
            | Self::ServerError { message: text, .. }
            | Self::Unexpected { message: text, .. }
            | Self::Empty { what: text } => *text = secrets.without(text),
            Self::Malformed { what, at } => (*what, *at) = (secrets.without(what), secrets.without(at)),
            // The text is wattune's own, so only whole secrets are removed: names of variables and files may begin like
            // a secret.
            Self::NoKey { what: text } => *text = secrets.without_whole(text),
            Self::TimedOut { .. }
            | Self::QuotaSpent { .. }
            | Self::RateLimited { .. }
            | Self::Unavailable { .. }
            | Self::TooLarge { .. }
            | Self::Unreadable { .. } => {}
        }
        if let Self::Refused { advice, .. } = &mut self {
            *advice = secrets.without_whole(advice);
        }
        self
    }
}

/// Settings that are valid singly but not together. `table` is `carbon` or `price`.
#[expect(missing_docs, reason = "the messages explain the fields")]
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum SettingsError {
    /// `source = "file"` without a path of the file.
    #[error("{table}.source is \"file\", but {table}.file.path is not set; write the path of a CSV or JSON file")]
    NoPath { table: &'static str },
    /// Settings of one source that exclude each other; the text is the message, with the remedy.
    #[error("{0}")]
    Contradiction(&'static str),
    /// A file's `origin` that is not possible for past values, such as `forecast`.
    #[error("{table}.file.origin is \"{origin}\"; write \"measured\", \"estimated\" or \"synthetic\"")]
    Origin { table: &'static str, origin: &'static str },
    /// `assume_utc` together with a `time_zone` other than UTC.
    #[error("{table}.file.assume_utc is true, and {table}.file.time_zone is \"{zone}\"; remove one of them")]
    TwoZones { table: &'static str, zone: String },
    /// A file of carbon intensities whose `unit` is one of prices, or a file of prices whose `unit` is one of
    /// intensities.
    #[error("{table}.file.unit is not a unit for the values of this file; write one of {right}")]
    Unit { table: &'static str, right: String },
    /// A source that does not serve the configured place.
    #[error("{source_name} does not serve {place}: {why}")]
    Place { source_name: &'static str, place: String, why: String },
    /// A source that needs a zone, while none is set.
    #[error(
        "carbon.source has \"{0}\", which needs carbon.zone or carbon.{0}.zone; `wattune carbon zones` lists zones"
    )]
    NoZone(&'static str),
}

/// Returns the wait that a service requests, in words that continue a message. The wait until a date is no whole number
/// of seconds.
fn wait(retry_after: Option<Seconds>) -> String {
    retry_after.map_or_else(String::new, |s| format!("; the service asks to wait {} s", s.get().ceil()))
}

/// Usual remedy after a status of 401 or 403.
pub(super) const USUAL_ADVICE: &str = "check the key, what it may read, and the zone";

/// Returns external text made fit for a message: one line, without control characters, at most 200 characters.
pub(super) fn shortened(text: &str) -> String {
    let mut line = String::new();
    for word in text.split(|c: char| c.is_whitespace() || c.is_control()).filter(|w| !w.is_empty()) {
        if !line.is_empty() {
            line.push(' ');
        }
        line.push_str(word);
        if line.chars().count() > 200 {
            return line.chars().take(199).chain(['…']).collect();
        }
    }
    line
}
