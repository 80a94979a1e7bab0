//! Ledger entries about savings: the references that a job will be compared with, recorded when it is first planned,
//! and its savings, recorded when it ends.

use chrono::{DateTime, Utc};
use serde::{Deserialize, Serialize};

use super::savings::{BatchEffect, Saving, SavingBasis, SavingInput, saving};
use crate::domain::{JobId, PowerLimit, Zone};
use crate::profile::Evidence;
use crate::units::{GramsCo2e, Joules, Samples, Seconds};

/// Rule by which references are computed.
pub const RULE: &str = "the same work at one power limit from the job's start on, with the throughput and power that its \
                        profile measured there, and the job's own pauses as long and with the energy that they took";

/// A value, or the reason why it is unknown.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(untagged)]
pub enum OrUnknown<T> {
    /// The value is unknown.
    Unknown {
        /// Reason.
        unknown: String,
    },
    /// The value.
    Known(T),
}

impl<T> OrUnknown<T> {
    /// Returns the value, if it is known.
    pub fn known(&self) -> Option<&T> {
        match self {
            Self::Known(it) => Some(it),
            Self::Unknown { .. } => None,
        }
    }
}

impl<T> From<Result<T, String>> for OrUnknown<T> {
    fn from(found: Result<T, String>) -> Self {
        match found {
            Ok(it) => Self::Known(it),
            Err(unknown) => Self::Unknown { unknown },
        }
    }
}

/// References that a job will be compared with, as known when it was planned.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Counterfactual {
    /// Time at which the references were fixed.
    pub at: DateTime<Utc>,
    /// Job.
    pub job: JobId,
    /// Version, from 1 for each job. A later version applies to the work after it.
    pub version: u32,
    /// Reason for this version.
    pub why: String,
    /// Rule by which the references are computed.
    pub rule: String,
    /// Samples completed by then.
    pub samples: Samples,
    /// Reference at the original limit.
    pub found: Reference,
    /// Reference at the maximum limit.
    pub max: Reference,
    /// Energy that the plan expected from then on.
    pub planned_energy_j: Joules,
    /// Emissions that the plan expected.
    pub planned_carbon_g: GramsCo2e,
    /// End that the plan expected.
    pub planned_end: DateTime<Utc>,
    /// Forecast that the plan used; absent without one.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub forecast: Option<ForecastId>,
}

/// Identity of a forecast.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ForecastId {
    /// Source.
    pub source: String,
    /// Grid zone.
    pub zone: Zone,
    /// Time of publication.
    pub issued_at: DateTime<Utc>,
}

/// A reference as known when it was fixed.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Reference {
    /// Limit of each group of equal GPUs; empty where they have none in common.
    pub limits: Vec<PowerLimit>,
    /// Measurements at that limit.
    pub measured: OrUnknown<Evidence>,
    /// Energy that the planned work would use there.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub expected_energy_j: Option<Joules>,
    /// Emissions there with the plan's intensities; absent where it would take longer than the plan.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub expected_carbon_g: Option<GramsCo2e>,
}

/// Savings of a job, as known when the entry was recorded.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Outcome {
    /// Time of computation.
    pub at: DateTime<Utc>,
    /// Job.
    pub job: JobId,
    /// Version, from 1 for each job.
    pub version: u32,
    /// Reason for this version.
    pub why: String,
    /// Training time.
    pub active_s: Seconds,
    /// Time in the job's own pauses.
    #[serde(default)]
    pub stalled_s: Seconds,
    /// Energy in these pauses, as far as it is known.
    #[serde(default)]
    pub stalled_energy_j: Joules,
    /// Samples completed in total.
    pub samples: Samples,
    /// Savings.
    #[serde(flatten)]
    pub savings: Savings,
}

/// Comparison of a job with both references.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Savings {
    /// Comparison with the original limit.
    pub against_original: OrUnknown<ReferenceComparison>,
    /// Comparison with the maximum limit.
    pub against_max: OrUnknown<ReferenceComparison>,
    /// Effect of the batch size; absent unless the job is a trial of a recurring job.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub batch_size_effect: Option<OrUnknown<BatchEffect>>,
}

/// Comparison of a job with one reference.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct ReferenceComparison {
    /// Limit of each group of equal GPUs at the reference.
    pub limits: Vec<PowerLimit>,
    /// Data that the saving is computed from.
    pub basis: SavingBasis,
    /// Measurements of the references when they were fixed.
    pub frozen: Vec<Evidence>,
    /// Saving.
    pub saving: OrUnknown<Saving>,
    /// Reduction computed with the measurements of the time when the references were fixed, in percent.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub as_frozen_pct: Option<f64>,
}

impl Savings {
    /// Returns true if a part of the savings depends on intensities that have no actual value yet.
    pub fn is_provisional(&self) -> bool {
        let open = |it: &OrUnknown<ReferenceComparison>| match it.known().map(|compared| &compared.saving) {
            Some(OrUnknown::Known(saving)) => saving.provisional,
            Some(OrUnknown::Unknown { .. }) => true,
            None => false,
        };
        open(&self.against_original) || open(&self.against_max)
    }
}

impl ReferenceComparison {
    /// Returns the comparison recomputed with current data.
    #[must_use]
    pub fn with(self, known: &Result<SavingInput, String>) -> Self {
        let recomputed = |basis: &SavingBasis| saving(known.as_ref().map_err(Clone::clone)?, basis);
        let as_frozen = SavingBasis { points: self.frozen.clone(), mix: Vec::new(), ..self.basis.clone() };
        let as_frozen_pct = recomputed(&as_frozen).ok().map(|s| s.carbon_reduction_pct.mean);
        Self { saving: recomputed(&self.basis).into(), as_frozen_pct, ..self }
    }
}
