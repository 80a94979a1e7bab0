//! The daemon as a whole.

use axum::Json;
use axum::extract::State;

use crate::controller::view::StatusView;
use crate::http::error::Answer;
use crate::http::shared::Shared;

/// Returns mode, signal, GPUs and their owners, open jobs, and current problems.
#[utoipa::path(
    get, path = "/v1/status", operation_id = "get_status", tag = "status",
    responses((status = OK, body = StatusView))
)]
pub(in crate::http) async fn status(State(shared): State<Shared>) -> Answer<StatusView> {
    shared.status().await.map(Json)
}
