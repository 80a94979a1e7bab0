//! The daemon as a whole: planning, storage, cap, carbon budget and ledger beside its GPUs and jobs.

use chrono::{DateTime, Utc};
use serde::Serialize;
use utoipa::ToSchema;

use super::{CarbonView, CpuView, GpuView, IntervalView, JobView, PresentPrice};

/// The daemon as a whole.
#[derive(Clone, Debug, Serialize, ToSchema)]
pub struct StatusView {
    /// wattune's version.
    pub version: &'static str,
    /// `control`, or `observe` where limits are planned but never set.
    pub mode: &'static str,
    /// Whether every board is a simulation.
    pub simulated: bool,
    /// When the daemon started.
    pub started_at: DateTime<Utc>,
    /// The daemon's present, which is not the wall clock's in a demo.
    pub now: DateTime<Utc>,
    /// The carbon signal.
    pub carbon: CarbonView,
    /// The day-ahead price of the present slot, with its currency; absent where there is no source or no value.
    pub price: Option<PresentPrice>,
    /// The node's cap; absent where none is known, neither now nor later.
    pub cap: Option<CapView>,
    /// What all jobs together may emit; absent where there is no budget, or it is over.
    pub carbon_budget: Option<BudgetView>,
    /// How planning goes.
    pub planning: PlanningView,
    /// How storing goes.
    pub storage: StorageView,
    /// How the books stand.
    pub ledger: LedgerView,
    /// The boards and their owners.
    pub gpus: Vec<GpuView>,
    /// CPU packages and memory; absent where the daemon does not look at them.
    pub cpu: Option<CpuView>,
    /// The jobs that have not ended, oldest first. Events have 50 of them at the most: those that control boards, and then
    /// the newest.
    pub jobs: Vec<JobView>,
    /// How many more there are.
    pub jobs_left_out: usize,
    /// What somebody should look at, in one sentence each. Events have 50 of them at the most.
    pub problems: Vec<String>,
    /// How many more there are.
    pub problems_left_out: usize,
}

impl StatusView {
    /// Of the jobs that have not ended those that matter most, `most` of them: those that control boards, then the newest; in the order of all.
    pub fn foremost_jobs(&self, most: usize) -> Vec<&JobView> {
        let mut places: Vec<usize> =
            (0..self.jobs.len()).filter(|place| self.jobs[*place].ended_at.is_none()).collect();
        places.sort_by_key(|place| (!self.jobs[*place].control, std::cmp::Reverse(*place)));
        places.truncate(most);
        places.sort_unstable();
        places.into_iter().map(|place| &self.jobs[place]).collect()
    }

