//! WattTime's login: a token is valid for half an hour, renewed a little earlier, and never shown.

use std::sync::{Mutex, MutexGuard, PoisonError};

use chrono::{DateTime, TimeDelta, Utc};
use reqwest::header::{AUTHORIZATION, HeaderMap, HeaderValue};
use serde_json::Value;

use super::parse;
use super::settings::Settings;
use crate::providers::client::json::malformed;
use crate::providers::client::{Api, Secret, abridged};
use crate::providers::error::ProviderError;

/// Age at which a token is renewed. It is valid for 30 minutes by WattTime's clock, which may be ahead of this
/// machine's.
const RENEWED_AFTER: TimeDelta = TimeDelta::minutes(25);

/// Time after the renewal of a token within which a refusal cannot mean that the token expired.
const JUST_NOW: TimeDelta = TimeDelta::minutes(1);

/// A login session: the token with the time of its login, and the time of the last renewal that a refusal caused.
#[derive(Default)]
pub(super) struct Session(Mutex<Kept>);

#[derive(Default)]
struct Kept {
    token: Option<(String, DateTime<Utc>)>,
    renewed_at: Option<DateTime<Utc>>,
}

impl Session {
    fn kept(&self) -> MutexGuard<'_, Kept> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn young(&self, now: DateTime<Utc>) -> Option<String> {
        let kept = self.kept();
        let (token, since) = kept.token.as_ref()?;
        (*since..*since + RENEWED_AFTER).contains(&now).then(|| token.clone())
    }

    /// Requests the JSON document at `path` with a token. A refused token that may have expired is renewed once.
    ///
    /// # Errors
    /// The errors of [`Api::get`], and a missing or unreadable account; refusals name the remedy.
    pub(super) async fn get(
        &self,
        api: &Api,
        account: &Settings,
        (path, query): (&str, &[(&str, &str)]),
        now: DateTime<Utc>,
    ) -> Result<Value, ProviderError> {
        let token = match self.young(now) {
            Some(token) => token,
            None => self.login(api, account, now).await?,
        };
        let first = ask(api, (path, query), &token, now).await;
        let Err(ProviderError::Refused { status, message, .. }) = &first else { return first };
        let renewed_just_now = {
            let renewed = self.kept().renewed_at;
            renewed.is_some_and(|at| (at..at + JUST_NOW).contains(&now))
        };
        if renewed_just_now || !may_have_expired(*status, message) {
            return first.map_err(with_advice);
        }
        self.kept().renewed_at = Some(now);
        let token = self.login(api, account, now).await?;
        ask(api, (path, query), &token, now).await.map_err(with_advice)
    }

    async fn login(&self, api: &Api, account: &Settings, now: DateTime<Utc>) -> Result<String, ProviderError> {
        self.kept().token = None;
        let (user, password) = credentials(account)?;
        let basic = format!("Basic {}", base64(format!("{}:{}", user.expose(), password.expose()).as_bytes()));
        let answer = api.get("/login", &[], authorization(&basic)?, now).await;
        let body = answer.map_err(|error| match error {
            ProviderError::Refused { status, message, .. } => {
                let advice = format!(
                    "the user name or the password is wrong; compare {} with what you registered at WattTime. If they are \
                     right, a firewall may block this address",
                    account_from(account)
                );
                ProviderError::Refused { status, message, advice }
            }
            // The error would show the beginning of the body, which may contain the beginning of a token.
            ProviderError::Malformed { .. } => {
                malformed("the answer to /login", "is not JSON; check that base_url is WattTime's address")
            }
            other => other,
        })?;
        let token = parse::token(&body)?;
        self.kept().token = Some((token.clone(), now));
        Ok(token)
    }
}

async fn ask(
    api: &Api,
    (path, query): (&str, &[(&str, &str)]),
    token: &str,
    now: DateTime<Utc>,
) -> Result<Value, ProviderError> {
    let headers = authorization(&format!("Bearer {token}"))?;
    api.get(path, query, headers, now).await
}

