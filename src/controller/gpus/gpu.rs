//! One GPU: its holders (the jobs registered on it), its energy since the last closed interval, and its limits as the
//! hardware reports them.

use std::collections::{BTreeMap, BTreeSet};

use super::control_state::{Clocks, EndedOverride, FinishedWrite, LimitDeviation, Override, WriteRequest, Writes};
use super::limit_history::LimitHistory;
use super::sharing::Sharing;
use crate::gpu::handle::GpuHandle;
use crate::gpu::journal::{ExternalLimit, Journal};
use crate::gpu::{EnergyReading, GpuError, Observation, Write, WriteOutcome};
use wattune_core::domain::{GpuId, JobId, LimitRange, PowerLimit};
use wattune_core::ledger::{Metered, OpenInterval};
use wattune_core::time::{Monotonic, Now};

/// State of one GPU in the controller.
pub(crate) struct Gpu {
    pub(crate) handle: GpuHandle,
    pub(crate) observed: Observation,
    /// Job that controls the GPU's limit; `None` if no job does.
    pub(crate) owner: Option<JobId>,
    /// Jobs that use the GPU without controlling it.
    pub(crate) guests: Vec<JobId>,
    /// Jobs that were added since the GPU's ledger interval was last split, when it was too early to split it again.
    pub(crate) newcomers: BTreeSet<JobId>,
    pub(crate) manual: Option<Override>,
    /// Limit of an external writer, which wattune leaves alone.
    pub(crate) external: Option<ExternalLimit>,
    /// Number of external limits found since the daemon started.
    pub(crate) yields: u32,
    /// Reason why the last attempt to restore the original limit failed; `None` once an attempt succeeds.
    pub(crate) restore_problem: Option<String>,
    /// Number of failed attempts to restore the original limit since the daemon started.
    pub(crate) restore_failures: u32,
    /// Reason why the last wanted limit could not be recorded in the journal, and so was not set.
    pub(crate) unjournalled: Option<String>,
    /// Reason why the driver does not let wattune write limits; `None` until a write is refused.
    pub(crate) denied: Option<GpuError>,
    pub(super) denied_since: Option<Monotonic>,
    /// Reason why the driver does not let wattune change persistence mode; `None` until a write is refused.
    pub(crate) persistence_denied: Option<GpuError>,
    /// Open interval of the ledger; `None` before the GPU's first response.
    pub(crate) interval: Option<OpenInterval>,
    /// Time and reading of the energy meter when this daemon opened its first ledger interval for the GPU.
    pub(crate) opened: Option<(Now, Metered)>,
    /// Reading of the energy meter at the last progress report of a job on the GPU.
    pub(crate) at_last_report: Option<EnergyReading>,
    /// True if the ledger records the energy before `opened` as lost, because the energy counter could not be read for
    /// too long.
    pub(crate) is_given_up: bool,
    /// Change of the energy counter's reading, before this daemon's meter began, that is not recorded as energy (such
    /// as the fall at a reset), in millijoules.
    pub(crate) rebased_before: i64,
    /// Last action on the GPU, described for people.
    pub(crate) remark: Option<String>,
    pub(super) clocks: Clocks,
    /// True if the memory's clocks were unlocked and the journal does not record that yet.
    pub(super) memory_unlocked: bool,
    pub(crate) history: LimitHistory,
    pub(crate) sharing: Sharing,
    pub(super) deviation: Option<LimitDeviation>,
    pub(super) writes: Writes,
    /// Out-of-band cap (power limit set from outside the host) when it was last visible, which it is only while it is
    /// below the requested limit.
    pub(super) out_of_band_cap: Option<PowerLimit>,
    /// Last reported limit.
    pub(super) last_shown: Option<PowerLimit>,
    /// True if the GPU became usable after the daemon's start and wattune has not set it since: its default limit then
    /// does not count as an external one.
    pub(crate) arrived_late: bool,
}

