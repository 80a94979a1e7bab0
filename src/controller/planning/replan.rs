//! Why a job is planned again.

use std::fmt;

/// What has changed since a job was planned last.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ReplanReason {
    /// It was just registered.
    NewJob,
    /// It has no plan.
    NoPlan,
    /// The slot in which its plan was made is over.
    NewSlot,
    /// The followed source says something else.
    NewForecast,
    /// The present is reckoned with another basis.
    AnotherBasis,
    /// More was measured.
    ProfileChanged,
    /// It can be measured up to other limits.
    OtherCeilings,
    /// Clocks turned out not to be wattune's to lock.
    ClocksLeftAlone,
    /// Work done is not what was planned.
    OffThePlan,
    /// An out-of-band cap came, changed or lifted.
    OutOfBandCap,
    /// What the node's cap or carbon budget leaves for it has changed.
    OtherShare,
    /// A GPU can be used again.
    GpuCameBack,
    /// Somebody else has set a GPU's limit.
    GpuTakenOver,
    /// A limit was set by hand.
    SetByHand,
    /// A manual override ended.
    OverrideEnded,
    /// Nothing has changed for the job itself: it shares with others that are planned again.
    WithOthers,
}

impl ReplanReason {
    /// Whether it comes in the course of things, so that the plan before stays in force where a new one is hardly better.
    /// Under a new profile the plan before is judged anew.
    pub fn is_routine(self) -> bool {
        matches!(self, Self::NewSlot | Self::NewForecast | Self::ProfileChanged | Self::WithOthers)
    }
}

impl fmt::Display for ReplanReason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::NewJob => "new job",
            Self::NoPlan => "no plan yet",
            Self::NewSlot => "a new slot",
            Self::NewForecast => "a new forecast",
            Self::AnotherBasis => "the signal rests on another basis",
            Self::ProfileChanged => "the profile changed",
            Self::OtherCeilings => "it can be measured up to other limits",
            Self::ClocksLeftAlone => "clocks are not to be locked",
            Self::OffThePlan => "progress is off the plan",
            Self::OutOfBandCap => "an out-of-band cap came, changed or lifted",
            Self::OtherShare => "what the node's cap or carbon budget leaves has changed",
            Self::GpuCameBack => "a GPU came back",
            Self::GpuTakenOver => "a GPU was taken over by somebody else",
            Self::SetByHand => "a limit was set by hand",
            Self::OverrideEnded => "a manual override ended",
            Self::WithOthers => "with others of the node",
        })
    }
}
