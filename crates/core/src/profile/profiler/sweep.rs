//! Order of a profiler's measurements.

use super::{Profiler, Settings, Stage};
use crate::domain::{OperatingPoint, PowerLimit, SetPoint};
use crate::profile::drift::DriftWindow;
use crate::profile::steps::{Setting, joined};
use crate::time::Monotonic;
use crate::units::{Seconds, Watts};

/// Duration of a re-measurement in a long job.
const REMEASUREMENT: Seconds = Seconds::new(60.0);
/// Minimum ratio of a job's duration to the duration of a re-measurement.
const JOB_PER_REMEASUREMENT: f64 = 60.0;
/// Ratio of a GPU's mean power to its limit below which the limit may be without effect.
const LOOSE: f64 = 0.9;
/// Ratio of a limit to a GPU's mean power above which the limit may be without effect.
const ABOVE_DRAW: f64 = 1.05;
/// Relative differences of throughput and of power up to which two settings count as equal.
const SAME_THROUGHPUT: f64 = 0.003;
const SAME_POWER: f64 = 0.01;

impl Profiler {
    /// Moves on from stage to stage until one is not yet complete.
    pub(super) fn advance(&mut self) {
        loop {
            let next = match self.stage {
                Stage::Sweep { .. } | Stage::Clocks { .. } => self.after_step(),
                Stage::Closing => self.after_closing(),
                Stage::Drifting => self.drifting_since.is_none().then_some(Stage::Done),
                Stage::Remeasuring => {
                    let left =
                        self.remeasuring.as_ref().is_none_or(|setting| self.learning.abandoned.contains(setting));
                    (left || self.stage_time >= self.remeasurement_length()).then_some(Stage::Done)
                }
                Stage::Done => self.resumed().or_else(|| {
                    self.remeasuring = self.remeasurement_due();
                    self.remeasuring.is_some().then_some(Stage::Remeasuring)
                }),
            };
            let Some(next) = next else { return };
            if self.stage == Stage::Closing {
                self.since_sweep = Seconds::ZERO;
            }
            let swept = self.sweeps();
            self.profile.take();
            self.stage = next;
            // Chunks of a sweep are compared with the ceiling and mostly slower: keep them only if they show a faster job.
            if swept && !self.sweeps() && !self.recent.is_faster(self.settings.drift) {
                self.recent = DriftWindow::default();
            }
            self.stage_time = Seconds::ZERO;
        }
    }

    fn after_step(&mut self) -> Option<Stage> {
        let setting = self.wanted()?.clone();
        if !self.is_known(&setting) {
            // A setting without a usable measurement after this time is skipped; heat is the most likely cause.
            let patience = self.longest_measurement().max(self.shortest_measurement() * 2.0) * 1.5;
            if self.stage_time < patience || setting == *self.ceiling() {
                return None;
            }
            self.notes.push(format!("skipped {}: no usable measurement in the time allowed", joined(&setting)));
            self.skipped.push(setting.clone());
        }
        let further = self.next_step(self.stage);
        self.learning.deferred |= further.is_some_and(|stage| !self.may_begin(stage));
        if let Some(further) = further.filter(|_| !self.learning.deferred) {
            return Some(further);
        }
        if let Stage::Sweep { group, .. } = self.stage
            && !self.learning.deferred
        {
            if group + 1 < self.limit_steps.len() {
                return Some(Stage::Sweep { group: group + 1, index: 0 });
            }
            let loose = self.ceiling_is_loose();
            if loose && self.clocks.len() > 1 {
                self.notes.push("the power limit does not slow the job: measuring locked clocks too".into());
                return Some(Stage::Clocks { index: 1 });
            }
            if loose && self.groups.len() > 1 && self.groups.iter().any(|g| g.clocks.is_some()) {
                let note = "the power limit does not slow the job; clocks are not locked because the job's GPUs are of different models";
                self.notes.push(note.into());
            }
        }
        let nothing_new = self.learning.deferred && setting == *self.ceiling();
        Some(if self.is_closed() || nothing_new { Stage::Done } else { Stage::Closing })
    }

