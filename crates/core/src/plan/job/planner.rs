//! Planner of one job: derives the job's usable operating points, the work to plan, the problem to solve, and the plan
//! that consists of given segments.

use chrono::{DateTime, Utc};

use super::pausing::restart_time;
use super::problem::{InvalidProblem, PlanSlot, Point, Problem, check_horizon};
use super::shares::{SHORTEST, carbon, mean};
use crate::domain::{Promise, SetPoint, Slot, Work};
use crate::plan::reason::Reason;
use crate::plan::request::{Progress, Request, Unplannable};
use crate::plan::schedule::{Expected, JobActivity, Plan, Segment, Verdict};
use crate::plan::slots::coarser;
use crate::profile::{Curve, HullPoint};
use crate::time::later;
use crate::units::{GramsPerKwh, Joules, Samples, SamplesPerSecond, Seconds, Watts};

/// Maximum length of a planning horizon, about 3,000 years.
const FURTHEST: Seconds = Seconds::new(1e11);
/// Work that takes less time than this at the fastest point counts as done.
const NO_TIME: Seconds = Seconds::new(1e-12);
/// Maximum number of slots to plan over; if the forecast has more, they are averaged to longer ones first.
const MOST_SLOTS: usize = 4096;

/// Points of a job's profile that a plan may use: measured, and with no power limit above the out-of-band cap.
pub(in crate::plan) struct UsablePoints {
    pub(in crate::plan) points: Vec<Point>,
    /// Index of each point in the profile's points.
    pub(in crate::plan) places: Vec<usize>,
}

impl UsablePoints {
    fn of(request: &Request<'_>) -> Result<Self, Unplannable> {
        let known = &request.profile.points;
        let allowed = |set: &SetPoint| request.allowed.is_none_or(|cap| set.limit <= cap || set.limit.same_as(cap));
        let (mut points, mut places) = (Vec::new(), Vec::new());
        for (place, p) in known.iter().enumerate() {
            let (power, throughput) = (p.power.mean, p.throughput.mean);
            let first = !places.iter().any(|&earlier: &usize| known[earlier].setting == p.setting);
            if p.is_usable() && first && p.setting.iter().all(allowed) {
                points.push(Point { power, throughput });
                places.push(place);
            }
        }
        match (points.is_empty(), request.allowed) {
            (false, _) => Ok(Self { points, places }),
            (true, Some(cap)) => Err(Unplannable::NothingAllowed(cap)),
            (true, None) => Err(Unplannable::NoUsablePoint),
        }
    }

    /// Returns the index of the best point; `better(a, b)` is true if `a` is better than `b`.
    pub(in crate::plan) fn best(&self, better: impl Fn(&Point, &Point) -> bool) -> usize {
        (1..self.points.len()).fold(0, |best, i| if better(&self.points[i], &self.points[best]) { i } else { best })
    }

    pub(in crate::plan) fn fastest(&self) -> usize {
        self.best(|a, b| a.throughput > b.throughput || (a.throughput == b.throughput && a.power < b.power))
    }

    fn weakest(&self) -> usize {
        self.best(|a, b| a.power < b.power)
    }

    /// Returns the activity at a point of the problem, and the point's index in the profile. The first point after the
    /// training points is a pause at the setting of least power, the second a checkpoint at the fastest point.
    fn activity_at(&self, point: usize) -> (JobActivity, usize) {
        match point.checked_sub(self.points.len()) {
            None => (JobActivity::Training, self.places[point]),
            Some(0) => (JobActivity::Paused, self.places[self.weakest()]),
            Some(_) => (JobActivity::Resuming, self.places[self.fastest()]),
        }
    }
}

/// Work that a plan must do.
pub(in crate::plan) enum Due {
    /// The plan has no work to do: the job's work is done.
    Done,
    /// The plan has no work to do for now: the job's total work is unknown, and no maximum slowdown requires work
    /// within the planning window.
    NothingNow,
    /// The plan must do this work.
    Work(DueWork),
}

pub(in crate::plan) struct DueWork {
    pub(in crate::plan) samples: Samples,
    pub(in crate::plan) latest_end: Option<(DateTime<Utc>, Promise)>,
    /// Length of the window of a job with unknown work; `None` if the work is known.
    pub(super) window: Option<Seconds>,
}

