//! What learning may cost: a part of the job's slack, known before a setting is entered, left when it is spent.

use super::learning::Visit;
use super::{Profiler, Stage};
use crate::profile::ladder::Setting;
use crate::profile::slack::Slack;
use crate::time::Monotonic;
use crate::units::{Seconds, Watts};

/// The part of a job's slack that all learning together may cost.
const LEARNING: f64 = 0.25;
/// The part of what is left for learning that one visit may cost, and one to a setting too slow to be of use within the
/// slack: with throughput concave in power, nothing below a setting slower than the promise allows can pay.
const VISIT: f64 = 0.5;
const CURIOUS_VISIT: f64 = 0.05;
/// Reports by whose spacing the next ones are expected.
const SPACING: usize = 5;
/// A report may come this much later than expected, and a limit takes a tick to be set.
const LATE: Seconds = Seconds::new(1.0);
/// A visit measures for at least so many seconds, however often the job reports.
const SHORTEST: Seconds = Seconds::new(6.0);
/// The longest measurement of a setting, as a part of the whole job.
const LONGEST_PART: f64 = 0.05;
/// The accuracy to which a setting is measured, as a part of the slowdown that the job allows.
const ACCURACY: f64 = 0.1;

impl Profiler {
    /// The same, on an account that is empty until [`Self::allow`] says what is there: nothing below the reference is
    /// measured before.
    #[must_use]
    pub fn on_account(mut self) -> Self {
        self.learning.slack = Some(Slack { allowed: Seconds::ZERO, lost: Seconds::ZERO, whole: None, part: 0.0 });
        self.stage = Stage::Sweep { group: 0, index: 0 };
        self.move_on();
        self
    }

    /// Sets what the job may lose, and lost so far; `None` where it promises nothing about time.
    pub fn allow(&mut self, slack: Option<Slack>) {
        self.learning.slack = slack;
        if self.learning.deferred {
            self.move_on();
        }
    }

    /// Notes the time between two reports.
    pub(super) fn note_spacing(&mut self, since: Seconds) {
        let spacing = &mut self.learning.spacing;
        spacing.push_back(since);
        if spacing.len() > SPACING {
            spacing.pop_front();
        }
    }

    /// The usual time between two reports; `None` before the second one.
    pub fn spacing(&self) -> Option<Seconds> {
        let mut newest: Vec<Seconds> = self.learning.spacing.iter().copied().collect();
        newest.sort_by(|a, b| a.get().total_cmp(&b.get()));
        newest.get(newest.len() / 2).copied()
    }

    /// Charges the time since the last call to the visit in progress, and ends it once its share is spent.
    pub(super) fn charge(&mut self, at: Monotonic, in_force: Option<&Setting>) {
        let since = self.learning.seen.replace(at).map_or(Seconds::ZERO, |seen| at.since(seen));
        let wanted = match self.wanted() {
            Some(wanted) if wanted != self.ceiling() => wanted.clone(),
            _ => {
                self.learning.visit = None;
                return;
            }
        };
        if self.learning.visit.as_ref().is_none_or(|v| v.setting != wanted) {
            let most = self.may_cost(&wanted);
            self.learning.visit = Some(Visit { setting: wanted.clone(), cost: Seconds::ZERO, most });
        }
        let setting = in_force.unwrap_or(&wanted);
        if setting == self.ceiling() {
            return;
        }
        let cost = since * (1.0 - self.least_share(setting)).max(0.0);
        self.learning.lost += cost;
        let Some(visit) = &mut self.learning.visit else { return };
        visit.cost += cost;
        if self.learning.slack.is_some() && visit.cost >= visit.most {
            self.learning.left.push(wanted);
            self.learning.visit = None;
            self.move_on();
        }
    }

    /// Whether a visit to a setting below the reference may be begun: its least cost is within its share.
    pub(super) fn is_affordable(&self, setting: &Setting) -> bool {
        let cost = self.shortest_visit() * (1.0 - self.least_share(setting)).max(0.0);
        self.learning.slack.is_none() || cost < self.may_cost(setting)
    }

    /// What a visit may cost, in seconds lost.
    fn may_cost(&self, setting: &Setting) -> Seconds {
        let Some(slack) = self.learning.slack else { return Seconds::new(f64::MAX) };
        let left = (slack.allowed * LEARNING - self.learning.lost).min(slack.left());
        left.max(Seconds::ZERO) * if self.is_beyond(setting, slack.part) { CURIOUS_VISIT } else { VISIT }
    }

