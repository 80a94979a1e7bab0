//! Jobs: their state, plan, profile and account.

use std::collections::BTreeMap;

use chrono::{DateTime, Utc};
use serde::Serialize;
use utoipa::ToSchema;

use super::{IntervalView, SavingsView};
use crate::controller::jobs::Phase;
use wattune_core::domain::Processes;

/// One job.
#[derive(Clone, Debug, Serialize, ToSchema)]
pub struct JobView {
    /// Its id.
    pub job_id: String,
    /// Its name.
    pub name: String,
    /// UUIDs of its boards.
    pub gpus: Vec<String>,
    /// Samples per step.
    pub batch_size: Option<u64>,
    /// All its work; absent if it did not say.
    pub total_samples: Option<f64>,
    /// Cumulative samples reported.
    pub samples: Option<f64>,
    /// Its objective.
    pub objective: ObjectiveView,
    /// Whether its limits may be set.
    pub control: bool,
    /// ReferenceKind job bends first under the node's cap: the one with the lower number.
    pub priority: i32,
    /// The user's labels.
    pub tags: BTreeMap<String, String>,
    /// Its processes; absent if it did not tell which they are.
    pub processes: Option<ProcessesView>,
    /// Its lease.
    pub lease_s: f64,
    /// When the lease ends without a further word; absent once the job has ended.
    pub lease_left_s: Option<f64>,
    /// What is done for it.
    pub phase: Option<Phase>,
    /// Why, in one sentence.
    pub reason: String,
    /// The limit that is wanted on its (first) board now.
    pub power_limit_w: Option<f64>,
    /// The limits wanted on all its boards, in the order of `gpus`.
    pub power_limits_w: Vec<Option<f64>>,
    /// What the clocks of its boards are to be locked to now; absent where they are not.
    pub clock_limit_mhz: Option<u32>,
    /// Slower than at the ceiling so far, with the same pauses of its own: 0.012 is 1.2 %.
    pub slowdown: Option<f64>,
    /// Time spent training: pauses of its own are left out.
    pub active_s: f64,
    /// Time in pauses of its own: evaluation, checkpoints, input.
    pub stalled_s: f64,
    /// Energy booked for it so far, of CPU packages and memory too if it told its processes; once it has ended, its account has it (`…/emissions`).
    pub energy_j: Option<f64>,
    /// Emissions booked for it so far; absent while no intensity is known, and once it has ended.
    pub carbon_g: Option<f64>,
    /// The energy by what used it, in joules: `gpu`, `cpu`, `dram`; empty once it has ended.
    pub energy_by_device_j: BTreeMap<String, f64>,
    /// Emissions saved against the limit found so far, in grams, as of the last full hour or, in its first hour, the
    /// last minute; absent while that cannot be told, and once it has ended.
    pub saved_g: Option<IntervalView>,
    /// When it was registered.
    pub registered_at: DateTime<Utc>,
    /// When it first reported.
    pub started_at: Option<DateTime<Utc>>,
    /// When the plan expects it to end.
    pub expected_end: Option<DateTime<Utc>>,
    /// When the plan in force was made; absent while there is none.
    pub plan_made_at: Option<DateTime<Utc>>,
    /// What that plan expected to be emitted from then on.
    pub planned_carbon_g: Option<f64>,
    /// The same at the ceiling.
    pub planned_carbon_at_max_g: Option<f64>,
    /// When it is to go on with its work; absent unless it is to pause now.
    pub resume_at: Option<DateTime<Utc>>,
    /// When it ended.
    pub ended_at: Option<DateTime<Utc>>,
    /// Why it ended.
    pub end_reason: Option<String>,
    /// How many of its promises cannot be kept, by the plan in force.
    pub broken_promises: usize,
    /// Promises that cannot be kept, and by how much; and what is the matter with its boards and measurements.
    pub warnings: Vec<String>,
}

/// A job's objective.
#[derive(Clone, Debug, Serialize, ToSchema)]
pub struct ObjectiveView {
    /// 1 is carbon alone, 0 is time alone.
    pub eta: f64,
    /// Allowed increase of time.
    pub max_slowdown: Option<f64>,
    /// When it must be done.
    pub deadline: Option<DateTime<Utc>>,
    /// What all of its work may emit.
    pub carbon_budget_g: Option<f64>,
    /// How much of carbon's place the price takes; 0 is carbon alone.
    pub price_weight: f64,
    /// What pausing costs; absent where it may not pause.
    pub pausable: Option<PausingView>,
}

