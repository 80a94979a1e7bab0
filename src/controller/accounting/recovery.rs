//! Recovery after a time without a daemon: the energy by which GPUs' counters increased is attributed to the jobs that
//! were on the GPUs then.

use chrono::{DateTime, TimeDelta, Utc};

use super::Accounting;
use super::backlog::{Downtime, EndedOccupancy, RESET_UNWATCHED, SHORTEST_SPAN};
use crate::controller::gpus::Gpu;
use crate::controller::jobs::Job;
use crate::controller::node::Node;
use crate::gpu::journal::{UNKNOWN_BOOT, boot_id};
use crate::store::Checkpoint;
use wattune_core::domain::{DeviceId, GpuId};
use wattune_core::ledger::{self, OccupancySpan, OpenInterval};
use wattune_core::units::{Millijoules, Seconds};

/// Reason, in the ledger, for lost energy of a GPU without a counter between two daemons.
const NOT_KEPT: &str =
    "it has no energy counter, and no daemon ran, or one was ended before it had written down what it read";
/// Reason, in the ledger, for lost energy of a GPU whose counter has become unreadable.
const NOT_BACK: &str = "its counter has not been read since";
/// Reason, in the ledger, for lost energy of a GPU whose counter gained more than is possible.
const IMPOSSIBLE: &str = "its counter gained more than the GPU can draw in that time";
/// Change of the wall clock between two daemons that is tolerated: an hour, and a little more.
const CLOCK_CHANGE: Seconds = Seconds::new(3700.0);
/// Time after a GPU's first response for which its counter may stay unreadable. After that, the energy that was used
/// while no daemon ran counts as lost if only this counter shows it.
const GIVEN_UP: Seconds = Seconds::new(3600.0);
/// Longest time between two records of a GPU without a counter in which no energy counts as lost: sensors do not
/// measure faster.
const MAX_UNRECORDED: TimeDelta = TimeDelta::milliseconds(200);

impl Accounting {
    /// Opens the interval of each GPU that answers for the first time. Once a GPU's counter is read, the increase of
    /// the counter since the last daemon's checkpoint (counter reading up to which energy is recorded) is recorded in
    /// intervals of its own.
    pub(crate) fn open_intervals(&mut self, node: &mut Node<'_>) {
        let now = node.now();
        let answers = |gpu: &Gpu| gpu.observed.at.is_some() && gpu.observed.fault.is_none();
        let is_new = |gpu: &&Gpu| gpu.interval.is_none() && answers(gpu);
        let ids: Vec<GpuId> = node.gpus.iter().filter(is_new).map(|gpu| gpu.id().clone()).collect();
        for id in ids {
            let device = DeviceId::from(&id);
            let is_known = self.backlog.recovered.iter().any(|c| c.device == device);
            let Some(gpu) = node.gpus.get_mut(&id) else { continue };
            if is_known && gpu.observed.metered_at.is_none() {
                // If the interval were opened before the first metered value, it would include energy of the gap before
                // it.
                continue;
            }
            gpu.interval = Some(OpenInterval::open(device.clone(), now, gpu.observed.metered));
            gpu.opened = Some((now, gpu.observed.metered));
            if is_known {
                continue;
            }
            let Some(counter) = gpu.observed.counter else {
                if let Some(until) =
                    self.backlog.recorded_until.remove(&device).filter(|until| now.utc - *until > MAX_UNRECORDED)
                {
                    self.ledger.record_lost(&device, self.backlog.gap_start(until, now), now.utc, NOT_KEPT);
                }
                continue;
            };
            let (holders, rebased_mj) = (gpu.holders(), gpu.rebased_before + gpu.observed.metered.rebased_mj);
            let (at, read_from, estimated) = (now.utc, None, Millijoules::ZERO);
            let point = Checkpoint { device, counter, at, read_from, holders, rebased_mj, estimated };
            self.backlog.checkpoints.push(point);
        }
        for id in node.gpus.ids() {
            self.record_recovered(node, &id);
        }
    }

