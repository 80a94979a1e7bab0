//! Prometheus metrics, built from the daemon's status at each scrape. Nothing is kept between scrapes, so the series of
//! ended jobs disappear; absent values have no series.

mod carbon;
mod device;
mod family;
mod job;
mod ledger;
mod node;
mod recurring;
mod when;

use axum::extract::State;
use axum::http::{HeaderMap, StatusCode, header};
use axum::response::IntoResponse;
use prometheus_client::encoding::text;
use prometheus_client::registry::Registry;

use self::family::Families;
use super::error::Problem;
use super::shared::Shared;
use crate::controller::view::{StatusView, WindowAhead};
use crate::recurring::RecurringView;

const OPEN_METRICS: &str = "application/openmetrics-text; version=1.0.0; charset=utf-8";
const PLAIN: &str = "text/plain; version=0.0.4; charset=utf-8";

/// Returns Prometheus metrics: as OpenMetrics if the client accepts it, otherwise in Prometheus's plain text format.
#[utoipa::path(
    get, path = "/metrics", tag = "health",
    responses(
        (status = OK, body = String, content_type = "text/plain"),
        (status = SERVICE_UNAVAILABLE, response = Problem)
    )
)]
pub(super) async fn metrics(State(shared): State<Shared>, headers: HeaderMap) -> Result<impl IntoResponse, Problem> {
    let state = shared.ask(|controller| Box::pin(async move { (controller.status(), controller.windows_ahead()) }));
    let (status, ahead) = state.await?;
    // If the database fails, all metrics except those of recurring jobs are still served.
    let recurring = shared.within(shared.recurring.latest(recurring::SHOWN)).await.ok();
    let recurring = recurring.as_ref().map(|(shown, all)| (shown.as_slice(), *all));
    let text = encode(&status, &ahead, recurring).map_err(|error| {
        tracing::error!("the metrics cannot be written: {error}");
        Problem::new(
            StatusCode::INTERNAL_SERVER_ERROR,
            "the metrics cannot be written; the daemon's log has the reason",
        )
    })?;
    let accept = headers.get_all(header::ACCEPT).iter().filter_map(|value| value.to_str().ok());
    let (kind, text) = match accept.into_iter().any(|value| value.contains("application/openmetrics-text")) {
        true => (OPEN_METRICS, text),
        false => (PLAIN, plain(&text)),
    };
    Ok(([(header::CONTENT_TYPE, kind)], text))
}

/// Returns the metrics as OpenMetrics text. `recurring` has first the recurring jobs to show, second the number of all
/// recurring jobs; `None` leaves out their metrics.
fn encode(
    status: &StatusView,
    ahead: &[WindowAhead],
    recurring: Option<(&[RecurringView], u64)>,
) -> Result<String, std::fmt::Error> {
    let mut registry = Registry::with_prefix("wattune");
    registry.register_collector(Box::new(families(status, ahead, recurring)));
    let mut text = String::new();
    text::encode(&mut text, &registry)?;
    Ok(text)
}

fn families(status: &StatusView, ahead: &[WindowAhead], recurring: Option<(&[RecurringView], u64)>) -> Families {
    let mut families = Families::default();
    node::daemon(status, &mut families);
    carbon::describe(status, &mut families);
    when::describe(ahead, &mut families);
    node::cap(status, &mut families);
    device::describe(&status.gpus, &mut families);
    node::processors(status, &mut families);
    job::describe(status, &mut families);
    ledger::describe(status, &mut families);
    if let Some((shown, all)) = recurring {
        recurring::describe(shown, all, &mut families);
    }
    families
}

/// Converts OpenMetrics text to Prometheus's plain text format (0.0.4), which older scrapers and `promtool check
/// metrics` read: the declaration of a counter has the suffix `_total`; an info becomes a gauge with the suffix
/// `_info`; units are not declared, since names end with them.
fn plain(text: &str) -> String {
    let mut converted = String::with_capacity(text.len());
    let mut help = None;
    for line in text.lines() {
        let mut words = line.splitn(4, ' ');
        match (words.next(), words.next(), words.next(), words.next()) {
            (Some("#"), Some("HELP"), _, about) => help = about,
            (Some("#"), Some("TYPE"), Some(name), Some(kind)) => {
                let (end, kind) = match kind {
                    "counter" => ("_total", "counter"),
                    "info" => ("_info", "gauge"),
                    other => ("", other),
                };
                let help = help.take().unwrap_or_default();
                converted += &format!("# HELP {name}{end} {help}\n# TYPE {name}{end} {kind}\n");
            }
            (Some("#"), ..) => {}
            _ => {
                converted += line;
                converted.push('\n');
            }
        }
    }
    converted
}

#[cfg(test)]
mod tests;
