//! Ledger entries about a job's savings. The references (the same work at fixed power limits), which the job is
//! compared with, are recorded when the job is first planned and when it was profiled again. The savings are recorded
//! when the job ends, and again when they change later.

use chrono::{DateTime, Utc};
use serde::{Deserialize, Serialize};

use super::forecast_id::ForecastId;
use super::savings::{BatchEffect, Saving, SavingBasis, SavingInput, saving};
use crate::domain::{JobId, PowerLimit};
use crate::profile::{EarlierWork, Evidence};
use crate::units::{GramsCo2e, Joules, Samples, Seconds};

/// Rule, in words, by which references are computed.
pub const RULE: &str = "the same work at one power limit from the job's start on, with the throughput and power that its \
                        profile measured there, and the job's own pauses as long and with the energy that they took";

/// A value, or the reason why the value is unknown.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(untagged)]
pub enum OrUnknown<T> {
    /// The value is unknown; the field holds the reason.
    Unknown {
        /// Reason why the value is unknown, for people.
        unknown: String,
    },
    /// The value is known.
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

/// References that a job will be compared with, and the plan's expectations, as known when the job was planned.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Counterfactual {
    /// Time at which the references were fixed.
    pub at: DateTime<Utc>,
    /// Job that will be compared.
    pub job: JobId,
    /// Number of this version, counted from 1 for each job. The first version applies from the job's start on, each
    /// later one to the work that the job does after `samples`.
    pub version: u32,
    /// Reason for this version, for people.
    pub why: String,
    /// Rule by which the references are computed.
    pub rule: String,
    /// Number of completed samples from which on the references apply: those by `at`, or by the change of the job's work.
    pub samples: Samples,
    /// Work from before the job changed, if it changed before the first version; the references do not fit that work.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub other_work: Option<EarlierWork>,
    /// Reference at the original limits of the job's GPUs, those before wattune's first write.
    #[serde(rename = "found")]
    pub original: Reference,
    /// Reference at the maximum limits that the job's GPUs accept.
    pub max: Reference,
    /// Energy that the plan expected the job to use from `at` to the job's end.
    pub planned_energy_j: Joules,
    /// Emissions that the plan expected the job to cause from `at` to the job's end.
    pub planned_carbon_g: GramsCo2e,
    /// Time at which the plan expected the job to end.
    pub planned_end: DateTime<Utc>,
    /// Carbon-intensity forecast that the plan used; absent without a forecast.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub forecast: Option<ForecastId>,
}

impl Counterfactual {
    /// Returns the number of completed samples from which on these references fit the job's work, up to its next change;
    /// `None` if the job had not changed before.
    pub fn fits_from(&self) -> Option<Samples> {
        match self.version {
            1 => self.other_work.map(|before| before.samples),
            _ => Some(self.samples),
        }
    }
}

/// A reference that a job is compared with: the same work at one power limit, as known when the entry was recorded.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Reference {
    /// Power limit of each group of equal GPUs; empty if there is none, for example because GPUs of one group have
    /// different limits.
    pub limits: Vec<PowerLimit>,
    /// Throughput and power of the job that were measured at `limits`.
    pub measured: OrUnknown<Evidence>,
    /// Energy that the planned work would use at `limits`; absent if `measured` is unknown.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub expected_energy_j: Option<Joules>,
    /// Emissions of the planned work at `limits` with the plan's intensities; absent if `measured` is unknown, or if
    /// the work would take longer at `limits` than the plan.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub expected_carbon_g: Option<GramsCo2e>,
}

/// Savings of a job, as known when the entry was recorded.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Outcome {
    /// Time at which the savings were computed.
    pub at: DateTime<Utc>,
    /// Job that ended.
    pub job: JobId,
    /// Number of this version, counted from 1 for each job; the newest version applies.
    pub version: u32,
    /// Reason for this version, for people.
    pub why: String,
    /// Training time, without the job's own pauses.
    pub active_s: Seconds,
    /// Duration of the job's own pauses, such as evaluation and checkpoints.
    #[serde(default)]
    pub stalled_s: Seconds,
    /// Energy used in the job's own pauses, as far as it is known.
    #[serde(default)]
    pub stalled_energy_j: Joules,
    /// Samples that the job completed in total.
    pub samples: Samples,
    /// Comparison of the job with its two references.
    #[serde(flatten)]
    pub savings: Savings,
}

/// Comparison of a job with its two references: the same work at the original limits, and at the maximum limits.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Savings {
    /// Comparison with the reference at the original limits.
    pub against_original: OrUnknown<ReferenceComparison>,
    /// Comparison with the reference at the GPUs' maximum limits.
    pub against_max: OrUnknown<ReferenceComparison>,
    /// Effect of the job's batch size; absent unless the job is a trial (a run that tries a batch size) of a recurring
    /// job.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub batch_size_effect: Option<OrUnknown<BatchEffect>>,
}

/// Comparison of a job with one reference.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct ReferenceComparison {
    /// Power limit of each group of equal GPUs at the reference.
    pub limits: Vec<PowerLimit>,
    /// Measurements and assumptions that the saving is computed from.
    pub basis: SavingBasis,
    /// Measurements at the reference's limits as known when each version of the reference was recorded, oldest first.
    /// Empty if the newest version was recorded before its limits were measured.
    pub frozen: Vec<Evidence>,
    /// Saving of the job compared with the reference.
    pub saving: OrUnknown<Saving>,
    /// Reduction of emissions in percent if computed with `frozen` instead of the newest measurements; absent if it is
    /// unknown, or if `frozen` is empty.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub as_frozen_pct: Option<f64>,
}

impl Savings {
    /// Returns true if the savings may still change: a part depends on carbon intensities that have no actual value
    /// yet, or the saving against a known reference is unknown.
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
    /// Returns the comparison with its saving recomputed from `known`: the job's work and the grid's carbon
    /// intensities, or the reason why they are unknown.
    #[must_use]
    pub fn with(self, known: &Result<SavingInput, String>) -> Self {
        let recomputed = |basis: &SavingBasis| saving(known.as_ref().map_err(Clone::clone)?, basis);
        let as_frozen_pct = (!self.frozen.is_empty()).then(|| {
            let as_frozen = SavingBasis { points: self.frozen.clone(), mix: Vec::new(), ..self.basis.clone() };
            Some(recomputed(&as_frozen).ok()?.carbon_reduction_pct.mean)
        });
        Self { saving: recomputed(&self.basis).into(), as_frozen_pct: as_frozen_pct.flatten(), ..self }
    }
}
