//! The just-in-time profiler: a state machine that takes observations and returns the setting to measure next.
//!
//! It sweeps limits from the ceiling down, then clocks where limits do not bind, and closes with the ceiling. Later it
//! re-measures the least known points now and then. At each setting it waits until the GPU has settled, then measures
//! throughput from the job's progress and power from the energy counters until the standard error is small enough. A
//! sweep ends after two successive settings that are worse in energy *and* time. Later progress at a setting keeps
//! refining its point; if the job drifts away from its profile, the job is profiled again.

mod budget;
mod learning;
mod sweep;

use std::sync::OnceLock;

use super::dips::Dip;
use super::drift::{Baseline, DriftWindow};
use super::measurement::{ChunkVerdict, Measurement};
use super::noise::Noise;
use super::point::{Chunk, Evidence, PointStats, Record};
use super::rate_model::SettingEstimate;
use super::settings::Settings;
use super::stall_detector::LatestPauses;
use super::steps::{self, GroupPoint, GroupRange, Setting};
use crate::domain::{Estimate, GpuId, OperatingPoint, PowerLimit, Profile, SetPoint};
use crate::time::Monotonic;
use crate::units::{Joules, Samples, SamplesPerSecond, Seconds, Watts};
use learning::Learning;

/// Minimum time between two reports that form a chunk: single steps are not independent readings.
const CHUNK: Seconds = Seconds::new(1.0);
/// Maximum time that a gap between reports counts for: it may have been a pause.
const LONGEST_STEP: Seconds = Seconds::new(60.0);
/// Ratio of the time since a sweep to the sweep's duration from which drift starts a new one.
const DRIFT_PAUSE: f64 = 10.0;

/// State of a job's GPUs at one time.
#[derive(Clone, Debug)]
pub struct GpuSnapshot {
    /// Time of the snapshot.
    pub at: Monotonic,
    /// The setting in force on all GPUs, read back from them; `None` if there is no single one.
    pub setting: Option<Setting>,
    /// True if measurements must not count now, for example because heat slows a GPU.
    pub unusable: bool,
    /// True if a GPU reports that its power limit lowers its clocks.
    pub capped: bool,
    /// Cumulative energy per group.
    pub energy: Vec<Joules>,
}

/// A progress report of a job.
#[derive(Clone, Copy, Debug)]
pub struct Report {
    /// Time of arrival on the daemon's clock.
    pub received: Monotonic,
    /// Time of writing on the client's clock, if given; it makes measuring windows exact.
    pub at: Option<Seconds>,
    /// Cumulative samples.
    pub samples: Samples,
}

/// Stage of a profiler.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Stage {
    /// Measuring one group's limits.
    Sweep {
        /// The group whose limit is lowered.
        group: usize,
        /// Index of the setting, 0 at the ceiling.
        index: usize,
    },
    /// Measuring locked clocks.
    Clocks {
        /// Index of the setting, 0 at the ceiling.
        index: usize,
    },
    /// Measuring the ceiling once more.
    Closing,
    /// Re-measuring the least known point for another minute.
    Remeasuring,
    /// Everything is measured; refining and watching for drift.
    Done,
}

/// The measurement at the setting in force.
#[derive(Clone, Debug)]
struct ActiveMeasurement {
    setting: Setting,
    since: Monotonic,
    report: Option<Report>,
    energy: Option<(Monotonic, Vec<Joules>)>,
    pending: (Seconds, Vec<Joules>),
    /// True if a power limit lowered clocks since the last chunk.
    capped: bool,
    /// True if reports without progress came since the last chunk.
    waited: bool,
    /// Pauses since the last chunk.
    paused: Dip,
    /// True if a pause seems to begin at the latest report, or at the end of the previous chunk.
    ends_low: bool,
    began_low: bool,
    /// True if the current chunk contains the beginning of a pause that was detected only later.
    holds_beginning: bool,
    /// Chunks measured here without interruption.
    measurement: Option<Measurement>,
    /// The profile's point when this measurement began, and the chunks since, for drift detection.
    baseline: Option<Baseline>,
    recent: DriftWindow,
}

