//! Views of the controller's state: plain data for the HTTP API, the command line and the metrics.
//!
//! Field names carry the unit. Absent values are absent (`null`), never zero.

mod build;
mod carbon;
mod devices;
mod jobs;
mod savings;
mod states;
mod status;

pub use super::signal::BasisLevel;
pub use build::{describe_feed, price_view};
pub use carbon::{
    CarbonView, IntensityView, OutcomeView, PastForecastView, PresentPrice, PriceSlotView, PriceView, ScoreView,
    SourceView,
};
pub use devices::{CpuView, CpuZoneView, GpuView, LimitSpanView};
pub use jobs::{
    AccountView, ComparisonView, JobView, MarginalCostsView, ObjectiveView, PausingView, PlanView, PointView,
    ProcessesView, ProfileView, ProgressView, SegmentView,
};
pub use savings::{BatchEffectView, BatchFigures, IntervalView, SavingFigures, SavingView, SavingsView, UnknownView};
pub use states::{
    Circuit, Concern, CpuZoneKind, EnergyMethod, Finality, GpuState, IntensityKind, IntensityOrigin, IntensityScope,
    Mode, SegmentActivity, SignalFreshness,
};
pub use status::{
    BudgetView, CapView, LedgerView, PlanningView, RecordedView, SavedView, SettledView, StatusView, StorageView,
};

/// Returns the serialized name of a unit variant.
pub(super) fn spelled<T: serde::Serialize>(value: &T) -> Option<String> {
    match serde_json::to_value(value) {
        Ok(serde_json::Value::String(text)) => Some(text),
        _ => None,
    }
}
