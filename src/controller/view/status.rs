//! Views of the whole daemon, and of its planning, storage, cap, carbon budget and ledger.

use std::collections::BTreeMap;

use chrono::{DateTime, Utc};
use serde::Serialize;
use utoipa::ToSchema;

use super::states::Mode;
use super::{CarbonView, CpuView, GpuView, IntervalView, JobView, PresentPrice};

/// State of the whole daemon.
#[derive(Clone, Debug, Serialize, ToSchema)]
pub struct StatusView {
    /// Version of wattune.
    pub version: &'static str,
    /// Mode of the daemon.
    pub mode: Mode,
    /// True if every GPU is simulated.
    pub simulated: bool,
    /// Time of the daemon's start.
    pub started_at: DateTime<Utc>,
    /// Present time of the daemon; in a demo it differs from the wall clock.
    pub now: DateTime<Utc>,
    /// Seconds that pass on the daemon's clock in one second of the machine's: 1, other than with simulated GPUs
    /// whose settings have a faster clock.
    pub clock_speed: f64,
    /// Carbon signal now.
    pub carbon: CarbonView,
    /// Day-ahead electricity price now, with its currency; absent without a source of prices or a price for now.
    pub price: Option<PresentPrice>,
    /// Node's cap, the maximum sum of all GPUs' power limits; absent if no cap holds now and none is known for later.
    pub cap: Option<CapView>,
    /// Carbon budget of all jobs together; absent if none is configured, or once the budget's time is over.
    pub carbon_budget: Option<BudgetView>,
    /// State of planning.
    pub planning: PlanningView,
    /// State of storage.
    pub storage: StorageView,
    /// State of the ledger.
    pub ledger: LedgerView,
    /// GPUs, in order of their index.
    pub gpus: Vec<GpuView>,
    /// CPU packages and memory; absent if the daemon does not read them.
    pub cpu: Option<CpuView>,
    /// Inode number of the namespace of process ids (`/proc/self/ns/pid`) in which jobs name their `pids`; absent if
    /// unknown. A client in another namespace, such as a container's, must not send process ids.
    pub pid_namespace: Option<u64>,
    /// Jobs that have not ended, oldest first. An event of `GET /v1/events` has at most 50 jobs: preferably those that
    /// control GPUs, then the newest.
    pub jobs: Vec<JobView>,
    /// Number of jobs left out of `jobs`.
    pub jobs_left_out: usize,
    /// Problems, in one sentence each. An event of `GET /v1/events` has at most 50 problems.
    pub problems: Vec<String>,
    /// Number of problems left out of `problems`.
    pub problems_left_out: usize,
}

impl StatusView {
    /// Returns at most `most` jobs that have not ended, oldest first. Chooses jobs that control GPUs first, then the
    /// newest jobs.
    pub fn foremost_jobs(&self, most: usize) -> Vec<&JobView> {
        let mut places: Vec<usize> =
            (0..self.jobs.len()).filter(|place| self.jobs[*place].ended_at.is_none()).collect();
        places.sort_by_key(|place| (!self.jobs[*place].control, std::cmp::Reverse(*place)));
        places.truncate(most);
        places.sort_unstable();
        places.into_iter().map(|place| &self.jobs[place]).collect()
    }

    /// Keeps at most `most` jobs and `most` problems, and counts those left out.
    #[must_use]
    pub fn at_most(mut self, most: usize) -> Self {
        if self.jobs.len() > most {
            let jobs: Vec<JobView> = self.foremost_jobs(most).into_iter().cloned().collect();
            self.jobs_left_out += self.jobs.len() - jobs.len();
            self.jobs = jobs;
        }
        self.problems_left_out += self.problems.len().saturating_sub(most);
        self.problems.truncate(most);
        self
    }
}

/// State of the search for plans.
#[derive(Clone, Debug, Default, Serialize, ToSchema)]
pub struct PlanningView {
    /// Duration of the last search for plans; absent before the first search.
    pub last_search_s: Option<f64>,
    /// Time since the search in progress began; absent unless a search takes longer than usual. The previous plans stay
    /// in force until the search ends.
    pub late_s: Option<f64>,
}

/// State of storage: failures to write, and records that are not written yet.
#[derive(Clone, Debug, Default, Serialize, ToSchema)]
pub struct StorageView {
    /// Reason why the ledger cannot be written now, so that records are kept in memory; absent if it can be written.
    pub fault: Option<String>,
    /// Reason why the journal of original limits cannot be written now, so that no limit is set; absent if it can be
    /// written.
    pub journal_fault: Option<String>,
    /// Number of closed intervals (rows of the ledger) that are not written to the database yet.
    pub unwritten_intervals: usize,
    /// Number of records of the audit log that were lost since the daemon's start, because they came faster than they
    /// could be stored or the database could not be written.
    pub audit_records_lost: u64,
}

/// Carbon budget of the node: limit on the emissions of all jobs' GPUs within a budget period, such as a month.
#[derive(Clone, Debug, PartialEq, Serialize, ToSchema)]
pub struct BudgetView {
    /// Start of the budget period.
    pub from: DateTime<Utc>,
    /// End of the budget period.
    pub until: DateTime<Utc>,
    /// Maximum emissions within the budget period.
    pub limit_g: f64,
    /// Emissions of all jobs' GPUs that are recorded so far within the budget period.
    pub emissions_g: f64,
    /// Rest of the budget: `limit_g` less `emissions_g`; negative if the budget is exceeded.
    pub left_g: f64,
    /// `emissions_g` plus the emissions that the present plans expect until the budget period ends; jobs without a plan
    /// add none.
    pub expected_g: f64,
}

