//! Starts of several jobs that are held on one node: a GPU is used by one of them at a time, and the sum of their power
//! limits stays under the node's cap.
//!
//! Jobs choose one after the other. Each takes the window with the least expected cost that is free among those that
//! its own question allows; a job whose windows are all taken starts at its latest start: that promise is stronger than
//! the wish for a free GPU. The order is that of the latest starts, changed by exchanging two jobs as long as this
//! leaves fewer conflicts, or as few with a lower sum of expected costs.

use chrono::{DateTime, Utc};

use super::advice::{StartAdvice, StartReason};
use super::decide::{advise_start, judged_again};
use super::forecast::StartForecast;
use super::question::{InvalidStart, StartQuestion};
use crate::domain::GpuId;
use crate::units::{GramsCo2e, Watts};

/// Maximum number of jobs whose order is improved by exchanges.
const MOST_EXCHANGED: usize = 16;
/// Maximum number of passes over all pairs of jobs.
const MOST_PASSES: usize = 4;

/// Job that is held until its start.
#[derive(Clone, Debug, PartialEq)]
pub struct HeldStart {
    /// Question of the job.
    pub question: StartQuestion,
    /// GPUs that the job uses from its start to its end; empty if unknown.
    pub gpus: Vec<GpuId>,
    /// Sum of the job's power limits while it runs, which counts against the node's cap.
    pub limit: Watts,
}

/// Time span in which GPUs and power are taken, by a running job or by a held one.
#[derive(Clone, Debug, PartialEq)]
pub struct Reservation {
    /// Start of the span.
    pub from: DateTime<Utc>,
    /// End of the span.
    pub until: DateTime<Utc>,
    /// GPUs that are taken.
    pub gpus: Vec<GpuId>,
    /// Power limits that count against the node's cap.
    pub limit: Watts,
}

/// Returns the advice for each held job, in the order of `held`, so that no GPU is used twice at once and the sum of
/// limits stays under `cap` wherever the latest starts allow it. `taken` holds the spans of running jobs. A job whose limits
/// exceed the cap alone runs under the cap, and takes all of it.
pub fn plan_held_starts(
    held: &[HeldStart],
    forecast: &StartForecast,
    taken: &[Reservation],
    cap: Option<Watts>,
) -> Vec<Result<StartAdvice, InvalidStart>> {
    let mut answers: Vec<Result<StartAdvice, InvalidStart>> =
        held.iter().map(|job| advise_start(&job.question, forecast)).collect();
    let alone: Vec<(usize, &HeldStart, StartAdvice)> = answers
        .iter()
        .enumerate()
        .filter_map(|(place, answer)| Some((place, &held[place], answer.as_ref().ok()?.clone())))
        .collect();
    let mut order: Vec<usize> = (0..alone.len()).collect();
    order.sort_by_key(|place| alone[*place].2.latest_start);
    let arrange = |order: &[usize]| Arrangement::in_order(order, &alone, taken, cap);
    let mut best = arrange(&order);
    for _ in 0..MOST_PASSES {
        let before = best.rank();
        let count = if order.len() <= MOST_EXCHANGED { order.len() } else { 0 };
        for (a, b) in (0..count).flat_map(|a| (a + 1..count).map(move |b| (a, b))) {
            order.swap(a, b);
            let other = arrange(&order);
            if other.is_better_than(&best) {
                best = other;
            } else {
                order.swap(a, b);
            }
        }
        if best.rank() == before {
            break;
        }
    }
    for (place, advice) in best.chosen {
        let is_moved = matches!(advice.reason, StartReason::AfterOthers | StartReason::AroundOthers);
        let question = &held[place].question;
        answers[place] = Ok(if is_moved { judged_again(advice, question, forecast) } else { advice });
    }
    answers
}

/// Starts of all jobs, chosen one after the other.
struct Arrangement {
    /// Place of each job and its advice.
    chosen: Vec<(usize, StartAdvice)>,
    /// Number of jobs that start although their GPUs or the power are taken.
    conflicts: usize,
    cost: GramsCo2e,
}

