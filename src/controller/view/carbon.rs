//! Views of the carbon signal and the electricity price.

use chrono::{DateTime, Utc};
use serde::Serialize;
use utoipa::ToSchema;

use super::states::{Circuit, Finality, IntensityKind, IntensityOrigin, IntensityScope, SignalFreshness};
use crate::controller::signal::BasisLevel;
use crate::providers::Contribution;
use wattune_core::domain::Slot;
use wattune_core::forecast::Score;

/// State of the carbon signal now: the grid's carbon intensity, and the sources that publish it.
#[derive(Clone, Debug, Serialize, ToSchema)]
pub struct CarbonView {
    /// Grid zone of the active source.
    pub zone: Option<String>,
    /// Name of the active source: the best source of the configured chain that has responded.
    pub source: Option<String>,
    /// Kind of the active source's carbon intensity: average or marginal.
    pub kind: Option<IntensityKind>,
    /// Emissions that the active source's carbon intensity includes.
    pub scope: Option<IntensityScope>,
    /// Carbon intensity of the present slot (time step of the forecast); absent while only the configured constant is
    /// known.
    pub intensity_g_per_kwh: Option<f64>,
    /// Origin of `intensity_g_per_kwh`.
    pub origin: Option<IntensityOrigin>,
    /// Basis of `planned_with_g_per_kwh`: a source, the local forecaster, a daily profile or the configured constant.
    pub basis: BasisLevel,
    /// Time since which neither `basis` nor the active source has changed.
    pub basis_since: DateTime<Utc>,
    /// Carbon intensity used for planning now, before it is weighted by the forecast's skill.
    pub planned_with_g_per_kwh: f64,
    /// Freshness of the active source.
    pub freshness: SignalFreshness,
    /// Time since which the active source is stale; absent if it is not stale.
    pub stale_since: Option<DateTime<Utc>>,
    /// Time of the active source's last good response.
    pub fetched_at: Option<DateTime<Utc>>,
    /// Time of the next request to the active source.
    pub next_poll_at: Option<DateTime<Utc>>,
    /// Error of the last request to the active source; absent after a success.
    pub last_error: Option<String>,
    /// Factor by which planning multiplies the forecast's deviations from the forecast's mean. It comes from the
    /// measured skill of past forecasts: 0 ignores the forecast, 1 uses it in full.
    pub followed: Option<f64>,
    /// Mean of forecast minus actual value in the past; planning corrects the forecast for this error.
    pub bias_g_per_kwh: Option<f64>,
    /// Configured carbon intensity for planning where the signal has no value.
    pub fallback_g_per_kwh: f64,
    /// Past forecasts of the active source for the present slot: those known an hour and a day before the slot began.
    pub past_forecasts: Vec<PastForecastView>,
    /// Latest slot for which the active source has published an actual value, with that value; absent without one.
    pub outcome: Option<ActualView>,
    /// Irregularities of the signal's data, and how wattune handles them.
    pub notes: Vec<String>,
    /// Sources of the signal, in the order of the chain.
    pub sources: Vec<SourceView>,
    /// Scores of the sources' forecasts over the last fortnight, computed hourly.
    pub scores: Vec<ScoreView>,
}

/// Past forecast of a slot's carbon intensity.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, ToSchema)]
pub struct PastForecastView {
    /// Horizon: the forecast was known at least this long before the slot began.
    pub horizon_h: f64,
    /// Carbon intensity in the newest forecast that was known `horizon_h` before the slot began.
    pub intensity_g_per_kwh: f64,
}

/// Actual carbon intensity of a slot.
#[derive(Clone, Debug, PartialEq, Serialize, ToSchema)]
pub struct ActualView {
    /// Start of the slot.
    pub start: DateTime<Utc>,
    /// End of the slot.
    pub end: DateTime<Utc>,
    /// Actual carbon intensity.
    pub intensity_g_per_kwh: f64,
    /// Origin of the actual value: `measured`, `estimated` or `synthetic`.
    pub origin: IntensityOrigin,
    /// Past forecasts for the slot.
    pub past_forecasts: Vec<PastForecastView>,
}

/// State of a source of the carbon signal.
#[derive(Clone, Debug, Serialize, ToSchema)]
pub struct SourceView {
    /// Name of the source in the settings.
    pub source: String,
    /// Rank in the chain of sources, from 1; equal sources share a rank.
    pub rank: usize,
    /// True if this is the active source.
    pub followed: bool,
    /// Part of the source's responses that is used: forecast, actual values or both.
    pub contributes: Contribution,
    /// Grid zone as named in the settings.
    pub zone: Option<String>,
    /// Kind of the source's carbon intensities; absent before the source's first response.
    pub kind: Option<IntensityKind>,
    /// Emissions that the source's carbon intensities include; absent before the source's first response.
    pub scope: Option<IntensityScope>,
    /// Freshness of the source.
    pub freshness: SignalFreshness,
    /// Time since which the source is stale; absent if it is not stale.
    pub stale_since: Option<DateTime<Utc>>,
    /// Time of the source's last good response.
    pub fetched_at: Option<DateTime<Utc>>,
    /// True if the last good response is from before this daemon's start.
    pub from_cache: bool,
    /// End of the source's forecast; absent once that time has passed.
    pub forecast_until: Option<DateTime<Utc>>,
    /// End of the source's actual values.
    pub actual_until: Option<DateTime<Utc>>,
    /// Time up to which the actual values are final.
    pub final_until: Option<DateTime<Utc>>,
    /// Time of the next request to the source.
    pub next_poll_at: DateTime<Utc>,
    /// Error of the last request to the source; absent after a success.
    pub last_error: Option<String>,
    /// Number of failed requests since the last success.
    pub consecutive_failures: u32,
    /// Time since which requests fail; absent after a success.
    pub failing_since: Option<DateTime<Utc>>,
    /// State of the circuit breaker: requests are made as usual, or rarely after repeated failures.
    pub circuit: Circuit,
    /// Number of requests to the source within the last hour; absent if requests are not counted.
    pub requests_last_hour: Option<u32>,
    /// Number of requests to the source within the last 24 hours; absent if requests are not counted.
    pub requests_last_day: Option<u32>,
    /// Maximum number of requests to the source within an hour; absent if requests are not counted.
    pub requests_allowed_per_hour: Option<u32>,
    /// Description of quarantined values, which are not used until later responses confirm them, because they lie far
    /// outside the known range; absent if there are none.
    pub quarantined: Option<String>,
    /// Irregularities of the source's last response.
    pub notes: Vec<String>,
}

