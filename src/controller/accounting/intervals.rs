//! Keeping the books: closing intervals, moving checkpoints, and writing both down together.

use std::collections::BTreeSet;

use chrono::{DateTime, TimeDelta, Utc};

use super::Accounting;
use super::backlog::{NEVER_COUNTED, RESET_UNWATCHED};
use crate::controller::gpus::Gpu;
use crate::controller::jobs::Job;
use crate::controller::node::Node;
use crate::gpu::EnergyReading;
use crate::store::{Checkpoint, Store, StoreError, StoredJob};
use wattune_core::domain::{DeviceId, DeviceKind, GpuId, JobId};
use wattune_core::ledger::{self, AttributionRule, Interval, OpenInterval, Share};
use wattune_core::units::{Millijoules, Seconds};

/// Why energy is lost between two daemons where no counter is.
const NOT_KEPT: &str =
    "it has no energy counter, and no daemon ran, or one was ended before it had written down what it read";
/// Why energy is lost where a counter is.
const NOT_BACK: &str = "its counter has not been read since";
/// A counter that an earlier daemon read is waited for so long before what it alone knows is called lost.
const GIVEN_UP: Seconds = Seconds::new(3600.0);

/// Boards without a counter that were booked so shortly before a start were watched all the time: sensors are no faster.
const PAUSE: TimeDelta = TimeDelta::milliseconds(200);

impl Accounting {
    /// Opens the books of boards that answer for the first time. What the counter knows of the time since the last
    /// daemon's checkpoint becomes intervals of its own, once it is read.
    pub(in crate::controller) fn open_books(&mut self, node: &mut Node<'_>) {
        let now = node.now();
        let answers = |gpu: &Gpu| gpu.seen.at.is_some() && gpu.seen.fault.is_none();
        let is_new = |gpu: &&Gpu| gpu.books.is_none() && answers(gpu);
        let ids: Vec<GpuId> = node.gpus.iter().filter(is_new).map(|gpu| gpu.id().clone()).collect();
        for id in ids {
            let device = DeviceId::from(&id);
            let is_known = self.backlog.recovered.iter().any(|c| c.device == device);
            let Some(gpu) = node.gpus.get_mut(&id) else { continue };
            if is_known && gpu.seen.metered_at.is_none() {
                // Opened without a first value of anything, the books would never know what the gap used.
                continue;
            }
            gpu.books = Some(OpenInterval::open(device.clone(), now, gpu.seen.metered));
            gpu.opened = Some((now, gpu.seen.metered));
            if is_known {
                continue;
            }
            let Some(counter) = gpu.seen.counter else {
                if let Some(until) =
                    self.backlog.recorded_until.remove(&device).filter(|until| now.utc - *until > PAUSE)
                {
                    self.ledger.lose(&device, until, now.utc, NOT_KEPT);
                }
                continue;
            };
            let (holders, rebased_mj) = (gpu.holders(), gpu.rebased_before + gpu.seen.metered.rebased_mj);
            let (at, read_from, estimated) = (now.utc, None, Millijoules::ZERO);
            let point = Checkpoint { device, counter, at, read_from, holders, rebased_mj, estimated };
            self.backlog.checkpoints.push(point);
        }
        for id in node.gpus.ids() {
            self.settle_recovered(node, &id);
        }
    }

