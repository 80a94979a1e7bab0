//! Why a plan chooses a point for a slot, from the multiplier λ and the slot's own marginal costs.

use std::fmt;

use chrono::{DateTime, Utc};

use super::dual::{Hulls, Rung, finishing_ladder, full_ladder};
use super::problem::{Mode, Problem, Solution};
use super::promise::Promise;
use super::request::Weighing;
use crate::units::{GramsPerKwh, Seconds};

/// Intensities this close to their mean are a flat forecast.
const FLAT: f64 = 1e-6;

/// Costs at the margin in gCO2e per sample, weighed as in `planning.md` §2. In an optimal plan
/// `slower ≤ price ≤ faster` wherever a slot is at one point.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Margin {
    /// What each sample lost by the next slower hull point would save here; `None` at the slowest.
    pub slower: Option<f64>,
    /// What each sample gained by the next faster hull point would cost here; `None` at the fastest.
    pub faster: Option<f64>,
    /// λ: the highest price that the plan pays for a sample anywhere.
    pub price: f64,
}

/// Why a segment has its point. Prints as one sentence.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Reason {
    /// No plan keeps the promise, or the work does not fit into the horizon.
    FlatOut {
        /// The promise that cannot be kept with certainty, if any was made.
        promise: Option<Promise>,
    },
    /// Every point that may be used is dominated by this one.
    OnlyPoint,
    /// No work is owed for now, so each slot has its own optimum.
    LeastCostPerSample {
        /// The slot's.
        intensity: GramsPerKwh,
    },
    /// The forecast doesn't change over the plan: when makes no difference, only how fast.
    Flat {
        /// The same for all slots.
        intensity: GramsPerKwh,
        /// The plan's, over the job's life.
        slowdown: f64,
        /// The promise that keeps the plan from being slower, if one does.
        promise: Option<Promise>,
    },
    /// Every slot is at the fastest point and the plan ends at the last moment.
    NoSlack {
        /// The promise that sets the last moment.
        promise: Promise,
    },
    /// Two points share the slot in which the last samples are bought.
    Shared {
        /// The part of the used time at the faster one.
        faster_part: f64,
        /// The slot's.
        intensity: GramsPerKwh,
    },
    /// The work ends in this slot, at the point of least cost per sample.
    Last {
        /// The slot's.
        intensity: GramsPerKwh,
    },
    /// Cleaner than the plan's mean, and faster than other slots.
    Cleaner {
        /// The slot's.
        intensity: GramsPerKwh,
        /// The plan's, weighed with time.
        mean: GramsPerKwh,
        /// Why neither slower nor faster.
        margin: Margin,
    },
    /// Dirtier than the plan's mean, and slower than other slots.
    Dirtier {
        /// The slot's.
        intensity: GramsPerKwh,
        /// The plan's, weighed with time.
        mean: GramsPerKwh,
        /// Why neither slower nor faster.
        margin: Margin,
    },
    /// Carbon and price together are below the plan's mean, and it is faster here than in other slots.
    Cheaper {
        /// What the slot is weighed with, carbon and price, in g/kWh.
        weighed: GramsPerKwh,
        /// The plan's, weighed with time.
        mean: GramsPerKwh,
        /// Why neither slower nor faster.
        margin: Margin,
    },
    /// Carbon and price together are above the plan's mean, and it is slower here than in other slots.
    Dearer {
        /// What the slot is weighed with, carbon and price, in g/kWh.
        weighed: GramsPerKwh,
        /// The plan's, weighed with time.
        mean: GramsPerKwh,
        /// Why neither slower nor faster.
        margin: Margin,
    },
    /// The job pauses.
    Paused {
        /// The slot's.
        intensity: GramsPerKwh,
        /// Of the time in which it runs.
        running: Option<GramsPerKwh>,
    },
    /// A checkpoint is saved or loaded after a pause.
    Resuming,
    /// The jobs of a node are planned all at once, and its cap holds this one down here.
    HeldDown {
        /// The slot's.
        intensity: GramsPerKwh,
        /// What each kilowatt-hour more of cap in this slot would save.
        saving: GramsPerKwh,
    },
    /// The jobs of a node are planned all at once, and its carbon budget makes this one slower here.
    Frugal {
        /// The slot's.
        intensity: GramsPerKwh,
        /// When the budget's span ends.
        until: DateTime<Utc>,
        /// Whether the plans keep it.
        kept: bool,
    },
    /// The jobs of a node are planned all at once, and neither cap nor budget binds here.
    Together {
        /// The slot's.
        intensity: GramsPerKwh,
    },
    /// The forecast is too uncertain for the pace that would be best by it: this one is nearer to the best constant mix.
    Uncertain {
        /// The slot's.
        intensity: GramsPerKwh,
        /// The plan's, weighed with time.
        mean: GramsPerKwh,
    },
    /// Neither slower nor faster pays.
    Steady {
        /// The slot's.
        intensity: GramsPerKwh,
        /// Why.
        margin: Margin,
    },
}

