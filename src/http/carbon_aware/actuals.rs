//! Routes of actual carbon intensities: their rows, the lowest of them, and their means.

use axum::Json;
use axum::extract::State;
use axum::http::StatusCode;
use axum::response::{IntoResponse, Response};
use chrono::{DateTime, TimeDelta, Utc};

use super::places::{check_location, signal};
use super::query::{self, QueryParameters};
use super::refusal::SdkProblem;
use super::wire::{SdkEmissions, SdkMean, SdkMeanRequest, Stamp};
use crate::controller::view::CarbonSlot;
use crate::http::shared::Shared;
use wattune_core::domain::{Slot, TimeSeries};

/// Maximum length of the time in one request.
const LONGEST: TimeDelta = TimeDelta::days(31);
/// Time before now that is searched for the newest value if the request names no time.
const RECENT: TimeDelta = TimeDelta::days(1);

/// Returns the actual carbon intensities at a location, in the shape of the Carbon Aware SDK.
#[utoipa::path(
    get, path = "/emissions/bylocation", operation_id = "sdk_emissions_by_location", tag = super::TAG,
    params(
        ("location" = String, Query, description = "The daemon's zone."),
        ("time" = Option<String>, Query, description = "Start of the time; without it, the newest value is returned."),
        ("toTime" = Option<String>, Query, description = "End of the time; by default its start."),
    ),
    responses(
        (status = OK, body = Vec<SdkEmissions>), (status = NO_CONTENT, description = "No value is known"),
        (status = BAD_REQUEST, body = SdkProblem, content_type = "application/problem+json"),
    )
)]
pub(in crate::http) async fn by_location(
    State(shared): State<Shared>,
    parameters: QueryParameters,
) -> Result<Response, SdkProblem> {
    let location = parameters.location()?;
    Ok(answer(rows(&shared, &parameters, &[location]).await?))
}

/// Returns the actual carbon intensities at several locations, in the shape of the Carbon Aware SDK.
#[utoipa::path(
    get, path = "/emissions/bylocations", operation_id = "sdk_emissions_by_locations", tag = super::TAG,
    params(
        ("location" = Vec<String>, Query, description = "The daemon's zone; can be repeated."),
        ("time" = Option<String>, Query, description = "Start of the time; without it, the newest value is returned."),
        ("toTime" = Option<String>, Query, description = "End of the time; by default its start."),
    ),
    responses(
        (status = OK, body = Vec<SdkEmissions>), (status = NO_CONTENT, description = "No value is known"),
        (status = BAD_REQUEST, body = SdkProblem, content_type = "application/problem+json"),
    )
)]
pub(in crate::http) async fn by_locations(
    State(shared): State<Shared>,
    parameters: QueryParameters,
) -> Result<Response, SdkProblem> {
    let locations = parameters.locations()?;
    Ok(answer(rows(&shared, &parameters, &locations).await?))
}

/// Returns the lowest actual carbon intensities, in the shape of the Carbon Aware SDK.
#[utoipa::path(
    get, path = "/emissions/bylocations/best", operation_id = "sdk_lowest_emissions", tag = super::TAG,
    params(
        ("location" = Vec<String>, Query, description = "The daemon's zone; can be repeated."),
        ("time" = Option<String>, Query, description = "Start of the time; without it, the newest value is returned."),
        ("toTime" = Option<String>, Query, description = "End of the time; by default its start."),
    ),
    responses(
        (status = OK, body = Vec<SdkEmissions>), (status = NO_CONTENT, description = "No value is known"),
        (status = BAD_REQUEST, body = SdkProblem, content_type = "application/problem+json"),
    )
)]
pub(in crate::http) async fn lowest(
    State(shared): State<Shared>,
    parameters: QueryParameters,
) -> Result<Response, SdkProblem> {
    let locations = parameters.locations()?;
    let mut rows = rows(&shared, &parameters, &locations).await?;
    let lowest = rows.iter().map(|row| row.rating).fold(f64::INFINITY, f64::min);
    rows.retain(|row| row.rating <= lowest);
    Ok(answer(rows))
}

/// Returns the mean of the actual carbon intensities within a time, in the shape of the Carbon Aware SDK.
#[utoipa::path(
    get, path = "/emissions/average-carbon-intensity", operation_id = "sdk_mean_emissions", tag = super::TAG,
    params(
        ("location" = String, Query, description = "The daemon's zone."),
        ("startTime" = String, Query, description = "Start of the time."),
        ("endTime" = String, Query, description = "End of the time."),
    ),
    responses(
        (status = OK, body = SdkMean), (status = NO_CONTENT, description = "Values are missing"),
        (status = BAD_REQUEST, body = SdkProblem, content_type = "application/problem+json"),
    )
)]
pub(in crate::http) async fn average(
    State(shared): State<Shared>,
    parameters: QueryParameters,
) -> Result<Response, SdkProblem> {
    let location = parameters.location()?;
    check_location(location, &signal(&shared).await?)?;
    let span = checked(parameters.required_time("startTime")?, parameters.required_time("endTime")?, "startTime")?;
    Ok(match mean(&shared, location, span).await? {
        Some(mean) => Json(mean).into_response(),
        None => StatusCode::NO_CONTENT.into_response(),
    })
}

