//! What has changed of the signal since the last tick.

use crate::controller::planning::ReplanReason;
use crate::store::StoreError;
use wattune_core::domain::Slot;

/// The changes since the last tick that concern the ledger, the jobs and the plans.
#[derive(Debug, Default)]
pub(in crate::controller) struct SignalUpdate {
    /// Slots with new or withdrawn values: their hours are settled and counted again.
    pub(in crate::controller) reported: Vec<Slot>,
    /// Slots whose value in the accounting series has changed: their hours are counted again.
    pub(in crate::controller) revised: Vec<Slot>,
    /// Whether the ledger uses another accounting series: all hours are counted again.
    pub(in crate::controller) is_other_series: bool,
    /// Hours whose values a source has declared final.
    pub(in crate::controller) finalised: Vec<Slot>,
    /// Whether this is the first forecast since the start.
    pub(in crate::controller) is_first: bool,
    /// The reason to plan every job again.
    pub(in crate::controller) replan: Option<ReplanReason>,
    /// Failed reads and writes.
    pub(in crate::controller) faults: Vec<StoreError>,
}
