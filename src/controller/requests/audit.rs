//! Records of control actions in the audit log: of requests, of writes to GPUs, and of what the daemon does by itself.

use crate::controller::Controller;
use crate::controller::accounting::Change;
use crate::controller::cap::CapChange;
use crate::controller::error::ControlError;
use crate::controller::gpus::{EndedOverride, FinishedWrite, Gpu, is_rounded};
use crate::controller::requests::Caller;
use crate::controller::requests::audit_values::{action_of, clocks, not_permitted, persistence};
use crate::gpu::Write;
use crate::gpu::restore::Restored;
use crate::store::{AuditAction, AuditLog, AuditOutcome, AuditRecord, AuditState, DAEMON};
use wattune_core::domain::{DemandResponse, GpuId, JobId, Level, PowerLimit};

/// If at least this many writes have finished, they are recorded at once and not at the next tick.
const MANY_WRITES: usize = 64;

impl Controller {
    /// Returns the audit log, with all actions up to now.
    pub fn audit_log(&mut self) -> AuditLog {
        self.record_writes();
        self.store.audit().clone()
    }

    /// Adds a record to the audit log, after those of the writes that have finished. The ledger gets those at the next tick.
    pub(in crate::controller) fn audit(&mut self, record: AuditRecord) {
        self.audit_writes();
        self.store.audit().record(record);
    }

    /// Returns a record of the present time.
    pub(in crate::controller) fn new_record(&self, who: impl ToString, action: AuditAction) -> AuditRecord {
        AuditRecord::new(self.now().utc, who.to_string(), action)
    }

    /// Records an action on a job.
    pub(in crate::controller) fn audit_job(&mut self, by: Option<Caller>, action: AuditAction, id: &JobId, why: &str) {
        let who = by.map_or_else(|| DAEMON.to_owned(), |by| by.to_string());
        let reason = Some(why.to_owned()).filter(|why| !why.is_empty());
        self.audit(AuditRecord { job_id: Some(id.to_string()), reason, ..self.new_record(who, action) });
    }

    /// Records an action on a demand-response event, or the reason why it was refused.
    pub(super) fn audit_event(
        &mut self,
        record: AuditRecord,
        before: Option<&DemandResponse>,
        after: Option<&DemandResponse>,
        done: Result<(), &ControlError>,
    ) {
        let record = AuditRecord { before: before.map(terms), after: after.map(terms), ..record };
        self.audit(with_error(record, done));
    }

    /// Records the writes to GPUs that finished and the overrides that ended since the last call in the audit log. Of the
    /// writes of each GPU's limit, the ledger gets the last one.
    pub(in crate::controller) fn record_writes(&mut self) {
        for (id, w) in self.gpus.take_changed_limits() {
            let Write::PowerLimit(requested) = w.write else { continue };
            let what = if w.error.is_some() { "power limit refused" } else { "power limit" };
            let (before, enforced) = (w.before.limit, w.shown);
            let change = Change { what, external: false, before, requested: Some(requested), enforced };
            self.accounting.record_control(&mut node!(self), &id, change);
        }
        self.audit_writes();
    }

    /// Records the writes to GPUs that finished and the overrides that ended since the last call in the audit log, and
    /// leaves the ledger to [`Self::record_writes`].
    fn audit_writes(&mut self) {
        let mut records = Vec::new();
        for (id, writes) in self.gpus.take_finished_writes() {
            let Some(gpu) = self.gpus.get_mut(&id) else { continue };
            for write in &writes {
                if !gpu.is_known_failure(write) {
                    records.push(of_write(gpu, write));
                }
            }
        }
        // Of all GPUs together the oldest first.
        records.sort_by_key(|record| record.at);
        for record in records {
            self.store.audit().record(record);
        }
        for (id, EndedOverride { manual, why }) in self.gpus.take_ended_overrides() {
            self.store.audit().record(AuditRecord {
                gpu: Some(id.to_string()),
                before: Some(AuditState::power_limit(manual.limit)),
                reason: Some(format!("override of {}: {why}", manual.by)),
                ..self.new_record(DAEMON, AuditAction::EndOverride)
            });
        }
    }

    /// Records the finished writes in the audit log if there are many: a tick that records thousands of writes would hold
    /// up requests.
    pub(in crate::controller) fn audit_many_writes(&mut self) {
        if self.gpus.finished_writes() >= MANY_WRITES {
            // Takes the writes that have finished on other GPUs as well, so that the oldest come first.
            self.gpus.observe();
            self.audit_writes();
        }
    }

    /// Records the rule that sets the node's cap, if it is another one than before.
    pub(in crate::controller) fn record_cap(&mut self) {
        let (baseline, now) = (self.gpus.maximum_limits(), self.now().utc);
        if self.settings.observe {
            return;
        }
        let Some(CapChange { before, after }) = self.cap.change(baseline, now) else { return };
        let state = |(cap_w, source): (f64, String)| AuditState {
            cap_w: Some(cap_w),
            cap_source: Some(source),
            ..AuditState::default()
        };
        let (before, after) = (before.map(state), after.map(state));
        self.audit(AuditRecord { before, after, ..self.new_record(DAEMON, AuditAction::ChangeCap) });
    }

