//! Reason for a job's current set point, in one sentence.

use std::fmt;

use crate::controller::cap::{Cap, CapCause, Demand, LimitGrants};
use crate::controller::jobs::{Job, Phase};
use wattune_core::domain::PowerLimit;
use wattune_core::time::Now;

impl Job {
    /// Updates the sentence that explains the job's current set point.
    pub(super) fn explain(&mut self, now: Now, out_of_band_cap: Option<PowerLimit>, reduction: Option<CapReduction>) {
        self.explain_choice(now, out_of_band_cap, reduction);
        if let Some(why) = self.describe_applied(now) {
            self.reason = format!("{why}: {}", self.reason);
        }
    }

    fn explain_choice(&mut self, now: Now, out_of_band_cap: Option<PowerLimit>, reduction: Option<CapReduction>) {
        if self.phase == Phase::Profiling {
            let wanted = self.profiler.as_ref().and_then(|p| p.wanted()).and_then(|w| w.iter().map(|s| s.limit).max());
            if let (Some(cap), Some(wanted)) = (out_of_band_cap, wanted)
                && cap < wanted
            {
                self.reason =
                    format!("measuring waits: an out-of-band cap of {cap} is below the {wanted} to be measured");
            } else if let Some(reduction) = &reduction {
                self.reason = format!("measuring waits for {}: {reduction}", reduction.wanted);
            }
        }
        if !matches!(self.phase, Phase::Planned | Phase::Paused) {
            return;
        }
        let segment = self.plan.as_ref().and_then(|p| p.segment_at(now.utc));
        self.reason = match (segment, &self.unplannable) {
            (Some(segment), _) => segment.reason.to_string(),
            (None, Some(why)) => format!("The job has no plan, so its GPUs keep their original limits: {why}"),
            (None, None) => "The job runs longer than planned, at its original limits.".into(),
        };
        if let Some(reduction) = reduction {
            self.reason = format!("{reduction} instead of {}: {}", reduction.wanted, self.reason);
        }
    }
}

/// Reduction of a job's power limit by the node's cap.
pub(super) struct CapReduction {
    limit: PowerLimit,
    wanted: PowerLimit,
    /// Cap that requires the reduction; `None` if it is unknown.
    cause: Option<CapCause>,
}

impl fmt::Display for CapReduction {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "limited to {} ", self.limit)?;
        let Some(CapCause { cap, source, from }) = &self.cause else { return f.write_str("by the node's cap") };
        let cap = cap.get();
        match from {
            // Lower limits must be in force when the cap begins.
            Some(from) => {
                write!(f, "ahead of the node's cap of {cap:.0} W from {} on ({source})", from.format("%FT%TZ"))
            }
            None => write!(f, "by the node's cap of {cap:.0} W ({source})"),
        }
    }
}

impl CapReduction {
    /// Returns the reduction to the lowest limit, among those of the job's GPUs whose limits the cap reduces; `None` if
    /// the cap reduces none of them.
    pub(super) fn of(job: &Job, grants: &LimitGrants, demand: &Demand<'_>, cap: &Cap) -> Option<Self> {
        let cut = job.spec.gpus.iter().filter(|_| !job.is_absent()).filter_map(|gpu| {
            let (request, grant) = grants.of(gpu)?;
            let is_cut = demand.set_point(gpu).is_some() && grant.limit < request.wanted;
            is_cut.then_some((grant.limit, request.wanted))
        });
        let (limit, wanted) = cut.min()?;
        Some(Self { limit, wanted, cause: cap.cause(demand) })
    }
}
