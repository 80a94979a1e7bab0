//! Reads requests, with errors that say what is wrong, at which position, and what would be right.

use std::fmt;
use std::marker::PhantomData;
use std::str::FromStr;

use axum::body::Bytes;
use axum::extract::rejection::QueryRejection;
use axum::extract::{FromRequest, FromRequestParts, Path, Query, Request};
use axum::http::StatusCode;
use axum::http::request::Parts;
use axum::response::IntoResponse;
use serde::de::value::MapAccessDeserializer;
use serde::de::{DeserializeOwned, MapAccess, Visitor};
use serde::{Deserialize, Deserializer, de};
use serde_json::error::Category;

use super::error::Problem;
use super::shared::Shared;
use wattune_core::domain::{InvalidJob, name_types_plainly, with_nearest};

/// A type that is read from a JSON request body.
pub(super) trait Wire: DeserializeOwned {
    /// Paths of fields, each with a hint on the values that the field accepts.
    const HINTS: &'static [(&'static str, &'static str)];
    /// The maximum body size in bytes, if it differs from the configured one.
    const MAX_BYTES: Option<usize> = None;
}

/// A JSON request body. `cross_site.rs` has checked the media type of the request.
pub(super) struct Payload<T>(pub T);

impl<T: Wire> FromRequest<Shared> for Payload<T> {
    type Rejection = Problem;

    async fn from_request(request: Request, shared: &Shared) -> Result<Self, Problem> {
        let body = tokio::time::timeout(shared.timeout, Bytes::from_request(request, shared)).await;
        let body = body.map_err(|_| {
            let detail = format!("the body did not arrive within {} s", shared.timeout.as_secs_f64());
            Problem::new(StatusCode::REQUEST_TIMEOUT, detail)
        })?;
        let body = body.map_err(|rejection| match rejection.into_response().status() {
            StatusCode::PAYLOAD_TOO_LARGE => {
                let detail = match T::MAX_BYTES {
                    Some(largest) => format!("the body is larger than {largest} bytes"),
                    None => format!("the body is larger than {} bytes (http.body_limit_bytes)", shared.body_limit),
                };
                Problem::new(StatusCode::PAYLOAD_TOO_LARGE, detail)
            }
            _ => Problem::new(StatusCode::BAD_REQUEST, "the body did not arrive whole"),
        })?;
        read(&body).map(Self)
    }
}

/// Reads a JSON body. Refuses invalid JSON with status 400, and JSON that does not fit the type with 422.
pub(super) fn read<T: Wire>(body: &[u8]) -> Result<T, Problem> {
    if body.iter().all(u8::is_ascii_whitespace) {
        let detail = "the body is empty; give a JSON object, see GET /openapi.json";
        return Err(Problem::new(StatusCode::BAD_REQUEST, detail));
    }
    let mut reader = serde_json::Deserializer::from_slice(body);
    let value = match serde_path_to_error::deserialize(&mut reader) {
        Ok(Object(value)) => value,
        Err(error) => {
            let path = error.path().to_string();
            return Err(refuse::<T>(&path, &error.into_inner()));
        }
    };
    reader.end().map_err(|error| refuse::<T>(".", &error))?;
    Ok(value)
}

/// A JSON object and no other JSON: serde alone would also accept an array of the fields' values.
struct Object<T>(T);

impl<'de, T: Deserialize<'de>> Deserialize<'de> for Object<T> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Fields<T>(PhantomData<T>);
        impl<'de, T: Deserialize<'de>> Visitor<'de> for Fields<T> {
            type Value = T;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("an object")
            }

            fn visit_map<A: MapAccess<'de>>(self, map: A) -> Result<T, A::Error> {
                T::deserialize(MapAccessDeserializer::new(map))
            }
        }
        deserializer.deserialize_map(Fields(PhantomData)).map(Self)
    }
}

/// Reads an object; null and an absent field give `None`.
pub(super) fn optional_object<'de, D: Deserializer<'de>, T: Deserialize<'de>>(d: D) -> Result<Option<T>, D::Error> {
    Ok(Option::<Object<T>>::deserialize(d)?.map(|Object(value)| value))
}

fn refuse<T: Wire>(path: &str, error: &serde_json::Error) -> Problem {
    let (line, column) = (error.line(), error.column());
    let message = error.to_string();
    let place = format!(" at line {line} column {column}");
    let what = &with_nearest(name_types_plainly(message.strip_suffix(&place).unwrap_or(&message)));
    if error.classify() != Category::Data {
        let hint = "; JSON has no NaN, no infinity, no comments and no trailing commas";
        let detail = format!("the body is not JSON: {what}, at line {line}, column {column}{hint}");
        return Problem::new(StatusCode::BAD_REQUEST, detail).at(line, column);
    }
    let parent = if path == "." { "" } else { path };
    let about = |prefix| what.strip_prefix(prefix).and_then(|rest| rest.strip_suffix('`'));
    let field = match about("missing field `").or_else(|| about("duplicate field `")) {
        Some(name) if parent.is_empty() => name.to_owned(),
        Some(name) => format!("{parent}.{name}"),
        None => parent.to_owned(),
    };
    let right = hint_for(T::HINTS, &field).map(|r| format!("; {r}")).unwrap_or_default();
    let subject = if field.is_empty() { "the body" } else { &field };
    let detail = format!("{subject}: {what} (line {line}, column {column}){right}");
    let problem = Problem::new(StatusCode::UNPROCESSABLE_ENTITY, detail).at(line, column);
    if field.is_empty() { problem } else { problem.of_field(field) }
}

