//! Routes of forecasts: the current one, and that at a requested time.

use axum::Json;
use axum::extract::State;
use chrono::{DateTime, SubsecRound, TimeDelta, Utc};

use super::places::{check_location, signal};
use super::query::{self, QueryParameters};
use super::refusal::SdkProblem;
use super::wire::{Minutes, SdkForecast, SdkForecastRequest, SdkPoint, Stamp};
use crate::controller::view::{CarbonSlot, SlotsAhead};
use crate::http::shared::Shared;
use wattune_core::domain::{Slot, TimeSeries};

/// Returns the current forecast of each location, in the shape of the Carbon Aware SDK.
#[utoipa::path(
    get, path = "/emissions/forecasts/current", operation_id = "sdk_current_forecast", tag = super::TAG,
    params(
        ("location" = Vec<String>, Query, description = "The daemon's zone; can be repeated."),
        ("dataStartAt" = Option<String>, Query, description = "Start of the time; by default that of the first point."),
        ("dataEndAt" = Option<String>, Query, description = "End of the time; by default that of the last point."),
        ("windowSize" = Option<u32>, Query, description = "Length in minutes of the work to be done: the values are then means of such windows."),
    ),
    responses(
        (status = OK, body = Vec<SdkForecast>),
        (status = BAD_REQUEST, body = SdkProblem, content_type = "application/problem+json"),
        (status = SERVICE_UNAVAILABLE, body = SdkProblem, content_type = "application/problem+json"),
    )
)]
pub(in crate::http) async fn current(
    State(shared): State<Shared>,
    parameters: QueryParameters,
) -> Result<Json<Vec<SdkForecast>>, SdkProblem> {
    let signal = signal(&shared).await?;
    let span = (parameters.time("dataStartAt")?, parameters.time("dataEndAt")?);
    let window = parameters.window_min()?;
    let forecast = |location: &&str| {
        check_location(location, &signal)?;
        forecast(location, &signal, span, window)
    };
    parameters.locations()?.iter().map(forecast).collect::<Result<_, _>>().map(Json)
}

/// Returns the forecasts that were current at the requested times, in the shape of the Carbon Aware SDK. The daemon keeps
/// the current forecast only: a time before it was generated is refused, as the SDK refuses a time for which its source
/// has none.
#[utoipa::path(
    post, path = "/emissions/forecasts/batch", operation_id = "sdk_past_forecasts", tag = super::TAG,
    request_body = Vec<SdkForecastRequest>,
    responses(
        (status = OK, body = Vec<SdkForecast>),
        (status = BAD_REQUEST, body = SdkProblem, content_type = "application/problem+json"),
        (status = SERVICE_UNAVAILABLE, body = SdkProblem, content_type = "application/problem+json"),
    )
)]
pub(in crate::http) async fn past(
    State(shared): State<Shared>,
    body: axum::body::Bytes,
) -> Result<Json<Vec<SdkForecast>>, SdkProblem> {
    let requests: Vec<SdkForecastRequest> = query::batch(&body)?;
    let signal = signal(&shared).await?;
    requests.iter().map(|request| at_time(request, &signal)).collect::<Result<_, _>>().map(Json)
}

fn at_time(request: &SdkForecastRequest, signal: &SlotsAhead) -> Result<SdkForecast, SdkProblem> {
    check_location(&request.location, signal)?;
    let requested_at = query::field("requestedAt", &request.requested_at)?;
    // Answers have whole seconds.
    let from = signal.generated_at.trunc_subsecs(0);
    if !(from..=signal.now).contains(&requested_at) {
        let (from, to) = (from.to_rfc3339(), signal.now.to_rfc3339());
        let why = format!(
            "no forecast is kept for {}: the daemon has only its present one, current from {from} to {to}",
            requested_at.to_rfc3339()
        );
        return Err(SdkProblem::argument("requestedAt", why));
    }
    let time = |name, text: &Option<String>| text.as_ref().map(|text| query::field(name, text)).transpose();
    let span = (time("dataStartAt", &request.data_start_at)?, time("dataEndAt", &request.data_end_at)?);
    let minutes = request.window_size.unwrap_or(0);
    let window = query::window(u32::try_from(minutes).ok(), &minutes.to_string())?;
    let mut forecast = forecast(&request.location, signal, span, window)?;
    forecast.requested_at = Stamp(requested_at);
    Ok(forecast)
}