    /// Books what a board used since the last daemon's checkpoint, once its counter is read: less what was integrated since
    /// then. A counter that says less than power did is ahead in the books, and is booked again from there on.
    fn settle_recovered(&mut self, node: &mut Node<'_>, id: &GpuId) {
        let device = DeviceId::from(id);
        let Some(place) = self.backlog.recovered.iter().position(|c| c.device == device) else { return };
        let now = node.now();
        let stays = self.occupancy_of(node, id, self.backlog.recovered[place].at);
        let Some(gpu) = node.gpus.get_mut(id) else { return };
        let (Some((opened, first)), Some(books)) = (gpu.opened, &gpu.books) else { return };
        let Some(counter) = gpu.seen.counter else {
            if now.monotonic.since(opened.monotonic) > GIVEN_UP && !std::mem::replace(&mut gpu.is_given_up, true) {
                // Daemons in between have integrated its power.
                let booked = self.backlog.recorded_until.get(&device).copied();
                let from = booked.unwrap_or_default().max(self.backlog.recovered[place].at);
                self.ledger.lose(&device, from, opened.utc, NOT_BACK);
            }
            return;
        };
        let last = self.backlog.recovered.swap_remove(place);
        let (metered, estimated) = (gpu.seen.metered, last.estimated + gpu.seen.metered.since_opened(&first));
        // What it showed when the books were opened, or when it was read for the first time after that.
        let shown = metered.reading_before(counter, &first);
        let gained = shown.checked_since(last.counter);
        if gained.is_none() {
            self.ledger.lose(&device, last.at, opened.utc, RESET_UNWATCHED);
        }
        let energy = gained.unwrap_or(shown).checked_since(estimated).unwrap_or_default();
        let owed = gained.and_then(|gained| estimated.checked_since(gained)).unwrap_or_default();
        gpu.handle.exclude_energy(owed);
        self.backlog.intervals.extend(ledger::gap_intervals(&device, last.at, opened.utc, energy, &stays));
        let moved = ledger::rebased(last.counter, shown, energy);
        // What this daemon's meter says of resets comes on top.
        gpu.rebased_before = last.rebased_mj + moved - first.rebased_mj;
        let (at, rebased_mj) = (books.start(), last.rebased_mj + moved);
        let holders = gpu.holders();
        let point = Checkpoint { device, counter: shown, at, read_from: None, holders, rebased_mj, estimated: owed };
        self.backlog.checkpoints.push(point);
    }

    /// Closes the intervals that are long enough. Answers whether a board's was.
    pub(in crate::controller) fn close_due(&mut self, node: &mut Node<'_>) -> bool {
        let now = node.now();
        let due = node.settings.interval_s - node.settings.tick_s;
        let boundary = self.signal_boundary(node);
        let is_due = move |books: &OpenInterval| {
            // Whose it was turned: the less is read since, the better it is known which part is whose.
            books.has_rule_changes()
                || books.age(now) >= due.max(Seconds::new(0.5))
                || boundary.is_some_and(|b| books.start() < b && b <= now.utc)
        };
        // A silent board is due until it answers, and there is nothing to write until then.
        let closes = |gpu: &Gpu, books: &OpenInterval| gpu.seen.metered_at.is_some_and(|at| books.can_close(at));
        // Of many jobs each has a row: they wait for longer, but not beyond a slot of the signal.
        let waits = |gpu: &Gpu, books: &OpenInterval| {
            gpu.is_crowded(now.monotonic) && !boundary.is_some_and(|b| books.start() < b && b <= now.utc)
        };
        let is_due_on = |gpu: &&Gpu| gpu.books.as_ref().is_some_and(|b| is_due(b) && closes(gpu, b) && !waits(gpu, b));
        let ids: Vec<GpuId> = node.gpus.iter().filter(is_due_on).map(|gpu| gpu.id().clone()).collect();
        self.close_zones(is_due);
        for id in &ids {
            self.close_books_now(node, id);
        }
        !ids.is_empty()
    }

    /// The start of the present slot of the signal: intervals end there, so that each has one intensity.
    fn signal_boundary(&self, node: &Node<'_>) -> Option<DateTime<Utc>> {
        node.signal.accounting_series().series().at(node.now().utc).map(|(slot, _)| slot.start())
    }

    /// Closes a board's open interval, if it is long enough to be measured, and for as many jobs as it has.
    pub(in crate::controller) fn close_books_of(&mut self, node: &mut Node<'_>, id: &GpuId) {
        let now = node.now().monotonic;
        if !node.gpus.get(id).is_some_and(|gpu| gpu.is_crowded(now)) {
            self.close_books_now(node, id);
        }
    }

    /// Closes a board's open interval, if it is long enough to be measured.
    fn close_books_now(&mut self, node: &mut Node<'_>, id: &GpuId) {
        let Some(gpu) = node.gpus.get(id) else { return };
        let seen = &gpu.seen;
        let newest = seen.metered_at.map(|at| EnergyReading { at, metered: seen.metered, counter: seen.counter });
        // What it used while it was silent is shared out over that time alone.
        let turned = gpu.books.as_ref().is_some_and(OpenInterval::has_rule_changes);
        for reading in seen.after_gap.filter(|_| turned).into_iter().chain(newest) {
            self.close_books_at(node, id, reading);
        }
    }

