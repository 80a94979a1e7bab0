//! All that can be learnt from what a source said and what came: its bias, the local forecaster beside it, how the
//! two are mixed, and how far the result is to be believed.

use chrono::{DateTime, TimeDelta, Utc};

use super::blend::{
    ASSUMED_ERROR, Apart, COVERAGE, Errors, IssueDays, NORMAL, REACH, Shares, Stretches, day_of, mixed, width, widths,
};
use super::difference::ErrorPaths;
use super::horizon::{Basis, Horizon};
use super::known::{decayed, middle};
use super::local::Local;
use super::past::{Source, kept, local_errors};
use super::score::Mean;
use super::skill::{Skill, SkillPolicy, measure_skill, shrink};
use super::trail::{DAY, HOURS, Trail};
use crate::domain::{CarbonSeries, Intensity, Issued, Origin, Slot};
use crate::units::{GramsPerKwh, Seconds};

/// Half the width of an interval about which nothing is known, as a part of the value.
const ASSUMED_WIDTH: f64 = NORMAL * ASSUMED_ERROR;

/// The last part of a source's forecast, which what comes after it goes on from.
const LAST: TimeDelta = TimeDelta::hours(1);

/// How a model is fitted.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct ModelPolicy {
    /// How old the newest outcome may be for its deviation to be followed; with older ones only the shape counts.
    pub fresh: Seconds,
    /// How old it may be to count at all: the shape of another season is no knowledge.
    pub remembered: Seconds,
    /// How the skill is measured.
    pub skill: SkillPolicy,
}

impl Default for ModelPolicy {
    /// A day, and the 28 days that are learnt from.
    fn default() -> Self {
        Self { fresh: Seconds::new(86_400.0), remembered: Seconds::new(28.0 * 86_400.0), skill: SkillPolicy::default() }
    }
}

/// Whose word is followed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Follow {
    /// The local forecaster alone.
    Local,
    /// The source alone, corrected by what it lately got wrong.
    Corrected,
    /// Both, mixed as their errors of the last 28 days suggest: what the daemon plans with.
    Feed,
}

/// What is expected of a slot.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Expected {
    /// The middle, in gCO2e/kWh; never negative.
    pub intensity: GramsPerKwh,
    /// The outcome lies at or above this, and at or below `high`, four times in five.
    pub low: GramsPerKwh,
    /// See `low`.
    pub high: GramsPerKwh,
    /// What it rests on.
    pub basis: Basis,
}

impl Expected {
    pub(super) fn new(value: f64, half_width: f64, basis: Basis) -> Self {
        let value = value.max(0.0);
        let grams = |value: f64| GramsPerKwh::new(value.max(0.0));
        Self { intensity: grams(value), low: grams(value - half_width), high: grams(value + half_width), basis }
    }
}

/// What the last 28 days say. Fitting costs a few milliseconds at the most and needs no state of its own.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Model {
    fitted: Option<Fitted>,
    /// Outcomes, and what had been expected where there are none.
    history: CarbonSeries,
    policy: ModelPolicy,
}

#[derive(Clone, Debug, PartialEq)]
struct Fitted {
    /// Where the newest hour ends that something is known of.
    anchor: DateTime<Utc>,
    actual: Trail,
    local: Option<Local>,
    source: Option<Source>,
    shares: Shares,
    local_width: Stretches,
    corrected_width: Stretches,
    feed_width: Stretches,
    /// Half the interval's width where neither the latest deviation nor the source tells anything.
    shape_width: f64,
    feed_errors: Errors,
}

impl Fitted {
    /// The day ahead that a slot begins on.
    fn day_of(&self, slot: &Slot) -> usize {
        day_of(usize::try_from((slot.start() - self.anchor).num_hours()).unwrap_or(0))
    }
}