/// Returns the hint for a field; without one, the hint for the nearest enclosing field: `gpus[1]` uses that of `gpus`.
fn hint_for(right: &'static [(&'static str, &'static str)], field: &str) -> Option<&'static str> {
    let mut path = field;
    loop {
        if let Some((_, what)) = right.iter().find(|(name, _)| *name == path) {
            return Some(what);
        }
        path = &path[..path.rfind(['.', '['])?];
    }
}

/// A value that is read from the parameters of a route's path.
pub(super) trait FromPath: Sized {
    /// The path's parameters.
    type Parameters: DeserializeOwned + Send;

    /// Reads the value. An invalid name usually gives 404, since nothing of that name can exist.
    fn parse(parameters: Self::Parameters) -> Result<Self, Problem>;
}

/// A value read from the path of the request.
pub(super) struct Named<T>(pub T);

impl<T: FromPath, S: Send + Sync> FromRequestParts<S> for Named<T> {
    type Rejection = Problem;

    async fn from_request_parts(parts: &mut Parts, state: &S) -> Result<Self, Problem> {
        match Path::<T::Parameters>::from_request_parts(parts, state).await {
            Ok(Path(parameters)) => T::parse(parameters).map(Self),
            Err(rejection) => {
                let detail = format!("the address cannot be read: {}", rejection.body_text());
                Err(Problem::new(StatusCode::BAD_REQUEST, detail))
            }
        }
    }
}

/// Reads a whole number from a query string: digits only, as in the schema, while Rust would also accept a sign.
pub(super) fn whole_number<'de, D: Deserializer<'de>, T: FromStr>(deserializer: D) -> Result<T, D::Error> {
    let text = String::deserialize(deserializer)?;
    let number = text.parse().ok().filter(|_| text.bytes().all(|b| b.is_ascii_digit()));
    number.ok_or_else(|| {
        let short: String = text.chars().take(80).collect();
        de::Error::invalid_value(de::Unexpected::Str(&short), &"a whole number in digits, within its bounds")
    })
}

/// Reads an optional whole number from a query string.
pub(super) fn optional_whole_number<'de, D: Deserializer<'de>, T: FromStr>(
    deserializer: D,
) -> Result<Option<T>, D::Error> {
    whole_number(deserializer).map(Some)
}

/// Values read from the query string of the request.
pub(super) struct Params<T>(pub T);

impl<T: DeserializeOwned, S: Send + Sync> FromRequestParts<S> for Params<T> {
    type Rejection = Problem;

    async fn from_request_parts(parts: &mut Parts, state: &S) -> Result<Self, Problem> {
        let query = Query::<T>::from_request_parts(parts, state).await;
        query.map(|Query(params)| Self(params)).map_err(|rejection: QueryRejection| {
            let text = rejection.body_text();
            let what = text.strip_prefix("Failed to deserialize query string: ").unwrap_or(&text);
            let parameter = parameter_of(what).map(str::to_owned);
            let what = with_nearest(what.to_owned());
            let detail = format!("the query string is wrong: {what}");
            let problem = Problem::new(StatusCode::UNPROCESSABLE_ENTITY, detail);
            match parameter {
                Some(parameter) => problem.of_field(parameter),
                None => problem,
            }
        })
    }
}

/// Returns the parameter of the query string that an error is about, such as `within_s` in "within_s: invalid float
/// literal" and in "duplicate field `within_s`"; `None` if the text names none.
fn parameter_of(error: &str) -> Option<&str> {
    let quoted = |kind: &str| error.strip_prefix(kind)?.split('`').nth(1);
    let is_name = |text: &&str| !text.is_empty() && text.bytes().all(|b| b.is_ascii_alphanumeric() || b == b'_');
    let named = || error.split_once(": ").map(|(parameter, _)| parameter);
    let kinds = ["duplicate field ", "missing field ", "unknown field "];
    kinds.iter().find_map(|kind| quoted(kind)).or_else(named).filter(is_name)
}

/// Returns an error about a field.
pub(super) fn invalid(field: &'static str, why: impl Into<String>) -> InvalidJob {
    InvalidJob { field, why: why.into() }
}

/// Returns the quantity of a field, or an error if it is not finite.
pub(super) fn finite<Q>(field: &'static str, quantity: Option<Q>) -> Result<Q, InvalidJob> {
    quantity.ok_or_else(|| invalid(field, "is not a finite number"))
}

/// Returns the quantity of a field that may be absent, or an error if it is not finite.
pub(super) fn optional_quantity<Q>(
    field: &'static str,
    given: Option<f64>,
    new: fn(f64) -> Option<Q>,
) -> Result<Option<Q>, InvalidJob> {
    given.map(|number| finite(field, new(number))).transpose()
}

/// Returns the requested maximum length of a list, or an error if the request is outside 1..=`most`.
pub(super) fn page_length(limit: u32, most: u32) -> Result<u32, InvalidJob> {
    let why = || format!("is {limit}; it must be from 1 to {most}");
    if (1..=most).contains(&limit) { Ok(limit) } else { Err(invalid("limit", why())) }
}

/// Returns `N`, for use as the default of a field.
pub(super) const fn default_number<const N: u32>() -> u32 {
    N
}

/// First a request; then the HTTP status, the field (`None` for none) and a part of the text of the problem that must
/// follow.
#[cfg(test)]
pub(super) type Refused<'a> = (&'a str, u16, Option<&'a str>, &'a str);

/// Asserts that each of these requests is refused as stated.
#[cfg(test)]
pub(super) fn assert_refused<T: fmt::Debug>(read: impl Fn(&str) -> Result<T, Problem>, table: &[Refused<'_>]) {
    for (text, status, field, detail) in table {
        let problem = read(text).expect_err(text);
        assert_eq!((problem.status, problem.field.as_deref()), (*status, *field), "{text}: {problem:?}");
        assert!(problem.detail.contains(detail), "{text}: {}", problem.detail);
    }
}