    /// Returns the limits in force, for the records of restoring the GPUs.
    pub(in crate::controller) fn limits_in_force(&self) -> Vec<(GpuId, Option<PowerLimit>)> {
        self.gpus.iter().map(|gpu| (gpu.id().clone(), gpu.observed.reading.requested)).collect()
    }

    /// Records the restoring of GPUs, which had the limits `before`.
    pub(in crate::controller) fn record_restored(
        &self,
        restored: &[(GpuId, Restored)],
        before: &[(GpuId, Option<PowerLimit>)],
    ) {
        for (id, outcome) in restored {
            let before = before.iter().find(|(gpu, _)| gpu == id).and_then(|(_, limit)| *limit);
            let record = self.new_record(DAEMON, AuditAction::RestorePowerLimit);
            self.store.audit().record(of_restored(record, id, outcome, before));
        }
    }
}

/// Returns a record with the error of a request as its outcome, if the request has failed.
pub(super) fn with_error(record: AuditRecord, done: Result<(), &ControlError>) -> AuditRecord {
    let Err(error) = done else { return record };
    let outcome = match error {
        ControlError::Journal(_) | ControlError::Store(_) => AuditOutcome::Failed,
        _ => AuditOutcome::Refused,
    };
    record.with_outcome(outcome, error.to_string())
}

/// Returns the record of a restored GPU, or of one that could not be restored.
pub fn of_restored(record: AuditRecord, id: &GpuId, outcome: &Restored, before: Option<PowerLimit>) -> AuditRecord {
    let (after, result) = match outcome {
        Restored::AlreadyRestored(limit, _) | Restored::Written(limit, _) => (*limit, AuditOutcome::Enforced),
        Restored::LeftExternal(limit, _) | Restored::HeldByCap { limit, .. } => (*limit, AuditOutcome::NotEnforced),
        Restored::Failed { original, shown, .. } => (shown.unwrap_or(*original), AuditOutcome::Failed),
    };
    AuditRecord {
        gpu: Some(id.to_string()),
        before: before.map(AuditState::power_limit),
        after: Some(AuditState::power_limit(after)),
        ..record.with_outcome(result, outcome.to_string())
    }
}

/// Returns the record of a finished write to a GPU.
fn of_write(gpu: &Gpu, w: &FinishedWrite) -> AuditRecord {
    let (action, requested) = action_of(w.write);
    let action =
        if w.is_restoring && action == AuditAction::SetPowerLimit { AuditAction::RestorePowerLimit } else { action };
    let locked = w.before.clock.map(|clock| clocks(None, Some(clock.megahertz())));
    let before = match w.write {
        Write::PowerLimit(_) => w.before.limit.map(AuditState::power_limit),
        Write::Persistence(_) => w.before.persistence.map(persistence),
        Write::LockClocks(_) | Write::LockClockRange { .. } | Write::ResetClocks => locked,
        Write::LockMemoryClocks { .. } | Write::ResetMemoryClocks => None,
    };
    let after = match (w.write, w.shown.filter(|_| w.error.is_none())) {
        (Write::PowerLimit(_), Some(shown)) => Some(AuditState::power_limit(shown)),
        _ => requested,
    };
    let who = w.request.as_ref().map_or_else(|| DAEMON.to_owned(), |request| request.by.to_string());
    let owner = gpu.owner.as_ref().filter(|_| w.request.is_none() && !w.is_restoring);
    let reason = match (&w.request, &gpu.manual, owner) {
        (Some(_), ..) => None,
        _ if w.is_restoring => None,
        (None, Some(manual), _) => Some(format!("for the override of {}", manual.by)),
        (None, None, Some(_)) => Some("for the job's plan".to_owned()),
        (None, None, None) => Some("for the node's cap or the original settings".to_owned()),
    };
    let record = AuditRecord {
        gpu: Some(gpu.id().to_string()),
        job_id: owner.map(ToString::to_string),
        before,
        after,
        reason,
        ..AuditRecord::new(w.at, who, action)
    };
    match (&w.error, w.write, w.shown) {
        (Some(error), ..) => record.with_outcome(AuditOutcome::Failed, error.to_string()),
        (None, Write::PowerLimit(limit), Some(shown)) if !shown.same_as(limit) && !is_rounded(limit, shown) => {
            let why = format!("the driver accepted {limit}, and the GPU reports {shown}");
            record.with_outcome(AuditOutcome::NotEnforced, why)
        }
        (None, Write::PowerLimit(limit), None) => {
            let why = format!("the driver accepted {limit}, and the GPU reports no limit");
            record.with_outcome(AuditOutcome::NotEnforced, why)
        }
        (None, Write::PowerLimit(limit), Some(_)) => match w.request.as_ref().and_then(|request| request.limit) {
            Some(requested) if !requested.same_as(limit) => {
                record.with_outcome(AuditOutcome::NotEnforced, not_permitted(requested, limit))
            }
            _ => record,
        },
        _ => record,
    }
}

/// Returns the terms of a demand-response event.
fn terms(event: &DemandResponse) -> AuditState {
    let (cap_w, cap_pct) = match event.target {
        Level::Watts(watts) => (Some(watts.get()), None),
        Level::Share(share) => (None, Some(share * 100.0)),
    };
    let (start, end) = (Some(event.slot.start()), Some(event.slot.end()));
    AuditState { cap_w, cap_pct, start, end, ..AuditState::default() }
}