    /// The same with no more than `most` jobs and problems, and how many are left out.
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

/// How planning goes.
#[derive(Clone, Debug, Default, Serialize, ToSchema)]
pub struct PlanningView {
    /// How long the last search for plans took.
    pub last_search_s: Option<f64>,
    /// For how long a search goes on that takes longer than it should: meanwhile the plans before stay in force.
    pub late_s: Option<f64>,
}

/// How storing goes.
#[derive(Clone, Debug, Default, Serialize, ToSchema)]
pub struct StorageView {
    /// Why the books cannot be written now; what is booked is kept in memory meanwhile.
    pub fault: Option<String>,
    /// Why the journal of found limits cannot be written now; no limit is set meanwhile.
    pub journal_fault: Option<String>,
    /// Intervals that are booked and not written yet.
    pub unwritten_intervals: usize,
}

/// The node's carbon budget: what all of its jobs together may emit within a span.
#[derive(Clone, Debug, PartialEq, Serialize, ToSchema)]
pub struct BudgetView {
    /// When the span begins.
    pub from: DateTime<Utc>,
    /// When it ends.
    pub until: DateTime<Utc>,
    /// What may be emitted within it.
    pub limit_g: f64,
    /// What all jobs have emitted within it, as far as it is booked.
    pub emitted_g: f64,
    /// What is left; negative where it is exceeded.
    pub left_g: f64,
    /// What will have been emitted at its end by the present plans; jobs without a plan are left out.
    pub expected_g: f64,
}

/// The node's cap now.
#[derive(Clone, Debug, PartialEq, Serialize, ToSchema)]
pub struct CapView {
    /// What the limits of all boards may add up to now; absent where there is no cap now.
    pub limit_w: Option<f64>,
    /// What makes the cap, in words.
    pub source: Option<String>,
    /// What the limits of all boards add up to, those on their way included.
    pub limits_sum_w: f64,
    /// What is left of the cap; negative where it is exceeded.
    pub headroom_w: Option<f64>,
    /// The lowest sum that can be reached: controllable boards at their lowest limits, others as they are.
    pub lowest_sum_w: f64,
    /// When the cap changes next.
    pub next_change: Option<DateTime<Utc>>,
    /// The strictest cap between that moment and the change after it; absent where there is none then.
    pub next_limit_w: Option<f64>,
    /// Limits are lowered this long before the cap falls.
    pub lead_s: f64,
}

/// How the books stand.
#[derive(Clone, Debug, Default, PartialEq, Serialize, ToSchema)]
pub struct LedgerView {
    /// Until when blocks are closed against the devices' counters; absent before the first close.
    pub closed_at: Option<DateTime<Utc>>,
    /// What was booked since the daemon's start.
    pub booked: Vec<BookedView>,
    /// How many times since the daemon's start a device's energy was found after a time in which nobody looked.
    pub gaps: u64,
    /// The energy of those times.
    pub gap_j: f64,
    /// How many times since the daemon's start a device used energy of which nothing tells how much: its counter was
    /// reset meanwhile.
    pub unknown_gaps: u64,
    /// How many gaps the books hold of the last 24 hours, whichever daemon found them; absent before they were looked at.
    pub gaps_last_day: Option<u64>,
    /// The same of times of which nothing tells how much energy was used.
    pub unknown_gaps_last_day: Option<u64>,
    /// By how much books and counters differ in blocks closed since the daemon's start; zero, or something is wrong.
    pub difference_j: f64,
    /// Settlements of hours written since the daemon's start, all versions.
    pub settlements: u64,
    /// Hours that wait to be settled.
    pub pending_hours: u64,
    /// The energy of the last 30 days by what is known of its intensity; absent before the first settlement.
    pub settled: Option<SettledView>,
    /// What jobs saved that ended in the last 30 days; absent before that was looked at.
    pub saved: Option<SavedView>,
}

/// What jobs saved together.
#[derive(Clone, Debug, Default, PartialEq, Serialize, ToSchema)]
pub struct SavedView {
    /// Emissions saved against the limit found on their boards, by those jobs of which it is known; absent if there is none.
    pub saved_g: Option<IntervalView>,
    /// How many these are.
    pub known_jobs: u64,
    /// How many jobs ended.
    pub jobs: u64,
}

/// Energy booked to one kind of share of a device.
#[derive(Clone, Debug, PartialEq, Serialize, ToSchema)]
pub struct BookedView {
    /// A GPU's UUID, or a part of the processors ("cpu:package-0").
    pub device: String,
    /// `job`, `idle` or `unattributed`.
    pub share: String,
    /// `counter`, `integrated_power` or `counter_gap`.
    pub source: String,
    /// The energy.
    pub energy_j: f64,
}

/// Energy by what is known of its intensity.
#[derive(Clone, Debug, Default, PartialEq, Serialize, ToSchema)]
pub struct SettledView {
    /// With a forecast or a filled-in intensity.
    pub forecast_j: f64,
    /// With one that may be revised.
    pub provisional_j: f64,
    /// With one that changes no more.
    pub final_j: f64,
    /// With none.
    pub unknown_j: f64,
    /// What the known part emitted.
    pub carbon_g: f64,
}
