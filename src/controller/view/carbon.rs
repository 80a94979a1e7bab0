//! Carbon signal and price.

use chrono::{DateTime, Utc};
use serde::Serialize;
use utoipa::ToSchema;

use super::states::{Circuit, Finality, IntensityKind, IntensityOrigin, IntensityScope, SignalFreshness};
use crate::controller::signal::BasisLevel;
use crate::providers::Contribution;
use wattune_core::forecast::Score;

/// Carbon signal now.
#[derive(Clone, Debug, Serialize, ToSchema)]
pub struct CarbonView {
    /// Grid zone.
    pub zone: Option<String>,
    /// Active source: the best one of the chain with a response.
    pub source: Option<String>,
    /// Kind of the intensity.
    pub kind: Option<IntensityKind>,
    /// Emissions that it includes.
    pub scope: Option<IntensityScope>,
    /// Intensity of the present slot; absent while only the configured constant is known.
    pub intensity_g_per_kwh: Option<f64>,
    /// Origin of that value.
    pub origin: Option<IntensityOrigin>,
    /// Basis of the present value.
    pub basis: BasisLevel,
    /// Time since which this basis and this source hold.
    pub basis_since: DateTime<Utc>,
    /// Present value for planning, before it is weighted by the forecast's skill.
    pub planned_with_g_per_kwh: f64,
    /// Freshness of the active source.
    pub freshness: SignalFreshness,
    /// Time since which it is not fresh.
    pub stale_since: Option<DateTime<Utc>>,
    /// Time of its last good response.
    pub fetched_at: Option<DateTime<Utc>>,
    /// Time of the next request.
    pub next_poll_at: Option<DateTime<Utc>>,
    /// Error of its last request.
    pub last_error: Option<String>,
    /// Weight of the forecast by its measured skill: 0 none, 1 full.
    pub followed: Option<f64>,
    /// Mean of forecasts less actual values, which is corrected for.
    pub bias_g_per_kwh: Option<f64>,
    /// Intensity for planning where the signal has no value.
    pub fallback_g_per_kwh: f64,
    /// Forecasts of the active source for the present slot, an hour and a day before it began.
    pub past_forecasts: Vec<PastForecastView>,
    /// Latest slot for which the active source has published an actual value.
    pub outcome: Option<OutcomeView>,
    /// Oddities of the data, and their handling.
    pub notes: Vec<String>,
    /// Sources of the chain, in order.
    pub sources: Vec<SourceView>,
    /// Scores of the sources' forecasts over the last fortnight, computed hourly.
    pub scores: Vec<ScoreView>,
}

/// Past forecast for a slot.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, ToSchema)]
pub struct PastForecastView {
    /// Minimum time before the slot began.
    pub horizon_h: f64,
    /// Value of the newest forecast available then.
    pub intensity_g_per_kwh: f64,
}

/// Actual value of a slot.
#[derive(Clone, Debug, PartialEq, Serialize, ToSchema)]
pub struct OutcomeView {
    /// Start.
    pub start: DateTime<Utc>,
    /// End.
    pub end: DateTime<Utc>,
    /// Actual value.
    pub intensity_g_per_kwh: f64,
    /// Origin: `measured`, `estimated` or `synthetic`.
    pub origin: IntensityOrigin,
    /// Past forecasts for it.
    pub past_forecasts: Vec<PastForecastView>,
}

/// A source of the chain.
#[derive(Clone, Debug, Serialize, ToSchema)]
pub struct SourceView {
    /// Name in the settings.
    pub source: String,
    /// Place in the chain, from 1; equal sources share one.
    pub rank: usize,
    /// True if it is active.
    pub followed: bool,
    /// Used part of its responses.
    pub contributes: Contribution,
    /// Grid zone as named in the settings.
    pub zone: Option<String>,
    /// Kind of its intensities; absent before its first response.
    pub kind: Option<IntensityKind>,
    /// Emissions that they include; absent before its first response.
    pub scope: Option<IntensityScope>,
    /// Freshness.
    pub freshness: SignalFreshness,
    /// Time since which it is not fresh.
    pub stale_since: Option<DateTime<Utc>>,
    /// Time of its last good response.
    pub fetched_at: Option<DateTime<Utc>>,
    /// True if that was before this daemon started.
    pub from_cache: bool,
    /// End of its forecast.
    pub forecast_until: Option<DateTime<Utc>>,
    /// End of its actual values.
    pub actual_until: Option<DateTime<Utc>>,
    /// Time up to which these are final.
    pub final_until: Option<DateTime<Utc>>,
    /// Time of the next request.
    pub next_poll_at: DateTime<Utc>,
    /// Last error; absent after a success.
    pub last_error: Option<String>,
    /// Number of failures since its last success.
    pub consecutive_failures: u32,
    /// Time since which it fails.
    pub failing_since: Option<DateTime<Utc>>,
    /// State of its requests: as usual, or seldom after repeated failures.
    pub circuit: Circuit,
    /// Number of requests within the last hour; absent where they are not counted.
    pub requests_last_hour: Option<u32>,
    /// Number of requests within the last 24 hours.
    pub requests_last_day: Option<u32>,
    /// Number of requests allowed within an hour.
    pub requests_allowed_per_hour: Option<u32>,
    /// Quarantined values that jumped, in one sentence.
    pub quarantined: Option<String>,
    /// Oddities of its last response.
    pub notes: Vec<String>,
}

