//! What is shown of savings.

use serde::Serialize;
use utoipa::ToSchema;

use wattune_core::domain::{PowerLimit, SENSOR_GAIN};
use wattune_core::ledger::confidence::ConfidenceInterval;
use wattune_core::ledger::report::Saved;
use wattune_core::ledger::savings::BatchEffect;
use wattune_core::ledger::savings_entries::{OrUnknown, ReferenceComparison, Savings};

/// What a job saved, each figure with the interval that holds the truth 95 times in 100 by the errors of the profile.
#[derive(Clone, Debug, Serialize, ToSchema)]
pub struct SavingsView {
    /// Against the same work at the limit found on its boards.
    pub against_found: SavingView,
    /// Against the same work at its boards' maximum limit.
    pub against_max: SavingView,
    /// Against runs of the recurring job with its default batch size; absent where the job is no trial of one.
    pub batch_size_effect: Option<BatchEffectView>,
    /// The part by which the boards' sensors may be off: it cancels in percent and is part of the intervals in grams.
    pub sensor_gain: f64,
}

/// A figure with its interval.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, ToSchema)]
pub struct IntervalView {
    /// The lower end.
    pub low: f64,
    /// The figure.
    pub mean: f64,
    /// The upper end.
    pub high: f64,
}

/// Something that is not known.
#[derive(Clone, Debug, Serialize, ToSchema)]
pub struct UnknownView {
    /// Why, in words.
    pub unknown: String,
}

/// A job against a reference, or why that is not known.
#[derive(Clone, Debug, Serialize, ToSchema)]
#[serde(untagged)]
pub enum SavingView {
    /// It is known.
    Known(Box<SavingFigures>),
    /// It is not.
    Unknown(UnknownView),
}

/// A job against a reference. Percentages are of the reference's.
#[derive(Clone, Debug, Serialize, ToSchema)]
pub struct SavingFigures {
    /// The reference's limit of each group of equal boards.
    pub power_limits_w: Vec<f64>,
    /// What the job would have emitted there.
    pub carbon_at_reference_g: f64,
    /// What it would have used.
    pub energy_at_reference_j: f64,
    /// What it would have taken, pauses of its own included.
    pub time_at_reference_s: f64,
    /// Less carbon, percent.
    pub carbon_reduction_pct: IntervalView,
    /// Less carbon.
    pub carbon_reduction_g: IntervalView,
    /// More time, percent.
    pub time_increase_pct: IntervalView,
    /// What the best constant mix of limits with the same time would have saved, percent. Absent where the mix is not
    /// measured, or changed on the way.
    pub energy_effect_pct: Option<IntervalView>,
    /// What following the grid added to that, percent.
    pub timing_effect_pct: Option<IntervalView>,
    /// Whether some intensities have not come yet: the intervals hold the usual error of what stands for them.
    pub provisional: bool,
    /// Less carbon by what had been measured when the reference was frozen, percent.
    pub carbon_reduction_as_frozen_pct: Option<f64>,
}

/// What a run's batch size did, or why that is not known.
#[derive(Clone, Debug, Serialize, ToSchema)]
#[serde(untagged)]
pub enum BatchEffectView {
    /// It is known.
    Known(BatchFigures),
    /// It is not.
    Unknown(UnknownView),
}

/// A run against runs with the default batch size.
#[derive(Clone, Copy, Debug, Serialize, ToSchema)]
pub struct BatchFigures {
    /// How many runs it is compared with.
    pub default_runs: u32,
    /// Less energy than these used on average.
    pub energy_reduction_j: IntervalView,
    /// The same at this run's mean intensity.
    pub carbon_reduction_g: IntervalView,
    /// Less than these used, percent.
    pub energy_reduction_pct: IntervalView,
}

impl SavingsView {
    /// Whether some of it rests on intensities that have not come yet.
    pub fn is_provisional(&self) -> bool {
        let open = |it: &SavingView| matches!(it, SavingView::Known(told) if told.provisional);
        open(&self.against_found) || open(&self.against_max)
    }
}

impl From<ConfidenceInterval> for IntervalView {
    fn from(ConfidenceInterval { low, mean, high }: ConfidenceInterval) -> Self {
        Self { low, mean, high }
    }
}

impl From<Saved> for IntervalView {
    fn from(Saved { low, mean, high }: Saved) -> Self {
        Self { low: low.get(), mean: mean.get(), high: high.get() }
    }
}

impl From<OrUnknown<ReferenceComparison>> for SavingView {
    fn from(found: OrUnknown<ReferenceComparison>) -> Self {
        let (limits, saving, as_frozen_pct) = match found {
            OrUnknown::Known(ReferenceComparison {
                limits, saving: OrUnknown::Known(saving), as_frozen_pct, ..
            }) => (limits, saving, as_frozen_pct),
            OrUnknown::Known(ReferenceComparison { saving: OrUnknown::Unknown { unknown }, .. })
            | OrUnknown::Unknown { unknown } => {
                return Self::Unknown(UnknownView { unknown });
            }
        };
        Self::Known(Box::new(SavingFigures {
            power_limits_w: limits.iter().map(|l: &PowerLimit| l.watts().get()).collect(),
            carbon_at_reference_g: saving.carbon_at_reference_g.get(),
            energy_at_reference_j: saving.energy_at_reference_j.get(),
            time_at_reference_s: saving.time_at_reference_s.get(),
            carbon_reduction_pct: saving.carbon_reduction_pct.into(),
            carbon_reduction_g: saving.carbon_reduction_g.into(),
            time_increase_pct: saving.time_increase_pct.into(),
            energy_effect_pct: saving.energy_effect_pct.map(Into::into),
            timing_effect_pct: saving.timing_effect_pct.map(Into::into),
            provisional: saving.provisional,
            carbon_reduction_as_frozen_pct: as_frozen_pct,
        }))
    }
}

impl From<OrUnknown<BatchEffect>> for BatchEffectView {
    fn from(found: OrUnknown<BatchEffect>) -> Self {
        match found {
            OrUnknown::Known(effect) => Self::Known(BatchFigures {
                default_runs: effect.runs,
                energy_reduction_j: effect.energy_j.into(),
                carbon_reduction_g: effect.carbon_g.into(),
                energy_reduction_pct: effect.pct.into(),
            }),
            OrUnknown::Unknown { unknown } => Self::Unknown(UnknownView { unknown }),
        }
    }
}

impl From<Savings> for SavingsView {
    fn from(savings: Savings) -> Self {
        Self {
            against_found: savings.against_found.into(),
            against_max: savings.against_max.into(),
            batch_size_effect: savings.batch_size_effect.map(Into::into),
            sensor_gain: SENSOR_GAIN,
        }
    }
}
