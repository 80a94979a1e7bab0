//! The just-in-time profiler: a state machine that is told what happens and says which setting it wants next.
//!
//! One sweep from the ceiling down, closing with the ceiling again; afterwards the points known worst are visited now
//! and then. At each setting it lets the board settle, then
//! measures throughput from the job's own progress and power from the energy counters until the standard error is
//! small enough. It stops going down once two successive limits are worse in energy *and* time. Later progress at any
//! setting keeps refining that setting's point; if it drifts away, the job is profiled again.

use super::drift::{Known, Recent};
use super::ladder::{self, GroupPoint, GroupRange, Setting};
use super::point::{Chunk, PointStats, Record};
use super::progress::STALL;
use super::settings::Settings;
use crate::clock::Monotonic;
use crate::domain::{OperatingPoint, Profile};
use crate::units::{Joules, Samples, SamplesPerSecond, Seconds, Watts};

/// Progress reports closer together than this are taken as one: single steps are not independent readings.
const CHUNK: Seconds = Seconds::new(1.0);
/// A longer silence counts as this much time of the job: it may have been a pause.
const LONGEST_STEP: Seconds = Seconds::new(60.0);
/// A mean of fewer chunks has no error worth the name.
const MIN_CHUNKS: f64 = 5.0;
/// How long a later visit to a point lasts.
const VISIT: Seconds = Seconds::new(60.0);
/// At most one part in this many of a job's time goes into profiling it again after drift.
const DRIFT_PAUSE: f64 = 10.0;

/// What is known of a job's boards at one moment.
#[derive(Clone, Debug)]
pub struct Sight {
    /// When.
    pub at: Monotonic,
    /// The setting that is in force on all boards, read back from them; `None` if there is no such one.
    pub setting: Option<Setting>,
    /// Whether heat or hardware slows a board, so that nothing measured counts.
    pub void: bool,
    /// Cumulative energy of each group's boards.
    pub energy: Vec<Joules>,
}

/// A job's word on its progress.
#[derive(Clone, Copy, Debug)]
pub struct Report {
    /// When it came, on the daemon's clock.
    pub received: Monotonic,
    /// When it was written, on the client's clock, so that windows are exact; if it gave any.
    pub at: Option<Seconds>,
    /// Cumulative samples.
    pub samples: Samples,
}

/// Where in its sweep a profiler is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Stage {
    /// Measuring the `index`th setting of one group's ladder.
    Sweep {
        /// The group whose limit is lowered.
        group: usize,
        /// From 0 at the ceiling.
        index: usize,
    },
    /// Measuring the ceiling once more.
    Closing,
    /// Measuring the point that is known worst for another minute.
    Visiting,
    /// Everything is measured; refining and watching for drift.
    Done,
}

/// Settled measuring at one setting.
#[derive(Clone, Debug)]
struct Hold {
    setting: Setting,
    since: Monotonic,
    report: Option<Report>,
    energy: Option<(Monotonic, Vec<Joules>)>,
    pending: (Seconds, Vec<Joules>),
    /// The profile's point when this hold began, and the newest chunks since: for drift.
    baseline: Option<Known>,
    recent: Recent,
}

/// The just-in-time profiler of one job. Pure: it is told what happens, with times.
#[derive(Clone, Debug)]
pub struct Profiler {
    settings: Settings,
    ladders: Vec<Vec<Setting>>,
    record: Record,
    closing: Option<PointStats>,
    stage: Stage,
    /// Reported time since this stage began, useful or not.
    stage_time: Seconds,
    /// Settings that could not be measured, most often because of heat.
    skipped: Vec<Setting>,
    hold: Option<Hold>,
    last_report: Option<Monotonic>,
    sweep_time: Seconds,
    since_sweep: Seconds,
    /// All reported time, and the part of it spent on visits, the present one included.
    reported: Seconds,
    spent_on_visits: Seconds,
    visiting: Option<Setting>,
    far_below: Seconds,
    notes: Vec<String>,
}

