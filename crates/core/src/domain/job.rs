//! A training run as requested: its work and its objective.

use std::collections::BTreeMap;

use chrono::{DateTime, Datelike, Utc};
use serde::{Deserialize, Serialize};

use super::{GpuId, InvalidJob, JobName, Processes, first_invisible, is_visible, legible};
use crate::units::{GramsCo2e, Samples, Seconds, Short, Watts};

/// Minimum carbon budget: an idle GPU emits less than this within seconds, so smaller ones are mistakes of units.
const LEAST_BUDGET: GramsCo2e = GramsCo2e::new(0.001);
/// Maximum idle power of a job's GPUs.
const MOST_IDLE: Watts = Watts::new(1e5);
/// Maximum idle power of one GPU.
const MOST_IDLE_EACH: Watts = Watts::new(1e3);

/// Amount of work.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Work {
    /// Total number of samples.
    TotalSamples(Samples),
    /// Unknown; the job is planned over a rolling window.
    Unknown,
}

/// A job's objective. All constraints apply together.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Objective {
    /// Zeus's η with carbon instead of energy: 1 minimises carbon only, 0 time only.
    pub eta: f64,
    /// Allowed increase of the job's time over running at the ceiling: 0.03 is 3 %.
    pub max_slowdown: Option<f64>,
    /// Time by which the work must be done.
    pub deadline: Option<DateTime<Utc>>,
    /// Maximum emissions of all work.
    #[serde(default)]
    pub carbon_budget: Option<GramsCo2e>,
    /// Weight of the electricity price against carbon: 0 is carbon only, 1 is price only.
    #[serde(default)]
    pub price_weight: f64,
    /// Permission to pause, with its costs; absent if the job must run through.
    #[serde(default)]
    pub pausable: Option<Pausing>,
}

/// Constraints and costs of pausing a job.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Pausing {
    /// Power of all its GPUs together during a pause.
    pub idle_power: Watts,
    /// Minimum duration of a run between pauses.
    pub min_run: Seconds,
    /// Minimum duration of a pause.
    pub min_pause: Seconds,
    /// Time per pause at running power without progress, for saving and loading a checkpoint.
    pub checkpoint: Seconds,
}

impl Pausing {
    /// Returns the defaults for a job on a number of GPUs: 50 W per GPU, half an hour each of running and pausing, two
    /// minutes per checkpoint.
    pub fn default_for(boards: usize) -> Self {
        #[expect(clippy::cast_precision_loss, reason = "a node has few GPUs")]
        let idle_power = Watts::new(50.0) * boards as f64;
        let half_an_hour = Seconds::new(1800.0);
        Self { idle_power, min_run: half_an_hour, min_pause: half_an_hour, checkpoint: Seconds::new(120.0) }
    }
}

/// True if a job runs or is paused, and since when, for minimum durations.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Activity {
    /// Training.
    RunningSince(DateTime<Utc>),
    /// Paused by the daemon.
    PausedSince(DateTime<Utc>),
}

impl Objective {
    /// Carbon only, without constraints.
    pub const UNBOUND: Self =
        Self { eta: 1.0, max_slowdown: None, deadline: None, carbon_budget: None, price_weight: 0.0, pausable: None };

    /// Objective of an empty request: carbon only, at most 3 % slower.
    pub const DEFAULT: Self = Self { max_slowdown: Some(0.03), ..Self::UNBOUND };

    /// Validates a request, in which `eta` may be absent. Without `eta` and any constraint, the slowdown of
    /// [`Self::DEFAULT`] applies; with only a carbon budget, time is minimised.
    ///
    /// # Errors
    /// For the first field that is out of range or contradicts another.
    pub fn new(eta: Option<f64>, asked: Self) -> Result<Self, InvalidJob> {
        let mut objective = asked;
        let open_ended = asked.max_slowdown.is_none() && asked.deadline.is_none();
        objective.eta = eta.unwrap_or(if open_ended && asked.carbon_budget.is_some() { 0.0 } else { 1.0 });
        if eta.is_none() && open_ended && asked.carbon_budget.is_none() {
            objective.max_slowdown = Self::DEFAULT.max_slowdown;
        }
        objective.check()
    }

    /// Returns an objective of carbon only with a maximum slowdown.
    ///
    /// # Errors
    /// If the slowdown is not in 0 ≤ s < 1.
    pub fn slower_by(max_slowdown: f64) -> Result<Self, InvalidJob> {
        Self { max_slowdown: Some(max_slowdown), ..Self::UNBOUND }.check()
    }

