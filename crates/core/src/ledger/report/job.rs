//! A job as reports see it.

use std::collections::BTreeMap;

use chrono::{DateTime, Utc};

use crate::domain::{GpuId, JobId, JobName, Slot};
use crate::ledger::sure::Sure;
use crate::units::{GramsCo2e, Samples};

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

/// Emissions that jobs saved against the limit found on their boards, as an interval; negative where they emitted more.
///
/// Of several jobs the means add up, and so do the ends, as if all errors went the same way: those of the sensors' gain
/// do, those of chance do not, for which the interval is wider than it would have to be.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Saved {
    /// At the least.
    pub low: GramsCo2e,
    /// Most likely.
    pub mean: GramsCo2e,
    /// At the most.
    pub high: GramsCo2e,
}

impl From<Sure> for Saved {
    fn from(grams: Sure) -> Self {
        let Sure { low, mean, high } = grams;
        Self { low: GramsCo2e::new(low), mean: GramsCo2e::new(mean), high: GramsCo2e::new(high) }
    }
}

impl std::ops::Add for Saved {
    type Output = Self;

    fn add(self, more: Self) -> Self {
        Self { low: self.low + more.low, mean: self.mean + more.mean, high: self.high + more.high }
    }
}
