//! The node's cap: its schedule, its demand-response events, and the limits that it grants to GPUs.

mod demand;
mod events;
mod exit;
mod settings;
mod view;

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use chrono::{DateTime, Utc};

pub(super) use demand::Demand;
pub(super) use events::KEPT;
pub use events::{Announced, EventView, event_view};
pub(super) use exit::restore_within;
pub use settings::{CapSettings, NewEvent, OnExit, ScheduleEntry};

use super::settings::Settings;
use wattune_core::cap::{LimitGrant, LimitRequest, allocate};
use wattune_core::domain::{CapSchedule, ConfiguredCap, DemandResponse, EventId, GpuId, PowerLimit, SetPoint, Slot};
use wattune_core::units::{Seconds, Watts};

/// Maximum time for which a search for plans delays a tick.
const LONGEST_SEARCH: Seconds = Seconds::new(60.0);

/// Owner of the node's cap.
pub(super) struct Cap {
    settings: CapSettings,
    configured: ConfiguredCap,
    /// Demand-response events of the settings, which cannot be withdrawn.
    fixed: Vec<DemandResponse>,
    /// Demand-response events announced over the API.
    events: BTreeMap<EventId, DemandResponse>,
    last: LastCap,
    /// Cap in watts that was recorded last, and the rule that sets it; `None` without a cap.
    recorded: Option<(f64, String)>,
}

/// Change of the rule that sets the node's cap: the cap in watts and its rule before and after.
pub(super) struct CapChange {
    pub(super) before: Option<(f64, String)>,
    pub(super) after: Option<(f64, String)>,
}

/// Cap for which limits are lowered now.
pub(super) struct CapCause {
    pub(super) cap: Watts,
    /// Rule that sets the cap, in words.
    pub(super) source: String,
    /// Time from which the cap holds; `None` if it holds already.
    pub(super) from: Option<DateTime<Utc>>,
}

/// Cap that was binding when limits were last written, shared with the supervisor, which restores limits without the
/// controller.
#[derive(Clone, Debug, Default)]
pub(super) struct LastCap(Arc<AtomicU64>);

const NO_CAP: u64 = u64::MAX;

impl LastCap {
    fn set(&self, cap: Option<u64>) {
        self.0.store(cap.unwrap_or(NO_CAP), Ordering::Relaxed);
    }

    /// Returns the cap in milliwatts; `None` if there was none.
    pub(super) fn get(&self) -> Option<u64> {
        Some(self.0.load(Ordering::Relaxed)).filter(|cap| *cap != NO_CAP)
    }
}

impl Cap {
    /// Returns the settings' cap with the events announced to an earlier daemon.
    pub(super) fn new(settings: CapSettings, announced: Vec<DemandResponse>) -> Result<Self, String> {
        let (configured, fixed) = (settings.configured()?, settings.events()?);
        let events = announced.into_iter().map(|e| (e.id.clone(), e)).collect();
        let last = LastCap::default();
        last.set(None);
        Ok(Self { settings, configured, fixed, events, last, recorded: None })
    }

    /// Returns the cap over time as known now, by which jobs are planned; `baseline` is the sum of the GPUs' maximum
    /// limits.
    pub(super) fn schedule(&self, baseline: Watts, now: DateTime<Utc>) -> CapSchedule {
        let events: Vec<DemandResponse> = self.fixed.iter().chain(self.events.values()).cloned().collect();
        CapSchedule::new(&self.configured, &events, baseline, now)
    }

    /// Returns the cap over time by which limits are lowered: as it will be known once a lower limit requested now is
    /// certain to be in force. An event with a short notice must find the limits down when it begins, too.
    pub(super) fn schedule_ahead(&self, baseline: Watts, settings: &Settings, now: DateTime<Utc>) -> CapSchedule {
        let then = now + self.lead(settings).to_delta();
        let known = self.fixed.iter().chain(self.events.values()).filter(|e| e.is_announced(then));
        let events: Vec<DemandResponse> = known.map(|e| DemandResponse { notice: None, ..e.clone() }).collect();
        CapSchedule::new(&self.configured, &events, baseline, now)
    }

    /// Returns the change of the rule that sets the cap since the last call; `None` if it is the same rule. A ramp of an
    /// event is one rule.
    pub(super) fn change(&mut self, baseline: Watts, now: DateTime<Utc>) -> Option<CapChange> {
        let schedule = self.schedule(baseline, now);
        let after = schedule.binding_at(now).map(|(cap, source)| (cap.get(), source.to_string()));
        let rule = |cap: &Option<(f64, String)>| cap.as_ref().map(|(_, source)| source.clone());
        if rule(&after) == rule(&self.recorded) {
            return None;
        }
        let before = std::mem::replace(&mut self.recorded, after.clone());
        Some(CapChange { before, after })
    }

    /// Returns whether original limits that do not fit under the cap stay lowered when the daemon ends.
    pub(super) fn keeps_on_exit(&self) -> bool {
        self.settings.on_exit == OnExit::Keep
    }

    /// Returns a shared handle to the cap that was binding when limits were last written.
    pub(super) fn last(&self) -> LastCap {
        self.last.clone()
    }

