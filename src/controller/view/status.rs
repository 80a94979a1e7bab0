//! View of the whole daemon: planning, storage, cap, carbon budget and ledger beside its GPUs and jobs.

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
    /// Carbon signal now.
    pub carbon: CarbonView,
    /// Day-ahead price of the present slot, with its currency; absent without a source or a value.
    pub price: Option<PresentPrice>,
    /// Node's cap; absent if no cap holds now and none is known for later.
    pub cap: Option<CapView>,
    /// Carbon budget of all jobs; absent without one, or once it is over.
    pub carbon_budget: Option<BudgetView>,
    /// State of planning.
    pub planning: PlanningView,
    /// State of storage.
    pub storage: StorageView,
    /// State of the ledger.
    pub ledger: LedgerView,
    /// GPUs and their owners.
    pub gpus: Vec<GpuView>,
    /// CPU packages and memory; absent where the daemon does not read them.
    pub cpu: Option<CpuView>,
    /// Jobs that have not ended, oldest first. Events have at most 50 of them: those that control GPUs, then the newest.
    pub jobs: Vec<JobView>,
    /// Number of jobs left out of `jobs`.
    pub jobs_left_out: usize,
    /// Problems, in one sentence each. Events have at most 50 of them.
    pub problems: Vec<String>,
    /// Number of problems left out of `problems`.
    pub problems_left_out: usize,
}

impl StatusView {
    /// Returns at most `most` jobs that have not ended, oldest first: those that control GPUs, then the newest.
    pub fn foremost_jobs(&self, most: usize) -> Vec<&JobView> {
        let mut places: Vec<usize> =
            (0..self.jobs.len()).filter(|place| self.jobs[*place].ended_at.is_none()).collect();
        places.sort_by_key(|place| (!self.jobs[*place].control, std::cmp::Reverse(*place)));
        places.truncate(most);
        places.sort_unstable();
        places.into_iter().map(|place| &self.jobs[place]).collect()
    }

    /// Keeps at most `most` jobs and problems, and counts the rest.
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

/// State of planning.
#[derive(Clone, Debug, Default, Serialize, ToSchema)]
pub struct PlanningView {
    /// Duration of the last search for plans.
    pub last_search_s: Option<f64>,
    /// Time since the present search began, if it takes longer than usual; the previous plans stay in force meanwhile.
    pub late_s: Option<f64>,
}

/// State of storage.
#[derive(Clone, Debug, Default, Serialize, ToSchema)]
pub struct StorageView {
    /// Reason why the ledger cannot be written now; records are kept in memory meanwhile.
    pub fault: Option<String>,
    /// Reason why the journal of original limits cannot be written now; no limit is set meanwhile.
    pub journal_fault: Option<String>,
    /// Number of closed intervals that are not written yet.
    pub unwritten_intervals: usize,
}

/// Carbon budget of the node: limit on the emissions of all of its jobs within a span.
#[derive(Clone, Debug, PartialEq, Serialize, ToSchema)]
pub struct BudgetView {
    /// Start of the span.
    pub from: DateTime<Utc>,
    /// End of the span.
    pub until: DateTime<Utc>,
    /// Maximum emissions within the span.
    pub limit_g: f64,
    /// Recorded emissions of all jobs within the span.
    pub emissions_g: f64,
    /// Rest of the budget; negative where it is exceeded.
    pub left_g: f64,
    /// Recorded emissions plus those that the present plans expect until the span ends; jobs without a plan add none.
    pub expected_g: f64,
}

/// Node's cap now.
#[derive(Clone, Debug, PartialEq, Serialize, ToSchema)]
pub struct CapView {
    /// Maximum sum of the limits of all GPUs now; absent without a cap now.
    pub limit_w: Option<f64>,
    /// Rule that sets the present cap, in words: for example a weekly window or a demand-response event.
    pub source: Option<String>,
    /// Sum of the limits of all GPUs, writes in flight included.
    pub limits_sum_w: f64,
    /// Power left under the cap; negative where the cap is exceeded.
    pub headroom_w: Option<f64>,
    /// Lowest possible sum: controllable GPUs at their lowest limits, others as they are.
    pub lowest_sum_w: f64,
    /// Time of the cap's next change.
    pub next_change: Option<DateTime<Utc>>,
    /// Strictest cap between that change and the one after it; absent if there is no cap then.
    pub next_limit_w: Option<f64>,
    /// Time before a fall of the cap at which limits are lowered.
    pub lead_s: f64,
}

/// State of the ledger.
#[derive(Clone, Debug, Default, PartialEq, Serialize, ToSchema)]
pub struct LedgerView {
    /// Time up to which the ledger's blocks are closed against the devices' counters; absent before the first close.
    pub closed_at: Option<DateTime<Utc>>,
    /// Energy recorded since the daemon's start.
    pub recorded: Vec<RecordedView>,
    /// Number of gaps since the daemon's start: unmonitored times whose energy a counter showed afterwards.
    pub gaps: u64,
    /// Energy of these gaps.
    pub gap_j: f64,
    /// Number of gaps since the daemon's start with unknown energy, because the counter was reset meanwhile.
    pub unknown_gaps: u64,
    /// Number of gaps in the ledger's last 24 hours, of all daemons; absent before the first count.
    pub gaps_last_day: Option<u64>,
    /// Number of these gaps with unknown energy.
    pub unknown_gaps_last_day: Option<u64>,
    /// Difference between ledger and counters in blocks closed since the daemon's start; zero unless the ledger is wrong.
    pub difference_j: f64,
    /// Number of hourly emissions computed since the daemon's start, all versions.
    pub settlements: u64,
    /// Number of hours whose emissions are still to be computed.
    pub pending_hours: u64,
    /// Energy of the last 30 days by the finality of its carbon intensity; absent before the first computation.
    pub settled: Option<SettledView>,
    /// Savings of jobs that ended in the last 30 days; absent before the first estimate.
    pub saved: Option<SavedView>,
}

/// Savings of several jobs.
#[derive(Clone, Debug, Default, PartialEq, Serialize, ToSchema)]
pub struct SavedView {
    /// Emissions saved against the original limits, by jobs with a known estimate; absent without one.
    pub saved_g: Option<IntervalView>,
    /// Number of jobs with a known estimate.
    pub known_jobs: u64,
    /// Number of ended jobs, with or without a known estimate.
    pub jobs: u64,
}

/// Energy recorded for one device, by the kind of its owner and the method of measurement.
#[derive(Clone, Debug, PartialEq, Serialize, ToSchema)]
pub struct RecordedView {
    /// Device: a GPU's UUID, or a CPU package or its memory, such as `cpu:package-0`.
    pub device: String,
    /// Owner of the energy: `job`, `idle` or `unattributed`.
    pub share: String,
    /// Method of measurement: `counter`, `integrated_power` or `counter_gap`.
    pub source: String,
    /// Energy recorded since the daemon's start.
    pub energy_j: f64,
}

/// Energy by the finality of its carbon intensity.
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
