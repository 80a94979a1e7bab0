//! Promises, the constraints of a job's objective: by how much a result breaks them, and sentences that say so.

use std::fmt;

use chrono::{DateTime, Datelike, Utc};

use super::{InvalidJob, PowerLimit};
use crate::units::{GramsCo2e, Lasting, Points, Rounded, Seconds, Short};

/// Minimum carbon budget. An idle GPU emits more within seconds, so a smaller number is probably in another unit.
const LEAST_BUDGET: GramsCo2e = GramsCo2e::new(0.001);

/// Constraint of a job's objective, which plans keep if they can.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Promise {
    /// Time by which the job must end.
    Deadline(DateTime<Utc>),
    /// Maximum slowdown over the whole job: 0.03 is 3 %.
    Slowdown(f64),
    /// Maximum emissions of the whole job.
    CarbonBudget(GramsCo2e),
}

/// Result of a job with which its promises are compared: expected, best possible or final. Unknown fields are absent.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Outcome {
    /// End of the job.
    pub ends_at: Option<DateTime<Utc>>,
    /// Slowdown over the whole job: 0.03 is 3 %.
    pub slowdown: Option<f64>,
    /// Emissions of the whole job.
    pub carbon: Option<GramsCo2e>,
}

/// Amount by which a result exceeds a promise, in the promise's unit; negative if the promise is kept.
#[derive(Clone, Copy, Debug, PartialEq, PartialOrd)]
pub enum Excess {
    /// Time by which the job ends after the deadline.
    Time(Seconds),
    /// Slowdown above the maximum: 0.01 is one percentage point.
    Slowdown(f64),
    /// Emissions above the carbon budget.
    Carbon(GramsCo2e),
}

/// A promise that a result breaks.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Broken {
    /// Promise that is broken.
    pub promise: Promise,
    /// Amount by which the result exceeds the promise.
    pub by: Excess,
}

/// Circumstance in which a promise is broken; the sentence about the broken promise names the circumstance.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Circumstance {
    /// No plan keeps all promises about time, so the job runs at full speed; if an out-of-band cap is
    /// given, as far as that cap allows.
    FullSpeed(Option<PowerLimit>),
    /// A carbon budget is exceeded because the deadline or slowdown limit takes precedence.
    Yielding,
    /// The job shares the node's power cap or carbon budget with other jobs.
    Sharing,
    /// No plan can keep the promise any more.
    Inevitable,
    /// The job has ended and broke the promise.
    Ended,
}

impl Promise {
    /// Returns the path of the promise's field in a request.
    pub fn field(self) -> &'static str {
        match self {
            Self::Deadline(_) => "objective.deadline",
            Self::Slowdown(_) => "objective.max_slowdown",
            Self::CarbonBudget(_) => "objective.carbon_budget_g",
        }
    }

    /// Returns true if the promise bounds the job's time, and thereby how slow the job may be. The other promises are
    /// budgets: they bound how fast the job may be, and promises about time take precedence over them.
    pub fn bounds_time(self) -> bool {
        match self {
            Self::Deadline(_) | Self::Slowdown(_) => true,
            Self::CarbonBudget(_) => false,
        }
    }

    /// Returns true if the promise requires that the job's amount of work is known.
    pub fn needs_known_work(self) -> bool {
        match self {
            Self::Deadline(_) | Self::CarbonBudget(_) => true,
            Self::Slowdown(_) => false,
        }
    }

    /// Checks the range of the promise.
    ///
    /// # Errors
    /// Returns an error if the promise is out of range, with what would be right.
    pub(super) fn check(self) -> Result<(), InvalidJob> {
        let why = match self {
            Self::Deadline(at) if !(1..=9999).contains(&at.year()) => {
                format!("is in the year {}; give one from 1 to 9999, as RFC 3339 writes them", at.year())
            }
            Self::Slowdown(max) if !(0.0..1.0).contains(&max) => {
                let meant = if (1.0..=100.0).contains(&max) {
                    format!("; for {} % write {}", Short(max), Short((max * 1e7).round() / 1e9))
                } else {
                    String::new()
                };
                format!(
                    "{} is not from 0 to below 1; it is a fraction of the job's time: 0.03 allows 3 % more{meant}",
                    Short(max)
                )
            }
            Self::CarbonBudget(grams) if grams < LEAST_BUDGET => format!(
                "is {}; it must be more than 0 grams of CO2 equivalent, {} at the least",
                Short(grams.get()),
                LEAST_BUDGET.get()
            ),
            _ => return Ok(()),
        };
        Err(InvalidJob { field: self.field(), why })
    }

    /// Returns the amount by which a result exceeds the promise; `None` if the figure that the promise bounds is
    /// unknown.
    pub fn excess(self, outcome: &Outcome) -> Option<Excess> {
        Some(match self {
            Self::Deadline(at) => Excess::Time(Seconds::from_delta(outcome.ends_at? - at)),
            Self::Slowdown(max) => Excess::Slowdown(outcome.slowdown? - max),
            Self::CarbonBudget(grams) => Excess::Carbon(outcome.carbon? - grams),
        })
    }
}

/// Displays the promise as a noun phrase: "the deadline 2026-12-01T17:00:00Z".
impl fmt::Display for Promise {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Deadline(at) => write!(f, "the deadline {}", at.format("%FT%TZ")),
            Self::Slowdown(max) => write!(f, "the {:.1} % slowdown budget", max * 100.0),
            Self::CarbonBudget(grams) => write!(f, "the carbon budget of {} g", Rounded(grams.get())),
        }
    }
}

