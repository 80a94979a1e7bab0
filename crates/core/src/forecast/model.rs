//! Fits all forecast models to past forecasts and actual values: the bias of the carbon source, the local forecaster,
//! the blend of the two, and the skill of the result.

use chrono::{DateTime, TimeDelta, Utc};

use super::blend::{
    ASSUMED_ERROR, BlendWeights, ByLead, COVERAGE, Errors, IssueDays, MAX_LEAD_HOURS, NORMAL, SourceOffset, day_of,
    mixed, width, widths,
};
use super::error_paths::ErrorPaths;
use super::gap_filling::{decayed, middle};
use super::horizon::{Basis, Horizon, HorizonSlot};
use super::hourly_window::{DAY, HOURS, HourlyWindow};
use super::local::Local;
use super::past_errors::{SourceErrors, kept, local_errors};
use super::score::Mean;
use super::skill::{Skill, measure_skill, shrink};
use super::weekends::WeekendErrors;
use crate::domain::{CarbonSeries, Intensity, Issued, Origin, Slot};
use crate::units::{GramsPerKwh, Seconds};

/// Assumed half width of an 80 % prediction interval without data, relative to the value.
const ASSUMED_WIDTH: f64 = NORMAL * ASSUMED_ERROR;

/// Length of the last part of a source's forecast. Its mean offset from the local forecast is carried on beyond the end
/// of the source's forecast.
const LAST: TimeDelta = TimeDelta::hours(1);

/// Maximum age of the latest actual value for extrapolating recent deviations; with an older one, only the daily profile is
/// used.
const FRESH: Seconds = Seconds::new(86_400.0);
/// Maximum age of the latest actual value; with an older one the model is not used at all, because seasons differ: the 28
/// days that training data cover.
const REMEMBERED: Seconds = Seconds::new(28.0 * 86_400.0);

/// Forecaster that a forecast comes from.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Forecaster {
    /// The forecast comes from the local forecaster alone.
    Local,
    /// The forecast comes from the source alone, corrected for the source's recent errors.
    Corrected,
    /// The forecast comes from the source and the local forecaster, blended by their errors of the last 28 days. The
    /// daemon plans with this blend.
    Feed,
}

/// Forecast of one slot.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Expected {
    /// Expected carbon intensity, never negative.
    pub intensity: GramsPerKwh,
    /// Lower bound of the 80 % prediction interval.
    pub low: GramsPerKwh,
    /// Upper bound of the 80 % prediction interval.
    pub high: GramsPerKwh,
    /// Basis of the value: the data that it comes from.
    pub basis: Basis,
}

impl Expected {
    pub(super) fn new(value: f64, half_width: f64, basis: Basis) -> Self {
        let value = value.max(0.0);
        let grams = |value: f64| GramsPerKwh::new(value.max(0.0));
        Self { intensity: grams(value), low: grams(value - half_width), high: grams(value + half_width), basis }
    }
}

/// Forecast model fitted to the last 28 days. Fitting takes a few milliseconds and needs no stored state.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Model {
    fitted: Option<Fitted>,
    /// Actual values of the last 28 days, and past forecasts where actual values are missing.
    history: CarbonSeries,
}

#[derive(Clone, Debug, PartialEq)]
struct Fitted {
    /// End of the latest actual value, from which leads count; without actual values, end of the latest past forecast.
    anchor: DateTime<Utc>,
    actual: HourlyWindow,
    local: Option<Local>,
    source: Option<SourceErrors>,
    weights: BlendWeights,
    local_width: ByLead,
    corrected_width: ByLead,
    feed_width: ByLead,
    /// Half width of the 80 % prediction interval where neither recent deviations nor the source contribute.
    shape_width: f64,
    feed_errors: Errors,
}

impl Fitted {
    /// Returns the index of the day ahead, counted from the anchor in steps of 24 h, on which a slot starts.
    fn day_of(&self, slot: &Slot) -> usize {
        day_of(usize::try_from((slot.start() - self.anchor).num_hours()).unwrap_or(0))
    }
}