impl Gpu {
    /// Creates the state of a GPU that no job uses.
    pub(crate) fn new(handle: GpuHandle) -> Self {
        let observed = handle.observe();
        Self {
            handle,
            observed,
            owner: None,
            guests: Vec::new(),
            newcomers: BTreeSet::new(),
            manual: None,
            external: None,
            yields: 0,
            restore_problem: None,
            restore_failures: 0,
            unjournalled: None,
            denied: None,
            denied_since: None,
            persistence_denied: None,
            interval: None,
            opened: None,
            at_last_report: None,
            is_given_up: false,
            rebased_before: 0,
            remark: None,
            clocks: Clocks::default(),
            memory_unlocked: false,
            history: LimitHistory::default(),
            sharing: Sharing::default(),
            deviation: None,
            writes: Writes::default(),
            out_of_band_cap: None,
            last_shown: None,
            arrived_late: false,
        }
    }
    pub(crate) fn id(&self) -> &GpuId {
        &self.handle.identity().id
    }

    /// Takes over the latest readings of the GPU, and applies the result of the write in flight if there is one.
    pub(crate) fn observe(&mut self) {
        self.handle.refresh();
        self.observed = self.handle.observe();
        self.detect_cap();
        self.last_shown = self.shown().or(self.last_shown);
        self.observe_clocks();
        let Some((write, requested_at)) = self.writes.in_flight else { return };
        let is_result = |o: &&WriteOutcome| o.write == write && o.at.monotonic >= requested_at;
        let Some(outcome) = self.observed.last_write.as_ref().filter(is_result).cloned() else { return };
        self.writes.in_flight = None;
        self.apply_outcome(write, &outcome);
    }

    fn apply_outcome(&mut self, write: Write, outcome: &WriteOutcome) {
        if let Err(error @ (GpuError::LimitChanged { .. } | GpuError::LimitUnknown { .. })) = &outcome.result {
            // Nothing was written. The limit found on the GPU is then judged like any other reported limit.
            self.remark = Some(error.to_string());
            return;
        }
        let finished = FinishedWrite {
            at: outcome.at.utc,
            write,
            before: self.writes.before,
            shown: outcome.shown,
            error: outcome.result.as_ref().err().cloned(),
            request: self.writes.request.clone(),
            is_restoring: self.writes.is_restoring,
        };
        if matches!(write, Write::PowerLimit(_)) {
            self.writes.changed_limit = Some(finished.clone());
            self.writes.limit_at = Some(outcome.at.monotonic);
        }
        // At once: a tick that comes before the client's command goes on would take its lock for one that was left.
        let is_theirs = |request: &WriteRequest| self.manual.as_ref().is_some_and(|manual| manual.by == request.by);
        if finished.request.as_ref().is_some_and(is_theirs) {
            self.settle_client_lock(write, finished.error.is_none());
        }
        self.writes.finished.push(finished);
        match (&outcome.result, write) {
            (result, Write::LockClocks(_) | Write::ResetClocks) => self.apply_clock_outcome(write, result),
            (Ok(()), Write::LockClockRange { .. }) => self.replace_clock_lock(),
            (Ok(()), Write::ResetMemoryClocks) => self.memory_unlocked = true,
            (_, Write::LockClockRange { .. } | Write::LockMemoryClocks { .. } | Write::ResetMemoryClocks) => {}
            (Ok(()), Write::PowerLimit(requested)) => self.apply_written(requested, outcome.shown),
            (Ok(()), Write::Persistence(_)) => {}
            (Err(error), Write::Persistence(_)) => self.persistence_denied = Some(error.clone()),
            (Err(error), Write::PowerLimit(requested)) => {
                self.writes.error = Some(error.clone());
                self.remark = Some(error.to_string());
                if self.writes.is_restoring {
                    let shown = outcome.shown.map_or(String::new(), |shown| format!(", and it shows {shown}"));
                    self.record_failed_restore(requested, format!("{error}{shown}"));
                }
                if matches!(error, GpuError::NoPermission { .. }) || error.is_unsupported() {
                    self.denied = Some(error.clone());
                    self.denied_since.get_or_insert(outcome.at.monotonic);
                    self.writes.failed_limit = None;
                } else {
                    self.writes.failed_limit = Some(requested);
                }
            }
        }
    }
    /// Ends the manual override, if there is one, and returns it. What its client has set is then undone step by step.
    pub(crate) fn release_override(&mut self) -> Option<Override> {
        let manual = self.manual.take()?;
        if manual.locks_clocks {
            self.reset_clock_state();
        }
        Some(manual)
    }

