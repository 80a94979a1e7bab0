//! Jobs: their state, plan, profile and account.

use std::collections::BTreeMap;

use chrono::{DateTime, Utc};
use serde::Serialize;
use utoipa::ToSchema;

use super::states::SegmentActivity;
use super::{IntervalView, SavingsView};
use crate::controller::jobs::Phase;
use wattune_core::domain::Processes;

/// A job.
#[derive(Clone, Debug, Default, Serialize, ToSchema)]
pub struct JobView {
    /// Id.
    pub job_id: String,
    /// Name.
    pub name: String,
    /// UUIDs of its GPUs.
    pub gpus: Vec<String>,
    /// Samples per step.
    pub batch_size: Option<u64>,
    /// Total work; absent if it is unknown.
    pub total_samples: Option<f64>,
    /// Cumulative samples reported.
    pub samples: Option<f64>,
    /// Objective.
    pub objective: ObjectiveView,
    /// True if its limits may be set.
    pub control: bool,
    /// Priority under the node's cap: the job with the lowest is lowered first.
    pub priority: i32,
    /// Labels.
    pub tags: BTreeMap<String, String>,
    /// Processes; absent if it did not name them.
    pub processes: Option<ProcessesView>,
    /// Lease.
    pub lease_s: f64,
    /// Rest of the lease without a further report; absent once the job has ended.
    pub lease_left_s: Option<f64>,
    /// Phase.
    pub phase: Option<Phase>,
    /// Reason for the phase, in one sentence.
    pub reason: String,
    /// Limit wanted on its (first) GPU now.
    pub power_limit_w: Option<f64>,
    /// Limits wanted on all its GPUs, in the order of `gpus`.
    pub power_limits_w: Vec<Option<f64>>,
    /// Clock to which its GPUs are to be locked now; absent where they are not.
    pub clock_limit_mhz: Option<u32>,
    /// Slowdown so far against the maximum usable limit, with the same pauses of its own: 0.012 is 1.2 %.
    pub slowdown: Option<f64>,
    /// Time spent training, without pauses of its own.
    pub active_s: f64,
    /// Time in pauses of its own: evaluation, checkpoints, input.
    pub stalled_s: f64,
    /// Energy recorded for it so far, of CPU packages and memory too if it named its processes; absent once it has ended
    /// (see its account, `…/emissions`).
    pub energy_j: Option<f64>,
    /// Emissions recorded for it so far; absent while no intensity is known, and once it has ended.
    pub carbon_g: Option<f64>,
    /// Energy by kind of device, in joules: `gpu`, `cpu`, `dram`; empty once it has ended.
    pub energy_by_device_j: BTreeMap<String, f64>,
    /// Emissions saved so far against the original limit, in grams, as of the last full hour or, in its first hour, the
    /// last minute; absent while unknown, and once it has ended.
    pub saved_g: Option<IntervalView>,
    /// Time of registration.
    pub registered_at: DateTime<Utc>,
    /// Time of the first report.
    pub started_at: Option<DateTime<Utc>>,
    /// Expected end by the plan.
    pub expected_end: Option<DateTime<Utc>>,
    /// Time at which the plan in force was made; absent without one.
    pub plan_made_at: Option<DateTime<Utc>>,
    /// Expected emissions of that plan from then on.
    pub planned_carbon_g: Option<f64>,
    /// The same at the maximum usable limit.
    pub planned_carbon_at_max_g: Option<f64>,
    /// Time at which it is to resume; absent unless it is to pause now.
    pub resume_at: Option<DateTime<Utc>>,
    /// End.
    pub ended_at: Option<DateTime<Utc>>,
    /// Reason for its end.
    pub end_reason: Option<String>,
    /// Number of its promises that cannot be kept, by the plan in force.
    pub broken_promises: usize,
    /// Promises that cannot be kept, and by how much; and problems of its GPUs and measurements.
    pub warnings: Vec<String>,
}

/// A job's objective.
#[derive(Clone, Debug, Default, Serialize, ToSchema)]
pub struct ObjectiveView {
    /// 1 is carbon alone, 0 is time alone.
    pub eta: f64,
    /// Allowed increase of time.
    pub max_slowdown: Option<f64>,
    /// Deadline.
    pub deadline: Option<DateTime<Utc>>,
    /// Limit on the emissions of all of its work.
    pub carbon_budget_g: Option<f64>,
    /// Weight of the price in place of carbon; 0 is carbon alone.
    pub price_weight: f64,
    /// Cost of pausing; absent where it may not pause.
    pub pausable: Option<PausingView>,
}

/// Cost of pausing.
#[derive(Clone, Copy, Debug, Serialize, ToSchema)]
pub struct PausingView {
    /// Power of all its GPUs while it pauses.
    pub idle_power_w: f64,
    /// Shortest run.
    pub min_run_s: f64,
    /// Shortest pause.
    pub min_pause_s: f64,
    /// Seconds at running power without work that each pause costs.
    pub checkpoint_s: f64,
}