impl Model {
    /// Learns from what was `said` of past slots as last said before they began, from the `issues` kept (in any order,
    /// all of this source; they tell how good it is further ahead), and from the `actual` values, over the 28 days before
    /// the newest of these. Each may be empty; what lies after `now` is not looked at.
    pub fn fit(
        said: &CarbonSeries,
        issues: &[&Issued],
        actual: &CarbonSeries,
        now: DateTime<Utc>,
        policy: &ModelPolicy,
    ) -> Self {
        let newest = |series: &CarbonSeries| {
            let passed = series.points().partition_point(|(slot, _)| slot.start() < now);
            series.points()[..passed].last().map(|(slot, _)| slot.end().min(now))
        };
        let Some(anchor) = newest(actual).or_else(|| newest(said)) else {
            return Self { policy: *policy, ..Self::default() };
        };
        let (said_hours, actual_hours) = (Trail::new(said, anchor), Trail::new(actual, anchor));
        let seen = if actual.is_empty() { &said_hours } else { &actual_hours };
        let local = Local::fit(seen, anchor);
        let source = Source::fit(&said_hours, &kept(issues, now), &actual_hours, anchor);

        let assumed = ASSUMED_ERROR * seen.mean().unwrap_or(0.0).abs();
        let local_errors = local_errors(seen, anchor);
        let source_errors = source.as_ref().map_or_else(Errors::new, Source::errors);
        let issue_days = IssueDays::of(source.as_ref().and_then(Source::newest_age));
        let shares = Shares::fit(&source_errors, &local_errors, issue_days);
        let feed_errors = mixed(&source_errors, &local_errors, &shares);
        let mut deviations: Vec<f64> = local.iter().flat_map(Local::deviations).collect();
        let fitted = Fitted {
            anchor,
            shares,
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
        let history = window.map(|window| joined(&said.within(&window), &actual.within(&window))).unwrap_or_default();
        Self { fitted: Some(fitted), history, policy: *policy }
    }

    /// How far its own day-ahead expectations of the past were to be believed: see [`Skill`]. The bias in it is the
    /// source's own, before correction.
    pub fn skill(&self) -> Skill {
        let bias = self.fitted.as_ref().and_then(|f| f.source.as_ref()).and_then(Source::bias);
        Skill { bias_g_per_kwh: bias, ..self.skill_of_day(0) }
    }

    /// The same for the expectations so many days further ahead.
    fn skill_of_day(&self, day: usize) -> Skill {
        let nothing = CarbonSeries::default();
        let Some(fitted) = &self.fitted else {
            return measure_skill(&nothing, &nothing, DateTime::UNIX_EPOCH, &self.policy.skill);
        };
        let (mut expected, mut came) = (Vec::new(), Vec::new());
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
            came.push(point(actual));
        }
        let series = |points| CarbonSeries::from_points(points).0;
        measure_skill(&series(expected), &series(came), fitted.anchor, &self.policy.skill)
    }

    /// The horizon drawn to its mean by what such outlooks lately lacked in skill, each slot by that of its lead.
    pub fn followed(&self, horizon: &Horizon) -> Horizon {
        let mut factors: Vec<f64> = Vec::with_capacity(REACH / DAY);
        for day in 0..REACH / DAY {
            let skill = self.skill_of_day(day);
            let before = factors.last().copied().filter(|_| skill.slope.is_none());
            factors.push(before.unwrap_or(skill.factor));
        }
        shrink(horizon, |slot| factors[self.fitted.as_ref().map_or(0, |fitted| fitted.day_of(slot))])
    }

    /// What it would have been off by (outcome less expectation, in g/kWh) on each of the past days, the last one first,
    /// by lead in hours.
    pub(super) fn past_errors(&self) -> &[Vec<Option<f64>>] {
        self.fitted.as_ref().map_or(&[], |f| &f.feed_errors)
    }

    /// The same as paths that hours are compared by.
    pub fn error_paths(&self) -> ErrorPaths {
        self.fitted.as_ref().map_or_else(ErrorPaths::default, |f| ErrorPaths::new(&f.feed_errors, f.anchor))
    }

    /// Outcomes, and what had been expected where there are none.
    pub(super) fn history(&self) -> &CarbonSeries {
        &self.history
    }

