//! Reasons to plan a job again.

use std::fmt;

/// Change since a job's last plan that causes a new one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ReplanReason {
    /// The job was just registered.
    NewJob,
    /// The job has no plan.
    NoPlan,
    /// The forecast slot in which the job's plan was made is over.
    NewSlot,
    /// The active source published a new forecast.
    NewForecast,
    /// The basis of the current carbon intensity changed, for example from a source to the local forecaster.
    AnotherBasis,
    /// The job's profile changed.
    ProfileChanged,
    /// A progress report stated another total of the job's work.
    WorkChanged,
    /// The node's cap leaves the job more or less power, so that the highest limits at which it can be measured differ.
    OtherCeilings,
    /// An external writer locks the GPUs' clocks, so that wattune may not.
    ClocksLeftAlone,
    /// The job's progress differs from the plan.
    OffThePlan,
    /// An out-of-band cap on one of the job's GPUs began, changed or lifted.
    OutOfBandCap,
    /// The node's cap leaves the job more or less power, or the carbon budget leaves it more or less emissions.
    OtherShare,
    /// The job begins, resumes after a suspension, or no longer offers to be suspended.
    Resumed,
    /// A GPU became usable again.
    GpuReturned,
    /// An external writer set a GPU's limit.
    GpuTakenOver,
    /// A manual override of a GPU's limit began.
    OverrideBegan,
    /// A manual override of a GPU's limit ended.
    OverrideEnded,
    /// The job shares the node's cap or carbon budget with jobs that are planned again.
    WithOthers,
}

impl ReplanReason {
    /// Returns whether, for this reason, the current plan stays in force unless the new plan is better by more than a
    /// threshold. If the profile changed, the current plan is first evaluated with the new profile.
    pub fn is_routine(self) -> bool {
        matches!(self, Self::NewSlot | Self::NewForecast | Self::ProfileChanged | Self::WithOthers)
    }
}

impl fmt::Display for ReplanReason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::NewJob => "new job",
            Self::NoPlan => "no plan yet",
            Self::NewSlot => "new slot",
            Self::NewForecast => "new forecast",
            Self::AnotherBasis => "the current carbon intensity comes from another kind of source",
            Self::ProfileChanged => "the profile changed",
            Self::WorkChanged => "the total work changed",
            Self::OtherCeilings => "the node's cap changed the limits that can be measured",
            Self::ClocksLeftAlone => "an external writer locks the clocks",
            Self::OffThePlan => "progress differs from the plan",
            Self::OutOfBandCap => "an out-of-band cap began, changed or lifted",
            Self::OtherShare => "the node's cap or carbon budget leaves the job more or less",
            Self::Resumed => "the job begins or goes on",
            Self::GpuReturned => "a GPU became usable again",
            Self::GpuTakenOver => "an external writer set a GPU's limit",
            Self::OverrideBegan => "a manual override began",
            Self::OverrideEnded => "a manual override ended",
            Self::WithOthers => "jobs that share its cap or budget are planned again",
        })
    }
}
