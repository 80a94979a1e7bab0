//! A job replayed on recorded intensities under a policy (`planning.md` §5): no daemon, no threads, time is data.
//!
//! [`replay`] asks a policy what to do, books it against what came, and asks again when that is over, until the work
//! is done. Carbon is exact: a step that crosses slots is booked with the mean intensity of its own time.

mod job;
mod sight;
#[cfg(test)]
mod tests;
mod together;

use chrono::{DateTime, Utc};

pub use job::Job;
pub use sight::{Foresight, RecordedGrid, Sayings, Sight};
pub use together::{UnderCap, replay_together};

use wattune_core::domain::{Activity, CarbonSeries, Pausing, Profile, Slot};
use wattune_core::ledger::{self, Comparison, Done};
use wattune_core::plan::{InvalidProblem, Past, Unplannable};
use wattune_core::profile::Curve;
use wattune_core::units::{GramsCo2e, Joules, Samples, SamplesPerSecond, Seconds, Watts};

/// Work that is missing by less than this part of it is rounding.
const ROUNDING: f64 = 1e-9;

/// What a policy sees when it is asked. The same view has the same answer.
#[derive(Clone, Copy)]
pub struct View<'a> {
    /// The present.
    pub now: DateTime<Utc>,
    /// When the job began.
    pub start: DateTime<Utc>,
    /// What is known about the job at each limit; the first point is the largest limit's.
    pub profile: &'a Profile,
    /// The same as a curve with its hull.
    pub curve: &'a Curve,
    /// Relative standard error of the profile's throughputs.
    pub profile_error: f64,
    /// P_max: the largest limit.
    pub max_power: Watts,
    /// All the work, W.
    pub work: Samples,
    /// What of it is done.
    pub done: Samples,
    /// For how long the job has run.
    pub elapsed: Seconds,
    /// What came of that time; none before any has passed.
    pub past: Option<Past>,
    /// The allowed increase of the job's time: 0.03 is 3 %. Without one, a policy goes by its own weights.
    pub budget: Option<f64>,
    /// What pausing costs, if the job may pause.
    pub pausing: Option<Pausing>,
    /// Whether it runs or pauses, and since when.
    pub activity: Activity,
    /// What can be known of the grid; only the bounds look into its future.
    pub grid: &'a Sight<'a>,
}

impl View<'_> {
    /// The work that remains.
    pub fn left(&self) -> Samples {
        self.work - self.done
    }

    /// What is planned for each limit: power and throughput, as the profile has them.
    pub fn points(&self) -> impl Iterator<Item = (Watts, SamplesPerSecond)> {
        self.profile.points.iter().map(|p| (p.power.mean, p.throughput.mean))
    }

    /// The place of the point that costs least; of equals the one of the larger limit. `cost` sees power and
    /// throughput.
    pub fn cheapest(&self, cost: impl Fn(Watts, SamplesPerSecond) -> f64) -> usize {
        let costs = self.points().map(|(power, throughput)| cost(power, throughput));
        costs.enumerate().min_by(|a, b| a.1.total_cmp(&b.1)).map_or(0, |(place, _)| place)
    }
}

/// What a job does for a while.
#[derive(Clone, Debug, PartialEq)]
pub enum Act {
    /// It trains, at one setting or at several that share the time evenly: places in [`Profile::points`] and each one's
    /// share; shares add up to 1.
    Train(Vec<(usize, f64)>),
    /// It pauses.
    Pause,
    /// It saves or loads a checkpoint, at the power of this point.
    Checkpoint(usize),
}

/// What to do, and for how long.
#[derive(Clone, Debug, PartialEq)]
pub struct Step {
    /// What.
    pub act: Act,
    /// For how long; the end of the work cuts it short.
    pub lasts: Seconds,
}

impl Step {
    /// One setting for so long.
    pub fn at(point: usize, lasts: Seconds) -> Self {
        Self { act: Act::Train(vec![(point, 1.0)]), lasts }
    }

    /// One setting until the work is done.
    pub fn to_the_end(point: usize) -> Self {
        Self::at(point, Seconds::new(f64::MAX))
    }
}

/// What a policy answers: steps from now on, after which it is asked again.
pub type Decision = Result<Vec<Step>, Unplannable>;

