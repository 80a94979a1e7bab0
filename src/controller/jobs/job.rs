//! One registered job: its lease, its profiler, its plan and what the daemon does for it.

use std::collections::BTreeMap;

use chrono::{DateTime, Utc};
use serde::Serialize;
use utoipa::ToSchema;

use super::choice::StartChoice;
use super::reports::ReceivedReports;
use super::setback::Setback;
use crate::controller::accounting::HourlyEmissions;
use crate::controller::planning::ReplanReason;
use crate::store::{StoredJob, StoredProgress};
use wattune_core::domain::{
    Activity, DeviceKind, GpuId, JobId, JobSpec, Owners, PowerLimit, Profile, ProfileKey, SetPoint, Work,
};
use wattune_core::ledger::report::Saved;
use wattune_core::plan::{AppliedSetPoint, JobActivity, Plan};
use wattune_core::profile::steps::{GroupRange, Setting, joined};
use wattune_core::profile::{AccountHistory, Profiler, Record, Settings as ProfileSettings, Stage, StallDetector};
use wattune_core::time::{Monotonic, Now};
use wattune_core::units::{Millijoules, Samples, SamplesPerSecond, Seconds, Watts};

/// Phase of a job: what the daemon does for it now.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum Phase {
    /// The job is registered; nothing is set before its first progress report.
    Waiting,
    /// The daemon measures the job's throughput and power.
    Profiling,
    /// The limits of the job's GPUs follow its plan.
    Planned,
    /// The plan pauses the job: the job should save a checkpoint, stop training and continue to report.
    Paused,
    /// The daemon records the job's energy and leaves its limits alone.
    Observing,
    /// The job waits for its start and holds no GPU.
    Held,
    /// The job has saved a checkpoint, exited and left its GPUs; the daemon decides when it resumes.
    Suspended,
}

/// GPUs of one job that are of the same GPU model and get the same limit.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Group {
    pub(crate) model: String,
    pub(crate) members: Vec<GpuId>,
    /// Limits and clocks that these GPUs accept.
    pub(crate) range: GroupRange,
}

impl Group {
    pub(crate) fn gpu_count(&self) -> f64 {
        f64::from(self.range.gpus)
    }
}

/// Idle time since the last progress report.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Idling {
    /// Time of the last count.
    last_seen: Option<Monotonic>,
    /// Time since the last report in which the job was to do no work.
    pub(crate) since_report: Seconds,
}

impl Idling {
    /// Counts the time since the last call, if the job was to do no work.
    pub(crate) fn count(&mut self, at: Monotonic, is_idle: bool) {
        let since = self.last_seen.replace(at).map_or(Seconds::ZERO, |last| at.since(last));
        if is_idle {
            self.since_report += since;
        }
    }
}

/// Duration up to now of something that may have begun under an earlier daemon. It grows with the monotonic clock, so
/// that setting the wall clock does not change it.
#[derive(Clone, Copy, Debug)]
pub(super) struct Elapsed {
    /// Duration at the time `at`.
    before: Seconds,
    at: Monotonic,
}

impl Elapsed {
    /// Returns the duration since `begin`.
    pub(super) fn since(begin: DateTime<Utc>, now: Now) -> Self {
        Self { before: Seconds::from_delta(now.utc - begin).max(Seconds::ZERO), at: now.monotonic }
    }

    /// Returns the duration up to `now`.
    pub(super) fn until(self, now: Now) -> Seconds {
        self.before + now.monotonic.since(self.at)
    }
}

/// Effect of the node's cap on a job's sweep, which measures throughput and power at each power limit.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) enum SweepCeiling {
    /// The cap has no effect.
    #[default]
    Full,
    /// The sweep waits until the cap leaves enough power.
    Waiting {
        /// Time from which there is enough power; `None` if it is unknown.
        until: Option<DateTime<Utc>>,
        /// Sum of the limits to be measured, over the job's GPUs.
        wanted: Watts,
        /// Power that the cap leaves for these GPUs now.
        room: Watts,
    },
    /// The sweep goes up to lower limits than the GPUs allow.
    Lowered {
        /// Highest limit to be measured, for each group of equal GPUs.
        to: Vec<PowerLimit>,
    },
}

