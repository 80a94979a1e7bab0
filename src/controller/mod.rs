//! The loop and all mutable state of a running daemon: observe → account → plan → compare → act.
//!
//! [`Controller::tick`] is activated by a timer or by an event, is never told what changed, and does no retries of its
//! own: the next tick is the retry. Everything else asks through a [`Handle`], one question at a time, between ticks.
//! The plan is data; the controller carries it out.

mod accounting;
mod boards;
mod cap;
mod datetime_serde;
mod error;
mod gpus;
mod handle;
mod job;
mod pacing;
mod planner;
mod planning;
mod replan;
mod reports;
mod requests;
mod run;
mod saved;
mod savings;
mod setback;
mod settings;
mod shared_budget;
mod show;
mod signal;
mod slack;
mod start;
mod sweep_ceiling;
pub mod view;
mod warnings;

use std::collections::BTreeMap;
use std::sync::Arc;

use chrono::{DateTime, Utc};
use tokio::sync::watch;

use accounting::{Accounting, Change, Intensities, Node};
pub use accounting::{Bookkeeping, BudgetSettings, BudgetView, Period};
use cap::CapBook;
pub use cap::{Announced, CapSettings, CapView, EventView, NewEvent, OnExit, ScheduleEntry, event_view};
pub use error::{ControlError, StartError};
pub use gpus::{Act, Arrivals, Gpu, Override};
use gpus::{Gpus, Wish};
pub use handle::{Busy, Handle, Requests};
pub use job::{Group, Job, Phase, ProgressReport};
pub use replan::ReplanReason;
pub use requests::{GpuRef, NewJob};
pub use run::{Ended, run, supervise};
pub use settings::{Locking, Settings};
pub use show::{look, price_view};
use signal::Signal;
pub use signal::{PriceSignal, RankBoard, scores};
pub use start::{Parts, open_handles};

use crate::clock::Clock;
use crate::gpu::restore::Restored;
use crate::providers::FeedState;
use crate::store::{Store, StoreError};
use wattune_core::domain::{DeviceId, EventReasons, GpuId, JobId, SetPoint};
use wattune_core::profile::Settings as ProfileSettings;
use wattune_core::profile::ladder::Setting;
use wattune_core::time::Now;
use wattune_core::units::Joules;

/// Of silent jobs that control nothing so many are ended in one tick.
const GUESTS_ENDED_AT_ONCE: usize = 16;

/// Everything a running daemon knows and decides with.
pub struct Controller {
    settings: Settings,
    profiling: ProfileSettings,
    clock: Arc<dyn Clock>,
    store: Store,
    gpus: Gpus,
    jobs: BTreeMap<JobId, Job>,
    caps: CapBook,
    accounting: Accounting,
    saved: saved::SavedJobs,
    planner: planning::Planner,
    signal: Signal,
    started_at: DateTime<Utc>,
}

impl Controller {
    /// One activation. Never fails: what cannot be done now is a state that the API shows, and is tried again.
    pub async fn tick(&mut self) {
        self.take_up_arrivals().await;
        self.observe();
        // A cap that falls does not wait for books and plans.
        self.act();
        self.take_signal().await;
        self.end_silent_jobs().await;
        self.account().await;
        self.keep_ledger().await;
        self.equip_jobs().await;
        self.withdraw_clocks();
        self.fit_sweeps();
        self.plan().await;
        self.act();
        self.remember();
    }

    /// The daemon's present.
    pub fn now(&self) -> Now {
        self.clock.now()
    }

    /// Time between two ticks.
    pub fn tick_period(&self) -> wattune_core::units::Seconds {
        self.settings.tick_s
    }

    /// The feed, for waiting for its next answer.
    pub fn signal(&self) -> watch::Receiver<FeedState> {
        self.signal.feed()
    }

    /// Its books, for what works beside the loop.
    pub fn store(&self) -> Store {
        self.store.clone()
    }

    /// Takes in what the feed says, and tells those whom it concerns.
    async fn take_signal(&mut self) {
        let now = self.now();
        let update = self.signal.take(&self.store, now).await;
        let (accounting, mut node) = self.accounts();
        for fault in &update.faults {
            accounting.note_store_fault(fault);
        }
        accounting.take_update(&update, now.utc);
        match update.is_other_series {
            true => accounting.recount_everything(&mut node),
            false => accounting.recount_in(&mut node, update.reported.iter().chain(&update.revised)),
        }
        if update.is_first {
            accounting.recount_jobs(&mut node).await;
        }
        accounting.recount_hours(&mut node).await;
        if let Some(why) = update.replan {
            self.replan_all(why);
        }
    }

