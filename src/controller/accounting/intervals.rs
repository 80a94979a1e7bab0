//! Intervals of GPUs, which become rows of the ledger: closes them, splits them when a job is added to a GPU or
//! removed, and writes them with checkpoints (counter readings that they reach).

use std::collections::BTreeSet;

use chrono::{DateTime, Utc};

use super::Accounting;
use super::backlog::{NEVER_COUNTED, RESET_UNWATCHED};
use crate::controller::gpus::Gpu;
use crate::controller::jobs::Job;
use crate::controller::node::Node;
use crate::gpu::EnergyReading;
use crate::store::{Checkpoint, Store, StoreError, StoredJob};
use wattune_core::domain::{DeviceId, DeviceKind, GpuId, JobId};
use wattune_core::ledger::{AttributionRule, Interval, OpenInterval, Share};
use wattune_core::units::{Millijoules, Seconds};

impl Accounting {
    /// Closes the open intervals that are due. Returns whether an interval of a GPU was due.
    pub(crate) fn close_due(&mut self, node: &mut Node<'_>) -> bool {
        let now = node.now();
        let due = node.settings.interval_s - node.settings.tick_s;
        let boundary = self.signal_boundary(node);
        let is_due = move |interval: &OpenInterval| {
            // The sooner an interval with several attribution rules is closed, the more exactly the energy of each
            // rule's part is known.
            interval.has_rule_changes()
                || interval.age(now) >= due.max(Seconds::new(0.5))
                || boundary.is_some_and(|b| interval.start() < b && b <= now.utc)
        };
        // The interval of an unresponsive GPU stays due, but cannot be closed before the GPU answers.
        let closes =
            |gpu: &Gpu, interval: &OpenInterval| gpu.observed.metered_at.is_some_and(|at| interval.can_close(at));
        // An interval has a row per job. On a GPU with many jobs intervals are therefore longer, but end with the
        // carbon signal's slot.
        let waits = |gpu: &Gpu, interval: &OpenInterval| {
            gpu.is_crowded(now.monotonic) && !boundary.is_some_and(|b| interval.start() < b && b <= now.utc)
        };
        let is_due_on =
            |gpu: &&Gpu| gpu.interval.as_ref().is_some_and(|b| is_due(b) && closes(gpu, b) && !waits(gpu, b));
        let ids: Vec<GpuId> = node.gpus.iter().filter(is_due_on).map(|gpu| gpu.id().clone()).collect();
        self.close_zones(is_due);
        for id in &ids {
            self.close_up_to_now(node, id, false);
        }
        !ids.is_empty()
    }

    /// Returns the start of the carbon signal's current slot (time step): intervals end there, so that each interval
    /// has a single carbon intensity. `None` if the signal has no value now.
    fn signal_boundary(&self, node: &Node<'_>) -> Option<DateTime<Utc>> {
        node.signal.accounting_series().series().at(node.now().utc).map(|(slot, _)| slot.start())
    }

    /// Closes a GPU's open interval, if it is long enough to be measured and, on a GPU with many jobs, long enough to
    /// be worth a row per job.
    pub(crate) fn close_interval_of(&mut self, node: &mut Node<'_>, id: &GpuId) {
        let now = node.now().monotonic;
        if !node.gpus.get(id).is_some_and(|gpu| gpu.is_crowded(now)) {
            self.close_up_to_now(node, id, false);
        }
    }

    /// Closes a GPU's open interval, if it is long enough to be measured: first at the last report, if `is_leaving` (the
    /// job ends, or the daemon stops) or if the power has changed since, then at the newest reading.
    fn close_up_to_now(&mut self, node: &mut Node<'_>, id: &GpuId, is_leaving: bool) {
        if let Some(reading) = node.gpus.get(id).and_then(|gpu| reading_at_last_report(gpu, is_leaving)) {
            self.close_interval_at(node, id, reading, false);
        }
        self.close_interval_now(node, id);
    }

    /// Closes a GPU's open interval, if it is long enough to be measured.
    fn close_interval_now(&mut self, node: &mut Node<'_>, id: &GpuId) {
        let Some(gpu) = node.gpus.get(id) else { return };
        let newest = gpu.observed.energy_reading();
        // Energy that was used while the GPU did not respond is divided over that time alone: the interval is closed at
        // the first reading afterwards, and again at the newest reading.
        let turned = gpu.interval.as_ref().is_some_and(OpenInterval::has_rule_changes);
        for reading in gpu.observed.after_gap.filter(|_| turned).into_iter().chain(newest) {
            self.close_interval_at(node, id, reading, false);
        }
    }

