//! Conversion of several jobs' planning requests into one joint problem, and of the problem's solution into plans.

use std::collections::BTreeSet;

use chrono::{DateTime, Utc};

use super::problem::{FleetJob, FleetPoint, FleetProblem, FleetSchedule, FleetSolution};
use crate::domain::{Promise, Slot, TimeSeries, Work};
use crate::plan::job::{Due, PlanSlot, Planner, Point, SHORTEST, spans};
use crate::plan::reason::Reason;
use crate::plan::request::{Request, Unplannable};
use crate::plan::schedule::{Expected, JobActivity, Plan, Segment, Verdict};
use crate::time::later;
use crate::units::{GramsCo2e, GramsPerKwh, JOULES_PER_KWH, Samples, Seconds, Watts};

/// Saving per additional kilowatt-hour under the cap from which on the cap is given as the reason for a job's speed.
const LEAST_SAVING: GramsPerKwh = GramsPerKwh::new(0.5);

/// One of several jobs that are planned jointly.
#[derive(Clone, Copy, Debug)]
pub struct Member<'a> {
    /// Planning input of the job.
    pub request: Request<'a>,
    /// Priority: if not all constraints can be met, jobs of the lowest priority yield first. Default zero.
    pub priority: i32,
    /// Power that a cap counts at each point of the job's profile, in the profile's order: the limits in force at the
    /// point, summed over the job's GPUs. Missing values count as P_max.
    pub limits: &'a [Watts],
    /// Power that a cap counts for the job's GPUs if there is no plan and after the plan's end: the sum of their
    /// lowered limits.
    pub at_rest: Watts,
}

impl Member<'_> {
    /// Returns the power that a cap counts at a point with this index in the job's profile.
    pub(super) fn limit(&self, point: usize) -> Watts {
        self.limits.get(point).copied().unwrap_or(self.request.max_power)
    }
}

/// Constraints shared by several jobs.
#[derive(Clone, Copy, Debug)]
pub struct Shared<'a> {
    /// The node's cap less the limits of all GPUs that belong to no member, W. Times without a value are not capped.
    pub cap: &'a TimeSeries<Watts>,
    /// Emissions that all jobs together may still cause within each budget period; unlimited at other times.
    pub carbon_budget: Option<&'a TimeSeries<GramsCo2e>>,
}

/// A member (jointly planned job) with work to do.
struct Active<'a> {
    /// Index of the member among all members.
    place: usize,
    member: &'a Member<'a>,
    planner: Planner<'a>,
    samples: Samples,
    latest_end: Option<DateTime<Utc>>,
    /// End of the planning window if the job's work is unknown.
    window_end: Option<DateTime<Utc>>,
    /// Index of the usable point with the lowest limit.
    lowest: usize,
    /// Time spans without progress in the plan made for this job alone, each with the job's activity: pause or
    /// checkpoint.
    idle: Vec<(Slot, JobActivity)>,
    known_until: DateTime<Utc>,
    /// The slots that all members are planned over, with the carbon intensities of this job's forecast.
    slots: Vec<PlanSlot>,
}

/// The joint planning problem of several members.
pub(super) struct Joint<'a> {
    active: Vec<Active<'a>>,
    problem: FleetProblem,
}

