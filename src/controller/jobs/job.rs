//! One registered job: its lease, its progress, its profiler and its plan.

use std::collections::BTreeMap;

use chrono::{DateTime, Utc};
use serde::Serialize;
use utoipa::ToSchema;

use super::reports::ReceivedReports;
use super::setback::Setback;
use crate::controller::accounting::HourlyEmissions;
use crate::controller::planning::ReplanReason;
use crate::store::{StoredJob, StoredProgress};
use wattune_core::domain::{DeviceKind, GpuId, JobId, JobSpec, PowerLimit, Profile, ProfileKey, SetPoint, Work};
use wattune_core::ledger::report::Saved;
use wattune_core::plan::{AppliedSetPoint, Plan};
use wattune_core::profile::steps::{GroupRange, Setting};
use wattune_core::profile::{Profiler, Record, Settings as ProfileSettings, Stage, StallDetector};
use wattune_core::time::{Monotonic, Now};
use wattune_core::units::{Millijoules, Samples, SamplesPerSecond, Seconds, Watts};

/// What the daemon does for a job now.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum Phase {
    /// Registered; its first progress report is awaited before anything is set.
    Waiting,
    /// Its throughput and power are being measured.
    Profiling,
    /// Its limits follow a plan.
    Planned,
    /// Its plan has it pause: it should save a checkpoint, stand still and go on reporting.
    Paused,
    /// It is booked; its limits are left alone.
    Observing,
}

/// Boards of one job that are equal and get the same limit.
#[derive(Clone, Debug, PartialEq)]
pub struct Group {
    /// Their model.
    pub model: String,
    /// Who they are.
    pub members: Vec<GpuId>,
    /// What they may be set to.
    pub range: GroupRange,
}

impl Group {
    /// How many they are.
    pub fn boards(&self) -> f64 {
        f64::from(self.range.boards)
    }
}

/// Idle time since the last progress report.
#[derive(Clone, Copy, Debug, Default)]
pub(in crate::controller) struct Idling {
    /// When that was looked at last.
    seen: Option<Monotonic>,
    /// Time since the last report in which it was told to do no work.
    pub(in crate::controller) since_report: Seconds,
}

impl Idling {
    /// Counts the time since this was called last, if the job was told to do no work.
    pub(in crate::controller) fn count(&mut self, at: Monotonic, is_idle: bool) {
        let since = self.seen.replace(at).map_or(Seconds::ZERO, |seen| at.since(seen));
        if is_idle {
            self.since_report += since;
        }
    }
}

/// What the node's cap makes of a job's sweep.
#[derive(Clone, Debug, Default, PartialEq)]
pub(in crate::controller) enum SweepCeiling {
    /// Nothing.
    #[default]
    Full,
    /// It waits for room.
    Waiting {
        /// When there will be some, as far as that is known.
        until: Option<DateTime<Utc>>,
        /// What is to be measured, summed over its boards.
        wanted: Watts,
        /// What there is for them now.
        room: Watts,
    },
    /// It is measured up to lower limits than its boards allow.
    Lowered {
        /// Of each group of equal boards.
        to: Vec<PowerLimit>,
    },
}

impl SweepCeiling {
    /// Returns what the cap keeps from the sweep, in one sentence.
    pub(in crate::controller) fn describe(&self) -> Option<String> {
        match self {
            Self::Full => None,
            Self::Waiting { until, wanted, room } => {
                let until = until.map_or("until there is room".into(), |at| format!("until {}", at.format("%FT%TZ")));
                Some(format!(
                    "measuring waits {until}: the node's cap leaves its boards {:.0} W of the {:.0} W to be measured",
                    room.get().max(0.0),
                    wanted.get()
                ))
            }
            Self::Lowered { to } => {
                let to: Vec<String> = to.iter().map(ToString::to_string).collect();
                Some(format!(
                    "the node's cap keeps it from its highest limits for long: it is measured up to {} and its slowdown is \
                     reckoned from there until there is room for more",
                    to.join(" + ")
                ))
            }
        }
    }
}

