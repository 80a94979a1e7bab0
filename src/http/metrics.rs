//! Prometheus metrics, built from the daemon's status at each scrape. Nothing is kept in between, so series of ended
//! jobs disappear and absent values have no series.

mod cap;
mod carbon;
mod cpu;
mod device;
mod family;
mod job;
mod ledger;
mod plain;
mod recurring;

use axum::extract::State;
use axum::http::{HeaderMap, StatusCode, header};
use axum::response::IntoResponse;
use prometheus_client::encoding::text;
use prometheus_client::registry::Registry;

use self::family::Families;
use super::error::Problem;
use super::shared::Shared;
use crate::controller::view::StatusView;
use crate::recurring::RecurringView;

const OPEN_METRICS: &str = "application/openmetrics-text; version=1.0.0; charset=utf-8";
const PLAIN: &str = "text/plain; version=0.0.4; charset=utf-8";

/// Prometheus metrics: OpenMetrics if the client accepts it, otherwise Prometheus's plain text format.
#[utoipa::path(
    get, path = "/metrics", tag = "health",
    responses(
        (status = OK, body = String, content_type = "text/plain"),
        (status = SERVICE_UNAVAILABLE, response = Problem)
    )
)]
pub(super) async fn metrics(State(shared): State<Shared>, headers: HeaderMap) -> Result<impl IntoResponse, Problem> {
    let status = shared.status().await?;
    // The database may fail; all other metrics are served all the same.
    let recurring = shared.within(shared.recurring.latest(recurring::SHOWN)).await.ok();
    let recurring = recurring.as_ref().map(|(shown, all)| (shown.as_slice(), *all));
    let text = encode(&status, recurring).map_err(|error| {
        tracing::error!("the metrics cannot be written: {error}");
        Problem::new(
            StatusCode::INTERNAL_SERVER_ERROR,
            "the metrics cannot be written; the daemon's log has the reason",
        )
    })?;
    let accept = headers.get_all(header::ACCEPT).iter().filter_map(|value| value.to_str().ok());
    let (kind, text) = match accept.into_iter().any(|value| value.contains("application/openmetrics-text")) {
        true => (OPEN_METRICS, text),
        false => (PLAIN, plain::from_open_metrics(&text)),
    };
    Ok(([(header::CONTENT_TYPE, kind)], text))
}

/// Returns the metrics as OpenMetrics text. `recurring` has the recurring jobs to show and their total number.
///
/// # Errors
/// If the text cannot be written, which does not happen with a string.
pub fn encode(status: &StatusView, recurring: Option<(&[RecurringView], u64)>) -> Result<String, std::fmt::Error> {
    let mut registry = Registry::with_prefix("wattune");
    registry.register_collector(Box::new(families(status, recurring)));
    let mut text = String::new();
    text::encode(&mut text, &registry)?;
    Ok(text)
}

fn families(status: &StatusView, recurring: Option<(&[RecurringView], u64)>) -> Families {
    let mut families = Families::default();
    daemon(status, &mut families);
    carbon::describe(status, &mut families);
    cap::describe(status, &mut families);
    device::describe(&status.gpus, &mut families);
    cpu::describe(status.cpu.as_ref(), &mut families);
    job::describe(status, &mut families);
    ledger::describe(status, &mut families);
    if let Some((shown, all)) = recurring {
        recurring::describe(shown, all, &mut families);
    }
    families
}

fn daemon(status: &StatusView, families: &mut Families) {
    let build = [("version", status.version.to_owned())];
    families.info("build", "The daemon's version").push(build);
    let control = f64::from(u8::from(status.mode == "control"));
    families.gauge("control_enabled", "", "1 if power limits are set, 0 if they are only planned").add([], control);
    let simulated = f64::from(u8::from(status.simulated));
    families.gauge("simulated", "", "1 if every GPU is simulated").add([], simulated);
    let started = status.started_at.timestamp_micros() as f64 / 1e6;
    families.gauge("start_time", "seconds", "Start time of the daemon since the Unix epoch").add([], started);
    let now = status.now.timestamp_micros() as f64 / 1e6;
    let help = "The daemon's time since the Unix epoch; in a demo not the wall clock's";
    families.gauge("present_time", "seconds", help).add([], now);
    let problems = status.problems.len() as f64;
    families.gauge("problems", "", "Number of current problems; GET /v1/status lists them").add([], problems);
    let storage = &status.storage;
    let fault = |fault: &Option<String>| f64::from(u8::from(fault.is_some()));
    let help = "1 while the ledger cannot be written; intervals are kept in memory meanwhile";
    families.gauge("store_fault", "", help).add([], fault(&storage.fault));
    let help = "Ledger intervals in memory that are not written yet";
    families.gauge("store_unwritten_intervals", "", help).add([], storage.unwritten_intervals as f64);
    let help = "1 while the journal of original limits cannot be written; no limit is set meanwhile";
    families.gauge("journal_fault", "", help).add([], fault(&storage.journal_fault));
}

#[cfg(test)]
mod tests;
