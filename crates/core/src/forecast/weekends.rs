//! Correction of a horizon for errors that differ between weekends and weekdays.
//!
//! Demand is lower at weekends, which a source's forecast may miss: its errors (actual less forecast) then have another
//! mean at weekends than on weekdays. With the errors of the forecasts made on past days at this time of day, up to two
//! days ahead, for each time of day k, smoothed over three hours:
//!
//! ```text
//! e(k)  mean error at weekends less mean error on weekdays, times t²/(1 + t²) with the t of this difference
//! p(k)  share of weekends among the errors
//! corrected(h) = forecast + (1 − p(k))·e(k)  at weekends,  forecast − p(k)·e(k)  on weekdays
//! ```
//!
//! The mean of all errors stays as it is, and the correction vanishes without evidence. It does not apply to the next
//! hours, for which the latest error says more.

use chrono::{DateTime, Utc};

use super::blend::Errors;
use super::hourly_window::{DAY, over, weekend};
use crate::domain::Slot;

/// Lead in hours below which the correction does not apply.
const FIRST_LEAD_HOURS: i64 = 6;
/// Maximum lead in hours of the errors that are evaluated.
const MAX_LEAD_HOURS: usize = 2 * DAY;
/// Weight of a day relative to the next more recent one.
const PER_DAY: f64 = 0.98;
/// Minimum weight, in days, of the weekends and of the weekdays.
const LEAST_DAYS: f64 = 1.5;
/// Number of errors that one day contributes to a smoothed time of day: three hours, each at two leads.
const ERRORS_PER_DAY: f64 = 6.0;

/// Difference of the errors between weekends and weekdays.
#[derive(Clone, Debug, Default, PartialEq)]
pub(super) struct WeekendErrors {
    anchor: DateTime<Utc>,
    /// Shrunk difference of the mean errors (first) and share of weekends (second), by hours after the anchor.
    by_hour: [(f64, f64); DAY],
}

/// Weighted sums of errors.
#[derive(Clone, Copy, Debug, Default)]
struct Sums {
    weight: f64,
    value: f64,
    squares: f64,
}

impl Sums {
    fn plus(self, other: Self) -> Self {
        Self {
            weight: self.weight + other.weight,
            value: self.value + other.value,
            squares: self.squares + other.squares,
        }
    }

    fn mean(&self) -> f64 {
        self.value / self.weight
    }

    fn variance(&self) -> f64 {
        (self.squares / self.weight - self.mean().powi(2)).max(0.0)
    }

    fn days(&self) -> f64 {
        self.weight / ERRORS_PER_DAY
    }
}

impl WeekendErrors {
    /// Fits the difference to the `errors` of the forecasts made on past days.
    pub(super) fn fit(errors: &Errors, anchor: DateTime<Utc>) -> Self {
        // Weekdays and weekends by hours after the anchor.
        let mut sides = [[Sums::default(); DAY]; 2];
        let mut weight = 1.0;
        for (day, made) in errors.iter().enumerate() {
            weight *= PER_DAY;
            for (lead, error) in made.iter().take(MAX_LEAD_HOURS).enumerate() {
                let (Some(error), Ok(hours)) = (error, i64::try_from(lead)) else { continue };
                let days = i64::try_from(day + 1).unwrap_or(i64::MAX / 48);
                let side = usize::from(weekend(anchor, hours - 24 * days));
                let sums = Sums { weight, value: weight * error, squares: weight * error * error };
                sides[side][lead % DAY] = sides[side][lead % DAY].plus(sums);
            }
        }
        let smoothed = |side: usize, hour: usize| {
            [DAY - 1, 0, 1].into_iter().fold(Sums::default(), |sum, by| sum.plus(sides[side][(hour + by) % DAY]))
        };
        let by_hour = std::array::from_fn(|hour| {
            let (weekdays, weekends) = (smoothed(0, hour), smoothed(1, hour));
            if weekdays.days() < LEAST_DAYS || weekends.days() < LEAST_DAYS {
                return (0.0, 0.0);
            }
            let difference = weekends.mean() - weekdays.mean();
            let variance = 0.5
                * (weekdays.variance() + weekends.variance())
                * (1.0 / weekdays.days() + 1.0 / weekends.days()).max(f64::MIN_POSITIVE);
            let square = difference * difference;
            let shrunk = if square > 0.0 { difference * square / (square + variance) } else { 0.0 };
            (shrunk, weekends.weight / (weekdays.weight + weekends.weight))
        });
        Self { anchor, by_hour }
    }

    /// Returns the correction of a slot's forecast in g/kWh.
    pub(super) fn correction(&self, slot: &Slot) -> f64 {
        over(slot, self.anchor, |lead| {
            let (difference, share) = self.by_hour[usize::try_from(lead.rem_euclid(24)).unwrap_or(0)];
            match weekend(self.anchor, lead) {
                _ if lead < FIRST_LEAD_HOURS => 0.0,
                true => (1.0 - share) * difference,
                false => -share * difference,
            }
        })
    }
}

#[cfg(test)]
mod tests {
    use chrono::TimeDelta;

    use super::*;

    /// Midnight of a Thursday.
    fn anchor() -> DateTime<Utc> {
        DateTime::UNIX_EPOCH + TimeDelta::days(20_006)
    }

    fn errors(error: impl Fn(i64) -> f64) -> Errors {
        let made = |day: i64| (0..48).map(|lead| (lead < 24 * day).then(|| error(lead - 24 * day))).collect();
        (1..28).map(made).collect()
    }

    fn correction(fitted: &WeekendErrors, lead: i64) -> f64 {
        let at = |lead| anchor() + TimeDelta::hours(lead);
        fitted.correction(&Slot::new(at(lead), at(lead + 1)).expect("an hour"))
    }

    #[test]
    fn errors_of_weekends_are_corrected_and_the_mean_stays() {
        let fitted = WeekendErrors::fit(&errors(|lead| if weekend(anchor(), lead) { -30.0 } else { 5.0 }), anchor());
        let (thursday, saturday) = (correction(&fitted, 12), correction(&fitted, 60));
        assert!((saturday - thursday + 35.0).abs() < 1e-6, "{saturday} {thursday}");
        assert!(thursday > 5.0 && thursday < 15.0, "{thursday}");
        assert_eq!(correction(&fitted, 3), 0.0, "the next hours stay as they are");
    }

    #[test]
    fn without_evidence_nothing_is_corrected() {
        let alike = WeekendErrors::fit(&errors(|_| 20.0), anchor());
        let few = WeekendErrors::fit(&errors(|lead| lead as f64).into_iter().take(2).collect(), anchor());
        let none = WeekendErrors::fit(&Errors::new(), anchor());
        for lead in 0..96 {
            assert!(correction(&alike, lead).abs() < 1e-9);
            assert_eq!((correction(&few, lead), correction(&none, lead)), (0.0, 0.0));
        }
        let noise = |lead: i64| f64::from(u8::from(lead.rem_euclid(7) < 3)) * 40.0 - 20.0;
        let noisy = WeekendErrors::fit(&errors(noise), anchor());
        assert!((0..96).all(|lead| correction(&noisy, lead).abs() < 10.0));
    }
}