    /// Returns true if the job's slack (the time that it may still lose) now covers measuring the setting of a stage.
    /// Measuring the ceiling (maximum usable limits) costs no slack.
    fn may_begin(&self, stage: Stage) -> bool {
        self.setting_of(stage).is_some_and(|setting| setting == self.ceiling() || self.is_affordable(setting))
    }

    /// Returns the stage at which a sweep that was interrupted for lack of slack continues; `None` if there is no such
    /// sweep, or still too little slack.
    fn resumed(&mut self) -> Option<Stage> {
        // After a change, measurements of both works make a measured setting seem unmeasured.
        if !self.learning.deferred || self.is_closed() || self.may_have_changed() {
            return None;
        }
        let sweeps = (0..self.limit_steps.len()).map(|group| Stage::Sweep { group, index: 0 });
        let stage = sweeps.filter_map(|stage| self.next_step(stage)).next().or_else(|| self.next_clock())?;
        let begins = self.may_begin(stage);
        self.learning.deferred = !begins;
        begins.then_some(stage)
    }

    /// Returns the stage of the first clock that is still to be measured; `None` if there is none.
    fn next_clock(&self) -> Option<Stage> {
        let open = |i: &usize| !self.is_known(&self.clocks[*i]);
        let first = (1..self.clocks.len()).find(open).filter(|_| self.ceiling_is_loose())?;
        self.next_step(Stage::Clocks { index: first - 1 })
    }

    /// Returns true if a sweep need not measure a setting: it is measured, or its time budget was spent.
    fn is_known(&self, setting: &Setting) -> bool {
        self.is_measured(setting) || self.learning.abandoned.contains(setting)
    }

    /// Returns the stage of the next setting in the sweep of `stage`; `None` if none is left, or if the last settings
    /// were worse than those above them, so that lower ones are of no use.
    fn next_step(&self, stage: Stage) -> Option<Stage> {
        match stage {
            Stage::Clocks { index } => {
                let further = index + 1 < self.clocks.len() && !self.worse_twice(&self.clocks[..=index]);
                further.then_some(Stage::Clocks { index: index + 1 })
            }
            Stage::Sweep { group, .. } => {
                let (steps, loose) = (&self.limit_steps[group], self.loose_limits());
                let open = |i: &usize| !self.is_known(&steps[*i]) && !loose.contains(&steps[*i][group].limit);
                let felt_by_peaks = self.probe().and_then(|probe| (1..=probe).rev().find(open));
                let index = felt_by_peaks.or_else(|| (1..steps.len()).find(open))?;
                let enough = self.worse_twice(&steps[..index]) || self.worse_as_expected(&steps[..index]);
                (!enough).then_some(Stage::Sweep { group, index })
            }
            _ => None,
        }
    }

    /// Returns the index of the lowest limit above the job's power if the maximum usable limit has no effect. The sweep
    /// measures that limit first, and then higher ones because power peaks may reach them, until one has no effect: the
    /// limits above that one have none either.
    fn probe(&self) -> Option<usize> {
        let ([steps], true) = (self.limit_steps.as_slice(), self.ceiling_is_loose()) else { return None };
        let draw = *self.ceiling_draws()?.first()?;
        (1..steps.len()).rev().find(|i| steps[*i][0].limit.watts() > draw * ABOVE_DRAW)
    }

    /// Returns true if the record contains a complete sweep from the present ceiling (maximum usable limits).
    pub(super) fn is_closed(&self) -> bool {
        self.record.closed_at.as_ref() == Some(self.ceiling())
    }

    /// Returns true if the maximum usable limit has no effect: the job draws well below it, and no GPU reports that the
    /// limit lowers its clocks. Slightly lower limits then have no effect either, so the sweep measures clocks too.
    fn ceiling_is_loose(&self) -> bool {
        let Some((top, draws)) = self.stats(self.ceiling()).zip(self.ceiling_draws()) else { return false };
        let far_below = |(set, draw): (&SetPoint, &Watts)| *draw < set.limit.watts() * LOOSE;
        top.is_loose() && self.ceiling().iter().zip(&draws).all(far_below)
    }