impl fmt::Display for Reason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match *self {
            Self::FlatOut { promise: Some(promise) } => write!(f, "flat out: no slower plan safely keeps {promise}"),
            Self::FlatOut { promise: None } => f.write_str("flat out: the work does not fit into the horizon"),
            Self::OnlyPoint => f.write_str("the only limit worth using: no other is faster or draws less"),
            Self::LeastCostPerSample { intensity } => {
                write!(f, "no work is owed for now: least cost per sample at {}", g(intensity))
            }
            Self::Flat { intensity, slowdown, promise } => {
                let percent = slowdown * 100.0;
                write!(f, "flat forecast ({}): static mix with {percent:.1} % slowdown, ", g(intensity))?;
                match promise {
                    Some(promise @ Promise::CarbonBudget(_)) => write!(f, "as fast as {promise} allows"),
                    Some(promise) => write!(f, "as slow as {promise} allows"),
                    None => f.write_str("the least cost per sample"),
                }
            }
            Self::NoSlack { promise } => write!(f, "no slack: only the fastest limit keeps {promise}"),
            Self::Shared { faster_part, intensity } => {
                let percent = faster_part * 100.0;
                write!(f, "two limits share this slot ({}), {percent:.0} % for the faster one, ", g(intensity))?;
                f.write_str("so that exactly the remaining work is done")
            }
            Self::Last { intensity } => {
                write!(f, "the work ends in this slot: least cost per sample at {}", g(intensity))
            }
            Self::Cleaner { intensity, mean, margin } => {
                write!(f, "cleaner than the plan's mean ({}, mean {}), so work is done here: ", g(intensity), g(mean))?;
                margin.fmt(f)
            }
            Self::Dirtier { intensity, mean, margin } => {
                write!(
                    f,
                    "dirtier than the plan's mean ({}, mean {}), so work is done elsewhere: ",
                    g(intensity),
                    g(mean)
                )?;
                margin.fmt(f)
            }
            Self::Cheaper { weighed, mean, margin } => {
                write!(
                    f,
                    "carbon and price together are below the plan's mean ({} against {}), ",
                    g(weighed),
                    g(mean)
                )?;
                write!(f, "so work is done here: {margin}")
            }
            Self::Dearer { weighed, mean, margin } => {
                write!(
                    f,
                    "carbon and price together are above the plan's mean ({} against {}), ",
                    g(weighed),
                    g(mean)
                )?;
                write!(f, "so work is done elsewhere: {margin}")
            }
            Self::Paused { intensity, running: Some(running) } => {
                let (here, there) = (g(intensity), g(running));
                write!(f, "paused: waiting at {here} is better than working; the hours of work have {there}")
            }
            Self::Paused { intensity, running: None } => write!(f, "paused at {}", g(intensity)),
            Self::Resuming => f.write_str("resuming after a pause: its checkpoint takes this long, no work is done"),
            Self::HeldDown { intensity, saving } => {
                write!(f, "held down by the node's cap ({}): ", g(intensity))?;
                write!(f, "each kilowatt-hour more of it here would save {:.0} gCO2e", saving.get())
            }
            Self::Together { intensity } => {
                write!(f, "the best pace at {} within the node's cap and carbon budget", g(intensity))
            }
            Self::Frugal { intensity, until, kept } => {
                let until = until.format("%FT%TZ");
                write!(f, "slowed down at {} by the node's carbon budget until {until}", g(intensity))?;
                f.write_str(if kept {
                    ""
                } else {
                    ", which cannot be kept: the least carbon that promises about time allow"
                })
            }
            Self::Uncertain { intensity, mean } => {
                write!(f, "near the constant mix ({} now, mean {}): ", g(intensity), g(mean))?;
                f.write_str("the forecast is too uncertain to be followed further")
            }
            Self::Steady { intensity, margin } => {
                write!(f, "the best pace at {}: ", g(intensity))?;
                margin.fmt(f)
            }
        }
    }
}

