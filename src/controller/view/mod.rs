//! Views of the controller's state: plain data for the HTTP API, the command line and the metrics.
//!
//! The name of a field ends in its unit. An unknown value is absent (`null`), never zero.

mod build;
mod carbon;
mod devices;
mod jobs;
mod savings;
mod states;
mod status;
mod when;

pub use super::signal::BasisLevel;
pub use build::{describe_feed, describe_start, price_view};
pub use carbon::{
    ActualView, CarbonSlot, CarbonView, IntensityView, PastForecastView, PresentPrice, PriceSlotView, PriceView,
    ScoreView, SlotsAhead, SourceView,
};
pub use devices::{CpuView, CpuZoneView, GpuView, LimitSpanView};
pub use jobs::{
    AccountView, ComparisonView, JobView, MarginalCostsView, ObjectiveView, PartsView, PausingView, PlanView,
    PointView, ProcessesView, ProfileView, ProgressView, SegmentView, StartView, SuspendView,
};
pub use savings::{BatchEffectView, BatchFigures, IntervalView, SavingFigures, SavingView, SavingsView, UnknownView};
pub use states::{
    Circuit, Concern, CpuZoneKind, EnergyMethod, Finality, GpuState, IntensityKind, IntensityOrigin, IntensityScope,
    Mode, ProgressOrigin, SegmentActivity, SignalFreshness,
};
pub use status::{
    BudgetView, CapView, LedgerView, PlanningView, RecordedView, SavedView, SettledView, StatusView, StorageView,
};
pub(crate) use when::ANY_POWER;
pub use when::{WhenView, WindowAhead, WindowView};

/// Returns the name that an enum's variant without fields has in JSON; `None` for a value that is no string in JSON.
pub(super) fn spelled<T: serde::Serialize>(value: &T) -> Option<String> {
    match serde_json::to_value(value) {
        Ok(serde_json::Value::String(text)) => Some(text),
        _ => None,
    }
}
