//! Measurements: GPU readings and progress reports become chunks (progress and energy between two reports), which
//! refine the points of the profile or reveal drift.

use super::state::ActiveMeasurement;
use super::{GpuSnapshot, Profiler, Report, Settings, Stage};
use crate::domain::GpuId;
use crate::profile::dips::Dip;
use crate::profile::drift::{Baseline, DriftWindow};
use crate::profile::measurement::{ChunkVerdict, Measurement};
use crate::profile::point::{Chunk, PointStats, Record};
use crate::profile::stall_detector::LatestPauses;
use crate::profile::steps::Setting;
use crate::time::Monotonic;
use crate::units::{Joules, Seconds};

/// Minimum time between the two reports that delimit a chunk: single training steps are not independent samples.
const CHUNK: Seconds = Seconds::new(1.0);
/// Maximum time that a gap between two reports counts for, because the job may have paused in it.
const LONGEST_STEP: Seconds = Seconds::new(60.0);
/// Minimum ratio of the time since a sweep to the sweep's duration for drift to cause a new sweep.
const DRIFT_PAUSE: f64 = 10.0;

impl Profiler {
    /// Records a snapshot of the job's GPUs. Call it at each tick and right before [`Self::report`].
    pub fn observe(&mut self, snapshot: GpuSnapshot) {
        self.steered = snapshot.steered;
        self.charge(snapshot.at, snapshot.setting.as_ref());
        if snapshot.unusable {
            self.recent = DriftWindow::default();
        }
        let Some(setting) = snapshot.setting.filter(|_| !snapshot.unusable) else {
            self.active = None;
            return;
        };
        if self.active.as_ref().is_none_or(|h| h.setting != setting) {
            let baseline = self.baseline(&setting);
            self.slow.clear();
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
                baseline,
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

    /// Excludes, from the current measurement, the pauses that the job's power showed since its last report. Call this
    /// right before [`Self::report`].
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
        let chunk = Chunk { span, samples_done: report.samples - last.samples, energy_span, energy, loose, waited };
        let ends_low = std::mem::take(&mut active.ends_low);
        // If power is low at the end of a chunk and no pause follows, the energy counter was late and the next chunk
        // contains the missing energy. Excluding only one of the two would bias the power.
        let holds_rest = std::mem::replace(&mut active.began_low, ends_low) && paused.span <= Seconds::ZERO;
        let setting = active.setting.clone();
        let holds_beginning = std::mem::take(&mut active.holds_beginning);
        if let Some(chunk) = chunk.without(paused).filter(|_| !ends_low && !holds_rest && !holds_beginning) {
            self.add_chunk(&setting, last.received, chunk);
        }
        self.advance();
    }

    /// Adds a chunk (time between two reports) at `setting`, of which the first report was received at the time `from`.
    fn add_chunk(&mut self, setting: &Setting, from: Monotonic, chunk: Chunk) {
        self.profile.take();
        let closing = self.stage == Stage::Closing && setting == self.ceiling();
        // A rate below a fifth of the slowest known setting's is not training.
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
            ChunkVerdict::Training | ChunkVerdict::Changed => self.far_below = Seconds::ZERO,
            ChunkVerdict::Pause => {}
            ChunkVerdict::Slow => self.far_below += chunk.span,
        }
        // A record written by an earlier version lists no GPUs. New GPUs are not added to it, because it would then
        // seem that they alone measured the record.
        if self.record.points.is_empty() || !self.record.gpus.is_empty() {
            let new = self.gpus.iter().filter(|gpu| !self.record.gpus.contains(*gpu));
            let new: Vec<GpuId> = new.cloned().collect();
            self.record.gpus.extend(new);
        }
        match self.stage {
            // The profile stays as it was: the job may return to it.
            Stage::Drifting => {}
            _ if closing => self.closing = Some(stats),
            _ => *self.stats_mut(setting) = stats,
        }
        if self.sweeps() {
            self.slow.clear();
            self.watch_for_faster_work(from, &chunk);
        } else if self.stage == Stage::Closing {
            self.slow.clear();
        } else if matches!(verdict, ChunkVerdict::Training | ChunkVerdict::Changed) {
            let slow = std::mem::take(&mut self.slow);
            let changed = slow.into_iter().filter(|_| verdict == ChunkVerdict::Changed);
            self.watch_drift(changed.chain([(from, chunk)]));
        } else if self.far_below >= self.detection_time() && !self.slow.is_empty() {
            let since = self.slow.first().map_or(from, |(since, _)| *since);
            let why = "the job has been much slower than its profile".to_owned();
            if self.is_rested() || self.may_sweep_early() || self.learning.slack.is_none() {
                self.profile_again(why, since);
            } else {
                // Work from before the slow time does not show that it has ended.
                self.recent = DriftWindow::default();
                self.wait_at_ceiling(&why, since);
            }
        } else if verdict == ChunkVerdict::Slow {
            self.slow.push((from, chunk));
        }
    }

