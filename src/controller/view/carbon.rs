//! The grid's signals, as they are shown.

use chrono::{DateTime, Utc};
use serde::Serialize;
use utoipa::ToSchema;

use wattune_core::forecast::Score;

/// The carbon signal now.
#[derive(Clone, Debug, Serialize, ToSchema)]
pub struct CarbonView {
    /// Part of the grid.
    pub zone: Option<String>,
    /// The source that is followed: the best one of the chain that has something to say.
    pub source: Option<String>,
    /// `average`, `marginal` or `unspecified`.
    pub kind: Option<String>,
    /// `lifecycle`, `operational` or `unspecified`.
    pub scope: Option<String>,
    /// Intensity of the present slot; absent while nothing is known of it but the configured constant.
    pub intensity_g_per_kwh: Option<f64>,
    /// Where that value comes from: `measured`, `estimated`, `forecast`, `fallback` (made by wattune), `synthetic`.
    pub origin: Option<String>,
    /// What the present is reckoned with: `source` (what a source says, corrected), `local` (the local forecaster),
    /// `daily_shape` (the last known shape of a day) or `constant` (the configured fallback).
    pub basis: &'static str,
    /// Since when it is this basis and this source.
    pub basis_since: DateTime<Utc>,
    /// What is planned with at present: the basis's value, before it is followed as far as its skill goes.
    pub planned_with_g_per_kwh: f64,
    /// `fresh`, `stale` or `none`: of the source that is followed.
    pub freshness: String,
    /// Since when it has not been fresh.
    pub stale_since: Option<DateTime<Utc>>,
    /// When its last good answer came.
    pub fetched_at: Option<DateTime<Utc>>,
    /// When the next one is asked for.
    pub next_poll_at: Option<DateTime<Utc>>,
    /// Why its last poll failed.
    pub last_error: Option<String>,
    /// How far the forecast is followed: 0 not at all, 1 fully (its measured skill).
    pub followed: Option<f64>,
    /// The mean of what the source expected less what came, which is corrected for.
    pub bias_g_per_kwh: Option<f64>,
    /// What is planned with where the signal says nothing.
    pub fallback_g_per_kwh: f64,
    /// What the followed source expected of the present slot, an hour and a day before it began.
    pub foreseen: Vec<ForeseenView>,
    /// The newest time of which the followed source has told what came.
    pub outcome: Option<OutcomeView>,
    /// What is odd about the data, and what was done about it.
    pub notes: Vec<String>,
    /// The sources of the chain, in order.
    pub sources: Vec<SourceView>,
    /// How well sources forecast over the last fortnight, counted hourly.
    pub scores: Vec<ScoreView>,
}

/// What was expected of a slot.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, ToSchema)]
pub struct ForeseenView {
    /// How long before the slot began, at least.
    pub horizon_h: f64,
    /// What the newest forecast that was at hand then said.
    pub intensity_g_per_kwh: f64,
}

/// What came in a slot.
#[derive(Clone, Debug, PartialEq, Serialize, ToSchema)]
pub struct OutcomeView {
    /// First moment.
    pub start: DateTime<Utc>,
    /// First moment after.
    pub end: DateTime<Utc>,
    /// What came.
    pub intensity_g_per_kwh: f64,
    /// `measured`, `estimated` or `synthetic`.
    pub origin: String,
    /// What was expected of it.
    pub foreseen: Vec<ForeseenView>,
}

