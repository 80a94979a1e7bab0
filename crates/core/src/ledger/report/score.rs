//! SCI (ISO/IEC 21031): `SCI = (E · I + M) / R`, with E of the facility and I location-based.

use super::functional_unit::{FunctionalUnit, LEAST_PER_EPOCH};
use super::job::JobFacts;
use super::wanted::Wanted;
use crate::units::{GramsCo2e, Millijoules, Samples};

/// SCI: `(E · I + M) / R`.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Score {
    /// The score.
    pub per_unit: GramsCo2e,
    /// R.
    pub units: f64,
    /// The jobs that it is of: those that began and ended in the span.
    pub jobs: u64,
}

/// What a row's score is made of. Only jobs that began and ended in the span count: of others the books of the span
/// hold a part.
#[derive(Clone, Debug, Default, PartialEq)]
pub(super) struct Scored {
    pub(super) carbon: GramsCo2e,
    pub(super) embodied: GramsCo2e,
    /// Whether embodied emissions were declared in a part of the time only.
    pub(super) undeclared: bool,
    pub(super) unknown: Millijoules,
    units: f64,
    jobs: u64,
    without_unit: u64,
    /// Of them, those of whose energy a part is in no book.
    with_holes: u64,
}

/// Whether all that the books will ever hold of a job lies in the span.
pub(super) fn is_whole(job: &JobFacts, wanted: &Wanted) -> bool {
    let ended = job.ended_at.is_some_and(|end| end <= wanted.span.end());
    job.registered_at >= wanted.span.start() && ended
}

impl Scored {
    /// Counts a job's functional units.
    pub(super) fn count(&mut self, job: &JobFacts, unit: FunctionalUnit, has_holes: bool) {
        self.jobs += 1;
        self.with_holes += u64::from(has_holes);
        match units(job, unit) {
            Some(units) => self.units += units,
            None => self.without_unit += 1,
        }
    }

    /// The score, or why there is none.
    pub(super) fn score(&self, unit: Option<FunctionalUnit>) -> Result<Score, String> {
        let Some(unit) = unit else {
            return Err("no functional unit was declared".into());
        };
        if self.jobs == 0 {
            return Err("no run began and ended in this time".into());
        }
        if self.without_unit > 0 {
            return Err(match unit {
                FunctionalUnit::Epoch(_) => format!(
                    "{} of {} runs do not say how many samples an epoch has, or did none",
                    self.without_unit, self.jobs
                ),
                _ => format!("{} of {} runs reported no samples", self.without_unit, self.jobs),
            });
        }
        if self.units <= 0.0 {
            return Err("no run did any work".into());
        }
        if self.with_holes > 0 {
            let why = "a part of what its boards used is in no book (completeness.gaps)";
            return Err(format!("{} of {} runs: {why}", self.with_holes, self.jobs));
        }
        if self.undeclared {
            return Err("embodied emissions were declared for a part of its time only".into());
        }
        if self.unknown > Millijoules::ZERO {
            return Err(format!("no intensity is known of {:.3} J of it", self.unknown.to_joules().get()));
        }
        let per_unit = (self.carbon + self.embodied) / self.units;
        Ok(Score { per_unit, units: self.units, jobs: self.jobs })
    }
}

/// A job's units; `None` where it does not say, or did nothing.
fn units(job: &JobFacts, unit: FunctionalUnit) -> Option<f64> {
    let of = |samples: Samples| (job.samples > Samples::ZERO && samples > Samples::ZERO).then(|| job.samples / samples);
    match unit {
        // What a run without work used counts, and the run does not.
        FunctionalUnit::Run => Some(f64::from(u8::from(job.samples > Samples::ZERO))),
        FunctionalUnit::MillionSamples => of(Samples::new(1e6)),
        FunctionalUnit::Epoch(Some(samples)) => of(samples),
        FunctionalUnit::Epoch(None) => {
            let told: f64 = job.tags.get("samples_per_epoch")?.parse().ok()?;
            of(Samples::try_new(told).filter(|samples| samples.get() >= LEAST_PER_EPOCH)?)
        }
    }
}