/// A job that has not ended.
pub struct Job {
    /// Its id.
    pub id: JobId,
    /// As it was registered.
    pub spec: JobSpec,
    /// Its boards in groups of equal ones.
    pub groups: Vec<Group>,
    /// The ceilings of its groups where no cap for some time lowers them.
    pub(in crate::controller) full_ceilings: Vec<PowerLimit>,
    /// What the node's cap makes of its sweep.
    pub(in crate::controller) sweep_ceiling: SweepCeiling,
    /// Under which its profile is kept.
    pub key: ProfileKey,
    /// When it was registered.
    pub registered_at: DateTime<Utc>,
    /// What must survive a restart.
    pub progress: StoredProgress,
    /// The just-in-time profiler; none for boards whose limits cannot be told.
    pub profiler: Option<Profiler>,
    /// The plan in force.
    pub plan: Option<Plan>,
    /// Why there is no plan although the profile is complete.
    pub unplannable: Option<String>,
    /// That its planning died of a fault in the planner.
    pub(in crate::controller) setback: Option<Setback>,
    /// The out-of-band cap that the plan was made under.
    pub planned_under: Option<PowerLimit>,
    /// Why a new plan is due.
    pub replan: Option<ReplanReason>,
    /// How often it had been profiled anew when its references were frozen last.
    pub(in crate::controller) frozen: Option<u32>,
    /// What the daemon does for it.
    pub phase: Phase,
    /// Why it is in that phase, in one sentence.
    pub reason: String,
    /// What it used up to the last closed interval, and emitted by the intensities known now.
    pub(in crate::controller) emissions: HourlyEmissions,
    /// What it used of CPU packages and memory, and emitted with that; promises are about boards alone.
    pub(in crate::controller) cpu_emissions: HourlyEmissions,
    /// The energy of both by what used it.
    pub energy_by_kind: BTreeMap<DeviceKind, Millijoules>,
    /// What it saved so far against the limit found, as looked at last.
    pub saved: Option<Saved>,
    /// The plan's set point that it was given, and since when.
    pub(in crate::controller) applied: Option<AppliedSetPoint>,
    pub(in crate::controller) idling: Idling,
    /// Splits its time between training and pauses of its own.
    pub(in crate::controller) stalls: StallDetector,
    /// Whether something is to be stored that must survive a restart.
    pub(in crate::controller) unsaved: bool,
    /// What its reports look like.
    pub(in crate::controller) received_reports: ReceivedReports,
    /// Its progress as all jobs' was stored last.
    pub(in crate::controller) saved_progress: Option<StoredProgress>,
    pub(super) lease_until: Monotonic,
    pub(super) last_report_at: Option<Monotonic>,
    pub(super) setting: Option<Setting>,
    saved_record: Option<Record>,
}

impl Job {
    /// A job at its registration, or, with `stored` progress, after a restart of the daemon.
    pub fn new(
        id: JobId,
        spec: JobSpec,
        groups: Vec<Group>,
        profiling: Option<(ProfileSettings, PriorProfile)>,
        stored: StoredProgress,
        registered_at: DateTime<Utc>,
        now: Now,
    ) -> Self {
        let lease_until = now.monotonic.after(spec.lease);
        let mut job = Self {
            key: profile_key(&spec, &[]),
            id,
            spec,
            groups: Vec::new(),
            full_ceilings: Vec::new(),
            sweep_ceiling: SweepCeiling::Full,
            registered_at,
            progress: stored,
            profiler: None,
            plan: None,
            unplannable: None,
            setback: None,
            planned_under: None,
            replan: Some(ReplanReason::NewJob),
            frozen: None,
            phase: Phase::Waiting,
            reason: "waiting for the first progress report".into(),
            emissions: HourlyEmissions::default(),
            cpu_emissions: HourlyEmissions::default(),
            energy_by_kind: BTreeMap::new(),
            saved: None,
            applied: None,
            idling: Idling::default(),
            stalls: StallDetector::new(stored.account),
            unsaved: false,
            received_reports: ReceivedReports::default(),
            saved_progress: None,
            lease_until,
            last_report_at: None,
            setting: None,
            saved_record: None,
        };
        if let Some((settings, known)) = profiling {
            job.equip(groups, settings, known);
        }
        job
    }

