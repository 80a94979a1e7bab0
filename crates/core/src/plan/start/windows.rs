//! Expected costs of a job by its start: integrals of a piecewise constant forecast over windows.

use chrono::{DateTime, TimeDelta, Utc};

use super::advice::StartWindow;
use super::question::StartQuestion;
use crate::forecast::{Basis, Horizon};
use crate::units::{GramsCo2e, GramsPerKwh, Seconds};

/// Maximum number of starts that are compared; more are thinned out evenly.
const MOST_STARTS: usize = 2000;

/// Integral of intensities over time, for means over any window. Beyond the last slot, and in gaps, the mean of all
/// slots counts.
#[derive(Clone, Debug)]
pub(super) struct Cumulated {
    /// Start of each slot and the integral up to it, in g/kWh times seconds; a last entry for the end.
    knots: Vec<(DateTime<Utc>, f64)>,
    mean: f64,
}

impl Cumulated {
    /// Integrates values over slots; slots that overlap or have no finite value are left out.
    pub(super) fn new(slots: impl Iterator<Item = (DateTime<Utc>, DateTime<Utc>, f64)>) -> Self {
        let slots: Vec<_> = slots.filter(|(from, to, value)| from < to && value.is_finite()).collect();
        let weight: f64 = slots.iter().map(|(from, to, _)| seconds(*from, *to)).sum();
        let total: f64 = slots.iter().map(|(from, to, value)| value * seconds(*from, *to)).sum();
        let mean = if weight > 0.0 { total / weight } else { 0.0 };
        let (mut knots, mut sum): (Vec<(DateTime<Utc>, f64)>, f64) = (Vec::with_capacity(slots.len() + 1), 0.0);
        for (from, to, value) in slots {
            match knots.last() {
                Some((end, _)) if from < *end => continue,
                Some((end, _)) if from == *end => {}
                Some((end, _)) => {
                    sum += mean * seconds(*end, from);
                    knots.push((from, sum));
                }
                None => knots.push((from, 0.0)),
            }
            sum += value * seconds(from, to);
            knots.push((to, sum));
        }
        Self { knots, mean }
    }

    /// Returns the mean between two times; at a single time, the value from then on.
    pub(super) fn mean(&self, from: DateTime<Utc>, to: DateTime<Utc>) -> f64 {
        let to = if to > from { to } else { from + TimeDelta::seconds(1) };
        (self.until(to) - self.until(from)) / seconds(from, to)
    }

    /// Returns the times at which the value may change.
    pub(super) fn knots(&self) -> impl Iterator<Item = DateTime<Utc>> + '_ {
        self.knots.iter().map(|(at, _)| *at)
    }

    fn until(&self, t: DateTime<Utc>) -> f64 {
        let (Some((first, _)), Some((last, total))) = (self.knots.first(), self.knots.last()) else { return 0.0 };
        if t <= *first {
            return -self.mean * seconds(t, *first);
        }
        if t >= *last {
            return total + self.mean * seconds(*last, t);
        }
        let next = self.knots.partition_point(|(at, _)| *at <= t);
        let ((from, before), (to, after)) = (self.knots[next - 1], self.knots[next]);
        before + (after - before) * (seconds(from, t) / seconds(from, to))
    }
}

/// Returns the seconds from one time to another.
pub(super) fn seconds(from: DateTime<Utc>, to: DateTime<Utc>) -> f64 {
    Seconds::from_delta(to - from).get()
}

/// Windows of a question over a horizon.
pub(super) struct Windows<'a> {
    question: &'a StartQuestion,
    carbon: &'a Cumulated,
    horizon: &'a Horizon,
}

impl<'a> Windows<'a> {
    pub(super) fn new(question: &'a StartQuestion, carbon: &'a Cumulated, horizon: &'a Horizon) -> Self {
        Self { question, carbon, horizon }
    }

    /// Returns the starts to compare, in order: the earliest, the latest, and each time between at which a window's
    /// start or end meets a boundary of slots. One of them is the optimum, since the expected emissions are linear
    /// between them.
    pub(super) fn starts(&self) -> Vec<DateTime<Utc>> {
        let (earliest, latest) = (self.question.earliest_start(), self.question.latest_start());
        let duration = self.question.duration.to_delta();
        let ends = self.carbon.knots().filter_map(|at| at.checked_sub_signed(duration));
        let within = |at: &DateTime<Utc>| *at > earliest && *at < latest;
        let mut starts: Vec<_> = self.carbon.knots().chain(ends).filter(within).collect();
        starts.sort_unstable();
        starts.dedup();
        let step = starts.len().div_ceil(MOST_STARTS).max(1);
        let thinned = starts.into_iter().step_by(step);
        let last = Some(latest).filter(|latest| *latest > earliest);
        std::iter::once(earliest).chain(thinned).chain(last).collect()
    }

    /// Returns the window that begins at a start.
    pub(super) fn at(&self, start: DateTime<Utc>) -> StartWindow {
        let StartQuestion { duration, power, idle_power, .. } = self.question;
        let end = start.checked_add_signed(duration.to_delta()).unwrap_or(DateTime::<Utc>::MAX_UTC);
        let intensity = GramsPerKwh::new(self.carbon.mean(start, end).max(0.0));
        let waited = self.question.now;
        let idle = if start > waited && idle_power.get() > 0.0 {
            *idle_power
                * Seconds::new(seconds(waited, start))
                * GramsPerKwh::new(self.carbon.mean(waited, start).max(0.0))
        } else {
            GramsCo2e::ZERO
        };
        let carbon = *power * *duration * intensity + idle;
        StartWindow { start, end, intensity, carbon, basis: self.basis(start, end) }
    }

    /// Returns the poorest basis of the slots between two times.
    fn basis(&self, from: DateTime<Utc>, to: DateTime<Utc>) -> Basis {
        let slots = &self.horizon.slots;
        let first = slots.partition_point(|s| s.slot.end() <= from);
        let last = slots.partition_point(|s| s.slot.start() < to);
        slots.get(first..last).unwrap_or_default().iter().map(|s| s.basis).max().unwrap_or(Basis::Constant)
    }
}
