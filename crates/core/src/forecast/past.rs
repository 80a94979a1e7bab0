//! The forecasts of the past days made anew, each with what was known then: what they were off by.

use chrono::{DateTime, TimeDelta, Utc};

use super::bias::Correction;
use super::blend::{Errors, REACH};
use super::local::Local;
use super::ridge::Design;
use super::trail::{DAY, HOURS, Trail};
use crate::domain::{Issued, Slot};

/// How old an issue has to be for another correction to hold: within the first day only where issues follow each other
/// so fast that those of a slot before it begins say little about those a day ahead.
const LEADS_H: [i64; 9] = [0, 6, 12, 24, 48, 72, 96, 120, 144];
/// Issues further apart than this are daily ones, whose first day is learnt as a whole.
const OFTEN: TimeDelta = TimeDelta::hours(12);
/// Fewer hours teach nothing about a lead.
const LEAST_HOURS: usize = DAY;
/// How far back issues are of use to [`super::Model::fit`]: the 28 days that are learnt from, and the furthest lead.
pub const ISSUES_LEARNT_FROM: TimeDelta = TimeDelta::days(28 + 8);

/// A source's errors and what corrects them, by the age of its issues.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Source {
    anchor: DateTime<Utc>,
    /// What holds from an issue's age on, the youngest first; the first is of what was last said of a slot.
    ages: Vec<Age>,
    /// When each issue that reaches beyond the anchor was made and how far it speaks, the newest first.
    current: Vec<(DateTime<Utc>, DateTime<Utc>)>,
}

#[derive(Clone, Debug, PartialEq)]
struct Age {
    from: TimeDelta,
    errors: Trail,
    correction: Correction,
}

impl Source {
    /// `said` is what was last said of each slot, `actual` what came, both up to `anchor`; `issues` are in the order of
    /// their times. `None` without an hour of which both are known.
    pub(super) fn fit(said: &Trail, issues: &[&Issued], actual: &Trail, anchor: DateTime<Utc>) -> Option<Self> {
        let age = |from, said: &Trail| {
            let errors = actual.with(said, |came, said| came - said);
            let correction = Correction::fit(&errors, anchor)?;
            Some(Age { from, errors, correction })
        };
        let mut ages = vec![age(TimeDelta::zero(), said)?];
        let often = is_often(issues);
        for hours in LEADS_H.into_iter().skip(1).filter(|h| often || *h >= 24) {
            let from = TimeDelta::hours(hours);
            let said = Trail::of_lead(issues, from, anchor);
            ages.extend(age(from, &said).filter(|age| age.errors.known() >= LEAST_HOURS));
        }
        let reach = |issued: &&Issued| Some((issued.issued_at, issued.series.end().filter(|end| *end > anchor)?));
        let current = issues.iter().rev().filter_map(reach).collect();
        Some(Self { anchor, ages, current })
    }

    /// What to add to what the source says of a slot; the newest error is left out if it is `old`.
    pub(super) fn correction(&self, slot: &Slot, old: bool) -> f64 {
        self.ages[self.age_of(slot.start())].correction.at(&self.ages[0].correction, slot, old)
    }

    /// The place of what holds for the issue that speaks of a moment.
    fn age_of(&self, t: DateTime<Utc>) -> usize {
        let issued_at = self.current.iter().find(|(_, end)| *end > t).map(|(at, _)| *at);
        let Some(age) = issued_at.map(|at| t - at) else { return 0 };
        self.ages.iter().rposition(|a| a.from <= age).unwrap_or(0)
    }

    /// How old the newest issue that speaks of the time ahead was when the newest outcome was known.
    pub(super) fn newest_age(&self) -> Option<TimeDelta> {
        self.current.first().map(|(issued_at, _)| self.anchor - *issued_at)
    }

    /// The mean of forecast less outcome, as last said before each slot.
    pub(super) fn bias(&self) -> Option<f64> {
        self.ages[0].errors.mean().map(|r| -r)
    }

    /// What the corrected source would have been off by on each of the past days, as far ahead as it speaks now.
    pub(super) fn errors(&self) -> Errors {
        let at = |lead: usize| i64::try_from(lead).unwrap_or(i64::MAX);
        let places: Vec<usize> = (0..REACH).map(|lead| self.age_of(self.anchor + TimeDelta::hours(at(lead)))).collect();
        let furthest = self.current.iter().map(|(_, end)| (*end - self.anchor).num_hours()).max();
        let reach = furthest.map_or(REACH, |hours| usize::try_from(hours).unwrap_or(0).clamp(1, REACH));
        let day = |days: usize| -> Vec<Option<f64>> {
            let then: Vec<_> = self.ages.iter().map(|age| past_correction(age, self.anchor, days)).collect();
            let error = |lead: usize| {
                let place = places[lead];
                let error = self.ages[place].errors.get(days * DAY - lead - 1)?;
                let correction = |c: &Correction, newest: &Correction| c.usual(at(lead)) + newest.left(at(lead));
                // Before anything was known to correct it by, it was taken as it was.
                Some(
                    error - then[place].as_ref().zip(then[0].as_ref()).map_or(0.0, |(c, newest)| correction(c, newest)),
                )
            };
            (0..reach.min(days * DAY)).map(error).collect()
        };
        past_days().map(day).collect()
    }
}

fn past_correction(age: &Age, anchor: DateTime<Utc>, days: usize) -> Option<Correction> {
    let known = age.errors.days_ago(days);
    (known.known() >= LEAST_HOURS / 2).then(|| Correction::fit(&known, before(anchor, days)))?
}

/// What the local forecaster would have been off by on each of the past days.
pub(super) fn local_errors(actual: &Trail, anchor: DateTime<Utc>) -> Errors {
    let design = Design::new(actual, anchor);
    let day = |days: usize| -> Vec<Option<f64>> {
        let local = Local::of_days_ago(days, actual, anchor, &design).filter(Local::is_daily);
        let error = |lead: usize| {
            let expected = local.as_ref()?.ahead(i64::try_from(lead).ok()?);
            Some(actual.get(days * DAY - lead - 1)? - expected)
        };
        (0..REACH.min(days * DAY)).map(error).collect()
    };
    past_days().map(day).collect()
}

fn past_days() -> std::ops::Range<usize> {
    1..HOURS / DAY
}

fn before(anchor: DateTime<Utc>, days: usize) -> DateTime<Utc> {
    anchor - TimeDelta::days(i64::try_from(days).unwrap_or(0))
}

/// Whether issues follow each other faster than by the day.
fn is_often(issues: &[&Issued]) -> bool {
    let (Some(first), Some(last)) = (issues.first(), issues.last()) else { return false };
    let gaps = i32::try_from(issues.len() - 1).unwrap_or(i32::MAX);
    gaps > 0 && (last.issued_at - first.issued_at) / gaps <= OFTEN
}

/// Those issues that can be learnt from at `now`, in the order of their times.
pub(super) fn kept<'a>(issues: &[&'a Issued], now: DateTime<Utc>) -> Vec<&'a Issued> {
    let of_use = |i: &&&Issued| i.issued_at <= now && i.issued_at > now - ISSUES_LEARNT_FROM;
    let mut kept: Vec<&Issued> = issues.iter().filter(of_use).copied().collect();
    kept.sort_by_key(|i| i.issued_at);
    kept
}
