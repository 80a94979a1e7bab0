//! Views of jobs: state, plan, profile and account.

use std::collections::BTreeMap;

use chrono::{DateTime, Utc};
use serde::Serialize;
use utoipa::ToSchema;

use super::states::{ProgressOrigin, SegmentActivity};
use super::{IntervalView, SavingsView};
use crate::controller::jobs::{Phase, Wanted};
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
    /// Total work of the job in samples; absent if it is unknown.
    pub total_samples: Option<f64>,
    /// Cumulative count of samples in the job's last progress report; absent before the first report.
    pub samples: Option<f64>,
    /// Source of the job's last progress report, such as a client of the API or a hook in PyTorch; absent before the
    /// first report.
    pub progress_source: Option<ProgressOrigin>,
    /// Objective of the job (the weights of carbon, time and price) and its promises (constraints that the user set,
    /// such as a deadline).
    pub objective: ObjectiveView,
    /// True if wattune may set the limits of the job's GPUs.
    pub control: bool,
    /// Priority under the node's cap (maximum sum of all GPUs' power limits): the limits of the job with the lowest
    /// priority are lowered first.
    pub priority: i32,
    /// Labels given at registration.
    pub tags: BTreeMap<String, String>,
    /// Processes of the job, whose CPU energy counts too; absent if the job named none at registration.
    pub processes: Option<ProcessesView>,
    /// Lease: longest time without a progress report before the daemon ends the job.
    pub lease_s: f64,
    /// Time after which the daemon ends the job unless the job reports before; absent once the job has ended.
    pub lease_left_s: Option<f64>,
    /// Phase of the job, such as profiling or paused; absent once the job has ended.
    pub phase: Option<Phase>,
    /// Reason for the phase or, once the job has ended, reason for the end, in one sentence.
    pub reason: String,
    /// Power limit that wattune wants now on the job's first GPU; absent if it wants none.
    pub power_limit_w: Option<f64>,
    /// Power limit that wattune wants now on each of the job's GPUs, in the order of `gpus`; `null` where it wants
    /// none.
    pub power_limits_w: Vec<Option<f64>>,
    /// Clock to which the job's first GPU is to be locked now; absent if the clocks of that GPU are not to be locked.
    pub clock_limit_mhz: Option<u32>,
    /// Slowdown so far: time lost to lower power limits, as a fraction of the time that the same work and the job's own
    /// pauses take at the maximum usable limit; 0.012 is 1.2 %. Absent unless it is known within 0.3 percentage points.
    pub slowdown: Option<f64>,
    /// Time spent training and in pauses that the plan requested, without the pauses that the job makes itself.
    pub active_s: f64,
    /// Time in pauses that the job makes itself: for evaluation, saving of checkpoints or input.
    pub stalled_s: f64,
    /// Energy recorded for the job so far: of the job's GPUs and, if the job named its processes, of CPU packages and
    /// memory. Absent once the job has ended; its account (`…/emissions`) then has the energy.
    pub energy_j: Option<f64>,
    /// Emissions recorded for the job so far; absent while no carbon intensity is known, and once the job has ended.
    pub carbon_g: Option<f64>,
    /// Energy of the job by kind of device, in joules: `gpu`, `cpu`, `dram`; empty once the job has ended.
    pub energy_by_device_j: BTreeMap<String, f64>,
    /// Emissions saved so far compared with the original limits (in force before wattune's first write), in grams, with
    /// a 95 % confidence interval. Updated every minute in the job's first hour, then every hour. Absent while unknown,
    /// and once the job has ended.
    pub saved_g: Option<IntervalView>,
    /// Time of registration.
    pub registered_at: DateTime<Utc>,
    /// Time of the job's first progress report; absent before that.
    pub started_at: Option<DateTime<Utc>>,
    /// Time at which the job ends by the plan in force; absent without a plan, and if the node's cap lowers limits
    /// below the plan, so that the end is unknown.
    pub expected_end: Option<DateTime<Utc>>,
    /// Time at which the plan in force was made; absent without a plan.
    pub plan_made_at: Option<DateTime<Utc>>,
    /// Emissions from `plan_made_at` to the job's end that the plan in force expects.
    pub planned_carbon_g: Option<f64>,
    /// Emissions that the same work would cause at the maximum usable limit, from `plan_made_at` until the work is
    /// done.
    pub planned_carbon_at_max_g: Option<f64>,
    /// Time at which the job is to resume; absent unless the job is to pause now.
    pub resume_at: Option<DateTime<Utc>>,
    /// Request of the daemon to the program that starts the job, such as `wattune run`: to wait, to run the job, or to
    /// suspend it. Absent once the job has ended.
    pub wanted: Option<Wanted>,
    /// Time of the next planned change of `wanted`; absent if none is planned.
    pub until: Option<DateTime<Utc>>,
    /// Key by which a later registration continues the job after its lease has expired; absent without one.
    pub key: Option<String>,
    /// Earlier job with the same key, which this job continues; absent if there is none.
    pub continues: Option<String>,
    /// Start of a job that offered to be held; absent for others.
    pub start: Option<StartView>,
    /// Suspensions of a job that offers them; absent for others.
    pub suspend: Option<SuspendView>,
    /// Time of the job's end; absent while the job runs.
    pub ended_at: Option<DateTime<Utc>>,
    /// Reason for the job's end; absent while the job runs.
    pub end_reason: Option<String>,
    /// Number of promises (constraints that the user set, such as a deadline) that cannot be kept or, once the job has
    /// ended, that were broken.
    pub broken_promises: usize,
    /// Warnings, in one sentence each: promises that cannot be kept, and by how much; obstacles to the profile;
    /// problems of the job's GPUs; likely mistakes in the job's reports. Of an ended job: the promises that it broke,
    /// and the likely mistakes.
    pub warnings: Vec<String>,
}

