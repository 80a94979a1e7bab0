//! Settings that all sources with a network API have in common.

use std::collections::BTreeMap;
use std::fmt;
use std::path::Path;

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use super::abridged;
use wattune_core::domain::Zone;
use wattune_core::units::{GramsPerKwh, Seconds};

/// Settings of `[carbon]` that apply to every source, and the directory in which the numbers of requests are stored.
#[derive(Clone, Copy, Debug)]
pub struct SharedSettings<'a> {
    /// Value of `carbon.zone`.
    pub zone: Option<&'a Zone>,
    /// Value of `carbon.fallback_g_per_kwh`.
    pub fallback: GramsPerKwh,
    /// Value of `carbon.poll_interval_s`.
    pub poll_interval: Option<Seconds>,
    /// Value of `carbon.connect_timeout_s`.
    pub connect_timeout: Seconds,
    /// Value of `carbon.timeout_s`.
    pub timeout: Seconds,
    /// Value of `carbon.max_body_bytes`.
    pub max_body_bytes: u64,
    /// The daemon's state directory; if absent, the numbers of requests are not stored on disk.
    pub state_dir: Option<&'a Path>,
}

/// The settings that the tables of all sources with a network API have in common.
#[derive(Clone, Copy, Debug)]
pub(in crate::providers) struct Network<'a> {
    pub(in crate::providers) zone: Option<&'a Zone>,
    pub(in crate::providers) base_url: &'a BaseUrl,
    pub(in crate::providers) headers: &'a Headers,
    pub(in crate::providers) connect_timeout: Option<Seconds>,
    pub(in crate::providers) timeout: Option<Seconds>,
    pub(in crate::providers) poll_interval: Option<Seconds>,
    pub(in crate::providers) contributes: Contribution,
    pub(in crate::providers) requests_per_hour: u32,
}

