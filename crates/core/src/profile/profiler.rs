//! The just-in-time profiler: a state machine that takes observations and returns the setting to measure next.
//!
//! It sweeps power limits from the ceiling (the maximum usable limits) down, then clocks where limits have no effect,
//! and measures the ceiling again at the end. Later it re-measures the points with the largest errors. At each setting
//! it waits until the GPU has settled, then measures throughput from the job's progress and power from the energy
//! counters until the standard error is small enough. A sweep ends after two successive settings that are worse in
//! energy *and* time. Later progress at a setting refines its point; if the job drifts away from its profile, a new
//! sweep begins.

mod budget;
mod measuring;
mod state;
mod sweep;

use std::sync::OnceLock;

use super::drift::DriftWindow;
use super::noise::Noise;
use super::point::{Chunk, Evidence, PointStats, Record};
use super::rate_model::SettingEstimate;
use super::settings::Settings;
use super::steps::{self, GroupPoint, GroupRange, Setting};
use crate::domain::{Estimate, GpuId, OperatingPoint, PowerLimit, Profile, SetPoint};
use crate::time::Monotonic;
use crate::units::{SamplesPerSecond, Seconds, Watts};
use state::{ActiveMeasurement, Learning};
pub use state::{GpuSnapshot, Report};

/// Time that a job must be much slower than its profile to be profiled again, as a multiple of `drift_s`.
const SLOW_FOR: f64 = 2.0;

/// Stage of a profiler.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Stage {
    /// The profiler measures the job at the power limits of one group of equal GPUs.
    Sweep {
        /// Index of the group whose limit is lowered.
        group: usize,
        /// Index of the measured setting; 0 is the ceiling (maximum usable limits).
        index: usize,
    },
    /// The profiler measures the job with locked clocks at the maximum usable power limit.
    Clocks {
        /// Index of the measured setting; 0 is the ceiling (maximum usable limits).
        index: usize,
    },
    /// The profiler measures the job at the ceiling (maximum usable limits) a second time, which completes the sweep.
    Closing,
    /// The profiler measures the point with the largest error again, for up to a minute.
    Remeasuring,
    /// Throughput differs from the profile, and a new sweep is not due yet. The job stays at the ceiling (maximum
    /// usable limits): a plan made from this profile could lose more time than allowed.
    Drifting,
    /// Everything is measured; progress refines the points and may reveal drift.
    Done,
}

/// The just-in-time profiler of one job. Reads no clock: times are arguments.
#[derive(Clone, Debug)]
pub struct Profiler {
    settings: Settings,
    groups: Vec<GroupRange>,
    limit_steps: Vec<Vec<Setting>>,
    /// Settings of the clock sweep: all at the maximum usable limit, unlocked clocks first. Empty if clocks are not
    /// used.
    clocks: Vec<Setting>,
    record: Record,
    /// GPUs whose sensors measure the power.
    gpus: Vec<GpuId>,
    /// Number of times that drift from the profile caused a new sweep.
    restarts: u32,
    /// Most efficient limit at another batch size of the job, if known; lower limits are not expected to be better.
    expected: Option<PowerLimit>,
    closing: Option<PointStats>,
    stage: Stage,
    /// Whether the daemon tries to put the wanted setting in force, as the last snapshot said.
    steered: bool,
    /// Time covered by reports since the current stage began, without the time in which the wanted setting was not to
    /// be in force.
    stage_time: Seconds,
    /// Settings that could not be measured, mostly because of heat.
    skipped: Vec<Setting>,
    active: Option<ActiveMeasurement>,
    recent: DriftWindow,
    /// Latest chunks (times between two reports), each with the time of its first report, that were slow: the job paused
    /// or has changed.
    slow: Vec<(Monotonic, Chunk)>,
    /// Time from which on throughput differs from the profile; `None` while it does not.
    drifting_since: Option<Monotonic>,
    /// Time of the change that caused the last new sweep.
    changed_at: Option<Monotonic>,
    last_report: Option<Monotonic>,
    sweep_time: Seconds,
    since_sweep: Seconds,
    /// Time covered by reports since a new sweep began because the job had changed.
    since_restart: Seconds,
    /// Time covered by all reports (`reported`), and the part of it spent on re-measurements (`remeasured_time`).
    reported: Seconds,
    remeasured_time: Seconds,
    remeasuring: Option<Setting>,
    far_below: Seconds,
    learning: Learning,
    notes: Vec<String>,
    /// Profile computed from `record` when it is first needed; cleared whenever something changes that it depends on.
    profile: OnceLock<Profile>,
}

