//! The node's cap: what it is, what it lets through, and demand-response events.

mod events;
mod exit;
mod gate;
mod settings;
mod show;

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use chrono::{DateTime, Utc};

pub(super) use events::KEPT;
pub use events::{Announced, EventView, event_view};
pub(super) use exit::give_back_within;
pub(super) use gate::{LimitGrant, LimitPriority, LimitRequest, gate};
pub use settings::{CapSettings, NewEvent, OnExit, ScheduleEntry};

pub use show::CapView;

use super::sweep_ceiling::SweepCeiling;
use super::{Controller, Gpu, Phase};
use wattune_core::domain::{CapSchedule, DemandResponse, EventId, GpuId, PowerLimit, SetPoint, Slot, StandingCap};
use wattune_core::time::Now;
use wattune_core::units::{Samples, Seconds, Watts};

/// Everything that is known of caps.
pub(super) struct CapBook {
    settings: CapSettings,
    standing: StandingCap,
    /// Those of the settings; they are not to be withdrawn.
    fixed: Vec<DemandResponse>,
    /// Those that were announced.
    events: BTreeMap<EventId, DemandResponse>,
    last: LastCap,
}

/// The strictest cap that was about to hold when it was last looked at, for whoever has to give boards back without
/// asking the controller.
#[derive(Clone, Debug, Default)]
pub(super) struct LastCap(Arc<AtomicU64>);

const NO_CAP: u64 = u64::MAX;

impl LastCap {
    fn set(&self, cap: Option<u64>) {
        self.0.store(cap.unwrap_or(NO_CAP), Ordering::Relaxed);
    }

    /// In milliwatts.
    pub(super) fn get(&self) -> Option<u64> {
        Some(self.0.load(Ordering::Relaxed)).filter(|cap| *cap != NO_CAP)
    }
}

impl CapBook {
    /// The settings' cap and the events that were announced to an earlier daemon.
    ///
    /// # Errors
    /// As [`CapSettings::check`].
    pub(super) fn new(settings: CapSettings, announced: Vec<DemandResponse>) -> Result<Self, String> {
        let (standing, fixed) = (settings.standing()?, settings.events()?);
        let events = announced.into_iter().map(|e| (e.id.clone(), e)).collect();
        let last = LastCap::default();
        last.set(None);
        Ok(Self { settings, standing, fixed, events, last })
    }

    /// The cap over time as it is known now, of a node whose boards' largest limits add up to `baseline`.
    pub(super) fn schedule(&self, baseline: Watts, now: DateTime<Utc>) -> CapSchedule {
        let events: Vec<DemandResponse> = self.fixed.iter().chain(self.events.values()).cloned().collect();
        CapSchedule::new(&self.standing, &events, baseline, now)
    }

    /// Whether found limits that do not fit stay behind when the daemon ends.
    pub(super) fn keeps_on_exit(&self) -> bool {
        self.settings.on_exit == OnExit::Keep
    }

    /// The last look's result, shared.
    pub(super) fn last(&self) -> LastCap {
        self.last.clone()
    }
}

/// What the cap lets through on each board that counts.
pub(super) type LimitGrants = BTreeMap<GpuId, (LimitRequest, LimitGrant)>;

impl Controller {
    /// What a share of the cap is of: the largest limits of all boards.
    pub(super) fn baseline(&self) -> Watts {
        self.gpus.largest_limits()
    }

    /// The cap over time as it is known now.
    pub(super) fn cap_schedule(&self, now: DateTime<Utc>) -> CapSchedule {
        self.caps.schedule(self.baseline(), now)
    }

    /// The part of the cap that holds at all times.
    pub(super) fn constant_cap(&self) -> Option<Watts> {
        Some(self.caps.standing.constant?.of(self.baseline()))
    }

    /// How long before the cap falls limits are lowered: noticing takes up to two ticks, of which one may wait for a
    /// plan, and a write as long as a call may take.
    pub(super) fn lead(&self) -> Seconds {
        let Self { settings, caps, .. } = self;
        let needed = settings.tick_s * 2.0 + settings.call_timeout_s + settings.solve_limit_s.min(Seconds::new(60.0));
        caps.settings.lead_s.max(needed)
    }

    /// The strictest cap from now until a lowering that is asked for now is certain to have come, in milliwatts.
    fn cap_soon(&self, schedule: &CapSchedule, now: DateTime<Utc>) -> Option<u64> {
        let soon = Slot::new(now, now + self.lead().to_delta().max(chrono::TimeDelta::milliseconds(1)))?;
        Some(u64::from(schedule.over(&soon)?.to_milliwatts()))
    }

