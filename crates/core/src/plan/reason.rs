//! Reasons for the operating points of a plan, derived from the marginal costs of each slot and the multiplier λ (the
//! plan's highest marginal cost).

use std::fmt;

use chrono::{DateTime, Utc};

use super::job::{Hulls, MarginalStep, Mode, Problem, Solution, finishing_slot_steps, full_slot_steps};
use super::request::Weighing;
use crate::domain::{PowerLimit, Promise};
use crate::units::{GramsPerKwh, SamplesPerSecond, Seconds};

/// Relative deviation of a forecast from its mean up to which the forecast counts as constant.
const FLAT: f64 = 1e-6;

/// Marginal costs of work at an operating point, in gCO2e per sample of the objective in `planning.md` §2. An optimal
/// plan has `slower ≤ price ≤ faster` in each slot with a single point.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Margin {
    /// Cost saved per sample that the slot does less at the next slower point of the hull (concave envelope of
    /// throughput over power); `None` at the slowest.
    pub slower: Option<f64>,
    /// Additional cost per sample that the slot does more at the next faster point of the hull; `None` at the fastest.
    pub faster: Option<f64>,
    /// λ: the highest marginal cost of any step from a slower to a faster point that the plan takes.
    pub price: f64,
}

/// Reason for a segment's operating point. Displays as one sentence.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Reason {
    /// No slower plan reliably keeps the promise, or the work does not fit into the horizon.
    FullSpeed {
        /// The promise that no slower plan keeps reliably; `None` if the work does not fit into the horizon.
        promise: Option<Promise>,
    },
    /// No other usable point is faster or draws less power.
    OnlyPoint,
    /// Only one setting of the job is measured so far.
    OnlyMeasured {
        /// Highest power limit of that setting.
        limit: PowerLimit,
        /// True if the job has a deadline or a maximum slowdown, for which measuring other settings takes too long.
        lacks_time: bool,
    },
    /// No work is due now, so in each slot the job runs at the point with the lowest cost per sample.
    LeastCostPerSample {
        /// Carbon intensity of the slot.
        intensity: GramsPerKwh,
    },
    /// The forecast is constant, so only the speed matters.
    Flat {
        /// Carbon intensity of all slots.
        intensity: GramsPerKwh,
        /// Slowdown over the job's life; 0.1 is 10 %.
        slowdown: f64,
        /// The promise that sets the speed; `None` if the job runs at the speed with the lowest cost per sample.
        promise: Option<Promise>,
    },
    /// All slots run at the fastest point, and the plan ends just at the latest end that a promise allows.
    NoSlack {
        /// The promise that sets the latest end.
        promise: Promise,
    },
    /// The slot is divided between two points: the remaining work needs the faster one for a part of the time only.
    Shared {
        /// Fraction of the slot's time at the faster point, 0 to 1.
        faster_part: f64,
        /// Carbon intensity of the slot.
        intensity: GramsPerKwh,
    },
    /// The work ends in this slot, in which the job runs at the point with the lowest cost per sample.
    Last {
        /// Carbon intensity of the slot.
        intensity: GramsPerKwh,
    },
    /// The slot's intensity is below the plan's mean, so the job runs faster than in the plan's slowest slots.
    Faster {
        /// Carbon intensity of the slot; if `priced`, the weighted cost of a kilowatt-hour of carbon and price in the
        /// slot.
        intensity: GramsPerKwh,
        /// Mean of `intensity` over the time in which the plan trains.
        mean: GramsPerKwh,
        /// True if `intensity` and `mean` include the electricity price.
        priced: bool,
        /// Marginal costs at the point.
        margin: Margin,
    },
    /// The slot's intensity is above the plan's mean, so the job runs slower than in the plan's fastest slots.
    Slower {
        /// Carbon intensity of the slot; if `priced`, the weighted cost of a kilowatt-hour of carbon and price in the
        /// slot.
        intensity: GramsPerKwh,
        /// Mean of `intensity` over the time in which the plan trains.
        mean: GramsPerKwh,
        /// True if `intensity` and `mean` include the electricity price.
        priced: bool,
        /// Marginal costs at the point.
        margin: Margin,
    },
    /// The job pauses.
    Paused {
        /// Carbon intensity of the slot.
        intensity: GramsPerKwh,
        /// Mean carbon intensity while the job runs; `None` if the plan has no training time.
        running: Option<GramsPerKwh>,
    },
    /// The job saves or loads a checkpoint after a pause, without progress.
    Resuming,
    /// Joint planning: the node's power cap slows the job in this slot.
    LimitedByCap {
        /// Carbon intensity of the slot.
        intensity: GramsPerKwh,
        /// Cost that the joint plans would save, in gCO2e, per additional kilowatt-hour that the cap allowed in this
        /// slot.
        saving: GramsPerKwh,
    },
    /// Joint planning: the node's carbon budget slows the job in this slot.
    LimitedByBudget {
        /// Carbon intensity of the slot.
        intensity: GramsPerKwh,
        /// End of the budget period.
        until: DateTime<Utc>,
        /// True if the joint plans meet the budget.
        kept: bool,
    },
    /// Joint planning: neither the node's cap nor the node's carbon budget slows the job in this slot.
    WithinSharedLimits {
        /// Carbon intensity of the slot.
        intensity: GramsPerKwh,
    },
    /// The forecast is too uncertain to follow the optimum, so the present slot runs closer to a constant speed.
    Uncertain {
        /// Carbon intensity of the slot.
        intensity: GramsPerKwh,
        /// Mean carbon intensity over the time in which the plan trains.
        mean: GramsPerKwh,
    },
    /// Neither a slower nor a faster point costs less.
    Steady {
        /// Carbon intensity of the slot.
        intensity: GramsPerKwh,
        /// Marginal costs at the point.
        margin: Margin,
    },
}

