//! The loop and all mutable state of a running daemon: observe → account → plan → compare → act.
//!
//! [`Controller::tick`] runs on a timer and when the carbon feed changes. A tick does the same whatever changed, and
//! retries nothing itself: what fails is tried again by the next tick. Requests arrive through a [`Handle`] and run one
//! at a time, between ticks. A plan is data, which the controller carries out. Each part of the controller owns its
//! state; `tick` and the requests connect the parts.

/// Borrows the fields of a controller that accounting and planning work on, as a `Node`. Unlike a method, the macro
/// leaves the controller's other fields free to be borrowed at the same time.
macro_rules! node {
    ($controller:ident) => {
        $crate::controller::node::Node {
            gpus: &mut $controller.gpus,
            jobs: &mut $controller.jobs,
            cap: &$controller.cap,
            signal: &$controller.signal,
            store: &$controller.store,
            settings: &$controller.settings,
            clock: &*$controller.clock,
            started_at: $controller.started_at,
        }
    };
}

mod accounting;
mod cap;
mod datetime_serde;
mod devices;
mod error;
mod gpus;
mod handle;
mod jobs;
mod node;
mod planning;
mod requests;
mod run;
mod savings;
mod settings;
mod signal;
mod snapshot;
mod start;
pub mod view;

use std::collections::BTreeMap;
use std::sync::Arc;

use chrono::{DateTime, Utc};
use tokio::sync::watch;

pub use accounting::{BudgetSettings, LedgerTerms, Period};
pub use cap::{Announced, CapSettings, EventView, NewEvent, OnExit, ScheduleEntry, event_view};
pub use devices::Devices;
pub use error::{ControlError, StartError};
pub use gpus::{Arrivals, GpuRef, OverrideEnd};
pub use handle::{Busy, Handle, Requests};
pub use jobs::{BeginReason, Phase, ProgressReport, Wanted};
pub use planning::ReplanReason;
pub use requests::{
    Caller, Client, ClientCommand, ClientWait, NewJob, NewOffers, NewStart, OverrideRequest, Setting, StartBound,
    StartBy, WhenRequest, WriteRefused, of_restored,
};
pub use run::{Ended, run, supervise};
pub use settings::{Locking, Settings};
pub use signal::{PriceSignal, SharedRanks, scores};
pub use start::{Parts, open_handles};
pub use view::{BudgetView, CapView, describe_feed, describe_start, price_view};

use accounting::{Accounting, Change};
use cap::{Cap, LimitGrants};
use gpus::{Act, Gpus, Target};
use jobs::{Job, Jobs};
use planning::Planner;
use savings::SavingsTracker;
use signal::Signal;
use snapshot::Snapshot;

use crate::clock::Clock;
use crate::providers::FeedState;
use crate::store::{AuditAction, AuditRecord, AuditState, Store, StoreError, StoredJob};
use wattune_core::domain::{DeviceId, GpuId, JobId};
use wattune_core::ledger::entry::Entry;
use wattune_core::profile::Settings as ProfileSettings;
use wattune_core::time::Now;
use wattune_core::units::Seconds;

/// Wanted state of each GPU now.
type Targets = BTreeMap<GpuId, Target>;

/// State of a running daemon; each field is a part that owns its own state.
pub struct Controller {
    settings: Settings,
    profiling: ProfileSettings,
    clock: Arc<dyn Clock>,
    store: Store,
    gpus: Gpus,
    jobs: Jobs,
    cap: Cap,
    accounting: Accounting,
    savings: SavingsTracker,
    planner: Planner,
    signal: Signal,
    started_at: DateTime<Utc>,
}

impl Controller {
    /// Runs the control loop once. Does not fail: the API shows what could not be done, and the next tick tries again.
    pub async fn tick(&mut self) {
        self.add_arrivals().await;
        self.observe();
        // Accounting and planning take time, so limits that the node's falling cap requires are lowered before them.
        self.act();
        self.update_signal().await;
        self.discover().await;
        self.end_silent_jobs().await;
        self.account().await;
        self.maintain_ledger().await;
        self.equip_jobs().await;
        self.jobs.withdraw_clocks(&self.gpus);
        self.fit_sweeps();
        self.plan().await;
        let targets = self.act();
        self.gpus.remember(&targets, self.now());
        self.record_cap();
        self.store.audit().begin_write();
    }

    /// Returns the daemon's present time.
    pub fn now(&self) -> Now {
        self.clock.now()
    }

    /// Returns the time between two ticks by the machine's clock.
    pub fn tick_period(&self) -> Seconds {
        self.settings.tick_s
    }

    /// Returns a receiver of the carbon feed's state, which is notified of each change.
    pub fn signal(&self) -> watch::Receiver<FeedState> {
        self.signal.feed()
    }

