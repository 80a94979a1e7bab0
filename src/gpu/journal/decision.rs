//! Decides how to restore a GPU's limit (pure).

use super::entry::Entry;
use wattune_core::domain::PowerLimit;
use wattune_core::units::Millijoules;

/// The action that restores a GPU's original limit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RestoreAction {
    /// None: the GPU has its original limit.
    AlreadyRestored,
    /// Write the original limit.
    Write(PowerLimit),
    /// None: an external writer has set this limit since.
    LeaveExternal(PowerLimit),
}

/// The readings that decide who set a GPU's limit.
#[derive(Clone, Copy, Debug)]
pub struct ObservedLimit {
    /// The current limit.
    pub current: PowerLimit,
    /// The driver's default.
    pub default: Option<PowerLimit>,
    /// The energy counter.
    pub counter: Option<Millijoules>,
    /// This process saw the GPU or its driver restart since wattune's last write.
    pub restarted: bool,
}

/// Decides from the journal's entry and the GPU's readings.
///
/// A limit that wattune wrote is replaced. So is the driver's default after a reboot or a driver reload, which no
/// external writer set. Any other limit is an external writer's.
pub fn restore_action(entry: &Entry, boot_id: &str, gpu: &ObservedLimit) -> RestoreAction {
    let current = gpu.current;
    if current.same_as(entry.original) {
        return RestoreAction::AlreadyRestored;
    }
    if entry.written.iter().any(|w| w.same_as(current)) {
        return RestoreAction::Write(entry.original);
    }
    let counted_anew = matches!((entry.counter, gpu.counter), (Some(then), Some(now)) if now < then);
    let restarted = gpu.restarted || entry.boot_id != boot_id || counted_anew;
    if restarted && gpu.default.is_some_and(|d| d.same_as(current)) {
        return RestoreAction::Write(entry.original);
    }
    RestoreAction::LeaveExternal(current)
}
