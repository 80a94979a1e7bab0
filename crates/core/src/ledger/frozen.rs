//! What the ledger keeps of savings: against what a job will be compared, written when it is planned first, and what came
//! of it, written when it ends.

use chrono::{DateTime, Utc};
use serde::{Deserialize, Serialize};

use super::savings::{Basis, BatchEffect, Known, Saving, saving};
use crate::domain::{JobId, PowerLimit, Zone};
use crate::profile::Evidence;
use crate::units::{GramsCo2e, Joules, Samples, Seconds};

/// The rule that references go by.
pub const RULE: &str = "the same work at one power limit from the job's start on, with the throughput and power that its \
                        profile measured there, and the job's own pauses as long and with the energy that they took";

/// Something, or why it is not known.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(untagged)]
pub enum Finding<T> {
    /// It is not known.
    Unknown {
        /// Why, in words.
        unknown: String,
    },
    /// This.
    Known(T),
}

impl<T> Finding<T> {
    /// It, if it is known.
    pub fn known(&self) -> Option<&T> {
        match self {
            Self::Known(it) => Some(it),
            Self::Unknown { .. } => None,
        }
    }
}

impl<T> From<Result<T, String>> for Finding<T> {
    fn from(found: Result<T, String>) -> Self {
        match found {
            Ok(it) => Self::Known(it),
            Err(unknown) => Self::Unknown { unknown },
        }
    }
}

/// Against what a job will be compared, as known when it was planned.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Counterfactual {
    /// When it was frozen.
    pub at: DateTime<Utc>,
    /// Whose.
    pub job: JobId,
    /// From 1 for each job. A later one holds for the work after it.
    pub version: u32,
    /// Why it was written.
    pub why: String,
    /// By which rule the references are reckoned.
    pub rule: String,
    /// Samples done by then.
    pub samples: Samples,
    /// At the limit found on the boards.
    pub found: Reference,
    /// At the boards' maximum.
    pub max: Reference,
    /// What the plan was expected to use from then on.
    pub planned_energy_j: Joules,
    /// What it was expected to emit.
    pub planned_carbon_g: GramsCo2e,
    /// When it was expected to end.
    pub planned_end: DateTime<Utc>,
    /// The forecast that it was planned with; absent without one.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub forecast: Option<Said>,
}

/// Whose forecast.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Said {
    /// Who said it.
    pub source: String,
    /// Of which part of the grid.
    pub zone: Zone,
    /// When.
    pub issued_at: DateTime<Utc>,
}

/// A reference as known when it was frozen.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Reference {
    /// The limit of each group of equal boards; none where they have no common one.
    pub limits: Vec<PowerLimit>,
    /// What was measured there.
    pub measured: Finding<Evidence>,
    /// What the planned work would use there.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub expected_energy_j: Option<Joules>,
    /// What it would emit, by the plan's intensities; absent where it would take longer than the plan.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub expected_carbon_g: Option<GramsCo2e>,
}

/// What came of a job, as known when this was written.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Outcome {
    /// When it was reckoned.
    pub at: DateTime<Utc>,
    /// Whose.
    pub job: JobId,
    /// From 1 for each job.
    pub version: u32,
    /// Why it was written.
    pub why: String,
    /// Time spent training.
    pub active_s: Seconds,
    /// Time in pauses of the job's own.
    #[serde(default)]
    pub stalled_s: Seconds,
    /// What these used, as far as it is known.
    #[serde(default)]
    pub stalled_energy_j: Joules,
    /// The work done in all.
    pub samples: Samples,
    /// What came of it.
    #[serde(flatten)]
    pub savings: Savings,
}

/// A job against both references.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Savings {
    /// Against the limit found.
    pub against_found: Finding<Compared>,
    /// Against the boards' maximum.
    pub against_max: Finding<Compared>,
    /// What the batch size did; absent where the job is no trial of a recurring one.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub batch_size_effect: Option<Finding<BatchEffect>>,
}

/// A job against one reference.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Compared {
    /// The reference's limit of each group of equal boards.
    pub limits: Vec<PowerLimit>,
    /// What it is told from.
    pub basis: Basis,
    /// What had been measured of the references when they were frozen.
    pub frozen: Vec<Evidence>,
    /// What was saved.
    pub saving: Finding<Saving>,
    /// The reduction by what had been measured when the references were frozen, in percent.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub as_frozen_pct: Option<f64>,
}

impl Savings {
    /// Whether some of it rests on intensities that have not come yet, or waits for them.
    pub fn is_provisional(&self) -> bool {
        let open = |it: &Finding<Compared>| match it.known().map(|compared| &compared.saving) {
            Some(Finding::Known(saving)) => saving.provisional,
            Some(Finding::Unknown { .. }) => true,
            None => false,
        };
        open(&self.against_found) || open(&self.against_max)
    }
}

impl Compared {
    /// The same, reckoned with what is known now.
    #[must_use]
    pub fn with(self, known: &Result<Known, String>) -> Self {
        let told = |basis: &Basis| saving(known.as_ref().map_err(Clone::clone)?, basis);
        let as_frozen = Basis { points: self.frozen.clone(), mix: Vec::new(), ..self.basis.clone() };
        let as_frozen_pct = told(&as_frozen).ok().map(|s| s.carbon_reduction_pct.mean);
        Self { saving: told(&self.basis).into(), as_frozen_pct, ..self }
    }
}
