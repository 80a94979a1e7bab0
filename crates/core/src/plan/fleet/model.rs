//! The joint planning problem in plain numbers: useful points only, seconds, grams per joule and per second, and the
//! possible ends of jobs.

use std::collections::BTreeMap;

use super::problem::{FleetJob, FleetPoint, FleetProblem};
use super::prune::{on_average, undominated};
use crate::units::{JOULES_PER_KWH, Seconds};

/// Relative difference that counts as rounding, such as the missing fraction of a job's work.
pub(super) const ROUNDING: f64 = 1e-9;
/// Relative miss of a row (a constraint of the relaxation) that counts as rounding of the interior-point method.
pub(super) const MISSED: f64 = 1e-7;

/// Points of a job that the best average over a slot can need, among the points that the slot's cap allows.
pub(super) struct Needed {
    /// Indices of these points among the job's points.
    pub(super) points: Vec<usize>,
    /// Limits of these points, in `rate` their throughputs and in `power` their powers. Each starts with a 0 for the
    /// time after the job's end.
    limit: Vec<f64>,
    rate: Vec<f64>,
    power: Vec<f64>,
}

/// One job of the joint planning problem in plain numbers.
pub(super) struct Job {
    /// Indices in [`FleetJob::points`] of the points that no other point dominates, from the lowest limit up.
    pub(super) places: Vec<usize>,
    /// Limit of each point less the resting limit (which counts after the job's end), W. `limit`, `rate` and `power`
    /// each end with a 0 for the ended job.
    pub(super) limit: Vec<f64>,
    /// Throughput of each point, samples/s.
    pub(super) rate: Vec<f64>,
    /// Power of each point, W.
    pub(super) power: Vec<f64>,
    /// Cost of energy in each slot, gCO2e/J.
    pub(super) joule_cost: Vec<f64>,
    /// Cost of time, gCO2e/s.
    pub(super) time_cost: f64,
    /// Remaining samples.
    pub(super) work: f64,
    /// First the index of the slot with the latest end, second the seconds of this slot before the latest end; without
    /// a latest end, the whole last slot.
    pub(super) latest: (usize, f64),
    /// The job's own carbon budget, gCO2e.
    pub(super) budget: Option<f64>,
    /// Rank of the job's priority among those of all jobs; 0 is the lowest.
    pub(super) rank: i32,
    /// True for each slot in which the job pauses; empty if it never pauses.
    pauses: Vec<bool>,
    needed: Vec<Needed>,
    /// Index of each slot's points in `needed`.
    needed_in: Vec<usize>,
}

impl Job {
    /// Finds the points that an average over a slot can need under each cap. A mixture of points replaces another point
    /// only where the cap allows all limits in the mixture.
    fn find_needed(&mut self, points: &[FleetPoint], caps: &[Option<f64>]) {
        let sorted: Vec<FleetPoint> = self.places.iter().map(|place| points[*place]).collect();
        let mut known: BTreeMap<usize, usize> = BTreeMap::new();
        for cap in caps {
            let below = |cap: f64| {
                let most = cap.max(self.lowest()) * (1.0 + ROUNDING) + ROUNDING;
                self.limit[..self.points()].partition_point(|limit| *limit <= most)
            };
            let allowed = cap.map_or(self.points(), below);
            let place = *known.entry(allowed).or_insert_with(|| {
                let points = on_average(&sorted[..allowed]);
                let column = |of: &[f64]| [0.0].into_iter().chain(points.iter().map(|l| of[*l])).collect();
                let (limit, rate, power) = (column(&self.limit), column(&self.rate), column(&self.power));
                self.needed.push(Needed { points, limit, rate, power });
                self.needed.len() - 1
            });
            self.needed_in.push(place);
        }
    }

    /// Returns whether the job pauses in a slot.
    pub(super) fn pauses_in(&self, slot: usize) -> bool {
        self.pauses.get(slot).is_some_and(|pauses| *pauses)
    }

    /// Returns the points that the best average over a slot can need.
    pub(super) fn needed(&self, slot: usize) -> &Needed {
        &self.needed[self.needed_in[slot]]
    }

    /// Returns the limits, throughputs and powers of the points that a slot can need. If `may_end`, each starts with a
    /// 0 for the time after the job's end.
    pub(super) fn features(&self, slot: usize, may_end: bool) -> (&[f64], &[f64], &[f64]) {
        let (needed, first) = (self.needed(slot), usize::from(!may_end));
        (&needed.limit[first..], &needed.rate[first..], &needed.power[first..])
    }

    /// Returns the number of points.
    pub(super) fn points(&self) -> usize {
        self.places.len()
    }

