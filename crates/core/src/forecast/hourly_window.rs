//! Hourly values of the last 28 days, counted back from the latest value.

use chrono::{DateTime, TimeDelta, Utc};

use crate::domain::{CarbonSeries, Issued, Slot};

/// Hours in a day.
pub(super) const DAY: usize = 24;

/// Window length: four weeks, so that each day of the week occurs four times.
pub(super) const HOURS: usize = 28 * DAY;

/// One hour in milliseconds.
const HOUR_MS: i64 = 3_600_000;

/// Hourly means by age, the first for the hour before the anchor (end of the latest value). `None` where less than half
/// of the hour is known.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct HourlyWindow(Vec<Option<f64>>);

impl HourlyWindow {
    /// Computes the hourly means of `series` over the four weeks before `anchor`.
    pub(super) fn new(series: &CarbonSeries, anchor: DateTime<Utc>) -> Self {
        let Some(window) = hour(anchor, -1).and_then(|newest| {
            let span = TimeDelta::milliseconds(HOUR_MS * i64::try_from(HOURS).ok()?);
            Slot::new(newest.end().checked_sub_signed(span)?, newest.end())
        }) else {
            return Self(vec![None; HOURS]);
        };
        let (mut sums, mut covered) = (vec![0.0; HOURS], vec![0_i64; HOURS]);
        for (slot, intensity) in series.overlapping(&window) {
            let Some(slot) = slot.intersection(&window) else { continue };
            // Milliseconds before the anchor: `old` for the start, `young` for the end.
            let (mut old, young) =
                ((anchor - slot.start()).num_milliseconds(), (anchor - slot.end()).num_milliseconds());
            while old > young {
                let age = (old - 1).div_euclid(HOUR_MS);
                let part = old - young.max(age * HOUR_MS);
                if let Some(age) = usize::try_from(age).ok().filter(|age| *age < HOURS) {
                    sums[age] += intensity.value.get() * milliseconds(part);
                    covered[age] += part;
                }
                old -= part;
            }
        }
        let mean = |(sum, covered): (f64, i64)| (covered * 2 >= HOUR_MS).then(|| sum / milliseconds(covered));
        Self(sums.into_iter().zip(covered).map(mean).collect())
    }

    /// Returns for each hour the value of the latest of the `issues` (published forecasts in time order) that was at
    /// least `lead` old at that hour; `None` where that issue was more than `lead` plus two days old.
    pub(super) fn of_lead(issues: &[&Issued], lead: TimeDelta, anchor: DateTime<Utc>) -> Self {
        let reaches = |issued: &&&Issued| issued.series.end().is_some_and(|end| end > issued.issued_at + lead);
        let able: Vec<&Issued> = issues.iter().filter(reaches).copied().collect();
        let mut points = Vec::new();
        for (place, issued) in able.iter().enumerate() {
            let from = issued.issued_at + lead;
            let next = able.get(place + 1).map_or(anchor, |next| next.issued_at + lead);
            let Some(span) = Slot::new(from, next.min(from + TimeDelta::days(2))) else { continue };
            points.extend_from_slice(issued.series.within(&span).points());
        }
        Self::new(&CarbonSeries::from_points(points).0, anchor)
    }

    /// Returns the window as it was known `days` days ago.
    pub(super) fn days_ago(&self, days: usize) -> Self {
        let mut hours = self.0.get(days * DAY..).unwrap_or_default().to_vec();
        hours.resize(HOURS, None);
        Self(hours)
    }

    /// Returns the mean of the hour `age` hours before the latest one; `None` if unknown.
    pub(super) fn get(&self, age: usize) -> Option<f64> {
        self.0.get(age).copied().flatten()
    }

    /// Returns all hours by age, the latest first.
    pub(super) fn hours(&self) -> &[Option<f64>] {
        &self.0
    }

    /// Combines two windows hour by hour with `f` where both are known.
    pub(super) fn with(&self, other: &Self, f: impl Fn(f64, f64) -> f64) -> Self {
        Self(self.0.iter().zip(&other.0).map(|(a, b)| Some(f((*a)?, (*b)?))).collect())
    }

    /// Returns the mean of the known hours.
    #[expect(clippy::cast_precision_loss, reason = "at most 672 hours")]
    pub(super) fn mean(&self) -> Option<f64> {
        (self.known() > 0).then(|| self.0.iter().flatten().sum::<f64>() / self.known() as f64)
    }

    /// Returns the number of known hours.
    pub(super) fn known(&self) -> usize {
        self.0.iter().flatten().count()
    }
}

