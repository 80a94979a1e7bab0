//! Checkpoints: open intervals are stored every few seconds, so that a kill of the daemon loses only the last few
//! seconds.
//!
//! An interval is written once it is closed, a minute after it began. Without checkpoints, a kill before that would
//! lose the interval: for a GPU without a counter the energy, for a GPU with a counter the attribution of the energy to
//! jobs. A kill would also lose the jobs' last reports, from which the next daemon knows which jobs' leases (longest
//! silences before a job counts as dead) had not expired.

use chrono::TimeDelta;

use super::Accounting;
use super::backlog::{NEVER_COUNTED, RESET_UNWATCHED};
use super::intervals::reading_at_last_report;
use crate::controller::gpus::Gpu;
use crate::controller::node::Node;
use crate::gpu::journal::boot_id;
use crate::store::{LastSeen, OpenIntervalRecord, StoredProgress};
use wattune_core::domain::{DeviceId, JobId};
use wattune_core::ledger::entry::Lost;
use wattune_core::ledger::{AttributionRule, Metered, OpenInterval};
use wattune_core::time::Now;
use wattune_core::units::Seconds;

/// Minimum number of checkpoints (stored open intervals and last reports) within the shortest lease (longest silence
/// before a job counts as dead): with a short lease, seconds of uncertainty about a job's last report matter.
const CHECKPOINTS_PER_LEASE: f64 = 4.0;

/// Maximum number of jobs whose progress a checkpoint stores, controlled jobs first. The progress of the other jobs is
/// stored with the next interval. Each checkpoint stores the leases of all jobs.
const MOST_REPORTS: usize = 64;

impl Accounting {
    /// Stores a checkpoint (open intervals and the jobs' last reports), if one is due. After a failure the next
    /// checkpoint is due as usual.
    pub(crate) async fn checkpoint(&mut self, node: &mut Node<'_>) {
        if self.is_checkpoint_due(node) {
            self.checkpoint_now(node).await;
        }
    }

    fn is_checkpoint_due(&self, node: &Node<'_>) -> bool {
        let now = node.now().monotonic;
        let shortest = node.jobs.iter().map(|job| job.spec.lease / CHECKPOINTS_PER_LEASE).reduce(Seconds::min);
        let period = shortest.map_or(node.settings.checkpoint_s, |lease| lease.min(node.settings.checkpoint_s));
        // The checkpoint may be half a tick early, because ticks come a little early or late.
        self.backlog.last_checkpoint.at.is_none_or(|at| now.since(at) + node.settings.tick_s / 2.0 >= period)
    }

    /// Stores a checkpoint (open intervals and the jobs' last reports) now, unless closed intervals still wait to be
    /// written.
    pub(crate) async fn checkpoint_now(&mut self, node: &mut Node<'_>) {
        // The open intervals begin after the unwritten rows of the backlog: a checkpoint without these rows would leave
        // a gap.
        if !self.backlog.intervals.is_empty() || !self.backlog.checkpoints.is_empty() {
            return;
        }
        let now = node.now();
        self.backlog.last_checkpoint.at = Some(now.monotonic);
        let open: Vec<OpenIntervalRecord> =
            node.gpus.iter().filter_map(|gpu| self.open_interval_of(node, gpu)).chain(self.open_zones()).collect();
        let leases = node.jobs.iter().map(|job| (job.id.clone(), job.lease_left(now))).collect();
        let last_seen = LastSeen { at: now.utc, boot_id: boot_id(), uptime: node.clock.uptime(), leases };
        let progress = self.changed_progress(node);
        let outcome = node.store.store_open_intervals(&open, &last_seen, &progress).await;
        if let Err(error) = &outcome {
            self.record_store_fault(error);
        } else if self.backlog.last_checkpoint.failed {
            self.store_fault = None;
        }
        let last_checkpoint = &mut self.backlog.last_checkpoint;
        last_checkpoint.failed = outcome.is_err();
        if outcome.is_ok() {
            last_checkpoint
                .reports
                .extend(progress.into_iter().filter_map(|(id, progress)| Some((id, progress.last?))));
            last_checkpoint.reports.retain(|id, _| node.jobs.contains(id));
        }
    }

    /// Returns the progress of jobs that have reported since the last checkpoint, at most [`MOST_REPORTS`] of them.
    fn changed_progress(&self, node: &Node<'_>) -> Vec<(JobId, StoredProgress)> {
        let reports = &self.backlog.last_checkpoint.reports;
        let steered = node.jobs.iter().filter(|job| job.controls());
        let all = steered.chain(node.jobs.iter().filter(|job| !job.controls()));
        let unkept = all.filter(|job| job.progress.last.as_ref() != reports.get(&job.id));
        unkept.take(MOST_REPORTS).map(|job| (job.id.clone(), job.progress)).collect()
    }

    /// Returns a GPU's open interval as it would be closed with the newest reading of the GPU's energy; `None` if it
    /// need not be stored.
    fn open_interval_of(&self, node: &Node<'_>, gpu: &Gpu) -> Option<OpenIntervalRecord> {
        let (interval, device) = (gpu.interval.as_ref()?, DeviceId::from(gpu.id()));
        let reading = gpu.observed.energy_reading()?;
        if reading.counter.is_some() && gpu.has_many_jobs() {
            // A row per job every few seconds is too much to write, and after a kill the counter still has the
            // interval's energy.
            return None;
        }
        let rule = self.rule_so_far(node, gpu.id())?;
        let why = if interval.was_unread(reading.metered) { NEVER_COUNTED } else { RESET_UNWATCHED };
        // Cut at the last report here too, so that a kill does not change how the energy is divided.
        let mut rest = interval.clone();
        let before = reading_at_last_report(gpu, false)
            .and_then(|cut| rest.close(cut.at, cut.metered, &rule))
            .unwrap_or_default();
        let Some(mut open) = as_closed(&device, &rest, reading.at, reading.metered, &rule, why) else {
            // The interval is too short to be closed. For a GPU without a counter, only this empty record shows up to
            // which time the energy is recorded.
            let nothing = OpenIntervalRecord {
                device,
                until: interval.start(),
                intervals: Vec::new(),
                checkpoint: None,
                lost: None,
            };
            return reading.counter.is_none().then_some(nothing);
        };
        open.intervals.splice(0..0, before);
        let checkpoint = self.point_of(gpu, gpu.holders(), &reading, open.until);
        Some(OpenIntervalRecord { checkpoint, ..open })
    }
}

/// Returns an open interval as it would be closed at `at`, without moving the device's checkpoint; `None` if it is too
/// short to close. `why_lost` is the reason, in the ledger, for energy of the interval that is lost.
pub(crate) fn as_closed(
    device: &DeviceId,
    interval: &OpenInterval,
    at: Now,
    metered: Metered,
    rule: &AttributionRule,
    why_lost: &str,
) -> Option<OpenIntervalRecord> {
    let mut closed = interval.clone();
    let intervals = closed.close(at, metered, rule)?;
    let until = closed.start();
    let lost = interval.has_lost_energy(metered).then(|| Lost {
        at: until,
        device: device.clone(),
        // Record the loss even if the wall clock was set back meanwhile.
        from: if interval.start() < until { interval.start() } else { until - TimeDelta::seconds(1) },
        until,
        why: why_lost.to_owned(),
    });
    Some(OpenIntervalRecord { device: device.clone(), until, intervals, checkpoint: None, lost })
}