impl SweepCeiling {
    /// Returns the effect in one sentence; `None` if there is none.
    pub(crate) fn describe(&self) -> Option<String> {
        match self {
            Self::Full => None,
            Self::Waiting { until, wanted, room } => {
                let until = until.map_or("until there is room".into(), |at| format!("until {}", at.format("%FT%TZ")));
                Some(format!(
                    "measuring waits {until}: the node's cap leaves the job's GPUs {:.0} W, and {:.0} W are to be measured",
                    room.get().max(0.0),
                    wanted.get()
                ))
            }
            Self::Lowered { to } => Some(format!(
                "the node's cap leaves no room for its highest limits: it is measured up to {}, and its slowdown is \
                     relative to that limit, until the cap rises",
                joined(to)
            )),
        }
    }
}

/// A job that has not ended.
pub(crate) struct Job {
    pub(crate) id: JobId,
    pub(crate) spec: JobSpec,
    /// The job's GPUs, in groups of equal ones.
    pub(crate) groups: Vec<Group>,
    /// Maximum usable limit of each group without a temporary cap.
    pub(crate) full_ceilings: Vec<PowerLimit>,
    /// Effect of the node's cap on the job's sweep.
    pub(crate) sweep_ceiling: SweepCeiling,
    /// True if the node's cap had lowered the ceilings when an earlier daemon ended, until this one fits the sweep.
    pub(super) was_lowered: bool,
    /// Key under which the job's profile is stored.
    pub(crate) key: ProfileKey,
    pub(crate) registered_at: DateTime<Utc>,
    /// Owners of the job, who may report for it and end it.
    pub(crate) owners: Owners,
    /// Progress that survives a restart of the daemon.
    pub(crate) progress: StoredProgress,
    /// Just-in-time profiler; `None` while a GPU reports no limits.
    pub(crate) profiler: Option<Profiler>,
    pub(crate) plan: Option<Plan>,
    /// Start that was chosen for a job that is or was held; `None` before the first choice.
    pub(crate) start: Option<StartChoice>,
    /// Reason why there is no plan although the profile is complete.
    pub(crate) unplannable: Option<String>,
    /// Recent panics of the planner on this job, and the time of the next attempt; `None` if the last attempt ended
    /// without a panic.
    pub(in crate::controller) setback: Option<Setback>,
    /// Lowest out-of-band cap (power limit set from outside the host) on the job's GPUs when the plan was made; `None`
    /// if no such cap was known.
    pub(crate) planned_out_of_band_cap: Option<PowerLimit>,
    /// Reason why a new plan is due; `None` if none is.
    pub(crate) replan: Option<ReplanReason>,
    /// [`Counterfactual::fits_from`](wattune_core::ledger::savings_entries::Counterfactual::fits_from) of the references that
    /// the ledger recorded last; `None` before the first record.
    pub(crate) references_fit_from: Option<Option<Samples>>,
    pub(crate) phase: Phase,
    /// Reason for the phase, in one sentence.
    pub(crate) reason: String,
    /// Energy of the job's GPUs up to the last closed interval, and the emissions of this energy by the carbon
    /// intensities known now.
    pub(crate) emissions: HourlyEmissions,
    /// Energy and emissions of CPU packages and memory. Promises, such as a carbon budget, do not count them.
    pub(crate) cpu_emissions: HourlyEmissions,
    /// Energy of GPUs, CPU packages and memory, by kind of device.
    pub(crate) energy_by_kind: BTreeMap<DeviceKind, Millijoules>,
    /// Last estimate of the savings so far, compared with running at the original limit; `None` without an estimate.
    pub(crate) saved: Option<Saved>,
    /// Set point that is applied from the plan, and the time since which it applies; `None` if no plan is followed.
    pub(crate) applied: Option<AppliedSetPoint>,
    pub(crate) idling: Idling,
    /// Time since the request to suspend; `None` unless this daemon has asked the job or knows that an earlier one did.
    pub(super) asked_for: Option<Elapsed>,
    /// Time since the job was started again after a suspension, until it makes progress; `None` at other times.
    pub(super) restarting_for: Option<Elapsed>,
    /// Detector of the job's own pauses, such as evaluation and checkpoints.
    pub(crate) stalls: StallDetector,
    pub(super) history: AccountHistory,
    /// True if the progress is to be stored at the next tick.
    pub(crate) unsaved: bool,
    /// Summary of the job's reports to this daemon.
    pub(crate) received_reports: ReceivedReports,
    /// Progress that was stored last.
    pub(crate) saved_progress: Option<StoredProgress>,
    pub(super) lease_until: Monotonic,
    pub(super) last_report_at: Option<Monotonic>,
    /// True if this daemon has seen processes of the job run, for a job whose lease its processes renew.
    pub(super) is_seen_running: bool,
    pub(super) setting: Option<Setting>,
    saved_record: Option<Record>,
}

