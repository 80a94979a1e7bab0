//! Errors as RFC 9457 problem details: the only place where errors become HTTP statuses.

use axum::Json;
use axum::http::{HeaderValue, StatusCode, header};
use axum::response::{IntoResponse, Response};
use serde::Serialize;
use utoipa::ToSchema;

use crate::controller::{Busy, ControlError};
use crate::recurring::RecurringError;
use crate::store::StoreError;
use wattune_core::bandit::{InvalidSpec, Refused};
use wattune_core::domain::InvalidJob;

/// The media type of a [`Problem`].
pub(super) const PROBLEM_JSON: &str = "application/problem+json";

/// The value of `WWW-Authenticate` in refusals of requests without a valid token.
pub(super) const CHALLENGE: &str = "Bearer realm=\"wattune\"";

/// Explanation of an answer with 403, which is beside the answer for the audit log.
#[derive(Clone, Debug)]
pub(super) struct Denied(pub(super) String);

/// The result of a handler: a JSON body, or a problem.
pub(super) type Answer<T> = Result<Json<T>, Problem>;

/// The reason why a request was refused, and what would be right (RFC 9457).
#[derive(Clone, Debug, PartialEq, Serialize, ToSchema)]
pub(super) struct Problem {
    /// Always `about:blank`: `status` gives the kind of problem.
    #[serde(rename = "type")]
    #[schema(example = "about:blank")]
    pub(super) kind: &'static str,
    /// The standard name of the HTTP status.
    #[schema(example = "Unprocessable Entity")]
    pub(super) title: &'static str,
    /// The HTTP status code.
    #[schema(example = 422)]
    pub(super) status: u16,
    /// One sentence: what is wrong and what would be right.
    pub(super) detail: String,
    /// The field of the request that is wrong, as a path: `objective.eta`, `gpus[1]`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) field: Option<String>,
    /// The line of the request's body, counted from 1.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) line: Option<usize>,
    /// The column in line `line` of the request's body, counted from 1.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) column: Option<usize>,
}

impl Problem {
    /// Creates a problem with this HTTP status and this explanation.
    pub(super) fn new(status: StatusCode, detail: impl Into<String>) -> Self {
        Self {
            kind: "about:blank",
            title: status.canonical_reason().unwrap_or("Unknown"),
            status: status.as_u16(),
            detail: detail.into(),
            field: None,
            line: None,
            column: None,
        }
    }

    /// Adds the field that is wrong.
    #[must_use]
    pub(super) fn of_field(mut self, field: impl Into<String>) -> Self {
        self.field = Some(field.into());
        self
    }

    /// Adds the position in the request body.
    #[must_use]
    pub(super) fn at(mut self, line: usize, column: usize) -> Self {
        (self.line, self.column) = (Some(line), Some(column));
        self
    }

    /// Creates the problem for an answer that was not ready in time.
    pub(super) fn timed_out(timeout: std::time::Duration) -> Self {
        let detail = format!(
            "the daemon did not answer within {} s; the request may still take effect, check its effect before repeating it",
            timeout.as_secs_f64()
        );
        Self::new(StatusCode::SERVICE_UNAVAILABLE, detail)
    }
}

impl IntoResponse for Problem {
    fn into_response(self) -> Response {
        let status = StatusCode::from_u16(self.status).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR);
        let denied = (status == StatusCode::FORBIDDEN).then(|| Denied(self.detail.clone()));
        let mut response = (status, Json(self)).into_response();
        if let Some(denied) = denied {
            response.extensions_mut().insert(denied);
        }
        let headers = response.headers_mut();
        headers.insert(header::CONTENT_TYPE, HeaderValue::from_static(PROBLEM_JSON));
        if status == StatusCode::UNAUTHORIZED {
            headers.insert(header::WWW_AUTHENTICATE, HeaderValue::from_static(CHALLENGE));
        }
        if status == StatusCode::SERVICE_UNAVAILABLE {
            headers.insert(header::RETRY_AFTER, HeaderValue::from_static("1"));
        }
        response
    }
}

impl From<InvalidJob> for Problem {
    fn from(error: InvalidJob) -> Self {
        Self::new(StatusCode::UNPROCESSABLE_ENTITY, error.to_string()).of_field(error.field)
    }
}

