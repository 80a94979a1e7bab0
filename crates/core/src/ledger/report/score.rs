//! SCI score (ISO/IEC 21031): `SCI = (E · I + M) / R`, with the facility's energy E, the location-based carbon
//! intensity I, embodied emissions M and the number of functional units R.

use super::job::JobFacts;
use super::request::{FunctionalUnit, MIN_SAMPLES_PER_EPOCH, ReportRequest};
use crate::units::{GramsCo2e, Millijoules, Samples};

/// SCI score of a row: emissions per functional unit.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Score {
    /// Operational and embodied emissions per functional unit.
    pub per_unit: GramsCo2e,
    /// Number of functional units, R.
    pub units: f64,
    /// Number of jobs in the score: those that began and ended in the report's span of time.
    pub jobs: u64,
}

/// Terms of a row's SCI score. Only jobs that began and ended in the report's span, with all of their parts, count,
/// because the span contains only a part of the energy of other jobs.
#[derive(Clone, Debug, Default, PartialEq)]
pub(super) struct ScoreTerms {
    pub(super) carbon: GramsCo2e,
    pub(super) embodied: GramsCo2e,
    /// True if the settings declared embodied emissions for a part of the jobs' time only.
    pub(super) undeclared: bool,
    pub(super) unknown: Millijoules,
    units: f64,
    jobs: u64,
    without_unit: u64,
    /// Number of the counted jobs whose GPUs used an unknown amount of energy.
    with_holes: u64,
}

/// Returns true if a part of a job, with the earlier parts that it continues, began and ended in the report's span, so
/// that the span contains all of their energy.
pub(super) fn is_within(job: &JobFacts, request: &ReportRequest) -> bool {
    let ended = job.ended_at.is_some_and(|end| end <= request.span.end());
    let first = job.continues.as_ref().map_or(job.registered_at, |earlier| earlier.asked_at);
    job.registered_at.min(first) >= request.span.start() && ended
}

impl ScoreTerms {
    /// Counts a job and its functional units. Of a part of a job that counts with another part (`is_part`), only the
    /// samples count.
    pub(super) fn count(&mut self, job: &JobFacts, unit: FunctionalUnit, has_holes: bool, is_part: bool) {
        self.with_holes += u64::from(has_holes);
        if is_part {
            self.units += units(job, unit).filter(|_| unit != FunctionalUnit::Run).unwrap_or_default();
            return;
        }
        self.jobs += 1;
        match units(job, unit) {
            Some(units) => self.units += units,
            None => self.without_unit += 1,
        }
    }

    /// Returns the score, or the reason why there is none.
    pub(super) fn score(&self, unit: Option<FunctionalUnit>) -> Result<Score, String> {
        let Some(unit) = unit else {
            return Err("no functional unit was declared".into());
        };
        if self.jobs == 0 {
            return Err("no run both began and ended within the report's time".into());
        }
        if self.without_unit > 0 {
            return Err(match unit {
                FunctionalUnit::Epoch(_) => format!(
                    "{} of {} runs state no samples_per_epoch, or completed no samples",
                    self.without_unit, self.jobs
                ),
                _ => format!("{} of {} runs reported no samples", self.without_unit, self.jobs),
            });
        }
        if self.units <= 0.0 {
            return Err("no run completed any samples".into());
        }
        if self.with_holes > 0 {
            let why = "the energy of their GPUs is unknown for part of the time (see completeness.gaps)";
            return Err(format!("{} of {} runs: {why}", self.with_holes, self.jobs));
        }
        if self.undeclared {
            return Err("embodied emissions were declared for only part of the time".into());
        }
        if self.unknown > Millijoules::ZERO {
            return Err(format!("the carbon intensity of {:.3} J is unknown", self.unknown.to_joules().get()));
        }
        let per_unit = (self.carbon + self.embodied) / self.units;
        Ok(Score { per_unit, units: self.units, jobs: self.jobs })
    }
}

/// Returns a job's number of functional units; `None` if the job did no work or its epoch's size is unknown.
fn units(job: &JobFacts, unit: FunctionalUnit) -> Option<f64> {
    let of = |samples: Samples| (job.samples > Samples::ZERO && samples > Samples::ZERO).then(|| job.samples / samples);
    match unit {
        // A run that completed no samples adds its energy, but no unit.
        FunctionalUnit::Run => Some(f64::from(u8::from(job.samples > Samples::ZERO))),
        FunctionalUnit::MillionSamples => of(Samples::new(1e6)),
        FunctionalUnit::Epoch(Some(samples)) => of(samples),
        FunctionalUnit::Epoch(None) => {
            let declared: f64 = job.tags.get("samples_per_epoch")?.parse().ok()?;
            of(Samples::try_new(declared).filter(|samples| samples.get() >= MIN_SAMPLES_PER_EPOCH)?)
        }
    }
}