impl Profiler {
    /// A profiler for boards in `groups`, starting from what earlier runs recorded.
    pub fn new(settings: Settings, groups: &[GroupRange], record: Record) -> Self {
        let ladders = ladder::ladders(groups, settings.step_w, settings.lowest_w);
        let mut profiler = Self {
            settings,
            ladders,
            record,
            closing: None,
            stage: Stage::Sweep { group: 0, index: 0 },
            stage_time: Seconds::ZERO,
            skipped: Vec::new(),
            hold: None,
            last_report: None,
            sweep_time: Seconds::ZERO,
            since_sweep: Seconds::ZERO,
            reported: Seconds::ZERO,
            spent_on_visits: Seconds::ZERO,
            visiting: None,
            far_below: Seconds::ZERO,
            notes: Vec::new(),
        };
        profiler.move_on();
        profiler
    }

    /// Where in the sweep it is.
    pub fn stage(&self) -> Stage {
        self.stage
    }

    /// Whether the sweep is done; visits may still make its points better.
    pub fn is_complete(&self) -> bool {
        matches!(self.stage, Stage::Done | Stage::Visiting)
    }

    /// The setting it wants to have in force now; `None` once everything is measured.
    pub fn wanted(&self) -> Option<&Setting> {
        match self.stage {
            Stage::Sweep { group, index } => self.ladders.get(group)?.get(index),
            Stage::Closing => Some(self.ceiling()),
            Stage::Visiting => self.visiting.as_ref(),
            Stage::Done => None,
        }
    }

    /// The highest setting: the reference of every slowdown.
    pub fn ceiling(&self) -> &Setting {
        &self.ladders[0][0]
    }

    /// What to keep for later runs.
    pub fn record(&self) -> &Record {
        &self.record
    }

    /// What happened that a person may want to know, oldest first; emptied by the call.
    pub fn take_notes(&mut self) -> Vec<String> {
        std::mem::take(&mut self.notes)
    }

    /// The profile as far as it is known: the ceiling first, then downwards. Empty until the ceiling is measured.
    pub fn profile(&self) -> Profile {
        let known = |setting: &Setting| self.stats(setting).and_then(PointStats::operating_point);
        let Some(top) = known(self.ceiling()) else { return Profile::default() };
        let error = top.throughput.relative_error;
        let mut points = vec![top];
        if let [only] = self.ladders.as_slice() {
            points.extend(only[1..].iter().filter_map(known));
        } else {
            let inferred = ladder::equalised(&self.group_curves(), error.max(self.settings.standard_error));
            points.extend(inferred.into_iter().map(|p| known(&p.setting).unwrap_or(p)));
        }
        Profile { points }
    }

    /// Tells what the boards show. Call it at each tick, and right before [`Self::report`].
    pub fn see(&mut self, sight: Sight) {
        let Some(setting) = sight.setting.filter(|_| !sight.void) else {
            self.hold = None;
            return;
        };
        if self.hold.as_ref().is_none_or(|h| h.setting != setting) {
            let baseline = self.stats(&setting).and_then(PointStats::operating_point);
            self.hold = Some(Hold {
                since: sight.at,
                report: None,
                energy: None,
                pending: (Seconds::ZERO, vec![Joules::ZERO; setting.len()]),
                baseline: baseline.map(|p| Known { throughput: p.throughput.mean, power: p.power.mean }),
                recent: Recent::default(),
                setting,
            });
        }
        let settle = self.settings.settle_s;
        let Some(hold) = self.hold.as_mut().filter(|h| sight.at.since(h.since) >= settle) else { return };
        if let Some((then, before)) = &hold.energy {
            hold.pending.0 += sight.at.since(*then);
            for ((sum, now), before) in hold.pending.1.iter_mut().zip(&sight.energy).zip(before) {
                *sum += *now - *before;
            }
        }
        hold.energy = Some((sight.at, sight.energy));
    }