impl Model {
    /// Fits a model to the 28 days before the latest `actual` value. `published` holds for each past slot the last
    /// forecast before the slot began; `issues` holds the source's forecasts as stored, in any order, which show the
    /// errors at longer leads. Any of them may be empty. Data after `now` are ignored.
    pub fn fit(published: &CarbonSeries, issues: &[&Issued], actual: &CarbonSeries, now: DateTime<Utc>) -> Self {
        let newest = |series: &CarbonSeries| {
            let passed = series.points().partition_point(|(slot, _)| slot.start() < now);
            series.points()[..passed].last().map(|(slot, _)| slot.end().min(now))
        };
        let Some(anchor) = newest(actual).or_else(|| newest(published)) else {
            return Self::default();
        };
        let (forecast_hours, actual_hours) = (HourlyWindow::new(published, anchor), HourlyWindow::new(actual, anchor));
        let seen = if actual.is_empty() { &forecast_hours } else { &actual_hours };
        let local = Local::fit(seen, anchor);
        let source = SourceErrors::fit(&forecast_hours, &kept(issues, now), &actual_hours, anchor);

        let assumed = ASSUMED_ERROR * seen.mean().unwrap_or(0.0).abs();
        let local_errors = local_errors(seen, anchor);
        let source_errors = source.as_ref().map_or_else(Errors::new, SourceErrors::errors);
        let issue_days = IssueDays::of(source.as_ref().and_then(SourceErrors::newest_age));
        let weights = BlendWeights::fit(&source_errors, &local_errors, issue_days);
        let feed_errors = mixed(&source_errors, &local_errors, &weights);
        let mut deviations: Vec<f64> = local.iter().flat_map(Local::deviations).collect();
        let fitted = Fitted {
            anchor,
            weights,
            local_width: widths(&local_errors, assumed),
            corrected_width: widths(&source_errors, assumed),
            feed_width: widths(&feed_errors, assumed),
            shape_width: width(&mut deviations, COVERAGE[1], 2.0 * assumed),
            feed_errors,
            actual: actual_hours,
            local,
            source,
        };
        let window = anchor.checked_sub_signed(TimeDelta::days(28)).and_then(|start| Slot::new(start, anchor));
        let history =
            window.map(|window| joined(&published.within(&window), &actual.within(&window))).unwrap_or_default();
        Self { fitted: Some(fitted), history }
    }

    /// Returns the skill of the model's past day-ahead forecasts. The bias is that of the source, before correction.
    pub fn skill(&self) -> Skill {
        let bias = self.fitted.as_ref().and_then(|f| f.source.as_ref()).and_then(SourceErrors::bias);
        Skill { bias_g_per_kwh: bias, ..self.skill_of_day(0) }
    }

    /// Returns the skill of past forecasts at leads (times ahead) of `day` to `day` + 1 days.
    fn skill_of_day(&self, day: usize) -> Skill {
        let nothing = CarbonSeries::default();
        let Some(fitted) = &self.fitted else {
            return measure_skill(&nothing, &nothing, DateTime::UNIX_EPOCH);
        };
        let (mut expected, mut outcome) = (Vec::new(), Vec::new());
        for age in (0..HOURS).rev() {
            let (origin, lead) = (age / DAY + day, day * DAY + DAY - 1 - age % DAY);
            let error = self.past_errors().get(origin).and_then(|errors| *errors.get(lead)?);
            let (Some(error), Some(actual), Ok(hours)) = (error, fitted.actual.get(age), i64::try_from(age)) else {
                continue;
            };
            let start = fitted.anchor - TimeDelta::hours(hours + 1);
            let Some(slot) = Slot::new(start, start + TimeDelta::hours(1)) else { continue };
            let point = |value| (slot, Intensity { value: GramsPerKwh::new(value), origin: Origin::Estimated });
            expected.push(point(actual - error));
            outcome.push(point(actual));
        }
        let series = |points| CarbonSeries::from_points(points).0;
        measure_skill(&series(expected), &series(outcome), fitted.anchor)
    }

