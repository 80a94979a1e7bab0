//! One GPU under control: its holders, its energy since the last closed interval, and its limits as the hardware reports
//! them.

use std::collections::{BTreeMap, BTreeSet};

use super::control_state::{Clocks, FinishedWrite, LimitDeviation, Override, Writes};
use super::limit_history::LimitHistory;
use super::sharing::Sharing;
use crate::gpu::journal::{ExternalLimit, Journal};
use crate::gpu::thread::GpuHandle;
use crate::gpu::{GpuError, Observation, Write, WriteOutcome};
use wattune_core::domain::{GpuId, JobId, LimitRange, PowerLimit};
use wattune_core::ledger::{Metered, OpenInterval};
use wattune_core::time::{Monotonic, Now};

/// A GPU as the controller knows it.
pub(crate) struct Gpu {
    pub(crate) handle: GpuHandle,
    pub(crate) seen: Observation,
    /// Job that controls it.
    pub(crate) owner: Option<JobId>,
    /// Jobs that use it without controlling it.
    pub(crate) guests: Vec<JobId>,
    /// Jobs that came since its interval was split last, where that is too early to split it again.
    pub(crate) newcomers: BTreeSet<JobId>,
    pub(crate) manual: Option<Override>,
    /// Limit of an external writer, which is respected.
    pub(crate) external: Option<ExternalLimit>,
    /// Number of times since the daemon started that an external writer's limit was found.
    pub(crate) yields: u32,
    /// Reason why the original limit did not come back when it was restored; `None` once it has.
    pub(crate) restore_problem: Option<String>,
    /// Number of times since the daemon started that the original limit did not come back.
    pub(crate) restore_failures: u32,
    /// Reason why the last wanted limit could not be journalled, and so was not set.
    pub(crate) unjournalled: Option<String>,
    /// Reason why limits cannot be written, once that was tried.
    pub(crate) denied: Option<GpuError>,
    pub(super) denied_since: Option<Monotonic>,
    /// Reason why persistence mode cannot be changed, once that was tried.
    pub(crate) persistence_denied: Option<GpuError>,
    /// Open interval of the ledger; `None` before the first response.
    pub(crate) interval: Option<OpenInterval>,
    /// Time and meter reading when the first interval was opened.
    pub(crate) opened: Option<(Now, Metered)>,
    /// True if the energy before that was recorded as lost because the counter has not come back.
    pub(crate) is_given_up: bool,
    /// Change of the counter's reading by resets before this daemon's meter began, in millijoules.
    pub(crate) rebased_before: i64,
    /// Last action on it, for people.
    pub(crate) remark: Option<String>,
    pub(super) clocks: Clocks,
    pub(crate) history: LimitHistory,
    pub(crate) sharing: Sharing,
    pub(super) deviation: Option<LimitDeviation>,
    pub(super) writes: Writes,
    /// Out-of-band cap below the requested limit when that was last visible.
    pub(super) cap: Option<PowerLimit>,
    /// Last reported limit.
    pub(super) last_shown: Option<PowerLimit>,
    /// True if it came after the start and wattune has set nothing on it since: its default limit was then chosen
    /// by no one.
    pub(crate) arrived_late: bool,
}

impl Gpu {
    /// Returns a GPU without holders.
    pub(crate) fn new(handle: GpuHandle) -> Self {
        let seen = handle.observe();
        Self {
            handle,
            seen,
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
            is_given_up: false,
            rebased_before: 0,
            remark: None,
            clocks: Clocks::default(),
            history: LimitHistory::default(),
            sharing: Sharing::default(),
            deviation: None,
            writes: Writes::default(),
            cap: None,
            last_shown: None,
            arrived_late: false,
        }
    }
    pub(crate) fn id(&self) -> &GpuId {
        &self.handle.identity().id
    }