    fn check(self) -> Result<Self, InvalidJob> {
        let invalid = |field, why| Err(InvalidJob { field, why });
        let Self { eta, max_slowdown, price_weight, .. } = self;
        if !(0.0..=1.0).contains(&eta) {
            let why =
                format!("{} is outside 0..=1; 1 is carbon alone, 0 is time alone{}", Short(eta), as_fraction(eta));
            return invalid("objective.eta", why);
        }
        if let Some(slowdown) = max_slowdown
            && !(0.0..1.0).contains(&slowdown)
        {
            let meant = if (1.0..=100.0).contains(&slowdown) {
                format!("; for {} % write {}", Short(slowdown), Short((slowdown * 1e7).round() / 1e9))
            } else {
                String::new()
            };
            let why = format!(
                "{} is not from 0 to below 1; it is a fraction of the job's time: 0.03 allows 3 % more{meant}",
                Short(slowdown)
            );
            return invalid("objective.max_slowdown", why);
        }
        if let Some(budget) = self.carbon_budget
            && budget < LEAST_BUDGET
        {
            let why = format!(
                "is {}; it must be more than 0 grams of CO2 equivalent, {} at the least",
                Short(budget.get()),
                LEAST_BUDGET.get()
            );
            return invalid("objective.carbon_budget_g", why);
        }
        if !(0.0..=1.0).contains(&price_weight) {
            let why = format!(
                "{} is outside 0..=1; 0 is carbon alone, 1 is the price alone{}",
                Short(price_weight),
                as_fraction(price_weight)
            );
            return invalid("objective.price_weight", why);
        }
        if price_weight > 0.0 && eta == 0.0 {
            let why =
                "with eta 0, or a carbon budget alone, only time counts and a price changes nothing; give eta more \
                       than 0, or leave the price_weight out"
                    .into();
            return invalid("objective.price_weight", why);
        }
        self.check_pausing()?;
        Ok(self)
    }

    fn check_pausing(&self) -> Result<(), InvalidJob> {
        let Some(Pausing { idle_power, min_run, min_pause, checkpoint }) = self.pausable else { return Ok(()) };
        let invalid = |field, why| Err(InvalidJob { field, why });
        if !(Watts::ZERO..=MOST_IDLE).contains(&idle_power) {
            let why = format!("is {}; it must be within 0 to {} watts", Short(idle_power.get()), MOST_IDLE.get());
            return invalid("objective.pausable.idle_power_w", why);
        }
        for (field, length) in [
            ("objective.pausable.min_run_s", min_run),
            ("objective.pausable.min_pause_s", min_pause),
            ("objective.pausable.checkpoint_s", checkpoint),
        ] {
            if !(0.0..=86_400.0).contains(&length.get()) {
                return invalid(field, format!("is {}; it must be within 0 to 86400 seconds", Short(length.get())));
            }
        }
        if self.max_slowdown.is_none() && self.deadline.is_none() {
            let why = "needs max_slowdown or a deadline: without one a job could wait for ever".into();
            return invalid("objective.pausable", why);
        }
        Ok(())
    }
}

/// Returns a hint if a weight was given in percent.
fn as_fraction(weight: f64) -> String {
    match weight {
        percent if (1.0..=100.0).contains(&percent) => {
            format!("; for {} % write {}", Short(percent), Short(percent / 100.0))
        }
        _ => String::new(),
    }
}

/// A registered training run.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct JobSpec {
    /// The user's name for it; recurring runs share it.
    pub name: JobName,
    /// GPUs that it trains on, in the job's order, without duplicates.
    pub gpus: Vec<GpuId>,
    /// Samples per step over all its GPUs; part of the profile's key.
    pub batch_size: Option<u64>,
    /// Amount of work.
    pub work: Work,
    /// Objective and constraints.
    pub objective: Objective,
    /// Time since the last report after which the job counts as dead.
    pub lease: Seconds,
    /// True if wattune may set its GPUs' limits; if not, it is only accounted.
    pub control: bool,
    /// Priority where not all jobs can have what they want: jobs with lower numbers yield first.
    #[serde(default)]
    pub priority: i32,
    /// The user's labels.
    pub tags: BTreeMap<String, String>,
    /// Processes of the job, if registered; CPU energy and shared GPUs are split by them.
    #[serde(default)]
    pub processes: Option<Processes>,
}

/// Maximum number of samples: larger counts are mistakes, and their sums would not stay finite.
pub const MOST_SAMPLES: f64 = 1e15;

impl JobSpec {
    /// Valid leases: shorter ones would lose live jobs, longer ones would leave limits behind dead ones.
    pub const LEASE_RANGE_S: std::ops::RangeInclusive<f64> = 1.0..=86_400.0;

    /// Valid priorities.
    pub const PRIORITIES: std::ops::RangeInclusive<i32> = -1000..=1000;

