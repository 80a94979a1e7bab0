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
    /// The highest limits up to which the job can be measured changed, because the node's cap leaves more or less.
    OtherCeilings,
    /// An external writer locks the GPUs' clocks, so that wattune may not.
    ClocksLeftAlone,
    /// The job's progress differs from the plan.
    OffThePlan,
    /// An out-of-band cap on one of the job's GPUs began, changed or lifted.
    OutOfBandCap,
    /// The power or carbon changed that the node's cap or carbon budget leaves for the job.
    OtherShare,
    /// A GPU became usable again.
    GpuReturned,
    /// An external writer set a GPU's limit.
    GpuTakenOver,
    /// A manual override of a GPU's limit began.
    SetByHand,
    /// A manual override of a GPU's limit ended.
    OverrideEnded,
    /// The job shares the node's cap or carbon budget with jobs that are planned again.
    WithOthers,
}

impl ReplanReason {
    /// Returns whether the current plan stays in force unless a new one is better by more than a threshold. If the
    /// profile is new, the current plan is first evaluated with it.
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
            Self::AnotherBasis => "the present intensity has another basis",
            Self::ProfileChanged => "the profile changed",
            Self::OtherCeilings => "the node's cap changed the limits that can be measured",
            Self::ClocksLeftAlone => "an external writer locks the clocks",
            Self::OffThePlan => "progress differs from the plan",
            Self::OutOfBandCap => "an out-of-band cap began, changed or lifted",
            Self::OtherShare => "the node's cap or carbon budget leaves more or less",
            Self::GpuReturned => "a GPU became usable again",
            Self::GpuTakenOver => "an external writer set a GPU's limit",
            Self::SetByHand => "a manual override began",
            Self::OverrideEnded => "a manual override ended",
            Self::WithOthers => "jobs that share its cap or budget are planned again",
        })
    }
}