/// The just-in-time profiler of one job. Pure: times are arguments.
#[derive(Clone, Debug)]
pub struct Profiler {
    settings: Settings,
    groups: Vec<GroupRange>,
    limit_steps: Vec<Vec<Setting>>,
    /// Clock steps at the ceiling's limit, the ceiling first; empty if clocks are not used.
    clocks: Vec<Setting>,
    record: Record,
    /// GPUs whose sensors measure.
    boards: Vec<GpuId>,
    /// Number of times that drift started a new profile.
    restarts: u32,
    /// Most efficient limit with a neighbouring batch size; nothing better is expected below it.
    expected: Option<PowerLimit>,
    closing: Option<PointStats>,
    stage: Stage,
    /// Reported time since this stage began.
    stage_time: Seconds,
    /// Settings that could not be measured, mostly because of heat.
    skipped: Vec<Setting>,
    active: Option<ActiveMeasurement>,
    last_report: Option<Monotonic>,
    sweep_time: Seconds,
    since_sweep: Seconds,
    /// All reported time, and the part spent on re-measurements.
    reported: Seconds,
    remeasured_time: Seconds,
    remeasuring: Option<Setting>,
    far_below: Seconds,
    learning: Learning,
    notes: Vec<String>,
    /// Profile by the present record; computed when it is used and cleared with each change.
    profile: OnceLock<Profile>,
}