/// What pausing costs.
#[derive(Clone, Copy, Debug, Serialize, ToSchema)]
pub struct PausingView {
    /// What all its boards draw together while it pauses.
    pub idle_power_w: f64,
    /// The shortest run.
    pub min_run_s: f64,
    /// The shortest pause.
    pub min_pause_s: f64,
    /// Seconds at running power without work that each pause costs.
    pub checkpoint_s: f64,
}

/// The answer to a progress report.
#[derive(Clone, Debug, Serialize, ToSchema)]
pub struct ProgressView {
    /// What is done for the job.
    pub phase: Phase,
    /// Why, in one sentence.
    pub reason: String,
    /// The limit that is wanted on its (first) board now.
    pub power_limit_w: Option<f64>,
    /// What the clocks of its boards are to be locked to now; absent where they are not.
    pub clock_limit_mhz: Option<u32>,
    /// When it is to go on with its work; absent unless it is to pause now.
    pub resume_at: Option<DateTime<Utc>>,
    /// Slower than at the ceiling so far.
    pub slowdown: Option<f64>,
    /// When the plan expects it to end.
    pub expected_end: Option<DateTime<Utc>>,
    /// The renewed lease.
    pub lease_s: f64,
    /// Promises that cannot be kept, and by how much.
    pub warnings: Vec<String>,
}

/// What will happen to a job, and why.
#[derive(Clone, Debug, Serialize, ToSchema)]
pub struct PlanView {
    /// Its id.
    pub job_id: String,
    /// When the plan was made; absent while there is none.
    pub made_at: Option<DateTime<Utc>>,
    /// Why there is none, or what is remarkable about it.
    pub note: String,
    /// Whether it is carried out, or only shown (observe mode).
    pub applied: bool,
    /// When the work will be done.
    pub expected_end: Option<DateTime<Utc>>,
    /// Expected emissions from now on.
    pub expected_carbon_g: Option<f64>,
    /// The same at the ceiling.
    pub expected_carbon_at_max_g: Option<f64>,
    /// Expected energy from now on.
    pub expected_energy_j: Option<f64>,
    /// Slowdown expected over the job's life.
    pub expected_slowdown: Option<f64>,
    /// Promises that cannot be kept, and by how much.
    pub warnings: Vec<String>,
    /// Limits over time, in time order without gaps.
    pub segments: Vec<SegmentView>,
}

/// A span in which limits stay the same.
#[derive(Clone, Debug, Serialize, ToSchema)]
pub struct SegmentView {
    /// First moment.
    pub start: DateTime<Utc>,
    /// First moment after.
    pub end: DateTime<Utc>,
    /// One limit per board, in the order of the job's `gpus`.
    pub power_limits_w: Vec<f64>,
    /// What the clocks of all boards are locked to; absent where they are not.
    pub clock_limit_mhz: Option<u32>,
    /// What the job does: `training`, `paused`, or `resuming` while its checkpoint is saved and loaded.
    pub doing: &'static str,
    /// Expected draw of all boards.
    pub power_w: f64,
    /// Expected throughput.
    pub samples_per_s: f64,
    /// Intensity planned with.
    pub intensity_g_per_kwh: f64,
    /// Why this limit, in one sentence.
    pub reason: String,
}

/// What was learned about a job.
#[derive(Clone, Debug, Serialize, ToSchema)]
pub struct ProfileView {
    /// Its id.
    pub job_id: String,
    /// Whether the sweep is complete.
    pub complete: bool,
    /// The limits to be measured next, one per group of equal boards.
    pub measuring_w: Option<Vec<f64>>,
    /// The locked clock to be measured next; absent where clocks are not locked for it.
    pub measuring_mhz: Option<u32>,
    /// Change of throughput at the ceiling during the sweep: what warming up did.
    pub thermal_trend: Option<f64>,
    /// The points; the first one is the ceiling, the reference of the slowdown.
    pub points: Vec<PointView>,
}

