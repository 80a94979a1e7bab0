//! Time budget of profiling, a part of the job's slack (the time that it may still lose): bounds the time cost of a
//! measurement in advance, and ends the measurement when its share of the budget is spent.

use super::state::MeasurementBudget;
use super::{Profiler, Stage};
use crate::profile::slack::Slack;
use crate::profile::steps::Setting;
use crate::time::Monotonic;
use crate::units::{Seconds, Watts};

/// Maximum fraction of a job's slack that profiling may spend.
const LEARNING: f64 = 0.25;
/// Maximum fraction of the remaining budget spent on one measurement (`MEASUREMENT_SHARE`), and on one below a setting
/// that already exceeds the allowed slowdown (`SHARE_BEYOND_SLOWDOWN`): with throughput concave in power, such a
/// setting does not pay.
const MEASUREMENT_SHARE: f64 = 0.5;
const SHARE_BEYOND_SLOWDOWN: f64 = 0.05;
/// Number of recent times between reports from which the report interval is estimated.
const SPACING: usize = 5;
/// Assumed delay of a report and of setting a limit.
const LATE: Seconds = Seconds::new(1.0);
/// Minimum duration of a measurement, even if the job reports often.
const SHORTEST: Seconds = Seconds::new(6.0);
/// Maximum duration of a measurement as a fraction of the whole job.
const LONGEST_PART: f64 = 0.05;
/// Target relative standard error of a setting's rate as a fraction of the allowed slowdown.
const ACCURACY: f64 = 0.1;

impl Profiler {
    /// Limits the time cost of profiling to the slack that [`Self::allow`] sets. Until it is called, only the reference
    /// setting (maximum usable limits) is measured.
    #[must_use]
    pub fn with_slack_budget(mut self) -> Self {
        self.learning.slack =
            Some(Slack { allowed: Seconds::ZERO, lost: Seconds::ZERO, full_duration: None, part: 0.0 });
        self.profile.take();
        self.stage = Stage::Sweep { group: 0, index: 0 };
        self.advance();
        self
    }

    /// Sets the job's slack; `None` if its objective does not limit time.
    pub fn allow(&mut self, slack: Option<Slack>) {
        let accuracy = |slack: Option<Slack>| slack.map(|slack| (slack.full_duration, slack.part));
        if accuracy(std::mem::replace(&mut self.learning.slack, slack)) != accuracy(slack) {
            self.profile.take();
        }
        if self.learning.deferred {
            self.advance();
        }
    }

    /// Records the time between two reports.
    pub(super) fn note_spacing(&mut self, since: Seconds) {
        let spacing = &mut self.learning.spacing;
        spacing.push_back(since);
        if spacing.len() > SPACING {
            spacing.pop_front();
        }
    }

    /// Returns the median time between recent reports; `None` before the second report.
    pub fn spacing(&self) -> Option<Seconds> {
        let mut newest: Vec<Seconds> = self.learning.spacing.iter().copied().collect();
        newest.sort_by(|a, b| a.get().total_cmp(&b.get()));
        newest.get(newest.len() / 2).copied()
    }

    /// Charges to the current measurement's budget the time that the job lost since the last call, and ends the
    /// measurement once the budget is spent. `in_force` is the setting in force, `None` if unknown.
    pub(super) fn charge(&mut self, at: Monotonic, in_force: Option<&Setting>) {
        let since = self.learning.last_observed.replace(at).map_or(Seconds::ZERO, |seen| at.since(seen));
        let wanted = match self.wanted() {
            Some(wanted) if wanted != self.ceiling() && self.steered => wanted.clone(),
            _ => {
                self.learning.current = None;
                return;
            }
        };
        if self.learning.current.as_ref().is_none_or(|v| v.setting != wanted) {
            let most = self.may_cost(&wanted);
            self.learning.current = Some(MeasurementBudget { setting: wanted.clone(), cost: Seconds::ZERO, most });
        }
        let setting = in_force.unwrap_or(&wanted);
        if setting == self.ceiling() {
            return;
        }
        let cost = since * (1.0 - self.least_share(setting)).max(0.0);
        self.learning.time_lost += cost;
        let Some(visit) = &mut self.learning.current else { return };
        visit.cost += cost;
        if self.learning.slack.is_some() && visit.cost >= visit.most {
            self.learning.abandoned.push(wanted);
            self.learning.current = None;
            self.advance();
        }
    }

    /// Returns true if the part of the slack that one measurement may use covers the shortest possible measurement of a
    /// setting, or if the job's time is not limited.
    pub(super) fn is_affordable(&self, setting: &Setting) -> bool {
        let cost = self.shortest_measurement() * (1.0 - self.least_share(setting)).max(0.0);
        self.learning.slack.is_none() || cost < self.may_cost(setting)
    }

    /// Returns the maximum time that the job may lose while a setting is measured.
    fn may_cost(&self, setting: &Setting) -> Seconds {
        let Some(slack) = self.learning.slack else { return Seconds::new(f64::MAX) };
        let left = (slack.allowed * LEARNING - self.learning.time_lost).min(slack.left());
        left.max(Seconds::ZERO)
            * if self.is_beyond(setting, slack.part) { SHARE_BEYOND_SLOWDOWN } else { MEASUREMENT_SHARE }
    }