impl Profiler {
    /// Creates a profiler for GPUs in `groups` that continues from the record of earlier runs.
    pub fn new(settings: Settings, groups: &[GroupRange], record: Record) -> Self {
        let limit_steps = steps::limit_steps(groups, settings.step_w, settings.lowest_w);
        let clocks = steps::clock_steps(groups, settings.clock_step_mhz);
        let mut profiler = Self {
            settings,
            groups: groups.to_vec(),
            limit_steps,
            clocks,
            record,
            boards: Vec::new(),
            restarts: 0,
            expected: None,
            closing: None,
            stage: Stage::Sweep { group: 0, index: 0 },
            stage_time: Seconds::ZERO,
            skipped: Vec::new(),
            active: None,
            last_report: None,
            sweep_time: Seconds::ZERO,
            since_sweep: Seconds::ZERO,
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

    /// Sets the most efficient limit of another batch size of the job. The sweep then ends after one measurement below
    /// it that is worse, instead of two.
    #[must_use]
    pub fn with_expected_limit(mut self, limit: Option<PowerLimit>) -> Self {
        self.expected = limit;
        self
    }

    /// Sets the GPUs that measure, which the record then lists.
    #[must_use]
    pub fn with_gpus(mut self, boards: impl IntoIterator<Item = GpuId>) -> Self {
        self.boards = boards.into_iter().collect();
        self
    }

    /// Returns how often drift from the profile started a new one.
    pub fn restarts(&self) -> u32 {
        self.restarts
    }

    /// Returns the measurement of a setting with its errors; `None` if there are too few data. A limit that cannot bind
    /// counts as the ceiling.
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

    /// Returns whether the sweep is complete. Re-measurements may still refine its points.
    pub fn is_complete(&self) -> bool {
        matches!(self.stage, Stage::Done | Stage::Remeasuring)
    }

    /// Returns the setting to put in force now; `None` once everything is measured.
    pub fn wanted(&self) -> Option<&Setting> {
        self.setting_of(self.stage)
    }

    fn setting_of(&self, stage: Stage) -> Option<&Setting> {
        match stage {
            Stage::Sweep { group, index } => self.limit_steps.get(group)?.get(index),
            Stage::Clocks { index } => self.clocks.get(index),
            Stage::Closing => Some(self.ceiling()),
            Stage::Remeasuring => self.remeasuring.as_ref(),
            Stage::Done => None,
        }
    }

    /// Returns the highest setting, the reference of every slowdown.
    pub fn ceiling(&self) -> &Setting {
        &self.limit_steps[0][0]
    }

    /// Returns the record to store for later runs.
    pub fn record(&self) -> &Record {
        &self.record
    }

    /// Returns and clears the notes for the job's event log, oldest first.
    pub fn take_notes(&mut self) -> Vec<String> {
        std::mem::take(&mut self.notes)
    }

    /// Returns whether it measures or has measured locked clocks.
    pub fn uses_clocks(&self) -> bool {
        !self.clocks.is_empty()
    }

    /// Continues without locked clocks because the daemon may not lock them. Measurements at locked clocks stay in the
    /// record for later runs.
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

    /// Returns the profile measured so far: the ceiling, then limits, then clocks in descending order. Empty until the
    /// ceiling is measured.
    pub fn profile(&self) -> &Profile {
        self.profile.get_or_init(|| self.measured_profile())
    }

    pub(super) fn measured_profile(&self) -> Profile {
        let mut points = self.known_points();
        // Limits that cannot bind are copies of the ceiling; a cap that counts limits needs them.
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

    /// Returns the estimates that separate pauses from training. A rate from few and unequal chunks may contain pauses,
    /// so the larger of its own error and the pooled error applies.
    pub fn setting_estimates(&self) -> Vec<(Setting, SettingEstimate)> {
        let known = |point: &OperatingPoint| {
            let own = self.stats(&point.setting).map_or(0.0, |stats| stats.throughput.relative_error().unwrap_or(1.0));
            let Estimate { mean: throughput, relative_error } = point.throughput;
            let estimate = SettingEstimate { throughput, error: relative_error.max(own), power: point.power.mean };
            (point.setting.clone(), estimate)
        };
        self.profile().points.iter().map(known).collect()
    }

    /// Returns the measured points, and for unequal GPUs those inferred from the groups' sweeps.
    fn known_points(&self) -> Vec<OperatingPoint> {
        let known = |setting: &Setting| self.known(setting);
        let Some(top) = known(self.ceiling()) else { return Vec::new() };
        let error = top.throughput.relative_error;
        let mut points = vec![top];
        if let [only] = self.limit_steps.as_slice() {
            points.extend(only[1..].iter().filter_map(known));
        } else {
            let inferred = steps::equalised(&self.group_curves(), error.max(self.settings.standard_error));
            points.extend(inferred.into_iter().map(|p| known(&p.setting).unwrap_or(p)));
        }
        points.extend(self.clocks.iter().skip(1).filter_map(known));
        points
    }

    /// Records a snapshot of the GPUs. Call it at each tick and right before [`Self::report`].
    pub fn observe(&mut self, snapshot: GpuSnapshot) {
        self.charge(snapshot.at, snapshot.setting.as_ref());
        let Some(setting) = snapshot.setting.filter(|_| !snapshot.unusable) else {
            self.active = None;
            return;
        };
        if self.active.as_ref().is_none_or(|h| h.setting != setting) {
            let baseline = self.stats(&setting).and_then(PointStats::operating_point);
            self.active = Some(ActiveMeasurement {
                since: snapshot.at,
                report: None,
                energy: None,
                pending: (Seconds::ZERO, vec![Joules::ZERO; setting.len()]),
                capped: false,
                waited: false,
                paused: Dip::default(),
                ends_low: false,
                began_low: false,
                holds_beginning: false,
                measurement: None,
                baseline: baseline.map(|p| Baseline { throughput: p.throughput.mean, power: p.power.mean }),
                recent: DriftWindow::default(),
                setting,
            });
        }
        let settle = self.settings.settle_s;
        let Some(active) = self.active.as_mut().filter(|h| snapshot.at.since(h.since) >= settle) else { return };
        active.capped |= snapshot.capped;
        if let Some((then, before)) = &active.energy {
            active.pending.0 += snapshot.at.since(*then);
            for ((sum, now), before) in active.pending.1.iter_mut().zip(&snapshot.energy).zip(before) {
                *sum += *now - *before;
            }
        }
        active.energy = Some((snapshot.at, snapshot.energy));
    }

    /// Excludes pauses detected in the power since the last report from the chunk that the next report ends.
    pub fn exclude_pauses(&mut self, newest: LatestPauses) {
        if let Some(active) = &mut self.active {
            let was_low = std::mem::replace(&mut active.ends_low, newest.ends_low);
            active.holds_beginning |= was_low && newest.paused.span > Seconds::ZERO;
            active.paused.add(newest.paused);
        }
    }

    /// Records a progress report. Reports must arrive in order.
    pub fn report(&mut self, report: Report) {
        let since = self.last_report.replace(report.received).map(|last| report.received.since(last));
        if let Some(since) = since {
            self.note_spacing(since);
        }
        self.pass_time(since.unwrap_or_default().min(LONGEST_STEP));
        let settle = self.settings.settle_s;
        let settled = self.active.as_mut().filter(|h| report.received.since(h.since) >= settle);
        let Some(active) = settled else { return };
        let span = active.report.map(|last| match (report.at, last.at) {
            (Some(now), Some(then)) => now - then,
            _ => report.received.since(last.received),
        });
        let (last, span) = match (active.report, span) {
            (Some(last), Some(span)) if span >= Seconds::ZERO => (last, span),
            _ => {
                active.report = Some(report);
                // Energy and pauses before the first report belong to no chunk.
                active.pending = (Seconds::ZERO, vec![Joules::ZERO; active.setting.len()]);
                (active.paused, active.ends_low, active.began_low) = (Dip::default(), false, false);
                active.holds_beginning = false;
                return;
            }
        };
        // A pause belongs to the chunk that ends with the first progress after it.
        if report.samples <= last.samples {
            active.waited = true;
            self.advance();
            return;
        }
        if span < CHUNK {
            return;
        }
        active.report = Some(report);
        let (energy_span, energy) =
            std::mem::replace(&mut active.pending, (Seconds::ZERO, vec![Joules::ZERO; active.setting.len()]));
        let loose = !std::mem::take(&mut active.capped);
        let (waited, paused) = (std::mem::take(&mut active.waited), std::mem::take(&mut active.paused));
        let chunk = Chunk { span, done: report.samples - last.samples, energy_span, energy, loose, waited };
        let ends_low = std::mem::take(&mut active.ends_low);
        // If power is low at the end of a chunk and no pause follows, the counter was late and the next chunk contains
        // the missing energy. Excluding only one of them would bias the power.
        let holds_rest = std::mem::replace(&mut active.began_low, ends_low) && paused.span <= Seconds::ZERO;
        let setting = active.setting.clone();
        let holds_beginning = std::mem::take(&mut active.holds_beginning);
        if let Some(chunk) = chunk.without(paused).filter(|_| !ends_low && !holds_rest && !holds_beginning) {
            self.add_chunk(&setting, chunk);
        }
        self.advance();
    }

    fn add_chunk(&mut self, setting: &Setting, chunk: Chunk) {
        self.profile.take();
        let closing = self.stage == Stage::Closing && setting == self.ceiling();
        // Rates below a fifth of the slowest known setting are not training.
        let slowest = self.record.points.iter().filter_map(|p| p.throughput.rate()).reduce(f64::min);
        let least = 0.2 * slowest.unwrap_or(0.0);
        let known = if closing { self.closing.clone() } else { self.stats(setting).cloned() };
        let Some(active) = self.active.as_mut() else { return };
        let mut measurement = active.measurement.take().filter(|v| v.closing == closing);
        let measurement = measurement.get_or_insert_with(|| {
            Measurement::new(known.unwrap_or_else(|| PointStats::new(setting.clone())), closing)
        });
        let verdict = measurement.add(chunk.clone(), least);
        let stats = measurement.stats(least);
        active.measurement = Some(measurement.clone());
        match verdict {
            ChunkVerdict::Training => self.far_below = Seconds::ZERO,
            ChunkVerdict::Pause => {}
            ChunkVerdict::Slow => self.far_below += chunk.span,
        }
        // A record of an earlier version does not list its GPUs; it must not list only the new ones.
        if self.record.points.is_empty() || !self.record.boards.is_empty() {
            let new = self.boards.iter().filter(|board| !self.record.boards.contains(*board));
            let new: Vec<GpuId> = new.cloned().collect();
            self.record.boards.extend(new);
        }
        if closing {
            self.closing = Some(stats);
        } else {
            *self.stats_mut(setting) = stats;
        }
        if self.stage != Stage::Done {
            return;
        }
        if verdict == ChunkVerdict::Training {
            self.watch_drift(chunk);
        } else if self.far_below >= self.settings.drift_s * 2.0 {
            self.profile_again("progress stays far below the profile".into());
        }
    }

    fn watch_drift(&mut self, chunk: Chunk) {
        let rested = self.since_sweep >= self.sweep_time * DRIFT_PAUSE;
        let Settings { drift, drift_s, .. } = self.settings;
        let Some(ActiveMeasurement { baseline: Some(known), recent, .. }) = self.active.as_mut() else { return };
        recent.push(chunk, drift_s);
        if let Some(why) = recent.drifted(*known, drift, drift_s).filter(|_| rested) {
            self.profile_again(why);
        }
    }

    fn profile_again(&mut self, why: String) {
        self.notes.push(format!("profiling again: {why}"));
        self.record = Record::default();
        if let Some(active) = &mut self.active {
            active.measurement = None;
        }
        self.restarts += 1;
        self.closing = None;
        self.skipped.clear();
        self.far_below = Seconds::ZERO;
        self.learning.abandoned.clear();
        self.learning.deferred = false;
        self.remeasuring = None;
        self.sweep_time = Seconds::ZERO;
        self.stage = Stage::Sweep { group: 0, index: 0 };
        self.stage_time = Seconds::ZERO;
    }

    fn pass_time(&mut self, span: Seconds) {
        self.reported += span;
        self.stage_time += span;
        match self.stage {
            Stage::Sweep { .. } | Stage::Clocks { .. } | Stage::Closing => self.sweep_time += span,
            Stage::Remeasuring => self.remeasured_time += span,
            Stage::Done => self.since_sweep += span,
        }
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

    /// Returns the noise of the job's throughput over all measurements; `None` while there are too few.
    fn noise(&self) -> Option<Noise> {
        let closing = self.closing.iter().map(|closing| &closing.throughput);
        Noise::pooled(self.record.points.iter().map(|p| &p.throughput).chain(closing))
    }

    /// Returns the noise at one setting, from that setting alone if it has enough data.
    pub fn noise_at(&self, setting: &Setting) -> Option<Noise> {
        let own = self.stats(setting).and_then(|p| Noise::pooled(std::iter::once(&p.throughput)));
        own.filter(Noise::is_well_known).or_else(|| self.noise())
    }

    /// Returns the relative standard error of a setting's throughput; 1 if the noise is unknown.
    fn throughput_error(&self, setting: &Setting) -> Option<f64> {
        let seconds = Seconds::new(self.stats(setting)?.throughput.seconds());
        Some(self.noise_at(setting).map_or(1.0, |noise| noise.error_after(seconds)))
    }

    /// Returns the operating point measured at a setting.
    fn known(&self, setting: &Setting) -> Option<OperatingPoint> {
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

fn describe(setting: &Setting) -> String {
    let limits: Vec<String> = setting.iter().map(ToString::to_string).collect();
    limits.join(" + ")
}

#[cfg(test)]
#[path = "profiler_tests.rs"]
mod tests;