    /// Tells a progress report. Reports must come in order.
    pub fn report(&mut self, report: Report) {
        let since = self.last_report.replace(report.received).map(|last| report.received.since(last));
        self.pass_time(since.unwrap_or_default().min(LONGEST_STEP));
        let settle = self.settings.settle_s;
        let settled = self.hold.as_mut().filter(|h| report.received.since(h.since) >= settle);
        let Some(hold) = settled else { return };
        let span = hold.report.map(|last| match (report.at, last.at) {
            (Some(now), Some(then)) => now - then,
            _ => report.received.since(last.received),
        });
        let (last, span) = match (hold.report, span) {
            (Some(last), Some(span)) if span >= Seconds::ZERO => (last, span),
            _ => {
                hold.report = Some(report);
                // Energy from before the first report belongs to no chunk.
                hold.pending = (Seconds::ZERO, vec![Joules::ZERO; hold.setting.len()]);
                return;
            }
        };
        if span < CHUNK {
            return;
        }
        hold.report = Some(report);
        let (energy_span, energy) =
            std::mem::replace(&mut hold.pending, (Seconds::ZERO, vec![Joules::ZERO; hold.setting.len()]));
        let chunk = Chunk { span, done: report.samples - last.samples, energy_span, energy };
        let setting = hold.setting.clone();
        self.take(&setting, chunk);
        self.move_on();
    }

    fn take(&mut self, setting: &Setting, chunk: Chunk) {
        match self.judge(setting, chunk.rate()) {
            Pace::Stalled => return,
            Pace::FarBelow => {
                self.far_below += chunk.span;
                if self.stage == Stage::Done && self.far_below >= self.settings.drift_s * 2.0 {
                    self.profile_again("progress stays far below the profile".into());
                }
                return;
            }
            Pace::AsKnown => self.far_below = Seconds::ZERO,
            Pace::Restart => {
                if let Some(stats) = self.record.points.iter_mut().find(|p| p.setting == *setting) {
                    *stats = PointStats::new(setting.clone());
                }
            }
        }
        if self.stage == Stage::Closing && setting == self.ceiling() {
            self.closing.get_or_insert_with(|| PointStats::new(setting.clone())).add(&chunk);
        } else {
            self.stats_mut(setting).add(&chunk);
        }
        if self.stage == Stage::Done {
            self.watch_drift(chunk);
        }
    }

    /// Compares a chunk with what is known of its setting, so that validation pauses and the like don't count.
    fn judge(&self, setting: &Setting, rate: f64) -> Pace {
        let own = self.stats(setting).map(|s| s.throughput).filter(|t| t.count() >= 1.0);
        if let Some((known, count)) = own.and_then(|t| Some((t.rate()?, t.count()))) {
            return match rate / known {
                r if r < 0.05 => Pace::Stalled,
                r if r < STALL => Pace::FarBelow,
                // The first chunks held a stall, this one does not.
                r if r > 1.0 / STALL && count < MIN_CHUNKS => Pace::Restart,
                _ => Pace::AsKnown,
            };
        }
        let slowest = self.record.points.iter().filter_map(|p| p.throughput.rate()).reduce(f64::min);
        if slowest.is_some_and(|s| rate < 0.2 * s) || rate <= 0.0 { Pace::Stalled } else { Pace::AsKnown }
    }

    fn watch_drift(&mut self, chunk: Chunk) {
        let rested = self.since_sweep >= self.sweep_time * DRIFT_PAUSE;
        let Settings { drift, drift_s, .. } = self.settings;
        let Some(Hold { baseline: Some(known), recent, .. }) = self.hold.as_mut() else { return };
        recent.push(chunk, drift_s);
        if let Some(why) = recent.drifted(*known, drift, drift_s).filter(|_| rested) {
            self.profile_again(why);
        }
    }

