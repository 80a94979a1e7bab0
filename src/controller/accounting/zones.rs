//! The node's CPU packages and memory, and the open intervals of their books.

use std::collections::BTreeMap;
use std::sync::Arc;

use crate::cpu::watch::{CpuHandle, Observation, TimeState, ZoneState};
use wattune_core::domain::{DeviceId, JobId};
use wattune_core::ledger::{CpuTime, OpenInterval};
use wattune_core::time::Now;

/// The node's CPUs as the controller knows them.
#[derive(Default)]
pub(in crate::controller) struct Processors {
    pub(super) handle: Option<CpuHandle>,
    pub(in crate::controller) seen: Arc<Observation>,
    pub(super) books: BTreeMap<DeviceId, ZoneBooks>,
}

/// The open interval of one zone.
pub(super) struct ZoneBooks {
    pub(super) interval: OpenInterval,
    /// What turns and resets moved the counter by before this daemon's meter began, in millijoules.
    pub(super) rebased_before: i64,
    /// CPU time when the interval began, or turned last.
    pub(super) time: TimeState,
}

impl ZoneBooks {
    /// CPU time since then.
    pub(super) fn time(&self, now: &TimeState) -> CpuTime {
        let before = |job: &JobId| self.time.jobs.get(job).copied().unwrap_or_default();
        CpuTime {
            capacity: now.capacity_us - self.time.capacity_us,
            busy: now.busy_us - self.time.busy_us,
            jobs: now.jobs.iter().map(|(job, used)| (job.clone(), used.saturating_sub(before(job)))).collect(),
        }
    }
}

impl Processors {
    pub(in crate::controller) fn new(handle: Option<CpuHandle>) -> Self {
        Self { handle, ..Self::default() }
    }

    /// A zone that was read with the newest observation; others keep their intervals open.
    pub(super) fn read(&self, device: &DeviceId) -> Option<(&ZoneState, Now)> {
        let zone = self.seen.zones.iter().find(|zone| zone.device == *device)?;
        let at = zone.at.filter(|at| self.seen.at == Some(*at) && zone.problem.is_none())?;
        Some((zone, at))
    }
}
