//! Job data for reports.

use std::collections::BTreeMap;

use chrono::{DateTime, Utc};

use super::saved::Saved;
use crate::domain::{GpuId, JobId, JobName, Slot};
use crate::units::Samples;

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
