//! Bodies and query strings of Zeus's clients.

use std::collections::HashMap;

use axum::body::Bytes;
use axum::extract::{FromRequest, FromRequestParts, Query, Request};
use axum::http::request::Parts;
use axum::http::{HeaderMap, StatusCode, header};
use axum::response::IntoResponse;

use super::answer::Refusal;
use super::fields::Mistake;
use super::json::{self, Invalid, Value};
use super::models::Model;
use crate::http::shared::Shared;

/// A request body that is read as Zeus's server reads it: as JSON even if the request states no media type.
pub(super) struct Body<T>(pub T);

impl<T: Model> FromRequest<Shared> for Body<T> {
    type Rejection = Refusal;

    async fn from_request(request: Request, shared: &Shared) -> Result<Self, Refusal> {
        let is_json = is_json(request.headers());
        let body = tokio::time::timeout(shared.timeout, Bytes::from_request(request, shared)).await;
        let body =
            body.map_err(|_| Refusal::message(StatusCode::REQUEST_TIMEOUT, "the body did not arrive in time"))?;
        let body = body.map_err(|rejection| match rejection.into_response().status() {
            StatusCode::PAYLOAD_TOO_LARGE => {
                Refusal::message(StatusCode::PAYLOAD_TOO_LARGE, "the body is larger than http.body_limit_bytes")
            }
            _ => Refusal::unreadable(),
        })?;
        read(&body, is_json).map(Self)
    }
}

/// Returns true if a body with these headers is read as JSON.
fn is_json(headers: &HeaderMap) -> bool {
    let Some(given) = headers.get(header::CONTENT_TYPE).filter(|given| !given.is_empty()) else { return true };
    let text = String::from_utf8_lossy(given.as_bytes()).to_lowercase();
    let essence = text.split(';').next().unwrap_or_default().trim();
    essence.strip_prefix("application/").is_some_and(|subtype| subtype == "json" || subtype.ends_with("+json"))
}

/// Reads a body.
pub(super) fn read<T: Model>(body: &[u8], is_json: bool) -> Result<T, Refusal> {
    let missing = || Refusal::mistakes(vec![Mistake::missing(&["body"])]);
    if body.is_empty() {
        return Err(missing());
    }
    let no_object = || Refusal::mistakes(vec![Mistake::new(&["body"], "type_error.dict", "value is not a valid dict")]);
    if !is_json {
        return Err(no_object());
    }
    let fields = match json::parse(body) {
        Ok(Value::Object(fields)) => fields,
        Ok(Value::Null) => return Err(missing()),
        Ok(other) => pairs(other).ok_or_else(no_object)?,
        Err(Invalid::Syntax(position, message)) => return Err(Refusal::syntax(position, message)),
        Err(Invalid::Unreadable) => return Err(Refusal::unreadable()),
    };
    T::read(fields).map_err(Refusal::mistakes)
}

/// Returns the object that Python's `dict` makes of a list of pairs, or of an empty text; `None` if it makes none.
fn pairs(value: Value) -> Option<HashMap<String, Value>> {
    match value {
        Value::Text(text) if text.is_empty() => Some(HashMap::new()),
        Value::List(entries) => {
            let pair = |entry| match entry {
                Value::List(pair) => match <[Value; 2]>::try_from(pair) {
                    Ok([Value::Text(name), value]) => Some((name, value)),
                    _ => None,
                },
                _ => None,
            };
            entries.into_iter().map(pair).collect()
        }
        _ => None,
    }
}

/// The parameter `job_id` of the query string. If it is given several times, the last value counts.
pub(super) struct JobParam(pub String);

impl<S: Send + Sync> FromRequestParts<S> for JobParam {
    type Rejection = Refusal;

    async fn from_request_parts(parts: &mut Parts, state: &S) -> Result<Self, Refusal> {
        let pairs = Query::<Vec<(String, String)>>::from_request_parts(parts, state).await;
        let given = pairs.ok().and_then(|Query(pairs)| pairs.into_iter().rfind(|(name, _)| name == "job_id"));
        match given {
            Some((_, id)) => Ok(Self(id)),
            None => Err(Refusal::mistakes(vec![Mistake::missing(&["query", "job_id"])])),
        }
    }
}