impl Arrangement {
    fn in_order(
        order: &[usize],
        alone: &[(usize, &HeldStart, StartAdvice)],
        taken: &[Reservation],
        cap: Option<Watts>,
    ) -> Self {
        let under_cap = |limit: Watts| cap.map_or(limit, |cap| limit.min(cap));
        let mut taken = taken.to_vec();
        let mut all = Self { chosen: Vec::with_capacity(order.len()), conflicts: 0, cost: GramsCo2e::ZERO };
        for (place, job, advice) in order.iter().map(|place| &alone[*place]) {
            let free = Free { job, limit: under_cap(job.limit), taken: &taken, cap };
            let advice = free.around(advice.clone());
            all.conflicts += usize::from(!free.at(advice.start));
            all.cost += cost(&advice, advice.start);
            let until = advice.start.checked_add_signed(job.question.duration.to_delta());
            taken.push(Reservation {
                from: advice.start,
                until: until.unwrap_or(DateTime::<Utc>::MAX_UTC),
                gpus: job.gpus.clone(),
                limit: under_cap(job.limit),
            });
            all.chosen.push((*place, advice));
        }
        all
    }

    fn rank(&self) -> (usize, f64) {
        (self.conflicts, self.cost.get())
    }

    fn is_better_than(&self, other: &Self) -> bool {
        let less = other.cost.get() - self.cost.get() > 1e-9 * other.cost.get().abs();
        self.conflicts < other.conflicts || (self.conflicts == other.conflicts && less)
    }
}

/// Times at which a job's GPUs and its power are free.
struct Free<'a> {
    job: &'a HeldStart,
    /// Power limits of the job, at most the cap.
    limit: Watts,
    taken: &'a [Reservation],
    cap: Option<Watts>,
}

impl Free<'_> {
    /// Returns true if the job finds its GPUs and its power free from a start to its end.
    fn at(&self, start: DateTime<Utc>) -> bool {
        let end = start.checked_add_signed(self.job.question.duration.to_delta()).unwrap_or(DateTime::<Utc>::MAX_UTC);
        let overlapping: Vec<&Reservation> = self.taken.iter().filter(|r| r.from < end && r.until > start).collect();
        let gpus_free = !overlapping.iter().any(|r| r.gpus.iter().any(|gpu| self.job.gpus.contains(gpu)));
        let under = |t: DateTime<Utc>| {
            let sum: Watts = overlapping.iter().filter(|r| r.from <= t && t < r.until).map(|r| r.limit).sum();
            self.cap.is_none_or(|cap| sum + self.limit <= cap)
        };
        // The sum of limits is highest at the start of one of the spans.
        gpus_free && under(start) && overlapping.iter().filter(|r| r.from > start).all(|r| under(r.from))
    }

    /// Moves a job's start to the best window that is free.
    fn around(&self, mut advice: StartAdvice) -> StartAdvice {
        if self.at(advice.start) {
            return advice;
        }
        let duration = self.job.question.duration.to_delta();
        let (earliest, latest) = (advice.now.start, advice.latest_start);
        let ends = self.taken.iter().map(|r| r.until);
        let befores = self.taken.iter().filter_map(|r| r.from.checked_sub_signed(duration));
        let between = ends.chain(befores).filter(|at| *at > earliest && *at <= latest);
        let candidates = advice.windows.iter().map(|w| w.start).chain(between).filter(|start| self.at(*start));
        let free: Vec<(DateTime<Utc>, GramsCo2e)> = candidates.map(|start| (start, cost(&advice, start))).collect();
        let least = free.iter().map(|(_, cost)| *cost).min_by(GramsCo2e::total_cmp);
        let at_once = advice.starts_at_once();
        // A job that would start at once takes the earliest free time, unless waiting on gains the minimum gain.
        let gain = if at_once { self.job.question.min_gain } else { 0.0 };
        let is_good = |cost: GramsCo2e| least.is_none_or(|least| cost * (1.0 - gain) <= least);
        let chosen = free.iter().filter(|(_, cost)| is_good(*cost)).map(|(start, _)| *start).min();
        advice.reason = if at_once { StartReason::AfterOthers } else { StartReason::AroundOthers };
        advice.start = chosen.unwrap_or(latest);
        advice.decide_at = advice.decide_at.min(advice.start).max(self.job.question.now);
        advice
    }
}

/// Returns the expected cost of a start, which is linear between the starts of the advice's windows.
fn cost(advice: &StartAdvice, start: DateTime<Utc>) -> GramsCo2e {
    let place = advice.windows.partition_point(|w| w.start <= start).saturating_sub(1);
    let (before, after) = (&advice.windows[place], &advice.windows[(place + 1).min(advice.windows.len() - 1)]);
    let span = (after.start - before.start).as_seconds_f64();
    let share = if span > 0.0 { (start - before.start).as_seconds_f64() / span } else { 0.0 };
    before.cost + (after.cost - before.cost) * share
}