pub(in crate::plan) struct Planner<'a> {
    pub(in crate::plan) request: &'a Request<'a>,
    pub(in crate::plan) reference: HullPoint,
    pub(in crate::plan) choice: UsablePoints,
}

impl<'a> Planner<'a> {
    pub(in crate::plan) fn new(request: &'a Request<'a>) -> Result<Self, Unplannable> {
        let curve = Curve::from_profile(request.profile).ok_or(Unplannable::NoUsablePoint)?;
        Ok(Self { request, reference: *curve.ceiling(), choice: UsablePoints::of(request)? })
    }

    pub(in crate::plan) fn due(&self) -> Due {
        let Request { objective, progress, window, .. } = *self.request;
        match self.request.work {
            Work::TotalSamples(total) => {
                let samples = total - progress.samples;
                if samples <= self.choice.points[self.choice.fastest()].throughput * NO_TIME {
                    return Due::Done;
                }
                Due::Work(DueWork { samples, latest_end: self.latest_end(), window: None })
            }
            Work::Unknown => {
                let Some(max) = objective.max_slowdown else { return Due::NothingNow };
                let least = self.reference.throughput / (1.0 + self.guarded(max));
                let done = self.reference.throughput * self.reference_time(progress.samples);
                let ahead = done - least * progress.elapsed;
                let samples = least * window - ahead;
                if samples <= Samples::ZERO {
                    return Due::NothingNow;
                }
                Due::Work(DueWork { samples, latest_end: self.latest_end(), window: Some(window) })
            }
        }
    }

    /// Returns first the problem of doing the work that is due, second the end of the forecast.
    pub(in crate::plan) fn problem(&self, due: &DueWork) -> Result<(Problem, DateTime<Utc>), Unplannable> {
        let now = self.request.now;
        let slowest = self.choice.points.iter().map(|p| p.throughput).fold(self.reference.throughput, |a, b| a.min(b));
        let at_leisure = later(now, (due.samples / slowest).to_delta());
        // A job that may pause can use all time until its latest end.
        let enough = if self.request.objective.pausable.is_some() { DateTime::<Utc>::MAX_UTC } else { at_leisure };
        let until = due.latest_end.map_or(at_leisure, |(end, _)| end.min(enough));
        let full_speed = later(now, (self.restart() + self.full_speed_time(due)).to_delta());
        let (slots, known_until) = self.horizon(until.max(full_speed))?;
        let weighed = self.request.weighed_intensities(&slots);
        let problem = Problem::new(
            slots,
            self.choice.points.clone(),
            due.samples,
            self.request.objective.eta,
            self.request.reference_intensity.max(GramsPerKwh::ZERO),
            self.request.max_power,
            due.latest_end.map(|(end, _)| end),
        )?;
        let problem = problem.minimising(&weighed);
        let Some((_, promise)) = self.budget_left() else { return Ok((problem, known_until)) };
        let counted: Vec<_> = problem.slots().iter().map(|slot| self.counted(promise, slot)).collect();
        Ok((problem.counting(counted.into_iter()), known_until))
    }

    /// Returns the time that the job needs to restart before it can train; zero if it is not paused.
    pub(super) fn restart(&self) -> Seconds {
        let costs = self.request.objective.pausable;
        costs.map_or(Seconds::ZERO, |costs| restart_time(&costs, self.request.activity))
    }

    /// Returns the index of the point for checkpoints and restarts in the points of a problem with pauses.
    pub(super) fn checkpoint_point(&self) -> usize {
        self.choice.points.len() + 1
    }

    /// Returns the time that the work takes at full speed; if its amount is unknown, the part of the window that a restart
    /// leaves.
    pub(super) fn full_speed_time(&self, due: &DueWork) -> Seconds {
        let of_window = due.window.map(|window| (window - self.restart()).max(Seconds::ZERO));
        of_window.unwrap_or(due.samples / self.choice.points[self.choice.fastest()].throughput)
    }

