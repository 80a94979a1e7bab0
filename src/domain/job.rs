//! What a user asks for: a training run, its work and its objective.

use std::collections::BTreeMap;

use chrono::{DateTime, Utc};
use serde::{Deserialize, Serialize};

use super::{GpuId, JobName};
use crate::units::{Samples, Seconds};

/// Why a job cannot be accepted as asked for: which field, and what would be right.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
#[error("{field}: {why}")]
pub struct InvalidJob {
    /// The field's path in the request.
    pub field: &'static str,
    /// What is wrong, and what would be right.
    pub why: String,
}

/// How much there is to do.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Work {
    /// So many samples in all.
    TotalSamples(Samples),
    /// The job does not say; it is planned over a rolling window.
    Unknown,
}

/// What the user wants and does not want to pay. The constraints combine.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Objective {
    /// Zeus's knob with carbon in place of energy: 1 is carbon alone, 0 is time alone.
    pub eta: f64,
    /// The allowed increase of the job's time over running at the ceiling: 0.03 is 3 %.
    pub max_slowdown: Option<f64>,
    /// When the work must be done.
    pub deadline: Option<DateTime<Utc>>,
}

impl Objective {
    /// What an empty objective means: carbon alone, at most 3 % slower.
    pub const DEFAULT: Self = Self { eta: 1.0, max_slowdown: Some(0.03), deadline: None };

    /// Checks ranges; `None` everywhere gives [`Self::DEFAULT`].
    ///
    /// # Errors
    /// If `eta` is outside 0..=1 or `max_slowdown` outside 0..=10.
    pub fn new(
        eta: Option<f64>,
        max_slowdown: Option<f64>,
        deadline: Option<DateTime<Utc>>,
    ) -> Result<Self, InvalidJob> {
        if eta.is_none() && max_slowdown.is_none() && deadline.is_none() {
            return Ok(Self::DEFAULT);
        }
        let eta = eta.unwrap_or(1.0);
        if !(0.0..=1.0).contains(&eta) {
            let why = format!("{eta} is outside 0..=1; 1 is carbon alone, 0 is time alone");
            return Err(InvalidJob { field: "objective.eta", why });
        }
        if let Some(slowdown) = max_slowdown
            && !(0.0..=10.0).contains(&slowdown)
        {
            let why = format!("{slowdown} is outside 0..=10; it is a fraction of the job's time: 0.03 allows 3 % more");
            return Err(InvalidJob { field: "objective.max_slowdown", why });
        }
        Ok(Self { eta, max_slowdown, deadline })
    }
}

/// A training run as it was registered.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct JobSpec {
    /// The user's name; recurring runs share it.
    pub name: JobName,
    /// The boards it trains on, in the job's order, each once.
    pub gpus: Vec<GpuId>,
    /// Samples per step over all its GPUs; part of the profile's key.
    pub batch_size: Option<u64>,
    /// How much there is to do.
    pub work: Work,
    /// What it may cost.
    pub objective: Objective,
    /// How long after its last word a job is taken for dead.
    pub lease: Seconds,
    /// Whether wattune may set its GPUs' limits; if not, it is only booked.
    pub control: bool,
    /// The user's own labels.
    pub tags: BTreeMap<String, String>,
}

/// No run counts further: beyond it, counts are mistakes, and sums of them would not stay finite.
pub const MOST_SAMPLES: f64 = 1e15;

impl JobSpec {
    /// Leases outside this range are refused: shorter ones lose live jobs, longer ones leave limits behind dead ones.
    pub const LEASE_RANGE_S: std::ops::RangeInclusive<f64> = 1.0..=86_400.0;

    /// Checks what the type system cannot.
    ///
    /// # Errors
    /// Names the first field that is wrong and what would be right.
    pub fn check(self) -> Result<Self, InvalidJob> {
        let invalid = |field, why| Err(InvalidJob { field, why });
        if self.gpus.is_empty() {
            return invalid("gpus", "names no GPU; give at least one index or UUID, see GET /v1/gpus".into());
        }
        if let Some(twice) = self.gpus.iter().enumerate().find(|(i, g)| self.gpus[..*i].contains(g)) {
            return invalid("gpus", format!("names {} twice", twice.1));
        }
        if self.batch_size == Some(0) {
            return invalid("batch_size", "is 0; give the number of samples per step, or leave it out".into());
        }
        if let Work::TotalSamples(total) = self.work
            && total <= Samples::ZERO
        {
            return invalid("work.total_samples", format!("is {}; it must be more than 0", total.get()));
        }
        if let Work::TotalSamples(total) = self.work
            && total.get() > MOST_SAMPLES
        {
            let why =
                format!("is {:e}; it must be at most {MOST_SAMPLES:e}; leave work out if it is unknown", total.get());
            return invalid("work.total_samples", why);
        }
        if !Self::LEASE_RANGE_S.contains(&self.lease.get()) {
            return invalid("lease_s", format!("is {}; it must be within 1 to 86400 seconds", self.lease.get()));
        }
        if self.objective.deadline.is_some() && self.work == Work::Unknown {
            let why = "a deadline can only be kept for known work; give work.total_samples too".into();
            return invalid("objective.deadline", why);
        }
        if self.tags.len() > 16 || self.tags.iter().any(|(k, v)| k.is_empty() || k.len() > 64 || v.len() > 256) {
            let why = "at most 16 tags, with keys of 1 to 64 and values of up to 256 bytes".into();
            return invalid("tags", why);
        }
        Ok(self)
    }
}
