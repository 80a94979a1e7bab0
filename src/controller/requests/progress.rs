//! Progress reports of jobs.

use crate::controller::jobs::ProgressReport;
use crate::controller::view::ProgressView;
use crate::controller::{ControlError, Controller};
use wattune_core::domain::JobId;

impl Controller {
    /// Records a job's progress report and renews its lease.
    ///
    /// # Errors
    /// If there is no such job, it is held or suspended, or the report is invalid or contradicts the previous one.
    pub async fn progress(&mut self, id: &JobId, report: ProgressReport) -> Result<ProgressView, ControlError> {
        let Some(job) = self.jobs.get_mut(id) else { return Err(self.snapshot().no_such_job(id).await) };
        if job.is_absent() {
            let state = if job.is_held() { "is held and has not begun" } else { "is suspended" };
            return Err(ControlError::Conflict(format!(
                "job {id} {state}, so it makes no progress; report its start with POST /v1/jobs/{id}/begin first"
            )));
        }
        // With the latest readings the GPUs' energy covers nearly the same time as the report.
        self.gpus.refresh(&job.spec.gpus);
        let now = self.clock.now();
        job.observe(&self.gpus, now);
        let (phase, stage) = (job.phase, job.profiler.as_ref().map(|p| p.stage()));
        let (first, total) = (job.progress.last.is_none(), job.progress.total_samples);
        job.report(report, now)?;
        for id in job.spec.gpus.clone() {
            // Before the first report the GPU may have been idle, so the energy before it gets an interval of its own.
            if first {
                self.accounting.close_interval_of(&mut node!(self), &id);
            }
            if let Some(gpu) = self.gpus.get_mut(&id) {
                gpu.at_last_report = gpu.observed.energy_reading();
            }
        }
        let Some(job) = self.jobs.get(id) else { return Err(self.snapshot().no_such_job(id).await) };
        if first || job.progress.total_samples != total {
            self.store_progress(id).await;
        }
        let Some(job) = self.jobs.get_mut(id) else { return Err(self.snapshot().no_such_job(id).await) };
        let notes = job.profiler.as_mut().map(|p| p.take_notes()).unwrap_or_default();
        for note in notes {
            tracing::info!(job.id = %id, "job {id}: {note}");
        }
        let stage_now = job.profiler.as_ref().map(|p| p.stage());
        let mut grants = self.plan_one(id).await;
        let moved = stage_now != stage || self.jobs.get(id).is_some_and(|j| j.phase != phase);
        if moved {
            self.act();
            grants = self.snapshot().grants();
            self.accounting.store_profile(&mut node!(self), id).await;
        }
        self.snapshot().progress_view(id, &grants).ok_or_else(|| ControlError::not_found("job", id, String::new()))
    }

    /// Renews a job's lease without progress, for a process that knows that the job runs.
    ///
    /// # Errors
    /// If there is no such job, or it has ended.
    pub async fn renew_lease(&mut self, id: &JobId) -> Result<ProgressView, ControlError> {
        let now = self.now();
        let Some(job) = self.jobs.get_mut(id) else { return Err(self.snapshot().no_such_job(id).await) };
        job.renew_lease(now);
        let snapshot = self.snapshot();
        let view = snapshot.progress_view(id, &snapshot.grants());
        view.ok_or_else(|| ControlError::not_found("job", id, String::new()))
    }

    /// Stores a job's progress. This is done at once for the first report, and for a report whose figures a response
    /// has stated: the next report then continues from there, even after a restart of the daemon, so that the energy in
    /// between is not lost.
    pub(super) async fn store_progress(&mut self, id: &JobId) {
        let Some(job) = self.jobs.get(id) else { return };
        let saved = self.store.save_job(&job.stored(None)).await;
        if let Err(error) = &saved {
            self.accounting.record_store_fault(error);
        }
        if let Some(job) = self.jobs.get_mut(id) {
            job.unsaved |= saved.is_err();
        }
    }
}