    /// Gives it a profiler for its boards, now that they say what they can.
    pub fn equip(&mut self, groups: Vec<Group>, settings: ProfileSettings, known: PriorProfile) {
        let ranges: Vec<GroupRange> = groups.iter().map(|g| g.range.clone()).collect();
        let boards = groups.iter().flat_map(|g| g.members.iter().cloned());
        let profiler =
            Profiler::new(settings, &ranges, known.record).with_expected_limit(known.expected).with_slack_budget();
        self.profiler = Some(profiler.with_gpus(boards));
        self.frozen = self.frozen.map(|_| 0);
        self.key = profile_key(&self.spec, &groups);
        self.full_ceilings = groups.iter().map(|g| g.range.ceiling).collect();
        self.stalls.set_groups(&ranges);
        self.groups = groups;
    }

    /// Whether it has been silent for longer than its lease.
    pub fn lease_expired(&self, now: Now) -> bool {
        now.monotonic > self.lease_until
    }

    /// How long its lease lasts without a further word.
    pub fn lease_left(&self, now: Now) -> Seconds {
        self.lease_until.since(now.monotonic)
    }

    /// Whether it has reported since this daemon runs.
    pub fn is_alive(&self) -> bool {
        self.last_report_at.is_some()
    }

    /// What was learned so far.
    pub fn profile(&self) -> &Profile {
        const NOTHING: &Profile = &Profile { points: Vec::new() };
        self.profiler.as_ref().map_or(NOTHING, Profiler::profile)
    }

    /// Whether all of its points are measured.
    pub(in crate::controller) fn is_profiled(&self) -> bool {
        self.profiler.as_ref().is_some_and(|p| p.stage() == Stage::Done)
    }

    /// Whether only the sensors of its own boards measured its profile.
    pub(in crate::controller) fn measured_itself(&self) -> bool {
        let boards = self.profiler.as_ref().map(|p| &p.record().boards);
        boards.is_some_and(|b| !b.is_empty() && b.iter().all(|id| self.spec.gpus.contains(id)))
    }

    /// The profiled throughput at the setting in force.
    pub fn throughput_now(&self) -> Option<SamplesPerSecond> {
        let setting = self.setting.as_ref()?;
        self.profile().at(setting).map(|p| p.throughput.mean)
    }

    /// How much is left to do, if that is known; zero once everything is done.
    pub fn remaining(&self) -> Option<Samples> {
        let Work::TotalSamples(total) = self.spec.work else { return None };
        let done = self.progress.last.map_or(0.0, |l| l.samples);
        Some((total - Samples::new(done)).max(Samples::ZERO))
    }

    /// Samples done, and the time that planning counts for them: what they take at the reference, and what was lost to
    /// lower limits. Carried on from the last report at the throughput of the setting in force.
    pub fn progress_now(&self, now: Now) -> (Samples, Seconds) {
        let account = self.progress.account;
        let since = self.last_report_at.map_or(Seconds::ZERO, |h| now.monotonic.since(h)).min(self.spec.lease);
        let idle = self.idling.since_report.min(since);
        let (rate, training) = match self.throughput_now() {
            Some(rate) if self.last_report_at.is_some() => (rate, since - idle),
            _ => (SamplesPerSecond::ZERO, Seconds::ZERO),
        };
        let samples = account.samples + rate * training;
        let Some(reference) = self.reference() else { return (samples, account.active + training + idle) };
        let lost = account.lost().time(reference) + training * (1.0 - rate / reference) + idle;
        (samples, samples / reference + lost)
    }

