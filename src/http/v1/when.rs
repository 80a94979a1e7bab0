//! Route of the advice when to start a job.

use axum::Json;
use axum::extract::State;
use chrono::{DateTime, Utc};
use serde::Deserialize;
use utoipa::IntoParams;

use crate::controller::view::WhenView;
use crate::controller::{StartBound, WhenRequest};
use crate::http::error::Answer;
use crate::http::extract::{Params, invalid, optional_quantity};
use crate::http::shared::Shared;
use wattune_core::domain::{InvalidJob, JobName};
use wattune_core::time::is_usable;
use wattune_core::units::{Seconds, Watts};

/// The job to start, and how long it may wait.
#[derive(Clone, Debug, Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub(in crate::http) struct WhenQuery {
    /// The job's duration in seconds. If absent, that of the earlier runs of `name`.
    duration_s: Option<f64>,
    /// The time in seconds for which the job may wait: its latest start counted from now.
    within_s: Option<f64>,
    /// The job's latest start in RFC 3339, in place of `within_s`.
    latest_start: Option<String>,
    /// The job's latest end in RFC 3339, in place of `within_s`.
    latest_end: Option<String>,
    /// The job's mean power in watts. If absent, that of the earlier runs of `name`.
    power_w: Option<f64>,
    /// The name of a job that ran here before.
    name: Option<String>,
    /// The job's earliest start in RFC 3339; now if absent.
    earliest: Option<String>,
    /// The minimum gain for which the job waits, as a fraction.
    #[param(default = 0.02, minimum = 0)]
    min_gain: Option<f64>,
    /// The maximum probability that waiting emits more, for which the job waits.
    #[param(default = 0.5, minimum = 0, maximum = 1)]
    max_loss_probability: Option<f64>,
    /// The power in watts that is drawn for the job while it waits, such as that of idle GPUs reserved for it.
    #[param(default = 0, minimum = 0)]
    idle_power_w: Option<f64>,
    /// The zone of the grid, which must be that of the daemon.
    zone: Option<String>,
}

impl WhenQuery {
    /// Converts the query to a request. The error is the first invalid parameter.
    fn checked(&self) -> Result<WhenRequest, InvalidJob> {
        let seconds = |field, given| optional_quantity(field, given, Seconds::try_new);
        let watts = |field, given| optional_quantity(field, given, Watts::try_new);
        let within = seconds("within_s", self.within_s)?.map(StartBound::Within);
        let start = time("latest_start", self.latest_start.as_deref())?.map(StartBound::Start);
        let end = time("latest_end", self.latest_end.as_deref())?.map(StartBound::End);
        let bounds: Vec<StartBound> = [within, start, end].into_iter().flatten().collect();
        if bounds.len() > 1 {
            return Err(invalid("within_s", "give one of within_s, latest_start and latest_end"));
        }
        let name = self.name.as_deref().map(JobName::new).transpose();
        Ok(WhenRequest {
            duration: seconds("duration_s", self.duration_s)?,
            power: watts("power_w", self.power_w)?,
            name: name.map_err(|error| invalid("name", error.to_string()))?,
            earliest: time("earliest", self.earliest.as_deref())?,
            latest: bounds.first().copied(),
            min_gain: self.min_gain,
            max_loss_probability: self.max_loss_probability,
            idle_power: watts("idle_power_w", self.idle_power_w)?,
        })
    }
}

fn time(field: &'static str, text: Option<&str>) -> Result<Option<DateTime<Utc>>, InvalidJob> {
    let Some(text) = text else { return Ok(None) };
    // A `+` that the client did not encode arrives as a space.
    let time = text.replace(' ', "+").parse().or_else(|_| text.parse());
    time.ok().filter(|at| is_usable(*at)).map(Some).ok_or_else(|| {
        let short: String = text.chars().take(40).collect();
        invalid(field, format!("is {short:?}; give a time in RFC 3339, such as 2026-11-26T18:00:00Z"))
    })
}

/// Returns the advice when to start a job that may wait: the time with the least expected emissions, if the gain is
/// worth its risk, else now.
#[utoipa::path(
    get, path = "/v1/when", operation_id = "get_when", tag = "carbon", params(WhenQuery),
    responses((status = OK, body = WhenView))
)]
pub(in crate::http) async fn when(State(shared): State<Shared>, Params(query): Params<WhenQuery>) -> Answer<WhenView> {
    let request = query.checked()?;
    let zone = query.zone;
    let answer =
        shared.ask(move |controller| Box::pin(async move { controller.when(&request, zone.as_deref()).await })).await?;
    Ok(Json(answer?))
}