fn forecast(
    location: &str,
    signal: &SlotsAhead,
    (from, to): (Option<DateTime<Utc>>, Option<DateTime<Utc>>),
    window: Option<u32>,
) -> Result<SdkForecast, SdkProblem> {
    let (Some(first), Some(last)) = (signal.slots.first(), signal.slots.last()) else {
        return Err(SdkProblem::no_forecast());
    };
    let whole = (first.slot.start(), last.slot.end());
    for (name, time) in [("dataStartAt", from), ("dataEndAt", to)] {
        if let Some(time) = time.filter(|time| !(whole.0..=whole.1).contains(time)) {
            let (from, to) = (whole.0.to_rfc3339(), whole.1.to_rfc3339());
            let why = format!("{} is outside of the forecast, which covers {from} to {to}", time.to_rfc3339());
            return Err(SdkProblem::argument(name, why));
        }
    }
    let Some(span) = Slot::new(from.unwrap_or(whole.0), to.unwrap_or(whole.1)) else {
        return Err(SdkProblem::argument("dataStartAt", "dataStartAt must be before dataEndAt"));
    };
    let points = match window {
        None => signal.slots.iter().filter(|s| s.slot.intersection(&span).is_some()).copied().collect(),
        Some(minutes) => windows(&signal.slots, &span, TimeDelta::minutes(minutes.into())),
    };
    let (Some(first), Some(last)) = (points.first(), points.last()) else {
        let minutes = (span.end() - span.start()).num_minutes();
        let why = format!(
            "a window of {} min is longer than the {minutes} min from dataStartAt to dataEndAt",
            window.unwrap_or(0)
        );
        return Err(SdkProblem::argument("windowSize", why));
    };
    let lowest = points.iter().map(|p| p.g_per_kwh).fold(f64::INFINITY, f64::min);
    let point = |p: &CarbonSlot| SdkPoint {
        location: location.to_owned(),
        timestamp: Stamp(p.slot.start()),
        duration: Minutes(p.slot.end() - p.slot.start()),
        value: p.g_per_kwh,
    };
    Ok(SdkForecast {
        generated_at: Stamp(signal.generated_at),
        requested_at: Stamp(signal.now),
        location: location.to_owned(),
        data_start_at: Stamp(from.unwrap_or(first.slot.start())),
        data_end_at: Stamp(to.unwrap_or(last.slot.start())),
        window_size: window.unwrap_or(0),
        optimal_data_points: points.iter().filter(|p| p.g_per_kwh <= lowest).map(point).collect(),
        forecast_data: points.iter().map(point).collect(),
    })
}

