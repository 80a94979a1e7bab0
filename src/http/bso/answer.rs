//! Answers in the form of Zeus's server, also where it refuses a request.

use axum::Json;
use axum::http::{HeaderValue, StatusCode, header};
use axum::response::{IntoResponse, Response};
use serde::Serialize;

use super::fields::Mistake;
use crate::http::error::{Denied, Problem};
use crate::recurring::{RecurringError, ZeusError};
use wattune_core::bandit::ZeusRefused;

/// The refusal of a request.
#[derive(Debug)]
pub(super) struct Refusal {
    status: StatusCode,
    body: Body,
}

#[derive(Debug, Serialize)]
#[serde(untagged)]
enum Body {
    /// An unknown path, a wrong method, or a body that cannot be read.
    Routing { detail: &'static str },
    /// Mistakes in the request.
    Mistakes { detail: Vec<Mistake> },
    /// A body that is not JSON.
    Syntax { detail: [Syntax; 1] },
    /// Any other error.
    Message { message: String },
}

#[derive(Debug, Serialize)]
struct Syntax {
    #[serde(rename = "type")]
    kind: &'static str,
    loc: (&'static str, usize),
    msg: &'static str,
    input: Empty,
    ctx: Cause,
}

#[derive(Debug, Serialize)]
struct Empty {}

#[derive(Debug, Serialize)]
struct Cause {
    error: &'static str,
}

impl Refusal {
    /// Creates a refusal with this message.
    pub(super) fn message(status: StatusCode, message: impl Into<String>) -> Self {
        Self { status, body: Body::Message { message: message.into() } }
    }

    /// Creates the refusal of a request with these mistakes.
    pub(super) fn mistakes(detail: Vec<Mistake>) -> Self {
        Self { status: StatusCode::UNPROCESSABLE_ENTITY, body: Body::Mistakes { detail } }
    }

    /// Creates the refusal of a body with a syntax error at this position in characters.
    pub(super) fn syntax(position: usize, error: &'static str) -> Self {
        let loc = ("body", position);
        let msg = "JSON decode error";
        let syntax = Syntax { kind: "json_invalid", loc, msg, input: Empty {}, ctx: Cause { error } };
        Self { status: StatusCode::UNPROCESSABLE_ENTITY, body: Body::Syntax { detail: [syntax] } }
    }

    /// Creates the refusal of a body that is no text, or too deeply nested.
    pub(super) fn unreadable() -> Self {
        let body = Body::Routing { detail: "There was an error parsing the body" };
        Self { status: StatusCode::BAD_REQUEST, body }
    }

    /// Creates the answer to a request for an unknown path.
    pub(super) fn not_found() -> Self {
        Self { status: StatusCode::NOT_FOUND, body: Body::Routing { detail: "Not Found" } }
    }

    /// Creates the answer to a request whose method is not among `allowed`.
    pub(super) fn wrong_method(allowed: &'static str) -> Response {
        let body = Body::Routing { detail: "Method Not Allowed" };
        let mut response = Self { status: StatusCode::METHOD_NOT_ALLOWED, body }.into_response();
        response.headers_mut().insert(header::ALLOW, HeaderValue::from_static(allowed));
        response
    }

    /// Creates the refusal for an error of the service. `text` returns the message for errors of the request.
    pub(super) fn of(error: ZeusError, text: impl FnOnce(ZeusRefused) -> (StatusCode, String)) -> Self {
        match error {
            ZeusError::Refused(refused) => {
                let (status, message) = text(refused);
                Self::message(status, message)
            }
            ZeusError::UnknownJob => Self::message(StatusCode::BAD_REQUEST, error.to_string()),
            ZeusError::Failed(cause) => {
                let is_forbidden = matches!(cause, RecurringError::Forbidden(_));
                let status = if is_forbidden { StatusCode::FORBIDDEN } else { StatusCode::INTERNAL_SERVER_ERROR };
                Self::message(status, Problem::from(cause).detail)
            }
        }
    }
}

impl From<Problem> for Refusal {
    fn from(problem: Problem) -> Self {
        let status = StatusCode::from_u16(problem.status).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR);
        Self::message(status, problem.detail)
    }
}

impl IntoResponse for Refusal {
    fn into_response(self) -> Response {
        let denied = match &self.body {
            Body::Message { message } if self.status == StatusCode::FORBIDDEN => Some(Denied(message.clone())),
            _ => None,
        };
        let mut response = (self.status, Json(self.body)).into_response();
        if let Some(denied) = denied {
            response.extensions_mut().insert(denied);
        }
        response
    }
}
