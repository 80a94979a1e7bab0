//! Standard errors of forecast differences between hours.
//!
//! Whether moving work from one hour to another pays depends on the difference between the forecasts of the two hours.
//! Errors that both forecasts share cancel, so the standard error of the difference is far below that of either hour;
//! it depends on the leads of both. It is computed from data: the forecast errors of each past day are kept as a path
//! over the lead, and each path is applied to the energy that is moved.

use chrono::{DateTime, Utc};

use super::blend::Errors;
use super::hourly_window::DAY;
use crate::domain::Slot;

/// Minimum number of paths for computing a standard error.
const ENOUGH: usize = 5;

/// Error paths (actual less forecast) of the forecasts made on past days at this time of day.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct ErrorPaths {
    /// Time at which lead 0 starts.
    anchor: DateTime<Utc>,
    /// Cumulative error by lead in hours for each day, in g/kWh times hours, starting with 0.
    sums: Vec<Vec<f64>>,
}

/// Mean error of each error path in each slot, in g/kWh.
#[derive(Clone, Debug, PartialEq)]
pub struct SlotErrors(Vec<Vec<f64>>);

impl ErrorPaths {
    /// Creates paths from hourly `errors`, the most recent day first. A path ends at the first hour without an error.
    pub(super) fn new(errors: &Errors, anchor: DateTime<Utc>) -> Self {
        let path = |day: &Vec<Option<f64>>| {
            let mut sums = vec![0.0];
            sums.extend(day.iter().map_while(|error| *error).scan(0.0, |sum, error| {
                *sum += error;
                Some(*sum)
            }));
            sums
        };
        Self { anchor, sums: errors.iter().map(path).filter(|sums| sums.len() > 1).collect() }
    }

    /// Creates paths of hourly errors for tests.
    #[cfg(test)]
    pub(crate) fn of(anchor: DateTime<Utc>, days: impl Iterator<Item = Vec<f64>>) -> Self {
        Self::new(&days.map(|day| day.into_iter().map(Some).collect()).collect(), anchor)
    }

    /// Returns true if no errors are known.
    pub fn is_empty(&self) -> bool {
        self.sums.is_empty()
    }

    /// Returns the mean errors in slots from the paths that reach the end of the last slot; if no path does, from the
    /// longest paths, extended with the mean of their last day. `None` if there are too few such paths.
    pub fn over(&self, slots: &[Slot]) -> Option<SlotErrors> {
        let lead = |t: DateTime<Utc>| ((t - self.anchor).as_seconds_f64() / 3600.0).max(0.0);
        let needed = lead(slots.last()?.end());
        let longest = self.sums.iter().map(Vec::len).max()?;
        let reaches = |sums: &&Vec<f64>| sums.len() == longest || hours(sums.len() - 1) >= needed;
        let spans: Vec<(f64, f64)> = slots.iter().map(|slot| (lead(slot.start()), lead(slot.end()))).collect();
        let path = |sums: &Vec<f64>| spans.iter().map(|&(from, to)| mean(sums, from, to)).collect();
        let paths: Vec<Vec<f64>> = self.sums.iter().filter(reaches).map(path).collect();
        (paths.len() >= ENOUGH).then_some(SlotErrors(paths))
    }
}

impl SlotErrors {
    /// Returns the standard error of Σ weight · intensity over the slots, in g/kWh times the unit of the weights. If
    /// the weights sum to zero, errors that all slots share cancel.
    pub fn of(&self, weights: &[f64]) -> f64 {
        let product = |path: &Vec<f64>| path.iter().zip(weights).map(|(error, w)| error * w).sum::<f64>();
        let squares: f64 = self.0.iter().map(|path| product(path).powi(2)).sum();
        (squares / hours(self.0.len())).sqrt()
    }
}

#[expect(clippy::cast_precision_loss, reason = "some weeks")]
fn hours(count: usize) -> f64 {
    count as f64
}

