//! The last 28 days of a series in whole hours, counted back from the newest value.

use chrono::{DateTime, Datelike, TimeDelta, Utc, Weekday};

use crate::domain::{CarbonSeries, Issued, Slot};

/// Hours in a day.
pub(super) const DAY: usize = 24;

/// How far back values count: four weeks, so that every day of the week is there four times.
pub(super) const HOURS: usize = 28 * DAY;

/// One hour in milliseconds.
const HOUR_MS: i64 = 3_600_000;

/// Hourly means by age: the first is of the hour that ends at the anchor. Absent where less than half is known.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Trail(Vec<Option<f64>>);

impl Trail {
    /// Reads `series` back from `anchor`; what comes after it is not looked at.
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
            // Milliseconds before the anchor: `old` is the start's, `young` the end's.
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

    /// Hour by hour, what the newest of the `issues` that was at least `lead` old said of it; nothing where that one is
    /// two days older still. The issues are in the order of their times.
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

    /// The trail as it was so many days ago.
    pub(super) fn days_ago(&self, days: usize) -> Self {
        let mut hours = self.0.get(days * DAY..).unwrap_or_default().to_vec();
        hours.resize(HOURS, None);
        Self(hours)
    }

    /// The hour `age` hours before the newest one.
    pub(super) fn get(&self, age: usize) -> Option<f64> {
        self.0.get(age).copied().flatten()
    }

    /// All hours by age, the newest first.
    pub(super) fn hours(&self) -> &[Option<f64>] {
        &self.0
    }

    /// Hour by hour what `f` makes of two trails where both say something.
    pub(super) fn with(&self, other: &Self, f: impl Fn(f64, f64) -> f64) -> Self {
        Self(self.0.iter().zip(&other.0).map(|(a, b)| Some(f((*a)?, (*b)?))).collect())
    }

    /// The mean of what is known.
    #[expect(clippy::cast_precision_loss, reason = "at most 672 hours")]
    pub(super) fn mean(&self) -> Option<f64> {
        (self.known() > 0).then(|| self.0.iter().flatten().sum::<f64>() / self.known() as f64)
    }

    /// How many hours are known.
    pub(super) fn known(&self) -> usize {
        self.0.iter().flatten().count()
    }
}

#[expect(clippy::cast_precision_loss, reason = "four weeks of milliseconds are exact in f64")]
fn milliseconds(ms: i64) -> f64 {
    ms as f64
}

/// The hour that starts `lead` hours after the anchor; the past has negative leads.
fn hour(anchor: DateTime<Utc>, lead: i64) -> Option<Slot> {
    let start = anchor.checked_add_signed(TimeDelta::try_hours(lead)?)?;
    Slot::new(start, start.checked_add_signed(TimeDelta::hours(1))?)
}

/// Whether the middle of the hour `lead` hours after the anchor lies on a Saturday or Sunday (UTC).
pub(super) fn weekend(anchor: DateTime<Utc>, lead: i64) -> bool {
    hour(anchor, lead).is_some_and(|hour| {
        let middle = hour.start() + TimeDelta::minutes(30);
        matches!(middle.weekday(), Weekday::Sat | Weekday::Sun)
    })
}

/// Which of the 24 hours after the anchor has the same time of day as the hour of this age.
pub(super) fn place(age: usize) -> usize {
    DAY - 1 - age % DAY
}

/// What a day counts that lies `age` hours back, if it counts `per_day` of the next younger one. In whole days, so
/// that the hours of one day count alike.
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

/// The parts of the hours after the anchor that a slot covers: lead in hours (negative before the anchor) and length
/// in hours. Slots longer than a day are represented by the day around their middle.
pub(super) fn parts(slot: &Slot, anchor: DateTime<Utc>) -> impl Iterator<Item = (i64, f64)> + use<> {
    let (mut start, mut end) = ((slot.start() - anchor).num_milliseconds(), (slot.end() - anchor).num_milliseconds());
    if end - start > 24 * HOUR_MS {
        let middle = start + (end - start) / 2;
        (start, end) = (middle - 12 * HOUR_MS, middle + 12 * HOUR_MS);
    }
    // Slots below a millisecond still lie somewhere.
    end = end.max(start + 1);
    (start.div_euclid(HOUR_MS)..=(end - 1).div_euclid(HOUR_MS)).map(move |lead| {
        let part = end.min((lead + 1) * HOUR_MS) - start.max(lead * HOUR_MS);
        (lead, milliseconds(part) / milliseconds(HOUR_MS))
    })
}

/// The mean over a slot of what holds in each hour after the anchor.
pub(super) fn over(slot: &Slot, anchor: DateTime<Utc>, value: impl Fn(i64) -> f64) -> f64 {
    let (mut sum, mut length) = (0.0, 0.0);
    for (lead, part) in parts(slot, anchor) {
        sum += value(lead) * part;
        length += part;
    }
    sum / length
}

/// Hours of the day that were never seen lie on the line between the nearest ones that were, around the clock.
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