/// Start of a job that offered to be held until a start that the daemon chooses.
#[derive(Clone, Debug, Serialize, ToSchema)]
pub struct StartView {
    /// Time of the request; if the job continues an earlier job with the same key, time of the first request.
    pub asked_at: DateTime<Utc>,
    /// Chosen start; absent before the first choice, and once the job has begun.
    pub start_at: Option<DateTime<Utc>>,
    /// Latest start that the request and the job's deadline allow.
    pub latest_start: DateTime<Utc>,
    /// Time at which the job began; absent before.
    pub begun_at: Option<DateTime<Utc>>,
    /// Expected saving of emissions against starting at once, in percent; absent if unknown. If prices are weighed, the
    /// start is chosen by carbon and price, so this may be zero or negative.
    pub expected_saving_pct: Option<f64>,
    /// Lower bound of the 80 % prediction interval of the saving.
    pub saving_low_pct: Option<f64>,
    /// Upper bound of the 80 % prediction interval of the saving.
    pub saving_high_pct: Option<f64>,
    /// Probability that waiting causes more emissions than starting at once, or more cost if prices are weighed; absent
    /// if unknown.
    pub loss_probability: Option<f64>,
    /// Reason for the chosen start, in one sentence.
    pub reason: String,
}

/// Suspensions of a job that offers them: it saves a checkpoint, exits, leaves its GPUs to other jobs, and is started
/// again later.
#[derive(Clone, Debug, Serialize, ToSchema)]
pub struct SuspendView {
    /// Name of the signal that asks the job to save and exit. The program that started the job sends the signal; the
    /// daemon never does.
    pub signal: String,
    /// Expected time from the request until the job has exited, with what was observed so far.
    pub checkpoint_s: f64,
    /// Expected time from a restart until the job makes progress again, with what was observed so far.
    pub restart_s: f64,
    /// Number of suspensions so far.
    pub stops: u32,
    /// True if the job is asked to suspend now.
    pub asked: bool,
    /// Time at which the suspended job is to resume; absent unless the job is suspended or asked to suspend.
    pub resume_at: Option<DateTime<Utc>>,
}

