//! The just-in-time profiler: a state machine that is told what happens and says which setting it wants next.
//!
//! One sweep of limits from the ceiling down, one of clocks where limits alone do nothing, closing with the ceiling
//! again; afterwards the points known worst are visited now and then. At each setting it lets the board settle, then
//! measures throughput from the job's own progress and power from the energy counters until the standard error is
//! small enough. It stops going down once two successive settings are worse in energy *and* time. Later progress at any
//! setting keeps refining that setting's point; if it drifts away, the job is profiled again.

mod budget;
mod learning;
mod sweep;

use super::dips::Dip;
use super::drawn::Known as KnownRate;
use super::drift::{Known, Recent};
use super::ladder::{self, GroupPoint, GroupRange, Setting};
use super::noise::Noise;
use super::point::{Chunk, Evidence, PointStats, Record};
use super::settings::Settings;
use super::stall::Newest;
use super::visit::{Shows, Visit};
use crate::domain::{Estimate, GpuId, OperatingPoint, PowerLimit, Profile, SetPoint};
use crate::time::Monotonic;
use crate::units::{Joules, Samples, SamplesPerSecond, Seconds, Watts};
use learning::Learning;

/// Progress reports closer together than this are taken as one: single steps are not independent readings.
const CHUNK: Seconds = Seconds::new(1.0);
/// A longer silence counts as this much time of the job: it may have been a pause.
const LONGEST_STEP: Seconds = Seconds::new(60.0);
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
    /// Whether a board says that its power limit lowers its clocks.
    pub capped: bool,
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
    /// Measuring the `index`th setting of the clocks' ladder.
    Clocks {
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
    /// Whether the power limit showed as the reason of low clocks since the last chunk.
    capped: bool,
    /// Whether reports without progress came since the last chunk.
    waited: bool,
    /// Pauses since the last chunk.
    paused: Dip,
    /// Whether a pause seems to begin at the end of what came since then, or of the chunk before.
    ends_low: bool,
    began_low: bool,
    /// What was measured here without a break.
    visit: Option<Visit>,
    /// The profile's point when this hold began, and the newest chunks since: for drift.
    baseline: Option<Known>,
    recent: Recent,
}

/// The just-in-time profiler of one job. Pure: it is told what happens, with times.
#[derive(Clone, Debug)]
pub struct Profiler {
    settings: Settings,
    groups: Vec<GroupRange>,
    ladders: Vec<Vec<Setting>>,
    /// Clocks at the ceiling's limit, the ceiling first; empty where they are left alone.
    clocks: Vec<Setting>,
    record: Record,
    /// Whose sensors measure.
    boards: Vec<GpuId>,
    /// How often everything was measured anew.
    restarts: u32,
    /// Below this limit, the one of least energy with a neighbouring batch size, nothing better is expected.
    expected: Option<PowerLimit>,
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
    learning: Learning,
    notes: Vec<String>,
}

impl Profiler {
    /// A profiler for boards in `groups`, starting from what earlier runs recorded.
    pub fn new(settings: Settings, groups: &[GroupRange], record: Record) -> Self {
        let ladders = ladder::ladders(groups, settings.step_w, settings.lowest_w);
        let clocks = ladder::clock_ladder(groups, settings.clock_step_mhz);
        let mut profiler = Self {
            settings,
            groups: groups.to_vec(),
            ladders,
            clocks,
            record,
            boards: Vec::new(),
            restarts: 0,
            expected: None,
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
            learning: Learning::default(),
            notes: Vec::new(),
        };
        profiler.move_on();
        profiler
    }

    /// The same, told the limit of least energy that was found with another batch size of the job: one measurement that
    /// is worse than that is then enough to end the sweep, where else it takes two.
    #[must_use]
    pub fn expecting(mut self, limit: Option<PowerLimit>) -> Self {
        self.expected = limit;
        self
    }

    /// The same, told whose sensors measure: the record says so.
    #[must_use]
    pub fn on(mut self, boards: impl IntoIterator<Item = GpuId>) -> Self {
        self.boards = boards.into_iter().collect();
        self
    }

    /// How often everything was measured anew because the job had drifted off its profile.
    pub fn restarts(&self) -> u32 {
        self.restarts
    }

    /// What was measured at a setting, with how sure it is; `None` where nothing was, or too little. A limit that cannot
    /// bind is the ceiling.
    pub fn evidence(&self, setting: &Setting) -> Option<Evidence> {
        let loose = self.loose_limits();
        let is_ceiling = matches!(setting.as_slice(), [set] if set.clock.is_none() && loose.contains(&set.limit));
        let own = self.stats(setting).and_then(PointStats::evidence);
        own.or_else(|| self.stats(self.ceiling()).filter(|_| is_ceiling)?.evidence())
    }

