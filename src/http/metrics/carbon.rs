//! Metrics of the carbon signal and the electricity price.

use super::family::{Families, Metric, flag, unix_time};
use crate::controller::view::{
    CarbonView, Circuit, IntensityKind, IntensityOrigin, IntensityScope, PastForecastView, ScoreView, SignalFreshness,
    SourceView, StatusView,
};
use wattune_core::units::Seconds;

pub(super) fn describe(status: &StatusView, families: &mut Families) {
    let carbon = &status.carbon;
    let some = |key, value: Option<&str>| value.map(|value| (key, value.to_owned()));
    let signal = [
        some("zone", carbon.zone.as_deref()),
        some("kind", carbon.kind.map(IntensityKind::as_str)),
        some("scope", carbon.scope.map(IntensityScope::as_str)),
    ];
    let origin = carbon.origin.map(IntensityOrigin::as_str);
    let provenance = [some("source", carbon.source.as_deref()), some("origin", origin)];

    let all: Vec<_> = signal.iter().chain(&provenance).flatten().cloned().collect();
    if !all.is_empty() {
        families.info("carbon_signal", "Source of the carbon intensity").push(all);
    }
    families
        .gauge("carbon_intensity", "gco2e_per_kwh", "Carbon intensity of the current slot")
        .add(signal.into_iter().flatten(), carbon.intensity_g_per_kwh);
    families
        .gauge("carbon_fallback", "gco2e_per_kwh", "Carbon intensity that plans use where the signal has no value")
        .add([], carbon.fallback_g_per_kwh);
    families
        .gauge("carbon_signal_fresh", "", "1 if the signal is fresh, 0 if it is stale or absent")
        .add([], flag(carbon.freshness == SignalFreshness::Fresh));
    let age = carbon.fetched_at.map(|at| Seconds::from_delta(status.now - at).max(Seconds::ZERO).get());
    families.gauge("carbon_signal_age", "seconds", "Time since a source's last valid response").add([], age);
    families
        .gauge("carbon_forecast_followed", "ratio", "Weight of the forecast in plans: 0 none, 1 full")
        .add([], carbon.followed);
    families.gauge("carbon_basis", "", "Basis of the current intensity: 1 for the one in use").states(
        &[],
        "basis",
        ["source", "local", "daily_shape", "constant"],
        |b| b == carbon.basis.as_str(),
    );
    families
        .gauge("carbon_planned_with", "gco2e_per_kwh", "Carbon intensity that plans use for the current slot")
        .add([], carbon.planned_with_g_per_kwh);
    families.gauge("carbon_intensity_origin", "", "Origin of the current intensity: 1 for the one in use").states(
        &[],
        "origin",
        IntensityOrigin::ALL.iter().map(|known| known.as_str()).filter(|_| origin.is_some()),
        |o| origin == Some(o),
    );
    past_forecasts(carbon, families);
    families.each(Families::gauge, &SOURCE_GAUGES, &carbon.sources, |source| [("source", source.source.clone())]);
    families.each(Families::gauge, &SCORE_GAUGES, &carbon.scores, score_labels);
    let price = families.gauge("electricity_price", "per_mwh", "Day-ahead price of the current slot");
    if let Some(present) = &status.price {
        let labels = [("zone", present.zone.clone()), ("currency", present.currency.clone())];
        price.add(labels, present.price_per_mwh);
    }
}

/// Adds the past forecasts for two slots (time steps): the current one, and the latest one with an actual value.
fn past_forecasts(carbon: &CarbonView, families: &mut Families) {
    let mut add = |name, help, views: &[PastForecastView]| {
        let family = families.gauge(name, "gco2e_per_kwh", help);
        for view in views {
            family.add([("horizon_h", format!("{:.0}", view.horizon_h))], view.intensity_g_per_kwh);
        }
    };
    add("carbon_forecast", "Past forecast for the current slot, by hours before its start", &carbon.past_forecasts);
    let outcome = carbon.outcome.as_ref();
    let of_outcome = outcome.map(|o| o.past_forecasts.as_slice()).unwrap_or_default();
    add("carbon_outcome_forecast", "Past forecast for the latest slot with an actual value", of_outcome);
    families
        .gauge(
            "carbon_outcome",
            "gco2e_per_kwh",
            "Actual intensity, measured or estimated, of the latest slot that has one",
        )
        .add([], outcome.map(|o| o.intensity_g_per_kwh));
    families
        .gauge("carbon_outcome_time", "seconds", "Start of the latest slot with an actual value since the Unix epoch")
        .add([], outcome.map(|o| unix_time(o.start)));
}

const SOURCE_GAUGES: [Metric<SourceView>; 7] = [
    ("carbon_source_followed", "", "1 for the active source, whose forecast is in use", |s| Some(flag(s.followed))),
    ("carbon_source_fresh", "", "1 if the forecast of the source is fresh", |s| {
        Some(flag(s.freshness == SignalFreshness::Fresh))
    }),
    ("carbon_source_failures", "", "Failures of a source since its last success", |s| {
        Some(f64::from(s.consecutive_failures))
    }),
    ("carbon_source_circuit_open", "", "1 if a source failed repeatedly and is queried rarely", |s| {
        Some(flag(s.circuit == Circuit::Open))
    }),
    ("carbon_source_quarantined", "", "1 if a source's outlying values are quarantined", |s| {
        Some(flag(s.quarantined.is_some()))
    }),
    ("carbon_source_requests_last_hour", "", "Requests to a source in the last hour", |s| {
        s.requests_last_hour.map(f64::from)
    }),
    ("carbon_source_requests_allowed_per_hour", "", "Maximum requests to a source per hour", |s| {
        s.requests_allowed_per_hour.map(f64::from)
    }),
];

const SCORE_GAUGES: [Metric<ScoreView>; 4] = [
    (
        "carbon_forecast_error",
        "ratio",
        "Mean absolute error of a source's forecasts relative to the actual values",
        |s| s.mape_pct.map(|pct| pct / 100.0),
    ),
    ("carbon_forecast_bias", "gco2e_per_kwh", "Mean error of a source's forecasts (forecast minus actual)", |s| {
        s.bias_g_per_kwh
    }),
    ("carbon_forecast_rank_correlation", "", "Rank correlation of forecast and actual values within the day", |s| {
        s.rank_correlation
    }),
    (
        "carbon_forecast_caught_gain",
        "ratio",
        "Saving with a source's forecasts as a share of the saving with perfect foresight",
        |s| s.caught_gain,
    ),
];

fn score_labels(score: &ScoreView) -> [(&'static str, String); 3] {
    let horizon = format!("{:.0}", score.horizon_h);
    [("source", score.source.clone()), ("zone", score.zone.clone()), ("horizon_h", horizon)]
}