    /// The set point of a board that the job wants now; `None` to leave it as it was found.
    pub fn wanted(&self, gpu: &GpuId, now: Now) -> Option<SetPoint> {
        let group = self.groups.iter().position(|g| g.members.contains(gpu))?;
        let setting = match self.phase {
            Phase::Waiting | Phase::Observing => return None,
            Phase::Profiling => self.profiler.as_ref()?.wanted()?,
            Phase::Planned | Phase::Paused => {
                self.plan.as_ref()?.segment_at(now.utc)?;
                &self.applied.as_ref()?.setting
            }
        };
        setting.get(group).copied()
    }

    /// Decides what to do for it: `hindrance` is why its boards cannot be controlled, if so.
    pub fn choose_phase(&mut self, hindrance: Option<String>) {
        let finished = self.remaining().is_some_and(|left| left <= Samples::ZERO);
        let (phase, reason) = match (&hindrance, &self.profiler) {
            (Some(why), _) => (Phase::Observing, why.clone()),
            (None, None) => (Phase::Observing, "its boards have no power limit to set".into()),
            (None, Some(_)) if !self.is_alive() => (Phase::Waiting, "waiting for the first progress report".into()),
            (None, Some(_)) if finished => {
                (Phase::Observing, "its work is done; its boards have their limits back".into())
            }
            (None, Some(profiler)) => match (profiler.stage(), profiler.wanted()) {
                (Stage::Done, _) | (_, None) => (Phase::Planned, String::new()),
                (stage, Some(setting)) => (Phase::Profiling, profiling_reason(stage, setting)),
            },
        };
        self.phase = phase;
        self.reason = reason;
    }

    /// The set point in a group that the profiler or the plan knows, where the board shows its limit rounded.
    pub fn nearest_known(&self, group: usize, shown: SetPoint) -> SetPoint {
        let wanted = self.profiler.as_ref().and_then(|p| p.wanted()).and_then(|s| s.get(group)).copied();
        let held = self.applied.iter().filter_map(|h| h.setting.get(group).copied());
        let planned = self.plan.iter().flat_map(|p| &p.segments).filter_map(|s| s.setting.get(group).copied());
        wanted.into_iter().chain(held).chain(planned).find(|l| l.same_as(shown)).unwrap_or(shown)
    }

    /// Its profile's sums, if they changed by a new point or stage since the last call: then they are to be stored.
    pub fn record_to_save(&mut self) -> Option<Record> {
        let record = self.profiler.as_ref()?.record();
        if record.points.is_empty() || self.saved_record.as_ref() == Some(record) {
            return None;
        }
        self.saved_record = Some(record.clone());
        self.saved_record.clone()
    }

    /// As it is stored.
    pub fn stored(&self, ended: Option<(DateTime<Utc>, String)>) -> StoredJob {
        StoredJob {
            id: self.id.clone(),
            spec: self.spec.clone(),
            progress: self.progress,
            registered_at: self.registered_at,
            ended,
        }
    }
}

/// What is known of a job's profile when it begins.
#[derive(Clone, Debug, Default)]
pub struct PriorProfile {
    /// What earlier runs measured.
    pub record: Record,
    /// The limit of least energy with the nearest other batch size.
    pub expected: Option<PowerLimit>,
}

/// Under which the profile of a job on these boards is kept.
pub(in crate::controller) fn profile_key(spec: &JobSpec, groups: &[Group]) -> ProfileKey {
    let boards = groups.iter().map(|g| (g.model.clone(), g.members.len() as u32)).collect();
    ProfileKey { name: spec.name.clone(), batch_size: spec.batch_size, boards }
}

fn profiling_reason(stage: Stage, setting: &Setting) -> String {
    let at: Vec<String> = setting.iter().map(ToString::to_string).collect();
    let at = at.join(" + ");
    match stage {
        Stage::Closing => format!("measuring the ceiling, {at}, once more: it is the reference of the slowdown"),
        Stage::Remeasuring => format!("measuring {at} for another minute: it is the point known worst"),
        _ => format!("measuring throughput and power at {at}"),
    }
}
