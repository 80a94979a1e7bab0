//! Job data for reports, and savings by newest outcomes that are still valid.

use std::collections::BTreeMap;

use chrono::{DateTime, Utc};

use crate::domain::{GpuId, JobId, JobName, Slot};
use crate::ledger::confidence::ConfidenceInterval;
use crate::units::{GramsCo2e, Samples};

/// Job data that reports use.
#[derive(Clone, Debug, PartialEq)]
pub struct JobFacts {
    /// Id.
    pub id: JobId,
    /// Name.
    pub name: JobName,
    /// Labels.
    pub tags: BTreeMap<String, String>,
    /// GPUs.
    pub gpus: Vec<GpuId>,
    /// Samples completed from registration to the last report; from the first report if the job began from a
    /// checkpoint.
    pub samples: Samples,
    /// Time of registration.
    pub registered_at: DateTime<Utc>,
    /// Time of its end, if it has ended.
    pub ended_at: Option<DateTime<Utc>>,
    /// Saving by its newest outcome; absent if unknown.
    pub saved: Option<Saved>,
}

impl JobFacts {
    /// Returns true if the job ended within a span, whose start is exclusive: adjacent spans do not both contain the
    /// end.
    pub fn ended_within(&self, span: &Slot) -> bool {
        self.ended_at.is_some_and(|end| span.start() < end && end <= span.end())
    }

    /// Returns true if the job overlaps a span.
    pub fn ran_within(&self, span: &Slot) -> bool {
        self.registered_at < span.end() && self.ended_at.is_none_or(|end| end > span.start())
    }
}

/// Emissions that jobs saved compared with the original limit, as an interval; negative if they emitted more.
///
/// For several jobs the means are added, and so are the ends, as if all errors were correlated. That holds for the
/// sensors' gain errors but not for random errors, so that the interval is conservative.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Saved {
    /// Lower end.
    pub low: GramsCo2e,
    /// Estimate.
    pub mean: GramsCo2e,
    /// Upper end.
    pub high: GramsCo2e,
}

impl From<ConfidenceInterval> for Saved {
    fn from(grams: ConfidenceInterval) -> Self {
        let ConfidenceInterval { low, mean, high } = grams;
        Self { low: GramsCo2e::new(low), mean: GramsCo2e::new(mean), high: GramsCo2e::new(high) }
    }
}

/// Newest outcome of a job.
#[derive(Clone, Copy, Debug)]
pub struct NewestOutcome {
    /// Number of its entry in the ledger.
    pub entry: u64,
    /// Saving compared with the original limit; absent if unknown.
    pub saved: Option<Saved>,
}

impl NewestOutcome {
    /// Returns the saving, unless the job's energy was corrected since; `corrected` is the entry of the newest
    /// correction.
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