    /// What [`Self::expecting`] was told.
    pub fn expected(&self) -> Option<PowerLimit> {
        self.expected
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
        self.setting_of(self.stage)
    }

    fn setting_of(&self, stage: Stage) -> Option<&Setting> {
        match stage {
            Stage::Sweep { group, index } => self.ladders.get(group)?.get(index),
            Stage::Clocks { index } => self.clocks.get(index),
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

    /// Whether it measures or has measured points with locked clocks.
    pub fn uses_clocks(&self) -> bool {
        !self.clocks.is_empty()
    }

    /// Goes on without locked clocks, because they turned out not to be wattune's to lock. What was measured at them is
    /// kept in the record for later runs.
    pub fn leave_clocks(&mut self) {
        self.clocks.clear();
        let at_clocks = |set: &Setting| set.iter().any(|s| s.clock.is_some());
        if matches!(self.stage, Stage::Clocks { .. }) || self.visiting.as_ref().is_some_and(at_clocks) {
            self.visiting = None;
            self.stage = if self.is_closed() { Stage::Done } else { Stage::Closing };
            self.stage_time = Seconds::ZERO;
        }
    }

    /// The profile as far as it is known: the ceiling first, then limits downwards, then clocks downwards. Empty until
    /// the ceiling is measured.
    pub fn profile(&self) -> Profile {
        let mut points = self.known_points();
        // Limits that cannot bind are the ceiling again, and of use where a cap counts limits.
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

    /// What is known of each setting, for telling pauses from training. A rate of few chunks that are unlike each other may
    /// hold pauses: its own error counts then, if that is larger than the noise of all settings explains.
    pub fn known_rates(&self) -> Vec<(Setting, KnownRate)> {
        let known = |point: OperatingPoint| {
            let own = self.stats(&point.setting).map_or(0.0, |stats| stats.throughput.relative_error().unwrap_or(1.0));
            let Estimate { mean: throughput, relative_error } = point.throughput;
            (point.setting, KnownRate { throughput, error: relative_error.max(own), power: point.power.mean })
        };
        self.profile().points.into_iter().map(known).collect()
    }

    /// The points that were measured, and for unequal boards those inferred from the groups' sweeps.
    fn known_points(&self) -> Vec<OperatingPoint> {
        let known = |setting: &Setting| self.known(setting);
        let Some(top) = known(self.ceiling()) else { return Vec::new() };
        let error = top.throughput.relative_error;
        let mut points = vec![top];
        if let [only] = self.ladders.as_slice() {
            points.extend(only[1..].iter().filter_map(known));
        } else {
            let inferred = ladder::equalised(&self.group_curves(), error.max(self.settings.standard_error));
            points.extend(inferred.into_iter().map(|p| known(&p.setting).unwrap_or(p)));
        }
        points.extend(self.clocks.iter().skip(1).filter_map(known));
        points
    }

    /// Tells what the boards show. Call it at each tick, and right before [`Self::report`].
    pub fn see(&mut self, sight: Sight) {
        self.charge(sight.at, sight.setting.as_ref());
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
                capped: false,
                waited: false,
                paused: Dip::default(),
                ends_low: false,
                began_low: false,
                visit: None,
                baseline: baseline.map(|p| Known { throughput: p.throughput.mean, power: p.power.mean }),
                recent: Recent::default(),
                setting,
            });
        }
        let settle = self.settings.settle_s;
        let Some(hold) = self.hold.as_mut().filter(|h| sight.at.since(h.since) >= settle) else { return };
        hold.capped |= sight.capped;
        if let Some((then, before)) = &hold.energy {
            hold.pending.0 += sight.at.since(*then);
            for ((sum, now), before) in hold.pending.1.iter_mut().zip(&sight.energy).zip(before) {
                *sum += *now - *before;
            }
        }
        hold.energy = Some((sight.at, sight.energy));
    }

    /// Leaves pauses out of what the next report measures: what the power shows of the time since the one before.
    pub fn leave_out(&mut self, newest: Newest) {
        if let Some(hold) = &mut self.hold {
            hold.paused.add(newest.paused);
            hold.ends_low |= newest.ends_low;
        }
    }