impl Profiler {
    /// Creates a profiler for GPUs in `groups` that continues from the `record` of earlier runs.
    pub fn new(settings: Settings, groups: &[GroupRange], record: Record) -> Self {
        let limit_steps = steps::limit_steps(groups, settings.step_w, settings.lowest_w);
        let clocks = steps::clock_steps(groups, settings.clock_step_mhz);
        let mut profiler = Self {
            settings,
            groups: groups.to_vec(),
            limit_steps,
            clocks,
            record,
            gpus: Vec::new(),
            restarts: 0,
            expected: None,
            closing: None,
            stage: Stage::Sweep { group: 0, index: 0 },
            steered: true,
            stage_time: Seconds::ZERO,
            skipped: Vec::new(),
            active: None,
            recent: DriftWindow::default(),
            drifting_since: None,
            slow: Vec::new(),
            changed_at: None,
            last_report: None,
            sweep_time: Seconds::ZERO,
            since_sweep: Seconds::ZERO,
            since_restart: Seconds::ZERO,
            reported: Seconds::ZERO,
            remeasured_time: Seconds::ZERO,
            remeasuring: None,
            far_below: Seconds::ZERO,
            learning: Learning::default(),
            notes: Vec::new(),
            profile: OnceLock::new(),
        };
        profiler.advance();
        profiler
    }

    /// Continues from `before`, the job's profiler with other groups' ranges: its time cost of learning counts, and the
    /// changes of the job that it detected.
    #[must_use]
    pub fn continuing(mut self, before: &Self) -> Self {
        self.restarts = before.restarts;
        self.since_restart = before.since_restart;
        self.changed_at = before.changed_at;
        self.last_report = before.last_report;
        self.reported = before.reported;
        self.remeasured_time = before.remeasured_time;
        self.sweep_time = before.sweep_time;
        self.since_sweep = before.since_sweep;
        self.learning.time_lost = before.learning.time_lost;
        self.learning.spacing.clone_from(&before.learning.spacing);
        self.notes.splice(0..0, before.notes.iter().cloned());
        if let Some(since) = before.drifting_since {
            self.profile_again("the job differed from its profile when its ceiling changed".into(), since);
        }
        self
    }

    /// Sets the most efficient limit at another batch size of the job, if known. Below that limit, the sweep ends after
    /// one setting that is worse than the one above it, instead of after two.
    #[must_use]
    pub fn with_expected_limit(mut self, limit: Option<PowerLimit>) -> Self {
        self.expected = limit;
        self
    }

    /// Sets the usual time between reports, as far as an earlier daemon knew it.
    #[must_use]
    pub fn with_spacing(mut self, spacing: Option<Seconds>) -> Self {
        self.learning.spacing.extend(spacing);
        self
    }

    /// Continues a job that differed from its profile when an earlier daemon ended, and waited at the ceiling (maximum
    /// usable limits) for a new one.
    #[must_use]
    pub fn waiting(mut self) -> Self {
        self.drifting_since = Some(Monotonic::default());
        self.learning.deferred = !self.is_closed();
        self.stage = Stage::Drifting;
        self
    }

    /// Sets the GPUs whose sensors measure the power; the stored record lists them.
    #[must_use]
    pub fn with_gpus(mut self, gpus: impl IntoIterator<Item = GpuId>) -> Self {
        self.gpus = gpus.into_iter().collect();
        self
    }

    /// Returns true if throughput differs from the profile, or if recent reports are slow: the job paused or has changed.
    pub fn is_drifting(&self) -> bool {
        self.drifting_since.is_some() || !self.slow.is_empty()
    }

    /// Returns the time since which the job differs from its profile, if it waits at the ceiling (maximum usable
    /// limits) for a new one; `None` otherwise.
    pub fn waits_since(&self) -> Option<Monotonic> {
        self.drifting_since.filter(|_| self.stage == Stage::Drifting)
    }

    /// Returns the time within which an abrupt change of a job outside of sweeps is detected.
    pub fn detection_time(&self) -> Seconds {
        self.settings.drift_s * SLOW_FOR
    }

    /// Returns the time of the change of the job that caused the last new sweep; `None` if none did.
    pub fn changed_at(&self) -> Option<Monotonic> {
        self.changed_at
    }