/// State of the node's cap, the maximum sum of all GPUs' power limits.
#[derive(Clone, Debug, PartialEq, Serialize, ToSchema)]
pub struct CapView {
    /// Maximum sum of the limits of all GPUs now; absent if no cap holds now.
    pub limit_w: Option<f64>,
    /// Rule that sets the present cap, in words: for example a weekly window or a demand-response event. Absent if no
    /// cap holds now.
    pub source: Option<String>,
    /// Sum of the limits of all GPUs; while the write of a higher limit is in flight, the higher limit counts.
    pub limits_sum_w: f64,
    /// Power left under the cap: `limit_w` less `limits_sum_w`; negative if the cap is exceeded, absent if no cap holds
    /// now.
    pub headroom_w: Option<f64>,
    /// Lowest possible sum of the limits: GPUs that wattune may control count with their lowest limits, others with
    /// their present limits.
    pub lowest_sum_w: f64,
    /// Time of the cap's next change; absent if no change is known.
    pub next_change: Option<DateTime<Utc>>,
    /// Strictest cap from `next_change` to the change after it; absent if no cap holds in that time.
    pub next_limit_w: Option<f64>,
    /// Length of time before a fall of the cap at which wattune begins to lower limits.
    pub lead_s: f64,
}

/// State of the ledger.
#[derive(Clone, Debug, Default, PartialEq, Serialize, ToSchema)]
pub struct LedgerView {
    /// Time at which this daemon last closed a block of the ledger, which holds the intervals of about an hour, and
    /// compared the block's energy with the devices' counters; absent before the first close.
    pub closed_at: Option<DateTime<Utc>>,
    /// Energy recorded since the daemon's start, by device, owner and method of measurement.
    pub recorded: Vec<RecordedView>,
    /// Energy recorded for each open job by kind of device, in joules, by the job's id. For metrics, whose counters
    /// must not fall: corrections do not lower it.
    #[serde(skip)]
    pub recorded_of_jobs: BTreeMap<String, BTreeMap<String, f64>>,
    /// Number of gaps since the daemon's start: unmonitored times whose energy a counter showed afterwards.
    pub gaps: u64,
    /// Energy of the gaps since the daemon's start.
    pub gap_j: f64,
    /// Number of times since the daemon's start for which a device's energy is unknown, for example because the
    /// device's counter was reset while no daemon monitored it.
    pub unknown_gaps: u64,
    /// Number of gaps with known energy in the ledger's last 24 hours, including those before this daemon's start;
    /// absent before the first count.
    pub gaps_last_day: Option<u64>,
    /// Number of times with unknown energy in the ledger's last 24 hours, including those before this daemon's start;
    /// absent before the first count.
    pub unknown_gaps_last_day: Option<u64>,
    /// Absolute difference between the recorded energy and the increase of the devices' counters, summed over the
    /// blocks (intervals of about an hour each) that were closed since the daemon's start; zero unless the ledger is
    /// wrong.
    pub difference_j: f64,
    /// Number of settlements since the daemon's start. A settlement computes the emissions of an hour, or computes them
    /// again.
    pub settlements: u64,
    /// Number of hours whose emissions are still to be computed.
    pub pending_hours: u64,
    /// Energy of the last 30 days by the finality of the carbon intensities used for it; absent until the daemon has
    /// computed the emissions of an hour.
    pub settled: Option<SettledView>,
    /// Savings of jobs that ended in the last 30 days; absent before the first estimate.
    pub saved: Option<SavedView>,
}

/// Savings of the jobs that ended in the last 30 days, summed.
#[derive(Clone, Debug, Default, PartialEq, Serialize, ToSchema)]
pub struct SavedView {
    /// Emissions saved compared with the original limits, summed over the jobs with a known estimate; absent if no job
    /// has one.
    pub saved_g: Option<IntervalView>,
    /// Number of jobs with a known estimate.
    pub known_jobs: u64,
    /// Number of ended jobs, with or without a known estimate.
    pub jobs: u64,
}

/// Energy recorded for one device, one kind of owner and one method of measurement.
#[derive(Clone, Debug, PartialEq, Serialize, ToSchema)]
pub struct RecordedView {
    /// Device: a GPU's UUID, or a CPU package or its memory, such as `cpu:package-0`.
    pub device: String,
    /// Owner of the energy: `job`, `idle` or `unattributed`.
    pub share: String,
    /// Method of measurement: `counter`, `integrated_power`, or `counter_gap` for an unmonitored time whose energy a
    /// counter showed afterwards.
    pub source: String,
    /// Energy recorded since the daemon's start.
    pub energy_j: f64,
}

/// Energy by the finality of the carbon intensities used for it.
#[derive(Clone, Debug, Default, PartialEq, Serialize, ToSchema)]
pub struct SettledView {
    /// Energy with a forecast or substituted carbon intensity.
    pub forecast_j: f64,
    /// Energy with a carbon intensity that may be revised.
    pub provisional_j: f64,
    /// Energy with a final carbon intensity.
    pub final_j: f64,
    /// Energy without a carbon intensity.
    pub unknown_j: f64,
    /// Emissions of the energy with a carbon intensity.
    pub carbon_g: f64,
}