    /// Tells a progress report. Reports must come in order.
    pub fn report(&mut self, report: Report) {
        let since = self.last_report.replace(report.received).map(|last| report.received.since(last));
        if let Some(since) = since {
            self.note_spacing(since);
        }
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
                // Energy and pauses from before the first report belong to no chunk.
                hold.pending = (Seconds::ZERO, vec![Joules::ZERO; hold.setting.len()]);
                (hold.paused, hold.ends_low, hold.began_low) = (Dip::default(), false, false);
                return;
            }
        };
        // A pause belongs to the chunk that ends with the first progress after it.
        if report.samples <= last.samples {
            hold.waited = true;
            self.move_on();
            return;
        }
        if span < CHUNK {
            return;
        }
        hold.report = Some(report);
        let (energy_span, energy) =
            std::mem::replace(&mut hold.pending, (Seconds::ZERO, vec![Joules::ZERO; hold.setting.len()]));
        let loose = !std::mem::take(&mut hold.capped);
        let (waited, paused) = (std::mem::take(&mut hold.waited), std::mem::take(&mut hold.paused));
        let chunk = Chunk { span, done: report.samples - last.samples, energy_span, energy, loose, waited };
        let ends_low = std::mem::take(&mut hold.ends_low);
        // A low end without a pause after it came late to the counter, and is in the energy of the next chunk: to leave out
        // only one of both would bias the power.
        let holds_rest = std::mem::replace(&mut hold.began_low, ends_low) && paused.span <= Seconds::ZERO;
        let setting = hold.setting.clone();
        if let Some(chunk) = chunk.without(paused).filter(|_| !ends_low && !holds_rest) {
            self.take(&setting, chunk);
        }
        self.move_on();
    }

    fn take(&mut self, setting: &Setting, chunk: Chunk) {
        let closing = self.stage == Stage::Closing && setting == self.ceiling();
        // Nothing that is known of other settings explains less than a fifth of the slowest.
        let slowest = self.record.points.iter().filter_map(|p| p.throughput.rate()).reduce(f64::min);
        let least = 0.2 * slowest.unwrap_or(0.0);
        let known = if closing { self.closing.clone() } else { self.stats(setting).cloned() };
        let Some(hold) = self.hold.as_mut() else { return };
        let mut visit = hold.visit.take().filter(|v| v.closing == closing);
        let visit =
            visit.get_or_insert_with(|| Visit::new(known.unwrap_or_else(|| PointStats::new(setting.clone())), closing));
        let shows = visit.add(chunk.clone(), least);
        let stats = visit.stats(least);
        hold.visit = Some(visit.clone());
        match shows {
            Shows::Training => self.far_below = Seconds::ZERO,
            Shows::Pause => {}
            Shows::Slow => self.far_below += chunk.span,
        }
        // Who measured what an earlier version recorded is not known, and stays so.
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
        if shows == Shows::Training {
            self.watch_drift(chunk);
        } else if self.far_below >= self.settings.drift_s * 2.0 {
            self.profile_again("progress stays far below the profile".into());
        }
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
        if let Some(hold) = &mut self.hold {
            hold.visit = None;
        }
        self.restarts += 1;
        self.closing = None;
        self.skipped.clear();
        self.far_below = Seconds::ZERO;
        self.learning.left.clear();
        self.learning.deferred = false;
        self.visiting = None;
        self.sweep_time = Seconds::ZERO;
        self.stage = Stage::Sweep { group: 0, index: 0 };
        self.stage_time = Seconds::ZERO;
    }

    fn pass_time(&mut self, span: Seconds) {
        self.reported += span;
        self.stage_time += span;
        match self.stage {
            Stage::Sweep { .. } | Stage::Clocks { .. } | Stage::Closing => self.sweep_time += span,
            Stage::Visiting => self.spent_on_visits += span,
            Stage::Done => self.since_sweep += span,
        }
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

    /// The noise of the job's speed, over all that was measured; `None` while too little was.
    fn noise(&self) -> Option<Noise> {
        let closing = self.closing.iter().map(|closing| &closing.throughput);
        Noise::pooled(self.record.points.iter().map(|p| &p.throughput).chain(closing))
    }

    /// The noise of the job's speed at one setting: what was measured there alone where that says enough.
    pub fn noise_at(&self, setting: &Setting) -> Option<Noise> {
        let own = self.stats(setting).and_then(|p| Noise::pooled(std::iter::once(&p.throughput)));
        own.filter(Noise::is_well_known).or_else(|| self.noise())
    }

    /// The relative standard error of a setting's throughput; 1 where the noise is not known.
    fn throughput_error(&self, setting: &Setting) -> Option<f64> {
        let seconds = Seconds::new(self.stats(setting)?.throughput.seconds());
        Some(self.noise_at(setting).map_or(1.0, |noise| noise.error_after(seconds)))
    }

    /// What was measured at a setting.
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
