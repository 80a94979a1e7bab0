//! Prometheus metrics, made of the daemon's status when they are asked for: nothing is kept in between, so that series
//! of ended jobs are gone, and absent values have none.

mod cap;
mod carbon;
mod cpu;
mod device;
mod family;
mod job;

use axum::extract::State;
use axum::http::{StatusCode, header};
use axum::response::IntoResponse;
use prometheus_client::encoding::text;
use prometheus_client::registry::Registry;

use self::family::Families;
use super::Shared;
use super::error::Problem;
use super::openapi::Problems;
use crate::controller::view::StatusView;

const OPEN_METRICS: &str = "application/openmetrics-text; version=1.0.0; charset=utf-8";

/// Prometheus metrics, as OpenMetrics text.
#[utoipa::path(
    get, path = "/metrics", tag = "health",
    responses(
        (status = OK, body = String, content_type = "application/openmetrics-text"),
        (status = SERVICE_UNAVAILABLE, response = Problem),
        Problems
    )
)]
pub(super) async fn metrics(State(shared): State<Shared>) -> Result<impl IntoResponse, Problem> {
    let status = shared.status().await?;
    let text = encode(&status).map_err(|error| {
        tracing::error!("the metrics cannot be written: {error}");
        Problem::new(StatusCode::INTERNAL_SERVER_ERROR, "the metrics cannot be written; the daemon's log says why")
    })?;
    Ok(([(header::CONTENT_TYPE, OPEN_METRICS)], text))
}

/// The daemon's status as OpenMetrics text.
///
/// # Errors
/// If the text cannot be written, which a string always can be.
pub fn encode(status: &StatusView) -> Result<String, std::fmt::Error> {
    let mut families = Families::default();
    daemon(status, &mut families);
    carbon::describe(status, &mut families);
    cap::describe(status, &mut families);
    device::describe(&status.gpus, &mut families);
    cpu::describe(status.cpu.as_ref(), &mut families);
    job::describe(status, &mut families);
    let mut registry = Registry::with_prefix("wattune");
    registry.register_collector(Box::new(families));
    let mut text = String::new();
    text::encode(&mut text, &registry)?;
    Ok(text)
}

fn daemon(status: &StatusView, families: &mut Families) {
    let build = [("version", status.version.to_owned())];
    families.info("build", "The daemon's version").push(build);
    let control = f64::from(u8::from(status.mode == "control"));
    families.gauge("control_enabled", "", "1 where limits are set, 0 where they are only planned").add([], control);
    let simulated = f64::from(u8::from(status.simulated));
    families.gauge("simulated", "", "1 where every GPU is a simulation").add([], simulated);
    let started = status.started_at.timestamp_micros() as f64 / 1e6;
    families.gauge("start_time", "seconds", "When the daemon started, since the Unix epoch").add([], started);
    let problems = status.problems.len() as f64;
    families.gauge("problems", "", "What somebody should look at; GET /v1/status says what").add([], problems);
}

#[cfg(test)]
mod tests;