    /// Closes it up to the moment at which the energy was read: a board that is silent keeps its interval open.
    fn close_books_at(&mut self, node: &mut Node<'_>, id: &GpuId, reading: EnergyReading) {
        self.settle_recovered(node, id);
        let EnergyReading { at, metered, .. } = reading;
        if !node.gpus.get(id).and_then(|gpu| gpu.books.as_ref()).is_some_and(|books| books.can_close(at)) {
            return;
        }
        let Some(rule) = self.rule_of(node, id) else { return };
        let Some(gpu) = node.gpus.get_mut(id) else { return };
        let holders = gpu.holders();
        let Some(books) = gpu.books.as_mut() else { return };
        let (lost, unread) = (books.has_lost_energy(metered).then(|| books.start()), books.was_unread(metered));
        let Some(rows) = books.close(at, metered, &rule) else { return };
        gpu.newcomers.clear();
        self.backlog.intervals.extend(rows);
        if let Some(from) = lost {
            self.ledger.lose(
                &DeviceId::from(id),
                from,
                books.start(),
                if unread { NEVER_COUNTED } else { RESET_UNWATCHED },
            );
        }
        let until = books.start();
        let Some(point) = node.gpus.get(id).and_then(|gpu| self.point_of(gpu, holders, &reading, until)) else {
            return;
        };
        self.backlog.checkpoints.retain(|c| c.device != point.device);
        self.backlog.checkpoints.push(point);
    }