    /// How what the source expects, corrected, lies to the local forecaster.
    pub(super) fn apart(&self, expected: &CarbonSeries, now: DateTime<Utc>) -> Apart {
        let Some(fitted) = &self.fitted else { return Apart::default() };
        let Some(local) = &fitted.local else { return Apart::default() };
        let old = self.is_old(fitted, now);
        let points = expected.points();
        let ahead = &points[points.partition_point(|(slot, _)| slot.start() < fitted.anchor)..];
        let above = |slot: &Slot, given: &Intensity| {
            let correction = fitted.source.as_ref().map_or(0.0, |source| source.correction(slot, old));
            given.value.get() + correction - local.expected(slot, old)
        };
        let mut days = [Mean::default(); REACH / DAY];
        for (slot, given) in ahead {
            let lead = (slot.start() - fitted.anchor).num_hours();
            days[fitted.shares.day_of(lead)].add(slot.duration().get(), above(slot, given));
        }
        let by_day = days.map(|day| day.get().unwrap_or(0.0));
        let end = ahead.last().map(|(slot, _)| slot.end()).filter(|end| *end > now && local.is_daily());
        let end = end.map(|end| {
            let mut last = Mean::default();
            for (slot, given) in ahead.iter().filter(|(slot, _)| slot.start() >= end - LAST) {
                let lead = (slot.start() - fitted.anchor).num_hours();
                let above = above(slot, given);
                let mixed = if fitted.source.is_some() { fitted.shares.of_source(lead, above, &by_day) } else { above };
                last.add(slot.duration().get(), mixed);
            }
            (end, last.get().unwrap_or(0.0))
        });
        Apart { by_day, end }
    }

    fn is_old(&self, fitted: &Fitted, now: DateTime<Utc>) -> bool {
        Seconds::from_delta(now - fitted.anchor) > self.policy.fresh
    }

    /// What to expect of a slot, if the source gives this value (or none) for it and lies so far apart from the local
    /// forecaster. `None` if nothing can be said.
    pub(super) fn expect(
        &self,
        slot: &Slot,
        given: Option<GramsPerKwh>,
        apart: &Apart,
        follow: Follow,
        now: DateTime<Utc>,
    ) -> Option<Expected> {
        let given = given.map(GramsPerKwh::get).filter(|_| follow != Follow::Local);
        let Some(fitted) = &self.fitted else {
            return given.map(|value| Expected::new(value, ASSUMED_WIDTH * value, Basis::Given));
        };
        let old = self.is_old(fitted, now);
        let local = fitted.local.as_ref().filter(|l| follow != Follow::Corrected && (given.is_none() || l.is_daily()));
        let local = local.map(|local| local.expected(slot, old));
        let lead = (slot.start() - fitted.anchor).num_hours();
        match (given, &fitted.source) {
            (Some(given), Some(source)) => {
                let corrected = given + source.correction(slot, old);
                let mixed = |local| local + fitted.shares.of_source(lead, corrected - local, &apart.by_day);
                let width = if follow == Follow::Feed { &fitted.feed_width } else { &fitted.corrected_width };
                Some(Expected::new(local.map_or(corrected, mixed), width.at(lead), Basis::Corrected))
            }
            (Some(given), None) => Some(Expected::new(given, ASSUMED_WIDTH * given, Basis::Given)),
            (None, _) => {
                let beyond = apart.end.filter(|(end, _)| follow == Follow::Feed && slot.start() >= *end);
                let width = if beyond.is_some() { &fitted.feed_width } else { &fitted.local_width }.at(lead);
                let width = if old { width.max(fitted.shape_width) } else { width };
                let rest = beyond.map_or(0.0, |(end, above)| decayed(above, middle(slot) - end));
                Some(Expected::new(local? + rest, width, if old { Basis::DailyShape } else { Basis::Local }))
            }
        }
    }

    /// Itself, unless all that it learnt from is too long ago; then one that knows nothing.
    pub(super) fn remembered_at(&self, now: DateTime<Utc>) -> std::borrow::Cow<'_, Self> {
        let age = self.fitted.as_ref().map(|f| Seconds::from_delta(now - f.anchor));
        if age.is_none_or(|age| age <= self.policy.remembered) {
            return std::borrow::Cow::Borrowed(self);
        }
        std::borrow::Cow::Owned(Self { policy: self.policy, ..Self::default() })
    }

    /// Whether the local forecaster has seen most hours of the day.
    pub(super) fn knows_the_day(&self) -> bool {
        self.fitted.as_ref().and_then(|f| f.local.as_ref()).is_some_and(Local::is_daily)
    }

    /// Half the width of an interval around a value that was filled in.
    pub(super) fn rough_width(&self, value: f64) -> f64 {
        let assumed = 2.0 * ASSUMED_WIDTH * value;
        self.fitted.as_ref().filter(|_| self.knows_the_day()).map_or(assumed, |f| f.shape_width)
    }
}

/// `first`, and `second` in the gaps that it leaves.
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
