//! Whether the daemon lives and is ready, and where its faces are.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use axum::Json;
use axum::extract::State;
use axum::http::{StatusCode, header};
use axum::response::IntoResponse;
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

const LANDING: &str = concat!(
    "wattune ",
    env!("CARGO_PKG_VERSION"),
    r#": GPU power limits that follow the grid's carbon intensity

/v1/status                      mode, carbon signal, GPUs, open jobs, problems
/v1/gpus, /v1/gpus/{id}         boards; PUT and DELETE …/power-limit set and release a limit by hand
/v1/demand-response             caps for a while: list and announce; DELETE …/{id} withdraws
/v1/carbon                      intensity now; /v1/carbon/forecast ahead, /v1/carbon/history behind
/v1/jobs, /v1/jobs/{id}         training runs; …/progress, …/plan, …/profile, …/emissions
/v1/recurring, …/{name}         jobs that recur; …/trials, …/trials/{n}/progress, …/trials/{n}/end, …/export, …/import
/metrics                        Prometheus
/healthz, /readyz               health
/openapi.json                   all of this, for programs
"#
);

/// A list of the addresses, as text.
#[utoipa::path(
    get, path = "/", tag = "health", responses((status = OK, body = String, content_type = "text/plain"), Problems)
)]
pub(super) async fn landing() -> impl IntoResponse {
    ([(header::CONTENT_TYPE, "text/plain; charset=utf-8")], LANDING)
}
