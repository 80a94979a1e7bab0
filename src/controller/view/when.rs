//! View of the advice when to start a job.

use chrono::{DateTime, Utc};
use serde::Serialize;
use utoipa::ToSchema;

use super::IntensityView;
use crate::controller::signal::BasisLevel;
use wattune_core::units::Watts;

/// Power of a job whose power is unknown; savings in percent do not depend on it.
pub(crate) const ANY_POWER: Watts = Watts::new(1000.0);

/// Advice when to start a job that may wait, and what waiting is expected to save.
#[derive(Clone, Debug, Serialize, ToSchema)]
pub struct WhenView {
    /// Time at which to start the job; the time of the request, or the earliest start, if it should not wait.
    pub start: DateTime<Utc>,
    /// True if the job should start now: false before its earliest start, even if it should not wait any longer.
    pub starts_at_once: bool,
    /// Time of the request.
    pub asked_at: DateTime<Utc>,
    /// Latest start; the time of the request if the requested one has passed.
    pub latest_start: DateTime<Utc>,
    /// Reason for the start: `cleaner_later`, or one of those to start as early as possible: `cleanest_now`,
    /// `gain_too_small`, `too_uncertain`, `no_time_to_wait`, `latest_start_passed`, `nothing_known`.
    pub reason: String,
    /// Reason in one sentence.
    pub advice: String,
    /// Duration of the job.
    pub duration_s: f64,
    /// Mean power of the job; absent if it is unknown, since savings in percent do not depend on it.
    pub power_w: Option<f64>,
    /// Expected reduction of the job's emissions by waiting for `best`, also if the job should start at once.
    pub expected_saving_pct: f64,
    /// Lower bound of the 80 % prediction interval of the reduction.
    pub saving_low_pct: f64,
    /// Upper bound of the 80 % prediction interval of the reduction.
    pub saving_high_pct: f64,
    /// Probability that waiting for `best` emits more than starting at once, from 0 to 1; if prices are weighed: that
    /// carbon and price together cost more.
    pub loss_probability: f64,
    /// Time at which to ask again while the job waits, since forecasts change.
    pub decide_at: DateTime<Utc>,
    /// Window of starting as early as possible.
    pub at_once: WindowView,
    /// Window with the least expected emissions among the later ones, or the least cost if prices are weighed; `at_once`
    /// if there is no later one.
    pub best: WindowView,
    /// Poorest basis of the forecast in the two windows: a source, the local forecaster, a daily profile or the
    /// configured constant.
    pub basis: BasisLevel,
    /// Grid zone of the forecast; absent without any source.
    pub zone: Option<String>,
    /// Source of the forecast; absent without any source.
    pub source: Option<String>,
    /// End of the source's forecast; later values are those of the local forecaster or of a daily profile. Absent without
    /// a forecast of a source.
    pub forecast_until: Option<DateTime<Utc>>,
    /// Doubts about the advice: sources that fail, forecasts that end early, a latest start that has passed.
    pub warnings: Vec<String>,
    /// Windows in order of their starts.
    pub windows: Vec<WindowView>,
    /// Forecast carbon intensity from now to the end of the last window, one value per slot (time step).
    pub forecast: Vec<IntensityView>,
}

/// Time in which a job could run.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, ToSchema)]
pub struct WindowView {
    /// Start of the job.
    pub start: DateTime<Utc>,
    /// End of the job.
    pub end: DateTime<Utc>,
    /// Expected mean carbon intensity of the window.
    pub intensity_g_per_kwh: f64,
    /// Expected emissions of the job; absent if its power is unknown.
    pub carbon_g: Option<f64>,
    /// Poorest basis of the forecast in the window.
    pub basis: BasisLevel,
}

/// Advice for a job of a usual duration, for dashboards.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct WindowAhead {
    /// Duration of the job in hours.
    pub duration_h: u32,
    /// Time at which to start the job.
    pub start: DateTime<Utc>,
    /// Expected reduction of the job's emissions by starting then rather than now, as a fraction; 0 if it should start
    /// now.
    pub saving: f64,
    /// Probability that waiting emits more than starting now; `None` if the job should start now.
    pub loss_probability: Option<f64>,
}
