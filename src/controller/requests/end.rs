//! Requests to end a job, and the end of jobs that no longer report.

use crate::controller::requests::Caller;
use crate::controller::view::AccountView;
use crate::controller::{ControlError, Controller};
use crate::store::AuditAction;
use wattune_core::domain::{JobId, Processes};

/// Reason for the end of a job whose lease expired.
pub(super) const LAPSED: &str = "lease expired";

impl Controller {
    /// Ends a job: restores the original limits of its GPUs, closes the ledger's intervals of the job, and returns its
    /// account.
    ///
    /// # Errors
    /// If there is no such job, it has ended, or it belongs to others than `by`.
    pub async fn end(&mut self, id: &JobId, by: Caller) -> Result<AccountView, ControlError> {
        self.check_owner(id, &by).await?;
        if !self.jobs.contains(id) {
            return Err(self.snapshot().no_such_job(id).await);
        }
        self.end_job(id, "ended by its owner", Some(by)).await;
        self.act();
        self.account_of(id).await
    }

    /// Ends jobs that have been silent for longer than their leases.
    pub(crate) async fn end_silent_jobs(&mut self) {
        for id in self.jobs.silent(self.now(), self.tick_period() * self.clock.speed()) {
            tracing::warn!(job.id = %id, "lease of job {id} expired without a report; ending the job and restoring its GPUs' original limits");
            self.end_job(&id, LAPSED, None).await;
        }
    }

    /// Ends a job by request of `by`, or of the daemon's own accord.
    pub(super) async fn end_job(&mut self, id: &JobId, reason: &str, by: Option<Caller>) {
        let Some(job) = self.jobs.get(id) else { return };
        if job.is_held() || !job.is_absent() {
            self.planner.rethink_starts();
        }
        self.leave_gpus(id).await;
        let Some(job) = self.jobs.remove(id) else { return };
        self.accounting.record_ended(&mut node!(self), &job);
        let ended = job.stored(Some((self.now().utc, reason.to_owned())));
        self.write_backlog().await;
        // The estimate of savings below includes the energy written now, so that no second estimate is due.
        self.accounting.forget_late(id);
        // A found job controls nothing, so its end is no control action.
        if !matches!(job.spec.processes, Some(Processes::Found(_))) {
            self.audit_job(by, AuditAction::EndJob, id, reason);
        }
        let how = reason.strip_prefix("ended").map_or_else(|| format!(": {reason}"), str::to_owned);
        tracing::info!(job.id = %id, "job {id} ({}) ended{how}", job.spec.name);
        if let Err(error) = self.store.save_job(&ended).await {
            self.accounting.record_store_fault(&error);
            self.accounting.queue_ended(ended);
            return;
        }
        self.record_outcome(&job, &ended, "it ended").await;
    }
}