impl Excess {
    /// Returns the excess as a number: seconds, a fraction or grams.
    pub fn get(self) -> f64 {
        match self {
            Self::Time(time) => time.get(),
            Self::Slowdown(fraction) => fraction,
            Self::Carbon(grams) => grams.get(),
        }
    }
}

impl fmt::Display for Excess {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Time(time) => Lasting(*time).fmt(f),
            Self::Slowdown(fraction) => Points(*fraction).fmt(f),
            Self::Carbon(grams) => write!(f, "{} g", Rounded(grams.get())),
        }
    }
}

impl Broken {
    /// Returns the promises that a result breaks. `negligible` returns the excess, in the promise's unit, up to which a
    /// promise counts as kept.
    pub fn among(
        promises: impl Iterator<Item = Promise>,
        outcome: &Outcome,
        negligible: impl Fn(Promise) -> f64,
    ) -> Vec<Self> {
        let broken = promises.filter_map(|promise| Some(Self { promise, by: promise.excess(outcome)? }));
        broken.filter(|broken| broken.by.get() > negligible(broken.promise)).collect()
    }

    /// Describes the broken promise in a sentence.
    pub fn describe(&self, circumstance: Circumstance) -> String {
        let Self { promise, by } = self;
        let verb = if matches!(promise, Promise::Deadline(_)) { "missed" } else { "exceeded" };
        match circumstance {
            Circumstance::FullSpeed(cap) if promise.bounds_time() => {
                let cap = cap.map(|cap| format!(" under the cap of {cap}")).unwrap_or_default();
                format!("{promise} will be {verb} by {by} although the job runs at full speed{cap}")
            }
            Circumstance::FullSpeed(_) => {
                format!("{promise} will be {verb} by {by} because the deadline or slowdown limit takes precedence")
            }
            Circumstance::Yielding => {
                format!("{promise} will be {verb} by {by} because no plan that keeps the other promises emits less")
            }
            Circumstance::Sharing => {
                format!("{promise} will be {verb} by {by} because the job shares the node's cap or carbon budget")
            }
            Circumstance::Inevitable if promise.bounds_time() => {
                format!("{promise} will be {verb} by at least {by}, even at full speed")
            }
            Circumstance::Inevitable => format!("{promise} is already {verb} by {by}"),
            Circumstance::Ended => format!("{promise} was {verb} by {by}"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const ALL: [Promise; 3] = [
        Promise::Deadline(DateTime::UNIX_EPOCH),
        Promise::Slowdown(0.03),
        Promise::CarbonBudget(GramsCo2e::new(500.0)),
    ];

    fn outcome(seconds: f64, slowdown: f64, carbon: f64) -> Outcome {
        Outcome {
            ends_at: Some(DateTime::UNIX_EPOCH + Seconds::new(seconds).to_delta()),
            slowdown: Some(slowdown),
            carbon: Some(GramsCo2e::new(carbon)),
        }
    }

    #[test]
    fn an_outcome_breaks_what_it_exceeds_by_more_than_is_negligible() {
        let broken = |outcome: &Outcome, negligible: f64| {
            Broken::among(ALL.into_iter(), outcome, |_| negligible).iter().map(|b| b.by.get()).collect::<Vec<_>>()
        };
        assert_eq!(broken(&outcome(600.0, 0.03, 480.0), 0.0), [600.0]);
        assert_eq!(broken(&outcome(0.0, 0.02, 530.0), 0.0), [30.0]);
        assert_eq!(broken(&outcome(600.0, 0.02, 530.0), 50.0), [600.0]);
        assert_eq!(broken(&Outcome::default(), 0.0), [0.0; 0], "nothing is known");
    }

    #[test]
    fn sentences_name_the_promise_the_excess_and_the_circumstance() {
        let sentences = |circumstance| {
            let broken = Broken::among(ALL.into_iter(), &outcome(600.0, 0.042, 712.0), |_| 0.0);
            broken.iter().map(|broken| broken.describe(circumstance)).collect::<Vec<_>>().join("\n")
        };
        insta::assert_snapshot!(sentences(Circumstance::FullSpeed(Some(PowerLimit::from_milliwatts(250_000)))), @r"
        the deadline 1970-01-01T00:00:00Z will be missed by 600 s although the job runs at full speed under the cap of 250 W
        the 3.0 % slowdown budget will be exceeded by 1.20 points although the job runs at full speed under the cap of 250 W
        the carbon budget of 500 g will be exceeded by 212 g because the deadline or slowdown limit takes precedence
        ");
        let yielding = sentences(Circumstance::Yielding);
        assert!(yielding.ends_with("by 212 g because no plan that keeps the other promises emits less"), "{yielding}");
        insta::assert_snapshot!(sentences(Circumstance::Sharing), @r"
        the deadline 1970-01-01T00:00:00Z will be missed by 600 s because the job shares the node's cap or carbon budget
        the 3.0 % slowdown budget will be exceeded by 1.20 points because the job shares the node's cap or carbon budget
        the carbon budget of 500 g will be exceeded by 212 g because the job shares the node's cap or carbon budget
        ");
        insta::assert_snapshot!(sentences(Circumstance::Inevitable), @r"
        the deadline 1970-01-01T00:00:00Z will be missed by at least 600 s, even at full speed
        the 3.0 % slowdown budget will be exceeded by at least 1.20 points, even at full speed
        the carbon budget of 500 g is already exceeded by 212 g
        ");
        insta::assert_snapshot!(sentences(Circumstance::Ended), @r"
        the deadline 1970-01-01T00:00:00Z was missed by 600 s
        the 3.0 % slowdown budget was exceeded by 1.20 points
        the carbon budget of 500 g was exceeded by 212 g
        ");
    }
}