impl<'a> Joint<'a> {
    /// Creates the problem. `alone` are the members' plans made without shared constraints. `None` if no member has
    /// work to do or the problem is invalid.
    pub(super) fn new(
        members: &'a [Member<'a>],
        alone: &[Result<Plan, Unplannable>],
        shared: &Shared<'_>,
    ) -> Option<Self> {
        let places = members.iter().zip(alone).enumerate();
        let mut active: Vec<Active<'_>> =
            places.filter_map(|(place, (member, plan))| Active::new(place, member, plan.as_ref().ok()?)).collect();
        let now = active.first()?.member.request.now;
        let until = active.iter().map(Active::at_leisure).max()?;
        let mut bounds = BTreeSet::from([now]);
        bounds.extend(shared.cap.points().iter().flat_map(|(slot, _)| [slot.start(), slot.end()]));
        let budgets = shared.carbon_budget.map_or(&[][..], |budgets| budgets.points());
        bounds.extend(budgets.iter().flat_map(|(slot, _)| [slot.start(), slot.end()]));
        let mut own_slots = Vec::new();
        for job in &mut active {
            let (slots, known_until) = job.planner.horizon(until).ok()?;
            job.known_until = known_until;
            bounds.extend(slots.iter().map(|s| s.slot.end()));
            // In a slot that extends beyond the job's latest end, the limits would be averaged over more time than the
            // job has.
            bounds.extend(job.latest_end);
            bounds.extend(job.idle.iter().flat_map(|(slot, _)| [slot.start(), slot.end()]));
            own_slots.push(slots);
        }
        let end = own_slots.iter().filter_map(|slots| slots.last()).map(|s| s.slot.end()).min()?;
        let joint = between(&bounds, now, end);
        for (job, own) in active.iter_mut().zip(&own_slots) {
            job.slots = with_intensities(&joint, own);
        }
        let caps = joint.iter().map(|slot| shared.cap.overlapping(slot).iter().map(|(_, cap)| *cap).reduce(Watts::min));
        let jobs = active.iter().map(Active::job).collect();
        let first = active.first()?.slots.clone();
        let dwell = active.iter().map(|job| job.member.request.dwell).fold(Seconds::ZERO, Seconds::max);
        let for_work = |(slot, left): &(Slot, GramsCo2e)| {
            let idle = active.iter().map(|job| job.idle_carbon(|s| slot.contains(s.start()))).sum();
            (*slot, *left - idle)
        };
        let budgets = TimeSeries::from_points(budgets.iter().map(for_work).collect()).0;
        let problem = FleetProblem::new(first, caps.collect(), jobs, Some(budgets)).ok()?.with_dwell(dwell);
        Some(Self { active, problem })
    }

    pub(super) fn problem(&self) -> &FleetProblem {
        &self.problem
    }

    /// Returns the joint plans of all members. Members without work keep their plan from `alone`.
    pub(super) fn plans(
        &self,
        solution: &FleetSolution,
        alone: Vec<Result<Plan, Unplannable>>,
    ) -> Vec<Result<Plan, Unplannable>> {
        let mut plans = alone;
        for ((job, fleet_job), schedule) in self.active.iter().zip(self.problem.jobs()).zip(&solution.schedules) {
            let own_verdict = plans[job.place].as_ref().ok().map_or(Verdict::Optimal, |plan| plan.verdict.clone());
            plans[job.place] = Ok(job.plan(fleet_job, schedule, &self.problem, solution, own_verdict));
        }
        plans
    }
}

impl<'a> Active<'a> {
    fn new(place: usize, member: &'a Member<'a>, alone: &Plan) -> Option<Self> {
        let request = &member.request;
        let planner = Planner::new(request).ok()?;
        let window = later(request.now, request.window.to_delta());
        let window_end = (request.work == Work::Unknown).then_some(window);
        let (samples, latest_end) = match planner.due() {
            Due::Done => return None,
            // As much work as in the plan made for the job alone.
            Due::NothingNow => (alone.expected.samples, Some(window)),
            Due::Work(due) => (due.samples, due.latest_end.map(|(end, _)| end)),
        };
        let limit = |point: &usize| member.limit(planner.choice.places[*point]);
        let lowest = (0..planner.choice.points.len()).min_by(|a, b| limit(a).total_cmp(&limit(b)))?;
        let spans = alone.segments.iter().filter(|s| s.activity != JobActivity::Training);
        let idle = spans.map(|s| (s.slot, s.activity)).collect();
        let known_until = request.now;
        Some(Self {
            place,
            member,
            planner,
            samples,
            latest_end,
            window_end,
            lowest,
            idle,
            known_until,
            slots: Vec::new(),
        })
    }