/// Time without a report up to which progress is extrapolated, as a multiple of the usual time between reports.
const LATE: f64 = 2.0;

impl Job {
    /// Returns a job at its registration, or, with `stored` progress, after a restart of the daemon.
    pub(crate) fn new(
        id: JobId,
        spec: JobSpec,
        groups: Vec<Group>,
        profiling: Option<(ProfileSettings, PriorProfile)>,
        stored: StoredProgress,
        registered_at: DateTime<Utc>,
        now: Now,
    ) -> Self {
        let lease_until = now.monotonic.after(spec.lease);
        let restarting_for = stored.presence.restarted_at.map(|since| Elapsed::since(since, now));
        let mut job = Self {
            key: profile_key(&spec, &[]),
            id,
            spec: match stored.total_samples {
                Some(total) => JobSpec { work: Work::TotalSamples(Samples::new(total)), ..spec },
                None => spec,
            },
            groups: Vec::new(),
            full_ceilings: Vec::new(),
            sweep_ceiling: SweepCeiling::Full,
            was_lowered: false,
            registered_at,
            owners: Owners::default(),
            progress: stored,
            profiler: None,
            plan: None,
            start: None,
            unplannable: None,
            setback: None,
            planned_out_of_band_cap: None,
            replan: Some(ReplanReason::NewJob),
            references_fit_from: None,
            phase: Phase::Waiting,
            reason: "waiting for the first progress report".into(),
            emissions: HourlyEmissions::default(),
            cpu_emissions: HourlyEmissions::default(),
            energy_by_kind: BTreeMap::new(),
            saved: None,
            applied: None,
            idling: Idling::default(),
            asked_for: None,
            restarting_for,
            stalls: StallDetector::new(stored.account),
            history: AccountHistory::default(),
            unsaved: false,
            received_reports: ReceivedReports::of(stored.reports),
            saved_progress: None,
            lease_until,
            last_report_at: None,
            is_seen_running: false,
            setting: None,
            saved_record: None,
        };
        if let Some((settings, known)) = profiling {
            job.equip(groups, settings, known);
        }
        if let Some(before) = stored.account.drifting {
            job.history.push(Monotonic::default(), before, Seconds::ZERO);
        }
        if std::mem::take(&mut job.progress.has_lowered_ceilings) {
            job.was_lowered = true;
            let reference = job.progress.lowered_reference.take().map(SamplesPerSecond::new);
            job.note_other_ceilings(reference);
        }
        job
    }

    /// Gives the job a profiler for its GPUs, once they report their limits.
    pub(crate) fn equip(&mut self, groups: Vec<Group>, settings: ProfileSettings, known: PriorProfile) {
        let ranges: Vec<GroupRange> = groups.iter().map(|g| g.range.clone()).collect();
        let gpus = groups.iter().flat_map(|g| g.members.iter().cloned());
        let profiler =
            Profiler::new(settings, &ranges, known.record).with_expected_limit(known.expected).with_slack_budget();
        let profiler = profiler.with_gpus(gpus);
        self.profiler = Some(match &self.profiler {
            Some(before) => profiler.continuing(before),
            None => {
                let account = &self.progress.account;
                let profiler = profiler.with_spacing(account.spacing);
                if account.drifting.is_some() { profiler.waiting() } else { profiler }
            }
        });
        self.key = profile_key(&self.spec, &groups);
        self.full_ceilings = groups.iter().map(|g| g.range.ceiling).collect();
        self.stalls.set_groups(&ranges);
        self.groups = groups;
    }

    /// Renews the lease of a job whose processes were running at the time `at`.
    pub(super) fn note_running(&mut self, at: Monotonic) {
        self.is_seen_running = true;
        self.lease_until = self.lease_until.max(at.after(self.spec.lease));
    }

    /// Returns whether this daemon has seen processes of the job run, for a job whose lease its processes renew.
    pub(crate) fn is_seen_running(&self) -> bool {
        self.is_seen_running
    }

    pub(crate) fn lease_expired(&self, now: Now) -> bool {
        now.monotonic > self.lease_until
    }

    /// Returns the time until the job's lease (longest silence before the job counts as dead) ends if no report comes.
    pub(crate) fn lease_left(&self, now: Now) -> Seconds {
        self.lease_until.since(now.monotonic)
    }