/// One slot of a series of intensities.
#[derive(Clone, Debug, Serialize, ToSchema)]
pub struct IntensityView {
    /// Start.
    pub start: DateTime<Utc>,
    /// End.
    pub end: DateTime<Utc>,
    /// Intensity.
    pub intensity_g_per_kwh: f64,
    /// Origin.
    pub origin: IntensityOrigin,
    /// Lower bound of the 80 % prediction interval, for slots to come.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub low_g_per_kwh: Option<f64>,
    /// Upper bound of the 80 % prediction interval, for slots to come.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub high_g_per_kwh: Option<f64>,
    /// Finality, for past slots.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub state: Option<Finality>,
}

/// Scores of a source's forecasts over the last fortnight.
#[derive(Clone, Debug, PartialEq, Serialize, ToSchema)]
pub struct ScoreView {
    /// Source.
    pub source: String,
    /// Grid zone.
    pub zone: String,
    /// Horizon: 1 scores the forecasts known at the start of each hour, 24 those known at the start of each day (UTC).
    pub horizon_h: f64,
    /// Mean absolute percentage error.
    pub mape_pct: Option<f64>,
    /// Mean of forecast less actual value.
    pub bias_g_per_kwh: Option<f64>,
    /// Mean of Spearman's rank correlation within each day.
    pub rank_correlation: Option<f64>,
    /// Savings by the forecast as a part of those by perfect foresight of the 6 greenest hours of each day.
    pub caught_gain: Option<f64>,
    /// Number of scored hours.
    pub hours: f64,
}

impl ScoreView {
    /// Returns the view of a score.
    pub fn new(source: &str, zone: &str, horizon_h: f64, score: &Score) -> Self {
        Self {
            source: source.to_owned(),
            zone: zone.to_owned(),
            horizon_h,
            mape_pct: score.mape_pct,
            bias_g_per_kwh: score.bias_g_per_kwh,
            rank_correlation: score.rank_correlation,
            caught_gain: score.caught_gain,
            hours: score.hours,
        }
    }
}

/// Day-ahead price.
#[derive(Clone, Debug, Serialize, ToSchema)]
pub struct PriceView {
    /// Source; absent without one.
    pub source: Option<String>,
    /// Bidding zone.
    pub zone: Option<String>,
    /// Three letters (ISO 4217).
    pub currency: String,
    /// Price of the present slot; negative ones are normal.
    pub price_per_mwh: Option<f64>,
    /// Freshness.
    pub freshness: SignalFreshness,
    /// Time of the last good response.
    pub fetched_at: Option<DateTime<Utc>>,
    /// Error of the last request.
    pub last_error: Option<String>,
    /// Oddities of the last response.
    pub notes: Vec<String>,
    /// Prices from the present slot on.
    pub slots: Vec<PriceSlotView>,
}

/// Price of a slot.
#[derive(Clone, Debug, Serialize, ToSchema)]
pub struct PriceSlotView {
    /// Start.
    pub start: DateTime<Utc>,
    /// End.
    pub end: DateTime<Utc>,
    /// Price.
    pub price_per_mwh: f64,
}

/// Price of the present slot.
#[derive(Clone, Debug, Serialize, ToSchema)]
pub struct PresentPrice {
    /// Bidding zone.
    pub zone: String,
    /// Three letters (ISO 4217).
    pub currency: String,
    /// Price; negative ones are normal.
    pub price_per_mwh: f64,
}