    fn observe(&mut self) {
        self.gpus.observe();
        self.accounting.observe_cpu();
        for gpu in self.gpus.iter_mut() {
            gpu.observe_sharing(self.accounting.process_owners());
        }
        let now = self.now();
        let (accounting, mut node) = self.accounts();
        accounting.open_books(&mut node);
        for job in self.jobs.values_mut() {
            show_gpus(job, &self.gpus, now);
        }
        for (id, w) in self.gpus.take_written() {
            let what = if w.failed { "power limit refused" } else { "power limit" };
            let (before, enforced) = (w.before, w.shown);
            let change = Change { what, foreign: false, before, asked: Some(w.asked), enforced };
            let (accounting, mut node) = self.accounts();
            accounting.note_control(&mut node, &id, change);
        }
        self.gpus.expire_overrides(now);
    }

    /// Takes GPUs up from now on as they come.
    pub fn await_arrivals(&mut self, arrivals: Arrivals) {
        self.gpus.await_arrivals(arrivals);
    }

    /// Takes up the GPUs that came since the last tick, with what is owed to them and the jobs that wait for them.
    async fn take_up_arrivals(&mut self) {
        while let Some(mut gpu) = self.gpus.next_arrival(&self.clock, self.settings.call_timeout_s).await {
            let id = gpu.id().clone();
            let device = DeviceId::from(&id);
            if gpu.handle.capabilities().energy_counter.is_err() {
                match self.store.booked_until(&device).await {
                    Ok(Some(until)) => self.accounting.know_booked_until(device, until),
                    Ok(None) => {}
                    Err(error) => self.accounting.note_store_fault(&error),
                }
            }
            let mut goes_on = false;
            for job in self.jobs.values().filter(|job| job.spec.gpus.contains(&id)) {
                match job.spec.control && gpu.owner.is_none() {
                    true => {
                        gpu.owner = Some(job.id.clone());
                        goes_on = true;
                    }
                    false => gpu.guests.push(job.id.clone()),
                }
            }
            self.gpus.take_up(gpu);
            if goes_on {
                self.gpus.leave_as_before(&id);
            }
            self.replan_all(ReplanReason::GpuCameBack);
        }
    }

    /// The books, and what they are kept of.
    fn accounts(&mut self) -> (&mut Accounting, Node<'_>) {
        let Self { accounting, gpus, jobs, signal, store, settings, clock, started_at, .. } = self;
        (accounting, Node { gpus, jobs, signal, store, settings, clock: &**clock, started_at: *started_at })
    }