/// A source of the chain.
#[derive(Clone, Debug, Serialize, ToSchema)]
pub struct SourceView {
    /// Its name in the settings.
    pub source: String,
    /// Its place in the chain, from 1; equals share one.
    pub rank: usize,
    /// Whether it is the one that is followed.
    pub followed: bool,
    /// What of its answers is used: `both`, `forecast` or `actual`.
    pub contributes: String,
    /// Part of the grid, as the settings name it.
    pub zone: Option<String>,
    /// `average`, `marginal` or `unspecified`; absent before its first answer.
    pub kind: Option<String>,
    /// `lifecycle`, `operational` or `unspecified`; absent before its first answer.
    pub scope: Option<String>,
    /// `fresh`, `stale` or `none`.
    pub freshness: String,
    /// Since when it has not been fresh.
    pub stale_since: Option<DateTime<Utc>>,
    /// When its last good answer came.
    pub fetched_at: Option<DateTime<Utc>>,
    /// Whether that was before this daemon started.
    pub from_cache: bool,
    /// When its forecast ends.
    pub forecast_until: Option<DateTime<Utc>>,
    /// Up to when it told what came.
    pub actual_until: Option<DateTime<Utc>>,
    /// Up to when that changes no more.
    pub final_until: Option<DateTime<Utc>>,
    /// When it is asked next.
    pub next_poll_at: DateTime<Utc>,
    /// Why it failed last; absent after a success.
    pub last_error: Option<String>,
    /// Failures since its last success.
    pub consecutive_failures: u32,
    /// Since when it fails.
    pub failing_since: Option<DateTime<Utc>>,
    /// `closed`, or `open` when it has failed so often that it is tried seldom.
    pub circuit: &'static str,
    /// Requests within the last hour; absent where they do not count.
    pub requests_last_hour: Option<u32>,
    /// Requests within the last 24 hours.
    pub requests_last_day: Option<u32>,
    /// Requests that are allowed within an hour.
    pub requests_allowed_per_hour: Option<u32>,
    /// Values that jumped and are held back, in one sentence.
    pub held_back: Option<String>,
    /// What was odd about its last answer.
    pub notes: Vec<String>,
}

/// One slot of a series of intensities.
#[derive(Clone, Debug, Serialize, ToSchema)]
pub struct IntensityView {
    /// First moment.
    pub start: DateTime<Utc>,
    /// First moment after.
    pub end: DateTime<Utc>,
    /// The intensity.
    pub intensity_g_per_kwh: f64,
    /// Where it comes from.
    pub origin: String,
    /// Of slots to come: four outcomes in five lie at or above this.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub low_g_per_kwh: Option<f64>,
    /// Of slots to come: four outcomes in five lie at or below this, and at or above `low_g_per_kwh`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub high_g_per_kwh: Option<f64>,
    /// Of slots past: `forecast` (nothing else is known), `provisional`, or `final` (changes no more).
    #[serde(skip_serializing_if = "Option::is_none")]
    pub state: Option<&'static str>,
}

/// How well a source forecast, over the last fortnight.
#[derive(Clone, Debug, PartialEq, Serialize, ToSchema)]
pub struct ScoreView {
    /// The source.
    pub source: String,
    /// Part of the grid.
    pub zone: String,
    /// How far ahead: 1 scores the forecasts known at the start of each hour, 24 those known at the start of each day
    /// (UTC).
    pub horizon_h: f64,
    /// Mean absolute error in percent of what came.
    pub mape_pct: Option<f64>,
    /// Mean of forecast less outcome.
    pub bias_g_per_kwh: Option<f64>,
    /// Spearman's rank correlation within the day, mean over days.
    pub rank_correlation: Option<f64>,
    /// The share of what perfect foresight of the 6 greenest hours of each day saves that the forecast would have saved.
    pub caught_gain: Option<f64>,
    /// How many hours were scored.
    pub hours: f64,
}

impl ScoreView {
    /// A score in its place.
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

/// The day-ahead price.
#[derive(Clone, Debug, Serialize, ToSchema)]
pub struct PriceView {
    /// The source; absent while there is none.
    pub source: Option<String>,
    /// The bidding zone.
    pub zone: Option<String>,
    /// Three letters (ISO 4217).
    pub currency: String,
    /// The price of the present slot; negative ones are normal.
    pub price_per_mwh: Option<f64>,
    /// `fresh`, `stale` or `none`.
    pub freshness: String,
    /// When the last good answer came.
    pub fetched_at: Option<DateTime<Utc>>,
    /// Why the last poll failed.
    pub last_error: Option<String>,
    /// What was odd about the last answer.
    pub notes: Vec<String>,
    /// The prices from the present slot on.
    pub slots: Vec<PriceSlotView>,
}

/// One slot's price.
#[derive(Clone, Debug, Serialize, ToSchema)]
pub struct PriceSlotView {
    /// First moment.
    pub start: DateTime<Utc>,
    /// First moment after.
    pub end: DateTime<Utc>,
    /// The price.
    pub price_per_mwh: f64,
}

/// The price of the present slot.
#[derive(Clone, Debug, Serialize, ToSchema)]
pub struct PresentPrice {
    /// The bidding zone.
    pub zone: String,
    /// Three letters (ISO 4217).
    pub currency: String,
    /// The price; negative ones are normal.
    pub price_per_mwh: f64,
}