    /// Returns the limits without effect, in descending order: those at or above a limit that was measured to have
    /// none, except the ceiling. Empty for unequal GPUs.
    pub(super) fn loose_limits(&self) -> Vec<PowerLimit> {
        let ([steps], true) = (self.limit_steps.as_slice(), self.ceiling_is_loose()) else { return Vec::new() };
        let limits = &steps[1.min(steps.len())..];
        let unfelt = limits.iter().rposition(|setting| self.changes_nothing(setting));
        limits[..unfelt.map_or(0, |last| last + 1)].iter().map(|setting| setting[0].limit).collect()
    }

    /// Returns true if a measured setting has the throughput and power of the ceiling, within their errors.
    fn changes_nothing(&self, setting: &Setting) -> bool {
        let known = |s| self.stats(s).filter(|s| s.is_loose()).and_then(|_| self.point_at(s));
        let (Some(top), Some(here), true) = (known(self.ceiling()), known(setting), self.is_measured(setting)) else {
            return false;
        };
        let (e0, e1) = (top.throughput.relative_error, here.throughput.relative_error);
        let margin = (2.0 * (e0 * e0 + e1 * e1).sqrt()).max(SAME_THROUGHPUT);
        let (throughput, power) = (here.throughput.mean / top.throughput.mean, here.power.mean / top.power.mean);
        (throughput - 1.0).abs() <= margin && (power - 1.0).abs() <= SAME_POWER
    }

    /// Returns the mean power per GPU of each group at the ceiling.
    fn ceiling_draws(&self) -> Option<Vec<Watts>> {
        let top = self.stats(self.ceiling())?;
        let each = top.power.iter().zip(&self.groups);
        each.map(|(power, group)| Some(Watts::new(power.rate()? / f64::from(group.gpus.max(1))))).collect()
    }

    pub(super) fn is_measured(&self, setting: &Setting) -> bool {
        if self.skipped.contains(setting) {
            return true;
        }
        let Some(stats) = self.stats(setting).filter(|s| s.operating_point().is_some()) else { return false };
        let (seconds, count) = (Seconds::new(stats.throughput.seconds()), stats.throughput.count());
        // A complete sweep stays complete although the noise estimate keeps changing.
        if self.is_closed() && count >= 2.0 {
            return true;
        }
        let error = self.throughput_error(setting);
        (seconds >= self.settings.window_s && count >= 2.0 && error.is_some_and(|e| e <= self.wanted_error()))
            || (seconds >= self.longest_measurement() && count >= 2.0)
    }

    /// Returns true if each of the last two settings was worse than the one before it, in energy and in time.
    fn worse_twice(&self, visited: &[Setting]) -> bool {
        matches!(self.known_of(visited).as_slice(), [.., a, b, c] if is_worse(a, b) && is_worse(b, c))
    }

    /// Returns true if the last setting was worse than the one before it, and the limit of that earlier one is at or
    /// below the limit that is expected to be most efficient.
    fn worse_as_expected(&self, visited: &[Setting]) -> bool {
        let known = self.known_of(visited);
        let (Some(expected), [.., a, b]) = (self.expected, known.as_slice()) else { return false };
        matches!(a.setting.as_slice(), [only] if only.limit <= expected) && is_worse(a, b)
    }

    fn known_of(&self, settings: &[Setting]) -> Vec<OperatingPoint> {
        settings.iter().filter_map(|s| self.point_at(s)).collect()
    }