impl Reason {
    /// Returns the marginal costs if they decided the choice of the point.
    pub fn margin(&self) -> Option<Margin> {
        match *self {
            Self::Faster { margin, .. } | Self::Slower { margin, .. } | Self::Steady { margin, .. } => Some(margin),
            _ => None,
        }
    }
}

impl fmt::Display for Reason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match *self {
            Self::FullSpeed { promise: Some(promise) } => {
                write!(f, "Running at full speed: no slower plan reliably keeps {promise}")
            }
            Self::FullSpeed { promise: None } => {
                f.write_str("Running at full speed: the work does not fit into the planning horizon")
            }
            Self::OnlyPoint => {
                f.write_str("The only useful limit: no other measured limit is faster or draws less power")
            }
            Self::OnlyMeasured { limit, lacks_time } => {
                write!(f, "Only {limit} is measured so far")?;
                let why = ": measuring other limits would cost more time than the job allows";
                f.write_str(if lacks_time { why } else { "" })
            }
            Self::LeastCostPerSample { intensity } => {
                write!(f, "Lowest cost per sample at {}: no work is due now", g(intensity))
            }
            Self::Flat { intensity, slowdown, promise } => {
                let percent = slowdown * 100.0;
                write!(f, "Constant forecast of {}: {percent:.1} % slower throughout, ", g(intensity))?;
                match promise {
                    Some(promise) if promise.bounds_time() => write!(f, "as slow as {promise} allows"),
                    Some(promise) => write!(f, "as fast as {promise} allows"),
                    None => f.write_str("at the lowest cost per sample"),
                }
            }
            Self::NoSlack { promise } => write!(f, "Running at full speed: only the fastest limit keeps {promise}"),
            Self::Shared { faster_part, intensity } => {
                let (percent, here) = (faster_part * 100.0, g(intensity));
                write!(f, "Two limits in turn at {here}: by the plan, the faster one for {percent:.0} % of the time")
            }
            Self::Last { intensity } => {
                write!(f, "The work ends soon: lowest cost per sample at {}", g(intensity))
            }
            Self::Faster { intensity, mean, priced, .. } | Self::Slower { intensity, mean, priced, .. } => {
                let speed = if matches!(self, Self::Faster { .. }) { "faster" } else { "slower" };
                let subject = if priced { "carbon and price amount to " } else { "" };
                let (here, mean) = (g(intensity), g(mean));
                write!(f, "Running {speed}: {subject}{here} now, {mean} on average until the job ends")
            }
            Self::Paused { intensity, running: Some(running) } => {
                write!(f, "Paused: {} now, {} on average while running", g(intensity), g(running))
            }
            Self::Paused { intensity, running: None } => write!(f, "Paused at {}", g(intensity)),
            Self::Resuming => f.write_str("Saving or loading a checkpoint after a pause"),
            Self::LimitedByCap { intensity, saving } => {
                write!(f, "Limited by the node's cap at {}: ", g(intensity))?;
                write!(f, "each additional kilowatt-hour under the cap would save {:.0} gCO2e", saving.get())
            }
            Self::WithinSharedLimits { intensity } => {
                write!(f, "Best speed at {} within the node's cap and carbon budget", g(intensity))
            }
            Self::LimitedByBudget { intensity, until, kept } => {
                let until = until.format("%FT%TZ");
                write!(f, "Slowed down at {} by the node's carbon budget until {until}", g(intensity))?;
                let broken = ", which cannot be kept without missing a deadline or slowdown limit";
                f.write_str(if kept { "" } else { broken })
            }
            Self::Uncertain { intensity, mean } => {
                write!(f, "Close to a constant speed: {} now, {} on average, ", g(intensity), g(mean))?;
                f.write_str("but the forecast is too uncertain to follow it further")
            }
            Self::Steady { intensity, .. } => {
                write!(f, "Best speed at {}: neither a slower nor a faster limit costs less", g(intensity))
            }
        }
    }
}