#[expect(clippy::cast_precision_loss, reason = "four weeks of milliseconds are exact in f64")]
fn milliseconds(ms: i64) -> f64 {
    ms as f64
}

/// Returns the hour that starts `lead` hours after the anchor; past hours have negative leads.
fn hour(anchor: DateTime<Utc>, lead: i64) -> Option<Slot> {
    let start = anchor.checked_add_signed(TimeDelta::try_hours(lead)?)?;
    Slot::new(start, start.checked_add_signed(TimeDelta::hours(1))?)
}

/// Returns true if the middle of the hour at a lead lies on a Saturday or Sunday (UTC).
pub(super) fn weekend(anchor: DateTime<Utc>, lead: i64) -> bool {
    let middle_ms = anchor.timestamp_millis().saturating_add(lead.saturating_mul(HOUR_MS)).saturating_add(HOUR_MS / 2);
    // 1970-01-01 was a Thursday, so days 2 and 3 were a weekend.
    matches!(middle_ms.div_euclid(24 * HOUR_MS).rem_euclid(7), 2 | 3)
}

/// Returns the time of day of a past hour from its age, as index into the 24 hours after the anchor.
pub(super) fn place(age: usize) -> usize {
    DAY - 1 - age % DAY
}

/// Returns weights by age in hours, multiplied by `per_day` for each day of age and equal within a day.
pub(super) fn weights(per_day: f64) -> Vec<f64> {
    let mut day = 1.0;
    let mut weights = Vec::with_capacity(HOURS);
    for age in 0..HOURS {
        if age > 0 && age % DAY == 0 {
            day *= per_day;
        }
        weights.push(day);
    }
    weights
}

/// Returns the hours that a slot covers, each with its lead in hours after the anchor (first; negative before the
/// anchor) and the fraction of it that the slot covers (second). For a slot longer than a day, returns the hours of the
/// day around its middle.
pub(super) fn parts(slot: &Slot, anchor: DateTime<Utc>) -> impl Iterator<Item = (i64, f64)> + use<> {
    let (mut start, mut end) = ((slot.start() - anchor).num_milliseconds(), (slot.end() - anchor).num_milliseconds());
    if end - start > 24 * HOUR_MS {
        let middle = start + (end - start) / 2;
        (start, end) = (middle - 12 * HOUR_MS, middle + 12 * HOUR_MS);
    }
    // A slot shorter than a millisecond must not become empty.
    end = end.max(start + 1);
    (start.div_euclid(HOUR_MS)..=(end - 1).div_euclid(HOUR_MS)).map(move |lead| {
        let part = end.min((lead + 1) * HOUR_MS) - start.max(lead * HOUR_MS);
        (lead, milliseconds(part) / milliseconds(HOUR_MS))
    })
}

/// Returns the mean over a slot of `value`, a function of the lead in hours after the anchor.
pub(super) fn over(slot: &Slot, anchor: DateTime<Utc>, value: impl Fn(i64) -> f64) -> f64 {
    let (mut sum, mut length) = (0.0, 0.0);
    for (lead, part) in parts(slot, anchor) {
        sum += value(lead) * part;
        length += part;
    }
    sum / length
}

/// Interpolates unknown hours of the day between the nearest known ones, across midnight; `None` if none is known.
pub(super) fn closed(profile: &[Option<f64>; DAY]) -> Option<[f64; DAY]> {
    let nearest = |k: usize, step: usize| {
        (0..DAY).find_map(|n| Some((f64::from(u8::try_from(n).ok()?), profile[(k + n * step) % DAY]?)))
    };
    let mut whole = [0.0; DAY];
    for (k, value) in whole.iter_mut().enumerate() {
        let ((after, next), (ago, last)) = (nearest(k, 1)?, nearest(k, DAY - 1)?);
        *value = if after + ago > 0.0 { (last * after + next * ago) / (after + ago) } else { next };
    }
    Some(whole)
}

#[cfg(test)]
mod tests {
    use chrono::{Datelike, Weekday};
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn a_weekend_is_saturday_and_sunday(ms in -2_000_000_000_000_i64..4_000_000_000_000, lead in -672_i64..200) {
            let anchor = DateTime::from_timestamp_millis(ms).expect("in range");
            let middle = anchor + TimeDelta::hours(lead) + TimeDelta::minutes(30);
            prop_assert_eq!(weekend(anchor, lead), matches!(middle.weekday(), Weekday::Sat | Weekday::Sun));
        }
    }
}