    fn after_closing(&mut self) -> Option<Stage> {
        let closing = self.closing.as_ref()?;
        let opening = self.stats(self.ceiling())?;
        let (first, last) = (opening.throughput, closing.throughput);
        let seconds = Seconds::new(last.seconds());
        if seconds < self.settings.window_s || last.count() < 2.0 {
            return None;
        }
        let noise = self.noise()?;
        let [e0, e1] = [first, last].map(|rate| noise.error_after(Seconds::new(rate.seconds())));
        if e1 > self.wanted_error() && seconds < self.longest_measurement() {
            return None;
        }
        let trend = last.rate()? / first.rate()? - 1.0;
        let significant = trend.abs() > 3.0 * (e0 * e0 + e1 * e1).sqrt() && trend.abs() > 0.005;
        let percent = 100.0 * trend;
        if significant && trend.abs() > self.settings.drift {
            let now = self.last_report?;
            // The time of the change is unknown. Assume the one with the most lost time.
            let since = if trend < 0.0 { Seconds::ZERO } else { self.sweep_time };
            let since = Monotonic::default().after((now.since(Monotonic::default()) - since).max(Seconds::ZERO));
            let why = format!("throughput at the maximum usable limit changed by {percent:+.1} % during the sweep");
            if self.may_sweep_early() {
                self.profile_again(why, since);
                return None;
            }
            if self.learning.slack.is_some() {
                // Settings measured before the change do not fit those measured after it.
                let ceiling = self.ceiling().clone();
                self.record.points.retain(|point| point.setting == ceiling);
                self.record.closed_at = None;
                self.skipped.clear();
                self.learning.abandoned.clear();
                self.learning.deferred = true;
                self.closing = None;
                self.note_drift(&why, since);
                return Some(Stage::Drifting);
            }
        }
        let closing = self.closing.take()?;
        let ceiling = self.ceiling().clone();
        let opening = self.stats_mut(&ceiling);
        if significant {
            // The rest of the run is as warm as the end of the sweep, so only the second measurement counts.
            *opening = closing;
        } else {
            opening.merge(&closing);
        }
        if significant {
            self.notes.push(format!(
                "throughput at the maximum usable limit changed by {percent:+.2} % from start to end of the sweep"
            ));
        }
        self.record.thermal_trend = Some(trend);
        self.record.closed_at = Some(ceiling).filter(|_| !self.learning.deferred);
        Some(Stage::Done)
    }

    /// Returns the duration of a re-measurement: a minute, or a sixtieth of a job shorter than an hour.
    fn remeasurement_length(&self) -> Seconds {
        self.full_duration().map_or(REMEASUREMENT, |duration| REMEASUREMENT.min(duration / JOB_PER_REMEASUREMENT))
    }

    /// Returns the setting to re-measure now: the one with the largest error among those that a plan may use, from the
    /// ceiling (maximum usable limits) down to the most efficient. `None` if the time budget of re-measurements is
    /// spent, or all errors are small enough. The ceiling's error counts three times, since it adds to every slowdown.
    /// Plans avoid a point that looks bad because of noise, so only re-measurement can correct such a point.
    fn remeasurement_due(&self) -> Option<Setting> {
        let Settings { standard_error, visit_share, .. } = self.settings;
        // Right after a sweep, re-measurements may take as long as the sweep: plans from inaccurate points cost more.
        let at_once =
            self.full_duration().map_or(self.sweep_time, |duration| self.sweep_time.min(duration * visit_share));
        let length = self.remeasurement_length();
        if self.reported * visit_share + at_once - self.remeasured_time < length || length < self.shortest_measurement()
        {
            return None;
        }
        let points = self.known_points();
        let energy = |p: &OperatingPoint| p.power.mean.get() / p.throughput.mean.get();
        let best = points.iter().min_by(|a, b| energy(a).total_cmp(&energy(b)))?;
        let urgency = |(place, point): (usize, &OperatingPoint)| {
            let error = point.throughput.relative_error;
            let (good_enough, weight) =
                if place == 0 { (self.wanted_reference_error(), 3.0) } else { (standard_error / 3.0, 1.0) };
            let may_cost = !self.learning.abandoned.contains(&point.setting) && self.is_affordable(&point.setting);
            let affordable = place == 0 || may_cost;
            (error > good_enough && affordable).then_some((error * weight, point.setting.clone()))
        };
        let usable = points.iter().enumerate().filter(|(_, p)| p.throughput.mean >= best.throughput.mean);
        usable.filter_map(urgency).max_by(|a, b| a.0.total_cmp(&b.0)).map(|(_, setting)| setting)
    }
}

/// Returns true if a setting costs more energy per sample *and* more time than the previous one, both by more than two
/// standard errors.
fn is_worse(before: &OperatingPoint, after: &OperatingPoint) -> bool {
    let (e0, e1) = (before.throughput.relative_error, after.throughput.relative_error);
    let margin = 2.0 * (e0 * e0 + e1 * e1).sqrt();
    let energy = |p: &OperatingPoint| p.power.mean.get() / p.throughput.mean.get();
    energy(after) > energy(before) * (1.0 + margin) && after.throughput.mean < before.throughput.mean * (1.0 - margin)
}