impl fmt::Display for Margin {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("against the plan's dearest sample, ")?;
        match (self.slower, self.faster) {
            (None, None) => f.write_str("there is no other limit"),
            (Some(slower), None) => write!(f, "a slower limit saves {}", self.against_price(slower)),
            (None, Some(faster)) => write!(f, "a faster limit costs {}", self.against_price(faster)),
            (Some(slower), Some(faster)) => {
                let (slower, faster) = (self.against_price(slower), self.against_price(faster));
                write!(f, "a slower limit saves {slower} and a faster one costs {faster}")
            }
        }
    }
}

impl Margin {
    fn against_price(&self, cost: f64) -> String {
        let percent = (cost / self.price - 1.0) * 100.0;
        if cost == self.price || percent.abs() < 0.5 {
            "the same".to_owned()
        } else if percent < 0.0 {
            format!("{:.0} % less", -percent)
        } else if percent <= 1000.0 {
            format!("{percent:.0} % more")
        } else if percent.is_finite() {
            "more than ten times as much".to_owned()
        } else {
            "more, as that one is free".to_owned()
        }
    }
}

fn g(intensity: GramsPerKwh) -> String {
    format!("{:.0} g/kWh", intensity.get())
}

/// What is known about the plan as a whole.
pub(super) struct Story {
    /// The promise that sets the latest end.
    pub(super) promise: Option<Promise>,
    /// Another promise that binds.
    pub(super) binding: Option<Promise>,
    /// The slowdown over the job's life.
    pub(super) slowdown: f64,
    /// What energy is weighed with.
    pub(super) weighing: Weighing,
    /// Whether the forecast is too uncertain to be followed all the way in the present slot.
    pub(super) restrained: bool,
}