    /// Returns whether the job has reported to this daemon.
    pub(crate) fn is_alive(&self) -> bool {
        self.last_report_at.is_some()
    }
    pub(crate) fn profile(&self) -> &Profile {
        const NOTHING: &Profile = &Profile { points: Vec::new() };
        self.profiler.as_ref().map_or(NOTHING, Profiler::profile)
    }
    pub(crate) fn is_profiled(&self) -> bool {
        self.profiler.as_ref().is_some_and(|p| p.stage() == Stage::Done)
    }

    /// Returns whether the profile was measured on the job's own GPUs alone.
    pub(crate) fn measured_itself(&self) -> bool {
        let measured_by = self.profiler.as_ref().map(|p| &p.record().gpus);
        measured_by.is_some_and(|b| !b.is_empty() && b.iter().all(|id| self.spec.gpus.contains(id)))
    }
    pub(crate) fn throughput_now(&self) -> Option<SamplesPerSecond> {
        let setting = self.setting.as_ref()?;
        self.profile().at(setting).map(|p| p.throughput.mean)
    }

    /// Returns the remaining work, if the total is known; zero once everything is done.
    pub(crate) fn remaining(&self) -> Option<Samples> {
        let Work::TotalSamples(total) = self.spec.work else { return None };
        let done = self.progress.last.map_or(0.0, |l| l.samples);
        Some((total - Samples::new(done)).max(Samples::ZERO))
    }

    /// Returns the time since the last report, by the wall clock if an earlier daemon received it; `None` before the
    /// first report.
    pub(super) fn since_last_report(&self, now: Now) -> Option<Seconds> {
        let by_wall_clock = || Some(Seconds::from_delta(now.utc - self.progress.last?.received).max(Seconds::ZERO));
        self.last_report_at.map(|at| now.monotonic.since(at)).or_else(by_wall_clock)
    }

    /// Returns first the samples done by now, and second the time that planning counts for these samples: the time that
    /// they take at the reference throughput, plus the time lost to lower limits. Extrapolates from the last report, at
    /// the throughput of the setting in force or, until the job has reported to this daemon, at the reference
    /// throughput.
    pub(crate) fn progress_now(&self, now: Now) -> (Samples, Seconds) {
        let account = self.progress.account;
        if let Some(idle) = self.absent_time(now) {
            let lost = self.reference().map_or(Seconds::ZERO, |reference| account.lost_time(reference));
            let trained = |reference| account.reference_time(account.samples, reference);
            let trained = self.reference().map_or(account.active, trained);
            return (account.samples, trained + lost + idle);
        }
        // Without a report for longer than usual, the job may no longer train.
        let spacing = self.profiler.as_ref().and_then(Profiler::spacing).unwrap_or_default();
        let longest = self.spec.lease.max(spacing * LATE);
        let (since, rate) = if self.is_alive() {
            (self.since_last_report(now), self.throughput_now())
        } else {
            // The limits since a report to an earlier daemon are not known: the next report says what they cost.
            (self.since_last_report(now).filter(|_| self.trains_on()), self.reference())
        };
        let since = since.unwrap_or_default().min(longest);
        let idle = self.idling.since_report.min(since);
        let (rate, training) = rate.map_or((SamplesPerSecond::ZERO, Seconds::ZERO), |rate| (rate, since - idle));
        let samples = account.samples + rate * training;
        let Some(reference) = self.reference() else { return (samples, account.active + training + idle) };
        let lost = account.lost_time(reference) + training * (1.0 - rate / reference) + idle;
        (samples, account.reference_time(samples, reference) + lost)
    }

    /// Returns whether the job neither restarts nor was paused when an earlier daemon ended.
    fn trains_on(&self) -> bool {
        let was_paused = matches!(self.progress.activity, Some(Activity::PausedSince(_)));
        self.activity() == JobActivity::Training && !was_paused
    }

    /// Returns the set point of a GPU that the job wants now; `None` for its original limit.
    pub(crate) fn wanted(&self, gpu: &GpuId, now: Now) -> Option<SetPoint> {
        let group = self.groups.iter().position(|g| g.members.contains(gpu))?;
        let setting = match self.phase {
            Phase::Waiting | Phase::Observing | Phase::Held | Phase::Suspended => return None,
            // The original limits hold while the job saves its checkpoint.
            _ if self.is_asked_to_suspend() => return None,
            Phase::Profiling => self.profiler.as_ref()?.wanted()?,
            Phase::Planned | Phase::Paused => {
                self.plan.as_ref()?.segment_at(now.utc)?;
                &self.applied.as_ref()?.setting
            }
        };
        setting.get(group).copied()
    }