/// Response to a progress report.
#[derive(Clone, Debug, Serialize, ToSchema)]
pub struct ProgressView {
    /// Phase of the job.
    pub phase: Phase,
    /// Reason for the phase, in one sentence.
    pub reason: String,
    /// Limit wanted on its (first) GPU now.
    pub power_limit_w: Option<f64>,
    /// Clock to which its GPUs are to be locked now; absent where they are not.
    pub clock_limit_mhz: Option<u32>,
    /// Time at which it is to resume; absent unless it is to pause now.
    pub resume_at: Option<DateTime<Utc>>,
    /// Slowdown so far against the maximum usable limit.
    pub slowdown: Option<f64>,
    /// Expected end by the plan.
    pub expected_end: Option<DateTime<Utc>>,
    /// Renewed lease.
    pub lease_s: f64,
    /// Promises that cannot be kept, and by how much.
    pub warnings: Vec<String>,
}

/// Plan of a job.
#[derive(Clone, Debug, Serialize, ToSchema)]
pub struct PlanView {
    /// Id.
    pub job_id: String,
    /// Time at which the plan was made; absent without one.
    pub made_at: Option<DateTime<Utc>>,
    /// Reason for the job's phase; if the plan outlasts the forecast, also the time from which its mean is used.
    pub note: String,
    /// True if it is applied; false if it is only shown (observe mode).
    pub applied: bool,
    /// Expected end of the work.
    pub expected_end: Option<DateTime<Utc>>,
    /// Expected emissions from now on.
    pub expected_carbon_g: Option<f64>,
    /// The same at the maximum usable limit.
    pub expected_carbon_at_max_g: Option<f64>,
    /// Expected energy from now on.
    pub expected_energy_j: Option<f64>,
    /// Slowdown expected over the job's life.
    pub expected_slowdown: Option<f64>,
    /// Part of the remaining cost that the newest plan would have saved; it was not adopted because this is less than
    /// `plan.better_by`. Absent if this plan is the newest.
    pub forgone_saving: Option<f64>,
    /// Promises that cannot be kept, and by how much.
    pub warnings: Vec<String>,
    /// Limits over time, in time order without gaps.
    pub segments: Vec<SegmentView>,
}

/// Span in which limits stay the same.
#[derive(Clone, Debug, Serialize, ToSchema)]
pub struct SegmentView {
    /// Start.
    pub start: DateTime<Utc>,
    /// End.
    pub end: DateTime<Utc>,
    /// One limit per GPU, in the order of the job's `gpus`.
    pub power_limits_w: Vec<f64>,
    /// Clock to which all GPUs are locked; absent where they are not.
    pub clock_limit_mhz: Option<u32>,
    /// Activity of the job.
    pub activity: SegmentActivity,
    /// Expected power of all GPUs.
    pub power_w: f64,
    /// Expected throughput.
    pub samples_per_s: f64,
    /// Intensity planned with.
    pub intensity_g_per_kwh: f64,
    /// Reason for this limit, in one sentence.
    pub reason: String,
    /// Marginal costs of this limit; absent where something else decided, such as a cap or the only limit measured.
    pub marginal_costs: Option<MarginalCostsView>,
}

/// Marginal costs of a segment's limit, in gCO2e per sample, with the job's weight of price included. The limit is the best
/// one if `slower ≤ plan ≤ faster`.
#[derive(Clone, Debug, Serialize, ToSchema)]
pub struct MarginalCostsView {
    /// Saving per sample that is lost at the next slower limit; absent at the slowest.
    pub slower: Option<f64>,
    /// Cost per sample that is gained at the next faster limit; absent at the fastest.
    pub faster: Option<f64>,
    /// Highest marginal cost that the plan accepts in any segment.
    pub plan: f64,
}

/// Profile of a job.
#[derive(Clone, Debug, Serialize, ToSchema)]
pub struct ProfileView {
    /// Id.
    pub job_id: String,
    /// True if the sweep is complete.
    pub complete: bool,
    /// Limits to be measured next, one per group of equal GPUs.
    pub measuring_w: Option<Vec<f64>>,
    /// Locked clock to be measured next; absent where clocks are not locked for it.
    pub measuring_mhz: Option<u32>,
    /// Change of throughput at the ceiling during the sweep, caused by warming up.
    pub thermal_trend: Option<f64>,
    /// Points; the first is the ceiling, the reference of the slowdown.
    pub points: Vec<PointView>,
}