    fn profile_again(&mut self, why: String) {
        self.notes.push(format!("profiling again: {why}"));
        self.record = Record::default();
        self.closing = None;
        self.skipped.clear();
        self.far_below = Seconds::ZERO;
        self.visiting = None;
        self.sweep_time = Seconds::ZERO;
        self.stage = Stage::Sweep { group: 0, index: 0 };
        self.stage_time = Seconds::ZERO;
    }

    fn pass_time(&mut self, span: Seconds) {
        self.reported += span;
        self.stage_time += span;
        match self.stage {
            Stage::Sweep { .. } | Stage::Closing => self.sweep_time += span,
            Stage::Visiting => self.spent_on_visits += span,
            Stage::Done => self.since_sweep += span,
        }
    }

    /// Goes to the next stage as long as the present one has what it needs.
    fn move_on(&mut self) {
        loop {
            let next = match self.stage {
                Stage::Sweep { group, index } => self.after_rung(group, index),
                Stage::Closing => self.after_closing(),
                Stage::Visiting => (self.stage_time >= VISIT).then_some(Stage::Done),
                Stage::Done => {
                    self.visiting = self.visit_due();
                    self.visiting.is_some().then_some(Stage::Visiting)
                }
            };
            let Some(next) = next else { return };
            if self.stage == Stage::Closing {
                self.since_sweep = Seconds::ZERO;
            }
            self.stage = next;
            self.stage_time = Seconds::ZERO;
        }
    }

    fn after_rung(&mut self, group: usize, index: usize) -> Option<Stage> {
        let setting = self.ladders[group][index].clone();
        if !self.is_measured(&setting) {
            // Half as long again as a measurement may take, and nothing usable came of it: heat, most likely.
            if self.stage_time < self.settings.max_window_s * 1.5 || index == 0 {
                return None;
            }
            self.notes.push(format!("no usable measurement at {}; skipped", describe(&setting)));
            self.skipped.push(setting);
        }
        let ladder = &self.ladders[group];
        if index + 1 < ladder.len() && !self.worse_twice(&ladder[..=index]) {
            return Some(Stage::Sweep { group, index: index + 1 });
        }
        if group + 1 < self.ladders.len() {
            return Some(Stage::Sweep { group: group + 1, index: 0 });
        }
        Some(if self.record.closed_at.as_ref() == Some(self.ceiling()) { Stage::Done } else { Stage::Closing })
    }

    fn is_measured(&self, setting: &Setting) -> bool {
        if self.skipped.contains(setting) {
            return true;
        }
        let Some(stats) = self.stats(setting).filter(|s| s.operating_point().is_some()) else { return false };
        let Settings { window_s, standard_error, max_window_s, .. } = self.settings;
        let (seconds, count) = (Seconds::new(stats.throughput.seconds()), stats.throughput.count());
        let error = stats.throughput.relative_error();
        (seconds >= window_s && count >= MIN_CHUNKS && error.is_some_and(|e| e <= standard_error))
            || (seconds >= max_window_s && count >= 2.0)
    }

    /// Whether the last two limits were each worse than the one before, in energy per sample *and* in time, by more
    /// than twice what chance explains.
    fn worse_twice(&self, visited: &[Setting]) -> bool {
        let known: Vec<OperatingPoint> = visited.iter().filter_map(|s| self.stats(s)?.operating_point()).collect();
        let [.., a, b, c] = known.as_slice() else { return false };
        let worse = |before: &OperatingPoint, after: &OperatingPoint| {
            let (e0, e1) = (before.throughput.relative_error, after.throughput.relative_error);
            let margin = 2.0 * (e0 * e0 + e1 * e1).sqrt();
            let energy = |p: &OperatingPoint| p.power.mean.get() / p.throughput.mean.get();
            energy(after) > energy(before) * (1.0 + margin)
                && after.throughput.mean < before.throughput.mean * (1.0 - margin)
        };
        worse(a, b) && worse(b, c)
    }

