//! Liveness and readiness.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use axum::Json;
use axum::extract::State;
use axum::http::StatusCode;
use serde::Serialize;
use utoipa::ToSchema;

use super::Shared;
use super::error::Problem;
use super::openapi::Problems;

const TIME_LIMIT: Duration = Duration::from_secs(2);

/// The readiness flag: set once the daemon is ready to serve, cleared when it stops. Clones share one flag.
#[derive(Clone, Debug, Default)]
pub struct Ready(Arc<AtomicBool>);

impl Ready {
    /// Sets the flag.
    pub fn set(&self, ready: bool) {
        self.0.store(ready, Ordering::Release);
    }

    /// Returns the flag.
    pub fn get(&self) -> bool {
        self.0.load(Ordering::Acquire)
    }
}

/// A positive health check.
#[derive(Clone, Copy, Debug, Serialize, ToSchema)]
pub struct HealthView {
    /// Always `ok`; failures have another status and a problem.
    pub status: &'static str,
}

const OK: Json<HealthView> = Json(HealthView { status: "ok" });

/// Checks that the control loop answers. If not, the daemon should be restarted.
#[utoipa::path(
    get, path = "/healthz", tag = "health",
    responses((status = OK, body = HealthView), (status = SERVICE_UNAVAILABLE, response = Problem), Problems)
)]
pub(super) async fn healthz(State(shared): State<Shared>) -> Result<Json<HealthView>, Problem> {
    alive(&shared).await.map(|()| OK)
}

/// Checks the same as `/healthz`.
#[utoipa::path(
    get, path = "/health", tag = "health",
    responses((status = OK, body = HealthView), (status = SERVICE_UNAVAILABLE, response = Problem), Problems)
)]
pub(super) async fn health(state: State<Shared>) -> Result<Json<HealthView>, Problem> {
    healthz(state).await
}

/// Checks that the daemon has started and answers. If not, requests should wait.
#[utoipa::path(
    get, path = "/readyz", tag = "health",
    responses((status = OK, body = HealthView), (status = SERVICE_UNAVAILABLE, response = Problem), Problems)
)]
pub(super) async fn readyz(State(shared): State<Shared>) -> Result<Json<HealthView>, Problem> {
    if !shared.ready.get() {
        let detail = "the daemon is still starting, or is shutting down";
        return Err(Problem::new(StatusCode::SERVICE_UNAVAILABLE, detail));
    }
    alive(&shared).await.map(|()| OK)
}

async fn alive(shared: &Shared) -> Result<(), Problem> {
    // The loop answers between ticks: an answer proves that a tick ended.
    shared.ask_within(TIME_LIMIT.min(shared.timeout), |_| Box::pin(async {})).await.map_err(|problem| {
        let detail = format!("the control loop does not answer: {}", problem.detail);
        Problem::new(StatusCode::SERVICE_UNAVAILABLE, detail)
    })
}