    /// Once a GPU's counter is read, records the increase of the counter since the last daemon's checkpoint (counter
    /// reading up to which energy is recorded), less the energy that was integrated from power since then. If more
    /// energy was integrated than the counter gained, recording from the counter resumes once the counter has caught
    /// up.
    pub(super) fn record_recovered(&mut self, node: &mut Node<'_>, id: &GpuId) {
        let device = DeviceId::from(id);
        let Some(place) = self.backlog.recovered.iter().position(|c| c.device == device) else { return };
        let now = node.now();
        let spans = self.occupancy_of(node, id, self.backlog.recovered[place].at);
        let Some(gpu) = node.gpus.get_mut(id) else { return };
        let (Some((opened, first)), Some(interval)) = (gpu.opened, &gpu.interval) else { return };
        let Some(counter) = gpu.observed.counter else {
            if now.monotonic.since(opened.monotonic) > GIVEN_UP && !std::mem::replace(&mut gpu.is_given_up, true) {
                // The energy up to `recorded` is known: earlier daemons integrated the GPU's power.
                let recorded = self.backlog.recorded_until.get(&device).copied();
                let from = recorded.unwrap_or_default().max(self.backlog.recovered[place].at);
                self.ledger.record_lost(&device, self.backlog.gap_start(from, opened), opened.utc, NOT_BACK);
            }
            return;
        };
        let last = self.backlog.recovered.swap_remove(place);
        let from = self.backlog.gap_start(last.at, opened);
        let (metered, estimated) = (gpu.observed.metered, last.estimated + gpu.observed.metered.since_opened(&first));
        // The counter's reading when the interval was opened, or the counter's first reading after that.
        let shown = metered.reading_before(counter, &first);
        // After a restart of the machine the counter began at zero, even if it shows more than before by now.
        let gained = shown.checked_since(last.counter).filter(|_| !has_restarted(self.backlog.away.as_ref()));
        let away = Seconds::from_delta(now.utc - last.at);
        let highest = gpu.handle.capabilities().highest_power(gpu.observed.reading.requested);
        let possible = ledger::PowerBound { highest, slack: CLOCK_CHANGE }.energy_within(away);
        let used = gained.unwrap_or(shown);
        // If the wall clock was set back, the time since the checkpoint is unknown, and so is the energy that is
        // possible in it.
        let is_possible = away < Seconds::ZERO || used.to_joules() <= possible;
        if gained.is_none() || !is_possible {
            let why = if gained.is_none() { RESET_UNWATCHED } else { IMPOSSIBLE };
            self.ledger.record_lost(&device, from, opened.utc, why);
        }
        let energy = used.checked_since(estimated).filter(|_| is_possible).unwrap_or_default();
        let owed = gained.and_then(|gained| estimated.checked_since(gained)).unwrap_or_default();
        gpu.handle.continue_ledger(owed);
        self.backlog.intervals.extend(ledger::gap_intervals(&device, from, opened.utc, energy, &spans));
        let moved = ledger::rebased(last.counter, shown, energy);
        // `point_of` adds the changes of the reading by resets that this daemon's meter has seen.
        gpu.rebased_before = last.rebased_mj + moved - first.rebased_mj;
        let (at, rebased_mj) = (interval.start(), last.rebased_mj + moved);
        let holders = gpu.holders();
        let point = Checkpoint { device, counter: shown, at, read_from: None, holders, rebased_mj, estimated: owed };
        self.backlog.checkpoints.push(point);
    }

    /// Keeps the time of a job that ends now on those of its GPUs whose counters this daemon has not read yet: a part
    /// of the energy that these counters will show belongs to the job.
    pub(crate) fn record_ended(&mut self, node: &mut Node<'_>, job: &Job) {
        let now = node.now().utc;
        for gpu in job.spec.gpus.iter().filter(|_| !job.is_absent()) {
            let device = DeviceId::from(gpu);
            let Some(point) = self.backlog.recovered.iter().find(|point| point.device == device) else { continue };
            let spans = self.spans_of(node, job, point.at).into_iter();
            let ended = spans.map(|span| OccupancySpan { until: span.until.or(Some(now)), ..span });
            self.backlog.ended_occupancy.extend(ended.map(|span| EndedOccupancy { gpus: vec![gpu.clone()], span }));
        }
    }

    /// Returns the times of jobs on a GPU from `since`, when an earlier daemon last read the GPU, until now.
    pub(crate) fn occupancy_of(&self, node: &Node<'_>, gpu: &GpuId, since: DateTime<Utc>) -> Vec<OccupancySpan> {
        let going_on = node.jobs.iter().filter(|job| job.spec.gpus.contains(gpu) && !job.is_absent());
        let ended = self
            .backlog
            .ended_occupancy
            .iter()
            .filter(|ended| ended.gpus.contains(gpu))
            .map(|ended| ended.span.clone());
        let mut spans: Vec<OccupancySpan> =
            ended.chain(going_on.flat_map(|job| self.spans_of(node, job, since))).collect();
        spans.sort_by_key(|span| span.from);
        spans
    }

    /// Returns the known spans since `since` in which a job was on its GPUs. A job that an earlier daemon registered
    /// counts as present in the time without a daemon if the job's lease (longest silence) lasted until the job's next
    /// report, or still lasts.
    fn spans_of(&self, node: &Node<'_>, job: &Job, since: DateTime<Utc>) -> Vec<OccupancySpan> {
        let span = |from, until| OccupancySpan { job: job.id.clone(), from, until };
        // A job that was held or suspended is on its GPUs only since its last start.
        let present_since = job.progress.presence.present_since.unwrap_or(job.registered_at);
        let Some(heard) = self.backlog.last_reports.get(&job.id) else { return vec![span(present_since, None)] };
        let away = self.backlog.away.as_ref();
        let was_there = away.filter(|away| away.last_seen.leases.contains_key(&job.id));
        // If the wall clock was set back, a job's registration may seem later than it was.
        let from = match was_there {
            Some(away) if present_since > away.last_seen.at => since.min(present_since),
            _ => present_since,
        };
        let goes_on = match away {
            // Its processes have outlived the time without a daemon.
            _ if job.is_seen_running() => true,
            Some(away) if job.is_alive() => away.span <= away.lease_left(job),
            Some(away) => away.span + node.now().monotonic.since(away.back) <= away.lease_left(job),
            None => {
                let again = if job.is_alive() { node.started_at } else { node.now().utc };
                Seconds::from_delta(again - since.max(*heard)) <= job.spec.lease
            }
        };
        if goes_on {
            return vec![span(from, None)];
        }
        let last = was_there.map_or(*heard, |away| away.last_seen.at.max(*heard));
        let before = (last - since >= SHORTEST_SPAN).then(|| span(from, Some(last)));
        before.into_iter().chain(job.is_alive().then(|| span(node.started_at, None))).collect()
    }
}

/// Returns true if the machine restarted after the last daemon's last sign of life; false if that is unknown.
fn has_restarted(away: Option<&Downtime>) -> bool {
    let Some(away) = away else { return false };
    let (before, now) = (away.last_seen.boot_id.as_str(), boot_id());
    before != now && before != UNKNOWN_BOOT && now != UNKNOWN_BOOT
}