/// Returns the means of the windows of a length that begin at the start of `span` and at each slot in it, and end
/// within it.
fn windows(slots: &[CarbonSlot], span: &Slot, length: TimeDelta) -> Vec<CarbonSlot> {
    let series = TimeSeries::from_points(slots.iter().map(|s| (s.slot, s.g_per_kwh)).collect()).0;
    let begun = slots.iter().filter(|s| s.slot.intersection(span).is_some());
    let starts = begun.map(|s| s.slot.start().max(span.start()));
    let window = |start: DateTime<Utc>| {
        let slot = Slot::new(start, start.checked_add_signed(length)?).filter(|slot| slot.end() <= span.end())?;
        let (mean, _) = series.mean_over(&slot, |value| *value)?;
        Some(CarbonSlot { slot, g_per_kwh: mean })
    };
    starts.map_while(window).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(minutes: i64) -> DateTime<Utc> {
        DateTime::UNIX_EPOCH + TimeDelta::days(20_000) + TimeDelta::minutes(minutes)
    }

    fn signal(values: &[f64]) -> SlotsAhead {
        let slot = |(i, value): (i64, &f64)| CarbonSlot {
            slot: Slot::new(at(60 * i), at(60 * i + 60)).expect("an hour"),
            g_per_kwh: *value,
        };
        SlotsAhead {
            now: at(10),
            zone: Some("DE".into()),
            generated_at: at(5),
            slots: (0..).zip(values).map(slot).collect(),
        }
    }

    fn json(signal: &SlotsAhead, span: (Option<i64>, Option<i64>), window: Option<u32>) -> serde_json::Value {
        let forecast = forecast("de", signal, (span.0.map(at), span.1.map(at)), window);
        serde_json::to_value(forecast.expect("a forecast")).expect("JSON")
    }

    #[test]
    fn a_forecast_has_the_shape_of_the_sdk() {
        let stamp = |minutes: i64| at(minutes).to_rfc3339();
        let point = |minutes: i64, value: f64| serde_json::json!({"location": "de", "timestamp": stamp(minutes), "duration": 60, "value": value});
        let expected = serde_json::json!({
            "generatedAt": stamp(5), "requestedAt": stamp(10), "location": "de", "dataStartAt": stamp(0),
            "dataEndAt": stamp(120), "windowSize": 0, "optimalDataPoints": [point(60, 200.5), point(120, 200.5)],
            "forecastData": [point(0, 300.0), point(60, 200.5), point(120, 200.5)],
        });
        assert_eq!(json(&signal(&[300.0, 200.5, 200.5]), (None, None), None), expected);
    }

    #[test]
    fn windows_are_means_that_overlap_and_stay_within_the_time() {
        let signal = signal(&[300.0, 100.0, 200.0, 400.0]);
        let values = |span, window| {
            let forecast = json(&signal, span, window);
            let points = forecast["forecastData"].as_array().expect("points").clone();
            points.iter().map(|p| (p["duration"].as_i64(), p["value"].as_f64())).collect::<Vec<_>>()
        };
        let of = |minutes: i64, values: &[f64]| values.iter().map(|v| (Some(minutes), Some(*v))).collect::<Vec<_>>();
        assert_eq!(values((None, None), Some(120)), of(120, &[200.0, 150.0, 300.0]));
        assert_eq!(
            values((None, None), Some(90)),
            of(90, &[(300.0 * 2.0 + 100.0) / 3.0, (100.0 * 2.0 + 200.0) / 3.0, (200.0 * 2.0 + 400.0) / 3.0])
        );
        assert_eq!(values((Some(30), Some(180)), Some(60)), of(60, &[200.0, 100.0, 200.0]));
        assert_eq!(values((Some(60), Some(180)), None), of(60, &[100.0, 200.0]));
        assert_eq!(values((Some(30), Some(90)), None), of(60, &[300.0, 100.0]));
    }

    #[test]
    fn impossible_times_are_refused() {
        let signal = signal(&[300.0, 100.0]);
        let table = [
            ((Some(-1), None), None, "dataStartAt"),
            ((None, Some(121)), None, "dataEndAt"),
            ((Some(60), Some(60)), None, "dataStartAt"),
            ((Some(60), Some(30)), None, "dataStartAt"),
            ((None, None), Some(121), "windowSize"),
            ((Some(60), None), Some(61), "windowSize"),
        ];
        for ((from, to), window, field) in table {
            let refused = forecast("DE", &signal, (from.map(at), to.map(at)), window).expect_err(field);
            let problem = serde_json::to_value(refused).expect("JSON");
            assert_eq!((&problem["status"], &problem["title"]), (&400.into(), &"ArgumentException".into()));
            assert!(problem["errors"][field].is_array(), "{problem}");
        }
        let none = SlotsAhead { slots: Vec::new(), ..signal };
        let refused = forecast("DE", &none, (None, None), None).expect_err("nothing");
        assert_eq!(serde_json::to_value(refused).expect("JSON")["status"], 503);
    }
}