    /// Checks what types do not.
    ///
    /// # Errors
    /// Names the first wrong field and what would be right.
    pub fn check(self) -> Result<Self, InvalidJob> {
        let invalid = |field, why| Err(InvalidJob { field, why });
        if self.gpus.is_empty() {
            return invalid("gpus", "names no GPU; give at least one index or UUID, see GET /v1/gpus".into());
        }
        if let Some(twice) = self.gpus.iter().enumerate().find(|(i, g)| self.gpus[..*i].contains(g)) {
            return invalid("gpus", format!("names {} twice", twice.1));
        }
        if self.batch_size == Some(0) {
            return invalid("batch_size", "is 0; give the number of samples per step, or leave it out".into());
        }
        if let Work::TotalSamples(total) = self.work
            && total <= Samples::ZERO
        {
            return invalid("work.total_samples", format!("is {}; it must be more than 0", Short(total.get())));
        }
        if let Work::TotalSamples(total) = self.work
            && total.get() > MOST_SAMPLES
        {
            let why =
                format!("is {:e}; it must be at most {MOST_SAMPLES:e}; leave work out if it is unknown", total.get());
            return invalid("work.total_samples", why);
        }
        if !Self::LEASE_RANGE_S.contains(&self.lease.get()) {
            return invalid("lease_s", format!("is {}; it must be within 1 to 86400 seconds", Short(self.lease.get())));
        }
        if let Some(at) = self.objective.deadline.filter(|at| !(1..=9999).contains(&at.year())) {
            let why = format!("is in the year {}; give one from 1 to 9999, as RFC 3339 writes them", at.year());
            return invalid("objective.deadline", why);
        }
        if self.objective.deadline.is_some() && self.work == Work::Unknown {
            let why = "a deadline needs known work; give work.total_samples too".into();
            return invalid("objective.deadline", why);
        }
        if self.objective.carbon_budget.is_some() && self.work == Work::Unknown {
            let why = "a carbon budget needs known work; give work.total_samples too".into();
            return invalid("objective.carbon_budget_g", why);
        }
        let idle_power = self.objective.pausable.map_or(Watts::ZERO, |pausing| pausing.idle_power);
        #[expect(clippy::cast_precision_loss, reason = "a node has few GPUs")]
        let most = MOST_IDLE_EACH * self.gpus.len() as f64;
        if idle_power > most {
            let why = format!(
                "is {}, but {} idle GPU(s) draw at most {} watts: was it given in milliwatts?",
                Short(idle_power.get()),
                self.gpus.len(),
                most.get()
            );
            return invalid("objective.pausable.idle_power_w", why);
        }
        if !Self::PRIORITIES.contains(&self.priority) {
            let why = format!("is {}; it must be within -1000 to 1000; higher is more important", self.priority);
            return invalid("priority", why);
        }
        if self.tags.len() > 16 || self.tags.iter().any(|(k, v)| k.is_empty() || k.len() > 64 || v.len() > 256) {
            let why = "at most 16 tags, with keys of 1 to 64 and values of up to 256 bytes".into();
            return invalid("tags", why);
        }
        for (key, value) in &self.tags {
            for (what, text) in [("the key", key), ("the value", value)] {
                if let Some(odd) = first_invisible(text) {
                    let why = format!(
                        "{what} of {key:?} has the character {odd}; control characters, invisible ones and those that change \
                         the direction of text are not allowed"
                    );
                    return invalid("tags", why);
                }
                if !text.is_empty() && !is_visible(text) {
                    let why = format!("{what} of {:?} has no visible character", legible(key));
                    return invalid("tags", why);
                }
            }
        }
        Ok(self)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tags_must_be_readable() {
        let check = |key: &str, value: &str| {
            let spec = JobSpec {
                name: JobName::new("a").expect("a name"),
                gpus: vec![GpuId::new("GPU-0").expect("an id")],
                batch_size: None,
                work: Work::Unknown,
                objective: Objective::slower_by(0.03).expect("right"),
                lease: Seconds::new(60.0),
                control: true,
                priority: 0,
                tags: BTreeMap::from([(key.to_owned(), value.to_owned())]),
                processes: None,
            };
            spec.check()
        };
        assert!(check("team", "vision – größe 訓練 👍").is_ok());
        for odd in ["\n", "\r", "\t", "\u{1b}", "\0", "\u{85}", "\u{202e}", "\u{200b}", "\u{2029}"] {
            for (key, value, of) in [("team", format!("a{odd}b"), "value"), (&*format!("a{odd}"), "b".into(), "key")] {
                let error = check(key, &value).expect_err("refused").to_string();
                let named = format!("U+{:04X}", u32::from(odd.chars().next().expect("one")));
                assert!(error.starts_with(&format!("tags: the {of} of ")) && error.contains(&named), "{error}");
                assert!(!error.contains(odd), "{error:?}");
            }
        }
    }
}