    pub(super) fn fastest(&self) -> f64 {
        self.rate.iter().fold(0.0, |a, b| a.max(*b))
    }

    /// Returns the least throughput of the points that a slot's average can need.
    pub(super) fn slowest(&self, slot: usize) -> f64 {
        self.needed(slot).points.iter().map(|l| self.rate[*l]).fold(f64::INFINITY, f64::min)
    }

    /// Returns the lowest limit of any point less the resting limit, W.
    pub(super) fn lowest(&self) -> f64 {
        self.limit[0]
    }

    pub(super) fn highest(&self) -> f64 {
        self.limit.iter().fold(0.0, |a, b| a.max(*b))
    }

    /// Returns the greatest power of any point, W.
    pub(super) fn draw(&self) -> f64 {
        self.power.iter().fold(0.0, |a, b| a.max(*b))
    }

    /// Returns the cost of a second at the greatest power in a slot, gCO2e.
    pub(super) fn max_second_cost(&self, slot: usize) -> f64 {
        self.joule_cost[slot] * self.draw() + self.time_cost
    }
}

/// Choice of a job's end. The job fills all slots before it.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct End {
    /// Index of the slot in which the job ends.
    pub(super) slot: usize,
    /// Seconds of that slot in which the job may run.
    pub(super) seconds: f64,
    /// True if these seconds extend beyond the latest end.
    pub(super) late: bool,
}

/// The joint planning problem in plain numbers.
pub(super) struct Model {
    /// Duration of each slot, s.
    pub(super) seconds: Vec<f64>,
    /// Carbon intensity of each slot, gCO2e/J.
    pub(super) carbon: Vec<f64>,
    /// Cap of each slot less the resting limits of all jobs and the limits of pausing ones, W; `None` if uncapped.
    pub(super) caps: Vec<Option<f64>>,
    pub(super) jobs: Vec<Job>,
    /// Shared carbon budgets, gCO2e; `budget_of` has for each slot the index of the budget that it belongs to.
    pub(super) budgets: Vec<f64>,
    pub(super) budget_of: Vec<Option<usize>>,
    /// Penalty for a second after the latest end, gCO2e; higher than any other cost.
    pub(super) lateness: f64,
    /// Preferred minimum duration of a part of a slot, s.
    pub(super) shortest: f64,
}

impl Model {
    pub(super) fn new(problem: &FleetProblem) -> Self {
        let seconds: Vec<f64> = problem.slots.iter().map(|s| s.slot.duration().get()).collect();
        let mut priorities: Vec<i32> = problem.jobs.iter().map(|j| j.priority).collect();
        priorities.sort_unstable();
        priorities.dedup();
        let rank = |j: &FleetJob| priorities.partition_point(|p| *p < j.priority) as i32;
        let mut jobs: Vec<Job> = problem.jobs.iter().map(|j| job_in_numbers(problem, j, rank(j), &seconds)).collect();
        let at_rest: f64 = problem.jobs.iter().map(|j| j.rest().get()).sum();
        let paused = |t: usize| jobs.iter().filter(|job| job.pauses_in(t)).map(Job::lowest).sum::<f64>();
        let caps = problem.caps.iter().enumerate();
        let caps: Vec<Option<f64>> = caps.map(|(t, cap)| cap.map(|cap| cap.get() - at_rest - paused(t))).collect();
        for (job, of) in jobs.iter_mut().zip(&problem.jobs) {
            job.find_needed(&of.points, &caps);
        }
        let carbon = problem.slots.iter().map(|s| s.intensity.get() / JOULES_PER_KWH).collect();
        let highest = jobs.iter().flat_map(|j| (0..seconds.len()).map(|t| j.max_second_cost(t))).fold(0.0, f64::max);
        let lateness = if highest > 0.0 { 100.0 * highest } else { 1.0 };
        let budgets = problem.carbon_budgets.points().iter().map(|(_, grams)| grams.get()).collect();
        let budget_of = (0..seconds.len()).map(|t| problem.budget_of(t)).collect();
        Self { seconds, carbon, caps, jobs, budgets, budget_of, lateness, shortest: problem.shortest.get() }
    }

    /// Returns the index of the last slot.
    pub(super) fn last(&self) -> usize {
        self.seconds.len() - 1
    }

    /// Returns the seconds of a full slot in which a job can train; 0 if the job pauses in the slot.
    pub(super) fn span(&self, job: usize, slot: usize) -> f64 {
        if self.jobs[job].pauses_in(slot) { 0.0 } else { self.seconds[slot] }
    }

