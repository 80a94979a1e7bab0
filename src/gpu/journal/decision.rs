//! Decides how to restore a GPU's power limit (pure).

use super::entry::Entry;
use crate::gpu::is_rounded;
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
/// driver reload, because no external writer set it. Any other limit is an external writer's and is left alone; see
/// [`is_undecided`] for the case that the default limit is unknown.
pub fn restore_action(entry: &Entry, boot_id: &str, gpu: &ObservedLimit) -> RestoreAction {
    let current = gpu.current;
    if current.same_as(entry.original) {
        return RestoreAction::AlreadyRestored;
    }
    // The process may have died before it saw to what the GPU rounded the last limit.
    let is_exact = matches!(entry.written.as_slice(), [shown, asked] if shown.same_as(*asked));
    let is_last = !is_exact && entry.written.last().is_some_and(|last| is_rounded(*last, current));
    if is_last || entry.written.iter().any(|w| w.same_as(current)) {
        return RestoreAction::Write(entry.original);
    }
    if has_restarted(entry, boot_id, gpu) && gpu.default.is_some_and(|d| d.same_as(current)) {
        return RestoreAction::Write(entry.original);
    }
    RestoreAction::LeaveExternal(current)
}

/// Returns true if it is still unknown whether an external writer set the GPU's limit: the machine or the driver has
/// restarted, and the driver does not report its default limit, which the present limit may be. The decision has to wait
/// then, because leaving the default limit alone would lose the original one.
pub fn is_undecided(entry: &Entry, boot_id: &str, gpu: &ObservedLimit) -> bool {
    gpu.default.is_none()
        && has_restarted(entry, boot_id, gpu)
        && matches!(restore_action(entry, boot_id, gpu), RestoreAction::LeaveExternal(_))
}

/// Returns true if the machine or the driver has restarted since wattune's last write.
fn has_restarted(entry: &Entry, boot_id: &str, gpu: &ObservedLimit) -> bool {
    let counted_anew = matches!((entry.counter, gpu.counter), (Some(then), Some(now)) if now < then);
    gpu.restarted || entry.boot_id != boot_id || counted_anew
}
