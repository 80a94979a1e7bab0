//! A job as reports see it.

use std::collections::BTreeMap;

use chrono::{DateTime, Utc};

use super::saved::Saved;
use crate::domain::{GpuId, JobId, JobName, Slot};
use crate::units::Samples;

/// What a report needs to know of a job.
#[derive(Clone, Debug, PartialEq)]
pub struct JobFacts {
    /// Its id.
    pub id: JobId,
    /// Its name.
    pub name: JobName,
    /// Its labels.
    pub tags: BTreeMap<String, String>,
    /// Its boards.
    pub gpus: Vec<GpuId>,
    /// Samples done from its registration to its last report; from its first one where it began from a checkpoint.
    pub samples: Samples,
    /// When it was registered.
    pub registered_at: DateTime<Utc>,
    /// When it ended, if it has.
    pub ended_at: Option<DateTime<Utc>>,
    /// What it saved, as its newest outcome says; absent where that cannot be told, or not yet.
    pub saved: Option<Saved>,
}

impl JobFacts {
    /// Whether the job ended within a span: neighbouring spans do not both have it.
    pub fn ended_within(&self, span: &Slot) -> bool {
        self.ended_at.is_some_and(|end| span.start() < end && end <= span.end())
    }

    /// Whether some of its time lies in a span.
    pub fn ran_within(&self, span: &Slot) -> bool {
        self.registered_at < span.end() && self.ended_at.is_none_or(|end| end > span.start())
    }
}
