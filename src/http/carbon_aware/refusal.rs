//! Errors in the shape of the Carbon Aware SDK.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, Ordering};

use axum::Json;
use axum::http::{HeaderValue, StatusCode, header};
use axum::response::{IntoResponse, Response};
use serde::Serialize;
use utoipa::ToSchema;

use crate::http::error::{PROBLEM_JSON, Problem};

/// The reason why a request of a Carbon Aware SDK client was refused.
#[derive(Clone, Debug, PartialEq, Serialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub(in crate::http) struct SdkProblem {
    /// The kind of fault: `ArgumentException` or, if the daemon is at fault, the HTTP status in words.
    title: String,
    /// The HTTP status code.
    #[schema(example = 400)]
    status: u16,
    /// One sentence: what is wrong and what would be right.
    detail: String,
    /// The reasons by query parameter.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    errors: BTreeMap<String, Vec<String>>,
    /// The number of the refusal, in the format of the W3C's trace context.
    #[schema(example = "00-0000000000000000000000000000002a-000000000000002a-00")]
    trace_id: String,
}

impl SdkProblem {
    fn new(status: StatusCode, title: impl Into<String>, detail: impl Into<String>) -> Self {
        static NUMBER: AtomicU64 = AtomicU64::new(1);
        let number = NUMBER.fetch_add(1, Ordering::Relaxed);
        Self {
            title: title.into(),
            status: status.as_u16(),
            detail: detail.into(),
            errors: BTreeMap::new(),
            trace_id: format!("00-{number:032x}-{number:016x}-00"),
        }
    }

    /// Creates the problem of a parameter.
    pub(super) fn argument(parameter: &str, why: impl Into<String>) -> Self {
        let why = why.into();
        let mut problem = Self::new(StatusCode::BAD_REQUEST, "ArgumentException", why.clone());
        problem.errors.insert(parameter.to_owned(), vec![why]);
        problem
    }

    /// Creates the problem of a location that the daemon does not have.
    pub(super) fn unknown_location(given: &str, known: Option<&str>) -> Self {
        let short: String = given.chars().take(80).collect();
        let known = known.map_or_else(
            || "the daemon's carbon signal has no zone yet".to_owned(),
            |zone| format!("this daemon has the location '{zone}' only"),
        );
        Self::argument("location", format!("Unknown Location: '{short}' not found; {known}"))
    }

    /// Creates the problem of a forecast that the daemon does not have now.
    pub(super) fn no_forecast() -> Self {
        let detail = "no carbon source has a value now or later; GET /v1/carbon has the reason";
        Self::new(StatusCode::SERVICE_UNAVAILABLE, "Service Unavailable", detail)
    }
}

impl From<Problem> for SdkProblem {
    fn from(problem: Problem) -> Self {
        let status = StatusCode::from_u16(problem.status).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR);
        Self::new(status, problem.title, problem.detail)
    }
}

impl IntoResponse for SdkProblem {
    fn into_response(self) -> Response {
        let status = StatusCode::from_u16(self.status).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR);
        let mut response = (status, Json(self)).into_response();
        response.headers_mut().insert(header::CONTENT_TYPE, HeaderValue::from_static(PROBLEM_JSON));
        response
    }
}