    /// Sets the job's phase and the reason for it. `hindrance` is the reason why the job's GPUs cannot be controlled,
    /// if there is one.
    pub(crate) fn choose_phase(&mut self, hindrance: Option<String>) {
        if let Some(absent) = self.absent_phase() {
            (self.phase, self.reason) = absent;
            return;
        }
        let finished = self.remaining().is_some_and(|left| left <= Samples::ZERO);
        let (phase, reason) = match (&hindrance, &self.profiler) {
            (Some(why), _) => (Phase::Observing, why.clone()),
            (None, None) => (Phase::Observing, "its GPUs have no power limit to set".into()),
            (None, Some(_)) if !self.is_alive() => (Phase::Waiting, "waiting for the first progress report".into()),
            (None, Some(_)) if finished => {
                (Phase::Observing, "All samples are done; original limits are restored".into())
            }
            (None, Some(profiler)) => match (profiler.stage(), profiler.wanted()) {
                (Stage::Done, _) | (_, None) => (Phase::Planned, String::new()),
                (stage, Some(setting)) => (Phase::Profiling, profiling_reason(stage, setting)),
            },
        };
        self.phase = phase;
        self.reason = reason;
    }

    /// Returns the set point that the profiler or the plan wants for a group of GPUs and that a GPU of the group
    /// reports rounded, as `shown`; if there is none, returns `shown`.
    pub(crate) fn nearest_known(&self, group: usize, shown: SetPoint) -> SetPoint {
        let wanted = self.profiler.as_ref().and_then(|p| p.wanted()).and_then(|s| s.get(group)).copied();
        let held = self.applied.iter().filter_map(|h| h.setting.get(group).copied());
        let planned = self.plan.iter().flat_map(|p| &p.segments).filter_map(|s| s.setting.get(group).copied());
        wanted.into_iter().chain(held).chain(planned).find(|l| l.same_as(shown)).unwrap_or(shown)
    }

    /// Returns the profile's record to store, if it changed since the last call. An empty one replaces a record that no
    /// longer holds: a daemon that is killed before the next measurement must not plan by the old one.
    pub(crate) fn record_to_save(&mut self) -> Option<Record> {
        let record = self.profiler.as_ref()?.record();
        let is_new = match &self.saved_record {
            Some(saved) => saved != record,
            None => !record.points.is_empty(),
        };
        if is_new {
            self.saved_record = Some(record.clone());
        }
        self.saved_record.clone().filter(|_| is_new)
    }

    pub(crate) fn stored(&self, ended: Option<(DateTime<Utc>, String)>) -> StoredJob {
        let reports = ended.is_some().then_some(self.received_reports.summary());
        StoredJob {
            id: self.id.clone(),
            spec: self.spec.clone(),
            progress: StoredProgress { reports, ..self.progress },
            registered_at: self.registered_at,
            ended,
            owners: self.owners.clone(),
        }
    }
}

/// Profile that is known when a job begins.
#[derive(Clone, Debug, Default)]
pub(crate) struct PriorProfile {
    /// Measurements of earlier runs.
    pub(crate) record: Record,
    /// Most efficient limit at the nearest other batch size that was measured, which the sweep expects to be the most
    /// efficient here too; `None` if nothing is expected.
    pub(crate) expected: Option<PowerLimit>,
}

/// Returns the key under which the profile of a job on these GPUs is stored.
pub(crate) fn profile_key(spec: &JobSpec, groups: &[Group]) -> ProfileKey {
    let gpus = groups.iter().map(|g| (g.model.clone(), g.members.len() as u32)).collect();
    ProfileKey { name: spec.name.clone(), batch_size: spec.batch_size, gpus }
}

fn profiling_reason(stage: Stage, setting: &Setting) -> String {
    let at = joined(setting);
    match stage {
        Stage::Closing => format!("re-measuring the maximum usable limit, {at}: slowdown is relative to it"),
        Stage::Drifting => {
            format!(
                "at the maximum usable limit, {at}: throughput differs from the profile, and a new sweep is not due yet"
            )
        }
        Stage::Remeasuring => format!("measuring {at} for another minute: its measurement is the least certain"),
        _ => format!("measuring throughput and power at {at}"),
    }
}