    /// Moves the value of each slot of a horizon towards the mean, the further, the less skill past forecasts had as
    /// far ahead as the slot is.
    pub fn shrink_by_skill(&self, horizon: &Horizon) -> Horizon {
        let mut factors: Vec<f64> = Vec::with_capacity(MAX_LEAD_HOURS / DAY);
        for day in 0..MAX_LEAD_HOURS / DAY {
            let skill = self.skill_of_day(day);
            let before = factors.last().copied().filter(|_| skill.slope.is_none());
            factors.push(before.unwrap_or(skill.factor));
        }
        shrink(horizon, |slot| factors[self.fitted.as_ref().map_or(0, |fitted| fitted.day_of(slot))])
    }

    /// Corrects slots for past errors that differ between weekends and weekdays. Intervals move with their slots. Values
    /// of a source whose errors are unknown stay as they are published.
    pub(super) fn correct_weekends(&self, slots: &mut [HorizonSlot]) {
        let Some(fitted) = &self.fitted else { return };
        let errors = WeekendErrors::fit(&fitted.feed_errors, fitted.anchor);
        let by_model = |basis| matches!(basis, Basis::Local | Basis::DailyShape);
        for slot in slots.iter_mut().filter(|slot| fitted.source.is_some() || by_model(slot.basis)) {
            let by = GramsPerKwh::new(errors.correction(&slot.slot));
            for value in [&mut slot.intensity, &mut slot.low, &mut slot.high] {
                *value = (*value + by).max(GramsPerKwh::ZERO);
            }
        }
    }

    /// Returns the errors (actual less forecast, in g/kWh) that the model would have made on each past day: one list
    /// per day, the most recent day first, by lead in hours.
    pub(super) fn past_errors(&self) -> &[Vec<Option<f64>>] {
        self.fitted.as_ref().map_or(&[], |f| &f.feed_errors)
    }

    /// Returns the past errors of the model as paths by lead, from which [`ErrorPaths`] computes standard errors of
    /// differences between hours.
    pub fn error_paths(&self) -> ErrorPaths {
        self.fitted.as_ref().map_or_else(ErrorPaths::default, |f| ErrorPaths::new(&f.feed_errors, f.anchor))
    }

    /// Returns the actual values of the last 28 days, with past forecasts where actual values are missing.
    pub(super) fn history(&self) -> &CarbonSeries {
        &self.history
    }

    /// Returns the offset of the source's forecast `expected`, once corrected for recent errors, from the local
    /// forecast.
    pub(super) fn offset(&self, expected: &CarbonSeries, now: DateTime<Utc>) -> SourceOffset {
        let Some(fitted) = &self.fitted else { return SourceOffset::default() };
        let Some(local) = &fitted.local else { return SourceOffset::default() };
        let old = self.is_old(fitted, now);
        let points = expected.points();
        let ahead = &points[points.partition_point(|(slot, _)| slot.start() < fitted.anchor)..];
        let above = |slot: &Slot, given: &Intensity| {
            let correction = fitted.source.as_ref().map_or(0.0, |source| source.correction(slot, old));
            given.value.get() + correction - local.expected(slot, old)
        };
        let mut days = [Mean::default(); MAX_LEAD_HOURS / DAY];
        for (slot, given) in ahead {
            let lead = (slot.start() - fitted.anchor).num_hours();
            days[fitted.weights.day_of(lead)].add(slot.duration().get(), above(slot, given));
        }
        let by_day = days.map(|day| day.get().unwrap_or(0.0));
        let end = ahead.last().map(|(slot, _)| slot.end()).filter(|end| *end > now && local.is_daily());
        let end = end.map(|end| {
            let mut last = Mean::default();
            for (slot, given) in ahead.iter().filter(|(slot, _)| slot.start() >= end - LAST) {
                let lead = (slot.start() - fitted.anchor).num_hours();
                let above = above(slot, given);
                let mixed =
                    if fitted.source.is_some() { fitted.weights.of_source(lead, above, &by_day) } else { above };
                last.add(slot.duration().get(), mixed);
            }
            (end, last.get().unwrap_or(0.0))
        });
        SourceOffset { by_day, end }
    }

