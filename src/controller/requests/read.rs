//! Requests that change nothing.

use crate::controller::cap::EventView;
use crate::controller::gpus::GpuRef;
use crate::controller::view::{
    CarbonSlot, CarbonView, GpuView, IntensityView, JobView, LimitSpanView, PlanView, PriceView, ProfileView,
    SlotsAhead, StatusView,
};
use crate::controller::{ControlError, Controller};
use wattune_core::domain::{JobId, Slot};

impl Controller {
    /// Returns the status of the whole daemon.
    pub fn status(&self) -> StatusView {
        self.snapshot().status()
    }

    /// Returns all GPUs, in order of their index.
    pub fn gpus(&self) -> Vec<GpuView> {
        let snapshot = self.snapshot();
        snapshot.gpus(&snapshot.grants())
    }

    /// Returns one GPU.
    pub fn gpu(&self, which: &GpuRef) -> Result<GpuView, ControlError> {
        self.snapshot().gpu(which)
    }

    /// Returns a GPU's limits and power over the last day, but not from before this daemon's start.
    pub fn gpu_history(&self, which: &GpuRef) -> Result<Vec<LimitSpanView>, ControlError> {
        let id = self.gpus.resolve(which)?;
        Ok(self.gpus.get(&id).map(|gpu| gpu.history.view()).unwrap_or_default())
    }

    /// Returns the jobs that have not ended, oldest first.
    pub fn jobs(&self) -> Vec<JobView> {
        let snapshot = self.snapshot();
        snapshot.jobs(&snapshot.grants())
    }

    /// Returns the `limit` jobs that ended last, newest first.
    pub async fn ended_jobs(&self, limit: u32) -> Result<Vec<JobView>, ControlError> {
        Ok(self.store.ended_jobs(limit).await?.iter().map(JobView::from_stored).collect())
    }

    /// Returns a job, running or ended.
    pub async fn job(&self, id: &JobId) -> Result<JobView, ControlError> {
        self.snapshot().job(id).await
    }

    /// Returns a running job's plan, with the reasons for its limits.
    pub fn plan_of(&self, id: &JobId) -> Result<PlanView, ControlError> {
        self.snapshot().plan_of(id)
    }

    /// Returns the profile of a job, running or ended.
    pub async fn profile_of(&self, id: &JobId) -> Result<ProfileView, ControlError> {
        self.snapshot().profile_of(id).await
    }

    /// Returns the carbon signal now.
    pub fn carbon_now(&self) -> CarbonView {
        self.snapshot().carbon_now()
    }

    /// Returns the forecast carbon intensity of the next two days; empty while only the configured constant is known.
    pub fn carbon_forecast(&self) -> Vec<IntensityView> {
        self.snapshot().carbon_forecast()
    }

    /// Returns the carbon intensities of the last `hours` hours.
    ///
    /// # Errors
    /// If the database cannot be read, or `hours` is not positive or exceeds a year.
    pub async fn carbon_history(&self, hours: f64) -> Result<Vec<IntensityView>, ControlError> {
        self.snapshot().carbon_history(hours).await
    }

    /// Returns the forecast that plans use, from the present slot on and in whole slots (time steps).
    pub fn carbon_slots_ahead(&self) -> SlotsAhead {
        self.snapshot().carbon_slots_ahead()
    }

    /// Returns the actual carbon intensities of the slots that overlap `span`, in whole slots.
    ///
    /// # Errors
    /// If the database cannot be read.
    pub async fn carbon_actuals(&self, span: Slot) -> Result<Vec<CarbonSlot>, ControlError> {
        self.snapshot().carbon_actuals(span).await
    }

    /// Returns the day-ahead electricity price; `None` unless the settings name a source of prices.
    pub fn price_now(&self) -> Option<PriceView> {
        self.snapshot().price_now()
    }

    /// Returns all demand-response events in order of start: those of the settings, and those announced by requests,
    /// which are kept for a while after their end.
    pub fn events(&self) -> Vec<EventView> {
        self.cap.events(self.now().utc)
    }
}