/// Objective of a job (the weights of carbon, time and price) and its promises (constraints that the user set, such as
/// a deadline).
#[derive(Clone, Debug, Default, Serialize, ToSchema)]
pub struct ObjectiveView {
    /// Weight of carbon against time: 1 is carbon alone, 0 is time alone.
    pub eta: f64,
    /// Promise: maximum slowdown against the maximum usable limit; 0.03 is 3 %. Absent without this promise.
    pub max_slowdown: Option<f64>,
    /// Promise: time by which the job is to end; absent without this promise.
    pub deadline: Option<DateTime<Utc>>,
    /// Promise: maximum emissions of all of the job's work; absent without this promise.
    pub carbon_budget_g: Option<f64>,
    /// Weight of the electricity price against carbon: 0 is carbon alone, 1 is the price alone.
    pub price_weight: f64,
    /// Costs of pausing; absent where the job may not be paused.
    pub pausable: Option<PausingView>,
}

/// Costs of pausing a job, and minimum durations of the job's pauses and of the training between them.
#[derive(Clone, Copy, Debug, Serialize, ToSchema)]
pub struct PausingView {
    /// Power of all GPUs of the job while it pauses.
    pub idle_power_w: f64,
    /// Minimum time of training between two pauses.
    pub min_run_s: f64,
    /// Minimum duration of a pause.
    pub min_pause_s: f64,
    /// Time that each pause costs for saving and loading a training checkpoint: the job draws its training power and
    /// does no work.
    pub checkpoint_s: f64,
}

/// Response to a progress report.
#[derive(Clone, Debug, Serialize, ToSchema)]
pub struct ProgressView {
    /// Phase of the job.
    pub phase: Phase,
    /// Reason for the phase, in one sentence.
    pub reason: String,
    /// Power limit that wattune wants now on the job's first GPU; absent if it wants none.
    pub power_limit_w: Option<f64>,
    /// Clock to which the job's first GPU is to be locked now; absent if the clocks of that GPU are not to be locked.
    pub clock_limit_mhz: Option<u32>,
    /// Time at which the job is to resume; absent unless the job is to pause now.
    pub resume_at: Option<DateTime<Utc>>,
    /// Slowdown so far against the maximum usable limit: 0.012 is 1.2 %. Absent unless it is known within 0.3
    /// percentage points.
    pub slowdown: Option<f64>,
    /// Time at which the job ends by the plan in force; absent without a plan, and if the node's cap lowers limits
    /// below the plan, so that the end is unknown.
    pub expected_end: Option<DateTime<Utc>>,
    /// Duration of the lease, the longest time without a report; the report has renewed the lease.
    pub lease_s: f64,
    /// Request of the daemon to the program that starts the job, such as `wattune run`: to wait, to run the job, or to
    /// suspend it.
    pub wanted: Wanted,
    /// Time of the next planned change of `wanted`; absent if none is planned.
    pub until: Option<DateTime<Utc>>,
    /// Latest start of the held job; absent unless the job is held.
    pub latest_start: Option<DateTime<Utc>>,
    /// Start that is chosen for the held job, and its expected saving; absent unless the job is held.
    pub start: Option<StartView>,
    /// Warnings, in one sentence each: promises that cannot be kept, and by how much; obstacles to the profile;
    /// problems of the job's GPUs; likely mistakes in the job's reports.
    pub warnings: Vec<String>,
}

