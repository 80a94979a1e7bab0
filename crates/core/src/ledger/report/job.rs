//! Job data for reports, and the savings of jobs.

use std::collections::BTreeMap;

use chrono::{DateTime, Utc};

use crate::domain::{Continuation, GpuId, JobId, JobName, Slot};
use crate::ledger::confidence::ConfidenceInterval;
use crate::units::{GramsCo2e, Samples};

/// Job data that reports use.
#[derive(Clone, Debug, PartialEq)]
pub struct JobFacts {
    /// Identifier of the job.
    pub id: JobId,
    /// Name of the job, which recurring runs share.
    pub name: JobName,
    /// Labels that the user gave to the job.
    pub tags: BTreeMap<String, String>,
    /// GPUs that the job trains on.
    pub gpus: Vec<GpuId>,
    /// Samples completed from registration to the last progress report; counted from the first report if the job began
    /// from a training checkpoint.
    pub samples: Samples,
    /// Time at which the job was registered.
    pub registered_at: DateTime<Utc>,
    /// Time at which the job ended; absent while it runs.
    pub ended_at: Option<DateTime<Utc>>,
    /// Times in which the job neither held its GPUs nor had them reserved: before its start and in suspensions, oldest
    /// first and without overlap.
    pub absences: Vec<Slot>,
    /// Earlier job that this job continues, with the first job of their key; absent if there is none. All of them are
    /// parts of one job.
    pub continues: Option<Continuation>,
    /// Emissions that the job saved, according to the newest ledger entry about its savings; absent if unknown.
    pub saved: Option<Saved>,
    /// Effects whose sum is the saving; absent if unknown.
    pub effects: Option<SavedEffects>,
}

/// Effects whose sum is the saving of jobs, in grams; negative where an effect added emissions.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct SavedEffects {
    /// Effect of starting later than asked.
    pub start: GramsCo2e,
    /// Effect of suspensions, with the emissions of saving and restarting.
    pub suspension: GramsCo2e,
    /// Effect of lower power limits.
    pub energy: GramsCo2e,
    /// Effect of following the carbon intensity with the limits.
    pub timing: GramsCo2e,
}

impl std::ops::Add for SavedEffects {
    type Output = Self;

    fn add(self, more: Self) -> Self {
        Self {
            start: self.start + more.start,
            suspension: self.suspension + more.suspension,
            energy: self.energy + more.energy,
            timing: self.timing + more.timing,
        }
    }
}

impl JobFacts {
    /// Returns the first job of those with this job's key of which this one is a part: itself if it continues none.
    pub fn first(&self) -> &JobId {
        self.continues.as_ref().map_or(&self.id, Continuation::first)
    }

    /// Returns the times within a span in which the job held its GPUs, or had them reserved, oldest first.
    pub fn present_within(&self, span: &Slot) -> Vec<Slot> {
        let (mut from, until) =
            (self.registered_at.max(span.start()), self.ended_at.unwrap_or(span.end()).min(span.end()));
        let mut present = Vec::new();
        for absence in &self.absences {
            present.extend(Slot::new(from, absence.start().min(until)));
            from = from.max(absence.end());
        }
        present.extend(Slot::new(from, until));
        present
    }

    /// Returns true if the job overlaps a span.
    pub fn ran_within(&self, span: &Slot) -> bool {
        self.registered_at < span.end() && self.ended_at.is_none_or(|end| end > span.start())
    }
}

/// Emissions that jobs saved compared with the original limits (those before wattune's first write), with a 95 %
/// confidence interval; negative if the jobs emitted more.
///
/// The savings of several jobs are added by mean and by ends, as if all errors were correlated. That is right for the
/// sensors' gain errors but not for random errors, so the interval is conservative.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Saved {
    /// Lower end of the interval.
    pub low: GramsCo2e,
    /// Estimated saving.
    pub mean: GramsCo2e,
    /// Upper end of the interval.
    pub high: GramsCo2e,
}

impl From<ConfidenceInterval> for Saved {
    fn from(grams: ConfidenceInterval) -> Self {
        let ConfidenceInterval { low, mean, high } = grams;
        Self { low: GramsCo2e::new(low), mean: GramsCo2e::new(mean), high: GramsCo2e::new(high) }
    }
}

/// Newest ledger entry about a job's savings.
#[derive(Clone, Copy, Debug)]
pub struct NewestOutcome {
    /// Number of the entry in the ledger.
    pub entry: u64,
    /// Emissions saved compared with the original limits; absent if unknown.
    pub saved: Option<Saved>,
}

impl NewestOutcome {
    /// Returns the saving; `None` if it is unknown, or if the job's energy was corrected after the entry. `corrected`
    /// is the number of the ledger entry of the job's newest correction.
    pub fn saved(self, corrected: Option<u64>) -> Option<Saved> {
        self.saved.filter(|_| corrected.is_none_or(|correction| correction < self.entry))
    }
}

impl std::ops::Add for Saved {
    type Output = Self;

    fn add(self, more: Self) -> Self {
        Self { low: self.low + more.low, mean: self.mean + more.mean, high: self.high + more.high }
    }
}