    fn after_closing(&mut self) -> Option<Stage> {
        let closing = self.closing.as_ref()?;
        let opening = self.stats(self.ceiling())?;
        let (first, last) = (opening.throughput, closing.throughput);
        let Settings { window_s, standard_error, max_window_s, .. } = self.settings;
        let seconds = Seconds::new(last.seconds());
        if seconds < window_s || last.count() < MIN_CHUNKS {
            return None;
        }
        let (e0, e1) = (first.relative_error()?, last.relative_error()?);
        if e1 > standard_error && seconds < max_window_s {
            return None;
        }
        let trend = last.rate()? / first.rate()? - 1.0;
        let significant = trend.abs() > 3.0 * (e0 * e0 + e1 * e1).sqrt() && trend.abs() > 0.005;
        let closing = self.closing.take()?;
        let ceiling = self.ceiling().clone();
        let opening = self.stats_mut(&ceiling);
        if significant {
            // The rest of the run will be as warm as the end of the sweep was.
            *opening = closing;
        } else {
            opening.throughput = opening.throughput.merged(&closing.throughput);
            opening.power = opening.power.iter().zip(&closing.power).map(|(a, b)| a.merged(b)).collect();
        }
        if significant {
            self.notes.push(format!("throughput at the ceiling changed by {:+.2} % during the sweep", 100.0 * trend));
        }
        self.record.thermal_trend = Some(trend);
        self.record.closed_at = Some(ceiling);
        Some(Stage::Done)
    }

    /// The point to visit now, if a share of the job's time so far allows a visit: the one known worst of those that a
    /// plan may use, from the ceiling down to the most efficient. The ceiling counts threefold, since
    /// its error goes straight into the slowdown's budget. A point that a plan avoids because chance made it look bad is
    /// found out in this way only.
    fn visit_due(&self) -> Option<Setting> {
        let Settings { reference_standard_error, standard_error, visit_share, .. } = self.settings;
        // The sweep may be doubled at once: a plan made from bad points costs more than the visits.
        if self.reported * visit_share + self.sweep_time - self.spent_on_visits < VISIT {
            return None;
        }
        let points = self.profile().points;
        let energy = |p: &OperatingPoint| p.power.mean.get() / p.throughput.mean.get();
        let best = (0..points.len()).min_by(|a, b| energy(&points[*a]).total_cmp(&energy(&points[*b])))?;
        let urgency = |(place, point): (usize, &OperatingPoint)| {
            let error = point.throughput.relative_error;
            let (good_enough, weight) =
                if place == 0 { (reference_standard_error, 3.0) } else { (standard_error / 3.0, 1.0) };
            (error > good_enough).then_some((error * weight, point.setting.clone()))
        };
        let usable = points.iter().enumerate().take(best + 1);
        usable.filter_map(urgency).max_by(|a, b| a.0.total_cmp(&b.0)).map(|(_, setting)| setting)
    }

    fn group_curves(&self) -> Vec<Vec<GroupPoint>> {
        let curve = |(group, ladder): (usize, &Vec<Setting>)| {
            let point = |setting: &Setting| {
                let stats = self.stats(setting)?;
                Some(GroupPoint {
                    limit: setting[group].limit,
                    throughput: SamplesPerSecond::new(stats.throughput.rate()?),
                    power: Watts::new(stats.power[group].rate()?),
                })
            };
            ladder.iter().filter_map(point).collect()
        };
        self.ladders.iter().enumerate().map(curve).collect()
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

/// How a chunk compares with what is known of its setting.
enum Pace {
    AsKnown,
    FarBelow,
    Stalled,
    Restart,
}

fn describe(setting: &Setting) -> String {
    let limits: Vec<String> = setting.iter().map(ToString::to_string).collect();
    limits.join(" + ")
}

#[cfg(test)]
#[path = "profiler_tests.rs"]
mod tests;