/// A part of what a job did.
#[derive(Clone, Debug, PartialEq)]
pub struct Leg {
    /// When.
    pub slot: Slot,
    /// What it did.
    pub act: Act,
}

/// What a replayed job did.
#[derive(Clone, Debug, PartialEq)]
pub struct Replayed {
    /// Against the same job at the largest limit.
    pub against_max: Comparison,
    /// What it used.
    pub energy: Joules,
    /// What it emitted.
    pub carbon: GramsCo2e,
    /// How long it took.
    pub time: Seconds,
    /// What it did when, oldest first.
    pub legs: Vec<Leg>,
}

/// Why a replay has no end.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
pub enum ReplayError {
    /// The grid is not known for as long as the job takes.
    #[error("the job still runs at {0}, of which the carbon trace tells nothing")]
    BeyondTrace(DateTime<Utc>),
    /// Nothing is emitted at the ceiling, so that nothing can be reduced.
    #[error("the carbon trace is zero for as long as the job runs: there is nothing to reduce")]
    NoCarbon,
    /// The policy found nothing to do.
    #[error("the policy cannot plan: {0}")]
    Unplannable(#[from] Unplannable),
    /// The policy does nothing.
    #[error("the policy stands still at {0}")]
    Idle(DateTime<Utc>),
    /// The jobs do not fit under the node's cap even at their lowest limits.
    #[error("the lowest limits of all jobs add up to {lowest}, more than the node's cap of {cap}")]
    NoRoom {
        /// Their sum.
        lowest: Watts,
        /// The cap.
        cap: Watts,
    },
}

/// How a job is replayed, whatever the policy.
#[derive(Clone, Copy)]
pub struct Setting<'a> {
    /// The job.
    pub job: &'a Job,
    /// What policies believe about it: its own profile, or one with errors of measurement.
    pub believed: &'a Profile,
    /// Relative standard error of `believed`.
    pub profile_error: f64,
    /// When it begins.
    pub start: DateTime<Utc>,
    /// What pausing costs, if it may pause.
    pub pausing: Option<Pausing>,
    /// The grid.
    pub grid: &'a Sight<'a>,
}

/// Runs a job to its end. With `sweep`, it first spends so many seconds at each limit, from the largest down: what a
/// daemon pays that has to learn.
///
/// # Errors
/// If the trace ends before the work, or the policy has no answer.
pub fn replay(
    setting: Setting<'_>,
    budget: Option<f64>,
    sweep: Seconds,
    decide: impl Fn(&View<'_>) -> Decision,
) -> Result<Replayed, ReplayError> {
    let curve = Curve::from_profile(setting.believed).ok_or(Unplannable::NoUsablePoint)?;
    let mut run = Run::new(&setting);
    if sweep > Seconds::ZERO {
        for point in 0..setting.job.profile.points.len() {
            run.take(&Step::at(point, sweep))?;
        }
    }
    while !run.is_done() {
        let before = run.elapsed;
        for step in decide(&run.view(&setting, &curve, budget))? {
            run.take(&step)?;
        }
        if run.elapsed <= before {
            return Err(ReplayError::Idle(run.now()));
        }
    }
    run.end()
}

/// A job on its way.
struct Run<'a> {
    job: &'a Job,
    start: DateTime<Utc>,
    pausing: Option<Pausing>,
    actual: &'a CarbonSeries,
    done: Samples,
    elapsed: Seconds,
    energy: Joules,
    carbon: GramsCo2e,
    activity: Activity,
    legs: Vec<Leg>,
}

impl<'a> Run<'a> {
    fn new(setting: &Setting<'a>) -> Self {
        Self {
            job: setting.job,
            start: setting.start,
            pausing: setting.pausing,
            actual: setting.grid.actual(),
            done: Samples::ZERO,
            elapsed: Seconds::ZERO,
            energy: Joules::ZERO,
            carbon: GramsCo2e::ZERO,
            // Since long ago, as far as shortest runs go.
            activity: Activity::RunningSince(DateTime::UNIX_EPOCH),
            legs: Vec::new(),
        }
    }

    /// What a policy sees of it now.
    fn view<'b>(&self, setting: &Setting<'b>, curve: &'b Curve, budget: Option<f64>) -> View<'b> {
        View {
            now: self.now(),
            start: self.start,
            profile: setting.believed,
            curve,
            profile_error: setting.profile_error,
            max_power: self.job.max_power,
            work: self.job.work,
            done: self.done,
            elapsed: self.elapsed,
            past: self.past(),
            budget,
            pausing: self.pausing,
            activity: self.activity,
            grid: setting.grid,
        }
    }

