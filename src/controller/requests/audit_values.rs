//! Values of the audit log's records: actions, states and reasons of writes to GPUs.

use crate::gpu::Write;
use crate::store::{AuditAction, AuditState};
use wattune_core::domain::PowerLimit;

/// Returns the state of a lock of clocks.
pub(super) fn clocks(min: Option<u32>, max: Option<u32>) -> AuditState {
    AuditState { clock_min_mhz: min, clock_max_mhz: max, ..AuditState::default() }
}

/// Returns the state of the persistence mode.
pub(super) fn persistence(on: bool) -> AuditState {
    AuditState { persistence_mode: Some(on), ..AuditState::default() }
}

/// Returns the action that a write does, and the state that it requests; `None` for one that removes a lock.
pub(super) fn action_of(write: Write) -> (AuditAction, Option<AuditState>) {
    match write {
        Write::PowerLimit(limit) => (AuditAction::SetPowerLimit, Some(AuditState::power_limit(limit))),
        Write::Persistence(on) => (AuditAction::SetPersistenceMode, Some(persistence(on))),
        Write::LockClocks(clock) => (AuditAction::LockGpuClocks, Some(clocks(None, Some(clock.megahertz())))),
        Write::LockClockRange { min_mhz, max_mhz } => {
            (AuditAction::LockGpuClocks, Some(clocks(Some(min_mhz), Some(max_mhz))))
        }
        Write::LockMemoryClocks { min_mhz, max_mhz } => {
            (AuditAction::LockMemoryClocks, Some(clocks(Some(min_mhz), Some(max_mhz))))
        }
        Write::ResetClocks => (AuditAction::UnlockGpuClocks, None),
        Write::ResetMemoryClocks => (AuditAction::UnlockMemoryClocks, None),
    }
}

/// Returns the reason why the limit `wanted` of an accepted override is not written yet; `requested` may be higher.
pub(super) fn deferred(requested: PowerLimit, wanted: PowerLimit) -> String {
    let then =
        if wanted.same_as(requested) { "it".into() } else { format!("{wanted}, the GPU's maximum usable limit,") };
    format!("{requested} was requested; {then} is written as soon as the GPU answers and the node's cap permits it")
}

/// Returns the reason why a limit was not written although its request was accepted.
pub(super) fn replaced_by_later(requested: PowerLimit) -> String {
    format!("{requested} was requested; a later request changed the limit before that was written")
}

/// Returns the reason why the GPU has less than the limit that was requested.
pub(super) fn not_permitted(requested: PowerLimit, permitted: PowerLimit) -> String {
    format!("{requested} was requested; the GPU's maximum usable limit or the node's cap permits only {permitted}")
}