    /// What grams are reckoned with.
    fn intensities(&self) -> Intensities<'_> {
        self.accounting.intensities(&self.signal, &self.store)
    }

    /// Closes the intervals that are long enough, and writes them and what is open down.
    async fn account(&mut self) {
        let (accounting, mut node) = self.accounts();
        let is_closed = accounting.close_due(&mut node);
        let is_due = is_closed || self.jobs.values().any(|job| job.unsaved);
        if is_due || self.accounting.has_unwritten() {
            self.write_backlog().await;
        }
        if is_due {
            let (accounting, mut node) = self.accounts();
            accounting.store_jobs(&mut node).await;
        }
        let (accounting, mut node) = self.accounts();
        accounting.checkpoint(&mut node).await;
    }

    /// Writes what was booked. Jobs of whose energy something was read only after they had ended are reckoned again.
    async fn write_backlog(&mut self) {
        let (accounting, mut node) = self.accounts();
        if let Some(late) = accounting.write_backlog(&mut node).await {
            self.reckon_late(late).await;
        }
    }

    /// Keeps the ledger: a step of it in each tick. What fails is tried again at the next one.
    async fn keep_ledger(&mut self) {
        if self.accounting.store_fault().is_none() {
            let kept = match self.step_ledger().await {
                Ok(()) => self.look_at_savings().await,
                Err(error) => Err(error.into()),
            };
            if let Err(ControlError::Store(error)) = kept {
                self.accounting.note_store_fault(&error);
            }
        }
        let (accounting, mut node) = self.accounts();
        accounting.count_budget(&mut node).await;
    }

    async fn step_ledger(&mut self) -> Result<(), StoreError> {
        let (accounting, mut node) = self.accounts();
        if let Some(ending) = accounting.begin_hour(&mut node).await? {
            self.reckon_before_roll_up(ending).await?;
            let (accounting, mut node) = self.accounts();
            accounting.roll_up(&mut node).await?;
        }
        let (accounting, mut node) = self.accounts();
        if accounting.look_for_due(&mut node).await? {
            self.reckon_what_came().await?;
        }
        let (accounting, mut node) = self.accounts();
        accounting.settle_hours(&mut node).await
    }

    /// Closes the ledger, at the end.
    async fn finish_ledger(&mut self) {
        if let Err(error) = self.end_ledger().await {
            self.accounting.note_store_fault(&error);
        }
    }

    async fn end_ledger(&mut self) -> Result<(), StoreError> {
        let (accounting, mut node) = self.accounts();
        accounting.end_block(&mut node).await?;
        self.step_ledger().await?;
        self.accounting.put_off(&self.store).await
    }

    async fn end_silent_jobs(&mut self) {
        let now = self.now();
        let mut silent: Vec<&Job> = self.jobs.values().filter(|j| j.lease_expired(now)).collect();
        // Whose GPUs get their limits back comes first; of the others not all at once, as others wait for answers.
        silent.sort_by_key(|job| !job.spec.control);
        let guests = silent.iter().filter(|job| !job.spec.control).count();
        silent.truncate(silent.len() - guests.saturating_sub(GUESTS_ENDED_AT_ONCE));
        for id in silent.into_iter().map(|job| job.id.clone()).collect::<Vec<JobId>>() {
            tracing::warn!(job.id = %id, "job {id} was silent for longer than its lease; its GPUs get their limits back");
            // A job that was just listed exists.
            let _ = self.end_job(&id, "lease expired").await;
        }
    }

    fn act(&mut self) {
        let now = self.now();
        self.note_cap(now);
        let wishes = self.wishes(now);
        for (id, act) in self.gpus.act(&wishes, &self.settings, now) {
            let (accounting, mut node) = self.accounts();
            match act {
                Act::Asked { .. } | Act::Clocks(_) => accounting.close_books_of(&mut node, &id),
                Act::Yielded(foreign) => {
                    let (what, enforced) = ("power limit found changed", Some(foreign.limit));
                    let change = Change { what, foreign: true, before: None, asked: None, enforced };
                    accounting.note_control(&mut node, &id, change);
                    self.replan_all(ReplanReason::GpuTakenOver);
                }
                Act::Nothing | Act::GivenBack(_) => {}
            }
        }
    }

    /// What is to become of each GPU now, as far as the node's cap lets it through.
    fn wishes(&self, now: Now) -> BTreeMap<GpuId, Wish> {
        let passes = self.passes(now);
        let wish = |id: GpuId| {
            let wanted = self.wanted_under(&passes, &id, now);
            let may_write = passes.get(&id).is_none_or(|(_, pass)| pass.now);
            (id, Wish { wanted, may_write })
        };
        self.gpus.ids().into_iter().map(wish).collect()
    }

    /// Notes what each GPU's limit is and what it draws, for its last day.
    fn remember(&mut self) {
        let now = self.now();
        let wishes = self.wishes(now);
        for gpu in self.gpus.iter_mut() {
            let wanted = wishes.get(gpu.id()).and_then(|wish| wish.wanted);
            gpu.remember(wanted.map(|set| set.limit), now);
        }
    }

    /// Jobs whose boards' clocks turned out not to be wattune's go on with limits alone.
    fn withdraw_clocks(&mut self) {
        for job in self.jobs.values_mut() {
            let Some(profiler) = job.profiler.as_mut().filter(|p| p.uses_clocks()) else { continue };
            let why = job.spec.gpus.iter().find_map(|id| self.gpus.get(id)?.why_no_clocks());
            let Some(why) = why else { continue };
            tracing::warn!(job.id = %job.id, "job {}: power limits alone from now on: {why}", job.id);
            profiler.leave_clocks();
            // Its plan may hold points that are not to be had any more.
            job.plan = None;
            job.replan = Some(ReplanReason::ClocksLeftAlone);
        }
    }

    /// The set point that is wanted on a board now, as far as the node's cap lets it through; `None` for what was found.
    fn wanted(&self, id: &GpuId, now: Now) -> Option<SetPoint> {
        self.wanted_under(&self.passes(now), id, now)
    }

    /// The same where the cap lets this through.
    fn wanted_under(&self, passes: &cap::LimitGrants, id: &GpuId, now: Now) -> Option<SetPoint> {
        let wish = self.wish(id, now);
        match passes.get(id) {
            Some((stake, pass)) => Self::let_through(wish, stake, pass),
            None => wish,
        }
    }

    /// The set point of a board that somebody wants: a manual override's, else its job's, else none.
    fn wish(&self, id: &GpuId, now: Now) -> Option<SetPoint> {
        let gpu = self.gpus.get(id)?;
        if self.settings.observe {
            return None;
        }
        if let Some(manual) = gpu.manual {
            return Some(manual.limit.into());
        }
        let job = self.jobs.get(gpu.owner.as_ref()?)?;
        let ceiling = self.gpus.ceiling(id)?;
        job.wanted(id, now).map(|set| SetPoint { limit: set.limit.min(ceiling), ..set })
    }

    fn replan_all(&mut self, why: ReplanReason) {
        for job in self.jobs.values_mut() {
            job.replan.get_or_insert(why);
        }
    }

    /// The last things to do: limits given back, then books closed and jobs stored. Jobs stay registered; the next
    /// daemon takes them up again. Answers with what became of each board that wattune had set.
    pub async fn shut_down(mut self) -> Vec<(GpuId, Restored)> {
        // The cap is kept beyond the daemon's end, unless the settings say otherwise.
        let (timeout, cap) = (self.settings.restore_timeout(), self.cap_at_exit());
        let (gpus, restored) = self.gpus.give_back(timeout, cap).await;
        self.gpus = gpus;
        let (accounting, mut node) = self.accounts();
        accounting.refresh_cpu(&mut node).await;
        accounting.close_all_books(&mut node);
        self.write_backlog().await;
        let (accounting, mut node) = self.accounts();
        accounting.checkpoint_now(&mut node).await;
        self.finish_ledger().await;
        let (accounting, mut node) = self.accounts();
        accounting.store_jobs(&mut node).await;
        accounting.tell_unwritten();
        self.store.close().await;
        restored
    }
}

