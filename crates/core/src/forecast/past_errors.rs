//! Errors that today's forecasters would have made on past days, with only the data known at that time.

use chrono::{DateTime, TimeDelta, Utc};

use super::bias::Correction;
use super::blend::{Errors, MAX_LEAD_HOURS};
use super::hourly_window::{DAY, HOURS, HourlyWindow};
use super::local::Local;
use super::ridge::Design;
use crate::domain::{Issued, Slot};

/// Ages in hours at which the age classes of issues (published forecasts) begin; each class has a correction of its
/// own. Classes between 0 and a day are used only for sources that issue often, where the errors of the latest issue
/// before a slot say little about those of an issue from a day earlier.
const LEADS_H: [i64; 9] = [0, 6, 12, 24, 48, 72, 96, 120, 144];
/// Maximum mean time between two issues for a source to count as issuing often.
const OFTEN: TimeDelta = TimeDelta::hours(12);
/// Minimum number of hours that must be known in both forecast and actual values for fitting a correction.
const LEAST_HOURS: usize = DAY;
/// Maximum age of the issues (published forecasts) that [`super::Model::fit`] uses: 28 days of training data and the
/// longest lead, 8 days.
pub const ISSUE_LOOKBACK: TimeDelta = TimeDelta::days(28 + 8);

/// Errors of a source and corrections for them, by the age of the source's issues (published forecasts).
#[derive(Clone, Debug, PartialEq)]
pub(super) struct SourceErrors {
    anchor: DateTime<Utc>,
    /// Errors and corrections by age of the issue, the lowest age first. The first entry is for the last forecast
    /// before each slot.
    ages: Vec<AgeClass>,
    /// Issue time (first) and end (second) of each issue that extends beyond the anchor, the latest issue first.
    current: Vec<(DateTime<Utc>, DateTime<Utc>)>,
}

#[derive(Clone, Debug, PartialEq)]
struct AgeClass {
    from: TimeDelta,
    errors: HourlyWindow,
    correction: Correction,
}

impl SourceErrors {
    /// Fits the corrections. `published` holds the last forecast of each slot and `actual` the actual values, both up
    /// to `anchor`; `issues` are in time order. `None` if no hour is known in both `published` and `actual`.
    pub(super) fn fit(
        published: &HourlyWindow,
        issues: &[&Issued],
        actual: &HourlyWindow,
        anchor: DateTime<Utc>,
    ) -> Option<Self> {
        let age = |from, published: &HourlyWindow| {
            let errors = actual.with(published, |outcome, published| outcome - published);
            let correction = Correction::fit(&errors, anchor)?;
            Some(AgeClass { from, errors, correction })
        };
        let mut ages = vec![age(TimeDelta::zero(), published)?];
        let often = is_often(issues);
        for hours in LEADS_H.into_iter().skip(1).filter(|h| often || *h >= 24) {
            let from = TimeDelta::hours(hours);
            let published = HourlyWindow::of_lead(issues, from, anchor);
            ages.extend(age(from, &published).filter(|age| age.errors.known() >= LEAST_HOURS));
        }
        let issue_end = |issued: &&Issued| Some((issued.issued_at, issued.series.end().filter(|end| *end > anchor)?));
        let current = issues.iter().rev().filter_map(issue_end).collect();
        Some(Self { anchor, ages, current })
    }

    /// Returns the correction (g/kWh) of a slot's forecast; if the data are `old`, without what remains of the latest
    /// error.
    pub(super) fn correction(&self, slot: &Slot, old: bool) -> f64 {
        self.ages[self.age_of(slot.start())].correction.at(&self.ages[0].correction, slot, old)
    }

    /// Returns the index of the age class of the latest issue that covers the time `t`; 0 if no issue does.
    fn age_of(&self, t: DateTime<Utc>) -> usize {
        let issued_at = self.current.iter().find(|(_, end)| *end > t).map(|(at, _)| *at);
        let Some(age) = issued_at.map(|at| t - at) else { return 0 };
        self.ages.iter().rposition(|a| a.from <= age).unwrap_or(0)
    }

