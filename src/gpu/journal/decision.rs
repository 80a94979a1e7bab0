//! Decides how to restore a GPU's power limit (pure).

use super::entry::Entry;
use wattune_core::domain::PowerLimit;
use wattune_core::units::Millijoules;

/// The action that restores a GPU's original limit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RestoreAction {
    /// Nothing to do: the GPU has its original limit.
    AlreadyRestored,
    /// Writes this original limit.
    Write(PowerLimit),
    /// Leaves this limit alone, which an external writer has set since wattune's last write.
    LeaveExternal(PowerLimit),
}

/// The readings that show who set a GPU's power limit.
#[derive(Clone, Copy, Debug)]
pub struct ObservedLimit {
    /// The power limit that the GPU has now.
    pub current: PowerLimit,
    /// The driver's default power limit, if known.
    pub default: Option<PowerLimit>,
    /// The value of the energy counter now, if known.
    pub counter: Option<Millijoules>,
    /// True if this process has seen the GPU or its driver restart since wattune's last write.
    pub restarted: bool,
}

/// Decides how to restore a GPU's power limit, from the GPU's journal entry and its readings. `boot_id` is the id of
/// the present boot.
///
/// A limit that wattune wrote is replaced by the original limit. So is the driver's default limit after a reboot or a
/// driver reload, because no external writer set it. Any other limit is an external writer's and is left alone.
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