/// The reason of each share of `shares`, which are the solution's but for parts too short to switch for.
pub(super) fn explain(
    problem: &Problem,
    solution: &Solution,
    shares: &[Vec<(usize, Seconds)>],
    story: &Story,
) -> Vec<Vec<Reason>> {
    let hulls = Hulls::of(problem);
    let ladders: Vec<Vec<Rung>> = (0..solution.shares.len())
        .map(|slot| match slot + 1 == solution.shares.len() {
            true => finishing_ladder(problem, &hulls, slot),
            false => full_ladder(problem, &hulls, slot),
        })
        .collect();
    let bought = solution.shares.iter().zip(&ladders).filter_map(|(parts, ladder)| {
        let (fastest, _) = parts.first()?;
        Some(ladder.iter().find(|rung| rung.to == *fastest)?.price)
    });
    let price = bought.fold(0.0, f64::max);

    // Means and extremes are of the time in which work is done.
    let works = |point: usize| problem.points_in(Mode::Run).contains(&point);
    let at_work =
        |parts: &[(usize, Seconds)]| -> Seconds { parts.iter().filter(|part| works(part.0)).map(|part| part.1).sum() };
    let working: Seconds = shares.iter().map(|parts| at_work(parts)).sum();
    let mean_of = |value: &dyn Fn(usize) -> GramsPerKwh| -> GramsPerKwh {
        (0..shares.len()).map(|slot| value(slot) * (at_work(&shares[slot]) / working)).sum()
    };
    let intensity_of = |slot: usize| problem.slots()[slot].intensity;
    let mean = mean_of(&intensity_of);
    let priced = story.weighing == Weighing::CarbonAndPrice;
    let weighed_mean = mean_of(&|slot| problem.weight(slot));
    let same = |value: GramsPerKwh, mean: GramsPerKwh| (value - mean).abs() <= mean * FLAT;
    let is_flat = |slot: usize| same(intensity_of(slot), mean) && same(problem.weight(slot), weighed_mean);
    let flat = shares.len() > 1 && (0..shares.len()).all(is_flat);
    let throughput = |point: usize| problem.points()[point].throughput;
    let paces = || shares.iter().flatten().map(|part| part.0).filter(|point| works(*point)).map(throughput);
    let (slowest, fastest) = (paces().reduce(|a, b| a.min(b)), paces().reduce(|a, b| a.max(b)));
    let ends_last = problem.latest_end().is_some_and(|end| end - solution.ends_at <= chrono::TimeDelta::seconds(1));
    let promise = story.binding.or(story.promise.filter(|_| ends_last));
    let no_slack = story.promise.filter(|_| ends_last && slowest == Some(problem.fastest()));

    let reason = |slot: usize, parts: &[(usize, Seconds)], point: usize| {
        let intensity = intensity_of(slot);
        if !works(point) {
            let running = (working > Seconds::ZERO).then_some(mean);
            let paused = Some(point) == problem.idle();
            return if paused { Reason::Paused { intensity, running } } else { Reason::Resuming };
        }
        let (value, mean) = if priced { (problem.weight(slot), weighed_mean) } else { (intensity, mean) };
        let above = ladders[slot].iter().find(|rung| rung.from == Some(point));
        let below = ladders[slot].iter().find(|rung| rung.to == point);
        let margin = Margin { slower: below.map(|rung| rung.price), faster: above.map(|rung| rung.price), price };
        let ends_here = slot + 1 == solution.shares.len() && below.is_some_and(|rung| rung.from.is_none());
        let cleaner = value < mean && slowest.is_some_and(|r| r < throughput(point));
        let dirtier = value > mean && fastest.is_some_and(|r| r > throughput(point));
        if hulls.running().len() == 1 {
            Reason::OnlyPoint
        } else if let Some(promise) = no_slack {
            Reason::NoSlack { promise }
        } else if story.restrained && slot == 0 {
            Reason::Uncertain { intensity, mean: mean_of(&intensity_of) }
        } else if flat {
            Reason::Flat { intensity, slowdown: story.slowdown, promise }
        } else if parts.len() > 1 && parts.iter().all(|part| works(part.0)) {
            Reason::Shared { faster_part: parts[0].1 / parts.iter().map(|part| part.1).sum::<Seconds>(), intensity }
        } else if ends_here {
            Reason::Last { intensity }
        } else if priced && cleaner {
            Reason::Cheaper { weighed: value, mean, margin }
        } else if priced && dirtier {
            Reason::Dearer { weighed: value, mean, margin }
        } else if cleaner {
            Reason::Cleaner { intensity, mean, margin }
        } else if dirtier {
            Reason::Dirtier { intensity, mean, margin }
        } else {
            Reason::Steady { intensity, margin }
        }
    };
    let of_slot =
        |(slot, parts): (usize, &Vec<(usize, Seconds)>)| parts.iter().map(|part| reason(slot, parts, part.0)).collect();
    shares.iter().enumerate().map(of_slot).collect()
}