/// Returns the mean error of one path between two leads in hours.
fn mean(sums: &[f64], from: f64, to: f64) -> f64 {
    let known = sums.len() - 1;
    let day = known.min(DAY);
    let per_hour_beyond = (sums[known] - sums[known - day]) / hours(day);
    #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "below the length of a path")]
    let until = |lead: f64| {
        let beyond = lead - hours(known);
        if beyond >= 0.0 {
            return sums[known] + beyond * per_hour_beyond;
        }
        let whole = lead as usize;
        sums[whole] + lead.fract() * (sums[whole + 1] - sums[whole])
    };
    // A slot that began before the anchor has the error of the first hour.
    let to = if to > from { to } else { from + 1.0 };
    (until(to) - until(from)) / (to - from)
}

#[cfg(test)]
mod tests {
    use chrono::TimeDelta;

    use super::*;

    fn hour(h: i64) -> Slot {
        let at = |h| DateTime::UNIX_EPOCH + TimeDelta::hours(h);
        Slot::new(at(h), at(h + 1)).expect("an hour")
    }

    fn paths(days: usize, error: impl Fn(usize, usize) -> f64) -> ErrorPaths {
        let errors: Errors = (0..days).map(|day| (0..48).map(|lead| Some(error(day, lead))).collect()).collect();
        ErrorPaths::new(&errors, DateTime::UNIX_EPOCH)
    }

    #[test]
    fn errors_shared_by_all_hours_cancel() {
        let level = |day: usize, _| if day.is_multiple_of(2) { 50.0 } else { -50.0 };
        let errors = paths(6, level).over(&[hour(0), hour(1), hour(2)]).expect("enough");
        assert_eq!(errors.of(&[1.0, -0.25, -0.75]), 0.0);
        assert_eq!(errors.of(&[1.0, 0.0, 0.0]), 50.0, "against nothing the level counts");
        assert_eq!(errors.of(&[1.0, -1.5, 0.0]), 25.0);
    }

    #[test]
    fn the_difference_of_two_leads_has_the_error_of_their_difference() {
        // The later hour is off by 3 or 5 g more than the first.
        let errors = paths(6, |day, lead| 20.0 + if lead < 24 { 0.0 } else { hours(3 + 2 * (day % 2)) });
        let both = errors.over(&[hour(0), hour(30)]).expect("enough");
        assert!((both.of(&[-2.0, 2.0]) - 2.0 * 17.0_f64.sqrt()).abs() < 1e-9);
        let near = errors.over(&[hour(0), hour(20)]).expect("enough");
        assert!(near.of(&[-2.0, 2.0]).abs() < 1e-9);
    }

    #[test]
    fn short_paths_are_omitted_unless_all_are_short() {
        let mut errors: Errors = (0..8).map(|_| vec![Some(1.0); 48]).collect();
        errors[0].truncate(24);
        errors[1][30] = None;
        let known = ErrorPaths::new(&errors, DateTime::UNIX_EPOCH);
        assert_eq!(known.over(&[hour(10)]).map(|e| e.0.len()), Some(8));
        assert_eq!(known.over(&[hour(40)]).map(|e| e.0.len()), Some(6));
        let far = known.over(&[hour(100)]).expect("the longest");
        assert_eq!((far.0.len(), far.of(&[1.0])), (6, 1.0));
        assert_eq!(paths(4, |_, _| 1.0).over(&[hour(0)]), None, "too few");
        assert_eq!(ErrorPaths::default().over(&[hour(0)]), None);
    }

    #[test]
    fn parts_of_hours_count_by_their_length() {
        let errors = paths(5, |_, lead| hours(lead));
        let at = |minutes| DateTime::UNIX_EPOCH + TimeDelta::minutes(minutes);
        let across = Slot::new(at(90), at(150)).expect("an hour");
        assert_eq!(errors.over(&[across]).map(|e| e.of(&[1.0])), Some(1.5));
        let before = Slot::new(at(-60), at(0)).expect("an hour");
        assert_eq!(errors.over(&[before]).map(|e| e.of(&[2.0])), Some(0.0));
    }
}
