//! Views of jobs: state, plan, profile and account.

use std::collections::BTreeMap;

use chrono::{DateTime, Utc};
use serde::Serialize;
use utoipa::ToSchema;

use super::states::SegmentActivity;
use super::{IntervalView, SavingsView};
use crate::controller::jobs::Phase;
use wattune_core::domain::Processes;

/// State of a job, running or ended.
#[derive(Clone, Debug, Default, Serialize, ToSchema)]
pub struct JobView {
    /// Id of the job.
    pub job_id: String,
    /// Name of the job.
    pub name: String,
    /// UUIDs of the job's GPUs.
    pub gpus: Vec<String>,
    /// Number of samples per training step.
    pub batch_size: Option<u64>,
    /// Total work in samples; absent if it is unknown.
    pub total_samples: Option<f64>,
    /// Cumulative count of samples in the last report.
    pub samples: Option<f64>,
    /// Objective of the job and its promises.
    pub objective: ObjectiveView,
    /// True if wattune may set the limits of the job's GPUs.
    pub control: bool,
    /// Priority under the node's cap: the job with the lowest is lowered first.
    pub priority: i32,
    /// Labels given at registration.
    pub tags: BTreeMap<String, String>,
    /// Processes of the job; absent if it named none.
    pub processes: Option<ProcessesView>,
    /// Lease: longest time without a report before the job is ended.
    pub lease_s: f64,
    /// Time until the lease ends without a further report; absent once the job has ended.
    pub lease_left_s: Option<f64>,
    /// Phase of the job; absent once it has ended.
    pub phase: Option<Phase>,
    /// Reason for the phase or, once the job has ended, for its end, in one sentence.
    pub reason: String,
    /// Power limit wanted now on the job's first GPU.
    pub power_limit_w: Option<f64>,
    /// Power limits wanted now on the job's GPUs, in the order of `gpus`.
    pub power_limits_w: Vec<Option<f64>>,
    /// Clock to which the job's first GPU is to be locked now; absent without a lock.
    pub clock_limit_mhz: Option<u32>,
    /// Slowdown so far against the maximum usable limit, with the job's own pauses on both sides: 0.012 is 1.2 %.
    pub slowdown: Option<f64>,
    /// Time spent training, without the job's own pauses.
    pub active_s: f64,
    /// Time in the job's own pauses: evaluation, checkpoints, input.
    pub stalled_s: f64,
    /// Energy recorded for the job so far, including CPU packages and memory if it named its processes; absent once it
    /// has ended (see its account, `…/emissions`).
    pub energy_j: Option<f64>,
    /// Emissions recorded for the job so far; absent while no carbon intensity is known, and once it has ended.
    pub carbon_g: Option<f64>,
    /// Energy of the job by kind of device, in joules: `gpu`, `cpu`, `dram`; empty once it has ended.
    pub energy_by_device_j: BTreeMap<String, f64>,
    /// Emissions saved so far against the original limit, in grams, as of the last full hour or, in the job's first
    /// hour, the last minute; absent while unknown, and once it has ended.
    pub saved_g: Option<IntervalView>,
    /// Time of registration.
    pub registered_at: DateTime<Utc>,
    /// Time of the first report.
    pub started_at: Option<DateTime<Utc>>,
    /// Expected end of the job by its plan.
    pub expected_end: Option<DateTime<Utc>>,
    /// Time at which the plan in force was made; absent without one.
    pub plan_made_at: Option<DateTime<Utc>>,
    /// Emissions from `plan_made_at` on that the plan in force expects.
    pub planned_carbon_g: Option<f64>,
    /// Emissions of the same work from `plan_made_at` on at the maximum usable limit.
    pub planned_carbon_at_max_g: Option<f64>,
    /// Time at which the job is to resume; absent unless it is to pause now.
    pub resume_at: Option<DateTime<Utc>>,
    /// Time of the job's end.
    pub ended_at: Option<DateTime<Utc>>,
    /// Reason for the job's end.
    pub end_reason: Option<String>,
    /// Number of promises that cannot be kept, by the plan in force, or that an ended job broke.
    pub broken_promises: usize,
    /// Promises that cannot be kept, and by how much; and problems of the job's GPUs and measurements.
    pub warnings: Vec<String>,
}

/// Objective of a job and its promises.
#[derive(Clone, Debug, Default, Serialize, ToSchema)]
pub struct ObjectiveView {
    /// Weight of carbon against time: 1 is carbon alone, 0 is time alone.
    pub eta: f64,
    /// Maximum allowed slowdown: 0.03 is 3 %.
    pub max_slowdown: Option<f64>,
    /// Time by which the job is to end.
    pub deadline: Option<DateTime<Utc>>,
    /// Maximum emissions of all work of the job.
    pub carbon_budget_g: Option<f64>,
    /// Weight of the electricity price in place of carbon; 0 is carbon alone.
    pub price_weight: f64,
    /// Costs of pausing; absent where the job may not be paused.
    pub pausable: Option<PausingView>,
}

