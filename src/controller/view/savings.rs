//! Views of the savings of jobs.

use serde::Serialize;
use utoipa::ToSchema;

use wattune_core::domain::{PowerLimit, SENSOR_GAIN};
use wattune_core::ledger::confidence::ConfidenceInterval;
use wattune_core::ledger::report::Saved;
use wattune_core::ledger::savings::BatchEffect;
use wattune_core::ledger::savings_entries::{OrUnknown, ReferenceComparison, Savings};

/// Savings of a job compared with references: the same work at other power limits. Each figure has a 95 % confidence
/// interval, which comes from the measurement errors of the job's profile.
#[derive(Clone, Debug, Serialize, ToSchema)]
pub struct SavingsView {
    /// Comparison with the same work at the original limits of the job's GPUs, in force before wattune's first write.
    pub against_original: SavingView,
    /// Comparison with the same work at the highest limits that the job's GPUs accept.
    pub against_max: SavingView,
    /// Comparison with runs at the default batch size; absent unless the job is a run of a recurring job whose batch
    /// size wattune chooses.
    pub batch_size_effect: Option<BatchEffectView>,
    /// Relative gain error of the GPUs' power sensors. The error cancels in percentages, and the intervals in grams
    /// include it.
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

/// Comparison of a job with a reference (the same work at other power limits), or the reason why the comparison is
/// unknown.
#[derive(Clone, Debug, Serialize, ToSchema)]
#[serde(untagged)]
pub enum SavingView {
    /// The comparison is known.
    Known(Box<SavingFigures>),
    /// The comparison is unknown, with the reason.
    Unknown(UnknownView),
}

/// Figures of a job compared with a reference, the same work at other power limits. Percentages are relative to the
/// reference.
#[derive(Clone, Debug, Serialize, ToSchema)]
pub struct SavingFigures {
    /// Power limit of the reference, for each group of equal GPUs.
    pub power_limits_w: Vec<f64>,
    /// Emissions that the job's work would cause at the reference.
    pub carbon_at_reference_g: f64,
    /// Energy that the job's work would use at the reference.
    pub energy_at_reference_j: f64,
    /// Time that the job's work would take at the reference, including the job's own pauses.
    pub time_at_reference_s: f64,
    /// Reduction of emissions, in percent of those at the reference.
    pub carbon_reduction_pct: IntervalView,
    /// Reduction of emissions against the reference.
    pub carbon_reduction_g: IntervalView,
    /// Increase of time, in percent of the time at the reference.
    pub time_increase_pct: IntervalView,
    /// Part of the reduction due to starting later than asked, in percent of the emissions at the reference, which starts
    /// when asked. Absent for a job that neither waited for its start nor was suspended. The four effects add up to the
    /// reduction.
    pub start_effect_pct: Option<IntervalView>,
    /// Part of the reduction due to suspensions, with the emissions of saving and restarting, in percent of the emissions
    /// at the reference. Absent for a job that neither waited for its start nor was suspended.
    pub suspension_effect_pct: Option<IntervalView>,
    /// Part of the reduction that the best constant mix of limits (each for a fixed part of the time) would have had in
    /// the same time, in percent of the emissions at the reference. Absent if a limit of the mix was not measured, or
    /// if the reference changed during the job.
    pub energy_effect_pct: Option<IntervalView>,
    /// Rest of the reduction, due to following the grid's carbon intensity, in percent of the emissions at the
    /// reference; absent if `energy_effect_pct` is.
    pub timing_effect_pct: Option<IntervalView>,
    /// True while some carbon intensities have no actual value yet. Forecasts or values made by wattune take their
    /// place, and the confidence intervals include the usual error of these substitutes.
    pub provisional: bool,
    /// Reduction of emissions in percent, computed with the measurements of the reference that were known when the
    /// reference was recorded; absent if it cannot be computed.
    pub carbon_reduction_as_frozen_pct: Option<f64>,
}

/// Effect of a run's batch size on energy and emissions, or the reason why the effect is unknown.
#[derive(Clone, Debug, Serialize, ToSchema)]
#[serde(untagged)]
pub enum BatchEffectView {
    /// The comparison is known.
    Known(BatchFigures),
    /// The comparison is unknown, with the reason.
    Unknown(UnknownView),
}

/// Comparison of a run of a recurring job with earlier runs at the job's default batch size.
#[derive(Clone, Copy, Debug, Serialize, ToSchema)]
pub struct BatchFigures {
    /// Number of earlier runs with the default batch size.
    pub default_runs: u32,
    /// Reduction of energy compared with the mean energy of the runs with the default batch size.
    pub energy_reduction_j: IntervalView,
    /// Reduction of emissions: `energy_reduction_j` at this run's mean carbon intensity.
    pub carbon_reduction_g: IntervalView,
    /// Reduction of energy, in percent of the mean energy of the runs with the default batch size.
    pub energy_reduction_pct: IntervalView,
}

impl SavingsView {
    /// Returns whether at least one comparison uses substitutes for carbon intensities without an actual value.
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
            start_effect_pct: saving.start_effect_pct.map(Into::into),
            suspension_effect_pct: saving.suspension_effect_pct.map(Into::into),
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