    /// Returns a handle to the store, for tasks outside the control loop.
    pub fn store(&self) -> Store {
        self.store.clone()
    }

    /// Returns access to the devices' readings, for tasks outside the control loop.
    pub fn devices(&self) -> Devices {
        Devices { gpus: self.gpus.handles(), cpu: self.accounting.cpu_handle(), clock: self.clock.clone() }
    }

    /// Accepts, from now on, GPUs that become usable after the daemon's start.
    pub fn await_arrivals(&mut self, arrivals: Arrivals) {
        self.gpus.await_arrivals(arrivals);
    }

    fn snapshot(&self) -> Snapshot<'_> {
        Snapshot {
            now: self.now(),
            clock_speed: self.clock.speed(),
            started_at: self.started_at,
            settings: &self.settings,
            profiling: &self.profiling,
            store: &self.store,
            gpus: &self.gpus,
            jobs: &self.jobs,
            cap: &self.cap,
            accounting: &self.accounting,
            savings: &self.savings,
            planner: &self.planner,
            signal: &self.signal,
        }
    }

    /// Adds the GPUs that became usable since the last tick, with the jobs registered on them. If such a job controls
    /// the GPU, also takes over the GPU's external limit (set by another program than wattune) that the journal
    /// records.
    async fn add_arrivals(&mut self) {
        while let Some(mut gpu) = self.gpus.next_arrival(&self.clock, self.settings.call_timeout_s).await {
            let id = gpu.id().clone();
            let device = DeviceId::from(&id);
            if gpu.handle.capabilities().energy_counter.is_err() {
                match self.store.recorded_until(&device).await {
                    Ok(Some(until)) => self.accounting.set_recorded_until(device, until),
                    Ok(None) => {}
                    Err(error) => self.accounting.record_store_fault(&error),
                }
            }
            let holders = self.jobs.iter().filter(|job| job.spec.gpus.contains(&id) && !job.is_absent());
            let holders: Vec<(JobId, bool)> = holders.map(|job| (job.id.clone(), job.controls())).collect();
            for (job, controls) in holders {
                gpu.add_holder(&job, controls && gpu.owner.is_none());
                self.jobs.detect_sharing(&gpu);
            }
            let goes_on = gpu.owner.is_some();
            self.gpus.add(gpu);
            if goes_on {
                self.gpus.respect_external_limit(&id);
            }
            self.jobs.replan_all(ReplanReason::GpuReturned);
        }
    }

    fn observe(&mut self) {
        self.gpus.observe();
        self.accounting.observe_cpu();
        for gpu in self.gpus.iter_mut() {
            gpu.observe_sharing(self.accounting.process_owners());
        }
        if let Some((at, running)) = self.accounting.running_processes() {
            self.jobs.renew_by_processes(at, |job| running.get(job).is_some_and(|count| *count > 0));
        }
        let now = self.now();
        self.accounting.open_intervals(&mut node!(self));
        for job in self.jobs.iter_mut() {
            job.observe(&self.gpus, now);
        }
        self.record_writes();
        self.gpus.expire_overrides(now);
    }

    /// Applies the carbon feed's newest responses, and recounts the emissions of hours and jobs whose carbon
    /// intensities changed.
    async fn update_signal(&mut self) {
        let now = self.now();
        let update = self.signal.update(&self.store, now).await;
        for fault in &update.faults {
            self.accounting.record_store_fault(fault);
        }
        self.accounting.apply_update(&update, now.utc);
        match update.is_other_series {
            true => self.accounting.recount_everything(&mut node!(self)),
            false => self.accounting.recount_in(&mut node!(self), update.reported.iter().chain(&update.revised)),
        }
        if update.is_first {
            self.accounting.recount_jobs(&mut node!(self)).await;
        }
        self.accounting.recount_hours(&mut node!(self)).await;
        if let Some(why) = update.replan {
            self.planner.rethink_starts();
            self.jobs.replan_all(why);
        }
    }

    /// Closes the ledger's energy intervals that have reached their full length and stores them, and stores the
    /// intervals that are still open, so that a killed daemon loses little.
    async fn account(&mut self) {
        let is_closed = self.accounting.close_due(&mut node!(self));
        self.write_backlog().await;
        if is_closed || self.jobs.iter().any(|job| job.unsaved) {
            self.accounting.store_jobs(&mut node!(self)).await;
        }
        self.accounting.checkpoint(&mut node!(self)).await;
    }

    /// Writes the ledger's backlog (rows that are not in the database yet). If some energy of an ended job was read
    /// only after the job's end, estimates the job's savings again.
    async fn write_backlog(&mut self) {
        let late = self.accounting.write_backlog(&mut node!(self)).await;
        for id in late.unwrap_or_default() {
            let stored = match self.store.job(&id).await {
                Ok(stored) => stored.filter(|job| job.ended.is_some()),
                Err(error) => return self.accounting.record_store_fault(&error),
            };
            self.accounting.forget_late(&id);
            if let Some(stored) = stored {
                self.estimate_again(&stored, "the job, or some of its energy, was stored after its end").await;
            }
        }
    }

    /// Does one step of the ledger's upkeep (closing blocks, rolling up old rows, computing hourly emissions) and
    /// updates the savings of running jobs. A failed step is tried again: a roll-up in the next hour, an estimate
    /// in the next minute, the others at the next tick.
    async fn maintain_ledger(&mut self) {
        if self.accounting.store_fault().is_none() {
            let kept = match self.step_ledger().await {
                Ok(()) => self.update_savings().await,
                Err(error) => Err(error),
            };
            if let Err(error) = kept {
                self.accounting.record_store_fault(&error);
            }
        }
        self.accounting.count_budget(&mut node!(self)).await;
    }

    async fn step_ledger(&mut self) -> Result<(), StoreError> {
        if let Some(ending) = self.accounting.begin_hour(&mut node!(self)).await? {
            self.estimate_before_roll_up(ending).await?;
            self.accounting.roll_up(&mut node!(self)).await?;
        }
        if self.accounting.detect_due_hours(&mut node!(self)).await? {
            self.estimate_awaited().await?;
            self.accounting.end_new_values();
        }
        self.accounting.compute_due_hours(&mut node!(self)).await
    }

    /// Updates the estimate of the savings so far, for those jobs for which an update is due.
    async fn update_savings(&mut self) -> Result<(), StoreError> {
        let now = self.now().utc;
        let Some(update) = self.savings.begin_update(&self.jobs, now) else { return Ok(()) };
        for id in &update.jobs {
            let saved = match self.snapshot().saved_so_far(id).await {
                Ok(saved) => saved,
                Err(ControlError::Store(error)) => return Err(error),
                Err(_) => None,
            };
            if let Some(job) = self.jobs.get_mut(id) {
                job.saved = saved;
            }
        }
        self.savings.end_update(update, &self.store).await
    }

    /// Records in the ledger, for each job that was planned for the first time or profiled again, the references
    /// (operation without wattune) with which the job's savings are computed.
    async fn freeze_references(&mut self) {
        for id in savings::due_references(&self.jobs) {
            let Some(job) = self.jobs.get(&id) else { continue };
            let entry = match self.snapshot().freeze(job).await {
                Ok(entry) => entry,
                Err(error) => return self.accounting.record_store_fault(&error),
            };
            if let Some(job) = self.jobs.get_mut(&id) {
                job.references_fit_from = Some(savings::changed_at(job));
            }
            if let Some(entry) = entry {
                self.write_entry(entry).await;
            }
        }
    }

    /// Estimates the savings of an ended job again once all carbon intensities of the time in which it ran are
    /// published.
    async fn estimate_awaited(&mut self) -> Result<(), StoreError> {
        for id in self.savings.awaited() {
            let stored = self.store.job(&id).await?;
            let Some(stored) = stored.filter(|job| savings::may_wait(job, self.now().utc)) else {
                self.savings.remove_awaited(&id);
                continue;
            };
            let snapshot = self.snapshot();
            let Ok(job) = snapshot.make_job(&stored).await else { continue };
            let outcome = match snapshot
                .estimate_outcome(&job, &stored, "all carbon intensities of the job's time are published")
                .await
            {
                Ok(Some(outcome)) if outcome.savings.is_provisional() => continue,
                Ok(outcome) => outcome,
                Err(ControlError::Store(error)) => return Err(error),
                Err(_) => continue,
            };
            self.savings.remove_awaited(&id);
            if let Some(outcome) = outcome {
                self.write_entry(Entry::Outcome(Box::new(outcome))).await;
            }
        }
        Ok(())
    }

    /// Estimates the savings of ended jobs a last time, with the carbon intensities known now, before the ledger merges
    /// the jobs' rows per minute into rows per hour.
    async fn estimate_before_roll_up(&mut self, ids: Vec<JobId>) -> Result<(), StoreError> {
        for id in ids {
            let Some(stored) = self.store.job(&id).await?.filter(|job| job.ended.is_some()) else { continue };
            if self.snapshot().outcome(&id).await?.is_some() && !self.store.is_rolled_up(&id).await? {
                self.estimate_again(&stored, "the job's rows per minute are merged into rows per hour").await;
            }
        }
        Ok(())
    }

    async fn estimate_again(&mut self, stored: &StoredJob, why: &str) {
        if let Ok(job) = self.snapshot().make_job(stored).await {
            self.record_outcome(&job, stored, why).await;
        }
    }

    /// Estimates an ended job's savings and records them in the ledger, at a later tick if writing fails now.
    async fn record_outcome(&mut self, job: &Job, stored: &StoredJob, why: &str) {
        match self.snapshot().estimate_outcome(job, stored, why).await {
            Ok(Some(outcome)) => {
                self.savings.add_outcome(&outcome);
                self.write_entry(Entry::Outcome(Box::new(outcome))).await;
            }
            Err(ControlError::Store(error)) => {
                // What cannot be read now may be readable later, unless it is damaged.
                if !matches!(error, StoreError::Damaged { .. }) {
                    self.accounting.note_late(&stored.id);
                }
                self.accounting.record_store_fault(&error);
            }
            Ok(None) | Err(_) => {}
        }
    }

    /// Writes an entry to the ledger now or, if that is impossible, at a later tick.
    async fn write_entry(&mut self, entry: Entry) {
        self.accounting.queue_entry(entry);
        if self.accounting.store_fault().is_none()
            && let Err(error) = self.accounting.write_entries(&mut node!(self)).await
        {
            self.accounting.record_store_fault(&error);
        }
    }

    /// Gives a profiler to jobs whose GPUs did not report their limits at registration but report them now.
    async fn equip_jobs(&mut self) {
        let bare: Vec<JobId> = self.jobs.iter().filter(|j| j.profiler.is_none()).map(|j| j.id.clone()).collect();
        for id in bare {
            let Some(job) = self.jobs.get(&id) else { continue };
            // If the store cannot be read now, the next tick tries again.
            let Ok(Some((groups, known))) = self.snapshot().equipment(&job.spec).await else { continue };
            if let Some(job) = self.jobs.get_mut(&id) {
                job.equip(groups, self.profiling.clone(), known);
            }
        }
    }

    /// Sets, for each job, the highest limits that its sweep (profiling run through the power limits) may measure under
    /// the node's cap.
    fn fit_sweeps(&mut self) {
        for fit in self.snapshot().sweep_fits() {
            if let Some(job) = self.jobs.get_mut(&fit.job) {
                job.fit_sweep(fit, &self.profiling);
            }
        }
    }

    /// Plans every job that needs a new plan, and makes all jobs follow their plans. Returns the limits that the node's
    /// cap grants to the GPUs.
    async fn plan(&mut self) -> LimitGrants {
        let now = self.now();
        self.planner.plan(&mut node!(self), self.accounting.budget(), now).await;
        self.freeze_references().await;
        let ids = self.jobs.ids();
        self.planner.follow(&ids, &mut node!(self), now)
    }

    /// Updates one job's phase and makes the job follow its plan. If planning is due, does the work of `plan` for all
    /// jobs instead. Returns the limits that the node's cap grants to the GPUs.
    async fn plan_one(&mut self, id: &JobId) -> LimitGrants {
        let now = self.now();
        match self.planner.update_one(id, &mut node!(self), self.accounting.budget(), now) {
            true => self.plan().await,
            false => self.planner.follow(std::slice::from_ref(id), &mut node!(self), now),
        }
    }

    /// Compares each GPU's readings with its target, and writes where they differ. Returns the targets.
    fn act(&mut self) -> Targets {
        let demand = self.snapshot().demand();
        let (now, grants) = (demand.now, self.cap.enforce(&demand));
        let target = |id: GpuId| {
            let wanted = grants.permitted(&id, demand.set_point(&id));
            let may_write = grants.of(&id).is_none_or(|(_, grant)| grant.now);
            (id, Target { wanted, may_write })
        };
        let targets: Targets = self.gpus.ids().into_iter().map(target).collect();
        for (id, act) in self.gpus.act(&targets, &self.settings, now) {
            match act {
                Act::Requested { .. } | Act::Clocks(_) => self.accounting.close_interval_of(&mut node!(self), &id),
                Act::Yielded(external) => {
                    let (what, enforced) = ("external power limit", Some(external.limit));
                    let change = Change { what, external: true, before: None, requested: None, enforced };
                    self.accounting.record_control(&mut node!(self), &id, change);
                    self.audit(AuditRecord {
                        gpu: Some(id.to_string()),
                        after: Some(AuditState::power_limit(external.limit)),
                        ..self.new_record("external writer", AuditAction::LeaveExternalLimit)
                    });
                    self.jobs.replan_all(ReplanReason::GpuTakenOver);
                }
                Act::Nothing | Act::Restored(_) => {}
            }
        }
        targets
    }
}