    /// Closes a GPU's open interval at the time of `reading`. Without a new reading the interval stays open.
    /// If it `is_last`, the interval is closed however short it is.
    fn close_interval_at(&mut self, node: &mut Node<'_>, id: &GpuId, reading: EnergyReading, is_last: bool) {
        self.record_recovered(node, id);
        let EnergyReading { at, metered, .. } = reading;
        let closes = |interval: &OpenInterval| interval.can_close(at) || (is_last && interval.age(at) > Seconds::ZERO);
        if !node.gpus.get(id).and_then(|gpu| gpu.interval.as_ref()).is_some_and(closes) {
            return;
        }
        let Some(rule) = self.rule_of(node, id) else { return };
        let Some(gpu) = node.gpus.get_mut(id) else { return };
        let holders = gpu.holders();
        let Some(interval) = gpu.interval.as_mut() else { return };
        let (lost, unread) =
            (interval.has_lost_energy(metered).then(|| interval.start()), interval.was_unread(metered));
        let closed = match is_last {
            true => interval.close_last(at, metered, &rule),
            false => interval.close(at, metered, &rule),
        };
        let Some(rows) = closed else { return };
        gpu.newcomers.clear();
        self.backlog.intervals.extend(rows);
        if let Some(from) = lost {
            self.ledger.record_lost(
                &DeviceId::from(id),
                from,
                interval.start(),
                if unread { NEVER_COUNTED } else { RESET_UNWATCHED },
            );
        }
        let until = interval.start();
        let Some(point) = node.gpus.get(id).and_then(|gpu| self.point_of(gpu, holders, &reading, until)) else {
            return;
        };
        self.backlog.checkpoints.retain(|c| c.device != point.device);
        self.backlog.checkpoints.push(point);
    }

    /// Returns the checkpoint (counter reading from which later energy is counted) for an interval that ends at `at`
    /// with `reading`; `None` for a GPU whose counter was never read.
    pub(crate) fn point_of(
        &self,
        gpu: &Gpu,
        holders: Vec<JobId>,
        reading: &EnergyReading,
        at: DateTime<Utc>,
    ) -> Option<Checkpoint> {
        let (device, metered) = (DeviceId::from(gpu.id()), reading.metered);
        let recovered = self.backlog.recovered.iter().find(|c| c.device == device);
        match (recovered, gpu.opened) {
            // The counter has not been read since the last daemon's end: its increase up to the next reading will
            // include this interval.
            (Some(last), Some((_, first))) => {
                let estimated = last.estimated + metered.since_opened(&first);
                Some(Checkpoint { estimated, ..last.clone() })
            }
            _ => {
                let rebased_mj = gpu.rebased_before + metered.rebased_mj;
                let (counter, estimated) = (reading.counter?, metered.ahead);
                Some(Checkpoint { device, counter, at, read_from: None, holders, rebased_mj, estimated })
            }
        }
    }

    /// Returns the rule that attributes a GPU's energy up to now, and resets the counts of the jobs' use of the GPU.
    fn rule_of(&mut self, node: &mut Node<'_>, id: &GpuId) -> Option<AttributionRule> {
        let rule = self.rule_so_far(node, id)?;
        let gpu = node.gpus.get_mut(id)?;
        let jobs = gpu.counted_holders();
        gpu.sharing.take(&jobs);
        Some(rule)
    }

    /// Returns the rule that attributes a GPU's energy up to now.
    pub(crate) fn rule_so_far(&self, node: &Node<'_>, id: &GpuId) -> Option<AttributionRule> {
        // A job's use of the GPU is unknown if the job's registration names no processes.
        let is_known = |id: &JobId| node.jobs.get(id).is_some_and(|job| job.spec.processes.is_some());
        let gpu = node.gpus.get(id)?;
        let (jobs, unknown_user) = (gpu.counted_holders(), gpu.has_unknown_user());
        if jobs.is_empty() && gpu.holder_count() == 0 && !unknown_user {
            // The idle energy of a GPU that is reserved for absent jobs belongs to these jobs.
            let reserved_for = node.jobs.iter().filter(|job| job.reserves() && job.spec.gpus.contains(id));
            let jobs = reserved_for.map(|job| job.id.clone()).collect();
            return Some(AttributionRule::Holders { jobs, unknown_user, used: None });
        }
        let used = Some(gpu.sharing.so_far(&jobs)).filter(|_| jobs.iter().all(is_known));
        Some(AttributionRule::Holders { jobs, unknown_user, used })
    }

