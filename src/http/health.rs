//! Health checks: liveness and readiness.

use std::time::Duration;

use axum::Json;
use axum::extract::State;
use axum::http::StatusCode;
use serde::Serialize;
use utoipa::ToSchema;

use super::error::{Answer, Problem};
use super::shared::{Shared, within};

const TIME_LIMIT: Duration = Duration::from_secs(2);

/// The answer of a successful health check.
#[derive(Clone, Copy, Debug, Serialize, ToSchema)]
pub struct HealthView {
    /// Always `ok`; the answer of a failed check has another HTTP status, and a problem as its body.
    pub status: &'static str,
}

/// Checks that the control loop answers. If the check fails, the daemon should be restarted.
#[utoipa::path(
    get, path = "/healthz", tag = "health",
    responses((status = OK, body = HealthView), (status = SERVICE_UNAVAILABLE, response = Problem))
)]
pub(super) async fn healthz(State(shared): State<Shared>) -> Answer<HealthView> {
    // The control loop answers between ticks, so an answer proves that the last tick ended.
    let answer = within(TIME_LIMIT.min(shared.timeout), shared.handle.ask(|_| Box::pin(async {})));
    answer.await.map(|()| Json(HealthView { status: "ok" })).map_err(|problem| {
        let detail = format!("the control loop does not answer: {}", problem.detail);
        Problem::new(StatusCode::SERVICE_UNAVAILABLE, detail)
    })
}

/// Checks the same as `/healthz`.
#[utoipa::path(
    get, path = "/health", tag = "health",
    responses((status = OK, body = HealthView), (status = SERVICE_UNAVAILABLE, response = Problem))
)]
pub(super) async fn health(state: State<Shared>) -> Answer<HealthView> {
    healthz(state).await
}

/// Checks that the daemon has started and answers. If the check fails, clients should wait.
#[utoipa::path(
    get, path = "/readyz", tag = "health",
    responses((status = OK, body = HealthView), (status = SERVICE_UNAVAILABLE, response = Problem))
)]
pub(super) async fn readyz(state: State<Shared>) -> Answer<HealthView> {
    if !state.ready.get() {
        let detail = "the daemon is still starting, or is shutting down";
        return Err(Problem::new(StatusCode::SERVICE_UNAVAILABLE, detail));
    }
    healthz(state).await
}
