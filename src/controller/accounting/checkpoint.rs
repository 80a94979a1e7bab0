//! Checkpoints: what is open is written down every few seconds, so that a kill costs no more than these.
//!
//! An interval of the books is written once it is closed, a minute after it began. Until then it would go with the
//! daemon: energy of a board without a counter for good, and of one with a counter into a gap of which nobody knows who
//! used it. So would the last reports, by which the next daemon tells whose lease was not over.

use chrono::TimeDelta;

use super::Accounting;
use super::backlog::{NEVER_COUNTED, RESET_UNWATCHED};
use crate::controller::gpus::Gpu;
use crate::controller::node::Node;
use crate::gpu::EnergyReading;
use crate::gpu::journal::boot_id;
use crate::store::{LastSeen, OpenIntervalRecord, StoredProgress};
use wattune_core::domain::{DeviceId, JobId};
use wattune_core::ledger::entry::Lost;
use wattune_core::ledger::{AttributionRule, Metered, OpenInterval};
use wattune_core::time::Now;
use wattune_core::units::Seconds;

/// A lease is looked at so many times while it lasts: seconds of doubt matter to short ones.
const LOOKS_PER_LEASE: f64 = 4.0;

/// A checkpoint has the progress of no more jobs, steered ones first: thousands that report would be written all the time.
/// That of others is stored with the next interval, and their leases with each checkpoint.
const MOST_REPORTS: usize = 64;

impl Accounting {
    /// Writes down what is open, if it is time for that. What fails is tried again at the next checkpoint.
    pub(in crate::controller) async fn checkpoint(&mut self, node: &mut Node<'_>) {
        if self.is_checkpoint_due(node) {
            self.checkpoint_now(node).await;
        }
    }

    fn is_checkpoint_due(&self, node: &Node<'_>) -> bool {
        let now = node.now().monotonic;
        let shortest = node.jobs.iter().map(|job| job.spec.lease / LOOKS_PER_LEASE).reduce(Seconds::min);
        let period = shortest.map_or(node.settings.checkpoint_s, |lease| lease.min(node.settings.checkpoint_s));
        // Ticks come a little early or late.
        self.backlog.kept.at.is_none_or(|at| now.since(at) + node.settings.tick_s / 2.0 >= period)
    }

    /// Writes down what is open.
    pub(in crate::controller) async fn checkpoint_now(&mut self, node: &mut Node<'_>) {
        // What is open begins where the rows end that are not written yet.
        if !self.backlog.intervals.is_empty() || !self.backlog.checkpoints.is_empty() {
            return;
        }
        let now = node.now();
        self.backlog.kept.at = Some(now.monotonic);
        let open: Vec<OpenIntervalRecord> =
            node.gpus.iter().filter_map(|gpu| self.open_books_of(node, gpu)).chain(self.open_zones()).collect();
        let leases = node.jobs.iter().map(|job| (job.id.clone(), job.lease_left(now))).collect();
        let last_seen = LastSeen { at: now.utc, boot_id: boot_id(), uptime: node.clock.uptime(), leases };
        let progress = self.unkept_progress(node);
        let outcome = node.store.store_open_intervals(&open, &last_seen, &progress).await;
        if let Err(error) = &outcome {
            self.note_store_fault(error);
        } else if self.backlog.kept.failed {
            self.store_fault = None;
        }
        let kept = &mut self.backlog.kept;
        kept.failed = outcome.is_err();
        if outcome.is_ok() {
            kept.reports.extend(progress.into_iter().filter_map(|(id, progress)| Some((id, progress.last?))));
            kept.reports.retain(|id, _| node.jobs.contains(id));
        }
    }

    /// The progress of jobs that have reported since it was written down last.
    fn unkept_progress(&self, node: &Node<'_>) -> Vec<(JobId, StoredProgress)> {
        let reports = &self.backlog.kept.reports;
        let steered = node.jobs.iter().filter(|job| job.spec.control);
        let all = steered.chain(node.jobs.iter().filter(|job| !job.spec.control));
        let unkept = all.filter(|job| job.progress.last.as_ref() != reports.get(&job.id));
        unkept.take(MOST_REPORTS).map(|job| (job.id.clone(), job.progress)).collect()
    }

    /// A board's open interval as it would be closed with the newest reading of its energy.
    fn open_books_of(&self, node: &Node<'_>, gpu: &Gpu) -> Option<OpenIntervalRecord> {
        let (seen, books, device) = (&gpu.seen, gpu.books.as_ref()?, DeviceId::from(gpu.id()));
        let reading = EnergyReading { at: seen.metered_at?, metered: seen.metered, counter: seen.counter };
        if reading.counter.is_some() && gpu.has_many_jobs() {
            // A row for each of them every few seconds is too much, and the counter knows what a kill would cost.
            return None;
        }
        let rule = self.rule_so_far(node, gpu.id())?;
        let why = if books.was_unread(reading.metered) { NEVER_COUNTED } else { RESET_UNWATCHED };
        let Some(open) = as_closed(&device, books, reading.at, reading.metered, &rule, why) else {
            // Too short to be measured. Nothing else tells where the books of a board without a counter end.
            let nothing = OpenIntervalRecord {
                device,
                until: books.start(),
                intervals: Vec::new(),
                checkpoint: None,
                lost: None,
            };
            return reading.counter.is_none().then_some(nothing);
        };
        let checkpoint = self.point_of(gpu, gpu.holders(), &reading, open.until);
        Some(OpenIntervalRecord { checkpoint, ..open })
    }
}

/// An open interval as it would be closed now, without its checkpoint. `None` if it is too short for that.
pub(in crate::controller) fn as_closed(
    device: &DeviceId,
    books: &OpenInterval,
    at: Now,
    metered: Metered,
    rule: &AttributionRule,
    why_lost: &str,
) -> Option<OpenIntervalRecord> {
    let mut closed = books.clone();
    let intervals = closed.close(at, metered, rule)?;
    let until = closed.start();
    let lost = books.has_lost_energy(metered).then(|| Lost {
        at: until,
        device: device.clone(),
        // A wall clock that was set back meanwhile must not hide it.
        from: if books.start() < until { books.start() } else { until - TimeDelta::seconds(1) },
        until,
        why: why_lost.to_owned(),
    });
    Some(OpenIntervalRecord { device: device.clone(), until, intervals, checkpoint: None, lost })
}