    /// Returns the age that the latest issue extending beyond the anchor has at the anchor; `None` if there is no such
    /// issue.
    pub(super) fn newest_age(&self) -> Option<TimeDelta> {
        self.current.first().map(|(issued_at, _)| self.anchor - *issued_at)
    }

    /// Returns the mean of forecast less actual value for the last forecast before each slot.
    pub(super) fn bias(&self) -> Option<f64> {
        self.ages[0].errors.mean().map(|r| -r)
    }

    /// Returns the errors that the corrected source would have had on each past day, by lead in hours, up to the lead
    /// at which its current forecast ends.
    pub(super) fn errors(&self) -> Errors {
        let at = |lead: usize| i64::try_from(lead).unwrap_or(i64::MAX);
        let places: Vec<usize> =
            (0..MAX_LEAD_HOURS).map(|lead| self.age_of(self.anchor + TimeDelta::hours(at(lead)))).collect();
        let furthest = self.current.iter().map(|(_, end)| (*end - self.anchor).num_hours()).max();
        let lead_hours =
            furthest.map_or(MAX_LEAD_HOURS, |hours| usize::try_from(hours).unwrap_or(0).clamp(1, MAX_LEAD_HOURS));
        let day = |days: usize| -> Vec<Option<f64>> {
            let then: Vec<_> = self.ages.iter().map(|age| past_correction(age, self.anchor, days)).collect();
            let error = |lead: usize| {
                let place = places[lead];
                let error = self.ages[place].errors.get(days * DAY - lead - 1)?;
                let correction = |c: &Correction, newest: &Correction| c.usual(at(lead)) + newest.left(at(lead));
                // Without data for a correction, the source's forecast would have been used uncorrected.
                Some(
                    error - then[place].as_ref().zip(then[0].as_ref()).map_or(0.0, |(c, newest)| correction(c, newest)),
                )
            };
            (0..lead_hours.min(days * DAY)).map(error).collect()
        };
        past_days().map(day).collect()
    }
}

fn past_correction(age: &AgeClass, anchor: DateTime<Utc>, days: usize) -> Option<Correction> {
    let known = age.errors.days_ago(days);
    (known.known() >= LEAST_HOURS / 2).then(|| Correction::fit(&known, before(anchor, days)))?
}

/// Returns the errors that the local forecaster would have had on each past day, by lead in hours.
pub(super) fn local_errors(actual: &HourlyWindow, anchor: DateTime<Utc>) -> Errors {
    let design = Design::new(actual, anchor);
    let day = |days: usize| -> Vec<Option<f64>> {
        let local = Local::of_days_ago(days, actual, anchor, &design).filter(Local::is_daily);
        let error = |lead: usize| {
            let expected = local.as_ref()?.ahead(i64::try_from(lead).ok()?);
            Some(actual.get(days * DAY - lead - 1)? - expected)
        };
        (0..MAX_LEAD_HOURS.min(days * DAY)).map(error).collect()
    };
    past_days().map(day).collect()
}

fn past_days() -> std::ops::Range<usize> {
    1..HOURS / DAY
}

fn before(anchor: DateTime<Utc>, days: usize) -> DateTime<Utc> {
    anchor - TimeDelta::days(i64::try_from(days).unwrap_or(0))
}

/// Returns true if the mean time between issues is at most [`OFTEN`].
fn is_often(issues: &[&Issued]) -> bool {
    let (Some(first), Some(last)) = (issues.first(), issues.last()) else { return false };
    let gaps = i32::try_from(issues.len() - 1).unwrap_or(i32::MAX);
    gaps > 0 && (last.issued_at - first.issued_at) / gaps <= OFTEN
}

/// Returns the issues that were published by `now` and are younger than [`ISSUE_LOOKBACK`], in time order.
pub(super) fn kept<'a>(issues: &[&'a Issued], now: DateTime<Utc>) -> Vec<&'a Issued> {
    let of_use = |i: &&&Issued| i.issued_at <= now && i.issued_at > now - ISSUE_LOOKBACK;
    let mut kept: Vec<&Issued> = issues.iter().filter(of_use).copied().collect();
    kept.sort_by_key(|i| i.issued_at);
    kept
}
