//! Requests that begin a held or suspended job, and that suspend a job.

use chrono::{DateTime, Utc};

use crate::controller::jobs::BeginReason;
use crate::controller::requests::Caller;
use crate::controller::view::ProgressView;
use crate::controller::{ControlError, Controller};
use crate::store::AuditAction;
use wattune_core::domain::JobId;
use wattune_core::ledger::entry::Entry;
use wattune_core::ledger::presence_entries::{PresenceChange, PresenceKind};

impl Controller {
    /// Begins a held or suspended job: it takes its GPUs, and controls them unless another job does or only other users'
    /// processes run there. Changes nothing if the job is on its GPUs already.
    ///
    /// # Errors
    /// If there is no such job, it has ended, it belongs to others than `by`, or the database cannot be written.
    pub async fn begin(
        &mut self,
        id: &JobId,
        by: Caller,
        reason: Option<BeginReason>,
    ) -> Result<ProgressView, ControlError> {
        self.check_owner(id, &by).await?;
        let Some(job) = self.jobs.get(id) else { return Err(self.snapshot().no_such_job(id).await) };
        if job.is_absent() {
            let is_first = job.is_held();
            let owned = |gpu| self.gpus.get(gpu).is_some_and(|gpu| gpu.owner.is_some());
            let (controls, gpus) = (job.spec.control, job.spec.gpus.clone());
            let is_owned = controls && gpus.iter().any(owned);
            let is_guest = is_owned || (controls && self.gpu_of_others(&gpus, &by).await.is_some());
            let now = self.clock.now();
            self.split_reserved(id);
            let Some(mut job) = self.jobs.remove(id) else { return Err(self.snapshot().no_such_job(id).await) };
            job.begin(is_guest, now);
            // Stored before the answer, so that the job is on its GPUs after a restart of the daemon, too.
            let saved = self.store.save_job(&job.stored(None)).await;
            if let Err(error) = &saved {
                self.accounting.record_store_fault(error);
            }
            job.unsaved |= saved.is_err();
            let why = reason.unwrap_or(if is_first { BeginReason::Planned } else { BeginReason::Resumed });
            tracing::info!(job.id = %id, "job {id} ({}) begins ({why})", job.spec.name);
            self.audit_job(Some(by), AuditAction::BeginJob, id, &why.to_string());
            self.admit(job).await;
            let change = if is_first { PresenceKind::Begun } else { PresenceKind::Resumed };
            self.record_presence(id, change, self.now().utc, &why.to_string()).await;
            self.discover().await;
            self.plan_one(id).await;
            self.planner.rethink_starts();
        }
        self.renew_lease(id).await
    }

    /// Suspends a job that has saved a checkpoint and exited: its GPUs get their original limits back at once and are
    /// free. Changes nothing if the job is suspended already.
    ///
    /// # Errors
    /// If there is no such job, it has ended, it belongs to others than `by`, it has not begun or does not offer to be
    /// suspended, or the database cannot be written.
    pub async fn suspended(&mut self, id: &JobId, by: Caller) -> Result<ProgressView, ControlError> {
        self.check_owner(id, &by).await?;
        let Some(job) = self.jobs.get(id) else { return Err(self.snapshot().no_such_job(id).await) };
        if job.is_held() {
            return Err(ControlError::Conflict(format!(
                "job {id} is held and has not begun, so it cannot be suspended; report its start with POST /v1/jobs/{id}/begin first"
            )));
        }
        if job.spec.offers.suspend.is_none() {
            return Err(ControlError::Conflict(format!(
                "job {id} did not offer to be suspended; register it with \"suspend\", or end it with DELETE /v1/jobs/{id}"
            )));
        }
        if !job.is_absent() {
            let was_asked = job.is_asked_to_suspend();
            self.leave_gpus(id).await;
            let now = self.clock.now();
            if let Some(job) = self.jobs.get_mut(id) {
                job.suspend(now);
                tracing::info!(job.id = %id, "job {id} ({}) is suspended", job.spec.name);
            }
            self.audit_job(Some(by), AuditAction::SuspendJob, id, "");
            self.act();
            self.write_backlog().await;
            self.store_progress(id).await;
            let why = if was_asked { "as planned" } else { "by its starter" };
            // The time at which it left its GPUs, however long the database takes: from then on others may use them.
            self.record_presence(id, PresenceKind::Suspended, now.utc, why).await;
            self.plan_one(id).await;
            self.planner.rethink_starts();
        }
        self.renew_lease(id).await
    }

    /// Removes a job from its GPUs: attributes the energy up to now to it, and stops counting its CPU time.
    pub(super) async fn leave_gpus(&mut self, id: &JobId) {
        self.split_reserved(id);
        let Some(job) = self.jobs.get(id).filter(|job| !job.is_absent()) else { return };
        let gpus = job.spec.gpus.clone();
        if job.spec.processes.is_some() {
            self.accounting.unfollow(&mut node!(self), id).await;
        }
        self.accounting.store_profile(&mut node!(self), id).await;
        for gpu in &gpus {
            self.accounting.split_interval_of(&mut node!(self), gpu, true);
            if let Some(gpu) = self.gpus.get_mut(gpu) {
                gpu.release(id);
            }
        }
    }

    /// Records the idle energy of the GPUs that are reserved for an absent job up to now. Called right before the
    /// reservation changes.
    pub(super) fn split_reserved(&mut self, id: &JobId) {
        let Some(job) = self.jobs.get(id).filter(|job| job.reserves()) else { return };
        for gpu in job.spec.gpus.clone() {
            self.accounting.split_interval_of(&mut node!(self), &gpu, false);
        }
    }

    async fn record_presence(&mut self, id: &JobId, change: PresenceKind, at: DateTime<Utc>, why: &str) {
        let entry = PresenceChange { at, job: id.clone(), change, why: why.to_owned() };
        self.write_entry(Entry::Presence(entry)).await;
    }
}