/// Costs of pausing a job, and minimum durations.
#[derive(Clone, Copy, Debug, Serialize, ToSchema)]
pub struct PausingView {
    /// Power of all GPUs of the job while it pauses.
    pub idle_power_w: f64,
    /// Minimum time of training between two pauses.
    pub min_run_s: f64,
    /// Minimum duration of a pause.
    pub min_pause_s: f64,
    /// Time at running power without work that each pause costs, for its checkpoint.
    pub checkpoint_s: f64,
}

/// Response to a progress report.
#[derive(Clone, Debug, Serialize, ToSchema)]
pub struct ProgressView {
    /// Phase of the job.
    pub phase: Phase,
    /// Reason for the phase, in one sentence.
    pub reason: String,
    /// Power limit wanted now on the job's first GPU.
    pub power_limit_w: Option<f64>,
    /// Clock to which the job's first GPU is to be locked now; absent without a lock.
    pub clock_limit_mhz: Option<u32>,
    /// Time at which the job is to resume; absent unless it is to pause now.
    pub resume_at: Option<DateTime<Utc>>,
    /// Slowdown so far against the maximum usable limit: 0.012 is 1.2 %.
    pub slowdown: Option<f64>,
    /// Expected end of the job by its plan.
    pub expected_end: Option<DateTime<Utc>>,
    /// Duration of the lease, which this report has renewed.
    pub lease_s: f64,
    /// Promises that cannot be kept, and by how much.
    pub warnings: Vec<String>,
}

/// Plan of a job.
#[derive(Clone, Debug, Serialize, ToSchema)]
pub struct PlanView {
    /// Id of the job.
    pub job_id: String,
    /// Time at which the plan was made; absent without one.
    pub made_at: Option<DateTime<Utc>>,
    /// Reason for the job's phase; if the plan outlasts the forecast, also the time from which its mean is used.
    pub note: String,
    /// True if it is applied; false if it is only shown (observe mode).
    pub applied: bool,
    /// Expected end of the work.
    pub expected_end: Option<DateTime<Utc>>,
    /// Expected emissions from `made_at` on.
    pub expected_carbon_g: Option<f64>,
    /// Expected emissions of the same work from `made_at` on at the maximum usable limit.
    pub expected_carbon_at_max_g: Option<f64>,
    /// Expected energy from `made_at` on.
    pub expected_energy_j: Option<f64>,
    /// Expected slowdown over the job's life: 0.03 is 3 %.
    pub expected_slowdown: Option<f64>,
    /// Fraction of the remaining cost that the newest plan would have saved; it was not adopted because the fraction is
    /// below `plan.better_by`. Absent if this plan is the newest.
    pub forgone_saving: Option<f64>,
    /// Promises that cannot be kept, and by how much.
    pub warnings: Vec<String>,
    /// Limits over time, in time order without gaps.
    pub segments: Vec<SegmentView>,
}

/// Span of a plan in which limits stay the same.
#[derive(Clone, Debug, Serialize, ToSchema)]
pub struct SegmentView {
    /// Start of the span.
    pub start: DateTime<Utc>,
    /// End of the span.
    pub end: DateTime<Utc>,
    /// Power limits of the job's GPUs, in the order of the job's `gpus`.
    pub power_limits_w: Vec<f64>,
    /// Clock to which the job's GPUs are locked; absent without a lock.
    pub clock_limit_mhz: Option<u32>,
    /// Activity of the job.
    pub activity: SegmentActivity,
    /// Expected power of all GPUs of the job.
    pub power_w: f64,
    /// Expected throughput of the job.
    pub samples_per_s: f64,
    /// Carbon intensity that the plan assumes for the span.
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
    /// Emissions avoided per sample forgone at the next slower limit; absent at the slowest.
    pub slower: Option<f64>,
    /// Emissions added per sample gained at the next faster limit; absent at the fastest.
    pub faster: Option<f64>,
    /// Highest marginal cost that the plan accepts in any segment.
    pub plan: f64,
}

/// Profile of a job.
#[derive(Clone, Debug, Serialize, ToSchema)]
pub struct ProfileView {
    /// Id of the job.
    pub job_id: String,
    /// True if the sweep is complete.
    pub complete: bool,
    /// Power limits to be measured next, one per group of equal GPUs.
    pub measuring_w: Option<Vec<f64>>,
    /// Locked clock to be measured next; absent if clocks are not locked for that measurement.
    pub measuring_mhz: Option<u32>,
    /// Relative change of throughput at the maximum usable limit during the sweep, caused by warming up.
    pub thermal_trend: Option<f64>,
    /// Operating points; the first is at the maximum usable limit, to which the slowdown refers.
    pub points: Vec<PointView>,
}

