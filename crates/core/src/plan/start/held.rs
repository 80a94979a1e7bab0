//! Starts of several jobs that are held on one node: a GPU is used by one of them at a time, and the sum of their powers
//! stays under the node's cap.
//!
//! Jobs choose in the order of their latest starts, then of their registration; each takes the best window that is free
//! among those that its own question allows. A job whose windows are all taken starts at its latest start: the promise
//! of the latest start is stronger than the wish for a free GPU.

use chrono::{DateTime, Utc};

use super::advice::{StartAdvice, StartReason};
use super::decide::advise_start;
use super::forecast::StartForecast;
use super::question::{InvalidStart, StartQuestion};
use crate::domain::GpuId;
use crate::units::Watts;

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
/// limits stays under `cap` wherever the latest starts allow it. `taken` holds the spans of running jobs.
pub fn plan_held_starts(
    held: &[HeldStart],
    forecast: &StartForecast,
    taken: &[Reservation],
    cap: Option<Watts>,
) -> Vec<Result<StartAdvice, InvalidStart>> {
    let mut order: Vec<usize> = (0..held.len()).collect();
    order.sort_by_key(|place| held[*place].question.latest_start());
    let mut taken = taken.to_vec();
    let mut answers: Vec<Option<Result<StartAdvice, InvalidStart>>> = vec![None; held.len()];
    for place in order {
        let job = &held[place];
        let answer = advise_start(&job.question, forecast).map(|advice| around(job, advice, &taken, cap));
        if let Ok(advice) = &answer {
            let until = advice.start.checked_add_signed(job.question.duration.to_delta());
            taken.push(Reservation {
                from: advice.start,
                until: until.unwrap_or(DateTime::<Utc>::MAX_UTC),
                gpus: job.gpus.clone(),
                limit: job.limit,
            });
        }
        answers[place] = Some(answer);
    }
    answers.into_iter().flatten().collect()
}

/// Moves a job's start to the best window that is free.
fn around(job: &HeldStart, mut advice: StartAdvice, taken: &[Reservation], cap: Option<Watts>) -> StartAdvice {
    let duration = job.question.duration.to_delta();
    let is_free = |start: DateTime<Utc>| {
        let end = start.checked_add_signed(duration).unwrap_or(DateTime::<Utc>::MAX_UTC);
        let overlapping: Vec<&Reservation> = taken.iter().filter(|r| r.from < end && r.until > start).collect();
        let gpus_free = !overlapping.iter().any(|r| r.gpus.iter().any(|gpu| job.gpus.contains(gpu)));
        // The sum of limits is highest at the start of one of the spans.
        let sum_at = |t: DateTime<Utc>| -> Watts {
            overlapping.iter().filter(|r| r.from <= t && t < r.until).map(|r| r.limit).sum()
        };
        let under = |t: DateTime<Utc>| cap.is_none_or(|cap| sum_at(t) + job.limit <= cap);
        gpus_free && under(start) && overlapping.iter().filter(|r| r.from > start).all(|r| under(r.from))
    };
    if is_free(advice.start) {
        return advice;
    }
    let (earliest, latest) = (advice.now.start, advice.latest_start);
    let ends = taken.iter().map(|r| r.until);
    let befores = taken.iter().filter_map(|r| r.from.checked_sub_signed(duration));
    let between = ends.chain(befores).filter(|at| *at > earliest && *at <= latest);
    let at_once = advice.starts_at_once();
    let candidates = advice.windows.iter().map(|w| w.start).chain(between).filter(|start| is_free(*start));
    let carbon = |start: DateTime<Utc>| {
        let place = advice.windows.partition_point(|w| w.start <= start).saturating_sub(1);
        let (before, after) = (advice.windows[place], advice.windows[(place + 1).min(advice.windows.len() - 1)]);
        let span = (after.start - before.start).as_seconds_f64();
        let share = if span > 0.0 { (start - before.start).as_seconds_f64() / span } else { 0.0 };
        before.carbon.get() + (after.carbon - before.carbon).get() * share
    };
    // A job that would start at once takes the earliest free time, since no wait is worth it for its own sake.
    let chosen = if at_once {
        candidates.min()
    } else {
        candidates.min_by(|a, b| carbon(*a).total_cmp(&carbon(*b)).then(a.cmp(b)))
    };
    advice.reason = if at_once { StartReason::AfterOthers } else { StartReason::AroundOthers };
    advice.start = chosen.unwrap_or(latest);
    advice.decide_at = advice.decide_at.min(advice.start).max(job.question.now);
    advice
}