/// Plan of a job.
#[derive(Clone, Debug, Serialize, ToSchema)]
pub struct PlanView {
    /// Id of the job.
    pub job_id: String,
    /// Time at which the plan was made; absent if the job has no plan.
    pub made_at: Option<DateTime<Utc>>,
    /// Reason for the job's phase. If the plan outlasts the carbon forecast, also the time from which the plan uses the
    /// forecast's mean.
    pub note: String,
    /// True if the job follows the plan; false if the plan is only shown, as in observe mode.
    pub applied: bool,
    /// Expected end of the job's work; absent without a plan, and if the node's cap lowers limits below the plan, so
    /// that the end is unknown.
    pub expected_end: Option<DateTime<Utc>>,
    /// Expected emissions from `made_at` to the end of the work.
    pub expected_carbon_g: Option<f64>,
    /// Emissions that the same work would cause at the maximum usable limit, from `made_at` until the work is done.
    pub expected_carbon_at_max_g: Option<f64>,
    /// Expected energy from `made_at` to the end of the work.
    pub expected_energy_j: Option<f64>,
    /// Expected slowdown against the maximum usable limit, over the job's whole life: 0.03 is 3 %. Absent where
    /// `expected_end` is.
    pub expected_slowdown: Option<f64>,
    /// Fraction of the remaining cost that a newer plan would have saved. The newer plan was not adopted, because this
    /// fraction is at most `plan.better_by`. Absent if no newer plan was rejected.
    pub forgone_saving: Option<f64>,
    /// Warnings, in one sentence each: promises that cannot be kept, and by how much; obstacles to the profile;
    /// problems of the job's GPUs; likely mistakes in the job's reports.
    pub warnings: Vec<String>,
    /// Spans in which the limits stay the same, in time order without gaps; empty without a plan.
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
    /// Activity of the job in the span: training, paused or resuming.
    pub activity: SegmentActivity,
    /// Expected power of all GPUs of the job.
    pub power_w: f64,
    /// Expected throughput of the job.
    pub samples_per_s: f64,
    /// Carbon intensity that the plan assumes for the span.
    pub intensity_g_per_kwh: f64,
    /// Reason for the limits in this span, in one sentence.
    pub reason: String,
    /// Marginal costs that determined the limits; absent where something else determined them, such as a cap, or the
    /// fact that only one limit is measured.
    pub marginal_costs: Option<MarginalCostsView>,
}

/// Marginal costs of work at a segment's limit, in gCO2e per sample; the electricity price counts by the job's
/// `price_weight`. The limit is the best one if `slower ≤ plan ≤ faster`.
#[derive(Clone, Debug, Serialize, ToSchema)]
pub struct MarginalCostsView {
    /// Emissions avoided per sample forgone at the next slower limit; absent at the slowest limit.
    pub slower: Option<f64>,
    /// Emissions added per sample gained at the next faster limit; absent at the fastest limit.
    pub faster: Option<f64>,
    /// Highest marginal cost that the plan accepts in any segment.
    pub plan: f64,
}

/// Profile of a job: throughput and power that were measured at several power limits.
#[derive(Clone, Debug, Serialize, ToSchema)]
pub struct ProfileView {
    /// Id of the job.
    pub job_id: String,
    /// True if the sweep, the profiling run through the power limits, is complete.
    pub complete: bool,
    /// Power limits to be measured next, one per group of equal GPUs; absent if no measurement is planned.
    pub measuring_w: Option<Vec<f64>>,
    /// Locked clock to be measured next; absent if clocks are not locked for that measurement.
    pub measuring_mhz: Option<u32>,
    /// Relative change of the throughput at the maximum usable limit from start to end of the sweep, because the GPUs
    /// warmed up; absent if it is not measured yet.
    pub thermal_trend: Option<f64>,
    /// Operating points. The first is at the maximum usable limit, with which slowdowns are compared.
    pub points: Vec<PointView>,
}