/// One operating point.
#[derive(Clone, Debug, Serialize, ToSchema)]
pub struct PointView {
    /// One limit per group of equal GPUs.
    pub power_limits_w: Vec<f64>,
    /// Clock to which all GPUs were locked; absent where they were not.
    pub clock_limit_mhz: Option<u32>,
    /// Throughput of the whole job.
    pub samples_per_s: f64,
    /// Relative standard error of the throughput.
    pub samples_per_s_error: f64,
    /// Power of all GPUs.
    pub power_w: f64,
    /// Energy per sample.
    pub joules_per_sample: f64,
    /// Duration of the measurement; 0 where it was inferred from others.
    pub measured_s: f64,
}

/// Account of a job: energy and emissions, final once the job has ended.
#[derive(Clone, Debug, Serialize, ToSchema)]
pub struct AccountView {
    /// Id.
    pub job_id: String,
    /// Name.
    pub name: String,
    /// True if it trained on simulated GPUs: then nothing below was measured on hardware.
    pub simulated: bool,
    /// Cumulative samples reported.
    pub samples: Option<f64>,
    /// Time spent training, without pauses of its own.
    pub time_s: f64,
    /// Time in pauses of its own (evaluation, checkpoints, input): all comparisons have the same pauses on both sides.
    pub stalled_s: f64,
    /// Energy of its GPUs in these pauses, as far as known. Part of `energy_j`.
    pub stalled_energy_j: f64,
    /// Energy of its GPUs while it held them, and its share of CPU packages and memory if it named its processes, up to the
    /// last closed interval.
    pub energy_j: f64,
    /// The same by kind of device, in joules: `gpu`, `cpu`, `dram`.
    pub energy_by_device_j: BTreeMap<String, f64>,
    /// Emissions of the energy with a known intensity.
    pub carbon_g: Option<f64>,
    /// Energy by the origin of its intensity.
    pub energy_by_origin_j: BTreeMap<String, f64>,
    /// Energy without a known intensity.
    pub energy_without_intensity_j: f64,
    /// Energy that was integrated from power or lies in a gap.
    pub energy_estimated_j: f64,
    /// Relative uncertainty of the energy: 5 % gain error of the sensors, 10 % where it was estimated.
    pub energy_uncertainty: f64,
    /// Promises that were not kept, or cannot be kept while it runs, and by how much; and likely mistakes in its reports.
    pub warnings: Vec<String>,
    /// Comparison with the same work at the ceiling; absent without an honest estimate.
    pub against_max: Option<ComparisonView>,
    /// Savings, with confidence intervals.
    pub savings: SavingsView,
    /// End.
    pub ended_at: Option<DateTime<Utc>>,
    /// Reason for its end.
    pub end_reason: Option<String>,
}

/// Comparison of a job with itself at the ceiling.
#[derive(Clone, Debug, Serialize, ToSchema)]
pub struct ComparisonView {
    /// Emissions at the ceiling.
    pub carbon_at_max_g: f64,
    /// Energy at the ceiling.
    pub energy_at_max_j: f64,
    /// Time at the ceiling, pauses of the job's own included.
    pub time_at_max_s: f64,
    /// Reduction of emissions, in percent.
    pub carbon_reduction_pct: f64,
    /// Increase of time, in percent.
    pub time_increase_pct: f64,
    /// Part of the reduction that the best constant mix of limits with the same time would have had, in percent.
    pub energy_effect_pct: f64,
    /// Part added by following the grid, in percent.
    pub timing_effect_pct: f64,
}

impl From<wattune_core::ledger::Comparison> for ComparisonView {
    fn from(c: wattune_core::ledger::Comparison) -> Self {
        Self {
            carbon_at_max_g: c.carbon_at_ceiling.get(),
            energy_at_max_j: c.energy_at_ceiling.get(),
            time_at_max_s: c.time_at_ceiling.get(),
            carbon_reduction_pct: c.carbon_reduction_pct,
            time_increase_pct: c.time_increase_pct,
            energy_effect_pct: c.energy_effect_pct,
            timing_effect_pct: c.timing_effect_pct,
        }
    }
}

/// Processes of a job.
#[derive(Clone, Debug, Serialize, ToSchema)]
pub struct ProcessesView {
    /// Named processes; their children count too.
    pub pids: Option<Vec<u32>>,
    /// Named control group.
    pub cgroup: Option<String>,
    /// Number that runs now; absent where they are not observed.
    pub running: Option<u32>,
    /// CPU time since the job was registered, or continued by a new daemon.
    pub cpu_time_s: Option<f64>,
    /// Reason why it cannot be counted now.
    pub problem: Option<String>,
}

impl ProcessesView {
    /// Returns the named processes of a job that is not observed.
    pub fn of(processes: &Processes) -> Self {
        let (pids, cgroup) = match processes {
            Processes::Pids(list) => (Some(list.iter().map(|process| process.pid).collect()), None),
            Processes::Cgroup(path) => (None, Some(path.as_str().to_owned())),
        };
        Self { pids, cgroup, running: None, cpu_time_s: None, problem: None }
    }
}
