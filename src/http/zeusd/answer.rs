//! Refusals in the shapes of Zeus's daemon, and the errors of devices as it words them.

use std::collections::BTreeMap;

use axum::http::{HeaderValue, StatusCode, header};
use axum::response::{IntoResponse, Response};
use serde::Serialize;

use crate::controller::WriteRefused;
use crate::gpu::GpuError;

/// Refusal of a request.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum Refusal {
    /// The query string cannot be read: 400 as text.
    Query(String),
    /// A GPU to be changed does not exist: 400 as text.
    NoSuchGpu(u64),
    /// The request is wrong: 400 with `error`.
    Error(String),
    /// The route is switched off: 404 with `error`.
    Disabled(String),
    /// Devices failed: the largest status among them, with `errors`.
    Devices(BTreeMap<u32, (StatusCode, String)>),
    /// The request has no valid token: 401 with `error` and a challenge.
    Unauthorized(String),
    /// The token or the connection lacks the right: 403 with `error`.
    Forbidden(String),
    /// There is no such route: 404 without a body.
    NoRoute,
}

/// Body of a refusal with one reason.
#[derive(Serialize)]
struct ErrorBody {
    error: String,
}

/// Body of a refusal with a reason for each device.
#[derive(Serialize)]
struct ErrorsBody {
    errors: BTreeMap<u32, String>,
}

impl IntoResponse for Refusal {
    fn into_response(self) -> Response {
        match self {
            Self::Query(reason) => text(format!("Query deserialize error: {reason}")),
            Self::NoSuchGpu(index) => text(format!("GPU index {index} does not exist.")),
            Self::Error(error) => (StatusCode::BAD_REQUEST, axum::Json(ErrorBody { error })).into_response(),
            Self::Disabled(error) => (StatusCode::NOT_FOUND, axum::Json(ErrorBody { error })).into_response(),
            Self::Unauthorized(error) => {
                let challenge = [(header::WWW_AUTHENTICATE, HeaderValue::from_static("Bearer realm=\"zeusd\""))];
                (StatusCode::UNAUTHORIZED, challenge, axum::Json(ErrorBody { error })).into_response()
            }
            Self::Forbidden(error) => (StatusCode::FORBIDDEN, axum::Json(ErrorBody { error })).into_response(),
            Self::Devices(failed) => {
                let status =
                    failed.values().map(|(status, _)| *status).max().unwrap_or(StatusCode::INTERNAL_SERVER_ERROR);
                let errors = failed.into_iter().map(|(device, (_, message))| (device, message)).collect();
                (status, axum::Json(ErrorsBody { errors })).into_response()
            }
            Self::NoRoute => StatusCode::NOT_FOUND.into_response(),
        }
    }
}

fn text(text: String) -> Response {
    let plain = HeaderValue::from_static("text/plain; charset=utf-8");
    (StatusCode::BAD_REQUEST, [(header::CONTENT_TYPE, plain)], text).into_response()
}

/// Returns the status and the message of a failed device call.
pub(super) fn of_gpu(error: &GpuError) -> (StatusCode, String) {
    let (status, text) = match error {
        GpuError::NoPermission { .. } => {
            (StatusCode::FORBIDDEN, "the current user does not have permission to perform this operation".to_owned())
        }
        GpuError::NotSupported { .. } => {
            (StatusCode::BAD_REQUEST, "the requested operation is not available on the target device".to_owned())
        }
        GpuError::Lost { .. } => (
            StatusCode::INTERNAL_SERVER_ERROR,
            "device fell off the bus or has otherwise become inacessible".to_owned(),
        ),
        GpuError::TimedOut { .. } => (StatusCode::INTERNAL_SERVER_ERROR, "the provided timeout was reached".to_owned()),
        GpuError::Driver { message, .. } if message == INVALID => (StatusCode::BAD_REQUEST, message.clone()),
        GpuError::Driver { message, .. } => (StatusCode::INTERNAL_SERVER_ERROR, message.clone()),
        GpuError::MissingSymbol { .. } | GpuError::LimitChanged { .. } | GpuError::LimitUnknown { .. } => {
            (StatusCode::INTERNAL_SERVER_ERROR, error.to_string())
        }
    };
    (status, format!("NVML error: {text}"))
}

/// NVML's message about an argument out of range.
const INVALID: &str = "a supplied argument was invalid";

/// Returns the status and the message of a refused or failed write.
pub(super) fn of_write(refused: &WriteRefused) -> (StatusCode, String) {
    match refused {
        WriteRefused::Owned(why) => (StatusCode::FORBIDDEN, why.clone()),
        WriteRefused::OutOfRange { .. } => (StatusCode::BAD_REQUEST, format!("NVML error: {INVALID}")),
        WriteRefused::Impossible(why) => (StatusCode::BAD_REQUEST, format!("Invalid request: {why}")),
        WriteRefused::Device(error) => of_gpu(error),
        WriteRefused::TooMany
        | WriteRefused::GivenUp
        | WriteRefused::Ending
        | WriteRefused::Unfinished
        | WriteRefused::Journal(_) => (StatusCode::INTERNAL_SERVER_ERROR, refused.to_string()),
    }
}