/// One operating point.
#[derive(Clone, Debug, Serialize, ToSchema)]
pub struct PointView {
    /// One limit per group of equal boards.
    pub power_limits_w: Vec<f64>,
    /// What the clocks of all boards were locked to; absent where they were not.
    pub clock_limit_mhz: Option<u32>,
    /// Throughput of the whole job.
    pub samples_per_s: f64,
    /// Its relative standard error.
    pub samples_per_s_error: f64,
    /// Draw of all boards.
    pub power_w: f64,
    /// Energy per sample.
    pub joules_per_sample: f64,
    /// For how long it was measured; 0 where it was inferred from others.
    pub measured_s: f64,
}

/// What a job used and emitted: its account, final once the job has ended.
#[derive(Clone, Debug, Serialize, ToSchema)]
pub struct AccountView {
    /// Its id.
    pub job_id: String,
    /// Its name.
    pub name: String,
    /// Whether it trained on simulated boards: nothing below was measured on hardware then.
    pub simulated: bool,
    /// Cumulative samples reported.
    pub samples: Option<f64>,
    /// Time spent training: pauses of its own are left out.
    pub time_s: f64,
    /// Time in pauses of its own (evaluation, checkpoints, input): all comparisons have the same pauses on both sides.
    pub stalled_s: f64,
    /// Energy of its GPUs in these pauses, as far as it is known. Part of `energy_j`.
    pub stalled_energy_j: f64,
    /// Energy of its boards while it held them, and its share of CPU packages and memory if it told its processes, up to
    /// the last closed interval.
    pub energy_j: f64,
    /// The same by what used it, in joules: `gpu`, `cpu`, `dram`.
    pub energy_by_device_j: BTreeMap<String, f64>,
    /// Emissions of the energy whose intensity is known.
    pub carbon_g: Option<f64>,
    /// Energy by where its intensity comes from.
    pub energy_by_origin_j: BTreeMap<String, f64>,
    /// Energy for whose time no intensity is known.
    pub energy_without_intensity_j: f64,
    /// Energy that was integrated from power or lies in a gap.
    pub energy_estimated_j: f64,
    /// Relative uncertainty of the energy: 5 % gain error of the sensors, 10 % where it was estimated.
    pub energy_uncertainty: f64,
    /// Promises that were not kept, or cannot be kept while it runs, and by how much; and what its reports look like.
    pub warnings: Vec<String>,
    /// Against the same work at the ceiling; absent where that cannot be told honestly.
    pub against_max: Option<ComparisonView>,
    /// What it saved, with how sure that is.
    pub savings: SavingsView,
    /// When it ended.
    pub ended_at: Option<DateTime<Utc>>,
    /// Why it ended.
    pub end_reason: Option<String>,
}

/// A job against itself at the ceiling.
#[derive(Clone, Debug, Serialize, ToSchema)]
pub struct ComparisonView {
    /// Emissions at the ceiling.
    pub carbon_at_max_g: f64,
    /// Energy at the ceiling.
    pub energy_at_max_j: f64,
    /// Time at the ceiling, pauses of the job's own included.
    pub time_at_max_s: f64,
    /// Less carbon, percent.
    pub carbon_reduction_pct: f64,
    /// More time, percent.
    pub time_increase_pct: f64,
    /// What the best constant mix of limits with the same time would have saved, percent.
    pub energy_effect_pct: f64,
    /// What following the grid added to that, percent.
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

/// A job's processes.
#[derive(Clone, Debug, Serialize, ToSchema)]
pub struct ProcessesView {
    /// The processes that it named; what they start counts too.
    pub pids: Option<Vec<u32>>,
    /// The control group that it named.
    pub cgroup: Option<String>,
    /// How many run now; absent where nobody looks.
    pub running: Option<u32>,
    /// CPU time that they used since the job was registered, or taken up again by a new daemon.
    pub cpu_time_s: Option<f64>,
    /// Why it cannot be counted now.
    pub problem: Option<String>,
}

impl ProcessesView {
    /// What was named, of a job that nobody follows.
    pub fn of(processes: &Processes) -> Self {
        let (pids, cgroup) = match processes {
            Processes::Pids(list) => (Some(list.iter().map(|process| process.pid).collect()), None),
            Processes::Cgroup(path) => (None, Some(path.as_str().to_owned())),
        };
        Self { pids, cgroup, running: None, cpu_time_s: None, problem: None }
    }
}