/// Returns the means of the actual carbon intensities within several times, in the shape of the Carbon Aware SDK; times
/// with missing values are left out.
#[utoipa::path(
    post, path = "/emissions/average-carbon-intensity/batch", operation_id = "sdk_mean_emissions_batch",
    tag = super::TAG, request_body = Vec<SdkMeanRequest>,
    responses(
        (status = OK, body = Vec<SdkMean>), (status = NO_CONTENT, description = "Values are missing"),
        (status = BAD_REQUEST, body = SdkProblem, content_type = "application/problem+json"),
    )
)]
pub(in crate::http) async fn averages(
    State(shared): State<Shared>,
    body: axum::body::Bytes,
) -> Result<Response, SdkProblem> {
    let requests: Vec<SdkMeanRequest> = query::batch(&body)?;
    let signal = signal(&shared).await?;
    let mut means = Vec::new();
    for SdkMeanRequest { location, start_time, end_time } in &requests {
        check_location(location, &signal)?;
        let span = checked(query::field("startTime", start_time)?, query::field("endTime", end_time)?, "startTime")?;
        means.extend(mean(&shared, location, span).await?);
    }
    Ok(if means.is_empty() { StatusCode::NO_CONTENT.into_response() } else { Json(means).into_response() })
}

fn answer(rows: Vec<SdkEmissions>) -> Response {
    if rows.is_empty() { StatusCode::NO_CONTENT.into_response() } else { Json(rows).into_response() }
}

/// Returns the span from `from` to `to`, which must be in order and not too long.
fn checked(from: DateTime<Utc>, to: DateTime<Utc>, field: &str) -> Result<Slot, SdkProblem> {
    let span = Slot::new(from, to).ok_or_else(|| SdkProblem::argument(field, "the start must be before the end"))?;
    if to - from > LONGEST {
        return Err(SdkProblem::argument(field, format!("the time is longer than {} days", LONGEST.num_days())));
    }
    Ok(span)
}

async fn rows(
    shared: &Shared,
    parameters: &QueryParameters,
    locations: &[&str],
) -> Result<Vec<SdkEmissions>, SdkProblem> {
    let signal = signal(shared).await?;
    for location in locations {
        check_location(location, &signal)?;
    }
    let known = match (parameters.time("time")?, parameters.time("toTime")?) {
        (None, Some(_)) => return Err(SdkProblem::argument("time", "time is required if toTime is given")),
        (None, None) => {
            let recent = Slot::new(signal.now - RECENT, signal.now);
            let known = actuals(shared, recent).await?;
            known.last().copied().into_iter().collect()
        }
        (Some(at), to) if to.is_none_or(|to| to == at) => {
            let known = actuals(shared, Slot::new(at, at + TimeDelta::seconds(1))).await?;
            known.into_iter().filter(|s| s.slot.contains(at)).collect()
        }
        (Some(from), to) => actuals(shared, Some(checked(from, to.unwrap_or(from), "time")?)).await?,
    };
    let of = |location: &&str| known.iter().map(|slot| SdkEmissions::new(location, slot)).collect::<Vec<_>>();
    Ok(locations.iter().flat_map(of).collect())
}

async fn mean(shared: &Shared, location: &str, span: Slot) -> Result<Option<SdkMean>, SdkProblem> {
    let known = actuals(shared, Some(span)).await?;
    let series = TimeSeries::from_points(known.iter().map(|s| (s.slot, s.g_per_kwh)).collect()).0;
    let mean = series.mean_over(&span, |value| *value).filter(|(_, covered)| *covered >= span.duration());
    Ok(mean.map(|(mean, _)| SdkMean {
        location: location.to_owned(),
        start_time: Stamp(span.start()),
        end_time: Stamp(span.end()),
        carbon_intensity: mean,
    }))
}

async fn actuals(shared: &Shared, span: Option<Slot>) -> Result<Vec<CarbonSlot>, SdkProblem> {
    let Some(span) = span else { return Ok(Vec::new()) };
    let answer = shared.ask(move |controller| Box::pin(async move { controller.carbon_actuals(span).await }));
    Ok(answer.await?.map_err(crate::http::error::Problem::from)?)
}
