//! Requests that change nothing.

use crate::controller::cap::EventView;
use crate::controller::gpus::GpuRef;
use crate::controller::view::{
    CapView, CarbonView, GpuView, IntensityView, JobView, LimitSpanView, PlanView, PriceView, ProfileView, StatusView,
};
use crate::controller::{ControlError, Controller};
use wattune_core::domain::JobId;

impl Controller {
    /// Returns the daemon as a whole.
    pub fn status(&self) -> StatusView {
        self.snapshot().status()
    }

    /// Returns the GPUs, by index.
    pub fn gpus(&self) -> Vec<GpuView> {
        let snapshot = self.snapshot();
        snapshot.gpus(&snapshot.grants())
    }

    /// Returns one GPU.
    pub fn gpu(&self, which: &GpuRef) -> Result<GpuView, ControlError> {
        self.snapshot().gpu(which)
    }

    /// Returns a GPU's limits and power over the last day, as far as this daemon ran.
    pub fn gpu_history(&self, which: &GpuRef) -> Result<Vec<LimitSpanView>, ControlError> {
        let id = self.gpus.resolve(which)?;
        Ok(self.gpus.get(&id).map(|gpu| gpu.history.view()).unwrap_or_default())
    }

    /// Returns the jobs that have not ended, oldest first.
    pub fn jobs(&self) -> Vec<JobView> {
        let snapshot = self.snapshot();
        snapshot.jobs(&snapshot.grants())
    }

    /// Returns the jobs that ended last, newest first.
    pub async fn ended_jobs(&self, limit: u32) -> Result<Vec<JobView>, ControlError> {
        Ok(self.store.ended_jobs(limit).await?.iter().map(JobView::of_ended).collect())
    }

    /// Returns a job, running or ended.
    pub async fn job(&self, id: &JobId) -> Result<JobView, ControlError> {
        self.snapshot().job(id).await
    }

    /// Returns what will happen to a job, and why.
    pub fn plan_of(&self, id: &JobId) -> Result<PlanView, ControlError> {
        self.snapshot().plan_of(id)
    }

    /// Returns what was learned about a job, running or ended.
    pub async fn profile_of(&self, id: &JobId) -> Result<ProfileView, ControlError> {
        self.snapshot().profile_of(id).await
    }

    /// Returns the carbon signal now.
    pub fn carbon_now(&self) -> CarbonView {
        self.snapshot().carbon_now()
    }

    /// Returns the forecast of the grid from now on, up to two days; nothing while only the configured constant is known.
    pub fn carbon_forecast(&self) -> Vec<IntensityView> {
        self.snapshot().carbon_forecast()
    }

    /// Returns the grid's past hours.
    ///
    /// # Errors
    /// If the database cannot be read, or `hours` is not within 0 to a year.
    pub async fn carbon_history(&self, hours: f64) -> Result<Vec<IntensityView>, ControlError> {
        self.snapshot().carbon_history(hours).await
    }

    /// Returns the day-ahead price; absent unless the settings name a source.
    pub fn price_now(&self) -> Option<PriceView> {
        self.snapshot().price_now()
    }

    /// Returns the node's cap; `None` where none is known, neither now nor later.
    pub fn cap_view(&self) -> Option<CapView> {
        self.cap.view(&self.snapshot().demand())
    }

    /// Returns all demand-response events by their start: those of the settings, those announced, those over for less than
    /// a week.
    pub fn events(&self) -> Vec<EventView> {
        self.cap.events(self.now().utc)
    }
}
