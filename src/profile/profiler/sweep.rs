//! The order of a profiler's measurements: which setting is next, and what is known well enough.

use super::{MIN_CHUNKS, Profiler, Settings, Stage, describe};
use crate::domain::{OperatingPoint, PowerLimit, SetPoint};
use crate::profile::ladder::Setting;
use crate::units::{Seconds, Watts};

/// How long a later visit to a point lasts.
const VISIT: Seconds = Seconds::new(60.0);
/// A board that draws less than this part of its limit is left alone by it.
const LOOSE: f64 = 0.9;
/// No peak of a training step is further above its mean draw: in the traces of deepspeech2 on an A40 a limit of 1.45
/// times the mean was still felt.
const PEAKS: f64 = 1.5;

impl Profiler {
    /// Goes to the next stage as long as the present one has what it needs.
    pub(super) fn move_on(&mut self) {
        loop {
            let next = match self.stage {
                Stage::Sweep { .. } | Stage::Clocks { .. } => self.after_rung(),
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

    fn after_rung(&mut self) -> Option<Stage> {
        let setting = self.wanted()?.clone();
        if !self.is_measured(&setting) {
            // Half as long again as a measurement may take, and nothing usable came of it: heat, most likely.
            if self.stage_time < self.settings.max_window_s * 1.5 || setting == *self.ceiling() {
                return None;
            }
            self.notes.push(format!("no usable measurement at {}; skipped", describe(&setting)));
            self.skipped.push(setting);
        }
        let (ladder, index) = match self.stage {
            Stage::Sweep { group, index } => (&self.ladders[group], index),
            Stage::Clocks { index } => (&self.clocks, index),
            _ => return None,
        };
        let loose = self.loose_limits();
        let useful = |s: &Setting| self.stats(s).is_some() || !s.iter().any(|s| loose.contains(&s.limit));
        let further =
            (index + 1..ladder.len()).find(|i| matches!(self.stage, Stage::Clocks { .. }) || useful(&ladder[*i]));
        if let Some(further) = further.filter(|_| !self.worse_twice(&ladder[..=index])) {
            return Some(match self.stage {
                Stage::Sweep { group, .. } => Stage::Sweep { group, index: further },
                _ => Stage::Clocks { index: further },
            });
        }
        if let Stage::Sweep { group, .. } = self.stage {
            if group + 1 < self.ladders.len() {
                return Some(Stage::Sweep { group: group + 1, index: 0 });
            }
            if self.clocks.len() > 1 && self.ceiling_is_loose() {
                self.notes.push("the power limit does not bind: measuring locked clocks too".into());
                return Some(Stage::Clocks { index: 1 });
            }
        }
        Some(if self.is_closed() { Stage::Done } else { Stage::Closing })
    }

    /// Whether the sweep from this ceiling was finished and closed before.
    pub(super) fn is_closed(&self) -> bool {
        self.record.closed_at.as_ref() == Some(self.ceiling())
    }

    /// Whether the power limit leaves the job alone at the ceiling: it draws well below it, and no board says that the
    /// limit lowers its clocks. Then limits close below it do nothing, and clocks are what is left to steer.
    fn ceiling_is_loose(&self) -> bool {
        let Some((top, draws)) = self.stats(self.ceiling()).zip(self.ceiling_draws()) else { return false };
        let far_below = |(set, draw): (&SetPoint, &Watts)| *draw < set.limit.watts() * LOOSE;
        top.is_loose() && self.ceiling().iter().zip(&draws).all(far_below)
    }

    /// Limits of the ladder, from above, that cannot bind: so far above what the job draws at the ceiling that not even
    /// its peaks reach them. Known for equal boards only.
    pub(super) fn loose_limits(&self) -> Vec<PowerLimit> {
        let ([ladder], Some(draws), true) = (self.ladders.as_slice(), self.ceiling_draws(), self.ceiling_is_loose())
        else {
            return Vec::new();
        };
        let limits = ladder.iter().skip(1).map(|s| s[0].limit);
        limits.filter(|l| draws.iter().all(|draw| l.watts() > *draw * PEAKS)).collect()
    }

    /// The mean draw of one board of each group at the ceiling.
    fn ceiling_draws(&self) -> Option<Vec<Watts>> {
        let top = self.stats(self.ceiling())?;
        let each = top.power.iter().zip(&self.groups);
        each.map(|(power, group)| Some(Watts::new(power.rate()? / f64::from(group.boards.max(1))))).collect()
    }

    pub(super) fn is_measured(&self, setting: &Setting) -> bool {
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

    /// Whether the last two settings were each worse than the one before, in energy per sample *and* in time, by more
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
            opening.merge(&closing);
        }
        if significant {
            self.notes.push(format!("throughput at the ceiling changed by {:+.2} % during the sweep", 100.0 * trend));
        }
        self.record.thermal_trend = Some(trend);
        self.record.closed_at = Some(ceiling);
        Some(Stage::Done)
    }

    /// The point to visit now, if a share of the job's time so far allows a visit: the one known worst of those that a
    /// plan may use, from the ceiling down to the pace of the most efficient. The ceiling counts threefold, since
    /// its error goes straight into the slowdown's budget. A point that a plan avoids because chance made it look bad is
    /// found out in this way only.
    fn visit_due(&self) -> Option<Setting> {
        let Settings { reference_standard_error, standard_error, visit_share, .. } = self.settings;
        // The sweep may be doubled at once: a plan made from bad points costs more than the visits.
        if self.reported * visit_share + self.sweep_time - self.spent_on_visits < VISIT {
            return None;
        }
        let points = self.known_points();
        let energy = |p: &OperatingPoint| p.power.mean.get() / p.throughput.mean.get();
        let best = points.iter().min_by(|a, b| energy(a).total_cmp(&energy(b)))?;
        let urgency = |(place, point): (usize, &OperatingPoint)| {
            let error = point.throughput.relative_error;
            let (good_enough, weight) =
                if place == 0 { (reference_standard_error, 3.0) } else { (standard_error / 3.0, 1.0) };
            (error > good_enough).then_some((error * weight, point.setting.clone()))
        };
        let usable = points.iter().enumerate().filter(|(_, p)| p.throughput.mean >= best.throughput.mean);
        usable.filter_map(urgency).max_by(|a, b| a.0.total_cmp(&b.0)).map(|(_, setting)| setting)
    }
}