    /// Attributes a GPU's energy up to now to the jobs on it, right before a job is added or removed. If many jobs are
    /// on the GPU and the last split is recent, does nothing: a new job then gets no energy until the next split, and a
    /// removed job none since the last split. Returns whether the energy was attributed.
    pub(crate) fn split_interval_of(&mut self, node: &mut Node<'_>, id: &GpuId, is_leaving: bool) -> bool {
        let now = node.now().monotonic;
        if node.gpus.get(id).is_some_and(|gpu| gpu.is_crowded(now)) {
            return false;
        }
        if let Some(gpu) = node.gpus.get_mut(id) {
            gpu.observe();
        }
        self.close_up_to_now(node, id, is_leaving);
        self.split_unread(node, id, is_leaving);
        true
    }

    fn split_unread(&mut self, node: &mut Node<'_>, id: &GpuId, is_leaving: bool) {
        let now = node.now().monotonic;
        let Some(gpu) = node.gpus.get(id) else { return };
        // When a job leaves a GPU that answers, the time since the last reading is too short for another row, which
        // would come after the job's final account.
        let is_due = |interval: &OpenInterval| !is_leaving || interval.is_unread(now, node.settings.sample_s);
        // A GPU without readings has no energy to attribute.
        if gpu.observed.metered_at.is_none() || !gpu.interval.as_ref().is_some_and(is_due) {
            return;
        }
        let Some(rule) = self.rule_of(node, id) else { return };
        let Some(gpu) = node.gpus.get_mut(id) else { return };
        if let Some(interval) = gpu.interval.as_mut() {
            interval.change_rule(now, rule);
            gpu.newcomers.clear();
        }
    }

    pub(crate) fn close_all_intervals(&mut self, node: &mut Node<'_>) {
        for id in node.gpus.ids() {
            self.close_up_to_now(node, &id, true);
            if let Some(reading) = node.gpus.get(&id).and_then(|gpu| gpu.observed.energy_reading()) {
                self.close_interval_at(node, &id, reading, true);
            }
        }
    }

    /// Writes the backlog. Records that could not be written stay in it for the next tick. Returns the ended jobs whose
    /// energy in the ledger changed after their end; `None` if there was nothing to write or a write failed.
    pub(crate) async fn write_backlog(&mut self, node: &mut Node<'_>) -> Option<BTreeSet<JobId>> {
        if self.backlog.is_empty() {
            return None;
        }
        if let Err(error) = self.write_all(node).await {
            self.record_store_fault(&error);
            return None;
        }
        Some(self.backlog.late.clone())
    }

    async fn write_all(&mut self, node: &mut Node<'_>) -> Result<(), StoreError> {
        // Write entries on lost energy first: once the checkpoint has moved, a loss cannot be detected again.
        self.write_entries(node).await?;
        let backlog = &self.backlog;
        node.store.append(&backlog.intervals, &backlog.checkpoints).await?;
        self.store_fault = None;
        let known = self.intensities(node.signal, node.store).over(&self.backlog.intervals).await;
        let series = known.unwrap_or_else(|_| node.signal.accounting_series().series().clone());
        self.budget.add(&self.backlog.intervals, &series);
        self.ledger.count(&self.backlog.intervals);
        for row in std::mem::take(&mut self.backlog.intervals) {
            let Share::Job(id) = &row.share else { continue };
            if let Some(job) = node.jobs.get_mut(id) {
                *job.energy_by_kind.entry(row.device.kind()).or_default() += row.energy;
                let recorded = self.ledger.recorded_of_jobs.entry(id.clone()).or_default();
                *recorded.entry(row.device.kind()).or_default() += row.energy;
                let sum = match row.device.kind() {
                    DeviceKind::Gpu => &mut job.emissions,
                    DeviceKind::Cpu | DeviceKind::Dram => &mut job.cpu_emissions,
                };
                sum.add(&row, &series);
            } else {
                self.backlog.late.insert(id.clone());
            }
        }
        self.backlog.checkpoints.clear();
        while let Some(job) = self.backlog.ended.last() {
            node.store.save_job(job).await?;
            self.backlog.ended.pop();
        }
        Ok(())
    }

    /// Removes an ended job from the jobs whose energy in the ledger changed after their end, because the savings of
    /// the job are estimated now with all of its energy.
    pub(crate) fn forget_late(&mut self, id: &JobId) {
        self.backlog.late.remove(id);
    }

    /// Marks an ended job whose savings are to be estimated again at a later tick.
    pub(crate) fn note_late(&mut self, id: &JobId) {
        self.backlog.late.insert(id.clone());
    }