    /// Ends the manual override, if there is one, without a request for that.
    pub(crate) fn end_override(&mut self, why: &'static str) {
        if let Some(manual) = self.release_override() {
            self.writes.ended.push(EndedOverride { manual, why });
        }
    }

    /// States which request the next write to the GPU carries out.
    pub(crate) fn write_for(&mut self, request: WriteRequest) {
        self.writes.next_request = Some(request);
    }

    /// Returns whether the request of [`Self::write_for`] led to a write. Later writes are not for that request.
    pub(crate) fn has_written_for(&mut self) -> bool {
        self.writes.next_request.take().is_none()
    }

    /// Returns whether the audit log has the failure of a write already, because it is tried again and again.
    pub(crate) fn is_known_failure(&mut self, write: &FinishedWrite) -> bool {
        let failure = write.error.as_ref().map(|error| (write.write, error.to_string()));
        let is_known = failure.is_some() && failure == self.writes.recorded_failure;
        self.writes.recorded_failure = failure;
        is_known && write.request.is_none()
    }

    /// Returns whether the driver has accepted the write in flight, if that write is one for a caller.
    pub(crate) fn has_accepted_for_caller(&self) -> bool {
        self.is_writing() && self.writes.request.is_some() && self.handle.has_accepted()
    }

    pub(crate) fn is_writing(&self) -> bool {
        self.writes.in_flight.is_some()
    }

    /// Returns the range of limits that the GPU accepts, if limits can be set at all.
    pub(crate) fn range(&self) -> Option<LimitRange> {
        self.handle.capabilities().limits.as_ref().ok().copied()
    }

    /// Returns the limit in force before wattune's first write; the present limit if wattune has written none.
    pub(crate) fn original_limit(&self, journal: &Journal) -> Option<PowerLimit> {
        journal.original_limit(self.id()).or(self.observed.reading.requested)
    }

    /// Returns the maximum usable limit (`planning.md` §5).
    pub(crate) fn ceiling(&self, journal: &Journal) -> Option<PowerLimit> {
        Some(self.range()?.ceiling(self.original_limit(journal)?))
    }

    /// Returns the out-of-band cap (power limit set from outside the host) that was below the requested limit when it
    /// was last visible; `None` if no such cap is known.
    pub(crate) fn out_of_band_cap(&self) -> Option<PowerLimit> {
        self.out_of_band_cap
    }

    /// Returns the reported limit: the larger of the requested and the enforced one.
    fn shown(&self) -> Option<PowerLimit> {
        self.observed.reading.requested.max(self.observed.reading.enforced)
    }

    /// Returns an upper bound of the limit now: the largest of the last reported limit, a limit being written and, for
    /// a lost GPU, the default limit with which the GPU may return. `None` if the GPU never reported a limit.
    pub(crate) fn in_force(&self) -> Option<PowerLimit> {
        let known = self.shown().or(self.last_shown)?;
        let coming = match self.writes.in_flight {
            Some((Write::PowerLimit(limit), _)) => Some(limit),
            _ => None,
        };
        let lost = matches!(self.observed.fault, Some((GpuError::Lost { .. }, _)));
        let back = self.range().filter(|_| lost).map(|range| range.default);
        [Some(known), coming, back].into_iter().flatten().max()
    }

    /// Returns whether the GPU may stay above the requested limit: the last write failed, or the GPU reports a higher
    /// limit than was written.
    pub(crate) fn is_unyielding(&self) -> bool {
        let written = self.writes.limit.zip(self.observed.reading.requested);
        self.writes.error.is_some() || written.is_some_and(|(written, shown)| shown > written.requested)
    }

    /// Reads how much each process uses the GPU, while several jobs hold the GPU. `owners` maps process ids to jobs.
    pub(crate) fn observe_sharing(&mut self, owners: &BTreeMap<u32, JobId>) {
        let shared = self.holder_count() > 1;
        self.handle.watch_processes(shared);
        match &self.observed.process_use {
            Some(Ok(used)) if shared => self.sharing.observe(used, owners),
            _ => self.sharing.clear(),
        }
    }
}
