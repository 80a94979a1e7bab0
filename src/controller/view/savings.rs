//! Views of the savings of jobs.

use serde::Serialize;
use utoipa::ToSchema;

use wattune_core::domain::{PowerLimit, SENSOR_GAIN};
use wattune_core::ledger::confidence::ConfidenceInterval;
use wattune_core::ledger::report::Saved;
use wattune_core::ledger::savings::BatchEffect;
use wattune_core::ledger::savings_entries::{OrUnknown, ReferenceComparison, Savings};

/// Savings of a job. The 95 % confidence interval of each figure comes from the errors of the job's profile.
#[derive(Clone, Debug, Serialize, ToSchema)]
pub struct SavingsView {
    /// Comparison with the same work at the original limits of the job's GPUs.
    pub against_original: SavingView,
    /// Comparison with the same work at the maximum limits of the job's GPUs.
    pub against_max: SavingView,
    /// Comparison with runs of the recurring job with its default batch size; absent where the job is no trial of one.
    pub batch_size_effect: Option<BatchEffectView>,
    /// Relative gain error of the GPUs' power sensors; it cancels in percentages and is part of the intervals in grams.
    pub sensor_gain: f64,
}

/// A figure with its 95 % confidence interval.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, ToSchema)]
pub struct IntervalView {
    /// Lower end of the interval.
    pub low: f64,
    /// Estimate of the figure.
    pub mean: f64,
    /// Upper end of the interval.
    pub high: f64,
}

/// An unknown figure.
#[derive(Clone, Debug, Serialize, ToSchema)]
pub struct UnknownView {
    /// Reason why the figure is unknown, in one sentence.
    pub unknown: String,
}

/// Comparison of a job with a reference, or the reason why it is unknown.
#[derive(Clone, Debug, Serialize, ToSchema)]
#[serde(untagged)]
pub enum SavingView {
    /// Known comparison.
    Known(Box<SavingFigures>),
    /// Unknown comparison.
    Unknown(UnknownView),
}

/// Comparison of a job with a reference. Percentages are of the reference's figures.
#[derive(Clone, Debug, Serialize, ToSchema)]
pub struct SavingFigures {
    /// Power limit of the reference, for each group of equal GPUs.
    pub power_limits_w: Vec<f64>,
    /// Emissions of the job's work at the reference.
    pub carbon_at_reference_g: f64,
    /// Energy of the job's work at the reference.
    pub energy_at_reference_j: f64,
    /// Time of the job's work at the reference, including the job's own pauses.
    pub time_at_reference_s: f64,
    /// Reduction of emissions, in percent of those at the reference.
    pub carbon_reduction_pct: IntervalView,
    /// Reduction of emissions against the reference.
    pub carbon_reduction_g: IntervalView,
    /// Increase of time, in percent of that at the reference.
    pub time_increase_pct: IntervalView,
    /// Part of the reduction that the best constant mix of limits with the same time would have had, in percent. Absent
    /// where that mix was not measured, or changed during the job.
    pub energy_effect_pct: Option<IntervalView>,
    /// Part of the reduction added by following the grid, in percent.
    pub timing_effect_pct: Option<IntervalView>,
    /// True while some carbon intensities are missing: the intervals include the usual error of their substitutes.
    pub provisional: bool,
    /// Reduction of emissions, in percent, by the measurements known when the reference was recorded.
    pub carbon_reduction_as_frozen_pct: Option<f64>,
}

/// Effect of a run's batch size, or the reason why it is unknown.
#[derive(Clone, Debug, Serialize, ToSchema)]
#[serde(untagged)]
pub enum BatchEffectView {
    /// Known comparison.
    Known(BatchFigures),
    /// Unknown comparison.
    Unknown(UnknownView),
}

/// Comparison of a run with runs of the same recurring job with its default batch size.
#[derive(Clone, Copy, Debug, Serialize, ToSchema)]
pub struct BatchFigures {
    /// Number of runs with the default batch size.
    pub default_runs: u32,
    /// Reduction of energy against the mean of those runs.
    pub energy_reduction_j: IntervalView,
    /// Reduction of emissions against that mean, both at this run's mean carbon intensity.
    pub carbon_reduction_g: IntervalView,
    /// Reduction of energy, in percent of that mean.
    pub energy_reduction_pct: IntervalView,
}

impl SavingsView {
    /// Returns whether a comparison rests on substitutes for missing carbon intensities.
    pub fn is_provisional(&self) -> bool {
        let open = |it: &SavingView| matches!(it, SavingView::Known(reported) if reported.provisional);
        open(&self.against_original) || open(&self.against_max)
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
            against_original: savings.against_original.into(),
            against_max: savings.against_max.into(),
            batch_size_effect: savings.batch_size_effect.map(Into::into),
            sensor_gain: SENSOR_GAIN,
        }
    }
}
