//! Expected costs of a job by its start: integrals of a piecewise constant forecast over windows.

use chrono::{DateTime, TimeDelta, Utc};

use super::advice::StartWindow;
use super::question::{StartProfile, StartQuestion};
use crate::domain::Slot;
use crate::forecast::{Basis, Horizon};
use crate::plan::job::{PlanSlot, Problem, solve};
use crate::units::{GramsCo2e, GramsPerKwh, Seconds, Watts};

/// Maximum number of starts that are compared. If there are more, an evenly spaced part of them is compared.
const MOST_STARTS: usize = 2000;
/// Maximum number of compared starts for jobs whose limits are planned for each start, which takes much longer.
const MOST_PLANNED_STARTS: usize = 200;

/// Minimum time from the earliest start to the next one: a forecast begins a moment after the question.
const APART: TimeDelta = TimeDelta::seconds(1);

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

/// Returns (1−w)·c + w·p with the price weight w, and 0 where that is negative: as in
/// [`crate::plan::Request::weighed_intensities`], so that no start gains by using energy at a negative cost.
fn weighed(carbon: &Cumulated, price: &Cumulated, weight: f64) -> Cumulated {
    let mut knots: Vec<_> = carbon.knots().chain(price.knots()).collect();
    knots.sort_unstable();
    knots.dedup();
    let of = |values: &Cumulated, pair: &[DateTime<Utc>]| values.mean(pair[0], pair[1]);
    let cost =
        |pair: &[DateTime<Utc>]| ((1.0 - weight) * of(carbon, pair).max(0.0) + weight * of(price, pair)).max(0.0);
    Cumulated::new(knots.windows(2).map(|pair| (pair[0], pair[1], cost(pair))))
}

/// Windows of a question over a horizon.
pub(super) struct Windows<'a> {
    question: &'a StartQuestion,
    carbon: &'a Cumulated,
    /// Carbon and price weighed as the question says, in g/kWh; `None` if the cost is the emissions.
    weighed: Option<Cumulated>,
    horizon: &'a Horizon,
}

impl<'a> Windows<'a> {
    /// `price` is the price as a carbon intensity: c_ref·π/π_ref, in g/kWh.
    pub(super) fn new(
        question: &'a StartQuestion,
        carbon: &'a Cumulated,
        price: Option<&'a Cumulated>,
        horizon: &'a Horizon,
    ) -> Self {
        let price = price.filter(|_| question.price_weight > 0.0);
        Self { question, carbon, weighed: price.map(|price| weighed(carbon, price, question.price_weight)), horizon }
    }

    /// Returns the starts to compare, in order: the earliest, the latest, and each time between at which a window's
    /// start or end meets a boundary of slots. One of them is the optimum, since the expected emissions are linear
    /// between them.
    pub(super) fn starts(&self) -> Vec<DateTime<Utc>> {
        let (earliest, latest) = (self.question.earliest_start(), self.question.latest_start());
        let duration = self.question.duration.to_delta();
        let ends = self.knots().filter_map(|at| at.checked_sub_signed(duration));
        let within = |at: &DateTime<Utc>| *at >= earliest + APART && *at < latest;
        let mut starts: Vec<_> = self.knots().chain(ends).filter(within).collect();
        starts.sort_unstable();
        starts.dedup();
        let most = if self.question.profile.is_some() { MOST_PLANNED_STARTS } else { MOST_STARTS };
        let step = starts.len().div_ceil(most).max(1);
        let thinned = starts.into_iter().step_by(step);
        let last = Some(latest).filter(|latest| *latest > earliest);
        std::iter::once(earliest).chain(thinned).chain(last).collect()
    }