    /// Whether a setting lies below one that is slower already than all of the job may be.
    fn is_beyond(&self, setting: &Setting, part: f64) -> bool {
        let Some(above) = self.nearest_above(setting).filter(|above| above != self.ceiling()) else { return false };
        let (Some(rate), Some(top)) = (self.rate(&above), self.rate(self.ceiling())) else { return false };
        let error = self.throughput_error(&above).unwrap_or(1.0);
        rate / top * (1.0 + error) < 1.0 / (1.0 + part)
    }

    /// How long a visit takes at the least: until the setting has settled, and two reports have come.
    pub(super) fn shortest_visit(&self) -> Seconds {
        let spacing = self.learning.spacing.iter().copied().reduce(Seconds::min).unwrap_or(Seconds::ZERO);
        self.settings.settle_s + (spacing * 2.0 + LATE).max(SHORTEST)
    }

    /// The longest measurement of one setting: short jobs are not measured for a large part of their time.
    pub(super) fn longest_measurement(&self) -> Seconds {
        let most = self.settings.max_window_s;
        let part = self.learning.slack.and_then(|slack| slack.whole).map_or(most, |whole| whole * LONGEST_PART);
        part.max(self.settings.window_s).min(most)
    }

    /// The relative standard error to which settings are measured. Where much slowdown is allowed, less will do.
    pub(super) fn wanted_error(&self) -> f64 {
        let part = self.learning.slack.map_or(0.0, |slack| slack.part);
        self.settings.standard_error.max(ACCURACY * part)
    }

    /// The reference's relative standard error that no visit is worth going below.
    pub(super) fn wanted_reference_error(&self) -> f64 {
        let part = self.learning.slack.map_or(0.0, |slack| slack.part);
        self.settings.reference_standard_error.max(0.1 * ACCURACY * part)
    }

    /// The time of all of the job's work at the reference, if that is known and slack is counted.
    pub(super) fn whole(&self) -> Option<Seconds> {
        self.learning.slack?.whole
    }

    /// Throughput at a setting over that at the reference, at the least: by what was measured there, less its error; else
    /// in proportion to the limit or clock from the nearest setting above that was measured, or to what the GPUs drew
    /// there where that is less: a limit above all peaks of the draw changes nothing. Over 1,401 rows of recorded traces
    /// throughput over that at the maximum is at least the limits' ratio in 1,344.
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

    /// The least ratio of a setting's limits to the peaks of the draw at a setting above it; 0 for another clock.
    fn above_draw(&self, setting: &Setting, above: &Setting) -> f64 {
        let Some(stats) = self.stats(above) else { return 0.0 };
        let each = setting.iter().zip(above).zip(stats.power.iter().zip(&self.groups));
        let ratio = each.map(|((set, above), (power, group))| match power.rate() {
            Some(watts) if set.clock == above.clock && watts > 0.0 => {
                set.limit.watts().get() / (watts / f64::from(group.boards.max(1)) * PEAKS)
            }
            _ => 0.0,
        });
        ratio.fold(1.0, f64::min)
    }

    /// The nearest setting that was measured among those with higher limits or clocks.
    fn nearest_above(&self, setting: &Setting) -> Option<Setting> {
        let known = self.record.points.iter().filter(|p| self.rate(&p.setting).is_some()).map(|p| &p.setting);
        let above = known.filter(|known| known.len() == setting.len() && ratio(setting, known) < 1.0);
        above.max_by(|a, b| ratio(setting, a).total_cmp(&ratio(setting, b))).cloned()
    }

    fn rate(&self, setting: &Setting) -> Option<f64> {
        self.stats(setting)?.throughput.rate().filter(|rate| *rate > 0.0)
    }
}

/// Peaks of a GPU's draw over its mean.
const PEAKS: f64 = 1.1;

/// How much lower a setting is than another: the least ratio of their limits or clocks.
fn ratio(setting: &Setting, other: &Setting) -> f64 {
    let each = setting.iter().zip(other).map(|(set, other)| {
        let watts = |limit: Watts| limit.get().max(1e-9);
        let limits = watts(set.limit.watts()) / watts(other.limit.watts());
        match (set.clock, other.clock) {
            (Some(clock), Some(above)) => limits * f64::from(clock.megahertz()) / f64::from(above.megahertz()),
            // The first clock of a sweep is a step below the highest.
            (Some(_), None) => limits * FIRST_CLOCK,
            (None, Some(_)) => limits / FIRST_CLOCK,
            (None, None) => limits,
        }
    });
    each.fold(f64::INFINITY, f64::min)
}

/// The first locked clock of a sweep over the highest, at the least.
const FIRST_CLOCK: f64 = 0.9;

#[cfg(test)]
#[path = "budget_tests.rs"]
mod tests;