    /// Returns how often drift from the profile caused a new sweep.
    pub fn restarts(&self) -> u32 {
        self.restarts
    }

    /// Returns the measurement of a setting with its standard errors; `None` if there are too few data. For an
    /// unmeasured limit that cannot have an effect on the job, returns the measurement of the ceiling (maximum usable
    /// limits).
    pub fn evidence(&self, setting: &Setting) -> Option<Evidence> {
        let loose = self.loose_limits();
        let is_ceiling = matches!(setting.as_slice(), [set] if set.clock.is_none() && loose.contains(&set.limit));
        let own = self.stats(setting).and_then(PointStats::evidence);
        own.or_else(|| self.stats(self.ceiling()).filter(|_| is_ceiling)?.evidence())
    }

    /// Returns the limit set by [`Self::with_expected_limit`].
    pub fn expected_limit(&self) -> Option<PowerLimit> {
        self.expected
    }

    /// Returns the current stage.
    pub fn stage(&self) -> Stage {
        self.stage
    }

    /// Returns true if the sweep is complete. Re-measurements may still refine its points.
    pub fn is_complete(&self) -> bool {
        matches!(self.stage, Stage::Done | Stage::Remeasuring | Stage::Drifting)
    }

    /// Returns the setting to measure now; `None` once everything is measured.
    pub fn wanted(&self) -> Option<&Setting> {
        self.setting_of(self.stage)
    }

    /// Returns true while settings are measured one after another.
    fn sweeps(&self) -> bool {
        matches!(self.stage, Stage::Sweep { .. } | Stage::Clocks { .. })
    }

    fn setting_of(&self, stage: Stage) -> Option<&Setting> {
        match stage {
            Stage::Sweep { group, index } => self.limit_steps.get(group)?.get(index),
            Stage::Clocks { index } => self.clocks.get(index),
            Stage::Closing | Stage::Drifting => Some(self.ceiling()),
            Stage::Remeasuring => self.remeasuring.as_ref(),
            Stage::Done => None,
        }
    }

    /// Returns the ceiling: all groups at their maximum usable limits, clocks unlocked. Every slowdown is relative to
    /// it.
    pub fn ceiling(&self) -> &Setting {
        &self.limit_steps[0][0]
    }

    /// Returns the record to store for later runs.
    pub fn record(&self) -> &Record {
        &self.record
    }

    /// Returns and clears the messages for the job's event log, oldest first.
    pub fn take_notes(&mut self) -> Vec<String> {
        std::mem::take(&mut self.notes)
    }

    /// Returns true if the sweep may include locked clocks.
    pub fn uses_clocks(&self) -> bool {
        !self.clocks.is_empty()
    }

    /// Continues without locked clocks because the daemon has no permission to lock them. Earlier measurements at
    /// locked clocks stay in the record for later runs.
    pub fn disable_clocks(&mut self) {
        self.profile.take();
        self.clocks.clear();
        let at_clocks = |set: &Setting| set.iter().any(|s| s.clock.is_some());
        if matches!(self.stage, Stage::Clocks { .. }) || self.remeasuring.as_ref().is_some_and(at_clocks) {
            self.remeasuring = None;
            self.stage = if self.is_closed() { Stage::Done } else { Stage::Closing };
            self.stage_time = Seconds::ZERO;
        }
    }

    /// Returns the profile measured so far: the ceiling, then limits, then clocks, each in descending order, then
    /// copies for limits that have no effect. Empty until the ceiling is measured.
    pub fn profile(&self) -> &Profile {
        self.profile.get_or_init(|| self.measured_profile())
    }

    pub(super) fn measured_profile(&self) -> Profile {
        let mut points = self.known_points();
        // Limits that have no effect get copies of the ceiling's point: a cap on the sum of limits needs them.
        let copies = self.loose_limits();
        if let (Some(lowest), [_, ..]) = (copies.last().copied(), points.as_slice()) {
            let locked: Vec<OperatingPoint> =
                points.iter().filter(|p| p.setting.iter().any(|s| s.clock.is_some())).cloned().collect();
            let top = points[0].clone();
            let copy = |of: &OperatingPoint, limit: PowerLimit| OperatingPoint {
                setting: of.setting.iter().map(|s| SetPoint { limit, ..*s }).collect(),
                measured: Seconds::ZERO,
                ..of.clone()
            };
            let inferred = copies.iter().map(|limit| copy(&top, *limit)).chain(locked.iter().map(|p| copy(p, lowest)));
            let unknown: Vec<_> = inferred.filter(|p| self.stats(&p.setting).is_none()).collect();
            points.extend(unknown);
        }
        Profile { points }
    }