    fn knots(&self) -> impl Iterator<Item = DateTime<Utc>> + '_ {
        self.carbon.knots().chain(self.weighed.iter().flat_map(Cumulated::knots))
    }

    /// Returns the window that begins at a start.
    pub(super) fn at(&self, start: DateTime<Utc>) -> StartWindow {
        let StartQuestion { now, duration, power, idle_power, .. } = self.question;
        let end = start.checked_add_signed(duration.to_delta()).unwrap_or(DateTime::<Utc>::MAX_UTC);
        let emissions = |values: &Cumulated| {
            let mean = |from, to| GramsPerKwh::new(values.mean(from, to).max(0.0));
            let waits = start > *now && idle_power.get() > 0.0;
            let idle = waits.then(|| *idle_power * Seconds::new(seconds(*now, start)) * mean(*now, start));
            *power * *duration * mean(start, end) + idle.unwrap_or_default()
        };
        let carbon = emissions(self.carbon);
        let cost = self.weighed.as_ref().map_or(carbon, emissions);
        let intensity = GramsPerKwh::new(self.carbon.mean(start, end).max(0.0));
        let constant = StartWindow { start, end, intensity, carbon, cost, basis: self.basis(start, end) };
        self.question.profile.as_ref().and_then(|profile| self.planned(profile, &constant)).unwrap_or(constant)
    }

    /// Returns the window with the best plan of power limits; `None` if there is no plan.
    fn planned(&self, profile: &StartProfile, constant: &StartWindow) -> Option<StartWindow> {
        let StartWindow { start, .. } = *constant;
        let latest_end = start.checked_add_signed(profile.longest_duration()?.to_delta())?;
        let mut cuts: Vec<DateTime<Utc>> = self.knots().filter(|at| *at > start && *at < latest_end).collect();
        cuts.extend([start, latest_end]);
        cuts.sort_unstable();
        cuts.dedup();
        let mut slots = Vec::new();
        for pair in cuts.windows(2) {
            let intensity = GramsPerKwh::new(self.carbon.mean(pair[0], pair[1]).max(0.0));
            slots.push(PlanSlot { slot: Slot::new(pair[0], pair[1])?, intensity });
        }
        let costs: Vec<GramsPerKwh> =
            slots.iter().map(|s| self.cost_of(s.intensity, s.slot.start(), s.slot.end())).collect();
        let (zero, points) = ((GramsPerKwh::ZERO, Watts::ZERO), profile.points.clone());
        let problem = Problem::new(slots, points, profile.work, 1.0, zero.0, zero.1, Some(latest_end)).ok()?;
        let solution = solve(&problem.minimising(&costs)).ok()?;
        // The idle power while waiting is that of the window at constant power.
        let run = self.question.power * self.question.duration;
        let idle = constant.carbon - run * constant.intensity;
        let idle_cost = constant.cost - run * self.cost_of(constant.intensity, start, constant.end);
        let mean = |carbon: GramsCo2e| carbon / (solution.energy * GramsPerKwh::new(1.0));
        Some(StartWindow {
            end: solution.ends_at,
            intensity: GramsPerKwh::new(mean(solution.carbon)),
            carbon: solution.carbon + idle,
            cost: solution.cost + idle_cost,
            ..*constant
        })
    }

    /// Returns the mean cost of energy between two times, of which `intensity` is the mean intensity.
    fn cost_of(&self, intensity: GramsPerKwh, from: DateTime<Utc>, to: DateTime<Utc>) -> GramsPerKwh {
        self.weighed.as_ref().map_or(intensity, |weighed| GramsPerKwh::new(weighed.mean(from, to).max(0.0)))
    }

    /// Returns the poorest basis of the slots between two times.
    fn basis(&self, from: DateTime<Utc>, to: DateTime<Utc>) -> Basis {
        let slots = &self.horizon.slots;
        let first = slots.partition_point(|s| s.slot.end() <= from);
        let last = slots.partition_point(|s| s.slot.start() < to);
        slots.get(first..last).unwrap_or_default().iter().map(|s| s.basis).max().unwrap_or(Basis::Constant)
    }
}