    /// Queues a job that has ended and could not be stored, to be stored with the backlog. Its savings are estimated after
    /// that, as with late energy.
    pub(crate) fn queue_ended(&mut self, job: StoredJob) {
        self.backlog.late.insert(job.id.clone());
        self.backlog.ended.push(job);
    }

    /// Sets the time up to which an earlier daemon recorded the energy of a GPU without a counter.
    pub(crate) fn set_recorded_until(&mut self, device: DeviceId, until: DateTime<Utc>) {
        self.backlog.recorded_until.insert(device, until);
    }

    /// Returns the closed intervals that are not written yet.
    pub(crate) fn unwritten(&self) -> &[Interval] {
        &self.backlog.intervals
    }

    /// Returns the intervals of a job, unwritten ones included.
    pub(crate) async fn rows_of(&self, id: &JobId, store: &Store) -> Result<Vec<Interval>, StoreError> {
        let mut rows = store.intervals_of(id).await?;
        rows.extend(self.backlog.intervals.iter().filter(|r| r.share == Share::Job(id.clone())).cloned());
        Ok(rows)
    }

    /// Stores the changed progress of all jobs in one write, and then the changed profile of each job.
    pub(crate) async fn store_jobs(&mut self, node: &mut Node<'_>) {
        let has_changed = |job: &&Job| job.unsaved || job.saved_progress != Some(job.progress);
        let changed: Vec<StoredJob> = node.jobs.iter().filter(has_changed).map(|job| job.stored(None)).collect();
        if let Err(error) = node.store.save_jobs(&changed).await {
            self.record_store_fault(&error);
            return;
        }
        for stored in changed {
            if let Some(job) = node.jobs.get_mut(&stored.id) {
                job.unsaved = false;
                job.saved_progress = Some(stored.progress);
            }
        }
        let ids = node.jobs.ids();
        for id in ids {
            self.store_profile(node, &id).await;
        }
    }

    /// Stores a job's profile for later runs, if the profile changed. The profile of an uncontrolled job that shared a
    /// GPU is not stored, because the measured power and throughput are not those of the job alone.
    pub(crate) async fn store_profile(&mut self, node: &mut Node<'_>, id: &JobId) {
        let now = node.now().utc;
        let Some(job) = node.jobs.get_mut(id) else { return };
        if job.progress.has_shared {
            return;
        }
        let Some(record) = job.record_to_save() else { return };
        let key = job.key.clone();
        if let Err(error) = node.store.save_profile(&key, &record, now).await {
            self.record_store_fault(&error);
        }
    }

    /// Logs the energy that could not be written before the daemon ends.
    pub(crate) fn log_unwritten(&self) {
        let unwritten = &self.backlog.intervals;
        if !unwritten.is_empty() {
            let energy: Millijoules = unwritten.iter().map(|row| row.energy).sum();
            tracing::error!(
                "{} intervals with {:.3} J could not be written and are missing from their jobs' accounts",
                unwritten.len(),
                energy.to_joules().get()
            );
        }
    }
}

/// Minimum time since the last report for a cut there: counters change every 100 ms, so that the power over a shorter time
/// is inaccurate.
const SILENCE: Seconds = Seconds::new(2.0);
/// Minimum relative change of the power since the last report for a cut there.
const OTHER_POWER: f64 = 0.05;
/// Minimum time between the last report and the end of the job, or the stop of the daemon, for a cut at the report: a
/// shorter interval is not measurable.
const SHORTEST: Seconds = Seconds::new(0.2);

/// Returns the reading at the last report on a GPU if the GPU's open interval is to be cut there; otherwise energy after
/// the end of the training, which may be that of an idle GPU, would count as energy of the training. An interval of several
/// jobs is not cut, because the jobs' use of the GPU at the report is not recorded.
pub(super) fn reading_at_last_report(gpu: &Gpu, is_leaving: bool) -> Option<EnergyReading> {
    let (interval, newest) = (gpu.interval.as_ref()?, gpu.observed.energy_reading()?);
    let last = gpu
        .at_last_report
        .filter(|last| interval.can_close(last.at) && last.counter.is_some() == newest.counter.is_some())?;
    if gpu.holder_count() != 1 || interval.has_rule_changes() || interval.has_lost_energy(newest.metered) {
        return None;
    }
    let since = newest.at.monotonic.since(last.at.monotonic);
    if is_leaving {
        return (since >= SHORTEST).then_some(last);
    }
    let (before, after) = (interval.mean_power(last.at, last.metered), newest.mean_power_since(&last));
    let has_changed = (after - before).abs() > before * OTHER_POWER;
    (since >= SILENCE && has_changed).then_some(last)
}