/// One operating point of a profile.
#[derive(Clone, Debug, Serialize, ToSchema)]
pub struct PointView {
    /// Power limits of the point, one per group of equal GPUs.
    pub power_limits_w: Vec<f64>,
    /// Clock to which all GPUs were locked; absent without a lock.
    pub clock_limit_mhz: Option<u32>,
    /// Throughput of the whole job.
    pub samples_per_s: f64,
    /// Relative standard error of the throughput.
    pub samples_per_s_error: f64,
    /// Power of all GPUs of the job.
    pub power_w: f64,
    /// Energy of all GPUs of the job per sample.
    pub joules_per_sample: f64,
    /// Duration of the measurement; 0 if the point was inferred from others.
    pub measured_s: f64,
}

/// Account of a job: energy and emissions, final once the job has ended.
#[derive(Clone, Debug, Serialize, ToSchema)]
pub struct AccountView {
    /// Id of the job.
    pub job_id: String,
    /// Name of the job.
    pub name: String,
    /// True if the job trained on simulated GPUs: then nothing below was measured on hardware.
    pub simulated: bool,
    /// Cumulative count of samples in the last report.
    pub samples: Option<f64>,
    /// Time spent training, without the job's own pauses.
    pub time_s: f64,
    /// Time in the job's own pauses (evaluation, checkpoints, input), which all comparisons have on both sides.
    pub stalled_s: f64,
    /// Energy of the job's GPUs in these pauses, as far as known; part of `energy_j`.
    pub stalled_energy_j: f64,
    /// Energy of the job's GPUs while it held them, and its share of CPU packages and memory if it named its processes,
    /// up to the last closed interval.
    pub energy_j: f64,
    /// Energy of the job by kind of device, in joules: `gpu`, `cpu`, `dram`.
    pub energy_by_device_j: BTreeMap<String, f64>,
    /// Emissions of the energy whose carbon intensity is known.
    pub carbon_g: Option<f64>,
    /// Energy by the origin of its carbon intensity.
    pub energy_by_origin_j: BTreeMap<String, f64>,
    /// Energy without a known carbon intensity.
    pub energy_without_intensity_j: f64,
    /// Energy that was integrated from power or recorded for an unmonitored time.
    pub energy_estimated_j: f64,
    /// Relative uncertainty of the energy: 5 % gain error of the sensors, 10 % where it was estimated.
    pub energy_uncertainty: f64,
    /// Promises that were not kept or, while the job runs, cannot be kept, and by how much; and likely report mistakes.
    pub warnings: Vec<String>,
    /// Comparison with the same work at the maximum usable limit; absent where no honest estimate exists.
    pub against_max: Option<ComparisonView>,
    /// Savings, with 95 % confidence intervals.
    pub savings: SavingsView,
    /// Time of the job's end.
    pub ended_at: Option<DateTime<Utc>>,
    /// Reason for the job's end.
    pub end_reason: Option<String>,
}

/// Comparison of a job with the same work at the maximum usable limit.
#[derive(Clone, Debug, Serialize, ToSchema)]
pub struct ComparisonView {
    /// Emissions at the maximum usable limit.
    pub carbon_at_max_g: f64,
    /// Energy at the maximum usable limit.
    pub energy_at_max_j: f64,
    /// Time at the maximum usable limit, including the job's own pauses.
    pub time_at_max_s: f64,
    /// Reduction of emissions, in percent of those at the maximum usable limit.
    pub carbon_reduction_pct: f64,
    /// Increase of time, in percent of that at the maximum usable limit.
    pub time_increase_pct: f64,
    /// Part of the carbon reduction that the best constant mix of limits with the same time would have had, in percent.
    pub energy_effect_pct: f64,
    /// Part of the carbon reduction added by following the grid, in percent.
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
    /// Process ids that the job named; child processes count too.
    pub pids: Option<Vec<u32>>,
    /// Control group that the job named.
    pub cgroup: Option<String>,
    /// Number of the job's processes that run now; absent where they are not observed.
    pub running: Option<u32>,
    /// CPU time of the processes since the job was registered, or continued by a new daemon.
    pub cpu_time_s: Option<f64>,
    /// Reason why the CPU time cannot be counted now; absent if it can.
    pub problem: Option<String>,
}

impl ProcessesView {
    /// Returns the processes that a job named, without observations of them.
    pub fn of(processes: &Processes) -> Self {
        let (pids, cgroup) = match processes {
            Processes::Pids(list) => (Some(list.iter().map(|process| process.pid).collect()), None),
            Processes::Cgroup(path) => (None, Some(path.as_str().to_owned())),
        };
        Self { pids, cgroup, running: None, cpu_time_s: None, problem: None }
    }
}
