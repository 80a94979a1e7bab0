//! Reasons to plan a job again.

use std::fmt;

/// Change since a job's last plan.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ReplanReason {
    /// It was just registered.
    NewJob,
    /// It has no plan.
    NoPlan,
    /// The slot in which its plan was made is over.
    NewSlot,
    /// The active source published a new forecast.
    NewForecast,
    /// The present intensity has another basis.
    AnotherBasis,
    /// The profile changed.
    ProfileChanged,
    /// The highest limits that can be measured changed.
    OtherCeilings,
    /// An external writer locks the clocks.
    ClocksLeftAlone,
    /// Progress differs from the plan.
    OffThePlan,
    /// An out-of-band cap began, changed or lifted.
    OutOfBandCap,
    /// The power or carbon that the node's cap or budget leaves for it changed.
    OtherShare,
    /// A GPU became usable again.
    GpuReturned,
    /// An external writer set a GPU's limit.
    GpuTakenOver,
    /// A manual override began.
    SetByHand,
    /// A manual override ended.
    OverrideEnded,
    /// It shares a cap or budget with jobs that are planned again.
    WithOthers,
}

impl ReplanReason {
    /// Returns whether the current plan stays in force if a new one is hardly better. Under a new profile the current plan
    /// is evaluated anew.
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
            Self::OtherCeilings => "the highest limits that can be measured changed",
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