/// Defines the settings table of a source with a network API: the source's own settings, and those that all such tables
/// have in common.
macro_rules! network_settings {
    (
        $(#[$doc:meta])* at $url:expr, at most $requests:literal an hour;
        $($(#[$field_doc:meta])* $field:ident: $type:ty = $default:expr,)*
    ) => {
        $(#[$doc])*
        #[derive(Clone, Debug, PartialEq, serde::Serialize, serde::Deserialize)]
        #[serde(deny_unknown_fields, default)]
        pub struct Settings {
            /// Place for this source; `carbon.zone` if absent.
            pub zone: Option<wattune_core::domain::Zone>,
            $($(#[$field_doc])* pub $field: $type,)*
            /// The part of the source's answers that is used.
            pub contributes: $crate::providers::Contribution,
            /// The base address of the API.
            pub base_url: $crate::providers::BaseUrl,
            /// Headers that are sent with every request.
            pub headers: $crate::providers::Headers,
            /// Longest wait for a connection, in seconds; `carbon.connect_timeout_s` if absent.
            #[serde(deserialize_with = "crate::providers::client::checks::some_timeout")]
            pub connect_timeout_s: Option<wattune_core::units::Seconds>,
            /// Longest wait for a complete answer, in seconds; `carbon.timeout_s` if absent.
            #[serde(deserialize_with = "crate::providers::client::checks::some_timeout")]
            pub timeout_s: Option<wattune_core::units::Seconds>,
            /// Time between polls, in seconds; if absent, `carbon.poll_interval_s`, else the source's own interval.
            #[serde(deserialize_with = "crate::providers::client::checks::interval")]
            pub poll_interval_s: Option<wattune_core::units::Seconds>,
            /// Maximum number of requests per hour.
            #[serde(deserialize_with = "crate::providers::client::checks::per_hour")]
            pub requests_per_hour: u32,
        }

        impl Default for Settings {
            fn default() -> Self {
                Self {
                    zone: None,
                    $($field: $default,)*
                    contributes: $crate::providers::Contribution::Both,
                    base_url: $crate::providers::BaseUrl::of($url),
                    headers: $crate::providers::Headers::default(),
                    connect_timeout_s: None,
                    timeout_s: None,
                    poll_interval_s: None,
                    requests_per_hour: $requests,
                }
            }
        }

        impl Settings {
            pub(in crate::providers) fn network(&self) -> $crate::providers::client::settings::Network<'_> {
                $crate::providers::client::settings::Network {
                    zone: self.zone.as_ref(),
                    base_url: &self.base_url,
                    headers: &self.headers,
                    connect_timeout: self.connect_timeout_s,
                    timeout: self.timeout_s,
                    poll_interval: self.poll_interval_s,
                    contributes: self.contributes,
                    requests_per_hour: self.requests_per_hour,
                }
            }
        }
    };
}
pub(in crate::providers) use network_settings;

/// Defines a setting that is a small integer with few valid values.
macro_rules! number_setting {
    ($(#[$doc:meta])* $name:ident: $right:expr, else $why:literal) => {
        $(#[$doc])*
        #[derive(Clone, Copy, Debug, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
        #[serde(try_from = "u8", into = "u8")]
        pub struct $name(u8);

        impl TryFrom<u8> for $name {
            type Error = &'static str;
            fn try_from(number: u8) -> Result<Self, Self::Error> {
                let is_right: fn(&u8) -> bool = $right;
                if is_right(&number) { Ok(Self(number)) } else { Err($why) }
            }
        }

        impl From<$name> for u8 {
            fn from(number: $name) -> u8 {
                number.0
            }
        }
    };
}
pub(in crate::providers) use number_setting;

/// The address of an API: http or https, without credentials and query.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct BaseUrl(String);

impl BaseUrl {
    /// Returns the address, without a slash at its end.
    pub fn as_str(&self) -> &str {
        &self.0
    }

    /// Wraps a source's default address, which is known to be valid.
    pub(in crate::providers) fn of(text: &str) -> Self {
        Self(text.to_owned())
    }

    /// Returns the address of `path` ("/v3/forecast") below the base address, with a query.
    pub(in crate::providers) fn with(&self, path: &str, query: &[(&str, &str)]) -> reqwest::Url {
        let mut url = reqwest::Url::parse(&self.0).expect("checked when it was read");
        url.set_path(&format!("{}{path}", url.path().trim_end_matches('/')));
        if !query.is_empty() {
            url.query_pairs_mut().extend_pairs(query);
        }
        url
    }
}

impl TryFrom<String> for BaseUrl {
    type Error = &'static str;
    fn try_from(text: String) -> Result<Self, Self::Error> {
        let url =
            reqwest::Url::parse(text.trim()).map_err(|_| "write a complete address, like \"https://host/path\"")?;
        if !matches!(url.scheme(), "http" | "https") || url.host_str().is_none() {
            return Err("the address must begin with https:// or http:// and name a host");
        }
        if !url.username().is_empty() || url.password().is_some() {
            return Err("the address must not hold a user name or password");
        }
        if url.query().is_some() || url.fragment().is_some() {
            return Err("the address must not hold a query or fragment");
        }
        Ok(Self(url.as_str().trim_end_matches('/').to_owned()))
    }
}

impl From<BaseUrl> for String {
    fn from(url: BaseUrl) -> String {
        url.0
    }
}

impl fmt::Display for BaseUrl {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// Headers that are sent with every request to a source. A value of the form `env:NAME` is read from the environment
/// variable at each request. No value is ever shown.
#[derive(Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "BTreeMap<String, String>", into = "BTreeMap<String, String>")]
pub struct Headers(BTreeMap<String, String>);

impl Headers {
    /// Returns names and values, with `env:` values looked up; headers whose variable is not set are left out.
    pub(in crate::providers) fn resolved(&self) -> impl Iterator<Item = (&str, String)> {
        self.0.iter().filter_map(|(name, value)| {
            let value = match value.strip_prefix("env:") {
                Some(variable) => std::env::var(variable).ok()?.trim().to_owned(),
                None => value.clone(),
            };
            Some((name.as_str(), value))
        })
    }
}

impl TryFrom<BTreeMap<String, String>> for Headers {
    type Error = String;
    fn try_from(given: BTreeMap<String, String>) -> Result<Self, String> {
        for (name, value) in &given {
            reqwest::header::HeaderName::from_bytes(name.as_bytes())
                .map_err(|_| format!("{:?} is not the name of a header", abridged::start(name)))?;
            reqwest::header::HeaderValue::from_str(value)
                .map_err(|_| format!("the value of header {name} holds characters that no header may hold"))?;
        }
        Ok(Self(given))
    }
}

impl From<Headers> for BTreeMap<String, String> {
    fn from(headers: Headers) -> Self {
        headers.0
    }
}

impl fmt::Debug for Headers {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_set().entries(self.0.keys()).finish()
    }
}

/// The part of a source's answers that is used.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum Contribution {
    /// The source's forecast and its actual values are used.
    #[default]
    Both,
    /// Only the source's forecast is used.
    Forecast,
    /// Only the source's actual values are used; the local forecaster extrapolates from them.
    Actual,
}