impl From<ControlError> for Problem {
    fn from(error: ControlError) -> Self {
        match error {
            ControlError::NotFound { .. } => Self::new(StatusCode::NOT_FOUND, error.to_string()),
            ControlError::Invalid(invalid) => invalid.into(),
            ControlError::Conflict(why) => Self::new(StatusCode::CONFLICT, why),
            ControlError::KeyTaken(why) => Self::new(StatusCode::CONFLICT, why).of_field("key"),
            ControlError::TooMany(why) => Self::new(StatusCode::TOO_MANY_REQUESTS, why),
            ControlError::Forbidden(why) => Self::new(StatusCode::FORBIDDEN, why),
            ControlError::NotPermitted { field, .. } => {
                Self::new(StatusCode::FORBIDDEN, error.to_string()).of_field(field)
            }
            ControlError::Journal(_) => Self::new(StatusCode::SERVICE_UNAVAILABLE, error.to_string()),
            ControlError::Store(cause) => cause.into(),
        }
    }
}

impl From<StoreError> for Problem {
    fn from(cause: StoreError) -> Self {
        // The cause may contain paths, so only the log has it, for the operator.
        tracing::error!("a request was answered with 503: the database failed: {cause}");
        let detail = "the database cannot be read or written now; the daemon's log has the reason";
        Self::new(StatusCode::SERVICE_UNAVAILABLE, detail)
    }
}

impl From<InvalidSpec> for Problem {
    fn from(error: InvalidSpec) -> Self {
        Self::new(StatusCode::UNPROCESSABLE_ENTITY, error.to_string()).of_field(error.field)
    }
}

impl From<RecurringError> for Problem {
    fn from(error: RecurringError) -> Self {
        match error {
            RecurringError::NotFound(_) => Self::new(StatusCode::NOT_FOUND, error.to_string()),
            RecurringError::Conflict(why) => Self::new(StatusCode::CONFLICT, why),
            RecurringError::Invalid(invalid) => invalid.into(),
            RecurringError::Refused(refused) => refused.into(),
            RecurringError::Forbidden(why) => Self::new(StatusCode::FORBIDDEN, why),
            RecurringError::Store(cause) => cause.into(),
        }
    }
}

impl From<Refused> for Problem {
    fn from(refused: Refused) -> Self {
        let detail = refused.to_string();
        match refused {
            Refused::NoSuchTrial(_) => Self::new(StatusCode::NOT_FOUND, detail),
            Refused::Void { .. } => Self::new(StatusCode::GONE, detail),
            Refused::Ended { field, .. } => Self::new(StatusCode::CONFLICT, detail).of_field(field),
            Refused::NoneConverges(_) | Refused::TooMany => Self::new(StatusCode::CONFLICT, detail),
            Refused::Contradiction { field, .. } => Self::new(StatusCode::UNPROCESSABLE_ENTITY, detail).of_field(field),
            Refused::KeyOfOthers { .. } => Self::new(StatusCode::CONFLICT, detail).of_field("key"),
            Refused::Taken { .. } => Self::new(StatusCode::CONFLICT, detail).of_field("job_id"),
        }
    }
}

impl From<Busy> for Problem {
    fn from(busy: Busy) -> Self {
        Self::new(StatusCode::SERVICE_UNAVAILABLE, busy.to_string())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn controller_errors_map_to_statuses() {
        let invalid = InvalidJob { field: "lease_s", why: "is 0; it must be from 1 to 86400 seconds".into() };
        let not_found =
            ControlError::NotFound { what: "GPU", given: "7".into(), hint: "; GPUs of this machine: 0".into() };
        let table = [
            (not_found.into(), 404, "no GPU \"7\"; GPUs of this machine: 0", None),
            (ControlError::Invalid(invalid).into(), 422, "lease_s: is 0; it must be from", Some("lease_s")),
            (ControlError::Conflict("held by job a".into()).into(), 409, "held by job a", None),
            (ControlError::Forbidden("observes only".into()).into(), 403, "observes only", None),
            (Problem::from(Busy), 503, "try again", None),
        ];
        for (problem, status, detail, field) in table {
            assert_eq!(problem.status, status);
            assert!(problem.detail.contains(detail), "{problem:?}");
            assert_eq!(problem.field.as_deref(), field);
        }
    }

    #[test]
    fn a_problem_follows_the_rfc() {
        let problem = Problem::new(StatusCode::UNPROCESSABLE_ENTITY, "name: is empty").of_field("name").at(1, 9);
        let expected = serde_json::json!({
            "type": "about:blank", "title": "Unprocessable Entity", "status": 422, "detail": "name: is empty",
            "field": "name", "line": 1, "column": 9,
        });
        assert_eq!(serde_json::to_value(&problem).expect("JSON"), expected);
        let response = problem.into_response();
        assert_eq!(response.headers()["content-type"], PROBLEM_JSON);
        let busy = Problem::from(Busy).into_response();
        assert_eq!(busy.headers()["retry-after"], "1");
    }
}