    /// Returns first the slots from now to `until`, second the end of the forecast. The time after the forecast is one
    /// slot with the forecast's mean intensity, which is equivalent to many slots with this intensity.
    pub(in crate::plan) fn horizon(&self, until: DateTime<Utc>) -> Result<(Vec<PlanSlot>, DateTime<Utc>), Unplannable> {
        let now = self.request.now;
        let until = until.clamp(later(now, SHORTEST.to_delta()), later(now, FURTHEST.to_delta()));
        let ahead = |s: &PlanSlot| {
            let slot = Slot::new(s.slot.start().max(now), s.slot.end().min(until))?;
            Some(PlanSlot { slot, intensity: s.intensity.max(GramsPerKwh::ZERO) })
        };
        let mut slots: Vec<PlanSlot> = self.request.horizon.iter().filter_map(ahead).collect();
        if let Some(late) = slots.first().map(|s| s.slot.start()).filter(|start| *start > now) {
            return Err(InvalidProblem::NotContiguous(late).into());
        }
        check_horizon(&slots).or_else(|e| if slots.is_empty() { Ok(()) } else { Err(e) })?;
        let mut step = SHORTEST;
        while slots.len() > MOST_SLOTS {
            slots = coarser(&slots, step);
            step = step * 2.0;
        }
        let known_until = slots.last().map_or(now, |s| s.slot.end());
        if let Some(slot) = Slot::new(known_until, until) {
            // The mean includes the forecast's past slots: a mean of future slots only would change as time passes, and
            // plans with it.
            let intensity = mean(self.request.horizon).unwrap_or(self.request.reference_intensity);
            let intensity = intensity.max(GramsPerKwh::ZERO);
            slots.push(PlanSlot { slot, intensity });
        }
        check_horizon(&slots)?;
        Ok((slots, known_until))
    }

    /// Returns the time that the job's first `samples` take at the maximum usable limit.
    pub(super) fn reference_time(&self, samples: Samples) -> Seconds {
        samples / self.reference.throughput + self.request.progress.excess_before
    }

    /// Returns the slowdown over the job's life if the job does `samples` in `duration` from now on.
    pub(in crate::plan) fn slowdown(&self, samples: Samples, duration: Seconds) -> f64 {
        let Progress { samples: done, elapsed, .. } = self.request.progress;
        let at_ceiling = self.reference_time(done + samples);
        if at_ceiling > NO_TIME { (elapsed + duration) / at_ceiling - 1.0 } else { 0.0 }
    }

    pub(in crate::plan) fn segment(&self, slot: Slot, point: usize, intensity: GramsPerKwh, reason: Reason) -> Segment {
        let (activity, place) = self.choice.activity_at(point);
        let known = &self.request.profile.points[place];
        let idle = self.request.objective.pausable.map_or(Watts::ZERO, |p| p.idle_power);
        let (power, throughput) = match activity {
            JobActivity::Training => (known.power.mean, known.throughput.mean),
            JobActivity::Paused => (idle, SamplesPerSecond::ZERO),
            JobActivity::Resuming => (known.power.mean, SamplesPerSecond::ZERO),
        };
        Segment { slot, setting: known.setting.clone(), point: place, activity, power, throughput, intensity, reason }
    }

    /// Creates the plan of given segments, with its expected result.
    pub(in crate::plan) fn sum_up(
        &self,
        segments: Vec<Segment>,
        slots: &[PlanSlot],
        duration: Seconds,
        known_until: DateTime<Utc>,
        verdict: Verdict,
    ) -> Plan {
        let (now, ends_at) = (self.request.now, segments.last().map_or(self.request.now, |s| s.slot.end()));
        let samples = segments.iter().map(Segment::samples).sum();
        let expected = Expected {
            ends_at,
            samples,
            carbon: segments.iter().map(|s| s.energy() * s.intensity).sum(),
            energy: segments.iter().map(Segment::energy).sum::<Joules>(),
            slowdown: self.slowdown(samples, duration),
            carbon_at_ceiling: carbon(slots, self.reference.power, samples / self.reference.throughput),
        };
        Plan {
            made_at: now,
            samples_done: self.request.progress.samples,
            segments,
            expected,
            verdict,
            extended_from: (ends_at > known_until).then_some(known_until),
            weighing: self.request.weighing(),
            slack: self.slack(),
            forgone_saving: None,
        }
    }

    fn slack(&self) -> Option<(DateTime<Utc>, SamplesPerSecond)> {
        let Due::Work(DueWork { latest_end: Some((end, _)), .. }) = self.due() else { return None };
        Some((end, self.choice.points[self.choice.fastest()].throughput))
    }
}

impl DueWork {
    /// Returns whether the job continues after the work that is due, because its total work is unknown.
    pub(in crate::plan) fn endless(&self) -> bool {
        self.window.is_some()
    }
}