    fn past(&self) -> Option<Past> {
        let intensity = ledger::mean_intensity(self.actual, &Slot::new(self.start, self.now())?)?;
        Some(Past { intensity, carbon: self.carbon })
    }

    fn now(&self) -> DateTime<Utc> {
        self.start + self.elapsed.to_delta()
    }

    fn is_done(&self) -> bool {
        self.job.work - self.done <= self.job.work * ROUNDING
    }

    /// Power and throughput while the job does this.
    fn at(&self, act: &Act) -> (Watts, SamplesPerSecond) {
        let points = &self.job.profile.points;
        match act {
            Act::Train(shares) => (
                shares.iter().map(|(place, share)| points[*place].power.mean * *share).sum(),
                shares.iter().map(|(place, share)| points[*place].throughput.mean * *share).sum(),
            ),
            Act::Pause => (self.pausing.map_or(Watts::ZERO, |costs| costs.idle_power), SamplesPerSecond::ZERO),
            Act::Checkpoint(place) => (points[*place].power.mean, SamplesPerSecond::ZERO),
        }
    }

    fn take(&mut self, step: &Step) -> Result<(), ReplayError> {
        if self.is_done() {
            return Ok(());
        }
        let (power, throughput) = self.at(&step.act);
        let works = throughput > SamplesPerSecond::ZERO;
        let lasts = if works { step.lasts.min((self.job.work - self.done) / throughput) } else { step.lasts };
        let before = self.now();
        let beyond = || ReplayError::BeyondTrace(self.actual.end().unwrap_or(before));
        let end = self.start.checked_add_signed((self.elapsed + lasts).to_delta()).ok_or_else(beyond)?;
        // Shorter than time is kept: nothing to book.
        if let Some(slot) = Slot::new(before, end) {
            let intensity = ledger::mean_intensity(self.actual, &slot).ok_or_else(beyond)?;
            self.carbon += power * lasts * intensity;
            match self.legs.last_mut() {
                Some(last) if last.act == step.act => last.slot = Slot::new(last.slot.start(), end).unwrap_or(slot),
                _ => self.legs.push(Leg { slot, act: step.act.clone() }),
            }
        }
        self.activity = match (self.activity, &step.act) {
            (Activity::RunningSince(_), Act::Pause) => Activity::PausedSince(before),
            // A checkpoint ends a pause and begins a run.
            (Activity::PausedSince(_), Act::Train(_) | Act::Checkpoint(_)) => Activity::RunningSince(before),
            (same, _) => same,
        };
        self.energy += power * lasts;
        self.done += throughput * lasts;
        self.elapsed += lasts;
        Ok(())
    }

    fn end(self) -> Result<Replayed, ReplayError> {
        let done = Done {
            started: self.start,
            active: self.elapsed,
            stalled: Seconds::ZERO,
            stalled_energy: Joules::ZERO,
            samples: self.done,
            energy: self.energy,
            carbon: self.carbon,
        };
        let curve = &self.job.curve;
        let ceiling = curve.ceiling();
        // Who may pause does not have to be slow all the time: the constant mix then ends earlier.
        let efficient = curve.most_efficient().throughput;
        let constant = |throughput: SamplesPerSecond| {
            let pace = if self.pausing.is_some() { throughput.max(efficient) } else { throughput };
            Some(curve.power_at(pace)? * (throughput / pace))
        };
        let against_max = ledger::compare(&done, (ceiling.throughput, ceiling.power), constant, self.actual);
        let missing = if self.carbon > GramsCo2e::ZERO {
            ReplayError::BeyondTrace(self.actual.end().unwrap_or(self.start))
        } else {
            ReplayError::NoCarbon
        };
        Ok(Replayed {
            against_max: against_max.ok_or(missing)?,
            energy: self.energy,
            carbon: self.carbon,
            time: self.elapsed,
            legs: self.legs,
        })
    }
}

/// A horizon that cannot be planned over.
pub(crate) fn no_horizon() -> Unplannable {
    Unplannable::Invalid(InvalidProblem::NoSlots)
}