fn g(intensity: GramsPerKwh) -> String {
    format!("{:.0} g/kWh", intensity.get())
}

/// Properties of the whole plan that decide the reasons of its parts.
pub(super) struct PlanContext {
    /// Promise that sets the latest end, the deadline or the maximum slowdown; `None` if there is no latest end.
    pub(super) promise: Option<Promise>,
    /// The carbon budget if it binds, which means that the plan would emit more without it.
    pub(super) binding: Option<Promise>,
    /// Slowdown over the job's life; 0.1 is 10 %.
    pub(super) slowdown: f64,
    /// Quantities that make up the cost of energy.
    pub(super) weighing: Weighing,
    /// True if forecast uncertainty changed the present slot.
    pub(super) restrained: bool,
    /// Reason of all segments if only one setting is measured; else `None`.
    pub(super) only_measured: Option<Reason>,
}

/// Returns the reason for each part of each slot in `shares`, which are the time shares of `solution` (index of a point
/// and time at the point) without parts that are too short.
pub(super) fn explain(
    problem: &Problem,
    solution: &Solution,
    shares: &[Vec<(usize, Seconds)>],
    context: &PlanContext,
) -> Vec<Vec<Reason>> {
    let plan = WholePlan::of(problem, solution, shares, context);
    let of_slot = |(slot, parts): (usize, &Vec<(usize, Seconds)>)| {
        parts.iter().map(|part| plan.reason(slot, parts, part.0)).collect()
    };
    shares.iter().enumerate().map(of_slot).collect()
}

/// A plan as a whole, with which its parts are compared. Means and throughputs cover training time only, without pauses
/// and checkpoints.
struct WholePlan<'a> {
    problem: &'a Problem,
    context: &'a PlanContext,
    /// True if the job can train at one point only.
    has_one_point: bool,
    /// Steps of each slot, with their marginal costs.
    steps_of: Vec<Vec<MarginalStep>>,
    /// λ, as in [`Margin::price`].
    price: f64,
    /// Training time.
    working: Seconds,
    /// Mean carbon intensity.
    mean: GramsPerKwh,
    /// Mean weighted cost of a kilowatt-hour of carbon and price.
    weighed_mean: GramsPerKwh,
    /// True if neither the carbon intensity nor the weighted cost changes over the plan's slots.
    is_flat: bool,
    slowest: Option<SamplesPerSecond>,
    fastest: Option<SamplesPerSecond>,
    /// The promise that sets the plan's speed; `None` if none does.
    promise: Option<Promise>,
    /// The promise that only the fastest point keeps, if the plan always runs at that point.
    no_slack: Option<Promise>,
}