    /// Takes in the hardware's latest readings and the result of the write in flight, if there is one.
    pub(crate) fn observe(&mut self) {
        self.handle.refresh();
        self.seen = self.handle.observe();
        self.detect_cap();
        self.last_shown = self.shown().or(self.last_shown);
        self.observe_clocks();
        let Some((write, requested_at)) = self.writes.in_flight else { return };
        let is_result = |o: &&WriteOutcome| o.write == write && o.at.monotonic >= requested_at;
        let Some(outcome) = self.seen.last_write.as_ref().filter(is_result).cloned() else { return };
        self.writes.in_flight = None;
        self.apply_outcome(write, &outcome);
    }

    fn apply_outcome(&mut self, write: Write, outcome: &WriteOutcome) {
        if let Err(error @ GpuError::LimitChanged { .. }) = &outcome.result {
            // Nothing was written; the limit found there is compared with everything else that the GPU shows.
            self.remark = Some(error.to_string());
            return;
        }
        if let Write::PowerLimit(asked) = write {
            let (before, shown, failed) = (self.writes.before, outcome.shown, outcome.result.is_err());
            self.writes.finished = Some(FinishedWrite { before, asked, shown, failed });
        }
        match (&outcome.result, write) {
            (result, Write::LockClocks(_) | Write::ResetClocks) => self.apply_clock_outcome(write, result),
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
                }
            }
        }
    }
    pub(crate) fn is_writing(&self) -> bool {
        self.writes.in_flight.is_some()
    }

    /// Returns the range that it accepts, if limits can be set at all.
    pub(crate) fn range(&self) -> Option<LimitRange> {
        self.handle.capabilities().limits.as_ref().ok().copied()
    }

    /// Returns the limit in force before wattune's first write; the present one if wattune has written none.
    pub(crate) fn original_limit(&self, journal: &Journal) -> Option<PowerLimit> {
        journal.original_limit(self.id()).or(self.seen.reading.requested)
    }

    /// Returns the maximum usable limit (`planning.md` §5).
    pub(crate) fn ceiling(&self, journal: &Journal) -> Option<PowerLimit> {
        Some(self.range()?.ceiling(self.original_limit(journal)?))
    }

    /// Returns the out-of-band cap that was stricter than the requested limit when it was last visible.
    pub(crate) fn out_of_band_cap(&self) -> Option<PowerLimit> {
        self.cap
    }

    /// Returns the reported limit: the larger of the requested and the enforced one.
    fn shown(&self) -> Option<PowerLimit> {
        self.seen.reading.requested.max(self.seen.reading.enforced)
    }

    /// Returns an upper bound of its limit now: the last reported one, the one in flight and, of a lost GPU, the default
    /// that it may come back with. `None` if it never reported a limit.
    pub(crate) fn in_force(&self) -> Option<PowerLimit> {
        let known = self.shown().or(self.last_shown)?;
        let coming = match self.writes.in_flight {
            Some((Write::PowerLimit(limit), _)) => Some(limit),
            _ => None,
        };
        let lost = matches!(self.seen.fault, Some((GpuError::Lost { .. }, _)));
        let back = self.range().filter(|_| lost).map(|range| range.default);
        [Some(known), coming, back].into_iter().flatten().max()
    }

    /// Returns whether it may stay above the requested limit: the last write failed, or it shows more than was written.
    pub(crate) fn is_unyielding(&self) -> bool {
        let written = self.writes.limit.zip(self.seen.reading.requested);
        self.writes.error.is_some() || written.is_some_and(|(written, shown)| shown > written.requested)
    }

    /// Reads what processes use of it while it has several holders.
    pub(crate) fn observe_sharing(&mut self, owners: &BTreeMap<u32, JobId>) {
        let shared = self.holder_count() > 1;
        self.handle.watch_processes(shared);
        match &self.seen.process_use {
            Some(Ok(used)) if shared => self.sharing.observe(used, owners),
            _ => self.sharing.clear(),
        }
    }
}