/// Carbon intensity of one slot (time step).
#[derive(Clone, Debug, Serialize, ToSchema)]
pub struct IntensityView {
    /// Start of the slot.
    pub start: DateTime<Utc>,
    /// End of the slot.
    pub end: DateTime<Utc>,
    /// Carbon intensity of the slot.
    pub intensity_g_per_kwh: f64,
    /// Origin of the carbon intensity.
    pub origin: IntensityOrigin,
    /// Lower bound of the 80 % prediction interval; absent for past slots.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub low_g_per_kwh: Option<f64>,
    /// Upper bound of the 80 % prediction interval; absent for past slots.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub high_g_per_kwh: Option<f64>,
    /// Finality of the carbon intensity; absent for slots to come.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub state: Option<Finality>,
}

/// Forecast that plans use, in whole slots (time steps).
#[derive(Clone, Debug, PartialEq)]
pub struct SlotsAhead {
    /// Present time.
    pub now: DateTime<Utc>,
    /// Grid zone of the active source; `None` before its first response.
    pub zone: Option<String>,
    /// Time of the data that the forecast is made from.
    pub generated_at: DateTime<Utc>,
    /// Slots from the present one on; empty while only the configured constant is known.
    pub slots: Vec<CarbonSlot>,
}

impl SlotsAhead {
    /// Returns a forecast without any slot.
    pub(crate) fn empty(now: DateTime<Utc>) -> Self {
        Self { now, zone: None, generated_at: now, slots: Vec::new() }
    }
}

/// Carbon intensity of one whole slot.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct CarbonSlot {
    /// Time of the slot.
    pub slot: Slot,
    /// Carbon intensity of the slot.
    pub g_per_kwh: f64,
}

/// Scores of a source's forecasts over the last fortnight.
#[derive(Clone, Debug, PartialEq, Serialize, ToSchema)]
pub struct ScoreView {
    /// Name of the source.
    pub source: String,
    /// Grid zone of the forecasts.
    pub zone: String,
    /// Horizon in hours. With 1, the score is that of the forecasts known at the start of each hour; with 24, of those
    /// known at the start of each day (UTC).
    pub horizon_h: f64,
    /// Mean absolute percentage error of the forecasts.
    pub mape_pct: Option<f64>,
    /// Mean of forecast minus actual value.
    pub bias_g_per_kwh: Option<f64>,
    /// Spearman's rank correlation of forecast and actual values within each day, averaged over days.
    pub rank_correlation: Option<f64>,
    /// Saving of work in the 6 hours of each day with the lowest forecast, compared with work all day, as a fraction of
    /// the saving in the 6 hours with the lowest actual values: 1 if the forecast finds the cleanest hours.
    pub caught_gain: Option<f64>,
    /// Number of hours that the scores cover.
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

/// Day-ahead electricity price.
#[derive(Clone, Debug, Serialize, ToSchema)]
pub struct PriceView {
    /// Source of the prices; absent before the source's first response.
    pub source: Option<String>,
    /// Bidding zone of the prices.
    pub zone: Option<String>,
    /// Currency of the prices: three letters (ISO 4217).
    pub currency: String,
    /// Price of the present slot, in `currency`; negative prices are normal.
    pub price_per_mwh: Option<f64>,
    /// Freshness of the prices.
    pub freshness: SignalFreshness,
    /// Time of the source's last good response.
    pub fetched_at: Option<DateTime<Utc>>,
    /// Error of the last request for prices; absent after a success.
    pub last_error: Option<String>,
    /// Irregularities of the source's last response.
    pub notes: Vec<String>,
    /// Prices from the present slot on.
    pub slots: Vec<PriceSlotView>,
}

/// Electricity price of one slot (time step of the price data).
#[derive(Clone, Debug, Serialize, ToSchema)]
pub struct PriceSlotView {
    /// Start of the slot.
    pub start: DateTime<Utc>,
    /// End of the slot.
    pub end: DateTime<Utc>,
    /// Price of the slot; negative prices are normal.
    pub price_per_mwh: f64,
}

/// Electricity price of the present slot (time step of the price data).
#[derive(Clone, Debug, Serialize, ToSchema)]
pub struct PresentPrice {
    /// Bidding zone of the price.
    pub zone: String,
    /// Currency of the price: three letters (ISO 4217).
    pub currency: String,
    /// Price of the present slot, in `currency`; negative prices are normal.
    pub price_per_mwh: f64,
}