/// Shows a job what its GPUs show: the setting in force, why any of them is slowed, and their energy.
fn show_gpus(job: &mut Job, gpus: &Gpus, now: Now) {
    let (setting, reasons) = in_force(job, gpus);
    let energy = job.groups.iter().map(|g| group_energy(&g.members, gpus, now)).collect();
    job.see(now, setting, reasons, energy);
}

/// The set point in force on each group of a job's boards, if all boards of a group agree, and why any of them is slowed.
fn in_force(job: &Job, gpus: &Gpus) -> (Option<Setting>, EventReasons) {
    let mut reasons = EventReasons::default();
    let mut setting = Setting::with_capacity(job.groups.len());
    for group in &job.groups {
        let mut agreed = None;
        for id in &group.members {
            let Some(gpu) = gpus.get(id).filter(|g| g.seen.fault.is_none()) else { return (None, reasons) };
            let Some(limit) = gpu.seen.reading.enforced.or(gpu.seen.reading.requested) else {
                return (None, reasons);
            };
            let set = SetPoint { limit, clock: gpu.clock_lock() };
            reasons = reasons | gpu.seen.reading.reasons.unwrap_or_default();
            match agreed {
                None => agreed = Some(set),
                Some(other) if set.same_as(other) => {}
                Some(_) => return (None, reasons),
            }
        }
        let Some(set) = agreed else { return (None, reasons) };
        // Some boards round what they are given: the profile knows the limit that was asked for.
        setting.push(job.nearest_known(setting.len(), set));
    }
    (Some(setting), reasons)
}

/// An error with its cause: which file, and why not.
fn in_full(error: &dyn std::error::Error) -> String {
    match error.source() {
        Some(cause) => format!("{error}: {cause}"),
        None => error.to_string(),
    }
}

/// Energy of a group's boards up to `now`. Boards are read some milliseconds before: what they drew since is reckoned
/// from their power, or short windows would be wrong by that much.
fn group_energy(members: &[GpuId], gpus: &Gpus, now: Now) -> Joules {
    let energy = |gpu: &Gpu| {
        let since = gpu.seen.at.map(|at| now.monotonic.since(at.monotonic)).unwrap_or_default();
        let drawn = gpu.seen.reading.power.unwrap_or_default() * since;
        gpu.seen.metered.drawn.to_joules() + drawn
    };
    members.iter().filter_map(|id| gpus.get(id)).map(energy).sum()
}
