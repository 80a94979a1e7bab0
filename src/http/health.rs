//! Whether the daemon lives and is ready.

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

const PATIENCE: Duration = Duration::from_secs(2);

/// Set once the daemon is ready to serve, and unset when it stops. Clones share one flag.
#[derive(Clone, Debug, Default)]
pub struct Ready(Arc<AtomicBool>);

impl Ready {
    /// Says so.
    pub fn set(&self, ready: bool) {
        self.0.store(ready, Ordering::Release);
    }

    /// Whether it is.
    pub fn get(&self) -> bool {
        self.0.load(Ordering::Acquire)
    }
}

/// A good answer.
#[derive(Clone, Copy, Debug, Serialize, ToSchema)]
pub struct HealthView {
    /// `ok`; anything else is a problem with another status.
    pub status: &'static str,
}

const OK: Json<HealthView> = Json(HealthView { status: "ok" });

/// Whether the control loop answers; if not, the daemon should be restarted.
#[utoipa::path(
    get, path = "/healthz", tag = "health",
    responses((status = OK, body = HealthView), (status = SERVICE_UNAVAILABLE, response = Problem), Problems)
)]
pub(super) async fn healthz(State(shared): State<Shared>) -> Result<Json<HealthView>, Problem> {
    alive(&shared).await.map(|()| OK)
}

/// The same as `/healthz`.
#[utoipa::path(
    get, path = "/health", tag = "health",
    responses((status = OK, body = HealthView), (status = SERVICE_UNAVAILABLE, response = Problem), Problems)
)]
pub(super) async fn health(state: State<Shared>) -> Result<Json<HealthView>, Problem> {
    healthz(state).await
}

/// Whether the daemon has started and answers; if not, requests should wait.
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
    // Questions are answered between ticks: an answer is a tick that ended.
    shared.ask_within(PATIENCE.min(shared.timeout), |_| Box::pin(async {})).await.map_err(|problem| {
        let detail = format!("the control loop does not answer: {}", problem.detail);
        Problem::new(StatusCode::SERVICE_UNAVAILABLE, detail)
    })
}