    /// Returns true if the next measured setting above `setting` already exceeds the allowed slowdown `part`.
    fn is_beyond(&self, setting: &Setting, part: f64) -> bool {
        let Some(above) = self.nearest_above(setting).filter(|above| above != self.ceiling()) else { return false };
        let (Some(rate), Some(top)) = (self.rate(&above), self.rate(self.ceiling())) else { return false };
        let error = self.throughput_error(&above).unwrap_or(1.0);
        rate / top * (1.0 + error) < 1.0 / (1.0 + part)
    }

    /// Returns the minimum duration of a measurement: settling and two report intervals.
    pub(super) fn shortest_measurement(&self) -> Seconds {
        let spacing = self.learning.spacing.iter().copied().reduce(Seconds::min).unwrap_or(Seconds::ZERO);
        self.settings.settle_s + (spacing * 2.0 + LATE).max(SHORTEST)
    }

    /// Returns the maximum duration of a measurement, which is shorter for short jobs but at least `window_s`.
    pub(super) fn longest_measurement(&self) -> Seconds {
        let most = self.settings.max_window_s;
        let part =
            self.learning.slack.and_then(|slack| slack.full_duration).map_or(most, |duration| duration * LONGEST_PART);
        part.max(self.settings.window_s).min(most)
    }

    /// Returns the target relative standard error of a setting's rate. A larger allowed slowdown needs less accuracy.
    pub(super) fn wanted_error(&self) -> f64 {
        let part = self.learning.slack.map_or(0.0, |slack| slack.part);
        self.settings.standard_error.max(ACCURACY * part)
    }

    /// Returns the target relative standard error of the rate at the reference setting (maximum usable limits).
    pub(super) fn wanted_reference_error(&self) -> f64 {
        let part = self.learning.slack.map_or(0.0, |slack| slack.part);
        self.settings.reference_standard_error.max(0.1 * ACCURACY * part)
    }

    /// Returns the duration of the whole job at the reference setting, if known and the job's time is limited.
    pub(super) fn full_duration(&self) -> Option<Seconds> {
        self.learning.slack?.full_duration
    }

    /// Returns a lower bound of a setting's throughput relative to the reference setting, in 0 to 1. For a measured
    /// setting, it is the measured rate less its error. Otherwise it is the rate of the next measured setting above,
    /// lowered in proportion to limit and clock, but not for a limit above the power peaks at that setting, because
    /// such a limit has no effect. Throughput is at least proportional to the limit in 1,344 of 1,401 rows of recorded
    /// traces.
    fn least_share(&self, setting: &Setting) -> f64 {
        let Some(top) = self.rate(self.ceiling()) else { return 0.0 };
        if let Some(rate) = self.rate(setting) {
            let error = self.throughput_error(setting).unwrap_or(1.0);
            return (rate / top * (1.0 - error)).clamp(0.0, 1.0);
        }
        let Some(above) = self.nearest_above(setting) else { return 0.0 };
        let share = self.rate(&above).map_or(0.0, |rate| rate / top);
        let lower = ratio(setting, &above).max(self.above_draw(setting, &above));
        (share * lower).clamp(0.0, 1.0)
    }

    /// Returns the ratio of a setting's limits to the peak power of the GPUs at the setting `above`: the lowest of all
    /// groups, at most 1. Returns 0 if the clocks of the two settings differ.
    fn above_draw(&self, setting: &Setting, above: &Setting) -> f64 {
        let Some(stats) = self.stats(above) else { return 0.0 };
        let each = setting.iter().zip(above).zip(stats.power.iter().zip(&self.groups));
        let ratio = each.map(|((set, above), (power, group))| match power.rate() {
            Some(watts) if set.clock == above.clock && watts > 0.0 => {
                set.limit.watts().get() / (watts / f64::from(group.gpus.max(1)) * PEAKS)
            }
            _ => 0.0,
        });
        ratio.fold(1.0, f64::min)
    }

    /// Returns the nearest measured setting with higher limits or clocks than `setting`; `None` if there is none.
    fn nearest_above(&self, setting: &Setting) -> Option<Setting> {
        let known = self.record.points.iter().filter(|p| self.rate(&p.setting).is_some()).map(|p| &p.setting);
        let above = known.filter(|known| known.len() == setting.len() && ratio(setting, known) < 1.0);
        above.max_by(|a, b| ratio(setting, a).total_cmp(&ratio(setting, b))).cloned()
    }

    fn rate(&self, setting: &Setting) -> Option<f64> {
        self.stats(setting)?.throughput.rate().filter(|rate| *rate > 0.0)
    }
}

/// Assumed ratio of a GPU's peak power to its mean power.
const PEAKS: f64 = 1.1;

/// Returns the ratio of limit times clock of `setting` to those of `other`: the lowest of all groups.
fn ratio(setting: &Setting, other: &Setting) -> f64 {
    let each = setting.iter().zip(other).map(|(set, other)| {
        let watts = |limit: Watts| limit.get().max(1e-9);
        let limits = watts(set.limit.watts()) / watts(other.limit.watts());
        match (set.clock, other.clock) {
            (Some(clock), Some(above)) => limits * f64::from(clock.megahertz()) / f64::from(above.megahertz()),
            // The first locked clock of a sweep is one step below the highest clock.
            (Some(_), None) => limits * FIRST_CLOCK,
            (None, Some(_)) => limits / FIRST_CLOCK,
            (None, None) => limits,
        }
    });
    each.fold(f64::INFINITY, f64::min)
}

/// Assumed minimum ratio of the first locked clock of a sweep to the highest clock.
const FIRST_CLOCK: f64 = 0.9;

#[cfg(test)]
#[path = "budget_tests.rs"]
mod tests;