    /// Adds chunks (times between two reports), each with the time of its first report. If the job has drifted from its
    /// profile, begins a new sweep, or keeps the job at the ceiling (maximum usable limits) until one is due.
    fn watch_drift(&mut self, chunks: impl Iterator<Item = (Monotonic, Chunk)>) {
        let rested = self.is_rested();
        let Settings { drift, drift_s, .. } = self.settings;
        let known = self.active.as_ref().and_then(|active| active.baseline.or_else(|| self.baseline(&active.setting)));
        let (Some(active), Some(known)) = (&mut self.active, known) else {
            // A cap may keep the job at a setting that was never measured.
            if let Some(since) = self.drifting_since.filter(|_| rested && self.stage == Stage::Drifting) {
                self.profile_again("the job differed from its profile".into(), since);
            }
            return;
        };
        active.baseline = Some(known);
        chunks.for_each(|(from, chunk)| self.recent.push(from, &chunk, known, drift_s));
        let Some(found) = self.recent.drifted(drift, drift_s) else {
            if self.stage != Stage::Drifting || self.recent.agrees(drift, drift_s) {
                self.drifting_since = None;
            }
            return;
        };
        let since = self.drifting_since.unwrap_or(found.since);
        let differs = found.throughput.is_ne();
        self.drifting_since = self.drifting_since.or(differs.then_some(since));
        // Against the old reference, time lost by a job that became faster would count as time gained.
        if rested || found.throughput.is_gt() && self.may_sweep_early() {
            self.profile_again(found.why, since);
        } else if differs && self.learning.slack.is_some() {
            self.wait_at_ceiling(&found.why, since);
        }
    }

    /// Returns true if the last sweep ended long enough ago for a new one.
    fn is_rested(&self) -> bool {
        self.since_sweep >= self.sweep_time * DRIFT_PAUSE
    }

    /// Keeps the job, which differs from its profile since the time `since`, at the ceiling (maximum usable limits) until a
    /// new sweep is due.
    fn wait_at_ceiling(&mut self, why: &str, since: Monotonic) {
        if self.stage != Stage::Drifting {
            self.note_drift(why, since);
            self.enter(Stage::Drifting);
        }
    }

    /// Records that the job differs from its profile since the time `since`, and says that it is kept at the ceiling
    /// (maximum usable limits).
    pub(super) fn note_drift(&mut self, why: &str, since: Monotonic) {
        self.drifting_since.get_or_insert(since);
        self.notes.push(format!("at the maximum usable limit: {why}"));
    }

    /// Returns true if the newest reports differ from the profile, though maybe not for long.
    pub(super) fn may_have_changed(&mut self) -> bool {
        let Settings { drift, drift_s, .. } = self.settings;
        self.is_drifting() || self.recent.newest_differs(drift, drift_s)
    }

    /// Begins a new sweep if the job is faster in this one than at the ceiling (maximum usable limits) before: no setting
    /// is, so the job has changed.
    fn watch_for_faster_work(&mut self, from: Monotonic, chunk: &Chunk) {
        let Settings { drift, drift_s, .. } = self.settings;
        let Some(ceiling) = self.baseline(self.ceiling()) else { return };
        self.recent.push(from, chunk, ceiling, drift_s);
        let found = self.recent.drifted(drift, drift_s).filter(|found| found.throughput.is_gt());
        if let Some(found) = found.filter(|_| self.may_sweep_early()) {
            self.profile_again(found.why, found.since);
        }
    }

    /// Returns true if a new sweep may begin soon after the last one: none was caused by a change of the job before, or
    /// the last such sweep began at least [`DRIFT_PAUSE`] sweep durations ago.
    pub(super) fn may_sweep_early(&self) -> bool {
        self.restarts == 0 || self.since_restart >= self.sweep_time * DRIFT_PAUSE
    }

    fn baseline(&self, setting: &Setting) -> Option<Baseline> {
        let point = self.stats(setting).and_then(PointStats::operating_point)?;
        Some(Baseline { throughput: point.throughput.mean, power: point.power.mean })
    }

    /// Begins a new profile because the job differs from its profile since the time `since`.
    pub(super) fn profile_again(&mut self, why: String, since: Monotonic) {
        self.notes.push(format!("profiling again: {why}"));
        self.record = Record::default();
        if let Some(active) = &mut self.active {
            active.baseline = None;
        }
        self.recent = DriftWindow::default();
        self.drifting_since = None;
        self.slow.clear();
        self.changed_at = Some(since);
        self.restarts += 1;
        self.since_restart = Seconds::ZERO;
        self.closing = None;
        self.skipped.clear();
        self.far_below = Seconds::ZERO;
        self.learning.abandoned.clear();
        self.learning.deferred = false;
        self.remeasuring = None;
        self.sweep_time = Seconds::ZERO;
        self.enter(Stage::Sweep { group: 0, index: 0 });
    }

    fn enter(&mut self, stage: Stage) {
        if let Some(active) = &mut self.active {
            active.measurement = None;
        }
        (self.stage, self.stage_time) = (stage, Seconds::ZERO);
    }

    fn pass_time(&mut self, span: Seconds) {
        self.reported += span;
        self.since_restart += span;
        if !self.steered && self.wanted().is_some() {
            return;
        }
        self.stage_time += span;
        match self.stage {
            Stage::Sweep { .. } | Stage::Clocks { .. } | Stage::Closing => self.sweep_time += span,
            Stage::Remeasuring => self.remeasured_time += span,
            Stage::Done | Stage::Drifting => self.since_sweep += span,
        }
    }
}