    /// The strictest cap from now until a lowering that is asked for now is certain to have come.
    pub(super) fn cap_now(&self, schedule: &CapSchedule, now: DateTime<Utc>) -> Option<Watts> {
        self.cap_soon(schedule, now)
            .map(|mw| PowerLimit::from_milliwatts(u32::try_from(mw).unwrap_or(u32::MAX)).watts())
    }

    /// What boards may come back to when the daemon ends, in milliwatts; `None` where they come back in full.
    pub(super) fn cap_at_exit(&self) -> Option<u64> {
        let now = self.now().utc;
        self.cap_soon(&self.cap_schedule(now), now).filter(|_| self.caps.keeps_on_exit())
    }

    /// Notes the cap that is about to hold for whoever has to give boards back without the controller.
    pub(super) fn note_cap(&self, now: Now) {
        let cap = self.cap_soon(&self.cap_schedule(now.utc), now.utc);
        self.caps.last.set(cap.filter(|_| !self.settings.observe));
    }

    /// What the cap lets through on each board that counts. Empty where there is no cap.
    pub(super) fn passes(&self, now: Now) -> LimitGrants {
        let cap = self.cap_soon(&self.cap_schedule(now.utc), now.utc);
        if cap.is_none() || self.settings.observe {
            return BTreeMap::new();
        }
        let (ids, stakes): (Vec<GpuId>, Vec<LimitRequest>) = self.stakes(now).into_iter().unzip();
        let passes = gate(&stakes, cap);
        ids.into_iter().zip(stakes.into_iter().zip(passes)).collect()
    }

    /// Each board that tells its limit, as the cap sees it.
    pub(super) fn stakes(&self, now: Now) -> Vec<(GpuId, LimitRequest)> {
        self.gpus.iter().filter_map(|gpu| Some((gpu.id().clone(), self.stake(gpu, now)?))).collect()
    }

    fn stake(&self, gpu: &Gpu, now: Now) -> Option<LimitRequest> {
        let in_force = gpu.in_force()?;
        let found = self.gpus.found(gpu.id()).unwrap_or(in_force);
        let wish = self.wish(gpu.id(), now).map(|set| set.limit);
        let claim = self.claim(gpu);
        let (floor, ceiling) = match gpu.range() {
            Some(range) if claim != LimitPriority::Fixed => (range.min, range.ceiling(found)),
            _ => (in_force, in_force),
        };
        let wanted = wish.unwrap_or(found);
        let most = match claim {
            LimitPriority::Job { .. } | LimitPriority::Sweep { .. } => ceiling,
            LimitPriority::Fixed | LimitPriority::Idle | LimitPriority::Manual => wanted,
        };
        Some(LimitRequest { in_force, wanted, floor, most, claim, unyielding: gpu.is_unyielding() })
    }

    /// What a board's limit is for.
    pub(super) fn claim(&self, gpu: &Gpu) -> LimitPriority {
        let owner = gpu.owner.as_ref().and_then(|id| self.jobs.get(id));
        let untold = gpu.seen.fault.is_some() || gpu.seen.reading.requested.is_none();
        let not_ours = gpu.foreign.is_some() || gpu.handle.capabilities().why_no_control().is_some();
        if untold || not_ours || (owner.is_none() && !gpu.guests.is_empty() && gpu.manual.is_none()) {
            return LimitPriority::Fixed;
        }
        let Some(job) = owner.filter(|_| gpu.manual.is_none()) else {
            return if gpu.manual.is_some() { LimitPriority::Manual } else { LimitPriority::Idle };
        };
        let priority = job.spec.priority;
        let finished = job.remaining().is_some_and(|left| left <= Samples::ZERO);
        match job.phase {
            Phase::Waiting => LimitPriority::Idle,
            Phase::Observing if finished => LimitPriority::Idle,
            // What cannot be measured now takes no room from others.
            Phase::Profiling if matches!(job.reach, SweepCeiling::Waits { .. }) => LimitPriority::Idle,
            Phase::Profiling => LimitPriority::Sweep { priority, seniority: -job.registered_at.timestamp_micros() },
            _ => LimitPriority::Job { priority },
        }
    }

    /// The set point to pursue for a wish, of which the cap lets `pass` through; `None` for what was found.
    pub(super) fn let_through(wish: Option<SetPoint>, stake: &LimitRequest, pass: &LimitGrant) -> Option<SetPoint> {
        match wish {
            Some(set) => Some(SetPoint { limit: pass.limit, ..set }),
            None => (pass.limit < stake.wanted).then(|| pass.limit.into()),
        }
    }
}