fn authorization(text: &str) -> Result<HeaderMap, ProviderError> {
    let unfit = |_| ProviderError::NoKey { what: "the token holds characters that no header may hold".to_owned() };
    let mut value = HeaderValue::from_str(text).map_err(unfit)?;
    value.set_sensitive(true);
    Ok(HeaderMap::from_iter([(AUTHORIZATION, value)]))
}

/// Reads first the user name, second the password, from their files or environment variables.
fn credentials(account: &Settings) -> Result<(Secret, Secret), ProviderError> {
    let user = Secret::find(&account.username_env, account.username_file.as_deref())?;
    let password = Secret::find(&account.password_env, account.password_file.as_deref())?;
    user.zip(password).ok_or_else(|| {
        let what = format!(
            "WattTime needs an account: set {}; register for a free one as https://docs.watttime.org describes",
            account_from(account)
        );
        ProviderError::NoKey { what }
    })
}

/// Describes for messages where user name and password are read.
fn account_from(account: &Settings) -> String {
    let from = |variable: &str, file: Option<&std::path::Path>, setting: &str| match file {
        Some(path) => format!("the file {} (carbon.watttime.{setting})", abridged::path(path)),
        None => format!("the environment variable {} (or carbon.watttime.{setting})", abridged::variable(variable)),
    };
    format!(
        "{} and {}",
        from(&account.username_env, account.username_file.as_deref(), "username_file"),
        from(&account.password_env, account.password_file.as_deref(), "password_file")
    )
}

/// Returns true if a refusal may mean an expired token: status 401, or 403 without a reason that concerns the plan.
fn may_have_expired(status: u16, message: &str) -> bool {
    status == 401 || !about_plan(message)
}

fn about_plan(message: &str) -> bool {
    let message = message.to_ascii_lowercase();
    ["scope", "query param", "your plan", "subscription", "permission", "not have access"]
        .iter()
        .any(|word| message.contains(word))
}

/// Returns true if the account is valid, but its plan lacks the route or the region.
pub(super) fn not_in_plan(error: &ProviderError) -> bool {
    matches!(error, ProviderError::Refused { status: 403, message, .. } if about_plan(message))
}

pub(super) fn with_advice(error: ProviderError) -> ProviderError {
    let plan = not_in_plan(&error);
    let ProviderError::Refused { status, message, .. } = error else { return error };
    let advice = if plan {
        "the account's plan covers other regions or routes only, and a new token does not help; CAISO_NORTH is free, \
         others need a plan from watttime.org"
    } else {
        "the service refuses a valid login too; a firewall may block this address, or the service has trouble: see \
         https://status.watttime.org"
    };
    ProviderError::Refused { status, message, advice: advice.to_owned() }
}

/// Encodes bytes as base64 (RFC 4648), with padding.
fn base64(bytes: &[u8]) -> String {
    const LETTERS: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    let mut text = String::with_capacity(bytes.len().div_ceil(3) * 4);
    for group in bytes.chunks(3) {
        let byte = |i: usize| u32::from(group.get(i).copied().unwrap_or(0));
        let bits = byte(0) << 16 | byte(1) << 8 | byte(2);
        for (i, shift) in [18, 12, 6, 0].into_iter().enumerate() {
            let letter = char::from(LETTERS[(bits >> shift & 63) as usize]);
            text.push(if i <= group.len() { letter } else { '=' });
        }
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn base64_is_as_in_rfc_4648() {
        let pairs = [
            ("", ""),
            ("f", "Zg=="),
            ("fo", "Zm8="),
            ("foo", "Zm9v"),
            ("foobar", "Zm9vYmFy"),
            ("user:pässword?", "dXNlcjpww6Rzc3dvcmQ/"),
        ];
        for (text, encoded) in pairs {
            assert_eq!(base64(text.as_bytes()), encoded);
        }
    }

    #[test]
    fn refusals_about_the_plan_are_not_met_with_a_new_token() {
        assert!(may_have_expired(401, "Invalid scope") && may_have_expired(403, "an HTML page"));
        assert!(may_have_expired(403, "no message") && may_have_expired(403, "Forbidden"));
        assert!(!may_have_expired(403, "Invalid scope. You are restricted to CAISO_NORTH"));
    }
}