    fn is_old(&self, fitted: &Fitted, now: DateTime<Utc>) -> bool {
        Seconds::from_delta(now - fitted.anchor) > FRESH
    }

    /// Forecasts a slot from the source's value `given`, if any, and the `offset` of the source from the local
    /// forecaster. `None` without any data.
    pub(super) fn expect(
        &self,
        slot: &Slot,
        given: Option<GramsPerKwh>,
        offset: &SourceOffset,
        forecaster: Forecaster,
        now: DateTime<Utc>,
    ) -> Option<Expected> {
        let given = given.map(GramsPerKwh::get).filter(|_| forecaster != Forecaster::Local);
        let Some(fitted) = &self.fitted else {
            return given.map(|value| Expected::new(value, ASSUMED_WIDTH * value, Basis::Given));
        };
        let old = self.is_old(fitted, now);
        let local =
            fitted.local.as_ref().filter(|l| forecaster != Forecaster::Corrected && (given.is_none() || l.is_daily()));
        let local = local.map(|local| local.expected(slot, old));
        let lead = (slot.start() - fitted.anchor).num_hours();
        match (given, &fitted.source) {
            (Some(given), Some(source)) => {
                let corrected = given + source.correction(slot, old);
                let mixed = |local| local + fitted.weights.of_source(lead, corrected - local, &offset.by_day);
                let width = if forecaster == Forecaster::Feed { &fitted.feed_width } else { &fitted.corrected_width };
                Some(Expected::new(local.map_or(corrected, mixed), width.at(lead), Basis::Corrected))
            }
            (Some(given), None) => Some(Expected::new(given, ASSUMED_WIDTH * given, Basis::Given)),
            (None, _) => {
                let beyond = offset.end.filter(|(end, _)| forecaster == Forecaster::Feed && slot.start() >= *end);
                let width = if beyond.is_some() { &fitted.feed_width } else { &fitted.local_width }.at(lead);
                let width = if old { width.max(fitted.shape_width) } else { width };
                let rest = beyond.map_or(0.0, |(end, above)| decayed(above, middle(slot) - end));
                Some(Expected::new(local? + rest, width, if old { Basis::DailyShape } else { Basis::Local }))
            }
        }
    }

    /// Returns this model, or an empty one if its data are older than [`REMEMBERED`].
    pub(super) fn unless_outdated(&self, now: DateTime<Utc>) -> std::borrow::Cow<'_, Self> {
        let age = self.fitted.as_ref().map(|f| Seconds::from_delta(now - f.anchor));
        if age.is_none_or(|age| age <= REMEMBERED) {
            return std::borrow::Cow::Borrowed(self);
        }
        std::borrow::Cow::Owned(Self::default())
    }

    /// Returns true if the local forecaster knows actual values for at least three quarters of the hours of the day.
    pub(super) fn has_daily_profile(&self) -> bool {
        self.fitted.as_ref().and_then(|f| f.local.as_ref()).is_some_and(Local::is_daily)
    }

    /// Returns the half width of the 80 % prediction interval around a value that fills a gap.
    pub(super) fn rough_width(&self, value: f64) -> f64 {
        let assumed = 2.0 * ASSUMED_WIDTH * value;
        self.fitted.as_ref().filter(|_| self.has_daily_profile()).map_or(assumed, |f| f.shape_width)
    }
}

/// Returns `first` with its gaps, and the time before and after it, filled from `second`.
fn joined(second: &CarbonSeries, first: &CarbonSeries) -> CarbonSeries {
    let (Some(start), Some(end)) = (first.start(), first.end()) else { return second.clone() };
    let mut points = Vec::with_capacity(first.points().len() + second.points().len());
    let mut add = |span: Option<Slot>| points.extend(span.iter().flat_map(|s| second.within(s).points().to_vec()));
    add(second.start().and_then(|from| Slot::new(from, start)));
    first.gaps().for_each(|gap| add(Some(gap)));
    add(second.end().and_then(|to| Slot::new(end, to)));
    points.extend(first.points().iter().copied());
    points.sort_by_key(|(slot, _)| *slot);
    CarbonSeries::from_points(points).0
}