impl<'a> WholePlan<'a> {
    fn of(
        problem: &'a Problem,
        solution: &Solution,
        shares: &[Vec<(usize, Seconds)>],
        context: &'a PlanContext,
    ) -> Self {
        let hulls = Hulls::of(problem);
        let steps_of: Vec<Vec<MarginalStep>> = (0..solution.shares.len())
            .map(|slot| match slot + 1 == solution.shares.len() {
                true => finishing_slot_steps(problem, &hulls, slot),
                false => full_slot_steps(problem, &hulls, slot),
            })
            .collect();
        let marginal_costs = solution.shares.iter().zip(&steps_of).filter_map(|(parts, steps)| {
            let (fastest, _) = parts.first()?;
            Some(steps.iter().find(|step| step.to == *fastest)?.price)
        });
        let price = marginal_costs.fold(0.0, f64::max);

        let at_work = |parts: &[(usize, Seconds)]| -> Seconds {
            parts.iter().filter(|part| trains(problem, part.0)).map(|part| part.1).sum()
        };
        let working: Seconds = shares.iter().map(|parts| at_work(parts)).sum();
        let mean_of = |value: &dyn Fn(usize) -> GramsPerKwh| -> GramsPerKwh {
            (0..shares.len()).map(|slot| value(slot) * (at_work(&shares[slot]) / working)).sum()
        };
        let intensity_of = |slot: usize| problem.slots()[slot].intensity;
        let (mean, weighed_mean) = (mean_of(&intensity_of), mean_of(&|slot| problem.weight(slot)));
        let same = |value: GramsPerKwh, mean: GramsPerKwh| (value - mean).abs() <= mean * FLAT;
        let is_mean = |slot: usize| same(intensity_of(slot), mean) && same(problem.weight(slot), weighed_mean);
        let is_flat = shares.len() > 1 && (0..shares.len()).all(is_mean);

        let throughput = |point: usize| problem.points()[point].throughput;
        let points = || shares.iter().flatten().map(|part| part.0).filter(|point| trains(problem, *point));
        let slowest = points().map(throughput).reduce(|a, b| a.min(b));
        let fastest = points().map(throughput).reduce(|a, b| a.max(b));
        let ends_last = problem.latest_end().is_some_and(|end| end - solution.ends_at <= chrono::TimeDelta::seconds(1));
        Self {
            problem,
            context,
            has_one_point: hulls.running().len() == 1,
            steps_of,
            price,
            working,
            mean,
            weighed_mean,
            is_flat,
            slowest,
            fastest,
            promise: context.binding.or(context.promise.filter(|_| ends_last)),
            no_slack: context.promise.filter(|_| ends_last && slowest == Some(problem.fastest())),
        }
    }

    /// Returns the reason for running at `point` in a slot with these `parts`.
    fn reason(&self, slot: usize, parts: &[(usize, Seconds)], point: usize) -> Reason {
        let Self { problem, context, .. } = *self;
        let intensity = problem.slots()[slot].intensity;
        if !trains(problem, point) {
            let running = (self.working > Seconds::ZERO).then_some(self.mean);
            let paused = Some(point) == problem.idle();
            return if paused { Reason::Paused { intensity, running } } else { Reason::Resuming };
        }
        let priced = context.weighing == Weighing::CarbonAndPrice;
        let (value, mean) = if priced { (problem.weight(slot), self.weighed_mean) } else { (intensity, self.mean) };
        let throughput = problem.points()[point].throughput;
        let above = self.steps_of[slot].iter().find(|step| step.from == Some(point));
        let below = self.steps_of[slot].iter().find(|step| step.to == point);
        let (slower, faster) = (below.map(|step| step.price), above.map(|step| step.price));
        let margin = Margin { slower, faster, price: self.price };
        let ends_here = slot + 1 == self.steps_of.len() && below.is_some_and(|step| step.from.is_none());
        let cleaner = value < mean && self.slowest.is_some_and(|slowest| slowest < throughput);
        let dirtier = value > mean && self.fastest.is_some_and(|fastest| fastest > throughput);
        if self.has_one_point {
            context.only_measured.unwrap_or(Reason::OnlyPoint)
        } else if let Some(promise) = self.no_slack {
            Reason::NoSlack { promise }
        } else if self.is_flat {
            Reason::Flat { intensity, slowdown: context.slowdown, promise: self.promise }
        } else if context.restrained && slot == 0 {
            Reason::Uncertain { intensity, mean: self.mean }
        } else if parts.len() > 1 && parts.iter().all(|part| trains(problem, part.0)) {
            Reason::Shared { faster_part: parts[0].1 / parts.iter().map(|part| part.1).sum::<Seconds>(), intensity }
        } else if ends_here {
            Reason::Last { intensity }
        } else if cleaner {
            Reason::Faster { intensity: value, mean, priced, margin }
        } else if dirtier {
            Reason::Slower { intensity: value, mean, priced, margin }
        } else {
            Reason::Steady { intensity, margin }
        }
    }
}

/// Returns whether the job trains at a point, rather than pausing or saving or loading a checkpoint.
fn trains(problem: &Problem, point: usize) -> bool {
    problem.points_in(Mode::Run).contains(&point)
}