    /// Returns throughput and power at each setting of the profile, for distinguishing pauses from training. A rate
    /// from few and unequal chunks (times between two reports) may include pauses, so its error is the larger of two:
    /// that of the rate's own chunks, and that from the noise of all settings.
    pub fn setting_estimates(&self) -> Vec<(Setting, SettingEstimate)> {
        let known = |point: &OperatingPoint| {
            let own = self.stats(&point.setting).map_or(0.0, |stats| stats.throughput.relative_error().unwrap_or(1.0));
            let Estimate { mean: throughput, relative_error } = point.throughput;
            let estimate = SettingEstimate { throughput, error: relative_error.max(own), power: point.power.mean };
            (point.setting.clone(), estimate)
        };
        self.profile().points.iter().map(known).collect()
    }

    /// Returns the measured points, and for unequal GPUs also the points inferred from the groups' sweeps.
    fn known_points(&self) -> Vec<OperatingPoint> {
        let point_at = |setting: &Setting| self.point_at(setting);
        let Some(top) = point_at(self.ceiling()) else { return Vec::new() };
        let error = top.throughput.relative_error;
        let mut points = vec![top];
        if let [only] = self.limit_steps.as_slice() {
            points.extend(only[1..].iter().filter_map(point_at));
        } else {
            let inferred = steps::equalised(&self.group_curves(), error.max(self.settings.standard_error));
            points.extend(inferred.into_iter().map(|p| point_at(&p.setting).unwrap_or(p)));
        }
        points.extend(self.clocks.iter().skip(1).filter_map(point_at));
        points
    }

    fn group_curves(&self) -> Vec<Vec<GroupPoint>> {
        let curve = |(group, steps): (usize, &Vec<Setting>)| {
            let point = |setting: &Setting| {
                let stats = self.stats(setting)?;
                Some(GroupPoint {
                    limit: setting[group].limit,
                    throughput: SamplesPerSecond::new(stats.throughput.rate()?),
                    power: Watts::new(stats.power[group].rate()?),
                })
            };
            steps.iter().filter_map(point).collect()
        };
        self.limit_steps.iter().enumerate().map(curve).collect()
    }

    /// Returns the noise of the job's throughput over all measurements; `None` if there are too few measurements.
    pub fn noise(&self) -> Option<Noise> {
        let closing = self.closing.iter().map(|closing| &closing.throughput);
        Noise::pooled(self.record.points.iter().map(|p| &p.throughput).chain(closing))
    }

    /// Returns the noise of the throughput at one setting: from that setting's measurements alone if there are enough,
    /// otherwise from all settings. `None` if there are too few of those, too.
    pub fn noise_at(&self, setting: &Setting) -> Option<Noise> {
        let own = self.stats(setting).and_then(|p| Noise::pooled(std::iter::once(&p.throughput)));
        own.filter(Noise::is_well_known).or_else(|| self.noise())
    }

    /// Returns the relative standard error of a setting's throughput; 1 if the noise is unknown, `None` if the setting
    /// is unmeasured.
    fn throughput_error(&self, setting: &Setting) -> Option<f64> {
        let seconds = Seconds::new(self.stats(setting)?.throughput.seconds());
        Some(self.noise_at(setting).map_or(1.0, |noise| noise.error_after(seconds)))
    }

    /// Returns the operating point measured at a setting.
    fn point_at(&self, setting: &Setting) -> Option<OperatingPoint> {
        let mut point = self.stats(setting)?.operating_point()?;
        point.throughput.relative_error = self.throughput_error(setting)?;
        Some(point)
    }

    fn stats(&self, setting: &Setting) -> Option<&PointStats> {
        self.record.points.iter().find(|p| p.setting == *setting)
    }

    fn stats_mut(&mut self, setting: &Setting) -> &mut PointStats {
        let at = self.record.points.iter().position(|p| p.setting == *setting).unwrap_or_else(|| {
            self.record.points.push(PointStats::new(setting.clone()));
            self.record.points.len() - 1
        });
        &mut self.record.points[at]
    }
}

#[cfg(test)]
#[path = "profiler_tests.rs"]
mod tests;
