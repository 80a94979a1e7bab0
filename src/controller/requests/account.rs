//! Requests for a job's energy and emissions up to now.

use crate::controller::view::{AccountView, JobView};
use crate::controller::{ControlError, Controller};
use wattune_core::domain::JobId;
use wattune_core::units::Joules;

impl Controller {
    /// Returns the energy and emissions of a job, running or ended, with the best carbon intensities known now.
    ///
    /// # Errors
    /// If there is no such job, or the database cannot be read.
    pub async fn account_of(&mut self, id: &JobId) -> Result<AccountView, ControlError> {
        // The account of a running job includes energy up to now, so the open intervals of its GPUs are closed first.
        for gpu in self.jobs.get(id).map(|job| job.spec.gpus.clone()).unwrap_or_default() {
            self.accounting.close_interval_of(&mut node!(self), &gpu);
        }
        if self.jobs.get(id).is_some_and(|job| job.spec.processes.is_some()) {
            self.accounting.refresh_cpu(&mut node!(self)).await;
        }
        self.snapshot().account_of(id).await
    }

    /// Returns first a job, second the energy of the job's GPUs up to now. If the job runs, closes its GPUs' open
    /// intervals, and stores these intervals and the job's progress.
    pub async fn metered(&mut self, id: &JobId) -> Result<(JobView, Joules), ControlError> {
        if let Some(job) = self.jobs.get(id) {
            for gpu in job.spec.gpus.clone() {
                if let Some(gpu) = self.gpus.get_mut(&gpu) {
                    gpu.observe();
                }
                self.accounting.close_interval_of(&mut node!(self), &gpu);
            }
            self.write_backlog().await;
            self.store_progress(id).await;
        }
        let job = self.snapshot().job(id).await?;
        let energy = match self.jobs.get(id) {
            Some(job) => job.emissions.sum().energy,
            None => Joules::new(self.account_of(id).await?.energy_by_device_j.get("gpu").copied().unwrap_or_default()),
        };
        Ok((job, energy))
    }
}