    /// Returns the constant cap of the settings, if there is one.
    pub(super) fn constant(&self, baseline: Watts) -> Option<Watts> {
        Some(self.configured.constant?.of(baseline))
    }

    /// Returns how long before the cap falls the GPUs' limits are lowered: the configured lead, but at least two ticks,
    /// one driver call and one search for plans, because lowering a limit may take that long.
    pub(super) fn lead(&self, settings: &Settings) -> Seconds {
        let Settings { tick_s, call_timeout_s, solve_limit_s, .. } = *settings;
        self.settings.lead_s.max(tick_s * 2.0 + call_timeout_s + solve_limit_s.min(LONGEST_SEARCH))
    }

    /// Returns the strictest cap in the time from now until a lower limit requested now is certain to be in force;
    /// `None` if no cap holds in that time. The `schedule` is that of [`schedule_ahead`](Self::schedule_ahead).
    pub(super) fn soon(&self, schedule: &CapSchedule, settings: &Settings, now: DateTime<Utc>) -> Option<Watts> {
        let lead = self.lead(settings).to_delta().max(chrono::TimeDelta::milliseconds(1));
        let cap = schedule.over(&Slot::new(now, now + lead)?)?.to_milliwatts();
        Some(PowerLimit::from_milliwatts(cap).watts())
    }

    /// Returns the cap for which limits are lowered now, with its rule: the cap of [`soon`](Self::soon). `None` if there
    /// is none.
    pub(super) fn cause(&self, demand: &Demand<'_>) -> Option<CapCause> {
        let now = demand.now.utc;
        let schedule = self.schedule_ahead(demand.gpus.maximum_limits(), demand.settings, now);
        let end = now + self.lead(demand.settings).to_delta();
        let strictest = schedule.over(&Slot::new(now, end)?)?;
        let is_strictest = |at: &DateTime<Utc>| schedule.cap_at(*at).is_some_and(|cap| cap <= strictest);
        let at = [now].into_iter().chain(schedule.boundaries(now, end)).chain([end]).find(is_strictest)?;
        let (cap, source) = schedule.binding_at(at)?;
        Some(CapCause { cap, source: source.to_string(), from: (at > now).then_some(at) })
    }

    /// Returns, in milliwatts, the strictest cap in the time from now until a lower limit requested now is certain to
    /// be in force; `None` if no cap holds in that time.
    fn binding(&self, demand: &Demand<'_>) -> Option<u64> {
        let now = demand.now.utc;
        let schedule = self.schedule_ahead(demand.gpus.maximum_limits(), demand.settings, now);
        let cap = self.soon(&schedule, demand.settings, now)?;
        Some(u64::from(cap.to_milliwatts()))
    }

    /// Returns, in milliwatts, the maximum sum of all GPUs' limits after the original limits are restored at the
    /// daemon's end; `None` if they are to be restored in full.
    pub(super) fn at_exit(&self, demand: &Demand<'_>) -> Option<u64> {
        self.binding(demand).filter(|_| self.keeps_on_exit())
    }

    /// Returns the limit granted to each GPU that has reported one; empty without a cap and in observe mode.
    pub(super) fn grants(&self, demand: &Demand<'_>) -> LimitGrants {
        self.grants_under(self.binding(demand), demand)
    }

    /// Returns the limit that each GPU may have under the cap, and records the cap for the supervisor, which restores limits if the controller panics.
    pub(super) fn enforce(&self, demand: &Demand<'_>) -> LimitGrants {
        let cap = self.binding(demand);
        self.last.set(cap.filter(|_| !demand.settings.observe));
        self.grants_under(cap, demand)
    }

    fn grants_under(&self, cap: Option<u64>, demand: &Demand<'_>) -> LimitGrants {
        if cap.is_none() || demand.settings.observe {
            return LimitGrants::default();
        }
        let (ids, requests): (Vec<GpuId>, Vec<LimitRequest>) = demand.requests().into_iter().unzip();
        let grants = allocate(&requests, cap);
        LimitGrants(ids.into_iter().zip(requests.into_iter().zip(grants)).collect())
    }
}

/// Request and grant of each GPU that has reported a limit; empty without a cap and in observe mode.
#[derive(Debug, Default)]
pub(super) struct LimitGrants(BTreeMap<GpuId, (LimitRequest, LimitGrant)>);

impl LimitGrants {
    /// Returns a GPU's request and grant.
    pub(super) fn of(&self, id: &GpuId) -> Option<&(LimitRequest, LimitGrant)> {
        self.0.get(id)
    }

    /// Returns the set point that a GPU may have under the cap if it wants `set_point`; `None` stands for the original
    /// limit in both.
    pub(super) fn permitted(&self, id: &GpuId, set_point: Option<SetPoint>) -> Option<SetPoint> {
        match (self.of(id), set_point) {
            (None, set_point) => set_point,
            (Some((_, grant)), Some(set)) => Some(SetPoint { limit: grant.limit, ..set }),
            (Some((request, grant)), None) => (grant.limit < request.wanted).then(|| grant.limit.into()),
        }
    }
}