    /// Returns the time at which the job ends at its slowest point, or its latest end if that is later.
    fn at_leisure(&self) -> DateTime<Utc> {
        let slowest = self.planner.choice.points.iter().map(|p| p.throughput).reduce(|a, b| a.min(b));
        let needed = slowest.map_or(Seconds::ZERO, |rate| self.samples / rate);
        let idle: Seconds = self.idle.iter().map(|(slot, _)| slot.duration()).sum();
        later(self.member.request.now, (needed + idle).to_delta())
            .max(self.latest_end.unwrap_or(self.member.request.now))
    }

    /// Returns what the job does in a slot without progress, pause or checkpoint; `None` if the job trains in the slot.
    fn activity(&self, slot: &Slot) -> Option<JobActivity> {
        self.idle.iter().find(|(span, _)| span.contains(slot.start())).map(|(_, activity)| *activity)
    }

    fn job(&self) -> FleetJob {
        let (request, choice) = (&self.member.request, &self.planner.choice);
        let point = |(point, place): (&Point, &usize)| FleetPoint {
            power: point.power,
            throughput: point.throughput,
            limit: self.member.limit(*place),
        };
        let pauses: Vec<bool> = match self.idle.is_empty() {
            true => Vec::new(),
            false => self.slots.iter().map(|s| self.activity(&s.slot).is_some()).collect(),
        };
        let is_of_carbon = |(_, promise): &(GramsCo2e, Promise)| matches!(promise, Promise::CarbonBudget(_));
        let carbon_budget = self.planner.budget_left().filter(is_of_carbon);
        FleetJob {
            points: choice.points.iter().zip(&choice.places).map(point).collect(),
            work: self.samples,
            latest_end: self.latest_end,
            eta: request.objective.eta,
            reference_intensity: request.reference_intensity.max(GramsPerKwh::ZERO),
            max_power: request.max_power,
            carbon_budget: carbon_budget.map(|(left, _)| left - self.idle_carbon(|_| true)),
            priority: self.member.priority,
            at_rest: self.member.at_rest,
            weighed: Some(request.weighed_intensities(&self.slots)),
            pauses,
        }
    }

    /// Returns the job's emissions during pauses and checkpoints in the slots for which `counts` is true.
    fn idle_carbon(&self, counts: impl Fn(&Slot) -> bool) -> GramsCo2e {
        let slots = self.slots.iter().filter(|s| counts(&s.slot));
        let segments = slots.filter_map(|s| Some(self.idle_segment(s.slot, self.activity(&s.slot)?, s.intensity)));
        segments.map(|segment| segment.energy() * segment.intensity).sum()
    }

    /// Returns a segment of a pause or a checkpoint, at the lowest limit.
    fn idle_segment(&self, slot: Slot, activity: JobActivity, intensity: GramsPerKwh) -> Segment {
        let points = self.planner.choice.points.len();
        let (point, reason) = match activity {
            JobActivity::Resuming => (points + 1, Reason::Resuming),
            JobActivity::Training | JobActivity::Paused => (points, Reason::Paused { intensity, running: None }),
        };
        let at_lowest = self.planner.segment(slot, self.lowest, intensity, reason);
        let known = self.planner.segment(slot, point, intensity, reason);
        Segment { setting: at_lowest.setting, point: at_lowest.point, ..known }
    }