    /// The checkpoint that goes with an interval that ends `at` with this reading, so that a gap joins it without a seam.
    /// `None` for a board whose counter was never read.
    pub(in crate::controller) fn point_of(
        &self,
        gpu: &Gpu,
        holders: Vec<JobId>,
        reading: &EnergyReading,
        at: DateTime<Utc>,
    ) -> Option<Checkpoint> {
        let (device, metered) = (DeviceId::from(gpu.id()), reading.metered);
        let recovered = self.backlog.recovered.iter().find(|c| c.device == device);
        match (recovered, gpu.opened) {
            // The counter has not been read since the last daemon's end: it will know of this interval, too.
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

    /// What a board's energy is split by now, with what was used of it since it was asked last.
    fn rule_of(&mut self, node: &mut Node<'_>, id: &GpuId) -> Option<AttributionRule> {
        let rule = self.rule_so_far(node, id)?;
        let gpu = node.gpus.get_mut(id)?;
        let jobs = gpu.settled_holders();
        gpu.sharing.take(&jobs);
        Some(rule)
    }

    /// The same for a look that begins nothing anew.
    pub(in crate::controller) fn rule_so_far(&self, node: &Node<'_>, id: &GpuId) -> Option<AttributionRule> {
        // Use says nothing of jobs that did not tell their processes.
        let told = |id: &JobId| node.jobs.get(id).is_some_and(|job| job.spec.processes.is_some());
        let gpu = node.gpus.get(id)?;
        let (jobs, unknown_user) = (gpu.settled_holders(), gpu.has_unknown_user());
        let used = Some(gpu.sharing.so_far(&jobs)).filter(|_| jobs.iter().all(told));
        Some(AttributionRule::Holders { jobs, unknown_user, used })
    }

    /// Books what a board used so far, right before a job comes to it or leaves it. What could not be read yet stays
    /// theirs who hold it now. Not so where many jobs hold it and its books turned a short while ago: who comes then has
    /// no part of what it uses until they turn again, and who goes none since they did. Answers whether it was done.
    pub(in crate::controller) fn turn_books_of(&mut self, node: &mut Node<'_>, id: &GpuId, is_leaving: bool) -> bool {
        let now = node.now().monotonic;
        if node.gpus.get(id).is_some_and(|gpu| gpu.is_crowded(now)) {
            return false;
        }
        if let Some(gpu) = node.gpus.get_mut(id) {
            gpu.observe();
        }
        self.close_books_now(node, id);
        self.turn_unread(node, id, is_leaving);
        true
    }

    fn turn_unread(&mut self, node: &mut Node<'_>, id: &GpuId, is_leaving: bool) {
        let now = node.now().monotonic;
        let Some(gpu) = node.gpus.get(id) else { return };
        // The moment since the last reading of a board that answers is not worth a row after a job's final account.
        let is_due = |books: &OpenInterval| !is_leaving || books.is_unread(now, node.settings.sample_s);
        // Of a board that tells nothing there is nothing to share.
        if gpu.seen.metered_at.is_none() || !gpu.books.as_ref().is_some_and(is_due) {
            return;
        }
        let Some(rule) = self.rule_of(node, id) else { return };
        let Some(gpu) = node.gpus.get_mut(id) else { return };
        if let Some(books) = gpu.books.as_mut() {
            books.change_rule(now, rule);
            gpu.newcomers.clear();
        }
    }

    pub(in crate::controller) fn close_all_books(&mut self, node: &mut Node<'_>) {
        for id in node.gpus.ids() {
            self.close_books_now(node, &id);
        }
    }

    /// Writes what was booked. On failure everything stays in the backlog for the next tick. Answers with the jobs of whose
    /// energy something was written after they had ended; `None` if not all could be written.
    pub(in crate::controller) async fn write_backlog(&mut self, node: &mut Node<'_>) -> Option<BTreeSet<JobId>> {
        if self.backlog.is_empty() {
            return None;
        }
        if let Err(error) = self.write_all(node).await {
            self.note_store_fault(&error);
            return None;
        }
        Some(self.backlog.late.clone())
    }

    async fn write_all(&mut self, node: &mut Node<'_>) -> Result<(), StoreError> {
        // Before the checkpoint moves: what it hides is found only once.
        self.write_notes(node).await?;
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
                *job.used.entry(row.device.kind()).or_default() += row.energy;
                let sum = match row.device.kind() {
                    DeviceKind::Gpu => &mut job.emissions,
                    DeviceKind::Cpu | DeviceKind::Dram => &mut job.beside,
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

    /// A job that has just been reckoned, or is about to be, with all that was written.
    pub(in crate::controller) fn forget_late(&mut self, id: &JobId) {
        self.backlog.late.remove(id);
    }

    /// A job that has ended and could not be stored.
    pub(in crate::controller) fn keep_ended(&mut self, job: StoredJob) {
        self.backlog.ended.push(job);
    }

    /// A board without a counter has come of which an earlier daemon booked until then.
    pub(in crate::controller) fn know_booked_until(&mut self, device: DeviceId, until: DateTime<Utc>) {
        self.backlog.recorded_until.insert(device, until);
    }

    /// Whether anything waits to be written.
    pub(in crate::controller) fn has_unwritten(&self) -> bool {
        !self.backlog.is_empty()
    }

    /// What was booked and is not written yet.
    pub(in crate::controller) fn unwritten(&self) -> &[Interval] {
        &self.backlog.intervals
    }

    /// The intervals of a job, those that are not written yet with them.
    ///
    /// # Errors
    /// If they cannot be read.
    pub(in crate::controller) async fn rows_of(&self, id: &JobId, store: &Store) -> Result<Vec<Interval>, StoreError> {
        let mut rows = store.intervals_of(id).await?;
        rows.extend(self.backlog.intervals.iter().filter(|r| r.share == Share::Job(id.clone())).cloned());
        Ok(rows)
    }

    /// Stores the progress of all jobs where it changed, at once, and what was learned of them.
    pub(in crate::controller) async fn store_jobs(&mut self, node: &mut Node<'_>) {
        let has_changed = |job: &&Job| job.unsaved || job.saved_progress != Some(job.progress);
        let changed: Vec<StoredJob> = node.jobs.iter().filter(has_changed).map(|job| job.stored(None)).collect();
        if let Err(error) = node.store.save_jobs(&changed).await {
            self.note_store_fault(&error);
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

    /// Stores a job's profile for its later runs, if that changed. A job that shares a GPU with others, and controls
    /// nothing, stores none: the power and the speed that were measured are not those of the job alone.
    pub(in crate::controller) async fn store_profile(&mut self, node: &mut Node<'_>, id: &JobId) {
        let now = node.now().utc;
        let Some(job) = node.jobs.get_mut(id) else { return };
        if job.progress.has_shared {
            return;
        }
        let Some(record) = job.record_to_save() else { return };
        let key = job.key.clone();
        if let Err(error) = node.store.save_profile(&key, &record, now).await {
            self.note_store_fault(&error);
        }
    }

    /// Says what ends with this daemon because it could not be written.
    pub(in crate::controller) fn tell_unwritten(&self) {
        let unwritten = &self.backlog.intervals;
        if !unwritten.is_empty() {
            let energy: Millijoules = unwritten.iter().map(|row| row.energy).sum();
            tracing::error!(
                "{} intervals with {:.3} J could not be written and are lost to their holders; what the counters still know of \
                 it the next daemon books as a gap",
                unwritten.len(),
                energy.to_joules().get()
            );
        }
    }
}