/// Operating point of a profile: throughput and power of the job at one setting of the job's GPUs.
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
    /// True if the job trained on simulated GPUs: then no figure of the account was measured on hardware.
    pub simulated: bool,
    /// Cumulative count of samples in the job's last progress report; absent before the first report.
    pub samples: Option<f64>,
    /// Time spent training and in pauses that the plan requested, without the pauses that the job makes itself.
    pub time_s: f64,
    /// Time in pauses that the job makes itself (for evaluation, checkpoints or input). In all comparisons the job and
    /// its reference have the same pauses.
    pub stalled_s: f64,
    /// Energy of the job's GPUs in the pauses of `stalled_s`, as far as it is known; part of `energy_j`.
    pub stalled_energy_j: f64,
    /// Energy recorded for the job up to the end of the ledger's last closed interval: of the job's GPUs while the job
    /// was registered on them and, if the job named its processes, of the job's share of CPU packages and memory.
    pub energy_j: f64,
    /// Energy of the job by kind of device, in joules: `gpu`, `cpu`, `dram`.
    pub energy_by_device_j: BTreeMap<String, f64>,
    /// Emissions of the energy whose carbon intensity is known; absent if none is known.
    pub carbon_g: Option<f64>,
    /// Energy with a known carbon intensity, by the origin of the intensity, such as `measured`.
    pub energy_by_origin_j: BTreeMap<String, f64>,
    /// Energy without a known carbon intensity.
    pub energy_without_intensity_j: f64,
    /// Part of the energy that was integrated from power, or recorded for a time in which the device was not monitored.
    pub energy_estimated_j: f64,
    /// Relative uncertainty of the energy: 0.05 (gain error of the sensors), and 0.1 for the part in
    /// `energy_estimated_j`.
    pub energy_uncertainty: f64,
    /// Warnings, in one sentence each: promises that were broken or, while the job runs, cannot be kept, and by how
    /// much; likely mistakes in the job's reports; while the job runs, also obstacles to the profile and problems of
    /// the job's GPUs.
    pub warnings: Vec<String>,
    /// Comparison with the same work at the maximum usable limit; absent where no honest estimate exists.
    pub against_max: Option<ComparisonView>,
    /// Savings compared with the original limits and with the maximum limits, with 95 % confidence intervals.
    pub savings: SavingsView,
    /// Sums over this job and the earlier jobs with the same key that it continues, such as the parts of a job that
    /// Slurm has requeued; absent for a job that continues none.
    pub with_earlier_parts: Option<PartsView>,
    /// Time of the job's end; absent while the job runs.
    pub ended_at: Option<DateTime<Utc>>,
    /// Reason for the job's end; absent while the job runs.
    pub end_reason: Option<String>,
}

/// Sums over all parts of a job, which have one key.
#[derive(Clone, Debug, PartialEq, Serialize, ToSchema)]
pub struct PartsView {
    /// Ids of the parts, the first one first and this job last. Reports list the sum under the first id.
    pub job_ids: Vec<String>,
    /// Energy of all parts.
    pub energy_j: f64,
    /// Emissions of the energy of all parts whose carbon intensity is known; absent if none is known.
    pub carbon_g: Option<f64>,
    /// Energy of all parts without a known carbon intensity.
    pub energy_without_intensity_j: f64,
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
    /// Part of the carbon reduction that the best constant mix of limits (each for a fixed part of the time) would have
    /// had in the same time, in percent of the emissions at the maximum usable limit.
    pub energy_effect_pct: f64,
    /// Rest of the carbon reduction, due to following the grid's carbon intensity, in percent of the emissions at the
    /// maximum usable limit.
    pub timing_effect_pct: f64,
}

impl From<wattune_core::ledger::Comparison> for ComparisonView {
    fn from(c: wattune_core::ledger::Comparison) -> Self {
        Self {
            carbon_at_max_g: c.carbon_at_reference.get(),
            energy_at_max_j: c.energy_at_reference.get(),
            time_at_max_s: c.time_at_reference.get(),
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
    /// Process ids that the job named, whose child processes count too; absent if the job named none.
    pub pids: Option<Vec<u32>>,
    /// Control group that the job named; absent if the job named none.
    pub cgroup: Option<String>,
    /// Number of the Slurm job that the job named; absent if the job named none.
    pub slurm_job_id: Option<u32>,
    /// Number of the job's processes that run now; absent if the processes are not observed.
    pub running: Option<u32>,
    /// CPU time of the processes since the job's registration or, for a job that is older than this daemon, since the
    /// daemon's start; absent if the processes are not observed.
    pub cpu_time_s: Option<f64>,
    /// Reason why the CPU time cannot be counted now; absent if it can.
    pub problem: Option<String>,
}

impl ProcessesView {
    /// Returns the processes that a job named, without observations of them.
    pub fn of(processes: &Processes) -> Self {
        let none =
            Self { pids: None, cgroup: None, slurm_job_id: None, running: None, cpu_time_s: None, problem: None };
        match processes {
            Processes::Pids(list) | Processes::Found(list) => {
                Self { pids: Some(list.iter().map(|process| process.pid).collect()), ..none }
            }
            Processes::Cgroup(path) => Self { cgroup: Some(path.as_str().to_owned()), ..none },
            Processes::SlurmJob(number) => Self { slurm_job_id: Some(*number), ..none },
        }
    }
}
