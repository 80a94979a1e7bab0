//! CPU packages and memory of the node, and their open intervals.

use std::collections::BTreeMap;
use std::sync::Arc;

use chrono::{DateTime, Utc};

use crate::cpu::watch::{CpuHandle, Observation, TimeState, ZoneState};
use crate::store::Checkpoint;
use wattune_core::domain::{DeviceId, JobId};
use wattune_core::ledger::{CpuTime, OpenInterval, whole_millijoules};
use wattune_core::time::Now;
use wattune_core::units::Millijoules;

/// CPU packages and memory of the node (RAPL zones): latest readings and open intervals.
#[derive(Default)]
pub(crate) struct Processors {
    pub(super) handle: Option<CpuHandle>,
    pub(crate) observed: Arc<Observation>,
    pub(super) zones: BTreeMap<DeviceId, OpenZone>,
}

/// Open interval of one RAPL zone: a CPU package or its memory.
pub(super) struct OpenZone {
    pub(super) interval: OpenInterval,
    /// Change of the counter by wraps and resets before this daemon's meter began, in millijoules.
    pub(super) rebased_before: i64,
    /// CPU time of the node and of each job when the interval began or was split last.
    pub(super) time: TimeState,
}

impl OpenZone {
    /// Returns the CPU time from the start or last split of the interval to the time of `now`.
    pub(super) fn time(&self, now: &TimeState) -> CpuTime {
        let before = |job: &JobId| self.time.jobs.get(job).copied().unwrap_or_default();
        CpuTime {
            capacity: now.capacity_us - self.time.capacity_us,
            busy: now.busy_us - self.time.busy_us,
            jobs: now.jobs.iter().map(|(job, used)| (job.clone(), used.saturating_sub(before(job)))).collect(),
        }
    }

    /// Returns the checkpoint (counter reading from which later energy is counted) of an interval that begins at `at`
    /// with the reading in `zone`; `None` for a zone without a counter.
    pub(super) fn checkpoint(&self, zone: &ZoneState, at: DateTime<Utc>) -> Option<Checkpoint> {
        Some(Checkpoint {
            device: zone.device.clone(),
            counter: whole_millijoules(zone.counter_uj?),
            at,
            read_from: Some(zone.counter_id().to_owned()),
            holders: Vec::new(),
            rebased_mj: self.rebased_before + zone.metered.rebased_mj,
            estimated: Millijoules::ZERO,
        })
    }
}

impl Processors {
    pub(crate) fn new(handle: Option<CpuHandle>) -> Self {
        Self { handle, ..Self::default() }
    }

    /// Returns the state of a zone (first) and the time of its reading (second). `None` if the newest observation could
    /// not read the zone, whose interval then stays open.
    pub(super) fn read(&self, device: &DeviceId) -> Option<(&ZoneState, Now)> {
        let zone = self.observed.zones.iter().find(|zone| zone.device == *device)?;
        let at = zone.at.filter(|at| self.observed.at == Some(*at) && zone.problem.is_none())?;
        Some((zone, at))
    }
}