    fn plan(
        &self,
        job: &FleetJob,
        schedule: &FleetSchedule,
        problem: &FleetProblem,
        solution: &FleetSolution,
        own_verdict: Verdict,
    ) -> Plan {
        let fastest = self.planner.choice.fastest();
        let mut segments: Vec<Segment> = Vec::new();
        for (t, parts) in schedule.parts.iter().enumerate() {
            let PlanSlot { slot, intensity } = self.slots[t];
            let saving = GramsPerKwh::new(solution.cap_prices[t] * JOULES_PER_KWH);
            let budget = problem.binding_budget(solution, t);
            for (span, (point, _)) in spans(&slot, parts).into_iter().zip(parts) {
                let Some(span) = span.and_then(|span| self.until_end_of_known(span)) else { continue };
                let segment = match self.activity(&span) {
                    Some(activity) if *point == job.pause_index() => self.idle_segment(span, activity, intensity),
                    _ if *point != fastest && saving >= LEAST_SAVING => {
                        self.planner.segment(span, *point, intensity, Reason::LimitedByCap { intensity, saving })
                    }
                    _ => {
                        let reason = match budget.filter(|_| *point != fastest) {
                            Some((until, kept)) => Reason::LimitedByBudget { intensity, until, kept },
                            None => Reason::WithinSharedLimits { intensity },
                        };
                        self.planner.segment(span, *point, intensity, reason)
                    }
                };
                segments.push(segment);
            }
        }
        let time = segments.iter().map(|segment| segment.slot.duration()).sum();
        let mut plan = self.planner.sum_up(segments, &self.slots, time, self.known_until, Verdict::Optimal);
        plan.verdict = self.verdict(&plan, own_verdict);
        plan
    }

    fn until_end_of_known(&self, span: Slot) -> Option<Slot> {
        Slot::new(span.start(), self.window_end.map_or(span.end(), |end| span.end().min(end)))
    }

    /// Returns the verdict of the joint plan; `own_verdict` is the verdict of the job's plan alone.
    fn verdict(&self, plan: &Plan, own_verdict: Verdict) -> Verdict {
        let Expected { slowdown, carbon, .. } = plan.expected;
        let slowdown = if plan.segments.is_empty() { 0.0 } else { slowdown };
        let broken = self.planner.broken(plan.ends_at(), slowdown, carbon);
        match own_verdict {
            Verdict::FullSpeed { why, .. } => Verdict::FullSpeed { broken, why },
            _ if broken.is_empty() => Verdict::Optimal,
            Verdict::OverBudget { .. } if broken.iter().all(|broken| !broken.promise.bounds_time()) => {
                Verdict::OverBudget { broken }
            }
            _ => Verdict::SharedLimits { broken },
        }
    }
}

/// Returns the slots between adjacent `bounds` from `now` to `end`. Bounds less than a second after the previous one
/// are skipped.
fn between(bounds: &BTreeSet<DateTime<Utc>>, now: DateTime<Utc>, end: DateTime<Utc>) -> Vec<Slot> {
    let mut slots = Vec::new();
    let mut start = now;
    for bound in bounds.range(now..end).copied().chain([end]) {
        let Some(slot) = Slot::new(start, bound) else { continue };
        if slot.duration() < SHORTEST && bound != end {
            continue;
        }
        slots.push(slot);
        start = bound;
    }
    slots
}

/// Gives slots the time-weighted mean intensities of `known`, whose slots have other boundaries.
fn with_intensities(slots: &[Slot], known: &[PlanSlot]) -> Vec<PlanSlot> {
    let mut from = 0;
    let of = |slot: &Slot| {
        while known.get(from).is_some_and(|s| s.slot.end() <= slot.start()) {
            from += 1;
        }
        let within = known[from..].iter().map_while(|s| Some((s.slot.intersection(slot)?.duration(), s.intensity)));
        let (mut time, mut sum) = (Seconds::ZERO, GramsPerKwh::ZERO);
        for (seconds, intensity) in within {
            time += seconds;
            sum += intensity * seconds.get();
        }
        let intensity = if time > Seconds::ZERO { sum / time.get() } else { GramsPerKwh::ZERO };
        PlanSlot { slot: *slot, intensity }
    };
    slots.iter().map(of).collect()
}