    /// Returns the seconds in which a job can train before a given end.
    pub(super) fn time(&self, job: usize, end: End) -> f64 {
        (0..end.slot).map(|t| self.span(job, t)).sum::<f64>() + end.seconds
    }

    /// Returns the latest end that keeps a job's promises.
    pub(super) fn latest(&self, job: usize) -> End {
        let (slot, seconds) = self.jobs[job].latest;
        End { slot, seconds: seconds.min(self.span(job, slot)), late: false }
    }

    /// Returns the end in a given slot; late only if the whole slot is after the latest end.
    pub(super) fn end_in(&self, job: usize, slot: usize) -> End {
        let latest = self.latest(job);
        match slot.cmp(&latest.slot) {
            std::cmp::Ordering::Less => End { slot, seconds: self.span(job, slot), late: false },
            std::cmp::Ordering::Equal => latest,
            std::cmp::Ordering::Greater => End { slot, seconds: self.span(job, slot), late: true },
        }
    }

    /// Returns the end with all seconds of a slot, even those after the latest end.
    pub(super) fn last_end(&self, job: usize, slot: usize) -> End {
        let (latest, seconds) = (self.latest(job), self.span(job, slot));
        End { slot, seconds, late: slot > latest.slot || (slot == latest.slot && seconds > latest.seconds) }
    }

    /// Returns the next end after a given one; `None` at the end of the horizon.
    pub(super) fn later(&self, job: usize, end: End) -> Option<End> {
        let latest = self.latest(job);
        let cut = end == latest && latest.seconds < self.span(job, latest.slot);
        match cut {
            true => Some(End { slot: end.slot, seconds: self.span(job, end.slot), late: true }),
            false => (end.slot < self.last()).then(|| self.end_in(job, end.slot + 1)),
        }
    }

    /// Returns the sum of the running jobs' highest limits in a slot, W. A cap above this sum does not bind.
    pub(super) fn most(&self, slot: usize, ends: &[End]) -> f64 {
        self.running(slot, ends).map(|j| j.highest()).sum()
    }

    /// Returns the sum of the running jobs' lowest limits in a slot, W.
    pub(super) fn least(&self, slot: usize, ends: &[End]) -> f64 {
        self.running(slot, ends).map(Job::lowest).sum()
    }

    fn running<'a>(&'a self, slot: usize, ends: &'a [End]) -> impl Iterator<Item = &'a Job> {
        let runs = move |(job, end): &(&Job, &End)| slot <= end.slot && !job.pauses_in(slot);
        self.jobs.iter().zip(ends).filter(runs).map(|(job, _)| job)
    }

    /// Returns the cap of a slot, raised to the sum of the running jobs' lowest limits where even these exceed it;
    /// `None` if uncapped.
    pub(super) fn cap(&self, slot: usize, ends: &[End]) -> Option<f64> {
        self.caps[slot].map(|cap| cap.max(self.least(slot, ends)))
    }

    /// Returns the greatest work that a job could do until a given end if there were no caps, in samples.
    pub(super) fn max_work(&self, job: usize, end: End) -> f64 {
        self.time(job, end) * self.jobs[job].fastest()
    }
}

fn job_in_numbers(problem: &FleetProblem, job: &FleetJob, rank: i32, seconds: &[f64]) -> Job {
    let places = undominated(&job.points);
    let rest = job.rest().get();
    let column = |of: &dyn Fn(usize) -> f64| places.iter().map(|i| of(*i)).chain([0.0]).collect::<Vec<f64>>();
    let weight = |t: usize| job.weighed.as_ref().map_or(problem.slots[t].intensity, |w| w[t]).get();
    let joule_cost = (0..seconds.len()).map(|t| job.eta * weight(t) / JOULES_PER_KWH).collect();
    let time_cost = (1.0 - job.eta) * job.reference_intensity.get() * job.max_power.get() / JOULES_PER_KWH;
    let whole = (seconds.len() - 1, seconds[seconds.len() - 1]);
    let latest = job.latest_end.map_or(whole, |end| {
        let open = problem.slots.partition_point(|s| s.slot.start() < end).max(1) - 1;
        let slot = problem.slots[open].slot;
        (open, Seconds::from_delta(end.min(slot.end()) - slot.start()).get().max(0.0))
    });
    Job {
        limit: column(&|i| job.points[i].limit.get() - rest),
        rate: column(&|i| job.points[i].throughput.get()),
        power: column(&|i| job.points[i].power.get()),
        places,
        joule_cost,
        time_cost,
        work: job.work.get(),
        latest,
        budget: job.carbon_budget.map(|b| b.get()),
        rank,
        pauses: job.pauses.clone(),
        needed: Vec::new(),
        needed_in: Vec::new(),
    }
}
